/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One endpoint of libfabric for one-sided transfers, with the objects around it. The only interface
 * of the data plane to libfabric, which is loaded when the first endpoint is opened. Called by
 * ofi1_client.c and ofi1_server.c. An object of this file is used by one thread at a time. Bytes
 * move only while a thread is in pst_ofi_progress, or in pst_ofi_start.
 */
#ifndef PST_WIRE_OFI_H
#define PST_WIRE_OFI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"
#include "penstock.h"
#include "s3/token.h"

/* How to open an endpoint. */
struct pst_ofi_place {
	const char *provider; /* name of a provider, such as "tcp;ofi_rxm" */
	const char *address;  /* numeric address of this host */
	bool v6;	      /* whether it is an IPv6 address */
};

/* A transfer. libfabric uses `space` until the transfer is done. */
struct pst_ofi_op {
	void *space[8];
	bool done;
};

struct pst_ofi;
struct pst_ofi_memory; /* memory that other hosts may access */

/* Returns whether a provider is one that this file can use: the name of an endpoint must be a
 * socket address, and an access with a wrong key must fail. *tcp receives whether the endpoint
 * listens for TCP connections at this address. */
bool pst_ofi_known(const char *provider, bool *tcp);
/* Loads libfabric. */
int pst_ofi_load(struct pst_err *err);

/* Opens all but the endpoint. */
int pst_ofi_open(const struct pst_ofi_place *place, struct pst_ofi **out, struct pst_err *err);
/* Closes all. The memory must have been unregistered. NULL is allowed. */
void pst_ofi_close(struct pst_ofi *ofi);
int pst_ofi_endpoint_open(struct pst_ofi *ofi, struct pst_err *err);
/* Closes the endpoint and its connections: from here on, no byte moves until another endpoint is
 * opened. */
int pst_ofi_endpoint_close(struct pst_ofi *ofi, struct pst_err *err);
bool pst_ofi_has_endpoint(const struct pst_ofi *ofi);
/* Returns a descriptor of the endpoint that is readable when there is something to do; -1: the
 * provider has none. */
int pst_ofi_fd(const struct pst_ofi *ofi);
/* Continues transfers in both directions. */
int pst_ofi_progress(struct pst_ofi *ofi, struct pst_err *err);
/* Returns whether the descriptor may be waited for. If not, there is something to do. */
bool pst_ofi_may_wait(struct pst_ofi *ofi);

/* ---- for a client ---- */

/* Writes the endpoint's name, a socket address. */
int pst_ofi_name(struct pst_ofi *ofi, unsigned char out[PST_TOKEN_NAME_MAX], size_t *len,
		 struct pst_err *err);
/* Lets other hosts write the memory (PENSTOCK_READ: a GET) or read it (PENSTOCK_WRITE). `key` is
 * the wish for a key; *base and *used receive what names the memory in a transfer. */
int pst_ofi_register(struct pst_ofi *ofi, void *ptr, size_t len, enum penstock_op op, uint64_t key,
		     struct pst_ofi_memory **out, uint64_t *base, uint64_t *used,
		     struct pst_err *err);
/* Refuses transfers that begin later. A transfer that has begun goes on. */
int pst_ofi_unregister(struct pst_ofi_memory *memory, struct pst_err *err);

/* ---- for a server ---- */

/* Registers the only memory that pst_ofi_start may then use, if the provider needs this. Returns
 * 1 if it does, 0 if any memory can be used, or an error. */
int pst_ofi_local(struct pst_ofi *ofi, void *ptr, size_t len, struct pst_err *err);
/* Makes the name of another endpoint known, and writes a number for it. */
int pst_ofi_insert(struct pst_ofi *ofi, const unsigned char *name, uint64_t *out,
		   struct pst_err *err);

/* One transfer between this host's memory and that of another host. */
struct pst_ofi_move {
	enum penstock_op op; /* PENSTOCK_READ: write the other host's memory */
	void *mem;
	size_t len;
	uint64_t to;	    /* number of the other endpoint */
	uint64_t base, key; /* of the other host's memory */
};
/* Starts a transfer. Returns 0, -EAGAIN if there is no room (make progress first), or an error. */
int pst_ofi_start(struct pst_ofi *ofi, const struct pst_ofi_move *move, struct pst_ofi_op *op,
		  struct pst_err *err);

#endif
