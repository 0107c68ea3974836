/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches: each is a queue of the core and a place for every operation that may be
 * out at once. An operation counts until its event was handed to the caller, once;
 * what the core refused comes as an event too, unless nothing was taken at all.
 * One thread may submit while another waits and a third cancels. Once a batch is
 * destroyed nothing of it moves any more, whoever still waited for its events.
 * Lock order: list_lock alone; submit_lock and harvest_lock never together.
 */
#include <errno.h>
#include <stdlib.h>

#include "shim.h"
#include "stats.h"

#define AT_ONCE 32u /* completions taken from the core in one go */

enum { FREE, OUT, REFUSED };

struct op {
	struct shim_move m;
	void *cookie;
	_Atomic uint64_t id;
	_Atomic int state;
	int64_t ret; /* of what was refused */
};
struct batch {
	struct batch *next; /* under list_lock, with refs */
	unsigned refs;
	struct penstock_queue *q;
	pthread_mutex_t submit_lock, harvest_lock;
	unsigned nr;
	_Atomic unsigned out; /* operations whose events are still to come */
	_Atomic unsigned refused;
	struct op **chosen; /* of the submit at hand, nr of them; under submit_lock */
	struct op ops[];
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t let_go = PTHREAD_COND_INITIALIZER; /* one that is being destroyed */
static struct batch *batches;

static void free_batch(struct batch *b)
{
	penstock_queue_close(b->q); /* cancels what is out and waits for it */
	for (unsigned i = 0; i < b->nr; i++)
		if (atomic_load(&b->ops[i].state) != FREE)
			shim_move_end(&b->ops[i].m);
	pthread_mutex_destroy(&b->submit_lock);
	pthread_mutex_destroy(&b->harvest_lock);
	free(b->chosen);
	free(b);
}

static struct batch *enter(void *id)
{
	struct batch *b;

	pthread_mutex_lock(&list_lock);
	for (b = batches; b && b != id; b = b->next)
		;
	if (b)
		b->refs++;
	pthread_mutex_unlock(&list_lock);
	return b;
}

/* The first reference is the list's, and then that of who destroys it. */
static void leave(struct batch *b)
{
	pthread_mutex_lock(&list_lock);
	if (--b->refs == 1)
		pthread_cond_broadcast(&let_go);
	pthread_mutex_unlock(&list_lock);
}

static struct cuf_error leave_with(struct batch *b, enum shim_counted what, int code)
{
	leave(b);
	shim_count(what, !code);
	return shim_err(code);
}

/* ---- set up and destroy ---- */

static int set_up(unsigned nr, struct batch **out)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct batch *b;
	size_t most;
	int code = shim_need();

	if (code)
		return code;
	pthread_mutex_lock(&shim.lock);
	most = shim.config.size[CUF_IO_BATCHSIZE];
	pthread_mutex_unlock(&shim.lock);
	if (!nr || nr > most)
		return CUF_INVALID_VALUE;
	b = calloc(1, sizeof(*b) + nr * sizeof(b->ops[0]));
	if (!b)
		return CUF_NOMEM_ERROR;
	b->chosen = calloc(nr, sizeof(*b->chosen));
	code = b->chosen ? 0 : CUF_NOMEM_ERROR;
	opts.requests_max = nr;
	opts.segs_max = 1;
	if (!code && penstock_queue_open(&opts, &b->q) < 0) {
		shim_log(SHIM_ERROR, "setting up a batch of %u: %s", nr, penstock_errmsg());
		code = CUF_INTERNAL_BATCH_SETUP_ERROR;
	}
	if (code) {
		free(b->chosen);
		free(b);
		return code;
	}
	b->nr = nr;
	b->refs = 1;
	pthread_mutex_init(&b->submit_lock, NULL);
	pthread_mutex_init(&b->harvest_lock, NULL);
	*out = b;
	return 0;
}

