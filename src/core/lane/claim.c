/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claiming: a lane takes the next chunk of a request, as long as the best path for
 * those very bytes likes it. Here the page cache is asked (by the storage) and
 * alignment decides; the order of paths was fixed by the plan. Lock-free: the only
 * shared word is req->next.
 */
#include "core/base/clock.h"
#include "core/lane/pump.h"
#include "core/request/request.h"
#include "core/route/route.h"

#define LOOK_MIN (64u << 10) /* a mixed range this short is read as cold */
/* Asking costs a look at each folio: 32 us for 128 MiB of large ones, 2 ms of small. */
#define PST_LOOK_MAX (128u << 20)
/* One chunk of bytes that are held to be cached: so many are read the slow way if not. */
#define BLIND_MAX (32u << 20)

/* So many bytes before where it would a chunk may end: then it does at the end of a piece,
 * where pieces are so short. */
#define CUTS 4
#define LEAST 16u /* that are worth a chunk, where others follow */

/* Where a claim stands: the storage bytes at `off`, at most `len` of them. */
struct place {
	const struct pst_span *span;
	uint64_t off, len;
	uint64_t pos; /* the request's bytes before it */
	bool blind;   /* nobody says whether they are cached */
};

static void find_place(const struct pst_request *req, uint64_t pos, struct place *out)
{
	const struct pst_span *span = &req->spans[pst_span_at(req, pos)];
	uint64_t at = pos - span->start;

	out->span = span;
	out->pos = pos;
	out->blind = false;
	if (span->rowwise) {
		const struct penstock_seg *seg = &req->segs[span->seg_first];
		uint64_t row = at / seg->row_len, in_row = at % seg->row_len;

		out->off = seg->off + row * seg->pitch + in_row;
		out->len = seg->row_len - in_row;
	} else {
		out->off = span->off + at;
		out->len = span->len - at;
	}
}

uint64_t pst_spans_lowest(const struct pst_request *req, uint64_t pos)
{
	struct place place;
	uint64_t lowest;

	find_place(req, pos, &place);
	lowest = place.off;
	for (unsigned i = (unsigned)(place.span - req->spans) + 1; i < req->span_count; i++)
		if (req->spans[i].off < lowest)
			lowest = req->spans[i].off;
	return lowest;
}

/*
 * Residency of the front of `place`; shortens place->len to the run that has it.
 * How far to look follows what the request met so far, so that a file cached in
 * large runs costs one call and a checkerboard does not ask for each tile twice.
 */
static enum pst_residency look(struct pst_request *req, struct place *place)
{
	const struct pst_storage_ops *ops = req->st->ops;
	uint64_t len = (uint64_t)atomic_load_explicit(&req->residency_kib, memory_order_relaxed)
		       << 10;
	const struct pst_plan *plan = place->span->plan;
	uint64_t next, useful = PST_LOOK_MAX; /* more than one chunk of cached bytes is not */
	enum penstock_why why = PENSTOCK_WHY_NONE;
	enum pst_residency found = PST_UNKNOWN;

	if (!ops->residency)
		return PST_COLD; /* no cache in front of it */
	if (plan->count[PST_WARM])
		useful = place->span->route->paths[plan->list[PST_WARM][0]].facts.chunk_max;
	if (len > useful)
		len = useful;
	if (len > place->len)
		len = place->len;
	for (;;) {
		found = ops->residency(req->st, place->off, len, &why);
		if (found != PST_MIXED || len <= LOOK_MIN)
			break;
		len = len / 2 < LOOK_MIN ? LOOK_MIN : len / 2;
		if (place->off % LOOK_MIN) /* keep to a grid, runs rarely start off it */
			len -= (place->off + len) % LOOK_MIN;
		if (len < LEAST || len > place->len)
			len = place->len < LOOK_MIN ? place->len : LOOK_MIN;
	}
	if (found == PST_UNKNOWN) {
		place->blind = true;
		return pst_residency_verdict(req->st);
	}
	next = len < (1u << 28) ? len * 2 : len;
	if (next < LOOK_MIN) /* the end of a span says nothing about the next */
		next = LOOK_MIN;
	atomic_store_explicit(&req->residency_kib, (uint32_t)(next >> 10), memory_order_relaxed);
	if (len < place->len)
		place->len = len;
	return found == PST_MIXED ? PST_COLD : found;
}

