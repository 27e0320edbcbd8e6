/* The codec works on whole buffers and does no I/O. Reading keeps an offset (`done`) into what was fed, so that many small frames
 * cost one memmove a feed. A body cut into parts is joined in a second buffer; its parts must follow each other on the connection. */
#include "engine/frame.h"

#include <math.h>
#include <string.h>

static const uint32_t magic = 0x31554C53; /* "SLU1" */
enum { STOPS_MAX = 16, STOP_BYTES_MAX = 256, TENANT_MAX = 256, FED_MAX = 2 * ((1 << 20) + ENG_FRAME_HEADER) };

bool eng_frame_put(struct buf *out, uint16_t type, uint64_t request, const void *body, size_t n)
{
    const char *p = n ? body : "";
    size_t frames = n ? (n + ENG_FRAME_BODY_MAX - 1) / ENG_FRAME_BODY_MAX : 1;
    if (n > SIZE_MAX / 2 || !buf_reserve(out, n + frames * ENG_FRAME_HEADER)) { /* all of it or nothing */
        out->failed = true;
        return false;
    }
    do {
        uint32_t part = n > ENG_FRAME_BODY_MAX ? ENG_FRAME_BODY_MAX : (uint32_t)n;
        buf_u32(out, magic);
        buf_u16(out, type);
        buf_u16(out, n > part ? ENG_FRAME_MORE : 0);
        buf_u64(out, request);
        buf_u32(out, part);
        buf_u32(out, 0);
        buf_add(out, p, part);
        p += part;
        n -= part;
    } while (n);
    return !out->failed;
}

/* ---- reading frames ----------------------------------------------------------------------------------------- */

void eng_frame_reader_init(struct eng_frame_reader *r, size_t body_max)
{
    *r = (struct eng_frame_reader){.body_max = body_max};
    buf_init(&r->in, FED_MAX);
    buf_init(&r->joined, body_max);
}

void eng_frame_reader_free(struct eng_frame_reader *r)
{
    buf_free(&r->in);
    buf_free(&r->joined);
}

int eng_frame_feed(struct eng_frame_reader *r, const void *p, size_t n, struct err *e)
{
    if (r->done) {
        buf_consume(&r->in, r->done);
        r->done = 0;
    }
    if (n > FED_MAX - r->in.len)
        return err_set(e, ERR_LIMIT, "frames: %zu bytes fed on top of %zu unread ones, expected at most %d", n, r->in.len, FED_MAX);
    if (!buf_add(&r->in, p, n)) {
        r->in.failed = false;
        return err_set(e, ERR_NOMEM, "frames: no memory for %zu bytes", r->in.len + n);
    }
    return ERR_OK;
}

static int broken(struct err *e, const char *what, uint64_t expected, uint64_t found)
{
    err_set(e, ERR_FORMAT, "frame: %s: expected %llu, found %llu", what, (unsigned long long)expected, (unsigned long long)found);
    return -1;
}

/* Appends a part. 1: it was the last, *f is the whole. */
static int join(struct eng_frame_reader *r, struct eng_frame *f, bool more, struct err *e)
{
    if (r->join_type && (r->join_type != f->type || r->join_request != f->request))
        return broken(e, "a part of another body: type", r->join_type, f->type);
    if (more && !f->n)
        return broken(e, "an empty part, bytes", 1, 0);
    if (!r->join_type && !more)
        return 1;
    if (f->n > r->body_max - r->joined.len)
        return broken(e, "joined body, at most bytes", r->body_max, r->joined.len + f->n);
    if (!buf_add(&r->joined, f->body, f->n)) {
        err_set(e, ERR_NOMEM, "frame: no memory to join %zu bytes", r->joined.len + f->n);
        return -1;
    }
    r->join_type = more ? f->type : 0;
    r->join_request = f->request;
    f->body = (const uint8_t *)r->joined.data;
    f->n = r->joined.len;
    return !more;
}

