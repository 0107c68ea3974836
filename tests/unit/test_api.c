/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests functions of include/penstock.h: error messages, facts about storages and devices, structs
 * with the sizes of other library versions, unknown flags, copies and descriptors. The CUDA driver
 * is the stand-in. Tests that need a process of their own are in test_apart.c.
 */
#include "api.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>

/* Declares a struct with 64 more bytes, as in a program built for a newer library. */
#define SIZED(type, name, len)                          \
	union {                                         \
		type s;                                 \
		unsigned char bytes[sizeof(type) + 64]; \
	} name;                                         \
	memset(&(name), 0, sizeof(name));               \
	(name).s.size = (len)

/* ---- messages and reasons ---- */

static void version_matches_header(void **state)
{
	char text[32];

	(void)state;
	snprintf(text, sizeof(text), "%d.%d.%d", PENSTOCK_VERSION_MAJOR, PENSTOCK_VERSION_MINOR,
		 PENSTOCK_VERSION_PATCH);
	assert_string_equal(penstock_version(), text);
}

static void reasons_match_header(void **state)
{
	unsigned count = 0;

	(void)state;
#define SAME(code, name, text)                                             \
	assert_int_equal(PENSTOCK_WHY_##code, count++);                    \
	assert_string_equal(penstock_why_name(PENSTOCK_WHY_##code), name); \
	assert_string_equal(penstock_why_text(PENSTOCK_WHY_##code), text);
	PENSTOCK_WHY_LIST(SAME)
	for (unsigned i = 0; i < count; i++)
		for (unsigned j = 0; j < i; j++)
			assert_string_not_equal(penstock_why_name(i), penstock_why_name(j));
	assert_string_equal(penstock_why_name(count), "unknown");
	assert_string_equal(penstock_why_text(count), "unknown");
	assert_string_equal(penstock_why_name((unsigned)-1), "unknown");
	assert_string_equal(penstock_why_text((unsigned)-1), "unknown");
}

static void *open_fails_in_thread(void *arg)
{
	struct penstock_storage *st;

	(void)arg;
	if (!penstock_errmsg() || penstock_errmsg()[0] || penstock_errwhy() != PENSTOCK_WHY_NONE)
		return "a new thread already has an error message";
	if (penstock_open("mem:nonsense", NULL, &st) != -EINVAL)
		return "mem:nonsense was opened";
	return penstock_errwhy() == PENSTOCK_WHY_BAD_ARGUMENT ? NULL
							      : "the reason is not bad-argument";
}

static void messages_belong_to_the_thread(void **state)
{
	struct penstock_storage *st = (void *)&st;
	pthread_t thread;
	char before[PENSTOCK_TEXT_MAX];
	void *thread_error;

	(void)state;
	assert_int_equal(penstock_open("/no/such/file", NULL, &st), -ENOENT);
	assert_ptr_equal(st, &st); /* The failed call has not written its output. */
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NOT_FOUND);
	assert_non_null(strstr(penstock_errmsg(), "/no/such/file"));
	snprintf(before, sizeof(before), "%s", penstock_errmsg());
	assert_int_equal(pthread_create(&thread, NULL, open_fails_in_thread, NULL), 0);
	pthread_join(thread, &thread_error);
	if (thread_error)
		fail_msg("%s", (char *)thread_error);
	/* a call that succeeds does not change the message of the last failure */
	penstock_close(test_file_open(0));
	assert_string_equal(penstock_errmsg(), before);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NOT_FOUND);
	assert_int_equal(penstock_open("/", NULL, &st), -EISDIR);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_BAD_KIND);
	assert_int_equal(penstock_open("gopher://host/object", NULL, &st), -EINVAL);
	assert_int_equal(penstock_device_open("nonsense", NULL, &host), -ENODEV);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NO_DEVICE);
}

/* ---- facts ---- */

static bool power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

static void storage_facts(void **state)
{
	struct penstock_storage *st = test_file_open(0), *mem;
	struct penstock_storage_info info = {.size = sizeof(info)};

	(void)state;
	assert_int_equal(penstock_storage_get_info(st, &info), 0);
	assert_int_equal(info.size, sizeof(info));
	assert_int_equal(info.length, LEN);
	assert_string_equal(info.kind, "file");
	assert_true(strlen(info.text) > 0);
	assert_true(power_of_two(info.off_align) && power_of_two(info.mem_align) &&
		    power_of_two(info.edge_align));
	/* The library splits a write at multiples of edge_align, so that no page and no file-system
	 * block is written both through the page cache and by O_DIRECT. */
	assert_true(info.edge_align >= sysconf(_SC_PAGESIZE) && info.edge_align >= info.off_align);
	/* penstock_storage_length queries the length at each call. penstock_storage_get_info
	 * returns the length at penstock_open. */
	assert_int_equal(penstock_storage_length(st), LEN);
	assert_int_equal(truncate(file_name, 2 * LEN), 0);
	assert_int_equal(penstock_storage_length(st), 2 * LEN);
	assert_int_equal(penstock_storage_get_info(st, &info), 0);
	assert_int_equal(info.length, LEN);
	assert_int_equal(truncate(file_name, LEN), 0);
	penstock_close(st);
	assert_int_equal(penstock_open("mem:3KiB?seed=1", NULL, &mem), 0);
	assert_int_equal(penstock_storage_get_info(mem, &info), 0);
	assert_string_equal(info.kind, "mem");
	assert_int_equal(info.length, 3072);
	assert_int_equal(penstock_storage_length(mem), 3072);
	assert_int_equal(info.drive_count, 0);
	penstock_close(mem);
}

static void device_facts(void **state)
{
	struct penstock_device_info info = {.size = sizeof(info)};
	struct penstock_device *again;
	struct penstock_storage *st = test_file_open(0);

	(void)state;
	assert_int_equal(penstock_device_get_info(gpu, &info), 0);
	assert_string_equal(info.name, "cuda:0");
	assert_string_equal(penstock_device_name(gpu), "cuda:0");
	assert_true(strlen(info.text) > 0 && strlen(info.bdf) > 0);
	assert_int_equal(info.cpu_addressable, 0);
	assert_int_equal(penstock_device_get_info(host, &info), 0);
	assert_string_equal(info.name, "host");
	assert_string_equal(info.bdf, "");
	assert_int_equal(info.cpu_addressable, 1);
	assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
	assert_int_equal(penstock_device_get_info(host, &info), 0);
	assert_true(info.lanes > 0 && info.ring_bytes > 0);
	assert_int_equal(penstock_device_open("host", NULL, &again), 1);
	assert_ptr_equal(again, host);
	penstock_device_close(again);
	assert_string_equal(penstock_device_name(host), "host");
	penstock_close(st);
}

/* Passes info structs that are shorter and longer than the library's. The library writes only
 * the bytes that both versions know. */
static void info_sizes(void **state)
{
	struct penstock_storage *st = test_file_open(0);
	size_t cut = offsetof(struct penstock_storage_info, kind);

	(void)state;
	SIZED(struct penstock_storage_info, small, cut);
	memset(small.bytes + cut, 0xee, sizeof(small) - cut);
	assert_int_equal(penstock_storage_get_info(st, &small.s), 0);
	assert_int_equal(small.s.length, LEN);
	for (size_t i = cut; i < sizeof(small); i++)
		assert_int_equal(small.bytes[i], 0xee);
	SIZED(struct penstock_device_info, large, sizeof(large));
	memset(large.bytes + sizeof(large.s), 0xee, sizeof(large) - sizeof(large.s));
	assert_int_equal(penstock_device_get_info(host, &large.s), 0);
	assert_string_equal(large.s.name, "host");
	assert_int_equal(large.s.size, sizeof(large));
	for (size_t i = sizeof(large.s); i < sizeof(large); i++)
		assert_int_equal(large.bytes[i], 0xee);
	small.s.size = 0;
	assert_int_equal(penstock_storage_get_info(st, &small.s), -EINVAL);
	large.s.size = 0;
	assert_int_equal(penstock_device_get_info(host, &large.s), -EINVAL);
	penstock_close(st);
}

static void device_of_an_address(void **state)
{
	struct penstock_device *dev = (void *)&dev;
	void *mem;
	int here;

	(void)state;
	assert_int_equal(penstock_alloc(gpu, LEN, &mem), 0);
	assert_int_equal((uintptr_t)mem % 4096, 0);
	assert_int_equal(penstock_device_of((char *)mem + LEN - 1, &dev), 0);
	assert_ptr_equal(dev, gpu);
	assert_int_equal(penstock_device_of(&here, &dev), 0);
	assert_ptr_equal(dev, host);
	/* penstock_device_of takes no reference, so one close closes the device. Then no device
	 * owns host memory. */
	penstock_device_close(host);
	dev = (void *)&dev;
	assert_int_equal(penstock_device_of(&here, &dev), -ENODEV);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_NO_DEVICE);
	assert_ptr_equal(dev, &dev);
	assert_int_equal(penstock_device_open("host", NULL, &host), 0);
	assert_int_equal(penstock_free(gpu, mem), 0);
	assert_int_equal(penstock_free(gpu, NULL), 0);
	assert_int_equal(penstock_alloc(gpu, 0, &mem), -EINVAL);
}

