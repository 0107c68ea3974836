/* SPDX-License-Identifier: Apache-2.0 */
/* The model `training`. It computes the read bandwidth that keeps accelerators (GPUs) busy in a
 * training run. */
#include <math.h>
#include <stddef.h>

#include "models.h"

enum { ACCELERATORS, RATE, USE, STORAGE, NODE_ACCELERATORS, NODE, PARAMS };

static const struct pst_model_param params[] = {
	[ACCELERATORS] = {"accelerators", "count", NULL, 8, 1, 1e7, "accelerators that train",
			  "one node of 8"},
	[RATE] = {"rate-mbps", "MB/s", NULL, 6046, 0.001, 1e9,
		  "bytes a second that one accelerator consumes",
		  "MLPerf Storage, unet3d on an emulated B200"},
	[USE] = {"use", "ratio", NULL, 0.9, 0.001, 1,
		 "share of the time that the accelerators must compute",
		 "MLPerf Storage's limit for unet3d"},
	[STORAGE] = {"storage-gbps", "GB/s", NULL, 50, 0.001, 1e9, "bandwidth of the storage",
		     "one port of 400 Gbit/s"},
	[NODE_ACCELERATORS] = {"node-accelerators", "count", NULL, 8, 1, 1024,
			       "accelerators of a node", "HGX"},
	[NODE] = {"node-gbps", "GB/s", NULL, 50, 0.001, 1e6, "bandwidth from storage to a node",
		  "one port of 400 Gbit/s"},
};

enum { NEEDED, NODE_NEEDED, FED, REACHED, MEETS, RESULTS };

static const struct pst_model_result results[] = {
	[NEEDED] = {"needed-gbps", "GB/s", NULL, "bandwidth at which no accelerator waits",
		    "accelerators * rate-mbps / 1000", "product"},
	[NODE_NEEDED] = {"node-needed-gbps", "GB/s", NULL, "the same for a full node",
			 "min(accelerators, node-accelerators) * rate-mbps / 1000", "product"},
	[FED] = {"fed", "count", NULL, "accelerators that the storage and the nodes keep at `use`",
		 "floor(min(storage-gbps, nodes * node-gbps) * 1000 / (rate-mbps * use))",
		 "quotient"},
	[REACHED] = {"reached", "ratio", NULL, "share of the time that the accelerators compute",
		     "min(1, storage-gbps / needed-gbps, node-gbps / node-needed-gbps)",
		     "slowest part of a pipeline"},
	[MEETS] = {"meets", "", "no|yes", "whether this is at least `use`", "reached >= use",
		   "comparison"},
};

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	double per_node = fmin(in[ACCELERATORS], in[NODE_ACCELERATORS]);
	double nodes = ceil(in[ACCELERATORS] / in[NODE_ACCELERATORS]);
	double supply = fmin(in[STORAGE], nodes * in[NODE]);

	(void)space;
	out[NEEDED] = in[ACCELERATORS] * in[RATE] * 1e-3;
	out[NODE_NEEDED] = per_node * in[RATE] * 1e-3;
	out[FED] = floor(supply * 1e3 / (in[RATE] * in[USE]));
	out[REACHED] = fmin(1, fmin(in[STORAGE] / out[NEEDED], in[NODE] / out[NODE_NEEDED]));
	out[MEETS] = out[REACHED] >= in[USE];
	return NULL;
}

static const struct pst_model_preset presets[] = {
	{"unet3d-b200", "3D U-Net on emulated B200s", "MLPerf Storage", {{"rate-mbps", 6046}}},
};

const struct pst_model pst_model_training = {
	.name = "training",
	.summary = "read rate that keeps accelerators busy",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
