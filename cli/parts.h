/* SPDX-License-Identifier: Apache-2.0 */
/* Tells how the parts of an uploaded object moved. */
#ifndef PENSTOCK_CLI_PARTS_H
#define PENSTOCK_CLI_PARTS_H

#include <stdio.h>

#include "json.h"
#include "penstock.h"

/* Numbers of parts of an object: sent by RDMA, of those the ones that the server fetched out of the
 * memory of a GPU, and sent by HTTP, with the reason for the first of the latter. All are 0 for a
 * storage that is not an object. */
struct parts {
	unsigned rdma, device, http;
	char why[PENSTOCK_TEXT_MAX];
	char from[64]; /* name of the device */
};

/* Gets the numbers of a storage after its commit. The bytes came from the memory of `dev`. */
void parts_get(struct parts *parts, const struct penstock_storage *st,
	       const struct penstock_device *dev);
/* Adds the key "parts" to a JSON object, or prints a line. Both do nothing if there are no
 * parts. */
void parts_json(struct json *j, const struct parts *parts);
void parts_print(FILE *f, const struct parts *parts);

#endif
