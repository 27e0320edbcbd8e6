/* engine/expr.h - the expressions of model sheets: parsed once to a tree, evaluated lazily against a scope.
 *
 *   expr    = coal ["?" expr ":" expr]        coal = or {"??" or}
 *   or ..   = || && ; == != < <= > >= in ; + - ; * / // % ; unary - ! ; ** ; postfix [i] .key
 *   primary = number | 'text' | true | false | null | name | "(" expr ")" | "[" expr, ... "]" | fn "(" expr, ... ")"
 *
 * Owns:      nothing; trees and values live in the caller's arena.
 * Leaves:    what a name means, and the functions cfg, present, has and dim, to the scope (engine/env.h).
 * Invariant: only the branch taken of ?:, ??, && and || is evaluated; depth and steps are bounded; integers never wrap.
 * Source:    docs/sheets.md, "Expressions". */
#ifndef SLUICE_ENGINE_EXPR_H
#define SLUICE_ENGINE_EXPR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"

enum eng_vtype { ENG_V_NULL, ENG_V_BOOL, ENG_V_INT, ENG_V_NUM, ENG_V_STR, ENG_V_LIST, ENG_V_OBJECT };
struct eng_member;
struct eng_value {
    enum eng_vtype type;
    union {
        bool b;
        int64_t i;
        double f;
        const char *s;                   /* STR: n bytes, NUL-terminated */
        const struct eng_value *items;   /* LIST: n of them */
        const struct eng_member *members;/* OBJECT: n of them */
    } u;
    size_t n;
};
struct eng_member { const char *key; struct eng_value value; const struct json *src; /* where it was read, NULL: made up */ };

enum eng_expr_op {
    ENG_X_LITERAL, ENG_X_NAME, ENG_X_LIST, ENG_X_CALL, ENG_X_COND, ENG_X_COAL, ENG_X_OR, ENG_X_AND,
    ENG_X_EQ, ENG_X_NE, ENG_X_LT, ENG_X_LE, ENG_X_GT, ENG_X_GE, ENG_X_IN, ENG_X_ADD, ENG_X_SUB, ENG_X_MUL, ENG_X_DIV,
    ENG_X_IDIV, ENG_X_MOD, ENG_X_NEG, ENG_X_NOT, ENG_X_POW, ENG_X_INDEX, ENG_X_KEY
};
struct eng_expr {
    enum eng_expr_op op;
    struct eng_value lit;       /* LITERAL */
    const char *name;           /* NAME, CALL, KEY */
    struct eng_expr *kid[3];    /* operands; LIST and CALL: kid[0] is the first of a chain by `next` */
    struct eng_expr *next;
    unsigned n_kids;            /* LIST, CALL */
};

/* Parses one expression at text[*at..n) and moves *at to the first byte after it (blanks skipped). ERR_FORMAT says
 * "expected ... at column C of `text`"; ERR_LIMIT: too deep. */
int eng_expr_parse_at(struct eng_expr **out, const char *text, size_t n, size_t *at, struct arena *a, struct err *e);
int eng_expr_parse(struct eng_expr **out, const char *text, struct arena *a, struct err *e); /* the whole text */
/* "a, b, c" -> a LIST node with a child each. */
int eng_expr_parse_list(struct eng_expr **out, const char *text, struct arena *a, struct err *e);
bool eng_expr_is_function(const char *name, size_t n); /* min, max, ..., cfg, has */

/* What an expression is evaluated against. name: ERR_NOTFOUND when there is no such name. call: cfg, present, has, dim. */
struct eng_scope {
    void *ctx;
    int (*name)(void *ctx, const char *name, struct eng_value *out, struct err *e);
    int (*call)(void *ctx, const char *fn, const struct eng_value *args, unsigned n, struct eng_value *out, struct err *e);
    struct arena *mem;   /* lists, strings */
    uint64_t steps;      /* counted down by every node; 0: ERR_LIMIT */
    unsigned depth;
};
int eng_expr_eval(const struct eng_expr *x, struct eng_scope *s, struct eng_value *out, struct err *e);

struct eng_value eng_v_int(int64_t i);
struct eng_value eng_v_num(double f);
struct eng_value eng_v_bool(bool b);
struct eng_value eng_v_str(const char *s);
bool eng_v_truth(const struct eng_value *v);
bool eng_v_equal(const struct eng_value *a, const struct eng_value *b);
bool eng_v_number(const struct eng_value *v, double *out);   /* INT or NUM */
bool eng_v_integer(const struct eng_value *v, int64_t *out); /* INT, or NUM with an integral value */
const struct eng_member *eng_v_member(const struct eng_value *v, const char *key); /* NULL: not an object or no such key */
const char *eng_v_type(const struct eng_value *v);           /* "an integer", "text" ... for messages */
/* JSON -> value. Numbers without '.', 'e' that fit are INT. ERR_LIMIT: too deep. */
int eng_v_from_json(const struct json *j, struct arena *a, struct eng_value *out, struct err *e);
/* Short text of a value for messages: 8, 'silu', [1, 2, ...]. */
void eng_v_show(const struct eng_value *v, char *out, size_t n);
#endif
