/* Lines are cut into words in place (a private copy of the text); each word is then converted by its directive's type. */
#include "base/conf.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"

enum { FILE_MAX = 1 << 20, WORDS_MAX = 64 };

/* digits, optionally a fraction, as thousandths of a unit would lose bytes: the fraction is kept as numerator / 10^k. */
static const char *decimal(const char *s, uint64_t *whole, uint64_t *num, uint64_t *den)
{
    const char *p = s;
    *whole = *num = 0;
    *den = 1;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(*whole, 10, whole) || __builtin_add_overflow(*whole, (uint64_t)(*p - '0'), whole))
            return NULL;
    if (p == s)
        return NULL;
    if (*p != '.')
        return p;
    const char *first = ++p;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (p - first == 6)
            return NULL;
        *num = *num * 10 + (uint64_t)(*p - '0');
        *den *= 10;
    }
    return p == first ? NULL : p;
}

static int scaled(uint64_t whole, uint64_t num, uint64_t den, uint64_t unit, uint64_t *out)
{
    if (__builtin_mul_overflow(whole, unit, &whole))
        return -1;
    unsigned __int128 part = (unsigned __int128)num * unit / den;
    return __builtin_add_overflow(whole, (uint64_t)part, out) ? -1 : 0;
}

int conf_size(const char *s, uint64_t *out)
{
    uint64_t whole, num, den;
    const char *p = decimal(s, &whole, &num, &den);
    if (!p)
        return -1;
    static const char letters[] = "KMGT";
    const char *at = *p ? strchr(letters, *p >= 'a' ? *p - 32 : *p) : NULL;
    if ((*p && (!at || !*at || p[1])) || (!*p && den > 1))
        return -1;
    return scaled(whole, num, den, at ? 1ull << (10 * (at - letters + 1)) : 1, out);
}

static int duration(const char *s, uint64_t *out)
{
    static const struct { const char *name; uint64_t ms; } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    uint64_t whole, num, den;
    const char *p = decimal(s, &whole, &num, &den);
    if (!p)
        return -1;
    if (!*p && whole == 0 && den == 1) {
        *out = 0;
        return 0;
    }
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(p, units[i].name))
            return scaled(whole, num, den, units[i].ms, out);
    return -1;
}

static int integer(const char *s, int64_t *out)
{
    char *end;
    if (!(s[0] >= '0' && s[0] <= '9') && !(s[0] == '-' && s[1] >= '0' && s[1] <= '9'))
        return -1;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end)
        return -1;
    *out = v;
    return 0;
}

static int floating(const char *s, double *out)
{
    char *end;
    if (!strchr("-.0123456789", s[0]) || s[strspn(s, "-+.0123456789eE")])
        return -1;
    *out = strtod(s, &end);
    return *end || end == s || !isfinite(*out) ? -1 : 0;
}

static bool within(const struct conf_directive *d, double v)
{
    return (d->min == 0 && d->max == 0) || (v >= d->min && v <= d->max);
}

static int refuse(const char *what, const char *value, const struct conf_directive *d, struct err *e)
{
    static const char *const kinds[] = {"text", "a whole number", "a size such as 512M (K M G T)", "a duration such as 30s (ms s m h)",
                                        "on or off", "a number", "", "text"};
    char words[200] = "one of";
    if (d->type == CONF_ENUM) {
        for (size_t i = 0; d->words[i]; i++) {
            size_t n = strlen(words);
            snprintf(words + n, sizeof words - n, " %s", d->words[i]);
        }
        return err_set(e, ERR_INVALID, "%s: expected %s, found \"%s\"", what, words, value);
    }
    if (d->min == 0 && d->max == 0)
        return err_set(e, ERR_INVALID, "%s: expected %s, found \"%s\"", what, kinds[d->type], value);
    return err_set(e, ERR_INVALID, "%s: expected %s from %.15g to %.15g, found \"%s\"", what, kinds[d->type], d->min, d->max, value);
}

/* The room of a list is the power of two that holds it, so that it needs no field of its own. */
static int append(struct conf_list *l, const char *s, struct arena *a, const char *what, struct err *e)
{
    if ((l->n & (l->n - 1)) == 0) {
        const char **p = ARENA_ARRAY(a, const char *, l->n ? 2 * l->n : 1);
        if (!p)
            return err_set(e, ERR_NOMEM, "%s: list of %zu values", what, l->n + 1);
        if (l->n)
            memcpy(p, l->items, l->n * sizeof *p);
        l->items = p;
    }
    l->items[l->n++] = s;
    return ERR_OK;
}

static int text(const char *what, const char *value, const struct conf_directive *d, void *field, struct arena *a, struct err *e)
{
    const char *copy = arena_strdup(a, value, strlen(value));
    if (!copy)
        return err_set(e, ERR_NOMEM, "%s: text of %zu bytes", what, strlen(value));
    if (d->type == CONF_LIST)
        return append(field, copy, a, what, e);
    *(const char **)field = copy;
    return ERR_OK;
}

