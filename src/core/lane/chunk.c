/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks: their pool, and their end. A chunk that failed goes on by the next path
 * that its class allows; what it cost stays counted, what it carried does not. On
 * the lane's thread only.
 */
#include <stdatomic.h>
#include <stddef.h>

#include "core/base/clock.h"
#include "core/lane/lane.h"
#include "core/base/log.h"
#include "core/route/route.h"
#include "core/base/stats.h"

struct pst_chunk *pst_chunk_get(struct pst_lane *lane)
{
	struct pst_chunk *chunk = lane->chunks_free;

	lane->chunks_free = chunk->next;
	chunk->lane = lane;
	chunk->tries = 0;
	chunk->slot = NULL;
	chunk->rest = 0;
	chunk->direct_bytes = 0;
	chunk->moved = chunk->cpu_copied = chunk->dram_laid = 0;
	chunk->engine = NULL;
	chunk->err.code = 0;
	chunk->timed = false;
	chunk->timed_ns = 0;
	chunk->on_done = NULL;
	chunk->priv = NULL;
	chunk->waits = 0;
	chunk->io.st = NULL;
	chunk->io.engine_why = PENSTOCK_WHY_NONE;
	lane->busy++;
	return chunk;
}

bool pst_chunk_direct_begin(struct pst_chunk *chunk, uint64_t len)
{
	struct penstock_storage *st = chunk->route->st;
	bool read = chunk->route->op == PENSTOCK_READ;
	uint64_t most = PST_DIRECT_CALLS_MAX * (read ? pst_io_size_get(&st->io_size) : 1u << 20);
	uint64_t before;

	if (chunk->lane->direct &&
	    atomic_load_explicit(&st->direct_bytes, memory_order_relaxed) + len > most)
		return false;
	before = atomic_fetch_add_explicit(&st->direct_bytes, len, memory_order_relaxed);
	if (read)
		pst_io_size_started(&st->io_size, len, before, pst_now_ns);
	chunk->direct_bytes = len;
	chunk->lane->direct++;
	chunk->lane->reading += read;
	return true;
}

void pst_chunk_direct_end(struct pst_chunk *chunk)
{
	struct penstock_storage *st;
	uint64_t before;

	if (!chunk->direct_bytes)
		return; /* a sync's chunk has no route */
	st = chunk->route->st;
	before = atomic_fetch_sub_explicit(&st->direct_bytes, chunk->direct_bytes,
					   memory_order_relaxed);
	if (chunk->route->op == PENSTOCK_READ) {
		pst_io_size_completed(&st->io_size, chunk->direct_bytes, before, pst_now_ns);
		chunk->lane->reading--;
	}
	chunk->direct_bytes = 0;
	chunk->lane->direct--;
}

void pst_chunk_io(struct pst_chunk *chunk, void *mem, uint64_t off, uint64_t len, unsigned flags,
		  void (*done)(struct pst_io *io))
{
	struct pst_io *io = &chunk->io;

	io->st = chunk->route->st;
	io->lane = chunk->lane;
	io->op = chunk->route->op == PENSTOCK_READ ? PST_IO_FILL : PST_IO_DRAIN;
	io->flags = flags;
	io->off = off;
	io->len = len;
	io->one = (struct iovec){mem, len};
	io->iov = &io->one;
	io->iov_count = 1;
	io->done = done;
	io->err.code = 0;
}

/* Why it ends, in the same words wherever on its way it was. */
static int cancelled(struct pst_chunk *chunk)
{
	return pst_fail(&chunk->err, PENSTOCK_WHY_CANCELLED, "cancelled by the caller");
}

