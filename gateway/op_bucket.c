/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the operations on buckets, and the answers about features that the gateway does not
 * have, such as versioning. Called through route.c.
 */
#include "op_bucket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/dir.h"
#include "folder.h"
#include "upload.h"
#include "xml_read.h"
#include "xml_write.h"

#define OWNER "<Owner><ID>penstock</ID><DisplayName>penstock</DisplayName></Owner>"

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Appends the entry of a bucket to the reply to ListBuckets. Returns 0, also if the bucket has been
 * removed meanwhile, or a negative errno. */
static int put_bucket(struct gw_request *req, struct pst_text *out, const char *name)
{
	struct statx_timestamp t;
	struct timespec made;
	struct statx x;
	char date[40];

	if (statx(req->server->store.root, name, AT_SYMLINK_NOFOLLOW,
		  STATX_TYPE | STATX_BTIME | STATX_CTIME, &x))
		return gw_is_gone(errno) ? 0 : -errno;
	if (!S_ISDIR(x.stx_mode))
		return 0;
	t = x.stx_mask & STATX_BTIME ? x.stx_btime : x.stx_ctime;
	made = (struct timespec){.tv_sec = t.tv_sec, .tv_nsec = t.tv_nsec};
	gw_iso_date(&made, date);
	pst_text_put_str(out, "<Bucket>");
	gw_xml_element(out, "Name", name);
	gw_xml_element(out, "CreationDate", date);
	pst_text_put_str(out, "</Bucket>");
	return 0;
}

static void names_free(char **names, long count)
{
	for (long i = 0; i < count; i++)
		free(names[i]);
	free(names);
}

/* The names of the buckets that a request asks for. */
struct names {
	const struct gw_request *req;
	const char *prefix, *after;
	char **list;
	long count;
};

