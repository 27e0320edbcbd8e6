/* The llama sheet on made-up files of both kinds: calls, segments, records, groups, tables; both spellings of a config; what is
 * refused and how. The other families on the fixtures beside the repository, where they are. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/check.h"
#include "engine/ops.h"
#include "engine/sheet.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_llama.h"

static struct err e;
#define LAYERS 2

static const char older[] =
    "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":48,"
    "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
    "\"original_max_position_embeddings\":64,\"rope_type\":\"llama3\"},\"hidden_act\":\"silu\",\"attention_bias\":false,\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";
static const char newer[] =
    "{\"model_type\":\"llama\",\"hidden_size\":32,\"head_dim\":8,\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":48,"
    "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,\"rope_parameters\":{\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64,"
    "\"rope_type\":\"llama3\",\"rope_theta\":500000.0},\"hidden_act\":\"silu\",\"attention_bias\":false,\"mlp_bias\":false,\"tie_word_embeddings\":false,\"dtype\":\"bfloat16\"}";

static const struct mm_tensor *tensors(size_t *n, bool head)
{
    static const struct { const char *name; uint64_t r, c; } layer[] = {
        {"input_layernorm.weight", 32, 0}, {"post_attention_layernorm.weight", 32, 0}, {"self_attn.q_proj.weight", 32, 32}, {"self_attn.k_proj.weight", 16, 32},
        {"self_attn.v_proj.weight", 16, 32}, {"self_attn.o_proj.weight", 32, 32}, {"mlp.gate_proj.weight", 64, 32}, {"mlp.up_proj.weight", 64, 32}, {"mlp.down_proj.weight", 32, 64}};
    static struct mm_tensor t[64];
    static char names[64][80];
    *n = 0;
    t[(*n)++] = (struct mm_tensor){"model.embed_tokens.weight", KRN_BF16, 2, {48, 32}, NULL};
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            snprintf(names[*n], sizeof names[*n], "model.layers.%d.%s", l, layer[i].name);
            t[*n] = (struct mm_tensor){names[*n], KRN_BF16, layer[i].c ? 2 : 1, {layer[i].r, layer[i].c}, NULL};
            ++*n;
        }
    t[(*n)++] = (struct mm_tensor){"model.norm.weight", KRN_BF16, 1, {32}, NULL};
    if (head)
        t[(*n)++] = (struct mm_tensor){"lm_head.weight", KRN_BF16, 2, {48, 32}, NULL};
    return t;
}

static off_catalog *open_hf(char *dir, const char *config, const struct mm_tensor *t, size_t n)
{
    off_catalog *c;
    mm_text(dir, "config.json", config);
    mm_safetensors(mm_path(dir, "model.safetensors"), t, n);
    OK(off_catalog_open(&c, dir, 0, &e));
    return c;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void check_ropes(const struct eng_plan *p)
{
    ck_assert_uint_eq(p->n_ropes, 1);
    ck_assert_uint_eq(p->ropes[0].n_freq, 4);
    for (unsigned j = 0; j < 4; j++) { /* llama3 by its definition */
        double f = pow(500000.0, -2.0 * j / 8), wave = 2 * M_PI / f, s = (64 / wave - 1) / (4 - 1), want;
        want = wave < 64.0 / 4 ? f : wave > 64.0 ? f / 8 : (1 - s) * f / 8 + s * f;
        ck_assert_msg(near(p->ropes[0].inv_freq[j], want), "pair %u: %.17g, expected %.17g", j, p->ropes[0].inv_freq[j], want);
    }
}

