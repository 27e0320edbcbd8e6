/* engine/plan.h - a model sheet compiled against one model's files: a flat list of kernel calls with every shape resolved.
 *
 * The only description of a model that executor, loader, planner, check and verify read.
 * Owns:      everything it points to (one arena, and the tables of ops, tensors and weights). Borrows the catalog's names while open.
 * Invariant: every weight of an op is bound; every register is written before it is read; arena offsets of registers that
 *            live at the same time do not overlap; nothing here depends on a device or an instruction set.
 * Source:    docs/sheets.md. */
#ifndef SLUICE_ENGINE_PLAN_H
#define SLUICE_ENGINE_PLAN_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "kernels/backend.h"
#include "offload/weights.h"

/* A run of ops between two places where the host must act: weights leased before, released after. */
struct eng_segment {
    const char *name;             /* "embed", "layer 3", "head" */
    uint16_t layer;               /* KRN_NO_LAYER outside */
    uint32_t op0, n_ops;
    const uint32_t *records; uint32_t n_records; /* to lease; indices into eng_plan.records */
    uint32_t n_lookups;           /* records[0 .. n_lookups) are tiles of the table that its embed op looks rows up in */
    bool joins;                   /* goes on with the segment before it: cut for the sake of its records only */
    bool gate;                    /* the host decides after it (router -> expert leases) */
    bool experts; uint32_t choice; /* one EXPERTS call and nothing else: it can run in portions; its layer of eng_plan.choice */
};

/* One logical tensor of the sheet, bound. weights[i] of the plan belongs to tensors[i]. */
struct eng_tensor {
    const char *name;             /* sheet's name: "q", "q.bias", "e_gate[17]" */
    const char *file_name;        /* name in the files */
    uint16_t layer;
    enum krn_type type;
    uint8_t n_dims; uint64_t dims[4]; /* logical shape, outermost first */
    enum { ENG_SPLIT_NONE, ENG_SPLIT_ROWS, ENG_SPLIT_COLS, ENG_SPLIT_HEADS } split;
    bool keep_precision;
    const struct off_span *spans; uint32_t n_spans;
    uint32_t scales;              /* tensor that holds this one's block scales, KRN_NO_WEIGHT: none */
    const char *form;             /* "plain", "fp8-block", "mxfp4", "int4-packed": how the files store it */
    bool transposed;              /* the last two logical axes lie the other way round in the file; rows are the file's */
    const char *part;             /* of the model, as the sheet's `parts` says: "attention"; NULL: none */
    const char *map;              /* formula of v to apply to each value of a vector ("log(-v)"), NULL: none */
};

struct eng_kv_group {             /* layers of equal kind, window and geometry: one page pool, one page table a sequence */
    const char *state;            /* sheet's state name, "kv" */
    enum { ENG_KV_HEADS, ENG_KV_LATENT } kind;
    uint32_t heads, dim_k, dim_v, window; /* window 0: full. LATENT: heads 1, dim_k = rank + rope dim, dim_v = 0 */
    const uint16_t *layers; uint32_t n_layers;
};
struct eng_recurrent {            /* fields of a state per sequence, equal for n_layers layers */
    const char *state;
    struct { const char *name; uint8_t n_dims; uint64_t dims[4]; enum krn_type type; } field[8]; uint32_t n_fields;
    const uint16_t *layers; uint32_t n_layers;
};

/* What a server takes for this model when nobody says otherwise: the sheet's `serve` section. */
struct eng_serving {
    uint32_t ctx, seqs, chunk;    /* of a sequence, sequences at once, tokens of a step */
    float temperature, top_p, min_p; int32_t top_k;
    const char *const *stop; uint32_t n_stop; /* tokens as written that end a turn, besides those the files name */
};

/* A register as it is when that segment ends: "x", "final_norm"; of a router "router_scores" and "router". */
struct eng_tap { const char *reg; uint16_t layer; uint32_t segment; struct krn_view view; };

struct eng_plan {
    struct arena mem;
    const char *sheet;            /* name of the sheet that matched */
    uint8_t sheet_digest[32];     /* of the merged sheet's canonical text */
    uint32_t vocab, hidden, layers, ctx; /* ctx: what the model was made for */
    struct eng_serving serve;
    const struct json *formats;   /* {"tools", "reasoning"}: how models of this family spell calls and reasoning (engine/format.h) */
    const char *template_text; size_t template_len; /* the chat template where the files bring none; NULL: the sheet has none either */
    const char *const *notes; uint32_t n_notes; /* the sheet's `say` that holds here: said once at load */
    uint32_t ctx_use;             /* the context this plan was compiled for: what was asked, else serve.ctx */
    uint32_t ctx_switch;          /* sequences that may pass it turn by krn_rope_table.inv_freq_far (longrope); 0: all turn alike */
    struct krn_op *ops; uint32_t n_ops;
    const char **op_reg;          /* [n_ops] the register that op i sets, for diagnosis and taps */
    struct eng_segment *segments; uint32_t n_segments;
    struct eng_tensor *tensors; struct krn_weight *weights; uint32_t n_weights; /* weights[].data set by leases */
    struct off_record *records; uint32_t n_records;
    struct off_use *uses; uint32_t n_uses; /* which records a step leases, segment by segment; experts apart */
    struct off_choice choice;     /* the records of experts; per_layer: of the layer that has most */
    const uint32_t *record_of;    /* [n_weights] the record that holds a weight (experts: theirs), UINT32_MAX: none */
    struct eng_kv_group *kv; uint32_t n_kv;
    struct eng_recurrent *recurrent; uint32_t n_recurrent;
    struct krn_rope_table *ropes; uint32_t n_ropes;
    uint32_t arena_cols[2];       /* tokens, picked */
    uint32_t linear_cols_max, latent_cols; /* as in krn_backend_config */
    struct krn_experts_max experts;
    struct krn_view logits;       /* rows picked, width vocab */
    struct eng_tap *taps; uint32_t n_taps; /* embed ("x", KRN_NO_LAYER), "x" after each layer, "final_norm" */
    uint64_t weight_bytes_file, weight_bytes_slot;
};

struct eng_plan_options {
    bool bind_only;               /* check: also compile calls without kernels; records and layouts are skipped */
    uint64_t tile_bytes;          /* most of a vocabulary matrix in one record; 0: 16 MiB */
    uint32_t ctx;                 /* of a sequence; 0: as the sheet's `serve` section says */
};

/* Chooses the sheet by exact match, merges, evaluates, binds and compiles. Every unmet expectation goes into the report (if
 * given); the first one is *e. ERR_UNSUPPORTED: no sheet, unknown operator, dtype; ERR_FORMAT: missing, mis-shaped, unknown
 * tensor or a config key that bears on rope, windows, norms or experts and that the sheet never read. */
struct eng_report;
int eng_plan_compile(struct eng_plan **out, const off_catalog *c, const struct eng_plan_options *o, struct eng_report *rep, struct err *e);
/* The same with a sheet of the caller's choice, never by match: tests, and what `check` suggests. */
struct eng_sheets;
int eng_plan_compile_sheet(struct eng_plan **out, const struct eng_sheets *sheets, const char *name, const off_catalog *c, const struct eng_plan_options *o,
                           struct eng_report *rep, struct err *e);
void eng_plan_close(struct eng_plan *p);

/* KV bytes of one token over all groups (sliding groups included), and state bytes of one sequence. */
uint64_t eng_plan_kv_bytes_per_token(const struct eng_plan *p, enum krn_type kv);
uint64_t eng_plan_state_bytes_per_seq(const struct eng_plan *p);
#endif
