/* What the files of the simulated NVML share: handles, and the way into each function.
 *
 * A handle is the address of an entry of one table, so it stays good over shutdown and a second init, as the vendor's
 * do. A card whose uuid begins with "MIG-" is a MIG device: NVML counts its parent, and gives it by
 * nvmlDeviceGetMigDeviceHandleByIndex. NVML never looks at CUDA_VISIBLE_DEVICES. */
#ifndef SIMGPU_NVML_SIM_H
#define SIMGPU_NVML_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "nvml_api.h"
#include "state.h"

struct nvmlDevice_st {
    unsigned card;
    bool instance; /* the MIG device on a card, rather than the card or the MIG device's parent */
};

/* Declares and begins one exported function. */
#define NVML(name, parameters)                                                                                         \
    __attribute__((visibility("default"))) nvmlReturn_t name parameters;                                               \
    nvmlReturn_t name parameters
/* A second name of the same function, such as an older one whose struct didn't change. */
#define NVML_ALIAS(alias_name, name, parameters)                                                                       \
    __attribute__((visibility("default"), alias(#name))) nvmlReturn_t alias_name parameters

/* First line of every function but init: initialised, the state reachable (also after a fork), no fault asked for. */
#define NVML_ENTER()                                                                                                   \
    do {                                                                                                               \
        nvmlReturn_t refused = nvml_enter(__func__);                                                                   \
        if (refused != NVML_SUCCESS) return refused;                                                                   \
    } while (0)
/* The same for functions of a device, with NULL checks for what they fill in. */
#define NVML_ENTER_DEVICE(device, out)                                                                                 \
    NVML_ENTER();                                                                                                      \
    if (!nvml_device_valid(device) || (out) == NULL) return NVML_ERROR_INVALID_ARGUMENT

enum { NVML_SIM_GPU_INSTANCE = 1, NVML_SIM_COMPUTE_INSTANCE = 0 }; /* of every MIG device */

nvmlReturn_t nvml_enter(const char *function);
bool nvml_device_valid(nvmlDevice_t device);

/* The joined view; only after nvml_enter. */
struct sim_view *nvml_view(void);
/* The card's unchanging properties; only for valid devices. */
const struct sim_card_config *nvml_config(nvmlDevice_t device);
/* Whether the card is a MIG device (and `device` it, or its parent). */
bool nvml_is_mig(nvmlDevice_t device);
/* Handles of a card: as NVML counts it, and of the MIG device on it. */
nvmlDevice_t nvml_card(unsigned card);
nvmlDevice_t nvml_instance(unsigned card);
/* "GPU-…" of a card, a MIG device's own "MIG-…", a parent's own "GPU-…". */
void nvml_uuid(nvmlDevice_t device, char uuid[64]);

/* Where the card sits: domain 0, this bus, device 0. cuDeviceGetPCIBusId says the same. */
static inline unsigned nvml_pci_bus(unsigned card) {
    return card + 1;
}
void nvml_serial(unsigned card, char serial[NVML_DEVICE_SERIAL_BUFFER_SIZE]);

/* Copies text with its NUL; INSUFFICIENT_SIZE where it doesn't fit. */
nvmlReturn_t nvml_text(char *out, unsigned room, const char *text);

#endif
