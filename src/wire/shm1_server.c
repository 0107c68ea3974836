/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half of transport shm1: opens a client's window, and copies between it and the
 * server's memory. server.c calls these functions on the thread of a channel, a worker thread of
 * the server. Each connection keeps the mappings of the client's memory, because a mapping costs
 * more than a short copy. Nothing that a client sends may harm the server. So a descriptor must be
 * a memfd that cannot shrink: an access beyond its end would kill the process. If the window takes
 * a file, the server passes the object's descriptor instead (handover.h), and copies nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "wire/shm1.h"
#include "wire/common.h"
#include "wire/handover.h"

#define MEMORIES_MAX 64 /* maximum number of mappings of a connection */
/* number of bytes of host memory to copy between two checks whether the client has sent REVOKE */
#define STEP (4u << 20)
/* number of bytes of GPU memory to copy between two such checks; larger than STEP, because several
 * threads' copies of GPU memory overlap */
#define GPU_STEP (64u << 20)

/* A mapping of a client's memory, or an import of a GPU's memory. */
struct memory {
	uint64_t id; /* id of the memory in messages; 0 if the array element is unused */
	unsigned char *at;
	/* `len` is the length of the memory; `used` is the number of the last move that used it */
	uint64_t len, used;
	/* true if the client has sent DROP for the memory while a move still uses it */
	bool doomed;
	struct penstock_device *dev; /* device of the memory; NULL for host memory */
};

struct shm1_peer {
	struct pst_wire_peer peer;
	char handle[PST_TOKEN_HANDLE_MAX + 1];
	uid_t user;
	/* why the client gets no descriptors of objects; the code is 0 if it gets them */
	struct pst_err no_files;
	uint64_t moves;
	struct memory memories[MEMORIES_MAX];
};

/* ---- tokens ---- */

static int admit(const struct pst_wire_server *server, const struct pst_token *token,
		 const struct penstock_object_peer *peer, struct pst_err *err)
{
	(void)peer;
	if (!server->has_host || memcmp(server->host, token->shm.host, PST_TOKEN_HOST))
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "the client is on another host");
	if (token->shm.cuda && !server->opts.device)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_DEVICE,
				      "the server has no GPU for the client's window");
	if (token->shm.file && !server->opts.pass_files)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_FD,
				      "the server passes no files to clients");
	return 0;
}

/* ---- connection ---- */

static bool leads_to(const struct pst_wire_peer *peer, const struct pst_wire_remote *remote)
{
	const struct shm1_peer *s = (const struct shm1_peer *)peer;

	return !strcmp(s->handle, remote->token.shm.handle) &&
	       (!remote->has_user || remote->user == s->user);
}

static int shm1_connect(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
			const struct pst_wire_remote *remote, struct pst_err *err)
{
	struct shm1_peer *s = (struct shm1_peer *)peer;
	const unsigned ms = channel->server->opts.timeout_ms;
	const struct timeval limit = {(time_t)(ms / 1000), (suseconds_t)(ms % 1000) * 1000};
	struct sockaddr_un address;
	struct ucred owner;
	socklen_t len = sizeof(owner);

	peer->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (peer->fd < 0)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_FILES, "socket: %m");
	/* Limits how long connect(2) waits if the client's queue of connections is full. */
	setsockopt(peer->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(peer->fd, (struct sockaddr *)&address,
		    pst_shm1_address(remote->token.shm.handle, &address)))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "the client does not answer at its socket: %m");
	if (fcntl(peer->fd, F_SETFL, O_NONBLOCK) ||
	    getsockopt(peer->fd, SOL_SOCKET, SO_PEERCRED, &owner, &len))
		return pst_fail_errno(err, errno, PENSTOCK_WHY_IO_ERROR, "socket: %m");
	if (remote->has_user && remote->user != owner.uid)
		return pst_fail_errno(err, EACCES, PENSTOCK_WHY_NO_PERMISSION,
				      "the window belongs to user %u, but the request came from "
				      "user %u",
				      owner.uid, remote->user);
	s->user = owner.uid;
	/* An error is stored in s->no_files, and matters only for windows that take a file. */
	if (channel->server->opts.pass_files)
		(void)pst_wire_handover_peer(peer->fd, &s->no_files);
	memcpy(s->handle, remote->token.shm.handle, sizeof(s->handle));
	return 0;
}

static void memory_drop(const struct pst_wire_devices *devices, struct memory *m)
{
	if (m->id && m->dev)
		devices->free(m->dev, m->at);
	else if (m->id)
		munmap(m->at, m->len);
	m->id = 0;
	m->doomed = false;
}

