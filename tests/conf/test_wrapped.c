/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Path `fault` wraps another path and damages its transfers as the arguments say. The first
 * group of tests checks that the damage really happens, because other tests rely on it. The
 * second group tests how the core handles a failed chunk: the core retries the chunk on the next
 * path, and counts and reports the retry.
 */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>

#include "penstock.h"
#include "request.h"

#define LEN (3u << 20)

static const char *const wrapped[] = {"bounce", "staged", "odirect", "mapped"};

static struct penstock_device *host, *gpu;
static unsigned char *bytes, *back;
static char name[256];

static int setup(void **state)
{
	uint64_t seed = 1;

	(void)state;
	test_use_standin();
	bytes = malloc(LEN);
	back = aligned_alloc(4096, LEN);
	/* The bytes are random, so that the halves of a chunk differ. */
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&seed);
	test_file_name(name, sizeof(name), "penstock-wrapped");
	return penstock_device_open("host", NULL, &host) < 0 ||
	       penstock_device_open("cuda:0", NULL, &gpu) < 0;
}

static int teardown(void **state)
{
	(void)state;
	penstock_device_close(gpu);
	penstock_device_close(host);
	unlink(name);
	free(bytes);
	free(back);
	return 0;
}

static void make_file(void)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, LEN), LEN);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

static int64_t transfer(struct penstock_storage *st, struct penstock_device *dev, void *mem,
			enum penstock_op op, const char *path, struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = LEN, .rows = 1};
	struct penstock_req req;

	req = test_request(st, &seg, 1, op);
	req.path = path;
	report->size = sizeof(*report);
	return penstock_transfer(&req, report);
}

/* Returns the offset of the first byte in `got` that differs from `want`, or LEN if none
 * differs. */
static size_t first_wrong(const unsigned char *got, const unsigned char *want)
{
	size_t i = 0;

	while (i < LEN && got[i] == want[i])
		i++;
	return i;
}

struct outcome {
	int64_t n;
	size_t wrong;
	struct penstock_report report;
};

/* Reads or writes the whole file by the path fault:PATH?ARGS. Returns false if this path refuses
 * the request. */
static bool transfer_by_fault(struct penstock_device *dev, enum penstock_op op, const char *path,
			      const char *args, struct outcome *out)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	unsigned char *other = malloc(LEN);
	char spec[128];
	void *mem;
	int fd;

	make_file();
	opts.flags = op == PENSTOCK_WRITE ? PENSTOCK_O_WRITE : 0;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	assert_int_equal(penstock_alloc(dev, LEN, &mem), 0);
	snprintf(spec, sizeof(spec), "fault%s%s%s", path ? ":" : "", path ? path : "", args);
	for (size_t i = 0; i < LEN; i++)
		other[i] = (unsigned char)~bytes[i];
	test_copy(dev, mem, host, other, LEN);
	out->n = transfer(st, dev, mem, op, spec, &out->report);
	if (op == PENSTOCK_READ) {
		test_copy(host, back, dev, mem, LEN);
		out->wrong = first_wrong(back, bytes);
	} else {
		fd = open(name, O_RDONLY);
		assert_int_equal(pread(fd, back, LEN, 0), LEN);
		close(fd);
		out->wrong = first_wrong(back, other);
	}
	penstock_free(dev, mem);
	penstock_close(st);
	free(other);
	return out->n != -EOPNOTSUPP || !path;
}

/* Checks that path fault injects its fault: the transfer reports full success although some bytes
 * are wrong. */
static void check_lie(struct penstock_device *dev, enum penstock_op op, const char *path,
		      const char *args)
{
	struct outcome o;

	if (!transfer_by_fault(dev, op, path, args, &o))
		return;
	if (o.n != LEN || o.wrong == LEN)
		fail_msg("fault:%s%s: %lld bytes said, first wrong %zu", path, args, (long long)o.n,
			 o.wrong);
}

static void every_lie_corrupts_bytes(void **state)
{
	static const char *const args[] = {"?lost=@1500000", "?cut=@1500000", "?swap=@1500000",
					   "?swap=1&seed=3", "?lost=1"};

	(void)state;
	for (unsigned p = 0; p < 4; p++)
		for (unsigned a = 0; a < 5; a++) {
			check_lie(host, PENSTOCK_READ, wrapped[p], args[a]);
			check_lie(gpu, PENSTOCK_READ, wrapped[p], args[a]);
			check_lie(gpu, PENSTOCK_WRITE, wrapped[p], args[a]);
		}
}

/* Returns true if the file system is on the library's allow-list, so that path "odirect" counts as
 * DMA by the drive. */
static bool is_listed(void)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = host, .row_len = 4096};
	struct penstock_req req;
	struct penstock_storage *st;
	bool listed = false;

	assert_int_equal(penstock_open(name, NULL, &st), 0);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_explain(&req, &e), 0);
	for (unsigned i = 0; i < e.path_count; i++)
		listed |= !strcmp(e.paths[i].name, "odirect") && e.paths[i].usable &&
			  e.paths[i].meets == PENSTOCK_DIRECT;
	penstock_close(st);
	return listed;
}

