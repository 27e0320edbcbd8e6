/* engine/schema_number.c - numbers between bounds, digit by digit. Integers have at most 18 digits, fractions of numbers at most 15. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/schema_internal.h"

enum { DIGITS = 18, FRACTION = 15, VALUES_MAX = 1000 };
static const int64_t most = 999999999999999999; /* DIGITS nines */

/* ---- integers ------------------------------------------------------------------------------------------------ */

static void any_digits(struct buf *b, size_t n)
{
    if (n)
        buf_printf(b, n == 1 ? " [0-9]" : " [0-9]{%zu}", n);
}

static bool all_are(const char *s, char c) { return s[strspn(s, (char[2]){c})] == 0; }

static void digit(struct buf *b, int lo, int hi)
{
    if (lo == hi)
        buf_printf(b, " \"%d\"", lo);
    else
        buf_printf(b, " [%d-%d]", lo, hi);
}

/* Digit strings of one length, not below s / not above s. */
static void not_beyond(struct buf *b, const char *s, bool below)
{
    size_t rest = strlen(s);
    int d = *s - '0';
    if (all_are(s, below ? '9' : '0')) {
        any_digits(b, rest);
        return;
    }
    buf_str(b, " (");
    digit(b, d, d);
    not_beyond(b, s + 1, below);
    if (below ? d > 0 : d < 9) {
        buf_str(b, " |");
        digit(b, below ? 0 : d + 1, below ? d - 1 : 9);
        any_digits(b, rest - 1);
    }
    buf_str(b, ")");
}

/* Digit strings between two of one length. */
static void between(struct buf *b, const char *s, const char *t)
{
    while (*s && *s == *t) {
        digit(b, *s - '0', *s - '0');
        s++;
        t++;
    }
    if (!*s)
        return;
    int lo = *s - '0', hi = *t - '0';
    size_t rest = strlen(s + 1);
    bool whole_low = all_are(s + 1, '0'), whole_high = all_are(t + 1, '9');
    const char *bar = "";
    buf_str(b, " (");
    if (!whole_low) {
        digit(b, lo, lo);
        not_beyond(b, s + 1, false);
        bar = " |";
        lo++;
    }
    if (lo <= hi - !whole_high) {
        buf_str(b, bar);
        digit(b, lo, hi - !whole_high);
        any_digits(b, rest);
        bar = " |";
    }
    if (!whole_high) {
        buf_str(b, bar);
        digit(b, hi, hi);
        not_beyond(b, t + 1, true);
    }
    buf_str(b, ")");
}

/* 0 <= lo <= hi, without leading zeros: one alternative for each number of digits, whole lengths together. */
static void natural(struct buf *b, int64_t lo, int64_t hi)
{
    char s[24], t[24];
    const char *bar = "";
    buf_str(b, " (");
    if (lo == 0) {
        buf_str(b, " \"0\"");
        bar = " |";
        lo = 1;
    }
    for (int64_t top = 9; lo <= hi; lo = top + 1, top = top < most ? 10 * top + 9 : top) {
        while (top < lo)
            top = 10 * top + 9;
        int64_t last = top;
        size_t more = 0;
        for (; lo == (top + 1) / 10 && last <= (most - 9) / 10 && 10 * last + 9 <= hi && top <= hi; more++)
            last = 10 * last + 9;
        snprintf(s, sizeof s, "%lld", (long long)lo);
        snprintf(t, sizeof t, "%lld", (long long)(hi < top ? hi : top));
        buf_str(b, bar);
        if (more)
            buf_printf(b, " [1-9] [0-9]{%zu,%zu}", strlen(s) - 1, strlen(s) - 1 + more);
        else
            between(b, s, t);
        bar = " |";
        top = more ? last : top;
    }
    buf_str(b, ")");
}

static void whole(struct buf *b, int64_t lo, int64_t hi)
{
    const char *bar = "";
    buf_str(b, " (");
    if (lo < 0) {
        buf_str(b, " \"-\"");
        natural(b, hi < 0 ? -hi : 1, -lo);
        bar = " |";
    }
    if (hi >= 0) {
        buf_str(b, bar);
        natural(b, lo > 0 ? lo : 0, hi);
    }
    buf_str(b, ")");
}

static int64_t quotient(int64_t v, int64_t k, bool up) { return up ? (v > 0 ? (v + k - 1) / k : v / k) : (v >= 0 ? v / k : -((-v + k - 1) / k)); }

