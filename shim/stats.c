/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collects and returns the statistics of the cuFile ABI. Every file with exported calls reports
 * its calls to this file. The structs have the layout of the cuFile version that
 * cuFileGetVersion returns, because older headers have shorter structs and nothing may be
 * written past their end. Rates are averages over the time during which statistics were
 * collected. Counting must never fail or block.
 */
#include "stats.h"

#include <string.h>

#include "cuda.h"
#include "abi/cufile_calls.h"
#include "fail.h"
#include "log.h"
#include "state.h"

#define VERSION_WITH_VECTORS 1190
#define BLOCK 4096u

struct direction {
	_Atomic uint64_t bytes, lat_us;
};
struct gpu_direction {
	_Atomic uint64_t bytes, busy_us, total, p2p, nvfs, posix, unaligned, errors;
};
struct gpu {
	struct gpu_direction io[2];
	_Atomic uint64_t map, map_ok, map_err, map_free, map_bytes;
};
static struct {
	/* Number of failures at index 0, of successes at 1. */
	_Atomic uint64_t ops[SHIM_COUNTED][2];
	/* counters of cuFileRead, cuFileWrite, cuFileReadv and cuFileWritev */
	struct direction io[4];
	_Atomic uint64_t batch_bytes[2], batch_last[2];
	_Atomic uint64_t batch_submit_us, batch_complete_us;
	_Atomic uint64_t hist[2][CUF_HIST_BINS];
	struct gpu gpus[CUF_GPUS];
} counters;

_Atomic int shim_stats_level;

/* Guards the variables below. A thread that holds it takes no other lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int level;      /* level that the program or the configuration chose */
static bool level_set; /* whether the program chose the level with cuFileSetStatsLevel */
/* whether collection is switched on; even then, nothing is collected if the level is 0 */
static bool started;
static uint64_t since_ns;     /* start of the current period of collection */
static uint64_t collected_ns; /* total length of the earlier periods of collection */

#define ADD(field, value) atomic_fetch_add_explicit(&(field), (value), memory_order_relaxed)
#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)

/* ---- counting ---- */

void shim_count_(enum shim_counted what, bool ok, uint64_t times)
{
	ADD(counters.ops[what][ok], times);
}

/* Returns the histogram's bin for a length. Bin 0 contains lengths up to 4 KiB, bin 1 up to 8
 * KiB, and so on, doubling each time. */
static unsigned hist_bin(uint64_t len)
{
	uint64_t blocks = len ? (len - 1) / BLOCK : 0;
	unsigned bin = blocks ? 64 - (unsigned)__builtin_clzll(blocks) : 0;

	return bin < CUF_HIST_BINS ? bin : CUF_HIST_BINS - 1;
}

/* Returns the ordinal of the device if it is one of the first CUF_GPUS GPUs, which have counters,
 * else -1. */
static int gpu_ordinal(const struct penstock_device *dev)
{
	for (int i = 0; i < CUF_GPUS; i++)
		if (dev && GET(shim.gpus[i]) == dev)
			return i;
	return -1;
}

/* The kinds of paths for which cuFile's statistics have counters. */
enum path_kind { POSIX, P2P, NVFS };

static enum path_kind path_kind(const char *path)
{
	if (!strcmp(path, "p2p"))
		return P2P;
	return strcmp(path, "vendor") ? POSIX : NVFS;
}

/* Counts one operation in the counters of a GPU. */
static void count_gpu(struct gpu_direction *io, bool ok, bool unaligned,
		      const struct penstock_report *report, uint64_t us)
{
	ADD(io->total, 1);
	ADD(io->busy_us, us);
	if (!ok) {
		ADD(io->errors, 1);
		return;
	}
	if (unaligned)
		ADD(io->unaligned, 1);
	switch (path_kind(report->path)) {
	case P2P:
		ADD(io->p2p, 1);
		break;
	case NVFS:
		ADD(io->nvfs, 1);
		break;
	case POSIX:
		ADD(io->posix, 1);
	}
}

/* Counts one operation once for each GPU whose memory it uses. Adds the bytes of each segment to
 * the counters of the segment's GPU. */