/*
 * Short chunks at first, so that the device has something to copy while the next is
 * prepared, and at the end, so that no lane is left with a long one: at most a lane's
 * share of what is behind, and half of its share of what is ahead.
 */
static uint64_t ramp(const struct pst_request *req, const struct place *place,
		     const struct pst_path_facts *facts, uint64_t len)
{
	uint64_t end = atomic_load_explicit(&req->limit, memory_order_relaxed);
	uint64_t rest = end > place->pos ? end - place->pos : 0;
	uint64_t lanes = facts->lanes ? facts->lanes : 1;
	uint64_t behind = place->pos / lanes, ahead = rest / (2 * lanes);
	uint64_t most = (behind < ahead ? behind : ahead) / facts->chunk_first;

	most = most ? most * facts->chunk_first : facts->chunk_first;
	if (len <= most || rest < most + facts->chunk_first)
		return len; /* what would be left is too short for itself */
	return most;
}

/*
 * Where a chunk of path `index` may begin and end. Of a write whose plan ends in the page
 * cache no two chunks share a page or a block of the file system: the cache would read the
 * part that a neighbour has on its way to the drive, and write it back as it was. Who names
 * a path, or allows direct ones only, gets what the drive can do.
 */
static uint64_t grid(const struct pst_request *req, const struct place *place, unsigned index,
		     uint64_t most)
{
	const struct pst_route *route = place->span->route;
	const struct pst_plan *plan = place->span->plan;
	uint64_t align = route->paths[index].facts.off_align, edge = req->st->facts.edge_align;
	unsigned last;

	align = align ? align : 1;
	if (align == 1 || req->op == PENSTOCK_READ || req->forced >= 0)
		return align;
	last = plan->list[PST_COLD][plan->count[PST_COLD] - 1];
	if (route->paths[last].facts.off_align > 1)
		return align;
	while (edge > most) /* a power of two; slots may be shorter than a stripe */
		edge /= 2;
	return edge > align ? edge : align;
}

/*
 * The front of `place`, `len` bytes of it, in blocks of `align`: how many bytes may go, and
 * 0 if they do not begin on a block; then *cap is where they would. At the end the room
 * behind may make the last block whole, as far as the drive asks for that (`off_align`).
 * Of a read no single byte is left to others, on either side.
 */
static uint64_t whole_blocks(const struct place *place, enum penstock_op op, uint64_t align,
			     uint32_t off_align, uint64_t len, uint64_t room, uint32_t *pad,
			     uint64_t *cap)
{
	uint64_t head = -place->off % align, tail = len % align, behind;
	bool no_byte_alone = op == PENSTOCK_READ && align > 1;
	bool last_one = tail ? tail == 1 : place->len == len + 1;

	if (head) {
		head += head == 1 && no_byte_alone ? align : 0;
		*cap = head < *cap ? head : *cap;
		return 0;
	}
	if (!tail && !(last_one && no_byte_alone))
		return len;
	behind = -len % off_align;
	if (room && behind <= room && (len == place->len || len == tail)) {
		*pad = (uint32_t)behind;
		return len;
	}
	if (last_one && no_byte_alone)
		tail += align;
	return len > tail ? len - tail : 0; /* what is left is another chunk */
}

/*
 * How much of `place` path `index` can take as one chunk: its length, and 0 if it
 * cannot start there; then *cap is where the next path must end so that this one
 * can go on.
 */
