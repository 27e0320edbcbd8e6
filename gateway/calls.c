/* The text that was fed waits in `held` from `at` on; each state takes what it is sure of and says it.
 *
 *   TEXT       content                    -> REASONING at its opening, CALL at the head of a call
 *   REASONING  until its closing          -> TEXT, or CALL where a control token begins one
 *   ARGUMENTS  JSON, byte by byte         -> TAIL
 *   MEMBERS    arguments spelled singly   -> VALUE, TAIL
 *   VALUE      one of them                -> MEMBERS
 *   TAIL       what closes the call       -> AFTER
 *   AFTER      another call, or the end of the calls -> TEXT
 *   OVER       nothing more is said */
#include "gateway/calls.h"

#include <stdlib.h>
#include <string.h>

#include "gateway/calls_internal.h"
#include "gateway/json_scan.h"

#define SPACE_HOLD 256

/* ---- saying ----------------------------------------------------------------------------------------------- */

static struct calls_part *last(gw_calls *c) { return c->parts.len ? (struct calls_part *)(void *)(c->parts.data + c->parts.len) - 1 : NULL; }

/* The part that text of this type goes to. */
void calls_open_part(gw_calls *c, enum gw_part_type type)
{
    struct calls_part *l = last(c), p;
    if (l && l->type == type && type != GW_PART_CALL && type != GW_PART_END)
        return;
    memset(&p, 0, sizeof p);
    p.type = type;
    p.call = c->n_calls ? c->n_calls - 1 : 0;
    p.at = c->bytes.len;
    buf_add(&c->parts, &p, sizeof p);
}

void calls_close_part(gw_calls *c)
{
    struct calls_part *l = last(c);
    if (l)
        l->n = c->bytes.len - l->at;
}

void calls_say(gw_calls *c, enum gw_part_type type, const char *p, size_t n)
{
    if (!n)
        return;
    calls_open_part(c, type);
    buf_add(&c->bytes, p, n);
    calls_close_part(c);
    if (type == GW_PART_REASONING)
        c->reasoning += n;
}

size_t calls_trailing_space(const char *p, size_t n)
{
    size_t k = 0;
    while (k < n && gw_is_space(p[n - 1 - k]))
        k++;
    return k;
}

enum space { SPACE_WAITS, SPACE_GOES, SPACE_STAYS };

/* Content or reasoning. White space at the beginning of either is dropped after other parts; at the end of what is sure it waits,
 * because a call or the end of the reasoning takes it away; a run of more than SPACE_HOLD stays. Returns how much of p was dealt with. */
static size_t say_text(gw_calls *c, enum gw_part_type type, const char *p, size_t n, enum space space)
{
    bool trims = (type == GW_PART_REASONING || c->cfg.tools) && space != SPACE_STAYS;
    size_t from = 0, keep = n, run;
    while (c->skip_space && from < n && gw_is_space(p[from]))
        from++;
    if (from == n)
        return n;
    c->skip_space = false;
    run = calls_trailing_space(p + from, n - from);
    if (run < n - from) {
        c->long_space = false;
        c->fresh &= type != GW_PART_CONTENT;
    }
    c->long_space |= run > SPACE_HOLD;
    if (trims && !c->long_space)
        keep -= run;
    calls_say(c, type, p + from, keep - from);
    return space == SPACE_WAITS ? keep : n;
}

/* How much of p is a control token's text. */
static size_t marker_text(const gw_calls *c, const char *p, size_t n)
{
    size_t best = 0;
    for (uint32_t i = 0; i < c->f->n_markers; i++) {
        size_t len = c->f->marker_text[i].n < n ? c->f->marker_text[i].n : n;
        if (len > best && !memcmp(p, c->f->marker_text[i].s, len))
            best = len;
    }
    return best;
}

