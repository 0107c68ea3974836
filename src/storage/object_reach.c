/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_reach.h: a small test GET, whose bytes the server must write to a window in the
 * device's memory. object.c makes it before transfers use such windows. Without the test, a server
 * without access would send the first bytes in HTTP bodies. These cannot go to memory of a device,
 * so the transfers would fail.
 */
#include "storage/object_reach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/device_sync.h"

#define TEST_BYTES 4096u
#define TEST_S 5

struct test {
	struct pst_object_call call; /* the first member */
	struct pst_object_grant grant;
	enum penstock_object_next next;
	bool passing; /* the answer does not tell whether the server can access the device */
};

static enum pst_http_verdict test_judge(struct pst_object_call *call)
{
	struct test *test = (struct test *)call;

	test->next = pst_object_grant_judge(&test->grant, call, NULL);
	if (test->next == PENSTOCK_OBJECT_DONE)
		return PST_HTTP_TEXT;
	pst_object_grant_why(&test->grant, &call->http.err);
	return PST_HTTP_FAIL;
}

/* Stores in `err` why the server has not moved the bytes. */
static int test_fail(struct test *test, struct pst_err *err)
{
	const struct pst_http_head *head = &test->call.http.head;
	char code[64];

	if (head->status / 100 != 2) {
		pst_object_xml_text(&test->call.http.text, "Code", code, sizeof(code));
		test->next = pst_object_grant_judge(&test->grant, &test->call, code);
	}
	if (test->next != PENSTOCK_OBJECT_ERROR)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_DECLINED, "%.100s%s",
				      test->grant.verdict.text,
				      strncmp(head->rdma_reply, "501", 3)
					      ? ""
					      : " (penstock serve needs --device with this GPU)");
	/* A status 4xx refuses the object, and tells nothing about the device. */
	test->passing = head->status / 100 == 4;
	return pst_object_call_result(&test->call, "be read through a window", err);
}

/* Fills in the request. */
static void test_prepare(struct test *test, const char *etag, uint64_t len)
{
	struct pst_object_call *call = &test->call;

	call->judge = test_judge;
	call->deadline_s = TEST_S;
	call->ranged = true;
	call->last = len - 1;
	if (etag)
		pst_object_call_header(call, "if-match", etag);
	pst_object_grant_offer(&test->grant, call);
}

/* Makes the request. Returns 0 if the server has moved the bytes. */
static int test_run(struct test *test, struct pst_err *err)
{
	struct pst_object_call *call = &test->call;
	int ret = pst_object_call_run(call, err);

	if (ret ? test->grant.judged && test->next != PENSTOCK_OBJECT_DONE
		: call->http.head.status / 100 != 2)
		ret = test_fail(test, err);
	pst_object_grant_wait(&test->grant);
	if (!ret && test->grant.result) {
		*err = test->grant.err;
		ret = err->code;
	}
	return ret;
}

/* ---- the window ---- */

/* Frees the window, unless a stream waits for a request. The driver would then wait for this
 * stream, which may wait for a request that the calling thread is about to submit. So the window is
 * kept for the next test instead. */
static void window_put(struct pst_object_windows *windows, struct penstock_device *dev,
		       struct pst_window *window)
{
	if (!pst_device_sync_begin(dev)) {
		if (pst_object_windows_keep(windows, dev, window))
			return;
		/* There is a window of another test already, so this one must be freed. */
		pst_device_sync_await(dev);
	}
	window->close(window);
	pst_device_sync_end(dev);
}

/* Finds the window of an earlier test, or opens one. */
static int window_get(struct pst_object_windows *windows, struct penstock_device *dev,
		      struct pst_window **out, struct pst_err *err)
{
	struct pst_window *window = pst_object_windows_take(windows, dev);

	if (window && atomic_load(&window->spoiled)) {
		/* A server may still have access to the window, so it is of no use. */
		if (!pst_device_sync_begin(dev)) {
			window_put(windows, dev, window);
			return pst_fail(err, PENSTOCK_WHY_STREAM_ORDER,
					"a stream waits for a request, so no window in %s can be "
					"tested",
					dev->name);
		}
		window->close(window);
		pst_device_sync_end(dev);
		window = NULL;
	}
	if (!window)
		return pst_object_window_open(windows, dev, TEST_BYTES, out, err);
	*out = window;
	return 0;
}

/* ---- the test ---- */

/* Makes the test request, through a window that is used for nothing else. Sets *passing if the
 * result says nothing about the device. */
static int reach_ask(const struct pst_object_place *place, const char *etag, uint64_t length,
		     struct pst_object_windows *windows, struct penstock_device *dev, bool *passing,
		     struct pst_err *err)
{
	const uint64_t len = length < TEST_BYTES ? length : TEST_BYTES;
	struct test *test = calloc(1, sizeof(*test));
	struct pst_window *window = NULL;
	int ret;

	if (!test)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a test");
	ret = window_get(windows, dev, &window, err);
	if (ret) {
		*passing = err->why == PENSTOCK_WHY_STREAM_ORDER;
		goto err_free;
	}
	pst_object_call_init(&test->call, place, "GET", "");
	ret = pst_object_grant_open(&test->grant, windows, window, PENSTOCK_READ, len, err);
	if (!ret) {
		test_prepare(test, etag, len);
		do
			ret = test_run(test, err);
		while (ret && pst_object_grant_again(&test->grant, &test->call));
	}
	*passing = test->passing;
	pst_object_call_clear(&test->call);
	window_put(windows, dev, window);
err_free:
	free(test);
	return ret;
}

int pst_object_reach(const struct pst_object_place *place, const char *etag, uint64_t length,
		     struct pst_object_windows *windows, struct penstock_device *dev,
		     struct pst_err *err)
{
	int ret = pst_object_windows_check(windows, err);
	bool passing = false;

	if (ret)
		return ret;
	ret = pst_object_windows_reach(windows, dev, err);
	if (ret != -EAGAIN)
		return ret ? 0 : err->code;
	ret = reach_ask(place, etag, length, windows, dev, &passing, err);
	if (!passing)
		pst_object_windows_tested(windows, dev, ret ? err : NULL);
	return ret;
}
