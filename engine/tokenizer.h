/* engine/tokenizer.h - text <-> token ids, exactly as the model's own tokenizer does it.
 *
 * Owns:      vocabulary, merges, split patterns (PCRE2 with JIT), added tokens.
 * Invariant: encode of user text never yields a control token unless ENG_TOK_SPECIAL is given (the unknown token apart);
 *            decode(encode(t)) == t for byte-level vocabularies with all 256 bytes and without a normaliser.
 * Sources:   tokenizer.json (huggingface tokenizers), GGUF metadata (tokenizer.ggml.*; pre names in docs/formats.md), tiktoken.model.
 * Threads:   read-only after open, used by many threads; scratch is per call. */
#ifndef SLUICE_ENGINE_TOKENIZER_H
#define SLUICE_ENGINE_TOKENIZER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"
#include "offload/catalog.h"

typedef struct eng_tok eng_tok;
struct eng_ids { int32_t *v; size_t n, cap, max; }; /* max: the most ids it may hold; grown by realloc */
void eng_ids_free(struct eng_ids *ids);
int eng_ids_push(struct eng_ids *ids, int32_t id, struct err *e); /* ERR_LIMIT, ERR_NOMEM */

/* From a model: tokenizer.json (+ tokenizer_config.json) beside safetensors, or GGUF metadata. rows: the embedding's; a
 * vocabulary that is larger is ERR_FORMAT. An unknown model, pre-tokenizer or normaliser is ERR_UNSUPPORTED by name. */
int eng_tok_open(eng_tok **out, const off_catalog *c, uint32_t rows, struct err *e);
int eng_tok_open_json(eng_tok **out, const char *json, size_t n, const char *config /* tokenizer_config.json or NULL */, size_t config_n, struct err *e);
void eng_tok_close(eng_tok *t);
/* The canonical form: what an engine hands to a gateway, named by its SHA-256. load(save(t)) behaves like t. */
int eng_tok_save(const eng_tok *t, struct buf *b, struct err *e);
int eng_tok_load(eng_tok **out, const void *p, size_t n, struct err *e);

uint32_t eng_tok_count(const eng_tok *t);
const char *eng_tok_piece(const eng_tok *t, int32_t id, size_t *n); /* as stored ("Ġthe"); NULL: no such id */
int32_t eng_tok_find(const eng_tok *t, const char *piece, size_t n); /* -1: none */
/* A control token is one marked special, or an added token that stands literally in the chat template (whitespace ones do not
 * count): eng_tok_mark_template says which, before the tokenizer is shared or saved. */
bool eng_tok_is_control(const eng_tok *t, int32_t id);
bool eng_tok_is_special(const eng_tok *t, int32_t id); /* marked special: it leaves no text */
void eng_tok_mark_template(eng_tok *t, const char *tmpl, size_t n);
int32_t eng_tok_bos(const eng_tok *t);                            /* -1: none */
const int32_t *eng_tok_eos(const eng_tok *t, size_t *n);          /* end-of-turn and end-of-text ids: generation stops at any */
void eng_tok_set_eos(eng_tok *t, const int32_t *ids, size_t n);   /* generation_config.json adds its own (at most 16) */

enum { ENG_TOK_SPECIAL = 1,     /* recognise every added token, control ones included (text of a template) */
       ENG_TOK_ADDED = 2,       /* recognise only added tokens that are not control tokens (what `ids_plain` means) */
       ENG_TOK_WRAP = 4 };      /* add BOS / EOS as the file's own post-processor does */
/* Appends to ids. Text must be valid UTF-8 (ERR_INVALID). */
int eng_tok_encode(const eng_tok *t, const char *text, size_t n, unsigned flags, struct eng_ids *ids, struct err *e);
/* One text in spans that follow each other from 0, each trusted (a template wrote it) or not (a user did). Added tokens are found in
 * the whole of it, but a control token counts only where it lies wholly in trusted spans; one that users spelled is encoded as text,
 * without merging across its ends. Elsewhere adjacent trusted and plain text merge across the border as one text. */
struct eng_text_span { size_t begin, end; bool trusted; };
int eng_tok_encode_spans(const eng_tok *t, const char *text, const struct eng_text_span *spans, size_t n_spans, struct eng_ids *ids, struct err *e);

/* Streaming decode: whole UTF-8 only; bytes that can no longer become a character leave as U+FFFD. 16 bytes of state. */
struct eng_detok { uint8_t held[8]; uint8_t n_held; bool started; };
void eng_detok_init(struct eng_detok *d);
int eng_detok_push(const eng_tok *t, struct eng_detok *d, int32_t id, bool skip_special, struct buf *out);
int eng_detok_end(const eng_tok *t, struct eng_detok *d, struct buf *out);
/* What a token stands for by itself, byte by byte: maybe a part of a character only. False: no such id, or no memory. */
bool eng_tok_bytes(const eng_tok *t, int32_t id, struct buf *out);
#endif
