/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements claiming: a lane (a worker loop) reserves the next bytes of a request as one chunk,
 * and no other lane then moves them. The chunk has as many bytes as the best path can carry. The
 * storage reports whether the bytes are in the page cache, the plan lists the paths in order of
 * preference, and alignment decides how many bytes a path can carry. Lanes call pst_claim for each
 * chunk. At submit, admit.c checks that every byte has a path. Lanes that claim from the same
 * request share only req->next, and take no lock. If the plan mixes paths, it uses several at the
 * same time: a request's first lanes use the first path, and its other lanes use the next. This
 * file must never start a transfer.
 */
#include "core/lane/claim.h"

#include "core/backends.h"
#include "core/lane/pump.h"
#include "core/lane/stage.h"
#include "core/request/cache_fill.h"
#include "core/request/residency_probe.h"
#include "core/request/spans.h"
#include "core/request/plan.h"

/* Minimum length in bytes of a query whether bytes are in the page cache. If a range of this length
 * is only partly cached, it counts as not cached. */
#define QUERY_MIN (64u << 10)
/* Maximum length in bytes of one query whether bytes are in the page cache. The kernel visits each
 * folio of the range: 128 MiB take 32 us if the folios are large, 2 ms if they are small. */
#define QUERY_MAX (128u << 20)
/* Maximum length in bytes of a chunk that is assumed to be cached because a test read of other
 * bytes was fast (a residency probe). If the chunk's bytes are not cached after all, reading them
 * is slow, so the chunk is short. */
#define BLIND_MAX (32u << 20)

/* Maximum number of bytes by which a chunk is shortened to avoid that its end separates a single
 * byte from the rest of a row. */
#define SHORTEN_MAX 4
/* Maximum length in bytes of a path's first chunks that chunk_ramp may double. */
#define FIRST_DOUBLED (256u << 10)
#define CHUNK_MIN 16u /* minimum length to which a query of the page cache shortens a chunk */

/* Returns how many bytes, from position place->pos on, no lane has claimed yet. Counts only bytes
 * of the request's current phase. */
static uint64_t place_rest(const struct pst_request *req, const struct pst_place *place)
{
	uint64_t end = atomic_load_explicit(&req->limit, memory_order_relaxed);

	return end > place->pos ? end - place->pos : 0;
}

/* Returns whether other requests are in flight on the lanes that carry this one. */
static bool req_shares_lanes(const struct pst_request *req)
{
	return req->home_lane &&
	       atomic_load_explicit(&req->home_lane->requests, memory_order_relaxed) > 1;
}

/* Returns the minimum number of unclaimed bytes with which a lane may start a chunk on a mixed
 * path, that is, a path that is used while other lanes use the plan's next path. `at` is the path's
 * position in the plan's list for cached bytes. With fewer bytes, the other lanes would finish the
 * request long before this chunk. If other requests are in flight, the other lanes work on those
 * meanwhile, so fewer bytes are enough. */
static uint64_t mixed_least(const struct pst_request *req, const struct pst_place *place,
			    unsigned at)
{
	const struct pst_plan *plan = place->span->plan;
	const struct pst_path_state *paths = place->span->route->paths;

	if (req_shares_lanes(req))
		return paths[plan->list[PST_WARM][at]].facts.chunk_quick;
	return pst_plan_least(plan, paths, PST_WARM, at);
}

/* Returns the position in the plan's list of paths for cached bytes at which a lane begins. `nth`
 * is the lane's index among the lanes that share the request. A plan with mixed paths uses several
 * paths of the list at the same time. Each of them except the last gets as many lanes as it needs
 * for full speed, and the last gets all other lanes. Near the end of the request, all lanes use the
 * last mixed path. A stream-ordered request uses only the last, because the other mixed paths call
 * the device's driver. */
