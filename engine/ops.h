/* engine/ops.h - the registry of sheet operators: name, arguments, attributes, formula, source.
 *
 * Owns:      a constant table. Compile errors, the checklist of `check` and docs/operators.md come from it.
 * Leaves:    shapes and the call itself to engine/emit.c, arithmetic to kernels/.
 * Invariant: sorted by name; every operator that a sheet may call is here. */
#ifndef SLUICE_ENGINE_OPS_H
#define SLUICE_ENGINE_OPS_H
#include <stddef.h>
#include "base/buf.h"
#include "kernels/op.h"

enum eng_attr_kind {
    ENG_ATTR_NUM,    /* a number */
    ENG_ATTR_INT,    /* an integer >= 0 */
    ENG_ATTR_BOOL,
    ENG_ATTR_WORD,   /* one of the words in `words`; the attribute's number is the word's index */
    ENG_ATTR_TABLE,  /* the name of a rope table */
    ENG_ATTR_WEIGHT  /* @name, which may be absent */
};
struct eng_attr {
    const char *name;
    enum eng_attr_kind kind;
    const char *words;      /* WORD: "silu gelu ..." */
    const char *dflt;       /* as in a sheet; NULL: must be given */
    double least, most;     /* NUM: what is no mistake; both 0: whatever f32 holds */
};
#define ENG_OP_ATTRS 9

/* args, a letter each: t token ids, r register, B list register, R routing (what `route` gives), w weight, s state,
 * n integer, f number, q quoted text; `?` after one: may be left out or null; `*` after the last: repeated. */
struct eng_opdef {
    const char *name, *args;
    enum krn_opcode code;   /* KRN_OP_NONE: changes the view of a register and makes no call */
    bool in_place;          /* out may be in[0] */
    struct eng_attr attrs[ENG_OP_ATTRS]; /* ended by a NULL name */
    const char *shape;      /* rule, in words */
    const char *formula, *source;
    double tolerance;       /* of max |a - b| / max |b| against known answers (verify --only operators); views: 0, they move nothing */
};
extern const struct eng_opdef eng_ops[];
extern const size_t eng_n_ops;

const struct eng_opdef *eng_op_find(const char *name, size_t n);     /* NULL: no such operator */
const struct eng_opdef *eng_op_of(enum krn_opcode code);             /* the first one that compiles to code */
void eng_op_names(char *out, size_t n);                              /* "add, attend, ..." for messages */
int eng_op_word(const char *words, const char *w, size_t n);         /* index of w among the words, -1 */
void eng_op_markdown(struct buf *b, const struct eng_opdef *d);      /* formula, shapes, attributes */
#endif
