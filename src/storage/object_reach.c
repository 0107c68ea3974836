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

#include "core/base/device_sync.h"

#define TEST_BYTES 4096u
#define TEST_S 5

struct test {
	struct pst_object_call call; /* the first member */
	struct pst_object_grant grant;
	enum penstock_object_next next;
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

/* Makes the request. Returns 0 if the server has moved the bytes. */
static int test_run(struct test *test, const char *etag, uint64_t len, struct pst_err *err)
{
	struct pst_object_call *call = &test->call;
	char code[64];
	int ret;

	call->judge = test_judge;
	call->deadline_s = TEST_S;
	call->ranged = true;
	call->last = len - 1;
	if (etag)
		pst_object_call_header(call, "if-match", etag);
	pst_object_grant_offer(&test->grant, call);
	ret = pst_object_call_run(call, err);
	if (!ret && call->http.head.status / 100 != 2) {
		pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
		test->next = pst_object_grant_judge(&test->grant, call, code);
		ret = -EOPNOTSUPP;
	}
	if (ret && test->grant.judged)
		pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_DECLINED,
			       "%.100s (penstock serve needs --device with this GPU)",
			       test->grant.verdict.text);
	pst_object_grant_wait(&test->grant);
	if (!ret && test->grant.result) {
		*err = test->grant.err;
		ret = err->code;
	}
	return ret;
}

/* Asks the server, through a window that is used for nothing else. */
static int reach_ask(const struct pst_object_place *place, const char *etag, uint64_t length,
		     struct pst_object_windows *windows, struct penstock_device *dev,
		     struct pst_err *err)
{
	const uint64_t len = length < TEST_BYTES ? length : TEST_BYTES;
	struct test *test = calloc(1, sizeof(*test));
	struct pst_window *window;
	int ret;

	if (!test)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a test");
	ret = pst_object_window_open(windows, dev, TEST_BYTES, &window, err);
	if (ret)
		goto err_free;
	pst_object_call_init(&test->call, place, "GET", "");
	ret = pst_object_grant_open(&test->grant, windows, window, PENSTOCK_READ, len, err);
	if (!ret)
		ret = test_run(test, etag, len, err);
	pst_object_call_clear(&test->call);
	pst_device_sync_await(dev);
	window->close(window);
	pst_device_sync_end(dev);
err_free:
	free(test);
	return ret;
}

int pst_object_reach(const struct pst_object_place *place, const char *etag, uint64_t length,
		     struct pst_object_windows *windows, struct penstock_device *dev,
		     struct pst_err *err)
{
	int ret = pst_object_windows_check(windows, err);

	if (ret)
		return ret;
	ret = pst_object_windows_reach(windows, dev, err);
	if (ret != -EAGAIN)
		return ret ? 0 : err->code;
	ret = reach_ask(place, etag, length, windows, dev, err);
	pst_object_windows_tested(windows, dev, ret ? err : NULL);
	return ret;
}
