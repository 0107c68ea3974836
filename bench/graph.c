/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures reads in CUDA graphs: the time from the launch of a graph with one read until the
 * stream is idle. For comparison, the program submits the same read in stream order each time. Both
 * kinds of reads have fixed values or late values (the library reads length and offsets when the
 * stream reaches the read). Reads follow each other without a pause, or with pauses of 5 ms, as
 * between the tokens of a language model. The bytes are cached, so the drive has no influence.
 * The last two rows have the CPU time of the process in an idle second: first without a graph, then
 * with a graph that the program does not launch.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

#define TURNS 1000u
#define TURNS_SLOW 200u
#define PAUSE_US 5000u

struct pst_cu_graph_exec;

/* Functions of the CUDA driver for graphs, which this program calls and the library does not. */
static struct {
	enum pst_cu_result (*begin)(struct pst_cu_stream *, enum pst_cu_capture_mode);
	enum pst_cu_result (*end)(struct pst_cu_stream *, struct pst_cu_graph **);
	enum pst_cu_result (*instantiate)(struct pst_cu_graph_exec **, struct pst_cu_graph *,
					  unsigned long long);
	enum pst_cu_result (*launch)(struct pst_cu_graph_exec *, struct pst_cu_stream *);
	enum pst_cu_result (*exec_destroy)(struct pst_cu_graph_exec *);
	enum pst_cu_result (*destroy)(struct pst_cu_graph *);
} graphs;

static int graphs_load(void)
{
	const char *name = getenv("PENSTOCK_LIBCUDA");
	void *driver = dlopen(name && *name ? name : "libcuda.so.1", RTLD_NOW);

	if (!driver)
		return -ENOSYS;
	*(void **)&graphs.begin = dlsym(driver, "cuStreamBeginCapture_v2");
	*(void **)&graphs.end = dlsym(driver, "cuStreamEndCapture");
	*(void **)&graphs.instantiate = dlsym(driver, "cuGraphInstantiateWithFlags");
	*(void **)&graphs.launch = dlsym(driver, "cuGraphLaunch");
	*(void **)&graphs.exec_destroy = dlsym(driver, "cuGraphExecDestroy");
	*(void **)&graphs.destroy = dlsym(driver, "cuGraphDestroy");
	return graphs.begin && graphs.end && graphs.instantiate && graphs.launch &&
			       graphs.exec_destroy && graphs.destroy
		       ? 0
		       : -ENOSYS;
}

struct graph_run {
	const struct pst_cuda *api;
	struct pst_cu_stream *stream;
	struct penstock_storage *st;
	struct penstock_queue *q;
	struct penstock_seg seg;
	struct penstock_late late;
	struct penstock_req req;
	uint64_t late_len, late_off, late_buf;
	int64_t result;
	struct pst_cu_graph *graph;
	struct pst_cu_graph_exec *exec; /* Graph to launch; NULL to submit each read instead. */
};

static void read_aim(const struct bench *b, struct graph_run *r, uint64_t len, bool late)
{
	r->seg = (struct penstock_seg){.buf = b->gpu, .dev = b->dev, .row_len = len};
	r->late = (struct penstock_late){.size = sizeof(r->late), .result = &r->result};
	if (late) {
		r->late.row_len = &r->late_len;
		r->late.off = &r->late_off;
		r->late.buf_off = &r->late_buf;
	}
	r->late_len = len;
	r->late_off = r->late_buf = 0;
	r->req = (struct penstock_req)PENSTOCK_REQ_INIT;
	r->req.storage = r->st;
	r->req.segs = &r->seg;
	r->req.seg_count = 1;
	r->req.effort = PENSTOCK_FAST;
	r->req.flags = PENSTOCK_R_DETACHED;
	r->req.stream = r->stream;
	r->req.late = &r->late;
}

static int graph_capture(struct graph_run *r)
{
	int ret = gpu_bad("capture", (int)graphs.begin(r->stream, PST_CU_CAPTURE_GLOBAL));

	if (!ret && penstock_submit(r->q, &r->req, 1, NULL) != 1) {
		fprintf(stderr, "capture: %s\n", penstock_errmsg());
		ret = -EIO;
	}
	if (!ret)
		ret = gpu_bad("end of capture", (int)graphs.end(r->stream, &r->graph));
	if (!ret)
		ret = gpu_bad("executable", (int)graphs.instantiate(&r->exec, r->graph, 0));
	return ret;
}

static void graph_drop(struct graph_run *r)
{
	if (r->exec)
		graphs.exec_destroy(r->exec);
	if (r->graph)
		graphs.destroy(r->graph);
	r->exec = NULL;
	r->graph = NULL;
}