int eng_frame_next(struct eng_frame_reader *r, struct eng_frame *f, struct err *e)
{
    if (!r->join_type && r->joined.len) { /* handed out by the last call */
        buf_reset(&r->joined);
        if (r->joined.cap > ENG_FRAME_BODY_MAX)
            buf_free(&r->joined);
    }
    for (;;) {
        if (r->in.len - r->done < ENG_FRAME_HEADER)
            return 0;
        struct rd h = rd_of(r->in.data + r->done, ENG_FRAME_HEADER);
        uint32_t m = rd_u32(&h);
        f->type = rd_u16(&h);
        uint16_t flags = rd_u16(&h);
        f->request = rd_u64(&h);
        f->n = rd_u32(&h);
        uint32_t zero = rd_u32(&h);
        if (m != magic)
            return broken(e, "magic", magic, m);
        if (flags & ~ENG_FRAME_MORE)
            return broken(e, "flags", ENG_FRAME_MORE, flags);
        if (zero)
            return broken(e, "last word of the header", 0, zero);
        if (f->n > ENG_FRAME_BODY_MAX || f->n > r->body_max)
            return broken(e, "body, at most bytes", r->body_max < ENG_FRAME_BODY_MAX ? r->body_max : ENG_FRAME_BODY_MAX, f->n);
        if (r->in.len - r->done - ENG_FRAME_HEADER < f->n)
            return 0;
        f->body = (const uint8_t *)r->in.data + r->done + ENG_FRAME_HEADER;
        r->done += ENG_FRAME_HEADER + f->n;
        if (f->type < ENG_FR_HELLO || f->type > ENG_FR_PONG)
            continue; /* a later version's: skipped */
        int got = join(r, f, flags & ENG_FRAME_MORE, e);
        if (got)
            return got;
    }
}

/* ---- SUBMIT -------------------------------------------------------------------------------------------------- */

enum { SUBMIT_IGNORE_EOS = 1, SUBMIT_LOGPROBS = 2, SUBMIT_MARKERS = 4 };

bool eng_frame_put_submit(struct buf *b, const struct eng_request *r, uint64_t now_ns)
{
    uint64_t left = !r->deadline_ns ? 0 : r->deadline_ns > now_ns ? r->deadline_ns - now_ns : 1;
    const char *tenant = r->tenant ? r->tenant : "";
    buf_u32(b, r->n_ids);
    buf_u32(b, r->n_done);
    buf_u64(b, r->text_skip);
    buf_u32(b, r->max_tokens);
    buf_u32(b, r->min_tokens);
    buf_u32(b, (r->ignore_eos ? SUBMIT_IGNORE_EOS : 0) | (r->logprobs ? SUBMIT_LOGPROBS : 0) | (r->markers ? SUBMIT_MARKERS : 0));
    buf_f32(b, r->sampling.temperature);
    buf_f32(b, r->sampling.top_p);
    buf_f32(b, r->sampling.min_p);
    buf_u32(b, (uint32_t)r->sampling.top_k);
    buf_u64(b, r->sampling.seed);
    buf_u64(b, left);
    buf_u32(b, (uint32_t)r->priority);
    buf_f32(b, r->sampling.presence);
    buf_f32(b, r->sampling.frequency);
    buf_f32(b, r->sampling.repetition);
    buf_u32(b, r->sampling.choice);
    buf_u32(b, r->top_logprobs);
    buf_blob(b, tenant, strlen(tenant));
    buf_u32(b, r->n_stops);
    for (uint32_t i = 0; i < r->n_stops; i++)
        buf_blob(b, r->stops[i], r->stop_lens[i]);
    buf_u32(b, r->n_bias);
    for (uint32_t i = 0; i < r->n_bias; i++) {
        buf_u32(b, (uint32_t)r->bias[i].id);
        buf_f32(b, r->bias[i].bias);
    }
    buf_blob(b, r->grammar ? r->grammar : "", r->grammar ? r->grammar_n : 0);
    buf_blob(b, r->grammar_trigger ? r->grammar_trigger : "", r->grammar_trigger ? r->grammar_trigger_n : 0);
    buf_reserve(b, (size_t)r->n_ids * 4);
    for (uint32_t i = 0; i < r->n_ids; i++)
        buf_u32(b, (uint32_t)r->ids[i]);
    return !b->failed;
}

static int refuse(struct err *e, const char *body, const char *what)
{
    return err_set(e, ERR_FORMAT, "%s frame: %s", body, what);
}

