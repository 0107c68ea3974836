/* SPDX-License-Identifier: Apache-2.0 */
/* Implements requests and their replies, see request.h. */
#include "penstock_object.h"
#include "request.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/digits.h"
#include "keypath.h"
#include "s3/hash.h"
#include "s3/uri.h"
#include "session.h"
#include "xml_write.h"

#define CONTROL "/.hipobj-rc/"

/* ---- replies ---- */

struct pst_text *gw_reply_xml(struct gw_request *req, unsigned status)
{
	req->http->reply.status = status;
	gw_header_add(req, "Content-Type", "application/xml");
	pst_text_put_str(&req->http->reply.body, GW_XML_HEAD);
	return &req->http->reply.body;
}

void gw_reply_empty(struct gw_request *req, unsigned status)
{
	req->http->reply.status = status;
}

void gw_header_add(struct gw_request *req, const char *name, const char *value)
{
	gw_reply_header(&req->http->reply, name, value);
}

void gw_header_number(struct gw_request *req, const char *name, uint64_t value)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
	gw_header_add(req, name, digits);
}

void gw_header_etag(struct gw_request *req, const char *etag)
{
	char quoted[GW_ETAG_MAX + 2];

	snprintf(quoted, sizeof(quoted), "\"%s\"", etag);
	gw_header_add(req, "ETag", quoted);
}

/* Removes everything that has been put into the reply. */
static void reply_reset(struct gw_reply *reply)
{
	if (reply->fd >= 0)
		close(reply->fd);
	reply->fd = -1;
	reply->body.len = reply->headers.len = 0;
}

int gw_fail(struct gw_request *req, enum gw_error error, const char *fmt, ...)
{
	struct pst_text *out;
	char message[512];
	va_list args;

	if (req->failed)
		return -1;
	req->failed = true;
	req->error = error;
	snprintf(message, sizeof(message), "%s", gw_error_text(error));
	if (fmt) {
		va_start(args, fmt);
		vsnprintf(message, sizeof(message), fmt, args);
		va_end(args);
	}
	reply_reset(&req->http->reply);
	gw_header_add(req, "x-amz-request-id", req->id);
	out = gw_reply_xml(req, gw_error_status(error));
	if (gw_error_status(error) == 503)
		gw_header_add(req, "Retry-After", "1");
	pst_text_put_str(out, "<Error>");
	gw_xml_element(out, "Code", gw_error_code(error));
	gw_xml_element(out, "Message", message);
	if (req->bucket)
		gw_xml_element(out, "BucketName", req->bucket);
	if (req->key)
		gw_xml_element(out, "Key", req->key);
	if (req->hint)
		gw_xml_element(out, "Region", req->hint);
	pst_text_put_str(out, "<Resource>");
	gw_xml_text(out, req->path ? req->path : "/", strlen(req->path ? req->path : "/"));
	pst_text_put_str(out, "</Resource>");
	gw_xml_element(out, "RequestId", req->id);
	pst_text_put_str(out, "</Error>");
	return -1;
}

bool gw_root_is_gone(const struct gw_server *server)
{
	return !server->upstream && faccessat(server->store.root, ".penstock", F_OK, 0) != 0;
}

