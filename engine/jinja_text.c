/* engine/jinja_text.c - strings: code points, joining, cutting, and the trust of every byte.
 *
 * A string is a view of bytes that never change. One that ends where its growing block (struct jroom) ends may be extended in place:
 * the longer string shares the bytes of the shorter one. So building a text by s = s + x over a whole conversation costs its length,
 * not its square. Trust is one flag as long as all bytes agree, and a map of bytes beside the text from then on. */
#include "engine/jinja_internal.h"

#include <string.h>

#include <utf8proc.h>

struct jroom { char *s; uint8_t *map; size_t used, cap; };
enum { ROOM_FROM = 256 }; /* shorter results are copied: a block of their own would waste more than it saves */

struct jstr *j_text(struct jrun *r, const char *s, size_t n, bool trusted)
{
    struct jstr *t = j_alloc(r, 1, sizeof *t);
    if (t)
        *t = (struct jstr){.s = s, .n = n, .cps = SIZE_MAX, .trusted = trusted};
    return t;
}

bool j_str(struct jrun *r, const char *s, size_t n, bool trusted, jv *out)
{
    char *copy = j_alloc(r, n, 1);
    if (!copy)
        return false;
    if (n)
        memcpy(copy, s, n);
    *out = (jv){.t = J_STR, .u.s = j_text(r, copy, n, trusted)};
    return out->u.s != NULL;
}

bool j_lit(struct jrun *r, const char *s, jv *out)
{
    *out = (jv){.t = J_STR, .u.s = j_text(r, s, strlen(s), true)};
    return out->u.s != NULL;
}

static bool same_trust(const uint8_t *map, size_t n)
{
    return !n || (map[0] == map[n - 1] && !memcmp(map, map + 1, n - 1));
}

bool j_sub(struct jrun *r, const struct jstr *s, size_t at, size_t n, jv *out)
{
    struct jstr *t = j_text(r, s->s + at, n, s->trusted);
    if (!t)
        return false;
    t->safe = s->safe;
    if (s->map && n) {
        if (n <= 64 && same_trust(s->map + at, n))
            t->trusted = s->map[at];
        else
            t->map = s->map + at;
    }
    if (at + n == s->n)
        t->room = s->room;
    *out = (jv){.t = J_STR, .u.s = t};
    return true;
}

/* Room for n more bytes behind a: its own block if a ends it, a new one with a copy of a otherwise. */
static struct jroom *room_for(struct jrun *r, const struct jstr *a, size_t more, char **at)
{
    struct jroom *m = a->room;
    if (m && a->s + a->n == m->s + m->used && more <= m->cap - m->used) {
        *at = m->s + m->used;
        return m;
    }
    size_t n = a->n + more, cap = n < ROOM_FROM ? n : n * 2;
    if (!(m = j_alloc(r, 1, sizeof *m)) || !(m->s = j_alloc(r, cap, 1)))
        return NULL;
    m->cap = cap;
    m->used = a->n;
    memcpy(m->s, a->s, a->n);
    if (a->map) {
        if (!(m->map = j_alloc(r, cap, 1)))
            return NULL;
        memcpy(m->map, a->map, a->n);
    }
    *at = m->s + m->used;
    return m;
}

bool j_cat(struct jrun *r, const struct jstr *a, const struct jstr *b, jv *out)
{
    char *at;
    if (a->n > r->bytes_max || b->n > r->bytes_max - a->n)
        return j_fail(r, ERR_LIMIT, "a text of more than %zu bytes", r->bytes_max);
    if (!j_charge(r, b->n / 256))
        return false;
    if (!b->n || !a->n) {
        *out = (jv){.t = J_STR, .u.s = j_alloc(r, 1, sizeof *a)};
        if (!out->u.s)
            return false;
        *out->u.s = b->n ? *b : *a;
        out->u.s->safe = a->safe || b->safe;
        return true;
    }
    struct jroom *m = room_for(r, a, b->n, &at);
    if (!m)
        return false;
    bool mixed = a->map || b->map || a->trusted != b->trusted;
    if (mixed && !m->map) { /* the block was of one kind so far: a's */
        if (!(m->map = j_alloc(r, m->cap, 1)))
            return false;
        memset(m->map, a->trusted, m->used);
    }
    memcpy(at, b->s, b->n);
    size_t off = (size_t)(at - m->s);
    if (m->map) {
        if (b->map)
            memcpy(m->map + off, b->map, b->n);
        else
            memset(m->map + off, b->trusted, b->n);
    }
    m->used += b->n;
    struct jstr *t = j_text(r, at - a->n, a->n + b->n, a->trusted);
    if (!t)
        return false;
    t->map = mixed ? m->map + off - a->n : NULL;
    t->room = m;
    t->safe = a->safe || b->safe;
    if (a->cps != SIZE_MAX && b->cps != SIZE_MAX)
        t->cps = a->cps + b->cps;
    *out = (jv){.t = J_STR, .u.s = t};
    return true;
}

