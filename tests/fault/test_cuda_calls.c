/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the stand-in driver (a simulated CUDA driver), the n-th call of each CUDA driver function
 * fails. In a second group of tests, operations of a stream fail when they execute, which breaks
 * the context permanently. Each failure runs in a process of its own. The scenario must end with an
 * errno, a reason and a sentence, or succeed with every byte right. When the scenario is repeated
 * without a failure, it must succeed; if the context is broken, it is repeated on the host. Nothing
 * may be left allocated.
 */
#include "child.h"
#include "request.h"

#include "common/crc32c.h"
#include "device/cuda_api.h"

#define LEN ((2u << 20) + 777u)
/* Length in bytes; so long that the library chooses the path "mapped" by itself. */
#define WARM_LEN (9u << 20)
/* Maximum number of test runs for one driver function. Each run makes a different call of the
 * function fail: one of its first calls in one half of the runs, one of its last calls in the other
 * half. */
#define TURNS_MAX 4

static const char *const symbols[] = {
#define NAME(member, symbol, params) #symbol,
	PST_CU_FUNCS(NAME, NAME)
#undef NAME
};
#define SYMBOLS (sizeof(symbols) / sizeof(symbols[0]))

/* Reports whether a driver function frees an object. If such a call fails, the driver keeps the
 * object. */
static bool frees_an_object(const char *symbol)
{
	return strstr(symbol, "Free") || strstr(symbol, "Destroy") ||
	       strstr(symbol, "Unregister") || strstr(symbol, "Release") ||
	       strstr(symbol, "PushCurrent");
}

struct outcome {
	struct child_result end;
	/* Facts about the read during which the failure was injected: its retries, and the number
	 * of bytes that the path "mapped" carried. */
	uint64_t retries, windows;
	bool again;
	unsigned long calls[SYMBOLS];
};

#define SCENARIO_LEN WARM_LEN
#define SCENARIO_NAME "cuda"
#include "scenario.h"

/* ---- functions of the stand-in driver itself ---- */

static void standin_fail(const char *spec)
{
	int (*set)(const char *);

	*(void **)&set = child_standin_symbol("pst_standin_fail");
	if (set && set(spec) < 0)
		scenario_fail("the stand-in driver rejects '%s'", spec);
}

static unsigned long standin_calls(const char *symbol)
{
	unsigned long (*count)(const char *);

	*(void **)&count = child_standin_symbol("pst_standin_calls");
	return count ? count(symbol) : 0;
}

/* Compares device memory with the expected bytes. Reads it with a function of the simulated driver
 * in which no failure is injected. */
static void compare_device_bytes(const void *mem, uint64_t len)
{
	void *(*peek)(pst_cu_ptr);

	*(void **)&peek = child_standin_symbol("pst_standin_peek");
	memcpy(back, peek((uintptr_t)mem), len);
	for (uint64_t i = 0; i < len; i++)
		if (back[i] != bytes[i]) {
			scenario_fail("byte %llu is %02x, not %02x", (unsigned long long)i, back[i],
				      bytes[i]);
			return;
		}
}

/* ---- the scenarios: return 0 or the first error, and close all that they opened ---- */

static struct penstock_device *open_small_device(const char *device, int *ret)
{
	return child_open_device(device, NULL, ret);
}

static uint64_t bytes_by_mapped(const struct penstock_report *report)
{
	for (unsigned i = 0; i < report->path_count; i++)
		if (!strcmp(report->paths[i].name, "mapped"))
			return report->paths[i].bytes;
	return 0;
}

static int read_and_compare(const char *device, const char *path, uint64_t len)
{
	struct penstock_req req;
	struct penstock_seg seg = {.row_len = len};
	struct penstock_storage *st = NULL;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int64_t n;
	int ret;
	struct penstock_device *dev = open_small_device(device, &ret);

	if (!ret)
		ret = penstock_alloc(dev, len, &seg.buf);
	if (!ret)
		ret = penstock_open(name, NULL, &st);
	if (!ret) {
		seg.dev = dev;
		req = test_request(st, &seg, 1, PENSTOCK_READ);
		req.path = path;
		n = penstock_transfer(&req, &report);
		ret = n < 0 ? (int)n : 0;
		if (n >= 0 && n != (int64_t)len)
			scenario_fail("read %lld bytes", (long long)n);
		if (n < 0 && report.size && report.result == n && report.bytes > len)
			scenario_fail("failed with more than all bytes");
		if (strcmp(device, "host") != 0 && !out->again) {
			out->retries = n >= 0 ? report.retries : 0;
			out->windows = bytes_by_mapped(&report);
		}
		if (!ret && strcmp(device, "host") != 0)
			compare_device_bytes(seg.buf, len);
		else if (!ret && memcmp(seg.buf, bytes, len))
			scenario_fail("the host's bytes are wrong");
	}
	penstock_close(st);
	if (dev)
		penstock_free(dev, seg.buf);
	penstock_device_close(dev);
	return ret;
}

