/* Reading device programs: enough to know their kernels, their variables and how much they take. */
#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_WRAPPER UINT32_C(0x466243b1)
#define FATBIN_MAGIC   UINT32_C(0xba55ed50)
#define CUDA_ENTRY     0x10 /* in st_other: a kernel, not a device function */

struct fatbin_wrapper {
    uint32_t magic, version;
    const void *data;
};

struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* without this header */
};

struct fatbin_entry {
    uint16_t kind; /* 1 PTX, 2 cubin */
    uint16_t version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes;
};

static int add(struct image *image, const char *name, size_t length, bool kernel, uint64_t bytes) {
    struct image_symbol *larger = realloc(image->symbol, (image->symbols + 1) * sizeof *larger);
    if (!larger) return -ENOMEM;
    image->symbol = larger;
    char *copy = strndup(name, length);
    if (!copy) return -ENOMEM;
    larger[image->symbols++] =
        (struct image_symbol){.name = copy, .bytes = bytes, .offset = image->data_bytes, .kernel = kernel};
    if (!kernel) image->data_bytes += (bytes + 255) & ~UINT64_C(255);
    return 0;
}

/* ---- PTX ---- */

static bool is_ptx(const char *text) {
    for (;;) {
        while (isspace((unsigned char)*text))
            text++;
        if (text[0] == '/' && text[1] == '/') {
            text = strchr(text, '\n');
            if (!text) return false;
        } else if (text[0] == '/' && text[1] == '*') {
            text = strstr(text, "*/");
            if (!text) return false;
            text += 2;
        } else {
            return strncmp(text, ".version", 8) == 0;
        }
    }
}

static size_t name_length(const char *name) {
    size_t length = 0;
    while (isalnum((unsigned char)name[length]) || strchr("_$%", name[length] ? name[length] : ' '))
        length++;
    return length;
}

static uint64_t type_bytes(const char *type, size_t length) {
    unsigned bits = 0;
    for (size_t i = 1; i < length; i++)
        if (isdigit((unsigned char)type[i])) bits = bits * 10 + (unsigned)(type[i] - '0');
    return bits ? (bits + 7) / 8 : 1;
}

/* Reads `.global .align 8 .b8 name[16];` and its like, from behind ".global" on. False where no variable is named. */
static bool read_variable(const char *text, const char **name, size_t *name_bytes, uint64_t *size) {
    uint64_t bytes = 1, elements = 1;
    const char *end = text + strcspn(text, ";={\n");
    while (text < end) {
        text += strspn(text, " \t");
        if (*text == '.') {
            size_t length = strcspn(text + 1, " \t;[=") + 1;
            if (strncmp(text, ".align", 6) == 0) {
                text += 6 + strspn(text + 6, " \t");
                text += strspn(text, "0123456789");
                continue;
            }
            if (strchr("busf", text[1]) && isdigit((unsigned char)text[2])) bytes = type_bytes(text, length);
            text += length;
            continue;
        }
        size_t length = name_length(text);
        if (length == 0) return false;
        const char *bracket = text + length + strspn(text + length, " \t");
        if (*bracket == '[') elements = strtoull(bracket + 1, NULL, 10);
        *name = text;
        *name_bytes = length;
        *size = bytes * (elements ? elements : 1);
        return true;
    }
    return false;
}

/* Whether the text begins with a directive such as ".entry". */
static bool is_directive(const char *text, const char *directive) {
    size_t length = strlen(directive);
    return strncmp(text, directive, length) == 0 && isspace((unsigned char)text[length]);
}

static int read_ptx(struct image *image, const char *text) {
    image->code_bytes += strlen(text);
    int depth = 0, error = 0;
    bool entry = false; /* in a kernel's head or body: it is the newest symbol then */
    const char *name;
    size_t length;
    uint64_t bytes;
    for (const char *c = text; *c && !error; c++) {
        if (*c == '/' && c[1] == '/') {
            c += strcspn(c, "\n");
            if (!*c) break;
        } else if (*c == '{') {
            depth++;
        } else if (*c == '}') {
            if (--depth == 0) entry = false;
        } else if (depth > 0 && entry && is_directive(c, ".local")) {
            if (read_variable(c + 6, &name, &length, &bytes)) image->symbol[image->symbols - 1].bytes += bytes;
        } else if (depth == 0 && *c == '.') {
            if (is_directive(c, ".entry")) {
                c += 6 + strspn(c + 6, " \t\r\n");
                error = add(image, c, name_length(c), true, 0);
                entry = error == 0;
            } else if (is_directive(c, ".global")) {
                if (read_variable(c + 7, &name, &length, &bytes)) error = add(image, name, length, false, bytes);
                c += strcspn(c, ";\n");
            }
            if (!*c) break;
        }
    }
    return error;
}

/* ---- cubin ---- */

