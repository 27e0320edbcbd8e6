/* engine/bind_internal.h - what bind.c (names, the tables, one entry) shares with bind_tensor.c (a found name's shape, form and spans).
 *
 * Owns:   nothing of its own; the binder's tables are engine/bind.h's.
 * Leaves: how the name of an entry is chosen to bind.c. */
#ifndef SLUICE_ENGINE_BIND_INTERNAL_H
#define SLUICE_ENGINE_BIND_INTERNAL_H
#include "engine/bind.h"
#include "engine/view.h"

struct eng_spec { const char *name, *view, *bias_view, *map; };
/* One of an entry's names: what was found under it, where {E} stood in it (SIZE_MAX: nowhere), or what was tried. */
struct eng_choice { struct eng_spec s; struct eng_form f; char name[ENG_NAME_MAX]; size_t len, expert_at; bool found; char tried[640]; };

/* bind.c */
int eng_bind_reserve(struct eng_binder *b, uint32_t more, struct err *e);        /* room for more entries in both tables */
void eng_bind_mark(struct eng_binder *b, const struct off_tensor *t);            /* t is bound */
struct eng_tensor *eng_bind_add(struct eng_binder *b, const struct eng_entry *x, const struct off_tensor *t, const uint64_t *dims, unsigned n_dims); /* reserved before */
const char *eng_bind_file(const struct eng_binder *b, const struct off_tensor *t);
const char *eng_bind_where(const struct eng_binder *b, const struct eng_entry *x, char out[80]); /* "@name, layer n" */
const char *eng_bind_name(struct eng_binder *b, const struct eng_entry *x, const char *suffix, int64_t expert); /* expert < 0: none; NULL: no memory */
void eng_bind_dims(const uint64_t *d, unsigned n, char *out, size_t size);       /* "[a, b]" */
bool eng_bind_same(const uint64_t *a, unsigned n, const uint64_t *b, unsigned m); /* axes of one entry do not count */
int eng_bind_wrong(struct eng_binder *b, const struct eng_entry *x, const struct off_tensor *t, const uint64_t *want, unsigned n, const uint64_t *got,
                   unsigned m, const char *rule, struct err *e);                 /* notes a wrong shape */
size_t eng_bind_expert_name(const struct eng_choice *c, uint64_t expert, char out[ENG_NAME_MAX]); /* its length; 0: too long */
/* bind_tensor.c: binds x as c found it; out has the shape and the number of experts. */
int eng_bind_dense(struct eng_binder *b, const struct eng_entry *x, const struct eng_choice *c, struct eng_bound *out, struct err *e);
int eng_bind_stack(struct eng_binder *b, const struct eng_entry *x, const struct eng_choice *c, struct eng_bound *out, struct err *e);
int eng_bind_experts(struct eng_binder *b, struct eng_entry *x, const struct eng_choice *c, struct eng_bound *out, struct err *e);
#endif