static unsigned warm_first(struct pst_request *req, const struct pst_place *place, unsigned nth)
{
	const struct pst_plan *plan = place->span->plan;
	const struct pst_path_state *paths = place->span->route->paths;
	unsigned at = 0;

	for (; at + 1 < plan->mixed; at++) {
		unsigned index = plan->list[PST_WARM][at], lanes = paths[index].facts.lanes;

		if (req->stream)
			pst_req_note(req, index, PENSTOCK_WHY_STREAM_ORDER);
		else if (nth >= lanes)
			nth -= lanes;
		else if (place_rest(req, place) >= mixed_least(req, place, at))
			break;
		else
			pst_req_note(req, index, PENSTOCK_WHY_NOT_QUICK);
	}
	return at;
}

/* Returns whether the plan uses the path at the same time as the next path of its list. */
static bool path_is_mixed(const struct pst_place *place, const struct pst_path_facts *facts)
{
	return facts->mixed_max && place->span->plan->mixed > 1;
}

/* Returns the maximum length in bytes of a chunk on the path. The size of a staging slot may limit
 * a chunk further. */
static uint64_t path_chunk_max(const struct pst_request *req, const struct pst_place *place,
			       const struct pst_path_facts *facts)
{
	uint64_t most;

	if (!path_is_mixed(place, facts))
		return facts->chunk_max;
	most = (uint64_t)atomic_load_explicit(&req->mixed_kib, memory_order_relaxed) << 10;
	most = most < facts->mixed_max ? most : facts->mixed_max;
	return most > facts->chunk_quick ? most : facts->chunk_quick;
}

/*
 * Asks the storage whether the first bytes of `place` are in the page cache, and shortens
 * place->len to the bytes that the answer is about. The length of each query depends on the answers
 * to earlier queries. So a file of which long ranges are cached costs few queries. If the cached
 * ranges are short, each of them costs about one query.
 */
static enum pst_residency query_residency(struct pst_request *req, struct pst_place *place)
{
	const struct pst_storage_ops *ops = req->st->ops;
	uint64_t len = (uint64_t)atomic_load_explicit(&req->residency_kib, memory_order_relaxed)
		       << 10;
	const struct pst_plan *plan = place->span->plan;
	/* `useful`: maximum length of a chunk of cached bytes; a longer query is of no use */
	uint64_t next, useful = QUERY_MAX, was = len;
	bool shortened = false;
	enum penstock_why why = PENSTOCK_WHY_NONE;
	enum pst_residency found = PST_UNKNOWN;

	if (!ops->residency)
		return PST_COLD; /* a storage without this function has no page cache */
	if (plan->count[PST_WARM])
		useful = path_chunk_max(
			req, place,
			&place->span->route->paths[plan->list[PST_WARM][place->warm_first]].facts);
	if (len > useful)
		len = useful;
	if (len > place->len)
		len = place->len;
	for (;;) {
		found = ops->residency(req->st, place->off, len, &why);
		if (found != PST_MIXED || len <= QUERY_MIN)
			break;
		shortened = true;
		len = len / 2 < QUERY_MIN ? QUERY_MIN : len / 2;
		/* End the queried range at a file offset that is a multiple of QUERY_MIN, because
		 * most cached ranges end there. */
		if (place->off % QUERY_MIN)
			len -= (place->off + len) % QUERY_MIN;
		if (len < CHUNK_MIN || len > place->len)
			len = place->len < QUERY_MIN ? place->len : QUERY_MIN;
	}
	if (found == PST_UNKNOWN) {
		place->blind = true;
		return pst_residency_verdict(req->st);
	}
	next = len < (1u << 28) ? len * 2 : len;
	/* The answer for a short range says nothing about the bytes after it, so its length must
	 * not make the next query short. */
	if (next < QUERY_MIN)
		next = QUERY_MIN;
	/* Lanes of one request share the length of the next query. So a lane with short chunks must
	 * not shorten it for a lane with long chunks on another path. */
	if (plan->mixed > 1 && !shortened && next < was)
		next = was;
	atomic_store_explicit(&req->residency_kib, (uint32_t)(next >> 10), memory_order_relaxed);
	if (len < place->len)
		place->len = len;
	return found == PST_MIXED ? PST_COLD : found;
}

