/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between the data plane and its transports. A transport has two tables: one for the
 * client half, and one for the server half. transports.c lists them, the preferred one first.
 *
 * Client half: one thread of a client serves all connections. A transfer accesses a window only
 * between pst_wire_enter and pst_wire_leave, or, if the server itself accesses the memory, between
 * its messages that open and close the window. A release waits for both. If a network card accesses
 * the memory, the transport has a function `unbind`, which ends the card's access.
 *
 * Server half: each channel is a thread, which carries out one move at a time, and has connections
 * of its own. So the functions of a transport need no lock. A wait goes through pst_wire_wait_fd,
 * which ends when the server is closed, and at the deadline of the move. A transport calls
 * pst_wire_check between two pieces of a move, because a client that keeps it busy causes no wait.
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
/* alignment of allocated memory; its length is a multiple of this */
#define PST_WIRE_ALIGN (2u << 20)
#define PST_WIRE_PAGE 4096u
#define PST_WIRE_HOLDERS_MAX 16 /* most servers of a buffer that the client watches */
#define PST_WIRE_NICS_MAX 8 /* most addresses of a client */
/* Most listeners of a client: one for each transport and address. */
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
	size_t len, mapped; /* mapped: length of allocated memory; 0 if the caller owns it */
	int fd, read_fd;    /* descriptors of allocated host memory, for reading and writing, and
			     * for reading only; -1: none */
	/* export of the memory, if it was allocated on a GPU */
	struct penstock_export exported;
	bool shared; /* shm1 can pass the memory to a server */
	bool direct; /* its windows use only transports that access the memory of `dev` */
	/* a release has cut off a server, so no window of the buffer can be opened any more */
	bool cut;
	bool stuck; /* a server that was not fenced may still access the memory */
	/* Memory of a GPU cannot be taken away from a server. These are the pidfds of servers that
	 * have lost their connections in the middle of a transfer: when such a process has ended,
	 * it accesses the memory no more. -1: a process that cannot be watched. */
	int holders[PST_WIRE_HOLDERS_MAX];
	unsigned holder_count;
	bool retired; /* its owner has closed it while a server may access the memory */
	uint64_t id;
	unsigned windows; /* number of open windows */
};

/* A window. All members but `live`, `settled` and `users` are constant while the window is open. */
struct pst_wire_grant {
	uint64_t
		/* id of the window, which is `base` in its token; the grant's index in the client's
		 * table is id % PENSTOCK_OBJECT_WINDOWS_MAX */
		id;
	unsigned char cap[PST_TOKEN_CAP];
	struct pst_wire_buffer *buffer;
	const struct pst_wire_client_ops *ops;
	struct pst_wire_listener *listener;
	void *bound; /* result of the transport's function `bind`; NULL if there is none */
	/* a judged response has shown that servers have ended all transfers */
	_Atomic bool settled;
	enum penstock_op op;
	uint64_t off, len;
	bool live;
	unsigned users; /* number of transfers that access the memory */
	char text[PST_TOKEN_MAX + 1];
	char why[96]; /* why the window does not have its nearest network card; or "" */
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
	void *state; /* state of the transport; NULL if it has none */
	/* the fields that are equal in all tokens of this listener */
	struct pst_token token;
	struct pst_wire_nic nic;   /* the network card, if the client has several addresses */
	_Atomic uint64_t avoid_ms; /* until this time, windows prefer other cards */
};

struct pst_wire_client {
	const struct pst_wire_devices *devices;
	unsigned generation; /* fork generation of the process that opened it */
	/* options of the caller; `users` points to a copy */
	struct penstock_object_client_opts opts;
	/* those of one transport are neighbours */
	struct pst_wire_listener listeners[PST_WIRE_LISTENERS_MAX];
	unsigned listener_count;
	pthread_t thread;
	bool running;
	int epoll, stop;
	struct pst_wire_counts counts;

	/* Protects all members below, the buffers, and the grants. No other lock is taken inside
	 * it. */
	pthread_mutex_t lock;
	pthread_cond_t idle; /* signalled when `users` of a closed grant becomes 0 */
	struct pst_wire_conn *conns;
	unsigned conn_count;
	struct pst_wire_buffer *buffers;
	unsigned buffer_count, retired_count;
	uint64_t next_buffer;
	struct pst_wire_grant *grants;
	struct pst_wire_grant *free, **free_end; /* list of free grants */
};

