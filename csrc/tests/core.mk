# Unit tests of libvgpu's core: the parts that need no driver, linked into plain programs.
CORE_PARTS := charge.c message.c quota.c region.c share.c slot.c table.c
CORE_SOURCES := $(CORE_PARTS:%=libvgpu/%)
CORE_CFLAGS := $(CFLAGS) -Ilibvgpu -Itests
CORE_HEADERS := $(wildcard libvgpu/*.h include/*.h include/vgpu/*.h tests/core_*.h)

$(BUILD)/tests/core-%: tests/core_%.c $(CORE_SOURCES) $(CORE_HEADERS)
	@mkdir -p $(@D) $(BUILD)/obj/tests
	$(CC_x86_64) $(filter-out -MMD -MP,$(CORE_CFLAGS)) $(LDFLAGS) -pthread -o $@ $< $(CORE_SOURCES)

all: $(BUILD)/tests/core-region $(BUILD)/tests/core-table $(BUILD)/tests/core-limits
