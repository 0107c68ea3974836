/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembles the parts of a multipart upload into an object. Called by op_multipart.c. The object
 * gets its name only when it is complete, so a crash before that leaves the parts unchanged.
 */
#ifndef GW_ASSEMBLE_H
#define GW_ASSEMBLE_H

#include "request.h"
#include "upload.h"

/* A part as the CompleteMultipartUpload request lists it. */
struct gw_assembly_part {
	unsigned number;
	char etag[GW_ETAG_MAX];
	/* checksum that the request states, in base64; "" if it states none */
	char sum[64];
};

struct gw_assembly {
	struct gw_assembly_part parts[GW_PARTS_MAX];
	unsigned count;
	char etag[GW_ETAG_MAX]; /* ETag of the new object */
	struct gw_meta meta;	/* metadata of the new object */
	/* gw_assemble has failed because another request has completed or aborted the upload; the
	 * caller must fill the reply */
	bool gone;
};

/* Checks the parts and stores the object. The caller has locked the upload. Returns false on an
 * error, after it has filled the reply, or has set `gone`. */
bool gw_assemble(struct gw_request *req, struct gw_upload *upload, const char *id,
		 struct gw_assembly *assembly);

#endif
