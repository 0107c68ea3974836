/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the choice of an operation, see route.h. */
#include "route.h"

#include <string.h>
#include <strings.h>

#include "op_bucket.h"
#include "op_copy.h"
#include "op_hipobj.h"
#include "op_list.h"
#include "op_multipart.h"
#include "op_object.h"
#include "op_put.h"

/* Parameters that select an operation. If a request has such a parameter, and the table below has
 * no matching operation, the reply is NotImplemented. Requests that change anything may have no
 * unknown parameters either. */
static const char *const subs[] = {
	"accelerate",	"acl",
	"analytics",	"attributes",
	"cors",		"delete",
	"encryption",	"intelligent-tiering",
	"inventory",	"legal-hold",
	"lifecycle",	"location",
	"logging",	"metadataTable",
	"metrics",	"notification",
	"object-lock",	"ownershipControls",
	"partNumber",	"policy",
	"policyStatus", "publicAccessBlock",
	"replication",	"requestPayment",
	"restore",	"retention",
	"select",	"session",
	"tagging",	"torrent",
	"uploadId",	"uploads",
	"versioning",	"versions",
	"website",	"append",
	"rename",	"renameObject",
};

#define TEXT GW_BODY_TEXT
#define FILE_BODY GW_BODY_FILE
#define NONE GW_BODY_NONE
#define COPY "x-amz-copy-source"

