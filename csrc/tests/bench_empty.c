/* The least that a preloaded object can be: what the library's own cost at exec is measured against. */
int bench_empty(void);

int bench_empty(void) {
    return 0;
}