/* A connection from a server. A transport's struct begins with it. */
struct pst_wire_conn {
	struct pst_wire_client *client;
	const struct pst_wire_client_ops *ops;
	struct pst_wire_conn *next;
	int fd;
	uint32_t events;  /* events of epoll that the connection waits for */
	uint64_t last_ms; /* time of the last event */
	/* The window that the server has open by shm1; NULL if there is none. Protected by the
	 * lock. */
	struct pst_wire_grant *grant;
};

struct pst_wire_client_ops {
	const char *name;
	bool encrypted, on_host;
	bool named;   /* the transport is used only if the options name it */
	bool checked; /* bytes count as moved only if the response contains their CRC */
	/* no CPU copies the bytes, neither on this host nor on the server's */
	bool dma;
	bool direct; /* it accesses memory of a GPU without a copy in host memory */
	size_t conn_size; /* size of the transport's struct of a connection */
	/* Opens the listening socket and fills listener->token. */
	int (*listen)(struct pst_wire_client *client, struct pst_wire_listener *listener,
		      struct pst_err *err);
	/* Handles an event of listener->fd. NULL if listener->fd is a socket that accepts
	 * connections. */
	void (*event)(struct pst_wire_client *client, struct pst_wire_listener *listener);
	/* For a transport whose bytes move only during calls of the client: moves bytes. The
	 * client's thread calls it before it waits for events. Returns the maximum time in ms to
	 * wait; -1 means no limit. NULL for other transports. */
	int (*progress)(struct pst_wire_listener *listener);
	/* Frees listener->state, closes listener->fd and sets it to -1. NULL if the client shall
	 * close only listener->fd. */
	void (*unlisten)(struct pst_wire_client *client, struct pst_wire_listener *listener);
	/* Prepares the memory of a window, and sets grant->bound. If it fails, the client tries the
	 * next transport. NULL if no preparation is needed. */
	int (*bind)(struct pst_wire_grant *grant, struct pst_err *err);
	/* Takes the memory away from all servers: after it, no byte gets into the window. The error
	 * -ETIMEDOUT means that this cannot be guaranteed, and every other one that the bytes in
	 * the window may be wrong. Not NULL if `bind` is not NULL. */
	int (*unbind)(struct pst_wire_grant *grant, struct pst_err *err);
	/* Returns whether the transport can serve a window that begins at offset `off` of the
	 * buffer. */
	bool (*fits)(const struct pst_wire_listener *listener, const struct pst_wire_buffer *buffer,
		     uint64_t off);
	/* Adds the fields that identify the window to the token. */
	void (*fill)(const struct pst_wire_grant *grant, struct pst_token *token);
	/* Called for a new connection; a negative result closes it. */
	int (*accept)(struct pst_wire_conn *conn);
	/* Handles an event of the connection; a negative result closes it. */
	int (*ready)(struct pst_wire_conn *conn);
	/* With the lock: the connection ends while it has a window open. May be NULL. */
	void (*lost)(struct pst_wire_conn *conn);
	/* Frees the connection's resources, except its descriptor. */
	void (*close)(struct pst_wire_conn *conn);
	/* Tells servers that the window is closed. Called with the lock; may be NULL. */
	void (*revoke)(struct pst_wire_grant *grant);
	/* Cuts off servers that have not answered: ends their access to the memory. Called with the
	 * lock. NULL if a release waits until no server accesses the window. */
	int (*cut)(struct pst_wire_grant *grant, struct pst_err *err);
	/* Tells servers that the memory of a buffer is about to be freed. Called with the lock; may
	 * be NULL. */
	void (*drop)(struct pst_wire_buffer *buffer);
	/* The next three belong to a transport with requests of its own, instead of GET and PUT
	 * with a token; NULL for all others. See penstock_object_exchange and
	 * penstock_object_paired. */
	int (*compose)(struct pst_wire_grant *grant, const struct pst_wire_step *step,
		       const char **path, struct penstock_object_header *headers,
		       struct pst_err *err);
	int (*paired)(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		      struct penstock_object_verdict *verdict, struct pst_err *err);
	void (*judge)(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		      struct penstock_object_verdict *verdict);
};

/* A request of an exchange. */
struct pst_wire_step {
	enum penstock_object_step step;
	const char *target; /* of PREPARE */
	uint64_t offset;
};

/* Results of pst_wire_find, which also travel in messages. */
enum pst_wire_status {
	PST_WIRE_OK = 0,
	/* the window's id or capability is wrong, or the window was released; the server does not
	 * learn which */
	PST_WIRE_REFUSED = 1,
	PST_WIRE_OUTSIDE = 2,  /* range or direction do not fit the window */
	PST_WIRE_CHECKSUM = 3, /* the bytes were damaged */
	PST_WIRE_FAULT = 4,    /* the client could not access its memory */
	PST_WIRE_STOPPED = 5,  /* the server has stopped because the window was closed */
};

