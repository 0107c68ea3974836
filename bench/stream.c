/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures stream-ordered reads. The program submits many reads and then waits for the stream, as
 * programs do that keep a KV cache in a file. For comparison, it submits the same reads to a
 * queue, makes them by synchronous calls, and copies pinned memory alone. In most cases, the
 * streams are idle when the program submits the reads. In the case `held`, the streams wait until
 * all reads are submitted. Early reads have the flag PENSTOCK_R_EARLY: the library reads the file
 * before the stream reaches the read. Section `stream_beside` measures how much stream-ordered
 * reads slow a compute kernel on another stream.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

#define COUNT_MAX 128u
#define STREAMS 8u
/* Bytes of one batch of reads. A batch also has at most COUNT_MAX reads, because a hardware queue
 * holds about 1,020 operations, and each short read takes 4 of them. */
#define BATCH_BYTES (256 * MIB)

struct stream_run {
	const struct pst_cuda *api;
	struct pst_cu_stream *streams[STREAMS];
	/* `st` is the storage of the row that is measured: `cold` for uncached bytes. `cold` stays
	 * open, because the library measures which length of read calls suits the drive, and it
	 * forgets the result when the storage is closed. */
	struct penstock_storage *st, *cold;
	struct penstock_queue *q;
	struct penstock_req reqs[COUNT_MAX];
	struct penstock_seg segs[COUNT_MAX];
	struct penstock_late late[COUNT_MAX];
	uint64_t late_len[COUNT_MAX], late_off[COUNT_MAX], late_buf[COUNT_MAX];
	const char *path;
	struct penstock_done done[COUNT_MAX];
	/* Two numbers in pinned memory. In the case `held`, the streams wait until word[0] reaches
	 * `turn`. In calls_row(), the streams write word[1]. */
	uint64_t *word;
	uint64_t turn;
	uint64_t submit_ns, slowest_ns; /* time of all submits of a batch, and of the slowest */
};

enum how {
	ONE_CALL,
	QUEUE,
	STREAM_ONE,
	STREAM_ONE_EARLY,
	STREAM_MANY,
	STREAM_EARLY,
	STREAM_LATE,
	STREAM_HELD,
	HOWS
};
static const char *const names[HOWS] = {"one call",	  "queue",	   "1 stream",
					"1 stream early", "8 streams",	   "8 streams early",
					"8 streams late", "8 streams held"};

static void reads_aim(struct bench *b, struct stream_run *r, enum how how, uint64_t len,
		      unsigned count)
{
	bool late = how == STREAM_LATE, one = how == STREAM_ONE || how == STREAM_ONE_EARLY;

	for (unsigned i = 0; i < count; i++) {
		/* Consecutive reads are far apart, in an order that the kernel's readahead does
		 * not recognise. */
		uint64_t off = (uint64_t)i * 37 % count * len;

		r->segs[i] = (struct penstock_seg){.buf = b->gpu,
						   .buf_off = late ? 0 : off,
						   .dev = b->dev,
						   .off = late ? 0 : off,
						   .row_len = len};
		r->reqs[i] = (struct penstock_req)PENSTOCK_REQ_INIT;
		r->reqs[i].storage = r->st;
		r->reqs[i].segs = &r->segs[i];
		r->reqs[i].seg_count = 1;
		r->reqs[i].effort = PENSTOCK_FAST;
		r->reqs[i].user = &r->segs[i];
		if (how < STREAM_ONE)
			continue;
		r->reqs[i].stream = r->streams[one ? 0 : i % STREAMS];
		if (how == STREAM_ONE_EARLY || how == STREAM_EARLY)
			r->reqs[i].flags = PENSTOCK_R_EARLY;
		r->late_len[i] = len;
		r->late_off[i] = r->late_buf[i] = off;
		r->late[i] = (struct penstock_late){.size = sizeof(r->late[i]),
						    .row_len = &r->late_len[i],
						    .off = &r->late_off[i],
						    .buf_off = &r->late_buf[i]};
		r->reqs[i].late = late ? &r->late[i] : NULL;
	}
}

static int reads_harvest(struct stream_run *r, unsigned count, uint64_t len)
{
	while (count) {
		int n = penstock_wait(r->q, r->done, 1, count, -1);

		for (int i = 0; i < n; i++) {
			if (r->done[i].result != (int64_t)len)
				return -EIO;
			r->path = r->done[i].report->path;
		}
		if (n < 0)
			return n;
		count -= (unsigned)n;
	}
	return 0;
}

