/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of the property tests: the host and two stand-in GPUs with options by
 * chance, an arena of memory on each with a shadow that says what must be in it, a
 * storage by chance with the bytes that it must have, and a page cache in disorder.
 * Included by test_bytes.c. It must never ask the library what is right.
 */
#ifndef PENSTOCK_TEST_WORLD_H
#define PENSTOCK_TEST_WORLD_H

#include "test.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>

#include "mark.h"
#include "penstock.h"

#define DEVICES 3
#define BYTES_MAX (20u << 20) /* of the storage */
#define ARENA (28u << 20)     /* of each device */

enum kind { DISK, MEMORY_FILE, CREATED, MEM, KINDS };

static const char *const kind_names[] = {"disk", "tmpfs", "created", "mem"};
static const char *const device_names[DEVICES] = {"host", "cuda:0", "cuda:1"};

struct arena {
	struct penstock_device *dev;
	char *mem;
	unsigned char *shadow; /* what must be there */
	size_t used;
};

static struct {
	uint64_t random;
	struct arena arenas[DEVICES];
	struct penstock_queue *queue;
	struct penstock_storage *st;
	enum kind kind;
	bool writable;
	bool growing; /* created, not yet committed */
	bool listed;  /* the block stack: no CPU touches what O_DIRECT moves */
	char name[256];
	int fd;		      /* of our own, -1: mem */
	unsigned char *truth; /* what the storage must have */
	uint64_t len;
	unsigned char *noise; /* 2 * ARENA bytes of it */
	unsigned char *back;
	char text[16384]; /* what is being done, for a failure */
	size_t text_len;
} w;

static uint64_t any(uint64_t below)
{
	return below ? test_random(&w.random) % below : 0;
}

static bool once_in(uint64_t n)
{
	return any(n) == 0;
}

#define wrong(...)                           \
	do {                                 \
		print_error("%s\n", w.text); \
		fail_msg(__VA_ARGS__);       \
	} while (0)

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void tell(const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(w.text + w.text_len, sizeof(w.text) - w.text_len, format, args);
	va_end(args);
	if (n > 0 && w.text_len + (size_t)n < sizeof(w.text))
		w.text_len += (size_t)n;
}

static void make_noise(void)
{
	uint64_t *words, random = 88172645463325252u;

	w.noise = malloc(2 * (size_t)ARENA);
	w.back = aligned_alloc(4096, ARENA);
	w.truth = malloc(BYTES_MAX);
	words = (uint64_t *)(void *)w.noise;
	for (size_t i = 0; i < 2 * (size_t)ARENA / 8; i++)
		words[i] = test_random(&random);
	for (unsigned d = 0; d < DEVICES; d++)
		w.arenas[d].shadow = malloc(ARENA);
}

/* `len` bytes that are unlike those of the last time. */
static const unsigned char *noise(size_t len)
{
	return w.noise + any(2 * (uint64_t)ARENA - len);
}

/* ---- devices ---- */

/* Options of each by chance: pumps of different lanes, slots and engines together. */
static void open_device(unsigned d)
{
	static const size_t slots[] = {0, 64u << 10, 128u << 10, 512u << 10, 1u << 20, 4u << 20};
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct arena *a = &w.arenas[d];
	void *mem;
	int ret;

	opts.lanes = (unsigned)any(4);
	opts.slot_bytes = slots[any(6)];
	if (opts.lanes && opts.slot_bytes && once_in(2))
		opts.ring_bytes = opts.lanes * opts.slot_bytes * (2 + any(3));
	opts.engine = once_in(3) ? "threads" : "auto";
	tell("%s: %u lanes, slot %zu, ring %zu, %s\n", device_names[d], opts.lanes, opts.slot_bytes,
	     opts.ring_bytes, opts.engine);
	ret = penstock_device_open(device_names[d], &opts, &a->dev);
	if (ret) /* 1: it was still open */
		wrong("opening %s: %d %s", device_names[d], ret, penstock_errmsg());
	if (penstock_alloc(a->dev, ARENA, &mem))
		wrong("memory of %s: %s", device_names[d], penstock_errmsg());
	a->mem = mem;
}

static void close_device(unsigned d)
{
	penstock_free(w.arenas[d].dev, w.arenas[d].mem);
	penstock_device_close(w.arenas[d].dev);
}

static void copy(struct penstock_device *to, void *dst, struct penstock_device *from,
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
		wrong("copy: %s", penstock_errmsg());
}

