/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows for the servers of objects (S3 over RDMA). A window is memory of the host or of a device
 * that a server reads and writes itself, by the transports of src/wire. A request with the window's
 * token lets the server move the bytes instead of sending a body. Called by object.c and the files
 * of uploads.
 *
 * All windows of an endpoint have one state: whether the server takes tokens. A server that does
 * not know them gets none any more, for the rest of the process. One that has declined many gets
 * none for a minute. Besides, the state has for each device whether the server can access its
 * memory. What a server answers to such a window does not change the state of the others.
 */
#ifndef PST_STORAGE_OBJECT_WINDOW_H
#define PST_STORAGE_OBJECT_WINDOW_H

#include "core/ops.h"
#include "penstock_object.h"
#include "storage/object_request.h"

struct pst_object_windows;
struct pst_wire_grant;

/* Returns the windows for the server of an object, or NULL with the reason in `why`. They are never
 * freed. The server must have answered a request before. */
struct pst_object_windows *pst_object_windows_find(const struct pst_object_place *place,
						   struct pst_err *why);
/* Fills the members of the facts that are about windows. `windows` may be NULL. */
void pst_object_windows_facts(const struct pst_object_windows *windows, const struct pst_err *why,
			      bool only, struct pst_storage_facts *facts);
/* Returns 0, or -EOPNOTSUPP with the reason if the server gets no tokens, for the rest of the
 * process or for a pause. A call after the pause ends it. */
int pst_object_windows_check(struct pst_object_windows *windows, struct pst_err *err);

/* Returns whether the server has declined the last token that it has got. */
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

/* The use of a window by one request. */
struct pst_object_grant {
	struct pst_object_windows *windows;
	struct pst_window *window;
	struct pst_wire_grant *inner; /* NULL while the window is closed to the server */
	enum penstock_op op;
	uint64_t len;
	const char *transport;			/* name of the transport; static */
	bool dma;				/* no CPU copies the bytes */
	struct penstock_object_verdict verdict; /* of pst_object_grant_judge */
	const struct pst_object_call *judged;	/* the call that was judged; NULL: none */
	/* Result of the release: 0, or -errno with the reason. */
	int result;
	struct pst_err err;
	void (*released)(struct pst_object_grant *grant);
};

/* Opens the first `len` bytes of a window to the server, for a GET (PENSTOCK_READ) or a PUT. */
int pst_object_grant_open(struct pst_object_grant *grant, struct pst_object_windows *windows,
			  struct pst_window *window, enum penstock_op op, uint64_t len,
			  struct pst_err *err);
/* Returns the token of an open grant. */
const char *pst_object_grant_token(const struct pst_object_grant *grant);
/* Judges the response to the call, whose token belongs to the grant, and notes what it tells about
 * the server. `error` is the code in the body, or NULL if the body has not arrived. The body of a
 * response cannot go to memory of a device, so the verdict is never BODY for such a window. */
enum penstock_object_next pst_object_grant_judge(struct pst_object_grant *grant,
						 const struct pst_object_call *call,
						 const char *error);
/* Stores the reason why the bytes did not come through the window. Returns -EOPNOTSUPP. */
int pst_object_grant_why(const struct pst_object_grant *grant, struct pst_err *err);
/* The headers of a response that a judge needs, and memory for their values. */
#define PST_OBJECT_REPLY_HEADERS 6
struct pst_object_reply_texts {
	char length[24], range[80];
};
/* Fills in the headers, and returns their number. */
unsigned pst_object_reply_fill(const struct pst_http_head *head,
			       struct pst_object_reply_texts *texts,
			       struct penstock_object_header *out);
/* Closes the window to the server if this needs no wait. Returns whether it is closed. */
bool pst_object_grant_close(struct pst_object_grant *grant);
/* Closes the window to the server. Waits for the server, at most 2 s. */
void pst_object_grant_wait(struct pst_object_grant *grant);
/* Closes the window to the server. Calls released() when no byte can get into the window or out of
 * it any more: at once, or on another thread if the server must be waited for. */
void pst_object_grant_release(struct pst_object_grant *grant,
			      void (*released)(struct pst_object_grant *grant));

#endif
