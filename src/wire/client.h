/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of the data plane. src/object and storage/object_window.c call the functions of
 * the first part, and the transports those of the second part.
 */
#ifndef PST_WIRE_CLIENT_H
#define PST_WIRE_CLIENT_H

#include "wire/transport.h"

int pst_wire_client_open(const struct penstock_object_client_opts *opts,
			 const struct pst_wire_devices *devices, struct pst_wire_client **out,
			 struct pst_err *err);
void pst_wire_client_close(struct pst_wire_client *client);
void pst_wire_client_info(struct pst_wire_client *client, struct penstock_object_client_info *out);

/* Registers memory of the caller, or allocates memory if `ptr` is NULL. `dev` is NULL for host
 * memory. */
int pst_wire_buffer_open(struct pst_wire_client *client, struct penstock_device *dev, void *ptr,
			 size_t len, struct pst_wire_buffer **out, struct pst_err *err);
/* Memory that another process shares with this one: descriptors of host memory, or the description
 * of memory of a GPU. */
struct pst_wire_memory {
	struct penstock_device *dev; /* NULL: host memory */
	void *ptr;
	size_t len;
	int fd, read_fd;
	struct penstock_export exported;
};
/* Registers such memory, so that shm1 can pass it on. After success, the buffer owns the mapping
 * and the descriptors. */
int pst_wire_buffer_adopt(struct pst_wire_client *client, const struct pst_wire_memory *memory,
			  struct pst_wire_buffer **out, struct pst_err *err);
/* Ends a registration, and frees memory that pst_wire_buffer_open allocated. Returns -EBUSY if a
 * window of the buffer is open. */
int pst_wire_buffer_close(struct pst_wire_buffer *buffer, struct pst_err *err);
void *pst_wire_buffer_ptr(const struct pst_wire_buffer *buffer);
/* Makes windows of the buffer, which is memory of a GPU, use only transports that access this
 * memory without a copy in host memory. Called before its first window is opened. */
void pst_wire_buffer_direct(struct pst_wire_buffer *buffer);
struct penstock_device *pst_wire_buffer_device(const struct pst_wire_buffer *buffer);
/* Returns whether the release of a window has cut off a server from the buffer. The buffer can then
 * have no more windows. */
bool pst_wire_buffer_is_cut(struct pst_wire_buffer *buffer);
/* Returns whether a server may still access the buffer, all of whose windows are released. Its
 * close then does not free the memory. */
bool pst_wire_buffer_is_held(struct pst_wire_buffer *buffer);
/* Returns whether the bytes of every window of the client move by DMA only. */
bool pst_wire_client_is_dma(const struct pst_wire_client *client);

int pst_wire_window_open(struct pst_wire_buffer *buffer, enum penstock_op op, uint64_t off,
			 uint64_t len, struct pst_wire_grant **out, struct pst_err *err);
/* Returns the number of network cards by which the transport of the window listens. */
unsigned pst_wire_window_cards(const struct pst_wire_grant *grant);
/* Returns whether the bytes of the window move by DMA only. */
bool pst_wire_window_is_dma(const struct pst_wire_grant *grant);
void pst_wire_window_info(const struct pst_wire_grant *grant,
			  struct penstock_object_window_info *out);
enum penstock_op pst_wire_window_op(const struct pst_wire_grant *grant);
/* Judges the response to the request with the window's token (s3/judge.h). Reads the window if the
 * transport may report success for lost bytes. All members of *verdict but `size` are set. */
void pst_wire_judge(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		    struct penstock_object_verdict *verdict);
/* Makes pst_wire_release wait for the server, even if a judged response has shown that all
 * transfers have ended. */
void pst_wire_unsettle(struct pst_wire_grant *grant);
/* Begins a release without waiting: refuses further transfers, and tells servers to stop. Returns
 * true if no transfer accesses the window, so that pst_wire_release will not wait. */
bool pst_wire_revoke(struct pst_wire_grant *grant);
/* Closes a window, after which no byte gets into it. Returns 0, or -ETIMEDOUT if this cannot be
 * guaranteed. */
int pst_wire_release(struct pst_wire_grant *grant, struct pst_err *err);

/* ---- for transports ---- */

/* Finds the open window that a transfer names, and checks the transfer against it. Counts a
 * refusal. The caller holds the lock. */
enum pst_wire_status pst_wire_find(struct pst_wire_client *client, uint64_t id,
				   const unsigned char cap[PST_TOKEN_CAP], enum penstock_op op,
				   uint64_t off, uint64_t len, struct pst_wire_grant **out);
/* Begins an access to the window's memory. Returns false if the window is closed. */
bool pst_wire_enter(struct pst_wire_client *client, struct pst_wire_grant *grant, uint64_t id);
void pst_wire_leave(struct pst_wire_client *client, struct pst_wire_grant *grant);
/* Ends the use of the window that a connection has open. Called with the lock. */
void pst_wire_conn_ungrant(struct pst_wire_conn *conn);
/* Sets the epoll events that a connection waits for. */
int pst_wire_conn_wait(struct pst_wire_conn *conn, uint32_t events);

#endif
