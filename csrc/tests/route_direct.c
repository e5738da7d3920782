/* Linked with the driver and with nothing that looks functions up: before glibc 2.34 no libdl.so.2 is loaded here. */
#include <stdio.h>

extern int cuMemAlloc_v2(void);

int main(void) {
    printf("%d\n", cuMemAlloc_v2());
    return 0;
}