/* Makes all reads of one batch in the way `how`, and waits until their bytes have arrived.
 * Returns 0 or -errno. */
static int reads_make(struct stream_run *r, enum how how, uint64_t len, unsigned count)
{
	unsigned harvested = 0;
	int ret = 0;

	if (how == ONE_CALL) {
		struct penstock_report report = PENSTOCK_REPORT_INIT;

		for (unsigned i = 0; i < count; i++)
			if (penstock_transfer(&r->reqs[i], &report) != (int64_t)len)
				return -EIO;
		r->path = report.path;
		return 0;
	}
	if (how == STREAM_HELD)
		r->turn++;
	for (unsigned i = 0; how == STREAM_HELD && i < STREAMS; i++)
		ret |= gpu_bad("wait",
			       (int)r->api->cuStreamWaitValue64(r->streams[i], (uintptr_t)r->word,
								r->turn, PST_CU_WAIT_GEQ));
	r->submit_ns = r->slowest_ns = 0;
	for (unsigned i = 0; i < count && !ret; i++) {
		uint64_t began = meter_ns(), took;
		int n = penstock_submit(r->q, &r->reqs[i], 1, NULL);

		took = meter_ns() - began;
		r->submit_ns += took;
		r->slowest_ns = took > r->slowest_ns ? took : r->slowest_ns;
		/* -EAGAIN: the stream or the device has too many reads in flight. Waits until an
		 * earlier read has completed, then submits this read again. */
		if (n == -EAGAIN && how != STREAM_HELD) {
			ret = reads_harvest(r, 1, len);
			harvested += !ret;
			i--;
			continue;
		}
		ret = n == 1 ? 0 : -EIO;
	}
	if (how == STREAM_HELD)
		__atomic_store_n(r->word, r->turn, __ATOMIC_RELEASE);
	for (unsigned i = 0; how >= STREAM_ONE && i < STREAMS; i++)
		ret |= gpu_bad("synchronize", (int)r->api->cuStreamSynchronize(r->streams[i]));
	return ret ? ret : reads_harvest(r, count - harvested, len);
}

/* Drops the whole file from the page cache. The kernel drops only whole folios (groups of pages),
 * so parts of a short range could stay cached. Tries for up to a second, because the library
 * unregisters the file's pages a moment after penstock_close. */
static int cache_drop_soon(int fd, uint64_t len)
{
	uint64_t until = meter_ns() + 1000000000;
	int ret = cache_drop(fd, 0, len);

	while (ret == -EBUSY && meter_ns() < until)
		ret = cache_drop(fd, 0, len);
	return ret;
}

/* Opens the storage for cached bytes again, or chooses the one for uncached bytes. The library
 * unregisters the page cache of a closed storage, so that the kernel can then drop it. */
static int storage_choose(struct bench *b, struct stream_run *r, bool cached)
{
	if (r->st != r->cold)
		penstock_close(r->st);
	r->st = r->cold;
	return cached ? penstock_open(b->file, NULL, &r->st) : 0;
}

/* Measures one batch of reads in the way `how`, and writes one row of the CSV. */
static int reads_row(struct bench *b, struct stream_run *r, enum how how, uint64_t len,
		     unsigned count, bool cached, unsigned rep)
{
	struct sample s = {0};
	char group[64];
	struct meter m;
	int ret, fd;

	ret = storage_choose(b, r, cached);
	fd = drive_open(b->file, false);
	if (ret || fd < 0)
		return ret ? ret : fd;
	ret = cached ? cache_warm(fd, 0, count * len) : cache_drop_soon(fd, b->len);
	reads_aim(b, r, how, len, count);
	gpu_poison(b, count * len);
	if (!ret) {
		meter_start(&m);
		ret = reads_make(r, how, len, count);
		meter_stop(&m, &s);
		meter_settle(&m, &s);
	}
	if (ret) {
		bench_bad(b, "%s, %llu bytes: %s", names[how], (unsigned long long)len,
			  penstock_errmsg());
	} else {
		if (!gpu_same(b, b->file, 0, count * len))
			bench_bad(b, "%s, %llu bytes: wrong bytes", names[how],
				  (unsigned long long)len);
		s.bytes = count * len;
		s.ops = count;
		snprintf(s.path, sizeof(s.path), "%s", r->path);
		if (how != ONE_CALL)
			snprintf(s.note, sizeof(s.note), "submit %.2f us slowest %.1f us",
				 (double)r->submit_ns * 1e-3 / count, (double)r->slowest_ns * 1e-3);
		snprintf(group, sizeof(group), "stream %s %llu KiB", cached ? "cached" : "cold",
			 (unsigned long long)(len / KIB));
		meter_row(b, group, names[how], rep, &s);
	}
	close(fd);
	return ret;
}

