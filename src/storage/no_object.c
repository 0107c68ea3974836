/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the S3 storage in a build without libssl. It recognises the URLs, so that the open can
 * fail with a message that libssl is missing. */
#include <string.h>

#include "storage/object.h"

static bool object_match(const char *url)
{
	return !strncmp(url, "s3://", 5) || !strncmp(url, "http://", 7) ||
	       !strncmp(url, "https://", 8);
}

static int object_open(struct penstock_storage *st, const char *url, int fd,
		       const struct penstock_storage_opts *opts, struct pst_err *err)
{
	(void)st;
	(void)url;
	(void)fd;
	(void)opts;
	return pst_fail(err, PENSTOCK_WHY_NOT_BUILT,
			"this build has no objects: build it with libssl (on Debian and Ubuntu: "
			"apt-get install libssl-dev) and meson setup -Dobjects=enabled");
}

static void object_close(struct penstock_storage *st)
{
	(void)st;
}

static int object_move(struct pst_io *io)
{
	return pst_fail(&io->err, PENSTOCK_WHY_NOT_BUILT, "this build has no objects");
}

int64_t penstock_s3_ask(const struct penstock_s3_question *ask, struct penstock_s3_answer *answer,
			void *body, size_t body_max)
{
	if (!ask || !answer || (!body && body_max))
		return pst_fail_null(ask ? answer ? "the body" : "the answer" : "the request");
	return pst_fail(NULL, PENSTOCK_WHY_NOT_BUILT, "this build has no objects");
}

int penstock_s3_give_keys(const char *profile, const char *access_key, const char *secret,
			  const char *session_token)
{
	(void)session_token;
	if (!profile || (access_key && !secret))
		return pst_fail_null(profile ? "the secret" : "the profile");
	return pst_fail(NULL, PENSTOCK_WHY_NOT_BUILT, "this build has no objects");
}

const struct pst_storage_ops pst_storage_object = {
	.name = "object",
	.match = object_match,
	.open = object_open,
	.close = object_close,
	.fill = object_move,
	.drain = object_move,
};