/* The success of a direct write proves nothing, because the drive itself reads the bytes from
 * memory. So the library reads back the first chunk that it writes from a device to a storage, and
 * detects a lost write. */
static void first_direct_write_is_read_back(void **state)
{
	struct outcome o;

	(void)state;
	if (!transfer_by_fault(host, PENSTOCK_WRITE, "odirect", "?lost=1", &o))
		test_skip("no direct path to TMPDIR: O_DIRECT is refused");
	if (!is_listed())
		test_skip("no direct path to TMPDIR: it is not on the allow-list");
	assert_true(o.n < 0);
	assert_int_equal(o.report.why, PENSTOCK_WHY_CANARY);
}

/* The argument `swap` exchanges the halves of one chunk. No byte is lost. */
static void swap_keeps_every_byte(void **state)
{
	uint64_t want = 0, got = 0;
	struct outcome o;

	(void)state;
	assert_true(transfer_by_fault(gpu, PENSTOCK_READ, "bounce", "?swap=@1500000", &o));
	assert_int_equal(o.n, LEN);
	assert_true(o.wrong < LEN);
	for (size_t i = 0; i < LEN; i++) {
		want += bytes[i];
		got += back[i];
	}
	assert_int_equal(got, want);
	assert_true(transfer_by_fault(gpu, PENSTOCK_READ, "bounce", "?swap=@1500000&op=write", &o));
	assert_int_equal(o.wrong, LEN); /* with op=write, path fault injects no faults into reads */
}

static void injected_errors_are_reported(void **state)
{
	struct outcome o;

	(void)state;
	for (unsigned p = 0; p < 4; p++) {
		for (int op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
			if (!transfer_by_fault(gpu, (enum penstock_op)op, wrapped[p],
					       "?eio=@1500000", &o))
				continue;
			assert_int_equal(o.n, -EIO);
			assert_int_equal(o.report.why, PENSTOCK_WHY_INJECTED);
		}
	}
	assert_true(transfer_by_fault(gpu, PENSTOCK_READ, "bounce", "?short=@1500000", &o));
	assert_true(o.n > 0 && o.n < LEN);
	assert_true(o.wrong >= (size_t)o.n);
	assert_true(transfer_by_fault(gpu, PENSTOCK_WRITE, "bounce", "?short=@1500000", &o));
	assert_int_equal(o.report.why, PENSTOCK_WHY_INJECTED);
	assert_true(o.n < 0);
}

/* If the request names no path, a chunk that fails is retried on the next path. */
static void failed_chunk_is_retried_on_next_path(void **state)
{
	struct outcome o;

	(void)state;
	for (int op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
		unsigned noted = 0, carriers = 0;

		transfer_by_fault(gpu, (enum penstock_op)op, NULL, "?eio=@1500000", &o);
		assert_int_equal(o.n, LEN);
		assert_int_equal(o.wrong, LEN);
		assert_int_equal(o.report.retries, 1);
		for (unsigned i = 0; i < o.report.path_count; i++) {
			noted += o.report.paths[i].why == PENSTOCK_WHY_INJECTED;
			carriers += o.report.paths[i].bytes > 0;
		}
		assert_int_equal(noted, 1);
		assert_in_range(carriers, 1, 2);
	}
}

static void delayed_chunks_are_right(void **state)
{
	struct outcome o;

	(void)state;
	for (unsigned p = 0; p < 4; p++) {
		if (!transfer_by_fault(gpu, PENSTOCK_READ, wrapped[p], "?delay_us=2000&seed=9", &o))
			continue;
		assert_int_equal(o.n, LEN);
		assert_int_equal(o.wrong, LEN);
	}
}

static void invalid_fault_arguments_are_refused(void **state)
{
	static const char *const specs[] = {
		"fault?eio",	    "fault?eio=0",
		"fault?eio=",	    "fault?what=1",
		"fault:null?eio=1", "fault:fault?x=1",
		"fault:nothing",    "staged?eio=1",
		"staged:bounce",    "faults",
		"fault?eio=@",	    "fault?seed=-1",
		"fault?op=both",    "fault?lost=99999999999999999999999"};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_storage *st;

	(void)state;
	make_file();
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	for (unsigned i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		assert_int_equal(transfer(st, host, back, PENSTOCK_READ, specs[i], &report),
				 -EINVAL);
		assert_true(strlen(penstock_errmsg()) > 10);
	}
	penstock_close(st);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_lie_corrupts_bytes),
		cmocka_unit_test(first_direct_write_is_read_back),
		cmocka_unit_test(swap_keeps_every_byte),
		cmocka_unit_test(injected_errors_are_reported),
		cmocka_unit_test(failed_chunk_is_retried_on_next_path),
		cmocka_unit_test(delayed_chunks_are_right),
		cmocka_unit_test(invalid_fault_arguments_are_refused),
	};

	return cmocka_run_group_tests_name("wrapped", tests, setup, teardown);
}
