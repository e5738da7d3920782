/* Prints the region's layout as JSON, so that a test can compare the monitor's copy with the compiler's word. */
#include <stddef.h>
#include <stdio.h>

#include "vgpu/region.h"

#define SIZE(name, value) printf("  \"%s\": %llu,\n", name, (unsigned long long)(value))
#define HEADER(field)     SIZE("header." #field, offsetof(struct vgpu_region_header, field))
#define DEVICE(field)     SIZE("device." #field, offsetof(struct vgpu_region_device, field))
#define SLOT(field)       SIZE("slot." #field, offsetof(struct vgpu_region_slot, field))

int main(void) {
    puts("{");
    SIZE("magic", VGPU_REGION_MAGIC);
    SIZE("abi", VGPU_ABI);
    SIZE("max_devices", VGPU_MAX_DEVICES);
    SIZE("max_slots", VGPU_MAX_SLOTS);
    SIZE("kinds", VGPU_KINDS);
    SIZE("uuid_bytes", VGPU_UUID_BYTES);
    SIZE("slot_lock_offset", VGPU_SLOT_LOCK_OFFSET);
    SIZE("header_bytes", sizeof(struct vgpu_region_header));
    SIZE("device_bytes", sizeof(struct vgpu_region_device));
    SIZE("slot_bytes", sizeof(struct vgpu_region_slot));
    SIZE("slots_offset", offsetof(struct vgpu_region, slots));
    SIZE("region_bytes", VGPU_REGION_BYTES);
    HEADER(magic);
    HEADER(abi);
    HEADER(header_bytes);
    HEADER(device_bytes);
    HEADER(slot_bytes);
    HEADER(max_devices);
    HEADER(max_slots);
    HEADER(total_bytes);
    HEADER(created_unix_ns);
    HEADER(lock);
    HEADER(device_count);
    HEADER(ready);
    HEADER(changes);
    DEVICE(uuid);
    DEVICE(physical_bytes);
    DEVICE(limit_bytes);
    DEVICE(used_bytes);
    DEVICE(unbelieved_bytes);
    DEVICE(refusals);
    DEVICE(refused_largest_bytes);
    DEVICE(refused_last_unix_ns);
    DEVICE(limit_source);
    DEVICE(peak_used_bytes);
    SLOT(state);
    SLOT(generation);
    SLOT(pid);
    SLOT(pid_namespace);
    SLOT(start_time_ticks);
    SLOT(claimed_unix_ns);
    SLOT(used_bytes);
    SLOT(launches);
    SIZE("source.none", VGPU_SOURCE_NONE);
    SIZE("source.kai", VGPU_SOURCE_KAI);
    SIZE("source.gpu-memory", VGPU_SOURCE_MEMORY);
    SIZE("source.gpu-fraction", VGPU_SOURCE_FRACTION);
    SIZE("source.environment", VGPU_SOURCE_ENV);
    SIZE("source.unlimited", VGPU_SOURCE_UNLIMITED);
    SIZE("source.unusable", VGPU_SOURCE_UNUSABLE);
    printf("  \"end\": 0\n}\n");
    return 0;
}
