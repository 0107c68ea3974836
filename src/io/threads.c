/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine "threads": worker threads make plain pread and pwrite calls. The engine is for kernels
 * and containers that refuse io_uring. `submit` starts workers when calls come in, at most `depth`
 * or WORKERS_MAX, whichever is less. With depth 0 the engine has no workers: `submit` makes the
 * call on the calling thread, and the next `poll` reports its completion.
 *
 * Lock order: no other lock is taken under engine->lock, and it is never held during a system call
 * that moves data.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/ops.h"
#include "io/threads.h"
#include "io/call_now.h"

#define WORKERS_MAX 64 /* Maximum number of workers of one engine; each has one call in flight. */

struct threads_engine {
	pthread_mutex_t lock;
	pthread_cond_t work;
	/* `head`, `tail`: list of calls that no worker has started, oldest first. */
	struct pst_call *head, **tail;
	struct pst_call *completed, **completed_tail;
	unsigned queued, idle, workers, inflight, depth;
	bool stop;
	int wake_fd;
	pthread_t threads[WORKERS_MAX];
};

static struct threads_engine *threads_engine_of(struct pst_engine *handle)
{
	return (struct threads_engine *)handle;
}

static void wake_fd_signal(int fd)
{
	uint64_t one = 1;

	/* The only possible error is EAGAIN: the eventfd's counter is full. Then earlier writes
	 * have already woken the thread that waits for the eventfd. */
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		return;
}

static void completed_append(struct threads_engine *engine, struct pst_call *call)
{
	call->next = NULL;
	*engine->completed_tail = call;
	engine->completed_tail = &call->next;
}

static void *worker_main(void *arg)
{
	struct threads_engine *engine = arg;

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
		first = !engine->completed;
		completed_append(engine, call);
		if (first)
			wake_fd_signal(engine->wake_fd);
	}
	pthread_mutex_unlock(&engine->lock);
	return NULL;
}

static int threads_open(struct pst_engine **out, unsigned depth, int wake_fd, struct pst_err *err)
{
	struct threads_engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an engine");
	pthread_mutex_init(&engine->lock, NULL);
	pthread_cond_init(&engine->work, NULL);
	engine->tail = &engine->head;
	engine->completed_tail = &engine->completed;
	engine->depth = depth;
	engine->wake_fd = wake_fd;
	*out = (struct pst_engine *)engine;
	return 0;
}

static void threads_close(struct pst_engine *handle)
{
	struct threads_engine *engine = threads_engine_of(handle);

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

/* Starts one more worker if all workers are busy. Returns false if there is no worker at all.
 * The caller holds the lock. */
static bool worker_add(struct threads_engine *engine)
{
	if (engine->idle > engine->queued || engine->workers >= engine->depth ||
	    engine->workers >= WORKERS_MAX)
		return true;
	if (!pst_thread_start(&engine->threads[engine->workers], worker_main, engine))
		engine->workers++;
	return engine->workers > 0;
}

/* Makes the call on this thread. It takes no lock, because it is called only if there are no
 * workers. No other thread uses the list `completed` in that case. */
static void call_at_once(struct threads_engine *engine, struct pst_call *call)
{
	call->result = pst_call_now(call);
	completed_append(engine, call);
	engine->inflight++;
}

static int threads_submit(struct pst_engine *handle, struct pst_call *call)
{
	struct threads_engine *engine = threads_engine_of(handle);
	bool accepted;

	call->next = NULL;
	if (!engine->depth) {
		call_at_once(engine, call);
		return 0;
	}
	if (engine->inflight >= engine->depth)
		return -EAGAIN;
	pthread_mutex_lock(&engine->lock);
	accepted = worker_add(engine);
	if (accepted) {
		*engine->tail = call;
		engine->tail = &call->next;
		engine->queued++;
		engine->inflight++;
		pthread_cond_signal(&engine->work);
	}
	pthread_mutex_unlock(&engine->lock);
	if (!accepted)
		/* No worker could be started, for example because the system's limit on threads is
		 * reached. So this thread makes the call; otherwise the call would wait forever. */
		call_at_once(engine, call);
	return 0;
}

static int threads_poll(struct pst_engine *handle)
{
	struct threads_engine *engine = threads_engine_of(handle);
	struct pst_call *list;
	int completed = 0;

	if (!engine->inflight)
		return 0;
	if (engine->workers) /* if there are no workers, only this thread uses the list */
		pthread_mutex_lock(&engine->lock);
	list = engine->completed;
	engine->completed = NULL;
	engine->completed_tail = &engine->completed;
	if (engine->workers)
		pthread_mutex_unlock(&engine->lock);
	while (list) {
		struct pst_call *call = list;

		list = call->next;
		engine->inflight--;
		completed++;
		call->done(call);
	}
	return completed;
}

static void threads_wait(struct pst_engine *handle, int64_t timeout_us)
{
	struct threads_engine *engine = threads_engine_of(handle);
	struct timespec ts = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
	struct pollfd pfd = {.fd = engine->wake_fd, .events = POLLIN};
	uint64_t value;

	if (engine->wake_fd < 0)
		return;
	if (ppoll(&pfd, 1, timeout_us < 0 ? NULL : &ts, NULL) > 0 &&
	    read(engine->wake_fd, &value, sizeof(value)) < 0)
		/* A signal interrupted the read of the eventfd. Its counter stays, and the next
		 * wait reads it. */
		return;
}

const struct pst_engine_ops pst_engine_threads = {
	.name = "threads",
	.open = threads_open,
	.close = threads_close,
	.submit = threads_submit,
	.poll = threads_poll,
	.wait = threads_wait,
};
