/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th allocation of a scenario fails, for every n. Each failure is injected in a new
 * process, so that it can also hit one-time initialisation. The scenario must end with -ENOMEM,
 * the reason and a sentence, or succeed with every byte right. When the scenario is repeated
 * without a failure, it must succeed. It may leave no more memory allocated than a run without a
 * failure.
 */
#include "child.h"
#include "request.h"

#include "memory.h"

#define LEN ((1u << 20) + 777u)
#define TURNS_MAX 400

/* How the scenario ended, as the child process reports it to its parent. */
struct outcome {
	struct child_result end;
	unsigned hits;
	/* Number of allocations before the first allocation of the scenario itself. */
	unsigned mark;
	const char *what;
	size_t what_len;
};

#define SCENARIO_LEN LEN
#define SCENARIO_NAME "memory"
#include "scenario.h"

/* Writes the file without a sync, because thousands of syncs would take long. */
static void make_file(void)
{
	int fd = open(name, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || ftruncate(fd, LEN) || pwrite(fd, bytes, LEN, 0) != LEN)
		scenario_fail("the file cannot be made: %s", strerror(errno));
	close(fd);
}

/* ---- the scenarios: return 0 or the first error, and close all that they opened ---- */

static struct penstock_device *open_small_device(const char *device, int *ret)
{
	return child_open_device(device, "threads", ret);
}

/* Prepares the device. Only allocations after this call count as allocations of the scenario. */
static int prepare_device(struct penstock_storage *st, struct penstock_device *dev,
			  enum penstock_op op)
{
	int ret = penstock_prepare(st, dev, op);

	if (!out->mark)
		out->mark = memory_allocations();
	return ret;
}

/* Compares device memory with the expected bytes. Allocations of this function are not counted. */
static void compare_device_bytes(struct penstock_device *dev, void *mem, const char *when)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = dev,
					  .dst = back,
					  .src_dev = dev,
					  .src = mem,
					  .row_len = LEN};
	unsigned hits;

	if (!strcmp(penstock_device_name(dev), "host")) {
		memcpy(back, mem, LEN);
	} else {
		/* ends the injection, because allocations of this check do not count */
		memory_disarm(&hits);
		out->hits += hits;
		if (penstock_device_open("host", NULL, &args.dst_dev) < 0 ||
		    penstock_copy(&args, 1))
			scenario_fail("%s: cannot copy the bytes to the host: %s", when,
				      penstock_errmsg());
		penstock_device_close(args.dst_dev);
	}
	for (uint64_t i = 0; i < LEN; i++)
		if (back[i] != bytes[i]) {
			scenario_fail("%s: byte %llu is %02x, not %02x", when,
				      (unsigned long long)i, back[i], bytes[i]);
			return;
		}
}

static int read_and_compare(const char *device, const char *path)
{
	struct penstock_req req;
	struct penstock_seg seg = {.row_len = LEN};
	struct penstock_storage *st = NULL;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	int64_t n;
	int ret;
	struct penstock_device *dev = open_small_device(device, &ret);

	if (!ret)
		ret = penstock_alloc(dev, LEN, &seg.buf);
	if (!ret)
		ret = penstock_open(name, NULL, &st);
	if (!ret && path)
		ret = prepare_device(st, dev, PENSTOCK_READ);
	if (!ret) {
		seg.dev = dev;
		req = test_request(st, &seg, 1, PENSTOCK_READ);
		req.path = path;
		n = penstock_transfer(&req, &report);
		ret = n < 0 ? (int)n : 0;
		if (n >= 0 && n != LEN)
			scenario_fail("read %lld bytes", (long long)n);
		if (n >= 0 && !path && strcmp(report.engine, "threads") != 0)
			scenario_fail("engine %s carried it, although threads was requested",
				      report.engine);
		if (!ret)
			compare_device_bytes(dev, seg.buf, "read");
	}
	penstock_close(st);
	if (dev)
		penstock_free(dev, seg.buf);
	penstock_device_close(dev);
	return ret;
}

static int read_host(void)
{
	return read_and_compare("host", NULL);
}

static int read_cuda(void)
{
	return read_and_compare("cuda:0", NULL);
}

static int read_mapped(void)
{
	return read_and_compare("cuda:0", "mapped");
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
		ret = prepare_device(st, dev, PENSTOCK_READ);
	if (!ret)
		ret = child_read_in_stream_order(st, dev, mem, LEN, &out->end);
	if (!ret)
		compare_device_bytes(dev, mem, "read");
	penstock_close(st);
	if (dev)
		penstock_free(dev, mem);
	penstock_device_close(dev);
	return ret;
}

