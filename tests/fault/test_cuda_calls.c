/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th call of each function of the CUDA driver fails, on the stand-in, and the
 * operations of streams fail when they come to be done, which breaks the context for
 * good. Each in a process of its own. A scenario ends with an errno, a reason and a
 * sentence, or comes through with every byte right; it does so afterwards, unless the
 * context is broken, and then the host still does. Nothing stays behind.
 */
#include "afresh.h"

#include "device/cuda_api.h"

#define LEN ((2u << 20) + 777u)
#define WARM_LEN (9u << 20) /* long enough to be mapped without being asked for */
#define TURNS_MAX 4	    /* of one function, half of them its last */

static const char *const symbols[] = {
#define NAME(member, symbol, params) #symbol,
	PST_CU_FUNCS(NAME, NAME)
#undef NAME
};
#define SYMBOLS (sizeof(symbols) / sizeof(symbols[0]))

/* What gives things back: what it keeps when it fails is the driver's. */
static bool gives_back(const char *symbol)
{
	return strstr(symbol, "Free") || strstr(symbol, "Destroy") ||
	       strstr(symbol, "Unregister") || strstr(symbol, "Release") ||
	       strstr(symbol, "PushCurrent");
}

struct outcome {
	struct afresh end;
	uint64_t retries, windows; /* of the read that met the fault; bytes by path mapped */
	bool again;
	unsigned long calls[SYMBOLS];
};

static struct outcome *out;
static unsigned char *bytes, *back;
static char name[256];

#define say(...) afresh_say(&out->end, __VA_ARGS__)

static int setup(void **state)
{
	(void)state;
	bytes = malloc(WARM_LEN);
	back = malloc(WARM_LEN);
	out = afresh_shared(sizeof(*out));
	snprintf(name, sizeof(name), "%s", world_name("cuda", false));
	world_fill(bytes, WARM_LEN, 1);
	return !bytes || !back || !out;
}

static int teardown(void **state)
{
	(void)state;
	unlink(name);
	free(bytes);
	free(back);
	return 0;
}

/* ---- the stand-in's own door ---- */

static void standin_fail(const char *spec)
{
	int (*set)(const char *);

	*(void **)&set = afresh_standin("pst_standin_fail");
	if (set && set(spec) < 0)
		say("the stand-in does not know '%s'", spec);
}

static unsigned long standin_calls(const char *symbol)
{
	unsigned long (*count)(const char *);

	*(void **)&count = afresh_standin("pst_standin_calls");
	return count ? count(symbol) : 0;
}

/* What lies behind a device address, without a call that could fail. */
static void compare(const void *mem, uint64_t len)
{
	void *(*peek)(pst_cu_ptr);

	*(void **)&peek = afresh_standin("pst_standin_peek");
	memcpy(back, peek((uintptr_t)mem), len);
	for (uint64_t i = 0; i < len; i++)
		if (back[i] != bytes[i]) {
			say("byte %llu is %02x, not %02x", (unsigned long long)i, back[i],
			    bytes[i]);
			return;
		}
}

/* ---- the scenarios: 0, or the first error; all that they opened is closed ---- */

static struct penstock_device *device_of(const char *device, int *ret)
{
	return afresh_device(device, NULL, ret);
}

static uint64_t by_mapped(const struct penstock_report *report)
{
	for (unsigned i = 0; i < report->path_count; i++)
		if (!strcmp(report->paths[i].name, "mapped"))
			return report->paths[i].bytes;
	return 0;
}

static int read_len(const char *device, const char *path, uint64_t len)
{
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.row_len = len};
	struct penstock_storage *st = NULL;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int64_t n;
	int ret;
	struct penstock_device *dev = device_of(device, &ret);

	if (!ret)
		ret = penstock_alloc(dev, len, &seg.buf);
	if (!ret)
		ret = penstock_open(name, NULL, &st);
	if (!ret) {
		seg.dev = dev;
		req.storage = st;
		req.segs = &seg;
		req.seg_count = 1;
		req.path = path;
		n = penstock_transfer(&req, &report);
		ret = n < 0 ? (int)n : 0;
		if (n >= 0 && n != (int64_t)len)
			say("read %lld bytes", (long long)n);
		if (n < 0 && report.size && report.result == n && report.bytes > len)
			say("failed with more than all bytes");
		if (strcmp(device, "host") != 0 && !out->again) {
			out->retries = n >= 0 ? report.retries : 0;
			out->windows = by_mapped(&report);
		}
		if (!ret && strcmp(device, "host") != 0)
			compare(seg.buf, len);
		else if (!ret && memcmp(seg.buf, bytes, len))
			say("the host's bytes are wrong");
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
	return read_len("cuda:0", NULL, LEN);
}