static void check_calls(const struct eng_plan *p)
{
    static const enum krn_opcode layer[] = {KRN_RMSNORM, KRN_LINEAR, KRN_LINEAR, KRN_LINEAR, KRN_ROPE, KRN_ROPE, KRN_ATTEND, KRN_LINEAR, KRN_ADD,
                                            KRN_RMSNORM, KRN_LINEAR, KRN_LINEAR, KRN_GLU, KRN_LINEAR, KRN_ADD};
    uint32_t i = 0;
    ck_assert_uint_eq(p->n_ops, 1 + LAYERS * 15 + 3);
    ck_assert_int_eq(p->ops[i++].code, KRN_EMBED);
    for (unsigned l = 0; l < LAYERS; l++)
        for (size_t k = 0; k < 15; k++, i++) {
            ck_assert_int_eq(p->ops[i].code, layer[k]);
            ck_assert_uint_eq(p->ops[i].layer, l);
        }
    ck_assert_int_eq(p->ops[i++].code, KRN_PICK);
    ck_assert_int_eq(p->ops[i++].code, KRN_RMSNORM);
    ck_assert_int_eq(p->ops[i++].code, KRN_LINEAR);
    const struct krn_op *att = &p->ops[7], *gate = &p->ops[11];
    ck_assert(att->in[0].heads == 4 && att->in[0].dim == 8 && att->in[1].heads == 2 && att->out.heads == 4 && att->state == 0 && att->state_layer == 0);
    ck_assert(p->ops[7 + 15].state_layer == 1 && fabs((double)att->u.attend.scale - 1 / sqrt(8)) < 1e-7 && att->u.attend.window == 0);
    ck_assert(gate->out.dim == 64 && gate->n_weights == 1 && gate->weight[1] == KRN_NO_WEIGHT);
    ck_assert(p->ops[9].out.base == p->ops[0].out.base); /* x = add(x, a) in place */
    ck_assert(p->ops[5].out.base == p->ops[2].out.base); /* rope in place */
    ck_assert(fabs((double)p->ops[1].u.norm.eps - 1e-5) < 1e-10 && fabs((double)p->ops[1].u.norm.offset) < 1e-10);
    ck_assert_str_eq(p->op_reg[0], "x");
    ck_assert_str_eq(p->op_reg[2], "q");
}

static void check_rest(const struct eng_plan *p, bool tied)
{
    ck_assert_uint_eq(p->n_segments, 4);
    ck_assert_str_eq(p->segments[0].name, "embed");
    ck_assert_str_eq(p->segments[2].name, "layer 1");
    ck_assert_str_eq(p->segments[3].name, "head");
    ck_assert(p->segments[0].layer == KRN_NO_LAYER && p->segments[2].layer == 1 && p->segments[1].op0 == 1 && p->segments[1].n_ops == 15);
    ck_assert_uint_eq(p->n_records, 4);
    ck_assert_uint_eq(p->segments[0].n_records, 1);
    ck_assert_uint_eq(p->segments[3].n_records, tied ? 2 : 1);
    ck_assert_uint_eq(p->records[1].n_parts, 9);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n_records; i++)
        bytes += p->records[i].file_bytes;
    ck_assert_uint_eq(bytes, p->weight_bytes_file);
    for (uint32_t i = 0; i < p->n_weights; i++) {
        const struct krn_weight *w = &p->weights[i];
        const struct eng_tensor *t = &p->tensors[i];
        ck_assert(w->layout == (t->n_dims == 2 ? KRN_TILED : KRN_PLAIN) && w->type == t->type && p->record_of[i] < p->n_records);
        ck_assert_uint_eq(w->rows, t->n_dims == 2 ? t->dims[0] : 1);
        ck_assert_uint_eq(w->cols, t->dims[t->n_dims - 1]);
        ck_assert_str_eq(t->form, "plain");
    }
    ck_assert_uint_eq(p->n_kv, 1);
    ck_assert(p->kv[0].kind == ENG_KV_HEADS && p->kv[0].heads == 2 && p->kv[0].dim_k == 8 && p->kv[0].dim_v == 8 && p->kv[0].n_layers == LAYERS && p->kv[0].layers[1] == 1);
    ck_assert_uint_eq(eng_plan_kv_bytes_per_token(p, KRN_F16), 2 * 2 * 8 * 2 * LAYERS);
    ck_assert_uint_eq(eng_plan_state_bytes_per_seq(p), 0);
    ck_assert(p->vocab == 48 && p->hidden == 32 && p->layers == LAYERS && p->ctx == 256 && p->linear_cols_max == 64);
    ck_assert(p->logits.rows == KRN_ROWS_PICKED && p->logits.dim == 48 && p->logits.base + 48 <= p->arena_cols[1]);
    ck_assert_uint_eq(p->n_taps, LAYERS + 2);
    ck_assert(p->taps[0].layer == KRN_NO_LAYER && p->taps[1].layer == 0 && !strcmp(p->taps[LAYERS + 1].reg, "final_norm"));
    ck_assert(p->taps[LAYERS + 1].view.base != p->logits.base);
}

