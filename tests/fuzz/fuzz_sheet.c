/* Sheets and their lines and expressions: any bytes parse or are refused, and what parses evaluates within its bounds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/line.h"
#include "engine/sheet.h"

static int name_of(void *ctx, const char *name, struct eng_value *out, struct err *e)
{
    (void)ctx;
    (void)e;
    *out = eng_v_int((int64_t)strlen(name));
    return ERR_OK;
}

static void expressions(const char *text, struct arena *a)
{
    struct eng_expr *x;
    struct eng_value v;
    struct eng_line *l;
    struct eng_scope s = {NULL, name_of, NULL, a, 100000, 0};
    char shown[64];
    struct err e;

    if (!eng_expr_parse(&x, text, a, &e) && !eng_expr_eval(x, &s, &v, &e))
        eng_v_show(&v, shown, sizeof shown);
    eng_expr_parse_list(&x, text, a, &e);
    eng_line_parse(&l, text, a, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    const char *one[1];
    struct arena a;
    eng_sheets *s;
    struct err e;

    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    one[0] = text;
    arena_init(&a, 8u << 20);
    if (size && text[0] == '{') {
        if (!eng_sheets_open_texts(&s, one, 1, &e)) {
            const struct json *m;
            eng_sheets_merge(s, eng_sheets_name(s, 0), &a, &m, &e);
            eng_sheets_close(s);
        }
    } else {
        expressions(text, &a);
    }
    arena_free(&a);
    free(text);
    return 0;
}
