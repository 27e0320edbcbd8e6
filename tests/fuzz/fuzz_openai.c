/* A request's body as any client may send it; and the same bytes as an engine's description. */
#include <stdlib.h>
#include <string.h>

#include "gateway/openai.h"
#include "gateway/openai_out.h"
#include "gateway/description.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gw_chat_req r = {.sampling = {.temperature = 1, .top_p = 1}};
    struct gw_api_error ae = {0};
    struct gw_description d;
    struct arena a;
    struct buf b;
    struct err e;
    arena_init(&a, 64u << 20);
    buf_init(&b, 1u << 20);
    int rc = gw_openai_parse_chat(&r, (const char *)data, size, &a, &ae);
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
            abort(); /* an error is JSON whatever it quotes */
    }
    if (!gw_description_read(&d, data, size, &a, &e) && (!d.ctx || !d.seqs || !d.id))
        abort();
    buf_free(&b);
    arena_free(&a);
    return 0;
}
