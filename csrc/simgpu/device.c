/* cuInit, the devices that a process may see, and what they are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "memory.h"

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

CUresult driver_fault(const char *function) {
    int32_t code = sim_fault_take(&driver.view, function);
    return code > 0 ? (CUresult)code : CUDA_SUCCESS;
}

static bool add_device(unsigned card) {
    for (int i = 0; i < driver.devices; i++)
        if (driver.device[i].card == card) return false;
    driver.device[driver.devices++].card = card;
    return true;
}

/* One entry of CUDA_VISIBLE_DEVICES: an ordinal, or the beginning of a uuid ("GPU-…", "MIG-…") that fits one card.
 * Returns the card, or -1. */
static int visible_card(const char *entry, size_t length) {
    const struct sim_state *state = driver.view.state;
    char text[96];
    if (length == 0 || length >= sizeof text) return -1;
    memcpy(text, entry, length);
    text[length] = '\0';
    if (text[0] >= '0' && text[0] <= '9') {
        char *end;
        unsigned long index = strtoul(text, &end, 10);
        return index < state->cards && *end == '\0' ? (int)index : -1;
    }
    int found = -1;
    for (uint32_t i = 0; i < state->cards; i++)
        if (strncasecmp(state->card[i].config.uuid, text, length) == 0 && length > 4) {
            if (found >= 0) return -1; /* fits several */
            found = (int)i;
        }
    return found;
}

/* As the real driver: devices up to the first entry that names none; a card named twice hides all. */
static void find_devices(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) {
        for (unsigned i = 0; i < driver.view.state->cards; i++)
            add_device(i);
        return;
    }
    while (*list) {
        size_t length = strcspn(list, ",");
        const char *entry = list;
        size_t trimmed = length;
        while (trimmed && (*entry == ' ' || *entry == '\t'))
            entry++, trimmed--;
        while (trimmed && (entry[trimmed - 1] == ' ' || entry[trimmed - 1] == '\t'))
            trimmed--;
        int card = visible_card(entry, trimmed);
        if (card < 0) break;
        if (!add_device((unsigned)card)) {
            driver.devices = 0;
            return;
        }
        list += length;
        if (*list == ',') list++;
    }
}

static CUresult initialize(void) {
    if (sim_join(&driver.view, NULL, SIM_PROGRAM) < 0) return CUDA_ERROR_NO_DEVICE;
    int32_t code = sim_faults(&driver.view) ? sim_fault_take(&driver.view, "cuInit") : 0;
    if (code <= 0) {
        find_devices();
        code = driver.devices == 0 ? CUDA_ERROR_NO_DEVICE : arena_init() < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        for (int i = 0; code == CUDA_SUCCESS && i < driver.devices; i++)
            if (!heaps_init(i) || !pool_init_device(i)) code = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (code != CUDA_SUCCESS) {
        sim_leave(&driver.view);
        driver.devices = 0;
        return (CUresult)code;
    }
    driver.initialized = true;
    __atomic_store_n(&driver.alive, driver.view.alive, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

CUAPI(cuInit, (unsigned flags)) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (driver_alive()) return driver_enter("cuInit");
    /* A child of a fork can't use what its parent initialised, nor start again. */
    if (driver.initialized) return CUDA_ERROR_NOT_INITIALIZED;
    /* Nor can one whose parent was about to: the lock may be held by a thread that isn't here. */
    static int starter;
    int self = getpid(), before = 0;
    if (!__atomic_compare_exchange_n(&starter, &before, self, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
        before != self)
        return CUDA_ERROR_NOT_INITIALIZED;
    driver_lock();
    CUresult result = driver_alive() ? CUDA_SUCCESS : initialize();
    if (result != CUDA_SUCCESS) __atomic_store_n(&starter, 0, __ATOMIC_RELEASE);
    driver_unlock();
    return result;
}

CUAPI(cuDriverGetVersion, (int *version)) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = SIM_CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGet, (CUdevice * device, int ordinal)) {
    ENTER();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGetCount, (int *count)) {
    ENTER();
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = driver.devices;
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGetName, (char *name, int length, CUdevice device)) {
    ENTER();
    if (!name || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "%s", card_config(device)->name);
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device) {
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    const char *text = strchr(card_config(device)->uuid, '-');
    memset(uuid, 0, sizeof *uuid);
    for (unsigned digit = 0; text && *text && digit < 32; text++) {
        const char *hex = "0123456789abcdef", *at = *text == '-' ? NULL : strchr(hex, *text | 0x20);
        if (!at) continue;
        uuid->bytes[digit / 2] = (char)((uuid->bytes[digit / 2] << 4) | (at - hex));
        digit++;
    }
    return CUDA_SUCCESS;
}

/* Of a MIG device the older form tells the uuid of the card that it is a part of. */
CUAPI(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device)) {
    ENTER();
    TRY(get_uuid(uuid, device));
    if (strncmp(card_config(device)->uuid, "MIG-", 4) == 0) uuid->bytes[0] ^= (char)SIM_MIG_PARENT;
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device)) {
    ENTER();
    return get_uuid(uuid, device);
}

CUAPI(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device)) {
    ENTER();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = card_config(device)->total_bytes - card_config(device)->reserved_bytes;
    return CUDA_SUCCESS;
}

/* The functions of CUDA 2 count in 32 bits; more than fits is told as the most that fits. */
CUAPI(cuDeviceTotalMem, (unsigned *bytes, CUdevice device)) {
    ENTER();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    uint64_t total = card_config(device)->total_bytes - card_config(device)->reserved_bytes;
    *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total;
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGetPCIBusId, (char *id, int length, CUdevice device)) {
    ENTER();
    if (!id || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", driver.device[device].card + 1);
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGetByPCIBusId, (CUdevice * device, const char *id)) {
    ENTER();
    if (!device || !id) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < driver.devices; i++) {
        char own[32];
        snprintf(own, sizeof own, "0000:%02X:00.0", driver.device[i].card + 1);
        if (strcasecmp(own, id) == 0 || strcasecmp(own + 5, id) == 0) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUAPI(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device)) {
    ENTER();
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = (int)card_config(device)->compute_major;
    *minor = (int)card_config(device)->compute_minor;
    return CUDA_SUCCESS;
}

/* Peers: all cards of one state reach each other. */
CUAPI(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer)) {
    ENTER();
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device) || !device_valid(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUAPI(cuDeviceGetP2PAttribute, (int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer)) {
    ENTER();
    if (!value || device == peer) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device) || !device_valid(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
             attribute == CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}
