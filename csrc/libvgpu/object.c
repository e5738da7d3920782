#include "object.h"

#include <elf.h>
#include <sys/auxv.h>

enum { VERSION_HIDDEN = 0x8000, VERSION_INDEX = 0x7fff };

void vgpu_object_read(struct vgpu_object *object, uintptr_t base, const ElfW(Dyn) * dynamic) {
    uintptr_t soname = 0;
    bool has_soname = false;
    *object = (struct vgpu_object){.base = base, .name = "", .soname = ""};
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        /* glibc relocates these addresses in place, except in the vdso, whose section is read-only. */
        uintptr_t address = dynamic->d_un.d_ptr < base ? base + dynamic->d_un.d_ptr : dynamic->d_un.d_ptr;
        switch (dynamic->d_tag) {
        case DT_SONAME:
            soname = dynamic->d_un.d_val;
            has_soname = true;
            break;
        case DT_STRTAB:
            object->strings = (const char *)address;
            break;
        case DT_SYMTAB:
            object->symbols = (const ElfW(Sym) *)address;
            break;
        case DT_GNU_HASH:
            object->gnu_hash = (const uint32_t *)address;
            break;
        case DT_HASH:
            object->sysv_hash = (const uint32_t *)address;
            break;
        case DT_VERSYM:
            object->versions = (const uint16_t *)address;
            break;
        case DT_VERDEF:
            object->defined_versions = (const ElfW(Verdef) *)address;
            break;
        case DT_VERDEFNUM:
            object->defined_version_count = dynamic->d_un.d_val;
            break;
        default:
            break;
        }
    }
    if (has_soname && object->strings) object->soname = object->strings + soname;
}

/* The dynamic linker's list of objects. Weak: its library needn't be named among ours. */
#pragma weak _r_debug

/* Among the objects that the program was started with, which stay at the head of the dynamic linker's list for ever, so
 * that no lock is needed. false if this library wasn't there before it: loaded later, or in another namespace. */
static bool find_at_start(const char *soname, struct vgpu_object *found) {
    bool are_we_there = false;
    for (const struct link_map *map = &_r_debug ? _r_debug.r_map : NULL; map; map = map->l_next) {
        if (map->l_ld == _DYNAMIC) are_we_there = true;
        vgpu_object_read(found, map->l_addr, map->l_ld);
        if (vgpu_compare(found->soname, soname) == 0) return are_we_there;
        if (found->soname[0] == 'l' && found->soname[1] == 'd' && found->soname[2] == '-') return false;
    }
    return false;
}

typedef int iterate(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data);

static iterate *libc_iterate(void) {
    static iterate *kept;
    iterate *found = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    struct vgpu_object libc;
    if (found) return found;
    if (find_at_start("libc.so.6", &libc)) found = (iterate *)vgpu_object_symbol(&libc, "dl_iterate_phdr", NULL);
    if (!found) found = dl_iterate_phdr;
    __atomic_store_n(&kept, found, __ATOMIC_RELAXED);
    return found;
}

struct walk {
    bool (*visit)(const struct vgpu_object *, void *);
    void *data;
};

static int visit_one(struct dl_phdr_info *info, size_t size, void *data) {
    const struct walk *walk = data;
    const ElfW(Dyn) *dynamic = NULL;
    uintptr_t low = UINTPTR_MAX, high = 0;
    (void)size;
    for (unsigned int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_DYNAMIC) {
            dynamic = (const ElfW(Dyn) *)start;
        } else if (header->p_type == PT_LOAD) {
            low = start < low ? start : low;
            high = start + header->p_memsz > high ? start + header->p_memsz : high;
        }
    }
    if (!dynamic) return 0;
    struct vgpu_object object;
    vgpu_object_read(&object, info->dlpi_addr, dynamic);
    object.low = low;
    object.high = high;
    object.name = info->dlpi_name ? info->dlpi_name : "";
    return walk->visit(&object, walk->data);
}

bool vgpu_object_each(bool (*visit)(const struct vgpu_object *, void *), void *data) {
    struct walk walk = {visit, data};
    return libc_iterate()(visit_one, &walk) != 0;
}

struct wanted {
    const char *soname;
    uintptr_t address;
    struct vgpu_object *found;
};

