/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See async_storage.h. Two threads take transfers out of one list, any of them
 * by seed, after a moment in which others may join it. A writer has a staged object
 * of its own; a reader keeps what was published when it opened.
 */
#include "async_storage.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/objects.h"

#define THREADS 2
#define GATHER 4	  /* transfers to choose among */
#define GATHER_NS 200000u /* how long to wait for so many; order only hangs on it */
#define PATIENCE_S 60
#define LOG 2048

struct async_far {
	struct async_opts opts;
	pthread_mutex_t lock;
	pthread_cond_t work, arrived;
	pthread_t threads[THREADS];
	struct pst_io *waiting, **waiting_end; /* oldest first */
	struct pst_io *cancelled;	       /* to be ended by a thread of ours */
	uint64_t random;
	unsigned char *object; /* published */
	uint64_t object_len;
	uint64_t begun[LOG]; /* offsets, as they came */
	unsigned begun_count;
	unsigned let;
	bool held, stop;
	struct async_seen seen;
};

/* One open storage. */
struct object {
	struct async_far *far;
	unsigned char *bytes; /* staged, or the reader's snapshot */
	uint64_t len, exact;  /* exact: the committed length, 0: as written */
	unsigned drains;      /* under way */
	bool aborted;
};

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

/* The same for an offset and direction whatever the order. */
static bool fails(const struct async_far *far, const struct pst_io *io)
{
	uint64_t state = (far->opts.seed ^ (io->off * 2 + io->op) * 0x9e3779b97f4a7c15u) | 1;

	return far->opts.fail_one_in && !(next_random(&state) % far->opts.fail_one_in);
}

/* ---- the far side's threads ---- */

static struct timespec in_ns(clockid_t clock, uint64_t ns)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	ns += (uint64_t)ts.tv_nsec;
	return (struct timespec){.tv_sec = ts.tv_sec + (time_t)(ns / 1000000000u),
				 .tv_nsec = (long)(ns % 1000000000u)};
}

static void unlist(struct async_far *far, struct pst_io **at)
{
	struct pst_io *io = *at;

	*at = io->next;
	if (!io->next)
		far->waiting_end = at;
	far->seen.waiting--;
}

/* Any of those that wait, or the lowest offset while they are let go one by one. */
static struct pst_io *take(struct async_far *far)
{
	struct pst_io **at = &far->waiting, *io;

	if (far->held) {
		for (struct pst_io **p = at; *p; p = &(*p)->next)
			if ((*p)->off < (*at)->off)
				at = p;
		far->let--;
	} else {
		for (uint64_t n = next_random(&far->random) % far->seen.waiting; n; n--)
			at = &(*at)->next;
	}
	far->seen.overtaken += at != &far->waiting;
	io = *at;
	unlist(far, at);
	return io;
}

static int64_t move(struct async_far *far, struct pst_io *io, uint64_t object_len)
{
	struct object *object = io->st->priv;
	bool in = io->op == PST_IO_FILL;
	uint64_t end = in ? object_len : ASYNC_ROOM, off = io->off;
	uint64_t left = off < end ? end - off : 0;
	uint64_t total = left < io->len ? left : io->len;

	if (io->op == PST_IO_SYNC)
		return 0;
	if (fails(far, io))
		return pst_fail_errno(&io->err, EIO, PENSTOCK_WHY_IO_ERROR,
				      "the far side refused %llu bytes at %llu",
				      (unsigned long long)io->len, (unsigned long long)io->off);
	if (!in && (total < io->len || object->aborted))
		return pst_fail(&io->err, PENSTOCK_WHY_NO_SPACE, "the object ends at %u",
				object->aborted ? 0 : ASYNC_ROOM);
	left = total;
	for (unsigned i = 0; i < io->iov_count && left; i++) {
		uint64_t n = io->iov[i].iov_len < left ? io->iov[i].iov_len : left;

		if (in)
			memcpy(io->iov[i].iov_base, object->bytes + off, n);
		else
			memcpy(object->bytes + off, io->iov[i].iov_base, n);
		off += n;
		left -= n;
	}
	return (int64_t)total;
}

static bool idle(const struct async_far *far)
{
	return !far->waiting || (far->held && !far->let);
}

