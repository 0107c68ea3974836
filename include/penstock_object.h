/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_object.h - S3 over RDMA without HTTP: the bytes of an object move between a server and
 * the memory of a client, while requests and responses stay ordinary HTTP of the application.
 * It is built on penstock.h and follows the conventions of that header for errors, units,
 * ownership, threads, and structs that begin with `size`.
 *
 *	struct penstock_object_client *client;
 *	struct penstock_object_buffer *buffer;
 *	struct penstock_object_window *window;
 *	struct penstock_object_header headers[PENSTOCK_OBJECT_HEADERS_MAX];
 *
 *	penstock_object_client_open(NULL, &client);
 *	penstock_object_alloc(client, gpu, len, &buffer);
 *	penstock_object_window_open(buffer, PENSTOCK_READ, 0, len, &window);
 *	n = penstock_object_headers(window, headers, PENSTOCK_OBJECT_HEADERS_MAX);
 *
 * The client sends the headers with its signed request, gives the response's status and headers to
 * penstock_object_judge, and then calls penstock_object_release. Only after the release may it use
 * the window's memory for something else.
 *
 * The server gives the header x-amz-rdma-token to penstock_object_resolve, moves bytes with
 * penstock_object_move, and asks penstock_object_answer_fill for the response's status and headers.
 * The server starts every transfer, and sends its response when the transfer is complete.
 *
 * A transport moves the bytes. "shm1" copies through memory that client and server share on one
 * host, and also copies to and from CUDA memory. For reads of s3:// into host memory, the server
 * may instead pass the object's file to the client (`pass_files`). With "rc1", the server's RDMA
 * network card reads and writes the client's memory through the client's card. "tcp1" works between
 * any two hosts. "ofi1" uses a provider of libfabric, and only if both sides name it. The bytes of
 * rc1, tcp1 and ofi1 are not encrypted.
 *
 * Two further transports are experimental, and are used only if both sides name them. They speak
 * protocols that other projects have defined. Their bytes are not encrypted either. "hipobj-rc-v2"
 * speaks the protocol of AMD's hipObject, and needs RDMA network cards with RoCE v2. A client of it
 * sends other requests than GET and PUT, see penstock_object_exchange. "DC_V1" speaks the protocol
 * of NVIDIA's cuObject, and needs network cards with NVIDIA's dynamically connected transport. No
 * test has run DC_V1 on such a card.
 *
 * A plane is another process (`penstock plane`) that holds the network card, and for clients also
 * the keys of the object store. The option `plane` of a client or a server names the plane's
 * socket. The application then makes the same calls, but the plane carries them out, and the
 * application's process has only its windows. A client with a plane sends no HTTP requests of its
 * own: penstock_object_start lets the plane GET or PUT an object. Without a plane,
 * penstock_object_start does this in the calling process.
 */
#ifndef PENSTOCK_OBJECT_H
#define PENSTOCK_OBJECT_H

#include "penstock.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_OBJECT_HEADERS_MAX 4	 /* maximum headers of a request or an answer */
#define PENSTOCK_OBJECT_TOKEN_MAX 512	 /* maximum characters of a token */
#define PENSTOCK_OBJECT_SEGS_MAX 32	 /* maximum segments of a move (transfer by a server) */
#define PENSTOCK_OBJECT_WINDOWS_MAX 4096 /* maximum windows of a client */
#define PENSTOCK_OBJECT_TRANSPORTS_MAX 8 /* maximum transports of a client or a server */
#define PENSTOCK_OBJECT_EXCHANGE_MAX 8	 /* maximum headers from penstock_object_exchange */
#define PENSTOCK_OBJECT_OFFER_TOKEN 88	 /* characters of a token of transport hipobj-rc-v2 */
#define PENSTOCK_OBJECT_REQUESTS_MAX 256 /* maximum requests of a client in flight */

/* A header of HTTP. Names are compared without regard to case. */
struct penstock_object_header {
	const char *name, *value;
};

/* ---- client: memory and windows ---------------------------------------------- */

struct penstock_object_client;
struct penstock_object_buffer;
struct penstock_object_window;

/* Options of penstock_object_client_open. */
struct penstock_object_client_opts {
	size_t size;
	/* Transports that the client offers, the preferred one first, such as "shm1,tcp1"; NULL:
	 * shm1, rc1 and tcp1, as far as this machine has them. For shm1, the server must be on the
	 * same host. For rc1, it must have an RDMA network card. ofi1, hipobj-rc-v2 and DC_V1 are
	 * used only if the server's options name them, too. */
	const char *transports;
	/* Numeric address at which servers reach this client, without a port. Take the local
	 * address of the HTTP connection. For rc1, hipobj-rc-v2 and DC_V1, an RDMA network card
	 * must have this address. shm1 does not use it. Up to 8 addresses, separated by commas,
	 * stand for several network cards. A window then gets the card that is nearest to its
	 * memory among the cards that have a link and have not failed in the last 10 s.
	 * NULL: 127.0.0.1, and none of rc1, hipobj-rc-v2 and DC_V1 */
	const char *address;
	int port; /* port of rc1 and TCP port of tcp1; 0: the kernel chooses them */
	/* 1: offer only transports that encrypt the bytes or do not leave the host. */
	int require_encryption;
	/* Ids of further users. Servers of these users, of root and of the client's own user may
	 * open windows by shm1. */
	const unsigned *users;
	unsigned user_count;
	/* Time in ms for which penstock_object_release waits for a server that does not answer; 0:
	 * 2000 */
	unsigned fence_ms;
	/* Provider of libfabric for ofi1: "net", "tcp;ofi_rxm", "sockets", "tcp" or
	 * "verbs;ofi_rxm". NULL: the environment variable PENSTOCK_OFI_PROVIDER, or else the first
	 * of "tcp", "net" and "tcp;ofi_rxm" that libfabric has */
	const char *ofi_provider;
	/* Path of the socket of a plane, a process that carries out the transfers. The plane then
	 * chooses transports, address, port, users, fence_ms and provider, and these options must
	 * have their defaults. NULL: no plane */
	const char *plane;
	/* Time in ms after which a plane that does not answer counts as gone; 0: 30000 */
	unsigned plane_ms;
	/* Access key of transport DC_V1, the same number on both sides; 0: the value of the
	 * environment variable PENSTOCK_DC_KEY, a number in C's notation, or else 0xffeeddcc */
	uint64_t dc_key;
	/* 1: servers may both read and write each window. This option is for programs that do not
	 * know at penstock_object_window_open whether the request will be a GET or a PUT. Their
	 * windows then use only tcp1. With a plane, the option must be 0 */
	int either_way;
};
#define PENSTOCK_OBJECT_CLIENT_OPTS_INIT                                                        \
	{                                                                                       \
		sizeof(struct penstock_object_client_opts), NULL, NULL, 0, 0, NULL, 0, 0, NULL, \
			NULL, 0, 0, 0                                                           \
	}

