/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves the tenants (other processes) in the role of a server. A tenant, such as an object store,
 * passes the tokens that it has received from its clients. The plane parses the tokens, and moves
 * bytes by RDMA between the tenant's memory or files and the windows of these clients.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/log.h"
#include "tenant.h"

/* File systems whose files a tenant may not pass, by the type that statfs(2) returns. A read of a
 * file on FUSE, or of /proc/PID/mem, can take as long as the tenant likes. What a write to a kernel
 * file does depends on the rights of the writing process, which would be the plane. */
static const unsigned long refused_types[] = {
	0x65735546, /* FUSE */
	PROC_SUPER_MAGIC, SYSFS_MAGIC,	 DEBUGFS_MAGIC,	     TRACEFS_MAGIC,
	SECURITYFS_MAGIC, SELINUX_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
	EFIVARFS_MAGIC,	  BPF_FS_MAGIC,	 BINFMTFS_MAGIC,     0x62656570, /* configfs */
	0x6e736673,							 /* nsfs */
};

/* A transfer that a tenant has started with the message MOVE; `busy` until it has ended. */
struct move {
	bool busy;
	uint64_t user; /* value that the tenant has passed with MOVE */
	struct pl_memory *memories[PENSTOCK_OBJECT_SEGS_MAX];
	int fds[PENSTOCK_OBJECT_SEGS_MAX];
	unsigned memory_count, fd_count;
};

struct server {
	struct penstock_object_server *server;
	struct pl_table remotes;
	struct move *moves; /* array of `in_flight_max` elements */
};

static int open_server(struct pl_tenant *tenant, const struct pst_plane_hello *hello,
		       struct pst_err *err)
{
	const struct pl_options *o = tenant->plane->options;
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct server *s = calloc(1, sizeof(*s));
	int ret;

	if (!s || pl_table_open(&s->remotes, o->windows_max)) {
		free(s);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "the plane has no memory left");
	}
	s->moves = calloc(o->in_flight_max, sizeof(*s->moves));
	opts.transports = o->transports;
	opts.channels = o->channels;
	opts.networks = o->networks;
	opts.moves = o->in_flight_max;
	opts.device = tenant->plane->device;
	opts.require_encryption = o->require_encryption || hello->require_encryption;
	ret = s->moves ? penstock_object_server_open(&opts, &s->server)
		       : penstock_fail(-ENOMEM, PENSTOCK_WHY_NO_MEMORY, "no memory is left");
	if (ret) {
		pl_fail_public(ret, err);
		pl_table_close(&s->remotes);
		free(s->moves);
		free(s);
		return ret;
	}
	tenant->state = s;
	return 0;
}

/* ---- tokens ---- */

static int remote_open(struct pl_tenant *tenant, const struct pst_plane_resolve *message,
		       struct pst_plane_answer *answer, struct pst_err *err)
{
	struct penstock_object_remote_info info = {.size = sizeof(info)};
	struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct server *s = tenant->state;
	struct penstock_object_remote *remote;
	int ret;

	if (s->remotes.count == s->remotes.max)
		return pl_fail_limit(tenant, PL_LIMIT_WINDOWS, s->remotes.max, "remote windows",
				     err);
	peer.address = message->has_address ? message->address : NULL;
	peer.has_user = (int)message->has_user;
	peer.user = message->user;
	ret = penstock_object_resolve(s->server, message->token, message->token_len, &peer,
				      &remote);
	if (ret)
		return pl_fail_public(ret, err);
	answer->id = pl_table_add(&s->remotes, remote);
	if (!answer->id) {
		penstock_object_forget(remote);
		return pst_fail(err, PENSTOCK_WHY_IO_ERROR,
				"the plane has no number for the remote window");
	}
	penstock_object_remote_get_info(remote, &info);
	answer->len = info.length;
	answer->encrypted = info.encrypted;
	answer->on_host = info.on_host;
	strncpy(answer->transport, info.transport, sizeof(answer->transport) - 1);
	return 0;
}

