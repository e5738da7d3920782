# Unit tests of libvgpu's core: the parts that need no driver, linked into plain programs.
CORE_PARTS := charge.c message.c quota.c region.c share.c slot.c table.c
CORE_SOURCES := $(CORE_PARTS:%=libvgpu/%)
CORE_CFLAGS := $(CFLAGS) -D_GNU_SOURCE -Ilibvgpu -Itests
CORE_HEADERS := $(wildcard libvgpu/*.h include/*.h include/vgpu/*.h tests/core_*.h)

$(BUILD)/tests/core-%: tests/core_%.c $(CORE_SOURCES) $(CORE_HEADERS)
	@mkdir -p $(@D) $(BUILD)/obj/tests
	$(CC_x86_64) $(filter-out -MMD -MP,$(CORE_CFLAGS)) $(LDFLAGS) -pthread -o $@ $< $(CORE_SOURCES)

tests: $(BUILD)/tests/core-region $(BUILD)/tests/core-table $(BUILD)/tests/core-limits

# The same parts with named steps, at which a test kills or stops the process.
$(BUILD)/tests/core-steps: CORE_CFLAGS += -DVGPU_WITH_STEPS
tests: $(BUILD)/tests/core-steps
tests: $(BUILD)/tests/core-fuzz

# `make debug`: the same programs under sanitizers. ziglang brings no runtime for the address sanitizer, so the machine's
# compiler is used; it is needed for nothing else.
DEBUG_CC ?= $(shell command -v clang || command -v gcc || echo no-compiler-with-sanitizers)
CORE_PROGRAMS := region steps table limits fuzz

$(BUILD)/debug/core-%: tests/core_%.c $(CORE_SOURCES) $(CORE_HEADERS)
	@mkdir -p $(@D)
	$(DEBUG_CC) $(filter-out -MMD -MP -O2 -fno-sanitize=all,$(CORE_CFLAGS)) -O1 \
		-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -pthread -o $@ $< $(CORE_SOURCES)

$(BUILD)/debug/tsan-%: tests/core_%.c $(CORE_SOURCES) $(CORE_HEADERS)
	@mkdir -p $(@D)
	$(DEBUG_CC) $(filter-out -MMD -MP -O2 -fno-sanitize=all,$(CORE_CFLAGS)) -O1 -fsanitize=thread -pthread \
		-o $@ $< $(CORE_SOURCES)

$(BUILD)/debug/core-steps: CORE_CFLAGS += -DVGPU_WITH_STEPS
debug: $(CORE_PROGRAMS:%=$(BUILD)/debug/core-%) $(BUILD)/debug/tsan-region

# Runs them; core-limits is asked by tests.
.PHONY: run-debug
run-debug: debug
	for run in core-table core-steps core-region "core-fuzz texts" "core-fuzz decisions" "core-fuzz scribbles" tsan-region; do \
		echo "  $$run"; $(BUILD)/debug/$$run 2>$(BUILD)/debug/stderr || { cat $(BUILD)/debug/stderr >&2; exit 1; }; \
	done
