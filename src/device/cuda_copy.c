/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier of device cuda, which makes the copies of one worker thread: two streams, one for each
 * direction, and events. The streams, and the events that are likely to be needed, are created when
 * the copier opens. Creating one later could take up to 0.3 ms while other threads use the driver
 * (H200).
 *
 * A ticket is a number by which the caller queries whether the copies before it are done. Usually
 * an event belongs to each ticket. The last ticket has no event until another copy follows it.
 * Until then its stream is queried instead of an event. So the last copy of a sequence needs two
 * driver calls instead of three.
 *
 * No copy of more than one byte may go through a compute queue of the GPU. In that queue, a stream
 * that waits for a request of the library may be ahead of the copy (tests/standin/README.md).
 */
#include <assert.h>
#include <stdlib.h>

#include "device/cuda_copy.h"
#include "device/cuda_context.h"

/* Maximum length in bytes of a host-to-device copy that the driver sends through a compute queue of
 * the GPU. It sends longer copies, and all copies of two rows, through a copy engine. */
#define SMALL_COPY 24576u
/* Maximum number of copies of a batch, which is one driver call. The copy engine pauses for
 * about 2.5 us between driver calls, but not between the copies of a batch. Eight copies of 512 KiB
 * in a batch are as fast as one copy of 4 MiB (53.6 GB/s, H200). */
#define BATCH_MAX 64
/* Number of following copies among which the copier searches a partner for a small copy. It joins
 * pairs of small copies, because a copy of two rows uses the copy engine, however far apart the
 * rows are in an allocation. It takes little more time than a copy of one row: 3.2 us instead of
 * 2.5 (H200). The two copies of a pair become the two rows of one copy. If there are several copies
 * of two rows, the copier queues them with one driver call. This call uses the copy engine too
 * (tests/standin/README.md). */
#define PAIR_NEAR 8
#define KNOWN_MAX 4 /* number of allocations that a copier caches */
/* maximum number of tickets in flight on one copier; a lane has at most half as many chunks */
#define TICKETS_MAX 512

struct small_copy {
	char *dst;
	const char *src;
	uint64_t len;
	uint64_t base;	/* start of the allocation that contains dst */
	unsigned piece; /* registered piece of memory that contains src */
	int *refused;
	/* `partner`: the second copy of the pair, if this copy is the first one of a pair; else
	 * NULL. `second`: true if this copy is the second one of a pair. */
	struct small_copy *partner;
	bool second;
};

struct pst_copier {
	struct penstock_device *dev;
	struct pst_cuda_device *cuda;
	struct pst_cu_ctx *ctx;
	struct pst_cu_stream *in, *out;
	/* used_in: copies were queued on the stream `in` since the last ticket. used_out: the same
	 * for `out`. */
	bool used_in, used_out;
	uint64_t marked; /* the last ticket that was issued */
	/* The last ticket that is known to be done; all earlier tickets are done too. */
	uint64_t reached;
	/* Events of the tickets in flight. The event of a ticket is at index ticket %
	 * TICKETS_MAX. */
	struct pst_cu_event *events[TICKETS_MAX];
	struct pst_cu_event *idle[TICKETS_MAX];
	unsigned idle_count;
	/* While the last ticket has no event: the stream of its copies, which is queried in place
	 * of an event. Else NULL. */
	struct pst_cu_stream *last;
	/* Copies that are not submitted before pst_cuda_record is called: a batch of copies in one
	 * direction, and small copies to the device, which are combined in pairs. */
	unsigned deferred;
	bool deferred_in;
	pst_cu_ptr dsts[BATCH_MAX], srcs[BATCH_MAX];
	size_t lens[BATCH_MAX];
	int *refused[BATCH_MAX];
	struct small_copy small[BATCH_MAX];
	unsigned small_count;
	/* Memory in which the small copies are put together as a batch of copies of two rows. */
	struct pst_cu_copy3d rows[BATCH_MAX];
	/* The driver does not support batches of copies of two rows, so the copier does not try
	 * again. */
	bool rows_unsupported;
	struct {
		uint64_t base, len;
	} known[KNOWN_MAX]; /* allocations that were looked up last */
	unsigned known_count;
};

