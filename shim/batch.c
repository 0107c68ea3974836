/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the batch calls of cuFile. A batch consists of a queue of the library and an array
 * with one entry for each operation that may be in flight. An operation occupies its entry until
 * the caller has read the event of the operation. Each operation has exactly one event. An
 * operation that the library refuses has an event too, unless the library refused the whole
 * submission. Different threads may submit operations, wait for events and cancel the batch at the
 * same time. After a batch was destroyed, no operation of the batch may move a byte, even if
 * another thread still waits for events.
 * A thread that holds list_lock takes no other lock. No thread holds submit_lock and harvest_lock
 * together.
 */
#include "batch.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "abi/cufile_calls.h"
#include "fail.h"
#include "log.h"
#include "move.h"
#include "open.h"
#include "state.h"
#include "stats.h"

#define DONE_MAX 32u /* largest number of completions that one call reads from the queue */

enum { FREE, IN_FLIGHT, REFUSED };

struct op {
	struct shim_move m;
	void *cookie;
	_Atomic uint64_t id;
	_Atomic int state;
	int64_t ret; /* result of a refused operation */
};
struct batch {
	struct batch *next; /* guarded by list_lock */
	/* Number of references: 1 until the batch is destroyed, plus 1 for each call that is
	 * using the batch. Guarded by list_lock. */
	unsigned refs;
	struct penstock_queue *q;
	pthread_mutex_t submit_lock, harvest_lock;
	unsigned nr;
	/* Number of operations whose events the caller has not read yet. */
	_Atomic unsigned pending;
	_Atomic unsigned refused;
	/* Operations of the current submission, at most nr; guarded by submit_lock. */
	struct op **chosen;
	struct op ops[];
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
/* Signalled when the last call that uses a batch has left it. */
static pthread_cond_t call_left = PTHREAD_COND_INITIALIZER;
static struct batch *batches;

static void batch_free(struct batch *b)
{
	penstock_queue_close(b->q); /* cancels the operations in flight and waits for them */
	for (unsigned i = 0; i < b->nr; i++)
		if (atomic_load(&b->ops[i].state) != FREE)
			shim_move_end(&b->ops[i].m);
	pthread_mutex_destroy(&b->submit_lock);
	pthread_mutex_destroy(&b->harvest_lock);
	free(b->chosen);
	free(b);
}

/* Returns the batch with this id, or NULL if it does not exist. The caller's reference keeps the
 * batch from being freed until batch_leave. */
static struct batch *batch_enter(void *id)
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

static void batch_leave(struct batch *b)
{
	pthread_mutex_lock(&list_lock);
	if (--b->refs == 1)
		pthread_cond_broadcast(&call_left);
	pthread_mutex_unlock(&list_lock);
}

/* Drops the call's reference to the batch, and counts the call in the statistics. */
static struct cuf_error call_end(struct batch *b, enum shim_counted what, int code)
{
	batch_leave(b);
	shim_count(what, !code);
	return shim_err(code);
}

/* ---- setup and destruction ---- */

static int batch_create(unsigned nr, struct batch **out)
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
		shim_log(SHIM_ERROR, "cannot set up a batch of %u: %s", nr, penstock_errmsg());
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
	int code = id ? batch_create(nr, &b) : CUF_INVALID_VALUE;

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

static void batch_cancel(struct batch *b)
{
	pthread_mutex_lock(&b->submit_lock);
	for (unsigned i = 0; i < b->nr; i++)
		/* penstock_cancel may fail because the operation has completed meanwhile; that
		 * is no error. */
		if (atomic_load(&b->ops[i].state) == IN_FLIGHT)
			penstock_cancel(b->q, atomic_load(&b->ops[i].id));
	pthread_mutex_unlock(&b->submit_lock);
}

/* Waits until no call uses the batch, then frees it. The caller has removed it from the list
 * `batches`. */
static void batch_destroy(struct batch *b)
{
	batch_cancel(b); /* so that a thread that waits for events of this batch returns */
	pthread_mutex_lock(&list_lock);
	while (b->refs > 1)
		pthread_cond_wait(&call_left, &list_lock);
	pthread_mutex_unlock(&list_lock);
	batch_free(b);
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
		batch_destroy(b);
	else
		shim_log(SHIM_ERROR, "cannot destroy %p: it is not a batch", id);
}

/* ---- submit ---- */

/* Returns the first free operation at or after index *from, and sets *from to the index after
 * it. */
static struct op *op_find_free(struct batch *b, unsigned *from)
{
	while (*from < b->nr) {
		struct op *op = &b->ops[(*from)++];

		if (atomic_load_explicit(&op->state, memory_order_acquire) == FREE)
			return op;
	}
	return NULL;
}

static int op_prepare(struct op *op, const struct cuf_io_params *p)
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

/* Checks all operations of a submission, before the first of them is submitted. */
static int ops_prepare(struct batch *b, const struct cuf_io_params *params, unsigned nr)
{
	struct op **chosen = b->chosen;
	unsigned from = 0, i;
	int code = 0;

	for (i = 0; i < nr && !code; i++) {
		chosen[i] = op_find_free(b, &from);
		code = chosen[i] ? op_prepare(chosen[i], &params[i]) : CUF_BATCH_FULL;
	}
	if (code)
		for (i -= 1; i-- > 0;)
			shim_move_end(&chosen[i]->m);
	return code;
}

/* Logs that the library has just refused an operation. Returns the cuFile code of the refusal,
 * or 0 if no code fits. */
static int op_log_refused(const struct op *op, int64_t ret)
{
	int code = shim_code(ret, penstock_errwhy());

	shim_log_failed(&op->m, "a batch's ", code, penstock_errmsg());
	return code == CUF_IO_NOT_SUPPORTED ? CUF_BATCH_NOCOMPAT_ERROR : code;
}

/* Marks the operation as refused, and stores the error in op->ret for the event that the caller
 * reads later. */
static void op_refuse(struct batch *b, struct op *op, int64_t ret)
{
	int code = op_log_refused(op, ret);

	op->ret = code ? -code : ret;
	atomic_store_explicit(&op->state, REFUSED, memory_order_release);
	atomic_fetch_add(&b->refused, 1);
}

/* Submits the chosen operations, each with a call of its own. If no path meets the required class
 * for the first operation, returns a code and submits nothing more, because the library would
 * refuse the other operations, too. */
static int ops_submit(struct batch *b, unsigned nr)
{
	struct op **ops = b->chosen;
	bool any = false;

	for (unsigned i = 0; i < nr; i++) {
		struct op *op = ops[i];
		uint64_t id = 0;
		int ret;

		/* Counts the operation before it is submitted, because it may complete at once. */
		atomic_fetch_add(&b->pending, 1);
		atomic_store_explicit(&op->state, IN_FLIGHT, memory_order_relaxed);
		ret = penstock_submit(b->q, &op->m.req, 1, &id);
		if (ret == 1) {
			atomic_store(&op->id, id);
			any = true;
			continue;
		}
		if (ret == -EOPNOTSUPP && !any) {
			int code = op_log_refused(op, ret);

			atomic_fetch_sub(&b->pending, 1);
			for (unsigned k = i; k < nr; k++) {
				shim_move_end(&ops[k]->m);
				atomic_store(&ops[k]->state, FREE);
			}
			return code ? code : CUF_INTERNAL_BATCH_SUBMIT_ERROR;
		}
		op_refuse(b, op, ret);
		any = true;
	}
	return 0;
}

static int batch_submit(struct batch *b, unsigned nr, const struct cuf_io_params *params)
{
	struct shim_timer timer = shim_timer_start();
	uint64_t bytes[2] = {0, 0};
	int code;

	if (!nr || !params || nr > b->nr)
		return CUF_INVALID_VALUE;
	if (atomic_load(&b->pending) + nr > b->nr)
		return CUF_BATCH_FULL;
	code = ops_prepare(b, params, nr);
	for (unsigned i = 0; i < nr && !code; i++)
		bytes[params[i].opcode] += params[i].u.batch.size;
	if (!code)
		code = ops_submit(b, nr);
	if (!code)
		shim_count_batch_submit(&timer, bytes[0], bytes[1]);
	shim_count_many(SHIM_BATCH_ENQUEUED, !code, nr);
	shim_count_many(SHIM_BATCH_TOTAL, !code, nr);
	return code;
}

struct cuf_error cuFileBatchIOSubmit(void *id, unsigned nr, struct cuf_io_params *params,
				     unsigned flags)
{
	struct batch *b = batch_enter(id);
	int code;

	/* `flags` is reserved, but callers pass any value, so it is not checked. */
	(void)flags;
	if (!b)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&b->submit_lock);
	code = batch_submit(b, nr, params);
	pthread_mutex_unlock(&b->submit_lock);
	return call_end(b, SHIM_BATCH_SUBMIT, code);
}