/*
 * Starts the client half of S3 over RDMA. It listens for connections of servers, with one thread of
 * the library.
 *
 * opts		the options; NULL means the defaults
 * out		receives the client. Close it with penstock_object_client_close
 *
 * A client belongs to the process that opened it: a forked child cannot use it. Any thread. May
 * block.
 *
 * -EINVAL	a transport is unknown, or opts->address is not numeric
 * -EADDRINUSE	and other errors of bind(2): tcp1 or rc1 cannot listen at the address
 * -ENODEV	opts->transports names rc1, and this machine has no RDMA network card
 * -EOPNOTSUPP	no transport is left, for example because opts->require_encryption is 1, or
 *		opts->transports names ofi1, and libfabric does not have the provider
 * -ECONNREFUSED and other errors of connect(2): no plane listens at opts->plane
 * -EACCES	the plane does not serve this user
 * -EAGAIN	the plane has as many tenants as it may have
 */
PENSTOCK_API int penstock_object_client_open(const struct penstock_object_client_opts *opts,
					     struct penstock_object_client **out);

/*
 * Ends the client half. Releases its windows and buffers first.
 *
 * client	the client, or NULL
 *
 * No other thread may use the client, its buffers or its windows. Memory of
 * penstock_object_alloc is freed. Any thread. May block.
 */
PENSTOCK_API void penstock_object_client_close(struct penstock_object_client *client);

/*
 * Allocates a buffer, memory in which windows can be opened, and registers it. All transports can
 * use this memory; rc1 can use memory of a GPU only if the network card can access it, and ofi1
 * cannot use memory of a GPU.
 *
 * client	the client
 * dev		the device; NULL stands for host memory
 * len		number of bytes, more than 0; rounded up to a multiple of 2 MiB
 * out		receives the buffer. Free it with penstock_object_unregister
 *
 * A server that opens a window by shm1 can technically access the whole buffer, also outside the
 * window. So use a separate buffer for bytes that the server must not see. Any thread. May block.
 *
 * -ENOMEM	there is not enough memory
 * -EAGAIN	the client has 1024 buffers
 * -EDQUOT	the plane permits no more buffers or bytes
 */
PENSTOCK_API int penstock_object_alloc(struct penstock_object_client *client,
				       struct penstock_device *dev, size_t len,
				       struct penstock_object_buffer **out);

/*
 * Registers memory of the caller. Transport shm1 cannot use it, because it would have to share
 * whole pages or whole allocations, and with them memory that is not registered.
 *
 * client	the client
 * dev		the device of the memory; NULL stands for host memory
 * ptr		the first byte
 * len		number of bytes, more than 0
 * out		receives the buffer
 *
 * Any thread.
 *
 * -EAGAIN	the client has 1024 buffers
 * -EOPNOTSUPP	the client has a plane, which can only use memory of penstock_object_alloc
 */
PENSTOCK_API int penstock_object_register(struct penstock_object_client *client,
					  struct penstock_device *dev, void *ptr, size_t len,
					  struct penstock_object_buffer **out);

/* Returns the address of a buffer's first byte, or NULL if `buffer` is NULL. Any thread. */
PENSTOCK_API void *penstock_object_ptr(const struct penstock_object_buffer *buffer);

/*
 * Ends a registration, and frees the memory if penstock_object_alloc allocated it. In a child of
 * the process that opened the client, the function does nothing.
 *
 * buffer	the buffer, or NULL
 *
 * CUDA memory stays allocated until the process ends, even after the client is closed, if a server
 * may still access it (see penstock_object_release), or if a plane whose connection has ended may
 * still access it. `stuck` of struct penstock_object_client_info counts the buffers that servers
 * may still access. Any thread. May block.
 *
 * -EBUSY	a window of the buffer has not been released
 */
PENSTOCK_API int penstock_object_unregister(struct penstock_object_buffer *buffer);