/* Appends a name to a list. Returns 0 or a negative errno. */
static int names_add(void *user, const struct dirent *entry)
{
	const char *name = entry->d_name;
	struct names *n = user;
	char **more;

	if (!gw_bucket_name_ok(name) || !gw_key_allows(n->req->identity, name) ||
	    (n->prefix && strncmp(name, n->prefix, strlen(n->prefix)) != 0) ||
	    (n->after && strcmp(name, n->after) <= 0))
		return 0;
	more = realloc(n->list, (size_t)(n->count + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	n->list = more;
	more[n->count] = strdup(name);
	if (!more[n->count])
		return -ENOMEM;
	n->count++;
	return 0;
}

/* Reads the names of the buckets that the request asks for, in order. Returns their number, or -1
 * after it has filled the reply. */
static long names_read(struct gw_request *req, char ***out)
{
	struct names n = {.req = req,
			  .prefix = gw_param(req, "prefix"),
			  .after = gw_param(req, "continuation-token")};
	int ret = pst_dir_each(req->server->store.root, names_add, &n, NULL);

	*out = NULL;
	if (ret) {
		names_free(n.list, n.count);
		return gw_fail_errno(req, ret, GW_InternalError);
	}
	if (n.count)
		qsort(n.list, (size_t)n.count, sizeof(*n.list), compare_names);
	*out = n.list;
	return n.count;
}

void gw_op_list_buckets(struct gw_request *req)
{
	int64_t max = gw_param_number(req, "max-buckets", 10000, 10000);
	struct pst_text *out;
	char **names = NULL;
	long count = max < 0 ? -1 : names_read(req, &names);
	int ret = 0;

	if (count < 0)
		return;
	if (!count && gw_root_is_gone(req->server)) {
		gw_fail_errno(req, ENOENT, GW_NoSuchBucket);
		names_free(names, count);
		return;
	}
	out = gw_reply_xml(req, 200);
	pst_text_put_str(out, "<ListAllMyBucketsResult" GW_XML_SPACE ">" OWNER "<Buckets>");
	for (long i = 0; !ret && i < count && i < max; i++)
		ret = put_bucket(req, out, names[i]);
	pst_text_put_str(out, "</Buckets>");
	if (count > max && max > 0)
		gw_xml_element(out, "ContinuationToken", names[max - 1]);
	if (gw_param(req, "prefix"))
		gw_xml_element(out, "Prefix", gw_param(req, "prefix"));
	pst_text_put_str(out, "</ListAllMyBucketsResult>");
	if (ret)
		gw_fail_errno(req, ret, GW_InternalError);
	names_free(names, count);
}

static int location_end(void *user, const char *path, const char *text, size_t len)
{
	struct gw_request *req = user;
	const char *region = req->server->region;

	(void)len;
	if (strcmp(path, "CreateBucketConfiguration/LocationConstraint") != 0)
		return 0;
	return !region || !*text || !strcmp(text, region) ? 0 : -EINVAL;
}

void gw_op_create_bucket(struct gw_request *req)
{
	static const struct gw_xml_calls calls = {.end = location_end};
	struct pst_text *text = &req->body.text;
	char path[GW_BUCKET_MAX + 2];
	int ret = text->len ? gw_xml_read(text->at, text->len, &calls, req) : 0;
	const char *lock = gw_header(req, "x-amz-bucket-object-lock-enabled");

	if (ret == -EINVAL) {
		gw_fail(req, GW_InvalidArgument,
			"The location constraint is another region than the gateway's.");
		return;
	}
	if (ret) {
		gw_fail(req, GW_MalformedXML, NULL);
		return;
	}
	if (lock && !strcasecmp(lock, "true")) {
		gw_fail(req, GW_NotImplemented, "There is no object lock.");
		return;
	}
	ret = gw_bucket_make(&req->server->store, req->bucket);
	if (ret == -EINVAL)
		gw_fail(req, GW_InvalidBucketName, NULL);
	else if (ret == -EEXIST)
		gw_fail(req, GW_BucketAlreadyOwnedByYou, NULL);
	else if (ret)
		gw_fail_errno(req, ret, GW_InternalError);
	if (ret)
		return;
	snprintf(path, sizeof(path), "/%s", req->bucket);
	gw_header_add(req, "Location", path);
	gw_reply_empty(req, 200);
}

void gw_op_delete_bucket(struct gw_request *req)
{
	int ret = gw_bucket_remove(&req->server->store, req->bucket);

	if (ret == -ENOTEMPTY || ret == -EEXIST || ret == -EBUSY)
		gw_fail(req, GW_BucketNotEmpty, NULL);
	else if (ret)
		gw_fail_errno(req, ret, GW_NoSuchBucket);
	else
		gw_uploads_remove(&req->server->store, req->bucket);
	if (!ret)
		gw_reply_empty(req, 204);
}

static const char *region_of(const struct gw_request *req)
{
	return req->server->region ? req->server->region : "us-east-1";
}

void gw_op_head_bucket(struct gw_request *req)
{
	gw_header_add(req, "x-amz-bucket-region", region_of(req));
	gw_reply_empty(req, 200);
}

void gw_op_location(struct gw_request *req)
{
	struct pst_text *out = gw_reply_xml(req, 200);
	const char *region = region_of(req);

	pst_text_put_str(out, "<LocationConstraint" GW_XML_SPACE ">");
	/* For its oldest region, us-east-1, S3 leaves the text empty. */
	if (strcmp(region, "us-east-1") != 0)
		gw_xml_text(out, region, strlen(region));
	pst_text_put_str(out, "</LocationConstraint>");
}

void gw_op_versioning(struct gw_request *req)
{
	pst_text_put_str(gw_reply_xml(req, 200), "<VersioningConfiguration" GW_XML_SPACE "/>");
}

void gw_op_request_payment(struct gw_request *req)
{
	pst_text_put_str(gw_reply_xml(req, 200),
			 "<RequestPaymentConfiguration" GW_XML_SPACE "><Payer>BucketOwner</Payer>"
			 "</RequestPaymentConfiguration>");
}

/* Returns whether the request's object exists. Returns true for a request about a bucket. */
static bool object_exists(struct gw_request *req)
{
	struct gw_object object;
	int ret;

	if (!req->key)
		return true;
	ret = gw_object_open(&req->server->store, req->bucket_fd, req->key, req->key_len, &object);
	if (ret) {
		gw_fail_errno(req, ret, GW_NoSuchKey);
		return false;
	}
	gw_object_close(&object);
	return true;
}

void gw_op_acl(struct gw_request *req)
{
	if (!object_exists(req))
		return;
	pst_text_put_str(
		gw_reply_xml(req, 200),
		"<AccessControlPolicy" GW_XML_SPACE ">" OWNER "<AccessControlList><Grant>"
		"<Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" "
		"xsi:type=\"CanonicalUser\"><ID>penstock</ID><DisplayName>penstock</DisplayName>"
		"</Grantee><Permission>FULL_CONTROL</Permission></Grant></AccessControlList>"
		"</AccessControlPolicy>");
}

void gw_op_put_acl(struct gw_request *req)
{
	const char *acl = gw_header(req, "x-amz-acl");

	if (!object_exists(req))
		return;
	/* Only the file of access keys grants rights. So the gateway accepts only the ACL
	 * `private`, which grants no rights to others. */
	if (!acl || strcmp(acl, "private") != 0)
		gw_fail(req, GW_NotImplemented, "The only ACL is private.");
	else
		gw_reply_empty(req, 200);
}

void gw_op_no_tags(struct gw_request *req)
{
	if (object_exists(req))
		pst_text_put_str(gw_reply_xml(req, 200),
				 "<Tagging" GW_XML_SPACE "><TagSet></TagSet></Tagging>");
}

void gw_op_missing_config(struct gw_request *req)
{
	static const struct {
		const char *sub;
		enum gw_error error;
	} rows[] = {
		{"tagging", GW_NoSuchTagSet},
		{"policy", GW_NoSuchBucketPolicy},
		{"cors", GW_NoSuchCORSConfiguration},
		{"lifecycle", GW_NoSuchLifecycleConfiguration},
		{"website", GW_NoSuchWebsiteConfiguration},
		{"encryption", GW_ServerSideEncryptionConfigurationNotFoundError},
		{"replication", GW_ReplicationConfigurationNotFoundError},
		{"object-lock", GW_ObjectLockConfigurationNotFoundError},
		{"publicAccessBlock", GW_NoSuchPublicAccessBlockConfiguration},
		{"ownershipControls", GW_OwnershipControlsNotFoundError},
		{"retention", GW_NoSuchObjectLockConfiguration},
		{"legal-hold", GW_NoSuchObjectLockConfiguration},
	};

	if (!object_exists(req))
		return;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (gw_param_find(req, rows[i].sub)) {
			gw_fail(req, rows[i].error, NULL);
			return;
		}
	gw_fail(req, GW_NotImplemented, NULL);
}
