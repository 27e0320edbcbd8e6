/* Any bytes as a safetensors file, or, behind a first byte 'I', as the index of a set of two sound shards. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "offload/catalog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/sluice-fuzz-XXXXXX", file[64], index_path[64];
static int fd_file, fd_index;

static void put(const char *name, const void *p, size_t n)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert(f && fwrite(p, 1, n, f) == n && fclose(f) == 0);
}

/* The file to be varied is a link to a memfd, so that a round costs no disk. */
static int linked(const char *name, char path[64])
{
    char target[64];
    int fd = memfd_create(name, 0);
    assert(fd >= 0);
    snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
    snprintf(path, 64, "%s/%s", dir, name);
    assert(symlink(target, path) == 0);
    return fd;
}

static void clean(void)
{
    char path[96];
    static const char *const names[] = {"config.json", "1.safetensors", "2.safetensors", "x.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static void setup(void)
{
    static const char one[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
                      two[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"c\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[2,4]}}";
    char shard[256] = {0};
    assert(mkdtemp(dir));
    atexit(clean);
    log_setup(&(struct log_config){.level = LOG_ERROR, .fd = 2, .part = "fuzz"});
    put("config.json", "{}", 2);
    shard[0] = (char)strlen(one);
    memcpy(shard + 8, one, strlen(one));
    put("1.safetensors", shard, 8 + strlen(one) + 2);
    shard[0] = (char)strlen(two);
    memcpy(shard + 8, two, strlen(two));
    put("2.safetensors", shard, 8 + strlen(two) + 4);
    fd_file = linked("x.safetensors", file);
    fd_index = linked("model.safetensors.index.json", index_path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    if (!ready)
        setup();
    ready = true;
    bool index = size > 0 && data[0] == 'I';
    int fd = index ? fd_index : fd_file;
    data += index;
    size -= index;
    assert(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    for (int header_only = 0; header_only < 2; header_only++) {
        off_catalog *c;
        struct err e = {0};
        int rc = off_catalog_open(&c, index ? dir : file, header_only, &e);
        assert((rc == ERR_OK) == (c != NULL));
        assert(rc == ERR_OK || (rc == e.code && e.msg[0]));
        uint64_t bytes = 0;
        for (size_t i = 0; c && i < off_catalog_count(c); i++) {
            const struct off_tensor *t = off_catalog_at(c, i);
            assert(off_catalog_find(c, t->name, strlen(t->name)) == t && t->offset >= 8);
            assert(off_catalog_problems(c) || t->offset + t->bytes <= off_catalog_file(c, t->file)->size);
            bytes += t->bytes;
        }
        assert(!c || bytes == off_catalog_bytes(c));
        off_catalog_close(c);
    }
    return 0;
}
