/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts forks, and runs registered functions (hooks) in the child of each fork: see fork.h. Every
 * other file of core may call this one. It must never allocate memory: another thread of the parent
 * may have held the allocator's lock during the fork, and no thread of the child releases that
 * lock.
 */
#include "core/base/fork.h"

#include <pthread.h>
#include <stdlib.h>

#define HOOKS_MAX 16

_Atomic unsigned pst_fork_count = 1;

typedef void fork_hook_fn(void);
static _Atomic(fork_hook_fn *) hooks[HOOKS_MAX];
static _Atomic unsigned hook_count;

static void fork_in_child(void)
{
	unsigned count = atomic_load(&hook_count);

	/* Increment the fork generation, so that the child's public functions refuse objects that
	 * the parent has opened. Their worker threads do not run in the child. */
	atomic_fetch_add(&pst_fork_count, 1);
	for (unsigned i = 0; i < count && i < HOOKS_MAX; i++) {
		fork_hook_fn *hook = atomic_load(&hooks[i]);

		/* The entry is NULL if another thread was between incrementing hook_count and
		 * storing its hook when the process forked. Then no thread has taken the hook's
		 * lock yet. */
		if (hook)
			hook();
	}
}

__attribute__((constructor)) static void fork_watch(void)
{
	pthread_atfork(NULL, NULL, fork_in_child);
}

void pst_fork_hook(void (*hook)(void))
{
	unsigned at = atomic_fetch_add(&hook_count, 1);

	if (at >= HOOKS_MAX)
		abort(); /* a programming error: the code has more than HOOKS_MAX hooks */
	atomic_store(&hooks[at], hook);
}

int pst_fork_refuse(struct pst_err *err)
{
	return pst_fail_errno(err, EOWNERDEAD, PENSTOCK_WHY_BAD_ARGUMENT,
			      "opened before a fork: the child must open its own");
}
