/* After all lines were walked: every name of the files that is not bound must be excused by a skip rule. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/bind.h"

/* pattern: * is any run, {P} the prefix, {>=EXPR} a number that large. */
static bool matches(struct eng_binder *b, const char *p, const char *s)
{
    for (; *p; p++, s++) {
        if (*p == '*') {
            for (;; s++) {
                if (matches(b, p + 1, s))
                    return true;
                if (!*s)
                    return false;
            }
        }
        if (!strncmp(p, "{P}", 3)) {
            size_t n = strlen(b->env->prefix);
            return !strncmp(s, b->env->prefix, n) && matches(b, p + 3, s + n);
        }
        if (!strncmp(p, "{>=", 3)) {
            char name[64];
            const char *end = strchr(p, '}');
            uint64_t v = 0;
            uint32_t least;
            size_t digits = strspn(s, "0123456789");
            if (!end || end - p - 3 >= (ptrdiff_t)sizeof name || !digits || digits > 9)
                return false;
            snprintf(name, sizeof name, "%.*s", (int)(end - p - 3), p + 3);
            for (size_t i = 0; i < digits; i++)
                v = v * 10 + (uint64_t)(s[i] - '0');
            return !eng_env_u32(b->env, name, &least, NULL) && v >= least && matches(b, end + 1, s + digits);
        }
        if (*p != *s)
            return false;
    }
    return !*s;
}

static const char *excuse(struct eng_binder *b, const char *name)
{
    const struct json *skip = json_get(b->env->sheet, "skip");

    for (size_t i = 0; json_is(skip, JSON_OBJECT) && i < skip->n; i++) {
        const struct json *list = skip->members[i].value;
        for (size_t k = 0; list->type == JSON_ARRAY && k < list->n; k++)
            if (json_str(list->items[k]) && matches(b, list->items[k]->s, name))
                return skip->members[i].key;
    }
    return NULL;
}

int eng_bind_rest(struct eng_binder *b, struct err *e)
{
    size_t n = off_catalog_count(b->cat);
    char dims[160];

    eng_env_layer(b->env, -1);
    for (size_t i = 0; i < n; i++) {
        if (b->seen[i / 64] >> (i % 64) & 1)
            continue;
        const struct off_tensor *t = off_catalog_at(b->cat, i);
        const char *reason = excuse(b, t->name);
        if (reason) {
            uint64_t values = 1;
            for (unsigned k = 0; k < t->n_dims; k++)
                values *= t->dims[k];
            if (b->rep)
                eng_report_excuse(b->rep, reason, values, t->bytes);
            if (b->rep)
                b->rep->excused++;
            continue;
        }
        size_t at = 0;
        dims[0] = 0;
        for (unsigned k = 0; k < t->n_dims && at < sizeof dims; k++)
            at += (size_t)snprintf(dims + at, sizeof dims - at, "%s%" PRIu64, k ? ", " : "", t->dims[k]);
        int rc = eng_bind_issue(b, ENG_ISSUE_UNKNOWN, ERR_FORMAT, t->name, NULL, dims, e, "unknown tensor %s %s [%s] in %s: sheet %s does not read it", t->name,
                                krn_types[t->type].name, dims, off_catalog_file(b->cat, t->file)->base, b->env->sheet_name);
        if (rc)
            return rc;
    }
    if (b->rep) {
        b->rep->names = n;
        b->rep->bound = b->n_seen;
    }
    return ERR_OK;
}