/* ---- status ---- */

static int event_status(int64_t ret)
{
	if (ret >= 0)
		return CUF_COMPLETE;
	if (ret == -ECANCELED)
		return CUF_CANCELED;
	return ret == -ETIME ? CUF_TIMEOUT : CUF_FAILED;
}

/* Writes the event of a finished operation and frees the operation's entry. */
static void op_finish(struct batch *b, struct op *op, int64_t ret, struct cuf_io_event *event)
{
	*event = (struct cuf_io_event){op->cookie, event_status(ret), (size_t)ret};
	shim_move_end(&op->m);
	atomic_store_explicit(&op->state, FREE, memory_order_release);
	atomic_fetch_sub(&b->pending, 1);
}

/* Writes the events of refused operations. Returns the number of events written. */
static unsigned refused_harvest(struct batch *b, struct cuf_io_event *events, unsigned max)
{
	unsigned have = 0;

	for (unsigned i = 0; i < b->nr && have < max && atomic_load(&b->refused); i++) {
		struct op *op = &b->ops[i];

		if (atomic_load_explicit(&op->state, memory_order_acquire) != REFUSED)
			continue;
		atomic_fetch_sub(&b->refused, 1);
		shim_count_batch_refused();
		op_finish(b, op, op->ret, &events[have++]);
	}
	return have;
}

