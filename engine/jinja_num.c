/* engine/jinja_num.c - numbers as Python has them: 64-bit integers, longer ones carried as text, doubles in their shortest form.
 *
 * An integer beyond 64 bits is printed, compared and negated exactly; arithmetic that would make or need one ends the render. */
#include "engine/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Python's repr: the fewest digits that read back equal, an exponent outside of 1e-4 <= |f| < 1e16, and a point or an exponent always. */
size_t j_float_text(double f, char out[40])
{
    char e[40];
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    for (int digits = 0; digits < 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits, f);
        if (strtod(e, NULL) == f)
            break;
    }
    char *exp = strchr(e, 'e');
    int x = atoi(exp + 1);
    if (x < -4 || x >= 16)
        return (size_t)snprintf(out, 40, "%.*se%c%02d", (int)(exp - e), e, x < 0 ? '-' : '+', abs(x));
    int shown = (int)(exp - e) - (e[0] == '-') - 2; /* digits after the point in e */
    int after = (shown < 0 ? 0 : shown) - x;
    return (size_t)snprintf(out, 40, "%.*f", after < 1 ? 1 : after, f);
}

bool j_parse_int(const char *s, size_t n, int base, int64_t *out, bool *big)
{
    size_t i = n && (*s == '-' || *s == '+') ? 1 : 0;
    bool neg = i && *s == '-', over = false;
    uint64_t v = 0;
    if (i == n)
        return false;
    for (; i < n; i++) {
        int d = s[i] >= '0' && s[i] <= '9' ? s[i] - '0' : (s[i] | 32) >= 'a' && (s[i] | 32) <= 'z' ? (s[i] | 32) - 'a' + 10 : 99;
        if (d >= base)
            return false;
        over |= __builtin_mul_overflow(v, (uint64_t)base, &v) || __builtin_add_overflow(v, (uint64_t)d, &v);
    }
    over |= v > (uint64_t)INT64_MAX + neg;
    *big = over;
    *out = over ? 0 : neg ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

/* Decimal text that was checked to be an integer: INT, or BIG without leading zeros. */
bool j_int_lit(struct jrun *r, const char *s, size_t n, bool trusted, jv *out)
{
    int64_t v;
    bool big;
    if (!j_parse_int(s, n, 10, &v, &big))
        return false;
    *out = j_int(v);
    out->plain = !trusted;
    if (!big)
        return true;
    bool neg = *s == '-';
    size_t skip = *s == '-' || *s == '+';
    while (skip + 1 < n && s[skip] == '0')
        skip++;
    char *copy = j_alloc(r, n - skip + 1, 1);
    if (!copy)
        return false;
    *copy = '-';
    memcpy(copy + neg, s + skip, n - skip);
    *out = (jv){.t = J_BIG, .plain = !trusted, .u.s = j_text(r, copy, n - skip + neg, trusted)};
    return out->u.s != NULL;
}

double j_double(jv v)
{
    if (v.t == J_FLOAT)
        return v.u.f;
    if (v.t != J_BIG)
        return v.t == J_BOOL ? v.u.b : (double)v.u.i;
    char *text = strndup(v.u.s->s, v.u.s->n);
    double f = text ? strtod(text, NULL) : NAN;
    free(text);
    return f;
}

bool j_big_sign(jv v) { return v.t == J_BIG ? *v.u.s->s == '-' : v.t == J_INT && v.u.i < 0; }

int j_big_cmp(jv a, jv b)
{
    bool na = j_big_sign(a), nb = j_big_sign(b);
    if (a.t != J_BIG && b.t != J_BIG) {
        int64_t x = a.t == J_BOOL ? a.u.b : a.u.i, y = b.t == J_BOOL ? b.u.b : b.u.i;
        return (x > y) - (x < y);
    }
    if (na != nb)
        return na ? -1 : 1;
    int order;
    if (a.t != b.t)
        order = a.t == J_BIG ? 1 : -1;
    else if (a.u.s->n != b.u.s->n)
        order = a.u.s->n > b.u.s->n ? 1 : -1;
    else
        order = memcmp(a.u.s->s, b.u.s->s, a.u.s->n);
    return na ? -order : order;
}

static bool too_big(struct jrun *r) { return j_fail(r, ERR_LIMIT, "an integer beyond 64 bits"); }

static bool int_power(struct jrun *r, int64_t base, int64_t n, jv *out)
{
    if (n < 0) {
        if (!base)
            return j_fail(r, ERR_FORMAT, "0 to a negative power");
        *out = j_float(pow((double)base, (double)n));
        return true;
    }
    int64_t v = 1;
    if (base == 0 || base == 1 || base == -1) {
        *out = j_int(n == 0 ? 1 : base == -1 && n % 2 == 0 ? 1 : base);
        return true;
    }
    for (; n > 0; n--) /* at most 63 rounds before it overflows */
        if (__builtin_mul_overflow(v, base, &v))
            return too_big(r);
    *out = j_int(v);
    return true;
}

static bool int_arith(struct jrun *r, enum j_op op, int64_t a, int64_t b, jv *out)
{
    int64_t v = 0, q, m;
    bool over = false;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &v); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &v); break;
    case OP_POW: return int_power(r, a, b, out);
    default:
        if (!b)
            return j_fail(r, ERR_FORMAT, "division by zero");
        if (op == OP_DIV) {
            *out = j_float((double)a / (double)b);
            return true;
        }
        if (b == -1) { /* INT64_MIN has no negative */
            over = op == OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v);
            break;
        }
        q = a / b;
        m = a % b;
        if (m && (m < 0) != (b < 0)) { /* Python rounds down */
            q--;
            m += b;
        }
        v = op == OP_FLOORDIV ? q : m;
    }
    *out = j_int(v);
    return over ? too_big(r) : true;
}

