/* engine/sheet.h - model sheets as data: the set that is known, `extends` merged, the one that matches a model.
 *
 * Owns:      the parsed texts of conf/models (built in, base/embedded.h) and of an optional directory, whose sheets replace
 *            built-in ones of the same name.
 * Leaves:    what the sections mean to engine/env.h, engine/bind.h and engine/compile.c.
 * Invariant: matching is exact; two sheets never claim the same model; `extends` has no cycle.
 * Source:    docs/sheets.md, "Files, merging, matching". */
#ifndef SLUICE_ENGINE_SHEET_H
#define SLUICE_ENGINE_SHEET_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"

typedef struct eng_sheets eng_sheets;
/* dir: NULL, or a directory whose *.json are read too. Errors name the file. */
int eng_sheets_open(eng_sheets **out, const char *dir, struct err *e);
/* As above from one text per sheet; for tests. */
int eng_sheets_open_texts(eng_sheets **out, const char *const *texts, size_t n, struct err *e);
void eng_sheets_close(eng_sheets *s);

size_t eng_sheets_count(const eng_sheets *s);
const char *eng_sheets_name(const eng_sheets *s, size_t i);
bool eng_sheets_abstract(const eng_sheets *s, size_t i);
/* The sheet whose match.KIND.KEY (array of texts) has value; NULL: none. kind: "hf" or "gguf". */
const char *eng_sheets_match(const eng_sheets *s, const char *kind, const char *key, const char *value);
/* The merged sheet, in a. ERR_NOTFOUND: no such sheet; ERR_FORMAT: an unknown section, a cycle. */
int eng_sheets_merge(const eng_sheets *s, const char *name, struct arena *a, const struct json **out, struct err *e);
#endif