void pst_cuda_copier_close(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	struct pst_cuda_scope in;

	/* If this call fails, the context is destroyed, and with it its streams and events. */
	pst_cuda_enter(api, cp->ctx, &in);
	if (cp->in)
		api->cuStreamDestroy(cp->in);
	if (cp->out)
		api->cuStreamDestroy(cp->out);
	while (cp->reached < cp->marked - (cp->last != NULL))
		api->cuEventDestroy(cp->events[++cp->reached % TICKETS_MAX]);
	while (cp->idle_count)
		api->cuEventDestroy(cp->idle[--cp->idle_count]);
	pst_cuda_leave(api, &in);
	free(cp);
}

int pst_cuda_copier_open(struct penstock_device *dev, unsigned tickets, struct pst_copier **out,
			 struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_copier *cp = calloc(1, sizeof(*cp));
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret;

	if (!cp)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a copier");
	cp->dev = dev;
	cp->cuda = c;
	ret = pst_cuda_retain(c, &cp->ctx, err);
	if (ret) {
		free(cp);
		return ret;
	}
	rc = pst_cuda_enter(c->api, cp->ctx, &in);
	if (rc == PST_CU_OK)
		rc = c->api->cuStreamCreateWithPriority(&cp->in, PST_CU_STREAM_NON_BLOCKING, 0);
	if (rc == PST_CU_OK)
		rc = c->api->cuStreamCreateWithPriority(&cp->out, PST_CU_STREAM_NON_BLOCKING, 0);
	while (cp->idle_count + 1 < tickets && rc == PST_CU_OK) {
		rc = c->api->cuEventCreate(&cp->idle[cp->idle_count], PST_CU_EVENT_NO_TIMING);
		cp->idle_count += rc == PST_CU_OK;
	}
	pst_cuda_leave(c->api, &in);
	if (rc != PST_CU_OK) {
		pst_cuda_copier_close(cp);
		return pst_cuda_fail(err, rc, "making copy streams");
	}
	*out = cp;
	return 0;
}

static enum pst_cu_result copy_2d(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	struct pst_cu_memcpy2d c = {
		.src_type = in && !r->within ? PST_CU_MEMTYPE_HOST : PST_CU_MEMTYPE_DEVICE,
		.src_host = r->src,
		.src_dev = (uintptr_t)r->src,
		.src_pitch = r->src_pitch,
		.dst_type = in || r->within ? PST_CU_MEMTYPE_DEVICE : PST_CU_MEMTYPE_HOST,
		.dst_host = r->dst,
		.dst_dev = (uintptr_t)r->dst,
		.dst_pitch = r->dst_pitch,
		.width_bytes = r->row_len,
		.height = r->rows,
	};

	return cp->cuda->api->cuMemcpy2DAsync(&c, in ? cp->in : cp->out);
}

/* Copies to the device through the copy engine. To this end, it makes a copy of 2 to SMALL_COPY
 * bytes as a copy of two rows, which have half the length each. If the length is odd, it makes two
 * such copies, which overlap. A single byte cannot be split, and the driver uses a compute queue
 * for it. There the byte may have to wait until the work of other streams is done, as every short
 * copy of an application does. */
static enum pst_cu_result copy_in_1d(struct pst_copier *cp, char *dst, const char *src,
				     uint64_t len)
{
	struct pst_rect two = {.rows = 2};
	enum pst_cu_result rc = PST_CU_OK;

	if (len > SMALL_COPY || len < 2)
		return cp->cuda->api->cuMemcpyHtoDAsync((uintptr_t)dst, src, len, cp->in);
	two.row_len = two.dst_pitch = two.src_pitch = len / 2;
	for (uint64_t at = 0; at <= len % 2 && rc == PST_CU_OK; at++) {
		two.dst = dst + at;
		two.src = src + at;
		rc = copy_2d(cp, &two, true);
	}
	return rc;
}

/* Copies within the device's memory, on the stream `in` or `out` of the copier. */
static enum pst_cu_result copy_within(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	enum pst_cu_result rc = PST_CU_OK;

	if (r->rows > 1 && r->dst_pitch <= PST_CUDA_PITCH_MAX && r->src_pitch <= PST_CUDA_PITCH_MAX)
		return copy_2d(cp, r, in);
	for (uint64_t row = 0; row < r->rows && rc == PST_CU_OK; row++)
		rc = cp->cuda->api->cuMemcpyDtoDAsync(
			(uintptr_t)r->dst + row * r->dst_pitch,
			(uintptr_t)r->src + row * r->src_pitch, r->row_len, in ? cp->in : cp->out);
	return rc;
}

static enum pst_cu_result copy_row(struct pst_copier *cp, char *dst, const char *src, uint64_t len,
				   bool in)
{
	if (in)
		return copy_in_1d(cp, dst, src, len);
	return cp->cuda->api->cuMemcpyDtoHAsync(dst, (uintptr_t)src, len, cp->out);
}

