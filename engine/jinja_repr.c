/* engine/jinja_repr.c - values as text: Python's str and repr, and JSON as json.dumps writes it. */
#include "engine/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

static bool lit(struct jrun *r, struct jout *o, const char *s) { return j_put(r, o, s, strlen(s), true); }

static bool put_number(struct jrun *r, struct jout *o, jv v)
{
    char text[40];
    if (v.t == J_BIG)
        return j_put(r, o, v.u.s->s, v.u.s->n, !v.plain);
    size_t n = v.t == J_FLOAT ? j_float_text(v.u.f, text) : (size_t)snprintf(text, sizeof text, "%lld", (long long)v.u.i);
    return j_put(r, o, text, n, !v.plain);
}

static bool printable(int32_t c)
{
    if (c < 128)
        return c >= 32 && c < 127;
    utf8proc_category_t k = utf8proc_category(c);
    return !(k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CS || k == UTF8PROC_CATEGORY_CO ||
             k == UTF8PROC_CATEGORY_CN || k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP || k == UTF8PROC_CATEGORY_ZS);
}

static bool repr_str(struct jrun *r, struct jout *o, const struct jstr *s)
{
    bool trusted = j_all_trusted(s);
    char quote = memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'', esc[16];
    if (!j_put(r, o, &quote, 1, trusted))
        return false;
    size_t from = 0, len;
    for (size_t i = 0; i < s->n; i += len) {
        int32_t c = j_cp_at(s->s + i, s->n - i, &len);
        size_t n = 0;
        if (c == quote || c == '\\')
            n = (size_t)snprintf(esc, sizeof esc, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            n = (size_t)snprintf(esc, sizeof esc, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!printable(c))
            n = (size_t)snprintf(esc, sizeof esc, c < 256 ? "\\x%02x" : c < 65536 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        if (!n)
            continue;
        if (!j_put(r, o, s->s + from, i - from, trusted) || !j_put(r, o, esc, n, trusted))
            return false;
        from = i + len;
    }
    return j_charge(r, s->n / 64) && j_put(r, o, s->s + from, s->n - from, trusted) && j_put(r, o, &quote, 1, trusted);
}

static bool repr_items(struct jrun *r, struct jout *o, const struct jlist *l, const char *open, const char *close)
{
    if (!lit(r, o, open))
        return false;
    for (size_t i = 0; i < l->n; i++)
        if ((i && !lit(r, o, ", ")) || !j_put_repr(r, o, l->v[i]))
            return false;
    return lit(r, o, close);
}

static bool repr_pairs(struct jrun *r, struct jout *o, const struct jdict *d)
{
    if (!lit(r, o, "{"))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if ((i && !lit(r, o, ", ")) || !j_put_repr(r, o, d->p[i].k) || !lit(r, o, ": ") || !j_put_repr(r, o, d->p[i].v))
            return false;
    return lit(r, o, "}");
}

static bool repr_other(struct jrun *r, struct jout *o, jv v)
{
    static const char *const views[] = {"dict_keys([", "dict_values([", "dict_items(["};
    struct jlist *l;
    char text[96];
    switch (v.t) {
    case J_RANGE:
        snprintf(text, sizeof text, v.u.r->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)", (long long)v.u.r->start,
                 (long long)v.u.r->stop, (long long)v.u.r->step);
        return j_put(r, o, text, strlen(text), true);
    case J_VIEW: return j_iter(r, v, &l) && repr_items(r, o, l, views[v.sub], "])");
    case J_NS: return lit(r, o, "<Namespace ") && repr_pairs(r, o, v.u.d) && lit(r, o, ">");
    default:
        snprintf(text, sizeof text, "<%s>", j_type_name(v));
        return j_put(r, o, text, strlen(text), true);
    }
}

bool j_put_repr(struct jrun *r, struct jout *o, jv v)
{
    bool ok;
    if (!j_charge(r, 1) || !j_deeper(r))
        return false;
    switch (v.t) {
    case J_UNDEF: ok = lit(r, o, "Undefined"); break;
    case J_NONE: ok = j_put(r, o, "None", 4, !v.plain); break;
    case J_BOOL: ok = j_put(r, o, v.u.b ? "True" : "False", v.u.b ? 4 : 5, !v.plain); break;
    case J_INT: case J_BIG: case J_FLOAT: ok = put_number(r, o, v); break;
    case J_STR: ok = (!v.u.s->safe || lit(r, o, "Markup(")) && repr_str(r, o, v.u.s) && (!v.u.s->safe || lit(r, o, ")")); break;
    case J_LIST: ok = repr_items(r, o, v.u.l, "[", "]"); break;
    case J_TUPLE: ok = repr_items(r, o, v.u.l, "(", v.u.l->n == 1 ? ",)" : ")"); break;
    case J_DICT: ok = repr_pairs(r, o, v.u.d); break;
    default: ok = repr_other(r, o, v); break;
    }
    r->depth--;
    return ok;
}

/* One text made of several values is plain as a whole once any part is. */
static bool settle(struct jrun *r, struct jout *o, jv *out)
{
    if (!j_taken(r, o, out))
        return false;
    if (out->u.s->map) {
        out->u.s->map = NULL;
        out->u.s->trusted = false;
    }
    return true;
}

bool j_repr(struct jrun *r, jv v, struct jstr **out)
{
    struct jout o = {0};
    jv s;
    if (!j_put_repr(r, &o, v) || !settle(r, &o, &s))
        return false;
    *out = s.u.s;
    return true;
}

bool j_to_str(struct jrun *r, jv v, struct jstr **out)
{
    if (v.t == J_STR) {
        *out = v.u.s;
        return true;
    }
    if (v.t == J_UNDEF)
        return (*out = j_text(r, "", 0, true)) != NULL;
    return j_repr(r, v, out);
}

bool j_put_str(struct jrun *r, struct jout *o, jv v)
{
    struct jstr *s;
    if (v.t == J_STR)
        return j_put_text(r, o, v.u.s);
    if (v.t == J_INT || v.t == J_FLOAT || v.t == J_BIG)
        return put_number(r, o, v);
    return j_to_str(r, v, &s) && j_put_text(r, o, s);
}

/* ---- JSON ---- */
static bool dump(struct jrun *r, struct jout *o, const struct jdump *how, jv v, unsigned level);

static bool dump_str(struct jrun *r, struct jout *o, const struct jdump *how, const struct jstr *s)
{
    bool trusted = j_all_trusted(s);
    char esc[16];
    size_t from = 0, len;
    if (!j_put(r, o, "\"", 1, trusted))
        return false;
    for (size_t i = 0; i < s->n; i += len) {
        static const char named[] = "\"\\\n\r\t\b\f", as[] = "\"\\nrtbf";
        int32_t c = j_cp_at(s->s + i, s->n - i, &len);
        const char *at = c && c < 128 ? strchr(named, c) : NULL;
        size_t n = 0;
        if (at)
            n = (size_t)snprintf(esc, sizeof esc, "\\%c", as[at - named]);
        else if (c < 32 || (how->ascii && c > 126 && c < 65536))
            n = (size_t)snprintf(esc, sizeof esc, "\\u%04x", (unsigned)c);
        else if (how->ascii && c >= 65536)
            n = (size_t)snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xD800 + (unsigned)((c - 0x10000) >> 10), 0xDC00 + (unsigned)((c - 0x10000) & 0x3FF));
        if (!n || (how->ascii && c == 127))
            continue;
        if (!j_put(r, o, s->s + from, i - from, trusted) || !j_put(r, o, esc, n, trusted))
            return false;
        from = i + len;
    }
    return j_charge(r, s->n / 64) && j_put(r, o, s->s + from, s->n - from, trusted) && j_put(r, o, "\"", 1, trusted);
}

