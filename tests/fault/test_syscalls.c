/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th system call that moves bytes fails or moves fewer bytes. Each case tries every n, with
 * both engines and directions, with and without a required class (such as PENSTOCK_DIRECT). If
 * another path may carry the failed chunk, the chunk is retried there, and the report counts the
 * retry and has its reason. Otherwise the request fails with the errno and the reason, and the
 * bytes that it reports as moved are right. Afterwards the same storage works.
 */
#include "fixture.h"
#include "request.h"

#include "calls.h"

#define LEN ((2u << 20) + 1234u)
#define ALIGNED (2u << 20)
#define SMALL (64u << 10)
#define TURNS_MAX 64 /* more runs than any case needs */
#define RINGS_MAX 4  /* number of io_urings of two devices with two worker threads each */
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

struct scene {
	const char *device, *engine;
	enum penstock_op op;
	enum penstock_class require;
	const char *path;
	uint64_t len;
	size_t slot; /* 0: 1 MiB */
	bool warm;   /* true if the file is in the page cache */
	bool fresh;  /* true if the paths are set up and tested while a call fails */
	bool durable;
	bool all_from_nth; /* true if all calls from the n-th on fail */
};

static unsigned char *want, *old, *back;
/* True if TMPDIR has direct paths; the test then knows the path of each call. */
static bool has_direct_paths;

/* Reports whether transfers between host memory and TMPDIR meet a class, such as PENSTOCK_DIRECT.
 * On overlays and loop devices they meet none. */
static bool has_class(enum penstock_class require)
{
	const char *name = fixture_name("class", false);
	struct penstock_device *dev = fixture_open_device("host", "threads", 0);
	struct penstock_storage *st;
	struct penstock_seg seg = {.dev = dev, .row_len = 4096};
	struct penstock_req req;
	int64_t ret;

	fixture_make_file(name, 4096, 1);
	fixture_set_cached(name, false);
	assert_int_equal(penstock_alloc(dev, 4096, &seg.buf), 0);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.require = require;
	ret = penstock_transfer(&req, NULL);
	penstock_close(st);
	penstock_free(dev, seg.buf);
	penstock_device_close(dev);
	unlink(name);
	return ret == 4096;
}

static int setup(void **state)
{
	(void)state;
	want = malloc(LEN);
	old = malloc(LEN);
	back = malloc(LEN);
	has_direct_paths = has_class(PENSTOCK_DIRECT);
	return !want || !old || !back;
}

static int teardown(void **state)
{
	(void)state;
	free(want);
	free(old);
	free(back);
	return 0;
}

/* ---- one transfer and its checks ---- */

struct run {
	const struct scene *scene;
	enum calls_kind kind;
	unsigned nth;
	int how;
	const char *name;
	struct penstock_device *dev, *host;
	struct penstock_storage *st;
	void *mem;
	unsigned hits, seen;
	bool direct;
	int64_t result;
	struct penstock_report report;
};

#define run_fails(r, ...)                                                                         \
	do {                                                                                      \
		printf("# %s by %s, %s, class %d, path %s%s%s: %s %u as %d: result %lld, text "   \
		       "'%s'\n",                                                                  \
		       (r)->scene->op ? "write" : "read", (r)->scene->engine, (r)->scene->device, \
		       (int)(r)->scene->require, (r)->scene->path ? (r)->scene->path : "any",     \
		       (r)->scene->warm ? ", warm" : "", (r)->scene->fresh ? ", fresh" : "",      \
		       calls_name((r)->kind), (r)->nth, (r)->how, (long long)(r)->result,         \
		       (r)->result < 0 ? penstock_errmsg() : "");                                 \
		fail_msg(__VA_ARGS__);                                                            \
	} while (0)

