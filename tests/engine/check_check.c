/* engine/check: what a report says of a checkpoint with one thing wrong, of a family without a sheet, and what the parts add up to. */
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/check.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

static struct err e;
#define DIR_OF(model) "tests/data/models/" model

/* ---- a checkpoint of two files, written by hand so that everything about it can be wrong ------------------------ */
struct entry { const char *name, *dtype; uint64_t dims[2], begin, end; int file; bool unlisted; const char *twice; };
static const char config[] = "{\"model_type\":\"llama\",\"hidden_size\":8,\"intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
                             "\"vocab_size\":24,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5}";
#define L "model.layers.0."
static const struct entry plain[] = {
    {L "input_layernorm.weight", "BF16", {8, 1}, 0, 0, 0, false, NULL}, {L "mlp.down_proj.weight", "BF16", {8, 16}, 0, 0, 0, false, NULL},
    {L "mlp.gate_proj.weight", "BF16", {16, 8}, 0, 0, 0, false, NULL}, {L "mlp.up_proj.weight", "BF16", {16, 8}, 0, 0, 0, false, NULL},
    {L "post_attention_layernorm.weight", "BF16", {8, 1}, 0, 0, 0, false, NULL}, {L "self_attn.k_proj.weight", "BF16", {4, 8}, 0, 0, 0, false, NULL},
    {L "self_attn.o_proj.weight", "BF16", {8, 8}, 0, 0, 0, false, NULL}, {L "self_attn.q_proj.weight", "BF16", {8, 8}, 0, 0, 0, false, NULL},
    {L "self_attn.v_proj.weight", "BF16", {4, 8}, 0, 0, 0, false, NULL}, {"model.embed_tokens.weight", "BF16", {24, 8}, 0, 0, 1, false, NULL},
    {"model.norm.weight", "BF16", {8, 1}, 0, 0, 1, false, NULL}};
enum { N = sizeof plain / sizeof *plain, NORM = 0, GATE = 2, Q = 7, V = 8, EMBED = 9 };
static const char *const files[2] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};

struct set { struct entry t[N + 2]; size_t n; int64_t size_change; uint64_t header_length; bool missing, cut_json, escape, moved; const char *raw_from, *raw_to; int64_t total_change; };

static void lay(struct set *s)
{
    uint64_t at[2] = {0};
    for (size_t i = 0; i < s->n; i++) {
        s->t[i].begin = at[s->t[i].file];
        s->t[i].end = at[s->t[i].file] += s->t[i].dims[0] * s->t[i].dims[1] * (strcmp(s->t[i].dtype, "F32") ? 2 : 4);
    }
}

static void write_file(const char *dir, const struct set *s, int file)
{
    struct buf b, h;
    uint64_t end = 0;
    buf_init(&b, 1 << 20);
    buf_init(&h, 1 << 20);
    buf_char(&h, '{');
    for (size_t i = 0; i < s->n; i++) {
        const struct entry *t = &s->t[i];
        if (t->file != file && !(t->twice && file == 1))
            continue;
        if (t->file == file && t->unlisted)
            continue;
        buf_printf(&h, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", h.len > 1 ? "," : "", t->name, t->dtype, (unsigned long long)t->dims[0]);
        if (!strstr(t->name, "norm"))
            buf_printf(&h, ",%llu", (unsigned long long)t->dims[1]);
        uint64_t from = t->file == file ? t->begin : end, to = t->file == file ? t->end : end + t->end - t->begin;
        buf_printf(&h, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)from, (unsigned long long)to);
        end = to > end ? to : end;
    }
    buf_char(&h, '}');
    if (s->raw_from && file == 0) {
        char *p = strstr(h.data, s->raw_from);
        ck_assert_msg(p && strlen(s->raw_from) == strlen(s->raw_to), "%s", s->raw_from);
        memcpy(p, s->raw_to, strlen(s->raw_to));
    }
    if (s->cut_json && file == 0)
        h.len -= 9;
    uint64_t n = s->header_length && file == 0 ? s->header_length : h.len;
    buf_add(&b, &n, 8);
    buf_add(&b, h.data, h.len);
    for (int64_t i = 0, most = (int64_t)end + (file == 0 ? s->size_change : 0); i < most; i++)
        buf_char(&b, 0);
    if (!(s->missing && file == 0))
        mm_write(mm_path(dir, files[file]), b.data, b.len);
    buf_free(&b);
    buf_free(&h);
}