int pst_chunk_io_start(struct pst_chunk *chunk)
{
	struct pst_io *io = &chunk->io;
	const struct pst_storage_ops *ops = io->st->ops;
	int ret;

	/* What begins behind the lane's look at a cancel would not be asked to end. */
	if (ops->cancel && pst_req_cancelled(chunk->req))
		return cancelled(chunk);
	chunk->in_hand = true; /* it may have ended when the storage returns */
	ret = io->op == PST_IO_FILL    ? ops->fill(io)
	      : io->op == PST_IO_DRAIN ? ops->drain(io)
				       : ops->sync(io);
	if (!ret)
		return 0;
	chunk->in_hand = false;
	if (ret != -EAGAIN)
		chunk->err = io->err;
	return ret;
}

struct pst_chunk *pst_chunk_io_done(struct pst_io *io)
{
	struct pst_chunk *chunk = (struct pst_chunk *)((char *)io - offsetof(struct pst_chunk, io));

	chunk->in_hand = false;
	if (chunk->timed_ns)
		pst_residency_probe_end(chunk, io->result);
	return chunk;
}

int pst_chunk_moved(struct pst_chunk *chunk, uint64_t n)
{
	chunk->moved = n < chunk->len ? n : chunk->len;
	if (chunk->route->op == PENSTOCK_READ || n >= chunk->len)
		return 0;
	return pst_fail(&chunk->err, PENSTOCK_WHY_SHORT_IO, "wrote %llu of %llu bytes",
			(unsigned long long)n, (unsigned long long)chunk->len);
}

bool pst_chunk_cancel(struct pst_chunk *chunk)
{
	const struct pst_storage_ops *ops = chunk->in_hand ? chunk->io.st->ops : NULL;

	if (!ops || !ops->cancel || !pst_req_cancelled(chunk->req))
		return false;
	ops->cancel(&chunk->io);
	return true;
}

static void put_slot(struct pst_chunk *chunk)
{
	if (chunk->slot)
		pst_slot_put(&chunk->lane->slots, chunk->slot);
	chunk->slot = NULL;
}

void pst_chunk_put(struct pst_chunk *chunk)
{
	struct pst_lane *lane = chunk->lane;

	pst_chunk_direct_end(chunk);
	put_slot(chunk);
	chunk->next = lane->chunks_free;
	lane->chunks_free = chunk;
	lane->busy--;
}

void pst_chunk_defer(struct pst_lane *lane, struct pst_chunk *chunk)
{
	chunk->next = NULL;
	*lane->deferred_end = chunk;
	lane->deferred_end = &chunk->next;
	chunk->req->entries[lane->index].stalled++;
}

static void count(const struct pst_chunk *chunk, int result)
{
	struct pst_stats_path *row = &pst_stats_get()->paths[chunk->path];
	unsigned op = chunk->req->op;
	uint64_t ns = pst_now_ns() - chunk->start_ns;

	atomic_fetch_add_explicit(&row->chunks[op], 1, memory_order_relaxed);
	if (!result) /* as reports have it */
		atomic_fetch_add_explicit(&row->bytes[op], chunk->moved, memory_order_relaxed);
	atomic_fetch_add_explicit(&row->cpu_copied, chunk->cpu_copied, memory_order_relaxed);
	atomic_fetch_add_explicit(&row->dram_laid, chunk->dram_laid, memory_order_relaxed);
	atomic_fetch_add_explicit(&row->latency[pst_stats_bucket(ns)], 1, memory_order_relaxed);
	if (result && !(result == -ECANCELED && pst_req_cancelled(chunk->req)))
		atomic_fetch_add_explicit(&row->errors, 1, memory_order_relaxed);
}

/* By this path, as much as it takes as one; what is behind follows when that is done. */
static void again(struct pst_chunk *chunk, int path, uint64_t len, uint32_t pad)
{
	put_slot(chunk);
	pst_chunk_direct_end(chunk); /* a copy to a slot may have failed, before the drive had it */
	chunk->path = (uint8_t)path;
	chunk->timed = false;
	chunk->timed_ns = 0;
	chunk->rest += chunk->len - len;
	chunk->len = len;
	chunk->pad = pad;
	chunk->moved = chunk->cpu_copied = chunk->dram_laid = 0;
	chunk->err.code = 0;
	chunk->on_done = NULL;
	pst_chunk_defer(chunk->lane, chunk);
}

