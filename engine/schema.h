/* engine/schema.h - JSON Schema -> GBNF rules (engine/grammar.h) whose every text is a JSON value that the schema accepts.
 *
 * Sound first: where all of a schema's values cannot be spelled, fewer are allowed, never others. Objects' keys come in the order of `properties`,
 * optional ones may be left out; blanks are bounded, numbers have a bounded length. Keywords, formats and the regular expressions of `pattern`
 * that are understood: docs/api.md, "Structured output". What constrains and cannot be expressed is refused; annotations and unknown
 * keywords are ignored. oneOf means anyOf. Without `additionalProperties` an object that names properties has no others.
 * Source: JSON Schema 2020-12 (and draft 7's `definitions`, array-form `items`), OpenAPI's `nullable`, ECMA-262 patterns, RFC 3339. */
#ifndef SLUICE_ENGINE_SCHEMA_H
#define SLUICE_ENGINE_SCHEMA_H
#include "base/json.h"

/* Appends rules to gbnf: `prefix` matches one value without blanks around it; every other rule's name begins with "prefix-", so several schemas
 * can share a grammar. prefix: letters, digits, '-'. strict: OpenAI's: no property beyond those named, unknown formats are refused.
 * `$ref` is looked up in `schema` itself. ERR_INVALID, ERR_UNSUPPORTED, ERR_LIMIT: *e begins with the place, "#/properties/a/pattern: ...". */
int eng_schema_to_gbnf(const struct json *schema, const char *prefix, bool strict, struct buf *gbnf, struct err *e);
/* Any JSON object, under the same naming: what response_format json_object means. */
int eng_schema_any_object(const char *prefix, struct buf *gbnf, struct err *e);
/* A GBNF string literal of these bytes, quotes included. */
void eng_gbnf_literal(struct buf *gbnf, const char *s, size_t n);
#endif
