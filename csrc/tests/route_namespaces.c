/* Opens a library in a new namespace and closes it again, 100 times, with a file that isn't there in between. Says how
 * many rounds went well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    int rounds = 0;
    for (; rounds < 100; rounds++) {
        if (dlmopen(LM_ID_NEWLM, "no-such-file.so", RTLD_NOW)) break;
        void *library = dlmopen(LM_ID_NEWLM, "libroute_wrapper.so", RTLD_NOW);
        if (!library || !dlsym(library, "route_wrapper_calls")) {
            printf("%s\n", dlerror());
            break;
        }
        dlclose(library);
    }
    printf("%d rounds\n", rounds);
    return 0;
}
