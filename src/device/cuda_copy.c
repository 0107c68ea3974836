/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of device cuda: a copier is two streams, one a direction, and events. What is sure
 * to be needed of them is made when it opens: while other threads use the driver each takes
 * up to 0.3 ms (H200). The last ticket has no event as long as no copy follows it: its
 * stream is asked, which saves a lone copy one call of three. On its streams nothing may
 * happen that the driver gives to a compute queue, because a stream that waits for one of
 * our requests may stand in front of it there (tests/standin/README.md).
 */
#include <assert.h>
#include <stdlib.h>

#include "core/queue/stream.h"
#include "device/cuda.h"

/* Host-to-device copies up to this length ride on the compute queue, but not as two
 * rows. */
#define SMALL_COPY 24576u
/* The copy engine pauses for some 2.5 us between calls and not between the copies of a
 * batch: eight of 512 KiB are as quick as one of 4 MiB (53.6 GB/s, H200). */
#define BATCH_MAX 64
/* Two rows go by the copy engine, however far apart they lie in one allocation, and cost
 * little more than one: 3.2 us, not 2.5 (H200). So two small ones go as one. */
#define PAIR_NEAR 8 /* so many later ones are looked at for a second row */
#define KNOWN 4	    /* allocations that a copier remembers */
#define TICKETS 512 /* of one copier in flight; a lane has half as many chunks */

struct small {
	char *dst;
	const char *src;
	uint64_t len;
	uint64_t base;	/* of the allocation that dst lies in */
	unsigned piece; /* of the ring, that src lies in */
	int *refused;
};

struct pst_copier {
	struct penstock_device *dev;
	struct pst_cuda_device *cuda;
	struct pst_cu_ctx *ctx;
	struct pst_cu_stream *in, *out;
	bool used_in, used_out;		      /* since the last mark */
	uint64_t marked;		      /* the last ticket given */
	uint64_t reached;		      /* known to be done, with every ticket before it */
	struct pst_cu_event *events[TICKETS]; /* of the tickets in flight, by turns */
	struct pst_cu_event *idle[TICKETS];
	unsigned idle_count;
	struct pst_cu_stream *last; /* where the copies of the last ticket are, as long as it
				     * has no event; else NULL */
	/* Put off until mark: for a batch, all of one direction, and small ones to the
	 * device, for pairs. */
	unsigned put_off;
	bool put_off_in;
	pst_cu_ptr dsts[BATCH_MAX], srcs[BATCH_MAX];
	size_t lens[BATCH_MAX];
	int *refused[BATCH_MAX];
	struct small small[BATCH_MAX];
	unsigned small_count;
	struct {
		uint64_t base, len;
	} known[KNOWN]; /* of the device's allocations, the last ones asked for */
	unsigned known_count;
};

void pst_cuda_copier_close(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	struct pst_cuda_scope in;

	/* What fails here belongs to a context that is gone, with all that was in it. */
	pst_cuda_enter(api, cp->ctx, &in);
	if (cp->in)
		api->cuStreamDestroy(cp->in);
	if (cp->out)
		api->cuStreamDestroy(cp->out);
	while (cp->reached < cp->marked - (cp->last != NULL))
		api->cuEventDestroy(cp->events[++cp->reached % TICKETS]);
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
		.src_type = in ? PST_CU_MEMTYPE_HOST : PST_CU_MEMTYPE_DEVICE,
		.src_host = r->src,
		.src_dev = (uintptr_t)r->src,
		.src_pitch = r->src_pitch,
		.dst_type = in ? PST_CU_MEMTYPE_DEVICE : PST_CU_MEMTYPE_HOST,
		.dst_host = r->dst,
		.dst_dev = (uintptr_t)r->dst,
		.dst_pitch = r->dst_pitch,
		.width_bytes = r->row_len,
		.height = r->rows,
	};

	return cp->cuda->api->cuMemcpy2DAsync(&c, in ? cp->in : cp->out);
}

/* A single byte goes by a compute queue, whatever is done. A stream that waits for a request
 * of ours may stand in front of it there, and all that this lane copies later would stand
 * behind it: so only while none does, and none begins to before it is queued. */
static enum pst_cu_result copy_byte(struct pst_copier *cp, char *dst, const char *src)
{
	enum pst_cu_result rc;

	if (!pst_device_sync_begin(cp->dev))
		return PST_CU_ILLEGAL_STATE;
	rc = cp->cuda->api->cuMemcpyHtoDAsync((uintptr_t)dst, src, 1, cp->in);
	pst_device_sync_end(cp->dev);
	return rc;
}

