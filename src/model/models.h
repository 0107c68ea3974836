/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The models and their formulas. A name in a formula is a parameter or a result of the model.
 * The tables in NAME.c have the meaning, unit, range and origin of each of these.
 */
#ifndef PST_MODEL_MODELS_H
#define PST_MODEL_MODELS_H

#include "table.h"

/*
 * registration: the time to register memory with the driver, compared with the time of the
 * transfers.
 *	transfer [us]          = size [bytes] * 8 / link [Gbit/s] / 1000
 *	cpu registration [us]  = cpu-fixed [us] + ceil(size / cpu-page) * cpu-page-time [us]
 *	efficiency [ratio]     = n * transfer / (registrations * registration + n * transfer)
 *	crossover [I/Os]       = the first n for which one kept GPU registration costs no more
 *	                         than n CPU registrations
 *	MTT hit rate [ratio]   = that of an LRU cache of mtt-entries, which is accessed in order
 *	                         or at random
 * Source: the definition of efficiency as useful time over total time, and the measured fixed
 * and per-page times of memory registration by RDMA drivers.
 */
extern const struct pst_model pst_model_registration;

/*
 * fence: the time of ordering fences, which make a program wait until peer-to-peer writes have
 * arrived.
 *	fences [count]    = ceil(bytes / chunk)
 *	fence time [ms]   = fences * fence-us / 1000
 *	batched time [ms] = ceil(bytes / (chunk * batch)) * batch-us / 1000
 * Source: a count of the fences. Fences of one drive follow each other, so their times add up. The
 * defaults come from a published example (2 GiB a drive, 16 KiB chunks, 0.5 to 1.5 us).
 */
extern const struct pst_model pst_model_fence;

/*
 * pipeline: one request of `size` bytes over the hops of a path.
 *	serial latency [us]    = sum over hops (latency [us] + size [bytes] / bandwidth [GB/s]
 *	                         / 1000) + request [us]
 *	pipelined latency [us] = sum over hops (latency + c / bandwidth) + (size - c) / slowest
 *	                         bandwidth + request, with c = min(size, chunk)
 *	throughput [GB/s]      = min(slowest bandwidth, depth * size / latency), or size /
 *	                         latency if the hops work one after the other. The parameter
 *	                         `knee` rounds the corner of the minimum, by a p-norm
 * Source: the asymptotic bounds of a closed queueing network (Denning and Buzen, 1978).
 */
extern const struct pst_model pst_model_pipeline;

/*
 * contention: streams that share the links of a PCIe tree. contention.h declares the tree, sim.h
 * the simulator.
 *	wire bytes [bytes] = bytes + ceil(bytes / payload) * overhead
 *	capacity [GB/s]    = chunk / (wire(chunk) / bandwidth + switch-time if the link is shared)
 *	closed form [GB/s] = weighted max-min fair share of the capacities (Bertsekas and
 *	                     Gallager, Data Networks, 6.5.2), at most depth * chunk / round trip
 *	fairness [ratio]   = (sum x)^2 / (n * sum x^2)  (Jain, Chiu and Hawe, 1984)
 * Source: the wire bytes are those of the PCI Express Base Specification 5.0 (framing, header and
 * LCRC of a TLP); the other formulas name theirs.
 */
extern const struct pst_model pst_model_contention;

/*
 * checkpoint: what it costs to save the state of a training run.
 *	state [GB]        = params [10^9] * (weight + master + moment bytes), unless `bytes` is
 *	                    given
 *	window [s]        = state / (min(drives, GPU links, fabric, storage) [GB/s] * efficiency)
 *	stall d [s]       = window, or the snapshot's time if saving is asynchronous
 *	Young [s]         = sqrt(2 d M), with M [s] = node-mtbf / nodes  (Young, 1974)
 *	Daly [s]          = sqrt(2 d M) * (1 + sqrt(d / 2M) / 3 + d / 18M) - d  (Daly, 2006)
 *	waste [ratio]     = d / (interval + d) + ((interval + d) / 2 + recovery) / M
 * Source: Young 1974 and Daly 2006 for the intervals; Rajbhandari and others 2020 (ZeRO) for the
 * bytes of each GPU.
 */
extern const struct pst_model pst_model_checkpoint;

/*
 * sizing: the reverse of the model checkpoint. From the bytes, the time for a save (the window) and
 * the number of GPUs, it computes the numbers of drives, storage nodes and ports.
 *	needed [GB/s]     = bytes / window [s]
 *	expansion [ratio] = replicas, or (data + parity) / data for an erasure code
 *	drives [count]    = the largest of: needed * expansion / drive bandwidth; kept bytes /
 *	                    drive capacity; bytes written a day / (drive capacity * writes a day)
 * Source: the definitions of bandwidth, of an erasure code, and of the rating "drive writes per
 * day" (DWPD) of drives.
 */
extern const struct pst_model pst_model_sizing;

/*
 * cost: the price of waiting GPUs.
 *	wasted [GPU hours a day] = gpus * wait [s] * events a day * use / 3600
 *	break-even [days]        = cost of the direct path / price saved a day
 * Source: products of the parameters. The prices of the presets have the date of their source; the
 * user can replace them by a table.
 */
extern const struct pst_model pst_model_cost;

/*
 * kvcache: keeping the attention keys and values of a prompt instead of computing them again.
 *	bytes a token [bytes]      = 2 * layers * kv-heads * head-dim * element bytes, or
 *	                             layers * latent-dim * element bytes for latent attention
 *	reload [ms]                = fixed + tokens * bytes a token / bandwidth of the tier
 *	hit rate that pays [ratio] = (lookup + store) / (recompute - reload + store), with
 *	                             store [ms] = store-share * reload
 * Source: counted from a model's config.json; the hit rate makes the expected times with and
 * without the cache equal.
 */
extern const struct pst_model pst_model_kvcache;

/*
 * weights: loading one model on many GPUs and hosts.
 *	each reads all [s] = fixed + max(bytes * copies * hosts / store, bytes * copies / host
 *	                     link, bytes * copies / gpus / GPU link), bandwidths in GB/s, with
 *	                     copies = gpus for replicas, 1 for shards
 *	each byte once [s] = fixed + max(bytes / store, bytes / hosts / host link, bytes / gpus /
 *	                     GPU link, the times to pass the bytes on)
 * Source: the slowest part of a pipeline; the bytes are counted.
 */
extern const struct pst_model pst_model_weights;

/*
 * training: the read rate that keeps accelerators busy.
 *	needed [GB/s]            = accelerators * rate [MB/s] / 1000
 *	accelerators fed [count] = floor(storage [GB/s] * 1000 / (rate * use))
 * Source: the rates of MLPerf Storage, in bytes a second that one accelerator consumes.
 */
extern const struct pst_model pst_model_training;

#endif
