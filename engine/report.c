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

/* FNV-1a of a text without the numbers that tell layers, experts and files apart: those after . - [ or a blank that follows a word. */
static uint64_t shape_of(enum eng_issue kind, const char *s)
{
    uint64_t h = 14695981039346656037u ^ (uint64_t)kind;
    const char *list = strstr(s, "expected"); /* numbers from here on are what differs */

    for (const char *p = s; *p; p++) {
        bool digit = *p >= '0' && *p <= '9';
        if (digit && (!list || p < list || p[-1] == '.') && p > s && strchr(".-[ ", p[-1])) {
            p += strspn(p, "0123456789") - 1;
            h = (h ^ '#') * 1099511628211u;
        } else {
            h = (h ^ (uint8_t)*p) * 1099511628211u;
        }
    }
    return h;
}

void eng_report_add(struct eng_report *r, enum eng_issue kind, int code, const char *tensor, const char *expected, const char *found, const char *text)
{
    uint64_t shape = shape_of(kind, text);
    size_t kept = 0;

    r->total[kind]++;
    for (size_t i = 0; i < r->n; i++) {
        kept += r->v[i].kind == kind;
        if (r->v[i].kind == kind && r->v[i].shape == shape) {
            r->v[i].alike++;
            return;
        }
    }
    if (kept == ENG_KEPT_MAX || (!r->v && !(r->v = ARENA_ARRAY(&r->mem, struct eng_finding, ENG_KEPT_MAX * ENG_ISSUE_COUNT))))
        return;
    r->v[r->n++] = (struct eng_finding){kind, code, copy(r, text), copy(r, tensor), copy(r, expected), copy(r, found), 0, shape};
}

void eng_report_excuse(struct eng_report *r, const char *reason, uint64_t values, uint64_t bytes)
{
    size_t i = 0;

    while (i < r->n_excuses && strcmp(r->excuse[i].reason, reason))
        i++;
    if (i == sizeof r->excuse / sizeof *r->excuse)
        return;
    if (i == r->n_excuses)
        r->excuse[r->n_excuses++] = (struct eng_excuse){.reason = copy(r, reason)};
    r->excuse[i].n++;
    r->excuse[i].values += values;
    r->excuse[i].bytes += bytes;
}

size_t eng_report_problems(const struct eng_report *r)
{
    size_t n = 0;

    for (int k = 0; k < ENG_ISSUE_COUNT; k++)
        n += k == ENG_ISSUE_INERT ? 0 : r->total[k];
    return n;
}
