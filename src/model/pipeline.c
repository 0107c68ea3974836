/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model `pipeline`. It computes the bandwidth and latency of requests on one of four paths
 * between a drive and GPU memory. A hop is a device, a link or a copy that the bytes pass. Path
 * `direct` has no hop in host memory. Path `staged` passes a DMA buffer in host memory. Path
 * `bounce` passes the page cache, and a CPU copies the bytes to a buffer. On path `mapped`, the GPU
 * reads the page cache, which a CPU has registered with the driver before.
 *
 * On path `bounce`, several threads copy a request in pieces of `piece` bytes. Each request has a
 * first thread. If the request is no longer than a piece, the first thread copies it alone.
 * Otherwise it first wakes another thread for each further piece, up to `copy-threads` in all. If n
 * threads take part, the wakes take log2(n) * wake-us. The logarithm is an approximation. On an
 * H200, the measured times lay between constant times and times that grow in proportion to n.
 */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "models.h"

enum {
	PATH,
	ORDER,
	SIZE,
	DEPTH,
	CHUNK,
	REQUEST,
	REQUEST_CPU,
	DRIVES,
	DRIVE,
	DRIVE_US,
	NETWORK,
	NETWORK_GBPS,
	NETWORK_US,
	COPY,
	COPY_US,
	COPY_THREADS,
	PIECE,
	HOME_US,
	WAKE_US,
	REGISTER,
	UNREGISTERED,
	DRAM,
	DRAM_US,
	PCIE,
	PCIE_US,
	HBM,
	HBM_US,
	KNEE,
	PARAMS
};

enum { DIRECT, STAGED, BOUNCE, MAPPED };

/* The throughput has one limit for few requests in flight, and another one for many. The parameter
 * `knee` says how sharply the throughput changes from one limit to the other. From this value of
 * `knee` on, the throughput is exactly the smaller limit. */
#define KNEE_SHARP 100

static const struct pst_model_param params[] = {
	[PATH] = {"path", "", "direct|staged|bounce|mapped", 0, 0, 0,
		  "memory that the bytes touch: none of the host, DMA buffers, page cache and "
		  "buffers, page cache",
		  "README.md, the paths of Penstock"},
	[ORDER] = {"order", "", "pipelined|serial", 0, 0, 0,
		   "whether the hops work at the same time", "Penstock's lanes work so"},
	[SIZE] = {"size", "bytes", NULL, 4 << 20, 1, 1e15, "bytes of a request",
		  "default of penstock bench"},
	[DEPTH] = {"depth", "count", NULL, 8, 1, 1e6, "requests in flight",
		   "default of penstock bench"},
	[CHUNK] = {"chunk", "bytes", NULL, 1 << 20, 512, 1e12, "bytes that move as one unit",
		   "chunk of a lane"},
	[REQUEST] = {"request-us", "us", NULL, 10, 0, 1e9, "fixed time of a request in software",
		     "order of a system call and two thread switches; calibrate it"},
	[REQUEST_CPU] = {"request-cpu-us", "us", NULL, 5, 0, 1e9, "CPU time of a request",
			 "as request-us"},
	[DRIVES] = {"drives", "count", NULL, 1, 1, 1e6, "drives that share a request", "one drive"},
	[DRIVE] = {"drive-gbps", "GB/s", NULL, 14, 0.001, 1e6, "bandwidth of a drive",
		   "PCIe Gen5 x4 NVMe drive, data sheets"},
	[DRIVE_US] = {"drive-us", "us", NULL, 60, 0, 1e9, "latency of a drive",
		      "NAND read time, data sheets"},
	[NETWORK] = {"network", "", "none|present", 0, 0, 0,
		     "whether a network is between drive and host", "a drive in the host"},
	[NETWORK_GBPS] = {"network-gbps", "GB/s", NULL, 50, 0.001, 1e6, "bandwidth of the network",
			  "one port of 400 Gbit/s"},
	[NETWORK_US] = {"network-us", "us", NULL, 5, 0, 1e9, "latency of the network",
			"one switch, RDMA"},
	[COPY] = {"copy-gbps", "GB/s", NULL, 10, 0.001, 1e6, "bandwidth of one copying CPU",
		  "memcpy of one core, typical"},
	[COPY_US] = {"copy-us", "us", NULL, 1, 0, 1e9, "latency of the copy's system call",
		     "typical"},
	[COPY_THREADS] = {"copy-threads", "count", NULL, 8, 1, 4096, "CPUs that copy",
			  "lanes of a GPU, src/device/cuda.c"},
	[PIECE] = {"piece", "bytes", NULL, 256 << 10, 512, 1e12,
		   "bytes that a lane copies at once; shorter requests are not shared",
		   "CHUNK_FIRST of src/path/slotted.c"},
	[HOME_US] = {"home-us", "us", NULL, 6.3, 0, 1e9,
		     "time of a request in its first lane, besides its copy", "H200, calibrated"},
	[WAKE_US] = {"wake-us", "us", NULL, 7.7, 0, 1e9,
		     "time in which the first lane wakes a second lane; log2(n) times this for n "
		     "lanes",
		     "H200, calibrated"},
	[REGISTER] = {"register-gbps", "GB/s", NULL, 32, 0.001, 1e6,
		      "bandwidth at which one CPU registers page cache", "H200, calibrated"},
	[UNREGISTERED] = {"unregistered", "ratio", NULL, 0, 0, 1,
			  "share of the bytes of path mapped that is copied at copy-gbps, because "
			  "no more page cache can be registered",
			  "everything can be registered"},
	[DRAM] = {"dram-gbps", "GB/s", NULL, 200, 0.001, 1e6,
		  "bandwidth of host memory, reads and writes together",
		  "eight channels of DDR5-4800 have 307 GB/s, of which streams reach two thirds"},
	[DRAM_US] = {"dram-us", "us", NULL, 0.2, 0, 1e9, "latency of host memory", "typical"},
	[PCIE] = {"pcie-gbps", "GB/s", NULL, 55.4, 0.001, 1e6, "bandwidth of the GPU's link",
		  "H200 on PCIe Gen5 x16, measured"},
	[PCIE_US] = {"pcie-us", "us", NULL, 1, 0, 1e9, "latency of the GPU's link",
		     "typical of a DMA with one switch"},
	[HBM] = {"hbm-gbps", "GB/s", NULL, 4800, 0.001, 1e6, "bandwidth of the GPU's memory",
		 "H200 data sheet"},
	[HBM_US] = {"hbm-us", "us", NULL, 0.5, 0, 1e9, "latency of the GPU's memory", "typical"},
	[KNEE] = {"knee", "ratio", NULL, KNEE_SHARP, 0.5, KNEE_SHARP,
		  "sharpness of the change from few to many requests in flight; 100: sharp",
		  "the bound; real paths vary, so calibrate it"},
};

