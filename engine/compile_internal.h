/* engine/compile_internal.h - the state of one compile, shared by compile.c (the walk), emit*.c (operators) and segments.c (records). */
#ifndef SLUICE_ENGINE_COMPILE_INTERNAL_H
#define SLUICE_ENGINE_COMPILE_INTERNAL_H
#include "engine/bind.h"
#include "engine/layout.h"
#include "engine/line.h"

#define ENG_REGS_MAX 64
#define ENG_VALS_MAX 8

enum eng_val_kind { ENG_VAL_REG, ENG_VAL_LIST, ENG_VAL_ROUTING, ENG_VAL_TOKENS };
struct eng_val { enum eng_val_kind kind; struct krn_view view; }; /* view as engine/layout.h has it */
struct eng_reg { const char *name; struct eng_val val; };

/* A matrix with a row for every token, cut: weights [first, first + n) of `rows` rows each, the last one of the rest. */
struct eng_tiles { uint32_t weight, first, n, rows; };

struct eng_compiler {
    const off_catalog *cat;
    struct eng_plan *p;
    struct eng_report *rep;
    bool bind_only;
    uint32_t ctx_asked;         /* 0: the sheet's serving context */
    struct arena *mem;          /* the plan's */
    struct eng_env env;
    struct eng_binder b;
    struct krn_op *ops; const char **op_reg; uint32_t n_ops, cap_ops; /* malloc'ed */
    struct eng_store *stores; uint32_t n_stores, cap_stores;          /* malloc'ed */
    struct eng_reg reg[ENG_REGS_MAX]; unsigned n_regs;
    const char *where; unsigned line; /* block and line number, for messages */
    const char *rope_name[16];
    struct eng_segment *segs; uint32_t n_segs, cap_segs; uint32_t seg_op0; const char *seg_name; bool seg_joins;
    struct eng_tap *taps; uint32_t n_taps, cap_taps;
    struct eng_tiles tiles[4]; unsigned n_tiles;
    uint64_t tile_bytes;        /* 0: the default */
    unsigned depth;             /* of `use` and `if` */
};

/* emit.c: one call. Results go to out (split gives several). */
int eng_emit(struct eng_compiler *c, const struct eng_arg *call, struct eng_val *out, unsigned *n_out, struct err *e);
/* compile.c */
int eng_compile_arg(struct eng_compiler *c, const struct eng_arg *a, struct eng_val *out, unsigned *n_out, struct err *e); /* a register or a call */
int eng_compile_at(struct eng_compiler *c, struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5))); /* "attn:1: ..." */
int eng_compile_segment(struct eng_compiler *c, bool gate, struct err *e); /* ends the segment at hand */
/* A view as it is at the end of the segment just closed; name is borrowed. */
int eng_compile_tap(struct eng_compiler *c, const char *name, const struct krn_view *v, struct err *e);
/* state_names.c: the KV group or recurrent state that $name is at this layer. */
int eng_state_pages(struct eng_compiler *c, const char *name, uint32_t heads, uint32_t dim_k, uint32_t dim_v, bool latent, uint32_t window, uint32_t *group,
                    uint32_t *layer, struct err *e);
int eng_state_recurrent(struct eng_compiler *c, const char *name, uint32_t *state, uint32_t *layer, struct err *e);
/* serving.c: the sheet's `serve` section into the plan, and the context in force. */
int eng_serving(struct eng_compiler *c, struct err *e);
int eng_notes(struct eng_compiler *c, struct err *e); /* its `say` section: what holds of it */
int eng_own_template(struct eng_compiler *c, struct err *e); /* its `template`, as one text in the plan */
int eng_formats(struct eng_compiler *c, struct err *e); /* its `tools` and `reasoning`: checked, and copied into the plan */
int eng_parts(struct eng_compiler *c, struct err *e); /* the sheet's `parts`: names each tensor's */
/* rope_table.c: index of the table called name. */
int eng_rope_table(struct eng_compiler *c, const char *name, uint32_t *table, struct err *e);
/* vocab_tiles.c: how matrix w is cut; uncut: n is 1 and first is w. */
int eng_vocab_tiles(struct eng_compiler *c, uint32_t w, struct eng_tiles *out, struct err *e);
/* segments.c: weights -> records, segments -> record lists. */
int eng_segment_records(struct eng_compiler *c, struct err *e);
#endif