START_TEST(core)
{
    for (int tied = 0; tied < 2; tied++) {
        char *dir = mm_tmpdir();
        size_t n;
        const struct mm_tensor *t = tensors(&n, !tied);
        off_catalog *c = open_hf(dir, older, t, n);
        struct eng_plan *p;
        OK(eng_plan_compile(&p, c, NULL, NULL, &e));
        ck_assert_str_eq(p->sheet, "llama");
        check_calls(p);
        check_rest(p, tied);
        check_ropes(p);
        eng_plan_close(p);
        off_catalog_close(c);
        mm_rmdir(dir);
    }
}
END_TEST

static void same_plan(const struct eng_plan *a, const struct eng_plan *b)
{
    ck_assert_uint_eq(a->n_ops, b->n_ops);
    for (uint32_t i = 0; i < a->n_ops; i++)
        ck_assert_msg(!memcmp(&a->ops[i], &b->ops[i], sizeof *a->ops), "call %u differs", i);
    ck_assert_uint_eq(a->n_ropes, b->n_ropes);
    for (uint32_t i = 0; i < a->n_ropes; i++)
        ck_assert(a->ropes[i].n_freq == b->ropes[i].n_freq && !memcmp(&a->ropes[i].mscale, &b->ropes[i].mscale, sizeof(float)) &&
                  !memcmp(a->ropes[i].inv_freq, b->ropes[i].inv_freq, a->ropes[i].n_freq * sizeof(double)));
    ck_assert(a->ctx == b->ctx && a->n_kv == b->n_kv && a->n_weights == b->n_weights && !memcmp(a->arena_cols, b->arena_cols, sizeof a->arena_cols));
    ck_assert_mem_eq(a->sheet_digest, b->sheet_digest, 32);
}

START_TEST(spellings)
{
    char *dir[2] = {mm_tmpdir(), mm_tmpdir()};
    size_t n;
    const struct mm_tensor *t = tensors(&n, true);
    struct eng_plan *p[2];
    off_catalog *c[2];
    for (int i = 0; i < 2; i++) {
        c[i] = open_hf(dir[i], i ? newer : older, t, n);
        OK(eng_plan_compile(&p[i], c[i], NULL, NULL, &e));
    }
    same_plan(p[0], p[1]);
    for (int i = 0; i < 2; i++) {
        eng_plan_close(p[i]);
        off_catalog_close(c[i]);
        mm_rmdir(dir[i]);
    }
}
END_TEST

START_TEST(gguf)
{
    char *dir = mm_tmpdir();
    const char *path = mm_path(dir, "a.gguf");
    off_catalog *c;
    struct eng_plan *p;
    tiny_llama_write(path, NULL);
    OK(off_catalog_open(&c, path, 0, &e));
    OK(eng_plan_compile(&p, c, NULL, NULL, &e));
    ck_assert_str_eq(p->sheet, "llama");
    ck_assert_uint_eq(p->n_ops, 1 + TINY_LAYERS * 15 + 3);
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].code == KRN_ROPE) /* rows of q and k are permuted in these files */
            ck_assert_int_eq(p->ops[i].u.rope.pairs, KRN_PAIRS_ADJACENT);
    ck_assert_uint_eq(p->ops[0].weight[0], p->ops[p->n_ops - 1].weight[0]); /* tied: one tensor, one record */
    ck_assert_uint_eq(p->segments[p->n_segments - 1].n_records, 2);
    ck_assert_uint_eq(p->vocab, TINY_VOCAB);
    eng_plan_close(p);
    off_catalog_close(c);
    mm_rmdir(dir);
}
END_TEST