static void shm1_close(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	struct shm1_peer *s = (struct shm1_peer *)peer;

	for (unsigned i = 0; i < MEMORIES_MAX; i++)
		memory_drop(channel->server->devices, &s->memories[i]);
}

/* Unmaps both mappings of a buffer, the one for reads and the one for writes. Their ids differ in
 * the last bit only. */
static void drop_buffer(const struct pst_wire_devices *devices, struct shm1_peer *s, uint64_t id)
{
	for (unsigned i = 0; i < MEMORIES_MAX; i++)
		if (s->memories[i].id && (s->memories[i].id & ~UINT64_C(1)) == id)
			memory_drop(devices, &s->memories[i]);
}

static int shm1_idle(struct pst_wire_channel *channel, struct pst_wire_peer *peer)
{
	struct pst_shm1_message message;
	int fd, ret = pst_shm1_receive(peer->fd, &message, &fd);

	if (fd >= 0)
		close(fd);
	if (ret > 0 && message.kind == PST_SHM1_DROP)
		drop_buffer(channel->server->devices, (struct shm1_peer *)peer, message.memory);
	/* A REVOKE that arrives between two moves is for a move that has ended, and is ignored. */
	return ret;
}

/* ---- messages of a move ---- */

static int io_fail(int ret, struct pst_err *err)
{
	return pst_fail_errno(err, -ret, pst_why_from_errno(ret), "the client's connection: %s",
			      strerror(-ret));
}

/* Waits for a message of the kind `kind`. Handles DROP and REVOKE that arrive before it. */
static int receive(struct pst_wire_channel *channel, struct shm1_peer *s, uint32_t kind,
		   struct pst_shm1_message *message, int *fd, struct pst_err *err)
{
	for (;;) {
		int ret = pst_shm1_receive(s->peer.fd, message, fd);

		if (ret > 0 && message->kind == kind)
			return 0;
		if (ret > 0 && *fd >= 0)
			close(*fd);
		if (ret > 0 && message->kind == PST_SHM1_DROP)
			drop_buffer(channel->server->devices, s, message->memory);
		if (ret > 0 &&
		    (message->kind == PST_SHM1_DROP || message->kind == PST_SHM1_REVOKE)) {
			/* A client could send such messages without end, so check the deadline of
			 * the move. */
			ret = pst_wire_check(channel);
			if (!ret)
				continue;
		}
		if (ret > 0)
			ret = -EPROTO;
		if (!ret)
			ret = pst_wire_wait_fd(channel, s->peer.fd, POLLIN);
		if (ret)
			return io_fail(ret, err);
	}
}

/* Sends a message, together with the descriptor `file` unless it is negative. */
static int transmit(struct shm1_peer *s, struct pst_shm1_message *message, int file,
		    struct pst_err *err)
{
	int ret = pst_shm1_send(s->peer.fd, message, file);

	return ret ? io_fail(ret, err) : 0;
}

/* Returns an unused element of the table of mappings. If there is none, drops the mapping that was
 * not used for the longest time. */
static struct memory *memory_place(const struct pst_wire_devices *devices, struct shm1_peer *s)
{
	struct memory *oldest = &s->memories[0];

	for (unsigned i = 0; i < MEMORIES_MAX; i++) {
		if (!s->memories[i].id)
			return &s->memories[i];
		if (s->memories[i].used < oldest->used)
			oldest = &s->memories[i];
	}
	memory_drop(devices, oldest);
	return oldest;
}

static int memory_map(struct memory *m, const struct pst_shm1_message *message, int fd, bool write,
		      struct pst_err *err)
{
	const int seals = fd < 0 ? -1 : fcntl(fd, F_GET_SEALS);
	struct statfs fs;
	struct stat st;
	void *at;

	/* Refuses memory of hugetlbfs. If hugetlbfs has no free page when the memory is accessed,
	 * the kernel kills the process. */
	if (fd < 0 || seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || fstatfs(fd, &fs) ||
	    fs.f_type != TMPFS_MAGIC || message->memory_len > (uint64_t)st.st_size ||
	    !message->memory_len)
		return pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				      "the client passed no memory that keeps its length");
	at = mmap(NULL, message->memory_len, PROT_READ | (write ? PROT_WRITE : 0), MAP_SHARED, fd,
		  0);
	if (at == MAP_FAILED)
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "the client's memory cannot be mapped: %m");
	/* A forked child of the server must not keep the client's memory. */
	if (madvise(at, message->memory_len, MADV_DONTFORK)) {
		munmap(at, message->memory_len);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "madvise: %m");
	}
	m->at = at;
	m->dev = NULL;
	return 0;
}

