/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a thread of the library, with every signal blocked from its first instruction, and with
 * a stack size that the library chooses. Every part of the library starts its threads with
 * pst_thread_start, and initialises the condition variables of its timed waits with pst_cond_init.
 *
 * Signals are for the application's threads. A signal that the application has blocked in all of
 * its threads must not run its handler on a thread of the library.
 *
 * By default a thread's stack is as large as the application's stack limit. That limit may be 8
 * MiB, all of which is pinned if the application locks its memory (mlockall). It may also be so
 * small that a thread overflows its stack.
 */
#ifndef PST_COMMON_THREAD_H
#define PST_COMMON_THREAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

/* Stack size of a thread. The library's own code needs about 30 KiB of it; a driver or a
 * vendor's library that it calls may need much more. The stack is smaller than 2 MiB so that
 * the kernel cannot back it with a huge page, which would use more memory. */
#define PST_THREAD_STACK (1u << 20)

/* Initialises a condition variable whose timed waits use CLOCK_MONOTONIC. */
static inline void pst_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

/* Starts a thread that calls run(arg). Returns 0 or a positive errno, as pthread_create does. */
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
	/* glibc places the static TLS of all libraries in the stack. EINVAL means that this TLS
	 * does not fit, so use the default stack size. */
	if (ret == EINVAL)
		ret = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &were, NULL);
	pthread_attr_destroy(&attr);
	return ret;
}

#endif
