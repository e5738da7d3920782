# build/libvgpu.so and build/aarch64/libvgpu.so, each with a twin libvgpu.so.debug: the same link, not stripped, whose
# symbols gdb and perf can be given. `make debug` builds build/debug/libvgpu.so, which traps at undefined behaviour.
VGPU_SOURCES := account_array.c account_context.c account_graph.c account_ipc.c account_launch.c account_linear.c \
	account_module.c account_pool.c account_vmm.c answers.c charge.c context.c devices.c forward.c \
	gate.c library.c measure.c message.c names.c object.c process.c quota.c real.c region.c \
	route_dlopen.c route_dlsym.c route_procaddress.c share.c slot.c small.c start.c sync.c table.c

VGPU_VARIANTS := x86_64 aarch64 debug
VGPU_FOLDER_x86_64 := $(BUILD)
VGPU_FOLDER_aarch64 := $(BUILD)/aarch64
VGPU_FOLDER_debug := $(BUILD)/debug
CC_debug = $(CC_x86_64)

# No -Bsymbolic: it would put this library at the head of its own scope, before interposers that were loaded before it;
# our own references bind to ourselves because the exported functions are protected (hooks.h).
# The one library that may be needed is libc: what older ones keep in libdl and libpthread is found at run time.
VGPU_CFLAGS := $(CFLAGS) -D_GNU_SOURCE -fPIC -ffunction-sections -fdata-sections -Ilibvgpu
VGPU_CFLAGS_debug := -O1 -fno-omit-frame-pointer -fsanitize=undefined -fsanitize-trap=undefined
# Lazily bound: most programs never call what this library calls, and looking 38 names up costs 15 us an exec.
VGPU_LDFLAGS := $(LDFLAGS) -Wl,-z,lazy -shared -Wl,-soname,libvgpu.so -Wl,--hash-style=gnu -Wl,--as-needed -Wl,--gc-sections
VGPU_EXPORTS := $(BUILD)/obj/libvgpu/exports.ld

$(VGPU_EXPORTS): libvgpu/exports.ld.in libvgpu/hooks.def
	@mkdir -p $(@D)
	$(CC_x86_64) -E -P -x c -Ilibvgpu $< -o $@

# Linked beside and renamed: a process that has the old file mapped keeps it.
define VGPU_VARIANT_RULES
$(BUILD)/obj/libvgpu/$(1)/%.o: libvgpu/%.c libvgpu/part.mk
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(VGPU_CFLAGS) $$(VGPU_CFLAGS_$(1)) -c $$< -o $$@

$(VGPU_FOLDER_$(1))/libvgpu.so: $(VGPU_SOURCES:%.c=$(BUILD)/obj/libvgpu/$(1)/%.o) $(VGPU_EXPORTS)
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(VGPU_LDFLAGS) -Wl,--version-script,$(VGPU_EXPORTS) $$(filter %.o,$$^) -o $$@.debug.new
	$$(CC_$(1)) $$(VGPU_LDFLAGS) -s -Wl,--version-script,$(VGPU_EXPORTS) $$(filter %.o,$$^) -o $$@.new
	@mv $$@.debug.new $$@.debug && mv $$@.new $$@

-include $(VGPU_SOURCES:%.c=$(BUILD)/obj/libvgpu/$(1)/%.d)
endef
$(foreach variant,$(VGPU_VARIANTS),$(eval $(call VGPU_VARIANT_RULES,$(variant))))

all: $(BUILD)/libvgpu.so $(BUILD)/aarch64/libvgpu.so
debug: $(BUILD)/debug/libvgpu.so

# By the headers of the compiler's own libc, which a machine without one has too.
LIBC_HEADERS = $(shell $(PYTHON) -c 'import ziglang; print(ziglang.__path__[0])')/lib/libc/include
TIDY_CFLAGS = -std=gnu11 -D_GNU_SOURCE -D__GLIBC_MINOR__=17 -Iinclude -Ilibvgpu --target=x86_64-linux-gnu -nostdlibinc \
	$(foreach folder,x86-linux-gnu generic-glibc x86-linux-any any-linux-any,-isystem $(LIBC_HEADERS)/$(folder))

.PHONY: analyze $(VGPU_SOURCES:%=analyze-%)
analyze: $(VGPU_SOURCES:%=analyze-%)
$(VGPU_SOURCES:%=analyze-%): analyze-%:
	$(dir $(PYTHON))clang-tidy --quiet libvgpu/$* -- $(TIDY_CFLAGS)

include tests/routes.mk