enum {
	SPEED,
	LATENCY,
	IOPS,
	SLOWEST,
	SLOWEST_GBPS,
	FULL_DEPTH,
	CPU,
	DRAM_TRAFFIC,
	COPIES,
	DIRECT_SPEED,
	STAGED_SPEED,
	BOUNCE_SPEED,
	MAPPED_SPEED,
	GAIN,
	GAIN_LIMIT,
	RESULTS
};

#define BOUND "asymptotic bounds of closed queueing networks, Denning and Buzen 1978"
#define COUNTED "counted along the path"

static const struct pst_model_result results[] = {
	[SPEED] =
		{"speed-gbps", "GB/s", NULL, "throughput",
		 "(slowest-gbps^-knee + (depth * size / latency-us)^-knee)^(-1 / knee), the min of "
		 "both for knee = 100; serial: size / latency-us; path mapped: the "
		 "unregistered share at copy-gbps, the rest so",
		 BOUND},
	[LATENCY] = {"latency-us", "us", NULL, "time of one request alone",
		     "request-us + sum of (latency + min(size, chunk) / bandwidth) + rest / "
		     "slowest-gbps; serial: request-us + sum of (latency + size / bandwidth)",
		     "sum over the hops"},
	[IOPS] = {"iops", "1/s", NULL, "requests a second", "speed-gbps / size", "definition"},
	[SLOWEST] = {"slowest-hop", "", "drive|network|copy|dram|pcie|hbm|register",
		     "hop with the least bandwidth", "argmin of the bandwidths", BOUND},
	[SLOWEST_GBPS] =
		{"slowest-gbps", "GB/s", NULL, "bandwidth of this hop",
		 "min of the bandwidths; dram-gbps / dram-traffic for host memory; copies: "
		 "size / (home-us + max(min(size, piece), size / copy-threads) / copy-gbps "
		 "+ log2(min(ceil(size / piece), copy-threads)) * wake-us)",
		 BOUND},
	[FULL_DEPTH] = {"full-depth", "count", NULL, "requests in flight that keep this hop busy",
			"ceil(slowest-gbps * latency-us / size)", "Little 1961"},
	[CPU] = {"cpu-s-per-gb", "s/GB", NULL, "CPU time of 10^9 bytes",
		 "request-cpu-us / size + copies / copy-gbps", "sum"},
	[DRAM_TRAFFIC] = {"dram-traffic", "ratio", NULL,
			  "bytes that host memory reads and writes for each byte",
			  "direct 0, staged 2, bounce 4, mapped 1 + 3 * unregistered", COUNTED},
	[COPIES] = {"cpu-copies", "ratio", NULL, "copies of each byte by a CPU",
		    "bounce 1, mapped unregistered, otherwise 0", COUNTED},
	[DIRECT_SPEED] = {"direct-gbps", "GB/s", NULL, "throughput with path=direct",
			  "speed-gbps of that path", BOUND},
	[STAGED_SPEED] = {"staged-gbps", "GB/s", NULL, "throughput with path=staged",
			  "speed-gbps of that path", BOUND},
	[BOUNCE_SPEED] = {"bounce-gbps", "GB/s", NULL, "throughput with path=bounce",
			  "speed-gbps of that path", BOUND},
	[MAPPED_SPEED] = {"mapped-gbps", "GB/s", NULL, "throughput with path=mapped",
			  "speed-gbps of that path", BOUND},
	[GAIN] = {"direct-gain", "ratio", NULL, "direct-gbps over staged-gbps",
		  "direct-gbps / staged-gbps", "ratio"},
	[GAIN_LIMIT] = {"gain-limit", "ratio", NULL,
			"most that direct DMA alone can win: busy hops against staged hops one "
			"after the other",
			"slowest-gbps of direct * (latency-us of staged, serial) / size", "ratio"},
};

