#include "gateway/proxy.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- networks ------------------------------------------------------------------------------------------------ */

/* An address as 16 bytes. Returns how many of its bits are behind the IPv4 mapping: 32 or 128; 0: no address. */
static unsigned to16(const char *text, uint8_t out[16])
{
    memset(out, 0, 16);
    if (inet_pton(AF_INET, text, out + 12) == 1) {
        out[10] = out[11] = 0xFF;
        return 32;
    }
    if (inet_pton(AF_INET6, text, out) != 1)
        return 0;
    return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)out) ? 32 : 128;
}

static bool same_prefix(const uint8_t a[16], const uint8_t b[16], unsigned bits)
{
    if (memcmp(a, b, bits / 8))
        return false;
    return !(bits % 8) || !((a[bits / 8] ^ b[bits / 8]) >> (8 - bits % 8));
}

int gw_nets_add(struct gw_nets *s, const char *text, struct err *e)
{
    char host[GW_ADDR_TEXT], *end = NULL;
    uint8_t masked[16] = {0};
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    if (s->n == GW_NETS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d networks", GW_NETS_MAX);
    if (!n || n >= sizeof host)
        return err_set(e, ERR_INVALID, "expected an address or network such as 10.0.0.0/8, found '%.60s'", text);
    memcpy(host, text, n);
    host[n] = 0;
    unsigned width = to16(host, s->net[s->n].addr);
    unsigned long bits = slash && slash[1] >= '0' && slash[1] <= '9' ? strtoul(slash + 1, &end, 10) : width;
    if (!width || (slash && (!end || *end)) || bits > width)
        return err_set(e, ERR_INVALID, "expected an address or network such as 10.0.0.0/8, found '%.60s'", text);
    bits += 128 - width;
    for (unsigned i = 0; i < bits; i++)
        masked[i / 8] |= (uint8_t)(s->net[s->n].addr[i / 8] & (0x80 >> i % 8));
    if (memcmp(masked, s->net[s->n].addr, 16))
        return err_set(e, ERR_INVALID, "'%.60s' has bits behind its prefix", text);
    s->net[s->n++].bits = (unsigned)bits;
    return ERR_OK;
}

static bool has16(const struct gw_nets *s, const uint8_t a[16])
{
    for (size_t i = 0; i < s->n; i++)
        if (same_prefix(a, s->net[i].addr, s->net[i].bits))
            return true;
    return false;
}

bool gw_nets_has(const struct gw_nets *s, const struct sockaddr *a)
{
    uint8_t b[16] = {0};
    if (!s->n)
        return false;
    if (a->sa_family == AF_INET) {
        b[10] = b[11] = 0xFF;
        memcpy(b + 12, &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    } else if (a->sa_family == AF_INET6)
        memcpy(b, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, 16);
    else
        return false;
    return has16(s, b);
}

/* ---- X-Forwarded-For ----------------------------------------------------------------------------------------- */

/* One entry: an address, bare, in brackets, or with a port ("192.0.2.1:4711", "[2001:db8::1]:4711"). */
static bool entry(const char *p, size_t n, uint8_t a[16], char text[GW_ADDR_TEXT])
{
    while (n && (*p == ' ' || *p == '\t'))
        p++, n--;
    while (n && (p[n - 1] == ' ' || p[n - 1] == '\t'))
        n--;
    const char *end = p + n, *colon = memchr(p, ':', n);
    if (n && *p == '[') {
        const char *close = memchr(p, ']', n);
        if (!close || (close + 1 < end && close[1] != ':'))
            return false;
        p++;
        end = close;
    } else if (colon && !memchr(colon + 1, ':', (size_t)(end - colon - 1)))
        end = colon;
    n = (size_t)(end - p);
    if (!n || n >= GW_ADDR_TEXT || memchr(p, 0, n))
        return false;
    memcpy(text, p, n);
    text[n] = 0;
    unsigned width = to16(text, a);
    if (width) /* in one spelling, whatever the proxy's was */
        inet_ntop(width == 32 ? AF_INET : AF_INET6, width == 32 ? a + 12 : a, text, GW_ADDR_TEXT);
    return width != 0;
}

bool gw_forwarded_for(const char *list, const struct gw_nets *trusted, char out[GW_ADDR_TEXT])
{
    const char *end = list + strlen(list);
    char text[GW_ADDR_TEXT];
    uint8_t a[16];
    for (;;) {
        const char *p = end;
        while (p > list && p[-1] != ',')
            p--;
        if (!entry(p, (size_t)(end - p), a, text))
            return false;
        memcpy(out, text, sizeof text);
        if (!has16(trusted, a) || p == list)
            return true;
        end = p - 1;
    }
}

/* ---- PROXY protocol v2 --------------------------------------------------------------------------------------- */

static const uint8_t signature[12] = {0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A};

size_t gw_proxy2_length(const uint8_t fixed[GW_PROXY2_FIXED])
{
    size_t n = GW_PROXY2_FIXED + ((size_t)fixed[14] << 8 | fixed[15]);
    return memcmp(fixed, signature, sizeof signature) || n > GW_PROXY2_MAX ? 0 : n;
}

int gw_proxy2_parse(const uint8_t *p, size_t n, union gw_addr *from, bool *local, struct err *e)
{
    *local = false;
    memset(from, 0, sizeof *from);
    if (n < GW_PROXY2_FIXED || gw_proxy2_length(p) != n)
        return err_set(e, ERR_FORMAT, "PROXY header: wrong signature or length (%zu bytes)", n);
    if (p[12] >> 4 != 2 || (p[12] & 15) > 1)
        return err_set(e, ERR_FORMAT, "PROXY header: expected version 2 with command LOCAL or PROXY, found byte %02x", p[12]);
    if (!(p[12] & 15)) {
        *local = true;
        return ERR_OK;
    }
    size_t need = p[13] == 0x11 ? 12 : p[13] == 0x21 ? 36 : 0;
    if (!need)
        return err_set(e, ERR_UNSUPPORTED, "PROXY header: expected TCP over IPv4 or IPv6, found family %02x", p[13]);
    if (n - GW_PROXY2_FIXED < need)
        return err_set(e, ERR_FORMAT, "PROXY header: %zu bytes of addresses, expected %zu", n - GW_PROXY2_FIXED, need);
    const uint8_t *a = p + GW_PROXY2_FIXED; /* source, destination, source port, destination port */
    if (need == 12) {
        from->in.sin_family = AF_INET;
        memcpy(&from->in.sin_addr, a, 4);
        memcpy(&from->in.sin_port, a + 8, 2);
    } else {
        from->in6.sin6_family = AF_INET6;
        memcpy(&from->in6.sin6_addr, a, 16);
        memcpy(&from->in6.sin6_port, a + 32, 2);
    }
    return ERR_OK;
}
