/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows that take a file, for GETs by transport shm1. The server passes a read-only descriptor of
 * the object's file (SCM_RIGHTS), and the client's process copies the bytes from there to its own
 * memory. So the CPU copies each byte once, and the processes share no memory. Before that, the
 * server reads bytes that are not cached into the page cache. shm1_server.c, shm1_client.c and
 * client.c call these functions.
 *
 * A descriptor must not give the client a right that it does not have already. A process can open
 * a descriptor again through /proc/self/fd, also for writing, if the file's mode permits that. So
 * the server passes descriptors only to a client that could open the same file by its name:
 * - The client's user is the server's own user or root. It was so when the client made its socket,
 *   and it still is when the server connects.
 * - The client has a capability to read all files, or it has the server's user and groups, and the
 *   server has no such capability. Both have the same user namespace.
 * - The client has the same mount namespace and the same root directory as the server. A container
 *   can have the server's user, but not the server's files.
 * - The client's process can be identified. SO_PEERCRED alone does not do that, because the process
 *   may have ended and another process may have its number. So the server needs a pidfd of the peer
 *   (SO_PEERPIDFD, Linux 6.5), which must be alive after /proc was read. A server that cannot read
 *   the client's directory in /proc passes nothing.
 * - The file is regular and open for reading only. The server's option `pass_files` promises that
 *   it contains only the object's bytes.
 */
#ifndef PST_WIRE_HANDOVER_H
#define PST_WIRE_HANDOVER_H

#include "wire/transport.h"

/* ---- server ---- */

/* Returns 0 if descriptors of objects may be passed to the process at the other end of a connected
 * Unix socket. Returns -EOPNOTSUPP with the reason if not. */
int pst_wire_handover_peer(int sock, struct pst_err *err);
/* Returns 0 if the segment's descriptor may be passed to a client. Returns -EOPNOTSUPP with the
 * reason if not. */
int pst_wire_handover_file(const struct penstock_object_seg *seg, struct pst_err *err);

/* Returns whether all bytes of the segment, a range of a file, are in the page cache. */
bool pst_wire_handover_cached(const struct penstock_object_seg *seg);

/* ---- client ---- */

/* Stores in the window the descriptor *fd, which a server has passed for the window's first `len`
 * bytes. They begin at offset `off` of the file. Sets *fd to the window's earlier descriptor, or to
 * -1: the server passes another descriptor if the request is repeated. The caller holds
 * client->lock, and closes *fd after it has released this lock, because the close may wait for a
 * file system. The same holds if the result is not PST_WIRE_OK; then *fd is unchanged. */
enum pst_wire_status pst_wire_handover_put(struct pst_wire_grant *grant, int *fd, uint64_t off,
					   uint64_t len);
/* Takes the descriptor out of the window. The caller holds client->lock. */
int pst_wire_handover_take(struct pst_wire_grant *grant);
/* Closes a descriptor, unless it is -1. The caller does not hold client->lock. */
void pst_wire_handover_close(int fd);
/* Copies the bytes of a response that reports success from the passed file to the window. Runs on
 * the thread that judges the response, so that several windows are copied at the same time. If not
 * all bytes can be copied, the verdict becomes PENSTOCK_OBJECT_RESEND. */
void pst_wire_handover_copy(struct pst_wire_grant *grant, struct penstock_object_verdict *verdict);

#endif