static int get_stops(struct rd *d, struct arena *a, struct eng_request *r, struct err *e)
{
    r->n_stops = rd_u32(d);
    if (d->bad || r->n_stops > STOPS_MAX)
        return refuse(e, "SUBMIT", "expected at most 16 stop strings");
    const char **stops = ARENA_ARRAY(a, const char *, STOPS_MAX);
    uint32_t *lens = ARENA_ARRAY(a, uint32_t, STOPS_MAX);
    if (!stops || !lens)
        return err_set(e, ERR_NOMEM, "SUBMIT frame: stop strings");
    for (uint32_t i = 0; i < r->n_stops; i++) {
        size_t n;
        stops[i] = rd_blob(d, &n);
        if (d->bad || n == 0 || n > STOP_BYTES_MAX)
            return refuse(e, "SUBMIT", "expected stop strings of 1 to 256 bytes");
        lens[i] = (uint32_t)n;
    }
    r->stops = stops;
    r->stop_lens = lens;
    return ERR_OK;
}

static int get_bias(struct rd *d, struct arena *a, struct eng_request *r, struct err *e)
{
    r->n_bias = rd_u32(d);
    if (d->bad || r->n_bias > ENG_BIAS_MAX || r->n_bias > rd_left(d) / 8)
        return refuse(e, "SUBMIT", "expected at most 300 biases");
    struct eng_bias *bias = ARENA_ARRAY(a, struct eng_bias, r->n_bias);
    if (!bias)
        return err_set(e, ERR_NOMEM, "SUBMIT frame: biases");
    for (uint32_t i = 0; i < r->n_bias; i++) {
        bias[i].id = (int32_t)rd_u32(d);
        bias[i].bias = rd_f32(d);
        if (bias[i].id < 0 || !isfinite(bias[i].bias))
            return refuse(e, "SUBMIT", "expected finite biases of ids of zero or more");
    }
    r->bias = bias;
    return ERR_OK;
}

/* Empty means none, for both. */
static int get_grammar(struct rd *d, struct eng_request *r, struct err *e)
{
    size_t n, n_trigger;
    const char *text = rd_blob(d, &n);
    if (d->bad || n > ENG_GRAMMAR_MAX)
        return refuse(e, "SUBMIT", "expected a grammar of at most 1 MiB");
    const char *trigger = rd_blob(d, &n_trigger);
    if (d->bad || n_trigger > ENG_GRAMMAR_TRIGGER_MAX || (n_trigger && !n))
        return refuse(e, "SUBMIT", "expected a trigger of at most 256 bytes, beside a grammar");
    r->grammar = n ? text : NULL;
    r->grammar_n = (uint32_t)n;
    r->grammar_trigger = n_trigger ? trigger : NULL;
    r->grammar_trigger_n = (uint32_t)n_trigger;
    return ERR_OK;
}

static int get_ids(struct rd *d, size_t n, const char *body, struct arena *a, const int32_t **out, struct err *e)
{
    if (d->bad || n > rd_left(d) / 4)
        return refuse(e, body, "expected as many token ids as it says");
    int32_t *ids = ARENA_ARRAY(a, int32_t, n);
    if (!ids)
        return err_set(e, ERR_NOMEM, "%s frame: %zu token ids", body, n);
    for (size_t i = 0; i < n; i++)
        if ((ids[i] = (int32_t)rd_u32(d)) < 0)
            return refuse(e, body, "expected token ids of zero or more");
    *out = ids;
    return ERR_OK;
}

static bool sane(const struct eng_sampling *s)
{
    return isfinite(s->temperature) && s->temperature >= 0 && s->top_p >= 0 && s->top_p <= 1 && s->min_p >= 0 && s->min_p <= 1 && s->top_k >= 0 &&
           isfinite(s->presence) && isfinite(s->frequency) && isfinite(s->repetition) && s->repetition >= 0;
}

