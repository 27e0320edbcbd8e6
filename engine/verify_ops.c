/* Operators by themselves: every one against the stored known answers, on each instruction set; and each instruction set against plain C on
 * drawn inputs of several sizes and chunks, linears with every type of weights. */
#include "engine/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/embedded.h"
#include "engine/op_rig.h"
#include "engine/ops.h"
#include "kernels/linear.h"

#define KNOWN "tests/data/operators/known.json"
static const enum krn_isa isas[] = {KRN_ISA_C, KRN_ISA_AVX2, KRN_ISA_AVX512};

/* max |a - b| / max |b|; of a routing the chosen numbers must be the same, and the weights are compared. */
static double distance(const float *a, const float *b, size_t n, bool routing, uint32_t k)
{
    double most = 0, scale = 0;
    for (size_t i = 0; i < n; i++) {
        bool id = routing && i / k % 2 == 0;
        double d = fabs((double)a[i] - (double)b[i]);
        if (id && d > 0)
            return INFINITY;
        if (!(d <= most))
            most = d;
        if (!id && fabs((double)b[i]) > scale)
            scale = fabs((double)b[i]);
    }
    return most / (scale > 0 ? scale : 1);
}

static float *answer(const struct json *c, size_t n)
{
    const struct json *v = json_path(c, "out.v");
    float *f = json_is(v, JSON_ARRAY) && v->n == n ? malloc(n * sizeof *f) : NULL;
    for (size_t i = 0; f && i < n; i++) {
        double d = NAN;
        json_num(v->items[i], &d);
        f[i] = (float)d;
    }
    return f;
}

static int known(struct eng_verify *v, const struct json *c, const struct eng_opdef *d, uint32_t k, struct err *e)
{
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        struct eng_op_way way = {.api = &krn_cpu, .isa = isas[i], .precision = KRN_PREC_F32, .threads = 1};
        float *got, *want;
        size_t n;
        char name[160];
        if (!krn_isa_have(isas[i]))
            continue;
        int rc = eng_op_run(c, &way, &got, &n, e);
        if (rc)
            return rc;
        if (!(want = answer(c, n))) {
            free(got);
            return err_set(e, ERR_FORMAT, "%s, %s: the answer has not %zu values", d->name, json_str(json_get(c, "case")), n);
        }
        snprintf(name, sizeof name, "operator.%s, %s, %s", d->name, json_str(json_get(c, "case")), krn_isa_name(isas[i]));
        eng_verify_line(v, name, distance(got, want, n, d->code == KRN_ROUTE, k), d->tolerance);
        free(got);
        free(want);
    }
    return ERR_OK;
}

/* One instruction set against plain C on the same drawn values. */
static int drawn(const struct json *c, const struct eng_op_way *like, enum krn_isa isa, uint32_t k, bool routing, double *worst, struct err *e)
{
    struct eng_op_way plain = *like, fast = *like;
    float *a = NULL, *b = NULL;
    size_t n = 0, m = 0;
    plain.isa = KRN_ISA_C;
    plain.threads = 1;
    plain.chunk = 0;
    fast.isa = isa;
    int rc = eng_op_run(c, &plain, &a, &n, e);
    if (!rc && !(rc = eng_op_run(c, &fast, &b, &m, e))) {
        double d = n == m ? distance(b, a, n, routing, k) : INFINITY;
        *worst = d <= *worst ? *worst : d;
    }
    free(a);
    free(b);
    return rc;
}

static int variants(struct eng_verify *v, const struct json *c, const struct eng_opdef *d, uint32_t k, struct err *e)
{
    static const struct { uint32_t grow, chunk; unsigned threads; } shapes[] = {{1, 0, 1}, {3, 0, 2}, {3, 5, 1}, {8, 1, 2}};
    for (size_t i = 1; i < sizeof isas / sizeof *isas; i++) {
        double worst = 0;
        char name[160];
        int rc = ERR_OK;
        if (!krn_isa_have(isas[i]))
            continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes && !rc; s++) {
            struct eng_op_way way = {.api = &krn_cpu, .precision = KRN_PREC_F32, .threads = shapes[s].threads, .chunk = shapes[s].chunk, .grow = shapes[s].grow, .seed = s + 1, .type = KRN_F32};
            rc = drawn(c, &way, isas[i], k, d->code == KRN_ROUTE, &worst, e);
        }
        if (rc)
            return rc;
        snprintf(name, sizeof name, "operator.%s, %s, %s beside plain C", d->name, json_str(json_get(c, "case")), krn_isa_name(isas[i]));
        eng_verify_line(v, name, worst, d->tolerance);
    }
    return ERR_OK;
}

/* Linears with every type that there are kernels for, both with activations in f32 and as served. */
static int types(struct eng_verify *v, const struct json *c, struct err *e)
{
    for (size_t i = 1; i < sizeof isas / sizeof *isas; i++) {
        for (int t = 0; t < KRN_TYPE_COUNT && krn_isa_have(isas[i]); t++) {
            double worst = 0;
            char name[160];
            int rc = ERR_OK;
            if (!krn_slot_can((enum krn_type)t) || krn_linear_support((enum krn_type)t, KRN_TILED) == KRN_LINEAR_NONE)
                continue;
            for (int p = 0; p < 2 && !rc; p++) {
                struct eng_op_way way = {.api = &krn_cpu, .precision = p ? KRN_PREC_AUTO : KRN_PREC_F32, .threads = 2, .grow = 32, .seed = (uint64_t)t + 1, .type = (enum krn_type)t};
                rc = drawn(c, &way, isas[i], 1, false, &worst, e);
            }
            if (rc)
                return rc;
            snprintf(name, sizeof name, "operator.linear on %s, %s beside plain C", krn_types[t].name, krn_isa_name(isas[i]));
            eng_verify_line(v, name, worst, 1e-6);
        }
    }
    return ERR_OK;
}

int eng_verify_operators(struct eng_verify *v, const char *path, struct err *e)
{
    const struct embedded *x = sluice_embedded;
    struct json *doc = NULL;
    struct arena a;
    bool typed = false;
    arena_init(&a, 64u << 20);
    while (x->name && strcmp(x->name, KNOWN))
        x++;
    int rc = path ? json_parse_file(&doc, path, 16u << 20, &a, e) : json_parse(&doc, x->data, (size_t)(x->end - x->data), &json_strict, &a, e);
    const struct json *cases = json_get(doc, "cases");
    if (!rc && (!json_is(cases, JSON_ARRAY) || !cases->n))
        rc = err_set(e, ERR_FORMAT, "known answers: expected `cases`, a list");
    for (size_t i = 0; !rc && i < cases->n; i++) {
        const struct json *c = cases->items[i];
        const char *name = json_str(json_get(c, "op"));
        const struct eng_opdef *d = name ? eng_op_find(name, strlen(name)) : NULL;
        int64_t k = 1;
        json_int(json_path(c, "attrs.k"), &k);
        if (!d || !json_str(json_get(c, "case")) || k < 1)
            rc = err_set(e, ERR_FORMAT, "known answers: case %zu: expected `op`, one of the registry, and `case`", i);
        else if (!(rc = known(v, c, d, (uint32_t)k, e)) && !(rc = variants(v, c, d, (uint32_t)k, e)) && !typed && d->code == KRN_LINEAR) {
            typed = true;
            rc = types(v, c, e);
        }
    }
    arena_free(&a);
    return rc;
}
