/* engine/verify_internal.h - what the files of verify share: one run of a model over a reference's prompts.
 *
 * verify.c drives prompts, verify_layers.c compares registers with a reference folder, verify_write.c freezes one. */
#ifndef SLUICE_ENGINE_VERIFY_INTERNAL_H
#define SLUICE_ENGINE_VERIFY_INTERNAL_H
#include "engine/session.h"
#include "engine/verify.h"

/* Tolerances, of max |a - b| / max |b|. Block-quantised weights are compared with dequantise-then-F32. Off the f32 path (int8
 * activations, f16 pages) there is no bar for a layer, so the last number only catches what is broken: there the text's bar is
 * the margin of the reference. A baseline that was frozen on the very path in use is held to the f32 bar on any path. */
#define ENG_VERIFY_TOL_F32 1e-4
#define ENG_VERIFY_TOL_QUANT_F32 2e-3
#define ENG_VERIFY_TOL_LOOSE 5e-2
#define ENG_VERIFY_SEQS_MAX 64

struct eng_verify_run {
    struct eng_verify *v;
    eng_session *s;
    off_catalog *acts;        /* reference activations, NULL for goldens */
    const char *prompt;
    uint32_t row0, n_rows, n_all; /* rows of this chunk, rows of the prompt */
    uint32_t first;           /* rows of other sequences in front of this chunk's in the step */
    uint32_t longest;         /* positions of the longest prompt with its answer */
    uint32_t beside[ENG_VERIFY_SEQS_MAX]; /* where each sequence beside stands */
    double *worst;            /* [n_taps + 1] relative error so far; the last one: logits */
    double *scale;            /* max |b| of each tap over the prompt */
    bool *have;
    float *ref;               /* scratch for rows */
    size_t ref_floats;
    unsigned *wrong;          /* rows whose choice differs: of experts, by tap; of the largest logit, the last one */
    unsigned *seen;           /* rows of each that were compared */
    bool far;                 /* the prompt and its answer pass the plan's ctx_switch */
    uint32_t keep;            /* rows at a prompt's end whose logits are wanted where there is no reference; 0: all */
    struct eng_verify_writer *writer; /* while a baseline is written */
    const struct json *frozen; /* of a baseline: {precision, kv, prompts} */
    bool same_path;           /* the reference was frozen with this precision and these pages */
    struct err e;
    int rc;
};
bool eng_verify_f32(const struct eng_verify_run *r);       /* all arithmetic and all pages in f32 */
double eng_verify_bar(const struct eng_verify_run *r);     /* of a layer */
void eng_verify_count(struct eng_verify *v, const char *name, unsigned wrong, unsigned of);
uint32_t eng_verify_argmax(const float *v, uint32_t n);
void eng_verify_tap_name(const struct eng_tap *t, char *name, size_t n); /* "embed", "layer.3", "layer.3.router" */
/* Row i of the chunk in a view. */
const float *eng_verify_row(const struct eng_verify_run *r, const struct krn_view *view, uint32_t i);
/* Called when a segment ended: compares what the folder has of its taps, with r->rc and r->e as its result. */
void eng_verify_on_segment(void *run, uint32_t segment);
void eng_verify_report_layers(struct eng_verify_run *r);
/* One step of this prompt's rows [pos0, pos0 + n), and one token of each sequence beside it. */
int eng_verify_step(struct eng_verify_run *r, const int32_t *ids, uint32_t pos0, uint32_t n, enum eng_picks picks, void (*tap)(void *, uint32_t), struct err *e);
/* A session of ctx positions (0: the model's own, at most 4096) in r->s. */
int eng_verify_open(struct eng_verify_run *r, uint32_t ctx, struct err *e);
/* Runs a prompt in chunks, r->n_all, row0 and n_rows with it; the rows that are looked at are picked. */
int eng_verify_prompt(struct eng_verify_run *r, const int32_t *ids, uint32_t n, void (*tap)(void *, uint32_t), struct err *e);
int eng_verify_read_text(const char *path, struct buf *b, struct err *e);
#endif