/* By the copy engine, whatever the length: see SMALL_COPY. An odd length goes as two
 * even ones that overlap. */
static enum pst_cu_result copy_in_1d(struct pst_copier *cp, char *dst, const char *src,
				     uint64_t len)
{
	struct pst_rect two = {.rows = 2};
	enum pst_cu_result rc = PST_CU_OK;

	if (len == 1)
		return copy_byte(cp, dst, src);
	if (len > SMALL_COPY || !len)
		return cp->cuda->api->cuMemcpyHtoDAsync((uintptr_t)dst, src, len, cp->in);
	two.row_len = two.dst_pitch = two.src_pitch = len / 2;
	for (uint64_t at = 0; at <= len % 2 && rc == PST_CU_OK; at++) {
		two.dst = dst + at;
		two.src = src + at;
		rc = copy_2d(cp, &two, true);
	}
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

	if (r->rows == 1 || (r->dst_pitch == r->row_len && r->src_pitch == r->row_len))
		return copy_row(cp, r->dst, r->src, r->row_len * r->rows, in);
	if (r->dst_pitch <= PST_CUDA_PITCH_MAX && r->src_pitch <= PST_CUDA_PITCH_MAX)
		return copy_2d(cp, r, in);
	for (uint64_t row = 0; row < r->rows && rc == PST_CU_OK; row++)
		rc = copy_row(cp, (char *)r->dst + row * r->dst_pitch,
			      (const char *)r->src + row * r->src_pitch, r->row_len, in);
	return rc;
}

/* After a failure, so that nothing moves any more when the caller hears of it. That
 * this fails too means that the context is broken and its queues are stopped. */
static void settle(struct pst_copier *cp)
{
	cp->cuda->api->cuStreamSynchronize(cp->in);
	cp->cuda->api->cuStreamSynchronize(cp->out);
}

/* ---- tickets ---- */

/* The oldest that is not known to be done is. */
static void pass(struct pst_copier *cp)
{
	cp->reached++;
	if (cp->last && cp->reached == cp->marked)
		cp->last = NULL;
	else
		cp->idle[cp->idle_count++] = cp->events[cp->reached % TICKETS];
}

static enum pst_cu_result look(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	uint64_t ticket = cp->reached + 1;
	enum pst_cu_result rc = cp->last && ticket == cp->marked
					? api->cuStreamQuery(cp->last)
					: api->cuEventQuery(cp->events[ticket % TICKETS]);

	if (rc == PST_CU_OK)
		pass(cp);
	return rc;
}

static enum pst_cu_result await(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	uint64_t ticket = cp->reached + 1;
	enum pst_cu_result rc = cp->last && ticket == cp->marked
					? api->cuStreamSynchronize(cp->last)
					: api->cuEventSynchronize(cp->events[ticket % TICKETS]);

	if (rc == PST_CU_OK)
		pass(cp);
	return rc;
}

static enum pst_cu_result take_event(struct pst_copier *cp, struct pst_cu_event **out)
{
	if (!cp->idle_count)
		return cp->cuda->api->cuEventCreate(out, PST_CU_EVENT_NO_TIMING);
	*out = cp->idle[--cp->idle_count];
	return PST_CU_OK;
}

/* Before more is put on a stream: the last ticket gets an event of its own. Where it cannot
 * have one it is waited for, with those before it. */
static enum pst_cu_result mark_last(struct pst_copier *cp)
{
	struct pst_cu_event *event;
	enum pst_cu_result rc;

	if (!cp->last)
		return PST_CU_OK;
	rc = take_event(cp, &event);
	if (rc == PST_CU_OK) {
		rc = cp->cuda->api->cuEventRecord(event, cp->last);
		if (rc == PST_CU_OK) {
			cp->events[cp->marked % TICKETS] = event;
			cp->last = NULL;
			return PST_CU_OK;
		}
		cp->idle[cp->idle_count++] = event;
	}
	do
		rc = await(cp);
	while (rc == PST_CU_OK && cp->last);
	return rc;
}

/* The next ticket, for what its streams were given since the one before. A ticket of one
 * direction may be done before an older one of the other, so that they are gone through
 * in order. */