static enum pst_cu_result copy_rect(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	enum pst_cu_result rc = PST_CU_OK;

	if (r->within)
		return copy_within(cp, r, in);
	if (r->rows == 1 || (r->dst_pitch == r->row_len && r->src_pitch == r->row_len))
		return copy_row(cp, r->dst, r->src, r->row_len * r->rows, in);
	if (r->dst_pitch <= PST_CUDA_PITCH_MAX && r->src_pitch <= PST_CUDA_PITCH_MAX)
		return copy_2d(cp, r, in);
	for (uint64_t row = 0; row < r->rows && rc == PST_CU_OK; row++)
		rc = copy_row(cp, (char *)r->dst + row * r->dst_pitch,
			      (const char *)r->src + row * r->src_pitch, r->row_len, in);
	return rc;
}

/* Called after a failure. Waits until no copy is running, so that no byte moves after the caller
 * has received the error. If this wait fails too, the context is broken, and no copy runs any
 * more. */
static void copier_drain(struct pst_copier *cp)
{
	cp->cuda->api->cuStreamSynchronize(cp->in);
	cp->cuda->api->cuStreamSynchronize(cp->out);
}

/* ---- tickets ---- */

/* Counts the oldest ticket in flight as done, and makes its event free for other tickets. */
static void ticket_pass(struct pst_copier *cp)
{
	cp->reached++;
	if (cp->last && cp->reached == cp->marked)
		cp->last = NULL;
	else
		cp->idle[cp->idle_count++] = cp->events[cp->reached % TICKETS_MAX];
}

static enum pst_cu_result ticket_query(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	uint64_t ticket = cp->reached + 1;
	enum pst_cu_result rc = cp->last && ticket == cp->marked
					? api->cuStreamQuery(cp->last)
					: api->cuEventQuery(cp->events[ticket % TICKETS_MAX]);

	if (rc == PST_CU_OK)
		ticket_pass(cp);
	return rc;
}

static enum pst_cu_result ticket_await(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	uint64_t ticket = cp->reached + 1;
	enum pst_cu_result rc = cp->last && ticket == cp->marked
					? api->cuStreamSynchronize(cp->last)
					: api->cuEventSynchronize(cp->events[ticket % TICKETS_MAX]);

	if (rc == PST_CU_OK)
		ticket_pass(cp);
	return rc;
}

static enum pst_cu_result event_get(struct pst_copier *cp, struct pst_cu_event **out)
{
	if (!cp->idle_count)
		return cp->cuda->api->cuEventCreate(out, PST_CU_EVENT_NO_TIMING);
	*out = cp->idle[--cp->idle_count];
	return PST_CU_OK;
}

/* Records an event for the last ticket, which has none yet, before more work is queued on its
 * stream. If no event can be created, waits until the copies of this ticket and of all earlier ones
 * are done. */
static enum pst_cu_result last_ticket_record(struct pst_copier *cp)
{
	struct pst_cu_event *event;
	enum pst_cu_result rc;

	if (!cp->last)
		return PST_CU_OK;
	rc = event_get(cp, &event);
	if (rc == PST_CU_OK) {
		rc = cp->cuda->api->cuEventRecord(event, cp->last);
		if (rc == PST_CU_OK) {
			cp->events[cp->marked % TICKETS_MAX] = event;
			cp->last = NULL;
			return PST_CU_OK;
		}
		cp->idle[cp->idle_count++] = event;
	}
	do
		rc = ticket_await(cp);
	while (rc == PST_CU_OK && cp->last);
	return rc;
}

/* Called if copies were queued on both streams since the last ticket. Records one event for the
 * next ticket, which is done when the copies on both streams are done. Copies to the device may be
 * done before older copies from the device, so tickets are checked in their order. */
static enum pst_cu_result both_streams_record(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	struct pst_cu_event *event;
	enum pst_cu_result rc = event_get(cp, &event);

	if (rc != PST_CU_OK)
		return rc;
	rc = api->cuEventRecord(event, cp->out);
	if (rc == PST_CU_OK)
		rc = api->cuStreamWaitEvent(cp->in, event, 0);
	if (rc == PST_CU_OK)
		rc = api->cuEventRecord(event, cp->in);
	if (rc == PST_CU_OK)
		cp->events[(cp->marked + 1) % TICKETS_MAX] = event;
	else
		cp->idle[cp->idle_count++] = event;
	return rc;
}

