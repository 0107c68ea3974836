/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One endpoint of libfabric for one-sided transfers (the other side's CPU takes no part), with the
 * libfabric objects that it needs. Only ofi.c calls libfabric, for ofi1_client.c and ofi1_server.c.
 * libfabric is loaded when the first endpoint is opened. One thread at a time may use an object of
 * this file. Bytes move only while a thread is in pst_ofi_progress or pst_ofi_start.
 */
#ifndef PST_WIRE_OFI_H
#define PST_WIRE_OFI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"
#include "penstock.h"
#include "s3/token.h"

/* The libfabric provider and the address with which an endpoint is opened. */
struct pst_ofi_place {
	const char *provider; /* name of a provider, such as "tcp;ofi_rxm" */
	const char *address;  /* numeric address of this host */
	bool v6;	      /* whether it is an IPv6 address */
};

/* A transfer in flight. libfabric uses `space` until the transfer is done. */
struct pst_ofi_op {
	void *space[8];
	bool done;
};

struct pst_ofi;
struct pst_ofi_memory; /* a registration of memory that other hosts may access */

/* The properties of a provider of libfabric. */
struct pst_ofi_provider {
	const char *name;
	/* whether the endpoint listens for TCP connections at its address */
	bool tcp;
	/* Whether the network card checks each access. After pst_ofi_unregister, no byte then moves
	 * from or to the memory, provided that libfabric does not keep the registration. */
	bool card;
};

/* Returns what is known about a provider, or NULL if this file cannot use it: the name of an
 * endpoint must be a socket address, and an access with a wrong key must fail. */
const struct pst_ofi_provider *pst_ofi_known(const char *provider);
/* Loads libfabric. */
int pst_ofi_load(struct pst_err *err);

/* Opens all objects of libfabric that an endpoint needs, but not the endpoint itself. */
int pst_ofi_open(const struct pst_ofi_place *place, struct pst_ofi **out, struct pst_err *err);
/* Closes all objects of *ofi. All registrations of memory must have ended. NULL is allowed. */
void pst_ofi_close(struct pst_ofi *ofi);
int pst_ofi_endpoint_open(struct pst_ofi *ofi, struct pst_err *err);
/* Closes the endpoint and its connections. No byte moves afterwards, until another endpoint is
 * opened. */
int pst_ofi_endpoint_close(struct pst_ofi *ofi, struct pst_err *err);
bool pst_ofi_has_endpoint(const struct pst_ofi *ofi);
/* Returns a descriptor that is readable when pst_ofi_progress can move bytes or complete transfers;
 * -1 if the provider has none. */
int pst_ofi_fd(const struct pst_ofi *ofi);
/* Continues the transfers that this host has started, and those of other hosts to its memory. */
int pst_ofi_progress(struct pst_ofi *ofi, struct pst_err *err);
/* Returns whether the caller may wait for the descriptor. If not, the caller must call
 * pst_ofi_progress first. */
bool pst_ofi_may_wait(struct pst_ofi *ofi);

/* ---- for a client ---- */

/* Stores the endpoint's name in `out`. It is a socket address, which a token passes to servers. */
int pst_ofi_name(struct pst_ofi *ofi, unsigned char out[PST_TOKEN_NAME_MAX], size_t *len,
		 struct pst_err *err);
/* Permits other hosts to write the memory (PENSTOCK_READ: a GET) or to read it (PENSTOCK_WRITE).
 * `key` is the key that the caller prefers. *base and *used receive the address and the key that
 * another host must use in a transfer. */
int pst_ofi_register(struct pst_ofi *ofi, void *ptr, size_t len, enum penstock_op op, uint64_t key,
		     struct pst_ofi_memory **out, uint64_t *base, uint64_t *used,
		     struct pst_err *err);
/* Ends a registration: refuses transfers that begin later. A transfer that has begun continues,
 * unless the provider uses a card. */
int pst_ofi_unregister(struct pst_ofi_memory *memory, struct pst_err *err);

/* ---- for a server ---- */

/* If the provider requires it, registers the server's memory for pst_ofi_start, and returns 1. Only
 * this memory may then be used. Returns 0 if the provider can use any memory, or a negative
 * errno. */
int pst_ofi_local(struct pst_ofi *ofi, void *ptr, size_t len, struct pst_err *err);
/* Passes the name of another endpoint to libfabric. Stores in *out the number by which transfers
 * identify that endpoint. */
int pst_ofi_insert(struct pst_ofi *ofi, const unsigned char *name, uint64_t *out,
		   struct pst_err *err);

/* One transfer between this host's memory and that of another host. */
struct pst_ofi_move {
	/* PENSTOCK_READ: write the other host's memory; PENSTOCK_WRITE: read it */
	enum penstock_op op;
	void *mem;
	size_t len;
	uint64_t to;	    /* number of the other endpoint, from pst_ofi_insert */
	uint64_t base, key; /* address and key of the other host's memory */
};
/* Starts a transfer. Returns 0, -EAGAIN if libfabric's queue is full (call pst_ofi_progress first),
 * or another error. */
int pst_ofi_start(struct pst_ofi *ofi, const struct pst_ofi_move *move, struct pst_ofi_op *op,
		  struct pst_err *err);

#endif
