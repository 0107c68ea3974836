/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tenant of a plane: a connection with its role, its memory, and what it has open. Only the
 * tenant's thread uses it. tenant.c has what both roles share; client.c and server.c have a table
 * of functions each.
 */
#ifndef PLANE_TENANT_H
#define PLANE_TENANT_H

#include "object/plane_message.h"
#include "object/shared.h"
#include "plane.h"
#include "table.h"

struct pl_role;

struct pl_tenant {
	struct pl_tenant *next;
	struct pl_plane *plane;
	const struct pl_role *role; /* NULL before HELLO */
	pthread_t thread;
	_Atomic bool ended; /* the thread can be joined */
	int fd;
	unsigned user;
	int process;
	int slots[PST_PLANE_SLOTS]; /* descriptors for the next message; -1: none */
	struct pl_table memories;
	uint64_t bytes;	    /* of these memories */
	unsigned in_flight; /* requests or moves */
	void *state;	    /* of the role */
};

/* Memory of a tenant. */
struct pl_memory {
	uint64_t id, len;
	unsigned users;			       /* windows or moves */
	struct pst_shared shared;	       /* of a server */
	struct penstock_object_buffer *buffer; /* of a client, which owns the memory then */
};

/* The functions of a role. A function that fails fills the error; its result is the answer's. */
struct pl_role {
	const char *name;
	int (*open)(struct pl_tenant *tenant, const struct pst_plane_hello *hello,
		    struct pst_err *err);
	/* Returns a descriptor that is readable while operations have completed. */
	int (*fd)(struct pl_tenant *tenant);
	/* Sends the completions. Returns 0 or -errno. */
	int (*forward)(struct pl_tenant *tenant);
	/* Answers a message: fills answer->answer. */
	int (*handle)(struct pl_tenant *tenant, const struct pst_plane_message *message,
		      struct pst_plane_message *answer, struct pst_err *err);
	/* Takes memory that has been mapped. After success, it belongs to the role. */
	int (*memory_take)(struct pl_tenant *tenant, struct pl_memory *memory, struct pst_err *err);
	void (*memory_free)(struct pl_tenant *tenant, struct pl_memory *memory);
	void (*counts)(struct pl_tenant *tenant, struct pst_plane_counts *out);
	/* Ends all operations, and fences all transfers. The memory is freed after it. */
	void (*stop)(struct pl_tenant *tenant);
	/* Frees the state, after the memory. */
	void (*close)(struct pl_tenant *tenant);
};
extern const struct pl_role pl_client, pl_server;

/* Starts the thread of a connection. Takes `fd`. */
int pl_tenant_start(struct pl_plane *plane, int fd, unsigned user, int process,
		    struct pl_tenant **out);

/* ---- for roles ---- */

/* Takes a descriptor from its slot; -1: the tenant has passed none. */
int pl_slot_take(struct pl_tenant *tenant, unsigned slot);
/* Counts the beginning and the end of a request or a move. pl_begin refuses while the plane drains,
 * and beyond the limit. */
int pl_begin(struct pl_tenant *tenant, struct pst_err *err);
void pl_end(struct pl_tenant *tenant);
/* Fails a question with a number that the tenant has not. */
int pl_fail_name(struct pl_tenant *tenant, const char *what, struct pst_err *err);
/* Fails a question beyond a limit. */
int pl_fail_limit(struct pl_tenant *tenant, enum pl_limit limit, unsigned long long max,
		  const char *what, struct pst_err *err);
/* Copies the error of a public function of the library. */
int pl_fail_public(int code, struct pst_err *err);
/* Sends a message. Returns 0 or -errno, which ends the tenant. */
int pl_send(struct pl_tenant *tenant, struct pst_plane_message *message);

#endif
