/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of a client over a non-blocking socket. tls.c is the only file that calls libssl. Called by
 * http_conn.c. A server's certificate and name are always checked unless the caller says otherwise.
 */
#ifndef PST_IO_TLS_H
#define PST_IO_TLS_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/base/err.h"

struct pst_tls_context; /* settings that connections share; any thread may use it */
struct pst_tls;		/* the TLS of one connection; one thread uses it */

/* Opens a context. `ca_bundle` names a file with the certificates to trust; NULL or "" means the
 * system's. With `insecure`, no certificate is checked. */
int pst_tls_context_open(const char *ca_bundle, bool insecure, struct pst_tls_context **out,
			 struct pst_err *err);
void pst_tls_context_close(struct pst_tls_context *context);

/* Prepares TLS on a connected socket, which the caller keeps. Returns NULL if there is no memory.
 * `host` is the server's name or IP address, which its certificate must have. */
struct pst_tls *pst_tls_open(struct pst_tls_context *context, int fd, const char *host);
void pst_tls_close(struct pst_tls *tls);

/*
 * The three functions continue the handshake, read bytes and write bytes. Each returns -EAGAIN if
 * the socket is not ready; pst_tls_wants_write then says for which direction to wait. Other errors
 * end the connection. pst_tls_shake returns 0 when the handshake is complete. If the server's
 * certificate is refused, it returns -EKEYREJECTED with a message. pst_tls_read returns 0 at the
 * end of the connection.
 */
int pst_tls_shake(struct pst_tls *tls, struct pst_err *err);
ssize_t pst_tls_read(struct pst_tls *tls, void *bytes, size_t len);
ssize_t pst_tls_write(struct pst_tls *tls, const void *bytes, size_t len);
bool pst_tls_wants_write(const struct pst_tls *tls);
/* Returns whether libssl holds received bytes. poll() does not report such bytes, because libssl
 * has already read them from the socket. */
bool pst_tls_has_more(const struct pst_tls *tls);

#endif
