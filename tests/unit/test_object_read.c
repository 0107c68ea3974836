/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests which reads verify the checksum of the whole object, and which checksum they use. The test
 * includes the source, and the linker replaces the requests to the server.
 */
#include "test.h"

#include "../../src/storage/object.c"

#define LEN 64u

static char bytes[LEN]; /* the object's bytes, all zero */

/* The status with which the server refuses HEAD requests; 0: it does not refuse them. */
static unsigned head_status;
/* head of the server's responses to all other requests */
static struct pst_http_head answer;

int __wrap_pst_object_call_run(struct pst_object_call *call, struct pst_err *err);

int __wrap_pst_object_call_run(struct pst_object_call *call, struct pst_err *err)
{
	(void)err;
	call->http.head = answer;
	if (!strcmp(call->method, "HEAD")) {
		if (head_status)
			call->http.head = (struct pst_http_head){.status = head_status};
		return 0;
	}
	call->http.head.status = 206;
	call->http.head.has_range = call->http.head.has_total = true;
	call->http.head.range_total = call->http.head.length;
	call->http.head.length = 1;
	return 0;
}

/* Sets the responses of the server. `status_of_head` is the status with which it refuses HEAD
 * requests, or 0. The checksum in the responses is that of the object's bytes, or another one if
 * `wrong` is true. */
static void answer_set(unsigned status_of_head, bool wrong)
{
	struct iovec iov = {bytes, LEN};
	uint64_t crc = pst_object_sum_of(PST_HASH_CRC64NVME, &iov, 1, 0, LEN);

	head_status = status_of_head;
	answer = (struct pst_http_head){
		.status = 200, .has_length = true, .length = LEN, .etag = "\"1\""};
	pst_object_sum_text(PST_HASH_CRC64NVME, crc ^ wrong, answer.crc64nvme);
}

/* Simulates that a read of the whole object was received, and returns the result of the read. */
static int64_t read_all(struct pst_object *object, struct pst_err *err)
{
	struct iovec iov = {bytes, LEN};
	struct pst_io io = {.iov = &iov, .iov_count = 1};
	struct object_read read = {.object = object, .io = &io};
	int64_t result;

	read.call.http.in_len = LEN;
	result = read_check(&read) ? io.err.code : (int64_t)LEN;
	*err = io.err;
	print_message("# result %lld, reason \"%s\"\n", (long long)result, err->text);
	return result;
}

static struct pst_object *object_make(bool presigned)
{
	struct pst_object *object = calloc(1, sizeof(*object));

	assert_non_null(object);
	pthread_mutex_init(&object->lock, NULL);
	object->place.url.presigned = presigned;
	return object;
}

/* The response to the first GET has no checksum of the whole object, so no verification begins. */
static void reads_without_check(void **state)
{
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};

	(void)state;
	for (unsigned presigned = 0; presigned < 2; presigned++) {
		struct pst_object *object = object_make(presigned);

		answer_set(403, true);
		assert_int_equal(object_find(object, false, &err), 0);
		assert_int_equal(object->length, LEN);
		assert_int_equal(object->sum.state, PST_OBJECT_SUM_NONE);
		assert_int_equal(read_all(object, &err), LEN);
		object_free(object);
	}
}

static void reads_with_check(void **state)
{
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};

	(void)state;
	for (unsigned wrong = 0; wrong < 2; wrong++) {
		struct pst_object *object = object_make(false);

		answer_set(0, wrong);
		assert_int_equal(object_find(object, false, &err), 0);
		assert_int_equal(object->sum.state, PST_OBJECT_SUM_OPEN);
		assert_int_equal(read_all(object, &err), wrong ? -EBADMSG : (int)LEN);
		if (wrong) {
			assert_non_null(strstr(err.text, "x-amz-checksum-crc64nvme"));
			assert_non_null(strstr(err.text, answer.crc64nvme));
		}
		/* A repeated read has the same result. */
		assert_int_equal(read_all(object, &err), wrong ? -EBADMSG : (int)LEN);
		object_free(object);
	}
}

/* A commit replaces the object, so the checksum of the old object must not be compared with the new
 * bytes. */
static void reads_after_commit(void **state)
{
	struct penstock_storage_opts opts = {.size = sizeof(opts), .flags = PENSTOCK_O_REPLACE};
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	struct pst_object *object = object_make(false);

	(void)state;
	answer_set(0, true);
	assert_int_equal(object_open_upload(object, &opts, &err), 0);
	object->committed = true;
	object->length = LEN;
	assert_int_equal(read_all(object, &err), LEN);
	object_free(object);
}

enum penstock_object_next __wrap_pst_object_grant_judge(struct pst_object_grant *grant,
							const struct pst_object_call *call,
							const char *error);
bool __wrap_pst_object_grant_close(struct pst_object_grant *grant);

/* Replaces the function that judges responses: every response counts as that of a server which has
 * declined the token and sends a body. */
enum penstock_object_next __wrap_pst_object_grant_judge(struct pst_object_grant *grant,
							const struct pst_object_call *call,
							const char *error)
{
	(void)grant;
	(void)call;
	(void)error;
	return PENSTOCK_OBJECT_BODY;
}

static int close_result;

bool __wrap_pst_object_grant_close(struct pst_object_grant *grant)
{
	grant->result = close_result ? pst_fail_errno(&grant->err, -close_result,
						      PENSTOCK_WHY_DEADLINE, "it does not end")
				     : 0;
	return true;
}

/* While the server may still write into the window (the memory that the token names), the client
 * must not receive a body into the same memory. */
static void takes_no_body_while_the_window_is_open(void **state)
{
	(void)state;
	for (close_result = 0; close_result >= -ETIMEDOUT; close_result -= ETIMEDOUT) {
		struct pst_object *object = object_make(false);
		struct object_read read = {.object = object};

		object->length = LEN;
		read.call.token = "token";
		read.call.last = LEN - 1;
		read.call.http.head = (struct pst_http_head){
			.status = 206, .has_range = true, .range_last = LEN - 1};
		assert_int_equal(read_judge(&read.call),
				 close_result ? PST_HTTP_FAIL : PST_HTTP_BODY);
		assert_int_equal(read.call.http.err.code, close_result);
		assert_null(read.call.token);
		object_free(object);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_without_check),
		cmocka_unit_test(reads_with_check),
		cmocka_unit_test(reads_after_commit),
		cmocka_unit_test(takes_no_body_while_the_window_is_open),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