/* ---- structs and flags ---- */

/* Checks an options struct that is longer than the library's. The call fails with -E2BIG if one of
 * the unknown bytes is not zero. It fails with -EINVAL if the value of `size` is less than the
 * length of the member `size` itself. */
#define CHECK_OPTION_SIZES(type, call, close_call)                           \
	do {                                                                 \
		SIZED(type, large, sizeof(large));                           \
		const type *opts = &large.s;                                 \
		assert_int_equal(call, 0);                                   \
		close_call;                                                  \
		large.bytes[sizeof(large) - 1] = 1;                          \
		assert_int_equal(call, -E2BIG);                              \
		assert_non_null(strstr(penstock_errmsg(), "does not know")); \
		large.s.size = sizeof(size_t);                               \
		assert_int_equal(call, 0);                                   \
		close_call;                                                  \
		large.s.size = sizeof(size_t) - 1;                           \
		assert_int_equal(call, -EINVAL);                             \
	} while (0)

/* Opens the host device, which is already open. Returns 0 in place of 1 (success). */
static int host_reopen(const struct penstock_device_opts *opts, struct penstock_device **dev)
{
	int ret = penstock_device_open("host", opts, dev);

	return ret == 1 ? 0 : ret ? ret : -EEXIST;
}

static void option_sizes(void **state)
{
	struct penstock_storage *st;
	struct penstock_device *dev;
	struct penstock_queue *q;

	(void)state;
	CHECK_OPTION_SIZES(struct penstock_storage_opts, penstock_open("mem:1", opts, &st),
			   penstock_close(st));
	CHECK_OPTION_SIZES(struct penstock_queue_opts, penstock_queue_open(opts, &q),
			   penstock_queue_close(q));
	CHECK_OPTION_SIZES(struct penstock_device_opts, host_reopen(opts, &dev),
			   penstock_device_close(dev));
}

