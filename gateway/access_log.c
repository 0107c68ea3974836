/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the access log, see access_log.h. */
#include "access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "s3/uri.h"

struct gw_access_log {
	char *path;
	/* A thread that writes a line to `fd` holds this lock for reading. A thread that changes
	 * `fd` holds it for writing. */
	pthread_rwlock_t lock;
	int fd;
};

static int log_file_open(const char *path)
{
	if (!strcmp(path, "-"))
		return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

struct gw_access_log *gw_access_log_open(const char *path, char *why, size_t why_len)
{
	struct gw_access_log *log = calloc(1, sizeof(*log));

	if (log) {
		log->path = strdup(path);
		log->fd = log->path ? log_file_open(path) : -1;
	}
	if (!log || log->fd < 0) {
		snprintf(why, why_len, "cannot open the access log %s: %s", path, strerror(errno));
		if (log)
			free(log->path);
		free(log);
		return NULL;
	}
	pthread_rwlock_init(&log->lock, NULL);
	return log;
}

int gw_access_log_reopen(struct gw_access_log *log)
{
	int fd = log_file_open(log->path);

	if (fd < 0)
		return -errno;
	pthread_rwlock_wrlock(&log->lock);
	close(log->fd);
	log->fd = fd;
	pthread_rwlock_unlock(&log->lock);
	return 0;
}

static void put_member(struct pst_text *out, const char *name, const char *value)
{
	pst_text_put_str(out, ",\"");
	pst_text_put_str(out, name);
	pst_text_put_str(out, "\":");
	pst_text_put_json(out, value);
}

static void put_number(struct pst_text *out, const char *name, uint64_t value)
{
	pst_text_put_str(out, ",\"");
	pst_text_put_str(out, name);
	pst_text_put_str(out, "\":");
	pst_text_put_number(out, value);
}

/* Appends a JSON member whose value is bytes that a client sent. Percent-encodes spaces, control
 * characters and bytes that are not ASCII. */
static void put_bytes(struct pst_text *out, const char *name, const char *bytes, size_t len)
{
	struct pst_text text = {0};

	for (size_t i = 0; i < len; i++)
		if (bytes[i] > ' ' && bytes[i] < 0x7f)
			pst_text_put(&text, bytes + i, 1);
		else
			pst_uri_put(&text, bytes + i, 1, false);
	put_member(out, name, text.at ? text.at : "");
	free(text.at);
}

/* Appends the request's query, but only the parameters that `names` lists. The list has no
 * parameter of a signature, because a signature must not be logged. */
static void put_query(struct pst_text *out, const char *query)
{
	static const char *const names[] = {"acl",
					    "attributes",
					    "continuation-token",
					    "delete",
					    "delimiter",
					    "encoding-type",
					    "key-marker",
					    "list-type",
					    "location",
					    "marker",
					    "max-keys",
					    "max-parts",
					    "max-uploads",
					    "part-number-marker",
					    "partNumber",
					    "prefix",
					    "start-after",
					    "tagging",
					    "upload-id-marker",
					    "uploadId",
					    "uploads",
					    "versionId",
					    "versioning",
					    "versions",
					    "x-id"};
	struct pst_text kept = {0};
	const char *name, *value;
	size_t name_len, value_len;

	while (pst_uri_next(&query, &name, &name_len, &value, &value_len)) {
		unsigned i = 0;

		while (i < sizeof(names) / sizeof(names[0]) &&
		       (strlen(names[i]) != name_len || memcmp(names[i], name, name_len) != 0))
			i++;
		if (i == sizeof(names) / sizeof(names[0]))
			continue;
		if (kept.len)
			pst_text_put_str(&kept, "&");
		pst_text_put(&kept, name, name_len);
		if (value_len) {
			pst_text_put_str(&kept, "=");
			pst_text_put(&kept, value, value_len);
		}
	}
	put_bytes(out, "query", kept.at ? kept.at : "", kept.len);
	free(kept.at);
}

/* Appends the path of a request. If the server itself has refused the request, its target was not
 * parsed. Then the path is the target without the query, because a query may contain a
 * signature. */
static void put_path(struct pst_text *out, const struct gw_http_request *http)
{
	const struct gw_request *req = http->user;
	const char *path = http->target && http->target[0] == '/' ? http->target : "";

	if (req)
		path = req->path ? req->path : "";
	put_bytes(out, "path", path, req ? strlen(path) : strcspn(path, "?"));
}

/* Appends how the body of a request or of its reply was moved, and how many bytes by RDMA. */
static void put_transport(struct pst_text *out, const struct gw_request *req)
{
	const char *transport = req ? atomic_load(&req->transport) : NULL;

	put_member(out, "transport", transport ? transport : "http");
	put_number(out, "rdma_bytes", req ? atomic_load(&req->rdma_bytes) : 0);
}

/* Returns the code of the error that has ended a request, or "". */
static const char *error_of(const struct gw_http_request *http)
{
	const struct gw_request *req = http->user;

	if (req && req->failed)
		return gw_error_code(req->error);
	return http->error ? http->error : "";
}

void gw_access_log_put(struct gw_access_log *log, const struct gw_http_request *http,
		       const char *op, uint64_t bytes_out, uint64_t duration_ns, bool complete)
{
	const struct gw_request *req = http->user;
	const char *bucket = req && req->bucket ? req->bucket : "";
	const char *agent = req ? gw_header(req, "user-agent") : NULL;
	struct pst_text line = {0};
	struct timespec now;
	char date[40];

	if (!log)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	gw_iso_date(&now, date);
	pst_text_put_str(&line, "{\"time\":");
	pst_text_put_json(&line, date);
	put_member(&line, "id", req ? req->id : "");
	put_member(&line, "remote", http->remote);
	put_member(&line, "access_key", req && req->identity ? req->identity->name : "");
	put_member(&line, "operation", op);
	put_member(&line, "method", http->method ? http->method : "");
	put_bytes(&line, "bucket", bucket, strlen(bucket));
	put_path(&line, http);
	put_query(&line, req && req->query ? req->query : "");
	put_number(&line, "status", http->reply.status);
	put_member(&line, "error", error_of(http));
	put_number(&line, "bytes_in", http->body_len);
	put_number(&line, "bytes_out", bytes_out);
	put_transport(&line, req);
	put_number(&line, "microseconds", duration_ns / 1000);
	pst_text_put_str(&line, complete ? ",\"complete\":true" : ",\"complete\":false");
	put_bytes(&line, "agent", agent ? agent : "", agent ? strnlen(agent, 200) : 0);
	pst_text_put_str(&line, "}\n");
	pthread_rwlock_rdlock(&log->lock);
	/* A line may be lost, for example because the disk is full. The request must not fail for
	 * this reason, so ignore the error. */
	if (!line.failed && write(log->fd, line.at, line.len) < 0)
		(void)errno;
	pthread_rwlock_unlock(&log->lock);
	free(line.at);
}

void gw_access_log_close(struct gw_access_log *log)
{
	if (!log)
		return;
	close(log->fd);
	pthread_rwlock_destroy(&log->lock);
	free(log->path);
	free(log);
}
