/* engine/report.h - what compiling a sheet against a model's files found: problems, counts, dtypes, operators.
 *
 * Owns:      its texts (one arena).  Invariant: of each kind the first ENG_KEPT_MAX that differ are kept, all are counted.
 * Readers:   `sluice check`, tests. */
#ifndef SLUICE_ENGINE_REPORT_H
#define SLUICE_ENGINE_REPORT_H
#include "base/arena.h"
#include "base/err.h"
#include "kernels/backend.h"

#define ENG_KEPT_MAX 64
enum eng_issue {
    ENG_ISSUE_FILE,      /* missing, short, wrong header */
    ENG_ISSUE_SHEET,     /* no sheet, or the sheet does not compile */
    ENG_ISSUE_MISSING,   /* a tensor that the sheet needs */
    ENG_ISSUE_SHAPE, ENG_ISSUE_DTYPE,
    ENG_ISSUE_UNKNOWN,   /* a tensor in the files that nothing reads */
    ENG_ISSUE_CONFIG,    /* a config key that bears on the result and that nothing reads; an assertion */
    ENG_ISSUE_OPERATOR,  /* no kernel */
    ENG_ISSUE_TOKENIZER, /* none, unknown, or larger than the embedding */
    ENG_ISSUE_TEMPLATE,  /* it does not parse, or a plain conversation does not render */
    ENG_ISSUE_INERT,     /* not a problem: an unread key without such a meaning */
    ENG_ISSUE_COUNT
};
struct eng_finding {
    enum eng_issue kind; int code;
    const char *text, *tensor, *expected, *found; /* all but text may be NULL */
    size_t alike;                                 /* more like it: the same but for numbers of layers, experts, files */
    uint64_t shape;                               /* what they have in common, hashed */
};
struct eng_excuse { const char *reason; size_t n; uint64_t values, bytes; };
struct eng_part_use { const char *name; size_t tensors; uint64_t values, bytes; }; /* values: parameters; bytes with scales */
/* What a device has for each operator; the first is the one that would run. */
enum eng_backend { ENG_BACKEND_CPU, ENG_BACKEND_VULKAN, ENG_BACKEND_COUNT };
struct eng_op_use { enum krn_opcode code; const char *name, *form; enum krn_type type; size_t calls; enum krn_support support[ENG_BACKEND_COUNT]; bool weighted; };
struct eng_dtype_use { const char *name; size_t tensors; uint64_t bytes; };

struct eng_report {
    struct arena mem;
    struct eng_finding *v; size_t n;
    size_t total[ENG_ISSUE_COUNT];
    const char *sheet;                 /* that matched, or NULL */
    const char *model_type;
    const char *suggestion; size_t suggestion_bound; /* nearest sheet when none matched */
    size_t names, bound, excused;      /* tensors in the files; the rest is unknown */
    struct eng_excuse excuse[32]; size_t n_excuses;
    uint32_t n_tokens;                 /* of the tokenizer; 0: it did not open */
    uint32_t n_template, n_trial;      /* bytes of the chat template; tokens of a trial conversation */
    float temperature, top_p; int top_k; bool sampling_from_files; /* what a request gets that says nothing */
    const char *stop[16]; uint32_t n_stop;                         /* pieces that end a turn */
    struct eng_op_use op[256]; size_t n_ops;
    struct eng_part_use part[24]; size_t n_parts;
    uint64_t values, active;           /* parameters of all parts; those that one token meets */
    struct eng_dtype_use dtype[KRN_TYPE_COUNT]; size_t n_dtypes;
};
void eng_report_init(struct eng_report *r);
void eng_report_free(struct eng_report *r);
void eng_report_add(struct eng_report *r, enum eng_issue kind, int code, const char *tensor, const char *expected, const char *found, const char *text);
void eng_report_excuse(struct eng_report *r, const char *reason, uint64_t values, uint64_t bytes);
size_t eng_report_problems(const struct eng_report *r); /* everything but INERT */
const char *eng_issue_name(enum eng_issue k);           /* "missing" */
#endif
