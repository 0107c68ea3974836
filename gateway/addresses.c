/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the table of client addresses, see addresses.h. It is a hash table with linear
 * probing. At least half of its places are free. */
#include "addresses.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A place of the table. It is free if `count` is 0. */
struct place {
	struct in6_addr ip;
	unsigned count;
};

struct gw_addresses {
	pthread_mutex_t lock; /* protects `used` and the places */
	unsigned each_max, used_max, used;
	size_t mask;   /* number of places - 1 */
	uint64_t seed; /* random number, so that clients cannot choose addresses that collide */
	struct place places[];
};

struct gw_addresses *gw_addresses_open(unsigned connections_max, unsigned each_max)
{
	struct gw_addresses *addresses;
	size_t count = 2;

	while (count < (size_t)connections_max * 2)
		count *= 2;
	addresses = calloc(1, sizeof(*addresses) + count * sizeof(addresses->places[0]));
	if (!addresses)
		return NULL;
	pthread_mutex_init(&addresses->lock, NULL);
	addresses->each_max = each_max;
	addresses->used_max = connections_max;
	addresses->mask = count - 1;
	/* Without random bytes, a client can only make its own connections slower. */
	if (getrandom(&addresses->seed, sizeof(addresses->seed), GRND_NONBLOCK) < 0)
		addresses->seed = (uintptr_t)addresses;
	return addresses;
}

void gw_addresses_close(struct gw_addresses *addresses)
{
	if (!addresses)
		return;
	pthread_mutex_destroy(&addresses->lock);
	free(addresses);
}

struct in6_addr gw_address_of(const struct sockaddr *address)
{
	struct in6_addr ip = {0};

	if (address->sa_family == AF_INET6)
		return ((const struct sockaddr_in6 *)address)->sin6_addr;
	if (address->sa_family == AF_INET) {
		ip.s6_addr[10] = ip.s6_addr[11] = 0xff;
		memcpy(&ip.s6_addr[12], &((const struct sockaddr_in *)address)->sin_addr, 4);
	}
	return ip;
}

/* Returns the index of the place at which the search for an address begins. */
static size_t home_of(const struct gw_addresses *addresses, const struct in6_addr *ip)
{
	const uint64_t factor = UINT64_C(0x9e3779b97f4a7c15); /* 2^64 / golden ratio, odd */
	uint64_t halves[2], hash = addresses->seed;

	memcpy(halves, ip, sizeof(halves));
	for (unsigned i = 0; i < 2; i++) {
		hash = (hash ^ halves[i]) * factor;
		hash ^= hash >> 32;
	}
	return (hash * factor >> 32) & addresses->mask;
}

/* Returns the place of an address, or the free place where it belongs. */
static struct place *place_find(struct gw_addresses *addresses, const struct in6_addr *ip)
{
	size_t at = home_of(addresses, ip);

	while (addresses->places[at].count &&
	       memcmp(&addresses->places[at].ip, ip, sizeof(*ip)) != 0)
		at = (at + 1) & addresses->mask;
	return &addresses->places[at];
}

/* Frees a place. Moves later addresses so that no search for them ends at a free place. */
static void place_free(struct gw_addresses *addresses, struct place *place)
{
	size_t hole = (size_t)(place - addresses->places), at = hole, mask = addresses->mask;

	for (;;) {
		size_t home;

		at = (at + 1) & mask;
		if (!addresses->places[at].count)
			break;
		home = home_of(addresses, &addresses->places[at].ip);
		/* The address may move to the hole if the hole is not before its home. */
		if (((at - home) & mask) >= ((at - hole) & mask)) {
			addresses->places[hole] = addresses->places[at];
			hole = at;
		}
	}
	addresses->places[hole].count = 0;
	addresses->used--;
}

bool gw_addresses_enter(struct gw_addresses *addresses, const struct in6_addr *ip)
{
	struct place *place;
	bool entered;

	if (!addresses)
		return true;
	pthread_mutex_lock(&addresses->lock);
	place = place_find(addresses, ip);
	if (place->count) {
		entered = place->count < addresses->each_max;
	} else {
		entered = addresses->used < addresses->used_max;
		place->ip = *ip;
		addresses->used += entered;
	}
	place->count += entered;
	pthread_mutex_unlock(&addresses->lock);
	return entered;
}

void gw_addresses_leave(struct gw_addresses *addresses, const struct in6_addr *ip)
{
	struct place *place;

	if (!addresses)
		return;
	pthread_mutex_lock(&addresses->lock);
	place = place_find(addresses, ip);
	if (place->count == 1)
		place_free(addresses, place);
	else if (place->count)
		place->count--;
	pthread_mutex_unlock(&addresses->lock);
}