static int read_mapped(void)
{
	return read_len("cuda:0", "mapped", LEN);
}

static int read_warm(void)
{
	return read_len("cuda:0", NULL, WARM_LEN);
}

/* Out of the device over a file that is there: it has the old or the new bytes. */
static int write_back(void)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_copy_args args = {.size = sizeof(args), .row_len = LEN};
	struct penstock_device *host = NULL;
	struct penstock_storage *st = NULL;
	void *mem = NULL;
	int64_t n;
	int ret, fd;
	struct penstock_device *dev = device_of("cuda:0", &ret);

	opts.flags = PENSTOCK_O_WRITE;
	memset(back, 0x5a, LEN);
	if (!ret)
		host = device_of("host", &ret);
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
		say("the file has another length");
	for (uint64_t i = 0; i < WARM_LEN; i++)
		if (back[i] != (i < LEN && !ret ? 0x5a : bytes[i]) && (!ret || back[i] != 0x5a)) {
			say("byte %llu of the file is %02x", (unsigned long long)i, back[i]);
			break;
		}
	if (pwrite(fd, bytes, LEN, 0) != LEN)
		say("the file cannot be put right");
	close(fd);
	return ret;
}

static int read_stream(void)
{
	struct penstock_storage *st = NULL;
	void *mem = NULL;
	int ret;
	struct penstock_device *dev = device_of("cuda:0", &ret);

	if (!ret)
		ret = penstock_alloc(dev, LEN, &mem);
	if (!ret)
		ret = penstock_open(name, NULL, &st);
	if (!ret)
		ret = afresh_read_stream(st, dev, mem, LEN, &out->end);
	if (!ret)
		compare(mem, LEN);
	penstock_close(st);
	if (dev)
		penstock_free(dev, mem);
	penstock_device_close(dev);
	return ret;
}

/* ---- one process for each failure ---- */

static bool reason_fits(enum penstock_why why)
{
	return why == PENSTOCK_WHY_DEVICE_ERROR || why == PENSTOCK_WHY_NO_MEMORY ||
	       why == PENSTOCK_WHY_NO_DRIVER || why == PENSTOCK_WHY_NO_DEVICE ||
	       why == PENSTOCK_WHY_NO_READONLY_REG || why == PENSTOCK_WHY_REQUIRE;
}

struct failure {
	int (*scenario)(void);
	const char *spec;
	bool breaks; /* the context, for good */
};

static void child(void *arg)
{
	const struct failure *f = arg;
	int ret;

	if (f->spec)
		setenv("PENSTOCK_STANDIN_FAIL", f->spec, 1);
	ret = out->end.ret = f->scenario();
	if (ret && (ret > 0 || !reason_fits(penstock_errwhy()) || strlen(penstock_errmsg()) < 8))
		say("it ended with %d, %s, '%s'", ret, penstock_why_name(penstock_errwhy()),
		    penstock_errmsg());
	for (unsigned i = 0; i < SYMBOLS; i++)
		out->calls[i] = standin_calls(symbols[i]);
	out->again = true;
	standin_fail("");
	unsetenv("PENSTOCK_STANDIN_FAIL");
	/* A driver that did not start, or a context that is broken, stays that way. */
	ret = standin_calls("cuDeviceGet") && !f->breaks ? f->scenario() : 0;
	if (!ret)
		ret = read_len("host", NULL, LEN);
	if (ret)
		say("afterwards it ended with %d, '%s'", ret, penstock_errmsg());
}

static void run(int (*scenario)(void), const char *spec, bool breaks)
{
	struct failure failure = {scenario, spec, breaks};

	memset(out, 0, sizeof(*out));
	afresh_run(child, &failure, &out->end);
}

static void make_file(void)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, WARM_LEN, 0), WARM_LEN);
	close(fd);
}

static void one(int (*scenario)(void), const char *spec, const struct outcome *clean, bool lax,
		unsigned *failed, unsigned *wrong)
{
	run(scenario, spec, !strncmp(spec, "exec.", 5));
	afresh_judge(&out->end, &clean->end, lax);
	if (out->end.text[0]) {
		printf("# %s: %s\n", spec, out->end.text);
		(*wrong)++;
	}
	*failed += out->end.ret != 0;
}