static enum pst_cu_result mark_both(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	struct pst_cu_event *event;
	enum pst_cu_result rc = take_event(cp, &event);

	if (rc != PST_CU_OK)
		return rc;
	rc = api->cuEventRecord(event, cp->out);
	if (rc == PST_CU_OK)
		rc = api->cuStreamWaitEvent(cp->in, event, 0);
	if (rc == PST_CU_OK)
		rc = api->cuEventRecord(event, cp->in);
	if (rc == PST_CU_OK)
		cp->events[(cp->marked + 1) % TICKETS] = event;
	else
		cp->idle[cp->idle_count++] = event;
	return rc;
}

/* ---- copies put off ---- */

static enum pst_cu_result batch(struct pst_copier *cp)
{
	struct pst_cu_copy_attr attr = {.source_order = PST_CU_SOURCE_IN_STREAM};
	size_t first = 0;

	return cp->cuda->api->cuMemcpyBatchAsync(cp->dsts, cp->srcs, cp->lens, cp->put_off, &attr,
						 &first, 1, cp->put_off_in ? cp->in : cp->out);
}

/* A batch is refused as a whole, so that after a refusal each has to go by itself. */
static void hand_on(struct pst_copier *cp)
{
	bool all = cp->put_off > 1 && batch(cp) == PST_CU_OK;

	for (unsigned i = 0; i < cp->put_off && !all; i++) {
		enum pst_cu_result rc =
			copy_row(cp, (char *)(uintptr_t)cp->dsts[i],
				 (const char *)(uintptr_t)cp->srcs[i], cp->lens[i], cp->put_off_in);

		if (rc == PST_CU_OK)
			continue;
		settle(cp);
		*cp->refused[i] = pst_cuda_errno(rc);
	}
	cp->put_off = 0;
}

/* Two as the rows of one. */
static bool pair(struct pst_copier *cp, const struct small *a, const struct small *b)
{
	const struct small *low = a->src < b->src ? a : b, *high = low == a ? b : a;
	struct pst_rect two = {
		.dst = low->dst,
		.src = (void *)(uintptr_t)low->src,
		.dst_pitch = (uint64_t)(high->dst - low->dst),
		.src_pitch = (uint64_t)(high->src - low->src),
		.row_len = low->len,
		.rows = 2,
	};

	return copy_2d(cp, &two, true) == PST_CU_OK;
}

static bool may_pair(const struct small *a, const struct small *b)
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

static void hand_on_small(struct pst_copier *cp)
{
	struct small *all = cp->small;
	unsigned count = cp->small_count;

	cp->small_count = 0;
	for (unsigned i = 0; i < count; i++) {
		enum pst_cu_result rc;
		unsigned k = i + 1, last = i + PAIR_NEAR < count ? i + PAIR_NEAR : count - 1;

		if (!all[i].len)
			continue; /* went with an earlier one */
		while (k <= last && !may_pair(&all[i], &all[k]))
			k++;
		if (k <= last && pair(cp, &all[i], &all[k])) {
			all[k].len = 0;
			continue;
		}
		rc = copy_in_1d(cp, all[i].dst, all[i].src, all[i].len);
		if (rc == PST_CU_OK)
			continue;
		settle(cp);
		*all[i].refused = pst_cuda_errno(rc);
	}
}

/* Small ones to the device would ride on the compute queue in a batch as well. */
static bool can_put_off(const struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	return r->refused && cp->cuda->api->cuMemcpyBatchAsync &&
	       (r->rows == 1 || (r->dst_pitch == r->row_len && r->src_pitch == r->row_len)) &&
	       (!in || r->row_len * r->rows > SMALL_COPY);
}

static bool is_small(const struct pst_rect *r, bool in)
{
	return in && r->refused && r->rows == 1 && r->row_len >= 2 && r->row_len <= SMALL_COPY;
}

/* Where the allocation begins that these bytes lie in; 0: nobody knows one. A batch with
 * an address that is none of the device's does not come back (H200), so what is put off
 * has been asked for. What was freed since is the caller's error as ever. */
static uint64_t allocation(struct pst_copier *cp, const void *at, uint64_t len)
{
	uint64_t from = (uintptr_t)at;
	struct pst_memory mem;

	for (unsigned i = 0; i < KNOWN; i++)
		if (from >= cp->known[i].base && len <= cp->known[i].len &&
		    from - cp->known[i].base <= cp->known[i].len - len)
			return cp->known[i].base;
	if (cp->dev->ops->classify(cp->dev, at, &mem) != 1 || len > mem.len ||
	    from - mem.base > mem.len - len)
		return 0;
	cp->known[cp->known_count % KNOWN].base = mem.base;
	cp->known[cp->known_count++ % KNOWN].len = mem.len;
	return mem.base;
}

