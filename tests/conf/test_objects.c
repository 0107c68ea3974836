/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how transfers with the simulated object store of async_storage.h can end. An object is
 * committed or aborted as a whole. A request may be refused before any byte moves, may fail, or may
 * be cancelled halfway. Each time the report has the number of bytes moved and the reason, and no
 * reader sees half of an object.
 */
#include "remote_object.h"

/* ---- all or nothing ---- */

static void commit_publishes_and_abort_does_not(void **state)
{
	struct penstock_storage *st, *reader;
	struct async_counts counts;
	uint64_t len;

	(void)state;
	remote_create(0);
	for (unsigned i = 0; i < LEN; i++)
		back[i] = (unsigned char)~bytes[i];
	/* An object that is aborted or closed without a commit leaves the published object
	 * unchanged. */
	for (unsigned i = 0; i < 2; i++) {
		st = open_object(PENSTOCK_O_WRITE | PENSTOCK_O_REPLACE);
		assert_int_equal(penstock_write(st, host, back, LEN, 0), LEN);
		if (i)
			assert_int_equal(penstock_abort(st), 0);
		penstock_close(st);
		assert_memory_equal(async_published(remote, &len), bytes, LEN);
	}
	/* A storage that was opened after a commit reads the committed object. A storage that
	 * was opened before the commit still reads the old object. */
	st = open_object(PENSTOCK_O_WRITE | PENSTOCK_O_REPLACE);
	assert_int_equal(penstock_write(st, host, back, 100000, 0), 100000);
	assert_memory_equal(async_published(remote, &len), bytes, LEN);
	reader = open_object(0);
	assert_int_equal(penstock_commit(st, 0), 0);
	async_published(remote, &len);
	assert_int_equal(len, 100000);
	penstock_close(st);
	memset(back, 0, LEN);
	assert_int_equal(penstock_read(reader, host, back, LEN, 0), LEN);
	assert_memory_equal(back, bytes, LEN);
	penstock_close(reader);
	reader = open_object(0);
	assert_int_equal(penstock_read(reader, host, back, LEN, 0), 100000);
	for (unsigned i = 0; i < 100000; i++)
		assert_int_equal(back[i], (unsigned char)~bytes[i]);
	penstock_close(reader);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.syncs, 0);
}

/* A durable write is synced exactly once, after all its bytes are written. */
static void durable_write_syncs_once(void **state)
{
	struct penstock_seg seg = {.buf = bytes, .dev = host, .off = 1001, .row_len = 4000001};
	uint64_t len;
	struct penstock_storage *st;
	struct penstock_req req;
	struct async_counts counts;

	(void)state;
	remote_create(0);
	st = open_object(PENSTOCK_O_WRITE);
	req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	req.flags = PENSTOCK_R_DURABLE;
	assert_int_equal(penstock_transfer(&req, NULL), 4000001);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.syncs, 1);
	assert_int_equal(counts.early_syncs, 0);
	assert_int_equal(penstock_commit(st, 1), 0);
	assert_memory_equal(async_published(remote, &len), bytes, 1001);
	assert_memory_equal(async_published(remote, &len) + 1001, bytes, 4000001);
	assert_memory_equal(async_published(remote, &len) + 4001002, bytes + 4001002,
			    LEN - 4001002);
	penstock_close(st);
}

/* ---- refusals ---- */

/* The library refuses every path that needs a descriptor, and every required class, such as
 * PENSTOCK_DIRECT, that only such paths meet. */
