/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one JSON object on one line, with commas and escapes. */
#ifndef PENSTOCK_CLI_JSON_H
#define PENSTOCK_CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
	FILE *f;
	bool first; /* whether the next member is the first of its object */
};
void json_open(struct json *j, FILE *f); /* { */
/* Returns whether json_open was called. */
bool json_begun(void);
void json_close(struct json *j); /* }\n */
void json_text(struct json *j, const char *key, const char *value);
void json_int(struct json *j, const char *key, int64_t value);
void json_real(struct json *j, const char *key, double value);
void json_bool(struct json *j, const char *key, bool value);
void json_object(struct json *j, const char *key); /* "key": { */
void json_end(struct json *j);			   /* } */
/* Writes `"key": [`. The members of an array have the key NULL. */
void json_array(struct json *j, const char *key);
void json_array_end(struct json *j); /* ] */
/* Writes the members of a command that has failed: the exit status and the error message. */
void json_failure(struct json *j, int code, const char *message);

#endif