/* Imports memory of a GPU. The import has its own reference to the memory, so `fd` may be
 * closed. */
static int memory_import(const struct pst_wire_server *server, struct memory *m,
			 const struct pst_shm1_message *message, int fd, struct pst_err *err)
{
	struct penstock_export exported = PENSTOCK_EXPORT_INIT;
	uint64_t len;
	void *at;
	int ret;

	if (!server->opts.device)
		return pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				      "the client passed memory of a GPU");
	exported.fd = fd;
	memcpy(exported.bytes, message->exported, sizeof(exported.bytes));
	ret = server->devices->import_memory(server->opts.device, &exported, &at, &len);
	if (ret)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "the GPU's memory cannot be imported: %.150s",
				      penstock_errmsg());
	/* Refuses a length above that of the import. Otherwise a client could gain access to other
	 * memory of the GPU. */
	if (message->memory_len > len) {
		server->devices->free(server->opts.device, at);
		return pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				      "the client passed memory of %llu bytes as %llu bytes",
				      (unsigned long long)len,
				      (unsigned long long)message->memory_len);
	}
	m->at = at;
	m->dev = server->opts.device;
	return 0;
}

/* Returns the mapping of the window's memory. If the server has none, requests the memory from the
 * client (WANT) and maps it. */
static int memory_find(struct pst_wire_channel *channel, struct shm1_peer *s,
		       const struct pst_wire_move *move, const struct pst_shm1_message *window,
		       struct memory **out, struct pst_err *err)
{
	const struct pst_wire_server *server = channel->server;
	struct pst_shm1_message want = {.kind = PST_SHM1_WANT, .memory = window->memory};
	struct pst_shm1_message message;
	struct memory *m;
	int fd, ret;

	for (unsigned i = 0; i < MEMORIES_MAX; i++)
		if (s->memories[i].id == window->memory && window->memory) {
			*out = &s->memories[i];
			return 0;
		}
	ret = transmit(s, &want, -1, err);
	if (!ret)
		ret = receive(channel, s, PST_SHM1_MEMORY, &message, &fd, err);
	if (ret)
		return ret;
	m = memory_place(server->devices, s);
	if (message.status)
		ret = pst_wire_status_fail(message.status, err);
	else if (message.cuda != (uint32_t)move->remote->token.shm.cuda || !message.memory ||
		 message.memory != window->memory)
		ret = pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				     "the client passed other memory than its token says");
	else if (message.cuda)
		ret = memory_import(server, m, &message, fd, err);
	else
		ret = memory_map(m, &message, fd, move->op == PENSTOCK_READ, err);
	if (fd >= 0)
		close(fd);
	if (ret)
		return ret;
	m->id = message.memory;
	m->len = message.memory_len;
	*out = m;
	return 0;
}

/* ---- the move ---- */

/* Returns whether the client has sent REVOKE, because it releases the window. If it sends DROP for
 * the memory that this move uses, the memory stays mapped until the move has ended. */
static bool revoked(struct shm1_peer *s, uint64_t id, int *ended)
{
	struct pst_shm1_message message;
	int fd, ret = pst_shm1_receive(s->peer.fd, &message, &fd);

	if (fd >= 0)
		close(fd);
	*ended = ret < 0 ? ret : 0;
	for (unsigned i = 0; i < MEMORIES_MAX && ret > 0 && message.kind == PST_SHM1_DROP; i++)
		if ((s->memories[i].id & ~UINT64_C(1)) == message.memory)
			s->memories[i].doomed = true;
	return ret > 0 && message.kind == PST_SHM1_REVOKE && message.id == id;
}

static int copy_all(struct pst_wire_channel *channel, struct shm1_peer *s,
		    const struct pst_wire_move *move, const struct memory *m,
		    const struct pst_shm1_message *window, struct pst_err *err)
{
	for (uint64_t done = 0; done < move->len;) {
		struct penstock_object_seg seg =
			pst_wire_seg_at(move, done, m->dev ? GPU_STEP : STEP);
		unsigned char *at = m->at + window->off + done;
		int ret, ended;

		if (revoked(s, window->id, &ended))
			return pst_fail_errno(err, ECANCELED, PENSTOCK_WHY_CANCELLED,
					      "the client has released the window");
		if (ended)
			return pst_fail_errno(err, -ended, pst_why_from_errno(ended),
					      "the client has gone");
		ret = pst_wire_check(channel);
		if (ret)
			return io_fail(ret, err);
		ret = pst_wire_seg_copy(channel, &seg, m->dev, at, move->op == PENSTOCK_READ, err);
		if (ret)
			return ret;
		done += seg.len;
	}
	return 0;
}

