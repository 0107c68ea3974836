/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the client, the server and the transports of S3 over RDMA share. */
#ifndef PST_WIRE_COMMON_H
#define PST_WIRE_COMMON_H

#include <sys/socket.h>

#include "wire/transport.h"

/* Stores a hash that identifies this host since its last boot. Two processes with equal hashes are
 * on the same host. */
int pst_wire_host(unsigned char out[PST_TOKEN_HOST], struct pst_err *err);
/* Fills memory with random bytes of the kernel. */
int pst_wire_random(void *out, size_t len, struct pst_err *err);
uint64_t pst_wire_now_ms(void);
/* Returns in *out the address and the port at which servers reach this client, from its options.
 * With port 0 the kernel chooses a port. */
int pst_wire_own_place(const struct pst_wire_client *client, struct pst_token_place *out,
		       struct pst_err *err);
/* Converts an address and a port to a socket address. Returns its length. */
socklen_t pst_wire_sockaddr(const struct pst_token_place *place, struct sockaddr_storage *out);
/* Converts an IPv4 or IPv6 socket address to an address and a port. Returns false for another
 * family. */
bool pst_wire_place_of(const struct sockaddr_storage *address, struct pst_token_place *out);
/* Stores in *out the IP address of a RoCE v2 GID. */
void pst_wire_gid_place(const unsigned char gid[16], struct pst_token_place *out);
/* Stores in *out the address of this host from which packets to the client are sent. No packet is
 * sent. */
int pst_wire_route(const struct pst_token_place *client, struct pst_token_place *out,
		   struct pst_err *err);
bool pst_wire_same_place(const struct pst_token_place *a, const struct pst_token_place *b);

/* ---- for channels of a server ---- */

/* Parses the option `networks`: the ranges of addresses to which the server may connect. */
int pst_wire_networks_parse(struct pst_wire_server *server, const char *list, struct pst_err *err);
/* Checks whether a server may serve a token with the address `place`, for a transport without
 * encryption. The server may connect only to the address from which the HTTP request came, or to
 * one in server->networks. `name` is the transport's name, for messages. Returns 0 or -errno. */
int pst_wire_admit_place(const struct pst_wire_server *server, const char *name,
			 const struct pst_token_place *place,
			 const struct penstock_object_peer *peer, struct pst_err *err);
/* Returns 0 if the channel may continue its move (a transfer of bytes), -ETIMEDOUT after the move's
 * deadline, or -ECANCELED if the server is being closed. */
int pst_wire_check(const struct pst_wire_channel *channel);
/* Waits until `fd` has one of the events of poll(2). Returns 0, -ETIMEDOUT or -ECANCELED. */
int pst_wire_wait_fd(const struct pst_wire_channel *channel, int fd, short events);
/* Stores in *err the error for a status (enum pst_wire_status) that the client has sent. Returns
 * its -errno. */
int pst_wire_status_fail(unsigned status, struct pst_err *err);
/* Returns the part of the server's memory that begins at offset `at` of the move (a transfer of
 * bytes). The part is within one segment, and has at most `max` bytes. */
struct penstock_object_seg pst_wire_seg_at(const struct pst_wire_move *move, uint64_t at,
					   uint64_t max);
/* Copies the bytes of a segment to `mem` (`gather` is true), or from `mem` to the segment. `dev` is
 * the device of `mem`; NULL stands for host memory. Returns 0 or a negative errno. */
int pst_wire_seg_copy(struct pst_wire_channel *channel, const struct penstock_object_seg *seg,
		      struct penstock_device *dev, void *mem, bool gather, struct pst_err *err);
/* Copies `len` bytes at offset `at` of the move from its segments to host memory at `mem` (`gather`
 * is true), or from `mem` to the segments. Returns 0 or a negative errno. */
int pst_wire_stage(struct pst_wire_channel *channel, const struct pst_wire_move *move, uint64_t at,
		   void *mem, uint64_t len, bool gather, struct pst_err *err);
/* Copies between memory of two devices; NULL stands for host memory. */
int pst_wire_copy(const struct pst_wire_devices *devices, struct penstock_device *dst_dev,
		  void *dst, struct penstock_device *src_dev, const void *src, size_t len);

#endif
