/* What a device program (PTX text, cubin, fat binary, result of our own linker) says it contains. */
#ifndef SIMGPU_IMAGE_H
#define SIMGPU_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_symbol {
    char *name;
    uint64_t bytes;  /* of a variable; for a kernel: of the local memory that each of its threads needs */
    uint64_t offset; /* of a variable, behind the code */
    bool kernel;
};

struct image {
    struct image_symbol *symbol;
    unsigned symbols;
    uint64_t code_bytes;
    uint64_t data_bytes;
    bool sealed; /* compressed: names can't be read, so every name is taken for a kernel of it */
};

/* Reads an image. 0, -EINVAL for what is none, -ENOMEM. */
int image_read(struct image *image, const void *data);
void image_free(struct image *image);
const struct image_symbol *image_find(const struct image *image, const char *name, bool kernel);
/* Size of an image in bytes, from its own headers; 0 for what is none. */
size_t image_bytes(const void *data);

/* The linker's result: a header and the images one behind the other. */
#define LINKED_MAGIC UINT32_C(0x4b4e4c53)
struct linked {
    uint32_t magic;
    uint32_t images;
    uint64_t bytes; /* with this header */
    /* then for each image: uint64_t bytes, the image, padding to 8 */
};

#endif