/*
 * Limits the length of a chunk near the start and the end of a request. The first chunks are short,
 * so that the device can copy them while later chunks are being read. The last chunks are short, so
 * that no lane still works on a long chunk when the other lanes are done. A lane's share is a
 * number of bytes divided by the number of lanes. The limit is the smaller of two numbers: a share
 * of the bytes claimed so far, and half a share of the bytes left. While other lanes use another
 * path, a quarter of a share replaces the half.
 *
 * While other requests are in flight, the first and the last chunks of a request may be twice as
 * long if it has enough bytes for all lanes: a burst of cached reads of 4 MiB then moves 1.07 times
 * as many bytes a second (H200).
 */
static uint64_t chunk_ramp(const struct pst_request *req, const struct pst_place *place,
			   const struct pst_path_facts *facts, uint64_t len)
{
	uint64_t rest = place_rest(req, place), lanes = facts->lanes ? facts->lanes : 1;
	uint64_t first = facts->chunk_first;
	uint64_t behind = place->pos / lanes;
	uint64_t ahead = rest / ((path_is_mixed(place, facts) ? 4 : 2) * lanes);
	uint64_t most = behind < ahead ? behind : ahead;

	if (lanes > 1 && first <= FIRST_DOUBLED && req_shares_lanes(req) &&
	    req->total >= 2 * first * lanes)
		first *= 2;
	most = most < first ? first : most / first * first;
	if (len <= most || rest < most + first)
		/* The chunk is short enough, or shortening it would leave too few bytes for
		 * another chunk. */
		return len;
	return most;
}

/*
 * Returns the alignment in bytes at which a chunk of path `index` must begin and end. If the last
 * path of a write's plan uses the page cache, no two chunks may share a page or a file-system
 * block. Otherwise the page cache could read old bytes of that block while the other chunk writes
 * new bytes to the drive. Later the page cache would write the old bytes back. If the caller named
 * the path, or if the last path avoids the page cache, the path's own alignment is enough.
 */
static uint64_t chunk_grid(const struct pst_request *req, const struct pst_place *place,
			   unsigned index, uint64_t most)
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
	while (edge > most) /* a slot, and so a chunk, may be shorter than `edge`, a power of two */
		edge /= 2;
	return edge > align ? edge : align;
}

/*
 * Shortens the first `len` bytes of `place` to whole blocks of `align` bytes, and returns the
 * shortened length. If the place does not begin at a block boundary, returns 0 and lowers *cap to
 * the distance to the next boundary. At the end of a segment, memory after it (`slack` bytes) may
 * complete the last block of `off_align` bytes; *pad is then set to the number of added bytes. The
 * range of a read is chosen so that no chunk before or after it has only one byte.
 */
static uint64_t whole_blocks(const struct pst_place *place, enum penstock_op op, uint64_t align,
			     uint32_t off_align, uint64_t len, uint64_t slack, uint32_t *pad,
			     uint64_t *cap)
{
	uint64_t head = -place->off % align, tail = len % align, missing;
	bool keep_bytes_together = op == PENSTOCK_READ && align > 1;
	bool last_one = tail ? tail == 1 : place->len == len + 1;

	if (head) {
		head += head == 1 && keep_bytes_together ? align : 0;
		*cap = head < *cap ? head : *cap;
		return 0;
	}
	if (!tail && !(last_one && keep_bytes_together))
		return len;
	missing = -len % off_align;
	if (slack && missing <= slack && (len == place->len || len == tail)) {
		*pad = (uint32_t)missing;
		return len;
	}
	if (last_one && keep_bytes_together)
		tail += align;
	return len > tail ? len - tail : 0; /* the last `tail` bytes become another chunk */
}

/* Returns false if the request is stream-ordered and the path cannot carry these bytes. The bytes
 * of a stream-ordered request pass through its own pinned memory (its stage). So only a path that
 * copies through staging slots can carry them, or path `null`, which moves no bytes. */