static void count_gpus(enum penstock_op op, int64_t ret, const struct penstock_seg *segs,
		       unsigned count, size_t len, const struct penstock_report *report,
		       uint64_t us)
{
	uint64_t left = ret > 0 ? (uint64_t)ret : 0;
	unsigned seen = 0; /* bitmap of the GPUs for which the operation was already counted */

	for (unsigned i = 0; i < count; i++) {
		uint64_t here = segs[i].row_len < left ? segs[i].row_len : left;
		int gpu = gpu_ordinal(segs[i].dev);
		struct gpu_direction *io = gpu < 0 ? NULL : &counters.gpus[gpu].io[op];

		left -= here;
		if (!io)
			continue;
		ADD(io->bytes, here);
		if (!(seen & 1u << gpu))
			count_gpu(io, ret >= 0, (segs[0].off | len) % BLOCK, report, us);
		seen |= 1u << gpu;
	}
}

void shim_count_io(int now, uint64_t us, enum penstock_op op, bool vector, int64_t ret,
		   const struct penstock_seg *segs, unsigned count, size_t len,
		   const struct penstock_report *report)
{
	unsigned kind = (unsigned)op + (vector ? 2 : 0);
	enum shim_counted what = vector ? SHIM_READV + op : SHIM_READ + op;

	shim_count_(what, ret >= 0, 1);
	if (ret >= 0)
		ADD(counters.io[kind].bytes, (uint64_t)ret);
	ADD(counters.io[kind].lat_us, us);
	if (now >= 2 && ret >= 0)
		ADD(counters.hist[op][hist_bin(len)], 1);
	if (now >= 3 && report)
		count_gpus(op, ret, segs, count, len, report, us);
}

void shim_count_batch_io(enum penstock_op op, int64_t ret, const struct penstock_seg *seg,
			 const struct penstock_report *report)
{
	int now = GET(shim_stats_level);
	uint64_t us;
	bool ok = ret >= 0;

	if (!now)
		return;
	us = (report->end_ns - report->start_ns) / 1000;
	shim_count_(SHIM_BATCH_PROCESSED, ok, 1);
	switch (path_kind(report->path)) {
	case P2P:
		shim_count_(SHIM_BATCH_P2P, ok, 1);
		break;
	case NVFS:
		shim_count_(SHIM_BATCH_NVFS, ok, 1);
		break;
	/* Counts "enqueued" only when the operation has completed, because its path was unknown
	 * earlier. */
	case POSIX:
		shim_count_(SHIM_BATCH_POSIX_ENQUEUED, true, 1);
		shim_count_(SHIM_BATCH_POSIX_PROCESSED, ok, 1);
	}
	if (!strcmp(report->engine, "uring"))
		shim_count_(SHIM_BATCH_URING, ok, 1);
	if (ok)
		ADD(counters.batch_bytes[op], (uint64_t)ret);
	ADD(counters.batch_complete_us, us);
	if (now >= 2 && ok)
		ADD(counters.hist[op][hist_bin(seg->row_len)], 1);
	if (now >= 3)
		count_gpus(op, ret, seg, 1, seg->row_len, report, us);
}

void shim_count_batch_submit(const struct shim_timer *timer, uint64_t read_bytes,
			     uint64_t write_bytes)
{
	if (!timer->level)
		return;
	ADD(counters.batch_submit_us, shim_timer_us(timer));
	atomic_store(&counters.batch_last[0], read_bytes);
	atomic_store(&counters.batch_last[1], write_bytes);
}

void shim_count_map(int ordinal, bool ok, size_t len)
{
	struct gpu *gpu;

	if (ordinal < 0 || ordinal >= CUF_GPUS || !GET(shim_stats_level))
		return;
	gpu = &counters.gpus[ordinal];
	ADD(gpu->map, 1);
	ADD(*(ok ? &gpu->map_ok : &gpu->map_err), 1);
	if (ok)
		ADD(gpu->map_bytes, len);
}

