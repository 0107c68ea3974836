/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment of the property tests. It has three devices, opened with random options: the
 * host and two simulated GPUs. Each device has an arena, which is a block of the device's memory.
 * Each arena has a shadow, which is memory of the test with the bytes that the arena must contain.
 * The environment also has a storage of a random kind, and a copy of the bytes that the storage
 * must contain. A random part of the storage is in the page cache. test_bytes.c includes this file.
 * The test must never use the library to compute expected bytes.
 */
#ifndef PENSTOCK_TEST_WORLD_H
#define PENSTOCK_TEST_WORLD_H

#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>

#include "mark.h"
#include "penstock.h"
#include "request.h"

#define DEVICES 3
#define BYTES_MAX (20u << 20) /* maximum length of the storage in bytes */
#define ARENA (28u << 20)     /* length of each device's arena in bytes */

enum kind { DISK, MEMORY_FILE, CREATED, MEM, KINDS };

static const char *const kind_names[] = {"disk", "tmpfs", "created", "mem"};
static const char *const device_names[DEVICES] = {"host", "cuda:0", "cuda:1"};

struct arena {
	struct penstock_device *dev;
	char *mem;
	unsigned char *shadow; /* the expected bytes */
	size_t used;
};

static struct {
	uint64_t random;
	struct arena arenas[DEVICES];
	struct penstock_queue *queue;
	struct penstock_storage *st;
	enum kind kind;
	bool writable;
	bool growing; /* true if the file was created and not yet committed */
	/* True if the file system and its drives are on the library's allow-list, so that O_DIRECT
	 * transfers need no CPU copy. */
	bool listed;
	char name[256];
	int fd; /* the test's own descriptor of the file, -1 for storage in memory ("mem:") */
	unsigned char *expected; /* the expected bytes of the storage */
	uint64_t len;
	unsigned char *random_bytes; /* 2 * ARENA random bytes */
	unsigned char *back;
	char text[16384]; /* description of the requests, which is printed if a case fails */
	size_t text_len;
} env;

static uint64_t random_below(uint64_t below)
{
	return below ? test_random(&env.random) % below : 0;
}

static bool one_in(uint64_t n)
{
	return random_below(n) == 0;
}

#define case_fail(...)                         \
	do {                                   \
		print_error("%s\n", env.text); \
		fail_msg(__VA_ARGS__);         \
	} while (0)

static void describe(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void describe(const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(env.text + env.text_len, sizeof(env.text) - env.text_len, format, args);
	va_end(args);
	if (n > 0 && env.text_len + (size_t)n < sizeof(env.text))
		env.text_len += (size_t)n;
}

static void make_random_bytes(void)
{
	uint64_t *words, random = 88172645463325252u;

	env.random_bytes = malloc(2 * (size_t)ARENA);
	env.back = aligned_alloc(4096, ARENA);
	env.expected = malloc(BYTES_MAX);
	words = (uint64_t *)(void *)env.random_bytes;
	for (size_t i = 0; i < 2 * (size_t)ARENA / 8; i++)
		words[i] = test_random(&random);
	for (unsigned d = 0; d < DEVICES; d++)
		env.arenas[d].shadow = malloc(ARENA);
}

/* Returns `len` random bytes, which differ from the bytes of the previous call. */
static const unsigned char *random_bytes(size_t len)
{
	return env.random_bytes + random_below(2 * (uint64_t)ARENA - len);
}

/* ---- devices ---- */

/* Opens a device with random options, so that devices with different numbers of threads (lanes),
 * lengths of staging buffers (slots) and engines carry the same requests. */
static void open_device(unsigned d)
{
	static const size_t slots[] = {0, 64u << 10, 128u << 10, 512u << 10, 1u << 20, 4u << 20};
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct arena *a = &env.arenas[d];
	void *mem;
	int ret;

	opts.lanes = (unsigned)random_below(4);
	opts.slot_bytes = slots[random_below(6)];
	if (opts.lanes && opts.slot_bytes && one_in(2))
		opts.ring_bytes = opts.lanes * opts.slot_bytes * (2 + random_below(3));
	opts.engine = one_in(3) ? "threads" : "auto";
	describe("%s: %u lanes, slot %zu, ring %zu, %s\n", device_names[d], opts.lanes,
		 opts.slot_bytes, opts.ring_bytes, opts.engine);
	ret = penstock_device_open(device_names[d], &opts, &a->dev);
	if (ret) /* 1 means that the device was still open */
		case_fail("opening %s: %d %s", device_names[d], ret, penstock_errmsg());
	if (penstock_alloc(a->dev, ARENA, &mem))
		case_fail("memory of %s: %s", device_names[d], penstock_errmsg());
	a->mem = mem;
}

static void close_device(unsigned d)
{
	penstock_free(env.arenas[d].dev, env.arenas[d].mem);
	penstock_device_close(env.arenas[d].dev);
}

static void copy_or_fail(struct penstock_device *to, void *dst, struct penstock_device *from,
			 const void *src, size_t len)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = to,
					  .dst = dst,
					  .src_dev = from,
					  .src = src,
					  .row_len = len,
					  .rows = 1};

	if (len && penstock_copy(&args, 1))
		case_fail("copy: %s", penstock_errmsg());
}

