/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between the code for S3 over RDMA (client.c, server.c) and its transports, such as
 * shm1 and tcp1. A transport has two tables of functions: one for the client half, and one for the
 * server half. transports.c lists them, the preferred one first.
 *
 * Client half: one thread of a client serves all connections. A transfer accesses a window only
 * between pst_wire_enter and pst_wire_leave. If the server itself accesses the memory (shm1), the
 * access is between the server's messages OPEN and DONE. A release waits until all these accesses
 * have ended. If a network card accesses the memory, the transport has a function `unbind`, which
 * ends the card's access.
 *
 * Server half: a move is a transfer of bytes between the server's memory and a client's window.
 * Each channel is a thread, which carries out one move at a time, and has its own connections. So
 * the functions of a transport need no lock. A transport waits only in pst_wire_wait_fd, which ends
 * when the server is closed, and at the deadline of the move. Between two pieces of a move, a
 * transport calls pst_wire_check, because a fast client may never make it wait.
 */
#ifndef PST_WIRE_TRANSPORT_H
#define PST_WIRE_TRANSPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "s3/token.h"
#include "wire/wire.h"

#define PST_WIRE_CONNS_MAX 256	  /* maximum number of connections of a client */
#define PST_WIRE_BUFFERS_MAX 1024 /* maximum number of buffers of a client */
#define PST_WIRE_PEERS_MAX 16	  /* maximum number of connections of a channel */
/* alignment in bytes of memory that the client allocates; its length is a multiple of this */
#define PST_WIRE_ALIGN (2u << 20)
#define PST_WIRE_PAGE 4096u
/* maximum number of servers whose processes the client watches for one buffer (holders.c) */
#define PST_WIRE_HOLDERS_MAX 16
#define PST_WIRE_NICS_MAX 8 /* maximum number of addresses of a client */
/* Maximum number of listeners of a client: one for each transport and address. */
#define PST_WIRE_LISTENERS_MAX (PENSTOCK_OBJECT_TRANSPORTS_MAX * PST_WIRE_NICS_MAX)

/* ---- client ---- */

struct pst_wire_conn;
struct pst_wire_client_ops;
struct pst_wire_step;

/* Registered memory of a client: `len` bytes at `ptr`. */
struct pst_wire_buffer {
	struct pst_wire_client *client;
	struct pst_wire_buffer *next;
	struct penstock_device *dev; /* device of the memory; NULL for host memory */
	uint64_t serial;	     /* of the device */
	unsigned char *ptr;
	/* mapped: bytes that the client has allocated; 0 if the caller owns the memory */
	size_t len, mapped;
	/* Descriptors of allocated host memory: `fd` for reading and writing, and `read_fd` for
	 * reading only. -1 if there is none. */
	int fd, read_fd;
	/* description of the memory for other processes, if the client allocated it on a GPU */
	struct penstock_export exported;
	bool shared; /* whether transport shm1 can pass the memory to a server */
	/* true for the buffer of all windows that take a file; it has no memory of its own */
	bool takes_files;
	/* whether windows may use only transports that access the memory of `dev` without host
	 * copies */
	bool direct;
	/* true if a release has ended a server's access by force; then no window can be opened any
	 * more */
	bool cut;
	bool stuck; /* true if a server whose access was not ended may still access the memory */
	/* Access to memory of a GPU cannot be revoked. These are the pidfds of servers that lost
	 * their connections in the middle of a transfer. When such a process has ended, it cannot
	 * access the memory any more. -1: a process that cannot be watched. */
	int holders[PST_WIRE_HOLDERS_MAX];
	unsigned holder_count;
	/* true if the buffer's owner has closed it while a server may still access its memory */
	bool retired;
	uint64_t id;
	unsigned windows; /* number of open windows */
};

/* A window: a range of a buffer that a server may read or write. All members except `live`,
 * `settled`, `users` and those of the passed file are constant while the window is open. */