/* One thing wrong in a model: the error, and that a report counts the same. */
static void refused(const char *config, const struct mm_tensor *t, size_t n, int code, const char *says)
{
    char *dir = mm_tmpdir();
    off_catalog *c = open_hf(dir, config, t, n);
    struct eng_plan *p;
    struct eng_report r;
    FAILS(code, says, eng_plan_compile(&p, c, NULL, NULL, &e));
    ck_assert_ptr_null(p);
    eng_report_init(&r);
    struct eng_plan_options o = {.bind_only = true};
    ck_assert_int_ne(eng_plan_compile(&p, c, &o, &r, &e), 0);
    ck_assert_msg(eng_report_problems(&r) >= 1, "nothing in the report about: %s", says);
    bool said = false;
    for (size_t i = 0; i < r.n; i++)
        said = said || strstr(r.v[i].text, says);
    ck_assert_msg(said, "the report does not say `%s`", says);
    eng_plan_close(p);
    eng_report_free(&r);
    off_catalog_close(c);
    mm_rmdir(dir);
}

static const char *edited(const char *from, const char *to)
{
    static char text[2000];
    const char *at = strstr(older, from);
    ck_assert_ptr_nonnull(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - older), older, to, at + strlen(from));
    return text;
}

START_TEST(errors)
{
    static const struct { const char *from, *to; int code; const char *says; } configs[] = {
        {"\"llama\"", "\"mixtral\"", ERR_UNSUPPORTED, "no sheet for model_type `mixtral`"},
        {"\"hidden_size\":32", "\"hidden\":32", ERR_FORMAT, "config.json has no `hidden_size` and sheet llama gives `hidden` no default"},
        {"\"hidden_size\":32", "\"hidden_size\":null", ERR_FORMAT, "config.json has no `hidden_size`"},
        {"\"hidden_size\":32", "\"hidden_size\":-1", ERR_FORMAT, "expected a count"},
        {"\"hidden_size\":32", "\"hidden_size\":\"big\"", ERR_FORMAT, "parameter hidden: expected a count from 1"},
        {"\"vocab_size\":48", "\"vocab_size\":49", ERR_FORMAT, "tensor model.embed_tokens.weight in model.safetensors (@embed): expected [49, 32] = [vocab, hidden], found [48, 32]"},
        {"\"num_hidden_layers\":2", "\"num_hidden_layers\":3", ERR_FORMAT, "missing tensor (@attn_norm, layer 2), expected [32]: none of ['model.layers.2.input_layernorm'] is in the files"},
        {"\"num_hidden_layers\":2", "\"num_hidden_layers\":100000", ERR_LIMIT, "100000 layers"},
        {"\"num_attention_heads\":4", "\"num_attention_heads\":5", ERR_FORMAT, "attn:1: heads: argument 2: expected a count, found 6.4"},
        {"\"rope_type\":\"llama3\"", "\"rope_type\":\"spiral\"", ERR_UNSUPPORTED, "rope table 'main': rope scaling kind `spiral`"},
        {"\"low_freq_factor\":1.0", "\"low_frequency_factor\":1.0", ERR_FORMAT, "`low_freq_factor` is missing"},
        {"\"factor\":8.0", "\"factor\":8.0,\"rope_extra\":2", ERR_FORMAT, "config key rope_scaling.rope_extra = 2 bears on the result and sheet llama never reads it"},
        {"\"hidden_act\":\"silu\"", "\"hidden_act\":\"swish2\"", ERR_UNSUPPORTED, "glu: act: expected one of silu gelu"},
        {"\"hidden_act\":\"silu\"", "\"sliding_window\":64", ERR_FORMAT, "config key sliding_window = 64 bears on the result"},
        {"\"hidden_act\":\"silu\"", "\"num_local_experts\":8", ERR_UNSUPPORTED, "a mixture of experts (expert_count > 0)"},
        {"\"attention_bias\":false", "\"attention_bias\":true", ERR_UNSUPPORTED, "attention_bias and the biases in the files disagree"},
        {"\"attention_bias\":false", "\"quantization_config\":{\"quant_method\":\"gptq\"}", ERR_UNSUPPORTED, "quant_method fp8, compressed-tensors or mxfp4, found gptq"},
        {"\"rope_theta\":500000.0", "\"rope_theta\":0.5", ERR_FORMAT, "a base above 1"}};
    size_t n;
    const struct mm_tensor *t = tensors(&n, true);
    struct mm_tensor mine[64];
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        refused(edited(configs[i].from, configs[i].to), t, n, configs[i].code, configs[i].says);
    memcpy(mine, t, n * sizeof *t);
    mine[n] = (struct mm_tensor){"model.layers.0.self_attn.extra.weight", KRN_BF16, 1, {4}, NULL};
    refused(older, mine, n + 1, ERR_FORMAT, "unknown tensor model.layers.0.self_attn.extra.weight BF16 [4] in model.safetensors: sheet llama does not read it");
    mine[3].dims[0] = 33; /* layer 0, q */
    refused(older, mine, n, ERR_FORMAT, "tensor model.layers.0.self_attn.q_proj.weight in model.safetensors (@q, layer 0): expected [32, 32] = [heads*hd, hidden], found [33, 32]");
    mine[3] = t[3];
    mine[3].type = KRN_I32;
    refused(older, mine, n, ERR_UNSUPPORTED, "expected a float or block type, found I32");
    mine[3].type = KRN_F8_E4M3;
    refused(older, mine, n, ERR_FORMAT, "packed as fp8-row, and its scales are not in the files");
    refused(older, t + 1, n - 1, ERR_FORMAT, "missing tensor embed_tokens under every prefix");
}
END_TEST

