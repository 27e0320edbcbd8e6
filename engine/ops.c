#include "engine/ops.h"

#include <stdio.h>
#include <string.h>

/* In the order of enum krn_act, krn_pairs and krn_router. */
#define ACTS "silu gelu gelu_pytorch_tanh situ clamp_swiglu relu quick_gelu"
#define PAIRS "halves adjacent"
#define ROUTERS "softmax sigmoid topk_softmax"
#define GLU_ATTRS {"act", ENG_ATTR_WORD, ACTS, "'silu'", 0, 0}, {"alpha", ENG_ATTR_NUM, NULL, "1.702", 1e-6, 1e6}, {"limit", ENG_ATTR_NUM, NULL, "7", 1e-6, 1e6}, \
                  {"beta", ENG_ATTR_NUM, NULL, "1", 1e-6, 1e6}, {"beta_u", ENG_ATTR_NUM, NULL, "0", 0, 1e6}

const struct eng_opdef eng_ops[] = {
    {"add", "rr", KRN_ADD, true, {{0}}, "both [n]", "out = a + b", "elementwise", 0},
    {"attend", "rrrs", KRN_ATTEND, false,
     {{"scale", ENG_ATTR_NUM, NULL, NULL, 1e-6, 1e6}, {"window", ENG_ATTR_INT, NULL, "0", 0, 0}, {"softcap", ENG_ATTR_NUM, NULL, "0", 0, 1e6}, {"sinks", ENG_ATTR_WEIGHT, NULL, "null", 0, 0}},
     "q [A][d], k [G][d], v [G][dv] -> [A][dv]; G divides A",
     "k, v are written to the state's page; out = softmax(scale q k^T) v over keys j with i - j < window (0: all); head a reads kv head a // (A/G)",
     "Vaswani et al. 2017; GQA, Ainslie et al. 2023", 2e-6},
    {"attend_mla", "rrrrwws", KRN_ATTEND_MLA, false, {{"scale", ENG_ATTR_NUM, NULL, NULL, 1e-6, 1e6}},
     "qn [A][n], qr [A][r], c [rank], kr [1][r], k_up [A,n,rank], v_up [A,v,rank] -> [A][v]",
     "s_j = scale ((k_up^T qn) . c_j + qr . kr_j), causal; out = v_up (softmax(s) c); the state keeps c and kr of a token once", "DeepSeek-V2, section 2.1", 5e-6},
    {"bank", "", KRN_OP_NONE, false, {{0}}, "-> an empty list register", "the list of pushed registers", "Kimi K3 technical report, block attention residuals", 0},
    {"conv1d", "rwsq", KRN_CONV1D, false, {{0}}, "x [C], w [C, taps] -> [C]",
     "out_t = silu(sum_i w[i] x_(t-taps+1+i)), depthwise and causal; the state keeps the last taps - 1 rows of x", "Kimi Linear, section 3", 2e-6},
    {"decay", "rww", KRN_DECAY, false, {{"kind", ENG_ATTR_WORD, "softplus bounded", "'softplus'", 0, 0}, {"lower", ENG_ATTR_NUM, NULL, "0", -1e3, 0}},
     "x [n], A [heads], dt [n] -> [n]", "softplus: -exp(A) softplus(x + dt); bounded: lower sigmoid(exp(A) (x + dt))", "Kimi Linear; Kimi K3 technical report", 2e-6},
    {"delta", "rrrrrs", KRN_DELTA, false, {{0}}, "q, k, g [h][dk], v [h][dv], beta [h] -> [h][dv]",
     "S = diag(e^g) S; S += beta k (v - S^T k)^T; out = S^T q", "gated delta rule, Yang et al. 2024; Kimi Linear", 1e-5},
    {"embed", "tw", KRN_EMBED, false, {{"scale", ENG_ATTR_NUM, NULL, "1", 1e-6, 1e6}}, "w [vocab, n] -> [n]", "row tok of w, times scale", "table look-up", 0},
    {"experts", "rRwww", KRN_EXPERTS, false,
     {GLU_ATTRS, {"gate_bias", ENG_ATTR_WEIGHT, NULL, "null", 0, 0}, {"up_bias", ENG_ATTR_WEIGHT, NULL, "null", 0, 0}, {"down_bias", ENG_ATTR_WEIGHT, NULL, "null", 0, 0}},
     "h [i], routing, gate [E,f,i], up [E,f,i], down [E,o,f], biases [E,f], [E,f], [E,o] -> [o]",
     "sum over the chosen e, by number, of weight_e down_e(act(gate_e h, up_e h)); no other expert is read", "Shazeer et al. 2017; activation as glu", 5e-6},
    {"flatten", "r", KRN_OP_NONE, false, {{0}}, "[h][d] -> [h d]", "the same values as one row", "view", 0},
    {"glu", "rr", KRN_GLU, true, {GLU_ATTRS}, "both [n]", "out = act(g) * u; situ and clamp_swiglu also shape u", "Shazeer 2020; spec of each activation in kernels/op.h", 2e-6},
    {"heads", "rn", KRN_OP_NONE, false, {{0}}, "[n] -> [n/d][d]", "the same values as heads of width d", "view", 0},
    {"l2norm", "r", KRN_L2NORM, true, {{"eps", ENG_ATTR_NUM, NULL, "0.000001", 0, 1}}, "[h][d]", "x / sqrt(sum x^2 + eps) over each head", "Kimi Linear", 1e-6},
    {"linear", "rw", KRN_LINEAR, false, {{0}}, "x [i], w [o, i] -> [o]", "out = x w^T (+ bias where the tensor has one)", "matrix product", 1e-6},
    {"mix", "Brw?w", KRN_MIX, false, {{"eps", ENG_ATTR_NUM, NULL, "0.00001", 0, 1}}, "list of [n], x [n], norm [n], proj [1, n] -> [n]",
     "softmax over list and x of proj . rmsnorm(entry; norm), then the weighted sum of entries; an empty list gives x", "Kimi K3 technical report", 5e-6},
    {"mul", "rr", KRN_MUL, true, {{0}}, "both [n]", "out = a * b", "elementwise", 0},
    {"pick", "r", KRN_PICK, false, {{0}}, "[n] a token -> [n] a picked row", "keeps the rows whose logits are wanted", "gather", 0},
    {"push", "Br", KRN_COPY, false, {{0}}, "list, [n] -> list", "appends x to the list", "Kimi K3 technical report", 0},
    {"rmsnorm", "rw?", KRN_RMSNORM, true, {{"eps", ENG_ATTR_NUM, NULL, NULL, 0, 1}, {"offset", ENG_ATTR_NUM, NULL, "0", 0, 0}},
     "[h][d], w [d]", "x / sqrt(mean x^2 + eps) * (w + offset) over each head", "Zhang and Sennrich 2019", 1e-6},
    {"rope", "r", KRN_ROPE, true, {{"table", ENG_ATTR_TABLE, NULL, NULL, 0, 0}, {"pairs", ENG_ATTR_WORD, PAIRS, "'halves'", 0, 0}},
     "[h][d], the table's dims <= d", "rotates the first dims of each head by pos * inv_freq; the rest passes", "Su et al. 2021; kinds in docs/sheets.md", 1e-6},
    {"route", "rw", KRN_ROUTE, false,
     {{"kind", ENG_ATTR_WORD, ROUTERS, NULL, 0, 0}, {"k", ENG_ATTR_INT, NULL, NULL, 0, 0}, {"groups", ENG_ATTR_INT, NULL, "1", 0, 0}, {"keep", ENG_ATTR_INT, NULL, "1", 0, 0},
      {"norm", ENG_ATTR_BOOL, NULL, "true", 0, 0}, {"norm_eps", ENG_ATTR_NUM, NULL, "0.00000000000000000001", 0, 1}, {"scale", ENG_ATTR_NUM, NULL, "1", 1e-6, 1e6},
      {"bias", ENG_ATTR_WEIGHT, NULL, "null", 0, 0}},
     "h [i], w [E, i], bias [E] -> routing of k experts",
     "scores of w h (+ bias where the tensor has one), the k best (attribute bias only selects; groups by their two best), weights normalised and scaled; each kind in kernels/route.h",
     "DeepSeek-V3, section 2.1.2; ties: the lowest index", 2e-6},
    {"scale", "rf", KRN_SCALE, true, {{0}}, "[n]", "out = c x", "elementwise", 0},
    {"sigmoid", "r", KRN_SIGMOID, true, {{0}}, "[n]", "1 / (1 + e^-x)", "elementwise", 1e-6},
    {"silu", "r", KRN_SILU, true, {{0}}, "[n]", "x / (1 + e^-x)", "elementwise", 1e-6},
    {"softcap", "rf?", KRN_SOFTCAP, true, {{0}}, "[n]", "c tanh(x / c); c null or 0: x itself", "Gemma 2", 1e-6},
    {"split", "rn*", KRN_OP_NONE, false, {{0}}, "[h][d] -> one register a part, [h][n]", "cuts each head into parts whose sizes sum to d", "view", 0},
};
const size_t eng_n_ops = sizeof eng_ops / sizeof *eng_ops;

