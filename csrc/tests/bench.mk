# Programs that tests/bench runs.
$(BUILD)/tests/bench-calls: tests/bench_calls.c $(BUILD)/simgpu/libcuda.so.1 include/cuda_api.h
	@mkdir -p $(@D)
	$(CC_x86_64) $(filter-out -MMD -MP,$(CFLAGS)) $(LDFLAGS) -o $@ $< $(BUILD)/simgpu/libcuda.so.1

$(BUILD)/tests/bench-spawn: tests/bench_spawn.c
	@mkdir -p $(@D)
	$(CC_x86_64) $(filter-out -MMD -MP,$(CFLAGS)) $(LDFLAGS) -o $@ $<

$(BUILD)/tests/bench-empty.so: tests/bench_empty.c
	@mkdir -p $(@D)
	$(CC_x86_64) $(filter-out -MMD -MP,$(CFLAGS)) $(LDFLAGS) -shared -fPIC -o $@ $<

tests: $(BUILD)/tests/bench-calls $(BUILD)/tests/bench-spawn $(BUILD)/tests/bench-empty.so
