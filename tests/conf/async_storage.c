/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements async_storage.h. Two threads take transfers from one list. A thread first waits a
 * short time, so that more transfers arrive. Then it takes one of the waiting transfers, chosen by
 * random numbers from the seed. A writer changes its own copy of the object. A reader reads the
 * object that was published when the reader was opened.
 */
#include "async_storage.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/api/storage.h"
#include "core/lane/inbox.h"

#define THREADS 2
/* A thread waits until this many transfers are queued, and then starts one of them. */
#define GATHER 4
/* Longest time in ns that a thread waits until GATHER transfers are queued. */
#define GATHER_NS 200000u
#define PATIENCE_S 60
#define BEGUN_MAX 2048

struct async_remote {
	struct async_opts opts;
	pthread_mutex_t lock;
	pthread_cond_t work, arrived;
	pthread_t threads[THREADS];
	struct pst_io *waiting, **waiting_end; /* list of waiting transfers, oldest first */
	struct pst_io *cancelled; /* cancelled transfers that a thread of the store must complete */
	uint64_t random;
	unsigned char *object; /* the published object */
	uint64_t object_len;
	uint64_t begun[BEGUN_MAX]; /* offsets of all transfers, in the order of their submission */
	unsigned begun_count;
	unsigned released;
	bool held, stop;
	struct async_counts counts;
};

/* The private state of one open storage. */
struct object {
	struct async_remote *remote;
	/* For a writer: its own copy of the object, which a commit publishes. For a reader: the
	 * object that was published when the reader opened it. */
	unsigned char *bytes;
	/* exact: length that the writer announced at the open, 0 if it announced none. */
	uint64_t len, exact;
	unsigned drains; /* writes in flight */
	bool aborted;
};

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

/* Decides whether a transfer fails. The decision depends only on the transfer's offset and
 * direction, not on the order of service. */
static bool io_fails(const struct async_remote *remote, const struct pst_io *io)
{
	uint64_t state = (remote->opts.seed ^ (io->off * 2 + io->op) * 0x9e3779b97f4a7c15u) | 1;

	return remote->opts.fail_one_in && !(next_random(&state) % remote->opts.fail_one_in);
}

/* ---- the store's threads ---- */

static struct timespec time_after(clockid_t clock, uint64_t ns)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	ns += (uint64_t)ts.tv_nsec;
	return (struct timespec){.tv_sec = ts.tv_sec + (time_t)(ns / 1000000000u),
				 .tv_nsec = (long)(ns % 1000000000u)};
}

static void transfer_unlist(struct async_remote *remote, struct pst_io **at)
{
	struct pst_io *io = *at;

	*at = io->next;
	if (!io->next)
		remote->waiting_end = at;
	remote->counts.waiting--;
}

/* Removes a waiting transfer from the list and returns it. The choice is random, except while the
 * test holds the transfers back and releases only some: then the transfer with the lowest offset
 * is taken. */
static struct pst_io *transfer_choose(struct async_remote *remote)
{
	struct pst_io **at = &remote->waiting, *io;

	if (remote->held) {
		for (struct pst_io **p = at; *p; p = &(*p)->next)
			if ((*p)->off < (*at)->off)
				at = p;
		remote->released--;
	} else {
		for (uint64_t n = next_random(&remote->random) % remote->counts.waiting; n; n--)
			at = &(*at)->next;
	}
	remote->counts.overtaken += at != &remote->waiting;
	io = *at;
	transfer_unlist(remote, at);
	return io;
}

