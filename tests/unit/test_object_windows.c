/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests when the client stops sending tokens to a server: for the rest of the process after the
 * server has ignored a token, and for a minute after it has declined many tokens in a row. What it
 * answers to windows in the memory of a device does not count. The test includes the source, and
 * changes the ends of pauses directly.
 */
#include "test.h"

#include "../../src/storage/object_window.c"

#include "wire/transport.h"

#define LEN 64u

static const struct pst_wire_client_ops transport;
static struct pst_wire_grant inner = {.ops = &transport};
static struct penstock_device device = {.name = "test:0", .serial = 7};
static struct pst_window window, device_window = {.dev = &device};

/* Lets a GET of the window get these headers, and returns what is next. */
static enum penstock_object_next answer_to(struct pst_object_windows *windows,
					   struct pst_window *to, const char *reply,
					   const char *checksum)
{
	struct pst_object_grant grant = {.windows = windows,
					 .window = to,
					 .inner = &inner,
					 .op = PENSTOCK_READ,
					 .len = LEN,
					 .verdict = PENSTOCK_OBJECT_VERDICT_INIT};
	struct pst_object_call call = {.method = "GET", .ranged = true, .last = LEN - 1};
	struct pst_http_head *head = &call.http.head;

	inner.op = PENSTOCK_READ;
	inner.len = LEN;
	*head = (struct pst_http_head){.status = 206,
				       .has_length = true,
				       .length = strcmp(reply, "206") ? LEN : 0,
				       .has_range = true,
				       .range_last = LEN - 1};
	snprintf(head->rdma_reply, sizeof(head->rdma_reply), "%s", reply);
	if (!head->length)
		snprintf(head->rdma_bytes, sizeof(head->rdma_bytes), "%u", LEN);
	snprintf(head->rdma_checksum, sizeof(head->rdma_checksum), "%s", checksum);
	return pst_object_grant_judge(&grant, &call, NULL);
}

/* Lets a GET of a window in host memory get this header x-amz-rdma-reply. */
static enum penstock_object_next answer(struct pst_object_windows *windows, const char *reply)
{
	return answer_to(windows, &window, reply, "");
}

static void expect_shut(struct pst_object_windows *windows, enum penstock_why why)
{
	struct pst_err err = {0};
	int ret = pst_object_windows_check(windows, &err);

	print_message("# check %d, reason %d \"%s\"\n", ret, (int)err.why, err.text);
	assert_int_equal(ret, why ? -EOPNOTSUPP : 0);
	assert_int_equal(atomic_load(&windows->shut), why);
	assert_int_equal(err.why, why);
}

static void declines(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct pst_object_windows windows = {.endpoint = &endpoint};

	(void)state;
	/* A response that uses the token resets the count of declines. */
	for (unsigned i = 1; i < 2 * DECLINES_MAX; i++)
		assert_int_equal(answer(&windows, i == DECLINES_MAX ? "206" : "501"),
				 i == DECLINES_MAX ? PENSTOCK_OBJECT_DONE : PENSTOCK_OBJECT_BODY);
	expect_shut(&windows, PENSTOCK_WHY_NONE);
	/* only responses to PUT requests count here */
	assert_false(pst_object_windows_answered(&windows));
	answer(&windows, "501");
	expect_shut(&windows, PENSTOCK_WHY_DECLINED);
	assert_true(pst_object_windows_decline(&windows));
	assert_true(windows.again_ns > pst_now_ns() + PAUSE_NS / 2);
	windows.again_ns = pst_now_ns() - 1;
	expect_shut(&windows, PENSTOCK_WHY_NONE);
	assert_false(pst_object_windows_decline(&windows));
}

static void ignored(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct pst_object_windows windows = {.endpoint = &endpoint};

	(void)state;
	assert_int_equal(answer(&windows, ""), PENSTOCK_OBJECT_BODY);
	expect_shut(&windows, PENSTOCK_WHY_NO_WINDOW);
	assert_int_equal(windows.again_ns, 0);
}

/* The bytes must come through another window, whatever the reason. */
static void device_windows(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct pst_object_windows windows = {.endpoint = &endpoint};

	(void)state;
	assert_int_equal(answer_to(&windows, &device_window, "206", ""), PENSTOCK_OBJECT_DONE);
	assert_int_equal(answer_to(&windows, &device_window, "206", "CRC64NVME AAAAAAAAAAA="),
			 PENSTOCK_OBJECT_RESEND);
	for (unsigned i = 0; i < 2 * DECLINES_MAX; i++)
		assert_int_equal(answer_to(&windows, &device_window, i & 1 ? "501" : "", ""),
				 PENSTOCK_OBJECT_RESEND);
	expect_shut(&windows, PENSTOCK_WHY_NONE);
	assert_false(pst_object_windows_decline(&windows));
}

static void reached_devices(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct pst_object_windows windows = {.endpoint = &endpoint};
	struct penstock_device other = {.name = "test:1", .serial = 8};
	struct pst_err why, found;

	(void)state;
	pst_fail(&why, PENSTOCK_WHY_DECLINED, "no");
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), -EAGAIN);
	pst_object_windows_tested(&windows, &device, &why);
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), 0);
	assert_string_equal(found.text, "no");
	assert_int_equal(pst_object_windows_reach(&windows, &other, &found), -EAGAIN);
	/* A server that was asked a minute ago is asked again. */
	windows.reaches->asked_ns -= REACH_NS;
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), -EAGAIN);
	pst_object_windows_tested(&windows, &device, NULL);
	windows.reaches->asked_ns -= REACH_NS;
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), 1);
	free(windows.reaches);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(declines),
		cmocka_unit_test(ignored),
		cmocka_unit_test(device_windows),
		cmocka_unit_test(reached_devices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