static bool stream_allows(const struct pst_request *req, const struct pst_place *place,
			  unsigned index)
{
	const struct pst_path_facts *facts = &place->span->route->paths[index].facts;

	if (!req->stream || pst_paths[index]->traits.synchronous)
		return true;
	/* The rows of a rowwise span have gaps between them in the storage, but not in the stage.
	 * So their positions in the stage do not match the storage's blocks, as a path with an
	 * alignment requires. */
	return facts->slotted && (!place->span->rowwise || facts->off_align <= 1);
}

/*
 * Returns how many bytes of `place` path `index` can carry as one chunk. Returns 0 if the path
 * cannot start with the first byte of `place`. If the path could start some bytes later, the
 * function also lowers *cap to the number of these bytes. Then a chunk on another path must have at
 * most *cap bytes.
 */
static uint64_t path_fit(const struct pst_request *req, const struct pst_place *place,
			 unsigned index, uint32_t *pad, uint64_t *cap)
{
	const struct pst_path_facts *facts = &place->span->route->paths[index].facts;
	uint64_t len = place->len, slack = 0, most = path_chunk_max(req, place, facts), align;

	*pad = 0;
	if (!stream_allows(req, place, index))
		return 0;
	if (req->stage && req->stage->rounds && pst_stage_room(req, place) < len)
		len = pst_stage_room(req, place);
	/* If the path uses a staging slot, the chunk must fit in it. A request uses only the slots
	 * of req->pump, even for segments on other devices. */
	if (facts->slotted) {
		size_t slot = req->alone ? req->pump->spare[0].slot_bytes : req->pump->slot_bytes;

		most = slot < most ? slot : most;
	}
	if (facts->io_size && pst_io_size_get(&req->st->io_size) < most)
		most = pst_io_size_get(&req->st->io_size);
	align = chunk_grid(req, place, index, most);
	if (facts->exact) {
		struct pst_part part;

		if (pst_span_part_at(req, place->span, place->off, &part))
			return 0;
		if (part.row_len < len)
			len = part.row_len;
		else
			slack = part.slack;
		if (facts->mem_align > 1 &&
		    ((uintptr_t)part.mem + -place->off % align) % facts->mem_align)
			return 0; /* no byte of the range has both an aligned storage offset and an
				   * aligned address */
	}
	if (req->op == PENSTOCK_WRITE)
		slack = place->off + len == place->span->off + place->span->len
				? pst_span_slack(req, place->span)
				: 0;
	if (facts->exact || req->op == PENSTOCK_WRITE)
		return whole_blocks(place, req->op, align, facts->off_align,
				    len < most ? len : most, slack, pad, cap);
	/* A read into a staging slot starts at a block boundary, so it also reads the bytes of the
	 * block before the place. They must fit in the slot, too. */
	if (len > most - place->off % align)
		len = most - place->off % align;
	/* If one thread carries the whole request, shorter chunks gain nothing, because the
	 * thread makes all calls itself, one after the other. If many such threads exist, more
	 * calls would also make them wait for each other in the CUDA driver. */
	if (facts->chunk_first && !req->alone)
		len = chunk_ramp(req, place, facts, len);
	/* Do not leave a single byte of a row: a copy of one byte to a CUDA device may have to wait
	 * for the work of other streams (device/cuda_copy.c). */
	for (unsigned i = 0; i < SHORTEN_MAX && len > 2; i++, len--)
		if (place->len != len + 1 &&
		    !pst_span_isolates_byte(req, place->span, place->off + len))
			break;
	return len;
}

/* Returns whether the path would have to pin memory for the first `len` bytes of `place`, although
 * it has pinned as much as it may on this lane. A path keeps memory pinned until the storages are
 * closed. */
static bool path_is_full(const struct pst_place *place, unsigned index, uint64_t len)
{
	const struct pst_path_ops *ops = pst_paths[index];

	return ops->full && place->lane &&
	       ops->full(place->lane, index, place->span->route, place->off, len);
}

/* Returns the reason why the path has become unusable since it was probed, or 0 if it can be
 * used. */
static enum penstock_why path_is_shut(const struct pst_path_facts *facts)
{
	return facts->shut
		       ? (enum penstock_why)atomic_load_explicit(facts->shut, memory_order_relaxed)
		       : PENSTOCK_WHY_NONE;
}

