/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock-free stack. Any thread may push an element. One thread takes all elements at once,
 * which avoids the ABA problem. The stack is an _Atomic pointer to its first element, and each
 * element has a member that points to the next element. These are macros because the elements of
 * different stacks have different types.
 */
#ifndef PST_CORE_LIFO_H
#define PST_CORE_LIFO_H

#include <stdatomic.h>
#include <stddef.h>

/* Pushes `node`. The thread that takes the stack may take and even free `node` before the macro
 * ends. `order` is the memory order of the push: release, or seq_cst if the pushing thread then
 * reads a flag of the taking thread. */
#define PST_LIFO_PUSH(head, node, link, order)                                                  \
	do {                                                                                    \
		(node)->link = atomic_load_explicit(head, memory_order_relaxed);                \
		while (!atomic_compare_exchange_weak_explicit(head, &(node)->link, node, order, \
							      memory_order_relaxed))            \
			;                                                                       \
	} while (0)

static inline int pst_lifo_is_empty_(const void *first)
{
	return !first;
}

/* True if the stack is empty. Other threads may push a node at any time. */
#define PST_LIFO_EMPTY(head) pst_lifo_is_empty_(atomic_load_explicit(head, memory_order_relaxed))

/* Takes all nodes and makes `out` a list of them, the oldest node first. */
#define PST_LIFO_TAKE(head, out, link)                                              \
	do {                                                                        \
		__typeof__(out) lifo_at_ =                                          \
			atomic_exchange_explicit(head, NULL, memory_order_acquire); \
		(out) = NULL;                                                       \
		while (lifo_at_) {                                                  \
			__typeof__(out) lifo_next_ = lifo_at_->link;                \
		\
			lifo_at_->link = (out);                                     \
			(out) = lifo_at_;                                           \
			lifo_at_ = lifo_next_;                                      \
		}                                                                   \
	} while (0)

#endif
