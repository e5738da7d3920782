/* First look-ups and first calls of many threads at once, in many fresh processes. Prints how many went wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 100, THREADS = 8, RIGHT = 702 };

static pthread_barrier_t start;

static void *look_and_call(void *driver) {
    typedef int get_address(const char *name, void **function, int cuda_version, uint64_t flags);
    void *by_driver = NULL;
    pthread_barrier_wait(&start);
    int (*by_name)(void) = (int (*)(void))dlsym(driver, "cuMemAlloc_v2");
    get_address *get = (get_address *)dlsym(RTLD_DEFAULT, "cuGetProcAddress");
    if (!by_name || !get || get("cuMemAlloc", &by_driver, 12000, 0)) return driver;
    return by_name() == RIGHT && by_driver == (void *)by_name ? NULL : driver;
}

static int all_go_well(void) {
    pthread_t threads[THREADS];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *wrong, *any_wrong = NULL;
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, look_and_call, driver)) return 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &wrong);
        any_wrong = wrong ? wrong : any_wrong;
    }
    return driver && !any_wrong;
}

int main(void) {
    int failed = 0, status;
    for (int i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        if (child == 0) _exit(!all_go_well());
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) failed++;
    }
    printf("%d of %d failed\n", failed, PROCESSES);
    return 0;
}
