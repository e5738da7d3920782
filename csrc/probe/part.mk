# build/vgpu-probe, for glibc 2.17 and later: it needs libc and libdl, which every image that can carry the driver has.
# (A static program couldn't open the driver, nor be preloaded.)
PROBE_SOURCES := main.c session.c driver.c nvml.c block.c kernel.c text.c info.c hold.c verify.c region.c

define probe_for # architecture, result
$(BUILD)/obj/probe/$(1)/%.o: probe/%.c
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(CFLAGS) -fPIE -c -o $$@ $$<

$(2): $(PROBE_SOURCES:%.c=$(BUILD)/obj/probe/$(1)/%.o)
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(LDFLAGS) -pie -o $$@ $$^ -ldl

-include $(PROBE_SOURCES:%.c=$(BUILD)/obj/probe/$(1)/%.d)
all: $(2)
endef

$(eval $(call probe_for,x86_64,$(BUILD)/vgpu-probe))
$(eval $(call probe_for,aarch64,$(BUILD)/aarch64/vgpu-probe))
