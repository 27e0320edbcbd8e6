/* engine/verify.h - a model against stored reference results: layers, logits, greedy ids, text to ids.
 *
 * Two kinds of reference, told apart by what is given: a directory with activations.safetensors and prompts.json (every layer and
 * all logits of small models), or a .json file of goldens (ids, the ten best logits of the last positions, greedy ids with
 * margins: real models). Layout: docs/formats.md, "Reference folders". */
#ifndef SLUICE_ENGINE_VERIFY_H
#define SLUICE_ENGINE_VERIFY_H
#include <stdio.h>
#include "engine/engine.h"

enum { ENG_VERIFY_LAYERS = 1, ENG_VERIFY_TEXT = 2, ENG_VERIFY_ALL = 3 };
struct eng_verify {
    struct eng_config c;      /* model_path, isa, precision, threads, chunk, page_tokens, kv_type; seqs: this many run at once, the others' tokens beside (0: 1) */
    const char *ref;          /* NULL: MODEL/reference */
    unsigned what;
    FILE *out;                /* one line a check: name, largest relative error, tolerance, verdict */
    bool json;                /* lines are objects with commas between them instead */
    unsigned passed, failed;  /* counted here */
};
/* ERR_OK when it could be run to the end, whatever the verdicts. */
int eng_verify_run(struct eng_verify *v, struct err *e);
/* Perplexity of the first 4096 tokens of a text file (fewer where the context in force or the text has fewer) as served beside the f32 path, which has the
 * same weights expanded; precision of v->c is not looked at. A line with the relative difference, at most 0.5 %. */
int eng_verify_text(struct eng_verify *v, const char *path, struct err *e);
/* Freezes what this build computes into a reference folder, for ref of later runs: a short prompt, one of code, and a long one of as many
 * tokens as the context in force has (text_path: its beginning; NULL: made up); the last 32 rows of every layer and of the logits, greedy ids with
 * margins. With the same precision and pages a later run is held to the f32 bar, whatever those are. */
int eng_verify_write(struct eng_verify *v, const char *dir, const char *text_path, struct err *e);
/* A number hidden in prompts of so many tokens (answer included) at so many percent of their text, asked for with the chat template, greedily: a table of
 * lengths by depths, a verdict a cell. path: the text, NULL: a made-up one. No lengths: 1024 doubled up to the context in force; no depths: 10, 50, 90.
 * ERR_INVALID: a length that the model was not made for. */
enum { ENG_NEEDLE_MAX = 16 };
int eng_verify_needle(struct eng_verify *v, const char *path, const uint32_t *lengths, uint32_t n_lengths, const uint32_t *depths, uint32_t n_depths, struct err *e);
/* Each operator by itself, on every instruction set that this machine has: known answers (path: a file like tests/data/operators/known.json;
 * NULL: that one, built in), then drawn inputs beside plain C. Of v only out and the counts are looked at. */
int eng_verify_operators(struct eng_verify *v, const char *path, struct err *e);
/* Prints a line and counts; for other checks that join the table. */
void eng_verify_line(struct eng_verify *v, const char *name, double error, double tolerance);
#endif
