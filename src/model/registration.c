/* SPDX-License-Identifier: Apache-2.0 */
/* The model `registration`. It compares the time in which an RDMA driver registers memory with the
 * time of the transfers that use this memory. */
#include <math.h>
#include <stddef.h>

#include "models.h"

enum {
	SIZE,
	IOS,
	LINK,
	CPU_FIXED,
	CPU_PAGE,
	CPU_PAGE_US,
	HUGE_PAGE,
	GPU_FIXED,
	GPU_PAGE,
	GPU_PAGE_US,
	MTT_ENTRIES,
	MTT_EVICT,
	MTT_SET,
	ACCESS,
	PARAMS
};

static const struct pst_model_param params[] = {
	[SIZE] = {"size", "bytes", NULL, 1 << 20, 1, 1e15, "length of a transfer",
		  "1 MiB is 256 pages, the length of the published examples"},
	[IOS] = {"ios", "count", NULL, 100, 1, 1e12, "transfers with the same buffer",
		 "a buffer that an application keeps"},
	[LINK] = {"link-gbit", "Gbit/s", NULL, 100, 0.001, 1e6, "bandwidth of the link",
		  "the link of the published examples"},
	[CPU_FIXED] = {"cpu-fixed-us", "us", NULL, 10, 0, 1e6, "fixed time to register host memory",
		       "published range 5 to 10 us"},
	[CPU_PAGE] = {"cpu-page", "bytes", NULL, 4096, 512, 1 << 30, "page of host memory",
		      "x86 and arm64 Linux"},
	[CPU_PAGE_US] = {"cpu-page-us", "us", NULL, 1, 0, 1e6, "time to register one host page",
			 "published range 0.5 to 1 us"},
	[HUGE_PAGE] = {"huge-page", "bytes", NULL, 2 << 20, 4096, 1ull << 34,
		       "huge page of host memory", "x86 Linux"},
	[GPU_FIXED] = {"gpu-fixed-us", "us", NULL, 50, 0, 1e6, "time to register GPU memory once",
		       "published range 20 to 50 us"},
	[GPU_PAGE] = {"gpu-page", "bytes", NULL, 65536, 4096, 1 << 30, "page of GPU memory",
		      "NVIDIA's peer-to-peer interface"},
	[GPU_PAGE_US] = {"gpu-page-us", "us", NULL, 0, 0, 1e6, "time to register one GPU page",
			 "the published 20 to 50 us include the pages"},
	[MTT_ENTRIES] = {"mtt-entries", "count", NULL, 64, 1, 1e9,
			 "registrations that the NIC's translation cache holds",
			 "published range 64 to 128"},
	[MTT_EVICT] = {"mtt-evict-us", "us", NULL, 2, 0, 1e6, "time of one eviction",
		       "published range 2 to 5 us"},
	[MTT_SET] = {"mtt-set", "count", NULL, 64, 1, 1e9, "registrations in use",
		     "as many as the cache holds"},
	[ACCESS] = {"access", "", "cyclic|random", 0, 0, 0, "order in which they are used",
		    "a ring of buffers"},
};

enum {
	TRANSFER,
	PAGES,
	CPU_REG,
	HUGE_REG,
	GPU_REG,
	EFF_EACH,
	EFF_HUGE_EACH,
	EFF_CPU,
	EFF_HUGE,
	EFF_GPU,
	TIME_EACH,
	TIME_GPU,
	CROSSOVER,
	CROSSOVER_CPU,
	BEST,
	HIT,
	EVICTIONS,
	MTT_US,
	RESULTS
};

#define OVERLAP "useful time over total time"

