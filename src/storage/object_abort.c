/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends an upload without a commit, when the caller aborts or closes it. This file requests that the
 * server remove the parts that it has received. Otherwise the server would keep them forever, and
 * charge for them.
 */
#include "storage/object_abort.h"

#include <stdlib.h>

#include "core/base/log.h"
#include "storage/object_commit.h"
#include "storage/object_part.h"
#include "storage/object_send.h"
#include "storage/object_upload_state.h"

/* Maximum time in seconds for a request of an abort. A server that does not answer must not keep
 * the program from exiting. */
#define ABORT_S 5
/* A server that has received a part may store it after the abort, and then keeps it until another
 * abort (AWS's page of AbortMultipartUpload). So if the request of a part has ended without a
 * response, the abort is repeated at most twice, until the upload does not exist or a request
 * fails. */
#define REPEATS_MAX 2

/* Sends one request to abort the multipart upload, which removes its parts. Sets *gone if the
 * upload does not exist any more. */
static int abort_ask(struct pst_object_upload *up, const struct penstock_end_opts *limits,
		     bool *gone, struct pst_err *err)
{
	struct pst_object_call *call = calloc(1, sizeof(*call));
	char query[UPLOAD_QUERY_MAX];
	int ret;

	if (!call)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request");
	pst_object_part_query(up, 0, query);
	pst_object_call_init(call, up->place, "DELETE", query);
	call->deadline_s = ABORT_S;
	call->limits = limits;
	ret = pst_object_call_run(call, err);
	*gone = !ret && call->http.head.status == 404;
	if (!ret && !*gone)
		ret = pst_object_call_result(call, "abort an upload", err);
	pst_object_call_clear(call);
	free(call);
	return ret;
}

/* Asks the server to remove the parts that it has received. */
static int parts_drop(struct pst_object_upload *up, const struct penstock_end_opts *limits,
		      struct pst_err *err)
{
	unsigned repeats = up->unanswered ? REPEATS_MAX : 0;
	struct pst_err why;
	bool gone = false;
	int ret = abort_ask(up, limits, &gone, &why);

	for (unsigned i = 0; i < repeats && !gone && !ret; i++)
		if (abort_ask(up, limits, &gone, &why)) {
			pst_log(PST_LOG_WARN, "object",
				"%s: the server may keep a part of upload ID %s: %s",
				up->place->url.name, up->id, why.text);
			break;
		}
	if (!ret) {
		up->id_state = ID_NONE;
	} else {
		/* the format limits the ID's length; an upload ID of AWS has about 130
		 * characters */
		pst_fail_errno(err, ret, why.why,
			       "the server may keep upload ID %.150s: drop it with "
			       "AbortMultipartUpload (%s)",
			       up->id, why.text);
		pst_log(PST_LOG_WARN, "object", "%s: the server may keep upload ID %s",
			up->place->url.name, up->id);
	}
	return ret;
}

/* Determines whether the object was stored by a commit that was stopped, or whose response was
 * lost. Returns 0 if it was not stored. */
static int unsure_judge(struct pst_object_upload *up, const struct penstock_end_opts *limits,
			struct pst_err *err)
{
	const char *name = up->place->url.name;
	char etag[256];

	switch (pst_object_upload_identify(up, limits, etag, sizeof(etag))) {
	case PST_OBJECT_OURS:
		return pst_fail_errno(err, EEXIST, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s: the commit that was stopped has succeeded: the object "
				      "exists",
				      name);
	case PST_OBJECT_NOT_OURS:
		up->unsure = false;
		return 0;
	default:
		return pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR,
				      "%s: a commit was stopped, and it is unknown whether the "
				      "object exists: look for it",
				      name);
	}
}

int pst_object_upload_abort(struct pst_object_upload *up, const struct penstock_end_opts *limits,
			    struct pst_err *err)
{
	int ret = 0;

	pst_object_send_stop(up);
	up->ended = true;
	if (up->id_state == ID_KNOWN)
		ret = parts_drop(up, limits, err);
	if (!ret && up->unsure)
		ret = unsure_judge(up, limits, err);
	return ret;
}

void pst_object_upload_close(struct pst_object_upload *up)
{
	struct pst_err err;

	if (!up)
		return;
	if (!up->ended && pst_object_upload_abort(up, NULL, &err))
		pst_log(PST_LOG_WARN, "object", "%s", err.text);
	pst_object_upload_free(up);
}
