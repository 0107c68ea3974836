/* SPDX-License-Identifier: Apache-2.0 */
/* The model `sizing`. It computes how many drives, storage nodes and ports save a checkpoint in a
 * given time, and which constraint decides these numbers: speed, capacity or endurance, for
 * example. */
#include <math.h>
#include <stddef.h>

#include "models.h"

enum {
	BYTES,
	WINDOW,
	GPUS,
	GPU,
	PREEMPTION,
	REDUNDANCY,
	REPLICAS,
	DATA,
	PARITY,
	READ_SHARE,
	DAILY,
	KEPT,
	DRIVE,
	DRIVE_READ,
	DRIVE_TB,
	DWPD,
	NODE_DRIVES,
	NODE,
	PORT,
	NODE_PORTS,
	OVER,
	DRIVE_PRICE,
	NODE_PRICE,
	PORT_PRICE,
	PARAMS
};

#define NO_PRICE "no price is invented: give that of your quotation"

static const struct pst_model_param params[] = {
	[BYTES] = {"bytes", "bytes", NULL, 50e12, 1, 1e18, "bytes of a checkpoint",
		   "published example"},
	[WINDOW] = {"window-s", "s", NULL, 300, 1e-3, 1e9, "time in which it must be saved",
		    "published example"},
	[GPUS] = {"gpus", "count", NULL, 1024, 1, 1e7, "GPUs that save it", "128 nodes of 8 GPUs"},
	[GPU] = {"gpu-gbps", "GB/s", NULL, 55, 0.001, 1e6, "bandwidth of a GPU's link",
		 "H200 on PCIe Gen5 x16, measured"},
	[PREEMPTION] = {"preemption-s", "s", NULL, 0, 0, 1e9,
			"time between the notice and the end of a preempted run; 0: none",
			"none; clouds give 30 to 120 s"},
	[REDUNDANCY] = {"redundancy", "", "erasure|replicas", 0, 0, 0,
			"how the storage survives failures", "common in large stores"},
	[REPLICAS] = {"replicas", "count", NULL, 3, 1, 16, "copies, with redundancy=replicas",
		      "common setting"},
	[DATA] = {"ec-data", "count", NULL, 8, 1, 256, "data parts of the erasure code",
		  "common setting"},
	[PARITY] = {"ec-parity", "count", NULL, 2, 0, 256, "parity parts of the erasure code",
		    "common setting"},
	[READ_SHARE] = {"read-share", "ratio", NULL, 0, 0, 0.99,
			"share of the traffic that reads while a checkpoint is saved",
			"writes only"},
	[DAILY] = {"daily", "1/day", NULL, 48, 0, 1e6, "checkpoints a day", "every 30 minutes"},
	[KEPT] = {"kept", "count", NULL, 10, 1, 1e6, "checkpoints that are kept", "common setting"},
	[DRIVE] = {"drive-gbps", "GB/s", NULL, 7, 0.001, 1e6, "write bandwidth of a drive",
		   "PCIe Gen5 x4 NVMe drives, data sheets"},
	[DRIVE_READ] = {"drive-read-gbps", "GB/s", NULL, 14, 0.001, 1e6,
			"read bandwidth of a drive", "PCIe Gen5 x4 NVMe drives, data sheets"},
	[DRIVE_TB] = {"drive-tb", "TB", NULL, 15.36, 0.001, 1e6, "capacity of a drive",
		      "common size"},
	[DWPD] = {"dwpd", "1/day", NULL, 1, 0.001, 1000,
		  "whole-drive writes a day that the drive endures", "read-intensive drives"},
	[NODE_DRIVES] = {"node-drives", "count", NULL, 12, 1, 1000, "drives of a storage node",
			 "common servers"},
	[NODE] = {"node-gbps", "GB/s", NULL, 80, 0.001, 1e6, "bandwidth of a storage node",
		  "two ports of 400 Gbit/s with protocol"},
	[PORT] = {"port-gbit", "Gbit/s", NULL, 400, 0.001, 1e6, "bandwidth of a port",
		  "400 Gbit/s Ethernet or InfiniBand"},
	[NODE_PORTS] = {"node-ports", "count", NULL, 2, 1, 64, "ports of a storage node",
			"common servers"},
	[OVER] = {"oversubscription", "ratio", NULL, 1, 1, 100,
		  "port bandwidth over network bandwidth", "non-blocking network"},
	[DRIVE_PRICE] = {"drive-price", "price", NULL, 0, 0, 1e12, "price of a drive", NO_PRICE},
	[NODE_PRICE] = {"node-price", "price", NULL, 0, 0, 1e12,
			"price of a storage node without drives", NO_PRICE},
	[PORT_PRICE] = {"port-price", "price", NULL, 0, 0, 1e12,
			"price of a port with its share of switches", NO_PRICE},
};

enum {
	NEEDED,
	BACKEND,
	EXPANSION,
	GPU_NEEDED,
	FEASIBLE,
	FOR_SPEED,
	FOR_CAPACITY,
	FOR_ENDURANCE,
	DRIVES,
	NODES,
	PORTS,
	BINDING,
	NODE_BINDING,
	REACHED,
	YEARS,
	PRICE,
	RESULTS
};