/* Text that was taken for more, to its end: without its control tokens. */
static void say_plain(gw_calls *c, const char *p, size_t n)
{
    while (n) {
        const char *mark = memchr(p, ENG_MARK, n);
        size_t k = mark ? (size_t)(mark - p) : n;
        calls_say(c, GW_PART_CONTENT, p, k);
        if (mark)
            k += 1 + marker_text(c, mark + 1, n - k - 1);
        p += k;
        n -= k;
    }
    c->fresh = c->skip_space = c->long_space = false;
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

static void make_id(gw_calls *c, const char *name, size_t n)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const struct eng_tools_format *t = &c->f->tools;
    if (t->id == ENG_ID_PATTERN) {
        for (uint32_t i = 0; i < t->id_pattern.n; i++)
            if (t->id_pattern.v[i].kind == ENG_STEP_NAME)
                buf_add(&c->bytes, name, n);
            else if (t->id_pattern.v[i].kind == ENG_STEP_INDEX)
                buf_printf(&c->bytes, "%u", c->n_calls - 1 + t->first_index);
            else
                buf_add(&c->bytes, t->id_pattern.v[i].s, t->id_pattern.v[i].n);
        return;
    }
    if (t->id == ENG_ID_ANY)
        buf_str(&c->bytes, c->cfg.id_prefix);
    for (int i = t->id == ENG_ID_ALNUM9 ? 9 : 24; i; i--) { /* splitmix64 */
        uint64_t z = c->seed += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        buf_char(&c->bytes, digits[(z ^ z >> 31) % 62]);
    }
}

void calls_put_json(gw_calls *c, const char *p, size_t n)
{
    struct gw_scan s;
    gw_scan_init(&s);
    calls_open_part(c, GW_PART_ARGUMENTS);
    for (size_t i = 0; i < n; i++)
        gw_scan_byte(&s, (unsigned char)p[i], &c->bytes);
    calls_close_part(c);
}

static void end_call(gw_calls *c, bool broken)
{
    calls_open_part(c, GW_PART_END);
    struct calls_part *l = last(c);
    if (l)
        l->broken = broken;
    c->made += !broken;
    c->broken += broken;
    c->fresh = false;
    c->state = broken ? TEXT : c->cfg.tools->parallel ? AFTER : OVER;
}

void calls_break(gw_calls *c)
{
    if (c->cfg.whole) {
        c->bytes.len = c->undo_bytes;
        c->parts.len = c->undo_parts;
        c->n_calls--;
        c->broken++;
        say_plain(c, c->held.data + c->raw_at, c->at - c->raw_at);
        c->state = TEXT;
    } else {
        end_call(c, true);
    }
}

/* h points into held; from: where the call begins, used: its bytes up to the arguments. */
static void begin_call(gw_calls *c, const struct gw_head *h, size_t from, size_t used)
{
    enum eng_step_kind kind = c->f->tools.call[h->alt].v[h->body].kind;
    struct calls_part p;
    c->raw_at = from;
    c->undo_bytes = c->bytes.len;
    c->undo_parts = c->parts.len;
    c->at = from + used;
    c->head = *h;
    c->n_calls++;
    memset(&p, 0, sizeof p);
    p.type = GW_PART_CALL;
    p.call = c->n_calls - 1;
    p.at = c->bytes.len;
    p.n = h->tool->n;
    buf_add(&c->bytes, h->tool->name, h->tool->n);
    p.id_at = c->bytes.len;
    if (h->id)
        buf_add(&c->bytes, h->id, h->id_n);
    else
        make_id(c, h->tool->name, h->tool->n);
    p.id_n = c->bytes.len - p.id_at;
    buf_add(&c->parts, &p, sizeof p);
    c->any_member = false;
    gw_scan_init(&c->scan);
    if (h->known) {
        calls_put_json(c, h->args_n ? h->args : "{}", h->args_n ? h->args_n : 2);
        c->state = TAIL;
    } else {
        c->state = kind == ENG_STEP_MEMBERS ? MEMBERS : ARGUMENTS;
    }
    c->skip_space = c->long_space = false;
}

/* ---- text and reasoning ----------------------------------------------------------------------------------- */

enum opener { O_NONE, O_MORE, O_CALL, O_REASONING, O_DROP, O_LONE /* a control token that is part of nothing */ };
struct found { enum opener what; size_t used; struct gw_head head; };

