/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engine threads: plain pread and pwrite on worker threads, for kernels and
 * containers that refuse io_uring. Workers are made as calls come, up to the
 * depth or WORKERS_MAX. With depth 0 there are none: submit makes the call at once
 * on the thread that is there, and poll hands it back.
 * Lock order: engine->lock alone, never held during a system call on data.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/ops.h"
#include "io/engines.h"
#include "io/now.h"

#define WORKERS_MAX 64 /* of one lane; each is one call in flight */

struct pst_engine {
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct pst_call *head, **tail; /* to do, in order */
	struct pst_call *ended, **ended_tail;
	unsigned queued, idle, workers, inflight, depth;
	bool stop;
	int wake_fd;
	pthread_t threads[WORKERS_MAX];
};

static void wake(int fd)
{
	uint64_t one = 1;

	/* An eventfd's counter cannot overflow here; EAGAIN would mean it is awake. */
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		return;
}

static void put_ended(struct pst_engine *engine, struct pst_call *call)
{
	call->next = NULL;
	*engine->ended_tail = call;
	engine->ended_tail = &call->next;
}

static void *worker(void *arg)
{
	struct pst_engine *engine = arg;

	pthread_mutex_lock(&engine->lock);
	for (;;) {
		struct pst_call *call;
		bool first;

		while (!engine->head && !engine->stop) {
			engine->idle++;
			pthread_cond_wait(&engine->work, &engine->lock);
			engine->idle--;
		}
		if (!engine->head)
			break;
		call = engine->head;
		engine->head = call->next;
		if (!engine->head)
			engine->tail = &engine->head;
		engine->queued--;
		pthread_mutex_unlock(&engine->lock);
		call->result = pst_call_now(call);
		pthread_mutex_lock(&engine->lock);
		first = !engine->ended;
		put_ended(engine, call);
		if (first)
			wake(engine->wake_fd);
	}
	pthread_mutex_unlock(&engine->lock);
	return NULL;
}

static int threads_open(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err)
{
	struct pst_engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an engine");
	pthread_mutex_init(&engine->lock, NULL);
	pthread_cond_init(&engine->work, NULL);
	engine->tail = &engine->head;
	engine->ended_tail = &engine->ended;
	engine->depth = depth;
	engine->wake_fd = wake_fd;
	*out = engine;
	return 0;
}

static void threads_close(struct pst_engine *engine)
{
	if (!engine)
		return;
	pthread_mutex_lock(&engine->lock);
	engine->stop = true;
	pthread_cond_broadcast(&engine->work);
	pthread_mutex_unlock(&engine->lock);
	for (unsigned i = 0; i < engine->workers; i++)
		pthread_join(engine->threads[i], NULL);
	pthread_cond_destroy(&engine->work);
	pthread_mutex_destroy(&engine->lock);
	free(engine);
}

/* One worker more if every one is busy; false: there is none at all. Under the lock. */
static bool grow(struct pst_engine *engine)
{
	if (engine->idle > engine->queued || engine->workers >= engine->depth ||
	    engine->workers >= WORKERS_MAX)
		return true;
	if (!pst_thread_start(&engine->threads[engine->workers], worker, engine))
		engine->workers++;
	return engine->workers > 0;
}

/* Where no worker is, nobody else looks at the list. */
static void at_once(struct pst_engine *engine, struct pst_call *call)
{
	call->result = pst_call_now(call);
	put_ended(engine, call);
	engine->inflight++;
}

static int threads_submit(struct pst_engine *engine, struct pst_call *call)
{
	bool taken;

	call->next = NULL;
	if (!engine->depth) {
		at_once(engine, call);
		return 0;
	}
	if (engine->inflight >= engine->depth)
		return -EAGAIN;
	pthread_mutex_lock(&engine->lock);
	taken = grow(engine);
	if (taken) {
		*engine->tail = call;
		engine->tail = &call->next;
		engine->queued++;
		engine->inflight++;
		pthread_cond_signal(&engine->work);
	}
	pthread_mutex_unlock(&engine->lock);
	if (!taken)
		at_once(engine, call); /* a limit on threads is no reason to wait for ever */
	return 0;
}

static int threads_poll(struct pst_engine *engine)
{
	struct pst_call *list;
	int ended = 0;

	if (!engine->inflight)
		return 0;
	pthread_mutex_lock(&engine->lock);
	list = engine->ended;
	engine->ended = NULL;
	engine->ended_tail = &engine->ended;
	pthread_mutex_unlock(&engine->lock);
	while (list) {
		struct pst_call *call = list;

		list = call->next;
		engine->inflight--;
		ended++;
		call->done(call);
	}
	return ended;
}

static int threads_wait(struct pst_engine *engine, int64_t timeout_us)
{
	struct timespec ts = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
	struct pollfd pfd = {.fd = engine->wake_fd, .events = POLLIN};
	uint64_t value;
	int ended = threads_poll(engine);

	if (ended || engine->wake_fd < 0)
		return ended;
	if (ppoll(&pfd, 1, timeout_us < 0 ? NULL : &ts, NULL) > 0 &&
	    read(engine->wake_fd, &value, sizeof(value)) < 0)
		return 0; /* interrupted: the next wait takes it */
	return threads_poll(engine);
}

const struct pst_engine_ops pst_engine_threads = {
	.name = "threads",
	.open = threads_open,
	.close = threads_close,
	.submit = threads_submit,
	.poll = threads_poll,
	.wait = threads_wait,
};
