/* engine/template.h - chat templates: the Jinja subset that models ship, sandboxed and bounded.
 *
 * Owns:      the parsed template. Render allocates from the caller's arena only.
 * Invariant: a render ends within steps, bytes and depth; it reads nothing but its context and `now`; each byte of the result
 *            knows whether the template wrote it (trusted) or it came out of the context (plain).
 * Source:    Jinja2 3.1 as transformers sets it up (trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes).
 * Threads:   read-only after open. */
#ifndef SLUICE_ENGINE_TEMPLATE_H
#define SLUICE_ENGINE_TEMPLATE_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "engine/tokenizer.h"

/* Zeros: the defaults, 2M, 16 MiB, 64 (of nested blocks, brackets and macro calls; at most 256).
 * frozen: lists cannot be changed and there is no from_json, as in the reference; otherwise a template may change lists it made. */
struct eng_template_limits { uint64_t steps_max; size_t bytes_max; unsigned depth_max; bool frozen; };
typedef struct eng_template eng_template;
/* ERR_FORMAT with line and column: syntax, unknown filter, test or function. */
int eng_template_open(eng_template **out, const char *src, size_t n, const struct eng_template_limits *lim, struct err *e);
void eng_template_close(eng_template *t);
struct eng_prompt {
    char *text; size_t n;                   /* NUL-terminated, from the arena */
    struct eng_text_span *spans; size_t n_spans; /* cover [0, n) in order */
};
/* context: an object (messages, tools, add_generation_prompt, bos_token, ...). ERR_INVALID: raise_exception, its text in *e;
 * ERR_FORMAT: a type error with line; ERR_LIMIT. Strings of the context are plain, except those under the keys named in
 * trusted_keys (bos_token, eos_token, ...; NULL-terminated list, may be NULL). */
int eng_template_render(const eng_template *t, const struct json *context, const char *const *trusted_keys, int64_t now,
                        struct arena *a, struct eng_prompt *out, struct err *e);
#endif