struct cuf_error cuFileBatchIOSetUp(void **id, unsigned nr)
{
	struct batch *b = NULL;
	int code = id ? set_up(nr, &b) : CUF_INVALID_VALUE;

	if (!code) {
		pthread_mutex_lock(&list_lock);
		b->next = batches;
		batches = b;
		pthread_mutex_unlock(&list_lock);
		*id = b;
	}
	shim_count(SHIM_BATCH_SETUP, !code);
	return shim_err(code);
}

static void cancel(struct batch *b)
{
	pthread_mutex_lock(&b->submit_lock);
	for (unsigned i = 0; i < b->nr; i++)
		/* One that ended meanwhile is none any more, which is no error. */
		if (atomic_load(&b->ops[i].state) == OUT)
			penstock_cancel(b->q, atomic_load(&b->ops[i].id));
	pthread_mutex_unlock(&b->submit_lock);
}

/* What the list has no more, by the one who took it out. */
static void end_batch(struct batch *b)
{
	cancel(b); /* so that who waits for events of it gets them now */
	pthread_mutex_lock(&list_lock);
	while (b->refs > 1)
		pthread_cond_wait(&let_go, &list_lock);
	pthread_mutex_unlock(&list_lock);
	free_batch(b);
}

void cuFileBatchIODestroy(void *id)
{
	struct batch **at, *b;

	pthread_mutex_lock(&list_lock);
	for (at = &batches; *at && *at != id; at = &(*at)->next)
		;
	b = *at;
	if (b)
		*at = b->next;
	pthread_mutex_unlock(&list_lock);
	shim_count(SHIM_BATCH_DESTROY, b != NULL);
	if (b)
		end_batch(b);
	else
		shim_log(SHIM_ERROR, "destroying %p, which is no batch of ours", id);
}

/* ---- submit ---- */

static struct op *free_op(struct batch *b, unsigned *from)
{
	while (*from < b->nr) {
		struct op *op = &b->ops[(*from)++];

		if (atomic_load_explicit(&op->state, memory_order_acquire) == FREE)
			return op;
	}
	return NULL;
}

static int take_op(struct op *op, const struct cuf_io_params *p)
{
	int code;

	if (p->mode != CUF_BATCH || (p->opcode != CUF_READ && p->opcode != CUF_WRITE))
		return CUF_INVALID_VALUE;
	code = shim_move_begin(&op->m, p->fh, p->u.batch.base, p->u.batch.size,
			       p->u.batch.file_offset, p->u.batch.base_offset,
			       p->opcode == CUF_READ ? PENSTOCK_READ : PENSTOCK_WRITE);
	op->m.req.user = op;
	op->cookie = p->cookie;
	return code;
}

/* All of them are looked at before the first is handed in. */
static int take_all(struct batch *b, const struct cuf_io_params *params, unsigned nr)
{
	struct op **chosen = b->chosen;
	unsigned from = 0, i;
	int code = 0;

	for (i = 0; i < nr && !code; i++) {
		chosen[i] = free_op(b, &from);
		code = chosen[i] ? take_op(chosen[i], &params[i]) : CUF_BATCH_FULL;
	}
	if (code)
		for (i -= 1; i-- > 0;)
			shim_move_end(&chosen[i]->m);
	return code;
}

/* The core just refused it: that is said, and its code returned, 0 for none. */
static int say_refused(const struct op *op, int64_t ret)
{
	int code = shim_code(ret, penstock_errwhy());

	shim_say_failed(&op->m, "a batch's ", code, penstock_errmsg());
	return code == CUF_IO_NOT_SUPPORTED ? CUF_BATCH_NOCOMPAT_ERROR : code;
}

static void refuse(struct batch *b, struct op *op, int64_t ret)
{
	int code = say_refused(op, ret);

	op->ret = code ? -code : ret;
	atomic_store_explicit(&op->state, REFUSED, memory_order_release);
	atomic_fetch_add(&b->refused, 1);
}