static int64_t transfer_move(struct async_remote *remote, struct pst_io *io, uint64_t object_len)
{
	struct object *object = io->st->priv;
	bool in = io->op == PST_IO_FILL;
	uint64_t end = in ? object_len : ASYNC_LEN_MAX, off = io->off;
	uint64_t left = off < end ? end - off : 0;
	uint64_t total = left < io->len ? left : io->len;

	if (io->op == PST_IO_SYNC)
		return 0;
	if (io_fails(remote, io))
		return pst_fail_errno(&io->err, EIO, PENSTOCK_WHY_IO_ERROR,
				      "the remote store refused %llu bytes at %llu",
				      (unsigned long long)io->len, (unsigned long long)io->off);
	if (!in && (total < io->len || object->aborted))
		return pst_fail(&io->err, PENSTOCK_WHY_NO_SPACE, "the object ends at %u",
				object->aborted ? 0 : ASYNC_LEN_MAX);
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

static bool remote_idle(const struct async_remote *remote)
{
	return !remote->waiting || (remote->held && !remote->released);
}

static void *serve_transfers(void *arg)
{
	struct async_remote *remote = arg;

	pthread_mutex_lock(&remote->lock);
	while (!remote->stop || remote->cancelled) {
		struct timespec until = time_after(CLOCK_REALTIME, GATHER_NS);
		struct object *object;
		struct pst_io *io;
		uint64_t len;
		int64_t result;

		if (remote->cancelled) {
			io = remote->cancelled;
			remote->cancelled = io->next;
			pthread_mutex_unlock(&remote->lock);
			pst_io_done(io, -ECANCELED);
			pthread_mutex_lock(&remote->lock);
			continue;
		}
		if (remote_idle(remote)) {
			pthread_cond_wait(&remote->work, &remote->lock);
			continue;
		}
		while (remote->counts.waiting < GATHER && !remote->stop && !remote->cancelled)
			if (pthread_cond_timedwait(&remote->work, &remote->lock, &until))
				break;
		if (remote_idle(remote))
			continue;
		io = transfer_choose(remote);
		object = io->st->priv;
		len = object->len;
		pthread_mutex_unlock(&remote->lock);
		result = transfer_move(remote, io, len);
		pthread_mutex_lock(&remote->lock);
		remote->counts.failed += result < 0;
		if (io->op == PST_IO_DRAIN) {
			object->drains--;
			if (result > 0 && io->off + (uint64_t)result > object->len)
				object->len = io->off + (uint64_t)result;
		}
		pthread_mutex_unlock(&remote->lock);
		io->engine = "async";
		/* after this call, the library may reuse `io`, so this thread must not use it */
		pst_io_done(io, result);
		pthread_mutex_lock(&remote->lock);
	}
	pthread_mutex_unlock(&remote->lock);
	return NULL;
}

static int transfer_submit(struct pst_io *io)
{
	struct object *object = io->st->priv;
	struct async_remote *remote = object->remote;

	pthread_mutex_lock(&remote->lock);
	remote->counts.fills += io->op == PST_IO_FILL;
	remote->counts.drains += io->op == PST_IO_DRAIN;
	remote->counts.syncs += io->op == PST_IO_SYNC;
	remote->counts.early_syncs += io->op == PST_IO_SYNC && object->drains;
	object->drains += io->op == PST_IO_DRAIN;
	if (remote->begun_count < BEGUN_MAX)
		remote->begun[remote->begun_count++] = io->off;
	remote->counts.waiting++;
	io->next = NULL;
	*remote->waiting_end = io;
	remote->waiting_end = &io->next;
	pthread_cond_broadcast(&remote->work);
	pthread_cond_broadcast(&remote->arrived);
	pthread_mutex_unlock(&remote->lock);
	return 0;
}

/* ---- the storage ---- */

static int storage_open(struct penstock_storage *st, const char *url, int fd,
			const struct penstock_storage_opts *opts, struct pst_err *err)
{
	struct async_remote *remote = (struct async_remote *)(uintptr_t)strtoull(url, NULL, 16);
	unsigned flags = opts ? opts->flags : 0;
	struct object *object;

	(void)fd;
	if (!remote->object && !(flags & (PENSTOCK_O_CREATE | PENSTOCK_O_REPLACE)))
		return pst_fail(err, PENSTOCK_WHY_NOT_FOUND, "there is no object");
	object = calloc(1, sizeof(*object));
	object->remote = remote;
	object->bytes = calloc(1, ASYNC_LEN_MAX);
	if (remote->object && !(flags & PENSTOCK_O_REPLACE)) {
		memcpy(object->bytes, remote->object, remote->object_len);
		object->len = remote->object_len;
	} else if (opts) {
		object->exact = opts->length;
	}
	st->priv = object;
	st->facts.length = object->len;
	st->facts.writable = flags != 0;
	pst_fail(&st->facts.why_direct, PENSTOCK_WHY_NO_FD, "an object has no descriptor");
	snprintf(st->facts.text, sizeof(st->facts.text), "a remote object");
	pthread_mutex_lock(&remote->lock);
	remote->counts.open++;
	pthread_mutex_unlock(&remote->lock);
	return 0;
}

static void storage_close(struct penstock_storage *st)
{
	struct object *object = st->priv;

	pthread_mutex_lock(&object->remote->lock);
	object->remote->counts.open--;
	pthread_mutex_unlock(&object->remote->lock);
	free(object->bytes);
	free(object);
}

static int storage_commit(struct penstock_storage *st, const struct penstock_end_opts *opts,
			  struct pst_err *err)
{
	struct object *object = st->priv;

	(void)opts;
	if (object->aborted)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "the object was aborted");
	async_publish(object->remote, object->bytes, object->exact ? object->exact : object->len);
	return 0;
}

static int storage_abort(struct penstock_storage *st, const struct penstock_end_opts *opts,
			 struct pst_err *err)
{
	struct object *object = st->priv;

	(void)opts;
	(void)err;
	object->aborted = true;
	return 0;
}

static int storage_length(struct penstock_storage *st, uint64_t *out, struct pst_err *err)
{
	struct object *object = st->priv;

	(void)err;
	pthread_mutex_lock(&object->remote->lock);
	*out = object->len;
	pthread_mutex_unlock(&object->remote->lock);
	return 0;
}

/* Cancels a transfer, or refuses to cancel it. A random number selects how the cancelled transfer
 * completes: by a thread of the store later, or by this function through io->done or
 * pst_io_done. */
