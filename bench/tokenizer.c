/* bench/tokenizer.c - how fast a tokenizer encodes: tokenizer FILE TEXT [SECONDS [MODE]].
 *
 * FILE is tokenizer.json, a GGUF file or tiktoken.model; TEXT is encoded again and again on one core for SECONDS (default 2), each time in a
 * call of its own as a request does. MODE: all (default: every added token is looked for) or none. The rate is bytes over CPU time.
 * Build: make build/plain/bench/tokenizer */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/tok_verify.h"

enum { TEXT_MAX = 1 << 28 };

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *read_text(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(TEXT_MAX) : NULL;

    *n = text ? fread(text, 1, TEXT_MAX, f) : 0;
    if (f)
        fclose(f);
    return text;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct eng_ids ids = {.max = TEXT_MAX};
    eng_tok *t = NULL;
    char *text = NULL;
    size_t n = 0;
    double seconds = argc > 3 ? strtod(argv[3], NULL) : 2, best = 1e30, all = 0;
    unsigned flags = argc > 4 && !strcmp(argv[4], "none") ? 0 : ENG_TOK_SPECIAL, calls = 0;
    int rc = 2;

    if (argc < 3) {
        fprintf(stderr, "usage: tokenizer FILE TEXT [SECONDS [all|none]]\n");
        goto out;
    }
    if (!(text = read_text(argv[2], &n)) || !n) {
        fprintf(stderr, "%s: no text\n", argv[2]);
        goto out;
    }
    if ((rc = eng_tok_open_file(&t, argv[1], &e)))
        goto out;
    while (all < seconds && !rc) {
        double from = cpu_now();
        ids.n = 0;
        rc = eng_tok_encode(t, text, n, flags, &ids, &e);
        double took = cpu_now() - from;
        all += took;
        best = took < best ? took : best;
        calls++;
    }
    if (!rc)
        printf("%zu bytes, %zu tokens: best %.1f MB/s, mean %.1f MB/s of a core (%u calls)\n", n, ids.n, 1e-6 * (double)n / best, 1e-6 * (double)n * calls / all, calls);
out:
    if (rc && e.msg[0])
        fprintf(stderr, "%s\n", e.msg);
    eng_ids_free(&ids);
    eng_tok_close(t);
    free(text);
    return rc ? 1 : 0;
}