struct pst_wire_grant {
	uint64_t
		/* id of the window, which is `base` in its token; the grant's index in the client's
		 * table is id % PENSTOCK_OBJECT_WINDOWS_MAX */
		id;
	unsigned char cap[PST_TOKEN_CAP];
	struct pst_wire_buffer *buffer;
	const struct pst_wire_client_ops *ops;
	struct pst_wire_listener *listener;
	void *bound; /* what the transport's function `bind` has stored; NULL if there is nothing */
	/* whether a response has proved that servers have ended all transfers */
	_Atomic bool settled;
	enum penstock_op op;
	uint64_t off, len;
	/* For a window that takes a file (handover.h): the memory to which the client copies the
	 * bytes; NULL for other windows. */
	unsigned char *mem;
	/* The file that a server has passed: a descriptor, or -1 if there is none, and the range of
	 * the window's bytes in it. */
	int file;
	uint64_t file_off, file_len;
	/* value of counts.wrong_user when the window was opened */
	uint64_t wrong_user;
	bool live;
	unsigned users; /* number of transfers in progress that access the memory */
	char text[PST_TOKEN_MAX + 1];
	/* why the window does not use the network card nearest to its memory; "" if it does */
	char why[96];
	struct pst_wire_grant *next; /* next free grant */
};

struct pst_wire_counts {
	_Atomic uint64_t windows, bytes, late, wrong_cap, wrong_user, out_of_window, bad_checksum,
		malformed, cut_off, stuck;
};

/* A listening socket of a client, or another descriptor of a transport that has no such socket. */
struct pst_wire_listener {
	const struct pst_wire_client_ops *ops;
	int fd;
	void *state; /* state of the transport for this listener; NULL if it has none */
	/* the fields that are equal in all tokens of this listener */
	struct pst_token token;
	struct pst_wire_nic nic;   /* the network card, if the client has several addresses */
	/* time (pst_now_ns) until which windows prefer other cards, because a transfer has failed
	 * on this one */
	_Atomic uint64_t avoid_ns;
};

/* Transports that a client leaves out, in addition to those that its options exclude. */
enum pst_wire_omit {
	/* those that work only if the server is on the client's host */
	PST_WIRE_OMIT_ON_HOST = 1,
	/* those that are no faster than HTTP, unless the options name them */
	PST_WIRE_OMIT_SLOW = 2,
};

struct pst_wire_client {
	const struct pst_wire_devices *devices;
	/* number that differs between a process and its forked child (core/base/fork.h); stored at
	 * the open for pst_fork_check */
	unsigned generation;
	/* options of the caller; `users` points to a copy */
	struct penstock_object_client_opts opts;
	unsigned omit; /* enum pst_wire_omit */
	/* the listeners of one transport are consecutive */
	struct pst_wire_listener listeners[PST_WIRE_LISTENERS_MAX];
	unsigned listener_count;
	pthread_t thread;
	bool running;
	int epoll, stop;
	struct pst_wire_counts counts;
	/* user of the last server that counts.wrong_user counts; stored before it is counted */
	_Atomic unsigned refused_user;

	/* Protects all members below, the buffers, and the grants. No other lock is taken while it
	 * is held. */
	pthread_mutex_t lock;
	pthread_cond_t idle; /* signalled when `users` of a closed grant becomes 0 */
	struct pst_wire_conn *conns;
	unsigned conn_count;
	struct pst_wire_buffer *buffers;
	/* the buffer of all windows that take a file; not in the list */
	struct pst_wire_buffer anywhere;
	unsigned buffer_count, retired_count;
	uint64_t next_buffer;
	struct pst_wire_grant *grants;
	struct pst_wire_grant *free, **free_end; /* list of the grants that no window uses */
};

/* A connection from a server. Each transport has its own struct for a connection, whose first
 * member is this struct. */
struct pst_wire_conn {
	struct pst_wire_client *client;
	const struct pst_wire_client_ops *ops;
	struct pst_wire_conn *next;
	int fd;
	uint32_t events;  /* epoll events for which the client's thread waits on this connection */
	uint64_t last_ms; /* time in ms of the connection's last event */
	/* The window that the server has open by shm1; NULL if there is none. client->lock protects
	 * it. */
	struct pst_wire_grant *grant;
};

