/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tenant of a plane: a connection with its role, its memory, and its open objects. Only the
 * tenant's thread uses them. tenant.c contains the code for both roles. client.c and server.c
 * contain one table of functions each.
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
	/* role of the tenant; NULL until HELLO has been handled */
	const struct pl_role *role;
	pthread_t thread;
	_Atomic bool ended; /* whether the thread has ended, so that it can be joined */
	int fd;
	unsigned user;
	int process;
	/* descriptors for the next message; -1: the slot is empty */
	int slots[PST_PLANE_SLOTS];
	struct pl_table memories;
	uint64_t bytes;	    /* number of bytes of `memories` */
	unsigned in_flight; /* number of requests or moves in flight */
	void *state;	    /* data of the role */
};

/* Memory that a tenant shares with the plane. */
struct pl_memory {
	uint64_t id, len;
	/* number of windows or moves that use the memory */
	unsigned users;
	struct pst_shared shared; /* the memory, if the tenant is a server */
	/* buffer that owns the memory, if the tenant is a client */
	struct penstock_object_buffer *buffer;
};

/* The functions of a role. If a function fails, it stores the error in *err, and its result is sent
 * in the answer. */
struct pl_role {
	const char *name;
	int (*open)(struct pl_tenant *tenant, const struct pst_plane_hello *hello,
		    struct pst_err *err);
	/* Returns a descriptor that is readable while completions have not been sent. */
	int (*fd)(struct pl_tenant *tenant);
	/* Sends all completions to the tenant. Returns 0 or -errno. */
	int (*forward)(struct pl_tenant *tenant);
	/* Handles a message, and fills answer->answer. */
	int (*handle)(struct pl_tenant *tenant, const struct pst_plane_message *message,
		      struct pst_plane_message *answer, struct pst_err *err);
	/* Takes memory that has been mapped. If it succeeds, the memory belongs to the role. */
	int (*memory_take)(struct pl_tenant *tenant, struct pl_memory *memory, struct pst_err *err);
	void (*memory_free)(struct pl_tenant *tenant, struct pl_memory *memory);
	void (*counts)(struct pl_tenant *tenant, struct pst_plane_counts *out);
	/* Ends all operations, and takes the servers' access to all windows away. The caller frees
	 * the memory afterwards. */
	void (*stop)(struct pl_tenant *tenant);
	/* Frees tenant->state. The memory has been freed before. */
	void (*close)(struct pl_tenant *tenant);
};
extern const struct pl_role pl_client, pl_server;

/* Starts a thread for a connection. Takes ownership of `fd`. */
int pl_tenant_start(struct pl_plane *plane, int fd, unsigned user, int process,
		    struct pl_tenant **out);

/* ---- for roles ---- */

/* Takes a descriptor out of its slot. Returns -1 if the tenant has passed none. */
int pl_slot_take(struct pl_tenant *tenant, unsigned slot);
/* pl_begin counts a request or a move that begins, and pl_end one that has ended. pl_begin fails
 * while the plane waits for its end (`draining`), and if the tenant has reached its limit. */
int pl_begin(struct pl_tenant *tenant, struct pst_err *err);
void pl_end(struct pl_tenant *tenant);
/* Fails because the tenant has no object with the number that it has sent. */
int pl_fail_name(struct pl_tenant *tenant, const char *what, struct pst_err *err);
/* Fails because a question exceeds a limit of the tenant. */
int pl_fail_limit(struct pl_tenant *tenant, enum pl_limit limit, unsigned long long max,
		  const char *what, struct pst_err *err);
/* Copies the message of a public function that has failed into *err. Returns `code`. */
int pl_fail_public(int code, struct pst_err *err);
/* Sends a message to the tenant. Returns 0 or -errno; after an error the tenant is disconnected. */
int pl_send(struct pl_tenant *tenant, struct pst_plane_message *message);

#endif