static void *serve(void *arg)
{
	struct async_far *far = arg;

	pthread_mutex_lock(&far->lock);
	while (!far->stop || far->cancelled) {
		struct timespec until = in_ns(CLOCK_REALTIME, GATHER_NS);
		struct object *object;
		struct pst_io *io;
		uint64_t len;
		int64_t result;

		if (far->cancelled) {
			io = far->cancelled;
			far->cancelled = io->next;
			pthread_mutex_unlock(&far->lock);
			pst_io_done(io, -ECANCELED);
			pthread_mutex_lock(&far->lock);
			continue;
		}
		if (idle(far)) {
			pthread_cond_wait(&far->work, &far->lock);
			continue;
		}
		while (far->seen.waiting < GATHER && !far->stop && !far->cancelled)
			if (pthread_cond_timedwait(&far->work, &far->lock, &until))
				break;
		if (idle(far))
			continue;
		io = take(far);
		object = io->st->priv;
		len = object->len;
		pthread_mutex_unlock(&far->lock);
		result = move(far, io, len);
		pthread_mutex_lock(&far->lock);
		far->seen.failed += result < 0;
		if (io->op == PST_IO_DRAIN) {
			object->drains--;
			if (result > 0 && io->off + (uint64_t)result > object->len)
				object->len = io->off + (uint64_t)result;
		}
		pthread_mutex_unlock(&far->lock);
		io->engine = "async";
		pst_io_done(io, result); /* the last use */
		pthread_mutex_lock(&far->lock);
	}
	pthread_mutex_unlock(&far->lock);
	return NULL;
}

static int begin(struct pst_io *io)
{
	struct object *object = io->st->priv;
	struct async_far *far = object->far;

	pthread_mutex_lock(&far->lock);
	far->seen.fills += io->op == PST_IO_FILL;
	far->seen.drains += io->op == PST_IO_DRAIN;
	far->seen.syncs += io->op == PST_IO_SYNC;
	far->seen.early_syncs += io->op == PST_IO_SYNC && object->drains;
	object->drains += io->op == PST_IO_DRAIN;
	if (far->begun_count < LOG)
		far->begun[far->begun_count++] = io->off;
	far->seen.waiting++;
	io->next = NULL;
	*far->waiting_end = io;
	far->waiting_end = &io->next;
	pthread_cond_broadcast(&far->work);
	pthread_cond_broadcast(&far->arrived);
	pthread_mutex_unlock(&far->lock);
	return 0;
}

/* ---- the storage ---- */

static int storage_open(struct penstock_storage *st, const char *url, int fd,
			const struct penstock_storage_opts *opts, struct pst_err *err)
{
	struct async_far *far = (struct async_far *)(uintptr_t)strtoull(url, NULL, 16);
	unsigned flags = opts ? opts->flags : 0;
	struct object *object;

	(void)fd;
	if (!far->object && !(flags & (PENSTOCK_O_CREATE | PENSTOCK_O_REPLACE)))
		return pst_fail(err, PENSTOCK_WHY_NOT_FOUND, "there is no object");
	object = calloc(1, sizeof(*object));
	object->far = far;
	object->bytes = calloc(1, ASYNC_ROOM);
	if (far->object && !(flags & PENSTOCK_O_REPLACE)) {
		memcpy(object->bytes, far->object, far->object_len);
		object->len = far->object_len;
	} else if (opts) {
		object->exact = opts->length;
	}
	st->priv = object;
	st->facts.length = object->len;
	st->facts.writable = flags != 0;
	pst_fail(&st->facts.why_direct, PENSTOCK_WHY_NO_FD, "an object has no descriptor");
	snprintf(st->facts.text, sizeof(st->facts.text), "an object far away");
	pthread_mutex_lock(&far->lock);
	far->seen.open++;
	pthread_mutex_unlock(&far->lock);
	return 0;
}

static void storage_close(struct penstock_storage *st)
{
	struct object *object = st->priv;

	pthread_mutex_lock(&object->far->lock);
	object->far->seen.open--;
	pthread_mutex_unlock(&object->far->lock);
	free(object->bytes);
	free(object);
}

static int storage_commit(struct penstock_storage *st, bool durable, struct pst_err *err)
{
	struct object *object = st->priv;

	(void)durable;
	if (object->aborted)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "it was given up");
	async_publish(object->far, object->bytes, object->exact ? object->exact : object->len);
	return 0;
}

static int storage_abort(struct penstock_storage *st, struct pst_err *err)
{
	struct object *object = st->priv;

	(void)err;
	object->aborted = true;
	return 0;
}

static int storage_length(struct penstock_storage *st, uint64_t *out, struct pst_err *err)
{
	struct object *object = st->priv;

	(void)err;
	pthread_mutex_lock(&object->far->lock);
	*out = object->len;
	pthread_mutex_unlock(&object->far->lock);
	return 0;
}

