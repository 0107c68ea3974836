/* SPDX-License-Identifier: Apache-2.0 */
/* The model `weights`. It computes the time to load a language model on many GPUs and hosts, in
 * several ways. Each GPU reads all bytes that it needs from the storage, or the hosts read each
 * byte once and pass it on to the other GPUs. */
#include <math.h>
#include <stddef.h>

#include "models.h"

enum { BYTES, GPUS, HOSTS, PLACEMENT, STORE, CLIENT, GPU, PEER, HOST_NET, FIXED, PARAMS };

static const struct pst_model_param params[] = {
	[BYTES] = {"bytes", "bytes", NULL, 141e9, 1, 1e18, "bytes of the model",
		   "Llama 3.1 70B in BF16"},
	[GPUS] = {"gpus", "count", NULL, 8, 1, 1024, "GPUs of a host", "HGX"},
	[HOSTS] = {"hosts", "count", NULL, 1, 1, 1e6, "hosts that load at the same time",
		   "one host"},
	[PLACEMENT] = {"placement", "", "shards|replicas", 0, 0, 0,
		       "whether the GPUs of a host share one copy of the model",
		       "tensor parallelism"},
	[STORE] = {"store-gbps", "GB/s", NULL, 50, 0.001, 1e9,
		   "bandwidth of the storage, for all hosts together", "one port of 400 Gbit/s"},
	[CLIENT] = {"host-gbps", "GB/s", NULL, 50, 0.001, 1e6, "bandwidth from storage to a host",
		    "one port of 400 Gbit/s"},
	[GPU] = {"gpu-gbps", "GB/s", NULL, 55.4, 0.001, 1e6, "bandwidth from a host to one GPU",
		 "H200 on PCIe Gen5 x16, measured"},
	[PEER] = {"peer-gbps", "GB/s", NULL, 450, 0.001, 1e6, "bandwidth from GPU to GPU",
		  "NVLink 4, 18 links, one direction"},
	[HOST_NET] = {"spread-gbps", "GB/s", NULL, 50, 0.001, 1e6, "bandwidth from host to host",
		      "one port of 400 Gbit/s"},
	[FIXED] = {"fixed-s", "s", NULL, 0, 0, 1e6, "time to start processes and open the model",
		   "none: measure it"},
};

enum { ALONE, HERD, HERD_READ, ONCE_HOST, ONCE, ONCE_READ, GAIN, SPEED, BINDING, RESULTS };

static const struct pst_model_result results[] = {
	[ALONE] = {"alone-s", "s", NULL, "one GPU reads all bytes, alone",
		   "fixed-s + bytes / min(store-gbps, host-gbps, gpu-gbps)",
		   "slowest part of a pipeline"},
	[HERD] = {"herd-s", "s", NULL, "each GPU of each host reads what it needs",
		  "fixed-s + max(herd-read / store-gbps, read of a host / host-gbps, need of a GPU "
		  "/ gpu-gbps)",
		  "slowest part of a pipeline"},
	[HERD_READ] = {"herd-read-gb", "GB", NULL, "bytes that the storage then delivers",
		       "bytes * hosts * (1, or gpus for replicas)", "counted"},
	[ONCE_HOST] = {"host-once-s", "s", NULL, "each host reads every byte once",
		       "as herd-s with one read for each host, and bytes / peer-gbps for "
		       "replicas",
		       "slowest part of a pipeline"},
	[ONCE] = {"once-s", "s", NULL, "all hosts together read every byte once",
		  "as host-once-s with one read in all, and bytes / spread-gbps between hosts",
		  "slowest part of a pipeline"},
	[ONCE_READ] = {"once-read-gb", "GB", NULL, "bytes that the storage then delivers", "bytes",
		       "counted"},
	[GAIN] = {"gain", "ratio", NULL, "herd-s over once-s", "herd-s / once-s", "ratio"},
	[SPEED] = {"delivered-gbps", "GB/s", NULL, "bytes that arrive on all GPUs, a second",
		   "need of all GPUs / once-s", "quotient"},
	[BINDING] = {"binding", "", "store|host-link|gpu-link|peer-link|spread",
		     "part that limits once-s", "argmax", "slowest part of a pipeline"},
};

/* Returns the longest of five times, one for each part of the path. Stores its index in *which. The
 * result `binding` uses this index to name the part. */
static double slowest(const double *times, double *which)
{
	unsigned best = 0;

	for (unsigned i = 1; i < 5; i++)
		if (times[i] > times[best])
			best = i;
	*which = best;
	return times[best];
}

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	double gb = in[BYTES] * 1e-9, hosts = in[HOSTS], gpus = in[GPUS], ignored;
	bool replicas = in[PLACEMENT] > 0;
	double copies = replicas ? gpus : 1, share = replicas ? 1 : 1 / gpus;
	double herd[5] = {gb * copies * hosts / in[STORE], gb * copies / in[CLIENT],
			  gb * share / in[GPU]};
	double host[5] = {gb * hosts / in[STORE], gb / in[CLIENT], gb / gpus / in[GPU],
			  replicas ? gb * (1 - 1 / gpus) / in[PEER] : 0};
	double once[5] = {gb / in[STORE], gb / hosts / in[CLIENT], gb / gpus / in[GPU], host[3],
			  gb * (1 - 1 / hosts) / in[HOST_NET]};

	(void)space;
	out[ALONE] = in[FIXED] + gb / fmin(in[STORE], fmin(in[CLIENT], in[GPU]));
	out[HERD] = in[FIXED] + slowest(herd, &ignored);
	out[HERD_READ] = gb * copies * hosts;
	out[ONCE_HOST] = in[FIXED] + slowest(host, &ignored);
	out[ONCE] = in[FIXED] + slowest(once, &out[BINDING]);
	out[ONCE_READ] = gb;
	out[GAIN] = out[HERD] / out[ONCE];
	out[SPEED] = gb * copies * hosts / out[ONCE];
	return NULL;
}

static const struct pst_model_preset presets[] = {
	{"llama-3.1-8b", "8.03 * 10^9 BF16 parameters", "model card", {{"bytes", 16.06e9}}},
	{"llama-3.1-70b", "70.6 * 10^9 BF16 parameters", "model card", {{"bytes", 141.2e9}}},
	{"llama-3.1-405b", "405.9 * 10^9 BF16 parameters", "model card", {{"bytes", 811.8e9}}},
	{"herd",
	 "8 GPUs of 64 hosts load copies of a model of 16 GB",
	 "a restart of a service",
	 {{"bytes", 16.06e9}, {"hosts", 64}, {"placement", 1}}},
};

const struct pst_model pst_model_weights = {
	.name = "weights",
	.summary = "time to load a model on many GPUs and hosts",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
