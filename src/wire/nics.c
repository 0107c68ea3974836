/* SPDX-License-Identifier: Apache-2.0 */
/* Implements nics.h. */
#include "wire/nics.h"

#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/log.h"

/* Time in nanoseconds for which windows avoid a network card after one of its transfers has failed.
 * They then prefer other cards that have a link. */
#define AVOID_NS 10000000000u
/* Added to the rank of a card that windows avoid, or that has no link, so that it comes after all
 * other cards. */
#define RANK_AVOIDED 1000u
#define RANK_DOWN 2000u

unsigned pst_wire_nic_count(const struct pst_wire_grant *g)
{
	const struct pst_wire_client *c = g->buffer->client;
	unsigned count = 0;

	for (unsigned i = 0; i < c->listener_count; i++)
		count += c->listeners[i].ops == g->listener->ops;
	return count;
}

/* The rank of a network card for a window; lower is better. `total` is `distance` plus RANK_*. */
struct rank {
	unsigned distance, total;
	uint64_t avoid_ns; /* time until which windows avoid the card; 0: they do not */
};

/* Returns whether card `a` comes after card `b`. Of two avoided cards with the same state of the
 * link, the card with the later failure comes after the other, whatever the distances. Otherwise
 * the card with the higher `total` does. So a request that is repeated after a failure gets another
 * card, even if all cards have failed. */
static bool is_worse(const struct rank *a, const struct rank *b)
{
	if (a->avoid_ns && b->avoid_ns && (a->total < RANK_DOWN) == (b->total < RANK_DOWN))
		return a->avoid_ns > b->avoid_ns;
	return a->total > b->total;
}

static struct rank rank_of(struct pst_wire_listener *listener, const struct pst_wire_grant *g)
{
	const struct pst_wire_devices *devices = g->buffer->client->devices;
	struct rank rank = {.avoid_ns = atomic_load(&listener->avoid_ns)};

	if (devices && devices->nic_distance)
		rank.distance = devices->nic_distance(&listener->nic, g->buffer->dev,
						      g->buffer->ptr + g->off);
	rank.total = rank.distance;
	if (rank.avoid_ns > pst_now_ns())
		rank.total += RANK_AVOIDED;
	else
		rank.avoid_ns = 0;
	if (devices && devices->nic_is_up && !devices->nic_is_up(&listener->nic))
		rank.total += RANK_DOWN;
	return rank;
}

/* Sorts the listeners of one transport by rank: `count` listeners from index `first` on. Stores
 * their indexes in `order`. */
static void cards_sort(struct pst_wire_grant *g, unsigned first, unsigned count,
		       unsigned char *order)
{
	struct pst_wire_listener *listeners = g->buffer->client->listeners;
	struct rank ranks[PST_WIRE_NICS_MAX];
	unsigned nearest = 0;

	for (unsigned i = 0; i < count; i++) {
		struct rank rank = rank_of(&listeners[first + i], g);
		unsigned at = i;

		/* The sort is stable: if two cards have the same rank, the first in the caller's
		 * list comes first. */
		for (; at && is_worse(&ranks[at - 1], &rank); at--) {
			ranks[at] = ranks[at - 1];
			order[at] = order[at - 1];
		}
		ranks[at] = rank;
		order[at] = (unsigned char)(first + i);
	}
	for (unsigned i = 1; i < count; i++)
		if (ranks[i].distance < ranks[nearest].distance)
			nearest = i;
	if (nearest)
		snprintf(g->why, sizeof(g->why), "%s is nearer, but %s",
			 listeners[order[nearest]].nic.address,
			 ranks[nearest].total >= RANK_DOWN ? "has no link"
							   : "a transfer has just failed there");
}

unsigned pst_wire_nic_order(struct pst_wire_grant *g, unsigned char order[PST_WIRE_LISTENERS_MAX])
{
	const struct pst_wire_client *c = g->buffer->client;

	g->why[0] = '\0';
	for (unsigned i = 0; i < c->listener_count;) {
		unsigned n = 1;

		while (i + n < c->listener_count && c->listeners[i + n].ops == c->listeners[i].ops)
			n++;
		if (n > 1)
			cards_sort(g, i, n, order + i);
		else
			order[i] = (unsigned char)i;
		i += n;
	}
	return c->listener_count;
}

void pst_wire_nic_failed_bind(struct pst_wire_grant *g, const struct pst_err *err)
{
	if (pst_wire_nic_count(g) > 1)
		snprintf(g->why, sizeof(g->why), "%s: %.*s", g->listener->nic.address,
			 (int)(sizeof(g->why) - sizeof(g->listener->nic.address) - 3), err->text);
}

void pst_wire_nic_judge(struct pst_wire_grant *g, struct penstock_object_verdict *verdict)
{
	size_t len = strlen(verdict->text);

	if ((verdict->next != PENSTOCK_OBJECT_RESEND && verdict->next != PENSTOCK_OBJECT_BODY) ||
	    verdict->remember || pst_wire_nic_count(g) < 2)
		return;
	atomic_store(&g->listener->avoid_ns, pst_now_ns() + AVOID_NS);
	snprintf(verdict->text + len, sizeof(verdict->text) - len,
		 "; the next windows prefer other cards than that of %s", g->listener->nic.address);
	pst_log(PST_LOG_INFO, "object", "%s", verdict->text);
}