static void put_off(struct pst_copier *cp, const struct pst_rect *r, bool in, uint64_t base)
{
	unsigned i;

	if (is_small(r, in)) {
		cp->small[cp->small_count++] =
			(struct small){r->dst, r->src, r->row_len, base, r->piece, r->refused};
		return;
	}
	i = cp->put_off++;

	cp->put_off_in = in;
	cp->dsts[i] = (uintptr_t)r->dst;
	cp->srcs[i] = (uintptr_t)r->src;
	cp->lens[i] = r->row_len * r->rows;
	cp->refused[i] = r->refused;
}

static bool has_room(const struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	if (is_small(r, in))
		return cp->small_count < BATCH_MAX;
	return cp->put_off < BATCH_MAX && (!cp->put_off || cp->put_off_in == in);
}

static int copy(struct pst_copier *cp, const struct pst_rect *r, bool in)
{
	uint64_t base = 0;
	struct pst_cuda_scope entered;
	bool later;
	enum pst_cu_result rc;

	if (is_small(r, in) || can_put_off(cp, r, in))
		base = allocation(cp, in ? r->dst : r->src, r->row_len * r->rows);
	later = base;
	if (in)
		cp->used_in = true;
	else
		cp->used_out = true;
	if (later && has_room(cp, r, in)) {
		put_off(cp, r, in, base);
		return 0;
	}
	rc = pst_cuda_enter(cp->cuda->api, cp->ctx, &entered);
	if (rc == PST_CU_OK)
		rc = mark_last(cp);
	if (rc == PST_CU_OK && later) {
		if (is_small(r, in))
			hand_on_small(cp);
		else
			hand_on(cp);
		put_off(cp, r, in, base);
		pst_cuda_leave(cp->cuda->api, &entered);
		return 0;
	}
	if (rc == PST_CU_OK) {
		rc = copy_rect(cp, r, in);
		if (rc != PST_CU_OK)
			settle(cp);
	}
	pst_cuda_leave(cp->cuda->api, &entered);
	return pst_cuda_errno(rc);
}

int pst_cuda_copy_in(struct pst_copier *cp, const struct pst_rect *r)
{
	return copy(cp, r, true);
}

int pst_cuda_copy_out(struct pst_copier *cp, const struct pst_rect *r)
{
	return copy(cp, r, false);
}

/* What was put off does not move: a later ticket must not be taken for its own. */
static void drop_put_off(struct pst_copier *cp, int code)
{
	for (unsigned i = 0; i < cp->put_off; i++)
		*cp->refused[i] = code;
	for (unsigned i = 0; i < cp->small_count; i++)
		*cp->small[i].refused = code;
	cp->put_off = cp->small_count = 0;
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
		rc = mark_last(cp);
	if (rc == PST_CU_OK && cp->put_off)
		hand_on(cp);
	if (rc == PST_CU_OK && cp->small_count)
		hand_on_small(cp);
	if (rc == PST_CU_OK && cp->marked - cp->reached == TICKETS)
		rc = await(cp);
	if (rc == PST_CU_OK && cp->used_in && cp->used_out) {
		rc = mark_both(cp);
		if (rc != PST_CU_OK)
			settle(cp);
	} else if (rc == PST_CU_OK) {
		cp->last = cp->used_in ? cp->in : cp->out;
	}
	pst_cuda_leave(cp->cuda->api, &entered);
	if (rc != PST_CU_OK) {
		drop_put_off(cp, pst_cuda_errno(rc));
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
		rc = look(cp);
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
		rc = await(cp);
	pst_cuda_leave(cp->cuda->api, &entered);
	return pst_cuda_errno(rc);
}

/* Every call returns what broke a context, this one too, and does nothing else. */
int pst_cuda_alive(struct pst_copier *cp)
{
	const struct pst_cuda *api = cp->cuda->api;
	enum pst_cu_result rc;
	struct pst_cuda_scope entered;

	rc = pst_cuda_enter(api, cp->ctx, &entered);
	if (rc == PST_CU_OK)
		rc = api->cuStreamQuery(cp->in);
	pst_cuda_leave(api, &entered);
	return rc == PST_CU_OK || rc == PST_CU_NOT_READY ? 0 : pst_cuda_errno(rc);
}
