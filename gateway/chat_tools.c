/* What tools and reasoning add to a request before it is rendered, and the reader of each answer. On the worker. */
#include <stdio.h>
#include <string.h>

#include "gateway/chat_internal.h"
#include "gateway/fields.h"

static int no_memory(struct gw_chat *c) { return gw_api_error_set(&c->ae, 503, NULL, NULL, "Out of memory."); }

int gw_chat_check_tools(struct gw_chat *c)
{
    const struct eng_chat_form *f = eng_chat_form_of(c->served->chat);
    if (!c->req.tools.n || c->req.tools.choice == GW_TOOLS_NONE)
        return 0;
    if (!f->tools || !f->calls)
        return gw_api_error_set(&c->ae, 400, "unsupported_parameter", "tools", "Unsupported parameter: 'tools'. The chat template of '%.200s' does not %s.", c->req.model,
                                f->tools ? "show calls of tools" : "show tools to the model");
    if (!c->served->format.has_tools)
        return gw_api_error_set(&c->ae, 400, "unsupported_parameter", "tools", "Unsupported parameter: 'tools'. How '%.200s' spells calls is not known to this server.", c->req.model);
    return 0;
}

static bool reads(const struct gw_chat *c, const char *variable) { return eng_chat_reads(c->served->chat, variable); }

/* Sets those of the variables that the template reads; false: it reads none. */
static bool set_switch(struct gw_chat *c, struct json *vars, bool on, bool *ok)
{
    static const char *const names[] = {"enable_thinking", "thinking"};
    bool any = false;
    for (size_t i = 0; i < 2; i++)
        if (reads(c, names[i])) {
            *ok = *ok && json_set(&c->mem, vars, names[i], json_new_bool(&c->mem, on));
            any = true;
        }
    return any;
}

static bool set_effort(struct gw_chat *c, struct json *vars, bool *ok)
{
    static const char *const names[] = {"reasoning_effort", "thinking_effort"};
    bool any = false;
    for (size_t i = 0; i < 2; i++)
        if (reads(c, names[i])) {
            *ok = *ok && json_set(&c->mem, vars, names[i], json_new_str(&c->mem, c->req.effort, strlen(c->req.effort)));
            any = true;
        }
    return any;
}

/* Switches of reasoning become variables of the template, beside the request's own chat_template_kwargs, which rule. */
int gw_chat_set_reasoning(struct gw_chat *c)
{
    const struct gw_chat_req *q = &c->req;
    const struct json *own = gw_field(q->body, "chat_template_kwargs");
    struct json *vars = json_new(&c->mem, JSON_OBJECT), *body = json_new(&c->mem, JSON_OBJECT);
    bool ok = vars && body, known = true;
    c->head.hide_reasoning = q->think == GW_THINK_OFF;
    if (q->think == GW_THINK_UNSAID && !q->effort)
        return 0;
    if (ok && q->think != GW_THINK_UNSAID)
        known = set_switch(c, vars, q->think == GW_THINK_ON, &ok) || q->think == GW_THINK_OFF || c->served->format.has_reasoning;
    if (ok && q->effort)
        known = set_effort(c, vars, &ok) && known;
    if (!known)
        return gw_api_error_set(&c->ae, 400, "unsupported_parameter", q->think_param, "Unsupported parameter: '%s'. The chat template of '%.200s' knows no such setting.", q->think_param,
                                c->req.model);
    for (size_t i = 0; ok && own && i < own->n; i++)
        ok = json_set(&c->mem, vars, own->members[i].key, own->members[i].value);
    for (size_t i = 0; ok && i < q->body->n; i++)
        ok = json_set(&c->mem, body, q->body->members[i].key, q->body->members[i].value);
    if (!ok || !json_set(&c->mem, body, "chat_template_kwargs", vars))
        return no_memory(c);
    c->req.body = body;
    return 0;
}

int gw_chat_make_grammar(struct gw_chat *c)
{
    struct err e;
    uint32_t bad = 0;
    char param[64];
    if (!c->req.tools.n || c->req.tools.choice == GW_TOOLS_NONE)
        return 0;
    int rc = gw_call_grammar(&c->calls_grammar, &c->served->format, &c->req.tools, c->place, c->served->tok->tok, &bad, &e);
    if (!rc)
        return 0;
    if (rc == ERR_NOMEM)
        return no_memory(c);
    snprintf(param, sizeof param, "tools[%u].function.parameters", bad);
    return gw_api_error_set(&c->ae, 400, "invalid_function_parameters", param, "Invalid schema for function '%.64s': %s", c->req.tools.v[bad].name, e.msg);
}

/* Tools outlive the request's memory: answers are read by them. */
int gw_chat_keep_tools(struct gw_chat *c)
{
    return c->req.tools.choice == GW_TOOLS_NONE || gw_tools_copy(&c->tools, &c->req.tools, &c->kept) ? 0 : no_memory(c);
}

int gw_chat_open_calls(struct gw_chat *c, struct gw_choice *k)
{
    const struct eng_format *f = &c->served->format;
    struct gw_calls_config cfg = {.format = f, .tools = c->tools.n ? &c->tools : NULL, .in_reasoning = c->place == GW_PLACE_REASONING, .whole = !c->req.stream,
                                  .id_prefix = c->api->call_prefix, .bytes_max = ANSWER_BYTES_MAX};
    if (c->req.prompts || (!f->has_reasoning && !c->tools.n && !f->n_markers))
        return 0;
    if (!hash_random(&cfg.id_seed, sizeof cfg.id_seed) || !(k->calls = gw_calls_open(&cfg)))
        return no_memory(c);
    return 0;
}