/* ---- deferred copies ---- */

static enum pst_cu_result batch_submit(struct pst_copier *cp)
{
	struct pst_cu_copy_attr attr = {.source_order = PST_CU_SOURCE_IN_STREAM};
	size_t first = 0;

	return cp->cuda->api->cuMemcpyBatchAsync(cp->dsts, cp->srcs, cp->lens, cp->deferred, &attr,
						 &first, 1, cp->deferred_in ? cp->in : cp->out);
}

/* Submits the deferred copies as a batch, by one driver call. If the driver refuses a batch, none
 * of its copies has started. Then each copy is submitted alone. */
static void batch_flush(struct pst_copier *cp)
{
	bool all = cp->deferred > 1 && batch_submit(cp) == PST_CU_OK;

	for (unsigned i = 0; i < cp->deferred && !all; i++) {
		enum pst_cu_result rc = copy_row(cp, (char *)(uintptr_t)cp->dsts[i],
						 (const char *)(uintptr_t)cp->srcs[i], cp->lens[i],
						 cp->deferred_in);

		if (rc == PST_CU_OK)
			continue;
		copier_drain(cp);
		*cp->refused[i] = pst_cuda_errno(rc);
	}
	cp->deferred = 0;
}

static bool small_may_pair(const struct small_copy *a, const struct small_copy *b)
{
	ptrdiff_t dst = b->dst - a->dst, src = b->src - a->src;
	ptrdiff_t len = (ptrdiff_t)a->len;

	if (src < 0) {
		dst = -dst;
		src = -src;
	}
	return b->len == a->len && b->base == a->base && b->piece == a->piece && dst >= len &&
	       src >= len && dst <= (ptrdiff_t)PST_CUDA_PITCH_MAX &&
	       src <= (ptrdiff_t)PST_CUDA_PITCH_MAX;
}

/* Searches, for each small copy, another small copy with which it can become one copy of two
 * rows. */
static void small_pair_up(struct pst_copier *cp)
{
	struct small_copy *all = cp->small;

	for (unsigned i = 0; i < cp->small_count; i++) {
		unsigned end =
			i + 1 + PAIR_NEAR < cp->small_count ? i + 1 + PAIR_NEAR : cp->small_count;

		for (unsigned k = i + 1; k < end && !all[i].second && !all[i].partner; k++) {
			if (all[k].second || !small_may_pair(&all[i], &all[k]))
				continue;
			all[i].partner = &all[k];
			all[k].second = true;
		}
	}
}

/* Returns whether the small copy can be made as one copy of two rows: it has a partner, or its
 * length is even. */
static bool small_has_two_rows(const struct small_copy *one)
{
	return one->partner || one->len % 2 == 0;
}

/* Returns a copy of two rows. The rows are the two copies of a pair, or the two halves of a copy
 * without partner. */
static struct pst_rect small_rows(const struct small_copy *one)
{
	const struct small_copy *low = one, *high = one->partner;
	struct pst_rect two = {.rows = 2, .row_len = one->len};

	if (!high) {
		two.row_len = two.dst_pitch = two.src_pitch = one->len / 2;
	} else {
		if (high->src < low->src) {
			low = high;
			high = one;
		}
		two.dst_pitch = (uint64_t)(high->dst - low->dst);
		two.src_pitch = (uint64_t)(high->src - low->src);
	}
	two.dst = low->dst;
	two.src = low->src;
	return two;
}

/* Turns each pair of small copies, and each copy of even length that has no partner, into one
 * pitched copy of two rows. Queues these pitched copies with one driver call. Returns false if
 * there are fewer than two of them, or if the driver lacks or refuses the call. */
static bool small_submit_batch(struct pst_copier *cp)
{
	enum pst_cu_result rc;
	size_t count = 0;

	if (!cp->cuda->api->cuMemcpy3DBatchAsync || cp->rows_unsupported)
		return false;
	for (unsigned i = 0; i < cp->small_count; i++) {
		struct pst_rect two;

		if (cp->small[i].second || !small_has_two_rows(&cp->small[i]))
			continue;
		two = small_rows(&cp->small[i]);
		cp->rows[count++] = (struct pst_cu_copy3d){
			.src = {PST_CU_OPERAND_POINTER, (uintptr_t)two.src, two.src_pitch},
			.dst = {PST_CU_OPERAND_POINTER, (uintptr_t)two.dst, two.dst_pitch},
			.width_bytes = two.row_len,
			.rows = 2,
			.layers = 1,
			.source_order = PST_CU_SOURCE_IN_STREAM,
		};
	}
	if (count < 2)
		return false;
	rc = cp->cuda->api->cuMemcpy3DBatchAsync(count, cp->rows, 0, cp->in);
	cp->rows_unsupported = rc == PST_CU_NOT_SUPPORTED;
	return rc == PST_CU_OK;
}

