/* engine/jinja_internal.h - what the parts of the template engine share: values, tokens, the tree, and the state of one render.
 *
 * Owns:      nothing; the tree lives in the template's arena, values in the arena of their render.
 * Invariant: the template's arena is never written after open (strings of the tree have their length in code points counted);
 *            functions that return bool report through jrun.e or jparse.e and are false after the first error.
 * Source:    Jinja2 3.1's grammar and Python's semantics of the operations that templates use.
 *
 * Reading order: jinja_lex, jinja_operand, jinja_parse, jinja_stmt (syntax); jinja_value, jinja_text, jinja_repr, jinja_num (values); jinja_ops
 * (operators), jinja_eval, jinja_exec (the walk); jinja_filters, jinja_seq, jinja_tests, jinja_methods, jinja_format (built-ins). */
#ifndef SLUICE_ENGINE_JINJA_INTERNAL_H
#define SLUICE_ENGINE_JINJA_INTERNAL_H
#include "engine/template.h"

/* ---- values --------------------------------------------------------------------------------------------------------- */
enum j_type { J_UNDEF, J_NONE, J_BOOL, J_INT, J_BIG /* integer beyond 64 bits, as text */, J_FLOAT, J_STR, J_LIST, J_TUPLE, J_DICT,
              J_RANGE, J_VIEW /* of a dict */, J_ITER /* read once, as Python's generators */, J_NS, J_MACRO, J_FUNC, J_METHOD,
              J_LOOP, J_CYCLER, J_JOINER, J_ABSENT /* an argument that was not given */ };
enum j_view { J_KEYS, J_VALUES, J_ITEMS };
enum j_undef { J_NO_NAME, J_NO_ATTR, J_NO_ITEM, J_UNSAFE };

typedef struct jv {
    uint8_t t;
    uint8_t sub;     /* VIEW: enum j_view; UNDEF: enum j_undef */
    uint8_t owner;   /* UNDEF: j_type of what lacks the attribute */
    bool plain;      /* NONE..FLOAT: came out of the context */
    uint32_t n;      /* UNDEF: length of name */
    union {
        bool b; int64_t i; double f;
        struct jstr *s; struct jlist *l; struct jdict *d; struct jrange *r; struct jiter *it;
        struct jmacro *m; struct jmethod *me; struct jloop *lo; struct jcycle *cy;
        const struct jbuiltin *fn;
        const char *name; /* UNDEF */
    } u;
} jv;

/* Immutable text. `room`: the growing block it ends, if any, so that s = s + x appends in place (see jinja_text.c). */
struct jstr {
    const char *s; size_t n;
    size_t cps;           /* code points; SIZE_MAX: not counted yet */
    const uint8_t *map;   /* a byte of trust for each; NULL: all are `trusted` */
    struct jroom *room;
    bool trusted, safe;   /* safe: markup, which escapes what is added to it */
};
struct jlist { jv *v; size_t n, cap; bool frozen; };
struct jpair { jv k, v; };
struct jdict { struct jpair *p; size_t n, cap; };
struct jrange { int64_t start, stop, step; size_t n; };
struct jiter { struct jlist *l; size_t pos; };
struct jmethod { jv self; const struct jbuiltin *fn; };
struct jmacro { const struct jnode *node; struct jscope *scope; const struct jmacro *caller_of; };
struct jloop { struct jlist *l; size_t i; unsigned depth; const struct jnode *node; struct jscope *scope; jv last; bool seen; };
struct jcycle { struct jlist *l; size_t i; };

/* ---- tree ----------------------------------------------------------------------------------------------------------- */
enum j_kind {
    N_BODY, N_TEXT, N_OUT, N_IF, N_FOR, N_SET, N_SETBLOCK, N_MACRO, N_CALLBLOCK, N_FILTERBLOCK, N_WITH, N_BREAK, N_CONTINUE,
    N_SCOPE,                                                                  /* statements */
    N_CONST, N_NAME, N_NSREF, N_LIST, N_TUPLE, N_DICT, N_COND, N_AND, N_OR, N_NOT, N_COMPARE, N_BIN, N_CONCAT, N_NEG, N_POS,
    N_ATTR, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST, N_HOLE                 /* expressions; HOLE: the text a filter block made */
};
enum j_op { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN };

