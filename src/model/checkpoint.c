/* SPDX-License-Identifier: Apache-2.0 */
/* The model `checkpoint`. It computes how long a training run takes to save its state, and how much
 * training time the saves cost. It also computes the interval between two saves that costs
 * least. */
#include <math.h>
#include <stddef.h>

#include "models.h"

enum {
	BYTES,
	PARAMS_B,
	WEIGHT,
	MASTER,
	MOMENTS,
	ZERO,
	SHARDS,
	NODES,
	GPUS,
	GPU,
	DRIVES,
	DRIVE,
	DRIVE_READ,
	TARGET,
	FABRIC,
	STORAGE,
	EFFICIENCY,
	MODE,
	SNAPSHOT,
	INTERVAL,
	MTBF,
	RESTART,
	PARAMS
};

static const struct pst_model_param params[] = {
	[BYTES] = {"bytes", "bytes", NULL, 0, 0, 1e18,
		   "bytes of a checkpoint; 0: computed from the parameters", "computed"},
	[PARAMS_B] = {"params", "10^9", NULL, 70, 1e-6, 1e6, "parameters of the model",
		      "a model of 70 billion parameters"},
	[WEIGHT] = {"weight-bytes", "B", NULL, 2, 0, 16, "bytes of a weight", "BF16"},
	[MASTER] = {"master-bytes", "B", NULL, 4, 0, 16, "bytes of the weight's FP32 master copy",
		    "mixed-precision training"},
	[MOMENTS] = {"moment-bytes", "B", NULL, 8, 0, 64, "bytes of the optimizer's moments",
		     "Adam: two values of 4 bytes"},
	[ZERO] = {"zero", "", "0|1|2|3", 0, 0, 0,
		  "ZeRO stage: from 1 the ranks share the optimizer state, with 3 also the weights",
		  "plain data parallelism"},
	[SHARDS] = {"model-gpus", "count", NULL, 8, 1, 1e6,
		    "GPUs that hold one copy of the model (tensor and pipeline parallelism)",
		    "one node of 8 GPUs"},
	[NODES] = {"nodes", "count", NULL, 8, 1, 1e6, "nodes of the run", "64 GPUs"},
	[GPUS] = {"gpus", "count", NULL, 8, 1, 1024, "GPUs of a node", "HGX"},
	[GPU] = {"gpu-gbps", "GB/s", NULL, 55, 0.001, 1e6, "bandwidth of a GPU's link",
		 "H200 on PCIe Gen5 x16, measured"},
	[DRIVES] = {"drives", "count", NULL, 4, 1, 1e6, "drives of a node", "common servers"},
	[DRIVE] = {"drive-gbps", "GB/s", NULL, 7, 0.001, 1e6, "write bandwidth of a drive",
		   "PCIe Gen5 x4 NVMe drives, data sheets"},
	[DRIVE_READ] = {"drive-read-gbps", "GB/s", NULL, 14, 0.001, 1e6,
			"read bandwidth of a drive", "PCIe Gen5 x4 NVMe drives, data sheets"},
	[TARGET] = {"target", "", "drives|fabric", 0, 0, 0, "where a checkpoint goes",
		    "drives of the nodes"},
	[FABRIC] = {"fabric-gbps", "GB/s", NULL, 50, 0.001, 1e6, "storage network of a node",
		    "one port of 400 Gbit/s"},
	[STORAGE] = {"storage-gbps", "GB/s", NULL, 250, 0.001, 1e9,
		     "bandwidth of the storage behind the fabric", "a published quotation"},
	[EFFICIENCY] = {"efficiency", "ratio", NULL, 1, 0.001, 1,
			"share of the slowest part's bandwidth that the path reaches",
			"the bound; calibrate it"},
	[MODE] = {"mode", "", "synchronous|asynchronous", 0, 0, 0,
		  "whether training waits for the whole checkpoint or for a snapshot", "simplest"},
	[SNAPSHOT] = {"snapshot-gbps", "GB/s", NULL, 20, 0.001, 1e6,
		      "bandwidth of a GPU's snapshot to host memory",
		      "8 GPUs of an H200 machine, each, measured: 160 GB/s together"},
	[INTERVAL] = {"interval-min", "min", NULL, 30, 0.001, 1e6, "time between checkpoints",
		      "common setting"},
	[MTBF] = {"node-mtbf-h", "h", NULL, 50000, 0.001, 1e12, "time between failures of a node",
		  "about 16,000 GPUs that fail every 3 hours, Llama 3 report 2024"},
	[RESTART] = {"restart-min", "min", NULL, 5, 0, 1e6,
		     "time to notice a failure and to start again", "typical of schedulers"},
};