void shim_count_unmap(int ordinal, size_t len)
{
	if (ordinal < 0 || ordinal >= CUF_GPUS || !GET(shim_stats_level))
		return;
	ADD(counters.gpus[ordinal].map_free, 1);
	/* map_bytes does not include a buffer that was registered before collection started, so the
	 * subtraction must not go below 0. */
	if (GET(counters.gpus[ordinal].map_bytes) >= len)
		ADD(counters.gpus[ordinal].map_bytes, -(uint64_t)len);
}

/* ---- start and stop; under lock ---- */

static void collecting_set(bool on, int to)
{
	int was = atomic_load(&shim_stats_level), now = on ? to : 0;

	if (!was && now)
		since_ns = shim_now_ns();
	if (was && !now)
		collected_ns += shim_now_ns() - since_ns;
	started = on;
	level = to;
	atomic_store(&shim_stats_level, now);
}

void shim_stats_opened(const struct shim_config *config)
{
	int wanted = (int)config->size[CUF_PROFILE_STATS];

	pthread_mutex_lock(&lock);
	if (!level_set && wanted > 0)
		collecting_set(true, wanted);
	pthread_mutex_unlock(&lock);
}

static void counters_clear(void)
{
	_Atomic uint64_t *word = (_Atomic uint64_t *)(void *)&counters;

	for (size_t i = 0; i < sizeof(counters) / sizeof(*word); i++)
		atomic_store_explicit(&word[i], 0, memory_order_relaxed);
	collected_ns = 0;
	since_ns = shim_now_ns();
}

void shim_stats_closed(void)
{
	pthread_mutex_lock(&lock);
	counters_clear();
	pthread_mutex_unlock(&lock);
}

void shim_stats_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	counters_clear();
}

struct cuf_error cuFileSetStatsLevel(int to)
{
	if (to < 0 || to > 3)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	collecting_set(started, to);
	level_set = true;
	pthread_mutex_unlock(&lock);
	return shim_ok();
}

struct cuf_error cuFileGetStatsLevel(int *out)
{
	if (!out)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&lock);
	*out = level;
	pthread_mutex_unlock(&lock);
	return shim_ok();
}

static struct cuf_error collecting_switch(bool on)
{
	if (!atomic_load(&shim.open))
		return shim_err(CUF_DRIVER_NOT_INITIALIZED);
	pthread_mutex_lock(&lock);
	collecting_set(on, level);
	pthread_mutex_unlock(&lock);
	return shim_ok();
}

struct cuf_error cuFileStatsStart(void)
{
	return collecting_switch(true);
}

struct cuf_error cuFileStatsStop(void)
{
	return collecting_switch(false);
}

struct cuf_error cuFileStatsReset(void)
{
	if (!atomic_load(&shim.open))
		return shim_err(CUF_DRIVER_NOT_INITIALIZED);
	pthread_mutex_lock(&lock);
	counters_clear();
	pthread_mutex_unlock(&lock);
	return shim_ok();
}

/* ---- the layouts of the ABI ---- */

static uint64_t elapsed_us(void)
{
	uint64_t ns = collected_ns;

	if (atomic_load(&shim_stats_level))
		ns += shim_now_ns() - since_ns;
	return ns / 1000 ? ns / 1000 : 1;
}

static struct cuf_op_counter op_counter(enum shim_counted what)
{
	return (struct cuf_op_counter){GET(counters.ops[what][1]), GET(counters.ops[what][0])};
}

static uint64_t op_total(enum shim_counted what)
{
	return GET(counters.ops[what][0]) + GET(counters.ops[what][1]);
}

static uint64_t average(uint64_t sum, uint64_t count)
{
	return count ? sum / count : 0;
}

static uint64_t per_second(uint64_t amount, uint64_t us)
{
	return (uint64_t)((double)amount * 1e6 / (double)us);
}