static int multiples(struct schema *s, int64_t lo, int64_t hi, int64_t k, struct buf *b)
{
    int64_t first = quotient(lo, k, true), last = quotient(hi, k, false);
    int zeros = 0;
    if (first > last)
        return schema_fail(s, ERR_INVALID, "multipleOf", "no multiple of %lld is between the bounds", (long long)k);
    if (last - first < VALUES_MAX) {
        buf_str(b, " (");
        for (int64_t q = first; q <= last; q++)
            buf_printf(b, "%s\"%lld\"", q > first ? " | " : " ", (long long)(q * k));
        buf_str(b, ")");
        return ERR_OK;
    }
    for (int64_t p = k; p % 10 == 0; p /= 10)
        zeros++;
    if (k != (int64_t)llround(pow(10, zeros)))
        return schema_fail(s, ERR_UNSUPPORTED, "multipleOf", "%lld is supported with bounds that leave at most %d values, powers of ten always", (long long)k, VALUES_MAX);
    const char *bar = "";
    buf_str(b, " (");
    if (first <= 0 && last >= 0) {
        buf_str(b, " \"0\"");
        bar = " |";
    }
    if (first < 0) {
        buf_str(b, bar);
        whole(b, first, last < 0 ? last : -1);
        buf_printf(b, " \"%0*d\"", zeros, 0);
        bar = " |";
    }
    if (last > 0) {
        buf_str(b, bar);
        whole(b, first > 0 ? first : 1, last);
        buf_printf(b, " \"%0*d\"", zeros, 0);
    }
    buf_str(b, ")");
    return ERR_OK;
}

/* ---- bounds -------------------------------------------------------------------------------------------------- */

/* A bound: sign, digits before and behind the point without useless zeros. set false: there is none. */
struct bound { bool set, negative, open; int64_t i; char f[DIGITS + 2]; };

static int get_bound(struct schema *s, const struct json *v, const char *key, bool upper, bool open, struct bound *o)
{
    char text[80];
    double d;
    if (!json_num(v, &d) || !isfinite(d))
        return schema_fail(s, ERR_INVALID, key, "expected a number");
    o->set = false;
    if (fabs(d) >= 1e18) /* every number written here is on one side of it */
        return upper == (d < 0) ? schema_fail(s, ERR_UNSUPPORTED, key, "numbers have at most %d digits here", DIGITS) : ERR_OK;
    if (strpbrk(v->s, "eE"))
        snprintf(text, sizeof text, "%.17f", d);
    else
        snprintf(text, sizeof text, "%.70s", v->s);
    const char *p = text + (*text == '-'), *point = strchr(p, '.');
    *o = (struct bound){.set = true, .negative = *text == '-', .open = open, .i = strtoll(p, NULL, 10)};
    size_t n = point ? strlen(point + 1) : 0;
    while (n && point[n] == '0')
        n--;
    if (n > DIGITS)
        return schema_fail(s, ERR_UNSUPPORTED, key, "more than %d digits behind the point", DIGITS);
    memcpy(o->f, point ? point + 1 : "", n);
    o->negative &= o->i != 0 || n;
    return ERR_OK;
}

static int below(const struct bound *a, const struct bound *b) /* < 0: a is less */
{
    int sign = a->negative ? -1 : 1;
    if (a->negative != b->negative)
        return sign;
    if (a->i != b->i)
        return a->i < b->i ? -sign : sign;
    return sign * strcmp(a->f, b->f); /* without trailing zeros, digit strings compare as fractions do */
}

/* minimum with exclusiveMinimum (a number, or draft 4's boolean), and likewise the other side; the stricter one. */
static int get_side(struct schema *s, const struct json *n, bool upper, struct bound *o)
{
    const char *key = upper ? "maximum" : "minimum", *xkey = upper ? "exclusiveMaximum" : "exclusiveMinimum";
    const struct json *v = json_get(n, key), *x = json_get(n, xkey);
    struct bound open = {0};
    int rc = v ? get_bound(s, v, key, upper, json_is(x, JSON_BOOL) && x->b, o) : ERR_OK;
    if (!rc && x && x->type != JSON_BOOL)
        rc = get_bound(s, x, xkey, upper, true, &open);
    if (!rc && open.set && (!o->set || (upper ? below(&open, o) <= 0 : below(&open, o) >= 0)))
        *o = open;
    return rc;
}

