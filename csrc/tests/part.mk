# C test programs, built into build/tests/.

tests: $(BUILD)/tests/region-layout

$(BUILD)/tests/region-layout: tests/region_layout.c include/vgpu/region.h include/vgpu/version.h
	@mkdir -p $(@D)
	$(CC_x86_64) $(CFLAGS) $(LDFLAGS) -MF $(BUILD)/obj/region_layout.d -o $@ $<

tests: $(BUILD)/tests/names

$(BUILD)/tests/names: tests/names.c include/vgpu/paths.h include/vgpu/version.h
	@mkdir -p $(@D)
	$(CC_x86_64) $(CFLAGS) $(LDFLAGS) -MF $(BUILD)/obj/names.d -o $@ $<

include tests/account.mk
include tests/core.mk
include tests/bench.mk
include tests/hardness.mk
include tests/static.mk
include tests/tamper.mk