static void paths_without_descriptor_are_refused(void **state)
{
	struct penstock_seg seg = {.row_len = 8192};
	struct penstock_explanation why = {.size = sizeof(why)};
	struct penstock_storage *st;
	struct penstock_req req;
	struct async_counts counts;

	(void)state;
	remote_create(0);
	st = open_object(0);
	memset(back, 0xee, 8192);
	seg.buf = back;
	for (unsigned d = 0; d < 2; d++) {
		seg.dev = d ? gpu : host;
		assert_int_equal(penstock_alloc(seg.dev, 8192, &seg.buf), 0);
		test_copy(seg.dev, seg.buf, host, back, 8192);
		req = test_request(st, &seg, 1, PENSTOCK_READ);
		for (unsigned p = 0; p < COUNT(closed_paths); p++) {
			req.path = closed_paths[p].name;
			assert_int_equal(penstock_transfer(&req, NULL), -EOPNOTSUPP);
			assert_int_equal(penstock_errwhy(),
					 d ? closed_paths[p].other : closed_paths[p].host);
			assert_non_null(strstr(penstock_errmsg(), closed_paths[p].name));
		}
		req.path = NULL;
		for (int c = PENSTOCK_NO_CPU_COPY; c <= PENSTOCK_DIRECT; c++) {
			req.require = (enum penstock_class)c;
			assert_int_equal(penstock_transfer(&req, NULL), -EOPNOTSUPP);
			assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_REQUIRE);
			/* The error message must say for each path why the library refuses it, so
			 * it is long. */
			assert_true(strlen(penstock_errmsg()) > 40);
			assert_int_equal(penstock_explain(&req, &why), 0);
			assert_int_equal(why.taken, -1);
		}
		req.require = PENSTOCK_ANY;
		assert_int_equal(penstock_explain(&req, &why), 0);
		assert_string_equal(why.paths[why.taken].name, "bounce");
		test_copy(host, back, seg.dev, seg.buf, 8192);
		for (unsigned i = 0; i < 8192; i++)
			assert_int_equal(back[i], 0xee);
		penstock_free(seg.dev, seg.buf);
	}
	assert_int_equal(penstock_write(st, host, back, 1, 0), -EBADF);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.fills + counts.drains, 0);
	penstock_close(st);
}

/* A read beyond the end moves fewer bytes; with PENSTOCK_R_EXACT it fails with -ENODATA. */
static void read_beyond_the_end(void **state)
{
	struct penstock_seg seg = {.buf = back, .dev = host, .off = LEN - 5000, .row_len = 9000};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_storage *st;
	struct penstock_req req;

	(void)state;
	remote_create(0);
	st = open_object(0);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_transfer(&req, &report), 5000);
	assert_int_equal(report.stop_off, LEN);
	req.flags = PENSTOCK_R_EXACT;
	assert_int_equal(penstock_transfer(&req, &report), -ENODATA);
	assert_int_equal(report.why, PENSTOCK_WHY_SHORT_IO);
	assert_int_equal(report.bytes, 5000);
	assert_int_equal(report.stop_off, LEN);
	penstock_close(st);
}

/* ---- errors during the transfer ---- */

static void transfers_with_errors(struct penstock_device *dev, enum penstock_op op)
{
	struct penstock_storage *st = open_object(op == PENSTOCK_WRITE ? PENSTOCK_O_WRITE : 0);
	struct penstock_seg seg = {.dev = dev};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req;
	unsigned failed = 0;
	uint64_t len;

	assert_int_equal(penstock_alloc(dev, LEN, &seg.buf), 0);
	for (unsigned i = 0; i < 40; i++) {
		int64_t n;

		seg.off = (uint64_t)i * 100003;
		seg.row_len = i % 4 ? 150000 : 2000000;
		memset(back, 0xee, seg.row_len);
		test_copy(dev, seg.buf, host, back, seg.row_len);
		req = test_request(st, &seg, 1, op);
		n = penstock_transfer(&req, &report);
		if (op == PENSTOCK_READ)
			test_copy(host, back, dev, seg.buf, seg.row_len);
		if (n >= 0) {
			check_report(&report, dev, (int64_t)seg.row_len, seg.row_len);
			if (op == PENSTOCK_READ)
				assert_memory_equal(back, bytes + seg.off, seg.row_len);
			continue;
		}
		failed++;
		assert_int_equal(n, -EIO);
		assert_int_equal(report.result, -EIO);
		assert_int_equal(report.why, PENSTOCK_WHY_IO_ERROR);
		assert_non_null(strstr(report.text, "the remote store refused"));
		assert_string_equal(penstock_errmsg(), report.text);
		assert_true(report.bytes < seg.row_len);
		assert_true(report.stop_off >= seg.off && report.stop_off < seg.off + seg.row_len);
		if (op == PENSTOCK_READ)
			assert_memory_equal(back, bytes + seg.off, report.stop_off - seg.off);
	}
	printf("# %u of 40 failed\n", failed);
	assert_in_range(failed, 1, 39);
	assert_int_equal(penstock_abort(st), 0);
	penstock_free(dev, seg.buf);
	penstock_close(st);
	assert_memory_equal(async_published(remote, &len), bytes, LEN);
	assert_int_equal(len, LEN);
}

