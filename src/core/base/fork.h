/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detects objects, such as queues and devices, that a process has inherited through a fork. An
 * object belongs to the process that opened it. The fork generation is a number that differs
 * between a process and its child. Each object stores the generation of the process that opened it,
 * and every public function compares the stored number with the current one before it uses the
 * object. A source file with a lock registers a hook that makes the lock usable in the child.
 */
#ifndef PST_CORE_FORK_H
#define PST_CORE_FORK_H

#include <stdatomic.h>

#include "core/base/err.h"

/* the fork generation of this process; after each fork the child increments its copy */
extern _Atomic unsigned pst_fork_count;

/* Returns the fork generation of this process. Each object stores this number when it is opened. */
static inline unsigned pst_fork_generation(void)
{
	return atomic_load_explicit(&pst_fork_count, memory_order_relaxed);
}

/* Returns -EOWNERDEAD, and fills `err` with the message that the object belongs to the parent
 * process. */
int pst_fork_refuse(struct pst_err *err);

/* Returns 0 if the object whose stored fork generation is `generation` belongs to this process,
 * else the error of pst_fork_refuse. */
static inline int pst_fork_check(unsigned generation, struct pst_err *err)
{
	return generation == pst_fork_generation() ? 0 : pst_fork_refuse(err);
}

/* Registers `hook`, which then runs in the child of every later fork. A file with a lock calls this
 * in a constructor, so that the hook is registered before any thread can take the lock. */
void pst_fork_hook(void (*hook)(void));

#endif
