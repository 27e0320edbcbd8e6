/* engine/tok_verify.h - a tokenizer held against golden ids: one check a case and kind, as `sluice verify --tokenizer` prints them. */
#ifndef SLUICE_ENGINE_TOK_VERIFY_H
#define SLUICE_ENGINE_TOK_VERIFY_H
#include <stdio.h>
#include "engine/tokenizer.h"

struct eng_tok_verdict { size_t passed, failed, refused /* reference ids that would let user text write a control token */; };

/* A tokenizer.json, a tiktoken.model (tokenizer_config.json beside it) or a GGUF file, without a model around it. */
int eng_tok_open_file(eng_tok **out, const char *path, struct err *e);

/* golden: a JSON array of cases {text, ids, ids_with_specials, ids_plain, ids_noadded, decoded, decoded_skip_specials} or of streams
 * {ids, chunks, tail, text, skip_special}; absent fields are not checked, absent ids_plain means ids. Failures are printed to out
 * (NULL: nowhere), one line each, then nothing: the caller sums up. */
int eng_tok_verify_with(const eng_tok *t, const char *golden, FILE *out, struct eng_tok_verdict *v, struct err *e);
int eng_tok_verify(const char *file, const char *golden, FILE *out, struct eng_tok_verdict *v, struct err *e);
#endif