/*
 * Opens a window: a range of a buffer that a server may access for one request.
 *
 * buffer	the buffer
 * op		PENSTOCK_READ: the server writes the window, for GetObject.
 *		PENSTOCK_WRITE: the server reads the window, for PutObject and UploadPart
 * off		offset of the window in the buffer. shm1 needs a multiple of 4096 in host memory
 * len		length of the window, not more than the request needs
 * out		receives the window. Call penstock_object_release once for it
 *
 * The window gets a token with 128 random bits. The token is valid until the release. Treat it as
 * a secret: a process that knows the token and may connect can access the window. With rc1, all
 * tokens of a client have the same random bits, and the network card checks only a memory key of 32
 * bits. So a server that has one token could guess the memory keys of the client's other windows.
 * For each server that must not access the windows of other servers, open a separate client. Any
 * thread. May block, because rc1 pins the memory of the window.
 *
 * -ERANGE	the range ends beyond the buffer
 * -EAGAIN	the client has PENSTOCK_OBJECT_WINDOWS_MAX windows
 * -EOPNOTSUPP	no transport of the client can serve the range, or the network card cannot access
 *		the memory of the GPU
 * -ENOMEM	rc1 cannot pin the memory: RLIMIT_MEMLOCK is too low
 * -EIO		a release has cut off a server from the buffer (see penstock_object_release)
 * -EDQUOT	the plane permits no more windows
 */
PENSTOCK_API int penstock_object_window_open(struct penstock_object_buffer *buffer,
					     enum penstock_op op, uint64_t off, uint64_t len,
					     struct penstock_object_window **out);

/* Facts of a window, a range of the client's memory that a server may access. The caller sets
 * `size`, and the library sets all other members. */
struct penstock_object_window_info {
	size_t size;
	const char *transport; /* name of the transport, such as "tcp1" */
	const char *token;     /* value of the header x-amz-rdma-token; "" with a plane */
	int encrypted;	       /* 1: the transport encrypts the bytes */
	int on_host;	       /* 1: the bytes do not leave the host */
	/* Address of the window's network card, if the client has several addresses; or "" */
	const char *address;
	/* why the window does not have the network card that is nearest to its memory; or "" */
	const char *why;
};

/*
 * Fills in the facts of a window.
 *
 * window	the window
 * info		receives the facts. Its strings are valid until the release
 *
 * Any thread. -EINVAL: info->size is not set.
 */
PENSTOCK_API int penstock_object_window_get_info(const struct penstock_object_window *window,
						 struct penstock_object_window_info *info);

/*
 * Returns the headers that a request with this window must have, and that its signature must cover.
 *
 * window	the window
 * headers	receives the headers. The strings are valid until the release
 * max		length of the array; PENSTOCK_OBJECT_HEADERS_MAX is enough
 *
 * The headers are x-amz-rdma-token and x-amz-content-sha256, and for PENSTOCK_WRITE also
 * content-length: the request has no body. The request must have no Content-MD5, no aws-chunked
 * encoding and no trailers. Returns the number of headers. Any thread.
 *
 * -E2BIG	`max` is too small
 * -EINVAL	the window's transport is hipobj-rc-v2: see penstock_object_exchange
 * -EOPNOTSUPP	the client has a plane, which keeps the token: use penstock_object_start
 */
PENSTOCK_API int penstock_object_headers(const struct penstock_object_window *window,
					 struct penstock_object_header *headers, unsigned max);

/* ---- client: the response ------------------------------------------------------ */

/* A response, for penstock_object_judge. */
struct penstock_object_reply {
	size_t size;
	int status; /* HTTP status; 0: the connection ended before a response came */
	const struct penstock_object_header *headers;
	unsigned header_count;
	/* Code in the XML body of an error, such as "InvalidRDMAToken"; NULL: not known */
	const char *error;
	/* Number of bytes that the window must have received; 0: not known. For
	 * PENSTOCK_WRITE the length of the window is expected. */
	uint64_t expect;
	int ranged; /* 1: the request had the header Range */
};
#define PENSTOCK_OBJECT_REPLY_INIT                                           \
	{                                                                    \
		sizeof(struct penstock_object_reply), 0, NULL, 0, NULL, 0, 0 \
	}

/* The client's next step after a response. */
enum penstock_object_next {
	PENSTOCK_OBJECT_DONE,	/* the bytes have moved through the window */
	PENSTOCK_OBJECT_BODY,	/* the response's body has the bytes; the window has none */
	PENSTOCK_OBJECT_RESEND, /* nothing is stored or delivered: send the request again without
				 * a token, with a body if it is a PUT */
	PENSTOCK_OBJECT_ERROR,	/* the request failed; the reply's `status` says how, as for a
				 * request without a token */
};

/* Result of penstock_object_judge. The caller sets `size`, and the library sets all other
 * members. */
struct penstock_object_verdict {
	size_t size;
	enum penstock_object_next next;
	uint64_t bytes; /* number of bytes that moved through the window; 0 unless `next` is
			 * PENSTOCK_OBJECT_DONE */
	/* 1: the server does not accept tokens of this transport. Send further requests to this
	 * endpoint without tokens. */
	int remember;
	/* 1: the server does not support tokens, and has stored an empty object under the name. The
	 * repeated request replaces it. */
	int stored_empty;
	int has_crc64; /* 1: `crc64` is the server's CRC-64/NVME of the bytes */
	uint64_t crc64;
	char text[PENSTOCK_TEXT_MAX]; /* reason of the decision, in words */
};
#define PENSTOCK_OBJECT_VERDICT_INIT                                                             \
	{                                                                                        \
		sizeof(struct penstock_object_verdict), PENSTOCK_OBJECT_ERROR, 0, 0, 0, 0, 0, "" \
	}

/*
 * Decides from a response what has happened to the bytes.
 *
 * window	the window of the request
 * reply	the response
 * verdict	receives the decision
 *
 * Never writes the window's memory. With ofi1, the function reads it, and decides on DONE only if
 * the bytes have the CRC-64/NVME in the response's x-amz-rdma-checksum. Release the window before
 * the request is sent again, and before the body of the response is written to the same memory.
 * Any thread.
 *
 * -EINVAL	reply->size or verdict->size is not set
 * -EOPNOTSUPP	the client has a plane, which judges the responses: use penstock_object_start
 */
