/* A model's text: any bytes, in any format, cut anywhere. What is said must not depend on the cutting, arguments of a call that ended
 * well are JSON, and no control mark comes out. The first byte picks the format, the second how the text is cut. */
#include <stdlib.h>
#include <string.h>

#include "engine/sheet.h"
#include "gateway/calls.h"
#include "gateway/json_scan.h"
#include "gateway/openai.h"

static const struct { const char *tools, *reasoning; } pairs[] = {
    {"hermes", "think"}, {"llama3", NULL}, {"mistral", NULL}, {"mistral_args", NULL}, {"deepseek_v3", "think"}, {"deepseek_v3_1", "think"}, {"kimi_k2", NULL},
    {"kimi_k3", "kimi_k3"}, {"harmony", "harmony"}, {"qwen3_coder", NULL}, {"minimax_m2", "think"}, {NULL, "think"}};
#define N_PAIRS (sizeof pairs / sizeof *pairs)
static const char request[] = "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}}},"
                              "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]}";
static struct arena mem;
static struct eng_format formats[N_PAIRS];
static struct gw_tools tools;

static void pick(struct json *out, const struct json *sheet, const char *section, const char *name)
{
    const struct json *entry = name ? json_get(json_get(sheet, section), name) : NULL;
    struct json *o = json_new(&mem, entry ? JSON_OBJECT : JSON_NULL);
    if (entry)
        json_set(&mem, o, "name", json_new_str(&mem, name, strlen(name)));
    for (size_t i = 0; entry && i < entry->n; i++)
        json_set(&mem, o, entry->members[i].key, entry->members[i].value);
    json_set(&mem, out, section, o);
}

/* Every literal of a format begins with a mark where it begins with "<|", "<｜" or "[": as if those were control tokens. */
static void mark(struct eng_pattern *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->v[i].kind == ENG_STEP_LITERAL && p->v[i].n > 2 && (!memcmp(p->v[i].s, "<|", 2) || p->v[i].s[0] == '[')) {
            char *s = arena_alloc(&mem, p->v[i].n + 2);
            s[0] = ENG_MARK;
            memcpy(s + 1, p->v[i].s, p->v[i].n);
            p->v[i].s = s;
            p->v[i].n++;
        }
}

static void setup(void)
{
    struct err e;
    eng_sheets *s;
    const struct json *sheet;
    struct json *body;
    struct gw_api_error ae;
    arena_init(&mem, 64u << 20);
    if (eng_sheets_open(&s, NULL, &e) || eng_sheets_merge(s, "formats", &mem, &sheet, &e) || json_parse(&body, request, sizeof request - 1, &json_strict, &mem, &e) ||
        gw_tools_read(&tools, body, &mem, &ae))
        abort();
    for (size_t i = 0; i < N_PAIRS; i++) {
        struct json *chosen = json_new(&mem, JSON_OBJECT);
        pick(chosen, sheet, "tools", pairs[i].tools);
        pick(chosen, sheet, "reasoning", pairs[i].reasoning);
        if (eng_format_read(&formats[i], chosen, NULL, &mem, &e))
            abort();
        for (uint32_t k = 0; k < formats[i].tools.n_calls; k++)
            mark(&formats[i].tools.call[k]);
        mark(&formats[i].tools.begin);
        mark(&formats[i].tools.end);
        mark(&formats[i].reasoning.open);
        mark(&formats[i].reasoning.close);
    }
    eng_sheets_close(s);
}

static void check_call(const struct buf *args, const struct gw_part *end)
{
    if (!end->broken && !gw_scan_is_json(args->data ? args->data : "", args->len))
        abort();
}

/* Everything that was said, as one text. */
static void read_all(struct buf *out, const struct gw_calls_config *cfg, const char *p, size_t n, unsigned cut)
{
    gw_calls *c = gw_calls_open(cfg);
    struct buf args;
    enum gw_part_type had = GW_PART_END;
    buf_init(&args, 16u << 20);
    for (size_t at = 0, k; at < n; at += k) {
        const struct gw_part *part;
        cut = cut * 1103515245u + 12345u;
        k = cut >> 31 ? n - at : 1 + (cut >> 16) % 7;
        k = k < n - at ? k : n - at;
        if (!gw_calls_feed(c, p + at, k, at + k == n))
            abort();
        if (cfg->whole && at + k < n)
            continue;
        size_t np = gw_calls_parts(c, &part);
        for (size_t i = 0; i < np; i++) {
            if (part[i].type != had || part[i].type >= GW_PART_CALL)
                buf_printf(out, "|%d", part[i].type == GW_PART_ARGUMENTS && had == part[i].type ? 9 : (int)part[i].type);
            if (part[i].type == GW_PART_ARGUMENTS && had == GW_PART_ARGUMENTS)
                out->len -= 2;
            had = part[i].type;
            buf_add(out, part[i].s, part[i].n);
            if (part[i].type == GW_PART_CALL)
                buf_reset(&args);
            else if (part[i].type == GW_PART_ARGUMENTS)
                buf_add(&args, part[i].s, part[i].n);
            else if (part[i].type == GW_PART_END)
                check_call(&args, &part[i]);
        }
        gw_calls_drop(c);
    }
    if (out->len && memchr(out->data, ENG_MARK, out->len))
        abort();
    buf_free(&args);
    gw_calls_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!mem.bytes_max)
        setup();
    if (size < 3 || size > 65536)
        return 0;
    struct buf a, b;
    buf_init(&a, 32u << 20);
    buf_init(&b, 32u << 20);
    struct gw_tools t = tools;
    t.parallel = !(data[1] & 4);
    struct gw_calls_config cfg = {.format = &formats[data[0] % N_PAIRS], .tools = data[1] & 8 ? NULL : &t, .in_reasoning = data[1] & 1, .whole = data[1] & 2,
                                  .id_prefix = "call_", .bytes_max = 1u << 20};
    read_all(&a, &cfg, (const char *)data + 2, size - 2, 0xFFFFFFFFu);
    read_all(&b, &cfg, (const char *)data + 2, size - 2, data[1]);
    if (a.len != b.len || (a.len && memcmp(a.data, b.data, a.len)))
        abort();
    buf_free(&a);
    buf_free(&b);
    return 0;
}