/* Each arena as far as it is used becomes noise, which the shadow knows. */
static void fill_arenas(void)
{
	for (unsigned d = 0; d < DEVICES; d++) {
		struct arena *a = &w.arenas[d];

		memcpy(a->shadow, noise(a->used), a->used);
		copy(a->dev, a->mem, w.arenas[0].dev, a->shadow, a->used);
	}
}

static void check_arenas(unsigned char *const care[DEVICES])
{
	for (unsigned d = 0; d < DEVICES; d++) {
		struct arena *a = &w.arenas[d];

		copy(w.arenas[0].dev, w.back, a->dev, a->mem, a->used);
		for (size_t at = 0, end; at < a->used; at = end) {
			end = at + 65536 < a->used ? at + 65536 : a->used;
			if (!memcmp(w.back + at, a->shadow + at, end - at))
				continue;
			for (size_t i = at; i < end; i++)
				if (w.back[i] != a->shadow[i] && care[d][i])
					wrong("byte %zu of %s is %02x, not %02x", i,
					      device_names[d], w.back[i], a->shadow[i]);
		}
	}
}

/* ---- storage ---- */

static void write_all(const unsigned char *from, uint64_t len)
{
	for (uint64_t at = 0; at < len;) {
		ssize_t n = pwrite(w.fd, from + at, len - at, (off_t)at);

		assert_true(n > 0);
		at += (uint64_t)n;
	}
}

static uint64_t any_length(void)
{
	switch (any(8)) {
	case 0:
		return any(3) * 4096;
	case 1:
		return any(70000);
	case 2:
	case 3:
		return any(1u << 20);
	case 4:
		return any(4u << 20);
	case 5:
		return (1 + any(BYTES_MAX / 65536)) * 65536;
	default:
		return 1 + any(BYTES_MAX);
	}
}

static void name_file(void)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(w.name, sizeof(w.name), "%s/penstock-prop-%d",
		 w.kind == MEMORY_FILE ? "/dev/shm"
		 : tmp		       ? tmp
				       : "/tmp",
		 (int)getpid());
}

static void open_file(void)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	name_file();
	w.len = any_length();
	w.writable = w.kind == CREATED || once_in(2);
	w.growing = w.kind == CREATED;
	if (w.kind == CREATED) {
		w.len = w.len ? w.len : 1;
		memset(w.truth, 0, w.len);
		opts.flags = PENSTOCK_O_CREATE;
		opts.length = w.len;
	} else {
		w.fd = open(w.name, O_RDWR | O_CREAT | O_TRUNC, 0600);
		assert_true(w.fd >= 0);
		memcpy(w.truth, noise(w.len), w.len);
		write_all(w.truth, w.len);
		fdatasync(w.fd);
		opts.flags = w.writable ? PENSTOCK_O_WRITE : any(2) * PENSTOCK_O_IMMUTABLE;
	}
	if (penstock_open(w.name, &opts, &w.st))
		wrong("opening %s: %s", w.name, penstock_errmsg());
	if (w.kind == CREATED)
		w.fd = open(w.name, O_RDWR);
	assert_true(w.fd >= 0);
}

/* Made from its seed: what it has at first is what a plain read gives. */
static void open_mem(void)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;

	w.len = 65536 * (1 + any(BYTES_MAX / 65536));
	w.writable = true;
	w.fd = -1;
	w.growing = false;
	snprintf(w.name, sizeof(w.name), "mem:%llu?seed=%llu", (unsigned long long)w.len,
		 (unsigned long long)any(1000));
	opts.flags = PENSTOCK_O_WRITE;
	if (penstock_open(w.name, &opts, &w.st))
		wrong("opening %s: %s", w.name, penstock_errmsg());
	assert_int_equal(penstock_read(w.st, w.arenas[0].dev, w.truth, w.len, 0), w.len);
}

