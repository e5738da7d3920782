# build/simgpu/: the simulated driver, NVML, and the program that makes cards and tells the truth. x86_64 only: what it
# stands in for is never shipped.
SIM_STATE := state.c lock.c ledger.c busy.c pids.c faults.c
SIM_DRIVER := device.c attribute.c context.c context_query.c context_room.c arena.c small.c memory.c linear.c pool.c pool_api.c managed.c \
	stream.c copy.c set.c value.c host.c pointer.c array.c vmm.c vmm_map.c multicast.c share.c ipc.c pool_share.c external.c \
	image.c module.c library.c link.c launch.c function.c procaddr.c error.c symbols.c \
	graph.c graph_node.c graph_exec.c graph_memory.c capture.c green.c texture.c
SIM_NVML := nvml.c nvml_device.c nvml_usage.c nvml_unsupported.c
SIM_PROGRAM := cli.c cmd_truth.c cmd_common.c cmd_fault.c cmd_neighbour.c cmd_serve.c cmd_library.c

SIM_OBJ := $(BUILD)/obj/simgpu/x86_64
SIM_OUT := $(BUILD)/simgpu
SIM_CFLAGS := $(CFLAGS) -D_GNU_SOURCE= -fPIC
# As the real driver: its own calls and its own table of functions never resolve to an interposer.
SIM_LDFLAGS := $(LDFLAGS) -shared -Wl,-Bsymbolic

all: $(SIM_OUT)/libcuda.so.1 $(SIM_OUT)/libnvidia-ml.so.1 $(SIM_OUT)/simgpu

$(SIM_OBJ)/%.o: simgpu/%.c
	@mkdir -p $(@D)
	$(CC_x86_64) $(SIM_CFLAGS) -c -o $@ $<

$(SIM_OUT)/libcuda.so.1: $(addprefix $(SIM_OBJ)/,$(SIM_DRIVER:.c=.o) $(SIM_STATE:.c=.o))
	@mkdir -p $(@D)
	$(CC_x86_64) $(SIM_LDFLAGS) -Wl,-soname,libcuda.so.1 -o $@ $^ -lpthread
	@ln -sf libcuda.so.1 $(@D)/libcuda.so

$(SIM_OUT)/libnvidia-ml.so.1: $(addprefix $(SIM_OBJ)/,$(SIM_NVML:.c=.o) $(SIM_STATE:.c=.o))
	@mkdir -p $(@D)
	$(CC_x86_64) $(SIM_LDFLAGS) -Wl,-soname,libnvidia-ml.so.1 -o $@ $^ -lpthread
	@ln -sf libnvidia-ml.so.1 $(@D)/libnvidia-ml.so

$(SIM_OUT)/simgpu: $(addprefix $(SIM_OBJ)/,$(SIM_PROGRAM:.c=.o) $(SIM_STATE:.c=.o))
	@mkdir -p $(@D)
	$(CC_x86_64) $(LDFLAGS) -pie -o $@ $^ -lpthread

-include $(wildcard $(SIM_OBJ)/*.d)
