/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares all models, each with its main formulas. A name in a formula is a parameter or a result
 * of the model. The file NAME.c implements the model NAME. Its tables have the exact name, the
 * meaning, the unit and the source of each parameter and result.
 */
#ifndef PST_MODEL_MODELS_H
#define PST_MODEL_MODELS_H

#include "table.h"

/*
 * registration: compares the time in which an RDMA driver registers memory with the time of n
 * transfers. The driver registers the memory r times: once, or before each transfer (r = n).
 *	transfer [us]          = size [bytes] * 8 / link [Gbit/s] / 1000
 *	cpu registration [us]  = cpu-fixed [us] + ceil(size / cpu-page) * cpu-page-time [us]
 *	efficiency [ratio]     = n * transfer / (r * registration + n * transfer)
 *	crossover [I/Os]       = the smallest n for which one registration of GPU memory costs no
 *	                         more than n registrations of host memory
 *	MTT hit rate [ratio]   = hit rate of the network card's translation table (MTT), an LRU
 *	                         cache of mtt-entries that is accessed cyclically or at random
 * Source: the definition of efficiency as useful time over total time, and the measured fixed
 * and per-page times of memory registration by RDMA drivers.
 */
extern const struct pst_model pst_model_registration;

/*
 * fence: the time of ordering fences, which make a program wait until peer-to-peer writes have
 * arrived. There is one fence after each chunk, or one after `batch` chunks (batched).
 *	fences [count]    = ceil(bytes / chunk)
 *	fence time [ms]   = fences * fence-us / 1000
 *	batched time [ms] = ceil(bytes / (chunk * batch)) * batch-us / 1000
 * Source: the model counts the fences of a drive and adds their times, because a drive's fences
 * follow each other. The defaults come from a published example: 2 GiB a drive, chunks of 16 KiB,
 * 0.5 to 1.5 us a fence.
 */
extern const struct pst_model pst_model_fence;

/*
 * pipeline: requests of `size` bytes pass the hops of a path, `depth` of them at a time. A hop is a
 * device, a link or a copy by the CPU. The hops work at the same time (pipelined), on pieces of
 * `chunk` bytes, or one after the other (serial).
 *	serial latency [us]    = sum over hops (latency [us] + size [bytes] / bandwidth [GB/s]
 *	                         / 1000) + request [us]
 *	pipelined latency [us] = sum over hops (latency + c / bandwidth) + (size - c) / slowest
 *	                         bandwidth + request, with c = min(size, chunk)
 *	throughput [GB/s]      = min(slowest bandwidth, depth * size / latency), or size /
 *	                         latency if serial. Instead of min(a, b), the model uses a smooth
 *	                         (a^-knee + b^-knee)^(-1 / knee), if knee is less than 100
 * Source: the asymptotic bounds of a closed queueing network (Denning and Buzen, 1978).
 */
extern const struct pst_model pst_model_pipeline;

/*
 * contention: n data streams share the links of a PCIe tree. contention.h declares the tree, sim.h
 * the simulator. A stream keeps `depth` chunks in flight.
 *	wire bytes [bytes] = bytes + ceil(bytes / payload) * overhead
 *	capacity [GB/s]    = chunk / (wire bytes of a chunk / bandwidth of the link + switch-time
 *	                     if the link is shared)
 *	closed form [GB/s] = weighted max-min fair share of the capacities (Bertsekas and
 *	                     Gallager, Data Networks, 6.5.2), at most depth * chunk / round trip
 *	fairness [ratio]   = (sum x)^2 / (n * sum x^2), where x is the bandwidth of a stream
 *	                     (Jain, Chiu and Hawe, 1984)
 * Source: the overhead of each TLP (PCIe packet) is its framing, header and LCRC in the PCI Express
 * Base Specification 5.0. The formulas for closed form and fairness name their own sources.
 */
extern const struct pst_model pst_model_contention;