/*
 * Measures how fast a stream can deliver reads with the fewest driver calls. For each read, queues
 * a copy from pinned memory and the write of a word. The CPU learns by this write that it can fill
 * the memory again. Nobody reads the file. So a library that makes one copy for each read cannot
 * deliver reads in stream order faster than this.
 */
static int calls_row(struct bench *b, struct stream_run *r, uint64_t len, unsigned count,
		     unsigned rep)
{
	const uint64_t ring = 128 * MIB < count * len ? 128 * MIB : count * len;
	struct sample s = {.bytes = count * len, .ops = count};
	char *mem = gpu_pinned_mem(ring), group[64];
	uintptr_t word = (uintptr_t)r->word;
	struct meter m;
	int rc = 0;

	if (!mem)
		return -ENOMEM;
	meter_start(&m);
	for (unsigned i = 0; i < count && !rc; i++) {
		struct pst_cu_stream *stream = r->streams[i % STREAMS];
		uint64_t at = i * len;

		rc = (int)r->api->cuMemcpyHtoDAsync((uintptr_t)b->gpu + at, mem + at % ring, len,
						    stream);
		if (!rc)
			rc = (int)r->api->cuStreamWriteValue64(stream, word + sizeof(*r->word), 1,
							       PST_CU_WRITE_DEFAULT);
	}
	for (unsigned i = 0; i < STREAMS && !rc; i++)
		rc = (int)r->api->cuStreamSynchronize(r->streams[i]);
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	if (rc)
		return gpu_bad("plain calls in stream order", rc);
	snprintf(group, sizeof(group), "stream cached %llu KiB", (unsigned long long)(len / KIB));
	meter_row(b, group, "limit: calls alone", rep, &s);
	return 0;
}

/* Measures what bounds reads in stream order: copies of pinned memory alone, the driver's calls for
 * each read, and eight threads that, in any order, read cached pieces of the file into pinned
 * memory and copy them. A piece has `len` bytes, but at most 4 MiB. */
static int limit_rows(struct bench *b, struct stream_run *r, uint64_t len, unsigned count,
		      unsigned rep)
{
	const struct mixed_way way = {.threads = 8, .piece = len < 4 * MIB ? len : 4 * MIB};
	struct sample s = {.bytes = count * len};
	int ret, fd = open(b->file, O_RDONLY | O_CLOEXEC);
	char group[64];

	if (fd < 0)
		return -errno;
	s.seconds = gpu_pinned(b, s.bytes, true);
	snprintf(group, sizeof(group), "stream cached %llu KiB", (unsigned long long)(len / KIB));
	meter_row(b, group, "limit: copies of pinned memory", rep, &s);
	ret = calls_row(b, r, len, count, rep);
	if (!ret)
		ret = cache_warm(fd, 0, count * len);
	if (!ret)
		ret = gpu_mixed_row(b, group, "limit: plain reads", rep, fd, count * len, &way);
	close(fd);
	return ret;
}

static int run_open(struct bench *b, struct stream_run *r)
{
	int ret;

	r->api = gpu_get()->api;
	ret = gpu_bad("pinned word",
		      (int)r->api->cuMemHostAlloc((void **)&r->word, 2 * sizeof(*r->word),
						  PST_CU_HOST_PORTABLE | PST_CU_HOST_MAPPED));
	if (!ret) {
		*r->word = r->turn = 0;
		ret = penstock_open(b->file, NULL, &r->cold);
		r->st = r->cold;
	}
	if (!ret)
		ret = penstock_queue_open(NULL, &r->q);
	for (unsigned i = 0; i < STREAMS && !ret; i++)
		ret = gpu_bad("stream", (int)r->api->cuStreamCreateWithPriority(
						&r->streams[i], PST_CU_STREAM_NON_BLOCKING, 0));
	return ret;
}

static void run_close(struct stream_run *r)
{
	penstock_queue_close(r->q);
	if (r->st != r->cold)
		penstock_close(r->st);
	penstock_close(r->cold);
	r->api->cuMemFreeHost(r->word);
	for (unsigned i = 0; i < STREAMS && r->streams[i]; i++)
		r->api->cuStreamDestroy(r->streams[i]);
}

/* Reads the file from the drive until the library has measured which length of read calls suits the
 * drive: it needs about 256 MiB for this. */