/* Fills the used part of each arena with random bytes, and copies them to its shadow. */
static void fill_arenas(void)
{
	for (unsigned d = 0; d < DEVICES; d++) {
		struct arena *a = &env.arenas[d];

		memcpy(a->shadow, random_bytes(a->used), a->used);
		copy_or_fail(a->dev, a->mem, env.arenas[0].dev, a->shadow, a->used);
	}
}

static void check_arenas(unsigned char *const compared[DEVICES])
{
	for (unsigned d = 0; d < DEVICES; d++) {
		struct arena *a = &env.arenas[d];

		copy_or_fail(env.arenas[0].dev, env.back, a->dev, a->mem, a->used);
		for (size_t at = 0, end; at < a->used; at = end) {
			end = at + 65536 < a->used ? at + 65536 : a->used;
			if (!memcmp(env.back + at, a->shadow + at, end - at))
				continue;
			for (size_t i = at; i < end; i++)
				if (env.back[i] != a->shadow[i] && compared[d][i])
					case_fail("byte %zu of %s is %02x, not %02x", i,
						  device_names[d], env.back[i], a->shadow[i]);
		}
	}
}

/* ---- storage ---- */

static void write_all(const unsigned char *from, uint64_t len)
{
	for (uint64_t at = 0; at < len;) {
		ssize_t n = pwrite(env.fd, from + at, len - at, (off_t)at);

		assert_true(n > 0);
		at += (uint64_t)n;
	}
}

static uint64_t random_length(void)
{
	switch (random_below(8)) {
	case 0:
		return random_below(3) * 4096;
	case 1:
		return random_below(70000);
	case 2:
	case 3:
		return random_below(1u << 20);
	case 4:
		return random_below(4u << 20);
	case 5:
		return (1 + random_below(BYTES_MAX / 65536)) * 65536;
	default:
		return 1 + random_below(BYTES_MAX);
	}
}

static void name_file(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(env.name, sizeof(env.name), "%s/penstock-prop-%d",
		 env.kind == MEMORY_FILE ? "/dev/shm"
		 : tmp			 ? tmp
					 : "/tmp",
		 (int)getpid());
}

static void open_file(void)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	name_file();
	env.len = random_length();
	env.writable = env.kind == CREATED || one_in(2);
	env.growing = env.kind == CREATED;
	if (env.kind == CREATED) {
		env.len = env.len ? env.len : 1;
		memset(env.expected, 0, env.len);
		opts.flags = PENSTOCK_O_CREATE;
		opts.length = env.len;
	} else {
		env.fd = open(env.name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		assert_true(env.fd >= 0);
		memcpy(env.expected, random_bytes(env.len), env.len);
		write_all(env.expected, env.len);
		fdatasync(env.fd);
		opts.flags =
			env.writable ? PENSTOCK_O_WRITE : random_below(2) * PENSTOCK_O_IMMUTABLE;
	}
	if (penstock_open(env.name, &opts, &env.st))
		case_fail("opening %s: %s", env.name, penstock_errmsg());
	if (env.kind == CREATED)
		env.fd = open(env.name, O_RDWR);
	assert_true(env.fd >= 0);
}

/* Opens a storage in memory ("mem:") with a random seed. A plain read then returns the initial
 * bytes of this storage. */
static void open_memory_storage(void)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	env.len = 65536 * (1 + random_below(BYTES_MAX / 65536));
	env.writable = true;
	env.fd = -1;
	env.growing = false;
	snprintf(env.name, sizeof(env.name), "mem:%llu?seed=%llu", (unsigned long long)env.len,
		 (unsigned long long)random_below(1000));
	opts.flags = PENSTOCK_O_WRITE;
	if (penstock_open(env.name, &opts, &env.st))
		case_fail("opening %s: %s", env.name, penstock_errmsg());
	assert_int_equal(penstock_read(env.st, env.arenas[0].dev, env.expected, env.len, 0),
			 env.len);
}

/* Determines whether the file system and its drives are on the library's allow-list, so that the
 * library counts no CPU copies for O_DIRECT there. */