static void transfer_cancel(struct pst_io *io)
{
	struct object *object = io->st->priv;
	struct async_remote *remote = object->remote;
	struct pst_io **at = &remote->waiting;
	uint64_t way;

	pthread_mutex_lock(&remote->lock);
	while (*at && *at != io)
		at = &(*at)->next;
	way = next_random(&remote->random) >> 8;
	if (!*at || (remote->opts.refuse_one_in && !(way % remote->opts.refuse_one_in))) {
		remote->counts.refused++;
		pthread_mutex_unlock(&remote->lock);
		return;
	}
	transfer_unlist(remote, at);
	object->drains -= io->op == PST_IO_DRAIN;
	remote->counts.cancelled++;
	way = way >> 32 & 3;
	if (!way) { /* A thread of the store completes the cancelled transfer later. */
		io->next = remote->cancelled;
		remote->cancelled = io;
		pthread_cond_broadcast(&remote->work);
	}
	pthread_mutex_unlock(&remote->lock);
	if (way == 1) { /* The cancelled transfer completes before this function returns. */
		io->result =
			pst_fail(&io->err, PENSTOCK_WHY_CANCELLED, "cancelled by the remote store");
		io->done(io);
	} else if (way) {
		pst_io_done(io, -ECANCELED);
	}
}

/* clang-format off */
#define OPS                                                              \
	.name = "async", .open = storage_open, .close = storage_close,   \
	.fill = transfer_submit, .drain = transfer_submit,               \
	.sync = transfer_submit,                                         \
	.commit = storage_commit, .abort = storage_abort,                \
	.length = storage_length
/* clang-format on */

static const struct pst_storage_ops async_ops = {OPS};
static const struct pst_storage_ops cancelling_ops = {OPS, .cancel = transfer_cancel};

int async_open(struct async_remote *remote, const struct penstock_storage_opts *opts,
	       struct penstock_storage **out)
{
	struct pst_err err;
	char url[32];

	snprintf(url, sizeof(url), "%llx", (unsigned long long)(uintptr_t)remote);
	return pst_storage_open_ops(remote->opts.cancels ? &cancelling_ops : &async_ops, url, -1,
				    opts, out, &err);
}

/* ---- functions that the tests call ---- */

struct async_remote *async_remote_new(const struct async_opts *opts)
{
	struct async_remote *remote = calloc(1, sizeof(*remote));

	remote->opts = *opts;
	remote->random = opts->seed;
	remote->waiting_end = &remote->waiting;
	pthread_mutex_init(&remote->lock, NULL);
	pthread_cond_init(&remote->work, NULL);
	pthread_cond_init(&remote->arrived, NULL);
	for (unsigned i = 0; i < THREADS; i++)
		if (pthread_create(&remote->threads[i], NULL, serve_transfers, remote))
			abort();
	return remote;
}

void async_remote_free(struct async_remote *remote)
{
	if (!remote)
		return;
	pthread_mutex_lock(&remote->lock);
	remote->stop = true;
	pthread_cond_broadcast(&remote->work);
	pthread_mutex_unlock(&remote->lock);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(remote->threads[i], NULL);
	free(remote->object);
	free(remote);
}

const unsigned char *async_published(struct async_remote *remote, uint64_t *len)
{
	*len = remote->object_len;
	return remote->object;
}

void async_publish(struct async_remote *remote, const void *bytes, uint64_t len)
{
	unsigned char *copy = malloc(len ? len : 1);

	memcpy(copy, bytes, len);
	free(remote->object);
	remote->object = copy;
	remote->object_len = len;
}

static void set_held(struct async_remote *remote, bool held, unsigned released)
{
	pthread_mutex_lock(&remote->lock);
	remote->held = held;
	remote->released = released;
	pthread_cond_broadcast(&remote->work);
	pthread_mutex_unlock(&remote->lock);
}

void async_hold(struct async_remote *remote)
{
	pthread_mutex_lock(&remote->lock);
	remote->begun_count = 0;
	pthread_mutex_unlock(&remote->lock);
	set_held(remote, true, 0);
}

void async_release(struct async_remote *remote)
{
	set_held(remote, false, 0);
}

void async_release_some(struct async_remote *remote, unsigned count)
{
	set_held(remote, true, count);
}

int async_await(struct async_remote *remote, unsigned count)
{
	struct timespec until = time_after(CLOCK_REALTIME, PATIENCE_S * 1000000000ull);
	int ret = 0;

	pthread_mutex_lock(&remote->lock);
	while (remote->counts.waiting < count && !ret)
		ret = pthread_cond_timedwait(&remote->arrived, &remote->lock, &until);
	pthread_mutex_unlock(&remote->lock);
	return -ret;
}

unsigned async_begun(struct async_remote *remote, uint64_t *offs, unsigned max)
{
	unsigned count;

	pthread_mutex_lock(&remote->lock);
	count = remote->begun_count < max ? remote->begun_count : max;
	memcpy(offs, remote->begun, count * sizeof(*offs));
	pthread_mutex_unlock(&remote->lock);
	return count;
}

void async_get_counts(struct async_remote *remote, struct async_counts *out)
{
	pthread_mutex_lock(&remote->lock);
	*out = remote->counts;
	pthread_mutex_unlock(&remote->lock);
}
