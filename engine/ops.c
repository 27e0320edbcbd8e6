#include "engine/ops.h"

#include <stdio.h>
#include <string.h>

/* In the order of enum krn_act, krn_pairs and krn_router. */
#define ACTS "silu gelu gelu_pytorch_tanh situ clamp_swiglu relu quick_gelu"
#define PAIRS "halves adjacent"
#define ROUTERS "softmax sigmoid topk_softmax"
#define GLU_ATTRS {"act", ENG_ATTR_WORD, ACTS, "'silu'"}, {"alpha", ENG_ATTR_NUM, NULL, "1.702"}, {"limit", ENG_ATTR_NUM, NULL, "7"}, \
                  {"beta", ENG_ATTR_NUM, NULL, "1"}, {"beta_u", ENG_ATTR_NUM, NULL, "0"}

const struct eng_opdef eng_ops[] = {
    {"add", "rr", KRN_ADD, true, {{0}}, "both [n]", "out = a + b", "elementwise"},
    {"attend", "rrrs", KRN_ATTEND, false,
     {{"scale", ENG_ATTR_NUM, NULL, NULL}, {"window", ENG_ATTR_INT, NULL, "0"}, {"softcap", ENG_ATTR_NUM, NULL, "0"}, {"sinks", ENG_ATTR_WEIGHT, NULL, "null"}},
     "q [A][d], k [G][d], v [G][dv] -> [A][dv]; G divides A",
     "k, v are written to the state's page; out = softmax(scale q k^T) v over keys j with i - j < window (0: all); head a reads kv head a // (A/G)",
     "Vaswani et al. 2017; GQA, Ainslie et al. 2023"},
    {"attend_mla", "rrrrwws", KRN_ATTEND_MLA, false, {{"scale", ENG_ATTR_NUM, NULL, NULL}},
     "qn [A][n], qr [A][r], c [rank], kr [1][r], k_up [A,n,rank], v_up [A,v,rank] -> [A][v]",
     "s_j = scale ((k_up^T qn) . c_j + qr . kr_j), causal; out = v_up (softmax(s) c); the state keeps c and kr of a token once", "DeepSeek-V2, section 2.1"},
    {"bank", "", KRN_OP_NONE, false, {{0}}, "-> an empty list register", "the list of pushed registers", "Kimi K3 technical report, block attention residuals"},
    {"conv1d", "rwsq", KRN_CONV1D, false, {{0}}, "x [C], w [C, taps] -> [C]",
     "out_t = silu(sum_i w[i] x_(t-taps+1+i)), depthwise and causal; the state keeps the last taps - 1 rows of x", "Kimi Linear, section 3"},
    {"decay", "rww", KRN_DECAY, false, {{"kind", ENG_ATTR_WORD, "softplus bounded", "'softplus'"}, {"lower", ENG_ATTR_NUM, NULL, "0"}},
     "x [n], A [heads], dt [n] -> [n]", "softplus: -exp(A) softplus(x + dt); bounded: lower sigmoid(exp(A) (x + dt))", "Kimi Linear; Kimi K3 technical report"},
    {"delta", "rrrrrs", KRN_DELTA, false, {{0}}, "q, k, g [h][dk], v [h][dv], beta [h] -> [h][dv]",
     "S = diag(e^g) S; S += beta k (v - S^T k)^T; out = S^T q", "gated delta rule, Yang et al. 2024; Kimi Linear"},
    {"embed", "tw", KRN_EMBED, false, {{"scale", ENG_ATTR_NUM, NULL, "1"}}, "w [vocab, n] -> [n]", "row tok of w, times scale", "table look-up"},
    {"experts", "rRwww", KRN_EXPERTS, false,
     {GLU_ATTRS, {"gate_bias", ENG_ATTR_WEIGHT, NULL, "null"}, {"up_bias", ENG_ATTR_WEIGHT, NULL, "null"}, {"down_bias", ENG_ATTR_WEIGHT, NULL, "null"}},
     "h [i], routing, gate [E,f,i], up [E,f,i], down [E,o,f], biases [E,f], [E,f], [E,o] -> [o]",
     "sum over the chosen e, by number, of weight_e down_e(act(gate_e h, up_e h)); no other expert is read", "Shazeer et al. 2017; activation as glu"},
    {"flatten", "r", KRN_OP_NONE, false, {{0}}, "[h][d] -> [h d]", "the same values as one row", "view"},
    {"glu", "rr", KRN_GLU, true, {GLU_ATTRS}, "both [n]", "out = act(g) * u; situ and clamp_swiglu also shape u", "Shazeer 2020; spec of each activation in kernels/op.h"},
    {"heads", "rn", KRN_OP_NONE, false, {{0}}, "[n] -> [n/d][d]", "the same values as heads of width d", "view"},
    {"l2norm", "r", KRN_L2NORM, true, {{"eps", ENG_ATTR_NUM, NULL, "0.000001"}}, "[h][d]", "x / sqrt(sum x^2 + eps) over each head", "Kimi Linear"},
    {"linear", "rw", KRN_LINEAR, false, {{0}}, "x [i], w [o, i] -> [o]", "out = x w^T (+ bias where the tensor has one)", "matrix product"},
    {"mix", "Brw?w", KRN_MIX, false, {{"eps", ENG_ATTR_NUM, NULL, "0.00001"}}, "list of [n], x [n], norm [n], proj [1, n] -> [n]",
     "softmax over list and x of proj . rmsnorm(entry; norm), then the weighted sum of entries; an empty list gives x", "Kimi K3 technical report"},
    {"mul", "rr", KRN_MUL, true, {{0}}, "both [n]", "out = a * b", "elementwise"},
    {"pick", "r", KRN_PICK, false, {{0}}, "[n] a token -> [n] a picked row", "keeps the rows whose logits are wanted", "gather"},
    {"push", "Br", KRN_COPY, false, {{0}}, "list, [n] -> list", "appends x to the list", "Kimi K3 technical report"},
    {"rmsnorm", "rw?", KRN_RMSNORM, true, {{"eps", ENG_ATTR_NUM, NULL, NULL}, {"offset", ENG_ATTR_NUM, NULL, "0"}},
     "[h][d], w [d]", "x / sqrt(mean x^2 + eps) * (w + offset) over each head", "Zhang and Sennrich 2019"},
    {"rope", "r", KRN_ROPE, true, {{"table", ENG_ATTR_TABLE, NULL, NULL}, {"pairs", ENG_ATTR_WORD, PAIRS, "'halves'"}},
     "[h][d], the table's dims <= d", "rotates the first dims of each head by pos * inv_freq; the rest passes", "Su et al. 2021; kinds in docs/sheets.md"},
    {"route", "rw", KRN_ROUTE, false,
     {{"kind", ENG_ATTR_WORD, ROUTERS, NULL}, {"k", ENG_ATTR_INT, NULL, NULL}, {"groups", ENG_ATTR_INT, NULL, "1"}, {"keep", ENG_ATTR_INT, NULL, "1"},
      {"norm", ENG_ATTR_BOOL, NULL, "true"}, {"norm_eps", ENG_ATTR_NUM, NULL, "0.00000000000000000001"}, {"scale", ENG_ATTR_NUM, NULL, "1"},
      {"bias", ENG_ATTR_WEIGHT, NULL, "null"}},
     "h [i], w [E, i], bias [E] -> routing of k experts",
     "scores of w h (+ bias where the tensor has one), the k best (attribute bias only selects; groups by their two best), weights normalised and scaled; each kind in kernels/route.h",
     "DeepSeek-V3, section 2.1.2; ties: the lowest index"},
    {"scale", "rf", KRN_SCALE, true, {{0}}, "[n]", "out = c x", "elementwise"},
    {"sigmoid", "r", KRN_SIGMOID, true, {{0}}, "[n]", "1 / (1 + e^-x)", "elementwise"},
    {"silu", "r", KRN_SILU, true, {{0}}, "[n]", "x / (1 + e^-x)", "elementwise"},
    {"softcap", "rf?", KRN_SOFTCAP, true, {{0}}, "[n]", "c tanh(x / c); c null or 0: x itself", "Gemma 2"},
    {"split", "rn*", KRN_OP_NONE, false, {{0}}, "[h][d] -> one register a part, [h][n]", "cuts each head into parts whose sizes sum to d", "view"},
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

bool eng_ops_markdown(struct buf *b)
{
    for (size_t i = 0; i < eng_n_ops; i++) {
        const struct eng_opdef *d = &eng_ops[i];
        buf_printf(b, "### %s\n\n%s%s\n\nShapes: %s. Source: %s.\n", d->name, d->formula, d->in_place ? " (in place)" : "", d->shape, d->source);
        for (const struct eng_attr *a = d->attrs; a < d->attrs + ENG_OP_ATTRS && a->name; a++) {
            static const char *const kinds[] = {"number", "integer", "true or false", "one of", "rope table", "weight"};
            buf_printf(b, "- `%s`: %s%s%s, %s%s\n", a->name, kinds[a->kind], a->words ? " " : "", a->words ? a->words : "",
                       a->dflt ? "default " : "required", a->dflt ? a->dflt : "");
        }
        buf_str(b, "\n");
    }
    return !b->failed;
}
