#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.max = b->max};
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

bool buf_reserve(struct buf *b, size_t more)
{
    if (b->failed || more > b->max || b->len > b->max - more) {
        b->failed = true;
        return false;
    }
    size_t need = b->len + more + 1;
    if (need > PTRDIFF_MAX || need == 0) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap *= 2;
    char *p = realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

bool buf_add(struct buf *b, const void *p, size_t n)
{
    if (!buf_reserve(b, n))
        return false;
    if (n)
        memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
    return true;
}

bool buf_str(struct buf *b, const char *s) { return buf_add(b, s, strlen(s)); }
bool buf_char(struct buf *b, char c) { return buf_add(b, &c, 1); }

bool buf_uint(struct buf *b, uint64_t v)
{
    char s[20], *p = s + sizeof s;
    do
        *--p = (char)('0' + v % 10);
    while (v /= 10);
    return buf_add(b, p, (size_t)(s + sizeof s - p));
}

bool buf_milli(struct buf *b, uint64_t v)
{
    char s[4] = {'.', (char)('0' + v / 100 % 10), (char)('0' + v / 10 % 10), (char)('0' + v % 10)};
    return buf_uint(b, v / 1000) && buf_add(b, s, sizeof s);
}

bool buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    size_t room = b->data && !b->failed ? b->cap - b->len : 0; /* with the NUL; often enough, and then once is enough */
    va_start(ap, fmt);
    int n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n < 0 || !buf_reserve(b, (size_t)n)) {
        if (room)
            b->data[b->len] = 0;
        b->failed = true;
        return false;
    }
    if ((size_t)n >= room) {
        va_start(ap, fmt);
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    b->len += (size_t)n;
    return true;
}

void buf_consume(struct buf *b, size_t n)
{
    if (n >= b->len)
        n = b->len;
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

static bool put_le(struct buf *b, uint64_t v, size_t n)
{
    unsigned char p[8];
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(v >> (8 * i));
    return buf_add(b, p, n);
}

bool buf_u8(struct buf *b, uint8_t v) { return put_le(b, v, 1); }
bool buf_u16(struct buf *b, uint16_t v) { return put_le(b, v, 2); }
bool buf_u32(struct buf *b, uint32_t v) { return put_le(b, v, 4); }
bool buf_u64(struct buf *b, uint64_t v) { return put_le(b, v, 8); }

bool buf_f32(struct buf *b, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return buf_u32(b, u);
}

bool buf_blob(struct buf *b, const void *p, size_t n)
{
    if (n > UINT32_MAX || !buf_reserve(b, n + 4)) {
        b->failed = true;
        return false;
    }
    return buf_u32(b, (uint32_t)n) && buf_add(b, p, n);
}

struct rd rd_of(const void *p, size_t n)
{
    const uint8_t *b = n ? p : (const uint8_t *)""; /* NULL + 0 is not arithmetic C allows */
    return (struct rd){.p = b, .end = b + n};
}

const void *rd_bytes(struct rd *r, size_t n)
{
    if (r->bad || rd_left(r) < n) {
        r->bad = true;
        return NULL;
    }
    const void *p = r->p;
    r->p += n;
    return p;
}

static uint64_t get_le(struct rd *r, size_t n)
{
    const uint8_t *p = rd_bytes(r, n);
    uint64_t v = 0;
    for (size_t i = 0; p && i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t rd_u8(struct rd *r) { return (uint8_t)get_le(r, 1); }
uint16_t rd_u16(struct rd *r) { return (uint16_t)get_le(r, 2); }
uint32_t rd_u32(struct rd *r) { return (uint32_t)get_le(r, 4); }
uint64_t rd_u64(struct rd *r) { return get_le(r, 8); }

float rd_f32(struct rd *r)
{
    uint32_t u = rd_u32(r);
    float f;
    memcpy(&f, &u, 4);
    return f;
}

const void *rd_blob(struct rd *r, size_t *n)
{
    *n = rd_u32(r);
    const void *p = rd_bytes(r, *n);
    if (!p)
        *n = 0;
    return p;
}
