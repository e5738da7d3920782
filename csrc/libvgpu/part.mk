# build/libvgpu.so and build/aarch64/libvgpu.so. Debug information goes into a file beside each.
VGPU_SOURCES := $(sort $(notdir $(wildcard libvgpu/*.c)))

VGPU_ARCHES := x86_64 aarch64
VGPU_FILE_x86_64 := $(BUILD)/libvgpu.so
VGPU_FILE_aarch64 := $(BUILD)/aarch64/libvgpu.so

# -Bsymbolic: our own references bind to ourselves, without a relocation, whatever else carries the driver's names.
# The one library that may be needed is libc: what older ones keep in libdl and libpthread is found at run time.
VGPU_CFLAGS := $(CFLAGS) -D_GNU_SOURCE -fPIC -fno-plt -fno-asynchronous-unwind-tables -Ilibvgpu
VGPU_LDFLAGS := $(LDFLAGS) -shared -Wl,-soname,libvgpu.so -Wl,-Bsymbolic -Wl,--hash-style=gnu -Wl,--as-needed \
	-Wl,--gc-sections

$(BUILD)/obj/libvgpu/exports.ld: libvgpu/exports.ld.in libvgpu/hooks.def
	@mkdir -p $(@D)
	$(CC_x86_64) -E -P -x c -Ilibvgpu $< -o $@

define VGPU_ARCH_RULES
$(BUILD)/obj/libvgpu/$(1)/%.o: libvgpu/%.c
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(VGPU_CFLAGS) -c $$< -o $$@

$(VGPU_FILE_$(1)): $(VGPU_SOURCES:%.c=$(BUILD)/obj/libvgpu/$(1)/%.o) $(BUILD)/obj/libvgpu/exports.ld
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(VGPU_LDFLAGS) -Wl,--version-script,$(BUILD)/obj/libvgpu/exports.ld $$(filter %.o,$$^) -o $$@

-include $(VGPU_SOURCES:%.c=$(BUILD)/obj/libvgpu/$(1)/%.d)
all: $(VGPU_FILE_$(1))
endef
$(foreach arch,$(VGPU_ARCHES),$(eval $(call VGPU_ARCH_RULES,$(arch))))
