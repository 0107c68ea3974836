/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the transfer with which the library finds out whether a server can access windows in the
 * memory of a device: what it says about the responses of the server, which of them it remembers,
 * and that it never waits for a stream. The test includes the sources. It replaces the request to
 * the server, the device's memory and the functions of the data plane.
 */
#include "test.h"

#include <stdbool.h>

#include "wire/client.h"
#include "wire/transport.h"

static int fake_release(struct pst_wire_grant *grant, struct pst_err *err);
static bool fake_is_cut(const struct pst_wire_buffer *buffer);
static int fake_wire_open(struct pst_wire_buffer *buffer, enum penstock_op op, uint64_t off,
			  uint64_t len, struct pst_wire_grant **out, struct pst_err *err);
#define pst_wire_release fake_release
#define pst_wire_buffer_is_cut fake_is_cut
#define pst_wire_window_open fake_wire_open
#include "../../src/storage/object_window.c"

static int fake_run(struct pst_object_call *call, struct pst_err *err);
static void fake_offer(struct pst_object_grant *grant, struct pst_object_call *call);
static int fake_grant_open(struct pst_object_grant *grant, struct pst_object_windows *windows,
			   struct pst_window *window, enum penstock_op op, uint64_t len,
			   struct pst_err *err);
static int fake_window_open(struct pst_object_windows *windows, struct penstock_device *dev,
			    size_t len, struct pst_window **out, struct pst_err *err);
#define pst_object_call_run fake_run
#define pst_object_grant_offer fake_offer
#define pst_object_grant_open fake_grant_open
#define pst_object_window_open fake_window_open
#include "../../src/storage/object_reach.c"

#define LEN 100u

static const struct pst_wire_client_ops transport;
static struct pst_wire_client wire_client; /* has no network cards */
static struct pst_wire_buffer wire_buffer = {.client = &wire_client};
static struct pst_wire_grant inner = {.ops = &transport, .buffer = &wire_buffer, .len = LEN};
static struct penstock_device device = {.name = "test:0", .serial = 7};
static struct pst_http_endpoint endpoint = {.host = "test"};
static struct pst_object_place place = {.endpoint = &endpoint};

static struct {
	unsigned status; /* of the response; 0: the server cannot be reached */
	const char *reply, *code;
	unsigned lost; /* number of requests that the server declines before */
} answer;
static unsigned asked, opened, closed;

static int fake_release(struct pst_wire_grant *grant, struct pst_err *err)
{
	(void)grant;
	(void)err;
	return 0;
}

static bool fake_is_cut(const struct pst_wire_buffer *buffer)
{
	(void)buffer;
	return false;
}

static int fake_run(struct pst_object_call *call, struct pst_err *err)
{
	struct pst_http_head *head = &call->http.head;
	const char *reply = answer.reply;

	asked++;
	call->http.result = 0;
	if (!answer.status)
		return pst_fail(err, PENSTOCK_WHY_IO_ERROR, "the server is gone");
	*head = (struct pst_http_head){.status = answer.status};
	if (answer.lost && answer.lost--)
		reply = "501";
	snprintf(head->rdma_reply, sizeof(head->rdma_reply), "%s", reply);
	if (answer.status / 100 != 2) {
		pst_text_put_str(&call->http.text, "<Code>");
		pst_text_put_str(&call->http.text, answer.code);
		pst_text_put_str(&call->http.text, "</Code>");
		return 0;
	}
	head->has_length = head->has_range = true;
	head->length = strcmp(reply, "206") ? LEN : 0;
	head->range_last = LEN - 1;
	if (!head->length)
		snprintf(head->rdma_bytes, sizeof(head->rdma_bytes), "%u", LEN);
	if (call->judge(call) != PST_HTTP_FAIL)
		return 0;
	call->http.result = call->http.err.code;
	return pst_object_call_result(call, "be reached", err);
}

static void fake_offer(struct pst_object_grant *grant, struct pst_object_call *call)
{
	(void)grant;
	(void)call;
}

static int fake_wire_open(struct pst_wire_buffer *buffer, enum penstock_op op, uint64_t off,
			  uint64_t len, struct pst_wire_grant **out, struct pst_err *err)
{
	(void)buffer, (void)op, (void)off, (void)len, (void)err;
	inner.listener = &wire_client.listeners[1];
	*out = &inner;
	return 0;
}

static int fake_grant_open(struct pst_object_grant *grant, struct pst_object_windows *windows,
			   struct pst_window *window, enum penstock_op op, uint64_t len,
			   struct pst_err *err)
{
	(void)err;
	*grant = (struct pst_object_grant){.windows = windows,
					   .window = window,
					   .inner = &inner,
					   .op = op,
					   .len = len,
					   .cards = wire_client.listener_count,
					   .verdict = PENSTOCK_OBJECT_VERDICT_INIT};
	return 0;
}

static void fake_close(struct pst_window *window)
{
	closed++;
	free(window);
}

static int fake_window_open(struct pst_object_windows *windows, struct penstock_device *dev,
			    size_t len, struct pst_window **out, struct pst_err *err)
{
	struct object_window *own = calloc(1, sizeof(*own));

	(void)err;
	assert_non_null(own);
	opened++;
	own->window.dev = dev;
	own->window.len = len;
	own->window.kind = windows;
	own->window.close = fake_close;
	*out = &own->window;
	return 0;
}