static bool new_line(struct jrun *r, struct jout *o, const struct jdump *how, unsigned level)
{
    if (how->indent.t == J_NONE)
        return true;
    if (!lit(r, o, "\n"))
        return false;
    for (unsigned i = 0; i < level; i++) {
        if (how->indent.t == J_STR) {
            if (!j_put_text(r, o, how->indent.u.s))
                return false;
            continue;
        }
        int64_t n = how->indent.t == J_BOOL ? how->indent.u.b : how->indent.u.i;
        if (n > 0 && (uint64_t)n > r->bytes_max)
            return j_fail(r, ERR_LIMIT, "an indent of %lld", (long long)n);
        for (; n > 0; n -= 64)
            if (!j_put(r, o, "                                                                ", n > 64 ? 64 : (size_t)n, true))
                return false;
    }
    return true;
}

static bool dump_key(struct jrun *r, struct jout *o, const struct jdump *how, jv k)
{
    struct jout text = {0};
    jv s;
    switch (k.t) {
    case J_STR: return dump_str(r, o, how, k.u.s);
    case J_INT: case J_BIG: case J_FLOAT: case J_BOOL: case J_NONE:
        return dump(r, &text, how, k, 0) && j_taken(r, &text, &s) && dump_str(r, o, how, s.u.s);
    default: return j_fail(r, ERR_FORMAT, "a %s cannot be a key in JSON", j_type_name(k));
    }
}

