# Programs that do odd things around calls of the driver (tests/libvgpu/test_hardness.py).
all: $(BUILD)/tests/hardness

$(BUILD)/tests/hardness: tests/hardness.c include/cuda_api.h
	@mkdir -p $(@D)
	$(CC_x86_64) $(filter-out -MMD -MP,$(CFLAGS)) -D_GNU_SOURCE $(LDFLAGS) -pthread -o $@ $< -ldl
