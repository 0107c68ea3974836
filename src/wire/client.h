/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of S3 over RDMA: memory that servers read and write. src/object and
 * storage/object_window.c call the functions of the first part. The transports call those of the
 * second part.
 */
#ifndef PST_WIRE_CLIENT_H
#define PST_WIRE_CLIENT_H

#include "wire/transport.h"

/* Opens a client without the transports of `omit`, a bitmap of enum pst_wire_omit. */
int pst_wire_client_open(const struct penstock_object_client_opts *opts,
			 const struct pst_wire_devices *devices, unsigned omit,
			 struct pst_wire_client **out, struct pst_err *err);
void pst_wire_client_close(struct pst_wire_client *client);
void pst_wire_client_info(struct pst_wire_client *client, struct penstock_object_client_info *out);

/* Registers memory of the caller, or allocates memory if `ptr` is NULL. `dev` is NULL for host
 * memory. */
int pst_wire_buffer_open(struct pst_wire_client *client, struct penstock_device *dev, void *ptr,
			 size_t len, struct pst_wire_buffer **out, struct pst_err *err);
/* Memory that another process shares with this one: file descriptors of host memory, or the export
 * description of memory of a GPU. */
struct pst_wire_memory {
	struct penstock_device *dev; /* NULL: host memory */
	void *ptr;
	size_t len;
	int fd, read_fd;
	struct penstock_export exported;
};
/* Registers memory of another process, so that transport shm1 can pass it on to servers. After
 * success, the buffer owns the mapping and the descriptors. */
int pst_wire_buffer_adopt(struct pst_wire_client *client, const struct pst_wire_memory *memory,
			  struct pst_wire_buffer **out, struct pst_err *err);
/* Ends a registration, and frees memory that pst_wire_buffer_open allocated. Returns -EBUSY if a
 * window of the buffer is open. */
int pst_wire_buffer_close(struct pst_wire_buffer *buffer, struct pst_err *err);
void *pst_wire_buffer_ptr(const struct pst_wire_buffer *buffer);
/* Restricts the windows of a buffer in GPU memory to transports that access this memory without a
 * copy in host memory. Called before the buffer's first window is opened. */
void pst_wire_buffer_direct(struct pst_wire_buffer *buffer);
struct penstock_device *pst_wire_buffer_device(const struct pst_wire_buffer *buffer);
/* Returns whether the client has ended a server's access to the buffer by force, because the server
 * did not reply to a release. Then no further window of the buffer can be opened. */
bool pst_wire_buffer_is_cut(struct pst_wire_buffer *buffer);
/* Returns whether a server may still access the buffer, all of whose windows are released. Its
 * close then does not free the memory. */
bool pst_wire_buffer_is_held(struct pst_wire_buffer *buffer);
/* Returns whether the bytes of every window of the client move by DMA only. */
bool pst_wire_client_is_dma(const struct pst_wire_client *client);

int pst_wire_window_open(struct pst_wire_buffer *buffer, enum penstock_op op, uint64_t off,
			 uint64_t len, struct pst_wire_grant **out, struct pst_err *err);
/* Opens a window of host memory at `mem` that takes a file (handover.h): for a GET, the server
 * passes the object's file, and pst_wire_judge copies the bytes to `mem`. The memory needs no
 * registration, but must stay valid until the release. Returns -EOPNOTSUPP if the client's
 * preferred transport cannot do this. */
int pst_wire_window_take(struct pst_wire_client *client, void *mem, uint64_t len,
			 struct pst_wire_grant **out, struct pst_err *err);
/* Returns whether pst_wire_window_take can open windows. */
bool pst_wire_client_takes_files(const struct pst_wire_client *client);
/* Returns the number of network cards on which the window's transport listens for servers. */
unsigned pst_wire_window_cards(const struct pst_wire_grant *grant);
/* Returns a number, lower than PST_WIRE_LISTENERS_MAX, of the window's transport and network card:
 * windows with the same number are served by the same card. */
unsigned pst_wire_window_card(const struct pst_wire_grant *grant);
/* Returns whether the window's transport moves bytes by DMA only, without a CPU. */
bool pst_wire_window_is_dma(const struct pst_wire_grant *grant);
void pst_wire_window_info(const struct pst_wire_grant *grant,
			  struct penstock_object_window_info *out);
enum penstock_op pst_wire_window_op(const struct pst_wire_grant *grant);
/* Judges the response to the request with the window's token (s3/judge.h). If the window takes
 * a file, also copies the bytes. If the transport may report success although bytes were lost, also
 * compares the CRC of the window's bytes with the CRC in the response. Sets all members of *verdict
 * except `size`. */
void pst_wire_judge(struct pst_wire_grant *grant, const struct penstock_object_reply *reply,
		    struct penstock_object_verdict *verdict);
/* Makes pst_wire_release wait for the server, even if a response has proved that all transfers have
 * ended. Needed if another attempt of the request may have started a transfer. */
void pst_wire_unsettle(struct pst_wire_grant *grant);
/* Begins a release without waiting: refuses further transfers, and tells servers to stop. Returns
 * true if no transfer accesses the window, so that pst_wire_release will not wait. */
bool pst_wire_revoke(struct pst_wire_grant *grant);
/* Closes a window, and guarantees that no byte gets into it afterwards. Returns 0, or -ETIMEDOUT if
 * the guarantee is not possible. Another -errno means that bytes in the window may be wrong. */
int pst_wire_release(struct pst_wire_grant *grant, struct pst_err *err);

/* ---- for transports ---- */

/* Returns in *out the open window with the id of a transfer, after checking the transfer's
 * capability, direction and range. Counts each refusal in client->counts. The caller holds
 * client->lock. */
enum pst_wire_status pst_wire_find(struct pst_wire_client *client, uint64_t id,
				   const unsigned char cap[PST_TOKEN_CAP], enum penstock_op op,
				   uint64_t off, uint64_t len, struct pst_wire_grant **out);
/* Begins an access to the window's memory, which pst_wire_leave ends. Returns false if the window
 * is closed. */
bool pst_wire_enter(struct pst_wire_client *client, struct pst_wire_grant *grant, uint64_t id);
void pst_wire_leave(struct pst_wire_client *client, struct pst_wire_grant *grant);
/* Ends the access of the connection's server to the window `conn->grant`. Does nothing if that is
 * NULL. The caller holds client->lock. */
void pst_wire_conn_ungrant(struct pst_wire_conn *conn);
/* Sets the epoll events for which the client's thread waits on this connection. */
int pst_wire_conn_wait(struct pst_wire_conn *conn, uint32_t events);

#endif
