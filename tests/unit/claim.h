/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture for tests of path probes and claims. A path probe decides whether a data path of the
 * library (src/path) can move bytes between a storage and a device. A claim reserves the next bytes
 * of a request for one worker thread. The fixture has a simulated storage with a page cache, a host
 * device, a GPU and a pump (the set of worker threads of a device). To build a route, it calls the
 * library's own probe of each path. Included by test_probe.c and, through claiming.h, by
 * test_claim.c and test_residency_probe.c. The fixture opens no file and moves no bytes.
 */
#ifndef PENSTOCK_TEST_CLAIM_H
#define PENSTOCK_TEST_CLAIM_H

#include "test.h"

#include <errno.h>
#include <stdbool.h>

#include "core/backends.h"
#include "core/lane/pump.h"
#include "core/request/plan.h"
#include "core/request/request.h"
#include "core/route/route.h"

#define TILE (64u << 10)
#define TILES 2048
#define MIB (1ull << 20)
#define SLOT MIB

/* For each tile (a part of the file) whether it is in the simulated page cache. */
static enum pst_residency tiles[TILES];
static uint64_t queried_end, longest_query;
/* Number of residency queries (the library asks whether bytes are cached) since the last reset. */
static unsigned queries;
static struct penstock_storage st;
static struct penstock_device host, gpu;
static struct pst_pump pump;
static struct pst_route *route;
static struct pst_request req;
static struct penstock_seg segs[4];
static struct pst_span spans[12];

static enum pst_residency fake_residency(struct penstock_storage *storage, uint64_t off,
					 uint64_t len, enum penstock_why *why)
{
	enum pst_residency first = tiles[off / TILE];

	(void)storage;
	(void)why;
	assert_true(len && (off + len - 1) / TILE < TILES);
	queries++;
	queried_end = off + len > queried_end ? off + len : queried_end;
	longest_query = len > longest_query ? len : longest_query;
	for (uint64_t t = off / TILE; t <= (off + len - 1) / TILE; t++)
		if (tiles[t] != first)
			return PST_MIXED;
	return first;
}

static const struct pst_storage_ops storage_ops = {.name = "file", .residency = fake_residency};

static const struct pst_device_ops device_ops = {.name = "made up"};

static void residency_set(uint64_t off, uint64_t end, enum pst_residency as)
{
	for (uint64_t t = off / TILE; t < end / TILE; t++)
		tiles[t] = as;
}

/* Resets the fixture. The file is on a drive that the library's allow-list accepts for direct
 * reads. The devices are a host device and a GPU that can read the page cache. No byte of the file
 * is in the simulated page cache. */
static int setup(void **state)
{
	(void)state;
	free(route);
	route = NULL;
	memset(&st, 0, sizeof(st));
	memset(&host, 0, sizeof(host));
	memset(&gpu, 0, sizeof(gpu));
	memset(&pump, 0, sizeof(pump));
	memset(segs, 0, sizeof(segs));
	memset(&req, 0, sizeof(req));
	st.ops = &storage_ops;
	st.facts.fd = 100;
	st.facts.fd_direct = 101;
	st.facts.listed = st.facts.mappable = st.facts.mapped_quick = true;
	st.facts.off_align = st.facts.mem_align = 512;
	st.facts.edge_align = 4096;
	host.ops = gpu.ops = &device_ops;
	host.facts.is_host = host.facts.cpu_addressable = true;
	snprintf(host.name, sizeof(host.name), "host");
	gpu.facts.reads_page_cache = true;
	gpu.facts.why_peer.code = -EOPNOTSUPP;
	gpu.facts.why_peer.why = PENSTOCK_WHY_NO_PEER_PAGES;
	gpu.index = 1;
	snprintf(gpu.name, sizeof(gpu.name), "cuda:0");
	pump.slot_bytes = SLOT;
	pump.lane_count = 2;
	atomic_store(&host.pump, &pump);
	atomic_store(&gpu.pump, &pump);
	req.st = &st;
	req.segs = segs;
	req.spans = spans;
	req.pump = &pump;
	req.forced = -1;
	residency_set(0, (uint64_t)TILES * TILE, PST_COLD);
	queries = 0;
	queried_end = longest_query = 0;
	return 0;
}

/* Builds a route, which lists the usable paths between the storage and the device. It does the same
 * as route.c, but makes no test read (canary) over the paths. */
static void route_probe(struct penstock_device *dev, enum penstock_op op)
{
	free(route);
	route = calloc(1, sizeof(*route));
	route->st = &st;
	route->dev = dev;
	route->op = req.op = op;
	for (unsigned i = 0; i < pst_path_count; i++) {
		struct pst_path_state *state = &route->paths[i];

		state->usable = !pst_paths[i]->probe(route, &state->facts, &state->err, state->fix);
		/* every chunk has its full length, also the first ones of a request */
		state->facts.chunk_first = 0;
	}
	for (unsigned c = 0; c < PST_CLASSES; c++)
		for (unsigned e = 0; e < PST_EFFORTS; e++) {
			struct pst_plan_in in = {op,
						 (enum penstock_class)c,
						 (enum penstock_effort)e,
						 pst_path_count,
						 pst_paths,
						 route->paths};

			pst_plan_make(&in, &route->plans[c][e]);
		}
	atomic_store(&st.routes[op][dev->index], route);
}

static struct pst_path_state *path_state(const char *name)
{
	return &route->paths[pst_path_index(name)];
}

#endif