/*
 * Chooses the first path in the order of the plan's list that can carry the first bytes of `place`,
 * and sets *len and *pad. If a better path could start a little later, the chosen path carries only
 * the bytes before that place (`cap`). A path that is slow for so few bytes is used only if no
 * other path can carry them. Returns the path's index, or -1 if no path can carry the bytes.
 */
static int choose_path(struct pst_request *req, const struct pst_place *place,
		       enum pst_residency residency, uint64_t *len, uint32_t *pad)
{
	const struct pst_plan *plan = place->span->plan;
	const struct pst_route *route = place->span->route;
	uint64_t cap = UINT64_MAX;
	unsigned count = plan->count[residency];
	int slow = -1; /* index of the first path that could carry the bytes, but slowly */
	uint64_t slow_len = 0;
	uint32_t slow_pad = 0;

	if (req->forced >= 0) {
		*len = path_fit(req, place, (unsigned)req->forced, pad, &cap);
		return *len ? req->forced : -1;
	}
	for (unsigned i = residency == PST_WARM ? place->warm_first : 0; i < count; i++) {
		unsigned index = plan->list[residency][i];
		const struct pst_path_facts *facts = &route->paths[index].facts;
		bool needs_body = req->op == PENSTOCK_WRITE && facts->off_align > 1;
		int proof = atomic_load_explicit(&route->write_proof[index], memory_order_relaxed);
		uint64_t n;

		if (path_is_shut(facts) && i + 1 < count) {
			pst_req_note(req, index, path_is_shut(facts));
			continue;
		}
		/* `proof` is negative if a test found that bytes written on this path did not reach
		 * the storage. Then use the path only if it is the last of the list. */
		if (proof < 0 && i + 1 < count) {
			pst_req_note(req, index, (enum penstock_why) - proof);
			continue;
		}
		if (place->span->edge && needs_body) {
			pst_req_note(req, index, PENSTOCK_WHY_UNALIGNED);
			continue;
		}
		n = path_fit(req, place, index, pad, &cap);
		if (!n) {
			pst_req_note(req, index,
				     stream_allows(req, place, index) ? PENSTOCK_WHY_UNALIGNED
								      : PENSTOCK_WHY_STREAM_ORDER);
			continue;
		}
		if (n > cap) {
			n = cap;
			*pad = 0;
		}
		if (n < facts->chunk_quick && i + 1 < count) {
			pst_req_note(req, index, PENSTOCK_WHY_NOT_QUICK);
			if (slow < 0) {
				slow = (int)index;
				slow_len = n;
				slow_pad = *pad;
			}
			continue;
		}
		if (i + 1 < count && path_is_full(place, index, n)) {
			pst_req_note(req, index, PENSTOCK_WHY_HELD);
			continue;
		}
		*len = n;
		return (int)index;
	}
	*len = slow_len;
	*pad = slow_pad;
	return slow;
}

/* Chooses a path from the plan's list for cached bytes. Returns -1 if no path can carry the bytes,
 * or if the chosen path cannot detect that a byte is missing from the page cache. */
static int choose_warm(struct pst_request *req, const struct pst_place *place, uint64_t *len,
		       uint32_t *pad)
{
	struct pst_place front = *place;
	int path;

	front.len = front.len < BLIND_MAX ? front.len : BLIND_MAX;
	path = choose_path(req, &front, PST_WARM, len, pad);
	return path >= 0 && pst_paths[path]->traits.detects_cold ? path : -1;
}

/*
 * Chooses a path for bytes if the storage could not report whether they are in the page cache. A
 * residency probe finds that out: it is a read through the page cache whose duration is measured.
 * If the last probe found its bytes cached, the function chooses a path from the plan's list for
 * cached bytes, or the path that makes probes. If a probe is due, it chooses the path that makes
 * probes, and sets *probing. Returns -1 if the caller shall use the plan's list for *residency.
 */
static int choose_blind(struct pst_request *req, const struct pst_place *place, bool *probing,
			enum pst_residency *residency, uint64_t *len, uint32_t *pad)
{
	uint64_t cap = UINT64_MAX, n;
	int path = req->forced;