static int lengths_measure(struct bench *b, struct stream_run *r)
{
	const unsigned count = BATCH_BYTES / (4 * MIB);
	int ret = 0;

	for (unsigned round = 0; round < 3 && !ret && BATCH_BYTES <= b->len; round++) {
		int fd = drive_open(b->file, false);

		ret = fd < 0 ? fd : cache_drop_soon(fd, b->len);
		reads_aim(b, r, QUEUE, 4 * MIB, count);
		if (!ret)
			ret = reads_make(r, QUEUE, 4 * MIB, count);
		if (fd >= 0)
			close(fd);
	}
	return ret;
}

/* Returns whether b->only selects the row. */
static bool row_wanted(const struct bench *b, enum how how, uint64_t len, bool cached)
{
	char name[64];

	snprintf(name, sizeof(name), "%s %llu KiB %s", cached ? "cached" : "cold",
		 (unsigned long long)(len / KIB), names[how]);
	return !b->only || !strcmp(b->only, name);
}

/* Reads the bytes twice, so that they are in the page cache, and the kernel has moved their pages
 * to its list of active pages. It moves a page there at the second read, which takes time. So the
 * measured reads, and those that measure a limit, find the pages in the same state. */
static int cache_activate(const struct bench *b, uint64_t len)
{
	const size_t piece = MIB;
	char *mem = malloc(piece);
	int fd = open(b->file, O_RDONLY | O_CLOEXEC), ret = fd < 0 ? -errno : 0;

	if (!mem)
		ret = -ENOMEM;
	if (!ret)
		ret = cache_warm(fd, 0, len);
	for (unsigned round = 0; round < 2; round++)
		for (uint64_t at = 0; at < len && !ret; at += piece)
			if (pread(fd, mem, piece, (off_t)at) < 0)
				ret = -errno;
	free(mem);
	close(fd);
	return ret;
}

/* Measures the reads of `len` bytes in all ways. Each repetition begins with another way, because a
 * virtual drive can be faster after a pause. */
static int ways_rows(struct bench *b, struct stream_run *r, uint64_t len, unsigned count,
		     bool cached, unsigned rep)
{
	int ret = 0;

	for (unsigned i = 0; i < HOWS && !ret; i++) {
		enum how how = (enum how)((i + rep) % HOWS);

		if (row_wanted(b, how, len, cached))
			ret = reads_row(b, r, how, len, count, cached, rep);
	}
	return ret;
}

/* Measures all reads of `len` bytes: first cached reads and their limits, then uncached ones. The
 * page cache is not dropped between the rows of cached reads. */
static int batch_rows(struct bench *b, struct stream_run *r, uint64_t len, unsigned count,
		      unsigned rep)
{
	int ret = cache_activate(b, count * len);

	if (!ret)
		ret = ways_rows(b, r, len, count, true, rep);
	if (!ret && !b->only)
		ret = limit_rows(b, r, len, count, rep);
	if (!ret)
		ret = ways_rows(b, r, len, count, false, rep);
	return ret;
}

static int section_stream(struct bench *b)
{
	static const uint64_t lens[] = {4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB};
	static struct stream_run r;
	int ret = run_open(b, &r);

	/* The first requests start the library's threads, allocate pinned memory and load its CUDA
	 * kernel, so they are not measured. */
	for (unsigned how = 0; how < HOWS && !ret; how++) {
		reads_aim(b, &r, (enum how)how, MIB, 16);
		ret = reads_make(&r, (enum how)how, MIB, 16);
	}
	if (!ret)
		ret = lengths_measure(b, &r);
	for (unsigned rep = 0; rep < b->reps && !ret; rep++)
		for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]) && !ret; i++) {
			uint64_t count = BATCH_BYTES / lens[i];

			count = count < COUNT_MAX ? count : COUNT_MAX;
			if (count * lens[i] > b->len)
				count = b->len / lens[i];
			ret = batch_rows(b, &r, lens[i], (unsigned)count, rep);
		}
	run_close(&r);
	return ret;
}

/* A kernel that only computes. On an H200, its blocks fill all multiprocessors ten times (10
 * waves). */
