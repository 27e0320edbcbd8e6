#include "engine/view.h"

#include <inttypes.h>
#include <string.h>

#define SPANS_MAX 4096

struct axis { char name[24]; uint64_t size, stride, from, to; bool drop, known; uint8_t group; };
struct parse {
    struct eng_env *v;
    const char *text;
    size_t n, at;
    struct axis ax[ENG_AXES_MAX];
    unsigned n_ax;
    struct err *e;
};

static void blanks(struct parse *p)
{
    while (p->at < p->n && p->text[p->at] == ' ')
        p->at++;
}

static bool take(struct parse *p, const char *s)
{
    size_t k = strlen(s);

    blanks(p);
    if (p->n - p->at < k || memcmp(p->text + p->at, s, k))
        return false;
    p->at += k;
    return true;
}

static int bad(struct parse *p, const char *what)
{
    return err_set(p->e, ERR_FORMAT, "view `%s`: expected %s at column %zu", p->text, what, p->at + 1);
}

static bool word(struct parse *p, char out[24])
{
    size_t n = 0;

    blanks(p);
    while (p->at < p->n && n < 23 && ((p->text[p->at] >= 'a' && p->text[p->at] <= 'z') || (p->text[p->at] >= 'A' && p->text[p->at] <= 'Z') ||
                                      p->text[p->at] == '_' || (n && p->text[p->at] >= '0' && p->text[p->at] <= '9')))
        out[n++] = p->text[p->at++];
    out[n] = 0;
    return n > 0;
}

static int number(struct parse *p, uint64_t *out)
{
    struct eng_expr *x;
    struct eng_value v;
    int64_t i;
    int rc = eng_expr_parse_at(&x, p->text, p->n, &p->at, p->v->mem, p->e);

    if (!rc)
        rc = eng_env_eval(p->v, x, &v, p->e);
    if (rc)
        return err_prefix(p->e, rc, "view `%s`", p->text);
    if (!eng_v_integer(&v, &i) || i < 0)
        return bad(p, "a size or index >= 0");
    *out = (uint64_t)i;
    return ERR_OK;
}

/* Axes of one file dimension: a name, or a group whose one unknown size follows from the others. */
static int dimension(struct parse *p, uint64_t size, uint64_t stride, uint8_t group)
{
    bool many = take(p, "(");
    unsigned first = p->n_ax, unknown = UINT32_MAX;
    uint64_t product = 1;
    int rc;

    do {
        struct axis *a = &p->ax[p->n_ax];
        if (p->n_ax == ENG_AXES_MAX)
            return err_set(p->e, ERR_LIMIT, "view `%s` has more than %d axes", p->text, ENG_AXES_MAX);
        *a = (struct axis){.group = group};
        if (!word(p, a->name))
            return bad(p, "the name of an axis");
        if (p->at < p->n && p->text[p->at] == ':') {
            p->at++;
            if ((rc = number(p, &a->size)))
                return rc;
            a->known = true;
            if (__builtin_mul_overflow(product, a->size, &product))
                return bad(p, "sizes whose product fits");
        } else if (unknown != UINT32_MAX) {
            return bad(p, "a size (only one axis of a group may lack it)");
        } else {
            unknown = p->n_ax;
        }
        p->n_ax++;
        blanks(p);
    } while (many && !take(p, ")"));
    if (unknown != UINT32_MAX && (product == 0 || size % product))
        return err_set(p->e, ERR_FORMAT, "view `%s`: %" PRIu64 " cannot be split into parts of %" PRIu64, p->text, size, product);
    if (unknown != UINT32_MAX)
        p->ax[unknown].size = size / product;
    else if (product != size)
        return err_set(p->e, ERR_FORMAT, "view `%s`: expected an axis of %" PRIu64 ", found %" PRIu64, p->text, product, size);
    for (unsigned i = p->n_ax; i-- > first;) {
        p->ax[i].stride = stride;
        stride *= p->ax[i].size;
        p->ax[i].to = p->ax[i].size;
    }
    return ERR_OK;
}

static struct axis *named(struct parse *p, const char *name)
{
    for (unsigned i = 0; i < p->n_ax; i++)
        if (!strcmp(p->ax[i].name, name))
            return &p->ax[i];
    return NULL;
}

/* "h d (c y x)": order[] gets indices of axes, each with the logical dimension it belongs to. */
static int permutation(struct parse *p, unsigned order[ENG_AXES_MAX])
{
    unsigned n = 0;
    uint8_t group = 0;
    char name[24];

    for (;; group++) {
        bool many = take(p, "(");
        do {
            struct axis *a;
            if (!word(p, name))
                return bad(p, "the name of an axis");
            a = named(p, name);
            for (unsigned i = 0; a && i < n; i++)
                if (order[i] == (unsigned)(a - p->ax))
                    a = NULL;
            if (!a)
                return bad(p, "an axis of the left side, each once,");
            a->group = group;
            order[n++] = (unsigned)(a - p->ax);
            blanks(p);
        } while (many && !take(p, ")"));
        blanks(p);
        if (p->at == p->n || p->text[p->at] == ';')
            break;
    }
    return n == p->n_ax ? ERR_OK : bad(p, "every axis of the left side");
}

