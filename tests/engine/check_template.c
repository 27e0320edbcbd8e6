/* engine/template: small cases of every feature, hostile templates, real ones where the shared data is, whose bytes are whose. */
#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include "engine/template.h"
#include "engine/template_verify.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

static struct err e;
static const char *const trusted[] = {"bos_token", "eos_token", NULL};
static const char context_text[] = "{\"u\": \"USER\", \"bos_token\": \"<s>\", \"n\": 5, \"l\": [\"a\", \"b\"], \"d\": {\"k\": \"v\"}, \"x\": \" <s> \","
                                   " \"big\": 123456789012345678901234567890, \"f\": 1.5, \"eos_token\": {\"content\": \"</s>\"}}";

static int render_with(const char *src, size_t n, const struct eng_template_limits *lim, struct arena *a, struct eng_prompt *p)
{
    eng_template *t = NULL;
    struct json *ctx = NULL;
    int rc = json_parse(&ctx, context_text, sizeof context_text - 1, &json_strict, a, &e);
    if (!rc)
        rc = eng_template_open(&t, src, n, lim, &e);
    if (!rc)
        rc = eng_template_render(t, ctx, trusted, 1784118896, a, p, &e);
    eng_template_close(t);
    return rc;
}
static int render(const char *src, struct arena *a, struct eng_prompt *p) { return render_with(src, strlen(src), NULL, a, p); }

START_TEST(features)
{
    unsigned passed, failed;
    OK(eng_template_verify(NULL, "tests/data/templates/jinja-features.json", stdout, &passed, &failed, &e));
    ck_assert_uint_ge(passed, 228);
    ck_assert_uint_eq(failed, 0);
}
END_TEST

START_TEST(published)
{
    static const char base[] = "../shared/data/templates";
    char tmpl[600], cases[600];
    DIR *d = opendir(base);
    struct dirent *f;
    unsigned dirs = 0;
    if (!d) {
        printf("SKIP published templates: no %s\n", base);
        return;
    }
    while ((f = readdir(d))) {
        unsigned passed, failed;
        snprintf(tmpl, sizeof tmpl, "%s/%s/template.jinja", base, f->d_name);
        snprintf(cases, sizeof cases, "%s/%s/cases.json", base, f->d_name);
        if (access(tmpl, R_OK))
            continue;
        OK(eng_template_verify(tmpl, cases, stdout, &passed, &failed, &e));
        ck_assert_msg(passed > 40 && !failed, "%s: %u passed, %u failed", f->d_name, passed, failed);
        dirs++;
    }
    closedir(d);
    ck_assert_uint_ge(dirs, 1);
}
END_TEST

START_TEST(hostile)
{
    unsigned passed, failed;
    clock_t start = clock();
    OK(eng_template_verify(NULL, "tests/data/templates/jinja-hostile.json", stdout, &passed, &failed, &e));
    ck_assert_uint_ge(passed, 100);
    ck_assert_uint_eq(failed, 0);
#ifndef __SANITIZE_ADDRESS__
    ck_assert_msg((double)(clock() - start) / CLOCKS_PER_SEC < 20, "all hostile templates together took %.1f s", (double)(clock() - start) / CLOCKS_PER_SEC);
#else
    (void)start;
#endif
}
END_TEST