static int reach(struct pst_object_windows *windows, unsigned status, const char *reply,
		 const char *code, struct pst_err *err)
{
	int ret;

	answer.status = status;
	answer.reply = reply;
	answer.code = code;
	*err = (struct pst_err){0};
	ret = pst_object_reach(&place, NULL, LEN, windows, &device, err);
	print_message("# status %u %s: %d \"%s\"\n", status, code, ret, err->text);
	return ret;
}

/* The reason names the status of the response. The refusal of an object is not remembered, because
 * another object of the same server may be served. */
static void names_the_status(void **state)
{
	static const struct {
		unsigned status;
		const char *reply, *code;
		int result;
		const char *text;
		bool remembered, advised;
	} rows[] = {
		{403, "", "AccessDenied", -EACCES, "403 AccessDenied", false, false},
		{404, "", "NoSuchKey", -ENOENT, "404 NoSuchKey", false, false},
		{412, "", "PreconditionFailed", -ESTALE, "412 PreconditionFailed", false, false},
		{400, "", "InvalidRDMAToken", -EOPNOTSUPP, "this kind of token", true, false},
		{500, "", "RDMATransferFailed", -EOPNOTSUPP, "by RDMA failed", true, false},
		{206, "501", "", -EOPNOTSUPP, "declined RDMA", true, true},
		{0, "", "", -EIO, "is gone", true, false},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pst_object_windows windows = {.endpoint = &endpoint};
		struct pst_err err;
		int ret = reach(&windows, rows[i].status, rows[i].reply, rows[i].code, &err);

		assert_int_equal(ret, rows[i].result);
		if (!strstr(err.text, rows[i].text) ||
		    (strstr(err.text, "--device") != NULL) != rows[i].advised)
			fail_msg("row %u: '%s'", i, err.text);
		asked = 0;
		ret = reach(&windows, 206, "206", "", &err);
		assert_int_equal(asked, !rows[i].remembered);
		assert_int_equal(ret, rows[i].remembered ? rows[i].result : 0);
		free(windows.reaches);
	}
	assert_int_equal(opened, closed);
}

/* A thread that submits a request waits for the test transfer. So the transfer must not wait for a
 * stream, which may wait for something that this thread does later. */
static void waits_for_no_stream(void **state)
{
	struct pst_object_windows windows = {.endpoint = &endpoint};
	struct pst_err err;

	(void)state;
	opened = closed = 0;
	atomic_store(&device.streams_waiting, 1);
	assert_int_equal(reach(&windows, 206, "501", "", &err), -EOPNOTSUPP);
	assert_int_equal(opened, 1);
	assert_int_equal(closed, 0);
	/* The next test uses the window that could not be freed. */
	windows.reaches->asked_ns -= REACH_NS;
	assert_int_equal(reach(&windows, 206, "501", "", &err), -EOPNOTSUPP);
	assert_int_equal(opened, 1);
	assert_int_equal(closed, 0);
	/* The next test uses no window to which a server may still have access. */
	atomic_store(&windows.reaches->kept->spoiled, true);
	windows.reaches->asked_ns -= REACH_NS;
	asked = 0;
	assert_int_equal(reach(&windows, 206, "206", "", &err), -EOPNOTSUPP);
	assert_int_equal(err.why, PENSTOCK_WHY_STREAM_ORDER);
	assert_int_equal(asked, 0);
	atomic_store(&device.streams_waiting, 0);
	assert_int_equal(reach(&windows, 206, "206", "", &err), 0);
	assert_int_equal(opened, 2);
	assert_int_equal(closed, 2);
	assert_null(windows.reaches->kept);
	assert_int_equal(atomic_load(&device.syncs), 0);
	free(windows.reaches);
}

/* If the client has several network cards, the transfer is repeated by the next card, unless the
 * server does not know the token. */
static void tries_each_card(void **state)
{
	static const struct {
		unsigned lost, status;
		const char *reply, *code;
		unsigned asked;
		int result;
	} rows[] = {
		{0, 206, "206", "", 1, 0},
		{1, 206, "206", "", 2, 0},
		{2, 206, "206", "", 2, -EOPNOTSUPP},
		{0, 400, "", "InvalidRDMAToken", 1, -EOPNOTSUPP},
		{0, 500, "", "RDMATransferFailed", 2, -EOPNOTSUPP},
	};

	(void)state;
	wire_client.listener_count = 2;
	wire_client.listeners[0].ops = wire_client.listeners[1].ops = &transport;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pst_object_windows windows = {.endpoint = &endpoint};
		struct pst_err err;

		inner.listener = &wire_client.listeners[0];
		answer.lost = rows[i].lost;
		asked = 0;
		assert_int_equal(
			reach(&windows, rows[i].status, rows[i].reply, rows[i].code, &err),
			rows[i].result);
		assert_int_equal(asked, rows[i].asked);
		answer.lost = 0;
		free(windows.reaches);
	}
	wire_client.listener_count = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_the_status),
		cmocka_unit_test(waits_for_no_stream),
		cmocka_unit_test(tries_each_card),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
