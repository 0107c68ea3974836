/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks: an object belongs to the process that opened it. Each object stores the fork
 * generation of its process, and a public call compares it before it touches the object.
 * A file with a lock registers a hook that makes the lock usable in the child.
 */
#ifndef PST_CORE_FORK_H
#define PST_CORE_FORK_H

#include <stdatomic.h>

#include "core/base/err.h"

extern _Atomic unsigned pst_fork_count; /* raised in the child of each fork */

/* The generation that an object opened in this process stores. */
static inline unsigned pst_fork_generation(void)
{
	return atomic_load_explicit(&pst_fork_count, memory_order_relaxed);
}

/* Fills `err` and returns -EOWNERDEAD: the object belongs to the parent process. */
int pst_fork_refuse(struct pst_err *err);

/* Returns 0 for an object of this process, else what pst_fork_refuse returns. */
static inline int pst_fork_check(unsigned generation, struct pst_err *err)
{
	return generation == pst_fork_generation() ? 0 : pst_fork_refuse(err);
}

/* Runs `hook` in the child of every later fork. A file with a lock calls it in a constructor, so
 * that the hook is registered before any thread can take the lock. */
void pst_fork_hook(void (*hook)(void));

#endif
