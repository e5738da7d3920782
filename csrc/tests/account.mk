# The program that tests/libvgpu/test_accounting.py compares with the card.
$(BUILD)/tests/account-churn: tests/account_churn.c $(BUILD)/simgpu/libcuda.so.1 include/cuda_api.h
	@mkdir -p $(@D)
	$(CC_x86_64) $(filter-out -MMD -MP,$(CFLAGS)) $(LDFLAGS) -pthread -o $@ $< $(BUILD)/simgpu/libcuda.so.1

tests: $(BUILD)/tests/account-churn
