/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the server functions of penstock_object.h. A server moves bytes between its own memory
 * and the memory of clients. Each function checks its arguments, and then calls either the code in
 * src/wire, which moves the bytes in this process, or the server's plane. The plane is a separate
 * process that owns the network card and moves the bytes for this process (plane_server.h).
 * src/s3/judge.c decides which HTTP response a server sends.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "object/memory.h"
#include "object/plane_server.h"
#include "s3/judge.h"
#include "wire/server.h"

struct penstock_object_server {
	/* moves the bytes in this process; NULL if the server has a plane */
	struct pst_wire_server *wire;
	/* connection to the plane, the process that moves the bytes; NULL if the server has none */
	struct pst_plane_link *link;
	struct pst_ends ends; /* completions of the moves that the plane makes */
	/* fork generation when the server was opened; pst_fork_check compares it to detect a forked
	 * child */
	unsigned generation;
	/* protects the list of memories; no other lock is taken while it is held */
	pthread_mutex_t lock;
	struct pst_plane_memory_of *memories;
};

/* A client's window, opened by this server. If the server has a plane (the process that moves its
 * bytes), `plane` is set and `wire` is NULL. Without a plane, it is the other way round. */
struct penstock_object_remote {
	struct penstock_object_server *server;
	struct pst_wire_remote *wire;
	struct pst_plane_remote *plane;
};

/* ---- the server ---- */

/* Does nothing when the plane has completed a move of bytes. The link to the plane requires a
 * function, but a server has no state to update. */
static void move_idle(void *owner)
{
	(void)owner;
}

static int open_plane(struct penstock_object_server *server,
		      const struct penstock_object_server_opts *o, struct pst_err *err)
{
	struct pst_plane_link_opts opts = {.path = o->plane,
					   .role = PST_PLANE_SERVER,
					   .require_encryption = o->require_encryption,
					   .timeout_ms = o->plane_ms,
					   .ends = &server->ends,
					   .idle = move_idle};
	int ret;

	if (o->transports || o->channels || o->moves || o->timeout_ms || o->device || o->rate_min ||
	    o->staging_max || o->dc_key || o->networks || o->pass_files)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"with a plane, only require_encryption and plane_ms can be set: "
				"give the other options to 'penstock plane'");
	ret = pst_ends_open(&server->ends);
	if (ret)
		return pst_fail_errno(err, ret, PENSTOCK_WHY_NO_FILES, "eventfd: %m");
	ret = pst_plane_link_open(&opts, &server->link, err);
	if (ret)
		pst_ends_close(&server->ends);
	return ret;
}

static int open_wire(struct penstock_object_server *server, struct penstock_object_server_opts *o,
		     struct pst_err *err)
{
	const struct pst_wire_devices *devices = pst_object_devices_open();
	int ret;

	if (!devices)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%s", penstock_errmsg());
	o->device = pst_object_device(o->device);
	ret = pst_wire_server_open(o, devices, &server->wire, err);
	if (ret)
		pst_object_devices_close();
	return ret;
}

int penstock_object_server_open(const struct penstock_object_server_opts *opts,
				struct penstock_object_server **out)
{
	struct penstock_object_server_opts o;
	struct penstock_object_server *server;
	struct pst_err err = {0};
	int ret;

	if (pst_struct_copy_in(&o, sizeof(o), opts, "the options", &err))
		return pst_err_publish(&err);
	if (!out)
		return pst_fail_null("out");
	server = calloc(1, sizeof(*server));
	if (!server)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a server");
	ret = o.plane ? open_plane(server, &o, &err) : open_wire(server, &o, &err);
	if (ret) {
		free(server);
		return pst_err_publish(&err);
	}
	pthread_mutex_init(&server->lock, NULL);
	server->generation = pst_fork_generation();
	*out = server;
	return 0;
}

