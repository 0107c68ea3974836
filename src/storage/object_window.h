/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows for the servers of objects (S3 over RDMA). A window is memory of the host or of a device
 * that a server reads and writes itself, by the transports of src/wire. A request with the window's
 * token lets the server move the bytes instead of sending a body. Called by object.c and the files
 * of uploads.
 *
 * For each endpoint, the library remembers whether the server accepts tokens. A server that does
 * not know tokens gets none for the rest of the process. A server that has declined many tokens
 * gets none for a minute. Besides, the library remembers for each device whether the server can
 * access its memory. An answer to such a window does not change what is remembered of the others.
 */
#ifndef PST_STORAGE_OBJECT_WINDOW_H
#define PST_STORAGE_OBJECT_WINDOW_H

#include "core/ops.h"
#include "penstock_object.h"
#include "storage/object_exchange.h"
#include "storage/object_request.h"

struct pst_object_windows;
struct pst_wire_grant;

/* Returns the windows for the server of an object, or NULL with the reason in `why`. They are never
 * freed. The server must have answered a request before. */
struct pst_object_windows *pst_object_windows_find(const struct pst_object_place *place,
						   struct pst_err *why);
/* Fills the members of the facts that describe windows. `windows` may be NULL, for the reason
 * `why`. `only` is true if the caller allows no other transfer. */
void pst_object_windows_facts(const struct pst_object_windows *windows, const struct pst_err *why,
			      bool only, struct pst_storage_facts *facts);
/* Returns 0 if the server gets tokens. Returns -EOPNOTSUPP with the reason if it gets none, for the
 * rest of the process or for a pause. The first call after a pause ends it. */
int pst_object_windows_check(struct pst_object_windows *windows, struct pst_err *err);

/* Returns whether the server has declined the last token that it was sent. */
bool pst_object_windows_decline(const struct pst_object_windows *windows);
/* Returns whether the server has moved the bytes of a PUT through a window. */
bool pst_object_windows_answered(const struct pst_object_windows *windows);

/* Allocates a window in the memory of `dev`, or in host memory if `dev` is NULL. */
int pst_object_window_open(struct pst_object_windows *windows, struct penstock_device *dev,
			   size_t len, struct pst_window **out, struct pst_err *err);

/* Returns whether the server can access windows in the memory of `dev`: 1 or 0 by its last answer,
 * with the reason in `why` if it is 0; -EAGAIN if this is unknown, and must be tested. */
int pst_object_windows_reach(struct pst_object_windows *windows, const struct penstock_device *dev,
			     struct pst_err *why);
/* Notes the result of a test. `why` is NULL if the server can access the memory. */
void pst_object_windows_tested(struct pst_object_windows *windows,
			       const struct penstock_device *dev, const struct pst_err *why);

/* Takes the window of an earlier test, which pst_object_windows_keep has kept. Returns NULL if
 * there is none. */
struct pst_window *pst_object_windows_take(struct pst_object_windows *windows,
					   const struct penstock_device *dev);
/* Keeps the window of a test, which cannot be freed, for the next test of the device. Returns false
 * if another one is kept. A window that is still kept when the device is closed ends with it. */
bool pst_object_windows_keep(struct pst_object_windows *windows, const struct penstock_device *dev,
			     struct pst_window *window);

/* The use of a window by one request. */
struct pst_object_grant {
	struct pst_object_windows *windows;
	struct pst_window *window;
	struct pst_wire_grant *inner; /* NULL while the window is closed to the server */
	enum penstock_op op;
	uint64_t len;
	const char *transport;			/* name of the transport; static */
	bool dma;				/* the bytes move by DMA only */
	struct penstock_object_verdict verdict; /* result of pst_object_grant_judge */
	struct pst_object_steps steps;		/* used if the transport has requests of its own */
	/* the call whose response was judged; NULL if none was */
	const struct pst_object_call *judged;
	/* Result of pst_object_grant_wait or _release: 0, or -errno with the reason in `err`. */
	int result;
	struct pst_err err;
	void (*released)(struct pst_object_grant *grant);
};

/* Opens the first `len` bytes of a window to the server, for a GET (PENSTOCK_READ) or a PUT. */
int pst_object_grant_open(struct pst_object_grant *grant, struct pst_object_windows *windows,
			  struct pst_window *window, enum penstock_op op, uint64_t len,
			  struct pst_err *err);
/* Lets the server move the bytes of the call through the window of an open grant. */
void pst_object_grant_offer(struct pst_object_grant *grant, struct pst_object_call *call);
/* Judges the response to the call that has sent the grant's token. Records what the response shows
 * about the server. `error` is the code in the response's body, or NULL if the body has not
 * arrived. The body of a response cannot go to memory of a device, so the verdict is never BODY for
 * such a window. */
enum penstock_object_next pst_object_grant_judge(struct pst_object_grant *grant,
						 const struct pst_object_call *call,
						 const char *error);
/* Stores in `err` why the bytes did not come through the window. Returns -EOPNOTSUPP. */
int pst_object_grant_why(const struct pst_object_grant *grant, struct pst_err *err);
/* The headers of a response that a judge needs, and memory for their values. */
#define PST_OBJECT_REPLY_HEADERS (3 + PST_OBJECT_RDMA_HEADERS)
struct pst_object_reply_texts {
	char length[24], range[80];
};
/* Fills in the headers, and returns their number. */
unsigned pst_object_reply_fill(const struct pst_http_head *head,
			       struct pst_object_reply_texts *texts,
			       struct penstock_object_header *out);
/* Ends the server's access to the window if that needs no wait. Returns whether the access has
 * ended. */
bool pst_object_grant_close(struct pst_object_grant *grant);
/* Ends the server's access to the window. Waits for the server, at most 2 s. */
void pst_object_grant_wait(struct pst_object_grant *grant);
/* Ends the server's access to the window. Then calls released(): at once or, if it must wait for
 * the server, on another thread. */
void pst_object_grant_release(struct pst_object_grant *grant,
			      void (*released)(struct pst_object_grant *grant));

#endif