static void transfer_once(struct run *r)
{
	const struct scene *s = r->scene;
	struct penstock_seg seg = {.buf = r->mem, .dev = r->dev, .row_len = s->len};
	struct penstock_req req;

	req = test_request(r->st, &seg, 1, s->op);
	req.require = s->require;
	req.path = s->path;
	req.flags = s->durable ? PENSTOCK_R_DURABLE : 0;
	r->report = (struct penstock_report)PENSTOCK_REPORT_INIT;
	r->result = penstock_transfer(&req, &r->report);
}

/* Checks the bytes. All bytes before offset `stop` must be new. Each byte after `stop` may be
 * new or old. */
static void check_bytes(struct run *r, uint64_t stop)
{
	const struct scene *s = r->scene;

	if (s->op == PENSTOCK_READ) {
		test_copy(r->host, back, r->dev, r->mem, s->len);
	} else {
		struct stat stat;
		int fd = open(r->name, O_RDONLY);

		assert_int_equal(fstat(fd, &stat), 0);
		assert_int_equal(stat.st_size, s->len);
		assert_int_equal(pread(fd, back, s->len, 0), s->len);
		close(fd);
	}
	if (!memcmp(back, want, s->len))
		return;
	for (uint64_t i = 0; i < s->len; i++)
		if (back[i] != want[i] && (i < stop || back[i] != old[i]))
			run_fails(r, "byte %llu is %02x, not %02x (done up to %llu)",
				  (unsigned long long)i, back[i], want[i],
				  (unsigned long long)stop);
}

static bool report_has_reason(const struct run *r, enum penstock_why why)
{
	for (unsigned i = 0; i < r->report.path_count; i++)
		if (r->report.paths[i].why == why)
			return true;
	return false;
}

static void check_whole(struct run *r, uint64_t retries)
{
	uint64_t sum = 0;

	if (r->result != (int64_t)r->scene->len)
		run_fails(r, "the transfer did not come through");
	for (unsigned i = 0; i < r->report.path_count; i++)
		sum += r->report.paths[i].bytes;
	if (sum != r->scene->len || r->report.bytes != r->scene->len ||
	    r->report.result != r->result)
		run_fails(r, "reported %llu bytes, %llu by paths",
			  (unsigned long long)r->report.bytes, (unsigned long long)sum);
	if (r->report.retries != retries)
		run_fails(r, "%llu retries are reported, not %llu",
			  (unsigned long long)r->report.retries, (unsigned long long)retries);
	check_bytes(r, r->scene->len);
}

static void check_failed(struct run *r)
{
	const int code = r->how > 0 ? r->how : EIO;

	if (r->result != -code)
		run_fails(r, "it did not end with -%d", code);
	if (r->report.why != fixture_errno_why(code) ||
	    penstock_errwhy() != fixture_errno_why(code))
		run_fails(r, "the reason is %s", penstock_why_name(r->report.why));
	if (!strstr(r->report.text, strerror(code)) || strcmp(r->report.text, penstock_errmsg()))
		run_fails(r, "the sentence is '%s'", r->report.text);
	if (r->report.bytes >= r->scene->len && r->kind != CALLS_SYNC)
		run_fails(r, "all bytes are reported done");
	if (r->report.stop_off >= r->scene->len && r->kind != CALLS_SYNC)
		run_fails(r, "where it stopped is %llu", (unsigned long long)r->report.stop_off);
	check_bytes(r, r->kind == CALLS_SYNC ? r->scene->len : r->report.stop_off);
}

/* Decides from the class that the request requires and from the path of the failed call whether the
 * library must retry the failed chunk or fail the request, and checks that it did. */