void penstock_object_server_close(struct penstock_object_server *server)
{
	struct pst_err err;
	uint64_t until_ns = 0;

	/* In a forked child, the server belongs to the parent, and its threads do not run. So
	 * nothing is freed. */
	if (!server || pst_fork_check(server->generation, &err))
		return;
	if (server->link) {
		until_ns = pst_plane_link_until(server->link);
		pst_plane_link_close(server->link);
		pst_ends_close(&server->ends);
	} else {
		pst_wire_server_close(server->wire);
		pst_object_devices_close();
	}
	while (server->memories) {
		struct pst_plane_memory_of *next = server->memories->next;

		pst_shared_abandon(&server->memories->shared, until_ns);
		free(server->memories);
		server->memories = next;
	}
	pthread_mutex_destroy(&server->lock);
	free(server);
}

/* ---- memory ---- */

/* Allocates memory for a server without a plane. No other process shares this memory. */
static int memory_open(struct penstock_device *dev, size_t len, struct pst_shared *out,
		       struct pst_err *err)
{
	void *ptr;
	int ret;

	*out = (struct pst_shared)PST_SHARED_INIT;
	out->dev = dev;
	if (!len || len > SIZE_MAX - PST_SHARED_ALIGN)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%zu bytes are not possible", len);
	out->len = (len + PST_SHARED_ALIGN - 1) & ~(size_t)(PST_SHARED_ALIGN - 1);
	if (dev) {
		ret = penstock_alloc(dev, out->len, &ptr);
		if (ret)
			return pst_fail_errno(err, -ret, penstock_errwhy(), "%s",
					      penstock_errmsg());
	} else {
		ptr = mmap(NULL, out->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			   0);
		if (ptr == MAP_FAILED)
			return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu bytes: %m", out->len);
	}
	out->ptr = ptr;
	return 0;
}

/* Adds memory to the server's list. */
static void memory_list(struct penstock_object_server *server, struct pst_plane_memory_of *m)
{
	pthread_mutex_lock(&server->lock);
	m->next = server->memories;
	server->memories = m;
	pthread_mutex_unlock(&server->lock);
}

/* Frees memory that the plane has mapped. Returns -EBUSY, and changes nothing, if the plane still
 * moves its bytes. */
static int memory_free_by_plane(struct penstock_object_server *server,
				struct pst_plane_memory_of *m, struct pst_err *err)
{
	struct pst_plane_message answer;
	int ret = pst_plane_ask_id(server->link, PST_PLANE_MEMORY_CLOSE, m->id, &answer, err);

	if (ret == -EBUSY)
		return ret;
	if (!ret)
		pst_shared_close(&m->shared);
	else
		/* The plane is gone, or does not answer. */
		pst_shared_abandon(&m->shared, pst_plane_link_until(server->link));
	return 0;
}

int penstock_object_server_alloc(struct penstock_object_server *server, struct penstock_device *dev,
				 size_t len, void **out)
{
	struct pst_plane_memory_of *m;
	struct pst_err err = {0};
	int ret;

	if (!server || !out)
		return pst_fail_null(server ? "out" : "the server");
	if (pst_fork_check(server->generation, &err))
		return pst_err_publish(&err);
	m = calloc(1, sizeof(*m));
	if (!m)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory");
	dev = pst_object_device(dev);
	ret = server->link ? pst_shared_create(dev, len, &m->shared, &err)
			   : memory_open(dev, len, &m->shared, &err);
	if (!ret && server->link) {
		ret = pst_plane_pass(server->link, &m->shared, &m->id, &err);
		if (ret)
			pst_shared_abandon(&m->shared, pst_plane_link_until(server->link));
	}
	if (ret) {
		free(m);
		return pst_err_publish(&err);
	}
	memory_list(server, m);
	*out = m->shared.ptr;
	return 0;
}

int penstock_object_server_free(struct penstock_object_server *server, void *ptr)
{
	struct pst_plane_memory_of *m, **at;
	struct pst_err err = {0};

	if (!server)
		return pst_fail_null("the server");
	if (!ptr || pst_fork_check(server->generation, &err))
		return 0;
	pthread_mutex_lock(&server->lock);
	for (at = &server->memories; *at && (*at)->shared.ptr != ptr; at = &(*at)->next)
		;
	m = *at;
	if (m)
		*at = m->next;
	pthread_mutex_unlock(&server->lock);
	if (!m)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"the server has not allocated this memory");
	if (!server->link) {
		pst_shared_close(&m->shared);
	} else if (memory_free_by_plane(server, m, &err)) {
		memory_list(server, m);
		return pst_err_publish(&err);
	}
	free(m);
	return 0;
}