static const struct pst_model_result results[] = {
	[NEEDED] = {"needed-gbps", "GB/s", NULL, "write bandwidth that the window needs",
		    "bytes / min(window-s, preemption-s)", "definition of bandwidth"},
	[BACKEND] = {"backend-gbps", "GB/s", NULL, "write bandwidth of all drives",
		     "needed-gbps * expansion", "redundant bytes are written, too"},
	[EXPANSION] = {"expansion", "ratio", NULL, "bytes written for each byte",
		       "replicas, or (ec-data + ec-parity) / ec-data", "definition of the code"},
	[GPU_NEEDED] = {"gpu-needed-gbps", "GB/s", NULL, "bandwidth that each GPU needs",
			"needed-gbps / gpus", "equal shares"},
	[FEASIBLE] = {"feasible", "", "no|yes", "whether the GPUs' links are fast enough",
		      "gpu-needed-gbps <= gpu-gbps", "comparison"},
	[FOR_SPEED] = {"drives-for-speed", "count", NULL, "drives for the bandwidth",
		       "ceil(backend-gbps / drive-gbps + reads / drive-read-gbps)",
		       "a drive divides its time between writes and reads"},
	[FOR_CAPACITY] = {"drives-for-capacity", "count", NULL, "drives for the kept checkpoints",
			  "ceil(bytes * kept * expansion / drive-tb)", "sum"},
	[FOR_ENDURANCE] = {"drives-for-endurance", "count", NULL,
			   "drives that endure the writes of a day",
			   "ceil(bytes * daily * expansion / (drive-tb * dwpd))",
			   "rated writes a day"},
	[DRIVES] = {"drives", "count", NULL, "drives", "the largest of these three",
		    "all must hold"},
	[NODES] = {"nodes", "count", NULL, "storage nodes",
		   "max of drives / node-drives, traffic / node-gbps, traffic * 8 * "
		   "oversubscription / (port-gbit * node-ports), parts of the code",
		   "all must hold"},
	[PORTS] = {"ports", "count", NULL, "ports of the storage nodes", "nodes * node-ports",
		   "every node has its ports"},
	[BINDING] = {"binding", "", "speed|capacity|endurance",
		     "constraint that decides the number of drives", "argmax", "all must hold"},
	[NODE_BINDING] = {"node-binding", "", "drives|bandwidth|ports|code",
			  "constraint that decides the number of nodes", "argmax", "all must hold"},
	[REACHED] = {"reached-s", "s", NULL, "window that this storage reaches",
		     "window-s * (backend-gbps / drive-gbps + reads / drive-read-gbps) / drives",
		     "all drives busy"},
	[YEARS] = {"drive-years", "years", NULL,
		   "time until the drives are worn, rated for 5 years",
		   "5 * drives / drives-for-endurance", "rated writes a day for 5 years"},
	[PRICE] = {"price", "price", NULL, "price of drives, nodes and ports",
		   "drives * drive-price + nodes * node-price + ports * port-price", "sum"},
};

static double largest(const double *values, unsigned count, double *which)
{
	unsigned best = 0;

	for (unsigned i = 1; i < count; i++)
		if (values[i] > values[best])
			best = i;
	*which = best;
	return values[best];
}

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	double window = in[WINDOW], reads, traffic, nodes[4], share, day;

	(void)space;
	if (in[PREEMPTION] > 0)
		window = fmin(window, in[PREEMPTION]);
	out[NEEDED] = in[BYTES] * 1e-9 / window;
	out[EXPANSION] = in[REDUNDANCY] > 0 ? in[REPLICAS] : (in[DATA] + in[PARITY]) / in[DATA];
	out[BACKEND] = out[NEEDED] * out[EXPANSION];
	out[GPU_NEEDED] = out[NEEDED] / in[GPUS];
	out[FEASIBLE] = out[GPU_NEEDED] <= in[GPU];
	reads = out[NEEDED] * in[READ_SHARE] / (1 - in[READ_SHARE]);
	share = out[BACKEND] / in[DRIVE] + reads / in[DRIVE_READ];
	out[FOR_SPEED] = ceil(share);
	out[FOR_CAPACITY] = ceil(in[BYTES] * 1e-12 * in[KEPT] * out[EXPANSION] / in[DRIVE_TB]);
	day = in[BYTES] * 1e-12 * in[DAILY] * out[EXPANSION];
	out[FOR_ENDURANCE] = ceil(day / (in[DRIVE_TB] * in[DWPD]));
	out[DRIVES] = largest(&out[FOR_SPEED], 3, &out[BINDING]);
	traffic = out[BACKEND] + reads;
	nodes[0] = ceil(out[DRIVES] / in[NODE_DRIVES]);
	nodes[1] = ceil(traffic / in[NODE]);
	nodes[2] = ceil(traffic * 8 * in[OVER] / (in[PORT] * in[NODE_PORTS]));
	nodes[3] = in[REDUNDANCY] > 0 ? in[REPLICAS] : in[DATA] + in[PARITY];
	out[NODES] = largest(nodes, 4, &out[NODE_BINDING]);
	out[PORTS] = out[NODES] * in[NODE_PORTS];
	out[REACHED] = window * share / out[DRIVES];
	out[YEARS] = day > 0 ? 5 * out[DRIVES] * in[DRIVE_TB] * in[DWPD] / day : NAN;
	out[PRICE] = out[DRIVES] * in[DRIVE_PRICE] + out[NODES] * in[NODE_PRICE] +
		     out[PORTS] * in[PORT_PRICE];
	if (!(out[PRICE] > 0))
		out[PRICE] = NAN;
	return NULL;
}

static const struct pst_model_preset presets[] = {
	{"five-minutes",
	 "50 TB in 5 minutes",
	 "published example",
	 {{"bytes", 50e12}, {"window-s", 300}}},
	{"45-seconds",
	 "50 TB in 45 seconds",
	 "published example",
	 {{"bytes", 50e12}, {"window-s", 45}}},
	{"preempted",
	 "50 TB in the 120 s before a preemption",
	 "a cloud's notice of two minutes",
	 {{"bytes", 50e12}, {"preemption-s", 120}}},
};

const struct pst_model pst_model_sizing = {
	.name = "sizing",
	.summary = "drives, storage nodes and ports for a checkpoint window",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
