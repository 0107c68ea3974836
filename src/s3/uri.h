/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Percent-encoding of URIs as S3 needs it: RFC 3986, where letters, digits and "-._~" stay as they
 * are. Keys are arbitrary bytes. Called by sigv4.c and canonical.c, by src/storage/object*.c,
 * src/object and the gateway.
 */
#ifndef PST_S3_URI_H
#define PST_S3_URI_H

#include <stdbool.h>
#include <stddef.h>

#include "common/text.h"

/* Appends `len` bytes percent-encoded. Slashes stay as they are if `keep_slash`. */
void pst_uri_put(struct pst_text *out, const char *bytes, size_t len, bool keep_slash);
/* Decodes percent-encoded bytes, and plus signs as spaces if `plus` is true. `out` needs `len` + 1
 * bytes and gets a NUL at its end. Returns the number of decoded bytes, which may contain NUL
 * bytes, or -EINVAL if an escape is malformed. */
long pst_uri_parse(const char *text, size_t len, bool plus, char *out);

/*
 * Takes the next parameter of a query. *query is the rest of the query, which the call moves past
 * the parameter. The name and the value are still encoded, have *name_len and *value_len bytes, and
 * do not end with a NUL. A parameter without an equals sign has the value "". Empty parameters are
 * skipped. Returns false at the end of the query.
 */
bool pst_uri_next(const char **query, const char **name, size_t *name_len, const char **value,
		  size_t *value_len);

#endif
