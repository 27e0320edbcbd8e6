/* Which part of a model each tensor belongs to: the sheet's `parts`, a pattern of logical names and the part's name; the longest that
 * matches counts. Experts of one tensor stand together, so what was found for one is tried on the next before anything is matched. */
#include <stdio.h>
#include <string.h>

#include "engine/compile_internal.h"
#include "engine/forms.h"

/* Length of "e_gate" in "e_gate[17].scale". */
static size_t stem(const char *name) { return strcspn(name, "[."); }

int eng_parts(struct eng_compiler *c, struct err *e)
{
    const struct json *parts = json_get(c->env.sheet, "parts");
    const char **names, *last = NULL, *part = NULL;

    if (!json_is(parts, JSON_OBJECT))
        return ERR_OK;
    if (!(names = ARENA_ARRAY(c->mem, const char *, parts->n + 1)))
        return err_set(e, ERR_NOMEM, "parts");
    for (size_t k = 0; k < parts->n; k++) {
        const char *text = json_str(parts->members[k].value);
        if (!text)
            return err_set(e, ERR_FORMAT, "sheet %s: parts: %s: expected the name of a part", c->env.sheet_name, parts->members[k].key);
        if (!(names[k] = arena_strdup(c->mem, text, strlen(text))))
            return err_set(e, ERR_NOMEM, "parts");
    }
    for (uint32_t i = 0; i < c->b.n; i++) {
        const char *name = c->b.tensors[i].name;
        size_t n = name ? stem(name) : 0;
        if (!n)
            continue;
        if (!last || n != stem(last) || memcmp(last, name, n)) {
            char base[ENG_NAME_MAX];
            last = name;
            part = NULL;
            snprintf(base, sizeof base, "%.*s", (int)n, name);
            for (size_t k = 0, best = 0; k < parts->n; k++)
                if (parts->members[k].key_len > best && eng_glob(parts->members[k].key, base)) {
                    best = parts->members[k].key_len;
                    part = names[k];
                }
        }
        c->b.tensors[i].part = part;
    }
    return ERR_OK;
}
