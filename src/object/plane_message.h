/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between a plane (`penstock plane`) and its tenants, over a Unix socket of type
 * SOCK_SEQPACKET. A tenant is one connection. Its first message is HELLO, which names the role and
 * the versions that it speaks; the plane answers WELCOME, or ANSWER with an error. All other
 * messages of a tenant get one ANSWER with the same number `seq`, except FD, which gets none: it
 * passes a descriptor, which the next message takes from its slot.
 *
 * Windows, memory and remote windows are named by numbers of the plane. It looks a number up among
 * those of the connection only, so no tenant can name what belongs to another one.
 *
 * Every message has a fixed length that depends on its kind only. A process accepts a message only
 * if pst_plane_check finds its length right, each text terminated, and each count within bounds.
 * Both processes are on one host, so integers are in its byte order.
 */
#ifndef PST_OBJECT_PLANE_MESSAGE_H
#define PST_OBJECT_PLANE_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"
#include "penstock_object.h"

#define PST_PLANE_MAGIC 0x4e4c5053u /* "SPLN" */
/* Versions that this code speaks. A later version may change all messages but HELLO. */
#define PST_PLANE_VERSION_MIN 1u
#define PST_PLANE_VERSION_MAX 1u
#define PST_PLANE_SLOTS PENSTOCK_OBJECT_SEGS_MAX /* descriptors that FD may pass for one message \
						  */
#define PST_PLANE_KEY_MAX 1024
#define PST_PLANE_BUCKET_MAX 255

enum pst_plane_role {
	PST_PLANE_CLIENT = 1, /* the plane sends requests and opens windows to servers */
	PST_PLANE_SERVER = 2, /* the plane moves bytes to and from the windows of clients */
};

enum pst_plane_kind {
	/* both roles */
	PST_PLANE_HELLO = 1,
	PST_PLANE_FD,
	PST_PLANE_PING,
	PST_PLANE_INFO,
	PST_PLANE_MEMORY, /* passes memory, whose descriptors are in the slots */
	PST_PLANE_MEMORY_CLOSE,
	/* clients */
	PST_PLANE_WINDOW,
	PST_PLANE_RELEASE,
	PST_PLANE_START,
	/* servers */
	PST_PLANE_RESOLVE,
	PST_PLANE_FORGET,
	PST_PLANE_MOVE,
	/* from the plane */
	PST_PLANE_WELCOME,
	PST_PLANE_ANSWER,
	PST_PLANE_COUNTS, /* answers INFO */
	PST_PLANE_ENDED,  /* a request of START has completed */
	PST_PLANE_MOVED,  /* a move has completed */
	PST_PLANE_KINDS,
};

struct pst_plane_hello {
	uint32_t first, last; /* versions that the tenant speaks */
	uint32_t role;
	uint32_t require_encryption;
};

struct pst_plane_welcome {
	uint32_t version;
	uint32_t in_flight; /* most requests or moves in flight */
};

struct pst_plane_fd {
	uint32_t slot;
};

struct pst_plane_memory {
	uint64_t len;
	uint32_t cuda; /* 1: `exported` describes memory of a GPU */
	/* Slots in use. Host memory: 2, for reading and writing, and for reading only. Memory of
	 * a GPU: 1 if `exported` has a descriptor. */
	uint32_t fds;
	unsigned char exported[sizeof(((struct penstock_export *)0)->bytes)];
};

struct pst_plane_name {
	uint64_t id;
};

struct pst_plane_window {
	uint64_t memory, off, len;
	uint32_t op;
};

struct pst_plane_start {
	uint64_t window, user, off;
	uint32_t flags, key_len;
	char bucket[PST_PLANE_BUCKET_MAX + 1];
	char key[PST_PLANE_KEY_MAX + 1];
	char if_match[sizeof(((struct penstock_object_end *)0)->etag)];
};

struct pst_plane_resolve {
	uint32_t token_len;
	uint32_t has_address, has_user, user;
	char address[64];
	char token[PENSTOCK_OBJECT_TOKEN_MAX + 1];
};

/* A piece of memory, or of a file whose descriptor is in a slot. */
struct pst_plane_seg {
	uint64_t memory, off, len;
	uint32_t is_file, slot;
};

struct pst_plane_move {
	uint64_t remote, off, user;
	uint32_t op, seg_count;
	struct pst_plane_seg segs[PENSTOCK_OBJECT_SEGS_MAX];
};

/* Result of a message. */
struct pst_plane_answer {
	int32_t result; /* 0 or a negative errno */
	uint32_t why;	/* enum penstock_why */
	uint64_t id;	/* MEMORY, WINDOW, RESOLVE: number of what was made */
	uint64_t len;	/* RESOLVE: length of the window */
	uint32_t encrypted, on_host;
	uint32_t cut; /* RELEASE: a server may still have the pages: replace them */
	char transport[16];
	char text[PENSTOCK_TEXT_MAX];
};

struct pst_plane_counts {
	union {
		struct penstock_object_client_info client;
		struct penstock_object_server_info server; /* without the names of transports */
	};
	char transports[PENSTOCK_OBJECT_TRANSPORTS_MAX][16];
};

struct pst_plane_ended {
	uint32_t why;
	struct penstock_object_end end;
};

struct pst_plane_moved {
	uint32_t why;
	struct penstock_object_done done;
};

struct pst_plane_message {
	uint32_t magic;
	uint16_t version, kind;
	uint64_t seq; /* of the question, also in its answer; 0 in ENDED and MOVED */
	union {
		struct pst_plane_hello hello;
		struct pst_plane_welcome welcome;
		struct pst_plane_fd fd;
		struct pst_plane_memory memory;
		struct pst_plane_name name; /* MEMORY_CLOSE, RELEASE, FORGET */
		struct pst_plane_window window;
		struct pst_plane_start start;
		struct pst_plane_resolve resolve;
		struct pst_plane_move move;
		struct pst_plane_answer answer;
		struct pst_plane_counts counts;
		struct pst_plane_ended ended;
		struct pst_plane_moved moved;
	};
};

/* Returns the length of a message of this kind, or 0 if there is none. */
size_t pst_plane_len(unsigned kind);
/* Checks a message of `len` bytes from another process. `from_plane` tells which process has sent
 * it, and has_fd whether it came with a descriptor. Returns 0 or -EPROTO. */
int pst_plane_check(const struct pst_plane_message *message, size_t len, bool from_plane,
		    bool has_fd);
/* Sends a message, with the descriptor `fd` unless it is negative. Waits for room in the socket's
 * queue, for at most the socket's SO_SNDTIMEO. Returns 0 or -errno. */
int pst_plane_send(int sock, struct pst_plane_message *message, int fd);
/* Receives a message without waiting. Returns 1, 0 if there is none, or -errno: -ECONNRESET if the
 * other process has closed the connection, and -EPROTO if the message is malformed. *fd receives
 * its descriptor, or -1. */
int pst_plane_receive(int sock, struct pst_plane_message *message, bool from_plane, int *fd);
/* Sets the longest time of pst_plane_send, and room for several messages. */
void pst_plane_socket_set(int sock, unsigned timeout_ms);

#endif