/* Returns 0 if the move's bytes are in a file whose descriptor may be passed to the client. */
static int file_check(const struct shm1_peer *s, const struct pst_wire_move *move,
		      struct pst_err *err)
{
	if (move->op != PENSTOCK_READ || move->off || move->seg_count != 1)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "a window that takes a file takes one range of one file");
	if (s->no_files.code) {
		*err = s->no_files;
		return err->code;
	}
	return pst_wire_handover_file(&move->segs[0], err);
}

/* Reads the move's range of the file into the page cache. Otherwise the client would wait for the
 * drive when it copies the bytes, on a thread that serves other requests, too. This channel serves
 * one move at a time, and its wait ends at the deadline. */
static int file_fetch(struct pst_wire_channel *channel, const struct pst_wire_move *move,
		      struct pst_err *err)
{
	if (pst_wire_handover_cached(&move->segs[0]))
		return 0;
	for (uint64_t done = 0; done < move->len;) {
		struct penstock_object_seg seg = pst_wire_seg_at(move, done, PST_WIRE_STAGING);
		int ret = pst_wire_check(channel);

		if (ret)
			return io_fail(ret, err);
		ret = pst_wire_seg_copy(channel, &seg, NULL, channel->staging, true, err);
		if (ret)
			return ret;
		done += seg.len;
	}
	return 0;
}

/* Sends OPEN, with the object's file if the window takes one, and receives WINDOW. */
static int window_open(struct pst_wire_channel *channel, struct shm1_peer *s,
		       const struct pst_wire_move *move, struct pst_shm1_message *window,
		       struct pst_err *err)
{
	const struct pst_token *token = &move->remote->token;
	struct pst_shm1_message message = {.kind = PST_SHM1_OPEN,
					   .id = token->base,
					   .op = move->op,
					   .off = move->off,
					   .len = move->len};
	int fd = -1, ret = 0;

	memcpy(message.cap, token->shm.cap, sizeof(message.cap));
	if (token->shm.file) {
		ret = file_check(s, move, err);
		if (!ret)
			ret = file_fetch(channel, move, err);
		message.memory = move->segs[0].fd_off;
		fd = move->segs[0].fd;
	}
	if (!ret)
		ret = transmit(s, &message, fd, err);
	if (!ret)
		ret = receive(channel, s, PST_SHM1_WINDOW, window, &fd, err);
	if (ret)
		return ret;
	if (fd >= 0)
		close(fd);
	return window->status || window->id != token->base
		       ? pst_wire_status_fail(window->status ? window->status : PST_WIRE_REFUSED,
					      err)
		       : 0;
}

static int shm1_move(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		     struct pst_wire_move *move, struct pst_err *err)
{
	struct shm1_peer *s = (struct shm1_peer *)peer;
	struct pst_shm1_message done = {.kind = PST_SHM1_DONE, .id = move->remote->token.base};
	struct pst_shm1_message window;
	struct memory *m;
	int ret = window_open(channel, s, move, &window, err), code;

	/* The client copies the bytes of a file when it gets the response. */
	if (ret || move->remote->token.shm.file)
		return ret;
	ret = memory_find(channel, s, move, &window, &m, err);
	if (!ret &&
	    (window.len != move->len || window.off > m->len || move->len > m->len - window.off))
		ret = pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				     "the client's answer does not fit its memory");
	if (!ret) {
		m->used = ++s->moves;
		ret = copy_all(channel, s, move, m, &window, err);
	}
	for (unsigned i = 0; i < MEMORIES_MAX; i++)
		if (s->memories[i].doomed)
			memory_drop(channel->server->devices, &s->memories[i]);
	done.status = ret ? PST_WIRE_STOPPED : PST_WIRE_OK;
	done.len = ret ? 0 : move->len;
	code = transmit(s, &done, -1, ret ? &(struct pst_err){0} : err);
	return ret ? ret : code;
}

const struct pst_wire_server_ops pst_shm1_server = {
	.kind = PST_TOKEN_SHM1,
	.on_host = true,
	.peer_size = sizeof(struct shm1_peer),
	.admit = admit,
	.leads_to = leads_to,
	.connect = shm1_connect,
	.move = shm1_move,
	.idle = shm1_idle,
	.close = shm1_close,
};