/* What a sheet may get wrong, said with block and line. */
START_TEST(sheet_errors)
{
    static const struct { const char *sheet; const char *says; } bad[] = {
        {"\"blocks\":{\"attn\":[\"q = heads(linear(h, @q), hdd)\"]}", "attn:1: `hdd` is neither a parameter nor a register set by an earlier line"},
        {"\"blocks\":{\"glu_ffn\":[\"f = linear(swish(linear(h, @gate)), @down)\"]}", "glu_ffn:1: no operator `swish` (known: add, attend, "},
        {"\"blocks\":{\"attn\":[\"q = heads(linear(h, @q) hd)\"]}", "attn:1: expected `,` or `)` at column 25 of `q = heads(linear(h, @q) hd)`"},
        {"\"params\":{\"hd\":\"ff2 / 2\",\"ff2\":\"hd\"}", "parameter cycle: hd -> ff2 -> hd"},
        {"\"blocks\":{\"qk\":[\"hd = silu(q)\"]}", "qk:1: register `hd` has the name of a parameter"},
        {"\"blocks\":{\"qk\":[\"use nowhere\"]}", "qk:1: no block `nowhere`"},
        {"\"blocks\":{\"qk\":[\"use qk\"]}", "blocks use each other more than"},
        {"\"blocks\":{\"qk\":[\"q = rmsnorm(q, @nothing)\"]}", "no tensor `@nothing` in sheet mine"},
        {"\"blocks\":{\"qk\":[\"q = rmsnorm(q, @attn_norm)\"]}", "qk:1: rmsnorm: values of the norm's weight: expected 8, found 32"},
        {"\"blocks\":{\"qk\":[\"q = linear(h, @down)\"]}", "qk:1: linear: inputs: expected 64, found 32"},
        {"\"blocks\":{\"qk\":[\"q = add(h, v)\"]}", "qk:1: add: values of the second operand: expected 32, found 16"},
        {"\"blocks\":{\"qk\":[\"a, b = split(h, 8)\"]}", "qk:1: split: sum of the parts: expected 32, found 8"},
        {"\"blocks\":{\"qk\":[\"a, b = silu(h)\"]}", "qk:1: 2 registers are set from 1 values"},
        {"\"blocks\":{\"qk\":[\"q = heads(q, hd)\"]}", "qk:1: heads of a register that has 4 heads already"},
        {"\"blocks\":{\"qk\":[\"q = rope(q, tables = 'main')\"]}", "qk:1: rope has no attribute `tables`"},
        {"\"blocks\":{\"qk\":[\"q = rope(q, table = 'other')\"]}", "qk:1: no rope table 'other' in sheet mine"},
        {"\"blocks\":{\"qk\":[\"o = attend(q, k, v, $cache)\"]}", "qk:1: no state `$cache` in sheet mine"},
        {"\"blocks\":{\"qk\":[\"o = attend(q, v)\"]}", "qk:1: attend: argument 3 is missing"},
        {"\"blocks\":{\"qk\":[\"o = silu(@q)\"]}", "qk:1: silu: argument 1: expected a register"},
        {"\"blocks\":{\"qk\":[{\"if\":\"hd > \",\"do\":[]}]}", "qk:1: if hd > : expected an expression"},
        {"\"blocks\":{\"qk\":[{\"when\":\"true\",\"do\":[]}]}", "expected {\"if\", \"do\", \"else\"}, found `when`"},
        {"\"blocks\":{\"qk\":[7]}", "qk:1: a line is text or {\"if\": ...}"},
        {"\"per_layer\":{\"window\":\"8\"},\"defaults\":{\"attend\":{\"window\":\"9\"}}", "state $kv has window 8, the call 9"},
        {"\"state\":{\"kv\":{\"per_token\":{\"k\":\"kv_heads, hd, 2\"}}}", "state $kv holds 48 values a token, the call writes 32"},
        {"\"model\":[\"x = embed(tok, @embed)\",\"layers\",\"y = rmsnorm(x, @norm)\"]", "model sets no `logits`"},
        {"\"model\":[\"x = embed(tok, @embed)\",\"layers\",\"logits = linear(rmsnorm(x, @norm), @head)\"]", "logits must be picked rows of 48, found 48"},
        {"\"tensors\":{\"q\":[\"heads*hd + 1, hidden\",\"{B}self_attn.q_proj\",null]}", "expected [33, 32] = [heads*hd + 1, hidden], found [32, 32]"},
        {"\"tensors\":{\"q\":[\"heads*hd, hidden\"]}", "tensors.q: expected [\"shape\", hf, gguf, {options}]"},
        {"\"tensors\":{\"q\":[\"hd, hidden\",{\"name\":\"{B}self_attn.q_proj\",\"view\":\"r c ; r=0:99\"},null]}", "r=0:99 of an axis of 32"},
        {"\"assert\":{\"hidden is too small\":\"hidden > 100\"}", "sheet mine: hidden is too small"}};
    char *dir = mm_tmpdir();
    size_t n;
    const struct mm_tensor *t = tensors(&n, true);
    off_catalog *c = open_hf(dir, newer, t, n);
    char *own = mm_tmpdir();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[1000];
        eng_sheets *s;
        struct eng_plan *p;
        snprintf(text, sizeof text, "{\"sheet\":\"mine\",\"extends\":\"llama\",%s}", bad[i].sheet);
        mm_text(own, "mine.json", text);
        OK(eng_sheets_open(&s, own, &e));
        e = (struct err){0};
        int rc = eng_plan_compile_sheet(&p, s, "mine", c, NULL, NULL, &e);
        ck_assert_msg(rc && strstr(e.msg, bad[i].says), "%s: expected `%s`, found %d `%s`", bad[i].sheet, bad[i].says, rc, e.msg);
        ck_assert_ptr_null(p);
        eng_sheets_close(s);
    }
    off_catalog_close(c);
    mm_rmdir(dir);
    mm_rmdir(own);
}
END_TEST