/* 0, or a code if not one was taken and no other would be: the class is refused. */
static int hand_in(struct batch *b, unsigned nr)
{
	struct op **ops = b->chosen;
	bool any = false;

	for (unsigned i = 0; i < nr; i++) {
		struct op *op = ops[i];
		uint64_t id = 0;
		int ret;

		/* Before it is handed in: its event may come at once. */
		atomic_fetch_add(&b->out, 1);
		atomic_store_explicit(&op->state, OUT, memory_order_relaxed);
		ret = penstock_submit(b->q, &op->m.req, 1, &id);
		if (ret == 1) {
			atomic_store(&op->id, id);
			any = true;
			continue;
		}
		if (ret == -EOPNOTSUPP && !any) {
			int code = say_refused(op, ret);

			atomic_fetch_sub(&b->out, 1);
			for (unsigned k = i; k < nr; k++) {
				shim_move_end(&ops[k]->m);
				atomic_store(&ops[k]->state, FREE);
			}
			return code ? code : CUF_INTERNAL_BATCH_SUBMIT_ERROR;
		}
		refuse(b, op, ret);
		any = true;
	}
	return 0;
}

static int submit(struct batch *b, unsigned nr, const struct cuf_io_params *params)
{
	struct shim_timer timer = shim_timer_start();
	uint64_t bytes[2] = {0, 0};
	int code;

	if (!nr || !params || nr > b->nr)
		return CUF_INVALID_VALUE;
	if (atomic_load(&b->out) + nr > b->nr)
		return CUF_BATCH_FULL;
	code = take_all(b, params, nr);
	for (unsigned i = 0; i < nr && !code; i++)
		bytes[params[i].opcode] += params[i].u.batch.size;
	if (!code)
		code = hand_in(b, nr);
	if (!code)
		shim_count_batch_submit(&timer, bytes[0], bytes[1]);
	shim_count_many(SHIM_BATCH_ENQUEUED, !code, nr);
	shim_count_many(SHIM_BATCH_TOTAL, !code, nr);
	return code;
}

struct cuf_error cuFileBatchIOSubmit(void *id, unsigned nr, struct cuf_io_params *params,
				     unsigned flags)
{
	struct batch *b = enter(id);
	int code;

	(void)flags; /* reserved: callers pass anything */
	if (!b)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&b->submit_lock);
	code = submit(b, nr, params);
	pthread_mutex_unlock(&b->submit_lock);
	return leave_with(b, SHIM_BATCH_SUBMIT, code);
}

/* ---- status ---- */

static int status_of(int64_t ret)
{
	if (ret >= 0)
		return CUF_COMPLETE;
	if (ret == -ECANCELED)
		return CUF_CANCELED;
	return ret == -ETIME ? CUF_TIMEOUT : CUF_FAILED;
}

static void hand_out(struct batch *b, struct op *op, int64_t ret, struct cuf_io_event *event)
{
	*event = (struct cuf_io_event){op->cookie, status_of(ret), (size_t)ret};
	shim_move_end(&op->m);
	atomic_store_explicit(&op->state, FREE, memory_order_release);
	atomic_fetch_sub(&b->out, 1);
}

static unsigned take_refused(struct batch *b, struct cuf_io_event *events, unsigned max)
{
	unsigned have = 0;

	for (unsigned i = 0; i < b->nr && have < max && atomic_load(&b->refused); i++) {
		struct op *op = &b->ops[i];

		if (atomic_load_explicit(&op->state, memory_order_acquire) != REFUSED)
			continue;
		atomic_fetch_sub(&b->refused, 1);
		shim_count_batch_refused();
		hand_out(b, op, op->ret, &events[have++]);
	}
	return have;
}

static void take_done(struct batch *b, const struct penstock_done *done, struct cuf_io_event *event)
{
	struct op *op = done->user;
	int64_t ret = done->result;
	int code = 0;

	shim_count_batch_io(op->m.req.op, ret, &op->m.seg, done->report);
	if (ret >= 0 && shim_is_first(&op->m))
		shim_first_use(&op->m, done->report);
	if (ret < 0 && ret != -ECANCELED) {
		code = shim_code(ret, done->report->why);
		shim_say_failed(&op->m, "a batch's ", code, done->report->text);
	}
	hand_out(b, op, code ? -code : ret, event);
}