/*
 * checkpoint: the time to save the state of a training run, and the training time that this costs.
 * d is the time for which training stops for a save, M the mean time between failures of the run.
 * Young and Daly are formulas for the best interval between two saves.
 *	state [GB]        = params [10^9] * (weight + master + moment bytes), unless `bytes` is
 *	                    given
 *	window [s]        = state / (bandwidth of the slowest part [GB/s] * efficiency). The parts
 *	                    are the GPU links and drives, or the GPU links, fabric and storage
 *	d (stall) [s]     = window. If saving is asynchronous: the time of a snapshot, plus the
 *	                    time by which the window exceeds the interval; at most the window
 *	Young [s]         = sqrt(2 d M), with M [s] = node-mtbf / nodes  (Young, 1974)
 *	Daly [s]          = sqrt(2 d M) * (1 + sqrt(d / 2M) / 3 + d / 18M) - d, or M if d >= 2M
 *	                    (Daly, 2006)
 *	waste [ratio]     = d / (interval + d) + ((interval + d) / 2 + recovery) / M, at most 1
 * Source: Young 1974 and Daly 2006 for the intervals; Rajbhandari and others 2020 (ZeRO) for the
 * bytes of each GPU.
 */
extern const struct pst_model pst_model_checkpoint;

/*
 * sizing: the reverse of the model checkpoint. From the bytes of a checkpoint and the time for a
 * save (the window), it computes the numbers of drives, storage nodes and ports.
 *	needed [GB/s]     = bytes / window [s]
 *	expansion [ratio] = replicas, or (data + parity) / data for an erasure code
 *	drives [count]    = the largest of: needed * expansion / write bandwidth of a drive, plus
 *	                    reads during the save / read bandwidth of a drive; bytes of all kept
 *	                    checkpoints / drive capacity; bytes written a day / (drive capacity *
 *	                    writes a day)
 * Source: the definitions of bandwidth, of an erasure code, and of the rating "drive writes per
 * day" (DWPD) of drives.
 */
extern const struct pst_model pst_model_sizing;

/*
 * cost: the price of the time in which GPUs wait for storage, on the present path and on a faster,
 * direct path. An event is a wait, such as the save of a checkpoint.
 *	wasted [GPU hours a day] = gpus * wait [s] * events a day * use / 3600
 *	break-even [days]        = one-time cost of the direct path / price saved a day
 * Source: products of the parameters. The presets have published prices with their date. The user
 * can give other presets with the option --presets.
 */
extern const struct pst_model pst_model_cost;

/*
 * kvcache: stores the attention keys and values of a prompt in a tier (host memory, drives or a
 * network) and loads them again, instead of computing them again.
 *	bytes a token [bytes]      = 2 * layers * kv-heads * head-dim * element bytes, or
 *	                             layers * latent-dim * element bytes for latent attention
 *	reload [ms]                = fixed + tokens * bytes a token / bandwidth from the tier,
 *	                             which is at most that of the GPUs' links
 *	hit rate that pays [ratio] = (lookup + store) / (recompute - reload + store), with
 *	                             store [ms] = store-share * reload
 * Source: the config.json of a language model has the numbers of layers, heads and elements. At the
 * hit rate that pays, the expected times with and without the store are equal.
 */
extern const struct pst_model pst_model_kvcache;

/*
 * weights: the time to load one language model on all GPUs of many hosts. In the formulas, store,
 * host link and GPU link are bandwidths in GB/s. `gpus` is the number of GPUs of a host. If each of
 * these has a replica of the model, copies = gpus. If they share one copy (shards), copies = 1.
 *	each reads all [s] = fixed + max(bytes * copies * hosts / store, bytes * copies / host
 *	                     link, bytes * copies / gpus / GPU link)
 *	each byte once [s] = fixed + max(bytes / store, bytes / hosts / host link, bytes / gpus /
 *	                     GPU link, the times to pass the bytes on to other GPUs and hosts)
 * Source: the slowest part of a pipeline, with a count of the bytes that pass each part.
 */
extern const struct pst_model pst_model_weights;

/*
 * training: the read bandwidth that keeps accelerators busy. `rate` is the bandwidth at which one
 * accelerator consumes training data, `use` the share of the time that it must compute.
 *	needed [GB/s]            = accelerators * rate [MB/s] / 1000
 *	accelerators fed [count] = floor(min(storage, nodes * node bandwidth) [GB/s] * 1000 /
 *	                           (rate * use))
 * Source: the benchmark MLPerf Storage, for the rates and the required use.
 */
extern const struct pst_model pst_model_training;

#endif