static void all_calls(int (*scenario)(void), unsigned rc)
{
	static struct outcome first; /* of the first scenario: opening is the same */
	struct outcome clean;
	unsigned all = 0, failed = 0, wrong = 0;
	char spec[100];

	make_file();
	run(scenario, NULL, false);
	clean = *out;
	if (clean.end.text[0])
		fail_msg("untouched: %s", clean.end.text);
	for (unsigned i = 0; i < SYMBOLS; i++) {
		if (clean.calls[i] == first.calls[i])
			continue;
		for (unsigned n = 1; n <= clean.calls[i] && n <= TURNS_MAX; n++) {
			bool many = clean.calls[i] > TURNS_MAX;

			/* the last ones too, where there are many: closing is at the end */
			snprintf(spec, sizeof(spec), "%s:%lu:%u", symbols[i],
				 many && n > TURNS_MAX / 2 ? clean.calls[i] - (TURNS_MAX - n) : n,
				 rc);
			one(scenario, spec, &clean, gives_back(symbols[i]), &failed, &wrong);
			all++;
		}
	}
	if (!first.calls[0])
		first = clean;
	printf("# %u calls failed, %u of them needed\n", all, failed);
	assert_int_equal(wrong, 0);
	assert_true(all >= 8 && failed >= 1);
}

/* An operation fails when the stream comes to it: everything after returns that. */
static void broken_contexts(void **state)
{
	static const char *const specs[] = {
		"exec.cuMemcpyHtoDAsync_v2:1:700",    "exec.cuMemcpyHtoDAsync_v2:3:719",
		"exec.cuMemcpy2DAsync_v2:1:700",      "exec.cuMemcpyBatchAsync_v2:1:700",
		"exec.cuMemcpyDtoHAsync_v2:1:700",    "exec.cuMemcpyDtoHAsync_v2:3:999",
		"exec.cuStreamWriteValue64_v2:1:700", "exec.cuMemsetD8Async:1:700",
	};
	int (*const scenarios[])(void) = {read_cold, read_mapped, read_warm, write_back,
					  read_stream};
	struct outcome clean;
	unsigned failed = 0, wrong = 0;

	(void)state;
	make_file();
	for (unsigned s = 0; s < sizeof(scenarios) / sizeof(scenarios[0]); s++) {
		run(scenarios[s], NULL, false);
		clean = *out;
		for (unsigned i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
			one(scenarios[s], specs[i], &clean, true, &failed, &wrong);
	}
	printf("# %u ended with an error\n", failed);
	assert_int_equal(wrong, 0);
	assert_true(failed >= 5);
}

/* The word in front of a request is lost with the context, after the submit: the
 * request ends all the same, and says why. */
static void broken_front(void **state)
{
	static const char *const specs[] = {"exec.cuStreamWriteValue64_v2:1:700",
					    "exec.cuStreamWriteValue64_v2:1:719"};

	(void)state;
	make_file();
	setenv("PENSTOCK_STANDIN_DELAY_US", "20000", 1);
	for (unsigned i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		run(read_stream, specs[i], true);
		assert_string_equal(out->end.text, "");
		assert_true(out->end.ret < 0);
	}
	unsetenv("PENSTOCK_STANDIN_DELAY_US");
}

/* A file that cannot be registered goes through the ring instead, all of it, and the
 * report says so. */
static void no_registration(void **state)
{
	(void)state;
	make_file();
	run(read_warm, NULL, false);
	assert_string_equal(out->end.text, "");
	assert_int_equal(out->retries, 0);
	if (!out->windows)
		test_skip("this kernel's file system is not mapped by itself");
	run(read_warm, "cuMemHostRegister_v2:2+:1", false);
	assert_string_equal(out->end.text, "");
	assert_int_equal(out->end.ret, 0);
	assert_true(out->retries >= 1);
}

#define CASE(scenario, rc)                        \
	static void scenario##_##rc(void **state) \
	{                                         \
		(void)state;                      \
		all_calls(scenario, rc);          \
	}

CASE(read_cold, 999)
CASE(read_mapped, 2)
CASE(read_warm, 1)
CASE(write_back, 999)
CASE(read_stream, 1)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read_cold_999), cmocka_unit_test(read_mapped_2),
		cmocka_unit_test(read_warm_1),	 cmocka_unit_test(write_back_999),
		cmocka_unit_test(read_stream_1), cmocka_unit_test(broken_contexts),
		cmocka_unit_test(broken_front),	 cmocka_unit_test(no_registration),
	};

	setenv("PENSTOCK_LOG", "error", 0);
	world_use_standin();
	return cmocka_run_group_tests_name("cuda_calls", tests, setup, teardown);
}