static int ranges(struct parse *p)
{
    char name[24];
    int rc;

    do {
        struct axis *a = word(p, name) ? named(p, name) : NULL;
        if (!a || !take(p, "="))
            return bad(p, "AXIS=FROM:TO or AXIS=INDEX");
        if ((rc = number(p, &a->from)))
            return rc;
        if (take(p, ":")) {
            if ((rc = number(p, &a->to)))
                return rc;
        } else {
            a->to = a->from + 1;
            a->drop = true;
        }
        if (a->to > a->size || a->from > a->to)
            return err_set(p->e, ERR_FORMAT, "view `%s`: %s=%" PRIu64 ":%" PRIu64 " of an axis of %" PRIu64, p->text, name, a->from, a->to, a->size);
    } while (take(p, ","));
    blanks(p);
    return p->at < p->n ? bad(p, "`,` or the end") : ERR_OK;
}

static void as_it_is(const uint64_t *dims, unsigned n, struct eng_axes *out)
{
    uint64_t stride = 1;

    out->n = out->n_dims = n;
    for (unsigned i = n; i-- > 0;) {
        out->size[i] = dims[i];
        out->stride[i] = stride;
        out->group[i] = (uint8_t)i;
        stride *= dims[i]; /* the catalog has checked that the product fits */
    }
}

static int count_dimensions(const char *view)
{
    int n = 0, depth = 0;
    bool in = false;

    for (const char *s = view; *s && *s != ';' && !(s[0] == '-' && s[1] == '>'); s++) {
        if (*s == '(' && depth++ == 0)
            n++;
        else if (*s == ')')
            depth--;
        else if (*s != ' ' && !depth && !in)
            n++;
        in = *s != ' ' && *s != '(' && *s != ')' && !depth;
    }
    return n;
}

int eng_view_axes(struct eng_env *v, const char *view, const uint64_t *dims, unsigned n_dims, struct eng_axes *out, struct err *e)
{
    struct parse p = {.v = v, .text = view, .n = view ? strlen(view) : 0, .e = e};
    uint64_t d[OFF_DIMS_MAX], stride = 1;
    unsigned n = 0, order[ENG_AXES_MAX];
    int rc;

    memset(out, 0, sizeof *out);
    /* Axes of one entry come and go between converters: leave them out where the view does not name them. */
    int wanted = view ? count_dimensions(view) : -1;
    for (unsigned i = 0; i < n_dims; i++)
        if (dims[i] != 1 || wanted == (int)n_dims)
            d[n++] = dims[i];
    if (!n)
        d[n++] = 1;
    if (!view) {
        as_it_is(d, n, out);
        return ERR_OK;
    }
    if (wanted != (int)n)
        return err_set(e, ERR_FORMAT, "view `%s` names %d dimensions, the tensor has %u", view, wanted, n);
    for (unsigned i = 0; i < n; i++) {
        stride = 1;
        for (unsigned k = i + 1; k < n; k++)
            stride *= d[k];
        if ((rc = dimension(&p, d[i], stride, (uint8_t)i)))
            return rc;
    }
    for (unsigned i = 0; i < p.n_ax; i++)
        order[i] = i;
    if (take(&p, "->") && (rc = permutation(&p, order)))
        return rc;
    if (take(&p, ";") && (rc = ranges(&p)))
        return rc;
    blanks(&p);
    if (p.at < p.n)
        return bad(&p, "`->`, `;` or the end");
    uint8_t last = 255;
    for (unsigned i = 0; i < p.n_ax; i++) {
        const struct axis *a = &p.ax[order[i]];
        out->start += a->from * a->stride;
        if (a->drop)
            continue;
        if (a->group != last)
            out->n_dims++;
        last = a->group;
        out->size[out->n] = a->to - a->from;
        out->stride[out->n] = a->stride;
        out->group[out->n++] = (uint8_t)(out->n_dims - 1);
    }
    return ERR_OK;
}

uint64_t eng_axes_dim(const struct eng_axes *a, unsigned d)
{
    uint64_t n = 1;

    for (unsigned i = 0; i < a->n; i++)
        if (a->group[i] == d)
            n *= a->size[i];
    return n;
}

