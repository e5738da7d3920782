/* Starting programs: `bench-spawn together COUNT PROGRAM ARGUMENTS...` starts COUNT at once and prints the milliseconds
 * until all have ended; `bench-spawn one COUNT ...` one after another, and prints the median's microseconds. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int ended(int *failed) {
    int status;
    if (wait(&status) < 0) return 0;
    *failed += status != 0;
    return 1;
}

static int by_size(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int together = strcmp(argv[1], "together") == 0, failed = 0;
    long count = atol(argv[2]);
    double begin = now_us(), *each = calloc((size_t)count + 1, sizeof *each);
    for (long i = 0; each && i < count; i++) {
        pid_t pid;
        double started = now_us();
        if (posix_spawn(&pid, argv[3], NULL, NULL, argv + 3, environ) != 0) {
            perror(argv[3]);
            return 1;
        }
        if (!together) ended(&failed);
        each[i] = now_us() - started;
    }
    while (ended(&failed)) {
    }
    double took_us = now_us() - begin;
    qsort(each, (size_t)count, sizeof *each, by_size);
    printf("%.2f\n", together ? took_us / 1e3 : each[count / 2]);
    if (failed) fprintf(stderr, "%d of %ld failed\n", failed, count);
    return failed != 0;
}