/* ---- tokens and moves ---- */

int penstock_object_resolve(struct penstock_object_server *server, const char *token, size_t len,
			    const struct penstock_object_peer *peer,
			    struct penstock_object_remote **out)
{
	struct penstock_object_remote *remote;
	struct penstock_object_peer p;
	struct pst_err err = {0};
	int ret;

	if (!server || !token || !out)
		return pst_fail_null(!server ? "the server" : !token ? "the token" : "out");
	if (pst_struct_copy_in(&p, sizeof(p), peer, "the peer", &err) ||
	    pst_fork_check(server->generation, &err))
		return pst_err_publish(&err);
	remote = calloc(1, sizeof(*remote));
	if (!remote)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a remote window");
	remote->server = server;
	ret = server->link ? pst_plane_resolve(server->link, token, len, &p, &remote->plane, &err)
			   : pst_wire_resolve(server->wire, token, len, &p, &remote->wire, &err);
	if (ret) {
		free(remote);
		pst_err_publish(&err);
		return ret;
	}
	*out = remote;
	return 0;
}

int penstock_object_prepare(struct penstock_object_server *server, const char *token, size_t len,
			    const struct penstock_object_peer *peer,
			    struct penstock_object_pairing *pairing,
			    struct penstock_object_remote **out)
{
	struct penstock_object_pairing found;
	struct penstock_object_remote *remote;
	struct penstock_object_peer p;
	struct pst_err err = {0};
	int ret;

	if (!server || !token || !pairing || !out)
		return pst_fail_null(!server	? "the server"
				     : !token	? "the token"
				     : !pairing ? "the pairing"
						: "out");
	if (pst_struct_copy_in(&p, sizeof(p), peer, "the peer", &err) ||
	    pst_struct_copy_in(&found, sizeof(found), pairing, "the pairing", &err))
		return pst_err_publish(&err);
	if (found.op != PENSTOCK_READ && found.op != PENSTOCK_WRITE)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "operation %d is unknown",
				found.op);
	if (pst_fork_check(server->generation, &err))
		return pst_err_publish(&err);
	if (server->link)
		return pst_fail(NULL, PENSTOCK_WHY_UNSUPPORTED,
				"a plane does not serve hipobj-rc-v2: open a server without one");
	remote = calloc(1, sizeof(*remote));
	if (!remote)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a remote window");
	remote->server = server;
	ret = pst_wire_prepare(server->wire, token, len, &p, &found, &remote->wire, &err);
	if (ret) {
		free(remote);
		pst_err_publish(&err);
		return ret;
	}
	*out = remote;
	return pst_struct_copy_out(pairing, &found, sizeof(found));
}

int penstock_object_ready(struct penstock_object_remote *remote, uint32_t qpn, uint64_t address,
			  uint32_t key)
{
	struct pst_err err = {0};

	if (!remote)
		return pst_fail_null("the remote window");
	if (!remote->wire)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "the window has no session");
	if (pst_wire_ready(remote->wire, qpn, address, key, &err))
		return pst_err_publish(&err);
	return 0;
}

int penstock_object_remote_get_info(const struct penstock_object_remote *remote,
				    struct penstock_object_remote_info *info)
{
	struct penstock_object_remote_info found = {0};

	if (!remote)
		return pst_fail_null("the remote window");
	if (remote->wire) {
		pst_wire_remote_info(remote->wire, &found);
	} else {
		found.length = remote->plane->len;
		found.transport = remote->plane->transport;
		found.encrypted = remote->plane->encrypted;
		found.on_host = remote->plane->on_host;
	}
	return pst_struct_copy_out(info, &found, sizeof(found));
}

/* Asks the plane, the process that owns the network card, to move bytes. */
static int move_by_plane(struct penstock_object_remote *remote, enum penstock_op op, uint64_t off,
			 const struct penstock_object_seg *segs, unsigned seg_count, uint64_t user,
			 struct pst_err *err)
{
	struct pst_end *end = calloc(1, sizeof(*end));
	struct pst_plane_message message;
	int ret;