static int remote_close(struct pl_tenant *tenant, uint64_t id, struct pst_err *err)
{
	struct server *s = tenant->state;
	struct penstock_object_remote *remote = pl_table_find(&s->remotes, id);

	if (!remote)
		return pl_fail_name(tenant, "a remote window", err);
	penstock_object_forget(remote);
	pl_table_remove(&s->remotes, id);
	return 0;
}

/* ---- moves ---- */

static void move_clear(struct move *move)
{
	for (unsigned i = 0; i < move->fd_count; i++)
		close(move->fds[i]);
	for (unsigned i = 0; i < move->memory_count; i++)
		move->memories[i]->users--;
	move->busy = false;
	move->fd_count = move->memory_count = 0;
}

/* Returns whether the plane may use a tenant's file. It must be a regular file, and on no file
 * system of `refused_types`. */
static bool file_is_usable(int fd)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || fstatfs(fd, &fs))
		return false;
	for (unsigned i = 0; i < sizeof(refused_types) / sizeof(refused_types[0]); i++)
		if ((unsigned long)fs.f_type == refused_types[i])
			return false;
	return true;
}

/* Converts a segment of a MOVE message. `move` keeps the segment's memory or descriptor in use
 * until the transfer has ended. */
static int seg_take(struct pl_tenant *tenant, struct move *move, const struct pst_plane_seg *seg,
		    struct penstock_object_seg *out, struct pst_err *err)
{
	struct pl_memory *memory;
	uint64_t end;

	*out = (struct penstock_object_seg){.len = seg->len, .fd = -1};
	if (seg->is_file) {
		int fd = pl_slot_take(tenant, seg->slot);

		if (fd < 0)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"a piece of the move has no descriptor");
		move->fds[move->fd_count++] = fd;
		if (!file_is_usable(fd))
			return pst_fail(err, PENSTOCK_WHY_BAD_KIND,
					"a plane can move regular files only, and none of FUSE or "
					"of the kernel, such as /proc");
		if (__builtin_add_overflow(seg->off, seg->len, &end) || end > INT64_MAX)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"a piece of the move ends beyond the longest file");
		out->has_fd = 1;
		out->fd = fd;
		out->fd_off = seg->off;
		return 0;
	}
	memory = pl_table_find(&tenant->memories, seg->memory);
	if (!memory)
		return pl_fail_name(tenant, "memory", err);
	if (seg->off > memory->len || seg->len > memory->len - seg->off)
		return pst_fail_errno(err, ERANGE, PENSTOCK_WHY_BAD_ARGUMENT,
				      "a piece of the move ends beyond its memory");
	move->memories[move->memory_count++] = memory;
	memory->users++;
	out->dev = memory->shared.dev;
	out->ptr = memory->shared.ptr + seg->off;
	return 0;
}

static int move_start(struct pl_tenant *tenant, const struct pst_plane_move *message,
		      struct pst_err *err)
{
	struct penstock_object_seg segs[PENSTOCK_OBJECT_SEGS_MAX];
	struct server *s = tenant->state;
	struct penstock_object_remote *remote = pl_table_find(&s->remotes, message->remote);
	struct move *move = s->moves;
	int ret;

	if (!remote)
		return pl_fail_name(tenant, "a remote window", err);
	ret = pl_begin(tenant, err);
	if (ret)
		return ret;
	while (move->busy) /* pl_begin has checked that one element is free */
		move++;
	move->busy = true;
	move->user = message->user;
	for (unsigned i = 0; i < message->seg_count && !ret; i++)
		ret = seg_take(tenant, move, &message->segs[i], &segs[i], err);
	if (!ret) {
		ret = penstock_object_move(remote, (enum penstock_op)message->op, message->off,
					   segs, message->seg_count, (uint64_t)(move - s->moves));
		if (ret)
			pl_fail_public(ret, err);
	}
	if (ret) {
		move_clear(move);
		pl_end(tenant);
	}
	return ret;
}

