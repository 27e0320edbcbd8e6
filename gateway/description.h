/* gateway/description.h - what an engine says of itself in its HELLO, checked and copied.
 *
 * Invariant: what is read is in range; two descriptions with equal `identity` answer a request with the same bits, so that a
 *            stream may go on from one to the other.
 * Source:    the JSON object of ENG_FR_HELLO (docs/formats.md): id, aliases, ctx, seqs, vocab, numerics, fingerprint, tokenizer and
 *            template (hex SHA-256 of the blobs; template null or absent: none), special_tokens, temperature, top_p, top_k, queue_max,
 *            queue_tokens_max, format.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_DESCRIPTION_H
#define SLUICE_GATEWAY_DESCRIPTION_H
#include "base/arena.h"
#include "base/hash.h"
#include "base/json.h"
#include "engine/engine.h"

#define GW_DESCRIPTION_BYTES_MAX (4u << 20)
struct gw_description {          /* a HELLO body, checked; strings live in the arena it was read into */
    const char *id;
    const char **aliases; size_t n_aliases;
    uint32_t ctx, seqs, vocab, queue_max;
    uint64_t queue_tokens_max;
    int64_t pid;
    uint8_t tokenizer[HASH_BYTES], template_digest[HASH_BYTES];
    bool has_template;
    const struct json *special_tokens;
    const struct json *format;   /* engine/format.h; NULL: none */
    struct eng_sampling sampling; /* the model's defaults; seed 0 */
    uint8_t identity[HASH_BYTES];
};
/* ERR_FORMAT names the key; ERR_UNSUPPORTED: another major protocol version. */
int gw_description_read(struct gw_description *d, const void *json, size_t n, struct arena *a, struct err *e);
#endif
