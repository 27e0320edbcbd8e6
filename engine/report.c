#include "engine/report.h"

#include <string.h>

void eng_report_init(struct eng_report *r)
{
    memset(r, 0, sizeof *r);
    arena_init(&r->mem, 16u << 20);
}

void eng_report_free(struct eng_report *r)
{
    arena_free(&r->mem);
    memset(r, 0, sizeof *r);
}

const char *eng_issue_name(enum eng_issue k)
{
    static const char *const names[ENG_ISSUE_COUNT] = {"file", "sheet", "missing", "shape", "dtype", "unknown", "config", "operator", "tokenizer", "template", "inert"};
    return names[k];
}

static const char *copy(struct eng_report *r, const char *s) { return s ? arena_strdup(&r->mem, s, strlen(s)) : NULL; }

void eng_report_add(struct eng_report *r, enum eng_issue kind, int code, const char *tensor, const char *expected, const char *found, const char *text)
{
    if (r->total[kind]++ >= ENG_KEPT_MAX)
        return;
    if (!r->v && !(r->v = ARENA_ARRAY(&r->mem, struct eng_finding, ENG_KEPT_MAX * ENG_ISSUE_COUNT)))
        return;
    r->v[r->n++] = (struct eng_finding){kind, code, copy(r, text), copy(r, tensor), copy(r, expected), copy(r, found)};
}

void eng_report_excuse(struct eng_report *r, const char *reason, size_t n)
{
    size_t i = 0;

    while (i < r->n_excuses && strcmp(r->excuse[i].reason, reason))
        i++;
    if (i == sizeof r->excuse / sizeof *r->excuse)
        return;
    if (i == r->n_excuses)
        r->excuse[r->n_excuses++] = (struct eng_excuse){copy(r, reason), 0};
    r->excuse[i].n += n;
}

size_t eng_report_problems(const struct eng_report *r)
{
    size_t n = 0;

    for (int k = 0; k < ENG_ISSUE_COUNT; k++)
        n += k == ENG_ISSUE_INERT ? 0 : r->total[k];
    return n;
}