	if (path < 0 && !*probing && *residency == PST_WARM && pst_residency_sure(req->st))
		path = choose_warm(req, place, len, pad);
	if (path >= 0 && req->forced < 0)
		return path;
	if (path < 0)
		path = pst_residency_probe_path(place->span->plan);
	if (path < 0 || !pst_paths[path]->traits.probes_residency)
		return -1;
	n = path_fit(req, place, (unsigned)path, pad, &cap);
	if (!*probing && *residency != PST_WARM) {
		if (!pst_residency_probe_begin(req->st, n))
			return -1;
		*probing = true;
	}
	if (*probing)
		*residency = PST_UNKNOWN;
	*len = n;
	return path;
}

/* Stores and returns the error for the case that the first bytes of `place` cannot be carried by
 * any path that the request may use. */
static int fail_unfit(struct pst_err *err, const struct pst_request *req,
		      const struct pst_place *place)
{
	const struct pst_storage_facts *facts = &req->st->facts;

	if (req->stream && (req->require == PENSTOCK_DIRECT || req->forced >= 0))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_STREAM_ORDER, "%s",
				      penstock_why_text(PENSTOCK_WHY_STREAM_ORDER));
	if (facts->fd_blocks && req->require == PENSTOCK_ANY && req->forced < 0)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNALIGNED,
				      "%llu bytes at offset %llu: %s, and it accepts only O_DIRECT "
				      "calls of whole blocks of %u",
				      (unsigned long long)place->len,
				      (unsigned long long)place->off, facts->why_fd.text,
				      facts->off_align);
	return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNALIGNED,
			      "%llu bytes at offset %llu: no allowed path can carry them (align "
			      "offset and buffer to %u, or set the segment's room)",
			      (unsigned long long)place->len, (unsigned long long)place->off,
			      facts->off_align ? facts->off_align : 4096);
}

/* Returns whether the path can carry all further bytes of the place's span without regard to
 * alignment. */
static bool path_carries_any(const struct pst_request *req, const struct pst_place *place,
			     unsigned index)
{
	const struct pst_path_facts *facts = &place->span->route->paths[index].facts;

	return !facts->exact && (req->op == PENSTOCK_READ || facts->off_align <= 1);
}

bool pst_claim_abandon(struct pst_request *req)
{
	struct pst_err err;

	if (!pst_req_is_abandoned(req, &err))
		return false;
	pst_req_fail_unclaimed(req, &err);
	return true;
}

int pst_claim_check(const struct pst_request *given, const struct pst_span *span,
		    struct pst_err *err)
{
	struct pst_request *req =
		/* not const, because choose_path stores in the request why it did not use a path */
		(struct pst_request *)(uintptr_t)given;
	const struct penstock_seg *seg = &req->segs[span->seg_first];
	uint64_t len = span->rowwise ? seg->rows * seg->row_len : span->len;
	struct pst_place place;

	for (uint64_t pos = span->start; pos < span->start + len;) {
		uint64_t n;
		uint32_t pad;
		int path;

		pst_spans_find(req, pos, &place);
		path = choose_path(req, &place, PST_COLD, &n, &pad);
		if (path < 0)
			return fail_unfit(err, req, &place);
		if (path_carries_any(req, &place, (unsigned)path))
			return 0;
		pos += n;
	}
	return 0;
}

