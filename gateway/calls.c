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

enum state { TEXT, REASONING, ARGUMENTS, MEMBERS, VALUE, TAIL, AFTER, OVER };
struct part { enum gw_part_type type; uint32_t call; size_t at, n, id_at, id_n; bool broken; };

struct gw_calls {
    struct gw_calls_config cfg;
    const struct eng_format *f;
    enum state state;
    struct buf held; size_t at; bool end;
    struct buf bytes, parts, out;      /* of what was said: text, struct part, struct gw_part */
    bool starts[256];                  /* bytes that something other than text may begin with */
    bool fresh, skip_space, long_space;

    struct gw_head head;               /* of the call at hand: alt, body, tool, in_object */
    struct gw_scan scan;
    bool any_member, value_string;
    size_t raw_at;                     /* whole: where the call begins in held */
    size_t undo_bytes, undo_parts;     /* and what had been said before it */
    uint32_t n_calls, made, broken;
    uint64_t seed, reasoning;
};

/* ---- saying ----------------------------------------------------------------------------------------------- */

static struct part *last(gw_calls *c) { return c->parts.len ? (struct part *)(void *)(c->parts.data + c->parts.len) - 1 : NULL; }

/* The part that text of this type goes to. */
static void open_part(gw_calls *c, enum gw_part_type type)
{
    struct part *l = last(c), p;
    if (l && l->type == type && type != GW_PART_CALL && type != GW_PART_END)
        return;
    memset(&p, 0, sizeof p);
    p.type = type;
    p.call = c->n_calls ? c->n_calls - 1 : 0;
    p.at = c->bytes.len;
    buf_add(&c->parts, &p, sizeof p);
}

static void close_part(gw_calls *c)
{
    struct part *l = last(c);
    if (l)
        l->n = c->bytes.len - l->at;
}

static void say(gw_calls *c, enum gw_part_type type, const char *p, size_t n)
{
    if (!n)
        return;
    open_part(c, type);
    buf_add(&c->bytes, p, n);
    close_part(c);
    if (type == GW_PART_REASONING)
        c->reasoning += n;
}

static size_t trailing_space(const char *p, size_t n)
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
    run = trailing_space(p + from, n - from);
    if (run < n - from) {
        c->long_space = false;
        c->fresh &= type != GW_PART_CONTENT;
    }
    c->long_space |= run > SPACE_HOLD;
    if (trims && !c->long_space)
        keep -= run;
    say(c, type, p + from, keep - from);
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
        say(c, GW_PART_CONTENT, p, k);
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

static void put_json(gw_calls *c, const char *p, size_t n)
{
    struct gw_scan s;
    gw_scan_init(&s);
    open_part(c, GW_PART_ARGUMENTS);
    for (size_t i = 0; i < n; i++)
        gw_scan_byte(&s, (unsigned char)p[i], &c->bytes);
    close_part(c);
}

static void end_call(gw_calls *c, bool broken)
{
    open_part(c, GW_PART_END);
    struct part *l = last(c);
    if (l)
        l->broken = broken;
    c->made += !broken;
    c->broken += broken;
    c->fresh = false;
    c->state = broken ? TEXT : c->cfg.tools->parallel ? AFTER : OVER;
}

static void break_call(gw_calls *c)
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
    struct part p;
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
        put_json(c, h->args_n ? h->args : "{}", h->args_n ? h->args_n : 2);
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
static struct gw_cursor window(const gw_calls *c, const char *p, size_t n)
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
    struct gw_cursor cur = window(c, p, n);
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
        struct gw_cursor cur = window(c, p + i, n - i);
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

/* ---- arguments -------------------------------------------------------------------------------------------- */

static bool step_arguments(gw_calls *c)
{
    open_part(c, GW_PART_ARGUMENTS);
    enum gw_scan_end e = GW_SCAN_MORE;
    while (c->at < c->held.len && e == GW_SCAN_MORE) {
        e = gw_scan_byte(&c->scan, (unsigned char)c->held.data[c->at], &c->bytes);
        c->at += e != GW_SCAN_WRONG;
    }
    close_part(c);
    if (e == GW_SCAN_OVER)
        c->state = TAIL;
    else if (e == GW_SCAN_WRONG || c->end)
        break_call(c);
    return e != GW_SCAN_MORE;
}

static const struct json *schema_of(const gw_calls *c, const char *key, size_t n)
{
    return json_get_n(json_get(c->head.tool->parameters, "properties"), key, n);
}

static bool all_strings(const struct json *list)
{
    for (size_t i = 0; json_is(list, JSON_ARRAY) && i < list->n; i++)
        if (!json_is(list->items[i], JSON_STRING))
            return false;
    return json_is(list, JSON_ARRAY) && list->n;
}

/* Is this argument's text a string as it stands. */
static bool is_string(const gw_calls *c, const struct gw_member *m, const char *key, size_t key_n)
{
    if (m->type)
        return m->type_n == 6 && !memcmp(m->type, "string", 6);
    const struct json *s = schema_of(c, key, key_n), *type = json_get(s, "type");
    return json_eq(type, "string") || (!type && (all_strings(json_get(s, "enum")) || json_is(json_get(s, "const"), JSON_STRING)));
}