static void write_set(const char *dir, const struct set *s)
{
    struct buf b;
    uint64_t total = 0;
    mm_text(dir, "config.json", config);
    write_file(dir, s, 0);
    write_file(dir, s, 1);
    buf_init(&b, 1 << 20);
    buf_str(&b, "{\"weight_map\":{");
    for (size_t i = 0; i < s->n; i++) {
        buf_printf(&b, "%s\"%s\":\"%s%s\"", i ? "," : "", s->t[i].name, s->escape && i == NORM ? "../" : "", files[s->moved && i == NORM ? 1 : s->t[i].file]);
        total += s->t[i].end - s->t[i].begin;
    }
    buf_printf(&b, "},\"metadata\":{\"total_size\":%llu}}", (unsigned long long)(total + (uint64_t)s->total_change));
    mm_text(dir, "model.safetensors.index.json", b.data);
    buf_free(&b);
}

/* One thing wrong, and what the report, or where the files cannot be opened at all the error, must name. */
static void set_missing(struct set *s) { s->missing = true; }
static void set_truncated(struct set *s) { s->size_change = -5; }
static void set_dtype(struct set *s) { s->t[Q].dtype = "F32"; s->t[Q].dims[0] = 4; }
static void set_shape(struct set *s) { s->t[GATE].dims[0] = 8; s->t[GATE].dims[1] = 16; }
static void set_overlap(struct set *s) { s->t[Q].begin -= 16; s->t[Q].end -= 16; }
static void set_duplicate(struct set *s) { s->t[NORM].twice = "yes"; }
static void set_absent(struct set *s) { memmove(&s->t[Q], &s->t[Q + 1], (N - Q - 1) * sizeof *s->t); s->n--; lay(s); }
static void set_unlisted(struct set *s) { s->t[V].unlisted = true; }
static void set_extra(struct set *s) { s->t[s->n++] = (struct entry){L "self_attn.sinks", "BF16", {2, 1}, 0, 0, 1, false, NULL}; lay(s); }
static void set_long(struct set *s) { s->header_length = 1ull << 26; }
static void set_huge(struct set *s) { s->header_length = INT64_MAX; }
static void set_utf8(struct set *s) { s->raw_from = "input_layernorm"; s->raw_to = "input\xfflayernorm"; }
static void set_json(struct set *s) { s->cut_json = true; }
static void set_twice(struct set *s) { s->raw_from = "gate_proj"; s->raw_to = "down_proj"; }
static void set_overflow(struct set *s) { s->t[NORM].begin = UINT64_MAX - 7; s->t[NORM].end = 8; }
static void set_negative(struct set *s) { s->raw_from = "[0,16]"; s->raw_to = "[-8,8]"; }
static void set_gap(struct set *s) { s->t[V].begin += 8; s->t[V].end += 8; }
static void set_trailing(struct set *s) { s->size_change = 4096; }
static void set_total(struct set *s) { s->total_change = -2; }
static void set_wrong_file(struct set *s) { s->moved = true; }
static void set_escape(struct set *s) { s->escape = true; }
static void set_zero(struct set *s) { s->t[Q].dims[0] = 0; lay(s); }