/* Families of ../shared: names and shapes bind, calls compile, state adds up. */
static const struct { const char *dir, *sheet; size_t bound, excused; uint32_t calls, kv_bytes, state_bytes, groups; bool runs; } fixtures[] = {
    {"llama", "llama", 39, 0, 64, 512, 0, 1, true}, {"llama-tied", "llama", 38, 0, 64, 768, 0, 1, true}, {"mistral", "mistral", 30, 0, 49, 384, 0, 1, true},
    {"qwen2", "qwen2", 50, 0, 64, 256, 0, 1, true}, {"qwen3", "qwen3", 47, 0, 72, 1024, 0, 1, true}, {"gpt_oss", "gpt_oss", 79, 0, 60, 1024, 0, 2, true}, {"qwen3_moe", "qwen3_moe", 113, 0, 69, 1024, 0, 1, true}, {"gemma3", "gemma3", 80, 0, 118, 768, 0, 2, true},
    {"phi3", "phi3", 21, 0, 49, 576, 0, 1, true},
    {"gemma3_vl", "gemma3", 93, 55, 137, 896, 0, 2, true}, {"deepseek_v3", "deepseek_v3", 129, 44, 84, 448, 0, 1, true},
    {"deepseek_v3-fp8", "deepseek_v3", 139, 0, 63, 384, 0, 1, true}, {"deepseek_v3-int4", "deepseek_v3", 259, 0, 63, 288, 0, 1, true},
    {"kimi_k25", "deepseek_v3", 129, 47, 84, 320, 0, 1, true}, {"kimi_linear", "kimi_linear", 233, 0, 166, 160, 74752, 1, false},
    {"kimi_k3", "kimi_k3", 1002, 24, 300, 168, 112128, 1, false}};