struct pst_wire_client_ops {
	const char *name;
	/* on_host: the bytes do not leave the host, so client and server must be on one host */
	bool encrypted, on_host;
	bool named;   /* true if a client uses the transport only when its options name it */
	bool slow;    /* the transport is no faster than the body of an HTTP response */
	bool checked; /* bytes count as moved only if the response contains their CRC */
	/* no CPU copies the bytes, neither on this host nor on the server's */
	bool dma;
	/* true if the transport accesses memory of a GPU without a copy in host memory */
	bool direct;
	/* true if a server can pass the object's file, so that the client copies the bytes */
	bool takes_files;
	/* true if a window may permit servers both to read and to write its memory */
	bool either_way;
	size_t conn_size; /* size in bytes of the transport's struct for a connection */
	/* Opens the listening socket and fills listener->token. */
	int (*listen)(struct pst_wire_client *client, struct pst_wire_listener *listener,
		      struct pst_err *err);
	/* Handles an event of listener->fd. NULL if listener->fd is a socket that accepts
	 * connections. */
	void (*event)(struct pst_wire_client *client, struct pst_wire_listener *listener);
	/* Moves bytes, for a transport whose bytes move only during calls of this function; NULL
	 * for all other transports. The client's thread calls it before it waits for events.
	 * Returns the maximum time in ms of that wait; -1 means no limit. */
	int (*progress)(struct pst_wire_listener *listener);
	/* Frees listener->state, closes listener->fd and sets it to -1. NULL if closing
	 * listener->fd, which the client then does, is enough. */
	void (*unlisten)(struct pst_wire_client *client, struct pst_wire_listener *listener);
	/* Prepares the memory of a window, and sets grant->bound. If it fails, the client tries the
	 * next transport. NULL if no preparation is needed. */
	int (*bind)(struct pst_wire_grant *grant, struct pst_err *err);
	/* Ends the access of all servers to the memory, so that no byte gets into the window
	 * afterwards. Returns -ETIMEDOUT if this cannot be guaranteed. Any other error means that
	 * the bytes in the window may be wrong. Not NULL if `bind` is not NULL. */
	int (*unbind)(struct pst_wire_grant *grant, struct pst_err *err);
	/* Returns whether the transport can serve a window that begins at offset `off` of the
	 * buffer. */
	bool (*fits)(const struct pst_wire_listener *listener, const struct pst_wire_buffer *buffer,
		     uint64_t off);
	/* Stores in the token the fields that identify the window. */
	void (*fill)(const struct pst_wire_grant *grant, struct pst_token *token);
	/* Called for a new connection; a negative result closes it. */
	int (*accept)(struct pst_wire_conn *conn);
	/* Handles an event of the connection; a negative result closes it. */
	int (*ready)(struct pst_wire_conn *conn);
	/* Adds to the verdict's text why this client has refused the server, if it has. The server
	 * has not moved the bytes, and does not know the reason. May be NULL. */
	void (*explain)(const struct pst_wire_grant *grant,
			struct penstock_object_verdict *verdict);
	/* Called when the connection ends while its server has a window open. The caller holds
	 * client->lock. May be NULL. */
	void (*lost)(struct pst_wire_conn *conn);
	/* Frees what the transport has allocated for the connection, except its descriptor. */
	void (*close)(struct pst_wire_conn *conn);
	/* Requests that servers stop their transfers of the window. The caller holds client->lock.
	 * May be NULL. */
	void (*revoke)(struct pst_wire_grant *grant);
	/* Ends the access of servers that have not replied to `revoke`. The caller holds
	 * client->lock. NULL if a release waits without limit until no server accesses the
	 * window. */
	int (*cut)(struct pst_wire_grant *grant, struct pst_err *err);
	/* Informs servers that the memory of a buffer is about to be freed. The caller holds
	 * client->lock. May be NULL. */
	void (*drop)(struct pst_wire_buffer *buffer);
	/* `compose`, `paired` and `judge` are for the transport hipobj-rc-v2, which sends other
	 * requests instead of a GET or PUT that carries a token. They are NULL for all other
	 * transports. See penstock_object_exchange and penstock_object_paired. */
	int (*compose)(struct pst_wire_grant *grant, const struct pst_wire_step *step,
		       const char **path, struct penstock_object_header *headers,
		       struct pst_err *err);
	int (*paired)(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		      struct penstock_object_verdict *verdict, struct pst_err *err);
	void (*judge)(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		      struct penstock_object_verdict *verdict);
};