const struct eng_opdef *eng_op_find(const char *name, size_t n)
{
    for (size_t i = 0; i < eng_n_ops; i++)
        if (strlen(eng_ops[i].name) == n && !memcmp(eng_ops[i].name, name, n))
            return &eng_ops[i];
    return NULL;
}

const struct eng_opdef *eng_op_of(enum krn_opcode code)
{
    for (size_t i = 0; i < eng_n_ops; i++)
        if (eng_ops[i].code == code)
            return &eng_ops[i];
    return NULL;
}

void eng_op_names(char *out, size_t n)
{
    size_t at = 0;

    if (n)
        out[0] = 0;
    for (size_t i = 0; i < eng_n_ops && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", i ? ", " : "", eng_ops[i].name);
}

int eng_op_word(const char *words, const char *w, size_t n)
{
    int at = 0;

    for (const char *p = words; *p; at++) {
        size_t len = strcspn(p, " ");
        if (len == n && !memcmp(p, w, n))
            return at;
        p += len + (p[len] == ' ');
    }
    return -1;
}

void eng_op_markdown(struct buf *b, const struct eng_opdef *d)
{
    static const char *const kinds[] = {"number", "integer", "true or false", "one of", "rope table", "weight"};

    buf_printf(b, "### %s\n\n%s%s\n\nShapes: %s. Source: %s.\n", d->name, d->formula, d->in_place ? " (in place)" : "", d->shape, d->source);
    for (const struct eng_attr *a = d->attrs; a < d->attrs + ENG_OP_ATTRS && a->name; a++) {
        buf_printf(b, "- `%s`: %s%s%s, %s%s", a->name, kinds[a->kind], a->words ? " " : "", a->words ? a->words : "", a->dflt ? "default " : "required", a->dflt ? a->dflt : "");
        if (a->most > a->least)
            buf_printf(b, ", from %g to %g", a->least, a->most);
        buf_char(b, '\n');
    }
}
