/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the reading of certificates, see certificate.h. */
#include "certificate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "secret.h"

#define PEM_MAX (1u << 20)

/* Reads a file to its end, and closes it. */
static char *text_read(const char *path, int fd, char *why, size_t why_len)
{
	char *text = malloc(PEM_MAX);
	ssize_t len = 0, n = 1;

	errno = text ? 0 : ENOMEM;
	while (text && len < (ssize_t)PEM_MAX - 1 &&
	       (n = read(fd, text + len, PEM_MAX - 1 - (size_t)len)) > 0)
		len += n;
	if (!text || n < 0) {
		snprintf(why, why_len, "cannot read %s: %s", path, strerror(errno));
		/* The bytes before the error may be a part of the key. */
		if (text)
			explicit_bzero(text, (size_t)len);
		free(text);
		text = NULL;
	} else {
		text[len] = '\0';
	}
	close(fd);
	return text;
}

/* Returns the time at which the first of the certificates expires, or 0. */
static int64_t expiry(const char *chain)
{
	BIO *bio = BIO_new_mem_buf(chain, -1);
	int64_t first = 0;
	X509 *x;

	while (bio && (x = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
		struct tm tm;

		if (ASN1_TIME_to_tm(X509_get0_notAfter(x), &tm) == 1) {
			int64_t end = timegm(&tm);

			first = !first || end < first ? end : first;
		}
		X509_free(x);
	}
	BIO_free(bio);
	/* The end of the text is an error to libcrypto, which other calls must not find. */
	ERR_clear_error();
	return first;
}

int gw_certificate_read(const char *chain_path, const char *key_path, struct gw_certificate *out,
			char *why, size_t why_len)
{
	struct gw_certificate c = {0};
	int fd = open(chain_path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		snprintf(why, why_len, "cannot read %s: %s", chain_path, strerror(errno));
	else
		c.chain = text_read(chain_path, fd, why, why_len);
	fd = c.chain ? gw_secret_open(key_path, "key of the certificate", why, why_len) : -1;
	if (fd >= 0)
		c.key = text_read(key_path, fd, why, why_len);
	if (!c.key) {
		gw_certificate_free(&c);
		return -EIO;
	}
	c.expires_s = expiry(c.chain);
	*out = c;
	return 0;
}

void gw_certificate_free(struct gw_certificate *c)
{
	/* An operator may keep the certificate and its key in one file. Then both texts have the
	 * key. */
	if (c->key)
		explicit_bzero(c->key, strlen(c->key));
	if (c->chain)
		explicit_bzero(c->chain, strlen(c->chain));
	free(c->key);
	free(c->chain);
	c->key = c->chain = NULL;
}