/* ---- server ---- */

struct pst_wire_server_ops;

struct pst_wire_remote {
	struct pst_wire_server *server;
	const struct pst_wire_server_ops *ops;
	struct pst_token token;
	void *state; /* of the transport; freed by `forget` */
	bool has_user;
	unsigned user;
	_Atomic unsigned refs;
};

struct pst_wire_move {
	struct pst_wire_move *next;
	struct pst_wire_remote *remote;
	enum penstock_op op;
	uint64_t off, len, user;
	/* time in ms by which the move must be complete; otherwise it fails */
	uint64_t deadline_ms;
	struct penstock_object_seg segs[PENSTOCK_OBJECT_SEGS_MAX];
	unsigned seg_count;
	bool has_crc64;
	uint64_t crc64; /* CRC-64/NVME of the bytes without the final complement */
	int64_t result;
	struct pst_err err;
};

/* A connection of a channel to a client. A transport's struct begins with it. */
struct pst_wire_peer {
	const struct pst_wire_server_ops *ops;
	struct pst_wire_peer *next;
	int fd;
};

struct pst_wire_channel {
	struct pst_wire_server *server;
	pthread_t thread;
	bool running;
	int epoll;		     /* waits for moves, for `stop` and for the connections */
	uint64_t deadline_ms;	     /* deadline of the move that is in progress, in ms */
	uint64_t silence_ms;	     /* longest time that one wait of this move may take */
	struct pst_wire_peer *peers; /* list of connections, the most recently used first */
	unsigned peer_count;
	unsigned char *staging; /* PST_WIRE_STAGING bytes */
};
#define PST_WIRE_STAGING (1u << 20)

/* A range of addresses. IPv4 addresses are IPv6 addresses of IPv4. */
struct pst_wire_network {
	unsigned char bytes[16];
	unsigned bits; /* of the bytes, which all addresses of the range have in common */
};
#define PST_WIRE_NETWORKS_MAX 16

struct pst_wire_server {
	const struct pst_wire_devices *devices;
	unsigned generation; /* fork generation of the process that opened it */
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
	int done; /* eventfd that is readable while completions wait */
	_Atomic uint64_t resolved, malformed, declined, moves, failed;
	/* number of bytes that have moved, by kind of token and direction: out (GET), in (PUT) */
	_Atomic uint64_t bytes[PST_TOKEN_KINDS][2];
	void *state[PST_TOKEN_KINDS]; /* of transports; freed by `end` */

	pthread_mutex_t lock; /* protects the members below */
	struct pst_wire_move *pool, *unused;
	struct pst_wire_move *queue, **queue_end;
	struct pst_wire_move *finished, **finished_end;
};

struct pst_wire_server_ops {
	enum pst_token_kind kind;
	bool encrypted, on_host;
	bool checked;	  /* a move computes the CRC of its bytes */
	size_t peer_size; /* size of the transport's struct of a connection */
	/* Decides whether the server serves the token. Returns 0 or -errno. */
	int (*admit)(const struct pst_wire_server *server, const struct pst_token *token,
		     const struct penstock_object_peer *peer, struct pst_err *err);
	/* Opens a session with a client, for the request PREPARE. Fills remote->state, and what
	 * `pairing` receives. NULL: a token is enough. */
	int (*prepare)(struct pst_wire_server *server, struct pst_wire_remote *remote,
		       const struct penstock_object_peer *peer,
		       struct penstock_object_pairing *pairing, struct pst_err *err);
	/* Begins the session's transfer. */
	int (*ready)(struct pst_wire_remote *remote, uint32_t qpn, uint64_t address, uint32_t key,
		     struct pst_err *err);
	/* Frees remote->state. The server may have been closed. May be NULL. */
	void (*forget)(struct pst_wire_remote *remote);
	/* Frees server->state[kind]. May be NULL. */
	void (*end)(struct pst_wire_server *server);
	/* Returns whether the connection leads to the client that has the remote window. */
	bool (*leads_to)(const struct pst_wire_peer *peer, const struct pst_wire_remote *remote);
	/* Connects to the client. Returns -EOPNOTSUPP if it cannot be reached. NULL: sessions
	 * have the connections, and `move` gets no peer. */
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

/* Compares two capabilities in a time that does not depend on their bytes. */
static inline bool pst_wire_same_cap(const unsigned char *a, const unsigned char *b)
{
	volatile unsigned char differ = 0;

	for (unsigned i = 0; i < PST_TOKEN_CAP; i++)
		differ |= a[i] ^ b[i];
	return !differ;
}

#endif