/* A request PREPARE, READY or CANCEL. The transport hipobj-rc-v2 sends these requests instead of a
 * GET or PUT that carries a token. */
struct pst_wire_step {
	enum penstock_object_step step;
	const char *target; /* for PREPARE: the path of the object */
	uint64_t offset;
};

/* Results of pst_wire_find. Messages between client and server also contain them. */
enum pst_wire_status {
	PST_WIRE_OK = 0,
	/* The window's id or capability is wrong, or the window was released. One status for all
	 * cases keeps a server from finding out which ids exist. */
	PST_WIRE_REFUSED = 1,
	PST_WIRE_OUTSIDE = 2,  /* range or direction do not fit the window */
	PST_WIRE_CHECKSUM = 3, /* the checksum shows that bytes were damaged */
	PST_WIRE_FAULT = 4,    /* the client could not access its memory */
	PST_WIRE_STOPPED = 5,  /* the server has stopped because the window was closed */
};

/* ---- server ---- */

struct pst_wire_server_ops;

struct pst_wire_remote {
	struct pst_wire_server *server;
	const struct pst_wire_server_ops *ops;
	struct pst_token token;
	void *state; /* state of the transport for this window; freed by `forget` */
	bool has_user;
	unsigned user;
	_Atomic unsigned refs;
};

struct pst_wire_move {
	struct pst_wire_move *next;
	struct pst_wire_remote *remote;
	enum penstock_op op;
	uint64_t off, len, user;
	/* time in ms by which the move must be complete; after it the move fails */
	uint64_t deadline_ms;
	struct penstock_object_seg segs[PENSTOCK_OBJECT_SEGS_MAX];
	unsigned seg_count;
	bool has_crc64;
	uint64_t crc64; /* CRC-64/NVME of the bytes moved so far, without the final complement */
	int64_t result;
	struct pst_err err;
};

/* A connection of a channel (worker thread) to a client. Each transport has its own struct for a
 * connection, whose first member is this struct. */
struct pst_wire_peer {
	const struct pst_wire_server_ops *ops;
	struct pst_wire_peer *next;
	int fd;
};

struct pst_wire_channel {
	struct pst_wire_server *server;
	pthread_t thread;
	bool running;
	/* epoll descriptor that waits for moves, for `stop` and for the connections */
	int epoll;
	uint64_t deadline_ms;	     /* deadline of the move that is in progress, in ms */
	uint64_t silence_ms;	     /* longest time that one wait of this move may take */
	struct pst_wire_peer *peers; /* list of connections, the most recently used first */
	unsigned peer_count;
	/* host memory of PST_WIRE_STAGING bytes, for bytes that cannot be moved directly */
	unsigned char *staging;
};
#define PST_WIRE_STAGING (1u << 20)

/* A range of IP addresses. IPv4 addresses have the IPv4-mapped form of IPv6. */
struct pst_wire_network {
	unsigned char bytes[16];
	unsigned bits; /* number of leading bits that all addresses of the range have in common */
};
#define PST_WIRE_NETWORKS_MAX 16

