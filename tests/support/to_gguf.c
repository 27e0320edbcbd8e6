/* What changes on the way: names; dims of one axis and norms become F32, gemma's with 1 added; rows of q and k of architecture llama
 * are interleaved within each head; scaling of rope becomes factors as tensors; the rest of the config becomes metadata. */
#include "tests/support/to_gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/catalog.h"
#include "tests/support/make_model.h"

#define MUST(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s failed\n", __FILE__, __LINE__, #x); abort(); } } while (0)
enum { KV_MAX = 64, TENSORS_MAX = 512, TOKENS_MAX = 4096 };

struct conv {
    const char *arch;
    struct arena mem;
    off_catalog *cat;
    const struct json *config;
    bool gemma, llama, kimi, k3, oss;
    struct mm_kv kv[KV_MAX]; size_t n_kv;
    struct mm_tensor t[TENSORS_MAX]; size_t n;
    const char *tokens[TOKENS_MAX], *merges[TOKENS_MAX];
    int32_t types[TOKENS_MAX];
    float scores[TOKENS_MAX];
};

static const char *const names[][2] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
static const char *const block_names[][3] = { /* of a layer; the third: gemma's */
    {"input_layernorm", "attn_norm", "attn_norm"}, {"self_attn.q_proj", "attn_q", "attn_q"}, {"self_attn.k_proj", "attn_k", "attn_k"},
    {"self_attn.v_proj", "attn_v", "attn_v"}, {"self_attn.o_proj", "attn_output", "attn_output"}, {"self_attn.qkv_proj", "attn_qkv", "attn_qkv"},
    {"self_attn.q_norm", "attn_q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm", "post_attention_norm"}, {"pre_feedforward_layernorm", "ffn_norm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm", "post_ffw_norm"}, {"post_self_attn_layernorm", "post_attention_norm", ""}, {"post_mlp_layernorm", "post_ffw_norm", ""}, {"mlp.gate_proj", "ffn_gate", "ffn_gate"}, {"mlp.up_proj", "ffn_up", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up", "ffn_up"}, {"mlp.down_proj", "ffn_down", "ffn_down"},
    /* latent attention, experts, KDA */
    {"self_attn.q_a_proj", "attn_q_a", ""}, {"self_attn.q_a_layernorm", "attn_q_a_norm", ""}, {"self_attn.q_b_proj", "attn_q_b", ""},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", ""}, {"self_attn.kv_a_layernorm", "attn_kv_a_norm", ""}, {"mlp.gate", "ffn_gate_inp", ""},
    {"block_sparse_moe.gate", "ffn_gate_inp", ""}, {"mlp.shared_experts.gate_proj", "ffn_gate_shexp", ""}, {"mlp.shared_experts.up_proj", "ffn_up_shexp", ""},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp", ""}, {"block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp", ""},
    {"block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp", ""}, {"block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp", ""},
    {"block_sparse_moe.gate_proj", "ffn_gate", ""}, {"block_sparse_moe.up_proj", "ffn_up", ""}, {"block_sparse_moe.down_proj", "ffn_down", ""},
    {"self_attn.q_conv1d", "ssm_conv1d_q", ""}, {"self_attn.k_conv1d", "ssm_conv1d_k", ""}, {"self_attn.v_conv1d", "ssm_conv1d_v", ""},
    {"self_attn.f_a_proj", "ssm_f_a", ""}, {"self_attn.f_b_proj", "ssm_f_b", ""}, {"self_attn.b_proj", "ssm_beta", ""}, {"self_attn.g_a_proj", "ssm_g_a", ""},
    {"self_attn.g_b_proj", "ssm_g_b", ""}, {"self_attn.o_norm", "ssm_norm", ""},
    /* gpt-oss, Kimi K3 */
    {"self_attn.sinks", "attn_sinks", ""}, {"mlp.router", "ffn_gate_inp", ""}, {"block_sparse_moe.routed_expert_down_proj", "ffn_routed_down", ""},
    {"block_sparse_moe.routed_expert_norm", "ffn_routed_norm", ""}, {"block_sparse_moe.routed_expert_up_proj", "ffn_routed_up", ""}};

enum { POST_ATTENTION = 8 }; /* of block_names: gpt-oss calls the norm before its experts so */

static double num(const struct conv *c, const char *key, double dflt)
{
    double v;
    return json_num(json_path(c->config, key), &v) ? v : dflt;
}

static void kv(struct conv *c, struct mm_kv v, bool of_arch)
{
    MUST(c->n_kv < KV_MAX);
    if (of_arch)
        v.key = arena_printf(&c->mem, "%s.%s", c->arch, v.key);
    c->kv[c->n_kv++] = v;
}
static void kv_u32(struct conv *c, const char *key, double v) { kv(c, (struct mm_kv)MM_KV_U32(key, (int64_t)v), true); }
static void kv_f32(struct conv *c, const char *key, double v) { kv(c, (struct mm_kv)MM_KV_F32(key, v), true); }

static char *new_name(struct conv *c, const char *name)
{
    const char *rest = name, *dot;
    if (!strncmp(name, "language_model.", strlen("language_model.")))
        rest = name += strlen("language_model.");
    dot = strrchr(name, '.');
    if (!strcmp(name + strlen(name) - strlen(".sinks"), ".sinks")) /* a name without a suffix gets one */
        name = rest = arena_printf(&c->mem, "%s.weight", name), dot = strrchr(name, '.');
    int n = dot ? (int)(dot - name) : 0;
    unsigned layer;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((int)strlen(names[i][0]) == n && !strncmp(name, names[i][0], (size_t)n))
            return arena_printf(&c->mem, "%s%s", names[i][1], dot);
    MUST(sscanf(name, "model.layers.%u.", &layer) == 1);
    for (int k = 0; k < 3; k++)
        rest = strchr(rest, '.') + 1;
    for (size_t i = 0; i < sizeof block_names / sizeof *block_names; i++)
        if ((long)strlen(block_names[i][0]) == dot - rest && !strncmp(rest, block_names[i][0], (size_t)(dot - rest)))
            return arena_printf(&c->mem, "blk.%u.%s%s", layer, c->oss && i == POST_ATTENTION ? "post_attention_norm" : block_names[i][c->gemma ? 2 : 1], dot);
    MUST(!"a name of the table");
    return NULL;
}

/* Row 2j of a head becomes row j, row 2j + 1 becomes row j + d/2: llama's pairs lie side by side. */
static void interleave(uint8_t *p, uint64_t rows, uint64_t heads, uint64_t row_bytes)
{
    uint64_t d = rows / heads;
    uint8_t *old = malloc(rows * row_bytes);
    MUST(old);
    memcpy(old, p, rows * row_bytes);
    for (uint64_t h = 0; h < heads; h++)
        for (uint64_t j = 0; j < d; j++)
            memcpy(p + (h * d + j) * row_bytes, old + (h * d + j / 2 + (j % 2) * d / 2) * row_bytes, row_bytes);
    free(old);
}

static void add_f32(struct conv *c, const char *name, const float *v, uint64_t n)
{
    MUST(c->n < TENSORS_MAX);
    c->t[c->n++] = (struct mm_tensor){.name = name, .type = KRN_F32, .n_dims = 1, .dims = {n}, .data = v};
}

static uint8_t *bytes_of(struct conv *c, const struct off_tensor *t)
{
    uint8_t *p = arena_alloc(&c->mem, t->bytes);
    MUST(p && pread(off_catalog_file(c->cat, t->file)->fd, p, t->bytes, (off_t)t->offset) == (ssize_t)t->bytes);
    return p;
}
static void add_stack(struct conv *c, const char *name, uint64_t n, uint64_t rows, uint64_t cols, const void *p)
{
    MUST(c->n < TENSORS_MAX);
    c->t[c->n++] = (struct mm_tensor){.name = name, .type = KRN_BF16, .n_dims = 3, .dims = {n, rows, cols}, .data = p};
}

/* kv_b becomes two stacks: the rows of keys turned around per head, and the rows of values. */
static void split_kv_b(struct conv *c, unsigned layer, const struct off_tensor *t)
{
    uint64_t heads = (uint64_t)num(c, "num_attention_heads", 0), nope = (uint64_t)num(c, "qk_nope_head_dim", 0), vd = (uint64_t)num(c, "v_head_dim", 0), rank = t->dims[1];
    const uint16_t *w = (const uint16_t *)(const void *)bytes_of(c, t);
    uint16_t *k = ARENA_ARRAY(&c->mem, uint16_t, heads * rank * nope), *v = ARENA_ARRAY(&c->mem, uint16_t, heads * vd * rank);
    MUST(k && v && t->dims[0] == heads * (nope + vd));
    for (uint64_t h = 0; h < heads; h++)
        for (uint64_t r = 0; r < rank; r++) {
            for (uint64_t d = 0; d < nope; d++) k[(h * rank + r) * nope + d] = w[(h * (nope + vd) + d) * rank + r];
            for (uint64_t d = 0; d < vd; d++) v[(h * vd + d) * rank + r] = w[(h * (nope + vd) + nope + d) * rank + r];
        }
    add_stack(c, arena_printf(&c->mem, "blk.%u.attn_k_b.weight", layer), heads, rank, nope, k);
    add_stack(c, arena_printf(&c->mem, "blk.%u.attn_v_b.weight", layer), heads, vd, rank, v);
}

/* ---- values and scales of MXFP4 become blocks: the scale byte, then 16 bytes whose low nibbles are elements 0..15 ---- */
static void mx_row(uint8_t *out, const uint8_t *values, const uint8_t *scales, uint64_t blocks)
{
    for (uint64_t b = 0; b < blocks; b++, out += 17, values += 16) {
        uint8_t v[32];
        for (int i = 0; i < 16; i++) {
            v[2 * i] = values[i] & 15;
            v[2 * i + 1] = values[i] >> 4;
        }
        out[0] = scales[b];
        for (int i = 0; i < 16; i++)
            out[1 + i] = (uint8_t)(v[i] | v[i + 16] << 4);
    }
}

static const struct off_tensor *find(struct conv *c, const char *name)
{
    const struct off_tensor *t = off_catalog_find(c->cat, name, strlen(name));
    MUST(t);
    return t;
}

static void add_mx(struct conv *c, const char *name, uint64_t n, uint64_t rows, uint64_t cols, const void *p)
{
    MUST(c->n < TENSORS_MAX);
    c->t[c->n++] = (struct mm_tensor){.name = name, .type = KRN_MXFP4, .n_dims = 3, .dims = {n, rows, cols}, .data = p};
}

/* gpt-oss: "gate_up_proj_blocks" with rows of gate and up in turn, or "down_proj_blocks"; each with its scales and biases. */
static bool oss_experts(struct conv *c, unsigned layer, const char *rest)
{
    static const char *const ours[2][2] = {{"gate", "up"}, {"down", NULL}};
    if (strncmp(rest, "mlp.experts.", strlen("mlp.experts.")))
        return false;
    int k = strstr(rest, "down_proj") != NULL, step = k ? 1 : 2;
    const char *what = k ? "down_proj" : "gate_up_proj";
    if (!strstr(rest, "_blocks"))
        return true; /* comes with the blocks */
    const struct off_tensor *v = find(c, arena_printf(&c->mem, "model.layers.%u.mlp.experts.%s_blocks", layer, what)), *s = find(c, arena_printf(&c->mem, "model.layers.%u.mlp.experts.%s_scales", layer, what));
    const struct off_tensor *b = find(c, arena_printf(&c->mem, "model.layers.%u.mlp.experts.%s_bias", layer, what));
    uint64_t n = v->dims[0], rows = v->dims[1] / (uint64_t)step, blocks = v->dims[2];
    const uint8_t *values = bytes_of(c, v), *scales = bytes_of(c, s), *bias = bytes_of(c, b);
    for (int part = 0; part < step; part++) {
        uint8_t *out = arena_alloc(&c->mem, n * rows * blocks * 17);
        float *f = ARENA_ARRAY(&c->mem, float, n * rows);
        MUST(out && f && krn_types[b->type].block == 1);
        for (uint64_t r = 0; r < n * rows; r++) {
            uint64_t from = r * (uint64_t)step + (uint64_t)part;
            mx_row(out + r * blocks * 17, values + from * blocks * 16, scales + from * blocks, blocks);
            MUST(krn_expand(b->type, bias + from * krn_row_bytes(b->type, 1), 1, f + r));
        }
        add_mx(c, arena_printf(&c->mem, "blk.%u.ffn_%s_exps.weight", layer, ours[k][part]), n, rows, blocks * 32, out);
        MUST(c->n < TENSORS_MAX);
        c->t[c->n++] = (struct mm_tensor){.name = arena_printf(&c->mem, "blk.%u.ffn_%s_exps.bias", layer, ours[k][part]), .type = KRN_F32, .n_dims = 2, .dims = {n, rows}, .data = f};
    }
    return true;
}

/* Kimi K3: experts apart, values and scales apart. */
static bool k3_experts(struct conv *c, unsigned layer, const char *rest)
{
    static const char *const parts[][2] = {{"w1", "gate"}, {"w3", "up"}, {"w2", "down"}};
    unsigned e;
    char part[8];
    if (sscanf(rest, "block_sparse_moe.experts.%u.%7[^.].weight", &e, part) != 2)
        return false;
    for (int i = 0; i < 3 && e == 0 && strstr(rest, "_packed"); i++) {
        uint64_t n = (uint64_t)num(c, "num_experts", 0), rows = 0, blocks = 0;
        uint8_t *all = NULL;
        if (strcmp(part, parts[i][0]))
            continue;
        for (uint64_t x = 0; x < n; x++) {
            const char *at = arena_printf(&c->mem, "language_model.model.layers.%u.block_sparse_moe.experts.%u.%s", layer, (unsigned)x, part);
            const struct off_tensor *v = find(c, arena_printf(&c->mem, "%s.weight_packed", at)), *s = find(c, arena_printf(&c->mem, "%s.weight_scale", at));
            rows = v->dims[0];
            blocks = v->dims[1] / 16;
            if (!all)
                MUST((all = arena_alloc(&c->mem, n * rows * blocks * 17)));
            const uint8_t *values = bytes_of(c, v), *scales = bytes_of(c, s);
            for (uint64_t r = 0; r < rows; r++)
                mx_row(all + (x * rows + r) * blocks * 17, values + r * blocks * 16, scales + r * blocks, blocks);
        }
        add_mx(c, arena_printf(&c->mem, "blk.%u.ffn_%s_exps.weight", layer, parts[i][1]), n, rows, blocks * 32, all);
    }
    return true;
}

static const float *floats_of(struct conv *c, const struct off_tensor *t, uint64_t *n)
{
    *n = t->bytes / krn_row_bytes(t->type, 1);
    float *v = ARENA_ARRAY(&c->mem, float, *n);
    MUST(v && krn_expand(t->type, bytes_of(c, t), *n, v));
    return v;
}

/* Kimi K3: the score of a residual is norm times projection; gates by the kind of their layer; A without its padding. */
static bool k3_special(struct conv *c, const char *name)
{
    static const char *const res[][2] = {{"self_attention_res", "attn_res_score"}, {"mlp_res", "ffn_res_score"}, {"output_attn_res", "output_res_score"}};
    unsigned layer = 0;
    int at = 0;
    uint64_t n, m;
    if (!strncmp(name, "vision_tower.", 13) || !strncmp(name, "mm_projector.", 13))
        return true;
    const char *base = name + strlen("language_model.model."), *rest = base;
    if (strlen(name) > strlen("language_model.model.") && sscanf(base, "layers.%u.%n", &layer, &at) == 1)
        rest = base + at;
    for (int i = 0; i < 3; i++) {
        if (strncmp(rest, res[i][0], strlen(res[i][0])))
            continue;
        if (strstr(rest, "_norm"))
            return true; /* comes with the projection */
        const char *stem = arena_printf(&c->mem, "%.*s", (int)(strlen(name) - strlen("_proj.weight")), name);
        const float *norm = floats_of(c, find(c, arena_printf(&c->mem, "%s_norm.weight", stem)), &n), *proj = floats_of(c, find(c, name), &m);
        float *v = ARENA_ARRAY(&c->mem, float, n);
        MUST(v && n == m);
        for (uint64_t k = 0; k < n; k++) v[k] = norm[k] * proj[k];
        add_f32(c, at ? arena_printf(&c->mem, "blk.%u.%s.weight", layer, res[i][1]) : arena_printf(&c->mem, "%s.weight", res[i][1]), v, n);
        return true;
    }
    if (at && !strcmp(rest, "self_attn.g_proj.weight")) {
        const struct off_tensor *t = find(c, name);
        bool kda = off_catalog_find(c->cat, arena_printf(&c->mem, "language_model.model.layers.%u.self_attn.A_log", layer), strlen(name) - strlen("g_proj.weight") + strlen("A_log")) != NULL;
        MUST(c->n < TENSORS_MAX);
        c->t[c->n++] = (struct mm_tensor){.name = arena_printf(&c->mem, "blk.%u.%s.weight", layer, kda ? "ssm_g" : "attn_gate"), .type = t->type, .n_dims = 2, .dims = {t->dims[0], t->dims[1]}, .data = bytes_of(c, t)};
        return true;
    }
    return at && k3_experts(c, layer, rest);
}

/* The first expert's matrix of a layer brings all of them. */
static bool stack_experts(struct conv *c, unsigned layer, const char *rest)
{
    static const char *const parts[][2] = {{"gate_proj", "gate"}, {"up_proj", "up"}, {"down_proj", "down"}, {"w1", "gate"}, {"w3", "up"}, {"w2", "down"}};
    unsigned e;
    char block[32], part[32], name[128];
    if (sscanf(rest, "%31[^.].experts.%u.%31[^.].weight", block, &e, part) != 3)
        return false;
    for (int i = 0; i < 6 && e == 0; i++) {
        uint64_t n = (uint64_t)num(c, "n_routed_experts", num(c, "num_experts", 0)), one = 0;
        uint8_t *all = NULL;
        const struct off_tensor *t = NULL;
        if (strcmp(part, parts[i][0]))
            continue;
        for (uint64_t x = 0; x < n; x++) {
            int len = snprintf(name, sizeof name, "model.layers.%u.%s.experts.%u.%s.weight", layer, block, (unsigned)x, part);
            MUST((t = off_catalog_find(c->cat, name, (size_t)len)) && t->type == KRN_BF16);
            one = t->bytes;
            if (!all)
                MUST((all = arena_alloc(&c->mem, n * one)));
            memcpy(all + x * one, bytes_of(c, t), one);
        }
        add_stack(c, arena_printf(&c->mem, "blk.%u.ffn_%s_exps.weight", layer, parts[i][1]), n, t->dims[0], t->dims[1], all);
    }
    return true;
}

/* Tensors of latent attention, experts and KDA that are not renamed one to one; those of draft layers are left out. */
static bool convert_special(struct conv *c, const struct off_tensor *t)
{
    unsigned layer;
    int at = 0;
    if (c->k3 && k3_special(c, t->name))
        return true;
    if (sscanf(t->name, c->k3 ? "language_model.model.layers.%u.%n" : "model.layers.%u.%n", &layer, &at) != 1)
        return false;
    const char *rest = t->name + at, *tail = strrchr(rest, '.') + 1;
    if (layer >= (unsigned)num(c, "num_hidden_layers", 0) || (c->oss && oss_experts(c, layer, rest)) || (!c->k3 && stack_experts(c, layer, rest)))
        return true;
    if (!strcmp(rest, "self_attn.kv_b_proj.weight")) {
        split_kv_b(c, layer, t);
        return true;
    }
    bool a = !strcmp(tail, "A_log"), conv = strstr(rest, "_conv1d.") != NULL;
    if (!a && !conv && strcmp(tail, "dt_bias") && strcmp(tail, "e_score_correction_bias"))
        return false;
    uint64_t n = t->bytes / (t->type == KRN_F32 ? 4 : 2);
    float *v = ARENA_ARRAY(&c->mem, float, n);
    MUST(v && krn_expand(t->type, bytes_of(c, t), n, v));
    if (a && num(c, "linear_attn_config.num_heads", 0) > 0)
        n = (uint64_t)num(c, "linear_attn_config.num_heads", 0); /* the rest is padding */
    for (uint64_t i = 0; i < n && a; i++) v[i] = -expf(v[i]);
    add_f32(c, arena_printf(&c->mem, a ? "blk.%u.ssm_a" : conv ? "blk.%u.ssm_conv1d_%c.weight" : tail[0] == 'd' ? "blk.%u.ssm_dt.bias" : "blk.%u.exp_probs_b.bias", layer, strstr(rest, "_conv1d.") ? strstr(rest, "_conv1d.")[-1] : 0), v, n);
    if (conv) {
        c->t[c->n - 1].n_dims = 2;
        c->t[c->n - 1].dims[0] = n / t->dims[t->n_dims - 1];
        c->t[c->n - 1].dims[1] = t->dims[t->n_dims - 1];
    }
    return true;
}

static void convert(struct conv *c, const struct off_tensor *t)
{
    if (convert_special(c, t))
        return;
    uint8_t *p = bytes_of(c, t);
    char *name = new_name(c, t->name);
    if (t->type == KRN_F32) { /* vectors only */
        MUST(t->n_dims == 1);
        add_f32(c, name, (const float *)(const void *)p, t->dims[0]);
        return;
    }
    MUST(t->type == KRN_BF16);
    bool q = strstr(name, "attn_q.") != NULL, k = strstr(name, "attn_k.") != NULL;
    if (c->llama && (q || k))
        interleave(p, t->dims[0], (uint64_t)num(c, q ? "num_attention_heads" : "num_key_value_heads", 1), t->bytes / t->dims[0]);
    if (t->n_dims == 1) {
        float *v = ARENA_ARRAY(&c->mem, float, t->dims[0]);
        for (uint64_t i = 0; i < t->dims[0]; i++) {
            uint32_t bits = (uint32_t)(p[2 * i] | p[2 * i + 1] << 8) << 16;
            memcpy(&v[i], &bits, 4);
            v[i] += c->gemma ? 1.0f : 0.0f;
        }
        add_f32(c, name, v, t->dims[0]);
        return;
    }
    MUST(c->n < TENSORS_MAX);
    c->t[c->n++] = (struct mm_tensor){.name = name, .type = t->type, .n_dims = t->n_dims, .dims = {t->dims[0], t->dims[1]}, .data = p};
}

/* llama3 scaling is told by a tensor alone; longrope by two and a magnitude; linear by metadata. */
static void rope(struct conv *c, uint32_t d)
{
    const struct json *s = json_get(c->config, "rope_scaling");
    const char *kind = json_str(json_get(s, "rope_type")) ? json_str(json_get(s, "rope_type")) : json_str(json_get(s, "type"));
    double theta = num(c, "rope_theta", 10000), orig = num(c, "original_max_position_embeddings", num(c, "rope_scaling.original_max_position_embeddings", 0));
    double ctx = num(c, "max_position_embeddings", 0), factor = num(c, "rope_scaling.factor", ctx / orig);
    kv_f32(c, "rope.freq_base", theta);
    kv_u32(c, "rope.dimension_count", d);
    if (!kind)
        return;
    if (!strcmp(kind, "linear")) {
        kv(c, (struct mm_kv)MM_KV_STR("rope.scaling.type", "linear"), true);
        kv_f32(c, "rope.scaling.factor", factor);
    } else if (!strcmp(kind, "yarn")) {
        kv(c, (struct mm_kv)MM_KV_STR("rope.scaling.type", "yarn"), true);
        kv_f32(c, "rope.scaling.factor", factor);
        kv_u32(c, "rope.scaling.original_context_length", orig);
    } else if (!strcmp(kind, "llama3")) {
        float *v = ARENA_ARRAY(&c->mem, float, d / 2);
        double low = num(c, "rope_scaling.low_freq_factor", 1), high = num(c, "rope_scaling.high_freq_factor", 4);
        for (uint32_t j = 0; j < d / 2; j++) {
            double wave = 2 * M_PI * pow(theta, 2.0 * j / d), s01 = (orig / wave - low) / (high - low);
            v[j] = (float)(wave < orig / high ? 1 : wave > orig / low ? factor : 1 / ((1 - s01) / factor + s01));
        }
        add_f32(c, "rope_freqs.weight", v, d / 2);
    } else {
        static const char *const lists[][2] = {{"rope_scaling.long_factor", "rope_factors_long.weight"}, {"rope_scaling.short_factor", "rope_factors_short.weight"}};
        MUST(!strcmp(kind, "longrope"));
        for (int k = 0; k < 2; k++) {
            const struct json *l = json_path(c->config, lists[k][0]);
            float *v = ARENA_ARRAY(&c->mem, float, d / 2);
            double x;
            for (uint32_t j = 0; j < d / 2; j++) {
                MUST(json_num(l->items[j], &x));
                v[j] = (float)x;
            }
            add_f32(c, lists[k][1], v, d / 2);
        }
        kv_f32(c, "rope.scaling.attn_factor", sqrt(1 + log(ctx / orig) / log(orig)));
        kv_u32(c, "rope.scaling.original_context_length", orig);
    }
}

/* deepseek2 and kimi-linear. */
static void latent_metadata(struct conv *c)
{
    double rank = num(c, "kv_lora_rank", 0), rd = num(c, "qk_rope_head_dim", 0), yarn = num(c, "rope_scaling.factor", 0);
    kv_u32(c, "attention.key_length", rank + rd);
    kv_u32(c, "attention.value_length", rank);
    kv_u32(c, "attention.key_length_mla", num(c, "qk_nope_head_dim", 0) + rd);
    kv_u32(c, "attention.value_length_mla", num(c, "v_head_dim", 0));
    kv_u32(c, "attention.kv_lora_rank", rank);
    if (num(c, "q_lora_rank", 0) > 0)
        kv_u32(c, "attention.q_lora_rank", num(c, "q_lora_rank", 0));
    kv_u32(c, "rope.dimension_count", rd);
    kv_u32(c, "leading_dense_block_count", num(c, "first_k_dense_replace", 0));
    kv_u32(c, "expert_count", num(c, "n_routed_experts", num(c, "num_experts", 0)));
    kv_u32(c, "expert_used_count", num(c, "num_experts_per_tok", num(c, "num_experts_per_token", 0)));
    kv_u32(c, "expert_shared_count", num(c, "n_shared_experts", num(c, "num_shared_experts", 0)));
    kv_u32(c, "expert_feed_forward_length", num(c, "moe_intermediate_size", 0));
    kv(c, (struct mm_kv)MM_KV_BOOL("expert_weights_norm", 1), true);
    kv_f32(c, "expert_weights_scale", num(c, "routed_scaling_factor", 1));
    kv_u32(c, "expert_gating_func", 2);
    kv_u32(c, "expert_group_count", num(c, "n_group", 1));
    kv_u32(c, "expert_group_used_count", num(c, "topk_group", 1));
    if (c->kimi) {
        const struct json *list = json_path(c->config, "linear_attn_config.kda_layers");
        int32_t *kvh = ARENA_ARRAY(&c->mem, int32_t, 128);
        size_t n = (size_t)num(c, "num_hidden_layers", 0);
        for (size_t i = 0; i < n; i++) kvh[i] = (int32_t)num(c, "num_attention_heads", 0);
        for (size_t i = 0; i < list->n; i++) {
            int64_t at = 0;
            MUST(json_int(list->items[i], &at) && at >= 1 && (size_t)at <= n);
            kvh[at - 1] = 0;
        }
        kv(c, (struct mm_kv){.key = "attention.head_count_kv", .type = MM_ARR, .elem = MM_I32, .n = n, .ints = kvh}, true);
        kv_u32(c, "kda.head_dim", num(c, "linear_attn_config.head_dim", 0));
        kv_u32(c, "ssm.conv_kernel", num(c, "linear_attn_config.short_conv_kernel_size", 4));
        if (c->k3) {
            kv_f32(c, "kda.gate_lower_bound", num(c, "linear_attn_config.gate_lower_bound", 0));
            kv_f32(c, "activation.situ_beta", num(c, "activation_situ_beta", 0));
            kv_f32(c, "activation.situ_linear_beta", num(c, "activation_situ_linear_beta", 0));
            kv_u32(c, "attn_res.block_size", num(c, "attn_res_block_size", 0));
            kv_u32(c, "expert_latent_length", num(c, "routed_expert_hidden_size", 0));
        }
        return;
    }
    kv_u32(c, "attention.head_count_kv", 1);
    kv_f32(c, "rope.freq_base", num(c, "rope_theta", 10000));
    if (yarn > 0) {
        kv(c, (struct mm_kv)MM_KV_STR("rope.scaling.type", "yarn"), true);
        kv_f32(c, "rope.scaling.factor", yarn);
        kv_u32(c, "rope.scaling.original_context_length", num(c, "rope_scaling.original_max_position_embeddings", 0));
        kv_f32(c, "rope.scaling.yarn_log_multiplier", 0.1 * num(c, "rope_scaling.mscale_all_dim", 0));
    }
}

static void metadata(struct conv *c)
{
    double heads = num(c, "num_attention_heads", 0), hidden = num(c, "hidden_size", 0), d = num(c, "head_dim", hidden / heads);
    kv(c, (struct mm_kv)MM_KV_STR("general.architecture", c->arch), false);
    kv_u32(c, "embedding_length", hidden);
    kv_u32(c, "block_count", num(c, "num_hidden_layers", 0));
    kv_u32(c, "feed_forward_length", num(c, "intermediate_size", 0));
    kv_u32(c, "attention.head_count", heads);
    kv_u32(c, "context_length", num(c, "max_position_embeddings", num(c, "model_max_length", 0)));
    kv_f32(c, "attention.layer_norm_rms_epsilon", num(c, "rms_norm_eps", 0));
    if (num(c, "kv_lora_rank", 0) > 0) {
        latent_metadata(c);
        return;
    }
    kv_u32(c, "attention.head_count_kv", num(c, "num_key_value_heads", heads));
    kv_u32(c, "attention.key_length", d);
    kv_u32(c, "attention.value_length", d);
    if (c->gemma) {
        kv_f32(c, "rope.freq_base_swa", num(c, "rope_local_base_freq", 10000));
        kv_u32(c, "attention.sliding_window_pattern", num(c, "sliding_window_pattern", 6));
    }
    if (c->gemma || !strcmp(c->arch, "phi3"))
        kv_u32(c, "attention.sliding_window", num(c, "sliding_window", 0));
    if (num(c, "moe_intermediate_size", 0) > 0 || c->oss) {
        kv_u32(c, "expert_count", num(c, "num_experts", num(c, "num_local_experts", 0)));
        kv_u32(c, "expert_used_count", num(c, "num_experts_per_tok", 0));
        kv_u32(c, "expert_feed_forward_length", num(c, c->oss ? "intermediate_size" : "moe_intermediate_size", 0));
    }
    if (c->oss)
        kv_u32(c, "attention.sliding_window", num(c, "sliding_window", 0));
    rope(c, (uint32_t)(d * num(c, "partial_rotary_factor", 1)));
}

static const char *merge_text(struct conv *c, const struct json *m)
{
    return m->type == JSON_ARRAY ? arena_printf(&c->mem, "%s %s", json_str(m->items[0]), json_str(m->items[1])) : json_str(m);
}

static const char *pre_of(const struct conv *c, const struct json *tok)
{
    const struct json *first = json_path(tok, "pre_tokenizer.pretokenizers");
    bool digits = first && json_eq(json_path(first->items[0], "pattern.Regex"), "\\p{N}"); /* SmolLM2's: each digit alone */
    return !strncmp(c->arch, "qwen", 4) || !strcmp(c->arch, "glm4") /* the fixture has Qwen's words */ ? "qwen2" : digits ? "smollm" : "llama-bpe";
}

/* Merges by rank for byte-level vocabularies; SentencePiece's pieces get the rank of the merge that makes them as score. */
static void vocabulary(struct conv *c, const struct json *tok)
{
    const struct json *vocab = json_path(tok, "model.vocab"), *merges = json_path(tok, "model.merges"), *added = json_get(tok, "added_tokens");
    size_t rows = (size_t)num(c, "vocab_size", 0);
    int64_t id;
    MUST(rows <= TOKENS_MAX && merges->n <= TOKENS_MAX);
    for (size_t i = 0; i < rows; i++) {
        c->tokens[i] = arena_printf(&c->mem, "[PAD%zu]", i);
        c->types[i] = 5;
    }
    for (size_t i = 0; i < vocab->n; i++) {
        const char *s = vocab->members[i].key;
        MUST(json_int(vocab->members[i].value, &id) && (size_t)id < rows);
        c->tokens[id] = s;
        c->types[id] = c->gemma && strlen(s) == 6 && !strncmp(s, "<0x", 3) ? 6 : 1;
        c->scores[id] = -1e6f;
    }
    for (size_t i = 0; i < merges->n; i++) {
        const char *text = c->merges[i] = merge_text(c, merges->items[i]), *gap = strchr(text, ' ');
        const char *whole = arena_printf(&c->mem, "%.*s%s", (int)(gap - text), text, gap + 1);
        if (json_int(json_get(vocab, whole), &id))
            c->scores[id] = -(float)i;
    }
    for (size_t i = 0; i < added->n; i++) {
        const struct json *special = json_get(added->items[i], "special");
        MUST(json_int(json_get(added->items[i], "id"), &id) && (size_t)id < rows);
        c->tokens[id] = json_str(json_get(added->items[i], "content"));
        c->types[id] = special && special->b ? 3 : 4;
    }
    kv(c, (struct mm_kv)MM_KV_STR("tokenizer.ggml.model", c->gemma ? "llama" : "gpt2"), false);
    if (!c->gemma) {
        kv(c, (struct mm_kv)MM_KV_STR("tokenizer.ggml.pre", pre_of(c, tok)), false);
        kv(c, (struct mm_kv){.key = "tokenizer.ggml.merges", .type = MM_ARR, .elem = MM_STR, .n = merges->n, .strs = c->merges}, false);
    } else {
        kv(c, (struct mm_kv){.key = "tokenizer.ggml.scores", .type = MM_ARR, .elem = MM_F32, .n = rows, .floats = c->scores}, false);
        kv(c, (struct mm_kv)MM_KV_BOOL("tokenizer.ggml.add_space_prefix", 0), false);
        if (json_int(json_get(vocab, "<unk>"), &id))
            kv(c, (struct mm_kv)MM_KV_U32("tokenizer.ggml.unknown_token_id", id), false);
    }
    kv(c, (struct mm_kv){.key = "tokenizer.ggml.tokens", .type = MM_ARR, .elem = MM_STR, .n = rows, .strs = c->tokens}, false);
    kv(c, (struct mm_kv){.key = "tokenizer.ggml.token_type", .type = MM_ARR, .elem = MM_I32, .n = rows, .ints = c->types}, false);
    kv(c, (struct mm_kv)MM_KV_U32("tokenizer.ggml.bos_token_id", (int64_t)num(c, "bos_token_id", 0)), false);
    if (json_int(json_get(c->config, "eos_token_id"), &id))
        kv(c, (struct mm_kv)MM_KV_U32("tokenizer.ggml.eos_token_id", id), false);
}

static void write_files(struct conv *c, const char *out_dir, unsigned files)
{
    if (files == 1) {
        mm_gguf(mm_path(out_dir, "m.gguf"), c->kv, c->n_kv, c->t, c->n);
        return;
    }
    size_t own = c->n_kv;
    for (unsigned f = 0; f < files; f++) { /* the metadata is in the first one only */
        struct mm_kv split[] = {{.key = "split.no", .type = MM_U16, .i = f}, {.key = "split.count", .type = MM_U16, .i = files},
                                {.key = "split.tensors.count", .type = MM_I32, .i = (int64_t)c->n}};
        struct mm_kv all[KV_MAX + 3];
        char name[64];
        size_t from = c->n * f / files, to = c->n * (f + 1) / files, n_kv = f ? 0 : own;
        memcpy(all, c->kv, n_kv * sizeof *all);
        memcpy(all + n_kv, split, sizeof split);
        snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", f + 1, files);
        mm_gguf(mm_path(out_dir, name), all, n_kv + 3, c->t + from, to - from);
    }
}

void mm_to_gguf(const char *dir, const char *arch, const char *out_dir, unsigned files)
{
    struct conv *c = calloc(1, sizeof *c);
    struct err e = {0};
    struct json *tok;
    MUST(c);
    c->arch = arch;
    c->gemma = !strcmp(arch, "gemma3");
    c->llama = !strcmp(arch, "llama");
    c->kimi = !strncmp(arch, "kimi", 4);
    arena_init(&c->mem, 64u << 20);
    MUST(!off_catalog_open(&c->cat, dir, 0, &e));
    c->k3 = !strcmp(arch, "kimi-k3");
    c->oss = !strcmp(arch, "gpt-oss");
    c->config = json_get(off_catalog_config(c->cat), "text_config");
    c->config = c->config ? c->config : off_catalog_config(c->cat);
    const char *words = mm_path(dir, "tokenizer.json");
    if (access(words, R_OK)) /* only ranks there: any tokenizer does, its rows are filled up */
        words = "tests/data/models/kimi_linear/tokenizer.json";
    MUST(!json_parse_file(&tok, words, 1u << 20, &c->mem, &e));
    metadata(c);
    vocabulary(c, tok);
    for (size_t i = 0; i < off_catalog_count(c->cat); i++)
        convert(c, off_catalog_at(c->cat, i));
    write_files(c, out_dir, files);
    off_catalog_close(c->cat);
    arena_free(&c->mem);
    free(c);
}
