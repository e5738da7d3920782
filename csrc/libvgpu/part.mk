# build/libvgpu.so and build/aarch64/libvgpu.so. Debug information goes into a file beside each.
VGPU_SOURCES := $(sort $(notdir $(wildcard libvgpu/*.c)))

VGPU_ARCHES := x86_64 aarch64
VGPU_FILE_x86_64 := $(BUILD)/libvgpu.so
VGPU_FILE_aarch64 := $(BUILD)/aarch64/libvgpu.so

# No -Bsymbolic: it would put this library at the head of its own scope, before interposers that were loaded before it;
# our own references bind to ourselves because the exported functions are protected (hooks.h).
# The one library that may be needed is libc: what older ones keep in libdl and libpthread is found at run time.
VGPU_CFLAGS := $(CFLAGS) -D_GNU_SOURCE -fPIC -Ilibvgpu
VGPU_LDFLAGS := $(LDFLAGS) -shared -Wl,-soname,libvgpu.so -Wl,--hash-style=gnu -Wl,--as-needed \
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

# The route tests' programs: a driver of a few functions, a library that looks functions up, another interposer.
ROUTES := $(BUILD)/tests/routes
# A tail call would make the caller of the caller the one who asks.
ROUTE_CFLAGS = $(filter-out -MMD -MP,$(CFLAGS)) -fno-optimize-sibling-calls -fPIC -Itests
ROUTE_RESULTS := route_chain route_errors route_list route_names route_namespaces route_where libcuda.so.1 older/libcuda.so.1 unexported/libcuda.so.1 libroute_caller.so \
	libroute_wrapper.so

ROUTE_LINK_route_chain := libcuda.so.1
ROUTE_LINK_route_names := libroute_caller.so

define ROUTE_RULES
$(ROUTES)/$(1)/route_%: tests/route_%.c tests/route_caller.h $(ROUTES)/$(1)/libroute_caller.so
	$$(CC_$(1)) $$(ROUTE_CFLAGS) $$< $$(ROUTE_LINK_$$(@F):%=$(ROUTES)/$(1)/%) -o $$@
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
all: $(ROUTE_RESULTS:%=$(ROUTES)/$(1)/%)
endef
$(foreach arch,$(VGPU_ARCHES),$(eval $(call ROUTE_RULES,$(arch))))
