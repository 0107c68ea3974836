/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows for the servers of objects (S3 over RDMA). A window is memory of the host or of a device
 * that a server reads and writes itself, by the transports of src/wire. A request with the window's
 * token lets the server move the bytes instead of sending a body. object.c, object_reach.c and the
 * code of uploads call these functions.
 *
 * For each endpoint, the library remembers whether the server accepts tokens. A server that ignores
 * tokens gets none for the rest of the process. A server that has declined many tokens in a row
 * gets none for a minute. Besides, the library remembers for each device whether the server can
 * access its memory. A response to a request with a window in the memory of a device does not
 * change what the library remembers about tokens.
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
 * freed. Before the server's first reply, the result can be wrong, because another address of the
 * server may turn out to be in use. */
struct pst_object_windows *pst_object_windows_find(const struct pst_object_place *place,
						   struct pst_err *why);
/* Fills the members of `facts` that describe windows. `windows` may be NULL, for the reason `why`.
 * `only` is true if the caller forbids transfers in HTTP bodies. */
void pst_object_windows_facts(const struct pst_object_windows *windows, const struct pst_err *why,
			      bool only, struct pst_storage_facts *facts);
/* Returns 0 if requests to the server may carry tokens. Returns -EOPNOTSUPP with the reason if not,
 * because of a pause or for the rest of the process. Ends a pause whose time is over. */
int pst_object_windows_check(struct pst_object_windows *windows, struct pst_err *err);

/* Returns whether the server has declined the last token that it was sent. */
bool pst_object_windows_decline(const struct pst_object_windows *windows);
/* Returns whether the server has moved the bytes of a PUT through a window. */
bool pst_object_windows_answered(const struct pst_object_windows *windows);
/* Notes whether the last object that an open with PENSTOCK_O_PREFETCH found is longer than the
 * bytes that an open prefetches. */
void pst_object_windows_note_long(struct pst_object_windows *windows, bool is_long);
/* Returns the value that pst_object_windows_note_long has noted last; false if there is none. */
bool pst_object_windows_are_long(const struct pst_object_windows *windows);

/* Allocates a window in the memory of `dev`, or in host memory if `dev` is NULL. */
int pst_object_window_open(struct pst_object_windows *windows, struct penstock_device *dev,
			   size_t len, struct pst_window **out, struct pst_err *err);

/* Returns whether the server can access windows in the memory of `dev`, by the last test: 1, or 0
 * with the reason in `why`. Returns -EAGAIN if no recent test is known, and the caller must make
 * one. */
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
	struct pst_window *window;    /* NULL for a window that takes a file */
	struct pst_wire_grant *inner; /* the server's access to the window; NULL after its end */
	enum penstock_op op;
	uint64_t len;
	/* cards: number of network cards of the window's transport; tries: number of repetitions
	 * that pst_object_grant_next has counted */
	unsigned cards, tries;
	unsigned card;	 /* index of the window's network card (pst_wire_window_card) */
	uint64_t failed; /* bit mask of the cards that have failed for this request */
	bool repeats;	 /* pst_object_grant_next has demanded another card */
	/* whether the server has not moved the bytes, for a reason that another card may change */
	bool card_failed;
	const char *transport;			/* name of the transport; static */
	bool dma;				/* whether only DMA moves the bytes, and no CPU */
	struct penstock_object_verdict verdict; /* result of pst_object_grant_judge */
	/* used if the transport replaces the request by its own requests */
	struct pst_object_steps steps;
	/* the call whose response was judged; NULL if none was */
	const struct pst_object_call *judged;
	/* Result of pst_object_grant_wait or _release: 0, or -errno with the reason in `err`. */
	int result;
	struct pst_err err;
	void (*released)(struct pst_object_grant *grant);
};

/* Permits the server to read (PUT) or write (GET, PENSTOCK_READ) the first `len` bytes of a
 * window. */
int pst_object_grant_open(struct pst_object_grant *grant, struct pst_object_windows *windows,
			  struct pst_window *window, enum penstock_op op, uint64_t len,
			  struct pst_err *err);
/* Opens a window that takes a file (wire/handover.h), for a GET: the server passes the object's
 * file, and pst_object_grant_judge copies its bytes to `mem`, `len` bytes of host memory. Returns
 * -EOPNOTSUPP if the server passes no files, or has refused to in the last minute. */
int pst_object_grant_take(struct pst_object_grant *grant, struct pst_object_windows *windows,
			  void *mem, uint64_t len, struct pst_err *err);
/* Adds the token of the grant's window to the call, so that the server moves the bytes through the
 * window. */
void pst_object_grant_offer(struct pst_object_grant *grant, struct pst_object_call *call);
/* Judges the response to the call with the grant's token. Records what the response shows about the
 * server. `error` is the error code in the response's body, or NULL if the body has not arrived.
 * The body of a response cannot go to memory of a device. So if the window is in such memory, the
 * result is never PENSTOCK_OBJECT_BODY. If the server declines a window that takes a file, the
 * result is PENSTOCK_OBJECT_RESEND, so that the request is repeated with another window. */
enum penstock_object_next pst_object_grant_judge(struct pst_object_grant *grant,
						 const struct pst_object_call *call,
						 const char *error);
/* Returns whether the request can be repeated through another network card, because the server has
 * not moved the bytes, and not all cards have been tried. */
bool pst_object_grant_has_card(const struct pst_object_grant *grant);
/* Called after the window was released. Returns whether the request is to be repeated through
 * another card (pst_object_grant_has_card, and the grant has no error). If so, counts the
 * repetition and marks the card as failed. If the result is true, the caller opens the grant again
 * with the same window. The window then gets another card, because windows avoid a card after a
 * failure (wire/nics.h). If only cards are left that this request has tried, pst_object_grant_open
 * fails. */
bool pst_object_grant_next(struct pst_object_grant *grant);
/* Calls pst_object_grant_next, opens the grant again, and adds the new token to `call`, which has
 * ended. Returns true if the caller must start the call again. */
bool pst_object_grant_again(struct pst_object_grant *grant, struct pst_object_call *call);
/* Calls pst_object_grant_again, and starts the call, unless it was cancelled after its end. `guard`
 * is the lock under which other threads cancel the call. Returns true if the call was started: it
 * may then have ended already. */
bool pst_object_grant_restart(struct pst_object_grant *grant, struct pst_object_call *call,
			      pthread_mutex_t *guard);
/* Stores in `err` why the bytes did not come through the window. Returns -EOPNOTSUPP. */
int pst_object_grant_why(const struct pst_object_grant *grant, struct pst_err *err);
/* The headers of a response that pst_wire_judge needs, and memory for their values. */
#define PST_OBJECT_REPLY_HEADERS (3 + PST_OBJECT_RDMA_HEADERS)
struct pst_object_reply_texts {
	char length[24], range[80];
};
/* Stores the headers of the response in `out`, and returns their number. */
unsigned pst_object_reply_fill(const struct pst_http_head *head,
			       struct pst_object_reply_texts *texts,
			       struct penstock_object_header *out);
/* Ends the server's access to the window if that needs no wait. Returns whether the access has
 * ended. */
bool pst_object_grant_close(struct pst_object_grant *grant);
/* Ends the server's access to the window. Waits for the server, at most 2 s. */
void pst_object_grant_wait(struct pst_object_grant *grant);
/* Ends the server's access to the window, and then calls released(): at once, or on another thread
 * if it must wait for the server. */
void pst_object_grant_release(struct pst_object_grant *grant,
			      void (*released)(struct pst_object_grant *grant));

#endif