static int read_cold(void)
{
	int fd = open(name, O_RDONLY);

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
	return read_and_compare("cuda:0", NULL, LEN);
}

static int read_mapped(void)
{
	return read_and_compare("cuda:0", "mapped", LEN);
}

static int read_warm(void)
{
	return read_and_compare("cuda:0", NULL, WARM_LEN);
}

/* Copies bytes to the device and writes them from there over a file. The file then has the old or
 * the new bytes. */
static int write_back(void)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_copy_args args = {.size = sizeof(args), .row_len = LEN};
	struct penstock_device *host = NULL;
	struct penstock_storage *st = NULL;
	void *mem = NULL;
	int64_t n;
	int ret, fd;
	struct penstock_device *dev = open_small_device("cuda:0", &ret);

	opts.flags = PENSTOCK_O_WRITE;
	memset(back, 0x5a, LEN);
	if (!ret)
		host = open_small_device("host", &ret);
	if (!ret)
		ret = penstock_alloc(dev, LEN, &mem);
	args.dst_dev = dev;
	args.dst = mem;
	args.src_dev = host;
	args.src = back;
	if (!ret)
		ret = penstock_copy(&args, 1);
	if (!ret)
		ret = penstock_open(name, &opts, &st);
	if (!ret) {
		n = penstock_write(st, dev, mem, LEN, 0);
		ret = n < 0 ? (int)n : 0;
	}
	penstock_close(st);
	if (dev)
		penstock_free(dev, mem);
	penstock_device_close(dev);
	penstock_device_close(host);
	fd = open(name, O_RDWR);
	if (pread(fd, back, WARM_LEN, 0) != WARM_LEN)
		scenario_fail("the file has another length");
	for (uint64_t i = 0; i < WARM_LEN; i++)
		if (back[i] != (i < LEN && !ret ? 0x5a : bytes[i]) && (!ret || back[i] != 0x5a)) {
			scenario_fail("byte %llu of the file is %02x", (unsigned long long)i,
				      back[i]);
			break;
		}
	if (pwrite(fd, bytes, LEN, 0) != LEN)
		scenario_fail("the file cannot be put right");
	close(fd);
	return ret;
}

static int read_stream(void)
{
	struct penstock_storage *st = NULL;
	void *mem = NULL;
	int ret;
	struct penstock_device *dev = open_small_device("cuda:0", &ret);

	if (!ret)
		ret = penstock_alloc(dev, LEN, &mem);
	if (!ret)
		ret = penstock_open(name, NULL, &st);
	if (!ret)
		ret = child_read_in_stream_order(st, dev, mem, LEN, &out->end);
	if (!ret)
		compare_device_bytes(mem, LEN);
	penstock_close(st);
	if (dev)
		penstock_free(dev, mem);
	penstock_device_close(dev);
	return ret;
}

/* Copies bytes to the device, lets it compute their checksum, and compares this with the right
 * one. */
static int sum_device(void)
{
	struct penstock_sum_args sum = {.size = sizeof(sum), .len = LEN};
	struct penstock_copy_args args = {.size = sizeof(args), .row_len = LEN};
	struct penstock_device *host = NULL;
	void *mem = NULL;
	int ret;
	struct penstock_device *dev = open_small_device("cuda:0", &ret);

	if (!ret)
		host = open_small_device("host", &ret);
	if (!ret)
		ret = penstock_alloc(dev, LEN, &mem);
	args.dst_dev = sum.dev = dev;
	sum.ptr = args.dst = mem;
	args.src_dev = host;
	args.src = bytes;
	if (!ret)
		ret = penstock_copy(&args, 1);
	if (!ret)
		ret = penstock_sum(&sum, 1);
	if (!ret && sum.crc32c != pst_crc32c_finish(pst_crc32c_raw(0, bytes, LEN), LEN))
		scenario_fail("the checksum is %08x", sum.crc32c);
	/* If the driver refuses to free the memory, it stays allocated. So the test tries again. */
	if (dev && penstock_free(dev, mem))
		penstock_free(dev, mem);
	penstock_device_close(dev);
	penstock_device_close(host);
	return ret;
}

