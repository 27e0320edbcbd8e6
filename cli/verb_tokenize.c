/* sluice tokenize MODEL [--plain] [--decode] [--json] < INPUT: text to ids and back, with the model's own tokenizer.
 *
 * MODEL is a GGUF file, a directory with a tokenizer, or a tokenizer file alone. Ids go out on one line, separated by spaces. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/verbs.h"
#include "engine/tok_verify.h"

enum { INPUT_MAX = 1 << 30 };

struct options { const char *model; bool plain, decode, json, bos; };

static void usage(FILE *f)
{
    fputs("usage: sluice tokenize MODEL [--plain] [--bos] [--decode] [--json] < INPUT\n\n"
          "  --plain    special tokens in the text are ordinary text (as for what a user writes)\n"
          "  --bos      add what the tokenizer's own file puts around a text (BOS, EOS)\n"
          "  --decode   INPUT is ids separated by spaces, commas or newlines; print their text\n"
          "  --json     one JSON object: {\"ids\": [...], \"pieces\": [...]} or {\"text\": \"...\"}\n", f);
}

/* 0: go on; else the exit code plus one. */
static int options(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            usage(stdout);
            return CLI_OK + 1;
        }
        if (!strcmp(a, "--plain"))
            o->plain = true;
        else if (!strcmp(a, "--bos"))
            o->bos = true;
        else if (!strcmp(a, "--decode"))
            o->decode = true;
        else if (!strcmp(a, "--json"))
            o->json = true;
        else if (a[0] == '-' || o->model) {
            fprintf(stderr, "sluice tokenize: unexpected '%s'\n", a);
            usage(stderr);
            return CLI_USAGE + 1;
        } else
            o->model = a;
    }
    if (!o->model || (o->decode && (o->plain || o->bos))) {
        fprintf(stderr, o->model ? "sluice tokenize: --plain and --bos are for encoding\n" : "sluice tokenize: MODEL is missing\n");
        usage(stderr);
        return CLI_USAGE + 1;
    }
    return 0;
}

static int read_input(struct buf *b, struct err *e)
{
    char part[65536];
    size_t k;
    while ((k = fread(part, 1, sizeof part, stdin)) > 0)
        if (!buf_add(b, part, k))
            return err_set(e, ERR_LIMIT, "standard input: more than %d bytes", INPUT_MAX);
    return ferror(stdin) ? err_set(e, ERR_IO, "standard input: %s", strerror(errno)) : ERR_OK;
}

/* The tokenizer alone: a model whose weights are missing or damaged can still be asked. */
static int open_model(eng_tok **t, const char *path, struct err *e)
{
    struct stat st;
    off_catalog *c = NULL;
    if (stat(path, &st))
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return eng_tok_open_file(t, path, e);
    int rc = off_catalog_open(&c, path, 1, e);
    if (!rc)
        rc = eng_tok_open(t, c, INT32_MAX, e);
    off_catalog_close(c);
    return rc;
}

static int encode(const eng_tok *t, const struct options *o, const struct buf *in, struct buf *out, struct err *e)
{
    struct eng_ids ids = {.max = INPUT_MAX};
    int rc = eng_tok_encode(t, in->data ? in->data : "", in->len, (o->plain ? ENG_TOK_ADDED : ENG_TOK_SPECIAL) | (o->bos ? ENG_TOK_WRAP : 0u), &ids, e);
    if (!rc && o->json)
        buf_str(out, "{\"ids\": [");
    for (size_t i = 0; !rc && i < ids.n; i++)
        buf_printf(out, i ? (o->json ? ", %d" : " %d") : "%d", ids.v[i]);
    if (!rc && o->json) {
        buf_str(out, "], \"pieces\": [");
        for (size_t i = 0; i < ids.n; i++) {
            size_t n;
            const char *p = eng_tok_piece(t, ids.v[i], &n);
            buf_str(out, i ? ", " : "");
            json_put_str(out, p, n);
        }
        buf_str(out, "]}");
    }
    buf_char(out, '\n');
    eng_ids_free(&ids);
    return rc;
}

static int decode(const eng_tok *t, const struct options *o, const struct buf *in, struct buf *out, struct err *e)
{
    struct eng_detok d;
    struct buf text;
    size_t n;
    int rc = ERR_OK;
    buf_init(&text, INPUT_MAX);
    eng_detok_init(&d);
    if (in->data && strlen(in->data) != in->len)
        rc = err_set(e, ERR_INVALID, "expected ids, found a zero byte at %zu", strlen(in->data));
    for (const char *p = in->data ? in->data : ""; !rc && *(p += strspn(p, " ,\t\r\n[]"));) {
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || errno || id < 0 || id > INT32_MAX || !eng_tok_piece(t, (int32_t)id, &n))
            rc = err_set(e, ERR_INVALID, "\"%.*s\" is no id of this tokenizer", (int)strcspn(p, " ,\t\r\n[]"), p);
        else
            rc = eng_detok_push(t, &d, (int32_t)id, false, &text);
        p = end;
    }
    if (!rc)
        rc = eng_detok_end(t, &d, &text);
    if (!rc && o->json) {
        buf_str(out, "{\"text\": ");
        json_put_str(out, text.data ? text.data : "", text.len);
        buf_str(out, "}\n");
    } else if (!rc)
        buf_add(out, text.data ? text.data : "", text.len);
    buf_free(&text);
    return rc;
}

int verb_tokenize(int argc, char **argv)
{
    struct options o = {0};
    struct err e = {0};
    struct buf in, out;
    eng_tok *t = NULL;
    int code = options(&o, argc, argv), rc;
    if (code)
        return code - 1;
    buf_init(&in, INPUT_MAX);
    buf_init(&out, SIZE_MAX / 2);
    if (!(rc = open_model(&t, o.model, &e)) && !(rc = read_input(&in, &e)))
        rc = o.decode ? decode(t, &o, &in, &out, &e) : encode(t, &o, &in, &out, &e);
    if (!rc && (out.failed || fwrite(out.data ? out.data : "", 1, out.len, stdout) != out.len || fflush(stdout)))
        rc = err_set(&e, ERR_IO, "standard output: %s", out.failed ? "no memory" : strerror(errno));
    if (rc)
        fprintf(stderr, "sluice tokenize: %s\n", e.msg);
    eng_tok_close(t);
    buf_free(&in);
    buf_free(&out);
    return rc == ERR_OK ? CLI_OK : rc == ERR_INVALID ? CLI_USAGE : CLI_FAULT;
}