static void batch_fill(struct cuf_stats_l1 *s, uint64_t us)
{
	/* The counters of the struct are in the same order as those of enum shim_counted. */
	struct cuf_op_counter *first = &s->batch_submit_ops;

	for (int what = SHIM_BATCH_SUBMIT; what <= SHIM_BATCH_TOTAL; what++)
		first[what - SHIM_BATCH_SUBMIT] = op_counter((enum shim_counted)what);
	s->batch_read_bytes = GET(counters.batch_bytes[0]);
	s->batch_write_bytes = GET(counters.batch_bytes[1]);
	s->batch_read_bw_bytes = per_second(s->batch_read_bytes, us);
	s->batch_write_bw_bytes = per_second(s->batch_write_bytes, us);
	s->batch_submit_lat_sum_us = GET(counters.batch_submit_us);
	s->batch_completion_lat_sum_us = GET(counters.batch_complete_us);
	s->batch_submit_lat_avg_us =
		average(s->batch_submit_lat_sum_us, op_total(SHIM_BATCH_SUBMIT));
	s->batch_completion_lat_avg_us =
		average(s->batch_completion_lat_sum_us, op_total(SHIM_BATCH_PROCESSED));
	s->batch_submit_ops_per_sec = per_second(op_total(SHIM_BATCH_SUBMIT), us);
	s->batch_complete_ops_per_sec = per_second(op_total(SHIM_BATCH_PROCESSED), us);
	s->last_batch_read_bytes = GET(counters.batch_last[0]);
	s->last_batch_write_bytes = GET(counters.batch_last[1]);
}

static void l1_fill(struct cuf_stats_l1 *s, uint64_t us)
{
	s->read_ops = op_counter(SHIM_READ);
	s->write_ops = op_counter(SHIM_WRITE);
	s->hdl_register_ops = op_counter(SHIM_HDL_REGISTER);
	s->hdl_deregister_ops = op_counter(SHIM_HDL_DEREGISTER);
	s->buf_register_ops = op_counter(SHIM_BUF_REGISTER);
	s->buf_deregister_ops = op_counter(SHIM_BUF_DEREGISTER);
	s->read_bytes = GET(counters.io[0].bytes);
	s->write_bytes = GET(counters.io[1].bytes);
	s->read_bw_bytes_per_sec = per_second(s->read_bytes, us);
	s->write_bw_bytes_per_sec = per_second(s->write_bytes, us);
	s->read_lat_sum_us = GET(counters.io[0].lat_us);
	s->write_lat_sum_us = GET(counters.io[1].lat_us);
	s->read_lat_avg_us = average(s->read_lat_sum_us, op_total(SHIM_READ));
	s->write_lat_avg_us = average(s->write_lat_sum_us, op_total(SHIM_WRITE));
	s->read_ops_per_sec = per_second(op_total(SHIM_READ), us);
	s->write_ops_per_sec = per_second(op_total(SHIM_WRITE), us);
	batch_fill(s, us);
}

static void vectors_fill(struct cuf_stats_v *s, uint64_t us)
{
	s->readv_ops = op_counter(SHIM_READV);
	s->writev_ops = op_counter(SHIM_WRITEV);
	s->readv_bytes = GET(counters.io[2].bytes);
	s->writev_bytes = GET(counters.io[3].bytes);
	s->readv_bw_bytes_per_sec = per_second(s->readv_bytes, us);
	s->writev_bw_bytes_per_sec = per_second(s->writev_bytes, us);
	s->readv_lat_sum_us = GET(counters.io[2].lat_us);
	s->writev_lat_sum_us = GET(counters.io[3].lat_us);
	s->readv_lat_avg_us = average(s->readv_lat_sum_us, op_total(SHIM_READV));
	s->writev_lat_avg_us = average(s->writev_lat_sum_us, op_total(SHIM_WRITEV));
	s->readv_ops_per_sec = per_second(op_total(SHIM_READV), us);
	s->writev_ops_per_sec = per_second(op_total(SHIM_WRITEV), us);
}

static uint64_t percent(uint64_t busy, uint64_t us)
{
	return busy >= us ? 100 : busy * 100 / us;
}