/* What is held is looked at up to GW_CALLS_HOLD bytes: what needs more is no mark. */
struct gw_cursor calls_window(const gw_calls *c, const char *p, size_t n)
{
    return (struct gw_cursor){p, n < GW_CALLS_HOLD ? n : GW_CALLS_HOLD, 0, c->end || n > GW_CALLS_HOLD};
}

static enum opener lone_marker(const gw_calls *c, const char *p, size_t n, size_t *used)
{
    enum opener r = O_LONE;
    *used = 1;
    for (uint32_t i = 0; i < c->f->n_markers; i++) {
        size_t len = c->f->marker_text[i].n, have = n - 1 < len ? n - 1 : len;
        if (memcmp(p + 1, c->f->marker_text[i].s, have))
            continue;
        if (have < len && !c->end)
            r = O_MORE;
        else if (have + 1 > *used)
            *used = have + 1;
    }
    return r;
}

static bool dropped(const gw_calls *c, struct gw_cursor cur, struct found *o)
{
    for (uint32_t i = 0; i < c->f->reasoning.n_drops; i++) {
        cur.at = 0;
        enum gw_match m = gw_match_literal(&cur, &c->f->reasoning.drop[i]);
        if (m == GW_NO)
            continue;
        o->what = m == GW_MORE ? O_MORE : O_DROP;
        o->used = cur.at;
        return true;
    }
    return false;
}

/* What begins at p, if not text. */
static struct found look(const gw_calls *c, const char *p, size_t n, bool fresh)
{
    struct found o = {.what = O_NONE};
    struct gw_cursor cur = calls_window(c, p, n);
    enum gw_match m = GW_NO;
    if (c->cfg.tools && (c->state == TEXT || *p == ENG_MARK))
        m = gw_match_head(&c->f->tools, c->cfg.tools, false, fresh && c->state == TEXT, &cur, &o.head);
    if (m != GW_NO) {
        o.what = m == GW_MORE ? O_MORE : O_CALL;
        o.used = cur.at;
        return o;
    }
    if (c->f->has_reasoning && c->state == TEXT && (fresh || *p == ENG_MARK)) {
        cur.at = 0;
        if ((m = gw_match_literal(&cur, &c->f->reasoning.open)) != GW_NO) {
            o.what = m == GW_MORE ? O_MORE : O_REASONING;
            o.used = cur.at;
            return o;
        }
    }
    if (c->f->has_reasoning && (c->state == TEXT || *p == ENG_MARK) && dropped(c, cur, &o))
        return o;
    if (*p == ENG_MARK)
        o.what = lone_marker(c, p, n, &o.used);
    return o;
}

/* The first place in [p, p+n) where something else may begin; n: none. */
static size_t scan_text(const gw_calls *c, const char *p, size_t n, struct found *o)
{
    bool fresh = c->fresh;
    o->what = O_NONE;
    for (size_t i = 0; i < n; i++) {
        if ((c->starts[(unsigned char)p[i]] || p[i] == ENG_MARK) && (*o = look(c, p + i, n - i, fresh)).what != O_NONE)
            return i;
        fresh &= gw_is_space(p[i]);
    }
    return n;
}

static bool step_text(gw_calls *c)
{
    const char *p = c->held.data ? c->held.data + c->at : "";
    size_t n = c->held.len - c->at;
    struct found o;
    size_t i = scan_text(c, p, n, &o);
    enum space space = o.what == O_CALL || o.what == O_REASONING ? SPACE_GOES
                       : o.what == O_DROP || o.what == O_LONE || (o.what == O_NONE && c->end) ? SPACE_STAYS : SPACE_WAITS;
    size_t done = say_text(c, GW_PART_CONTENT, p, i, space);
    if (o.what == O_NONE || o.what == O_MORE) {
        c->at += done;
        return false;
    }
    if (o.what == O_CALL) {
        begin_call(c, &o.head, c->at + i, o.used);
        return true;
    }
    c->at += i + o.used;
    if (o.what == O_REASONING) {
        c->state = REASONING;
        c->skip_space = true;
        c->long_space = false;
    }
    return true;
}