/* -1: for ever; clients have been seen to pass what is no timespec at all. */
static int64_t nanoseconds(const struct timespec *ts)
{
	if (!ts || ts->tv_sec < 0 || ts->tv_nsec < 0 || ts->tv_nsec > 999999999 ||
	    ts->tv_sec > 1000000000)
		return -1;
	return (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec;
}

static unsigned get_status(struct batch *b, unsigned min, unsigned max, struct cuf_io_event *events,
			   int64_t timeout_ns)
{
	struct penstock_done done[AT_ONCE];
	uint64_t until = timeout_ns < 0 ? UINT64_MAX : shim_now_ns() + (uint64_t)timeout_ns;
	unsigned have = take_refused(b, events, max);

	while (have < max) {
		unsigned room = max - have < AT_ONCE ? max - have : AT_ONCE;
		unsigned want = have < min ? min - have : 0;
		uint64_t now = shim_now_ns();
		int64_t left = timeout_ns < 0 ? -1 : until > now ? (int64_t)(until - now) : 0;
		int n = penstock_wait(b->q, done, want < room ? want : room, room, left);

		for (int i = 0; i < n; i++)
			take_done(b, &done[i], &events[have++]);
		/* Fewer than there is room for: no more are there yet. */
		if (n < (int)room && (have >= min || n <= 0 || left == 0))
			break;
	}
	return have;
}

/* No longer than the caller would wait for events; another thread may wait for ever. */
static bool lock_within(pthread_mutex_t *lock, int64_t timeout_ns)
{
	struct timespec until;

	if (timeout_ns < 0)
		return !pthread_mutex_lock(lock);
	if (!timeout_ns)
		return !pthread_mutex_trylock(lock);
	clock_gettime(CLOCK_REALTIME, &until);
	timeout_ns += until.tv_nsec;
	until.tv_sec += timeout_ns / 1000000000;
	until.tv_nsec = timeout_ns % 1000000000;
	return !pthread_mutex_timedlock(lock, &until);
}

static void status(struct batch *b, unsigned min, unsigned *nr, struct cuf_io_event *events,
		   int64_t timeout_ns)
{
	uint64_t until = timeout_ns < 0 ? 0 : shim_now_ns() + (uint64_t)timeout_ns, now;

	if (!lock_within(&b->harvest_lock, timeout_ns)) {
		*nr = 0;
		return;
	}
	if (timeout_ns > 0) { /* what waiting for the lock has left of it */
		now = shim_now_ns();
		timeout_ns = until > now ? (int64_t)(until - now) : 0;
	}
	*nr = get_status(b, min, *nr, events, timeout_ns);
	pthread_mutex_unlock(&b->harvest_lock);
}

struct cuf_error cuFileBatchIOGetStatus(void *id, unsigned min_nr, unsigned *nr,
					struct cuf_io_event *events, struct timespec *timeout)
{
	struct batch *b = enter(id);
	int code = 0;

	if (!b)
		return shim_err(CUF_INVALID_VALUE);
	if (!nr || (!events && *nr) || min_nr > *nr)
		code = CUF_INVALID_VALUE;
	else
		status(b, min_nr, nr, events, nanoseconds(timeout));
	return leave_with(b, SHIM_BATCH_COMPLETE, code);
}

struct cuf_error cuFileBatchIOCancel(void *id)
{
	struct batch *b = enter(id);

	if (!b)
		return shim_err(CUF_INVALID_VALUE);
	cancel(b);
	return leave_with(b, SHIM_BATCH_CANCEL, 0);
}

void shim_batch_forked(void)
{
	pthread_mutex_init(&list_lock, NULL);
	pthread_cond_init(&let_go, NULL);
	batches = NULL; /* the parent's */
}
