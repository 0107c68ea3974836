/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the first bytes that an open prefetches: which responses to their GET are accepted, when
 * reads use the bytes, and how the open ends if the GET has no response. The test includes the
 * source, and the linker replaces the requests to the server.
 */
#include "test.h"

#include "../../src/storage/object_find.c"

#define ETAG "\"1\""
#define FIRST PST_OBJECT_FIRST_BYTES

static struct pst_object_place place;
static struct pst_object_call *started; /* the GET in flight, or NULL */
static bool cancel_waited;		/* the GET waits in the queue until it is cancelled */
static unsigned cancels;

int __wrap_pst_http_start(struct pst_http_call *call, struct pst_err *err);
bool __wrap_pst_http_cancel(struct pst_http_call *call);
int __wrap_pst_object_call_run(struct pst_object_call *call, struct pst_err *err);

int __wrap_pst_http_start(struct pst_http_call *call, struct pst_err *err)
{
	(void)err;
	started = (struct pst_object_call *)call;
	return 0;
}

bool __wrap_pst_http_cancel(struct pst_http_call *call)
{
	cancels++;
	call->result = -ECANCELED;
	if (!cancel_waited)
		started->ended(started);
	return cancel_waited;
}

/* Fails every HEAD. */
int __wrap_pst_object_call_run(struct pst_object_call *call, struct pst_err *err)
{
	assert_string_equal(call->method, "HEAD");
	return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_DEADLINE, "no reply");
}

static const struct pst_http_head whole = {
	.status = 200, .has_length = true, .length = 100, .etag = ETAG};
static const struct pst_http_head small = {.status = 206,
					   .has_length = true,
					   .length = 100,
					   .has_range = true,
					   .range_last = 99,
					   .has_total = true,
					   .range_total = 100,
					   .etag = ETAG};
static const struct pst_http_head large = {.status = 206,
					   .has_length = true,
					   .length = FIRST,
					   .has_range = true,
					   .range_last = FIRST - 1,
					   .has_total = true,
					   .range_total = FIRST + 1,
					   .etag = ETAG};

/* Returns the verdict about a response, after `got` bytes have arrived. */
static enum pst_http_verdict judge(struct pst_object_first *first, struct pst_http_head head,
				   uint64_t got)
{
	first->call.http.head = head;
	first->call.http.got = got;
	return first->call.judge(&first->call);
}

static void judges_responses(void **state)
{
	struct pst_object_first *first = first_open(&place);
	struct pst_http_head head;

	(void)state;
	assert_non_null(first);
	assert_int_equal(judge(first, whole, 0), PST_HTTP_BODY);
	assert_int_equal(first->length, 100);
	assert_int_equal(judge(first, large, 0), PST_HTTP_BODY);
	assert_int_equal(first->length, FIRST + 1);
	assert_int_equal(judge(first, small, 0), PST_HTTP_BODY);
	assert_int_equal(first->length, 100);
	assert_string_equal(first->etag, ETAG);
	/* The rest of a body that was cut off. */
	head = small;
	head.range_first = 40;
	head.length = 60;
	assert_int_equal(judge(first, head, 40), PST_HTTP_BODY);
	assert_int_equal(judge(first, head, 41), PST_HTTP_FAIL);
	assert_int_equal(judge(first, whole, 40), PST_HTTP_FAIL);
	memcpy(head.etag, "\"2\"", 4);
	assert_int_equal(judge(first, head, 40), PST_HTTP_FAIL);
	/* Other ranges, and bodies of other lengths. */
	head = small;
	head.range_last = 98;
	assert_int_equal(judge(first, head, 0), PST_HTTP_FAIL);
	head = small;
	head.length = 99;
	assert_int_equal(judge(first, head, 0), PST_HTTP_FAIL);
	head = small;
	head.has_total = false;
	assert_int_equal(judge(first, head, 0), PST_HTTP_FAIL);
	head = whole;
	head.has_length = false;
	assert_int_equal(judge(first, head, 0), PST_HTTP_FAIL);
	head = whole;
	head.length = FIRST + 1;
	assert_int_equal(judge(first, head, 0), PST_HTTP_FAIL);
	/* Without a HEAD, the head of such a response is of use, even after a part of a body. */
	first->alone = true;
	assert_int_equal(judge(first, head, 0), PST_HTTP_TEXT);
	assert_false(first->fits);
	assert_int_equal(judge(first, small, 0), PST_HTTP_BODY);
	assert_int_equal(judge(first, whole, 40), PST_HTTP_TEXT);
	assert_false(first->fits);
	pst_object_first_close(first);
}

