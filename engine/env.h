/* engine/env.h - what names mean in a sheet: parameters, per-layer entries, config look-ups, tensor-name patterns.
 *
 * Owns:      values of parameters (lazy, once), of per_layer entries (once a layer), parsed expressions.
 * Leaves:    registers to the compiler; reading of config and metadata to engine/config.h.
 * Invariant: a parameter never depends on a layer; a cycle is an error that shows it; a config key counts as read when an
 *            expression that was used mentions it, in any of its branches.
 * Source:    docs/sheets.md, "Parameters". */
#ifndef SLUICE_ENGINE_ENV_H
#define SLUICE_ENGINE_ENV_H
#include "engine/config.h"
#include "engine/forms.h"

#define ENG_PARAMS_MAX 512
#define ENG_PER_LAYER_MAX 64
struct eng_param {
    const char *name;
    const struct json *def;
    struct eng_value value;
    enum { ENG_P_NEW, ENG_P_BUSY, ENG_P_DONE } state;
    bool touched;
};
struct eng_env {
    const char *sheet_name;
    const struct json *sheet;        /* merged */
    struct eng_cfg cfg;
    struct arena *mem;
    const char *prefix;              /* {P} */
    const char *block_prefix;        /* pattern of {B} */
    struct eng_param param[ENG_PARAMS_MAX]; unsigned n_params;
    struct eng_param per_layer[ENG_PER_LAYER_MAX]; unsigned n_per_layer;
    int32_t layer;                   /* L; -1 outside the layers */
    uint32_t ctx_use;                /* the name of this spelling: the context in force; 0: not known yet */
    unsigned in_param;               /* > 0 while a parameter is evaluated: no L there */
    const char *stack[64]; unsigned n_stack;
    struct expr_slot { const char *text; struct eng_expr *x; bool list; } *cache; size_t cache_cap, cache_n;
    struct eng_scope scope;
};
/* Borrows the sheet and the catalog; finds {P}. */
int eng_env_open(struct eng_env *v, const char *name, const struct json *sheet, const off_catalog *cat, struct arena *a, struct err *e);
void eng_env_layer(struct eng_env *v, int32_t layer);                 /* forgets the per_layer values of another one */
bool eng_env_has(const struct eng_env *v, const char *name);          /* a parameter, per_layer entry or L, hf, gguf, ctx_use */
int eng_env_eval(struct eng_env *v, const struct eng_expr *x, struct eng_value *out, struct err *e);
/* text must live as long as the environment: the parsed tree is kept under its address. */
int eng_env_text(struct eng_env *v, const char *text, struct eng_value *out, struct err *e);
int eng_env_list(struct eng_env *v, const char *text, const struct eng_expr **list, struct err *e); /* "a, b" parsed, marked as used */
int eng_env_u32(struct eng_env *v, const char *param, uint32_t *out, struct err *e); /* a parameter that must be a count >= 1 */
/* Replaces {P}, {B}, {L} of a pattern; {E} stays. Returns the length, or 0: too long, or {B}, {L} outside a layer. */
size_t eng_env_expand(const struct eng_env *v, const char *pattern, char out[ENG_NAME_MAX]);
#endif