static size_t elf_bytes(const Elf64_Ehdr *elf) {
    const Elf64_Shdr *section = (const void *)((const char *)elf + elf->e_shoff);
    size_t bytes = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
    for (unsigned i = 0; i < elf->e_shnum; i++)
        if (section[i].sh_type != SHT_NOBITS && section[i].sh_offset + section[i].sh_size > bytes)
            bytes = section[i].sh_offset + section[i].sh_size;
    size_t headers = elf->e_phoff + (size_t)elf->e_phnum * elf->e_phentsize;
    return bytes > headers ? bytes : headers;
}

static int read_elf(struct image *image, const Elf64_Ehdr *elf) {
    if (elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_shentsize != sizeof(Elf64_Shdr)) return -EINVAL;
    const char *base = (const char *)elf;
    const Elf64_Shdr *section = (const void *)(base + elf->e_shoff);
    image->code_bytes += elf_bytes(elf);
    for (unsigned i = 0; i < elf->e_shnum; i++) {
        if (section[i].sh_type != SHT_SYMTAB || section[i].sh_link >= elf->e_shnum) continue;
        const Elf64_Sym *symbol = (const void *)(base + section[i].sh_offset);
        const char *names = base + section[section[i].sh_link].sh_offset;
        for (uint64_t s = 0; s < section[i].sh_size / sizeof *symbol; s++) {
            const char *name = names + symbol[s].st_name;
            unsigned type = ELF64_ST_TYPE(symbol[s].st_info);
            int error = 0;
            if (type == STT_FUNC && symbol[s].st_shndx != SHN_UNDEF && symbol[s].st_other & CUDA_ENTRY)
                error = add(image, name, strlen(name), true, 0);
            else if (type == STT_OBJECT && symbol[s].st_shndx != SHN_UNDEF &&
                     ELF64_ST_BIND(symbol[s].st_info) != STB_LOCAL)
                error = add(image, name, strlen(name), false, symbol[s].st_size);
            if (error) return error;
        }
    }
    return 0;
}

/* ---- containers ---- */

static int read_any(struct image *image, const void *data);

static int read_fatbin(struct image *image, const struct fatbin_header *fatbin) {
    const char *at = (const char *)fatbin + fatbin->header_bytes, *end = at + fatbin->bytes;
    while (at + sizeof(struct fatbin_entry) <= end) {
        const struct fatbin_entry *entry = (const void *)at;
        const char *payload = at + entry->header_bytes;
        if (entry->header_bytes == 0) return -EINVAL;
        if (entry->compressed_bytes)
            image->sealed = true, image->code_bytes += entry->bytes;
        else if (read_any(image, payload) < 0)
            image->sealed = true;
        at = payload + entry->bytes;
    }
    return 0;
}

static int read_linked(struct image *image, const struct linked *linked) {
    const char *at = (const char *)(linked + 1);
    int error = 0;
    for (uint32_t i = 0; i < linked->images && !error; i++) {
        uint64_t bytes;
        memcpy(&bytes, at, sizeof bytes);
        if (read_any(image, at + sizeof bytes) < 0) image->sealed = true, image->code_bytes += bytes;
        at += sizeof bytes + ((bytes + 8) & ~UINT64_C(7));
    }
    return error;
}

static uint32_t word_at(const void *data) {
    uint32_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

static int read_any(struct image *image, const void *data) {
    switch (word_at(data)) {
    case LINKED_MAGIC:
        return read_linked(image, data);
    case FATBIN_MAGIC:
        return read_fatbin(image, data);
    case FATBIN_WRAPPER:
        return read_any(image, ((const struct fatbin_wrapper *)data)->data);
    }
    if (memcmp(data, ELFMAG, SELFMAG) == 0) return read_elf(image, data);
    return is_ptx(data) ? read_ptx(image, data) : -EINVAL;
}

int image_read(struct image *image, const void *data) {
    *image = (struct image){0};
    int error = read_any(image, data);
    if (error) image_free(image);
    return error;
}

void image_free(struct image *image) {
    for (unsigned i = 0; i < image->symbols; i++)
        free(image->symbol[i].name);
    free(image->symbol);
    *image = (struct image){0};
}

const struct image_symbol *image_find(const struct image *image, const char *name, bool kernel) {
    for (unsigned i = 0; i < image->symbols; i++)
        if (image->symbol[i].kernel == kernel && strcmp(image->symbol[i].name, name) == 0) return &image->symbol[i];
    return NULL;
}

size_t image_bytes(const void *data) {
    switch (word_at(data)) {
    case LINKED_MAGIC:
        return ((const struct linked *)data)->bytes;
    case FATBIN_MAGIC:
        return ((const struct fatbin_header *)data)->header_bytes + ((const struct fatbin_header *)data)->bytes;
    case FATBIN_WRAPPER:
        return image_bytes(((const struct fatbin_wrapper *)data)->data);
    }
    if (memcmp(data, ELFMAG, SELFMAG) == 0) return elf_bytes(data);
    return is_ptx(data) ? strlen(data) + 1 : 0;
}