/* After a failure: the next path that the class allows. False: there is none. */
static bool retry(struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	uint64_t len;
	uint32_t pad;
	int next;

	if (pst_req_cancelled(req) || atomic_load_explicit(&req->failed, memory_order_relaxed))
		return false;
	next = pst_claim_retry(chunk, true, &len, &pad);
	/* That it failed outweighs what else kept it from some of the bytes. */
	atomic_store_explicit(&req->path_why[chunk->path], (unsigned)chunk->err.why,
			      memory_order_relaxed);
	if (next < 0)
		return false;
	atomic_fetch_add_explicit(&req->retries, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&pst_stats_get()->paths[chunk->path].retries, 1,
				  memory_order_relaxed);
	pst_log(PST_LOG_INFO, pst_paths[chunk->path]->name, "chunk at %llu goes on by %s: %s",
		(unsigned long long)chunk->off, pst_paths[next]->name, chunk->err.text);
	chunk->tries++;
	/* What it cost is counted, and by whose doing; what it carried is not. */
	atomic_fetch_add_explicit(&req->cpu_copied, chunk->cpu_copied, memory_order_relaxed);
	atomic_fetch_add_explicit(&req->dram_laid, chunk->dram_laid, memory_order_relaxed);
	again(chunk, next, len, pad);
	return true;
}

/* It fails for good, with what is behind it. */
static void fail(struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->lane;
	uint64_t len = chunk->len + chunk->rest;

	chunk->moved = 0;
	pst_req_count(req, chunk);
	pst_req_fail(req, lane, &chunk->err);
	pst_chunk_put(chunk);
	pst_req_bytes_done(req, lane, len);
}

/* A piece of it is done: from here on the chunk is what is behind that. */
static void go_on(struct pst_chunk *chunk)
{
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->lane;
	uint64_t done = chunk->len, len;
	uint32_t pad;
	int path = -1;

	chunk->off += done;
	chunk->len = chunk->rest;
	chunk->rest = 0;
	chunk->cpu_copied = chunk->dram_laid = 0;
	if (!atomic_load_explicit(&req->failed, memory_order_relaxed))
		path = pst_claim_retry(chunk, false, &len, &pad);
	if (path >= 0) {
		again(chunk, path, len, pad);
	} else {
		pst_fail(&chunk->err, PENSTOCK_WHY_UNALIGNED,
			 "no path of the class takes the %llu bytes at %llu",
			 (unsigned long long)chunk->len, (unsigned long long)chunk->off);
		fail(chunk);
	}
	pst_req_bytes_done(req, lane, done); /* last: until then the request is there */
}

/* One that goes on by another path has begun in time. */
bool pst_chunk_abandon(struct pst_chunk *chunk)
{
	bool begun = chunk->tries && !pst_req_cancelled(chunk->req);

	if (begun || !pst_req_is_abandoned(chunk->req, &chunk->err))
		return false;
	fail(chunk);
	return true;
}

void pst_chunk_done(struct pst_chunk *chunk, int result)
{
	struct pst_request *req = chunk->req;
	struct pst_lane *lane = chunk->lane;
	uint64_t len = chunk->len;

	if (chunk->on_done) {
		chunk->on_done(chunk, result);
		return;
	}
	if (!result && req->op == PENSTOCK_WRITE && chunk->route->paths[chunk->path].facts.canary)
		result = pst_canary_write(chunk);
	count(chunk, result);
	if (result && retry(chunk))
		return;
	if (result) {
		if (result == -ECANCELED && pst_req_cancelled(req))
			cancelled(chunk);
		if (!chunk->err.code)
			pst_fail_errno(&chunk->err, result, pst_why_of_errno(result), "%m");
		fail(chunk);
		return;
	}
	pst_req_count(req, chunk);
	if (chunk->rest) {
		go_on(chunk);
		return;
	}
	pst_chunk_put(chunk);
	pst_req_bytes_done(req, lane, len);
}
