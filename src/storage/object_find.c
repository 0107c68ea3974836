/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_find.h: the requests of an open. The reply to a HEAD has the object's length,
 * ETag and checksum. The GET of the first bytes cannot replace the HEAD: object stores send the
 * checksum of the whole object only in replies to a HEAD or to a GET without a range, and the body
 * of a GET without a range may be very long. So both requests are in flight at the same time.
 *
 * An open without a checksum (a presigned URL, or the option unchecked=1) sends only the GET.
 */
#include "storage/object_find.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"

/* Maximum time in ns for which an open waits for the first bytes after the reply to the HEAD. */
#define FIRST_WAIT_NS 1000000000u

struct pst_object_first {
	struct pst_object_call call; /* must be the first member */
	struct pst_object_wait wait;
	bool alone; /* no HEAD is in flight beside the GET */
	bool fits;  /* the body of the response is the start of the object, in `bytes` */
	/* length and ETag of the object, from the response */
	uint64_t length;
	char etag[256];
	uint64_t until_ns; /* end of the time in which reads may use the bytes */
	/* number of bytes that reads may use */
	_Atomic uint64_t len;
	struct iovec iov;
	char bytes[PST_OBJECT_FIRST_BYTES];
};

/* ---- the GET of the first bytes ---- */

/* Stores the length and the ETag of a response to the GET. Returns whether the body is the start of
 * the object, or the rest of this start after the bytes that have arrived. */
static bool first_take(struct pst_object_first *first)
{
	const struct pst_object_call *call = &first->call;
	const struct pst_http_head *head = &call->http.head;
	const uint64_t got = call->http.got;
	uint64_t length = head->status == 200 ? head->length : head->range_total;
	uint64_t end = length < PST_OBJECT_FIRST_BYTES ? length : PST_OBJECT_FIRST_BYTES;

	if (!head->has_length || (got && strcmp(head->etag, first->etag)))
		return false;
	if (head->status == 200 ? got || length > PST_OBJECT_FIRST_BYTES
				: head->status != 206 || !head->has_total || !head->has_range ||
					  head->range_first != got || head->range_last + 1 != end ||
					  head->length != end - got)
		return false;
	memcpy(first->etag, head->etag, sizeof(first->etag));
	first->length = length;
	return true;
}

static enum pst_http_verdict first_judge(struct pst_object_call *call)
{
	struct pst_object_first *first = (struct pst_object_first *)call;

	first->fits = first_take(first);
	if (first->fits)
		return PST_HTTP_BODY;
	/* Without a HEAD, the head of the response is used even if its body is not. So after a body
	 * that was cut off, the response may be that of another version, or of a server that
	 * ignores ranges. */
	if (first->alone)
		return PST_HTTP_TEXT;
	pst_fail_errno(&call->http.err, EIO, PENSTOCK_WHY_MALFORMED,
		       "the server did not send the object's first bytes");
	return PST_HTTP_FAIL;
}

static struct pst_object_first *first_open(const struct pst_object_place *place)
{
	struct pst_object_first *first = malloc(sizeof(*first));

	if (!first)
		return NULL;
	memset(first, 0, offsetof(struct pst_object_first, bytes));
	first->iov = (struct iovec){first->bytes, sizeof(first->bytes)};
	pst_object_call_init(&first->call, place, "GET", "");
	first->call.ranged = true;
	first->call.last = sizeof(first->bytes) - 1;
	first->call.judge = first_judge;
	first->call.http.in = &first->iov;
	first->call.http.in_count = 1;
	first->call.http.in_len = sizeof(first->bytes);
	return first;
}

/* Lets reads use the bytes if they are those of the object that was found. Returns whether they
 * are. */
static bool first_keep(struct pst_object_first *first, const struct pst_object_found *found)
{
	if (first->call.http.result || !first->fits || first->length != found->length ||
	    !pst_object_etag_is_strong(first->etag) || strcmp(first->etag, found->etag) != 0)
		return false;
	pst_object_call_clear(&first->call);
	first->until_ns = pst_now_ns() + PST_OBJECT_FIRST_NS;
	atomic_store(&first->len, first->call.http.got);
	return true;
}

uint64_t pst_object_first_copy(struct pst_object_first *first, uint64_t off,
			       const struct iovec *iov, unsigned iov_count, uint64_t len)
{
	uint64_t have = first ? atomic_load(&first->len) : 0, left;

	if (off >= have || pst_now_ns() > first->until_ns)
		return 0;
	len = len < have - off ? len : have - off;
	left = len;
	for (unsigned i = 0; i < iov_count && left; i++) {
		uint64_t n = iov[i].iov_len < left ? iov[i].iov_len : left;

		memcpy(iov[i].iov_base, first->bytes + off, (size_t)n);
		off += n;
		left -= n;
	}
	return len - left;
}

void pst_object_first_drop(struct pst_object_first *first)
{
	if (first)
		atomic_store(&first->len, 0);
}

void pst_object_first_close(struct pst_object_first *first)
{
	if (!first)
		return;
	pst_object_call_clear(&first->call);
	free(first);
}

/* ---- the open's requests ---- */

