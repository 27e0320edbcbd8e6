/* engine/bind.h - a sheet's logical tensors bound to the files: names, alternatives, views, shapes, storage forms.
 *
 * Owns:      the tables of tensors and weights while a plan is compiled, and which file tensors are bound.
 * Leaves:    how a view becomes rows to engine/view.h, forms to engine/forms.h.
 * Invariant: expert tensors of one logical tensor are consecutive, their scales follow them; an absent optional tensor has no
 *            index; with a report every problem is noted and binding goes on as if the shape were right.
 * Source:    docs/sheets.md, "Tensors". */
#ifndef SLUICE_ENGINE_BIND_H
#define SLUICE_ENGINE_BIND_H
#include "engine/env.h"
#include "engine/plan.h"
#include "engine/report.h"

/* What an operator sees of a tensor. */
struct eng_bound {
    bool absent;               /* optional and not in the files */
    uint32_t first, n;         /* tensors [first, first + n): experts; n == 1 otherwise */
    uint32_t bias;             /* KRN_NO_WEIGHT: none */
    unsigned n_dims; uint64_t dims[4]; /* logical shape, an expert stack's included */
};
struct eng_entry { const char *name; const struct json *def; int32_t layer; bool done, layered, whole /* experts, all of them */; struct eng_bound bound; };
struct eng_binder {
    struct eng_env *env;
    const off_catalog *cat;
    struct eng_report *rep;    /* may be NULL: the first problem ends the compile */
    struct err first;          /* the first problem */
    struct arena *mem;
    struct eng_tensor *tensors; struct krn_weight *weights; uint32_t n, cap; /* malloc'ed */
    uint64_t *seen;            /* bit i: catalog tensor i is bound */
    size_t n_seen;
    struct eng_entry *entries; size_t n_entries;
    uint32_t scale_block[2];   /* of fp8-block */
};
int eng_binder_open(struct eng_binder *b, struct eng_env *env, struct eng_report *rep, struct err *e);
void eng_binder_close(struct eng_binder *b); /* frees what was not taken */
/* @name at the environment's layer. ERR_NOTFOUND: the sheet has no such tensor. */
int eng_bind(struct eng_binder *b, const char *name, struct eng_bound *out, struct err *e);
/* The file tensor of an optional vector outside layers (rope_freqs), marked as bound; NULL: not there. */
const struct off_tensor *eng_bind_vector(struct eng_binder *b, const char *name);
/* Every tensor of the files is bound, excused by a skip rule, or reported. */
int eng_bind_rest(struct eng_binder *b, struct err *e);
/* Notes a problem: with a report 0, without one its code. */
int eng_bind_issue(struct eng_binder *b, enum eng_issue kind, int code, const char *tensor, const char *expected, const char *found, struct err *e,
                   const char *fmt, ...) __attribute__((format(printf, 8, 9)));
#endif
