/* engine/tok_decode.c - ids back to text, one at a time: only whole characters leave.
 *
 * held is a valid beginning of a character. A byte that cannot continue it sends it out as U+FFFD: one for the maximal bad part
 * when pieces are bytes, one for each byte when bytes are the fallback of a character vocabulary. That is what the reference does. */
#include <string.h>

#include "engine/tok_internal.h"

#define BAD "\xEF\xBF\xBD"

void eng_detok_init(struct eng_detok *d)
{
    memset(d, 0, sizeof *d);
}

static void emit(const eng_tok *t, struct eng_detok *d, const char *p, size_t n, struct buf *out)
{
    if (n == 0)
        return;
    if (!d->started && (t->d.flags & TOK_DEC_STRIP) && *p == ' ')
        p++, n--;
    d->started = true;
    buf_add(out, p, n);
}

static void give_up(const eng_tok *t, struct eng_detok *d, struct buf *out)
{
    unsigned times = d->n_held == 0 ? 0 : t->d.flags & TOK_DEC_BYTES ? 1 : d->n_held;
    for (unsigned i = 0; i < times; i++)
        emit(t, d, BAD, 3, out);
    d->n_held = 0;
}

static void byte(const eng_tok *t, struct eng_detok *d, uint8_t c, struct buf *out)
{
    if (d->n_held) {
        uint8_t lead = d->held[0];
        uint8_t lo = d->n_held > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        uint8_t hi = d->n_held > 1 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (c >= lo && c <= hi) {
            d->held[d->n_held++] = c;
            if (d->n_held == tok_utf8_len(lead)) {
                size_t n = d->n_held;
                d->n_held = 0;
                emit(t, d, (const char *)d->held, n, out);
            }
            return;
        }
        give_up(t, d, out);
    }
    if (c < 0x80)
        emit(t, d, (const char *)&c, 1, out);
    else if (c >= 0xC2 && c <= 0xF4) {
        d->held[0] = c;
        d->n_held = 1;
    } else
        emit(t, d, BAD, 3, out);
}

/* Runs of plain text go out at once; only what may be part of a character is taken byte by byte. */
static void bytes(const eng_tok *t, struct eng_detok *d, const char *p, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        size_t k = i;
        while (d->n_held == 0 && k < n && (uint8_t)p[k] < 0x80)
            k++;
        emit(t, d, p + i, k - i, out);
        i = k;
        if (i < n)
            byte(t, d, (uint8_t)p[i++], out);
    }
}

static void text(const eng_tok *t, struct eng_detok *d, const char *p, size_t n, bool drop_marks, struct buf *out)
{
    const char *end = p + n, *m;
    while ((t->d.flags & TOK_DEC_SPACE) && (m = memmem(p, (size_t)(end - p), "\xE2\x96\x81", 3))) {
        emit(t, d, p, (size_t)(m - p), out);
        if (!drop_marks)
            emit(t, d, " ", 1, out);
        p = m + 3;
    }
    emit(t, d, p, (size_t)(end - p), out);
}

int eng_detok_push(const eng_tok *t, struct eng_detok *d, int32_t id, bool skip_special, struct buf *out)
{
    size_t n;
    if (id < 0 || (uint32_t)id >= t->d.n_ids || !t->d.pieces[id].used) /* padding rows of the embedding have no text */
        return ERR_OK;
    if (skip_special && eng_tok_is_special(t, id))
        return ERR_OK;
    const char *p = tok_raw(t, id, &n);
    if (t->d.flags & TOK_DEC_BYTES)
        bytes(t, d, p, n, out);
    else if (t->byte_of[id] >= 0)
        byte(t, d, (uint8_t)t->byte_of[id], out);
    else {
        bool first = !d->started && (t->d.flags & TOK_DEC_FIRST);
        give_up(t, d, out);
        text(t, d, p, n, first, out);
        d->started = d->started || first;
    }
    return out->failed ? ERR_NOMEM : ERR_OK;
}

int eng_detok_end(const eng_tok *t, struct eng_detok *d, struct buf *out)
{
    give_up(t, d, out);
    return out->failed ? ERR_NOMEM : ERR_OK;
}

bool eng_tok_bytes(const eng_tok *t, int32_t id, struct buf *out)
{
    size_t n;
    if (id < 0 || (uint32_t)id >= t->d.n_ids || !t->d.pieces[id].used)
        return false;
    const char *p = tok_raw(t, id, &n);
    if (!(t->d.flags & TOK_DEC_BYTES) && t->byte_of[id] >= 0)
        return buf_char(out, (char)t->byte_of[id]);
    for (const char *end = p + n, *m; !(t->d.flags & TOK_DEC_BYTES) && (t->d.flags & TOK_DEC_SPACE); p = m + 3) {
        if (!(m = memmem(p, (size_t)(end - p), "\xE2\x96\x81", 3)))
            break;
        buf_add(out, p, (size_t)(m - p));
        buf_char(out, ' ');
        n = (size_t)(end - m) - 3;
    }
    return buf_add(out, p, n);
}