static void find_out_listed(void)
{
	struct penstock_explanation out = {.size = sizeof(out)};
	struct penstock_seg seg = {
		.buf = env.arenas[1].mem, .dev = env.arenas[1].dev, .row_len = 1};
	struct penstock_req req;

	req = test_request(env.st, &seg, 1, PENSTOCK_READ);
	assert_int_equal(penstock_explain(&req, &out), 0);
	env.listed = false;
	for (unsigned i = 0; i < out.path_count; i++)
		if (!strcmp(out.paths[i].name, "staged"))
			env.listed =
				out.paths[i].usable && out.paths[i].meets >= PENSTOCK_NO_CPU_COPY;
}

/* Drops random parts of the file from the page cache, and reads other parts into it. */
static void randomize_cache(void)
{
	if (env.fd < 0 || !env.len || one_in(4))
		return;
	if (one_in(3))
		fdatasync(env.fd); /* without this, dirty pages would stay in the page cache */
	if (one_in(3))
		posix_fadvise(env.fd, 0, 0, POSIX_FADV_DONTNEED);
	else if (one_in(2) && pread(env.fd, env.back, env.len, 0) < 0)
		case_fail("pread: %s", strerror(errno));
	for (unsigned n = (unsigned)random_below(6); n; n--) {
		uint64_t off = random_below(env.len),
			 len = 1 + random_below(one_in(3) ? 4u << 20 : 200000);

		if (one_in(2))
			posix_fadvise(env.fd, (off_t)off, (off_t)len, POSIX_FADV_DONTNEED);
		else if (pread(env.fd, env.back, len < ARENA ? len : ARENA, (off_t)off) < 0)
			case_fail("pread: %s", strerror(errno));
	}
}

/* Compares the bytes [off, end) of the storage with the expected bytes. Uses the library only for
 * storage in memory. */
static void check_storage(uint64_t off, uint64_t end)
{
	struct stat stat;

	if (env.fd < 0) { /* Only the library can read a storage in memory. */
		if (penstock_read(env.st, env.arenas[0].dev, env.back, env.len, 0) !=
		    (int64_t)env.len)
			case_fail("reading it back: %s", penstock_errmsg());
		off = 0;
		end = env.len;
	} else {
		assert_int_equal(fstat(env.fd, &stat), 0);
		if (test_marked(env.fd))
			case_fail("the page cache kept what a direct write should have dropped");
		/* A file that grows may be padded to a multiple of 4096 bytes. penstock_commit cuts
		 * it to its length. */
		if ((uint64_t)stat.st_size < env.len ||
		    (uint64_t)stat.st_size > env.len + (env.growing ? 4095 : 0))
			case_fail("the file has %llu bytes, not %llu",
				  (unsigned long long)stat.st_size, (unsigned long long)env.len);
		end = end < env.len ? end : env.len;
		if (off >= end)
			return;
		assert_int_equal(pread(env.fd, env.back, end - off, (off_t)off), end - off);
	}
	if (!memcmp(env.back, env.expected + off, end - off))
		return;
	for (uint64_t i = off; i < end; i++)
		if (env.back[i - off] != env.expected[i])
			case_fail("byte %llu of the storage is %02x, not %02x",
				  (unsigned long long)i, env.back[i - off], env.expected[i]);
}

/* ---- all of it ---- */

/* Makes each operation of the simulated driver take a random time, so that operations complete out
 * of order. */
static void delay_gpu_operations(unsigned max_us)
{
	void (*delay)(unsigned, unsigned long);

	*(void **)&delay = test_standin_symbol("pst_standin_delay");
	if (delay)
		delay(max_us, (unsigned long)random_below(1000) + 1);
}

static void environment_open(uint64_t seed)
{
	env.random = seed * 0x9e3779b97f4a7c15u + 1;
	for (unsigned i = 0; i < 4; i++)
		random_below(1);
	env.text_len = 0;
	describe("PENSTOCK_SEED=%llu\n", (unsigned long long)seed);
	for (unsigned d = 0; d < DEVICES; d++)
		open_device(d);
	delay_gpu_operations(one_in(3) ? 50 : 0);
	assert_int_equal(penstock_queue_open(NULL, &env.queue), 0);
	env.kind = one_in(2) ? DISK : (enum kind)random_below(KINDS);
	if (env.kind == MEM)
		open_memory_storage();
	else
		open_file();
	find_out_listed();
	describe("%s of %llu bytes%s%s\n", kind_names[env.kind], (unsigned long long)env.len,
		 env.writable ? ", writable" : "", env.listed ? ", listed" : "");
}

static void environment_close(void)
{
	check_storage(0, UINT64_MAX);
	if (env.kind == CREATED && penstock_commit(env.st, 0))
		case_fail("commit: %s", penstock_errmsg());
	env.growing = false;
	check_storage(0, UINT64_MAX);
	penstock_close(env.st);
	if (env.fd >= 0) {
		check_storage(0, UINT64_MAX);
		close(env.fd);
		unlink(env.name);
	}
	penstock_queue_close(env.queue);
	for (unsigned d = 0; d < DEVICES; d++)
		close_device(d);
}

#endif