PENSTOCK_API int penstock_object_judge(const struct penstock_object_window *window,
				       const struct penstock_object_reply *reply,
				       struct penstock_object_verdict *verdict);

/*
 * Closes a window. After the release, no server writes to the memory of the window. In a child of
 * the process that opened the client, the function does nothing.
 *
 * window	the window, or NULL
 *
 * If a server has the window open, the function waits for the server, for at most
 * opts->fence_ms. A server that does not answer is then cut off: the library puts fresh pages
 * with the same contents in place of the shared ones, at the same address. Memory that is pinned,
 * such as by penstock_register, keeps the old pages for the device: end the registration before
 * the device uses the memory again. After this, no window can be opened in the buffer, and the
 * release of its other windows fails. CUDA memory cannot be cut off, see -ETIMEDOUT. With rc1, the
 * function ends the network card's access and waits for no server. With ofi1, the function waits
 * for no server either: unless penstock_object_judge has decided on DONE, or on ERROR for a status
 * of 4xx, it closes the connections of all servers by ofi1. Transfers of other windows by ofi1 that
 * are in flight then fail. Any thread. May block.
 *
 * -EIO		the release of another window has cut off a server from the buffer while this window
 *		was open. This window is closed, but its bytes may be lost: repeat the request with
 *		a new buffer
 * -ETIMEDOUT	the server may still write to the window: it is in CUDA memory, or the network card
 *		does not end its access. Do not use the memory. The buffer stays allocated until
 *		the process ends
 * -EBUSY	the window's request (penstock_object_start) is in flight: wait for its end, and
 *		call the function again
 *
 * If the plane of the client is gone, the function puts fresh pages in place of the window's pages
 * in host memory, and returns 0. A server may still access the old pages.
 */
PENSTOCK_API int penstock_object_release(struct penstock_object_window *window);

/* ---- client: requests that the library or a plane sends ----------------------- */

/* Flag of penstock_object_request: if the server does not move the bytes through the window, fail
 * instead of moving them as an HTTP body. */
#define PENSTOCK_OBJECT_NO_BODY 1u
/* Flag of penstock_object_request, for PENSTOCK_WRITE: fail with -EEXIST if there is an object with
 * this key. */
#define PENSTOCK_OBJECT_NO_REPLACE 2u

/* A GET or a PUT, for penstock_object_start. */
struct penstock_object_request {
	size_t size;
	const char *bucket;
	const char *key; /* not percent-encoded */
	/* PENSTOCK_READ: offset of the first byte in the object. The request asks for as many
	 * bytes as the window has. PENSTOCK_WRITE: 0 */
	uint64_t off;
	const char *if_match; /* PENSTOCK_READ: ETag that the object must have; NULL: any */
	unsigned flags;	      /* PENSTOCK_OBJECT_NO_BODY, PENSTOCK_OBJECT_NO_REPLACE */
	uint64_t user;	      /* any value; the library returns it in the completion */
};
#define PENSTOCK_OBJECT_REQUEST_INIT                                              \
	{                                                                         \
		sizeof(struct penstock_object_request), NULL, NULL, 0, NULL, 0, 0 \
	}

/*
 * Starts a GET (window of PENSTOCK_READ) or a PUT (window of PENSTOCK_WRITE) of an object, and
 * returns. The bytes move through the window if the server supports this, and else as the body of
 * the request or response.
 *
 * window	the window. It has one request in flight at most
 * request	the request. The function copies it
 *
 * The endpoint and the keys are those of s3:// URLs: the process that sends the request, which is
 * the plane if the client has one, finds them in its environment (AWS_ENDPOINT_URL,
 * AWS_ACCESS_KEY_ID, PENSTOCK_RDMA and so on) and in its files in ~/.aws. If the endpoint's URL
 * begins with https, transports that send unencrypted bytes to another host are not used.
 *
 * If the call succeeds, the request completes exactly once. Any thread. May block, because the name
 * of the endpoint may have to be looked up.
 *
 * -EINVAL	the names are not valid, or the window has no bytes
 * -EBUSY	the window has a request in flight
 * -EAGAIN	the client has PENSTOCK_OBJECT_REQUESTS_MAX requests in flight, or as many as its
 *		plane permits
 * -EOPNOTSUPP	request->flags forbids a body, and the server gets no token; or this build has no
 *		libssl
 * -EACCES	there are no keys; or the plane does not permit the bucket or the operation
 * -ECONNRESET	the plane is gone
 */
PENSTOCK_API int penstock_object_start(struct penstock_object_window *window,
				       const struct penstock_object_request *request);