static bool has_soname(const struct vgpu_object *object, void *data) {
    const struct wanted *wanted = data;
    if (vgpu_compare(object->soname, wanted->soname) != 0) return false;
    *wanted->found = *object;
    return true;
}

bool vgpu_object_by_soname(const char *soname, struct vgpu_object *found) {
    struct wanted wanted = {.soname = soname, .found = found};
    return vgpu_object_each(has_soname, &wanted);
}

static bool has_address(const struct vgpu_object *object, void *data) {
    const struct wanted *wanted = data;
    if (wanted->address < object->low || wanted->address >= object->high) return false;
    *wanted->found = *object;
    return true;
}

bool vgpu_object_by_address(const void *address, struct vgpu_object *found) {
    struct wanted wanted = {.address = (uintptr_t)address, .found = found};
    return vgpu_object_each(has_address, &wanted);
}

static const char *version_name(const struct vgpu_object *object, uint16_t index) {
    const ElfW(Verdef) *version = object->defined_versions;
    for (uintptr_t i = 0; version && i < object->defined_version_count; i++) {
        if (version->vd_ndx == index) {
            const ElfW(Verdaux) *name = (const ElfW(Verdaux) *)((const char *)version + version->vd_aux);
            return object->strings + name->vda_name;
        }
        version = (const ElfW(Verdef) *)((const char *)version + version->vd_next);
    }
    return NULL;
}

static bool fits(const struct vgpu_object *object, uint32_t index, const char *name, const char *version) {
    const ElfW(Sym) *symbol = &object->symbols[index];
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 ||
        vgpu_compare(object->strings + symbol->st_name, name) != 0)
        return false;
    if (!object->versions) return true;
    if (!version) return !(object->versions[index] & VERSION_HIDDEN);
    const char *own = version_name(object, object->versions[index] & VERSION_INDEX);
    return own && vgpu_compare(own, version) == 0;
}

static uint32_t find_by_gnu_hash(const struct vgpu_object *object, const char *name, const char *version) {
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        hash = hash * 33 + *c;
    const uint32_t *header = object->gnu_hash;
    uint32_t buckets = header[0], first = header[1], bloom_words = header[2], shift = header[3];
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)(header + 4);
    enum { BITS = 8 * sizeof(ElfW(Addr)) };
    ElfW(Addr) word = bloom[hash / BITS & (bloom_words - 1)];
    if (!buckets || !(word >> hash % BITS & word >> (hash >> shift) % BITS & 1)) return 0;
    const uint32_t *bucket = (const uint32_t *)(bloom + bloom_words);
    const uint32_t *chain = bucket + buckets;
    for (uint32_t i = bucket[hash % buckets]; i >= first && i != 0; i++) {
        uint32_t link = chain[i - first];
        if ((link | 1) == (hash | 1) && fits(object, i, name, version)) return i;
        if (link & 1) break;
    }
    return 0;
}

static uint32_t find_by_sysv_hash(const struct vgpu_object *object, const char *name, const char *version) {
    uint32_t hash = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        hash = (hash << 4) + *c;
        hash ^= hash >> 24 & 0xf0;
        hash &= 0x0fffffff;
    }
    uint32_t buckets = object->sysv_hash[0];
    const uint32_t *bucket = object->sysv_hash + 2;
    const uint32_t *chain = bucket + buckets;
    for (uint32_t i = buckets ? bucket[hash % buckets] : 0; i; i = chain[i])
        if (fits(object, i, name, version)) return i;
    return 0;
}

void *vgpu_object_symbol(const struct vgpu_object *object, const char *name, const char *version) {
    uint32_t index = 0;
    if (!object->symbols || !object->strings) return NULL;
    if (object->gnu_hash)
        index = find_by_gnu_hash(object, name, version);
    else if (object->sysv_hash)
        index = find_by_sysv_hash(object, name, version);
    if (!index) return NULL;
    uintptr_t address = object->base + object->symbols[index].st_value;
    if (ELF64_ST_TYPE(object->symbols[index].st_info) == STT_GNU_IFUNC)
        return ((void *(*)(unsigned long))address)(getauxval(AT_HWCAP));
    return (void *)address;
}