/* The integer nearest to the bound on its inner side. */
static int64_t inner(const struct bound *o, bool upper)
{
    int64_t v = o->negative ? -o->i : o->i;
    bool fraction = *o->f != 0;
    if (upper)
        return fraction ? v - o->negative : v - o->open;
    return fraction ? v + !o->negative : v + o->open;
}

/* ---- fractions ----------------------------------------------------------------------------------------------- */

static void more_digits(struct buf *b, uint32_t n, uint32_t min)
{
    if (n)
        buf_printf(b, " [0-9]{%u,%u}", min < n ? min : n, n);
}

static void any_fraction(struct buf *b, uint32_t n)
{
    if (!n)
        return;
    buf_str(b, " (\".\"");
    more_digits(b, n, 1);
    buf_str(b, ")?");
}

/* Digits behind a point that make a fraction above f, or at it. At least one if f is empty and open. */
static void fraction_above(struct buf *b, const char *f, bool open)
{
    if (!*f) {
        buf_str(b, open ? " \"0\"{0,12} [1-9] [0-9]{0,12}" : " [0-9]{0,12}");
        return;
    }
    buf_str(b, " (");
    digit(b, *f - '0', *f - '0');
    fraction_above(b, f + 1, open);
    if (*f < '9') {
        buf_str(b, " |");
        digit(b, *f - '0' + 1, 9);
        more_digits(b, FRACTION, 0);
    }
    buf_str(b, ")");
}

/* Digits, one or more, that make a fraction below f, which is not empty, or at it. */
static void fraction_below(struct buf *b, const char *f, bool open)
{
    bool last = !f[1];
    const char *bar = "";
    buf_str(b, " (");
    if (*f > '0') {
        digit(b, 0, *f - '0' - 1);
        more_digits(b, FRACTION, 0);
        bar = " |";
    }
    if (!last || !open) {
        buf_str(b, bar);
        digit(b, *f - '0', *f - '0');
        if (last) {
            buf_str(b, " \"0\"{0,6}");
        } else {
            buf_str(b, " (");
            fraction_below(b, f + 1, open);
            buf_str(b, ")?");
        }
    }
    buf_str(b, ")");
}

/* Digits that make a fraction from f to g; f is not above g. */
static void fraction_range(struct buf *b, const char *f, const char *g, bool lo_open, bool hi_open)
{
    for (; *f && *f == *g; f++, g++)
        digit(b, *f - '0', *f - '0');
    if (!*g) {
        buf_str(b, " \"0\"{0,6}"); /* f and g are equal: one value */
        return;
    }
    if (!*f && !lo_open) {
        buf_str(b, " (");
        fraction_below(b, g, hi_open);
        buf_str(b, ")?");
        return;
    }
    for (; !*f && *g == '0'; g++)
        digit(b, 0, 0);
    int low = *f ? *f - '0' : 0, high = *g - '0';
    buf_str(b, " (");
    digit(b, low, low);
    fraction_above(b, *f ? f + 1 : f, lo_open);
    if (high - low > 1) {
        buf_str(b, " |");
        digit(b, low + 1, high - 1);
        more_digits(b, FRACTION, 0);
    }
    if (g[1] || !hi_open) {
        buf_str(b, " |");
        digit(b, high, high);
        buf_str(b, g[1] ? " (" : " \"0\"{0,6}");
        if (g[1]) {
            fraction_below(b, g + 1, hi_open);
            buf_str(b, ")?");
        }
    }
    buf_str(b, ")");
}

/* Behind one integer part that both bounds have. */
static void fraction_between(struct buf *b, const struct bound *lo, const struct bound *hi)
{
    if (*lo->f || lo->open) {
        buf_str(b, " \".\"");
        fraction_range(b, lo->f, hi->f, lo->open, hi->open);
    } else if (*hi->f) {
        buf_str(b, " (\".\"");
        fraction_below(b, hi->f, hi->open);
        buf_str(b, ")?");
    } else {
        buf_str(b, " (\".\" \"0\"{1,6})?");
    }
}