/* Ends it in one of the ways that a storage may, or not at all. */
static void cancel(struct pst_io *io)
{
	struct object *object = io->st->priv;
	struct async_far *far = object->far;
	struct pst_io **at = &far->waiting;
	uint64_t way;

	pthread_mutex_lock(&far->lock);
	while (*at && *at != io)
		at = &(*at)->next;
	way = next_random(&far->random) >> 8;
	if (!*at || (far->opts.refuse_one_in && !(way % far->opts.refuse_one_in))) {
		far->seen.refused++;
		pthread_mutex_unlock(&far->lock);
		return;
	}
	unlist(far, at);
	object->drains -= io->op == PST_IO_DRAIN;
	far->seen.cancelled++;
	way = way >> 32 & 3;
	if (!way) { /* on another thread */
		io->next = far->cancelled;
		far->cancelled = io;
		pthread_cond_broadcast(&far->work);
	}
	pthread_mutex_unlock(&far->lock);
	if (way == 1) { /* before it returns */
		io->result = pst_fail(&io->err, PENSTOCK_WHY_CANCELLED, "cancelled far away");
		io->done(io);
	} else if (way) {
		pst_io_done(io, -ECANCELED);
	}
}

/* clang-format off */
#define OPS                                                              \
	.name = "async", .open = storage_open, .close = storage_close,   \
	.fill = begin, .drain = begin, .sync = begin,                    \
	.commit = storage_commit, .abort = storage_abort,                \
	.length = storage_length
/* clang-format on */

static const struct pst_storage_ops async_ops = {OPS};
static const struct pst_storage_ops cancelling_ops = {OPS, .cancel = cancel};

int async_open(struct async_far *far, const struct penstock_storage_opts *opts,
	       struct penstock_storage **out)
{
	struct pst_err err;
	char url[32];

	snprintf(url, sizeof(url), "%llx", (unsigned long long)(uintptr_t)far);
	return pst_storage_open_ops(far->opts.cancels ? &cancelling_ops : &async_ops, url, -1, opts,
				    out, &err);
}

/* ---- what tests do with the far side ---- */

struct async_far *async_far_new(const struct async_opts *opts)
{
	struct async_far *far = calloc(1, sizeof(*far));

	far->opts = *opts;
	far->random = opts->seed;
	far->waiting_end = &far->waiting;
	pthread_mutex_init(&far->lock, NULL);
	pthread_cond_init(&far->work, NULL);
	pthread_cond_init(&far->arrived, NULL);
	for (unsigned i = 0; i < THREADS; i++)
		if (pthread_create(&far->threads[i], NULL, serve, far))
			abort();
	return far;
}

void async_far_free(struct async_far *far)
{
	if (!far)
		return;
	pthread_mutex_lock(&far->lock);
	far->stop = true;
	pthread_cond_broadcast(&far->work);
	pthread_mutex_unlock(&far->lock);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(far->threads[i], NULL);
	free(far->object);
	free(far);
}

const unsigned char *async_published(struct async_far *far, uint64_t *len)
{
	*len = far->object_len;
	return far->object;
}

void async_publish(struct async_far *far, const void *bytes, uint64_t len)
{
	unsigned char *copy = malloc(len ? len : 1);

	memcpy(copy, bytes, len);
	free(far->object);
	far->object = copy;
	far->object_len = len;
}

static void set_held(struct async_far *far, bool held, unsigned let)
{
	pthread_mutex_lock(&far->lock);
	far->held = held;
	far->let = let;
	pthread_cond_broadcast(&far->work);
	pthread_mutex_unlock(&far->lock);
}

void async_hold(struct async_far *far)
{
	pthread_mutex_lock(&far->lock);
	far->begun_count = 0;
	pthread_mutex_unlock(&far->lock);
	set_held(far, true, 0);
}

void async_release(struct async_far *far)
{
	set_held(far, false, 0);
}

void async_let(struct async_far *far, unsigned count)
{
	set_held(far, true, count);
}

int async_await(struct async_far *far, unsigned count)
{
	struct timespec until = in_ns(CLOCK_REALTIME, PATIENCE_S * 1000000000ull);
	int ret = 0;

	pthread_mutex_lock(&far->lock);
	while (far->seen.waiting < count && !ret)
		ret = pthread_cond_timedwait(&far->arrived, &far->lock, &until);
	pthread_mutex_unlock(&far->lock);
	return -ret;
}

unsigned async_begun(struct async_far *far, uint64_t *offs, unsigned max)
{
	unsigned count;

	pthread_mutex_lock(&far->lock);
	count = far->begun_count < max ? far->begun_count : max;
	memcpy(offs, far->begun, count * sizeof(*offs));
	pthread_mutex_unlock(&far->lock);
	return count;
}

void async_seen(struct async_far *far, struct async_seen *out)
{
	pthread_mutex_lock(&far->lock);
	*out = far->seen;
	pthread_mutex_unlock(&far->lock);
}