/* A completed request. */
struct penstock_object_end {
	uint64_t user; /* member `user` of the request that was given to penstock_object_start */
	/* Number of bytes that moved, or a negative errno, see penstock_object_client_wait. A GET
	 * moves fewer bytes than its window has if the object ends earlier. */
	int64_t result;
	/* Decision about the request with the token, see penstock_object_judge.
	 * PENSTOCK_OBJECT_BODY: the bytes came as the body of the response. PENSTOCK_OBJECT_RESEND:
	 * the library sent the request again without a token, and the bytes moved as a body. */
	enum penstock_object_next next;
	int status;	    /* HTTP status of the last response; 0: none */
	/* transport or protocol that moved the bytes, such as "shm1" or "https"; "" after an error
	 */
	char transport[16];
	int encrypted;	    /* 1: the bytes were encrypted on their way */
	int on_host;	    /* 1: the bytes did not leave the host */
	char etag[256];	    /* ETag of the object; "": unknown */
	/* Why the bytes did not move through the window, or why the request failed; or "" */
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * Takes completed requests. Waits for the first one.
 *
 * client	the client
 * ends		receives the completions
 * max		length of the array
 * timeout_ms	time to wait for the first completion; -1: no limit; 0: do not wait
 *
 * Returns the number of completions; 0 if timeout_ms has passed. Results below 0: -ENOENT, there
 * is no such object; -EACCES, the server has refused the keys; -EEXIST and -ESTALE, a condition of
 * the request is not met; -EOPNOTSUPP, the server did not move the bytes through the window, and
 * request->flags forbids a body; -EBADMSG, the bytes were damaged; -ECONNRESET, the plane is gone;
 * and others. One thread at a time. May block.
 */
PENSTOCK_API int penstock_object_client_wait(struct penstock_object_client *client,
					     struct penstock_object_end *ends, unsigned max,
					     int timeout_ms);

/*
 * Returns a descriptor that is readable while completions of requests wait. Use it with poll(2) or
 * epoll(7) only. The client owns it. Any thread.
 */
PENSTOCK_API int penstock_object_client_fd(struct penstock_object_client *client);

/* Counters of a client. The caller sets `size`, and the library sets all other members. */
struct penstock_object_client_info {
	size_t size;
	uint64_t windows; /* number of windows that the client has opened */
	/* number of bytes that moved by tcp1, and by completed transfers of shm1; the client cannot
	 * count the bytes of rc1 and ofi1 */
	uint64_t bytes;
	uint64_t late;		/* number of transfers refused because their window was released */
	uint64_t wrong_cap;	/* number of transfers and connections refused for a wrong token */
	uint64_t wrong_user;	/* number of connections refused because of their user */
	uint64_t out_of_window; /* number of transfers refused for their range or direction */
	uint64_t bad_checksum;	/* number of transfers whose bytes were damaged or lost */
	uint64_t malformed;	/* number of connections closed for a malformed message */
	uint64_t cut_off;	/* number of releases that cut off a server that did not answer */
	uint64_t stuck;		/* number of buffers that stay allocated until the process ends,
				 * because a server may still access them */
};

/*
 * Fills in the counters of a client.
 *
 * client	the client
 * info		receives the counters
 *
 * Any thread. -EINVAL: info->size is not set.
 */
PENSTOCK_API int penstock_object_client_get_info(const struct penstock_object_client *client,
						 struct penstock_object_client_info *info);

/* ---- client: requests of hipobj-rc-v2 ------------------------------------------- */

/* A request of the transport hipobj-rc-v2, by which a client opens a session, moves the bytes or
 * ends the session. */
enum penstock_object_step {
	PENSTOCK_OBJECT_PREPARE, /* opens a session */
	PENSTOCK_OBJECT_READY,	 /* moves the bytes, and takes the place of the GET or PUT */
	PENSTOCK_OBJECT_CANCEL,	 /* ends a session for which no READY will be sent */
};

/*
 * Composes a request of transport hipobj-rc-v2. With this transport, a client sends no GET or PUT
 * with a token, but a POST without a body for each step: PREPARE, whose response it gives to
 * penstock_object_paired, and then READY, whose response it gives to penstock_object_judge.
 *
 * window	a window whose transport is "hipobj-rc-v2"
 * step		the request
 * target	for PREPARE: path of the object on the server, as in the request line of a GET or
 *		PUT in path style, such as "/bucket/key" or "/bucket/key?partNumber=1&uploadId=x".
 *		The string must stay unchanged until the release. The other steps ignore it
 * offset	for PREPARE of a GET: offset of the window's first byte in the object
 * path		receives the path of the POST
 * headers	receives the headers. The signature must cover them. The strings are valid until
 *		the release
 * max		length of the array; PENSTOCK_OBJECT_EXCHANGE_MAX is enough
 *
 * A request that is lost must not be sent again. Returns the number of headers. One thread at a
 * time for each window.
 *
 * -EINVAL	the window has another transport, or the step must come after another one. A CANCEL
 *		needs an open session
 * -E2BIG	`max` is too small
 */
PENSTOCK_API int penstock_object_exchange(struct penstock_object_window *window,
					  enum penstock_object_step step, const char *target,
					  uint64_t offset, const char **path,
					  struct penstock_object_header *headers, unsigned max);

/*
 * Evaluates the response to a PREPARE, and connects the window to the server. For a PUT, the
 * function also starts to write the bytes into the server's memory, so send the READY at once.
 *
 * window	the window
 * reply	the response
 * verdict	receives the decision. DONE: send the READY. RESEND: send a CANCEL if
 *		penstock_object_exchange can compose a CANCEL, because then a session is open.
 *		Then release the window, and send the GET or PUT without a token
 *
 * One thread at a time for each window.
 *
 * -EINVAL	reply->size or verdict->size is not set, or the window waits for no such response
 */
PENSTOCK_API int penstock_object_paired(struct penstock_object_window *window,
					const struct penstock_object_reply *reply,
					struct penstock_object_verdict *verdict);

/* ---- server: tokens and moves --------------------------------------------------- */

struct penstock_object_server;
struct penstock_object_remote;

/* Options of penstock_object_server_open. */
struct penstock_object_server_opts {
	size_t size;
	const char *transports; /* transports that the server accepts; NULL: shm1, rc1 and tcp1 */
	/* number of moves (transfers to or from clients' windows) at the same time, 64 at most; 0
	 * means 4 */
	unsigned channels;
	/* maximum number of moves in the queue, 4096 at most; 0 means 256 */
	unsigned moves;
	/* Time in ms without progress after which a move fails; 0 means 10000. A session of
	 * hipobj-rc-v2 shows no progress until all its bytes have moved, so it has one second more
	 * for every 4 MiB, also if rate_min is higher. */
	unsigned timeout_ms;
	int require_encryption; /* 1: decline transports that send unencrypted bytes to another
				 * host */
	struct penstock_device *device; /* device that maps CUDA memory of clients; NULL: decline
					 * tokens for CUDA memory */
	/* Lowest rate of a move in bytes a second; 0: 1024. A move may take timeout_ms, plus its
	 * length divided by this rate, from the call that queued it. After this time it fails with
	 * -ETIMEDOUT, even if it makes progress. */
	unsigned rate_min;
	/* Path of the socket of a plane, a process that carries out the moves. The plane then
	 * chooses transports, channels, times, device and networks, and these options must have
	 * their defaults. NULL: no plane */
	const char *plane;
	/* Time in ms after which a plane that does not answer counts as gone; 0: 30000 */
	unsigned plane_ms;
	/* Limit in bytes of the memory of all sessions of hipobj-rc-v2 together. Each session has
	 * memory for all bytes of its transfer. 0: 256 MiB */
	uint64_t staging_max;
	uint64_t dc_key; /* access key of transport DC_V1, as in struct
			  * penstock_object_client_opts */
	/* Up to 16 networks in which clients have further network cards, such as
	 * "10.1.0.0/16,fd00:7::/32". The address in a token must be that of the HTTP client, or lie
	 * in one of these networks. NULL: none */
	const char *networks;
	/* 1: a GET by shm1 may pass the descriptor of its segment to the client, which then copies
	 * the bytes itself. So the CPU copies each byte once. The file must contain nothing but the
	 * bytes of objects that this client may read, because the client can read the whole file.
	 * The server passes only descriptors of regular files that are open for reading only, and
	 * only to processes of its own user or of root with the same mount namespace. */
	int pass_files;
};
#define PENSTOCK_OBJECT_SERVER_OPTS_INIT                                                           \
	{                                                                                          \
		sizeof(struct penstock_object_server_opts), NULL, 0, 0, 0, 0, NULL, 0, NULL, 0, 0, \
			0, NULL, 0                                                                 \
	}

/*
 * Starts the server half of S3 over RDMA, with a thread for each channel. A channel carries out one
 * move at a time.
 *
 * opts		the options; NULL means the defaults
 * out		receives the server. Close it with penstock_object_server_close
 *
 * Any thread. May block.
 *
 * -EINVAL	a transport is unknown
 * -E2BIG	a number exceeds its limit
 * -ECONNREFUSED and others: as for penstock_object_client_open, if opts->plane names no plane
 */
PENSTOCK_API int penstock_object_server_open(const struct penstock_object_server_opts *opts,
					     struct penstock_object_server **out);

/*
 * Ends the server half, and cancels its moves in flight.
 *
 * server	the server, or NULL. Close its remotes with penstock_object_forget first
 *
 * Any thread. May block.
 */
PENSTOCK_API void penstock_object_server_close(struct penstock_object_server *server);

/*
 * Allocates memory for moves to and from clients' windows. A server without a plane can also move
 * other memory; a plane can access only this memory, and files.
 *
 * server	the server
 * dev		the device; NULL stands for host memory
 * len		number of bytes, more than 0; rounded up to a multiple of 2 MiB
 * out		receives the address. Free it with penstock_object_server_free
 *
 * If a plane ends or does not answer, the moves in flight complete with -ECONNRESET. A plane that
 * was only stopped may still access the memory of these moves when it goes on. So free this memory
 * after -ECONNRESET, and do not use it for anything else. Memory of a GPU that such a plane has not
 * given up stays allocated until the process ends. Any thread. May block.
 *
 * -ENOMEM	there is not enough memory
 * -EDQUOT	the plane permits no more memory
 */
PENSTOCK_API int penstock_object_server_alloc(struct penstock_object_server *server,
					      struct penstock_device *dev, size_t len, void **out);

/*
 * Frees memory of penstock_object_server_alloc. No move of the memory may be in flight.
 *
 * server	the server
 * ptr		the address, or NULL
 *
 * Memory that is not freed is freed with the server. If the plane is gone, the function waits up to
 * plane_ms until the plane has given up memory of a GPU. Any thread. May block.
 *
 * -EINVAL	the server has no such memory
 * -EBUSY	the plane still moves bytes of the memory, which stays allocated
 */
PENSTOCK_API int penstock_object_server_free(struct penstock_object_server *server, void *ptr);

/* The client that sent a token (the request header that offers a window), as the server knows it
 * from the HTTP connection. */
struct penstock_object_peer {
	size_t size;
	/* Numeric address of the HTTP client. All transports but shm1 connect to this address
	 * only, or to one in `networks` of the server, so that a token cannot make the server
	 * connect to another host. All loopback addresses count as one. NULL: loopback addresses
	 * only */
	const char *address;
	/* 1: the owner of a window of shm1 must be the user `user` */
	int has_user;
	unsigned user;
};
#define PENSTOCK_OBJECT_PEER_INIT                               \
	{                                                       \
		sizeof(struct penstock_object_peer), NULL, 0, 0 \
	}

/*
 * Parses a token, which names a client's window, and decides whether the server can serve it. Does
 * not connect to the client.
 *
 * server	the server
 * token	value of the header x-amz-rdma-token; it must be among the signed headers
 * len		its length in bytes
 * peer		the sender; NULL means the defaults
 * out		receives the remote window. Close it with penstock_object_forget
 *
 * Any thread.
 *
 * -EBADMSG	the token is malformed: answer with PENSTOCK_OBJECT_MALFORMED
 * -EOPNOTSUPP	the server does not accept this token: answer with PENSTOCK_OBJECT_DECLINED.
 *		penstock_errmsg() tells the reason
 */
PENSTOCK_API int penstock_object_resolve(struct penstock_object_server *server, const char *token,
					 size_t len, const struct penstock_object_peer *peer,
					 struct penstock_object_remote **out);

/* A session of hipobj-rc-v2. The caller sets `size`, `op`, `length`, `psn` and `cookie` from the
 * client's request. */
struct penstock_object_pairing {
	size_t size;
	enum penstock_op op;
	uint64_t length;
	uint32_t psn, cookie; /* headers x-amz-rdma-psn and x-amz-rdma-cookie of the client's
			       * request */
	/* The library sets the members from here on. The server puts them into its response. */
	char token[PENSTOCK_OBJECT_OFFER_TOKEN + 1]; /* the response's header x-amz-rdma-reply is
						      * "200:", followed by this token */
	uint32_t server_psn, qpn;
	uint64_t address; /* header x-amz-rdma-mr-addr of the response; 0: a GET, which has no such
			   * header */
	uint32_t key;	  /* x-amz-rdma-mr-rkey */
};
#define PENSTOCK_OBJECT_PAIRING_INIT                                                           \
	{                                                                                      \
		sizeof(struct penstock_object_pairing), PENSTOCK_READ, 0, 0, 0, "", 0, 0, 0, 0 \
	}

/*
 * Opens a session of hipobj-rc-v2 for the request PREPARE. Allocates memory for all bytes of the
 * transfer, and connects to the client's queue pair.
 *
 * server	the server
 * token	value of the header x-amz-rdma-token
 * len		its length in bytes
 * peer		the sender; NULL means the defaults
 * pairing	operation, length, and the client's numbers; receives those of the server
 * out		receives the remote window. penstock_object_forget ends the session
 *
 * After penstock_object_ready, moves of this window must have the session's operation. The caller
 * starts one move at a time. The moves must cover the session's bytes in order, each byte once. The
 * library limits the number and the memory of the sessions. The caller must limit their duration.
 * opts->transports of the server must name hipobj-rc-v2. Any thread. May block.
 *
 * -EBADMSG	the token or a number is malformed
 * -EOPNOTSUPP	the server does not serve the client: answer 501 with the header
 *		x-amz-rdma-protocol-status: unsupported. penstock_errmsg() tells the reason
 * -EFBIG	the transfer is longer than opts->staging_max or 2 GiB - 1
 * -EAGAIN	there are too many sessions, or too little memory: answer 503
 */
PENSTOCK_API int penstock_object_prepare(struct penstock_object_server *server, const char *token,
					 size_t len, const struct penstock_object_peer *peer,
					 struct penstock_object_pairing *pairing,
					 struct penstock_object_remote **out);

/*
 * Begins the transfer of a session, for the request READY.
 *
 * remote	the remote window of penstock_object_prepare
 * qpn		x-amz-rdma-qpn: number of the client's queue pair; 0: the number in the token
 * address	x-amz-rdma-mr-addr: address of the client's memory. A PUT does not need it
 * key		x-amz-rdma-mr-rkey
 *
 * Call it once, before penstock_object_move. Any thread.
 *
 * -EINVAL	the window's transport is not hipobj-rc-v2, the queue pair is not the one in the
 *		token, or a GET has no address
 */
PENSTOCK_API int penstock_object_ready(struct penstock_object_remote *remote, uint32_t qpn,
				       uint64_t address, uint32_t key);

/* Facts of a remote window, which is a client's window as the server sees it. The caller sets
 * `size`, and the library sets all other members. */
struct penstock_object_remote_info {
	size_t size;
	uint64_t length;       /* length of the window in bytes */
	const char *transport; /* name of the transport */
	int encrypted;	       /* 1: the transport encrypts the bytes */
	int on_host;	       /* 1: the bytes do not leave the host */
	/* 1: the window takes a file (`pass_files` of the server): a move of it must be one range
	 * of one file, from the window's first byte on. A move that the server cannot carry out
	 * completes with -EOPNOTSUPP */
	int takes_file;
};

/*
 * Fills in the facts of a remote window.
 *
 * remote	the remote window
 * info		receives the facts
 *
 * Any thread. -EINVAL: info->size is not set.
 */
PENSTOCK_API int penstock_object_remote_get_info(const struct penstock_object_remote *remote,
						 struct penstock_object_remote_info *info);

/* A piece of the server's memory, or of a file. With shm1, the bytes of a file are copied only
 * once, between the page cache and the client's memory. The client copies them after the response
 * if its window takes a file, and the server before the completion otherwise. */
struct penstock_object_seg {
	struct penstock_device *dev; /* device of the memory; NULL: host memory */
	void *ptr;		     /* first byte of the memory; not used with a file */
	uint64_t len;
	int has_fd; /* 1: the piece is a range of the file `fd` */
	int fd;	    /* descriptor for reading (GET) or writing (PUT), open until the completion */
	uint64_t fd_off; /* offset of the first byte in the file */
};

/*
 * Starts to move bytes between the server's memory and a remote window, and returns.
 *
 * remote	the remote window
 * op		PENSTOCK_READ: write the window (GET). PENSTOCK_WRITE: read it (PUT)
 * off		offset of the first byte in the window
 * segs		the server's memory, in order; the array is copied, and the memory must stay
 *		unchanged until the completion
 * seg_count	number of pieces, PENSTOCK_OBJECT_SEGS_MAX at most
 * user		value for the completion
 *
 * If the call succeeds, it completes exactly once. Any thread.
 *
 * -ERANGE	the bytes do not fit into the window: decline the request, and move no byte of it
 * -EAGAIN	opts->moves are in flight, or as many as the plane permits: take completions first
 * -EINVAL	a piece is not in memory of penstock_object_server_alloc, and the server has a plane
 * -ECONNRESET	the plane is gone
 */
PENSTOCK_API int penstock_object_move(struct penstock_object_remote *remote, enum penstock_op op,
				      uint64_t off, const struct penstock_object_seg *segs,
				      unsigned seg_count, uint64_t user);

/* A completed move. */
struct penstock_object_done {
	uint64_t user;	/* `user` that was given to penstock_object_move */
	int64_t result; /* number of bytes moved, or a negative errno, see penstock_object_poll */
	char text[PENSTOCK_TEXT_MAX]; /* reason of an error */
	int has_crc64;		      /* 1: `crc64` is the CRC-64/NVME of the bytes; only with
				       * transport ofi1 */
	uint64_t crc64;
};

/*
 * Takes completed moves, without waiting.
 *
 * server	the server
 * done		receives the completions
 * max		length of the array
 *
 * Returns their number. Results below 0: -EOPNOTSUPP, the client cannot be reached, or its window
 * takes a file that the server may not pass, and no byte has moved; -EACCES, the client has refused
 * the token; -ERANGE, range or direction do not fit the client's window; -EBADMSG, the bytes were
 * damaged; -ETIMEDOUT, no progress; -ECONNRESET, the plane is gone; -EPIPE and others, the
 * connection ended. One thread at a time.
 */
PENSTOCK_API int penstock_object_poll(struct penstock_object_server *server,
				      struct penstock_object_done *done, unsigned max);

/*
 * Waits for a completed move.
 *
 * server	the server
 * done		receives the completions
 * max		length of the array
 * timeout_ms	time to wait for the first completion; -1: no limit
 *
 * Returns the number of completions; 0 if timeout_ms has passed. One thread at a time. May block.
 */
PENSTOCK_API int penstock_object_wait(struct penstock_object_server *server,
				      struct penstock_object_done *done, unsigned max,
				      int timeout_ms);

/*
 * Returns a descriptor that is readable while completions wait. Use it with poll(2) or epoll(7)
 * only. The server owns it. Any thread.
 */
PENSTOCK_API int penstock_object_fd(struct penstock_object_server *server);

/*
 * Closes a remote window. Moves in flight go on.
 *
 * remote	the remote window, or NULL
 *
 * Any thread.
 */
PENSTOCK_API void penstock_object_forget(struct penstock_object_remote *remote);

/* ---- server: the answer ----------------------------------------------------------- */

/* The outcome of a request with a token. */
enum penstock_object_outcome {
	PENSTOCK_OBJECT_MOVED,	   /* all bytes have moved */
	PENSTOCK_OBJECT_DECLINED,  /* no byte has moved */
	PENSTOCK_OBJECT_MALFORMED, /* the token is malformed */
	PENSTOCK_OBJECT_FAILED,	   /* a move failed */
};

/* The answer to a request. The caller sets the members from `size` to `bytes`, and also `has_crc64`
 * and `crc64`. penstock_object_answer_fill sets the others. */
struct penstock_object_answer {
	size_t size;
	enum penstock_op op; /* PENSTOCK_READ for a GET, PENSTOCK_WRITE for a PUT */
	enum penstock_object_outcome outcome;
	int ranged;	   /* 1: a GET with the header Range */
	uint64_t bytes;	   /* number of bytes that have moved */
	int status;	   /* HTTP status */
	int body;	   /* 1: the body is the object (GET). 0: no body, or the error `error` */
	const char *error; /* code of the error that the body has; NULL: none */
	unsigned header_count;
	struct penstock_object_header headers[PENSTOCK_OBJECT_HEADERS_MAX];
	char text[24]; /* memory for the value of one of `headers` */
	/* Set by the caller. 1: `crc64` is the CRC-64/NVME of all bytes that have moved. A client
	 * that uses ofi1 needs it. */
	int has_crc64;
	uint64_t crc64;
	char checksum[24]; /* memory for the value of one of `headers` */
};
#define PENSTOCK_OBJECT_ANSWER_INIT                                                                \
	{                                                                                          \
		sizeof(struct penstock_object_answer), PENSTOCK_READ, PENSTOCK_OBJECT_DECLINED, 0, \
			0, 0, 0, NULL, 0, {{NULL, NULL}}, "", 0, 0, ""                             \
	}

/*
 * Composes status and RDMA headers of a response. The server adds ETag and Content-Range, and the
 * body or Content-Length: 0.
 *
 * answer	the request and its outcome; receives the response
 *
 * Any thread. -EINVAL: answer->size is not set, or op or outcome is invalid.
 */
PENSTOCK_API int penstock_object_answer_fill(struct penstock_object_answer *answer);

/* Bytes of completed moves without error, by one transport. */
struct penstock_object_traffic {
	const char *transport; /* name of the transport; NULL: the list has ended */
	uint64_t bytes_out;    /* bytes written to clients' windows (GET) */
	uint64_t bytes_in;     /* bytes read from clients' windows (PUT) */
};

/* Counters of a server. The caller sets `size`, and the library sets all other members. */
struct penstock_object_server_info {
	size_t size;
	uint64_t resolved;  /* number of tokens that the server can serve */
	uint64_t malformed; /* number of malformed tokens */
	uint64_t declined;  /* number of well-formed tokens that the server does not serve */
	uint64_t moves;	    /* number of completed moves without error */
	uint64_t failed;    /* number of completed moves with an error */
	/* Counters of each transport that the server accepts, in the order of its options. */
	struct penstock_object_traffic traffic[PENSTOCK_OBJECT_TRANSPORTS_MAX];
};

/*
 * Fills in the counters of a server.
 *
 * server	the server
 * info		receives the counters
 *
 * Any thread. -EINVAL: info->size is not set.
 */
PENSTOCK_API int penstock_object_server_get_info(const struct penstock_object_server *server,
						 struct penstock_object_server_info *info);

#ifdef __cplusplus
}
#endif
#endif