/* Queues one small copy without a partner. Stores an error in *one->refused. */
static void small_queue_alone(struct pst_copier *cp, const struct small_copy *one)
{
	enum pst_cu_result rc = copy_in_1d(cp, one->dst, one->src, one->len);

	if (rc == PST_CU_OK)
		return;
	copier_drain(cp);
	*one->refused = pst_cuda_errno(rc);
}

/* Queues one small copy, together with its partner if it has one. */
static void small_queue(struct pst_copier *cp, const struct small_copy *one)
{
	struct pst_rect two = small_rows(one);

	if (one->partner && copy_2d(cp, &two, true) == PST_CU_OK)
		return;
	small_queue_alone(cp, one);
	if (one->partner)
		small_queue_alone(cp, one->partner);
}

/* Queues all deferred small copies. If the driver refuses a batch, none of its copies has started,
 * so they are queued one by one. */
static void small_flush(struct pst_copier *cp)
{
	bool batched;

	small_pair_up(cp);
	batched = small_submit_batch(cp);
	for (unsigned i = 0; i < cp->small_count; i++)
		if (!cp->small[i].second && !(batched && small_has_two_rows(&cp->small[i])))
			small_queue(cp, &cp->small[i]);
	cp->small_count = 0;
}

/* Returns whether the copy can be part of a batch of copies of one row. Small copies to the device
 * cannot, because the driver sends them through a compute queue even in a batch. */
static bool rect_fits_batch(const struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	return r->refused && cp->cuda->api->cuMemcpyBatchAsync &&
	       (r->rows == 1 || (r->dst_pitch == r->row_len && r->src_pitch == r->row_len)) &&
	       (!in || r->row_len * r->rows > SMALL_COPY);
}

static bool rect_is_small(const struct pst_rect *r, bool in)
{
	return in && r->refused && r->rows == 1 && r->row_len >= 2 && r->row_len <= SMALL_COPY;
}

/* Returns the start of the allocation that contains these bytes, or 0 if the device has no such
 * allocation. If one address in a batch does not belong to the device, the driver call never
 * returns (H200). So the address of every deferred copy is looked up before the batch is
 * submitted. If the caller frees the memory before its copy is done, that is the caller's
 * error. */
static uint64_t allocation_base(struct pst_copier *cp, const void *at, uint64_t len)
{
	uint64_t from = (uintptr_t)at;
	struct pst_memory mem;

	for (unsigned i = 0; i < KNOWN_MAX; i++)
		if (from >= cp->known[i].base && len <= cp->known[i].len &&
		    from - cp->known[i].base <= cp->known[i].len - len)
			return cp->known[i].base;
	if (cp->dev->ops->classify(cp->dev, at, &mem) != 1 || len > mem.len ||
	    from - mem.base > mem.len - len)
		return 0;
	cp->known[cp->known_count % KNOWN_MAX].base = mem.base;
	cp->known[cp->known_count++ % KNOWN_MAX].len = mem.len;
	return mem.base;
}

static void copy_defer(struct pst_copier *cp, const struct pst_rect *r, bool in, uint64_t base)
{
	unsigned i;

	if (rect_is_small(r, in)) {
		cp->small[cp->small_count++] = (struct small_copy){
			.dst = r->dst,
			.src = r->src,
			.len = r->row_len,
			.base = base,
			.piece = r->piece,
			.refused = r->refused,
		};
		return;
	}
	i = cp->deferred++;

	cp->deferred_in = in;
	cp->dsts[i] = (uintptr_t)r->dst;
	cp->srcs[i] = (uintptr_t)r->src;
	cp->lens[i] = r->row_len * r->rows;
	cp->refused[i] = r->refused;
}

static bool deferred_has_room(const struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	if (rect_is_small(r, in))
		return cp->small_count < BATCH_MAX;
	return cp->deferred < BATCH_MAX && (!cp->deferred || cp->deferred_in == in);
}