static const unsigned char dram_traffic[] = {
	[DIRECT] = 0, [STAGED] = 2, [BOUNCE] = 4, [MAPPED] = 1};

/* The hops of a path (devices, links and copies), added up. */
struct hops {
	/* slowest: which hop has the least bandwidth, as a value of the result slowest-hop */
	unsigned count, slowest;
	/* latency: sum of the hops' latencies in us; inverse: sum of the times in us that the hops
	 * take for 1,000 bytes */
	double latency, inverse, slowest_gbps;
};

static void hop_add(struct hops *h, unsigned kind, double gbps, double latency)
{
	h->count++;
	h->latency += latency;
	h->inverse += 1 / gbps;
	if (h->count > 1 && gbps >= h->slowest_gbps)
		return;
	h->slowest = kind;
	h->slowest_gbps = gbps;
}

/* Returns the bandwidth in GB/s at which the CPUs copy requests on path `bounce`. The thread that
 * starts a request starts the next one as soon as it has copied its own share of the request. */
static double copies_gbps(const double *in)
{
	double lanes = fmin(ceil(in[SIZE] / in[PIECE]), in[COPY_THREADS]);
	double share = fmax(fmin(in[SIZE], in[PIECE]), in[SIZE] / in[COPY_THREADS]);

	return in[SIZE] * 1e-3 /
	       (in[HOME_US] + log2(lanes) * in[WAKE_US] + share * 1e-3 / in[COPY]);
}

static struct hops hops_of(const double *in, unsigned path)
{
	struct hops h = {0};

	hop_add(&h, 0, in[DRIVE] * in[DRIVES], in[DRIVE_US]);
	if (in[NETWORK] > 0)
		hop_add(&h, 1, in[NETWORK_GBPS], in[NETWORK_US]);
	if (path == BOUNCE)
		hop_add(&h, 2, copies_gbps(in), in[COPY_US]);
	if (path == MAPPED)
		hop_add(&h, 6, in[REGISTER], 0);
	if (path != DIRECT)
		hop_add(&h, 3, in[DRAM] / dram_traffic[path], in[DRAM_US]);
	hop_add(&h, 4, in[PCIE], in[PCIE_US]);
	hop_add(&h, 5, in[HBM], in[HBM_US]);
	return h;
}

/* Returns the time of one request in us. Bandwidths are in GB/s, and 1 GB/s is 1e3 bytes a us, so
 * the function multiplies bytes by 1e-3. */
