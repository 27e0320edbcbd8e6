/* gateway/served.h - what a gateway knows of the model behind an engine: its description, tokenizer and template.
 *
 * Owns:      one immutable, counted object per description; whoever renders a prompt holds a reference, so that an engine may come
 *            back with another model meanwhile.
 * Invariant: two objects with equal `identity` answer a request with the same bits: a stream may go on from one to the other.
 * Threads:   any, after open. */
#ifndef SLUICE_GATEWAY_SERVED_H
#define SLUICE_GATEWAY_SERVED_H
#include <stdatomic.h>
#include "engine/chat.h"
#include "engine/format.h"
#include "gateway/description.h"

/* Tokenizers are shared between descriptions that name the same blob. */
struct gw_tok_ref { atomic_int refs; eng_tok *tok; uint8_t digest[HASH_BYTES]; };
int gw_tok_open(struct gw_tok_ref **out, const uint8_t digest[HASH_BYTES], const void *blob, size_t n, struct err *e);
void gw_tok_unref(struct gw_tok_ref *t);

struct gw_served {
    struct gw_description d;
    struct gw_tok_ref *tok;
    eng_chat *chat;              /* NULL: the model has no chat template */
    struct eng_format format;    /* how it spells calls and reasoning */
    char fingerprint[20];        /* "fp_" and 12 digits of identity */
    int64_t created;             /* seconds since 1970: when this gateway first saw it */
    struct arena mem;
    atomic_int refs;
};
/* Reads the description again into its own memory; takes a reference on tok. template: the text, NULL when d has none. */
int gw_served_open(struct gw_served **out, const void *hello, size_t n, struct gw_tok_ref *tok, const char *tmpl, size_t tmpl_n, struct err *e);
struct gw_served *gw_served_ref(struct gw_served *s);
void gw_served_unref(struct gw_served *s); /* NULL is fine */
bool gw_served_is(const struct gw_served *s, const char *model); /* its id or an alias */
#endif
