#include <stdio.h>
#include <string.h>

#include "options.h"
#include "text.h"

bool probe_unable(const struct probe_options *options, const char *reason) {
    fprintf(stderr, "vgpu-probe: %s\n", reason);
    struct probe_json json = {.stream = options->json ? stdout : NULL};
    probe_json_begin(&json, NULL, '{');
    probe_json_text(&json, "verdict", "unable");
    probe_json_text(&json, "reason", reason);
    probe_json_end(&json, '}');
    probe_json_done(&json);
    return false;
}

bool probe_session_open(struct probe_session *session, const struct probe_options *options) {
    struct probe_driver *driver = &session->driver;
    memset(session->uuid, 0, sizeof session->uuid);
    memset(session->name, 0, sizeof session->name);
    const char *reason = probe_driver_open(driver, options->route);
    if (reason != NULL) return probe_unable(options, reason);
    char text[160];
    CUresult code = driver->cuDeviceGet(&session->device, options->device);
    if (code != CUDA_SUCCESS) {
        snprintf(text, sizeof text, "no device %d: CUDA shows %d", options->device, driver->device_count);
        return probe_unable(options, text);
    }
    driver->cuDeviceGetName(session->name, sizeof session->name, session->device);
    probe_driver_uuid(driver, session->device, session->uuid);
    CUcontext context = NULL;
    code = driver->cuDevicePrimaryCtxRetain(&context, session->device);
    if (code == CUDA_SUCCESS) code = driver->cuCtxSetCurrent(context);
    if (code == CUDA_SUCCESS) return true;
    snprintf(text, sizeof text, "no context on device %d: %s", options->device, probe_driver_code(driver, code).text);
    return probe_unable(options, text);
}