/* ---- buffers ---- */
static bool out_room(struct jrun *r, struct jout *o, size_t n, bool map)
{
    if (n > r->bytes_max || o->n > r->bytes_max - n)
        return j_fail(r, ERR_LIMIT, "a text of more than %zu bytes", r->bytes_max);
    if (o->n + n > o->cap) {
        size_t cap = (o->n + n) * 2 < 64 ? 64 : (o->n + n) * 2;
        char *s = j_alloc(r, cap, 1);
        uint8_t *m = o->map && s ? j_alloc(r, cap, 1) : NULL;
        if (!s || (o->map && !m))
            return false;
        if (o->n)
            memcpy(s, o->s, o->n);
        if (m)
            memcpy(m, o->map, o->n);
        o->s = s;
        o->map = m;
        o->cap = cap;
    }
    if (map && !o->map) {
        if (!(o->map = j_alloc(r, o->cap, 1)))
            return false;
        memset(o->map, o->trusted, o->n);
    }
    return true;
}

bool j_put(struct jrun *r, struct jout *o, const char *s, size_t n, bool trusted)
{
    if (!n)
        return true;
    if (!o->n)
        o->trusted = trusted;
    if (!out_room(r, o, n, o->map || o->trusted != trusted) || !j_charge(r, n / 256))
        return false;
    memcpy(o->s + o->n, s, n);
    if (o->map)
        memset(o->map + o->n, trusted, n);
    o->n += n;
    return true;
}

bool j_put_text(struct jrun *r, struct jout *o, const struct jstr *s)
{
    if (!s->map)
        return j_put(r, o, s->s, s->n, s->trusted);
    if (!out_room(r, o, s->n, true) || !j_charge(r, s->n / 256))
        return false;
    memcpy(o->s + o->n, s->s, s->n);
    memcpy(o->map + o->n, s->map, s->n);
    o->n += s->n;
    return true;
}

bool j_taken(struct jrun *r, struct jout *o, jv *out)
{
    struct jstr *t = j_text(r, o->s ? o->s : "", o->n, o->n ? o->trusted : true);
    if (!t)
        return false;
    if (o->map && o->n) {
        if (same_trust(o->map, o->n))
            t->trusted = o->map[0];
        else
            t->map = o->map;
    }
    *out = (jv){.t = J_STR, .u.s = t};
    return true;
}

bool j_all_trusted(const struct jstr *s)
{
    return !s->n || (s->map ? !memchr(s->map, 0, s->n) : s->trusted);
}

/* ---- code points ---- */
int32_t j_cp_at(const char *s, size_t n, size_t *len)
{
    utf8proc_int32_t c = (unsigned char)*s;
    *len = 1;
    if (c < 128)
        return c;
    utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)(n > 4 ? 4 : n), &c);
    if (k <= 0)
        return (unsigned char)*s;
    *len = (size_t)k;
    return c;
}

size_t j_cp_len(const char *s, size_t n)
{
    size_t len;
    j_cp_at(s, n, &len);
    return len;
}

size_t j_cp_put(char *s, int32_t cp) { return (size_t)utf8proc_encode_char(cp, (utf8proc_uint8_t *)s); }

size_t j_cps(struct jstr *s)
{
    if (s->cps == SIZE_MAX) {
        size_t n = 0;
        for (size_t i = 0; i < s->n; n++)
            i += (unsigned char)s->s[i] < 128 ? 1 : j_cp_len(s->s + i, s->n - i);
        s->cps = n;
    }
    return s->cps;
}

size_t j_cp_offset(struct jstr *s, size_t cp)
{
    if (j_cps(s) == s->n)
        return cp;
    size_t i = 0;
    while (cp--)
        i += j_cp_len(s->s + i, s->n - i);
    return i;
}

bool j_is_space(int32_t c)
{
    if (c < 128)
        return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t j_find(const char *s, size_t n, const char *w, size_t m)
{
    if (!m)
        return 0;
    const char *at = n >= m ? memmem(s, n, w, m) : NULL;
    return at ? (size_t)(at - s) : SIZE_MAX;
}

size_t j_rfind(const char *s, size_t n, const char *w, size_t m)
{
    for (size_t i = n >= m ? n - m + 1 : 0; i-- > 0;)
        if (!memcmp(s + i, w, m))
            return i;
    return SIZE_MAX;
}