bool eng_axes_entry(const struct eng_axes *a, uint64_t i, struct eng_axes *out)
{
    if (!a->n || i >= a->size[0] || (a->n > 1 && a->group[1] == a->group[0]))
        return false;
    *out = *a;
    out->start += i * a->stride[0];
    out->n = a->n - 1;
    out->n_dims = a->n_dims - 1;
    for (unsigned k = 0; k < out->n; k++) {
        out->size[k] = a->size[k + 1];
        out->stride[k] = a->stride[k + 1];
        out->group[k] = (uint8_t)(a->group[k + 1] - 1);
    }
    return true;
}

/* ---- byte ranges ------------------------------------------------------------------------------------------ */
/* Drops axes of one entry and joins neighbours that lie one after the other. */
static unsigned joined(const struct eng_axes *a, unsigned from, unsigned to, uint64_t *size, uint64_t *stride)
{
    unsigned n = 0;

    for (unsigned i = from; i < to; i++) {
        if (a->size[i] == 1)
            continue;
        if (n && stride[n - 1] == a->size[i] * a->stride[i]) {
            size[n - 1] *= a->size[i];
            stride[n - 1] = a->stride[i];
        } else {
            size[n] = a->size[i];
            stride[n++] = a->stride[i];
        }
    }
    return n;
}

static bool bytes_of(enum krn_type t, uint64_t elements, uint64_t *out)
{
    const struct krn_type_info *k = &krn_types[t];

    if (elements % k->block)
        return false;
    *out = elements / k->block * k->block_bytes;
    return true;
}

int eng_axes_spans(const struct eng_axes *a, const struct off_tensor *t, struct arena *mem, const struct off_span **spans, uint32_t *n_spans,
                   uint64_t *rows, uint64_t *cols, bool *transposed, struct err *e)
{
    struct eng_axes x = *a;
    uint64_t size[ENG_AXES_MAX], stride[ENG_AXES_MAX], csize[ENG_AXES_MAX], cstride[ENG_AXES_MAX], start, row_bytes, count = 1;
    unsigned split = x.n, n, nc;

    *transposed = false;
    while (split && x.group[split - 1] == x.n_dims - 1)
        split--;
    nc = joined(&x, split, x.n, csize, cstride);
    if (nc == 1 && cstride[0] != 1 && split && x.n - split == 1 && x.stride[split - 1] == 1) {
        uint64_t s = x.size[split]; /* swap the last two: rows of the file are columns here */
        x.size[split] = x.size[split - 1];
        x.size[split - 1] = s;
        s = x.stride[split];
        x.stride[split] = x.stride[split - 1];
        x.stride[split - 1] = s;
        nc = joined(&x, split, x.n, csize, cstride);
        *transposed = true;
    }
    if (nc == 1 && cstride[0] != 1 && x.n_dims == 1) { /* a vector of values that lie apart: rows of one */
        split = x.n;
        nc = 0;
    }
    if (nc > 1 || (nc == 1 && cstride[0] != 1))
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: the view's last axis is not contiguous in the file", t->name);
    *cols = nc ? csize[0] : 1;
    n = joined(&x, 0, split, size, stride);
    if (!bytes_of(t->type, *cols, &row_bytes) || !bytes_of(t->type, x.start, &start))
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: the view cuts inside a block of %u values of %s", t->name, krn_types[t->type].block, krn_types[t->type].name);
    *rows = 1;
    for (unsigned i = 0; i < n; i++) {
        *rows *= size[i];
        if (!bytes_of(t->type, stride[i], &stride[i]))
            return err_set(e, ERR_UNSUPPORTED, "tensor %s: rows of the view do not begin at a block of %s", t->name, krn_types[t->type].name);
        if (i + 2 < n)
            count *= size[i];
    }
    struct off_span *s = count <= SPANS_MAX ? ARENA_ARRAY(mem, struct off_span, count) : NULL;
    if (!s)
        return err_set(e, count <= SPANS_MAX ? ERR_NOMEM : ERR_LIMIT, "tensor %s: %" PRIu64 " separate ranges", t->name, count);
    for (uint64_t k = 0; k < count; k++) {
        uint64_t at = t->offset + start, rest = k;
        for (unsigned i = n > 2 ? n - 2 : 0; i-- > 0;) { /* axes outside the two that a span describes */
            at += rest % size[i] * stride[i];
            rest /= size[i];
        }
        s[k] = (struct off_span){.file = t->file, .offset = at, .row_bytes = row_bytes, .n_rows = n ? size[n - 1] : 1,
                                 .row_stride = n ? stride[n - 1] : row_bytes, .n_outer = n > 1 ? size[n - 2] : 1, .outer_stride = n > 1 ? stride[n - 2] : 0};
    }
    *spans = s;
    *n_spans = (uint32_t)count;
    return ERR_OK;
}
