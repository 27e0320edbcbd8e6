/* PROXY v2 headers, X-Forwarded-For lists and networks from arbitrary bytes: no crash, and what is accepted is within bounds. */
#include <stdlib.h>
#include <string.h>

#include "gateway/proxy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gw_nets nets = {0}, more = {0};
    union gw_addr a;
    struct err e;
    bool local;
    char out[GW_ADDR_TEXT] = "";
    if (size >= GW_PROXY2_FIXED) {
        size_t n = gw_proxy2_length(data);
        if (n > GW_PROXY2_MAX)
            abort();
        if (n && n <= size && !gw_proxy2_parse(data, n, &a, &local, &e) && !local && a.sa.sa_family != AF_INET && a.sa.sa_family != AF_INET6)
            abort();
    }
    gw_proxy2_parse(data, size, &a, &local, &e);
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    gw_nets_add(&nets, "10.0.0.0/8", &e);
    if (gw_forwarded_for(text, &nets, out) && (!*out || !memchr(out, 0, sizeof out)))
        abort();
    gw_nets_add(&more, text, &e);
    free(text);
    return 0;
}