static bool dump_list(struct jrun *r, struct jout *o, const struct jdump *how, const struct jlist *l, unsigned level)
{
    if (!l->n)
        return lit(r, o, "[]");
    if (!lit(r, o, "["))
        return false;
    for (size_t i = 0; i < l->n; i++)
        if ((i && !j_put(r, o, how->item_sep, how->n_item_sep, !how->plain_seps)) || !new_line(r, o, how, level + 1) || !dump(r, o, how, l->v[i], level + 1))
            return false;
    return new_line(r, o, how, level) && lit(r, o, "]");
}

static bool sorted(struct jrun *r, const struct jdict *d, struct jdict *out)
{
    *out = (struct jdict){.p = j_alloc(r, d->n, sizeof *d->p), .n = d->n};
    if (!out->p || !j_charge(r, d->n * 8))
        return false;
    for (size_t i = 0; i < d->n; i++) { /* insertion keeps equals in order; objects are small */
        size_t k = i;
        for (bool less = true; k > 0; k--) {
            if (!j_charge(r, 1) || !j_less(r, d->p[i].k, out->p[k - 1].k, "<", &less))
                return false;
            if (!less)
                break;
            out->p[k] = out->p[k - 1];
        }
        out->p[k] = d->p[i];
    }
    return true;
}

static bool dump_dict(struct jrun *r, struct jout *o, const struct jdump *how, const struct jdict *d, unsigned level)
{
    struct jdict order;
    if (!d->n)
        return lit(r, o, "{}");
    if (how->sort) {
        if (!sorted(r, d, &order))
            return false;
        d = &order;
    }
    if (!lit(r, o, "{"))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if ((i && !j_put(r, o, how->item_sep, how->n_item_sep, !how->plain_seps)) || !new_line(r, o, how, level + 1) || !dump_key(r, o, how, d->p[i].k) ||
            !j_put(r, o, how->key_sep, how->n_key_sep, !how->plain_seps) || !dump(r, o, how, d->p[i].v, level + 1))
            return false;
    return new_line(r, o, how, level) && lit(r, o, "}");
}

static bool dump(struct jrun *r, struct jout *o, const struct jdump *how, jv v, unsigned level)
{
    bool ok;
    if (!j_charge(r, 1) || !j_deeper(r))
        return false;
    switch (v.t) {
    case J_NONE: ok = j_put(r, o, "null", 4, !v.plain); break;
    case J_BOOL: ok = j_put(r, o, v.u.b ? "true" : "false", v.u.b ? 4 : 5, !v.plain); break;
    case J_INT: case J_BIG: ok = put_number(r, o, v); break;
    case J_FLOAT:
        if (isfinite(v.u.f))
            ok = put_number(r, o, v);
        else
            ok = j_put(r, o, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity", isnan(v.u.f) ? 3 : v.u.f < 0 ? 9 : 8, !v.plain);
        break;
    case J_STR: ok = dump_str(r, o, how, v.u.s); break;
    case J_LIST: case J_TUPLE: ok = dump_list(r, o, how, v.u.l, level); break;
    case J_DICT: ok = dump_dict(r, o, how, v.u.d, level); break;
    default: ok = j_fail(r, ERR_FORMAT, "a %s cannot be written as JSON", j_type_name(v)); break;
    }
    r->depth--;
    return ok;
}

bool j_tojson(struct jrun *r, jv v, const struct jdump *how, jv *out)
{
    struct jout o = {0};
    return dump(r, &o, how, v, 0) && settle(r, &o, out);
}
