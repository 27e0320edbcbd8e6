/* gateway/small.h - questions that a worker answers without the engine: how many tokens, which ones, what text they are.
 *
 * Owns:      POST /tokenize and /detokenize in vLLM's shapes, POST /v1/messages/count_tokens in Anthropic's.
 * Invariant: a job's exchange belongs to its loop, which clears it when the client leaves; the worker touches neither.
 * Source:    vLLM's OpenAI-compatible server (tokenize, detokenize); Anthropic's API reference.
 * Threads:   the loop of the exchange; the work runs on a worker. */
#ifndef SLUICE_GATEWAY_SMALL_H
#define SLUICE_GATEWAY_SMALL_H
#include "gateway/app_internal.h"

/* route: GW_ROUTE_TOKENIZE, GW_ROUTE_DETOKENIZE or GW_ROUTE_COUNT. The tenant is charged a request, and holds a place while it runs. */
void gw_small_start(struct gw_app *a, enum gw_route route, gw_exchange *x, gw_tenant *tenant);
#endif
