/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the library begins a thread, wherever it does: with every signal blocked from the
 * first moment on. Signals are the application's threads' business, and one that it has
 * blocked in all of them must not come to its handler on one of ours.
 */
#ifndef PST_COMMON_THREAD_H
#define PST_COMMON_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create with no attributes: 0, or an errno. */
static inline int pst_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
	sigset_t all, were;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &were);
	ret = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &were, NULL);
	return ret;
}

#endif