static const struct { void (*wrong)(struct set *); int opens; const char *parts[4]; } breaks[] = {
    {NULL, 1, {NULL}}, {set_missing, 1, {"model-00001-of-00002.safetensors", "expected this file", "found none"}},
    {set_truncated, 1, {"model-00001-of-00002.safetensors", L "self_attn.v_proj.weight", "expected to end at", "cut short"}},
    {set_dtype, 1, {"model-00001-of-00002.safetensors", L "self_attn.q_proj.weight", "expected [8, 8]", "found [4, 8]"}},
    {set_shape, 1, {"model-00001-of-00002.safetensors", L "mlp.gate_proj.weight", "expected [16, 8]", "found [8, 16]"}},
    {set_overlap, 0, {"model-00001-of-00002.safetensors", L "self_attn.q_proj.weight", "expected to begin at", "share bytes"}},
    {set_duplicate, 0, {"model-00002-of-00002.safetensors", L "input_layernorm.weight", "expected in model-00001", "found in this file's header"}},
    {set_absent, 1, {"@q, layer 0", "expected [8, 8]", L "self_attn.q_proj", "in the files"}},
    {set_unlisted, 0, {"model-00001-of-00002.safetensors", L "self_attn.v_proj.weight", "found no such name in its header"}},
    {set_extra, 1, {"unknown tensor " L "self_attn.sinks BF16 [2", "model-00002-of-00002.safetensors", "sheet llama does not read it"}},
    {set_long, 1, {"model-00001-of-00002.safetensors", "header", "expected", "67108864"}},
    {set_huge, 0, {"model-00001-of-00002.safetensors", "header", "found a length of 9223372036854775807"}},
    {set_utf8, 0, {"model-00001-of-00002.safetensors", "expected valid UTF-8, found byte 0xff"}},
    {set_json, 0, {"model-00001-of-00002.safetensors", "header: line 1"}},
    {set_twice, 0, {"model-00001-of-00002.safetensors", L "mlp.down_proj.weight", "expected once, found twice"}},
    {set_overflow, 0, {"model-00001-of-00002.safetensors", L "input_layernorm.weight", "expected begin <= end", "[18446744073709551608, 8]"}},
    {set_negative, 0, {"model-00001-of-00002.safetensors", L "input_layernorm.weight", "expected whole numbers", "found -8"}},
    {set_gap, 0, {"model-00001-of-00002.safetensors", L "self_attn.v_proj.weight", "8 bytes before it belong to no tensor"}},
    {set_trailing, 0, {"model-00001-of-00002.safetensors", "4096 bytes follow it"}}, {set_total, 1, {NULL}}, /* a warning */
    {set_wrong_file, 0, {"model-00001-of-00002.safetensors", L "input_layernorm.weight", "expected in model-00002"}},
    {set_escape, 0, {"model.safetensors.index.json", L "input_layernorm.weight", "\"../model-00001-of-00002.safetensors\""}},
    {set_zero, 1, {"model-00001-of-00002.safetensors", L "self_attn.q_proj.weight", "expected [8, 8]", "found [0, 8]"}}};

static bool says(const char *text, const char *const *parts)
{
    for (int k = 0; k < 4 && parts[k]; k++)
        if (!strstr(text, parts[k]))
            return false;
    return true;
}

START_TEST(broken)
{
    char *dir = mm_tmpdir();
    struct set s = {.n = N};
    off_catalog *c;
    memcpy(s.t, plain, sizeof plain);
    lay(&s);
    if (breaks[_i].wrong)
        breaks[_i].wrong(&s);
    if (breaks[_i].wrong == set_dtype || breaks[_i].wrong == set_shape)
        lay(&s);
    write_set(dir, &s);
    log_setup(&(struct log_config){.level = LOG_ERROR, .fd = 2, .part = "test"});
    int rc = off_catalog_open(&c, dir, 1, &e);
    ck_assert_msg((rc == 0) == (breaks[_i].opens == 1), "%d: %s", _i, e.msg);
    if (rc) {
        ck_assert_msg(says(e.msg, breaks[_i].parts), "%d: %s", _i, e.msg);
        mm_rmdir(dir);
        return;
    }
    struct eng_report r;
    struct eng_plan *p;
    eng_report_init(&r);
    OK(eng_check(c, &r, &p, &e));
    size_t problems = eng_report_problems(&r), said = 0; /* one is that there is no tokenizer */
    for (size_t i = 0; i < r.n; i++)
        said += breaks[_i].parts[0] && says(r.v[i].text, breaks[_i].parts);
    ck_assert_msg(breaks[_i].parts[0] ? said == 1 && problems >= 2 : problems == 1 && r.total[ENG_ISSUE_TOKENIZER] == 1, "%d: %zu problems, the first: %s", _i, problems,
                  r.n ? r.v[0].text : "none");
    eng_plan_close(p);
    eng_report_free(&r);
    off_catalog_close(c);
    mm_rmdir(dir);
}
END_TEST