int eng_frame_get_submit(const struct eng_frame *f, uint64_t now_ns, struct arena *a, struct eng_request *r, struct err *e)
{
    struct rd d = rd_of(f->body, f->n);
    size_t n;
    int rc;
    *r = (struct eng_request){.id = f->request};
    r->n_ids = rd_u32(&d);
    r->n_done = rd_u32(&d);
    r->text_skip = rd_u64(&d);
    r->max_tokens = rd_u32(&d);
    r->min_tokens = rd_u32(&d);
    uint32_t flags = rd_u32(&d);
    r->ignore_eos = flags & SUBMIT_IGNORE_EOS;
    r->logprobs = flags & SUBMIT_LOGPROBS;
    r->markers = flags & SUBMIT_MARKERS;
    r->sampling = (struct eng_sampling){.temperature = rd_f32(&d)};
    r->sampling.top_p = rd_f32(&d);
    r->sampling.min_p = rd_f32(&d);
    r->sampling.top_k = (int32_t)rd_u32(&d);
    r->sampling.seed = rd_u64(&d);
    uint64_t left = rd_u64(&d);
    r->priority = (int32_t)rd_u32(&d);
    r->sampling.presence = rd_f32(&d);
    r->sampling.frequency = rd_f32(&d);
    r->sampling.repetition = rd_f32(&d);
    r->sampling.choice = rd_u32(&d);
    r->top_logprobs = rd_u32(&d);
    const char *tenant = rd_blob(&d, &n);
    if (d.bad)
        return refuse(e, "SUBMIT", "the body ends too early");
    if (flags & ~(uint32_t)(SUBMIT_IGNORE_EOS | SUBMIT_LOGPROBS | SUBMIT_MARKERS))
        return refuse(e, "SUBMIT", "unknown flags");
    if (!sane(&r->sampling))
        return refuse(e, "SUBMIT", "expected temperature >= 0, top_p and min_p from 0 to 1, top_k >= 0, finite penalties");
    if (r->top_logprobs > ENG_TOP_MAX)
        return refuse(e, "SUBMIT", "expected at most 20 top logprobs");
    if (n > TENANT_MAX || memchr(tenant, 0, n))
        return refuse(e, "SUBMIT", "expected a tenant of at most 256 bytes without NUL");
    if (r->n_done >= r->n_ids)
        return refuse(e, "SUBMIT", "expected a prompt of one token or more");
    if (n && !(r->tenant = arena_strdup(a, tenant, n)))
        return err_set(e, ERR_NOMEM, "SUBMIT frame: tenant");
    if (left && __builtin_add_overflow(now_ns, left, &r->deadline_ns))
        return refuse(e, "SUBMIT", "the deadline is out of range");
    if ((rc = get_stops(&d, a, r, e)) || (rc = get_bias(&d, a, r, e)) || (rc = get_grammar(&d, r, e)) || (rc = get_ids(&d, r->n_ids, "SUBMIT", a, &r->ids, e)))
        return rc;
    return rd_left(&d) ? refuse(e, "SUBMIT", "bytes after the last token id") : ERR_OK;
}

/* ---- TOKENS, DONE, REFUSED ------------------------------------------------------------------------------------ */

bool eng_frame_put_logprobs(struct buf *b, const struct eng_logprobs *l)
{
    buf_f32(b, l->logprob);
    buf_u32(b, l->n_top);
    for (uint32_t i = 0; i < l->n_top; i++) {
        buf_u32(b, (uint32_t)l->top[i].id);
        buf_f32(b, l->top[i].logprob);
    }
    return !b->failed;
}

bool eng_frame_put_tokens(struct buf *b, const struct eng_frame_tokens *t)
{
    buf_u32(b, t->n);
    for (uint32_t i = 0; i < t->n; i++)
        buf_u32(b, (uint32_t)t->ids[i]);
    buf_blob(b, t->text, t->text_n);
    buf_u32(b, t->logprobs ? t->n : 0);
    for (uint32_t i = 0; t->logprobs && i < t->n; i++)
        eng_frame_put_logprobs(b, &t->logprobs[i]);
    return !b->failed;
}

static int get_logprobs(struct rd *d, uint32_t n, struct arena *a, const struct eng_logprobs **out, struct err *e)
{
    *out = NULL;
    if (!n)
        return ERR_OK;
    if (n > rd_left(d) / 8)
        return refuse(e, "TOKENS", "expected as many logprobs as it says");
    struct eng_logprobs *l = ARENA_ARRAY(a, struct eng_logprobs, n);
    if (!l)
        return err_set(e, ERR_NOMEM, "TOKENS frame: %u logprobs", n);
    for (uint32_t i = 0; i < n; i++) {
        l[i].logprob = rd_f32(d);
        l[i].n_top = rd_u32(d);
        if (d->bad || l[i].n_top > ENG_TOP_MAX || isnan(l[i].logprob))
            return refuse(e, "TOKENS", "expected a number and at most 20 alternatives for a token");
        for (uint32_t k = 0; k < l[i].n_top; k++) {
            l[i].top[k].id = (int32_t)rd_u32(d);
            l[i].top[k].logprob = rd_f32(d);
            if (d->bad || l[i].top[k].id < 0 || isnan(l[i].top[k].logprob))
                return refuse(e, "TOKENS", "expected alternatives with an id of zero or more and a number");
        }
    }
    *out = l;
    return ERR_OK;
}

