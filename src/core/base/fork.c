/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fork generation and the hooks that run in the child: see fork.h. Every other file of
 * core may call this one; it must never allocate, because a child may have forked while
 * another thread held the allocator's lock.
 */
#include "core/base/fork.h"

#include <assert.h>
#include <pthread.h>

#define HOOKS_MAX 16

_Atomic unsigned pst_fork_count = 1;

static void (*hooks[HOOKS_MAX])(void);
static _Atomic unsigned hook_count;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void fork_in_child(void)
{
	unsigned count = atomic_load(&hook_count);

	/* The child starts over: the parent's lanes do not run here. */
	atomic_fetch_add(&pst_fork_count, 1);
	for (unsigned i = 0; i < count; i++)
		hooks[i]();
}

static void fork_watch_once(void)
{
	pthread_atfork(NULL, NULL, fork_in_child);
}

void pst_fork_watch(void)
{
	pthread_once(&watch_once, fork_watch_once);
}

void pst_fork_hook(void (*hook)(void))
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	unsigned at;

	pst_fork_watch();
	pthread_mutex_lock(&lock);
	at = atomic_load(&hook_count);
	assert(at < HOOKS_MAX);
	hooks[at] = hook;
	atomic_store(&hook_count, at + 1);
	pthread_mutex_unlock(&lock);
}

int pst_fork_refuse(struct pst_err *err)
{
	return pst_fail_errno(err, EOWNERDEAD, PENSTOCK_WHY_BAD_ARGUMENT,
			      "opened before a fork: the child must open its own");
}