/* Launches the graph if there is one, or submits the read. Waits until the stream is idle. */
static int read_once(struct graph_run *r, uint64_t len)
{
	int ret = 0;

	r->result = -1;
	if (r->exec)
		ret = gpu_bad("launch", (int)graphs.launch(r->exec, r->stream));
	else
		while ((ret = penstock_submit(r->q, &r->req, 1, NULL)) == -EAGAIN)
			;
	if (ret < 0)
		return ret;
	ret = gpu_bad("synchronize", (int)r->api->cuStreamSynchronize(r->stream));
	return ret || r->result != (int64_t)len ? -EIO : 0;
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Measures reads with one combination of the options, and writes one row of the CSV. */
static int graph_row(struct bench *b, struct graph_run *r, uint64_t len, bool late, bool replay,
		     bool pause, unsigned rep)
{
	static uint32_t ns[TURNS];
	unsigned turns = pause ? TURNS_SLOW : TURNS;
	char group[64], name[64];
	struct sample s = {.ops = turns, .bytes = turns * len};
	double cpu;
	int ret = 0;

	read_aim(b, r, len, late);
	if (replay)
		ret = graph_capture(r);
	for (unsigned i = 0; i < 10 && !ret; i++)
		ret = read_once(r, len);
	cpu = cpu_seconds();
	for (unsigned i = 0; i < turns && !ret; i++) {
		uint64_t began;

		if (pause)
			usleep(PAUSE_US);
		began = meter_ns();
		ret = read_once(r, len);
		ns[i] = (uint32_t)(meter_ns() - began);
		s.seconds += ns[i] * 1e-9;
	}
	s.cpu = cpu_seconds() - cpu;
	snprintf(group, sizeof(group), "graph %llu KiB%s", (unsigned long long)(len / KIB),
		 pause ? " with pauses" : "");
	snprintf(name, sizeof(name), "%s with %s values",
		 replay ? "replayed" : "submitted each time", late ? "late" : "fixed");
	if (ret) {
		bench_bad(b, "%s, %s: %lld: %s", group, name, (long long)r->result,
			  penstock_errmsg());
	} else {
		qsort(ns, turns, sizeof(*ns), meter_compare_u32);
		s.p50_us = ns[turns / 2] * 1e-3;
		s.p99_us = ns[turns * 99 / 100] * 1e-3;
		if (!gpu_same(b, b->file, 0, len))
			bench_bad(b, "%s, %s: wrong bytes", group, name);
		meter_row(b, group, name, rep, &s);
	}
	graph_drop(r);
	return ret;
}

/* Measures the CPU time of the process in a second in which this thread sleeps. If `exists` is
 * true, a graph with a read exists, but the program does not launch it. */
static int idle_row(struct bench *b, struct graph_run *r, bool exists, unsigned rep)
{
	struct sample s = {.seconds = 1};
	int ret = 0;

	read_aim(b, r, 4 * KIB, true);
	if (exists)
		ret = graph_capture(r);
	usleep(200000);
	s.cpu = cpu_seconds();
	usleep(1000000);
	s.cpu = cpu_seconds() - s.cpu;
	if (!ret)
		meter_row(b, "graph idle", exists ? "a graph exists" : "no graph", rep, &s);
	graph_drop(r);
	return ret;
}

static int section_graph(struct bench *b)
{
	static const uint64_t lens[] = {4 * KIB, 64 * KIB, MIB};
	static struct graph_run r;
	int ret = graphs_load(), fd = drive_open(b->file, false);

	r.api = gpu_get()->api;
	if (!ret)
		ret = fd < 0 ? fd : cache_warm(fd, 0, MIB);
	if (!ret)
		ret = penstock_open(b->file, NULL, &r.st);
	if (!ret)
		ret = penstock_queue_open(NULL, &r.q);
	if (!ret)
		ret = gpu_bad("stream", (int)r.api->cuStreamCreateWithPriority(
						&r.stream, PST_CU_STREAM_NON_BLOCKING, 0));
	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]) && !ret; i++)
			for (unsigned how = 0; how < 8 && !ret; how++)
				ret = graph_row(b, &r, lens[i], how & 1, how & 2, how & 4, rep);
		for (int exists = 0; exists < 2 && !ret; exists++)
			ret = idle_row(b, &r, exists, rep);
	}
	if (r.stream)
		r.api->cuStreamDestroy(r.stream);
	penstock_queue_close(r.q);
	penstock_close(r.st);
	close(fd);
	return ret;
}

const struct bench_section bench_graph[] = {
	{"graph", "reads in CUDA graphs, and the same reads submitted each time", true,
	 section_graph},
	{NULL, NULL, false, NULL},
};