static void request_sizes(void **state)
{
	struct penstock_storage *st = test_file_open(0);
	struct penstock_seg seg = {.dev = host, .row_len = 1};
	struct penstock_queue *q;
	struct penstock_done done;
	char byte = 1;

	(void)state;
	seg.buf = &byte;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	SIZED(struct penstock_req, req, sizeof(req));
	req.s.storage = st;
	req.s.segs = &seg;
	req.s.seg_count = 1;
	assert_int_equal(penstock_submit(q, &req.s, 1, NULL), 1);
	assert_int_equal(penstock_wait(q, &done, 1, 1, -1), 1);
	assert_int_equal(done.result, 1);
	assert_int_equal(byte, 0);
	req.bytes[sizeof(req) - 1] = 1;
	assert_int_equal(penstock_submit(q, &req.s, 1, NULL), -E2BIG);
	assert_int_equal(penstock_transfer(&req.s, NULL), -E2BIG);
	req.s.size = 0;
	assert_int_equal(penstock_submit(q, &req.s, 1, NULL), -EINVAL);
	req.s.size = sizeof(req.s);
	req.s.flags = 0x80000000u;
	assert_int_equal(penstock_submit(q, &req.s, 1, NULL), -EINVAL);
	penstock_queue_close(q);
	penstock_close(st);
}

