/* engine/format.h - how a model spells calls of tools and its reasoning: descriptions from its sheet, compiled for whoever reads or writes them.
 *
 * Owns:      the language of the sheet's `tools` and `reasoning` sections: which entry a chat template chooses, patterns as steps, and
 *            which control tokens are markers.
 * Leaves:    reading a model's text to gateway/calls.h, grammars of calls to gateway/call_grammar.h.
 * Invariant: a literal holds ENG_MARK before the text of each control token of the vocabulary, as the engine's text does when markers
 *            were asked for: text that only spells a marker is never taken for it.
 * Source:    docs/sheets.md, "Calls of tools and reasoning".
 * Threads:   read-only after eng_format_read. */
#ifndef SLUICE_ENGINE_FORMAT_H
#define SLUICE_ENGINE_FORMAT_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "engine/tokenizer.h"

#define ENG_MARK '\xFF'       /* no byte of UTF-8: stands before the text of a control token that is a marker */
#define ENG_CALLS_MAX 12      /* spellings of one format's call */
#define ENG_STEPS_MAX 16
#define ENG_DROPS_MAX 16
#define ENG_MARKERS_MAX 64

enum eng_step_kind {
    ENG_STEP_LITERAL,   /* s, n; white space in it stands for any white space, or none */
    ENG_STEP_NAME,      /* of the function */
    ENG_STEP_ID,        /* of the call, in the form `id` */
    ENG_STEP_INDEX,     /* number of the call */
    ENG_STEP_ARGUMENTS, /* a JSON object */
    ENG_STEP_OBJECT,    /* a JSON object with the function's name and arguments under `keys` */
    ENG_STEP_MEMBERS,   /* the pattern `member` any number of times */
    ENG_STEP_KEY, ENG_STEP_TYPE, ENG_STEP_VALUE
};
struct eng_step { enum eng_step_kind kind; const char *s; size_t n; };
struct eng_pattern { struct eng_step v[ENG_STEPS_MAX]; uint32_t n; };

enum eng_id_form { ENG_ID_ANY, ENG_ID_ALNUM9, ENG_ID_PATTERN };
struct eng_tools_format {
    const char *name;
    struct eng_pattern begin, end, separator; /* one literal, or none */
    struct eng_pattern call[ENG_CALLS_MAX]; uint32_t n_calls;
    uint32_t n_anywhere;                      /* of those; the others count at the beginning of an answer only */
    struct eng_pattern member;
    enum eng_id_form id; struct eng_pattern id_pattern;
    const char *key_name, *key_arguments;
    bool xml;                                 /* names and keys in attributes are escaped */
    uint32_t first_index;
};
struct eng_reasoning_format {
    const char *name;
    struct eng_pattern open, close;           /* one literal each */
    struct eng_pattern next;                  /* stands between it and what follows, or none */
    struct eng_pattern content_open, content_close; /* around content, or none */
    struct eng_pattern drop[ENG_DROPS_MAX]; uint32_t n_drops; /* markup around content that nobody needs to see */
};
struct eng_format {
    bool has_tools, has_reasoning;
    struct eng_tools_format tools;
    struct eng_reasoning_format reasoning;
    int32_t markers[ENG_MARKERS_MAX]; uint32_t n_markers; /* ids, and the text of each */
    struct { const char *s; size_t n; } marker_text[ENG_MARKERS_MAX];
};

/* The entries that a template chooses: {"tools": {...,"name":...} or null, "reasoning": likewise}. sections: an object with the sheet's
 * `tools` and `reasoning`; tmpl NULL: none. In a; the entries are shared. NULL: no memory. */
const struct json *eng_format_choose(const struct json *sections, const char *tmpl, size_t n, struct arena *a);
/* Compiles what was chosen. tok NULL: no control token is known. Texts live in a. ERR_FORMAT names entry and field. */
int eng_format_read(struct eng_format *f, const struct json *chosen, const eng_tok *tok, struct arena *a, struct err *e);
/* All entries of both sections hold: ERR_FORMAT names section, entry and field. */
int eng_format_check(const struct json *sections, struct arena *a, struct err *e);
bool eng_format_is_marker(const struct eng_format *f, int32_t id);
/* Does the text end with this literal, white space aside: an answer to such a prompt begins inside of what it opens. */
bool eng_format_ends_in(const struct eng_pattern *p, const char *text, size_t n);
/* Is this pattern one that begins with a control token. */
bool eng_format_marked(const struct eng_pattern *p);
#endif