/* Where the reasoning is interrupted: its closing mark (O_REASONING here), or a control token. */
static size_t scan_reasoning(const gw_calls *c, const char *p, size_t n, struct found *o)
{
    char first = *c->f->reasoning.close.v[0].s;
    o->what = O_NONE;
    for (size_t i = 0; i < n; i++) {
        struct gw_cursor cur = calls_window(c, p + i, n - i);
        enum gw_match m = p[i] == first ? gw_match_literal(&cur, &c->f->reasoning.close) : GW_NO;
        if (m != GW_NO) {
            *o = (struct found){.what = m == GW_MORE ? O_MORE : O_REASONING, .used = cur.at};
            return i;
        }
        if (p[i] == ENG_MARK && (*o = look(c, p + i, n - i, false)).what != O_NONE)
            return i;
    }
    return n;
}

static bool step_reasoning(gw_calls *c)
{
    const char *p = c->held.data ? c->held.data + c->at : "";
    size_t n = c->held.len - c->at;
    struct found o;
    size_t i = scan_reasoning(c, p, n, &o);
    enum space space = o.what == O_MORE || (o.what == O_NONE && !c->end) ? SPACE_WAITS : o.what == O_LONE || o.what == O_NONE ? SPACE_STAYS : SPACE_GOES;
    size_t done = say_text(c, GW_PART_REASONING, p, i, space);
    if (o.what == O_NONE || o.what == O_MORE) {
        c->at += done;
        return false;
    }
    if (o.what == O_LONE) {
        c->at += i + o.used;
        return true;
    }
    c->state = TEXT;
    c->skip_space = true;
    c->long_space = false;
    if (o.what == O_CALL)
        begin_call(c, &o.head, c->at + i, o.used);
    else
        c->at += i + o.used;
    return true;
}

/* ---- ends ------------------------------------------------------------------------------------------------- */

static bool step_tail(gw_calls *c)
{
    size_t n = c->held.len - c->at;
    struct gw_cursor cur = calls_window(c, c->held.data + c->at, n);
    cur.end = n > GW_CALLS_HOLD;
    enum gw_match m = gw_match_tail(&c->f->tools, &c->head, &cur);
    if (m == GW_MORE && !c->end)
        return false;
    if (m == GW_NO) {
        calls_break(c);
        return true;
    }
    c->at += m == GW_YES ? cur.at : n; /* models often end without the closing mark */
    end_call(c, false);
    return true;
}

static bool step_after(gw_calls *c)
{
    struct gw_head h;
    enum gw_match m;
    const struct eng_tools_format *t = &c->f->tools;
    while (c->at < c->held.len && gw_is_space(c->held.data[c->at]))
        c->at++;
    size_t n = c->held.len - c->at;
    if (!n)
        return false;
    struct gw_cursor cur = calls_window(c, c->held.data + c->at, n);
    if ((m = gw_match_literal(&cur, &t->end)) == GW_YES) {
        c->at += cur.at;
        c->state = TEXT;
        return true;
    }
    for (int k = 0; k < 2 && m == GW_NO; k++) { /* the separator, then a call after it or without */
        cur.at = 0;
        if (!k && (m = gw_match_literal(&cur, &t->separator)) == GW_YES && cur.at) {
            c->at += cur.at;
            return true;
        }
        if (k) {
            m = gw_match_head(t, c->cfg.tools, true, true, &cur, &h);
        } else if (m == GW_YES) {
            m = GW_NO; /* white space only */
        }
    }
    if (m == GW_MORE)
        return false;
    if (m == GW_YES)
        begin_call(c, &h, c->at, cur.at);
    else
        c->state = TEXT;
    return true;
}

/* ---- the whole -------------------------------------------------------------------------------------------- */

static bool step_once(gw_calls *c)
{
    switch (c->state) {
    case TEXT: return step_text(c);
    case REASONING: return step_reasoning(c);
    case ARGUMENTS: return calls_step_arguments(c);
    case MEMBERS: return calls_step_members(c);
    case VALUE: return calls_step_value(c);
    case TAIL: return step_tail(c);
    case AFTER: return step_after(c);
    case OVER: c->at = c->held.len;
    }
    return false;
}

