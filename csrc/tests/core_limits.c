/* The quota's parser on the command line, so that one file of vectors holds it and the Python ones:
 *   core-limits size                texts on stdin, each ended by a NUL; prints bytes, "empty" or "refused" for each
 *   core-limits fraction TOTAL      the same for gpu-fraction, of TOTAL bytes
 *   core-limits decide CARD INJECTED MOUNTED LIMIT MEMORY FRACTION ENVIRONMENT
 *                                   what holds: "<bytes> <source> <unbelieved>"; "-" stands for a text that isn't there
 */
#include <errno.h>

#include "core_check.h"
#include "quota.h"

static void answer(int error, uint64_t bytes) {
    if (error == 0)
        printf("%llu\n", (unsigned long long)bytes);
    else
        puts(error == -ENODATA ? "empty" : "refused");
}

static struct vgpu_text text(const char *given) {
    struct vgpu_text text = {.present = strcmp(given, "-") != 0};
    if (text.present && strlen(given) >= sizeof text.text)
        text.unreadable = true;
    else if (text.present)
        strcpy(text.text, given);
    return text;
}

int main(int argc, char **argv) {
    char buffer[4096];
    uint64_t bytes = 0;
    if (argc == 9 && strcmp(argv[1], "decide") == 0) {
        uint64_t card = strtoull(argv[2], NULL, 10);
        struct vgpu_quota_texts texts = {.injected = atoi(argv[3]),
                                         .mounted = atoi(argv[4]),
                                         .limit = text(argv[5]),
                                         .memory = text(argv[6]),
                                         .fraction = text(argv[7])};
        texts.environment[0] = text(argv[8]);
        struct vgpu_quota quota = vgpu_quota_decide(&texts, 0, card, card);
        printf("%llu %d %llu %s\n", (unsigned long long)quota.limit_bytes, (int)quota.source,
               (unsigned long long)quota.unbelieved_bytes, quota.why);
        return 0;
    }
    if (argc < 2) return 2;
    size_t length = fread(buffer, 1, sizeof buffer - 1, stdin);
    for (char *at = buffer; at < buffer + length; at += strlen(at) + 1) {
        int error = argc > 2 ? vgpu_quota_parse_fraction(at, strtoull(argv[2], NULL, 10), &bytes)
                             : vgpu_quota_parse(at, &bytes);
        answer(error, bytes);
    }
    return 0;
}