enum {
	STATE,
	PER_GPU,
	WRITERS,
	SPEED,
	WINDOW,
	BINDING,
	STALL,
	LOST,
	MTBF_H,
	YOUNG,
	DALY,
	BEST_LOST,
	RECOVERY,
	RECOMPUTED,
	WASTE,
	BEST_WASTE,
	RESULTS
};

static const struct pst_model_result results[] = {
	[STATE] = {"state-gb", "GB", NULL, "bytes of a checkpoint",
		   "bytes, or params * (weight-bytes + master-bytes + moment-bytes)",
		   "counted for each parameter"},
	[PER_GPU] = {"writer-gb", "GB", NULL, "bytes that the busiest GPU saves",
		     "its share of the weights + its share of the optimizer state",
		     "ZeRO, Rajbhandari and others 2020"},
	[WRITERS] = {"writers", "count", NULL, "GPUs that save a part of the optimizer state",
		     "zero = 0: model-gpus, otherwise all", "ZeRO, Rajbhandari and others 2020"},
	[SPEED] = {"speed-gbps", "GB/s", NULL, "write bandwidth of the run",
		   "min of drives, fabric, storage and GPU links, * efficiency",
		   "slowest part of a pipeline"},
	[WINDOW] = {"window-s", "s", NULL, "time until the checkpoint is saved",
		    "state-gb / speed-gbps", "definition of bandwidth"},
	[BINDING] = {"binding", "", "gpu-links|drives|fabric|storage",
		     "the part that limits the speed", "argmin", "slowest part of a pipeline"},
	[STALL] = {"stall-s", "s", NULL, "time for which training waits",
		   "window-s; asynchronous: writer-gb / snapshot-gbps, and the window's excess "
		   "over the interval",
		   "sum"},
	[LOST] = {"lost-share", "ratio", NULL, "share of the time spent waiting for checkpoints",
		  "stall-s / (interval-min + stall-s)", "useful time over total time"},
	[MTBF_H] = {"mtbf-h", "h", NULL, "time between failures of the run", "node-mtbf-h / nodes",
		    "independent failures"},
	[YOUNG] = {"young-min", "min", NULL, "best interval, first order",
		   "sqrt(2 * stall-s * mtbf-h)", "Young 1974"},
	[DALY] = {"daly-min", "min", NULL, "best interval, higher order",
		  "sqrt(2 d M) * (1 + sqrt(d / 2M) / 3 + d / 18M) - d; M if d >= 2M",
		  "Daly 2006, equation 37"},
	[BEST_LOST] = {"best-lost-share", "ratio", NULL, "lost-share at daly-min",
		       "stall-s / (daly-min + stall-s)", "useful time over total time"},
	[RECOVERY] = {"recovery-s", "s", NULL, "time from a failure until training continues",
		      "restart-min + state-gb / read bandwidth", "sum"},
	[RECOMPUTED] = {"recomputed-s", "s", NULL, "training lost by a failure, on average",
			"(interval-min + stall-s) / 2", "failures at random times"},
	[WASTE] = {"waste", "ratio", NULL, "share of the time that does not train",
		   "lost-share + (recomputed-s + recovery-s) / mtbf-h, at most 1",
		   "Young 1974, with recovery"},
	[BEST_WASTE] = {"best-waste", "ratio", NULL, "waste at daly-min", "waste at that interval",
			"Daly 2006"},
};

/* Returns the bandwidth in GB/s at which `writers` GPUs write or read a checkpoint. It is that of
 * the slowest part times `efficiency`. The parts are the GPUs' links, and either the drives, of
 * `drive` GB/s each, or the fabric and the storage. Stores the slowest part's number, a value of
 * the result `binding`, in *binding. */
static double run_speed(const double *in, double writers, double drive, double *binding)
{
	double speed = in[GPU] * writers, nodes = in[NODES];
	double parts[] = {nodes * in[DRIVES] * drive, nodes * in[FABRIC], in[STORAGE]};
	unsigned from = in[TARGET] > 0 ? 1 : 0, end = in[TARGET] > 0 ? 3 : 1;

	*binding = 0;
	for (unsigned i = from; i < end; i++) {
		if (parts[i] >= speed)
			continue;
		speed = parts[i];
		*binding = i + 1;
	}
	return speed * in[EFFICIENCY];
}

static double daly(double stall, double mtbf)
{
	double ratio = stall / (2 * mtbf);

	if (ratio >= 1)
		return mtbf;
	return sqrt(2 * stall * mtbf) * (1 + sqrt(ratio) / 3 + ratio / 9) - stall;
}