static const struct pst_model_result results[] = {
	[TRANSFER] = {"transfer-us", "us", NULL, "time of one transfer on the link",
		      "size * 8 / link-gbit", "definition of bandwidth"},
	[PAGES] = {"cpu-pages", "count", NULL, "host pages of the buffer", "ceil(size / cpu-page)",
		   "definition of a page"},
	[CPU_REG] = {"cpu-registration-us", "us", NULL, "time of one host registration",
		     "cpu-fixed-us + cpu-pages * cpu-page-us",
		     "a straight line through "
		     "published times"},
	[HUGE_REG] = {"huge-registration-us", "us", NULL,
		      "time of one host registration with huge pages",
		      "cpu-fixed-us + ceil(size / huge-page) * cpu-page-us",
		      "as cpu-registration-us"},
	[GPU_REG] = {"gpu-registration-us", "us", NULL, "time of one GPU registration",
		     "gpu-fixed-us + ceil(size / gpu-page) * gpu-page-us",
		     "as cpu-registration-us"},
	[EFF_EACH] = {"efficiency-each", "ratio", NULL, "host memory registered for each transfer",
		      "transfer-us / (cpu-registration-us + transfer-us)", OVERLAP},
	[EFF_HUGE_EACH] = {"efficiency-huge-each", "ratio", NULL,
			   "huge pages registered for each transfer",
			   "transfer-us / (huge-registration-us + transfer-us)", OVERLAP},
	[EFF_CPU] = {"efficiency-kept-cpu", "ratio", NULL, "host memory registered once",
		     "ios * transfer-us / (cpu-registration-us + ios * transfer-us)", OVERLAP},
	[EFF_HUGE] = {"efficiency-kept-huge", "ratio", NULL, "huge pages registered once",
		      "ios * transfer-us / (huge-registration-us + ios * transfer-us)", OVERLAP},
	[EFF_GPU] = {"efficiency-kept-gpu", "ratio", NULL, "GPU memory registered once",
		     "ios * transfer-us / (gpu-registration-us + ios * transfer-us)", OVERLAP},
	[TIME_EACH] = {"time-each-us", "us", NULL, "all transfers, host memory registered for each",
		       "ios * (cpu-registration-us + transfer-us)", "sum"},
	[TIME_GPU] = {"time-kept-gpu-us", "us", NULL, "all transfers, GPU memory registered once",
		      "gpu-registration-us + ios * transfer-us + mtt-us", "sum"},
	[CROSSOVER] = {"crossover-ios", "count", NULL,
		       "transfers from which one kept GPU registration costs no more than a host "
		       "registration for each",
		       "max(1, ceil(gpu-registration-us / cpu-registration-us))",
		       "equal total times"},
	[CROSSOVER_CPU] = {"crossover-huge-ios", "count", NULL,
			   "the same against huge pages registered for each transfer",
			   "max(1, ceil(gpu-registration-us / huge-registration-us))",
			   "equal total times"},
	[BEST] = {"best", "", "each-cpu|each-huge|kept-cpu|kept-huge|kept-gpu",
		  "the cheapest registration for this number of transfers",
		  "largest efficiency, the first of equals", OVERLAP},
	[HIT] = {"mtt-hit-rate", "ratio", NULL, "share of uses that the translation cache serves",
		 "1 if mtt-set <= mtt-entries; else 0 (cyclic) or mtt-entries / mtt-set (random)",
		 "least-recently-used replacement"},
	[EVICTIONS] = {"mtt-evictions", "count", NULL, "evictions of all transfers",
		       "ios * (1 - mtt-hit-rate)", "each miss evicts one entry"},
	[MTT_US] = {"mtt-us", "us", NULL, "time of all evictions", "mtt-evictions * mtt-evict-us",
		    "sum"},
};

static double efficiency(double ios, double transfer, double registration)
{
	return ios * transfer / (registration + ios * transfer);
}

static double crossover(double kept, double each)
{
	return each > 0 ? fmax(1, ceil(kept / each)) : kept > 0 ? NAN : 1;
}

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	double ios = in[IOS], best = 0;

	(void)space;
	out[TRANSFER] = in[SIZE] * 8 / (in[LINK] * 1e3);
	out[PAGES] = ceil(in[SIZE] / in[CPU_PAGE]);
	out[CPU_REG] = in[CPU_FIXED] + out[PAGES] * in[CPU_PAGE_US];
	out[HUGE_REG] = in[CPU_FIXED] + ceil(in[SIZE] / in[HUGE_PAGE]) * in[CPU_PAGE_US];
	out[GPU_REG] = in[GPU_FIXED] + ceil(in[SIZE] / in[GPU_PAGE]) * in[GPU_PAGE_US];
	out[EFF_EACH] = efficiency(1, out[TRANSFER], out[CPU_REG]);
	out[EFF_HUGE_EACH] = efficiency(1, out[TRANSFER], out[HUGE_REG]);
	out[EFF_CPU] = efficiency(ios, out[TRANSFER], out[CPU_REG]);
	out[EFF_HUGE] = efficiency(ios, out[TRANSFER], out[HUGE_REG]);
	out[EFF_GPU] = efficiency(ios, out[TRANSFER], out[GPU_REG]);
	if (in[MTT_SET] <= in[MTT_ENTRIES])
		out[HIT] = 1;
	else
		out[HIT] = in[ACCESS] > 0 ? in[MTT_ENTRIES] / in[MTT_SET] : 0;
	out[EVICTIONS] = ios * (1 - out[HIT]);
	out[MTT_US] = out[EVICTIONS] * in[MTT_EVICT];
	out[TIME_EACH] = ios * (out[CPU_REG] + out[TRANSFER]);
	out[TIME_GPU] = out[GPU_REG] + ios * out[TRANSFER] + out[MTT_US];
	out[CROSSOVER] = crossover(out[GPU_REG], out[CPU_REG]);
	out[CROSSOVER_CPU] = crossover(out[GPU_REG], out[HUGE_REG]);
	out[BEST] = 0;
	for (unsigned i = EFF_EACH; i <= EFF_GPU; i++) {
		if (out[i] > best) {
			best = out[i];
			out[BEST] = i - EFF_EACH;
		}
	}
	return NULL;
}

static const struct pst_model_preset presets[] = {
	{"gigabyte", "1 GiB in 4 KiB pages", "published example", {{"size", 1 << 30}, {"ios", 1}}},
	{"four",
	 "four transfers of 1 MB with one kept registration",
	 "published example",
	 {{"size", 1e6}, {"ios", 4}}},
	{"mtt-thrash",
	 "twice as many registrations as the NIC's cache holds",
	 "published range of cache sizes",
	 {{"mtt-set", 128}, {"ios", 64}}},
};

const struct pst_model pst_model_registration = {
	.name = "registration",
	.summary = "time to register memory against the time of the transfers",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