/* The first row that matches is used, so rows with more conditions come first. */
static const struct gw_op ops[] = {
	{"ListBuckets", "GET", GW_SERVICE, .run = gw_op_list_buckets},

	{"PrepareRDMA", "POST", GW_CONTROL, "prepare", .run = gw_op_prepare},
	{"ReadyRDMA", "POST", GW_CONTROL, "ready", .run = gw_op_ready},
	{"CancelRDMA", "POST", GW_CONTROL, "cancel", .run = gw_op_cancel},

	{"GetBucketLocation", "GET", GW_BUCKET, "location", .run = gw_op_location},
	{"GetBucketVersioning", "GET", GW_BUCKET, "versioning", .run = gw_op_versioning},
	{"GetBucketAcl", "GET", GW_BUCKET, "acl", .run = gw_op_acl},
	{"PutBucketAcl", "PUT", GW_BUCKET, "acl", NULL, NULL, TEXT, true, .run = gw_op_put_acl},
	{"GetBucketTagging", "GET", GW_BUCKET, "tagging", .run = gw_op_missing_config},
	{"GetBucketPolicy", "GET", GW_BUCKET, "policy", .run = gw_op_missing_config},
	{"GetBucketCors", "GET", GW_BUCKET, "cors", .run = gw_op_missing_config},
	{"GetBucketLifecycle", "GET", GW_BUCKET, "lifecycle", .run = gw_op_missing_config},
	{"GetBucketWebsite", "GET", GW_BUCKET, "website", .run = gw_op_missing_config},
	{"GetBucketEncryption", "GET", GW_BUCKET, "encryption", .run = gw_op_missing_config},
	{"GetBucketReplication", "GET", GW_BUCKET, "replication", .run = gw_op_missing_config},
	{"GetObjectLockConfiguration", "GET", GW_BUCKET, "object-lock",
	 .run = gw_op_missing_config},
	{"GetPublicAccessBlock", "GET", GW_BUCKET, "publicAccessBlock",
	 .run = gw_op_missing_config},
	{"GetBucketOwnershipControls", "GET", GW_BUCKET, "ownershipControls",
	 .run = gw_op_missing_config},
	{"GetBucketRequestPayment", "GET", GW_BUCKET, "requestPayment",
	 .run = gw_op_request_payment},
	{"ListMultipartUploads", "GET", GW_BUCKET, "uploads", .run = gw_op_list_uploads},
	{"ListObjectVersions", "GET", GW_BUCKET, "versions", .run = gw_op_list_versions},
	{"DeleteObjects", "POST", GW_BUCKET, "delete", NULL, NULL, TEXT, true,
	 .run = gw_op_delete_many},
	{"ListObjectsV2", "GET", GW_BUCKET, "list-type", .run = gw_op_list_v2},
	{"ListObjects", "GET", GW_BUCKET, .run = gw_op_list_v1},
	{"CreateBucket", "PUT", GW_BUCKET, NULL, NULL, NULL, TEXT, true, true,
	 .run = gw_op_create_bucket},
	{"DeleteBucket", "DELETE", GW_BUCKET, .write = true, .run = gw_op_delete_bucket},
	{"HeadBucket", "HEAD", GW_BUCKET, .run = gw_op_head_bucket},

	{"GetObjectAcl", "GET", GW_OBJECT, "acl", .run = gw_op_acl},
	{"PutObjectAcl", "PUT", GW_OBJECT, "acl", NULL, NULL, TEXT, true, .run = gw_op_put_acl},
	{"GetObjectTagging", "GET", GW_OBJECT, "tagging", .run = gw_op_no_tags},
	{"GetObjectRetention", "GET", GW_OBJECT, "retention", .run = gw_op_missing_config},
	{"GetObjectLegalHold", "GET", GW_OBJECT, "legal-hold", .run = gw_op_missing_config},
	{"GetObjectAttributes", "GET", GW_OBJECT, "attributes", .run = gw_op_attributes},
	{"CreateMultipartUpload", "POST", GW_OBJECT, "uploads", NULL, NULL, NONE, true, false,
	 gw_check_create_upload, gw_op_create_upload},
	{"UploadPartCopy", "PUT", GW_OBJECT, "partNumber", "uploadId", COPY, NONE, true, false,
	 gw_check_part, gw_op_copy_part},
	{"UploadPart", "PUT", GW_OBJECT, "partNumber", "uploadId", NULL, FILE_BODY, true, false,
	 gw_check_part, gw_op_put_part},
	{"ListParts", "GET", GW_OBJECT, "uploadId", .run = gw_op_list_parts},
	{"CompleteMultipartUpload", "POST", GW_OBJECT, "uploadId", NULL, NULL, TEXT, true,
	 .run = gw_op_complete},
	{"AbortMultipartUpload", "DELETE", GW_OBJECT, "uploadId", .write = true,
	 .run = gw_op_abort},
	{"GetObject", "GET", GW_OBJECT, "partNumber", .run = gw_op_get},
	{"HeadObject", "HEAD", GW_OBJECT, "partNumber", .run = gw_op_head},
	{"CopyObject", "PUT", GW_OBJECT, NULL, NULL, COPY, NONE, true, false, gw_check_copy,
	 gw_op_copy},
	{"PutObject", "PUT", GW_OBJECT, NULL, NULL, NULL, FILE_BODY, true, false, gw_check_put,
	 gw_op_put},
	{"GetObject", "GET", GW_OBJECT, .run = gw_op_get},
	{"HeadObject", "HEAD", GW_OBJECT, .run = gw_op_head},
	{"DeleteObject", "DELETE", GW_OBJECT, .write = true, .check = gw_check_delete,
	 .run = gw_op_delete},
};

#define OP_COUNT (sizeof(ops) / sizeof(ops[0]))
_Static_assert(OP_COUNT < GW_OPS_MAX, "metrics.h has too few operations");

/* Returns whether the query has a parameter of the list `subs` that the operation does not use. */
static bool has_other_sub(const struct gw_request *req, const struct gw_op *op)
{
	for (unsigned i = 0; i < sizeof(subs) / sizeof(subs[0]); i++)
		if (gw_param_find(req, subs[i]) && !(op->sub && !strcmp(op->sub, subs[i])) &&
		    !(op->sub2 && !strcmp(op->sub2, subs[i])))
			return true;
	return false;
}

static bool is_reading(const struct gw_request *req)
{
	return !strcmp(req->http->method, "GET") || !strcmp(req->http->method, "HEAD");
}