static void check_families(const char *root)
{
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char path[300];
        off_catalog *c;
        struct eng_plan *p;
        struct eng_report r;
        struct eng_plan_options o = {.bind_only = !fixtures[i].runs};
        snprintf(path, sizeof path, "%s/%s", root, fixtures[i].dir);
        OK(off_catalog_open(&c, path, 0, &e));
        eng_report_init(&r);
        int rc = eng_plan_compile(&p, c, &o, &r, &e);
        ck_assert_msg(!rc, "%s: %s", path, e.msg);
        ck_assert_str_eq(p->sheet, fixtures[i].sheet);
        ck_assert_msg(r.bound == fixtures[i].bound && r.excused == fixtures[i].excused && r.names == r.bound + r.excused, "%s: %zu bound, %zu excused", path, r.bound, r.excused);
        ck_assert_msg(p->n_ops == fixtures[i].calls, "%s: %u calls", path, p->n_ops);
        ck_assert_uint_eq(eng_plan_kv_bytes_per_token(p, KRN_BF16), fixtures[i].kv_bytes);
        ck_assert_uint_eq(eng_plan_state_bytes_per_seq(p), fixtures[i].state_bytes);
        ck_assert_uint_eq(p->n_kv, fixtures[i].groups);
        eng_plan_close(p);
        eng_report_free(&r);
        off_catalog_close(c);
    }
}