static bool float_arith(struct jrun *r, enum j_op op, double a, double b, jv *out)
{
    double m;
    switch (op) {
    case OP_ADD: *out = j_float(a + b); return true;
    case OP_SUB: *out = j_float(a - b); return true;
    case OP_MUL: *out = j_float(a * b); return true;
    case OP_POW:
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b)))
            return j_fail(r, ERR_FORMAT, "a power that is no real number");
        *out = j_float(pow(a, b));
        return true;
    default: break;
    }
    if (b == 0)
        return j_fail(r, ERR_FORMAT, "division by zero");
    m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    *out = j_float(op == OP_DIV ? a / b : op == OP_FLOORDIV ? floor((a - m) / b + 0.5) : m);
    return true;
}

bool j_arith(struct jrun *r, enum j_op op, jv a, jv b, jv *out)
{
    bool plain = a.plain || b.plain, ok;
    if (a.t == J_FLOAT || b.t == J_FLOAT)
        ok = float_arith(r, op, j_double(a), j_double(b), out);
    else if (a.t == J_BIG || b.t == J_BIG)
        return too_big(r);
    else
        ok = int_arith(r, op, a.t == J_BOOL ? a.u.b : a.u.i, b.t == J_BOOL ? b.u.b : b.u.i, out);
    out->plain = plain;
    return ok;
}

bool j_negate(struct jrun *r, jv v, jv *out)
{
    if (v.t == J_FLOAT) {
        *out = j_float(-v.u.f);
    } else if (v.t == J_BIG) {
        const struct jstr *s = v.u.s;
        char *text = j_alloc(r, s->n + 1, 1);
        if (!text)
            return false;
        *text = '-';
        memcpy(text + 1, s->s, s->n);
        bool neg = *s->s == '-'; /* -9223372036854775808 comes back into range */
        return j_int_lit(r, neg ? s->s + 1 : text, neg ? s->n - 1 : s->n + 1, s->trusted, out);
    } else {
        int64_t i = v.t == J_BOOL ? v.u.b : v.u.i;
        if (i == INT64_MIN)
            return j_int_lit(r, "9223372036854775808", 19, !v.plain, out);
        *out = j_int(-i);
    }
    out->plain = v.plain;
    return true;
}