static int copier_copy(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	uint64_t base = 0;
	struct pst_cuda_scope entered;
	bool later;
	enum pst_cu_result rc;

	/* Do not defer a copy within the device: the caller may rely on it being queued when this
	 * function returns. */
	if (!r->within && (rect_is_small(r, in) || rect_fits_batch(cp, r, in)))
		base = allocation_base(cp, in ? r->dst : r->src, r->row_len * r->rows);
	later = base;
	if (in)
		cp->used_in = true;
	else
		cp->used_out = true;
	if (later && deferred_has_room(cp, r, in)) {
		copy_defer(cp, r, in, base);
		return 0;
	}
	rc = pst_cuda_enter(cp->cuda->api, cp->ctx, &entered);
	if (rc == PST_CU_OK)
		rc = last_ticket_record(cp);
	if (rc == PST_CU_OK && later) {
		if (rect_is_small(r, in))
			small_flush(cp);
		else
			batch_flush(cp);
		copy_defer(cp, r, in, base);
		pst_cuda_leave(cp->cuda->api, &entered);
		return 0;
	}
	if (rc == PST_CU_OK) {
		rc = copy_rect(cp, r, in);
		if (rc != PST_CU_OK)
			copier_drain(cp);
	}
	pst_cuda_leave(cp->cuda->api, &entered);
	return pst_cuda_errno(rc);
}

int pst_cuda_copy_in(struct pst_copier *cp, const struct pst_rect *r)
{
	return copier_copy(cp, r, true);
}

int pst_cuda_copy_out(struct pst_copier *cp, const struct pst_rect *r)
{
	return copier_copy(cp, r, false);
}

/* Fails all deferred copies. They will never run, so the error is stored for each of them before a
 * later ticket can report them as done. */
static void deferred_fail(struct pst_copier *cp, int code)
{
	for (unsigned i = 0; i < cp->deferred; i++)
		*cp->refused[i] = code;
	for (unsigned i = 0; i < cp->small_count; i++)
		*cp->small[i].refused = code;
	cp->deferred = cp->small_count = 0;
}

int pst_cuda_record(struct pst_copier *cp, uint64_t *ticket)
{
	struct pst_cuda_scope entered;
	enum pst_cu_result rc;

	if (!cp->used_in && !cp->used_out) {
		*ticket = cp->marked;
		return 0;
	}
	rc = pst_cuda_enter(cp->cuda->api, cp->ctx, &entered);
	if (rc == PST_CU_OK)
		rc = last_ticket_record(cp);
	if (rc == PST_CU_OK && cp->deferred)
		batch_flush(cp);
	if (rc == PST_CU_OK && cp->small_count)
		small_flush(cp);
	if (rc == PST_CU_OK && cp->marked - cp->reached == TICKETS_MAX)
		rc = ticket_await(cp);
	if (rc == PST_CU_OK && cp->used_in && cp->used_out) {
		rc = both_streams_record(cp);
		if (rc != PST_CU_OK)
			copier_drain(cp);
	} else if (rc == PST_CU_OK) {
		cp->last = cp->used_in ? cp->in : cp->out;
	}
	pst_cuda_leave(cp->cuda->api, &entered);
	if (rc != PST_CU_OK) {
		deferred_fail(cp, pst_cuda_errno(rc));
		return pst_cuda_errno(rc);
	}
	cp->used_in = cp->used_out = false;
	*ticket = ++cp->marked;
	return 0;
}

int pst_cuda_query(struct pst_copier *cp, uint64_t ticket)
{
	const struct pst_cuda *api = cp->cuda->api;
	struct pst_cuda_scope entered;
	enum pst_cu_result rc;

	assert(ticket <= cp->marked);
	if (ticket <= cp->reached)
		return 1;
	rc = pst_cuda_enter(api, cp->ctx, &entered);
	while (rc == PST_CU_OK && cp->reached < ticket)
		rc = ticket_query(cp);
	pst_cuda_leave(api, &entered);
	if (rc == PST_CU_NOT_READY)
		return 0;
	return rc == PST_CU_OK ? 1 : pst_cuda_errno(rc);
}

int pst_cuda_wait(struct pst_copier *cp, uint64_t ticket)
{
	struct pst_cuda_scope entered;
	enum pst_cu_result rc;

	assert(ticket <= cp->marked);
	if (ticket <= cp->reached)
		return 0;
	rc = pst_cuda_enter(cp->cuda->api, cp->ctx, &entered);
	while (rc == PST_CU_OK && cp->reached < ticket)
		rc = ticket_await(cp);
	pst_cuda_leave(cp->cuda->api, &entered);
	return pst_cuda_errno(rc);
}
