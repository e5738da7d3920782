# A program that changes what it hands to a call while the call runs (tests/libvgpu/test_tampering.py).
$(BUILD)/tests/tamper: tests/tamper.c $(BUILD)/simgpu/libcuda.so.1 include/cuda_api.h
	@mkdir -p $(@D)
	$(CC_x86_64) $(filter-out -MMD -MP,$(CFLAGS)) $(LDFLAGS) -pthread -o $@ $< $(BUILD)/simgpu/libcuda.so.1

tests: $(BUILD)/tests/tamper

# A library that is found in NVML's place (tests/libvgpu/test_contained.py).
$(BUILD)/tests/boast/libnvidia-ml.so.1: tests/boast.c include/nvml_api.h
	@mkdir -p $(@D)
	$(CC_x86_64) $(filter-out -MMD -MP,$(CFLAGS)) $(LDFLAGS) -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o $@ $<

tests: $(BUILD)/tests/boast/libnvidia-ml.so.1