/* The segments of a request may be members of a larger struct. A request with a seg_size that is
 * too small fails. */
static void segment_sizes(void **state)
{
	struct {
		struct penstock_seg s;
		unsigned char more[16];
	} segs[2] = {{.s = {.dev = host, .row_len = 1}, .more = {1, 2}},
		     {.s = {.dev = host, .row_len = 2}, .more = {3}}};
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_storage *st = test_file_open(0);
	struct penstock_req req = PENSTOCK_REQ_INIT;
	unsigned char bytes[3] = {1, 1, 1};

	(void)state;
	segs[0].s.buf = bytes;
	segs[1].s.buf = bytes + 1;
	req.storage = st;
	req.segs = &segs[0].s;
	req.seg_count = 2;
	req.seg_size = sizeof(segs[0]);
	assert_int_equal(penstock_transfer(&req, NULL), 3);
	assert_int_equal(bytes[0] | bytes[1] | bytes[2], 0);
	assert_int_equal(penstock_explain(&req, &e), 0);
	req.seg_size = sizeof(segs[0].s) - 1;
	assert_int_equal(penstock_explain(&req, &e), -EINVAL);
	assert_int_equal(penstock_transfer(&req, NULL), -EINVAL);
	penstock_close(st);
}

/* Submits a request that requires a class of paths, such as PENSTOCK_DIRECT, which no usable path
 * has. `path` has that class, but is not usable here. The error message must quote the reason why
 * `path` is not usable. */
static void expect_class_refused(struct penstock_req *req, struct penstock_device *dev,
				 const char *path)
{
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_seg seg = {.dev = dev, .row_len = 1};
	unsigned i = 0;

	assert_int_equal(penstock_alloc(dev, 1, &seg.buf), 0);
	req->segs = &seg;
	req->seg_count = 1;
	assert_int_equal(penstock_explain(req, &e), 0);
	assert_int_equal(e.taken, -1);
	while (strcmp(e.paths[i].name, path) != 0)
		i++;
	assert_int_not_equal(e.paths[i].why, PENSTOCK_WHY_REQUIRE);
	assert_int_equal(penstock_transfer(req, NULL), -EOPNOTSUPP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_REQUIRE);
	/* shortens the text to 100 bytes, because the message may quote only so much of it */
	e.paths[i].text[100] = 0;
	if (!e.paths[i].text[0] || !strstr(penstock_errmsg(), e.paths[i].text))
		fail_msg("the message '%s' lacks the reason '%s'", penstock_errmsg(),
			 e.paths[i].text);
	penstock_free(dev, seg.buf);
}

static void refusals_quote_the_reason(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	char nowhere[] = "/tmp/penstock-api-XXXXXX";

	(void)state;
	/* An empty sysfs root simulates a machine without any device information. */
	assert_non_null(mkdtemp(nowhere));
	opts.sys_root = nowhere;
	assert_int_equal(penstock_open(file_name, &opts, &req.storage), 0);
	req.require = PENSTOCK_DIRECT;
	expect_class_refused(&req, host, "odirect");
	req.require = PENSTOCK_NO_CPU_COPY;
	expect_class_refused(&req, host, "odirect");
	expect_class_refused(&req, gpu, "staged");
	penstock_close(req.storage);
	rmdir(nowhere);
}

