/* config.json against a small llama's tensors: every text compiles or is refused, with and without a report. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/check.h"

static char dir[64], config[96];

static size_t add(char *h, size_t at, size_t n, const char *name, unsigned r, unsigned c, size_t *off)
{
    size_t bytes = 2u * r * (c ? c : 1);
    at += (size_t)snprintf(h + at, n - at, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%u%s", at > 1 ? "," : "", name, r, c ? "," : "");
    if (c)
        at += (size_t)snprintf(h + at, n - at, "%u", c);
    at += (size_t)snprintf(h + at, n - at, "],\"data_offsets\":[%zu,%zu]}", *off, *off + bytes);
    *off += bytes;
    return at;
}

static void make_model(void)
{
    static const struct { const char *name; unsigned r, c; } t[] = {
        {"input_layernorm", 32, 0}, {"post_attention_layernorm", 32, 0}, {"self_attn.q_proj", 32, 32}, {"self_attn.k_proj", 16, 32}, {"self_attn.v_proj", 16, 32},
        {"self_attn.o_proj", 32, 32}, {"mlp.gate_proj", 64, 32}, {"mlp.up_proj", 64, 32}, {"mlp.down_proj", 32, 64}, {"self_attn.q_norm", 8, 0}, {"mlp.experts.0.up_proj", 4, 32}};
    char path[96], name[96];
    char *h = malloc(16384);
    size_t at = 1, off = 0;
    uint64_t len;
    FILE *f;

    strcpy(dir, "/tmp/fuzz-config-XXXXXX");
    if (!h || !mkdtemp(dir))
        abort();
    h[0] = '{';
    at = add(h, at, 16384, "model.embed_tokens.weight", 48, 32, &off);
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, t[i].name);
            at = add(h, at, 16384, name, t[i].r, t[i].c, &off);
        }
    at = add(h, at, 16384, "model.norm.weight", 32, 0, &off);
    h[at++] = '}';
    while (at % 8)
        h[at++] = ' ';
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    snprintf(config, sizeof config, "%s/config.json", dir);
    len = at;
    if (!(f = fopen(path, "wb")) || fwrite(&len, 1, 8, f) != 8 || fwrite(h, 1, at, f) != at || fflush(f) || ftruncate(fileno(f), (off_t)(8 + at + off)))
        abort();
    fclose(f);
    free(h);
}

static void clean(void)
{
    char path[96];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    unlink(config);
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    off_catalog *c;
    struct eng_plan *p;
    struct eng_report r;
    struct err e;
    FILE *f;

    if (!dir[0]) {
        struct log_config quiet = {.level = LOG_ERROR, .fd = 2, .part = "fuzz"};
        log_setup(&quiet);
        make_model();
        atexit(clean);
    }
    if (!(f = fopen(config, "wb")))
        abort();
    fwrite(data, 1, size, f);
    fclose(f);
    if (off_catalog_open(&c, dir, 1, &e))
        return 0;
    if (!eng_plan_compile(&p, c, NULL, NULL, &e))
        eng_plan_close(p);
    eng_report_init(&r);
    struct eng_plan_options o = {.bind_only = true};
    eng_plan_compile(&p, c, &o, &r, &e);
    if (p)
        eng_check_operators(p, ENG_BACKEND_CPU, &r);
    eng_plan_close(p);
    eng_report_free(&r);
    off_catalog_close(c);
    return 0;
}
