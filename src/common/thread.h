/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a thread of the library: with every signal blocked from its first instruction, and
 * with a stack size that the library chooses. Every part of the library starts its threads
 * here.
 *
 * Signals belong to the application's threads. A signal that the application has blocked in all
 * of its threads must not run its handler on a thread of the library.
 *
 * The default stack size is the application's stack limit. That may be 8 MiB, all of it pinned
 * if the application locks its memory (mlockall), or so small that a thread overflows it.
 */
#ifndef PST_COMMON_THREAD_H
#define PST_COMMON_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>

/* The library's own code needs about 30 KiB of stack. A driver or a vendor's library may need
 * any amount up to the usual sizes. Below 2 MiB the kernel cannot back a stack by one huge
 * page. */
#define PST_THREAD_STACK (1u << 20)

/* Starts a thread as pthread_create does. Returns 0 or a positive errno. */
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
	/* Static TLS of all libraries is part of the stack and may exceed it: use the default
	 * size. */
	if (ret == EINVAL)
		ret = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &were, NULL);
	pthread_attr_destroy(&attr);
	return ret;
}

#endif
