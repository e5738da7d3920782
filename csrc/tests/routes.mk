# The route tests' programs, into build/tests/routes/<arch>: ways of looking functions up, a driver of a few functions, a
# library that looks functions up, another interposer.
ROUTES := $(BUILD)/tests/routes
# A tail call would make the caller of the caller the one who asks.
ROUTE_CFLAGS = $(filter-out -MMD -MP,$(CFLAGS)) -fno-optimize-sibling-calls -fPIC -Itests -pthread
ROUTE_PROGRAMS := route_chain route_direct route_early route_errors route_list route_names route_namespaces \
	route_reopen route_threads route_where
ROUTE_RESULTS := $(ROUTE_PROGRAMS) libcuda.so.1 older/libcuda.so.1 unexported/libcuda.so.1 libroute_caller.so \
	libroute_wrapper.so
ROUTE_ARCHES := x86_64 aarch64

ROUTE_LINK_route_chain := libcuda.so.1
ROUTE_LINK_route_direct := libcuda.so.1
ROUTE_LINK_route_early := -rdynamic
ROUTE_LINK_route_names := libroute_caller.so

define ROUTE_RULES
$(ROUTES)/$(1)/route_%: tests/route_%.c tests/route_caller.h $(ROUTES)/$(1)/libroute_caller.so
	$$(CC_$(1)) $$(ROUTE_CFLAGS) $$< $$(ROUTE_LINK_$$(@F):lib%=$(ROUTES)/$(1)/lib%) -o $$@
$(ROUTES)/$(1)/libcuda.so.1: tests/route_driver.c include/cuda_api.h
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(ROUTE_CFLAGS) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic $$< -o $$@
$(ROUTES)/$(1)/older/libcuda.so.1: tests/route_driver.c include/cuda_api.h
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(ROUTE_CFLAGS) -DROUTE_OLDER -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic $$< -o $$@
$(ROUTES)/$(1)/unexported/libcuda.so.1: tests/route_driver.c include/cuda_api.h
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(ROUTE_CFLAGS) -DROUTE_UNEXPORTED -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic $$< -o $$@
$(ROUTES)/$(1)/libroute_caller.so: tests/route_caller.c tests/route_caller.h $(ROUTES)/$(1)/libcuda.so.1
	$$(CC_$(1)) $$(ROUTE_CFLAGS) -shared -Wl,-soname,libroute_caller.so $$< $(ROUTES)/$(1)/libcuda.so.1 -o $$@
$(ROUTES)/$(1)/libroute_wrapper.so: tests/route_wrapper.c
	@mkdir -p $$(@D)
	$$(CC_$(1)) $$(ROUTE_CFLAGS) -shared -Wl,-soname,libroute_wrapper.so $$< -o $$@
tests: $(ROUTE_RESULTS:%=$(ROUTES)/$(1)/%)
endef
$(foreach arch,$(ROUTE_ARCHES),$(eval $(call ROUTE_RULES,$(arch))))

# Linked with the simulated driver, which is the one that has real memory to give.
$(BUILD)/tests/route_eight: tests/route_eight.c include/cuda_api.h $(BUILD)/simgpu/libcuda.so.1
	@mkdir -p $(@D)
	$(CC_x86_64) $(ROUTE_CFLAGS) $< $(BUILD)/simgpu/libcuda.so.1 -o $@
tests: $(BUILD)/tests/route_eight