/* Replaces a file. Afterwards the file is complete, either the old or the new one. */
static int write_host(void)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st = NULL;
	struct stat stat;
	unsigned salt = 1;
	int64_t n;
	int ret, fd;
	struct penstock_device *dev = open_small_device("host", &ret);

	opts.flags = PENSTOCK_O_REPLACE;
	make_file();
	fixture_fill(back, LEN, 2);
	if (!ret)
		ret = penstock_open(name, &opts, &st);
	if (!ret) {
		n = penstock_write(st, dev, back, LEN, 0);
		ret = n < 0 ? (int)n : 0;
	}
	if (!ret)
		ret = penstock_commit(st, 0);
	if (!ret)
		salt = 2;
	penstock_close(st);
	penstock_device_close(dev);
	fd = open(name, O_RDONLY);
	if (fd < 0 || fstat(fd, &stat) || stat.st_size != LEN || read(fd, back, LEN) != LEN)
		scenario_fail("the file is gone, or not as long as it was");
	close(fd);
	for (uint64_t i = 0; i < LEN; i++)
		if (back[i] != fixture_byte(i, salt)) {
			scenario_fail("byte %llu of the file is of neither", (unsigned long long)i);
			break;
		}
	return ret;
}

/* Submits several requests at once, each of which must complete. */
static int several_requests(void)
{
	const unsigned count = 6;
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_storage *st = NULL;
	struct penstock_queue *q = NULL;
	struct penstock_done done[6];
	struct penstock_req reqs[6];
	struct penstock_seg segs[6];
	unsigned char *mem = NULL;
	int ret, taken = 0, first = 0;
	struct penstock_device *dev = open_small_device("host", &ret);

	opts.requests_max = 8;
	opts.segs_max = 2;
	if (!ret)
		ret = penstock_alloc(dev, LEN, (void **)&mem);
	if (!ret)
		ret = penstock_open(name, NULL, &st);
	if (!ret)
		ret = prepare_device(st, dev, PENSTOCK_READ);
	if (!ret)
		ret = penstock_queue_open(&opts, &q);
	for (unsigned i = 0; !ret && i < count; i++) {
		segs[i] = (struct penstock_seg){.buf = mem + i * 100000u,
						.dev = dev,
						.off = i * 100000u,
						.row_len = 100000u};
		reqs[i] = (struct penstock_req)PENSTOCK_REQ_INIT;
		reqs[i].storage = st;
		reqs[i].segs = &segs[i];
		reqs[i].seg_count = 1;
		reqs[i].path = i == 5 ? "fault:bounce?delay_us=1" : NULL;
	}
	for (; !ret && taken < (int)count; taken++) {
		int one = penstock_submit(q, &reqs[taken], 1, NULL);

		if (one != 1) {
			ret = one;
			break;
		}
	}
	for (int harvested = 0; q && harvested < taken;) {
		int n = penstock_wait(q, done, 1, 6, 20000000000LL);

		if (n <= 0) {
			scenario_fail("%d of %d requests did not complete", taken - harvested,
				      taken);
			break;
		}
		harvested += n;
		for (int i = 0; i < n; i++) {
			if (done[i].result < 0 && !first)
				first = penstock_fail((int)done[i].result, done[i].report->why,
						      "%s", done[i].report->text);
		}
	}
	if (!ret && !first && memcmp(mem, bytes, count * 100000u))
		scenario_fail("the bytes are not those of the file");
	penstock_queue_close(q);
	penstock_close(st);
	if (dev)
		penstock_free(dev, mem);
	penstock_device_close(dev);
	return ret ? ret : first;
}

static int explain(void)
{
	struct penstock_explanation ex = {.size = sizeof(ex)};
	struct penstock_req req;
	struct penstock_seg seg = {.row_len = LEN};
	struct penstock_storage *st = NULL;
	int ret;
	struct penstock_device *dev = open_small_device("host", &ret);

	if (!ret)
		ret = penstock_alloc(dev, LEN, &seg.buf);
	if (!ret)
		ret = penstock_open(name, NULL, &st);
	if (!ret) {
		seg.dev = dev;
		req = test_request(st, &seg, 1, PENSTOCK_READ);
		ret = penstock_explain(&req, &ex);
		if (!ret && (ex.taken < 0 || !ex.path_count || !ex.engine))
			scenario_fail("explained nothing");
	}
	penstock_close(st);
	if (dev)
		penstock_free(dev, seg.buf);
	penstock_device_close(dev);
	return ret;
}

/* Removes the digits from a text. They show the amount of free memory, which differs between
 * runs. */