static void check_hit(struct run *r)
{
	const struct scene *s = r->scene;
	/* If the drive failed to write bytes or had no space for them, the library must not
	 * write these bytes to the page cache. */
	bool no_cache =
		s->op == PENSTOCK_WRITE && r->kind == CALLS_DRAIN &&
		(r->how == EIO || r->how == ENOSPC || r->how == EDQUOT || r->how == CALLS_EMPTY) &&
		strcmp(s->device, "host") != 0;
	/* If a read through the page cache failed, the library can read the bytes from the
	 * drive. On a busy machine, some bytes may be in the page cache although they were
	 * dropped. */
	bool retry = has_direct_paths && !no_cache && !s->path && s->require == PENSTOCK_ANY &&
		     (r->direct || s->op == PENSTOCK_READ);

	if (r->how == EINTR || r->how == EAGAIN || r->how == CALLS_SHORT ||
	    r->kind == CALLS_ENTER) {
		check_whole(r, 0);
		if (r->kind == CALLS_SYNC && r->seen != 2)
			run_fails(r, "it was made %u times, not again", r->seen);
	} else if (s->all_from_nth && r->result < 0) {
		check_failed(r); /* no path is left */
	} else if (s->fresh && r->result >= 0 && !r->report.retries) {
		/* the canary (a test read of the path) failed, so the library used another path
		 * from the start */
		check_whole(r, 0);
	} else if (s->fresh && r->result == -EOPNOTSUPP && s->require) {
		if (penstock_errwhy() != PENSTOCK_WHY_REQUIRE)
			run_fails(r, "the reason is %s", penstock_why_name(penstock_errwhy()));
		check_bytes(r, 0);
	} else if (retry ||
		   (r->result >= 0 && (s->require == PENSTOCK_NO_CPU_COPY || !has_direct_paths))) {
		check_whole(r, 1);
		if (!report_has_reason(r, fixture_errno_why(r->how > 0 ? r->how : EIO)))
			run_fails(r, "no path has the reason");
		if (s->require && r->report.cpu_copied)
			run_fails(r, "it went on outside of its class");
	} else {
		check_failed(r);
	}
}

/* Runs the transfer with one fault. Returns false if the transfer made fewer than n calls. */
static bool run_once(struct run *r)
{
	const struct scene *s = r->scene;
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	unsigned fds = fixture_open_fds();

	opts.flags = s->op == PENSTOCK_WRITE ? PENSTOCK_O_WRITE : 0;
	if (s->op == PENSTOCK_READ)
		fixture_set_cached(r->name, s->warm);
	assert_int_equal(penstock_open(r->name, &opts, &r->st), 0);
	if (!s->fresh)
		assert_int_equal(penstock_prepare(r->st, r->dev, s->op), 0);
	if (s->op == PENSTOCK_READ)
		test_copy(r->dev, r->mem, r->host, old, s->len);
	if (s->all_from_nth)
		calls_arm_onwards(r->kind, r->nth, r->how);
	else
		calls_arm(r->kind, r->nth, r->how);
	transfer_once(r);
	r->hits = calls_disarm();
	r->seen = calls_counted();
	r->direct = calls_hit_direct();
	if (r->hits)
		check_hit(r);
	else
		check_whole(r, 0);
	if (r->hits) {
		struct run again = *r;

		again.hits = 0;
		transfer_once(&again);
		if (!(s->fresh && again.result == -EOPNOTSUPP && s->require))
			check_whole(&again, 0);
	}
	if (s->op == PENSTOCK_WRITE) /* restores the file for the next run */
		fixture_overwrite(r->name, old, s->len);
	penstock_close(r->st);
	if (r->nth && fixture_open_fds() != fds)
		run_fails(r, "%u descriptors are open, %u were", fixture_open_fds(), fds);
	if (fixture_open_rings() > RINGS_MAX)
		run_fails(r, "%u io_urings are open", fixture_open_rings());
	return r->hits;
}

/* Runs the transfer once for each of its calls, and makes that call fail. Returns how many calls
 * failed. */