/* ---- configs that say what cannot be ----------------------------------------------------------------------------- */
static const struct { const char *model, *from, *to, *says; } configs[] = {
    {"llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1e-5", "rmsnorm: attribute eps: expected a number from 0 to 1, found -1e-05"},
    {"llama", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e30", "attribute eps: expected a number from 0 to 1, found 1e+30"},
    {"llama", "\"rope_theta\": 500000.0", "\"rope_theta\": 1e300", "a base above 1 and at most 1e15"},
    {"qwen3_moe", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": -1", "(moe_layer_freq, decoder_sparse_step) is below 1"},
    {"qwen3_moe", "\"num_experts\": 8", "\"num_experts\": 9", "expected [9, 96] = [n_exp, hidden], found [8, 96]"},
    {"qwen3_moe", "\"num_experts\": 8", "\"num_experts\": 7", "expected [7, 96] = [n_exp, hidden], found [8, 96]"},
    {"qwen3_moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9", "route: expected 1 to 64 of 8 experts a token, found 9"},
    {"deepseek_v3", "\"n_routed_experts\": 8", "\"n_routed_experts\": 12", "missing tensor model.layers.1.mlp.experts.8.gate_proj (@e_gate, layer 1, expert 8 of 12)"},
    {"deepseek_v3", "\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": -2.5", "route: attribute scale: expected a number from 1e-06 to 1000000, found -2.5"},
    {"deepseek_v3", "\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": 1e300", "route: attribute scale: expected a number from 1e-06 to 1000000"},
    {"deepseek_v3", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": -1", "(first_k_dense_replace) is negative"},
    {"deepseek_v3-fp8", "\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"", "expected quant_method fp8, compressed-tensors or mxfp4, found awq"},
    {"gpt_oss", "\"swiglu_limit\": 7.0", "\"swiglu_limit\": -7.0", "experts: attribute limit: expected a number from 1e-06 to 1000000, found -7"},
    {"gpt_oss", "\"sliding_window\": 32", "\"sliding_window\": 0", "sliding_window is below 1"},
    {"gpt_oss", "\"sliding_attention\",", "", "layer_types has fewer entries than num_hidden_layers"},
    {"kimi_linear", "\"full_attn_layers\": [", "\"full_attn_layers\": [], \"old\": [", "kda_layers and full_attn_layers name fewer layers than num_hidden_layers"},
    {"gemma3", "\"query_pre_attn_scalar\": 40", "\"query_pre_attn_scalar\": -40", "attend: default scale: arithmetic gives no finite number"},
    {"gemma3", "\"query_pre_attn_scalar\": 40", "\"query_pre_attn_scalar\": 1e300", "attend: attribute scale: expected a number from 1e-06"}};

/* The fixture's files with another config; removed by mm_rmdir. */
static char *with_config(const char *model, const char *from, const char *to)
{
    char *dir = mm_tmpdir(), path[300];
    size_t n;
    snprintf(path, sizeof path, DIR_OF("%s/config.json"), model);
    char *text = mm_read(path, &n), *at = strstr(text, from), *changed = NULL;
    ck_assert_msg(at != NULL, "%s has no %s", path, from);
    ck_assert(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    mm_text(dir, "config.json", changed);
    free(text);
    free(changed);
    for (int i = 0; i < 8; i++) {
        static const char *const others[] = {"tokenizer.json", "tokenizer_config.json", "model.safetensors", "model.safetensors.index.json"};
        char name[64];
        if (i < 4)
            snprintf(name, sizeof name, "%s", others[i]);
        else
            snprintf(name, sizeof name, "model-%05d-of-0000%d.safetensors", i - 3, strstr(model, "fp8") ? 4 : strcmp(model, "llama") ? 3 : 2);
        snprintf(path, sizeof path, DIR_OF("%s/%s"), model, name);
        char *full = realpath(path, NULL);
        if (full)
            ck_assert(!symlink(full, mm_path(dir, name)));
        free(full);
    }
    return dir;
}

START_TEST(absurd)
{
    char *dir = with_config(configs[_i].model, configs[_i].from, configs[_i].to);
    struct eng_report r;
    struct eng_plan *p;
    off_catalog *c;
    bool said = false;
    OK(off_catalog_open(&c, dir, 0, &e));
    eng_report_init(&r);
    OK(eng_check(c, &r, &p, &e));
    for (size_t i = 0; i < r.n; i++)
        said = said || (r.v[i].kind != ENG_ISSUE_INERT && strstr(r.v[i].text, configs[_i].says));
    ck_assert_msg(said, "%s, %s: expected `%s`, the first of %zu: %s", configs[_i].model, configs[_i].to, configs[_i].says, r.n, r.n ? r.v[0].text : "");
    eng_plan_close(p);
    eng_report_free(&r);
    eng_plan_compile(&p, c, NULL, NULL, &e); /* and so no program would load it */
    ck_assert(e.code && !p);
    off_catalog_close(c);
    mm_rmdir(dir);
}
END_TEST

/* ---- parts and backends ------------------------------------------------------------------------------------------ */
static const struct eng_part_use *part(const struct eng_report *r, const char *name)
{
    for (size_t i = 0; i < r->n_parts; i++)
        if (!strcmp(r->part[i].name, name))
            return &r->part[i];
    ck_abort_msg("no part %s", name);
    return NULL;
}

START_TEST(parts)
{
    static const char *const models[] = {"llama", "llama-tied", "gemma3", "olmo2", "phi3", "gpt_oss", "qwen3_moe", "deepseek_v3", "deepseek_v3-fp8", "kimi_linear", "kimi_k3"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char path[200];
        struct eng_report r;
        struct eng_plan *p;
        off_catalog *c;
        uint64_t bytes = 0, values = 0, excused = 0;
        snprintf(path, sizeof path, DIR_OF("%s"), models[m]);
        OK(off_catalog_open(&c, path, 0, &e));
        eng_report_init(&r);
        OK(eng_check(c, &r, &p, &e));
        for (size_t i = 0; i < r.n_parts; i++) {
            bytes += r.part[i].bytes;
            values += r.part[i].values;
            ck_assert_msg(strcmp(r.part[i].name, "other"), "%s: a tensor of no part", models[m]);
        }
        for (size_t i = 0; i < r.n_excuses; i++)
            excused += r.excuse[i].bytes;
        /* every byte of the files, but for entries that a view leaves out and shapes said twice */
        ck_assert_msg(bytes + excused <= off_catalog_bytes(c) && bytes + excused + 4096 > off_catalog_bytes(c), "%s: %llu of %llu bytes", models[m], (unsigned long long)(bytes + excused),
                      (unsigned long long)off_catalog_bytes(c));
        ck_assert(values == r.values && r.active <= values && (p->experts.n > 0) == (r.active < values));
        for (size_t i = 0; i < r.n_ops; i++)
            ck_assert(r.op[i].support[ENG_BACKEND_CPU] != KRN_MISSING);
        eng_plan_close(p);
        eng_report_free(&r);
        off_catalog_close(c);
    }
}
END_TEST

START_TEST(counted)
{
    struct eng_report r;
    struct eng_plan *p;
    off_catalog *c;
    OK(off_catalog_open(&c, DIR_OF("qwen3_moe"), 0, &e));
    eng_report_init(&r);
    OK(eng_check(c, &r, &p, &e));
    const uint64_t experts = 3ull * 8 * 3 * 64 * 96; /* layers, experts, matrices */
    ck_assert_uint_eq(part(&r, "routed experts")->values, experts);
    ck_assert_uint_eq(part(&r, "routed experts")->bytes, 2 * experts);
    ck_assert_uint_eq(part(&r, "routers")->values, 3 * 8 * 96);
    ck_assert_uint_eq(part(&r, "dense feed-forward")->values, 3 * 192 * 96);
    ck_assert_uint_eq(part(&r, "embedding")->values, 512 * 96);
    ck_assert_uint_eq(r.values - r.active, experts / 8 * (8 - p->experts.k));
    eng_plan_close(p);
    eng_report_free(&r);
    off_catalog_close(c);
}
END_TEST

/* No sheet: the nearest one, and what stands against it. */
START_TEST(nearest)
{
    char *dir = with_config("llama", "\"model_type\": \"llama\"", "\"model_type\": \"marsupial\", \"pouch_attention\": 2, \"ignored\": 3");
    struct eng_report r;
    struct eng_plan *p;
    off_catalog *c;
    size_t missing = 0;
    bool key = false;
    OK(off_catalog_open(&c, dir, 0, &e));
    eng_report_init(&r);
    OK(eng_check(c, &r, &p, &e));
    ck_assert(!r.sheet && r.suggestion && r.suggestion_bound == r.names);
    for (size_t i = 0; i < r.n; i++) {
        missing += r.v[i].kind == ENG_ISSUE_MISSING;
        key = key || (r.v[i].kind == ENG_ISSUE_CONFIG && strstr(r.v[i].text, "pouch_attention"));
    }
    ck_assert_msg(key, "the key that nobody reads is not named");
    ck_assert_uint_eq(missing, 0);
    eng_plan_close(p);
    eng_report_free(&r);
    off_catalog_close(c);
    mm_rmdir(dir);
}
END_TEST

START_TEST(alike)
{
    struct eng_report r;
    char text[200];
    eng_report_init(&r);
    for (int l = 0; l < 90; l++)
        for (int x = 0; x < 3; x++) {
            snprintf(text, sizeof text, "tensor model.layers.%d.up.%d.weight in model-%05d-of-00009.safetensors (@up, layer %d): expected [4, 8], found [4, %d]", l, x, l % 9, l, l == 40 ? 7 : 9);
            eng_report_add(&r, ENG_ISSUE_SHAPE, ERR_FORMAT, NULL, NULL, NULL, text);
        }
    ck_assert(r.n == 2 && r.total[ENG_ISSUE_SHAPE] == 270 && r.v[0].alike == 3 * 89 - 1 && r.v[1].alike == 2);
    for (int k = 0; k < 2 * ENG_KEPT_MAX; k++) {
        snprintf(text, sizeof text, "unknown tensor %c%c", 'a' + k % 26, 'a' + k / 26);
        eng_report_add(&r, ENG_ISSUE_UNKNOWN, ERR_FORMAT, NULL, NULL, NULL, text);
    }
    ck_assert(r.n == 2 + ENG_KEPT_MAX && r.total[ENG_ISSUE_UNKNOWN] == 2 * ENG_KEPT_MAX);
    eng_report_free(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/check");
    TCase *t = tcase_create("core");
    tcase_add_loop_test(t, broken, 0, (int)(sizeof breaks / sizeof *breaks));
    tcase_add_loop_test(t, absurd, 0, (int)(sizeof configs / sizeof *configs));
    tcase_add_test(t, parts);
    tcase_add_test(t, counted);
    tcase_add_test(t, nearest);
    tcase_add_test(t, alike);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