static uint64_t fit(const struct pst_request *req, const struct place *place, unsigned index,
		    uint32_t *pad, uint64_t *cap)
{
	const struct pst_path_facts *facts = &place->span->route->paths[index].facts;
	uint64_t len = place->len, room = 0, most = facts->chunk_max, align;

	*pad = 0;
	/* A request's lanes are those of its first segment's device, whatever others it has. */
	if (facts->slotted) {
		size_t slot = req->alone ? req->pump->spare[0].slot_bytes : req->pump->slot_bytes;

		most = slot < most ? slot : most;
	}
	if (facts->io_size && pst_io_size_get(&req->st->io_size) < most)
		most = pst_io_size_get(&req->st->io_size);
	align = grid(req, place, index, most);
	if (facts->exact) {
		struct pst_part part;

		if (pst_span_part_at(req, place->span, place->off, &part))
			return 0;
		if (part.row_len < len)
			len = part.row_len;
		else
			room = part.slack;
		if (facts->mem_align > 1 &&
		    ((uintptr_t)part.mem + -place->off % align) % facts->mem_align)
			return 0; /* offset and address are never aligned together */
	}
	if (req->op == PENSTOCK_WRITE)
		room = place->off + len == place->span->off + place->span->len
			       ? pst_span_slack(req, place->span)
			       : 0;
	if (facts->exact || req->op == PENSTOCK_WRITE)
		return whole_blocks(place, req->op, align, facts->off_align,
				    len < most ? len : most, room, pad, cap);
	/* A read into a slot: whole blocks around the chunk, ending on one. */
	if (len > most - place->off % align)
		len = most - place->off % align;
	/* Where one thread does it all, a second chunk gains what its calls cost, and with
	 * many such threads each call of the driver waits for theirs. */
	if (facts->chunk_first && !req->alone)
		len = ramp(req, place, facts, len);
	/* A single byte alone would be refused while a stream waits (device/cuda_copy.c). */
	for (unsigned i = 0; i < CUTS && len > 2; i++, len--)
		if (place->len != len + 1 &&
		    !pst_span_isolates_byte(req, place->span, place->off + len))
			break;
	return len;
}

/* The path holds all that it may, until what it holds it for is closed. */
static bool is_full(const struct pst_path_facts *facts)
{
	return facts->held &&
	       atomic_load_explicit(facts->held, memory_order_relaxed) >= facts->held_max;
}

/*
 * The first path in the plan's order that can carry the front of `place`, and how much of
 * it. One that could begin a little further on leaves `cap`, so that those behind it in the
 * order end where it begins. One for which the piece is too short to be quick is kept as
 * `last`, in case no other takes it. -1: none can.
 */
static int choose(struct pst_request *req, const struct place *place, enum pst_residency residency,
		  uint64_t *len, uint32_t *pad)
{
	const struct pst_plan *plan = place->span->plan;
	const struct pst_route *route = place->span->route;
	uint64_t cap = UINT64_MAX;
	unsigned count = plan->count[residency];
	int last = -1;
	uint64_t last_len = 0;
	uint32_t last_pad = 0;

	if (req->forced >= 0) {
		*len = fit(req, place, (unsigned)req->forced, pad, &cap);
		return *len ? req->forced : -1;
	}
	for (unsigned i = 0; i < count; i++) {
		unsigned index = plan->list[residency][i];
		const struct pst_path_facts *facts = &route->paths[index].facts;
		bool needs_body = req->op == PENSTOCK_WRITE && facts->off_align > 1;
		int proof = atomic_load_explicit(&route->write_proof[index], memory_order_relaxed);
		uint64_t n;

		/* Once is enough: each chunk would be written in vain, and then by the next. */
		if (proof < 0 && i + 1 < count) {
			pst_req_note(req, index, (enum penstock_why) - proof);
			continue;
		}
		if (place->span->edge && needs_body) {
			pst_req_note(req, index, PENSTOCK_WHY_UNALIGNED);
			continue;
		}
		n = fit(req, place, index, pad, &cap);
		if (!n) {
			pst_req_note(req, index, PENSTOCK_WHY_UNALIGNED);
			continue;
		}
		if (n > cap) {
			n = cap;
			*pad = 0;
		}
		if (n < facts->chunk_quick && i + 1 < count) {
			pst_req_note(req, index, PENSTOCK_WHY_NOT_QUICK);
			if (last < 0) {
				last = (int)index;
				last_len = n;
				last_pad = *pad;
			}
			continue;
		}
		if (is_full(facts) && i + 1 < count) {
			pst_req_note(req, index, PENSTOCK_WHY_HELD);
			continue;
		}
		*len = n;
		return (int)index;
	}
	*len = last_len;
	*pad = last_pad;
	return last;
}