	if (!end)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a move");
	end->move.user = user;
	/* Holds the lock only while the memory is looked up, because the plane may be slow. */
	pthread_mutex_lock(&remote->server->lock);
	ret = pst_plane_move_fill(&message, op, off, segs, seg_count, remote->server->memories,
				  err);
	pthread_mutex_unlock(&remote->server->lock);
	if (!ret)
		ret = pst_plane_move(remote->plane, &message, segs, seg_count, end, err);
	if (ret)
		free(end);
	return ret;
}

int penstock_object_move(struct penstock_object_remote *remote, enum penstock_op op, uint64_t off,
			 const struct penstock_object_seg *segs, unsigned seg_count, uint64_t user)
{
	struct penstock_object_seg list[PENSTOCK_OBJECT_SEGS_MAX];
	struct pst_err err = {0};
	int ret;

	if (!remote || (seg_count && !segs))
		return pst_fail_null(remote ? "the array of segments" : "the remote window");
	for (unsigned i = 0; i < seg_count && i < PENSTOCK_OBJECT_SEGS_MAX; i++) {
		list[i] = segs[i];
		list[i].dev = pst_object_device(segs[i].dev);
	}
	ret = pst_fork_check(remote->server->generation, &err);
	if (!ret)
		ret = remote->wire
			      ? pst_wire_move(remote->wire, op, off, list, seg_count, user, &err)
			      : move_by_plane(remote, op, off, list, seg_count, user, &err);
	return ret ? pst_err_publish(&err) : 0;
}

int penstock_object_poll(struct penstock_object_server *server, struct penstock_object_done *done,
			 unsigned max)
{
	return penstock_object_wait(server, done, max, 0);
}

/* Removes completed moves from the list of a server that has a plane, and copies them to `done`. */
static int take_ends(struct penstock_object_server *server, struct penstock_object_done *done,
		     unsigned max, int timeout_ms)
{
	struct pst_end *list = pst_ends_take(&server->ends, max, timeout_ms);
	int count = 0;

	while (list) {
		struct pst_end *next = list->next;

		done[count++] = list->move;
		free(list);
		list = next;
	}
	return count;
}

int penstock_object_wait(struct penstock_object_server *server, struct penstock_object_done *done,
			 unsigned max, int timeout_ms)
{
	struct pst_err err = {0};

	if (!server || (max && !done))
		return pst_fail_null(server ? "the array of completions" : "the server");
	/* A forked child shares the parent's event descriptor, so a wait in the child would take
	 * events from the parent. */
	if (pst_fork_check(server->generation, &err))
		return pst_err_publish(&err);
	return server->link ? take_ends(server, done, max, timeout_ms)
			    : pst_wire_wait(server->wire, done, max, timeout_ms);
}

int penstock_object_fd(struct penstock_object_server *server)
{
	if (!server)
		return pst_fail_null("the server");
	return server->link ? server->ends.event : pst_wire_fd(server->wire);
}

void penstock_object_forget(struct penstock_object_remote *remote)
{
	struct pst_err err;

	if (!remote)
		return;
	if (remote->wire)
		pst_wire_forget(remote->wire);
	else if (!pst_fork_check(remote->server->generation, &err))
		pst_plane_forget(remote->plane);
	free(remote);
}

int penstock_object_answer_fill(struct penstock_object_answer *answer)
{
	if (!answer)
		return pst_fail_null("the answer");
	/* pst_answer fills headers with pointers to other members of the same struct. So the
	 * library cannot use a copy, and the caller's struct must have the full length. */
	if (answer->size < sizeof(*answer))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "size of the answer is not set");
	if (pst_answer(answer))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"operation %d or outcome %d is "
				"unknown",
				answer->op, answer->outcome);
	return 0;
}

int penstock_object_server_get_info(const struct penstock_object_server *server,
				    struct penstock_object_server_info *info)
{
	struct penstock_object_server_info found = {0};
	struct pst_err err = {0};

	if (!server)
		return pst_fail_null("the server");
	if (!server->link)
		pst_wire_server_info(server->wire, &found);
	else if (pst_plane_server_info(server->link, &found, &err))
		return pst_err_publish(&err);
	return pst_struct_copy_out(info, &found, sizeof(found));
}