static void gpu_fill(struct cuf_gpu_stats *s, int ordinal, uint64_t us)
{
	struct gpu *gpu = &counters.gpus[ordinal];
	struct gpu_direction *r = &gpu->io[0], *w = &gpu->io[1];

	shim_cuda_uuid(ordinal, s->uuid);
	s->read_bytes = GET(r->bytes);
	s->read_bw_bytes_per_sec = per_second(s->read_bytes, us);
	s->read_duration_us = GET(r->busy_us);
	s->read_utilization = percent(s->read_duration_us, us);
	s->n_total_reads = GET(r->total);
	s->n_p2p_reads = GET(r->p2p);
	s->n_nvfs_reads = GET(r->nvfs);
	s->n_posix_reads = GET(r->posix);
	s->n_unaligned_reads = GET(r->unaligned);
	s->n_reads_err = GET(r->errors);
	s->writes_bytes = GET(w->bytes);
	s->write_bw_bytes_per_sec = per_second(s->writes_bytes, us);
	s->write_duration_us = GET(w->busy_us);
	s->write_utilization = percent(s->write_duration_us, us);
	s->n_total_writes = GET(w->total);
	s->n_p2p_writes = GET(w->p2p);
	s->n_nvfs_writes = GET(w->nvfs);
	s->n_posix_writes = GET(w->posix);
	s->n_unaligned_writes = GET(w->unaligned);
	s->n_writes_err = GET(w->errors);
	s->n_mmap = GET(gpu->map);
	s->n_mmap_ok = GET(gpu->map_ok);
	s->n_mmap_err = GET(gpu->map_err);
	s->n_mmap_free = GET(gpu->map_free);
	s->reg_bytes = GET(gpu->map_bytes);
}

/* Copies one part of the statistics to `at`. Returns the address after it, for the next part. */
static void *part_append(void *at, const void *from, size_t len)
{
	memcpy(at, from, len);
	return (char *)at + len;
}

/* Logs once that the statistics have the layout of version 1.19, which is longer than that of 1.18.
 * The calls that return statistics have no argument for the length. If a program was built for an
 * earlier version, these calls write past the end of its struct. Such a program aborts later, in
 * free(3). */
static void layout_log_once(void)
{
	static atomic_bool logged;
	int version = shim_version();

	if (!atomic_exchange(&logged, true))
		shim_log(
			SHIM_NOTICE,
			"PENSTOCK_CUFILE_VERSION is 1.%d: the statistics are %zu bytes longer than "
			"those of version 1.18, and a program that was built for version 1.18 or "
			"earlier has no memory for them",
			version % 1000 / 10, sizeof(struct cuf_stats_v));
}

static struct cuf_error stats_get(void *out, int wanted)
{
	struct cuf_stats_l1 l1 = {0};
	struct cuf_stats_v vectors = {0};
	struct cuf_stats_hist hist;
	struct cuf_stats_gpus gpus = {0};
	uint64_t us;
	int count;

	if (!atomic_load(&shim.open))
		return shim_err(CUF_DRIVER_NOT_INITIALIZED);
	shim_harvest();
	pthread_mutex_lock(&lock);
	us = elapsed_us();
	if (level < wanted)
		out = NULL;
	pthread_mutex_unlock(&lock);
	if (!out)
		return shim_err(CUF_INVALID_VALUE);
	l1_fill(&l1, us);
	out = part_append(out, &l1, sizeof(l1));
	vectors_fill(&vectors, us);
	if (shim_version() >= VERSION_WITH_VECTORS) {
		layout_log_once();
		out = part_append(out, &vectors, sizeof(vectors));
	}
	if (wanted < 2)
		return shim_ok();
	for (unsigned i = 0; i < CUF_HIST_BINS; i++) {
		hist.read_size_kb[i] = GET(counters.hist[0][i]);
		hist.write_size_kb[i] = GET(counters.hist[1][i]);
	}
	out = part_append(out, &hist, sizeof(hist));
	if (wanted < 3)
		return shim_ok();
	count = shim_cuda_count();
	gpus.num_gpus = (uint32_t)(count < CUF_GPUS ? count : CUF_GPUS);
	for (int i = 0; i < (int)gpus.num_gpus; i++)
		gpu_fill(&gpus.gpu[i], i, us);
	part_append(out, &gpus, sizeof(gpus));
	return shim_ok();
}

struct cuf_error cuFileGetStatsL1(void *stats)
{
	return stats_get(stats, 1);
}

struct cuf_error cuFileGetStatsL2(void *stats)
{
	return stats_get(stats, 2);
}

struct cuf_error cuFileGetStatsL3(void *stats)
{
	return stats_get(stats, 3);
}