/* Returns the first bytes 0, 1, ..., 99 of an object, which has been found with the given facts. */
static bool keeps(struct pst_object_first *first, const char *etag, const char *found_etag,
		  uint64_t found_length)
{
	struct pst_object_found found = {.length = found_length};
	struct pst_http_head head = small;

	for (unsigned i = 0; i < 100; i++)
		first->bytes[i] = (char)i;
	snprintf(head.etag, sizeof(head.etag), "%s", etag);
	snprintf(found.etag, sizeof(found.etag), "%s", found_etag);
	assert_int_equal(judge(first, head, 0), PST_HTTP_BODY);
	first->call.http.got = 100;
	return first_keep(first, &found);
}

static void keeps_bytes_of_the_object(void **state)
{
	struct pst_object_first *first = first_open(&place);

	(void)state;
	assert_true(keeps(first, ETAG, ETAG, 100));
	assert_false(keeps(first, ETAG, "\"2\"", 100));
	assert_false(keeps(first, ETAG, ETAG, 101));
	assert_false(keeps(first, ETAG, "", 100));
	assert_false(keeps(first, "", "", 100));
	assert_false(keeps(first, "W/\"1\"", "W/\"1\"", 100));
	first->call.http.result = -ECONNRESET;
	assert_false(keeps(first, ETAG, ETAG, 100));
	pst_object_first_close(first);
}

static void copies_bytes(void **state)
{
	struct pst_object_first *first = first_open(&place);
	char to[2][100] = {{0}};
	struct iovec iov[2] = {{to[0], 30}, {to[1], 100}};
	uint64_t begun_ns;

	(void)state;
	assert_int_equal(pst_object_first_copy(NULL, 0, iov, 2, 10), 0);
	assert_int_equal(pst_object_first_copy(first, 0, iov, 2, 10), 0);
	begun_ns = pst_now_ns();
	assert_true(keeps(first, ETAG, ETAG, 100));
	assert_in_range(first->until_ns, begun_ns + PST_OBJECT_FIRST_NS,
			pst_now_ns() + PST_OBJECT_FIRST_NS);
	first->until_ns = UINT64_MAX;
	assert_int_equal(pst_object_first_copy(first, 20, iov, 2, 130), 80);
	for (unsigned i = 0; i < 80; i++)
		assert_int_equal(i < 30 ? to[0][i] : to[1][i - 30], 20 + i);
	assert_int_equal(to[1][50], 0);
	assert_int_equal(pst_object_first_copy(first, 99, iov, 2, 130), 1);
	assert_int_equal(pst_object_first_copy(first, 10, iov, 2, 40), 40);
	assert_int_equal(pst_object_first_copy(first, 100, iov, 2, 130), 0);
	/* The time for their use is over. */
	first->until_ns = pst_now_ns() - 1;
	assert_int_equal(pst_object_first_copy(first, 0, iov, 2, 40), 0);
	first->until_ns = UINT64_MAX;
	assert_int_equal(pst_object_first_copy(first, 0, iov, 2, 40), 40);
	pst_object_first_drop(first);
	assert_int_equal(pst_object_first_copy(first, 0, iov, 2, 40), 0);
	pst_object_first_drop(NULL);
	pst_object_first_close(first);
	pst_object_first_close(NULL);
}

/* The open fails at once with the error of the HEAD, and waits for the end of the GET, which uses
 * the memory of the open. */
static void cancels_the_get(void **state)
{
	struct pst_object_found found;
	struct pst_err err;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		cancel_waited = i;
		cancels = 0;
		assert_int_equal(pst_object_find(&place, true, &found, &err), -ETIMEDOUT);
		assert_int_equal(cancels, 1);
		assert_null(found.first);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(judges_responses),
		cmocka_unit_test(keeps_bytes_of_the_object),
		cmocka_unit_test(copies_bytes),
		cmocka_unit_test(cancels_the_get),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