static void errors_are_reported(void **state)
{
	(void)state;
	remote_create(5);
	transfers_with_errors(host, PENSTOCK_READ);
	transfers_with_errors(gpu, PENSTOCK_READ);
	transfers_with_errors(host, PENSTOCK_WRITE);
	transfers_with_errors(gpu, PENSTOCK_WRITE);
}

/* ---- cancelled in flight ---- */

static void cancel_in_flight(struct penstock_device *dev, enum penstock_op op)
{
	struct penstock_storage *st = open_object(op == PENSTOCK_WRITE ? PENSTOCK_O_WRITE : 0);
	struct penstock_seg seg = {.dev = dev, .row_len = LEN};
	struct penstock_req req = test_request(st, &seg, 1, op);
	struct penstock_queue *q;
	struct penstock_done done;
	struct async_counts counts;
	uint64_t id, len, off;

	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(penstock_alloc(dev, LEN, &seg.buf), 0);
	memset(back, 0xee, LEN);
	test_copy(dev, seg.buf, host, back, LEN);
	async_hold(remote);
	assert_int_equal(penstock_submit(q, &req, 1, &id), 1);
	assert_int_equal(async_await(remote, 2), 0);
	assert_int_equal(penstock_cancel(q, id), 0);
	/* The store still uses the memory, so no request has completed. */
	assert_int_equal(penstock_poll(q, &done, 1), 0);
	assert_int_equal(penstock_commit(st, 0), -EBUSY);
	async_release(remote);
	assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
	assert_int_equal(done.id, id);
	async_get_counts(remote, &counts);
	assert_int_equal(counts.waiting, 0);
	/* The request has completed, so only the caller uses the memory. */
	off = done.report->stop_off;
	if (done.result < 0) {
		assert_int_equal(done.result, -ECANCELED);
		assert_int_equal(done.report->why, PENSTOCK_WHY_CANCELLED);
		assert_true(done.report->bytes < LEN && off < LEN);
	} else {
		assert_int_equal(done.result, LEN);
		off = LEN;
	}
	if (op == PENSTOCK_READ) {
		test_copy(host, back, dev, seg.buf, LEN);
		assert_memory_equal(back, bytes, off);
	}
	assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 0);
	assert_int_equal(penstock_abort(st), 0);
	penstock_queue_close(q);
	penstock_free(dev, seg.buf);
	penstock_close(st);
	assert_memory_equal(async_published(remote, &len), bytes, LEN);
}

static void cancel_of_running_transfers(void **state)
{
	(void)state;
	remote_create(0);
	cancel_in_flight(host, PENSTOCK_READ);
	cancel_in_flight(gpu, PENSTOCK_READ);
	cancel_in_flight(host, PENSTOCK_WRITE);
	cancel_in_flight(gpu, PENSTOCK_WRITE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(commit_publishes_and_abort_does_not, remote_destroy),
		cmocka_unit_test_teardown(durable_write_syncs_once, remote_destroy),
		cmocka_unit_test_teardown(paths_without_descriptor_are_refused, remote_destroy),
		cmocka_unit_test_teardown(read_beyond_the_end, remote_destroy),
		cmocka_unit_test_teardown(errors_are_reported, remote_destroy),
		cmocka_unit_test_teardown(cancel_of_running_transfers, remote_destroy),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