/* What is rendered, and for each byte of it T (the template's own) or p (out of the context). */
static const struct { const char *src, *text, *whose; } owners[] = {
    {"hi {{ u }}!", "hi USER!", "TTTppppT"},
    {"{{ bos_token }}{{ u }}", "<s>USER", "TTTpppp"},
    {"{{ eos_token.content }}", "</s>", "TTTT"},
    {"{{ '<' + u + '>' }}", "<USER>", "TppppT"},
    {"{{ '<' ~ u ~ '>' }}", "<USER>", "TppppT"},
    {"{{ ('<' + u + '>')[1:] }}", "USER>", "ppppT"},
    {"{{ ('<' + u + '>')[:2] }}", "<U", "Tp"},
    {"{{ ('<' + u)[0] }}{{ ('<' + u)[1] }}", "<U", "Tp"},
    {"{{ ('ab' ~ u)[::-1] }}", "RESUba", "pppppp"},
    {"{{ (' ' + u + ' ')|trim }}", "USER", "pppp"},
    {"{{ x.strip() }}", "<s>", "ppp"},
    {"{{ ('[' + u + ']').replace('SE', '--') }}", "[U--R]", "TpTTpT"},
    {"{{ '[%]'.replace('%', u) }}", "[USER]", "TppppT"},
    {"{{ ('a,' + u + ',b').split(',')|join('+') }}", "a+USER+b", "TTppppTT"},
    {"{{ l|join('<s>') }}", "a<s>b", "pTTTp"},
    {"{{ ', '.join(l) }}", "a, b", "pTTp"},
    {"{{ u|upper }}{{ 'x'|upper }}", "USERX", "ppppT"},
    {"{{ ('x' + u)|lower }}", "xuser", "ppppp"},
    {"{{ d|tojson }}", "{\"k\": \"v\"}", "pppppppppp"},
    {"{{ {'k': 1}|tojson }}", "{\"k\": 1}", "TTTTTTTT"},
    {"{{ l }}", "['a', 'b']", "pppppppppp"},
    {"{{ ['a'] }}", "['a']", "TTTTT"},
    {"{{ '%s!' % u }}{{ '%s!' % 'a' }}", "USER!a!", "pppppTT"},
    {"{{ '{}!'.format(u) }}{{ '{}!'.format('a') }}", "USER!a!", "pppppTT"},
    {"{{ n }}{{ 5 }}{{ n + 5 }}", "5510", "pTpp"},
    {"{{ f }} {{ big }}", "1.5 123456789012345678901234567890", "pppTpppppppppppppppppppppppppppppp"},
    {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "k=v", "pTp"},
    {"{% set q %}<{{ u }}>{% endset %}{{ q }}", "<USER>", "TppppT"},
    {"{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(u) + 'z' }}", "[USER]z", "TppppTT"},
    {"{% filter trim %} {{ u }}. {% endfilter %}", "USER.", "ppppT"},
    {"{{ u|safe + '<' }}", "USER&lt;", "ppppTTTT"},
    {"{{ u|indent(2, true) }}", "  USER", "TTpppp"},
    {"{{ u|center(6) }}", " USER ", "TppppT"},
    {"{% macro m() %}{{ kwargs|join }}{% endmacro %}{{ m(**d) }}{{ m(z=1) }}", "kz", "pT"},
    {"{{ [1, 2]|tojson(separators=(u, ':')) }}", "[1USER2]", "pppppppp"},
    {"{{ nope|default(u) }}{{ nope|default('d') }}", "USERd", "ppppT"},
    {"{% for c in u %}{{ c }}{% if loop.first %}.{% endif %}{% endfor %}", "U.SER", "pTppp"},
    {"{% set ns = namespace(s='') %}{% for c in l %}{% set ns.s = ns.s + '<' + c + '>' %}{% endfor %}{{ ns.s }}", "<a><b>", "TpTTpT"},
    {"{{ '{\"a\": 1}'|from_json }}", "{'a': 1}", "TTTTTTTT"},
    {"{% set q = [] %}{% set _ = q.append(u) %}{% set _ = q.append('x') %}{{ q.pop(0) }}{{ q.pop() }}", "USERx", "ppppT"},
};

static void check_owner(int i)
{
    struct arena a;
    struct eng_prompt p;
    char whose[256] = "";
    size_t n = 0, at = 0;
    arena_init(&a, 1 << 20);
    OK(render(owners[i].src, &a, &p));
    ck_assert_msg(!strcmp(p.text, owners[i].text), "%s: \"%s\"", owners[i].src, p.text);
    for (size_t k = 0; k < p.n_spans; k++) {
        ck_assert_uint_eq(p.spans[k].begin, at);
        ck_assert_uint_gt(p.spans[k].end, at);
        for (at = p.spans[k].end; n < at; n++)
            whose[n] = p.spans[k].trusted ? 'T' : 'p';
    }
    ck_assert_uint_eq(at, p.n);
    ck_assert_msg(!strcmp(whose, owners[i].whose), "%s: %s instead of %s", owners[i].src, whose, owners[i].whose);
    arena_free(&a);
}