static unsigned fail_every_call(const struct scene *s, enum calls_kind kind, int how)
{
	struct run r = {.scene = s, .kind = kind, .how = how};
	unsigned hits = 0;

	r.name = fixture_name("data", false);
	fixture_make_file(r.name, s->len, 1);
	fixture_fill(s->op == PENSTOCK_READ ? want : old, s->len, 1);
	fixture_fill(s->op == PENSTOCK_READ ? old : want, s->len, 2);
	r.dev = fixture_open_device(s->device, s->engine, s->slot);
	r.host = fixture_open_device("host", s->engine, s->slot);
	assert_int_equal(penstock_alloc(r.dev, LEN, &r.mem), 0);
	if (s->op == PENSTOCK_WRITE)
		test_copy(r.dev, r.mem, r.host, want, s->len);
	/* makes a run without a fault, which opens the descriptors that then stay open */
	run_once(&r);
	if (has_direct_paths && !s->warm && strcmp(s->engine, "auto") != 0)
		assert_string_equal(r.report.engine, s->len > SMALL + 1 ? s->engine : "threads");
	for (r.nth = 1; r.nth <= TURNS_MAX && run_once(&r); r.nth++)
		hits++;
	assert_in_range(hits, 0, TURNS_MAX - 1);
	penstock_free(r.dev, r.mem);
	penstock_device_close(r.dev);
	penstock_device_close(r.host);
	unlink(r.name);
	return hits;
}

/* ---- the cases ---- */

static const int read_hows[] = {EIO, EINTR, EAGAIN, CALLS_SHORT};
static const int write_hows[] = {EIO, ENOSPC, EDQUOT, EINTR, CALLS_SHORT, CALLS_EMPTY};

static void fail_data_calls(const char *device, const char *engine)
{
	struct scene read = {.device = device, .engine = engine, .len = LEN};
	struct scene write = {.device = device, .engine = engine, .op = PENSTOCK_WRITE, .len = LEN};
	unsigned hits = 0;

	for (unsigned i = 0; i < COUNT(read_hows); i++) {
		unsigned n = fail_every_call(&read, CALLS_FILL, read_hows[i]);

		assert_true(n >=
			    /* a direct path makes two long calls and one for the unaligned tail */
			    (has_direct_paths ? 3 : 1));
		hits += n;
	}
	for (unsigned i = 0; i < COUNT(write_hows); i++) {
		unsigned n = fail_every_call(&write, CALLS_DRAIN, write_hows[i]);

		assert_true(n >= (has_direct_paths ? 3 : 1));
		hits += n;
	}
	printf("# %s by %s: %u calls failed\n", device, engine, hits);
}

static void host_memory_by_uring(void **state)
{
	(void)state;
	fail_data_calls("host", "auto");
}

static void host_memory_by_threads(void **state)
{
	(void)state;
	fail_data_calls("host", "threads");
}

static void gpu_memory_by_uring(void **state)
{
	(void)state;
	fail_data_calls("cuda:0", "auto");
}

static void gpu_memory_by_threads(void **state)
{
	(void)state;
	fail_data_calls("cuda:0", "threads");
}

/* If a failed chunk is longer than the chunks of the next path, it is retried in pieces. */
static void failed_chunk_is_retried_in_pieces(void **state)
{
	struct scene s = {.device = "host", .engine = "auto", .len = LEN, .slot = 256u << 10};

	(void)state;
	for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
		s.op = (enum penstock_op)op;
		assert_true(fail_every_call(&s, op ? CALLS_DRAIN : CALLS_FILL, EIO) >=
			    (has_direct_paths ? 3 : 1));
	}
}

/* The pieces of the retry fail, too. Bytes after a failed piece must not be carried by another
 * chunk. */
static void pieces_fail_too(void **state)
{
	struct scene s = {.device = "host",
			  .engine = "auto",
			  .len = LEN,
			  .slot = 256u << 10,
			  .all_from_nth = true};

	(void)state;
	for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
		s.op = (enum penstock_op)op;
		assert_true(fail_every_call(&s, op ? CALLS_DRAIN : CALLS_FILL, EIO) >=
			    (has_direct_paths ? 3 : 1));
	}
}

