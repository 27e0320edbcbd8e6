/* engine/schema_merge.h - schemas that hold together (allOf, $ref or anyOf beside other keywords) as one.
 * ERR_INVALID: nothing is left; ERR_UNSUPPORTED: the pair has no common form here. *merged lives in s->mem. */
#ifndef SLUICE_ENGINE_SCHEMA_MERGE_H
#define SLUICE_ENGINE_SCHEMA_MERGE_H
#include "engine/schema_internal.h"

int schema_merge(struct schema *s, const struct json *a, const struct json *b, const struct json **merged);
bool schema_same(struct schema *s, const struct json *a, const struct json *b); /* spelled alike; s->failed when memory is short */
#endif
