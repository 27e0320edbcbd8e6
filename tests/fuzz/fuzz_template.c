/* Any bytes as a template, over a context with one value of every kind: it ends within its limits, and the runs of trusted and plain
 * text cover the result, which is UTF-8. The last byte chooses whether lists are frozen. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void check_prompt(const struct eng_prompt *out)
{
    size_t at = 0;
    for (size_t i = 0; i < out->n_spans; i++) {
        must(out->spans[i].begin == at && out->spans[i].end > at);
        at = out->spans[i].end;
    }
    must(at == out->n && out->text[out->n] == 0);
    for (size_t i = 0; i < out->n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)out->text + i, (utf8proc_ssize_t)(out->n - i), &c);
        must(k > 0);
        i += (size_t)k;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char text[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"S \"}, {\"role\": \"user\", \"content\": \"h\\u00e9\\n<b>\"}, "
                               "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5]}}}]}], "
                               "\"bos_token\": \"<s>\", \"n\": 3, \"f\": -0.5, \"t\": true, \"big\": 123456789012345678901, \"s\": \"a,b c\\u4e2d\"}";
    static const char *const trusted[] = {"bos_token", NULL};
    struct eng_template_limits lim = {.steps_max = 20000, .bytes_max = 1 << 18, .depth_max = 40, .frozen = n && p[n - 1] & 1};
    struct arena a;
    struct json *ctx;
    struct eng_prompt out;
    struct err e;
    eng_template *t;
    arena_init(&a, 16 << 20);
    must(!json_parse(&ctx, text, sizeof text - 1, &json_strict, &a, &e));
    int rc = eng_template_open(&t, (const char *)p, n, &lim, &e);
    must(rc ? e.msg[0] && !t : t != NULL);
    if (!rc) {
        rc = eng_template_render(t, ctx, trusted, 1784118896, &a, &out, &e);
        if (!rc)
            check_prompt(&out);
        eng_template_close(t);
    }
    arena_free(&a);
    return 0;
}
