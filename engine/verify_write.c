/* A baseline: what this build computes for a few prompts, in the layout that verify reads. Of long prompts the last rows are kept; every
 * layer and all logits of those, and a greedy continuation with the margins of its choices. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "engine/verify_internal.h"

enum { KEEP = 32, GREEDY = 32, SAVED_MAX = 4096, LONG_MAX = 4096 };
struct saved { char name[96]; uint32_t rows, cols; bool ids; float *v; };
struct eng_verify_writer { struct saved s[SAVED_MAX]; size_t n, first; struct buf prompts; };

static struct saved *entry(struct eng_verify_writer *w, const char *prompt, const char *name, uint32_t cols, uint32_t rows, bool ids)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", prompt, name);
    for (size_t i = w->first; i < w->n; i++)
        if (!strcmp(w->s[i].name, full))
            return &w->s[i];
    if (w->n == SAVED_MAX)
        return NULL;
    struct saved *s = &w->s[w->n];
    *s = (struct saved){.rows = rows, .cols = cols, .ids = ids, .v = calloc((size_t)rows * cols, sizeof(float))};
    memcpy(s->name, full, sizeof full);
    w->n += s->v != NULL;
    return s->v ? s : NULL;
}

/* The chunk's rows of one register that are among the last ones of the prompt. */
static void keep_rows(struct eng_verify_run *r, const char *name, const struct krn_view *view, uint32_t from, uint32_t cols, bool ids)
{
    uint32_t rows = r->n_all < KEEP ? r->n_all : KEEP, skip = r->n_all - rows;
    struct saved *s = entry(r->writer, r->prompt, name, cols, rows, ids);
    if (!s)
        r->rc = err_set(&r->e, ERR_NOMEM, "baseline: %s", name);
    for (uint32_t i = 0; i < r->n_rows && s; i++) {
        uint32_t at = r->row0 + i;
        if (at < skip)
            continue;
        const float *row = eng_verify_row(r, view, i) + from;
        for (uint32_t c = 0; c < cols; c++) {
            int32_t id = ids ? (int32_t)row[c] : 0;
            memcpy(&s->v[(size_t)(at - skip) * cols + c], ids ? (const void *)&id : &row[c], 4);
        }
    }
}

static void on_segment(void *ctx, uint32_t segment)
{
    struct eng_verify_run *r = ctx;
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    for (uint32_t i = 0; i < p->n_taps && !r->rc; i++) {
        const struct eng_tap *t = &p->taps[i];
        char name[64], part[80];
        if (t->segment != segment || !strcmp(t->reg, "router_scores"))
            continue;
        eng_verify_tap_name(t, name, sizeof name);
        if (strcmp(t->reg, "router")) {
            keep_rows(r, name, &t->view, 0, t->view.heads * t->view.dim, false);
            continue;
        }
        snprintf(part, sizeof part, "%s_ids", name);
        keep_rows(r, part, &t->view, 0, t->view.dim, true);
        snprintf(part, sizeof part, "%s_weights", name);
        keep_rows(r, part, &t->view, t->view.head_stride, t->view.dim, false);
    }
    if (segment == p->n_segments - 1)
        keep_rows(r, "logits", &p->logits, 0, p->logits.dim, false);
}

/* The likeliest id and by how much it leads. */
static int32_t lead(const float *row, uint32_t n, double *margin)
{
    uint32_t best = eng_verify_argmax(row, n);
    double next = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        if (i != best && (double)row[i] > next)
            next = (double)row[i];
    *margin = (double)row[best] - next;
    return (int32_t)best;
}

static int greedy(struct eng_verify_run *r, uint32_t n, struct buf *ids, struct buf *margins, struct err *e)
{
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    uint32_t n_ids = eng_tok_count(eng_session_model(r->s)->tok) < p->vocab ? eng_tok_count(eng_session_model(r->s)->tok) : p->vocab;
    const float *row = eng_session_logits(r->s, r->n_rows - 1);
    for (uint32_t i = 0; i < GREEDY; i++) {
        double margin;
        int32_t id = lead(row, n_ids, &margin);
        buf_printf(ids, "%s%d", i ? "," : "", id);
        buf_printf(margins, "%s%.6g", i ? "," : "", margin);
        if (i + 1 == GREEDY)
            break;
        int rc = eng_verify_step(r, &id, n + i, 1, ENG_PICK_LAST, NULL, e);
        if (rc)
            return rc;
        row = eng_session_logits(r->s, 0);
    }
    return ERR_OK;
}

/* One prompt; a text of more tokens than room is cut to its first ones, and then has no text to check. */
static int write_prompt(struct eng_verify_run *r, const char *name, const char *text, size_t len, uint32_t room, struct err *e)
{
    struct eng_ids ids = {.max = 1u << 22};
    struct buf out, margins, *b = &r->writer->prompts;
    int rc = eng_tok_encode(eng_session_model(r->s)->tok, text, len, ENG_TOK_ADDED | ENG_TOK_WRAP, &ids, e);
    bool cut = ids.n > room;
    buf_init(&out, 1u << 16);
    buf_init(&margins, 1u << 16);
    ids.n = cut ? room : ids.n;
    r->prompt = name;
    r->writer->first = r->writer->n;
    r->far = eng_session_model(r->s)->plan->ctx_switch && ids.n + GREEDY > eng_session_model(r->s)->plan->ctx_switch;
    eng_session_drop(r->s, 0);
    if (!rc && !ids.n)
        rc = err_set(e, ERR_FORMAT, "baseline: prompt %s has no tokens", name);
    if (!rc && !(rc = eng_verify_prompt(r, ids.v, (uint32_t)ids.n, on_segment, e)))
        rc = greedy(r, (uint32_t)ids.n, &out, &margins, e);
    if (!rc) {
        buf_printf(b, "%s\n{\"name\":\"%s\",", b->data[b->len - 1] == '[' ? "" : ",", name);
        if (!cut) {
            buf_str(b, "\"text\":");
            json_put_cstr(b, text);
            buf_char(b, ',');
        }
        buf_str(b, "\"ids\":[");
        for (size_t i = 0; i < ids.n; i++)
            buf_printf(b, "%s%d", i ? "," : "", ids.v[i]);
        buf_printf(b, "],\"greedy\":[%s],\"margins\":[%s]}", out.data, margins.data);
        fprintf(r->v->out, "%-12s %zu tokens and %d greedy ones\n", name, ids.n, GREEDY);
    }
    buf_free(&out);
    buf_free(&margins);
    eng_ids_free(&ids);
    return rc;
}