static size_t unescape(char *s, size_t n)
{
    static const struct { const char *from; char to; } known[] = {{"&quot;", '"'}, {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}};
    size_t out = 0;
    for (size_t i = 0; i < n;) {
        size_t k = 0, len = 0;
        while (k < 4 && ((len = strlen(known[k].from)) > n - i || memcmp(s + i, known[k].from, len)))
            k++;
        s[out++] = k < 4 ? known[k].to : s[i];
        i += k < 4 ? len : 1;
    }
    return out;
}

static void begin_value(gw_calls *c, const struct gw_member *m)
{
    char key[300];
    size_t n = m->key_n < sizeof key ? m->key_n : sizeof key;
    memcpy(key, m->key, n);
    if (c->f->tools.xml)
        n = unescape(key, n);
    c->value_string = is_string(c, m, key, n);
    open_part(c, GW_PART_ARGUMENTS);
    buf_str(&c->bytes, c->any_member ? ", \"" : "{\"");
    gw_scan_put_string(&c->bytes, key, n);
    buf_str(&c->bytes, c->value_string ? "\": \"" : "\": ");
    close_part(c);
    c->any_member = true;
    c->state = VALUE;
}

static bool step_members(gw_calls *c)
{
    struct gw_member m;
    while (c->at < c->held.len && gw_is_space(c->held.data[c->at]))
        c->at++;
    size_t n = c->held.len - c->at;
    struct gw_cursor cur = window(c, c->held.data + c->at, n);
    enum gw_match got = gw_match_member(&c->f->tools, &cur, &m);
    if (got == GW_YES) {
        c->at += cur.at;
        begin_value(c, &m);
        return true;
    }
    cur.at = 0;
    cur.end = n > GW_CALLS_HOLD;
    enum gw_match tail = gw_match_tail(&c->f->tools, &c->head, &cur);
    if (tail == GW_NO ? got == GW_NO : tail == GW_MORE && c->end && !n) {
        break_call(c);
        return true;
    }
    if (tail != GW_YES && !c->end)
        return false;
    if (!c->any_member)
        say(c, GW_PART_ARGUMENTS, "{", 1);
    say(c, GW_PART_ARGUMENTS, "}", 1);
    c->state = TAIL;
    return true;
}

static void put_value(gw_calls *c, const char *p, size_t n)
{
    static const struct { const char *from, *to; } python[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    while (n && gw_is_space(*p))
        p++, n--;
    n -= trailing_space(p, n);
    for (size_t i = 0; i < 3; i++)
        if (strlen(python[i].from) == n && !memcmp(p, python[i].from, n)) {
            say(c, GW_PART_ARGUMENTS, python[i].to, strlen(python[i].to));
            return;
        }
    if (n && gw_scan_is_json(p, n)) {
        put_json(c, p, n);
        return;
    }
    say(c, GW_PART_ARGUMENTS, "\"", 1);
    gw_scan_put_string(&c->bytes, p, n);
    buf_char(&c->bytes, '"');
    close_part(c);
}

static bool step_value(gw_calls *c)
{
    const char *p = c->held.data + c->at, *stop;
    size_t n = c->held.len - c->at, safe = 0, used = 0;
    if (!n && !c->end)
        return false;
    stop = n ? gw_match_value(&c->f->tools, p, n, &safe, &used) : NULL;
    size_t len = stop ? (size_t)(stop - p) : safe;
    bool strange = n && memchr(p, ENG_MARK, len); /* a control token that closes nothing */
    if (c->value_string && !strange) {
        open_part(c, GW_PART_ARGUMENTS);
        gw_scan_put_string(&c->bytes, p, len);
        if (stop)
            buf_char(&c->bytes, '"');
        close_part(c);
    } else if (stop && !strange) {
        put_value(c, p, len);
    }
    if (strange || (!stop && (c->end || (!c->value_string && n > GW_VALUE_HOLD)))) {
        if (c->cfg.whole)
            c->at = c->end ? c->held.len : c->at;
        else if (c->value_string && !strange)
            c->at += len;
        break_call(c);
        return true;
    }
    c->at += stop ? used : c->value_string ? len : 0;
    if (stop)
        c->state = MEMBERS;
    return stop != NULL;
}

static bool step_tail(gw_calls *c)
{
    size_t n = c->held.len - c->at;
    struct gw_cursor cur = window(c, c->held.data + c->at, n);
    cur.end = n > GW_CALLS_HOLD;
    enum gw_match m = gw_match_tail(&c->f->tools, &c->head, &cur);
    if (m == GW_MORE && !c->end)
        return false;
    if (m == GW_NO) {
        break_call(c);
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
    struct gw_cursor cur = window(c, c->held.data + c->at, n);
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
    case ARGUMENTS: return step_arguments(c);
    case MEMBERS: return step_members(c);
    case VALUE: return step_value(c);
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
    const struct part *p = (const void *)c->parts.data;
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
