/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the library begins a thread, wherever it does: with every signal blocked from the
 * first moment on, and with a stack of its own choice. Signals are the application's threads'
 * business, and one that it has blocked in all of them must not come to its handler on one of
 * ours. Stacks would be as large as the application's limit has it: 8 MiB, all of which is
 * pinned where it locks its memory, or so little that a thread dies of it.
 */
#ifndef PST_COMMON_THREAD_H
#define PST_COMMON_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>

/* What runs on them takes some 30 KiB, and a driver or a vendor's library, which know no
 * smaller ones than are usual, what it likes. Below 2 MiB no stack becomes one huge page. */
#define PST_THREAD_STACK (1u << 20)

/* As pthread_create: 0, or an errno. */
static inline int pst_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
	pthread_attr_t attr;
	sigset_t all, were;
	int ret = pthread_attr_init(&attr);

	if (ret)
		return ret;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &were);
	ret = pthread_attr_setstacksize(&attr, PST_THREAD_STACK);
	if (!ret)
		ret = pthread_create(thread, &attr, run, arg);
	if (ret == EINVAL) /* what all libraries keep for each thread lies in it, and is more */
		ret = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &were, NULL);
	pthread_attr_destroy(&attr);
	return ret;
}

#endif