/* Returns whether a parameter belongs to a URL that was presigned by version 2. gw_auth refuses
 * such requests, and names the version that it wants. */
static bool is_of_version_2(const char *name)
{
	return !strcmp(name, "AWSAccessKeyId") || !strcmp(name, "Signature") ||
	       !strcmp(name, "Expires");
}

/* Returns whether the query has a parameter that the operation does not use. Such a parameter may
 * name a sub-resource that is newer than this table. The request must then not change the object or
 * the bucket itself. Parameters that begin with "x-" are allowed: S3 ignores them, and those of
 * signatures are among them. */
static bool has_unknown(const struct gw_request *req, const struct gw_op *op)
{
	for (unsigned i = 0; i < req->param_count; i++) {
		const char *name = req->params[i].name;

		if (strncasecmp(name, "x-", 2) != 0 && strcmp(name, "versionId") != 0 &&
		    !is_of_version_2(name) && !(op->sub && !strcmp(op->sub, name)) &&
		    !(op->sub2 && !strcmp(op->sub2, name)))
			return true;
	}
	return false;
}

static bool op_matches(const struct gw_request *req, const struct gw_op *op, enum gw_level level)
{
	if (op->level != level || strcmp(op->method, req->http->method) != 0)
		return false;
	if (level == GW_CONTROL)
		return !strcmp(op->sub, req->control) && !req->param_count;
	if (op->sub && !gw_param_find(req, op->sub))
		return false;
	if (op->sub2 && !gw_param_find(req, op->sub2))
		return false;
	if (op->header && !gw_header(req, op->header))
		return false;
	return !has_other_sub(req, op) && (is_reading(req) || !has_unknown(req, op));
}

/* Operations that only the upstream implements: other_read for GET and HEAD, which change nothing,
 * and other_write for all other methods. */
static const struct gw_op other_read = {"none", .body = GW_BODY_TEXT};
static const struct gw_op other_write = {"none", .body = GW_BODY_TEXT, .write = true};

/* Sets req->op to the row of the table that matches the request. Returns false if none matches. */
static bool op_find(struct gw_request *req)
{
	enum gw_level level = req->control  ? GW_CONTROL
			      : req->key    ? GW_OBJECT
			      : req->bucket ? GW_BUCKET
					    : GW_SERVICE;

	req->op_number = OP_COUNT;
	for (unsigned i = 0; i < OP_COUNT; i++)
		if (op_matches(req, &ops[i], level)) {
			req->op = &ops[i];
			/* Rows with the same name are one operation, and have the number of the
			 * first of these rows. */
			for (req->op_number = 0;
			     strcmp(ops[req->op_number].name, ops[i].name) != 0;)
				req->op_number++;
			return true;
		}
	return false;
}

void gw_route_any(struct gw_request *req)
{
	if (op_find(req))
		return;
	req->op = !strcmp(req->http->method, "GET") || !strcmp(req->http->method, "HEAD")
			  ? &other_read
			  : &other_write;
}

bool gw_route(struct gw_request *req)
{
	if (op_find(req))
		return true;
	if (strcmp(req->http->method, "GET") != 0 && strcmp(req->http->method, "PUT") != 0 &&
	    strcmp(req->http->method, "HEAD") != 0 && strcmp(req->http->method, "POST") != 0 &&
	    strcmp(req->http->method, "DELETE") != 0 && strcmp(req->http->method, "OPTIONS") != 0)
		gw_fail(req, GW_MethodNotAllowed, NULL);
	else
		gw_fail(req, GW_NotImplemented, NULL);
	return false;
}

unsigned gw_op_count(void)
{
	return OP_COUNT + 1;
}

bool gw_op_is_long(const struct gw_op *op)
{
	return op->write || !strncmp(op->name, "List", 4) || op->level == GW_CONTROL;
}

const char *gw_op_name(unsigned op)
{
	return op < OP_COUNT ? ops[op].name : "none";
}