static void late_sizes(void **state)
{
	struct penstock_storage *st = test_file_open(0);
	struct penstock_seg seg = {.dev = gpu, .row_len = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_queue *q;

	(void)state;
	SIZED(struct penstock_late, late, sizeof(late));
	late.bytes[sizeof(late) - 1] = 1;
	assert_int_equal(penstock_alloc(gpu, 1, &seg.buf), 0);
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.stream = (void *)2; /* this handle names CUDA's per-thread default stream */
	req.late = &late.s;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -E2BIG);
	late.s.size = 0;
	assert_int_equal(penstock_submit(q, &req, 1, NULL), -EINVAL);
	penstock_queue_close(q);
	penstock_free(gpu, seg.buf);
	penstock_close(st);
}

/* Asks for completions, first with an array of 0 entries, then with NULL in place of an array. With
 * 0 entries nothing is written and the completions stay queued. With NULL all completions are
 * discarded. */
static void harvest_without_capacity(void **state)
{
	struct penstock_storage *st = test_file_open(0);
	struct penstock_seg seg = {.dev = host, .row_len = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_done done = {.id = 77};
	struct penstock_queue *q;
	char bytes[2];

	(void)state;
	seg.buf = &bytes[0];
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	/* this request writes to other memory, because two requests must not write the same byte */
	seg.buf = &bytes[1];
	assert_int_equal(penstock_submit(q, &req, 1, NULL), 1);
	assert_int_equal(penstock_wait(q, &done, 1, 0, -1), 0);
	assert_int_equal(penstock_poll(q, &done, 0), 0);
	assert_int_equal(done.id, 77);
	assert_int_equal(penstock_wait(q, NULL, 2, 0, -1), 2);
	assert_int_equal(penstock_poll(q, NULL, 0), 0);
	penstock_queue_close(q);
	penstock_close(st);
}

static void unknown_flags(void **state)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st = (void *)&st;
	int fd = open(file_name, O_RDONLY);

	(void)state;
	opts.flags = PENSTOCK_O_PREFETCH << 1;
	assert_int_equal(penstock_open(file_name, &opts, &st), -EINVAL);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_BAD_ARGUMENT);
	assert_int_equal(penstock_open("mem:1", &opts, &st), -EINVAL);
	assert_int_equal(penstock_open_fd(fd, &opts, &st), -EINVAL);
	opts.flags = 0x80000000u | PENSTOCK_O_CREATE;
	assert_int_equal(unlink(file_name), 0);
	assert_int_equal(penstock_open(file_name, &opts, &st), -EINVAL);
	/* penstock_open refused the unknown flag before it would have created the file. */
	assert_int_equal(access(file_name, F_OK), -1);
	assert_ptr_equal(st, &st);
	close(fd);
	fd = open(file_name, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(ftruncate(fd, LEN), 0);
	close(fd);
}

/* A file URL names a file of this host only: its host is empty or localhost. */
static void file_urls(void **state)
{
	static const char *const refused[] = {"file://host",	  "file://host/x",
					      "file://localhost", "file://localhost.d/x",
					      "file://./x",	  "file://"};
	struct penstock_storage *st = (void *)&st;
	char url[PATH_MAX + 32];
	char *absolute = realpath(file_name, NULL);

	(void)state;
	assert_non_null(absolute);
	for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		assert_int_equal(penstock_open(refused[i], NULL, &st), -EINVAL);
		assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_BAD_ARGUMENT);
		assert_non_null(strstr(penstock_errmsg(), "cannot name another host"));
		assert_non_null(strstr(penstock_errmsg(), refused[i]));
		assert_ptr_equal(st, &st);
	}
	for (unsigned i = 0; i < 3; i++) {
		snprintf(url, sizeof(url), "file://%s%s",
			 i == 0	  ? ""
			 : i == 1 ? "localhost"
				  : "LocalHost",
			 absolute);
		assert_int_equal(penstock_open(url, NULL, &st), 0);
		assert_int_equal(penstock_storage_length(st), LEN);
		penstock_close(st);
	}
	free(absolute);
}