int gw_fail_errno(struct gw_request *req, int code, enum gw_error what)
{
	code = code < 0 ? -code : code;
	switch (code) {
	case ENOENT:
		/* Otherwise a client would believe that its objects were deleted. */
		if (what == GW_NoSuchBucket && gw_root_is_gone(req->server))
			return gw_fail(req, GW_ServiceUnavailable,
				       "The folder of objects is gone.");
		return gw_fail(req, what, NULL);
	case ENAMETOOLONG:
		return gw_fail(req, GW_KeyTooLongError, NULL);
	case EINVAL:
		return gw_fail(req, GW_InvalidArgument, "The key cannot be stored.");
	case EEXIST:
		return gw_fail(req, GW_PreconditionFailed, NULL);
	case ECANCELED:
		return gw_fail(req, GW_ServiceUnavailable, "The gateway is about to end.");
	case ENOSPC:
	case EDQUOT:
		return gw_fail(req, GW_StorageFull, NULL);
	case EFBIG:
		return gw_fail(req, GW_EntityTooLarge, NULL);
	case E2BIG:
		return gw_fail(req, GW_MetadataTooLarge, NULL);
	case EACCES:
	case EPERM:
		return gw_fail(req, GW_AccessDenied, "The gateway may not do this in its folder.");
	case EROFS:
		return gw_fail(req, GW_ServiceUnavailable,
			       "The file system of the gateway's folder is read-only.");
	case ENOTDIR:
		return gw_fail(req, GW_InvalidArgument,
			       "A file that is no object has the name of a part of the key.");
	case ENOTSUP:
		return gw_fail(req, GW_NotImplemented,
			       "An object has the name of a folder that the key needs, and this "
			       "file system cannot exchange two names.");
	case EBUSY:
	case EMFILE:
	case ENFILE:
	case ENOMEM:
		return gw_fail(req, GW_SlowDown, NULL);
	default:
		return gw_fail(req, GW_InternalError, "The file system reports: %s.",
			       strerror(code));
	}
}

/* ---- dates ---- */

void gw_http_date(time_t when, char out[40])
{
	struct tm tm;

	gmtime_r(&when, &tm);
	strftime(out, 40, "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

void gw_iso_date(const struct timespec *when, char out[40])
{
	struct tm tm;
	size_t len;

	gmtime_r(&when->tv_sec, &tm);
	len = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out + len, 40 - len, ".%03ldZ", when->tv_nsec / 1000000);
}

bool gw_http_date_parse(const char *text, time_t *out)
{
	static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S", "%A, %d-%b-%y %H:%M:%S",
					    "%a %b %d %H:%M:%S %Y", "%Y-%m-%dT%H:%M:%S"};

	for (unsigned i = 0; i < 4; i++) {
		struct tm tm = {0};

		if (strptime(text, forms[i], &tm)) {
			*out = timegm(&tm);
			return true;
		}
	}
	return false;
}

/* ---- requests ---- */

const char *gw_header(const struct gw_request *req, const char *name)
{
	return gw_http_header(req->http, name);
}

const struct gw_param *gw_param_find(const struct gw_request *req, const char *name)
{
	for (unsigned i = 0; i < req->param_count; i++)
		if (!strcmp(req->params[i].name, name))
			return &req->params[i];
	return NULL;
}

const char *gw_param(const struct gw_request *req, const char *name)
{
	const struct gw_param *param = gw_param_find(req, name);

	return param ? param->value : NULL;
}

int64_t gw_param_number(struct gw_request *req, const char *name, int64_t fallback, int64_t max)
{
	const char *text = gw_param(req, name);
	long long n;
	char *end;

	if (!text || !*text)
		return fallback;
	errno = 0;
	n = strtoll(text, &end, 10);
	if (*end || errno || n < 0 || n > INT32_MAX || text[0] == ' ')
		return gw_fail(req, GW_InvalidArgument,
			       "Argument %s must be an integer between 0 "
			       "and 2147483647",
			       name);
	return n > max ? max : n;
}

/* Finds the name of the bucket in the header Host. Returns the name's length, or 0 if the host
 * names no bucket. */
static size_t host_bucket(const char *host, const char *domain)
{
	size_t len, suffix;

	if (!host || !domain)
		return 0;
	len = strcspn(host, ":");
	suffix = strlen(domain);
	if (len <= suffix + 1 || host[len - suffix - 1] != '.' ||
	    strncasecmp(host + len - suffix, domain, suffix) != 0)
		return 0;
	return len - suffix - 1;
}

/* Decodes a piece of the target (path and query). Returns the decoded text's length, or -1 if it is
 * malformed. */
static long decode(char **memory, const char *text, size_t len, bool plus, const char **out)
{
	long n = pst_uri_parse(text, len, plus, *memory);

	if (n < 0 || memchr(*memory, '\0', (size_t)n))
		return -1;
	*out = *memory;
	*memory += n + 1;
	return n;
}