/* What was found to be cached goes by the plan for that, if the path tells when it ends. */
static int go_warm(struct pst_request *req, const struct place *place, uint64_t *len, uint32_t *pad)
{
	struct place near = *place;
	int path;

	near.len = near.len < BLIND_MAX ? near.len : BLIND_MAX;
	path = choose(req, &near, PST_WARM, len, pad);
	return path >= 0 && pst_paths[path]->traits.tells ? path : -1;
}

/* Where nobody knows: the path that finds out, if it is time for that, which then this
 * claim is to do, and as long as it has found the bytes cached. -1: by the plan. */
static int try_it(struct pst_request *req, const struct place *place, bool *trying,
		  enum pst_residency *residency, uint64_t *len, uint32_t *pad)
{
	uint64_t cap = UINT64_MAX, n;
	int path = req->forced;

	if (path < 0 && !*trying && *residency == PST_WARM && pst_residency_sure(req->st))
		path = go_warm(req, place, len, pad);
	if (path >= 0 && req->forced < 0)
		return path;
	if (path < 0)
		path = pst_residency_probe_path(place->span->plan);
	if (path < 0 || !pst_paths[path]->traits.times)
		return -1;
	n = fit(req, place, (unsigned)path, pad, &cap);
	if (!*trying && *residency != PST_WARM) {
		if (!pst_residency_probe_begin(req->st, n))
			return -1;
		*trying = true;
	}
	if (*trying)
		*residency = PST_UNKNOWN;
	*len = n;
	return path;
}

static int unfit(struct pst_err *err, const struct pst_request *req, const struct place *place)
{
	const struct pst_storage_facts *facts = &req->st->facts;

	if (facts->fd_blocks && req->require == PENSTOCK_ANY && req->forced < 0)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNALIGNED,
				      "%llu bytes at offset %llu: %s, and with O_DIRECT it takes "
				      "whole blocks of %u only",
				      (unsigned long long)place->len,
				      (unsigned long long)place->off, facts->why_fd.text,
				      facts->off_align);
	return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNALIGNED,
			      "%llu bytes at offset %llu: no allowed path can carry them (align "
			      "offset and buffer to %u, or give the segment room behind it)",
			      (unsigned long long)place->len, (unsigned long long)place->off,
			      facts->off_align ? facts->off_align : 4096);
}

/* Whatever follows in this span, the path can carry it. */
static bool takes_any(const struct pst_request *req, const struct place *place, unsigned index)
{
	const struct pst_path_facts *facts = &place->span->route->paths[index].facts;

	return !facts->exact && (req->op == PENSTOCK_READ || facts->off_align <= 1);
}

bool pst_req_is_abandoned(struct pst_request *req, struct pst_err *err)
{
	if (pst_req_cancelled(req))
		return pst_fail(err, PENSTOCK_WHY_CANCELLED, "cancelled by the caller");
	return req->deadline_ns && pst_now_ns() > req->deadline_ns &&
	       pst_fail(err, PENSTOCK_WHY_DEADLINE, "the deadline passed before all was started");
}

bool pst_claim_abandon(struct pst_request *req, struct pst_lane *lane)
{
	struct pst_err err;

	if (!pst_req_is_abandoned(req, &err))
		return false;
	pst_req_abandon_rest(req, lane, &err);
	return true;
}

int pst_claim_check(const struct pst_request *given, const struct pst_span *span,
		    struct pst_err *err)
{
	struct pst_request *req = (struct pst_request *)(uintptr_t)given; /* only notes */
	const struct penstock_seg *seg = &req->segs[span->seg_first];
	uint64_t len = span->rowwise ? seg->rows * seg->row_len : span->len;
	struct place place;