static double waste(double interval, double stall, double recovery, double mtbf)
{
	double lost = stall / (interval + stall);

	return fmin(1, lost + ((interval + stall) / 2 + recovery) / mtbf);
}

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	double gpus = in[NODES] * in[GPUS], shards = in[SHARDS], mtbf, ignored, optimizer, share;
	double each = in[WEIGHT] + in[MASTER] + in[MOMENTS];

	(void)space;
	if (shards > gpus)
		return "model-gpus is larger than nodes * gpus";
	if (!(in[BYTES] > 0 || each > 0))
		return "a checkpoint has no bytes: give bytes, weight-bytes, master-bytes or "
		       "moment-bytes";
	out[STATE] = in[BYTES] > 0 ? in[BYTES] * 1e-9 : in[PARAMS_B] * each;
	out[WRITERS] = in[ZERO] > 0 ? gpus : shards;
	optimizer = each > 0 ? (in[MASTER] + in[MOMENTS]) / each : 0;
	share = (1 - optimizer) / (in[ZERO] > 2 ? gpus : shards) + optimizer / out[WRITERS];
	out[PER_GPU] = out[STATE] * share;
	out[SPEED] = run_speed(in, out[WRITERS], in[DRIVE], &out[BINDING]);
	out[WINDOW] = out[STATE] / out[SPEED];
	out[STALL] = out[WINDOW];
	if (in[MODE] > 0)
		out[STALL] = fmin(out[WINDOW], out[PER_GPU] / in[SNAPSHOT] +
						       fmax(0, out[WINDOW] - in[INTERVAL] * 60));
	out[LOST] = out[STALL] / (in[INTERVAL] * 60 + out[STALL]);
	out[MTBF_H] = in[MTBF] / in[NODES];
	mtbf = out[MTBF_H] * 3600;
	out[YOUNG] = sqrt(2 * out[STALL] * mtbf) / 60;
	out[DALY] = daly(out[STALL], mtbf) / 60;
	out[BEST_LOST] = out[STALL] / (out[DALY] * 60 + out[STALL]);
	out[RECOVERY] =
		in[RESTART] * 60 + out[STATE] / run_speed(in, gpus, in[DRIVE_READ], &ignored);
	out[RECOMPUTED] = (in[INTERVAL] * 60 + out[STALL]) / 2;
	out[WASTE] = waste(in[INTERVAL] * 60, out[STALL], out[RECOVERY], mtbf);
	out[BEST_WASTE] = waste(out[DALY] * 60, out[STALL], out[RECOVERY], mtbf);
	return NULL;
}

#define GIB 1073741824.0
#define MLPERF \
	"MLPerf Storage v2.0 checkpointing, model and optimizer files as its code writes them"

static const struct pst_model_preset presets[] = {
	{"mlperf-8b",
	 "8B, 8 ranks: 15 + 90 GiB",
	 MLPERF,
	 {{"bytes", 105 * GIB}, {"params", 8}, {"nodes", 1}, {"model-gpus", 8}, {"zero", 3}}},
	{"mlperf-70b",
	 "70B, 64 ranks: 130 + 781 GiB",
	 MLPERF,
	 {{"bytes", 911 * GIB}, {"params", 70}, {"nodes", 8}, {"model-gpus", 8}, {"zero", 3}}},
	{"mlperf-405b",
	 "405B, 512 ranks: 755 + 4,533 GiB",
	 MLPERF,
	 {{"bytes", 5288 * GIB}, {"params", 405}, {"nodes", 64}, {"model-gpus", 256}, {"zero", 1}}},
	{"mlperf-1t",
	 "1T, 1,024 ranks: 2,571 + 15,426 GiB",
	 MLPERF,
	 {{"bytes", 17997 * GIB},
	  {"params", 1000},
	  {"nodes", 128},
	  {"model-gpus", 512},
	  {"zero", 1}}},
	{"zero3-560",
	 "70B under ZeRO-3, moments only, four drives",
	 "published example",
	 {{"params", 70},
	  {"weight-bytes", 0},
	  {"master-bytes", 0},
	  {"zero", 3},
	  {"nodes", 1},
	  {"drives", 4},
	  {"drive-gbps", 14}}},
	{"zero3-840",
	 "the same with FP32 masters",
	 "published example",
	 {{"params", 70},
	  {"weight-bytes", 0},
	  {"zero", 3},
	  {"nodes", 1},
	  {"drives", 4},
	  {"drive-gbps", 14}}},
	{"fabric-50tb",
	 "50 TB to storage of 250 GB/s",
	 "published example",
	 {{"bytes", 50e12}, {"nodes", 128}, {"zero", 3}, {"target", 1}, {"storage-gbps", 250}}},
};

const struct pst_model pst_model_checkpoint = {
	.name = "checkpoint",
	.summary = "time to save a training run, its cost, and the best interval",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