/* Does the block stack count as one that no CPU touches? */
static void look_at_stack(void)
{
	struct penstock_explanation out = {.size = sizeof(out)};
	struct penstock_seg seg = {.buf = w.arenas[1].mem, .dev = w.arenas[1].dev, .row_len = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = w.st;
	req.segs = &seg;
	req.seg_count = 1;
	assert_int_equal(penstock_explain(&req, &out), 0);
	w.listed = false;
	for (unsigned i = 0; i < out.path_count; i++)
		if (!strcmp(out.paths[i].name, "staged"))
			w.listed =
				out.paths[i].usable && out.paths[i].meets >= PENSTOCK_NO_CPU_COPY;
}

/* Some of the file leaves the page cache, some of it comes. */
static void disturb_cache(void)
{
	if (w.fd < 0 || !w.len || once_in(4))
		return;
	if (once_in(3))
		fdatasync(w.fd); /* what is dirty stays */
	if (once_in(3))
		posix_fadvise(w.fd, 0, 0, POSIX_FADV_DONTNEED);
	else if (once_in(2) && pread(w.fd, w.back, w.len, 0) < 0)
		wrong("pread: %s", strerror(errno));
	for (unsigned n = (unsigned)any(6); n; n--) {
		uint64_t off = any(w.len), len = 1 + any(once_in(3) ? 4u << 20 : 200000);

		if (once_in(2))
			posix_fadvise(w.fd, (off_t)off, (off_t)len, POSIX_FADV_DONTNEED);
		else if (pread(w.fd, w.back, len < ARENA ? len : ARENA, (off_t)off) < 0)
			wrong("pread: %s", strerror(errno));
	}
}

/* [off, end) of the storage against the truth, without the library. */
static void check_storage(uint64_t off, uint64_t end)
{
	struct stat stat;

	if (w.fd < 0) { /* no other way in */
		if (penstock_read(w.st, w.arenas[0].dev, w.back, w.len, 0) != (int64_t)w.len)
			wrong("reading it back: %s", penstock_errmsg());
		off = 0;
		end = w.len;
	} else {
		assert_int_equal(fstat(w.fd, &stat), 0);
		if (test_marked(w.fd))
			wrong("the page cache kept what a direct write should have dropped");
		/* Ours until commit: a tail may have been padded, which is cut off then. */
		if ((uint64_t)stat.st_size < w.len ||
		    (uint64_t)stat.st_size > w.len + (w.growing ? 4095 : 0))
			wrong("the file has %llu bytes, not %llu", (unsigned long long)stat.st_size,
			      (unsigned long long)w.len);
		end = end < w.len ? end : w.len;
		if (off >= end)
			return;
		assert_int_equal(pread(w.fd, w.back, end - off, (off_t)off), end - off);
	}
	if (!memcmp(w.back, w.truth + off, end - off))
		return;
	for (uint64_t i = off; i < end; i++)
		if (w.back[i - off] != w.truth[i])
			wrong("byte %llu of the storage is %02x, not %02x", (unsigned long long)i,
			      w.back[i - off], w.truth[i]);
}

/* ---- all of it ---- */

/* In the stand-in every operation waits a while, by chance: nothing ends in order. */
static void delay_gpus(unsigned max_us)
{
	const char *lib = getenv("PENSTOCK_LIBCUDA");
	void *handle = lib ? dlopen(lib, RTLD_NOW) : NULL;
	void (*delay)(unsigned, unsigned long) = NULL;

	if (!handle)
		return;
	*(void **)&delay = dlsym(handle, "pst_standin_delay");
	if (delay)
		delay(max_us, (unsigned long)any(1000) + 1);
	dlclose(handle);
}

static void open_world(uint64_t seed)
{
	w.random = seed * 0x9e3779b97f4a7c15u + 1;
	for (unsigned i = 0; i < 4; i++)
		any(1);
	w.text_len = 0;
	tell("PENSTOCK_SEED=%llu\n", (unsigned long long)seed);
	for (unsigned d = 0; d < DEVICES; d++)
		open_device(d);
	delay_gpus(once_in(3) ? 50 : 0);
	assert_int_equal(penstock_queue_open(NULL, &w.queue), 0);
	w.kind = once_in(2) ? DISK : (enum kind)any(KINDS);
	if (w.kind == MEM)
		open_mem();
	else
		open_file();
	look_at_stack();
	tell("%s of %llu bytes%s%s\n", kind_names[w.kind], (unsigned long long)w.len,
	     w.writable ? ", writable" : "", w.listed ? ", listed" : "");
}

static void close_world(void)
{
	check_storage(0, UINT64_MAX);
	if (w.kind == CREATED && penstock_commit(w.st, 0))
		wrong("commit: %s", penstock_errmsg());
	w.growing = false;
	check_storage(0, UINT64_MAX);
	penstock_close(w.st);
	if (w.fd >= 0) {
		check_storage(0, UINT64_MAX);
		close(w.fd);
		unlink(w.name);
	}
	penstock_queue_close(w.queue);
	for (unsigned d = 0; d < DEVICES; d++)
		close_device(d);
}

#endif