/* The same fixtures with their config in the other spelling. */
static void check_spellings(const char *root)
{
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char path[300], newer_path[340];
        off_catalog *c[2];
        struct eng_plan *p[2];
        struct eng_plan_options o = {.bind_only = true};
        snprintf(path, sizeof path, "%s/%s", root, fixtures[i].dir);
        snprintf(newer_path, sizeof newer_path, "%s/reference/config-newer.json", path);
        if (access(newer_path, R_OK))
            continue;
        char *dir = mm_tmpdir(), target[340];
        size_t n;
        OK(off_catalog_open(&c[0], path, 0, &e));
        for (size_t f = 0; f < off_catalog_files(c[0]); f++) {
            const char *base = off_catalog_file(c[0], f)->base;
            snprintf(target, sizeof target, "%s/%s", path, base);
            char *full = realpath(target, NULL);
            ck_assert(full && !symlink(full, mm_path(dir, base)));
            free(full);
        }
        snprintf(target, sizeof target, "%s/model.safetensors.index.json", path);
        if (!access(target, R_OK)) {
            void *text = mm_read(target, &n);
            mm_write(mm_path(dir, "model.safetensors.index.json"), text, n);
            free(text);
        }
        void *text = mm_read(newer_path, &n);
        mm_write(mm_path(dir, "config.json"), text, n);
        free(text);
        OK(off_catalog_open(&c[1], dir, 0, &e));
        for (int k = 0; k < 2; k++) {
            int rc = eng_plan_compile(&p[k], c[k], &o, NULL, &e);
            ck_assert_msg(!rc, "%s (%d): %s", path, k, e.msg);
        }
        same_plan(p[0], p[1]);
        for (int k = 0; k < 2; k++) {
            eng_plan_close(p[k]);
            off_catalog_close(c[k]);
        }
        mm_rmdir(dir);
    }
}

START_TEST(families)
{
    static const char root[] = "../shared/data/models";
    if (access(root, R_OK)) {
        puts("SKIP families: the fixtures of ../shared are not here");
        return;
    }
    check_families(root);
    check_spellings(root);
}
END_TEST

START_TEST(kimi_k3)
{
    static const char tool[] = "../shared/tools/make_sparse_k3.py";
    char *dir, command[400];
    off_catalog *c;
    struct eng_plan *p;
    struct eng_report r;
    if (access(tool, R_OK) || system("python3 -c 1")) {
        puts("SKIP kimi_k3: no ../shared to make the sparse checkpoint from, or no python3");
        return;
    }
    dir = mm_tmpdir();
    snprintf(command, sizeof command, "python3 %s %s >/dev/null", tool, dir);
    ck_assert_int_eq(system(command), 0);
    OK(off_catalog_open(&c, dir, 1, &e));
    eng_report_init(&r);
    OK(eng_check(c, &r, &p, &e)); /* there is no tokenizer in that directory, and operators are missing */
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq(r.names, 497220);
    ck_assert_uint_eq(r.bound, 497052);
    ck_assert_uint_eq(r.excused, 168);
    ck_assert_uint_eq(r.total[ENG_ISSUE_UNKNOWN] + r.total[ENG_ISSUE_MISSING] + r.total[ENG_ISSUE_SHAPE] + r.total[ENG_ISSUE_DTYPE] + r.total[ENG_ISSUE_CONFIG] + r.total[ENG_ISSUE_SHEET], 0);
    ck_assert_uint_eq(eng_plan_kv_bytes_per_token(p, KRN_BF16), 27648);
    ck_assert_uint_eq(eng_plan_state_bytes_per_seq(p), 449372160);
    ck_assert(p->layers == 93 && p->ctx == 1048576 && p->recurrent[0].n_layers == 69 && p->kv[0].n_layers == 24 && p->kv[0].kind == ENG_KV_LATENT);
    eng_plan_close(p);
    eng_report_free(&r);
    off_catalog_close(c);
    mm_rmdir(dir);
}
END_TEST

SUITE("engine", "compile", core, spellings, gguf, errors, sheet_errors, families, kimi_k3)
