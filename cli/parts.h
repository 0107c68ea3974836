/* SPDX-License-Identifier: Apache-2.0 */
/* Tells how the parts of an uploaded object moved. */
#ifndef PENSTOCK_CLI_PARTS_H
#define PENSTOCK_CLI_PARTS_H

#include <stdio.h>

#include "json.h"
#include "penstock.h"

/* Numbers of parts of an object. All are 0 for a storage that is not an object. */
struct parts {
	unsigned rdma;		     /* parts that were sent by RDMA */
	unsigned device;	     /* parts in `rdma` that the server read from GPU memory */
	unsigned http;		     /* parts that were sent by HTTP */
	char why[PENSTOCK_TEXT_MAX]; /* reason why the first part in `http` was not sent by RDMA */
	char from[64];		     /* name of the device */
};

/* Gets the numbers of a storage after its commit. The bytes came from the memory of `dev`. */
void parts_get(struct parts *parts, const struct penstock_storage *st,
	       const struct penstock_device *dev);
/* Adds the key "parts" to a JSON object, or prints a line. Both do nothing if there are no
 * parts. */
void parts_json(struct json *j, const struct parts *parts);
void parts_print(FILE *f, const struct parts *parts);

#endif
