/* Any bytes as the manifest of a packed copy: an error, or lists whose every promise holds. Bytes that begin with '!' are one that is
 * being made. */
#include <assert.h>
#include <string.h>

#include "offload/pack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct off_pack p;
    struct arena a;
    struct err e = {0};
    bool partial = size && data[0] == '!';
    uint64_t end = 0;
    arena_init(&a, 64u << 20);
    int rc = off_pack_parse(&p, (const char *)data + partial, size - partial, partial, &a, &e);
    assert(rc == ERR_OK || e.msg[0]);
    if (rc == ERR_OK) {
        assert(partial || (p.whole && p.n_records == p.n_planned && p.parsed == size));
        assert(!p.parsed || (p.n_records <= p.n_planned && strlen(p.model) > 0 && !strchr(p.model, '/')));
        for (uint32_t i = 0; i < p.n_files; i++)
            assert(p.files[i].head <= p.files[i].size && strlen(p.files[i].name) && off_pack_file(&p, p.files[i].name));
        for (uint32_t i = 0; i < p.n_records; i++) {
            const struct off_pack_record *r = &p.records[i];
            assert(r->at % OFF_PACK_ALIGN == 0 && r->at >= end && r->bytes > 0 && r->at + r->bytes <= p.end);
            end = r->at + r->bytes;
            uint64_t sum = 0;
            for (uint64_t k = 0; k < off_pack_pieces(r->bytes); k++)
                sum += r->sums[k];
            (void)sum;
        }
        for (uint32_t i = 0; i < p.n_tensors; i++)
            assert(p.tensors[i].at + p.tensors[i].bytes <= p.end);
    }
    arena_free(&a);
    return 0;
}