/* ---- memory ---- */

static void copies_between_host_buffers(void **state)
{
	unsigned char from[64], to[64];
	struct penstock_copy_args one = {sizeof(one)};

	(void)state;
	for (unsigned i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)i;
	memset(to, 0xee, sizeof(to));
	one.dst_dev = one.src_dev = host;
	one.dst = to;
	one.src = from;
	one.row_len = 4;
	one.rows = 3;
	one.dst_pitch = 8;
	one.src_pitch = 16;
	assert_int_equal(penstock_copy(&one, 1), 0);
	for (unsigned i = 0; i < sizeof(to); i++)
		assert_int_equal(to[i], i < 24 && i % 8 < 4 ? i / 8 * 16 + i % 8 : 0xee);
	one.src_pitch = 3;
	assert_int_equal(penstock_copy(&one, 1), -EINVAL);
	one.rows = 1; /* with a single row, the wrong pitches are ignored */
	assert_int_equal(penstock_copy(&one, 1), 0);
	one.row_len = 0;
	assert_int_equal(penstock_copy(&one, 1), 0);
	assert_int_equal(penstock_copy(NULL, 0), 0);
	one.src_dev = NULL;
	assert_int_equal(penstock_copy(&one, 1), -EINVAL);
	one.src_dev = host;
	one.size = 0;
	assert_int_equal(penstock_copy(&one, 1), -EINVAL);
	SIZED(struct penstock_copy_args, large, sizeof(large));
	memcpy(&large, &one, sizeof(one));
	large.s.size = sizeof(large);
	assert_int_equal(penstock_copy(&large.s, 1), 0);
	large.bytes[sizeof(large) - 1] = 1;
	assert_int_equal(penstock_copy(&large.s, 1), -E2BIG);
}

static void registrations(void **state)
{
	void *mem = NULL;

	(void)state;
	assert_int_equal(posix_memalign(&mem, 4096, 1u << 20), 0);
	memset(mem, 0, 1u << 20);
	assert_int_equal(penstock_register(gpu, mem, 1u << 20), 0);
	/* Registering the same range again fails. */
	assert_true(penstock_register(gpu, mem, 1u << 20) < 0);
	assert_int_equal(penstock_unregister(gpu, mem), 0);
	assert_true(penstock_unregister(gpu, mem) < 0);
	assert_int_equal(penstock_register(gpu, mem, 1u << 20), 0);
	assert_int_equal(penstock_unregister(gpu, mem), 0);
	assert_int_equal(penstock_register(gpu, NULL, 1), -EINVAL);
	assert_int_equal(penstock_register(gpu, mem, 0), -EINVAL);
	/* The host device needs no registration, so the call does nothing. */
	assert_int_equal(penstock_register(host, mem, 4096), 0);
	assert_int_equal(penstock_unregister(host, mem), 0);
	free(mem);
}

/* ---- descriptors ---- */

static void descriptors(void **state)
{
	struct penstock_storage_opts writing = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	int fd = open(file_name, O_RDONLY), pipes[2], flags;
	char two[2];

	(void)state;
	writing.flags = PENSTOCK_O_WRITE;
	assert_int_equal(lseek(fd, 77, SEEK_SET), 77);
	flags = fcntl(fd, F_GETFL);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), 0);
	assert_int_equal(penstock_read(st, host, two, 2, LEN - 1), 1);
	penstock_close(st);
	assert_int_equal(lseek(fd, 0, SEEK_CUR), 77);
	assert_int_equal(fcntl(fd, F_GETFL), flags);
	assert_int_equal(penstock_open_fd(fd, &writing, &st), -EBADF);
	writing.flags = PENSTOCK_O_REPLACE;
	assert_int_equal(penstock_open_fd(fd, &writing, &st), -EINVAL);
	close(fd);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), -EBADF);
	assert_int_equal(penstock_open_fd(-1, NULL, &st), -EBADF);
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(penstock_open_fd(pipes[0], NULL, &st), -ESPIPE);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_BAD_KIND);
	close(pipes[0]);
	close(pipes[1]);
	fd = open("/", O_RDONLY | O_DIRECTORY);
	assert_int_equal(penstock_open_fd(fd, NULL, &st), -EISDIR);
	close(fd);
}

