/* Prints the names that C and Python must both know as JSON, so that a test can compare the copies. */
#include <stdio.h>

#include "vgpu/paths.h"
#include "vgpu/version.h"

int main(void) {
    puts("{");
#define NAME(name) printf("  \"%s\": \"%s\",\n", #name, VGPU_##name)
    NAME(VERSION);
    NAME(LIBRARY_DIR);
    NAME(LIBRARY_FILE);
    NAME(PRELOAD_FILE);
    NAME(REGION_DIR);
    NAME(REGION_FILE);
    NAME(QUOTA_DIR);
    NAME(QUOTA_LIMIT_FILE);
    NAME(QUOTA_MEMORY_FILE);
    NAME(QUOTA_FRACTION_FILE);
    printf("  \"ABI\": %d\n}\n", VGPU_ABI);
    return 0;
}