/* Tests failed calls of requests that have only one path: reads of cached bytes, requests that name
 * a path, and requests of one chunk. */
static void requests_with_one_path(void **state)
{
	struct scene warm = {.device = "host", .engine = "auto", .len = LEN, .warm = true};
	struct scene bounce = {.device = "cuda:0", .engine = "auto", .len = LEN, .path = "bounce"};
	struct scene small = {.device = "host", .engine = "auto", .len = SMALL + 1};

	(void)state;
	for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
		enum calls_kind kind = op ? CALLS_DRAIN : CALLS_FILL;

		warm.op = bounce.op = small.op = (enum penstock_op)op;
		assert_true(fail_every_call(&bounce, kind, EIO) >= 3);
		assert_true(fail_every_call(&bounce, kind, CALLS_SHORT) >= 3);
		assert_true(fail_every_call(&small, kind, EIO) >= 1);
		assert_true(fail_every_call(&small, kind, CALLS_SHORT) >= 1);
		assert_true(fail_every_call(&warm, kind, EIO) >= 1);
	}
}

/* For a request that requires a class, such as PENSTOCK_DIRECT, the failed chunk is retried on a
 * path that meets the class. If no such path exists, the request fails and reports the bytes
 * moved. */
static void requests_with_a_class(void **state)
{
	static const char *const engines[] = {"auto", "threads"};
	struct scene host_direct = {.device = "host", .len = ALIGNED, .require = PENSTOCK_DIRECT};
	struct scene cuda_staged = {
		.device = "cuda:0", .len = ALIGNED, .require = PENSTOCK_NO_CPU_COPY};

	(void)state;
	if (!has_direct_paths)
		test_skip("no direct path to TMPDIR");
	for (unsigned e = 0; e < COUNT(engines); e++)
		for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
			enum calls_kind kind = op ? CALLS_DRAIN : CALLS_FILL;

			host_direct.engine = cuda_staged.engine = engines[e];
			host_direct.op = cuda_staged.op = (enum penstock_op)op;
			assert_true(fail_every_call(&host_direct, kind, EIO) >= 2);
			assert_true(fail_every_call(&host_direct, kind, CALLS_SHORT) >= 2);
			assert_true(fail_every_call(&cuda_staged, kind, EIO) >= 2);
		}
}

/* Faults hit the calls of the canary itself: its test reads when the paths are set up, and the
 * reads that check the first write. The request must then move all its bytes over another path, or
 * fail with the reason. */
static void failed_canary_calls(void **state)
{
	struct scene read = {.device = "host", .engine = "auto", .len = LEN, .fresh = true};
	struct scene write = {.device = "host", .engine = "auto", .op = PENSTOCK_WRITE, .len = LEN};

	(void)state;
	if (!has_direct_paths)
		test_skip("no direct path to TMPDIR");
	assert_true(fail_every_call(&read, CALLS_FILL, EIO) >= 5);
	assert_true(fail_every_call(&read, CALLS_FILL, CALLS_SHORT) >= 5);
	assert_true(fail_every_call(&write, CALLS_FILL, EIO) >= 1);
	read.len = write.len = ALIGNED;
	read.require = write.require = PENSTOCK_DIRECT;
	assert_true(fail_every_call(&read, CALLS_FILL, EIO) >= 4);
}

/* If fdatasync fails, the request fails. If a signal interrupts it, the library calls it again. */
static void failed_syncs(void **state)
{
	static const char *const engines[] = {"auto", "threads"};
	static const int hows[] = {EIO, ENOSPC, EDQUOT, EINTR, EAGAIN};

	(void)state;
	for (unsigned e = 0; e < COUNT(engines); e++)
		for (unsigned i = 0; i < COUNT(hows); i++) {
			struct scene s = {.device = "host",
					  .engine = engines[e],
					  .op = PENSTOCK_WRITE,
					  .len = LEN,
					  .durable = true};

			assert_int_equal(fail_every_call(&s, CALLS_SYNC, hows[i]), 1);
		}
}

