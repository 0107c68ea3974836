/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wraps libssl for clients: see tls.h. Reads and writes go straight between libssl and the
 * caller's memory.
 */
#include "io/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

struct pst_tls_context {
	SSL_CTX *ctx;
};

struct pst_tls {
	SSL *ssl;
	const char *host; /* name of the server; the caller's memory */
	bool wants_write;
};

/* Formats the oldest error of libssl's queue, and empties the queue. */
static const char *tls_reason(char *buf, size_t len)
{
	unsigned long code = ERR_get_error();
	const char *text = code ? ERR_reason_error_string(code) : NULL;

	ERR_clear_error();
	snprintf(buf, len, "%s", text ? text : "no reason was given");
	return buf;
}

int pst_tls_context_open(const char *ca_bundle, bool insecure, struct pst_tls_context **out,
			 struct pst_err *err)
{
	struct pst_tls_context *context;
	char reason[128];

	/* libssl must not free its memory at exit(), while other threads still use it. */
	if (!OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL))
		return pst_fail_errno(err, EIO, PENSTOCK_WHY_NO_MEMORY, "libssl: %s",
				      tls_reason(reason, sizeof(reason)));
	context = calloc(1, sizeof(*context));
	if (context)
		context->ctx = SSL_CTX_new(TLS_client_method());
	if (!context || !context->ctx) {
		free(context);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for TLS");
	}
	SSL_CTX_set_min_proto_version(context->ctx, TLS1_2_VERSION);
	SSL_CTX_set_mode(context->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
					       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					       SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_set_verify(context->ctx, insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
	if (ca_bundle && ca_bundle[0]) {
		if (!SSL_CTX_load_verify_locations(context->ctx, ca_bundle, NULL)) {
			int ret = pst_fail_errno(err, EINVAL, PENSTOCK_WHY_BAD_ARGUMENT,
						 "the CA bundle %s: %s (see AWS_CA_BUNDLE)",
						 pst_path_tail(ca_bundle),
						 tls_reason(reason, sizeof(reason)));

			pst_tls_context_close(context);
			return ret;
		}
	} else {
		SSL_CTX_set_default_verify_paths(context->ctx);
	}
	*out = context;
	return 0;
}

void pst_tls_context_close(struct pst_tls_context *context)
{
	if (!context)
		return;
	SSL_CTX_free(context->ctx);
	free(context);
}

struct pst_tls *pst_tls_open(struct pst_tls_context *context, int fd, const char *host)
{
	struct pst_tls *tls = calloc(1, sizeof(*tls));
	unsigned char address[sizeof(struct in6_addr)];
	bool numeric;

	if (!tls)
		return NULL;
	tls->host = host;
	tls->ssl = SSL_new(context->ctx);
	if (!tls->ssl || !SSL_set_fd(tls->ssl, fd))
		goto err_close;
	numeric = inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
	if (numeric) {
		if (!X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls->ssl), host))
			goto err_close;
	} else if (!SSL_set1_host(tls->ssl, host) || !SSL_set_tlsext_host_name(tls->ssl, host)) {
		goto err_close;
	}
	SSL_set_connect_state(tls->ssl);
	return tls;
err_close:
	ERR_clear_error();
	pst_tls_close(tls);
	return NULL;
}

void pst_tls_close(struct pst_tls *tls)
{
	if (!tls)
		return;
	SSL_free(tls->ssl);
	free(tls);
}

/* Returns the errno of a failed call: -EAGAIN if the socket is not ready. */
static int tls_result(struct pst_tls *tls, int ret)
{
	int why = SSL_get_error(tls->ssl, ret), code = errno;

	tls->wants_write = why == SSL_ERROR_WANT_WRITE;
	if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
		return -EAGAIN;
	if (why == SSL_ERROR_SYSCALL && code)
		return -code;
	return -ECONNRESET;
}

int pst_tls_shake(struct pst_tls *tls, struct pst_err *err)
{
	char reason[128];
	int ret, code;
	long verdict;

	ERR_clear_error();
	errno = 0;
	ret = SSL_do_handshake(tls->ssl);
	if (ret == 1)
		return 0;
	code = tls_result(tls, ret);
	if (code == -EAGAIN)
		return code;
	verdict = SSL_get_verify_result(tls->ssl);
	if (verdict != X509_V_OK) {
		ERR_clear_error();
		return pst_fail_errno(err, EKEYREJECTED, PENSTOCK_WHY_NO_PERMISSION,
				      "%s: its certificate is not trusted (%s): name the CA that "
				      "signed it in AWS_CA_BUNDLE",
				      pst_path_tail(tls->host),
				      X509_verify_cert_error_string(verdict));
	}
	return pst_fail_errno(err, -code, PENSTOCK_WHY_IO_ERROR, "%s: the TLS handshake failed: %s",
			      pst_path_tail(tls->host), tls_reason(reason, sizeof(reason)));
}

ssize_t pst_tls_read(struct pst_tls *tls, void *bytes, size_t len)
{
	size_t n;
	int ret;

	ERR_clear_error();
	errno = 0;
	ret = SSL_read_ex(tls->ssl, bytes, len, &n);
	if (ret == 1)
		return (ssize_t)n;
	if (SSL_get_error(tls->ssl, ret) == SSL_ERROR_ZERO_RETURN)
		return 0;
	return tls_result(tls, ret);
}

ssize_t pst_tls_write(struct pst_tls *tls, const void *bytes, size_t len)
{
	size_t n;
	int ret;

	ERR_clear_error();
	errno = 0;
	ret = SSL_write_ex(tls->ssl, bytes, len, &n);
	return ret == 1 ? (ssize_t)n : tls_result(tls, ret);
}

bool pst_tls_wants_write(const struct pst_tls *tls)
{
	return tls->wants_write;
}

bool pst_tls_has_more(const struct pst_tls *tls)
{
	return SSL_has_pending(tls->ssl);
}