static void add_start(gw_calls *c, const struct eng_pattern *p)
{
    for (uint32_t i = 0; i < p->n && i < 1; i++)
        for (size_t k = 0; k < p->v[0].n; k++)
            if (!gw_is_space(p->v[0].s[k])) {
                c->starts[(unsigned char)p->v[0].s[k]] = true;
                return;
            }
}

gw_calls *gw_calls_open(const struct gw_calls_config *cfg)
{
    gw_calls *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->cfg = *cfg;
    c->f = cfg->format;
    c->seed = cfg->id_seed;
    c->fresh = true;
    c->state = cfg->in_reasoning && c->f->has_reasoning ? REASONING : TEXT;
    c->skip_space = c->state == REASONING;
    if (!c->f->has_tools || (cfg->tools && !cfg->tools->n))
        c->cfg.tools = NULL;
    buf_init(&c->held, cfg->bytes_max);
    buf_init(&c->bytes, 4 * cfg->bytes_max);
    buf_init(&c->parts, cfg->bytes_max);
    buf_init(&c->out, cfg->bytes_max);
    add_start(c, &c->f->tools.begin);
    for (uint32_t i = 0; i < c->f->tools.n_calls && !c->f->tools.begin.n; i++)
        if (c->f->tools.call[i].v[0].kind == ENG_STEP_LITERAL)
            add_start(c, &c->f->tools.call[i]);
        else
            c->starts['{'] = true;
    add_start(c, &c->f->reasoning.open);
    for (uint32_t i = 0; i < c->f->reasoning.n_drops; i++)
        add_start(c, &c->f->reasoning.drop[i]);
    return c;
}

void gw_calls_close(gw_calls *c)
{
    if (!c)
        return;
    buf_free(&c->held);
    buf_free(&c->bytes);
    buf_free(&c->parts);
    buf_free(&c->out);
    free(c);
}

bool gw_calls_feed(gw_calls *c, const char *p, size_t n, bool end)
{
    if (n)
        buf_add(&c->held, p, n);
    c->end |= end;
    while (!c->held.failed && !c->bytes.failed && (c->at < c->held.len || c->end) && step_once(c))
        ;
    bool in_call = c->state >= ARGUMENTS && c->state <= TAIL;
    size_t drop = c->cfg.whole && in_call ? c->raw_at : c->at;
    buf_consume(&c->held, drop);
    c->at -= drop;
    c->raw_at = 0;
    return !c->held.failed && !c->bytes.failed && !c->parts.failed;
}

size_t gw_calls_parts(gw_calls *c, const struct gw_part **parts)
{
    const struct calls_part *p = (const void *)c->parts.data;
    size_t n = c->parts.len / sizeof *p;
    buf_reset(&c->out);
    for (size_t i = 0; i < n; i++) {
        struct gw_part o;
        memset(&o, 0, sizeof o);
        o = (struct gw_part){.type = p[i].type, .call = p[i].call, .s = c->bytes.data ? c->bytes.data + p[i].at : "", .n = p[i].n, .broken = p[i].broken};
        if (p[i].type == GW_PART_CALL) {
            o.id = c->bytes.data + p[i].id_at;
            o.id_n = p[i].id_n;
        }
        buf_add(&c->out, &o, sizeof o);
    }
    *parts = (const void *)c->out.data;
    return c->out.failed ? 0 : n;
}

void gw_calls_drop(gw_calls *c)
{
    buf_reset(&c->bytes);
    buf_reset(&c->parts);
}

uint32_t gw_calls_made(const gw_calls *c) { return c->made; }
uint32_t gw_calls_broken(const gw_calls *c) { return c->broken; }
uint64_t gw_calls_reasoning_bytes(const gw_calls *c) { return c->reasoning; }
bool gw_calls_in_reasoning(const gw_calls *c) { return c->state == REASONING; }