/* ---- one process for each failure ---- */

static bool reason_fits(enum penstock_why why, const char *spec)
{
	/* If the driver fails to report the attributes of an address, the library treats the
	 * address as not belonging to the device. */
	if (why == PENSTOCK_WHY_BAD_ARGUMENT)
		return spec && !strncmp(spec, "cuPointerGetAttributes", 22);
	return why == PENSTOCK_WHY_DEVICE_ERROR || why == PENSTOCK_WHY_NO_MEMORY ||
	       why == PENSTOCK_WHY_NO_DRIVER || why == PENSTOCK_WHY_NO_DEVICE ||
	       why == PENSTOCK_WHY_NO_READONLY_REG || why == PENSTOCK_WHY_REQUIRE;
}

struct failure {
	int (*scenario)(void);
	const char *spec;
	bool breaks; /* whether the failure breaks the context permanently */
};

static void run_scenario(void *arg)
{
	const struct failure *f = arg;
	int ret;

	if (f->spec)
		setenv("PENSTOCK_STANDIN_FAIL", f->spec, 1);
	ret = out->end.ret = f->scenario();
	if (ret &&
	    (ret > 0 || !reason_fits(penstock_errwhy(), f->spec) || strlen(penstock_errmsg()) < 8))
		scenario_fail("it ended with %d, %s, '%s'", ret,
			      penstock_why_name(penstock_errwhy()), penstock_errmsg());
	for (unsigned i = 0; i < SYMBOLS; i++)
		out->calls[i] = standin_calls(symbols[i]);
	out->again = true;
	standin_fail("");
	unsetenv("PENSTOCK_STANDIN_FAIL");
	/* A driver that failed to start does not recover, and neither does a broken context. So
	 * the scenario is not repeated in these cases. */
	ret = standin_calls("cuDeviceGet") && !f->breaks ? f->scenario() : 0;
	if (!ret)
		ret = read_and_compare("host", NULL, LEN);
	if (ret)
		scenario_fail("afterwards it ended with %d, '%s'", ret, penstock_errmsg());
}

static void run_in_child(int (*scenario)(void), const char *spec, bool breaks)
{
	struct failure failure = {scenario, spec, breaks};

	memset(out, 0, sizeof(*out));
	child_run(run_scenario, &failure, &out->end);
}

static void make_file(void)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, WARM_LEN, 0), WARM_LEN);
	close(fd);
}

static void run_and_check(int (*scenario)(void), const char *spec, const struct outcome *clean,
			  bool lax, unsigned *failed, unsigned *wrong)
{
	run_in_child(scenario, spec, !strncmp(spec, "exec.", 5));
	child_check_leaks(&out->end, &clean->end, lax);
	if (out->end.text[0]) {
		printf("# %s: %s\n", spec, out->end.text);
		(*wrong)++;
	}
	*failed += out->end.ret != 0;
}

static void fail_all_calls(int (*scenario)(void), unsigned rc)
{
	/* The outcome of the first scenario, with the number of calls of each driver function. If a
	 * later scenario calls a function as often as the first scenario does, it calls this
	 * function only to open the device. These calls are not tested again. */
	static struct outcome first;
	struct outcome clean;
	unsigned all = 0, failed = 0, wrong = 0;
	char spec[100];

	make_file();
	run_in_child(scenario, NULL, false);
	clean = *out;
	if (clean.end.text[0])
		fail_msg("untouched: %s", clean.end.text);
	for (unsigned i = 0; i < SYMBOLS; i++) {
		if (clean.calls[i] == first.calls[i])
			continue;
		for (unsigned n = 1; n <= clean.calls[i] && n <= TURNS_MAX; n++) {
			bool many = clean.calls[i] > TURNS_MAX;

			/* If a function is called often, half of the runs make one of its last
			 * calls fail. The scenario makes its last calls while it closes its
			 * objects. */
			snprintf(spec, sizeof(spec), "%s:%lu:%u", symbols[i],
				 many && n > TURNS_MAX / 2 ? clean.calls[i] - (TURNS_MAX - n) : n,
				 rc);
			run_and_check(scenario, spec, &clean, frees_an_object(symbols[i]), &failed,
				      &wrong);
			all++;
		}
	}
	if (!first.calls[0])
		first = clean;
	printf("# %u calls failed, %u of them needed\n", all, failed);
	assert_int_equal(wrong, 0);
	assert_true(all >= 8 && failed >= 1);
}