/*
 * Requests the object's length and ETag. A HEAD request returns both, but an error in reply to HEAD
 * has no text, and a presigned URL is valid for one method only. So with `head` false, which
 * pst_object_find uses after an error and for presigned URLs, a GET of the first byte replaces the
 * HEAD.
 */
static int object_ask(const struct pst_object_place *place, struct pst_object_call *call, bool head,
		      struct pst_err *err)
{
	memset(call, 0, sizeof(*call));
	pst_object_call_init(call, place, head ? "HEAD" : "GET", "");
	pst_object_call_header(call, "x-amz-checksum-mode", "ENABLED");
	if (place->url.presigned)
		/* Removes the header again: the server would refuse a presigned request with an
		 * unsigned header x-amz-*. */
		call->header_count = 0;
	call->ranged = !head;
	return pst_object_call_run(call, err);
}

/* Stores the length, the ETag and the checksum of the response in *out. */
static int object_take(const struct pst_object_place *place, const struct pst_object_call *call,
		       bool head, struct pst_object_found *out, struct pst_err *err)
{
	const struct pst_http_head *h = &call->http.head;
	const char *name = place->url.name;

	if (head || h->status == 200) {
		if (!h->has_length)
			return pst_fail_errno(err, EIO, PENSTOCK_WHY_MALFORMED,
					      "%s: the server did not send the object's length",
					      name);
		out->length = h->length;
	} else if (h->has_total) {
		out->length = h->range_total;
	} else {
		return pst_fail_errno(err, EIO, PENSTOCK_WHY_MALFORMED,
				      "%s: the server did not send the object's length in "
				      "Content-Range",
				      name);
	}
	memcpy(out->etag, h->etag, sizeof(out->etag));
	if (head && !place->url.unchecked)
		pst_object_sum_open(&out->sum, h, out->length);
	return 0;
}

/* The requests of one attempt of an open. */
struct attempt {
	struct pst_object_call own;
	struct pst_object_first *first; /* NULL without prefetch */
	/* the call whose response describes the object: `own`, or that of `first` */
	struct pst_object_call *call;
};

static void attempt_clear(struct attempt *attempt)
{
	pst_object_call_clear(&attempt->own);
	pst_object_first_close(attempt->first);
	attempt->first = NULL;
}

/* Sends the HEAD of an open, or the GET that replaces it. With `prefetch`, the first bytes come,
 * too. */
static int attempt_run(struct attempt *attempt, const struct pst_object_place *place, bool head,
		       bool prefetch, struct pst_err *err)
{
	struct pst_object_first *first = prefetch ? first_open(place) : NULL;
	struct pst_err ignored; /* without the first bytes, a read requests them */
	int ret;

	attempt->first = first;
	attempt->call = &attempt->own;
	if (first && !head) {
		first->alone = true;
		attempt->call = &first->call;
		return pst_object_call_run(&first->call, err);
	}
	if (first && pst_object_call_begin(&first->call, &first->wait, &ignored)) {
		pst_object_first_close(first);
		attempt->first = first = NULL;
	}
	ret = object_ask(place, &attempt->own, head, err);
	if (first) {
		uint64_t until_ns = pst_now_ns() + (ret ? 0 : FIRST_WAIT_NS);

		(void)pst_object_call_wait(&first->call, &first->wait, until_ns, &ignored);
		pst_object_wait_close(&first->wait);
	}
	return ret;
}

/* Lets the response to the GET of the first bytes describe the object, because the server has
 * refused the HEAD. Returns false if there is no such response. */
static bool attempt_turn(struct attempt *attempt)
{
	if (!attempt->first || attempt->first->call.http.result)
		return false;
	attempt->call = &attempt->first->call;
	return true;
}

int pst_object_find(struct pst_object_place *place, bool prefetch, struct pst_object_found *out,
		    struct pst_err *err)
{
	bool head = !place->url.presigned && !(prefetch && place->url.unchecked), turned = false;
	struct attempt attempt = {.first = NULL};
	int ret;

	memset(out, 0, sizeof(*out));
	for (;;) {
		const struct pst_http_head *answer;

		ret = turned ? 0 : attempt_run(&attempt, place, head, prefetch, err);
		answer = &attempt.call->http.head;
		if (ret || answer->status / 100 == 2)
			break;
		if (answer->region[0] && !pst_object_place_move(place, answer->region, err)) {
			attempt_clear(&attempt);
			turned = false;
			continue;
		}
		/* S3 replies 416 to a GET of the first bytes of an empty object. */
		if (!head && answer->status == 416 && answer->has_total) {
			if (!attempt.call->http.got)
				break;
			/* A shorter version has replaced the object after a part of its first bytes
			 * had arrived. This reply lacks the ETag of the new version. */
			attempt_clear(&attempt);
			prefetch = turned = false;
			continue;
		}
		if (!head) {
			ret = pst_object_call_result(attempt.call, "read", err);
			break;
		}
		head = false;
		turned = attempt_turn(&attempt);
		if (!turned)
			attempt_clear(&attempt);
	}
	if (!ret)
		ret = object_take(place, attempt.call, head, out, err);
	if (!ret && attempt.first && first_keep(attempt.first, out)) {
		out->first = attempt.first;
		attempt.first = NULL;
	}
	attempt_clear(&attempt);
	return ret;
}