/* ---- statistics and topology ---- */

static size_t text_read(int fd, char *text, size_t len)
{
	ssize_t n = pread(fd, text, len - 1, 0);

	assert_true(n > 0);
	text[n] = '\0';
	close(fd);
	return (size_t)n;
}

static void stats_and_topology(void **state)
{
	static char text[1u << 20];
	int read_only_fd = open("/dev/null", O_RDONLY), fd;

	(void)state;
	for (int json = 0; json < 2; json++) {
		fd = memfd_create("stats", 0);
		assert_int_equal(penstock_stats(0, json, fd), 0);
		text_read(fd, text, sizeof(text));
		assert_int_equal(text[0] == '{', json);
		fd = memfd_create("stats", 0);
		assert_int_equal(penstock_stats(getpid(), json, fd), 0);
		text_read(fd, text, sizeof(text));
		assert_int_equal(text[0] == '{', json);
		assert_non_null(strstr(text, "requests"));
		fd = memfd_create("topology", 0);
		assert_int_equal(penstock_topo(NULL, json, fd), 0);
		text_read(fd, text, sizeof(text));
		assert_int_equal(text[0] == '{', json);
		assert_true(penstock_stats(0, json, read_only_fd) < 0);
		assert_true(penstock_topo(NULL, json, read_only_fd) < 0);
		assert_int_equal(penstock_stats(0, json, -1), -EBADF);
		assert_int_equal(penstock_topo(NULL, json, -1), -EBADF);
	}
	close(read_only_fd);
	/* No process has this ID: it is above any kernel's pid_max. */
	assert_int_equal(penstock_stats(0x7ffffff0, 0, 1), -ESRCH);
	assert_true(strlen(penstock_errmsg()) > 0);
}

/* If a read lies wholly behind the end of a file, the message names the end of the file, not the
 * start of the read. */
static void message_names_the_end_of_the_file(void **state)
{
	struct penstock_storage *st = test_file_open(0);
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.dev = host, .off = 65536, .row_len = 4096};

	(void)state;
	seg.buf = malloc(4096);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.flags = PENSTOCK_R_EXACT;
	assert_int_equal(truncate(file_name, 1000), 0);
	assert_int_equal(penstock_transfer(&req, NULL), -ENODATA);
	assert_non_null(strstr(penstock_errmsg(), "ends at byte 1000,"));
	assert_int_equal(truncate(file_name, LEN), 0);
	penstock_close(st);
	free(seg.buf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(version_matches_header),
		cmocka_unit_test(reasons_match_header),
		cmocka_unit_test(messages_belong_to_the_thread),
		cmocka_unit_test(storage_facts),
		cmocka_unit_test(device_facts),
		cmocka_unit_test(info_sizes),
		cmocka_unit_test(device_of_an_address),
		cmocka_unit_test(option_sizes),
		cmocka_unit_test(request_sizes),
		cmocka_unit_test(segment_sizes),
		cmocka_unit_test(late_sizes),
		cmocka_unit_test(refusals_quote_the_reason),
		cmocka_unit_test(harvest_without_capacity),
		cmocka_unit_test(unknown_flags),
		cmocka_unit_test(file_urls),
		cmocka_unit_test(copies_between_host_buffers),
		cmocka_unit_test(registrations),
		cmocka_unit_test(descriptors),
		cmocka_unit_test(stats_and_topology),
		cmocka_unit_test(message_names_the_end_of_the_file),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, setup, teardown);
}