int conf_set(const char *what, const char *value, const struct conf_directive *d, void *target, struct arena *a, struct err *e)
{
    void *field = (char *)target + d->offset;
    int64_t i;
    uint64_t u;
    double f;
    switch (d->type) {
    case CONF_STR:
    case CONF_LIST: return text(what, value, d, field, a, e);
    case CONF_INT:
        if (integer(value, &i) || !within(d, (double)i))
            break;
        *(int64_t *)field = i;
        return ERR_OK;
    case CONF_SIZE:
    case CONF_MS:
        if ((d->type == CONF_SIZE ? conf_size : duration)(value, &u) || !within(d, (double)u))
            break;
        *(uint64_t *)field = u;
        return ERR_OK;
    case CONF_FLOAT:
        if (floating(value, &f) || !within(d, f))
            break;
        *(double *)field = f;
        return ERR_OK;
    case CONF_BOOL:
        if (strcmp(value, "on") && strcmp(value, "off"))
            break;
        *(bool *)field = value[1] == 'n';
        return ERR_OK;
    case CONF_ENUM:
        for (int k = 0; d->words[k]; k++)
            if (!strcmp(value, d->words[k])) {
                *(int *)field = k;
                return ERR_OK;
            }
        break;
    }
    return refuse(what, value, d, e);
}

/* Cuts one word off *line in place. NULL with *bad == NULL: the line is over. */
static char *word(char **line, const char **bad)
{
    char *p = *line, *out, *start;
    *bad = NULL;
    p += strspn(p, " \t\r");
    if (!*p || *p == '#')
        return NULL;
    if (*p != '"') {
        start = p;
        p += strcspn(p, " \t\r\"");
        if (*p == '"') {
            *bad = "expected a space before a quote";
            return NULL;
        }
        *line = p + (*p != 0);
        *p = 0;
        return start;
    }
    for (start = out = ++p; *p && *p != '"'; p++) {
        if (*p == '\\' && (p[1] == '"' || p[1] == '\\'))
            p++;
        *out++ = *p;
    }
    if (*p != '"')
        *bad = "expected a closing quote";
    else if (p[1] && !strchr(" \t\r#", p[1]))
        *bad = "expected a space after a quote";
    if (*bad)
        return NULL;
    *line = p + 1;
    *out = 0;
    return start;
}

struct reading { const char *file; size_t line; const struct conf_directive *d; size_t n; void *target; struct arena *a; bool *seen; };

static int apply(struct reading *r, char **words, size_t n, struct err *e)
{
    char what[160];
    snprintf(what, sizeof what, "%s:%zu: %s", r->file, r->line, words[0]);
    for (size_t i = 0; i < r->n; i++) {
        const struct conf_directive *d = &r->d[i];
        if (strcmp(words[0], d->name))
            continue;
        if (d->type != CONF_LIST) {
            if (r->seen[i])
                return err_set(e, ERR_INVALID, "%s: expected once, found again", what);
            if (n != 2)
                return err_set(e, ERR_INVALID, "%s: expected one value, found %zu", what, n - 1);
        } else if (n < 2) {
            return err_set(e, ERR_INVALID, "%s: expected at least one value, found none", what);
        }
        r->seen[i] = true;
        for (size_t k = 1; k < n; k++) {
            int rc = conf_set(what, words[k], d, r->target, r->a, e);
            if (rc)
                return rc;
        }
        return ERR_OK;
    }
    return err_set(e, ERR_INVALID, "%s: expected a known directive, found an unknown one", what);
}

static int read_line(struct reading *r, char *line, struct err *e)
{
    char *words[WORDS_MAX], *w;
    const char *bad;
    size_t n = 0;
    while ((w = word(&line, &bad))) {
        if (n == WORDS_MAX)
            return err_set(e, ERR_INVALID, "%s:%zu: expected at most %d words a line", r->file, r->line, WORDS_MAX);
        words[n++] = w;
    }
    if (bad)
        return err_set(e, ERR_INVALID, "%s:%zu: %s", r->file, r->line, bad);
    return n ? apply(r, words, n, e) : ERR_OK;
}

static int read_lines(const char *name, char *s, size_t n, const struct conf_directive *d, size_t n_d, void *target, struct arena *a,
                      struct err *e)
{
    struct reading r = {.file = name, .d = d, .n = n_d, .target = target, .a = a};
    if (memchr(s, 0, n))
        return err_set(e, ERR_INVALID, "%s: expected text, found a NUL byte", name);
    if (!(r.seen = calloc(n_d ? n_d : 1, sizeof *r.seen)))
        return err_set(e, ERR_NOMEM, "%s", name);
    int rc = ERR_OK;
    for (char *end; !rc && *s; s = end) {
        end = s + strcspn(s, "\n");
        if (*end)
            *end++ = 0;
        r.line++;
        rc = read_line(&r, s, e);
    }
    free(r.seen);
    return rc;
}

int conf_read_text(const char *name, const char *s, const struct conf_directive *d, size_t n, void *target, struct arena *a, struct err *e)
{
    char *copy = strdup(s);
    if (!copy)
        return err_set(e, ERR_NOMEM, "%s", name);
    int rc = read_lines(name, copy, strlen(copy), d, n, target, a, e);
    free(copy);
    return rc;
}

int conf_read_file(const char *path, const struct conf_directive *d, size_t n, void *target, struct arena *a, struct err *e)
{
    struct buf b;
    char block[4096];
    size_t got;
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: %s", path, strerror(errno));
    buf_init(&b, FILE_MAX);
    buf_add(&b, "", 0);
    while ((got = fread(block, 1, sizeof block, f)) > 0 && buf_add(&b, block, got))
        ;
    int rc = ERR_OK;
    if (ferror(f))
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    else if (b.failed)
        rc = err_set(e, ERR_LIMIT, "%s: expected at most %d bytes", path, FILE_MAX);
    else
        rc = read_lines(path, b.data, b.len, d, n, target, a, e);
    fclose(f);
    buf_free(&b);
    return rc;
}