static ssize_t remove_digits(char *text, ssize_t len)
{
	ssize_t kept = 0;

	for (ssize_t i = 0; i < len; i++)
		if (text[i] < '0' || text[i] > '9')
			text[kept++] = text[i];
	return kept;
}

/* Prints the topology as a table and as JSON. The text must be the same as in a run without a
 * failure. */
static int topo(void)
{
	static char first[2][1 << 17], again[1 << 17];
	static ssize_t first_len[2];
	int ret = 0;

	for (int json = 0; json < 2 && !ret; json++) {
		int fd = open(name, O_RDWR | O_TRUNC);
		ssize_t len;

		ret = penstock_topo(NULL, json, fd);
		len = remove_digits(again, pread(fd, again, sizeof(again), 0));
		close(fd);
		if (ret)
			break;
		if (len <= 0)
			scenario_fail("nothing was printed");
		if (!first_len[json]) {
			first_len[json] = len;
			memcpy(first[json], again, (size_t)len);
		} else if (len != first_len[json] || memcmp(first[json], again, (size_t)len)) {
			scenario_fail("the topology differs from the one without a failure");
		}
	}
	return ret;
}

/* ---- one process for each n ---- */

struct failure {
	int (*scenario)(void);
	unsigned nth;
};

static void run_scenario(void *arg)
{
	const struct failure *f = arg;
	unsigned hits;
	int ret;

	memory_arm(f->nth);
	ret = out->end.ret = f->scenario();
	memory_disarm(&hits);
	out->hits += hits;
	out->what = memory_failed_name(&out->what_len);
	if (ret && (ret != -ENOMEM || strlen(penstock_errmsg()) < 8 ||
		    (penstock_errwhy() != PENSTOCK_WHY_NO_MEMORY &&
		     penstock_errwhy() != PENSTOCK_WHY_NOT_MAPPABLE)))
		scenario_fail("it ended with %d, %s, '%s'", ret,
			      penstock_why_name(penstock_errwhy()), penstock_errmsg());
	if (ret && !out->hits)
		scenario_fail("it failed by itself");
	ret = f->scenario();
	if (ret)
		scenario_fail("afterwards it ended with %d, '%s'", ret, penstock_errmsg());
}

static void run_in_child(int (*scenario)(void), unsigned nth)
{
	struct failure failure = {scenario, nth};

	memset(out, 0, sizeof(*out));
	child_run(run_scenario, &failure, &out->end);
}

static void fail_all_allocations(int (*scenario)(void))
{
	struct outcome clean;
	unsigned nth, failed = 0, wrong = 0;

	make_file();
	run_in_child(scenario, 0);
	clean = *out;
	if (clean.end.text[0])
		fail_msg("untouched: %s", clean.end.text);
	for (nth = clean.mark + 1; nth <= TURNS_MAX; nth++) {
		run_in_child(scenario, nth);
		child_check_leaks(&out->end, &clean.end, false);
		if (out->end.text[0]) {
			printf("# allocation %u, %s of %zu bytes: %s\n", nth,
			       out->what ? out->what : "?", out->what_len, out->end.text);
			wrong++;
		}
		if (!out->hits && !out->end.text[0])
			break;
		failed += out->end.ret != 0;
	}
	printf("# %u allocations, %u of them needed\n", nth - 1 - clean.mark, failed);
	assert_int_equal(wrong, 0);
	assert_in_range(nth, clean.mark + 2, TURNS_MAX);
}

#define CASE(scenario)                            \
	static void case_##scenario(void **state) \
	{                                         \
		(void)state;                      \
		fail_all_allocations(scenario);   \
	}

CASE(read_host)
CASE(read_cuda)
CASE(read_mapped)
CASE(read_stream)
CASE(write_host)
CASE(several_requests)
CASE(explain)
CASE(topo)

int main(void)
{
	const struct CMUnitTest tests[] = {
		{"read_host", case_read_host, NULL, NULL, NULL},
		{"read_cuda", case_read_cuda, NULL, NULL, NULL},
		{"read_mapped", case_read_mapped, NULL, NULL, NULL},
		{"read_stream", case_read_stream, NULL, NULL, NULL},
		{"write_host", case_write_host, NULL, NULL, NULL},
		{"several_requests", case_several_requests, NULL, NULL, NULL},
		{"explain", case_explain, NULL, NULL, NULL},
		{"topo", case_topo, NULL, NULL, NULL},
	};

	setenv("PENSTOCK_LOG", "error", 0);
	fixture_use_standin();
	return cmocka_run_group_tests_name("malloc", tests, setup, teardown);
}