static int server_forward(struct pl_tenant *tenant)
{
	struct server *s = tenant->state;
	struct pl_counts *counts = &tenant->plane->counts;
	struct penstock_object_done done[8];
	int n = penstock_object_poll(s->server, done, 8), ret = 0;

	for (int i = 0; i < n && !ret; i++) {
		struct pst_plane_message message = {.kind = PST_PLANE_MOVED};
		struct move *move = &s->moves[done[i].user];

		pl_count(&counts->moves[done[i].result < 0]);
		if (done[i].result > 0)
			atomic_fetch_add(&counts->moved_bytes, (uint64_t)done[i].result);
		message.moved.done = done[i];
		message.moved.done.user = move->user;
		move_clear(move);
		pl_end(tenant);
		ret = pl_send(tenant, &message);
	}
	return ret;
}

static int server_handle(struct pl_tenant *tenant, const struct pst_plane_message *message,
			 struct pst_plane_message *answer, struct pst_err *err)
{
	switch (message->kind) {
	case PST_PLANE_RESOLVE:
		return remote_open(tenant, &message->resolve, &answer->answer, err);
	case PST_PLANE_FORGET:
		return remote_close(tenant, message->name.id, err);
	case PST_PLANE_MOVE:
		return move_start(tenant, &message->move, err);
	default:
		return -EPROTO;
	}
}

/* ---- the table ---- */

static int server_fd(struct pl_tenant *tenant)
{
	const struct server *s = tenant->state;

	return penstock_object_fd(s->server);
}

static int server_memory_take(struct pl_tenant *tenant, struct pl_memory *memory,
			      struct pst_err *err)
{
	(void)tenant;
	(void)memory;
	(void)err;
	return 0;
}

static void server_memory_free(struct pl_tenant *tenant, struct pl_memory *memory)
{
	(void)tenant;
	pst_shared_close(&memory->shared);
}

static void server_counts(struct pl_tenant *tenant, struct pst_plane_counts *out)
{
	const struct server *s = tenant->state;

	out->server.size = sizeof(out->server);
	penstock_object_server_get_info(s->server, &out->server);
	for (unsigned i = 0; i < PENSTOCK_OBJECT_TRANSPORTS_MAX; i++) {
		struct penstock_object_traffic *traffic = &out->server.traffic[i];

		if (traffic->transport)
			strncpy(out->transports[i], traffic->transport,
				sizeof(out->transports[i]) - 1);
		/* This pointer is not valid in the tenant's process, so `transports` has the
		 * name. */
		traffic->transport = NULL;
	}
}

static void server_stop(struct pl_tenant *tenant)
{
	struct server *s = tenant->state;
	struct penstock_object_remote *remote;

	if (tenant->in_flight) {
		pl_count(&tenant->plane->counts.lost);
		pst_log(PST_LOG_INFO, "plane", "process %d of user %u ended with %u moves",
			tenant->process, tenant->user, tenant->in_flight);
	}
	while ((remote = pl_table_pop(&s->remotes)))
		penstock_object_forget(remote);
	/* This call cancels the transfers in flight, and waits for the threads that make them. */
	penstock_object_server_close(s->server);
	for (unsigned i = 0; i < tenant->plane->options->in_flight_max; i++)
		if (s->moves[i].busy)
			move_clear(&s->moves[i]);
}

static void server_close(struct pl_tenant *tenant)
{
	struct server *s = tenant->state;

	pl_table_close(&s->remotes);
	free(s->moves);
	free(s);
}

const struct pl_role pl_server = {
	.name = "server",
	.open = open_server,
	.fd = server_fd,
	.forward = server_forward,
	.handle = server_handle,
	.memory_take = server_memory_take,
	.memory_free = server_memory_free,
	.counts = server_counts,
	.stop = server_stop,
	.close = server_close,
};
