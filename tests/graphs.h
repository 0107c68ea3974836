/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver's functions for graphs, for tests that capture graphs and launch them. The
 * library does not call these functions. The stand-in (simulated) driver provides them, or the
 * machine's own driver if PENSTOCK_STANDIN=0.
 */
#ifndef GRAPHS_H
#define GRAPHS_H

#include "test.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#include "device/cuda_api.h"

struct pst_cu_graph_exec;

/* clang-format off */
#define GRAPH_FUNCS(F) \
F(begin, cuStreamBeginCapture_v2, (struct pst_cu_stream *, enum pst_cu_capture_mode)) \
F(end, cuStreamEndCapture, (struct pst_cu_stream *, struct pst_cu_graph **)) \
F(instantiate, cuGraphInstantiateWithFlags, \
	(struct pst_cu_graph_exec **, struct pst_cu_graph *, unsigned long long)) \
F(launch, cuGraphLaunch, (struct pst_cu_graph_exec *, struct pst_cu_stream *)) \
F(exec_destroy, cuGraphExecDestroy, (struct pst_cu_graph_exec *)) \
F(destroy, cuGraphDestroy, (struct pst_cu_graph *)) \
F(clone, cuGraphClone, (struct pst_cu_graph **, struct pst_cu_graph *)) \
F(nodes, cuGraphGetNodes, (struct pst_cu_graph *, struct pst_cu_node **, size_t *))
/* clang-format on */

#define GRAPH_MEMBER(name, symbol, params) enum pst_cu_result(*name) params;
static struct {
	GRAPH_FUNCS(GRAPH_MEMBER)
} graphs;

/* Looks up the functions. Returns -1 if the driver lacks one. */
static inline int graphs_load(void)
{
	const char *name = getenv("PENSTOCK_LIBCUDA");
	void *driver = dlopen(name && *name ? name : "libcuda.so.1", RTLD_NOW);

	if (!driver)
		return -1;
#define GRAPH_FIND(name, symbol, params)                 \
	*(void **)&graphs.name = dlsym(driver, #symbol); \
	if (!graphs.name)                                \
		return -1;
	GRAPH_FUNCS(GRAPH_FIND)
	return 0;
}

static inline uint64_t graphs_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