static void done_harvest(struct batch *b, const struct penstock_done *done,
			 struct cuf_io_event *event)
{
	struct op *op = done->user;
	int64_t ret = done->result;
	int code = 0;

	shim_count_batch_io(op->m.req.op, ret, &op->m.seg, done->report);
	if (ret >= 0 && shim_is_first(&op->m))
		shim_log_first_use(&op->m, done->report);
	if (ret < 0 && ret != -ECANCELED) {
		code = shim_code(ret, done->report->why);
		shim_log_failed(&op->m, "a batch's ", code, done->report->text);
	}
	op_finish(b, op, code ? -code : ret, event);
}

/* Returns the timeout in nanoseconds, or -1 if there is none. An invalid timespec counts as no
 * timeout, because some clients pass uninitialised memory. */
static int64_t timeout_read(const struct timespec *ts)
{
	if (!ts || ts->tv_sec < 0 || ts->tv_nsec < 0 || ts->tv_nsec > 999999999 ||
	    ts->tv_sec > 1000000000)
		return -1;
	return (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec;
}

static unsigned events_harvest(struct batch *b, unsigned min, unsigned max,
			       struct cuf_io_event *events, int64_t timeout_ns)
{
	struct penstock_done done[DONE_MAX];
	uint64_t until = timeout_ns < 0 ? UINT64_MAX : shim_now_ns() + (uint64_t)timeout_ns;
	unsigned have = refused_harvest(b, events, max);

	while (have < max) {
		unsigned n_max = max - have < DONE_MAX ? max - have : DONE_MAX;
		unsigned want = have < min ? min - have : 0;
		uint64_t now = shim_now_ns();
		int64_t left = timeout_ns < 0 ? -1 : until > now ? (int64_t)(until - now) : 0;
		int n = penstock_wait(b->q, done, want < n_max ? want : n_max, n_max, left);

		for (int i = 0; i < n; i++)
			done_harvest(b, &done[i], &events[have++]);
		/* Fewer completions than n_max were returned, so the queue has no more completed
		 * requests. */
		if (n < (int)n_max && (have >= min || n <= 0 || left == 0))
			break;
	}
	return have;
}

/* Takes the lock, or gives up when the caller's timeout has passed. Another thread may hold the
 * lock for an unlimited time if its call has no timeout. */
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

static void batch_status(struct batch *b, unsigned min, unsigned *nr, struct cuf_io_event *events,
			 int64_t timeout_ns)
{
	uint64_t until = timeout_ns < 0 ? 0 : shim_now_ns() + (uint64_t)timeout_ns, now;

	if (!lock_within(&b->harvest_lock, timeout_ns)) {
		*nr = 0;
		return;
	}
	if (timeout_ns > 0) { /* reduces the timeout by the time that the wait for the lock took */
		now = shim_now_ns();
		timeout_ns = until > now ? (int64_t)(until - now) : 0;
	}
	*nr = events_harvest(b, min, *nr, events, timeout_ns);
	pthread_mutex_unlock(&b->harvest_lock);
}

struct cuf_error cuFileBatchIOGetStatus(void *id, unsigned min_nr, unsigned *nr,
					struct cuf_io_event *events, struct timespec *timeout)
{
	struct batch *b = batch_enter(id);
	int code = 0;

	if (!b)
		return shim_err(CUF_INVALID_VALUE);
	if (!nr || (!events && *nr) || min_nr > *nr)
		code = CUF_INVALID_VALUE;
	else
		batch_status(b, min_nr, nr, events, timeout_read(timeout));
	return call_end(b, SHIM_BATCH_COMPLETE, code);
}

struct cuf_error cuFileBatchIOCancel(void *id)
{
	struct batch *b = batch_enter(id);

	if (!b)
		return shim_err(CUF_INVALID_VALUE);
	batch_cancel(b);
	return call_end(b, SHIM_BATCH_CANCEL, 0);
}

void shim_batch_forked(void)
{
	pthread_mutex_init(&list_lock, NULL);
	pthread_cond_init(&call_left, NULL);
	batches = NULL;
}