/* Not negative, from lo to hi (hi not set: no bound). */
static void decimals(struct buf *b, const struct bound *lo, const struct bound *hi, uint32_t fraction)
{
    const char *bar = "";
    int64_t last = hi->set ? hi->i - 1 : most;
    buf_str(b, " (");
    if (hi->set && hi->i == lo->i) {
        buf_printf(b, " \"%lld\"", (long long)lo->i);
        fraction_between(b, lo, hi);
        buf_str(b, ")");
        return;
    }
    if (*lo->f || lo->open) {
        buf_printf(b, " \"%lld\" \".\"", (long long)lo->i);
        fraction_above(b, lo->f, lo->open);
        bar = " |";
    }
    int64_t first = lo->i + (*lo->f || lo->open);
    if (first <= last) {
        buf_str(b, bar);
        natural(b, first, last);
        any_fraction(b, fraction);
        bar = " |";
    }
    if (hi->set && (*hi->f || !hi->open)) {
        buf_printf(b, "%s \"%lld\"", bar, (long long)hi->i);
        if (*hi->f) {
            buf_str(b, " (\".\"");
            fraction_below(b, hi->f, hi->open);
            buf_str(b, ")?");
        } else {
            buf_str(b, fraction ? " (\".\" \"0\")?" : "");
        }
    }
    buf_str(b, ")");
}

static int number_between(struct schema *s, const struct bound *lo, const struct bound *hi, uint32_t fraction, struct buf *b)
{
    struct bound zero = {.set = true}, low = *lo, high = *hi;
    const char *bar = "";
    if (lo->set && hi->set && (below(lo, hi) > 0 || (below(lo, hi) == 0 && (lo->open || hi->open))))
        return schema_fail(s, ERR_INVALID, NULL, "no number is between the bounds");
    if (fraction < FRACTION && ((lo->set && (*lo->f || lo->open)) || (hi->set && (*hi->f || hi->open))))
        return schema_fail(s, ERR_UNSUPPORTED, "multipleOf", "fractions of a number are supported beside whole, inclusive bounds");
    buf_str(b, " (");
    if (!lo->set || lo->negative) { /* -x for x from |hi| to |lo| */
        low = hi->set && (hi->negative || (!hi->i && !*hi->f)) ? *hi : zero;
        high = *lo;
        buf_str(b, " \"-\"");
        decimals(b, &low, &high, fraction);
        bar = " |";
    }
    if (!hi->set || (!hi->negative && (hi->i || *hi->f || !hi->open))) {
        buf_str(b, bar);
        decimals(b, lo->set && !lo->negative ? lo : &zero, hi, fraction);
    }
    buf_str(b, ")");
    return ERR_OK;
}

/* multipleOf 0.1, 0.01, ...: how many digits a fraction may have. */
static int get_step(struct schema *s, const struct json *v, bool *integer, int64_t *step, uint32_t *fraction)
{
    double d;
    if (!json_num(v, &d) || !(d > 0))
        return schema_fail(s, ERR_INVALID, "multipleOf", "expected a number above zero");
    if (json_int(v, step) && *step <= most) {
        *integer = true;
        return ERR_OK;
    }
    for (uint32_t i = 1; i <= 12; i++)
        if (fabs(d * pow(10, i) - 1) < 1e-9) {
            *fraction = i;
            return ERR_OK;
        }
    return schema_fail(s, ERR_UNSUPPORTED, "multipleOf", "expected a whole number or 0.1, 0.01 and so on");
}

int schema_number(struct schema *s, const struct json *n, bool integer, struct buf *b)
{
    struct bound lo = {0}, hi = {0};
    const struct json *multiple = json_get(n, "multipleOf");
    int64_t step = 1;
    uint32_t fraction = FRACTION;
    bool steps = false;
    int rc = get_side(s, n, false, &lo);
    if (rc || (rc = get_side(s, n, true, &hi)) || (multiple && (rc = get_step(s, multiple, &steps, &step, &fraction))))
        return rc;
    if (!integer && !steps && (lo.set || hi.set || fraction < FRACTION))
        return number_between(s, &lo, &hi, fraction, b);
    if (!integer && !steps) {
        schema_use(s, b, COMMON_NUMBER);
        return ERR_OK;
    }
    if (!lo.set && !hi.set && step == 1) {
        schema_use(s, b, COMMON_INTEGER);
        return ERR_OK;
    }
    int64_t first = lo.set ? inner(&lo, false) : -most, last = hi.set ? inner(&hi, true) : most;
    if (first > last)
        return schema_fail(s, ERR_INVALID, NULL, "no integer is between the bounds");
    if (step > 1)
        return multiples(s, first, last, step, b);
    whole(b, first, last);
    return ERR_OK;
}
