/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock-free stack that any thread pushes onto and one thread takes whole. It is an _Atomic
 * pointer to its first element, and each element has a link member of the same pointer type,
 * so these are macros. Taking the whole stack at once avoids the ABA problem.
 */
#ifndef PST_CORE_LIFO_H
#define PST_CORE_LIFO_H

#include <stdatomic.h>
#include <stddef.h>

/* Pushes `node`. A pushed node may be taken, and gone, before this returns. `order` is the
 * memory order of the push: release, or seq_cst if the pusher then reads a flag of the taker. */
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

/* Whether the stack is empty; other threads may push meanwhile. */
#define PST_LIFO_EMPTY(head) pst_lifo_is_empty_(atomic_load_explicit(head, memory_order_relaxed))

/* Takes all nodes. `out` becomes a list of them, the oldest first. */
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
