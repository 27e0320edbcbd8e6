/* engine/line.h - the lines of a sheet's blocks: parsed once, resolved by the compiler at each layer.
 *
 *   line = "use BLOCK" | WORD | REG ["," REG] "=" arg
 *   arg  = op "(" arg, ... , attr "=" arg, ... ")" | @weight | $state | expression (a lone name may be a register)
 *
 * Owns:      nothing; trees live in the caller's arena.  Leaves: {"if": ...} objects to the compiler.
 * Source:    docs/sheets.md, "Lines". */
#ifndef SLUICE_ENGINE_LINE_H
#define SLUICE_ENGINE_LINE_H
#include "engine/expr.h"
#include "engine/ops.h"

#define ENG_LINE_REGS 8
enum eng_arg_kind { ENG_ARG_CALL, ENG_ARG_WEIGHT, ENG_ARG_STATE, ENG_ARG_EXPR };
struct eng_arg {
    enum eng_arg_kind kind;
    const struct eng_opdef *op;     /* CALL */
    const char *name;               /* WEIGHT, STATE; EXPR: the name when it is a lone name, else NULL */
    struct eng_expr *expr;          /* EXPR */
    struct eng_arg *args;           /* CALL: positional ones, chained by next */
    struct eng_arg *attrs;          /* CALL: named ones, chained, each with attr set */
    const char *attr;
    struct eng_arg *next;
    unsigned n_args;
};
enum eng_line_kind { ENG_LINE_SET, ENG_LINE_USE, ENG_LINE_WORD };
struct eng_line {
    enum eng_line_kind kind;
    const char *block;              /* USE, WORD */
    const char *regs[ENG_LINE_REGS]; unsigned n_regs;
    struct eng_arg *value;          /* SET */
};
/* ERR_FORMAT: "expected `,` or `)` at column 25 of `...`", "no operator `swish` (known: ...)"; ERR_LIMIT: too deep. */
int eng_line_parse(struct eng_line **out, const char *text, struct arena *a, struct err *e);
#endif
