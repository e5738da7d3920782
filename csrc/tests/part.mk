# C test programs, built into build/tests/.

all: $(BUILD)/tests/region-layout

$(BUILD)/tests/region-layout: tests/region_layout.c include/vgpu/region.h include/vgpu/version.h
	@mkdir -p $(@D)
	$(CC_x86_64) $(CFLAGS) $(LDFLAGS) -MF $(BUILD)/obj/region_layout.d -o $@ $<