START_TEST(trust)
{
    for (size_t i = 0; i < sizeof owners / sizeof *owners; i++)
        check_owner((int)i);
}
END_TEST

/* A text that grows by a little a thousand times costs its length, not its square. */
START_TEST(growth)
{
    static const char src[] = "{% set ns = namespace(s='') %}{% for i in range(5000) %}{% set ns.s = ns.s + u + ', and so on, and so on; ' %}{% endfor %}{{ ns.s|length }}";
    struct arena a;
    struct eng_prompt p;
    arena_init(&a, 16 << 20);
    OK(render(src, &a, &p));
    ck_assert_str_eq(p.text, "140000");
    arena_free(&a);
}
END_TEST

START_TEST(errors)
{
    struct arena a;
    struct eng_prompt p;
    struct eng_template_limits few = {.steps_max = 100, .bytes_max = 64, .depth_max = 8}, frozen = {.frozen = true};
    static const char grow[] = "{% set l = [] %}{{ l.append(1) }}", json[] = "{{ '1'|from_json }}";
    arena_init(&a, 4 << 20);
    FAILS(ERR_FORMAT, "line 2, column 8", render("a\n{{ 1 + }}", &a, &p));
    FAILS(ERR_FORMAT, "no filter \"nosuch\"", render("{{ 1|nosuch }}", &a, &p));
    FAILS(ERR_FORMAT, "no test \"nosuch\"", render("{{ 1 is nosuch }}", &a, &p));
    FAILS(ERR_FORMAT, "line 3", render("\n\n{{ nope.a }}", &a, &p));
    FAILS(ERR_FORMAT, "\"append\" would change a list", render("{% set _ = l.append(1) %}", &a, &p)); /* a list of the context */
    FAILS(ERR_FORMAT, "\"update\" would change a dict", render("{{ {}.update(a=1) }}", &a, &p));
    FAILS(ERR_FORMAT, "UTF-8", render_with("a\xFFz", 3, NULL, &a, &p));
    FAILS(ERR_FORMAT, "would change", render_with(grow, sizeof grow - 1, &frozen, &a, &p));
    FAILS(ERR_FORMAT, "from_json", render_with(json, sizeof json - 1, &frozen, &a, &p));
    FAILS(ERR_INVALID, "bad role", render("{{ raise_exception('bad role: ' ~ u) }}", &a, &p));
    ck_assert_str_eq(e.msg, "bad role: USER");
    FAILS(ERR_LIMIT, "steps", render_with("{% for i in range(99) %}{% endfor %}", 36, &few, &a, &p));
    FAILS(ERR_LIMIT, "64 bytes", render_with("{{ 'a' * 65 }}", 14, &few, &a, &p));
    FAILS(ERR_LIMIT, "nested", render_with("{{ ((((((((1)))))))) }}", 23, &few, &a, &p));
    FAILS(ERR_LIMIT, "", render("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", &a, &p));
    arena_free(&a);
    arena_init(&a, 64 << 10);
    FAILS(ERR_LIMIT, "memory", render("{% for i in range(9999) %}{{ u * 9 }}{% endfor %}", &a, &p));
    arena_free(&a);
}
END_TEST

/* Every allocation of an open and a render fails once: a clean error each time, nothing left behind. */
START_TEST(memory)
{
    static const char src[] = "{% macro m(a) %}{{ a ~ u }}{% endmacro %}{% for i in range(40) %}{{ m(i)|upper }}{{ [i, u]|tojson }}{% endfor %}";
    struct arena a;
    struct eng_prompt p;
    long n = 0;
    if (!alloc_fail_works()) {
        printf("SKIP template/memory: the allocator cannot be made to fail here\n");
        return;
    }
    for (bool more = true; more; n++) {
        arena_init(&a, 4 << 20);
        alloc_fail_at(n);
        int rc = render(src, &a, &p);
        more = alloc_fail_end();
        ck_assert_msg(more ? rc == ERR_NOMEM || rc == ERR_LIMIT : rc == ERR_OK, "allocation %ld: %s (%s)", n, err_name(rc), e.msg);
        arena_free(&a);
    }
    ck_assert_int_gt(n, 3);
}
END_TEST

SUITE("engine", "template", features, published, hostile, trust, growth, errors, memory)
