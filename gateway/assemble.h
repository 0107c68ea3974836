/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembles the parts of an upload into an object. Called by op_multipart.c. The object gets its
 * name only when it is complete, so a crash leaves the parts unchanged.
 */
#ifndef GW_ASSEMBLE_H
#define GW_ASSEMBLE_H

#include "request.h"
#include "upload.h"

/* A part as the request lists it. */
struct gw_assembly_part {
	unsigned number;
	char etag[GW_ETAG_MAX];
	char sum[64]; /* checksum, or "" */
};

struct gw_assembly {
	struct gw_assembly_part parts[GW_PARTS_MAX];
	unsigned count;
	char etag[GW_ETAG_MAX]; /* of the object */
	struct gw_meta meta;	/* of the object */
	bool gone; /* whether the upload was completed or aborted meanwhile; there is no reply */
};

/* Checks the parts and stores the object. Returns false after it has filled the reply or has set
 * `gone`. The upload is locked. */
bool gw_assemble(struct gw_request *req, struct gw_upload *upload, const char *id,
		 struct gw_assembly *assembly);

#endif
