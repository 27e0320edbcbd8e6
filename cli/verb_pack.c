/* sluice pack MODEL DIR: a packed copy, whose records are read as they are. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/verbs.h"
#include "engine/plan.h"
#include "offload/pack_make.h"

static void progress(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    cli_progress("packing", done, total);
}

static int pack(const char *model, const char *dir, struct err *e)
{
    struct eng_plan_options o = {0};
    struct eng_plan *p = NULL;
    off_catalog *c = NULL;
    uint64_t bytes = 0;
    int rc;
    if ((rc = off_catalog_open(&c, model, 0, e)) || (rc = eng_plan_compile(&p, c, &o, NULL, e)))
        goto out;
    for (uint32_t i = 0; i < p->n_records && !rc; i++) {
        rc = off_record_layout(&p->records[i], e);
        bytes += p->records[i].slot_bytes;
    }
    if (!rc && !(rc = off_pack_make(c, p->records, p->n_records, dir, progress, NULL, e)))
        printf("%s: %u records, %.1f MiB; opens like any model: sluice run %s\n", dir, p->n_records, (double)bytes / (1 << 20), dir);
out:
    eng_plan_close(p);
    off_catalog_close(c);
    return rc;
}

int verb_pack(int argc, char **argv)
{
    const struct cli_flags tables[] = {{0}};
    const char *words[2];
    struct arena a;
    struct err e = {0};
    size_t n;
    bool asked;
    arena_init(&a, 1 << 20);
    int rc = cli_parse(argc, argv, "MODEL DIR\nWrites the weights into DIR as memory holds them: aligned, one behind the other, with checksums, beside the texts of the model.\n"
                       "DIR then opens like any model and is read without conversion. What was interrupted goes on where it stopped.", tables, words, 2, &n, &asked, &a, &e);
    if (!rc && !asked && n != 2)
        rc = err_set(&e, ERR_INVALID, "expected MODEL and DIR");
    if (!rc && !asked)
        rc = pack(words[0], words[1], &e);
    arena_free(&a);
    return rc ? cli_fail("pack", &e) : CLI_OK;
}
