/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts the connections of each client address, and limits them. Called by http.c for each
 * connection. All HTTP servers with one listening socket share one table. The table has no more
 * entries than there are connections, and allocates its memory when it is opened. All functions may
 * be called by several threads.
 */
#ifndef GW_ADDRESSES_H
#define GW_ADDRESSES_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

struct gw_addresses;

/* Opens a table for at most `connections_max` connections, and `each_max` of one address. Returns
 * NULL if there is no memory. */
struct gw_addresses *gw_addresses_open(unsigned connections_max, unsigned each_max);
/* NULL is allowed. */
void gw_addresses_close(struct gw_addresses *addresses);

/* Returns the address as an IPv6 address. An IPv4 address becomes an IPv4-mapped one. */
struct in6_addr gw_address_of(const struct sockaddr *address);
/* Counts a connection. Returns false if the address has `each_max` connections, or if the table has
 * no room for another address; then the function has counted nothing. If `addresses` is NULL,
 * returns true. */
bool gw_addresses_enter(struct gw_addresses *addresses, const struct in6_addr *ip);
/* Uncounts a connection that gw_addresses_enter has counted. If `addresses` is NULL, does
 * nothing. */
void gw_addresses_leave(struct gw_addresses *addresses, const struct in6_addr *ip);

#endif
