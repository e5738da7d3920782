# A program without a dynamic linker, for the monitor's tests. musl, since glibc's static programs aren't zig's to make.
STATIC_SOURCES := tests/static_hold.c $(addprefix simgpu/,$(SIM_DRIVER) $(SIM_STATE))

tests: $(BUILD)/tests/static-hold

$(BUILD)/tests/static-hold: $(STATIC_SOURCES) $(wildcard simgpu/*.h include/*.h include/vgpu/*.h)
	@mkdir -p $(@D)
	$(SAY) $(ZIG) cc -target x86_64-linux-musl -static $(filter-out -MMD -MP,$(CFLAGS)) -D_GNU_SOURCE= -o $@ $(STATIC_SOURCES)
