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
 *	transfer [us]          = size / link
 *	cpu registration [us]  = cpu-fixed + ceil(size / cpu-page) * cpu-page-time
 *	efficiency             = n * transfer / (registrations * registration + n * transfer)
 *	crossover [I/Os]       = the first n for which one kept GPU registration costs no more
 *	                         than n CPU registrations
 *	MTT hit rate           = that of an LRU cache of mtt-entries, which is accessed in order
 *	                         or at random
 * Source: the definition of efficiency as useful time over total time, and the measured fixed
 * and per-page times of memory registration by RDMA drivers.
 */
extern const struct pst_model pst_model_registration;

/*
 * fence: the time of ordering fences, which make a program wait until peer-to-peer writes have
 * arrived.
 *	fences         = ceil(bytes / chunk)
 *	fence time [s] = fences * fence-time
 *	coalesced      = ceil(bytes / (chunk * batch)) * batch-time
 */
extern const struct pst_model pst_model_fence;

/*
 * pipeline: one request of `size` bytes over the hops of a path.
 *	serial latency    = sum over hops (latency + size / bandwidth) + request
 *	pipelined latency = sum over hops (latency + c / bandwidth) + (size - c) / slowest
 *	                    bandwidth + request, with c = min(size, chunk)
 *	throughput        = min(slowest bandwidth, depth * size / latency), or size / latency
 *	                    if the hops work one after the other. The parameter `knee` rounds
 *	                    the corner of the minimum, by a p-norm
 * Source: the asymptotic bounds of a closed queueing network (Denning and Buzen, 1978).
 */
extern const struct pst_model pst_model_pipeline;

/*
 * contention: streams that share the links of a PCIe tree. contention.h declares the tree, sim.h
 * the simulator.
 *	wire bytes          = bytes + ceil(bytes / payload) * overhead
 *	capacity of a link  = chunk / (wire(chunk) / bandwidth + switch-time if it is shared)
 *	closed form         = weighted max-min fair share of the capacities (Bertsekas and
 *	                      Gallager, Data Networks, 6.5.2), at most depth * chunk / round trip
 *	fairness            = (sum x)^2 / (n * sum x^2)  (Jain, Chiu and Hawe, 1984)
 */
extern const struct pst_model pst_model_contention;

/*
 * checkpoint: what it costs to save the state of a training run.
 *	state bytes       = params * (weight + master + moment bytes), unless `bytes` is given
 *	window d [s]      = state bytes / min(drives, GPU links, fabric, storage) * efficiency
 *	stall [s]         = window, or the snapshot's time if saving is asynchronous
 *	Young [s]         = sqrt(2 * stall * M), with M = node-mtbf / nodes  (Young, 1974)
 *	Daly [s]          = sqrt(2 d M) * (1 + sqrt(d / 2M) / 3 + d / 18M) - d  (Daly, 2006)
 *	waste             = stall / interval + (interval / 2 + recovery) / M
 */
extern const struct pst_model pst_model_checkpoint;

/*
 * sizing: the reverse of the model checkpoint. From the bytes, the time for a save (the window) and
 * the number of GPUs, it computes the numbers of drives, storage nodes and ports.
 *	needed [B/s]      = bytes / window
 *	expansion         = replicas, or (data + parity) / data for an erasure code
 *	drives            = the largest of: needed * expansion / drive bandwidth; kept bytes /
 *	                    drive capacity; bytes written a day / (drive capacity * writes a day)
 */
extern const struct pst_model pst_model_sizing;

/*
 * cost: the price of waiting GPUs.
 *	wasted GPU hours  = gpus * wait * events / 3600
 *	break-even [days] = cost of the direct path / (price saved a day)
 */
extern const struct pst_model pst_model_cost;

/*
 * kvcache: keeping the attention keys and values of a prompt instead of computing them again.
 *	bytes a token     = 2 * layers * kv-heads * head-dim * element bytes, or
 *	                    layers * latent-dim * element bytes for latent attention
 *	hit rate that pays = (lookup + store) / (recompute - reload)
 */
extern const struct pst_model pst_model_kvcache;

/*
 * weights: loading one model on many GPUs and hosts.
 *	each reads all    = fixed + bytes * gpus * hosts / store, or by the slower link
 *	each byte once    = fixed + max(bytes / store, bytes / host link, bytes / GPU link)
 */
extern const struct pst_model pst_model_weights;

/*
 * training: the read rate that keeps accelerators busy.
 *	needed [GB/s]     = accelerators * rate
 *	accelerators fed  = storage / (rate * use)
 */
extern const struct pst_model pst_model_training;

#endif