struct pst_wire_server {
	const struct pst_wire_devices *devices;
	/* number that differs between a process and its forked child (core/base/fork.h); stored at
	 * the open for pst_fork_check */
	unsigned generation;
	struct penstock_object_server_opts opts;
	const struct pst_wire_server_ops *ops[PENSTOCK_OBJECT_TRANSPORTS_MAX];
	unsigned ops_count;
	unsigned char host[PST_TOKEN_HOST];
	bool has_host;
	struct pst_wire_network networks[PST_WIRE_NETWORKS_MAX];
	unsigned network_count;
	struct pst_wire_channel *channels;
	int jobs; /* eventfd that counts queued moves */
	int stop; /* eventfd that becomes readable when the server is closed */
	int done; /* eventfd that is readable while completed moves wait to be taken */
	_Atomic uint64_t resolved, malformed, declined, moves, failed;
	/* Number of bytes that have moved, by kind of token and by direction: [0] out (GET), [1] in
	 * (PUT). */
	_Atomic uint64_t bytes[PST_TOKEN_KINDS][2];
	void *state[PST_TOKEN_KINDS]; /* states of the transports; freed by `end` */

	pthread_mutex_t lock; /* protects the members below */
	struct pst_wire_move *pool, *unused;
	struct pst_wire_move *queue, **queue_end;
	struct pst_wire_move *finished, **finished_end;
};

struct pst_wire_server_ops {
	enum pst_token_kind kind;
	bool encrypted, on_host;
	bool checked;	  /* whether a move computes the CRC of its bytes */
	size_t peer_size; /* size in bytes of the transport's struct for a connection */
	/* Decides whether the server serves the token. Returns 0 or -errno. */
	int (*admit)(const struct pst_wire_server *server, const struct pst_token *token,
		     const struct penstock_object_peer *peer, struct pst_err *err);
	/* Opens a session with a client, after the request PREPARE. Stores it in remote->state, and
	 * stores the server's values for the client in *pairing. NULL if a transport needs no
	 * session. */
	int (*prepare)(struct pst_wire_server *server, struct pst_wire_remote *remote,
		       const struct penstock_object_peer *peer,
		       struct penstock_object_pairing *pairing, struct pst_err *err);
	/* Handles the request READY: stores the client's values, so that moves of the session may
	 * begin. */
	int (*ready)(struct pst_wire_remote *remote, uint32_t qpn, uint64_t address, uint32_t key,
		     struct pst_err *err);
	/* Frees remote->state. The server may have been closed. May be NULL. */
	void (*forget)(struct pst_wire_remote *remote);
	/* Frees server->state[kind]. May be NULL. */
	void (*end)(struct pst_wire_server *server);
	/* Returns whether the connection is one to the client of the remote window. */
	bool (*leads_to)(const struct pst_wire_peer *peer, const struct pst_wire_remote *remote);
	/* Connects to the client. Returns -EOPNOTSUPP if the client cannot be reached. NULL for a
	 * transport whose sessions contain the connections; the function `move` then gets NULL as
	 * `peer`. */
	int (*connect)(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		       const struct pst_wire_remote *remote, struct pst_err *err);
	/* Moves all bytes of `move`. If it fails, the channel closes the connection. */
	int (*move)(struct pst_wire_channel *channel, struct pst_wire_peer *peer,
		    struct pst_wire_move *move, struct pst_err *err);
	/* Called if the connection's descriptor is readable between two moves. A negative result
	 * closes the connection. */
	int (*idle)(struct pst_wire_channel *channel, struct pst_wire_peer *peer);
	void (*close)(struct pst_wire_channel *channel, struct pst_wire_peer *peer);
};

/* ---- both ---- */

extern const struct pst_wire_client_ops pst_shm1_client, pst_rc1_client, pst_tcp1_client,
	pst_ofi1_client, pst_hipobj_client, pst_dc_client;
extern const struct pst_wire_server_ops pst_shm1_server, pst_rc1_server, pst_tcp1_server,
	pst_ofi1_server, pst_hipobj_server, pst_dc_server;

/* Compares two capabilities. The time does not depend on their bytes, so that it reveals nothing
 * about them. */
static inline bool pst_wire_same_cap(const unsigned char *a, const unsigned char *b)
{
	volatile unsigned char differ = 0;

	for (unsigned i = 0; i < PST_TOKEN_CAP; i++)
		differ |= a[i] ^ b[i];
	return !differ;
}

#endif
