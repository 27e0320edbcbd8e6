/* Any bytes as a GGUF file: an error or a catalog whose every promise holds. The file is a memfd, opened by the path that a user
 * would give. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "offload/catalog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look(const off_catalog *c, bool whole)
{
    struct off_array a;
    const struct json *m = off_catalog_config(c);
    struct buf b;
    buf_init(&b, 1 << 20);
    json_put(&b, m);
    buf_free(&b);
    for (size_t i = 0; i < off_catalog_count(c); i++) {
        const struct off_tensor *t = off_catalog_at(c, i);
        assert(off_catalog_find(c, t->name, strlen(t->name)) == t);
        assert(!whole || t->offset + t->bytes <= off_catalog_file(c, t->file)->size || t->bytes == 0);
    }
    static const char *const keys[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type", "a"};
    for (size_t k = 0; k < 4; k++) {
        if (!off_gguf_array(c, keys[k], &a))
            continue;
        size_t n, sum = 0;
        for (uint64_t i = 0; i < a.n; i++) {
            int64_t v;
            double d;
            const char *s = off_array_str(&a, i, &n);
            for (size_t j = 0; s && j < n; j++)
                sum += (uint8_t)s[j];
            if (!s && off_array_int(&a, i, &v))
                assert(off_array_num(&a, i, &d));
        }
        (void)sum;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("x.gguf", 0);
        assert(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    assert(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    for (int header_only = 0; header_only < 2; header_only++) {
        off_catalog *c;
        struct err e = {0};
        int rc = off_catalog_open(&c, path, header_only, &e);
        assert((rc == ERR_OK) == (c != NULL));
        assert(rc == ERR_OK || (rc == e.code && e.msg[0]));
        if (c)
            look(c, off_catalog_problems(c) == 0);
        off_catalog_close(c);
    }
    return 0;
}
