/* info: what CUDA and NVML answer in this process, side by side. */
#include <stdio.h>
#include <stdlib.h>

#include "nvml.h"
#include "options.h"
#include "text.h"
#include "vgpu/paths.h"

/* As nvidia-smi --query-gpu=uuid,memory.total --format=csv,noheader prints it, for all devices that NVML shows. */
static int print_csv(void) {
    struct probe_nvml nvml;
    const char *reason = probe_nvml_open(&nvml);
    if (reason != NULL) {
        fprintf(stderr, "vgpu-probe: %s\n", reason);
        return PROBE_UNABLE;
    }
    unsigned count = 0;
    nvml.get_count(&count);
    for (unsigned i = 0; i < count; i++) {
        nvmlDevice_t device;
        char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
        struct probe_nvml_memory memory;
        if (nvml.get_handle_by_index(i, &device) != NVML_SUCCESS) continue;
        nvml.get_uuid(device, uuid, sizeof uuid);
        if (probe_nvml_memory(&nvml, device, &memory)) {
            printf("%s, %llu MiB\n", uuid, (unsigned long long)(memory.total / PROBE_MIB));
        } else {
            printf("%s, [N/A]\n", uuid);
        }
    }
    nvml.shutdown();
    return count > 0 ? PROBE_GOOD : PROBE_UNABLE;
}

static void print_memory(struct probe_json *json, const char *source, bool answers, uint64_t total, uint64_t used,
                         uint64_t left) {
    if (json->stream == NULL) {
        if (answers) {
            printf("  %-6s total %s, used %s, free %s\n", source, probe_size_format(total).text,
                   probe_size_format(used).text, probe_size_format(left).text);
        } else {
            printf("  %-6s can't tell its memory\n", source);
        }
        return;
    }
    if (!answers) {
        probe_json_text(json, source, NULL);
        return;
    }
    probe_json_begin(json, source, '{');
    probe_json_number(json, "total_bytes", total);
    probe_json_number(json, "used_bytes", used);
    probe_json_number(json, "free_bytes", left);
    probe_json_end(json, '}');
}

/* CUDA tells free memory only within a context, which itself takes some; it goes with the process. */
static bool cuda_memory(const struct probe_driver *driver, CUdevice device, size_t *total, size_t *left) {
    CUcontext context = NULL;
    return driver->cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
           driver->cuCtxSetCurrent(context) == CUDA_SUCCESS && driver->cuMemGetInfo_v2(left, total) == CUDA_SUCCESS;
}

static void print_device(const struct probe_driver *driver, const struct probe_nvml *nvml, int index,
                         struct probe_json *json) {
    CUdevice device = 0;
    char name[128] = "";
    char uuid[48] = "";
    size_t quota = 0;
    size_t total = 0;
    size_t left = 0;
    driver->cuDeviceGet(&device, index);
    driver->cuDeviceGetName(name, sizeof name, device);
    driver->cuDeviceTotalMem_v2(&quota, device);
    probe_driver_uuid(driver, device, uuid);
    bool answers = cuda_memory(driver, device, &total, &left);
    if (json->stream == NULL) {
        printf("device %d  %s  %s\n", index, name, uuid);
        printf("  total  %s (cuDeviceTotalMem)\n", probe_size_format(quota).text);
    }
    probe_json_begin(json, NULL, '{');
    probe_json_number(json, "index", (uint64_t)index);
    probe_json_text(json, "name", name);
    probe_json_text(json, "uuid", uuid);
    probe_json_number(json, "total_bytes", quota);
    print_memory(json, "cuda", answers, total, total - left, left);
    if (nvml != NULL) {
        nvmlDevice_t handle;
        struct probe_nvml_memory memory = {0};
        bool told = probe_nvml_find(nvml, uuid, &handle) && probe_nvml_memory(nvml, handle, &memory);
        print_memory(json, "nvml", told, memory.total, memory.used, memory.free);
        if (told && json->stream == NULL) {
            printf("%s, %llu MiB\n", uuid, (unsigned long long)(memory.total / PROBE_MIB));
        }
    }
    probe_json_end(json, '}');
}

/* The first line of the limit that the pod was given, for people. */
static bool read_limit(char limit[64]) {
    FILE *file = fopen(VGPU_QUOTA_DIR "/" VGPU_QUOTA_LIMIT_FILE, "re");
    if (file == NULL) return false;
    bool told = fgets(limit, 64, file) != NULL;
    fclose(file);
    for (char *at = limit; told && *at != '\0'; at++) {
        if (*at == '\n') *at = '\0';
    }
    return told;
}

int probe_info(const struct probe_options *options) {
    if (options->csv) return print_csv();
    struct probe_driver driver;
    struct probe_nvml nvml;
    struct probe_json json = {.stream = options->json ? stdout : NULL};
    int abi = 0;
    const char *library = probe_library_version(&abi);
    char limit[64] = "";
    bool injected = read_limit(limit);
    const char *environment = getenv("CUDA_DEVICE_MEMORY_LIMIT");
    const char *driver_failure = probe_driver_open(&driver, options->route);
    const char *nvml_failure = probe_nvml_open(&nvml);
    if (!options->json) {
        if (library == NULL) puts("library  none: nothing is enforced in this process");
        if (library != NULL) printf("library  libvgpu %s, abi %d\n", library, abi);
        if (injected) printf("limit    %s (%s/%s)\n", limit, VGPU_QUOTA_DIR, VGPU_QUOTA_LIMIT_FILE);
        if (environment != NULL) printf("limit    %s (CUDA_DEVICE_MEMORY_LIMIT)\n", environment);
        if (driver_failure == NULL) printf("driver   CUDA %d.%d\n", driver.version / 1000, driver.version % 1000 / 10);
    }
    probe_json_begin(&json, NULL, '{');
    probe_json_text(&json, "library", library);
    probe_json_text(&json, "limit_file", injected ? limit : NULL);
    probe_json_text(&json, "limit_environment", environment);
    probe_json_text(&json, "driver_failure", driver_failure);
    probe_json_text(&json, "nvml_failure", nvml_failure);
    probe_json_begin(&json, "devices", '[');
    for (int i = 0; driver_failure == NULL && i < driver.device_count; i++) {
        print_device(&driver, nvml_failure == NULL ? &nvml : NULL, i, &json);
    }
    probe_json_end(&json, ']');
    probe_json_end(&json, '}');
    probe_json_done(&json);
    if (driver_failure != NULL) fprintf(stderr, "vgpu-probe: %s\n", driver_failure);
    if (nvml_failure != NULL) fprintf(stderr, "vgpu-probe: %s\n", nvml_failure);
    return driver_failure == NULL ? PROBE_GOOD : PROBE_UNABLE;
}