	for (uint64_t pos = span->start; pos < span->start + len;) {
		uint64_t n;
		uint32_t pad;
		int path;

		find_place(req, pos, &place);
		path = choose(req, &place, PST_COLD, &n, &pad);
		if (path < 0)
			return unfit(err, req, &place);
		if (takes_any(req, &place, (unsigned)path))
			return 0;
		pos += n;
	}
	return 0;
}

struct pst_chunk *pst_claim(struct pst_request *req, struct pst_lane *lane)
{
	uint64_t pos = atomic_load_explicit(&req->next, memory_order_acquire);
	struct pst_chunk *chunk;
	struct place place;
	enum pst_residency residency = PST_COLD;
	bool trying = false;
	uint64_t len;
	uint32_t pad;
	int path;

	if (pos >= atomic_load_explicit(&req->limit, memory_order_acquire) ||
	    pst_claim_abandon(req, lane))
		return NULL;
	for (;;) {
		find_place(req, pos, &place);
		path = -1;
		if (req->forced < 0
			    ? place.span->plan->residency_matters
			    : pst_paths[req->forced]->traits.uses_cache && req->op == PENSTOCK_READ)
			residency = look(req, &place);
		if (place.blind)
			path = try_it(req, &place, &trying, &residency, &len, &pad);
		if (path < 0)
			path = choose(req, &place, residency, &len, &pad);
		if (path < 0) {
			struct pst_err err;

			unfit(&err, req, &place);
			pst_req_abandon_rest(req, lane, &err);
			return NULL;
		}
		if (atomic_compare_exchange_weak_explicit(&req->next, &pos, pos + len,
							  memory_order_acq_rel,
							  memory_order_acquire))
			break;
		if (pos >= atomic_load_explicit(&req->limit, memory_order_acquire))
			return NULL;
	}
	chunk = pst_chunk_get(lane);
	chunk->req = req;
	chunk->route = place.span->route;
	chunk->span = (unsigned)(place.span - req->spans);
	chunk->off = place.off;
	chunk->len = len;
	chunk->pad = pad;
	chunk->path = (uint8_t)path;
	chunk->residency = (uint8_t)residency;
	chunk->start_ns = pst_now_ns();
	chunk->timed =
		place.blind && (pst_paths[path]->traits.times || pst_paths[path]->traits.tells);
	if (place.blind && !trying)
		pst_residency_probe_skipped(req->st, len);
	return chunk;
}

int pst_claim_retry(const struct pst_chunk *chunk, bool next, uint64_t *len, uint32_t *pad)
{
	const struct pst_request *req = chunk->req;
	const struct pst_plan *plan = req->spans[chunk->span].plan;
	/* What went through the cache on trial goes on as if it were there. */
	unsigned r = chunk->timed ? PST_WARM : chunk->residency, count = plan->count[r], i = 0;
	/* The page cache would take a write that the drive has just failed, or a server has
	 * no room for, and say that it is done before they are asked again. */
	bool no_cache = req->op == PENSTOCK_WRITE && (chunk->err.why == PENSTOCK_WHY_IO_ERROR ||
						      chunk->err.why == PENSTOCK_WHY_NO_SPACE);

	if (req->forced >= 0)
		return -1;
	while (i < count && plan->list[r][i] != chunk->path)
		i++;
	for (i += next; i < count; i++) {
		unsigned index = plan->list[r][i];
		const struct pst_path_facts *facts = &chunk->route->paths[index].facts;
		struct place place = {&req->spans[chunk->span], chunk->off, chunk->len, UINT64_MAX};
		uint64_t cap = UINT64_MAX, n;

		if (place.span->edge && facts->off_align > 1)
			continue;
		if (no_cache && pst_paths[index]->traits.uses_cache)
			continue;
		n = fit(req, &place, index, pad, &cap);
		if (!n)
			continue;
		*len = n < chunk->len ? n : chunk->len;
		return (int)index;
	}
	return -1;
}