static const char burn_ptx[] =
	".version 6.3\n.target sm_70\n.address_size 64\n"
	".visible .entry burn(.param .u32 turns, .param .u64 out)\n{\n"
	".reg .pred %p, %q;\n.reg .u64 %o;\n.reg .u32 %i, %n;\n.reg .f32 %a, %b;\n"
	"ld.param.u32 %n, [turns];\nmov.u32 %i, 0;\nmov.f32 %a, 0f3F800000;\n"
	"mov.f32 %b, 0f3F800001;\nL:\nfma.rn.f32 %a, %a, %b, %b;\nfma.rn.f32 %b, %b, %a, %a;\n"
	"add.u32 %i, %i, 1;\nsetp.lt.u32 %p, %i, %n;\n@%p bra L;\n"
	"ld.param.u64 %o, [out];\nsetp.eq.f32 %q, %a, 0f12345678;\n"
	"@%q st.global.f32 [%o], %b;\nret;\n}\n";

struct beside {
	const struct pst_cuda *api;
	struct pst_cu_ctx *ctx;
	struct pst_cu_stream *stream;
	_Atomic uint64_t done; /* time in ns at which all kernels were done; 0 until then */
};

static void *await_kernels(void *arg)
{
	struct beside *beside = arg;

	beside->api->cuCtxSetCurrent(beside->ctx);
	while (beside->api->cuStreamQuery(beside->stream) == PST_CU_NOT_READY)
		usleep(20);
	beside->done = meter_ns();
	return NULL;
}

/* Measures the time of a fixed number of kernels, alone or during reads on other streams. */
static int beside_row(struct bench *b, struct stream_run *r, struct pst_cu_function *burn,
		      struct pst_cu_stream *stream, int how, unsigned rep)
{
	unsigned turns = 2000, submitted = 0, count = 64;
	uint64_t out = (uintptr_t)b->gpu;
	void *args[] = {&turns, &out};
	struct beside beside = {r->api, gpu_get()->ctx, stream, 0};
	struct sample s = {0};
	pthread_t thread;
	struct meter m;
	int ret = 0;

	if (how >= 0)
		reads_aim(b, r, (enum how)how, MIB, count);
	reads_make(r, how < 0 ? QUEUE : (enum how)how, MIB, how < 0 ? 0 : count);
	meter_start(&m);
	for (unsigned i = 0; i < 200 && !ret; i++)
		ret = gpu_bad("launch", (int)r->api->cuLaunchKernel(burn, 10560, 1, 1, 256, 1, 1, 0,
								    stream, args, NULL));
	if (!ret)
		ret = gpu_bad("thread", pthread_create(&thread, NULL, await_kernels, &beside));
	if (ret)
		return ret;
	while (!ret && how >= 0 && !beside.done) {
		ret = reads_make(r, (enum how)how, MIB, count);
		submitted += count;
	}
	pthread_join(thread, NULL);
	s.seconds = (double)(beside.done - m.began_ns) * 1e-9;
	s.ops = submitted;
	s.bytes = submitted * MIB;
	meter_row(b, "stream beside kernels", how < 0 ? "no reads" : names[how], rep, &s);
	return ret;
}

static int section_stream_beside(struct bench *b)
{
	static const int hows[] = {-1, QUEUE, STREAM_MANY, STREAM_EARLY, STREAM_LATE, STREAM_HELD};
	static struct stream_run r;
	struct pst_cu_function *burn = NULL;
	struct pst_cu_module *module = NULL;
	struct pst_cu_stream *stream = NULL;
	int ret = run_open(b, &r), fd = drive_open(b->file, false);

	if (!ret)
		ret = fd < 0 ? fd : cache_warm(fd, 0, 64 * MIB);
	if (!ret)
		ret = gpu_bad("module", (int)r.api->cuModuleLoadData(&module, burn_ptx));
	if (!ret)
		ret = gpu_bad("kernel", (int)r.api->cuModuleGetFunction(&burn, module, "burn"));
	if (!ret)
		ret = gpu_bad("stream", (int)r.api->cuStreamCreateWithPriority(
						&stream, PST_CU_STREAM_NON_BLOCKING, 0));
	for (unsigned rep = 0; rep < b->reps && !ret; rep++)
		for (unsigned i = 0; i < sizeof(hows) / sizeof(hows[0]) && !ret; i++)
			ret = beside_row(b, &r, burn, stream, hows[i], rep);
	if (stream)
		r.api->cuStreamDestroy(stream);
	if (module)
		r.api->cuModuleUnload(module);
	close(fd);
	run_close(&r);
	return ret;
}

const struct bench_section bench_stream[] = {
	{"stream", "many stream-ordered reads, then one wait", true, section_stream},
	{"stream_beside", "stream-ordered reads beside compute kernels", true,
	 section_stream_beside},
	{NULL, NULL, false, NULL},
};
