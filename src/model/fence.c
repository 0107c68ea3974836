/* SPDX-License-Identifier: Apache-2.0 */
/* The model `fence`. It computes how much time ordering fences cost. A fence makes a program wait
 * until peer-to-peer writes have arrived. There is one fence for each chunk, or for several. */
#include <math.h>
#include <stddef.h>

#include "models.h"

enum { BYTES, CHUNK, FENCE_US, BATCH, BATCH_US, DRIVES, DRIVE, PARAMS };

static const struct pst_model_param params[] = {
	[BYTES] = {"bytes", "bytes", NULL, 2147483648.0, 1, 1e18, "bytes of each drive",
		   "published example: 2 GiB a drive"},
	[CHUNK] = {"chunk", "bytes", NULL, 16384, 512, 1e12, "bytes after which a fence is needed",
		   "published example"},
	[FENCE_US] = {"fence-us", "us", NULL, 1, 0, 1e6, "time of one fence",
		      "published range 0.5 to 1.5 us"},
	[BATCH] = {"batch", "count", NULL, 4, 1, 1e9, "chunks that share one fence",
		   "published example: 64 KiB"},
	[BATCH_US] = {"batch-us", "us", NULL, 0.35, 0, 1e6, "time of one shared fence",
		      "published range 0.2 to 0.5 us"},
	[DRIVES] = {"drives", "count", NULL, 1, 1, 1e6, "drives that work at the same time",
		    "one drive"},
	[DRIVE] = {"drive-gbps", "GB/s", NULL, 7, 0.001, 1e6, "bandwidth of a drive",
		   "PCIe Gen4 x4 NVMe drive, data sheets"},
};

enum {
	FENCES,
	TIME,
	BATCHED,
	BATCHED_TIME,
	TRANSFER,
	SHARE,
	BATCHED_SHARE,
	SPEED,
	BATCHED_SPEED,
	RESULTS
};

static const struct pst_model_result results[] = {
	[FENCES] = {"fences", "count", NULL, "fences of a drive", "ceil(bytes / chunk)",
		    "one fence for each chunk"},
	[TIME] = {"fence-ms", "ms", NULL, "time of all fences of a drive", "fences * fence-us",
		  "fences follow each other"},
	[BATCHED] = {"batched-fences", "count", NULL, "fences of a drive if chunks share them",
		     "ceil(bytes / (chunk * batch))", "one fence for each batch"},
	[BATCHED_TIME] = {"batched-ms", "ms", NULL, "time of these fences",
			  "batched-fences * batch-us", "fences follow each other"},
	[TRANSFER] = {"transfer-ms", "ms", NULL, "time of the bytes of a drive",
		      "bytes / drive-gbps", "definition of bandwidth"},
	[SHARE] = {"fence-share", "ratio", NULL, "share of the time that goes to fences",
		   "fence-ms / (transfer-ms + fence-ms)", "useful time over total time"},
	[BATCHED_SHARE] = {"batched-share", "ratio", NULL, "the same with shared fences",
			   "batched-ms / (transfer-ms + batched-ms)",
			   "useful time over total time"},
	[SPEED] = {"speed-gbps", "GB/s", NULL, "speed of all drives",
		   "drives * bytes / (transfer-ms + fence-ms)", "drives fence independently"},
	[BATCHED_SPEED] = {"batched-speed-gbps", "GB/s", NULL,
			   "speed of all drives with shared fences",
			   "drives * bytes / (transfer-ms + batched-ms)",
			   "drives fence independently"},
};

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	(void)space;
	out[FENCES] = ceil(in[BYTES] / in[CHUNK]);
	out[TIME] = out[FENCES] * in[FENCE_US] * 1e-3;
	out[BATCHED] = ceil(in[BYTES] / (in[CHUNK] * in[BATCH]));
	out[BATCHED_TIME] = out[BATCHED] * in[BATCH_US] * 1e-3;
	out[TRANSFER] = in[BYTES] / in[DRIVE] * 1e-6;
	out[SHARE] = out[TIME] / (out[TRANSFER] + out[TIME]);
	out[BATCHED_SHARE] = out[BATCHED_TIME] / (out[TRANSFER] + out[BATCHED_TIME]);
	out[SPEED] = in[DRIVES] * in[BYTES] / (out[TRANSFER] + out[TIME]) * 1e-6;
	out[BATCHED_SPEED] = in[DRIVES] * in[BYTES] / (out[TRANSFER] + out[BATCHED_TIME]) * 1e-6;
	return NULL;
}

static const struct pst_model_preset presets[] = {
	{"quick",
	 "the fastest published fences",
	 "published range",
	 {{"fence-us", 0.5}, {"batch-us", 0.2}}},
	{"slow",
	 "the slowest published fences",
	 "published range",
	 {{"fence-us", 1.5}, {"batch-us", 0.5}}},
};

const struct pst_model pst_model_fence = {
	.name = "fence",
	.summary = "time of ordering fences, for each chunk or shared",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
