/* What route_caller.c offers to the programs of the route tests. */
#ifndef ROUTE_CALLER_H
#define ROUTE_CALLER_H

#define ROUTE_EXPORT __attribute__((visibility("default")))

/* dlsym(RTLD_NEXT or RTLD_DEFAULT, name) as this library sees it; `way` is "next" or "default". */
ROUTE_EXPORT void *route_caller_find(const char *way, const char *name);

/* cuMemAlloc_v2 as the dynamic linker bound it here; its address, and what it returns. */
ROUTE_EXPORT void *route_caller_bound(void);
ROUTE_EXPORT int route_caller_call(void);

#endif