enum { USES_VARARGS = 1, USES_KWARGS = 2, USES_CALLER = 4 };
struct jkw { const char *name; size_t len; uint32_t id; struct jnode *v; };
struct jnode {
    uint8_t kind, op;       /* op: j_op; FOR: recursive; MACRO: USES_ */
    uint32_t line, name;    /* name: index into the template's names */
    jv val;                 /* CONST, TEXT; ATTR, unknown FILTER, TEST: the name as a string */
    struct jnode *a, *b, *c;
    struct jnode **v;       /* children, arguments, operands */
    struct jkw *kw;         /* keyword arguments */
    uint8_t *ops;           /* COMPARE: op of each operand */
    const struct jbuiltin *fn;
    uint32_t n, n_kw;
};

struct eng_template {
    struct arena mem;
    struct jnode *body;
    struct jname { const char *s; size_t n; const struct jbuiltin *global; } *names;
    uint32_t n_names, cap_names, *hash, n_hash; /* open addressing, index + 1 */
    struct eng_template_limits lim;
    uint32_t id_loop, id_caller, id_varargs, id_kwargs;
};

/* ---- lexing and parsing --------------------------------------------------------------------------------------------- */
enum j_tok { T_EOF, T_DATA, T_OUT, T_OUT_END, T_TAG, T_TAG_END, T_NAME, T_STR, T_INT, T_FLOAT, T_OP };
/* Operators are their first character, two-character ones 256 + the first. */
#define T2(c) (256 + (c))
struct jtoken { enum j_tok type; int op; uint32_t line; size_t pos; const char *s; size_t n; };
struct jlex {
    const char *src; size_t n, pos;
    uint32_t line; size_t line_pos; /* where `line` was counted up to */
    bool inside, is_out;            /* between {% %} or {{ }}; which */
    bool line_starting;             /* the last tag took its newline with it */
    char open[256]; unsigned n_open;/* brackets waiting for their end */
    struct arena *mem; struct err *e;
};
bool j_lex(struct jlex *lx, struct jtoken *t);                      /* the next token; false on error */
int j_lex_fail(struct jlex *lx, size_t pos, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
size_t j_space_at(const char *s, size_t n, size_t i);               /* bytes of the white space character at i, 0 if none */
size_t j_rstrip_len(const char *s, size_t n);                       /* length without white space at its end */

struct jparse {
    struct eng_template *t;
    struct jlex lx;
    struct jtoken cur, next;
    uint8_t uses;                             /* USES_, of the macro that is being read */
    unsigned depth, loops, conds;             /* nesting: of anything, of loops, of conditions */
    const struct jnode *unknown; size_t unknown_pos; /* the first filter or test without a function in this tag */
    bool failed;
    struct err *e;
};
bool j_advance(struct jparse *p);
int j_syntax(struct jparse *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void *j_parse_fail(struct jparse *p, int code, const char *what);   /* NULL; the place is the token at hand */
bool j_is_op(const struct jparse *p, int op);
bool j_is_name(const struct jparse *p, const char *name);
bool j_skip_op(struct jparse *p, int op);
bool j_skip_name(struct jparse *p, const char *name);
bool j_expect_op(struct jparse *p, int op);
struct jnode *j_node(struct jparse *p, enum j_kind kind);           /* NULL on error, as all below */
struct jnode *j_expr(struct jparse *p);                             /* with inline if */
struct jnode *j_tuple(struct jparse *p, bool simplified, bool inline_if, bool parens, bool ns);
struct jnode *j_primary(struct jparse *p, bool ns);                 /* ns: a.b is a namespace reference */
struct jnode *j_filters(struct jparse *p, struct jnode *a, bool start_inline);
struct jnode *j_postfix(struct jparse *p, struct jnode *a);
struct jnode *j_target(struct jparse *p, bool tuple, bool ns);
bool j_push_node(struct jparse *p, struct jnode ***v, uint32_t *n, struct jnode *c); /* capacity: the power of two at or above n */
uint32_t j_name_id(struct eng_template *t, const char *s, size_t n); /* UINT32_MAX: no memory */
struct jnode *j_template(struct jparse *p);                         /* the whole source */

/* ---- rendering ------------------------------------------------------------------------------------------------------ */
struct jout { char *s; uint8_t *map; size_t n, cap; bool trusted; }; /* map as in jstr; made when the trust first changes */
struct jvar { uint32_t id; jv v; };
struct jscope { struct jscope *up; struct jvar *vars; uint32_t n, cap; };
enum { J_UNSEEN, J_SET, J_MISSING };
enum j_flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct jrun {
    const struct eng_template *t;
    struct arena *a;
    struct err *e;
    uint64_t steps;                 /* left */
    size_t bytes_max;
    unsigned depth, depth_max, calls;
    uint32_t line;
    const struct json *ctx; const char *const *trusted_keys; int64_t now;
    jv *globals; uint8_t *seen;     /* by name */
    struct jscope *scope;           /* NULL: top level */
    struct jout *out;
    enum j_flow flow;
    jv hole;
};
struct jargs { jv *v; size_t n; struct jnamed { const char *name; size_t len; jv v; bool plain; /* the name came out of the context, by ** */ } *kw; size_t n_kw; };
/* av[0] is the filtered or tested value (a global function: none), then one entry per name in `params`, J_ABSENT if not given. */
typedef bool j_fn(struct jrun *r, const jv *av, const struct jargs *raw, jv *out);
/* params "*": raw alone. need: how many of params must be given. type: a method's owner; fn NULL: it exists, and is refused. */
struct jbuiltin { const char *name; j_fn *fn; const char *params; uint8_t need, type; bool changes; };

bool j_fail(struct jrun *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool j_nomem(struct jrun *r);
void *j_alloc(struct jrun *r, size_t n, size_t size);               /* NULL after j_fail */
bool j_charge(struct jrun *r, size_t n);                            /* n steps */
bool j_deeper(struct jrun *r);                                      /* and r->depth-- when it was true */
bool j_undefined(struct jrun *r, jv v);                             /* the error of using it; always false */
const char *j_type_name(jv v);

/* jinja_value.c */
static inline jv j_none(void) { return (jv){.t = J_NONE}; }
static inline jv j_bool(bool b) { return (jv){.t = J_BOOL, .u.b = b}; }
static inline jv j_int(int64_t i) { return (jv){.t = J_INT, .u.i = i}; }
static inline jv j_float(double f) { return (jv){.t = J_FLOAT, .u.f = f}; }
static inline jv j_wrap_list(struct jlist *l) { return (jv){.t = J_LIST, .u.l = l}; }
static inline bool j_is_int(jv v) { return v.t == J_INT || v.t == J_BOOL || v.t == J_BIG; }
static inline bool j_is_num(jv v) { return j_is_int(v) || v.t == J_FLOAT; }
struct jlist *j_list(struct jrun *r, size_t cap);
bool j_append(struct jrun *r, struct jlist *l, jv v);
struct jdict *j_dict(struct jrun *r, size_t cap);
bool j_dict_find(struct jrun *r, const struct jdict *d, jv k, jv **out);        /* *out NULL: absent */
jv *j_dict_name(const struct jdict *d, const char *s, size_t n);
bool j_dict_set(struct jrun *r, struct jdict *d, jv k, jv v);
bool j_hashable(struct jrun *r, jv k);
bool j_from_json(struct jrun *r, const struct json *v, bool trusted, jv *out);
bool j_truth(jv v);
bool j_iter(struct jrun *r, jv v, struct jlist **out);              /* all items of anything that can be looped over */
bool j_len(struct jrun *r, jv v, size_t *out);                      /* code points, items; false: an error */
bool j_has_len(jv v);
bool j_to_index(struct jrun *r, jv v, int64_t *out);                /* an integer, clamped where beyond 64 bits */
bool j_any_plain(struct jrun *r, jv v, bool *plain);                /* anything in it came out of the context */

/* jinja_text.c */
struct jstr *j_text(struct jrun *r, const char *s, size_t n, bool trusted);     /* borrows s */
bool j_str(struct jrun *r, const char *s, size_t n, bool trusted, jv *out);     /* copies s */
bool j_lit(struct jrun *r, const char *s, jv *out);                             /* a C string with the life of the program */
bool j_sub(struct jrun *r, const struct jstr *s, size_t at, size_t n, jv *out);
bool j_cat(struct jrun *r, const struct jstr *a, const struct jstr *b, jv *out);
bool j_put(struct jrun *r, struct jout *o, const char *s, size_t n, bool trusted);
bool j_put_text(struct jrun *r, struct jout *o, const struct jstr *s);
bool j_taken(struct jrun *r, struct jout *o, jv *out);              /* the buffer as a string */
bool j_all_trusted(const struct jstr *s);
size_t j_cps(struct jstr *s);
size_t j_cp_offset(struct jstr *s, size_t cp);                      /* byte offset of code point cp <= j_cps */
size_t j_cp_len(const char *s, size_t n);                           /* bytes of the first character, n >= 1 */
int32_t j_cp_at(const char *s, size_t n, size_t *len);              /* a byte that is no UTF-8 counts as itself */
size_t j_cp_put(char *s, int32_t cp);
bool j_is_space(int32_t cp);
size_t j_find(const char *s, size_t n, const char *w, size_t m);    /* SIZE_MAX: not there */
size_t j_rfind(const char *s, size_t n, const char *w, size_t m);

/* jinja_repr.c */
bool j_put_str(struct jrun *r, struct jout *o, jv v);               /* as {{ v }} prints it */
bool j_put_repr(struct jrun *r, struct jout *o, jv v);
bool j_to_str(struct jrun *r, jv v, struct jstr **out);
bool j_repr(struct jrun *r, jv v, struct jstr **out);
struct jdump { jv indent; const char *item_sep, *key_sep; size_t n_item_sep, n_key_sep; bool ascii, sort, plain_seps; };
bool j_tojson(struct jrun *r, jv v, const struct jdump *how, jv *out);

/* jinja_num.c */
size_t j_float_text(double f, char out[40]);
bool j_parse_int(const char *s, size_t n, int base, int64_t *out, bool *big); /* digits alone, sign allowed; false: not an integer */
double j_double(jv v);                                              /* of a number */
int j_big_cmp(jv a, jv b);                                          /* integers of any size */
bool j_big_sign(jv v);                                              /* negative */
bool j_arith(struct jrun *r, enum j_op op, jv a, jv b, jv *out);    /* numbers */
bool j_negate(struct jrun *r, jv v, jv *out);
bool j_int_lit(struct jrun *r, const char *s, size_t n, bool trusted, jv *out);

/* jinja_ops.c */
bool j_binary(struct jrun *r, enum j_op op, jv a, jv b, jv *out);
bool j_equal(struct jrun *r, jv a, jv b, bool *out);
bool j_less(struct jrun *r, jv a, jv b, const char *sign, bool *out); /* sign: for the message */
bool j_compare(struct jrun *r, enum j_op op, jv a, jv b, bool *out);
bool j_contains(struct jrun *r, jv in, jv x, bool *out);
bool j_attr(struct jrun *r, jv v, const char *s, size_t n, jv *out);
bool j_item(struct jrun *r, jv v, jv k, jv *out);
bool j_slice(struct jrun *r, jv v, jv from, jv to, jv step, jv *out);
bool j_escape(struct jrun *r, jv v, jv *out);
bool j_percent(struct jrun *r, struct jstr *fmt, jv args, jv *out); /* jinja_format.c */

/* jinja_case.c, jinja_methods.c: what filters and methods share. A result keeps `safe`. */
enum j_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP };
bool j_case(struct jrun *r, const struct jstr *s, enum j_case how, jv *out);
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
bool j_strip(struct jrun *r, struct jstr *s, jv chars, int sides, jv *out); /* chars: none or absent is white space */
bool j_replace(struct jrun *r, struct jstr *s, jv from, jv to, jv count, jv *out);
bool j_format(struct jrun *r, struct jstr *fmt, const struct jargs *args, jv *out); /* jinja_format.c: str.format */
bool j_pad(struct jrun *r, struct jstr *s, int64_t width, const char *fill, int align /* '<', '>', '^' */, jv *out);

/* jinja_eval.c, jinja_exec.c */
bool j_eval(struct jrun *r, const struct jnode *n, jv *out);
bool j_call(struct jrun *r, jv f, const struct jargs *args, jv *out);
bool j_call_builtin(struct jrun *r, const struct jbuiltin *fn, jv self, const struct jargs *args, jv *out);
bool j_call_macro(struct jrun *r, const struct jmacro *m, const struct jargs *args, jv *out);
bool j_call_loop(struct jrun *r, const struct jloop *l, jv items, jv *out);
bool j_assign(struct jrun *r, const struct jnode *target, jv v);
bool j_set_var(struct jrun *r, struct jscope *s, uint32_t id, jv v);
bool j_exec(struct jrun *r, const struct jnode *n);
bool j_loop_attr(struct jrun *r, const struct jloop *l, const char *s, size_t n, jv *out, bool *found);

/* tables; NULL: no such name */
const struct jbuiltin *j_filter(const char *s, size_t n);
const struct jbuiltin *j_test(const char *s, size_t n);
const struct jbuiltin *j_global(const char *s, size_t n);
const struct jbuiltin *j_method(uint8_t type, const char *s, size_t n);
const struct jbuiltin *j_in_table(const struct jbuiltin *t, size_t rows, const char *s, size_t n);
extern const struct jbuiltin j_seq_filters[], j_word_filters[], j_str_methods[];
extern const size_t j_n_seq_filters, j_n_word_filters, j_n_str_methods;
bool j_want_text(struct jrun *r, jv v, const char *filter); /* false after j_fail unless v is a str */
#endif
