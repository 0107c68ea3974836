/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of S3 that the gateway implements, and the choice of one by method and parameters.
 * Called by front.c. An operation that is not in the table must get status 501, never another
 * operation's answer.
 */
#ifndef GW_ROUTE_H
#define GW_ROUTE_H

#include "request.h"

enum gw_level { GW_SERVICE, GW_BUCKET, GW_OBJECT, GW_CONTROL };

struct gw_op {
	/* name of the operation; for S3 requests, its name in the Amazon S3 API Reference */
	const char *name;
	const char *method;
	enum gw_level level;
	/* Parameter that must be in the query, such as "uploads"; NULL for none. For the level
	 * GW_CONTROL, the value that gw_request.control must have, such as "prepare". */
	const char *sub;
	const char *sub2;   /* second parameter that must be in the query; NULL for none */
	const char *header; /* header that the request must have; NULL for none */
	enum gw_body_kind body;
	/* the operation changes objects or buckets, so the key must allow writing */
	bool write;
	bool no_bucket; /* whether the bucket need not exist */
	/* Checks the request before its body is read; NULL if there is nothing to check. On an
	 * error, fills the reply and returns false. */
	bool (*check)(struct gw_request *req);
	/* Runs the operation after its body has been checked, and fills the reply. */
	void (*run)(struct gw_request *req);
};

/* Chooses req->op by method, path and parameters. On an error, fills the reply and returns
 * false. */
bool gw_route(struct gw_request *req);
/* Chooses req->op if the gateway has an upstream. An operation that is not in the table is passed
 * through, too. */
void gw_route_any(struct gw_request *req);
/* Returns the number of operations, plus one for requests without an operation. */
unsigned gw_op_count(void);
const char *gw_op_name(unsigned op);
/* Returns whether an operation may take long: it syncs files, or reads whole folders. */
bool gw_op_is_long(const struct gw_op *op);

#endif
