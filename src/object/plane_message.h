/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between a plane (`penstock plane`) and its tenants, the processes that use it, over
 * a Unix socket of type SOCK_SEQPACKET. Each connection is one tenant. Its first message is HELLO,
 * with its role and the versions that it supports. The plane replies WELCOME, or ANSWER with an
 * error. The plane replies to every other message of a tenant with one ANSWER, which has the same
 * number `seq`. The only exception is FD, which gets no reply: it passes a file descriptor, which
 * the next message names by the descriptor's slot number.
 *
 * The plane numbers the memory, windows and remote windows of each tenant, and messages name them
 * by these numbers. The plane looks up a number only among those of the same connection. So no
 * tenant can name objects of another tenant.
 *
 * Every message has a fixed length, which depends only on its kind. A process accepts a message
 * only if pst_plane_check finds that its length is right, that each text ends with a NUL, and that
 * each count is within its limits. Both processes are on one host, so integers are in the byte
 * order of the host.
 */
#ifndef PST_OBJECT_PLANE_MESSAGE_H
#define PST_OBJECT_PLANE_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"
#include "penstock_object.h"

#define PST_PLANE_MAGIC 0x4e4c5053u /* "SPLN" */
/* The versions that this code supports. A later version may change all messages except HELLO. */
#define PST_PLANE_VERSION_MIN 1u
#define PST_PLANE_VERSION_MAX 1u
/* maximum number of descriptors for one message */
#define PST_PLANE_SLOTS PENSTOCK_OBJECT_SEGS_MAX
#define PST_PLANE_KEY_MAX 1024
#define PST_PLANE_BUCKET_MAX 255

enum pst_plane_role {
	PST_PLANE_CLIENT = 1, /* a tenant whose HTTP requests the plane sends */
	/* a tenant for which the plane moves bytes to and from windows of clients */
	PST_PLANE_SERVER = 2,
};

enum pst_plane_kind {
	/* sent by tenants of both roles */
	PST_PLANE_HELLO = 1,
	PST_PLANE_FD,
	PST_PLANE_PING,
	PST_PLANE_INFO,
	/* shares memory; earlier FD messages have passed the memory's file descriptors */
	PST_PLANE_MEMORY,
	PST_PLANE_MEMORY_CLOSE,
	/* clients */
	PST_PLANE_WINDOW,
	PST_PLANE_RELEASE,
	PST_PLANE_START,
	/* servers */
	PST_PLANE_RESOLVE,
	PST_PLANE_FORGET,
	PST_PLANE_MOVE,
	/* sent by the plane */
	PST_PLANE_WELCOME,
	PST_PLANE_ANSWER,
	PST_PLANE_COUNTS, /* reply to INFO */
	PST_PLANE_ENDED,  /* the HTTP request of an earlier START has completed */
	PST_PLANE_MOVED,  /* the transfer that an earlier MOVE requested has completed */
	PST_PLANE_KINDS,
};

struct pst_plane_hello {
	/* the lowest and the highest version that the tenant supports */
	uint32_t first, last;
	uint32_t role;
	uint32_t require_encryption;
};

struct pst_plane_welcome {
	uint32_t version;
	/* maximum number of operations in flight that the plane accepts from this tenant */
	uint32_t in_flight;
};

struct pst_plane_fd {
	uint32_t slot;
};

struct pst_plane_memory {
	uint64_t len;
	uint32_t cuda; /* 1: `exported` describes memory of a GPU */
	/* Number of descriptors of the memory. For host memory it is 2: slot 0 has a descriptor for
	 * reading and writing, and slot 1 one for reading only. For memory of a GPU it is 1 if
	 * `exported` has a descriptor, which is in slot 0, otherwise 0. For memory of a GPU, slot 1
	 * always has the plane's end of the lease (see shared.h), which `fds` does not count. */
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

/* A range of memory, or of a file whose descriptor an FD message has passed as `slot`. */
struct pst_plane_seg {
	uint64_t memory, off, len;
	uint32_t is_file, slot;
};

struct pst_plane_move {
	uint64_t remote, off, user;
	uint32_t op, seg_count;
	struct pst_plane_seg segs[PENSTOCK_OBJECT_SEGS_MAX];
};

/* ANSWER, the plane's reply to a question of a tenant. */
struct pst_plane_answer {
	int32_t result; /* 0 or a negative errno */
	uint32_t why;	/* enum penstock_why */
	/* number of the new object, in answers to MEMORY, WINDOW and RESOLVE */
	uint64_t id;
	uint64_t len; /* length of the window, in answers to RESOLVE */
	uint32_t encrypted, on_host;
	/* for RELEASE: 1 if a server may still access the pages, so that the tenant must replace
	 * them */
	uint32_t cut;
	char transport[16];
	char text[PENSTOCK_TEXT_MAX];
};

struct pst_plane_counts {
	union {
		struct penstock_object_client_info client;
		/* its pointers to names of transports are not valid; `transports` has the names */
		struct penstock_object_server_info server;
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
	/* number of the question, which the answer repeats; 0 in ENDED and MOVED */
	uint64_t seq;
	union {
		struct pst_plane_hello hello;
		struct pst_plane_welcome welcome;
		struct pst_plane_fd fd;
		struct pst_plane_memory memory;
		struct pst_plane_name name; /* for MEMORY_CLOSE, RELEASE and FORGET */
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

/* Returns the length in bytes of messages of this kind, or 0 if the kind does not exist. */
size_t pst_plane_len(unsigned kind);
/* Checks a message of `len` bytes from another process. `from_plane` is true if the sender is a
 * plane, and `has_fd` is true if the message came with a descriptor. Returns 0 or -EPROTO. */
int pst_plane_check(const struct pst_plane_message *message, size_t len, bool from_plane,
		    bool has_fd);
/* Sends a message, with the descriptor `fd` unless it is negative. If the socket's queue is full,
 * waits up to the socket's SO_SNDTIMEO. Returns 0 or -errno. */
int pst_plane_send(int sock, struct pst_plane_message *message, int fd);
/* Receives a message without waiting. Returns 1 after success, or 0 if no message has arrived.
 * Returns -ECONNRESET if the other process has closed the connection, -EPROTO if the message is
 * malformed, or another -errno. Stores the descriptor of the message, or -1, in *fd. */
int pst_plane_receive(int sock, struct pst_plane_message *message, bool from_plane, int *fd);
/* Sets the maximum time that pst_plane_send waits, and enlarges the socket's queue for several
 * messages. */
void pst_plane_socket_set(int sock, unsigned timeout_ms);

#endif