static int write_tensors(const struct eng_verify_writer *w, const char *path, struct err *e)
{
    struct buf h;
    uint64_t at = 0;
    FILE *f = fopen(path, "wb");
    if (!f)
        return err_set(e, ERR_IO, "baseline %s: cannot be written", path);
    buf_init(&h, 64u << 20);
    buf_char(&h, '{');
    for (size_t i = 0; i < w->n; i++) {
        uint64_t bytes = (uint64_t)w->s[i].rows * w->s[i].cols * 4;
        buf_printf(&h, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%llu,%llu]}", i ? "," : "", w->s[i].name, w->s[i].ids ? "I32" : "F32", w->s[i].rows, w->s[i].cols,
                   (unsigned long long)at, (unsigned long long)(at + bytes));
        at += bytes;
    }
    buf_char(&h, '}');
    while (h.len % 8)
        buf_char(&h, ' ');
    uint64_t n = h.len;
    bool ok = !h.failed && fwrite(&n, 8, 1, f) == 1 && fwrite(h.data, 1, h.len, f) == h.len;
    for (size_t i = 0; i < w->n && ok; i++)
        ok = fwrite(w->s[i].v, 4, (size_t)w->s[i].rows * w->s[i].cols, f) == (size_t)w->s[i].rows * w->s[i].cols;
    ok = fclose(f) == 0 && ok;
    buf_free(&h);
    return ok ? ERR_OK : err_set(e, ERR_IO, "baseline %s: cannot be written whole", path);
}

static int write_folder(struct eng_verify_run *r, const char *dir, struct err *e)
{
    char path[4300];
    if (mkdir(dir, 0777) != 0) {
        struct stat st;
        if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
            return err_set(e, ERR_IO, "baseline %s: not a directory, and none can be made", dir);
    }
    snprintf(path, sizeof path, "%s/activations.safetensors", dir);
    int rc = write_tensors(r->writer, path, e);
    buf_str(&r->writer->prompts, "\n]}\n");
    snprintf(path, sizeof path, "%s/prompts.json", dir);
    FILE *f = rc ? NULL : fopen(path, "wb");
    bool ok = f && !r->writer->prompts.failed && fwrite(r->writer->prompts.data, 1, r->writer->prompts.len, f) == r->writer->prompts.len;
    ok = f && fclose(f) == 0 && ok;
    return rc ? rc : ok ? ERR_OK : err_set(e, ERR_IO, "baseline %s: cannot be written", path);
}

/* Sentences without end where no text is given: what matters is that positions differ. */
static void make_text(struct buf *b, size_t bytes)
{
    for (unsigned i = 1; b->len < bytes; i++)
        buf_printf(b, "Letter %u: the ship left harbour %u on day %u with %u sacks of grain, and nobody in the town of stone houses asked why. ", i, i * 7 % 31, i * 13 % 366, i * i % 977);
}

int eng_verify_write(struct eng_verify *v, const char *dir, const char *text_path, struct err *e)
{
    static const char short_text[] = "The river rises in the hills and comes to the sea after forty miles.", code[] = "int main(void)\n{\n    return 3 * 14 + 159; /* not 2.71828 */\n}\n";
    struct eng_verify_run r = {.v = v, .keep = KEEP};
    struct buf text;
    uint32_t ctx;
    int rc = ERR_OK;
    if (!(r.writer = calloc(1, sizeof *r.writer)))
        return err_set(e, ERR_NOMEM, "baseline");
    buf_init(&text, 16u << 20);
    buf_init(&r.writer->prompts, 64u << 20);
    if (text_path)
        rc = eng_verify_read_text(text_path, &text, e);
    else
        make_text(&text, 4 * LONG_MAX);
    if (!rc)
        rc = eng_verify_open(&r, v->c.ctx, e);
    if (!rc) {
        const struct eng_config *c = eng_session_config(r.s);
        ctx = c->ctx;
        uint32_t room = ctx > 2 * GREEDY ? ctx - GREEDY : 1;
        buf_printf(&r.writer->prompts, "{\"precision\":\"%s\",\"kv\":\"%s\",\"prompts\":[", c->precision == KRN_PREC_F32 ? "f32" : "auto", krn_types[c->kv_type].name);
        if (!(rc = write_prompt(&r, "short", short_text, sizeof short_text - 1, room, e)) && !(rc = write_prompt(&r, "code", code, sizeof code - 1, room, e)) &&
            !(rc = write_prompt(&r, "long", text.data, text.len, room, e)))
            rc = write_folder(&r, dir, e);
    }
    for (size_t i = 0; i < r.writer->n; i++)
        free(r.writer->s[i].v);
    buf_free(&r.writer->prompts);
    free(r.writer);
    buf_free(&text);
    eng_session_close(r.s);
    return rc;
}
