/* SPDX-License-Identifier: Apache-2.0 */
/* Implements ends.h. The code of clients, of servers and of connections to a plane (plane_link.c)
 * calls these functions. */
#include "object/ends.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"

int pst_ends_open(struct pst_ends *ends)
{
	ends->first = NULL;
	ends->last = &ends->first;
	ends->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ends->event < 0)
		return -errno;
	pthread_mutex_init(&ends->lock, NULL);
	return 0;
}

void pst_ends_close(struct pst_ends *ends)
{
	while (ends->first) {
		struct pst_end *next = ends->first->next;

		free(ends->first);
		ends->first = next;
	}
	close(ends->event);
	pthread_mutex_destroy(&ends->lock);
}

void pst_ends_put(struct pst_ends *ends, struct pst_end *end)
{
	const uint64_t one = 1;

	end->next = NULL;
	pthread_mutex_lock(&ends->lock);
	/* Writes the eventfd while the lock is held, so that it is readable exactly while the list
	 * has entries. The write cannot fail with EAGAIN, because the eventfd's counter is at most
	 * 1. */
	if (!ends->first && write(ends->event, &one, sizeof(one)) < 0)
		abort();
	*ends->last = end;
	ends->last = &end->next;
	pthread_mutex_unlock(&ends->lock);
}

static struct pst_end *take(struct pst_ends *ends, unsigned max)
{
	struct pst_end *list, **at = &ends->first;
	uint64_t events;

	pthread_mutex_lock(&ends->lock);
	list = max ? ends->first : NULL;
	for (; *at && max; max--)
		at = &(*at)->next;
	if (list) {
		ends->first = *at;
		*at = NULL;
	}
	if (!ends->first) {
		ends->last = &ends->first;
		/* Resets the eventfd, because the list is empty. EAGAIN means that it was not
		 * set. */
		if (read(ends->event, &events, sizeof(events)) < 0)
			events = 0;
	}
	pthread_mutex_unlock(&ends->lock);
	return list;
}

struct pst_end *pst_ends_take(struct pst_ends *ends, unsigned max, int timeout_ms)
{
	uint64_t until = pst_now_ns() / 1000000 + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);

	for (;;) {
		struct pollfd fd = {ends->event, POLLIN, 0};
		struct pst_end *list = take(ends, max);
		uint64_t now = pst_now_ns() / 1000000;

		if (list || !max || !timeout_ms || (timeout_ms > 0 && now >= until))
			return list;
		poll(&fd, 1, timeout_ms < 0 ? -1 : (int)(until - now));
	}
}