/* All calls from the n-th on fail, as if a drive had failed or a disk stayed full. The request must
 * end with the error of these calls, unless it had all its bytes before. */
static void drive_fails_for_good(void **state)
{
	static const char *const engines[] = {"auto", "threads"};
	static const char *const devices[] = {"host", "cuda:0"};

	(void)state;
	for (unsigned e = 0; e < COUNT(engines); e++)
		for (unsigned d = 0; d < COUNT(devices); d++) {
			struct scene s = {.device = devices[d],
					  .engine = engines[e],
					  .path = d ? "staged" : NULL,
					  .len = ALIGNED,
					  .all_from_nth = true};

			if (d && !has_direct_paths)
				s.path = "bounce";
			assert_true(fail_every_call(&s, CALLS_FILL, EIO) >= 1);
			s.op = PENSTOCK_WRITE;
			assert_true(fail_every_call(&s, CALLS_DRAIN, EIO) >= 1);
			assert_true(fail_every_call(&s, CALLS_DRAIN, ENOSPC) >= 1);
		}
}

/* After the device's worker threads (lanes) have started, no more threads can be created. The
 * lanes then make the system calls themselves. */
static void no_thread_can_be_created(void **state)
{
	struct scene s = {.device = "host", .engine = "threads", .len = LEN};
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	(void)state;
	opts.flags = PENSTOCK_O_WRITE;
	for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
		struct run r = {.scene = &s, .kind = CALLS_THREAD, .nth = 1, .how = EAGAIN};

		s.op = (enum penstock_op)op;
		r.name = fixture_name("data", false);
		fixture_make_file(r.name, s.len, 1);
		fixture_fill(op ? old : want, s.len, 1);
		fixture_fill(op ? want : old, s.len, 2);
		r.dev = r.host = fixture_open_device(s.device, s.engine, 0);
		assert_int_equal(penstock_alloc(r.dev, LEN, &r.mem), 0);
		memcpy(r.mem, op ? want : old, LEN);
		fixture_set_cached(r.name, false);
		assert_int_equal(penstock_open(r.name, &opts, &r.st), 0);
		assert_int_equal(penstock_prepare(r.st, r.dev, s.op), 0);
		calls_arm_onwards(r.kind, r.nth, r.how);
		transfer_once(&r);
		r.hits = calls_disarm();
		check_whole(&r, 0);
		assert_true(r.hits >= 1 || !has_direct_paths);
		penstock_close(r.st);
		penstock_free(r.dev, r.mem);
		penstock_device_close(r.dev);
		unlink(r.name);
	}
}

/* Reads `len` bytes of the storage into `mem` by several requests at once. So each lane (worker
 * thread) becomes the first lane of a request whose bytes no readahead has cached. Returns whether
 * the report of a request has the reason `why` for its engine. */
static bool read_in_parts(struct penstock_storage *st, struct penstock_device *dev, char *mem,
			  uint64_t len, enum penstock_why why)
{
	enum { PARTS = 6 };
	struct penstock_seg segs[PARTS];
	struct penstock_req reqs[PARTS];
	struct penstock_done done[PARTS];
	struct penstock_queue *queue;
	bool found = false;

	assert_int_equal(penstock_queue_open(NULL, &queue), 0);
	for (unsigned i = 0; i < PARTS; i++) {
		uint64_t off = len / PARTS * i;

		segs[i] = (struct penstock_seg){
			.buf = mem + off, .dev = dev, .off = off, .row_len = len / PARTS};
		reqs[i] = (struct penstock_req)PENSTOCK_REQ_INIT;
		reqs[i].storage = st;
		reqs[i].segs = &segs[i];
		reqs[i].seg_count = 1;
		reqs[i].path = "bounce";
	}
	assert_int_equal(penstock_submit(queue, reqs, PARTS, NULL), PARTS);
	assert_int_equal(penstock_wait(queue, done, PARTS, PARTS, -1), PARTS);
	for (unsigned i = 0; i < PARTS; i++) {
		assert_int_equal(done[i].result, len / PARTS);
		found |= done[i].report->engine_why == why;
	}
	penstock_queue_close(queue);
	return found;
}