bool pst_claim(struct pst_lane *lane, struct pst_request *req, unsigned nth, struct pst_claim *out)
{
	uint64_t pos = atomic_load_explicit(&req->next, memory_order_acquire);
	struct pst_place place;
	enum pst_residency residency = PST_COLD;
	bool probing = false;
	uint64_t len;
	uint32_t pad;
	int path;

	if (pos >= atomic_load_explicit(&req->limit, memory_order_acquire) ||
	    pst_claim_abandon(req))
		return false;
	for (;;) {
		pst_spans_find(req, pos, &place);
		place.warm_first = warm_first(req, &place, nth);
		place.lane = lane;
		path = -1;
		if (req->forced < 0
			    ? place.span->plan->residency_matters
			    : pst_paths[req->forced]->traits.uses_cache && req->op == PENSTOCK_READ)
			residency = query_residency(req, &place);
		if (place.blind)
			path = choose_blind(req, &place, &probing, &residency, &len, &pad);
		if (path < 0)
			path = choose_path(req, &place, residency, &len, &pad);
		if (path < 0) {
			struct pst_err err;

			fail_unfit(&err, req, &place);
			pst_req_fail_unclaimed(req, &err);
			return false;
		}
		if (atomic_compare_exchange_weak_explicit(&req->next, &pos, pos + len,
							  memory_order_acq_rel,
							  memory_order_acquire))
			break;
		if (pos >= atomic_load_explicit(&req->limit, memory_order_acquire))
			return false;
	}
	*out = (struct pst_claim){
		.route = place.span->route,
		.span = (unsigned)(place.span - req->spans),
		.off = place.off,
		.len = len,
		.pad = pad,
		.path = (uint8_t)path,
		.residency = (uint8_t)residency,
		.timed = place.blind && (pst_paths[path]->traits.probes_residency ||
					 pst_paths[path]->traits.detects_cold),
	};
	if (pst_paths[path]->traits.uses_cache)
		/* Note which bytes enter the page cache. Written bytes count as cached already,
		 * because a write puts them into the page cache itself. */
		out->fills_cache = pst_cache_fill_note(
			req->st, place.off, len, req->op == PENSTOCK_READ ? residency : PST_WARM);
	if (place.blind && !probing)
		pst_residency_probe_skipped(req->st, len);
	return true;
}

/* Returns whether a path can carry the chunk. *len and *pad receive how many of its bytes the path
 * carries, and the padding after them. */
static bool chunk_fits(const struct pst_chunk *chunk, unsigned index, uint64_t *len, uint32_t *pad)
{
	const struct pst_request *req = chunk->req;
	const struct pst_place place = {&req->spans[chunk->span], chunk->off, chunk->len,
					UINT64_MAX};
	uint64_t cap = UINT64_MAX, n = path_fit(req, &place, index, pad, &cap);

	*len = n < chunk->len ? n : chunk->len;
	return n;
}

int pst_claim_retry(const struct pst_chunk *chunk, bool next, uint64_t *len, uint32_t *pad)
{
	const struct pst_request *req = chunk->req;
	const struct pst_plan *plan = req->spans[chunk->span].plan;
	/* If the chunk's system call was timed, it was a read through the page cache. So the chunk
	 * is retried on the paths that the plan lists for cached bytes. */
	unsigned r = chunk->timed ? PST_WARM : chunk->residency, count = plan->count[r], i = 0;
	/* If the drive failed a write, or a server had no space for it, the retry must not use
	 * the page cache. The page cache would report success before the bytes are on the
	 * drive. */
	bool no_cache = req->op == PENSTOCK_WRITE && (chunk->err.why == PENSTOCK_WHY_IO_ERROR ||
						      chunk->err.why == PENSTOCK_WHY_NO_SPACE);

	if (req->forced >= 0)
		return !next && chunk_fits(chunk, (unsigned)req->forced, len, pad) ? req->forced
										   : -1;
	while (i < count && plan->list[r][i] != chunk->path)
		i++;
	/* If the plan uses several paths at the same time, the chunk's first path may be one in the
	 * middle of the list. So try the paths before it, too. */
	if (next)
		i = r == PST_WARM && plan->mixed > 1 ? 0 : i + 1;
	for (; i < count; i++) {
		unsigned index = plan->list[r][i];
		const struct pst_path_facts *facts = &chunk->route->paths[index].facts;

		if (chunk->tried >> index & 1)
			continue;
		if (req->spans[chunk->span].edge && facts->off_align > 1)
			continue;
		if (no_cache && pst_paths[index]->traits.uses_cache)
			continue;
		if (chunk_fits(chunk, index, len, pad))
			return (int)index;
	}
	return -1;
}
