/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that both halves of the data plane and their transports share. */
#ifndef PST_WIRE_COMMON_H
#define PST_WIRE_COMMON_H

#include <sys/socket.h>

#include "wire/transport.h"

/* Writes a hash that identifies this boot of this host. Equal hashes mean that two processes are on
 * one host. */
int pst_wire_host(unsigned char out[PST_TOKEN_HOST], struct pst_err *err);
/* Fills memory with random bytes of the kernel. */
int pst_wire_random(void *out, size_t len, struct pst_err *err);
uint64_t pst_wire_now_ms(void);
/* Returns the address and the port from the client's options. Port 0 lets the kernel choose a
 * port. */
int pst_wire_own_place(const struct pst_wire_client *client, struct pst_token_place *out,
		       struct pst_err *err);
/* Writes the place as a socket address and returns its length. */
socklen_t pst_wire_sockaddr(const struct pst_token_place *place, struct sockaddr_storage *out);
/* The opposite, for IPv4 and IPv6. Returns false for another family. */
bool pst_wire_place_of(const struct sockaddr_storage *address, struct pst_token_place *out);
/* Writes the address that a GID of RoCE v2 stands for. */
void pst_wire_gid_place(const unsigned char gid[16], struct pst_token_place *out);
/* Finds out by which address this host reaches another one. Nothing is sent. */
int pst_wire_route(const struct pst_token_place *client, struct pst_token_place *out,
		   struct pst_err *err);
bool pst_wire_same_place(const struct pst_token_place *a, const struct pst_token_place *b);

/* ---- for channels of a server ---- */

/* Parses the networks of the server's options. */
int pst_wire_networks_parse(struct pst_wire_server *server, const char *list, struct pst_err *err);
/* Checks whether a token with this address may be served. Its bytes are not encrypted, and the
 * server may connect only to the address that the HTTP request came from, or to one in the networks
 * of the server. `name` is the transport's
 * name. Returns 0 or -errno. */
int pst_wire_admit_place(const struct pst_wire_server *server, const char *name,
			 const struct pst_token_place *place,
			 const struct penstock_object_peer *peer, struct pst_err *err);
/* Returns 0 if the move may go on, -ETIMEDOUT after its deadline, or -ECANCELED if the server is
 * closed. */
int pst_wire_check(const struct pst_wire_channel *channel);
/* Waits until `fd` has one of the events of poll(2). Returns 0, -ETIMEDOUT or -ECANCELED. */
int pst_wire_wait_fd(const struct pst_wire_channel *channel, int fd, short events);
/* Sets `err` to the error for a status that the client has sent, and returns its -errno. */
int pst_wire_status_fail(unsigned status, struct pst_err *err);
/* Returns the piece of the server's memory that begins at offset `at` of the move; it has at most
 * `max` bytes. */
struct penstock_object_seg pst_wire_seg_at(const struct pst_wire_move *move, uint64_t at,
					   uint64_t max);
/* Copies the bytes of a segment to `mem`, or from `mem` if `gather` is false. `dev` is the device
 * of `mem`; NULL stands for host memory. Returns 0 or a negative errno. */
int pst_wire_seg_copy(struct pst_wire_channel *channel, const struct penstock_object_seg *seg,
		      struct penstock_device *dev, void *mem, bool gather, struct pst_err *err);
/* Copies `len` bytes at offset `at` of the move between its segments and host memory: from the
 * segments, or to them if `gather` is false. Returns 0 or a negative errno. */
int pst_wire_stage(struct pst_wire_channel *channel, const struct pst_wire_move *move, uint64_t at,
		   void *mem, uint64_t len, bool gather, struct pst_err *err);
/* Copies between memory of two devices; NULL stands for host memory. */
int pst_wire_copy(const struct pst_wire_devices *devices, struct penstock_device *dst_dev,
		  void *dst, struct penstock_device *src_dev, const void *src, size_t len);

#endif
