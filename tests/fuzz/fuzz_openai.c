/* A request's body as any client may send it; and the same bytes as an engine's description. */
#include <stdlib.h>
#include <string.h>

#include "gateway/anthropic.h"
#include "gateway/openai_out.h"
#include "gateway/description.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef int parser(struct gw_chat_req *, const char *, size_t, struct arena *, struct gw_api_error *);

/* What any API accepts is in range; what it refuses it refuses with words that are JSON whatever they quote. */
static void parse(parser *f, const uint8_t *data, size_t size)
{
    struct gw_chat_req r = {.sampling = {.temperature = 1, .top_p = 1}};
    struct gw_api_error ae = {0};
    struct arena a;
    struct buf b;
    struct err e;
    arena_init(&a, 64u << 20);
    buf_init(&b, 1u << 20);
    int rc = f(&r, (const char *)data, size, &a, &ae);
    if (rc != ae.status || (rc && (!*ae.msg || !ae.type)))
        abort(); /* a refusal says why */
    if (!rc && (!(r.sampling.temperature >= 0 && r.sampling.temperature <= 2) || !(r.sampling.top_p > 0 && r.sampling.top_p <= 1) || r.n_stops > GW_STOPS_MAX))
        abort(); /* what parses is in range */
    for (uint32_t i = 0; i < r.n_stops && !rc; i++)
        if (!r.stop_lens[i] || r.stop_lens[i] > GW_STOP_BYTES_MAX)
            abort();
    if (rc) {
        struct json *v;
        gw_out_error(&b, &ae);
        if (b.failed || json_parse(&v, b.data, b.len, &json_strict, &a, &e))
            abort();
        buf_reset(&b);
        gw_anthropic_error(&b, &ae, "req");
        if (b.failed || json_parse(&v, b.data, b.len, &json_strict, &a, &e))
            abort();
    }
    if (!rc && (!r.n || r.n > GW_CHOICES_MAX || !r.n_prompts || r.n * r.n_prompts > GW_CHOICES_MAX || r.n_bias > ENG_BIAS_MAX || r.top_logprobs > ENG_TOP_MAX || !r.body))
        abort();
    for (uint32_t i = 0; i < r.n_bias && !rc; i++)
        if (r.bias[i].id < 0 || !(r.bias[i].bias >= -100 && r.bias[i].bias <= 100))
            abort();
    buf_free(&b);
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gw_description d;
    struct arena a;
    struct err e;
    parse(gw_openai_parse_chat, data, size);
    parse(gw_openai_parse_completion, data, size);
    parse(gw_anthropic_parse, data, size);
    parse(gw_anthropic_parse_count, data, size);
    arena_init(&a, 64u << 20);
    if (!gw_description_read(&d, data, size, &a, &e) && (!d.ctx || !d.seqs || !d.id))
        abort();
    arena_free(&a);
    return 0;
}