static bool params_parse(struct gw_request *req, char **memory)
{
	const char *query = req->query, *name, *value;
	size_t name_len, value_len;

	while (pst_uri_next(&query, &name, &name_len, &value, &value_len)) {
		struct gw_param *param = &req->params[req->param_count];
		long n;

		if (req->param_count == GW_PARAMS_MAX)
			return false;
		if (decode(memory, name, name_len, true, &param->name) < 0)
			return false;
		n = decode(memory, value, value_len, true, &param->value);
		if (n < 0)
			return false;
		param->value_len = (size_t)n;
		req->param_count++;
	}
	return true;
}

/* Finds the bucket and the key in the path of the target. */
static bool path_parse(struct gw_request *req, const char *domain, char **memory)
{
	const char *host = gw_header(req, "host"), *path = req->path + 1, *slash;
	size_t from_host = host_bucket(host, domain), len;
	long n;

	if (from_host) {
		memcpy(*memory, host, from_host);
		(*memory)[from_host] = '\0';
		req->bucket = *memory;
		*memory += from_host + 1;
		slash = path - 1;
	} else {
		slash = strchr(path, '/');
		len = slash ? (size_t)(slash - path) : strlen(path);
		if (!len)
			/* the path "/" names the service; a path that begins with "//" names
			 * nothing */
			return !slash;
		if (decode(memory, path, len, false, &req->bucket) < 0)
			return false;
	}
	if (!slash || !slash[1])
		return true;
	n = decode(memory, slash + 1, strlen(slash + 1), false, &req->key);
	req->key_len = n < 0 ? 0 : (size_t)n;
	return n > 0;
}

/* Finds bucket, key and parameters in a target (path and query). `host` is NULL if the header Host
 * cannot name a bucket. */
static bool target_parse(struct gw_request *req, const char *target, const char *host,
			 const char *domain)
{
	const char *query = strchr(target, '?');
	char *memory;

	free(req->path);
	free(req->memory);
	req->bucket = req->key = NULL;
	req->key_len = 0;
	req->param_count = 0;
	req->query = query ? query + 1 : "";
	req->path = strndup(target, query ? (size_t)(query - target) : strlen(target));
	/* This memory is enough for all decoded texts: each is at most as long as the encoded text,
	 * and ends with a NUL. */
	req->memory = memory = malloc(2 * strlen(target) + (host ? strlen(host) : 0) + 16);
	if (!req->path || !memory) {
		gw_fail(req, GW_SlowDown, NULL);
		return false;
	}
	if (target[0] != '/' || !params_parse(req, &memory) ||
	    !path_parse(req, host ? domain : NULL, &memory)) {
		gw_fail(req, GW_InvalidURI, NULL);
		return false;
	}
	if (req->key_len > GW_KEY_MAX) {
		gw_fail(req, GW_KeyTooLongError, NULL);
		return false;
	}
	return true;
}

bool gw_request_parse(struct gw_request *req, const char *domain)
{
	const char *target = req->http->target, *host = gw_header(req, "host");
	unsigned char random[8];

	while (getrandom(random, sizeof(random), 0) != sizeof(random))
		;
	pst_hex(random, sizeof(random), req->id);
	if (!strncmp(target, "http://", 7) || !strncmp(target, "https://", 8)) {
		target = strchr(strchr(target, ':') + 3, '/');
		target = target ? target : "/";
	}
	if (!target_parse(req, target, host, domain))
		return false;
	/* A path that begins with CONTROL is a message of hipobj-rc-v2. No bucket can have such a
	 * name. */
	if (!strncmp(req->path, CONTROL, strlen(CONTROL))) {
		req->control = req->path + strlen(CONTROL);
		req->bucket = req->key = NULL;
	}
	return true;
}

bool gw_request_retarget(struct gw_request *req, const char *method, const char *target)
{
	req->control = NULL;
	req->http->method = method;
	return target_parse(req, target, NULL, NULL);
}

void gw_request_close(struct gw_request *req)
{
	if (req->bucket_fd >= 0)
		close(req->bucket_fd);
	gw_keys_release(req->keys);
	penstock_object_forget(req->remote);
	gw_session_free(req->session);
	if (req->claim) {
		explicit_bzero(req->claim, sizeof(*req->claim));
		free(req->claim);
	}
	free(req->state);
	free(req->path);
	free(req->memory);
	free(req);
}
