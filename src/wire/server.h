/* SPDX-License-Identifier: Apache-2.0 */
/* The server half of S3 over RDMA: moves bytes between the server's memory and windows of clients.
 * src/object calls these functions. */
#ifndef PST_WIRE_SERVER_H
#define PST_WIRE_SERVER_H

#include "wire/transport.h"

int pst_wire_server_open(const struct penstock_object_server_opts *opts,
			 const struct pst_wire_devices *devices, struct pst_wire_server **out,
			 struct pst_err *err);
void pst_wire_server_close(struct pst_wire_server *server);
void pst_wire_server_info(struct pst_wire_server *server, struct penstock_object_server_info *out);
int pst_wire_resolve(struct pst_wire_server *server, const char *token, size_t len,
		     const struct penstock_object_peer *peer, struct pst_wire_remote **out,
		     struct pst_err *err);
int pst_wire_prepare(struct pst_wire_server *server, const char *token, size_t len,
		     const struct penstock_object_peer *peer,
		     struct penstock_object_pairing *pairing, struct pst_wire_remote **out,
		     struct pst_err *err);
int pst_wire_ready(struct pst_wire_remote *remote, uint32_t qpn, uint64_t address, uint32_t key,
		   struct pst_err *err);
void pst_wire_remote_info(const struct pst_wire_remote *remote,
			  struct penstock_object_remote_info *out);
void pst_wire_forget(struct pst_wire_remote *remote);
int pst_wire_move(struct pst_wire_remote *remote, enum penstock_op op, uint64_t off,
		  const struct penstock_object_seg *segs, unsigned seg_count, uint64_t user,
		  struct pst_err *err);
/* Stores up to `max` completed moves in `done`, and returns their number. If there is none, waits
 * up to `timeout_ms` milliseconds for the first one; -1 means no limit. */
int pst_wire_wait(struct pst_wire_server *server, struct penstock_object_done *done, unsigned max,
		  int timeout_ms);
int pst_wire_fd(struct pst_wire_server *server);

#endif