static double request_latency(const double *in, const struct hops *h)
{
	double first = fmin(in[SIZE], in[CHUNK]);

	if (in[ORDER] > 0)
		return in[REQUEST] + h->latency + in[SIZE] * 1e-3 * h->inverse;
	return in[REQUEST] + h->latency + first * 1e-3 * h->inverse +
	       (in[SIZE] - first) * 1e-3 / h->slowest_gbps;
}

/* Returns by what factor path `direct` can be faster than path `staged` at most. This maximum
 * assumes that the slowest hop of path `direct` is always busy, while the hops of path `staged`
 * work one after the other. */
static double gain_limit(const double *in)
{
	struct hops direct = hops_of(in, DIRECT), staged = hops_of(in, STAGED);

	return direct.slowest_gbps *
	       ((in[REQUEST] + staged.latency) * 1e3 / in[SIZE] + staged.inverse);
}

/* Returns about the smaller of `a` and `b`. If they are close to each other, the result is less
 * than both. The smaller `knee` is, the larger is this difference. */
static double smooth_min(double a, double b, double knee)
{
	double least = fmin(a, b), most = fmax(a, b);

	if (knee >= KNEE_SHARP)
		return least;
	return least * pow(1 + pow(least / most, knee), -1 / knee);
}

static double path_speed(const double *in, unsigned path)
{
	struct hops h = hops_of(in, path);
	double each = in[SIZE] * 1e-3 / request_latency(in, &h), speed = each, copied;

	if (in[ORDER] <= 0)
		speed = smooth_min(h.slowest_gbps, in[DEPTH] * each, in[KNEE]);
	copied = path == MAPPED ? in[UNREGISTERED] : 0;
	return 1 / ((1 - copied) / speed + copied / in[COPY]);
}

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	unsigned path = (unsigned)in[PATH];
	struct hops h = hops_of(in, path);

	(void)space;
	out[LATENCY] = request_latency(in, &h);
	out[SPEED] = path_speed(in, path);
	out[IOPS] = out[SPEED] * 1e9 / in[SIZE];
	out[SLOWEST] = h.slowest;
	out[SLOWEST_GBPS] = h.slowest_gbps;
	out[FULL_DEPTH] =
		in[ORDER] > 0 ? NAN : ceil(h.slowest_gbps * 1e3 * out[LATENCY] / in[SIZE]);
	out[COPIES] = path == BOUNCE ? 1 : path == MAPPED ? in[UNREGISTERED] : 0;
	out[CPU] = in[REQUEST_CPU] * 1e3 / in[SIZE] + out[COPIES] / in[COPY];
	out[DRAM_TRAFFIC] = dram_traffic[path] + (path == MAPPED ? 3 * in[UNREGISTERED] : 0);
	out[DIRECT_SPEED] = path_speed(in, DIRECT);
	out[STAGED_SPEED] = path_speed(in, STAGED);
	out[BOUNCE_SPEED] = path_speed(in, BOUNCE);
	out[MAPPED_SPEED] = path_speed(in, MAPPED);
	out[GAIN] = out[DIRECT_SPEED] / out[STAGED_SPEED];
	out[GAIN_LIMIT] = gain_limit(in);
	return NULL;
}

static const struct pst_model_preset presets[] = {
	{"gen4",
	 "one PCIe Gen4 drive and GPU",
	 "PCIe Gen4 x4 and x16, data sheets",
	 {{"drive-gbps", 7}, {"pcie-gbps", 25}, {"hbm-gbps", 2039}, {"dram-gbps", 130}}},
	{"h200-host",
	 "page cache to an H200",
	 "measured: no drive, so its hop has the bandwidth of host memory",
	 {{"path", BOUNCE}, {"drive-gbps", 200}, {"drive-us", 0}}},
	{"nvmeof",
	 "eight drives behind a port of 400 Gbit/s",
	 "data sheets",
	 {{"drives", 8}, {"network", 1}}},
	{"checkpoint-hops",
	 "140 GB over the hops of a published example",
	 "nominal bandwidths of PCIe Gen4: drive x4, GPU x16; host memory of one copy",
	 {{"drive-gbps", 7},
	  {"pcie-gbps", 25},
	  {"dram-gbps", 90},
	  {"size", 140e9},
	  {"hbm-gbps", 2039},
	  {"path", STAGED},
	  {"order", 1}}},
};

const struct pst_model pst_model_pipeline = {
	.name = "pipeline",
	.summary = "throughput, latency and CPU time of a path, and its slowest hop",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