int eng_frame_get_tokens(const struct eng_frame *f, struct arena *a, struct eng_frame_tokens *t, struct err *e)
{
    struct rd d = rd_of(f->body, f->n);
    t->n = rd_u32(&d);
    int rc = get_ids(&d, t->n, "TOKENS", a, &t->ids, e);
    if (rc)
        return rc;
    t->text = rd_blob(&d, &t->text_n);
    uint32_t n = rd_u32(&d);
    if (d.bad || (n && n != t->n))
        return refuse(e, "TOKENS", "expected a text, then logprobs for all tokens or none");
    if ((rc = get_logprobs(&d, n, a, &t->logprobs, e)))
        return rc;
    return rd_left(&d) ? refuse(e, "TOKENS", "bytes after the last field") : ERR_OK;
}

bool eng_frame_put_done(struct buf *b, const struct eng_event *ev)
{
    static const struct eng_usage none = {0};
    const struct eng_usage *u = ev->usage ? ev->usage : &none;
    buf_u32(b, (uint32_t)ev->finish);
    buf_u32(b, u->prompt_tokens);
    buf_u32(b, u->cached_tokens);
    buf_u32(b, u->output_tokens);
    buf_u32(b, u->draft_tokens);
    buf_u32(b, u->draft_accepted);
    buf_u64(b, u->queue_ns);
    buf_u64(b, u->prefill_ns);
    buf_u64(b, u->decode_ns);
    buf_u32(b, (uint32_t)ev->stop);
    buf_blob(b, ev->text, ev->n);
    buf_u32(b, ev->err ? (uint32_t)ev->err->code : 0);
    const char *msg = ev->err ? ev->err->msg : "";
    return buf_blob(b, msg, strlen(msg));
}

/* An error as a peer tells it: a code of ours and one line of text. */
static int get_err(struct rd *d, const char *body, struct err *out, struct err *e)
{
    size_t n;
    uint32_t code = rd_u32(d);
    const char *msg = rd_blob(d, &n);
    if (d->bad || rd_left(d))
        return refuse(e, body, "expected an error message to end the body");
    if (code > ERR_CLOSED)
        return refuse(e, body, "unknown error code");
    if (n >= sizeof out->msg || memchr(msg, 0, n))
        return refuse(e, body, "expected an error message of less than 400 bytes without NUL");
    err_set(out, (int)code, "%.*s", (int)n, msg);
    return ERR_OK;
}

int eng_frame_get_done(const struct eng_frame *f, struct eng_event *ev, struct eng_usage *u, struct err *done_err, struct err *e)
{
    struct rd d = rd_of(f->body, f->n);
    uint32_t finish = rd_u32(&d);
    *u = (struct eng_usage){.prompt_tokens = rd_u32(&d)};
    u->cached_tokens = rd_u32(&d);
    u->output_tokens = rd_u32(&d);
    u->draft_tokens = rd_u32(&d);
    u->draft_accepted = rd_u32(&d);
    u->queue_ns = rd_u64(&d);
    u->prefill_ns = rd_u64(&d);
    u->decode_ns = rd_u64(&d);
    *ev = (struct eng_event){.type = ENG_EV_DONE, .id = f->request, .n_out = u->output_tokens, .usage = u};
    ev->stop = (int32_t)rd_u32(&d);
    ev->text = rd_blob(&d, &ev->n);
    if (d.bad)
        return refuse(e, "DONE", "the body ends too early");
    if (finish > ENG_FAILED)
        return refuse(e, "DONE", "unknown finish");
    ev->finish = (enum eng_finish)finish;
    if (ev->stop < -1 || ev->stop >= STOPS_MAX)
        return refuse(e, "DONE", "expected the number of a stop string or -1");
    int rc = get_err(&d, "DONE", done_err, e);
    if (!rc && ev->finish == ENG_FAILED)
        ev->err = done_err;
    return rc;
}

bool eng_frame_put_refused(struct buf *b, const struct err *why)
{
    buf_u32(b, (uint32_t)why->code);
    return buf_blob(b, why->msg, strlen(why->msg));
}

int eng_frame_get_refused(const struct eng_frame *f, struct err *why, struct err *e)
{
    struct rd d = rd_of(f->body, f->n);
    return get_err(&d, "REFUSED", why, e);
}