/* A device opens one io_uring. Another lane (worker thread) opens a second one when it first needs
 * it. If the kernel refuses this second io_uring, the lane makes its system calls without it, and
 * the report has the reason. */
static void io_urings_are_opened_when_needed(void **state)
{
	const uint64_t len = 48u << 20;
	const char *name = fixture_name("data", false);
	struct penstock_device *dev, *host;
	struct penstock_storage *st;
	unsigned char *got = malloc(len);
	bool refused = false;
	void *mem;

	(void)state;
	/* This check must come first. If the device "host" were already open with another engine,
	 * the check would use that engine. */
	if (!fixture_has_uring())
		test_skip("io_uring is refused here");
	dev = fixture_open_device("cuda:0", "auto", 0);
	host = fixture_open_device("host", "threads", 0);
	fixture_make_file(name, len, 1);
	assert_int_equal(penstock_alloc(dev, len, &mem), 0);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	assert_int_equal(penstock_prepare(st, dev, PENSTOCK_READ), 0);
	assert_int_equal(fixture_open_rings(), 1);
	calls_arm_onwards(CALLS_SETUP, 1, EPERM);
	/* A lane may get no bytes if the other one is faster. */
	for (unsigned i = 0; i < 20 && !calls_counted(); i++) {
		fixture_set_cached(name, false);
		refused = read_in_parts(st, dev, mem, len, PENSTOCK_WHY_NO_URING);
	}
	assert_int_equal(refused, calls_disarm() > 0);
	assert_true(refused || !has_direct_paths);
	assert_int_equal(fixture_open_rings(), 1);
	test_copy(host, got, dev, mem, len);
	for (uint64_t i = 0; i < len; i++)
		assert_int_equal(got[i], fixture_byte(i, 1));
	free(got);
	penstock_close(st);
	penstock_free(dev, mem);
	penstock_device_close(dev);
	penstock_device_close(host);
	unlink(name);
}

/* io_uring_enter itself fails. The library must repeat the call or use plain calls, so that every
 * request ends. */
static void failed_io_uring_enter(void **state)
{
	static const int hows[] = {EAGAIN, EBUSY, EINTR, ENOMEM};
	struct scene s = {.device = "host", .engine = "uring", .len = LEN};

	(void)state;
	if (!fixture_has_uring())
		test_skip("io_uring is refused here");
	for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++)
		for (unsigned i = 0; i < COUNT(hows); i++) {
			s.op = (enum penstock_op)op;
			assert_true(fail_every_call(&s, CALLS_ENTER, hows[i]) >=
				    (has_direct_paths ? 2 : 0));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(host_memory_by_uring),
		cmocka_unit_test(host_memory_by_threads),
		cmocka_unit_test(gpu_memory_by_uring),
		cmocka_unit_test(gpu_memory_by_threads),
		cmocka_unit_test(failed_chunk_is_retried_in_pieces),
		cmocka_unit_test(pieces_fail_too),
		cmocka_unit_test(requests_with_one_path),
		cmocka_unit_test(requests_with_a_class),
		cmocka_unit_test(failed_canary_calls),
		cmocka_unit_test(failed_syncs),
		cmocka_unit_test(failed_io_uring_enter),
		cmocka_unit_test(drive_fails_for_good),
		cmocka_unit_test(no_thread_can_be_created),
		cmocka_unit_test(io_urings_are_opened_when_needed),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("syscalls", tests, setup, teardown);
}