/* An operation fails when the stream executes it. All later driver calls return that error. */
static void broken_context_ends_with_an_error(void **state)
{
	static const char *const specs[] = {
		"exec.cuMemcpyHtoDAsync_v2:1:700",    "exec.cuMemcpyHtoDAsync_v2:3:719",
		"exec.cuMemcpy2DAsync_v2:1:700",      "exec.cuMemcpyBatchAsync_v2:1:700",
		"exec.cuMemcpyDtoHAsync_v2:1:700",    "exec.cuMemcpyDtoHAsync_v2:3:999",
		"exec.cuStreamWriteValue64_v2:1:700", "exec.cuStreamBatchMemOp_v2:1:700",
		"exec.cuMemsetD8Async:1:700",	      "exec.cuMemcpy3DBatchAsync_v2:1:700",
	};
	int (*const scenarios[])(void) = {read_cold,  read_mapped, read_warm,
					  write_back, read_stream, sum_device};
	struct outcome clean;
	unsigned failed = 0, wrong = 0;

	(void)state;
	make_file();
	for (unsigned s = 0; s < sizeof(scenarios) / sizeof(scenarios[0]); s++) {
		run_in_child(scenarios[s], NULL, false);
		clean = *out;
		for (unsigned i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
			run_and_check(scenarios[s], specs[i], &clean, true, &failed, &wrong);
	}
	printf("# %u ended with an error\n", failed);
	assert_int_equal(wrong, 0);
	assert_true(failed >= 5);
}

/* For a request, the library queues an operation on the stream that stores a word. This operation
 * fails after the request was submitted. The request still completes, with the reason. */
static void failed_stream_store_completes_request(void **state)
{
	static const char *const specs[] = {
		"exec.cuStreamWriteValue64_v2:1:700", "exec.cuStreamWriteValue64_v2:1:719",
		"exec.cuStreamBatchMemOp_v2:1:700", "exec.cuStreamBatchMemOp_v2:2:719"};

	(void)state;
	make_file();
	setenv("PENSTOCK_STANDIN_DELAY_US", "20000", 1);
	for (unsigned i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		run_in_child(read_stream, specs[i], true);
		assert_string_equal(out->end.text, "");
		assert_true(out->end.ret < 0);
	}
	unsetenv("PENSTOCK_STANDIN_DELAY_US");
}

/* If the mapping of a file cannot be registered with the driver, the library reads the file
 * through a thread's pinned memory (its ring) instead. The report names the reason. */
static void failed_registration_uses_the_ring(void **state)
{
	(void)state;
	make_file();
	run_in_child(read_warm, NULL, false);
	assert_string_equal(out->end.text, "");
	assert_int_equal(out->retries, 0);
	if (!out->windows)
		test_skip("path mapped is not chosen automatically on this file system");
	run_in_child(read_warm, "cuMemHostRegister_v2:2+:1", false);
	assert_string_equal(out->end.text, "");
	assert_int_equal(out->end.ret, 0);
	assert_true(out->retries >= 1);
}

#define CASE(scenario, rc)                        \
	static void scenario##_##rc(void **state) \
	{                                         \
		(void)state;                      \
		fail_all_calls(scenario, rc);     \
	}

CASE(read_cold, 999)
CASE(read_mapped, 2)
CASE(read_warm, 1)
CASE(write_back, 999)
CASE(read_stream, 1)
CASE(sum_device, 999)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read_cold_999),
		cmocka_unit_test(read_mapped_2),
		cmocka_unit_test(read_warm_1),
		cmocka_unit_test(write_back_999),
		cmocka_unit_test(read_stream_1),
		cmocka_unit_test(sum_device_999),
		cmocka_unit_test(broken_context_ends_with_an_error),
		cmocka_unit_test(failed_stream_store_completes_request),
		cmocka_unit_test(failed_registration_uses_the_ring),
	};

	setenv("PENSTOCK_LOG", "error", 0);
	fixture_use_standin();
	return cmocka_run_group_tests_name("cuda_calls", tests, setup, teardown);
}
