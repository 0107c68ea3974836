/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant is a process that is connected to a plane. struct pl_tenant has the tenant's connection,
 * role (client or server), memory and open objects. Only the tenant's thread uses these. tenant.c
 * contains the code for both roles. client.c and server.c contain the functions of one role each
 * (struct pl_role).
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
	/* descriptors that the tenant has passed for its next message; -1: the slot is empty */
	int slots[PST_PLANE_SLOTS];
	struct pl_table memories;
	uint64_t bytes;	    /* number of bytes of `memories` */
	unsigned in_flight; /* number of requests or moves in flight */
	void *state;	    /* data of the role */
};

/* Memory that a tenant shares with the plane. */
struct pl_memory {
	uint64_t id, len;
	/* number of windows or transfers that use the memory */
	unsigned users;
	struct pst_shared shared; /* the memory, if the tenant is a server */
	/* buffer that owns the memory, if the tenant is a client */
	struct penstock_object_buffer *buffer;
};

/* The functions of a role (client or server). If a function fails, it stores the error in *err, and
 * its result is sent to the tenant in the answer. */
struct pl_role {
	const char *name;
	int (*open)(struct pl_tenant *tenant, const struct pst_plane_hello *hello,
		    struct pst_err *err);
	/* Returns a descriptor that is readable while there are completions to send to the
	 * tenant. */
	int (*fd)(struct pl_tenant *tenant);
	/* Sends all completions to the tenant. Returns 0 or -errno. */
	int (*forward)(struct pl_tenant *tenant);
	/* Handles a message, and fills answer->answer. */
	int (*handle)(struct pl_tenant *tenant, const struct pst_plane_message *message,
		      struct pst_plane_message *answer, struct pst_err *err);
	/* Takes over memory of the tenant that the plane has mapped. If it succeeds, the memory
	 * belongs to the role. */
	int (*memory_take)(struct pl_tenant *tenant, struct pl_memory *memory, struct pst_err *err);
	void (*memory_free)(struct pl_tenant *tenant, struct pl_memory *memory);
	void (*counts)(struct pl_tenant *tenant, struct pst_plane_counts *out);
	/* Ends all operations, and the servers' access to all windows. The caller frees the memory
	 * afterwards. */
	void (*stop)(struct pl_tenant *tenant);
	/* Frees tenant->state. The plane has freed the tenant's memory (struct pl_memory)
	 * before. */
	void (*close)(struct pl_tenant *tenant);
};
extern const struct pl_role pl_client, pl_server;

/* Starts a thread for a connection. Takes ownership of `fd`. */
int pl_tenant_start(struct pl_plane *plane, int fd, unsigned user, int process,
		    struct pl_tenant **out);

/* ---- for roles ---- */

/* Empties a slot and returns its descriptor, or -1 if the tenant has passed none. */
int pl_slot_take(struct pl_tenant *tenant, unsigned slot);
/* pl_begin counts a request or a transfer that begins, and pl_end one that has ended. pl_begin
 * fails while the plane shuts down (`draining`), and if the tenant has reached its limit. */
int pl_begin(struct pl_tenant *tenant, struct pst_err *err);
void pl_end(struct pl_tenant *tenant);
/* Stores in *err that the tenant has no object with the number that it has sent. Returns -errno. */
int pl_fail_name(struct pl_tenant *tenant, const char *what, struct pst_err *err);
/* Stores in *err that a message exceeds a limit of the tenant. Returns -errno. */
int pl_fail_limit(struct pl_tenant *tenant, enum pl_limit limit, unsigned long long max,
		  const char *what, struct pst_err *err);
/* Copies to *err the error message of the public library function that has failed. Returns
 * `code`. */
int pl_fail_public(int code, struct pst_err *err);
/* Sends a message to the tenant. Returns 0 or -errno; after an error the tenant is disconnected. */
int pl_send(struct pl_tenant *tenant, struct pst_plane_message *message);

#endif
