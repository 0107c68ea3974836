/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements url.h. It uses only the public functions of the library, and knows nothing about the
 * protocols. No message contains the query of a URL.
 */
#include "weights/url.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights/err.h"

bool pst_url_match(const char *name)
{
	return pst_url_is_s3(name) || !strncmp(name, "http://", 7) || !strncmp(name, "https://", 8);
}

bool pst_url_is_s3(const char *url)
{
	return !strncmp(url, "s3://", 5);
}

size_t pst_url_name_len(const char *url)
{
	return strcspn(url, "?");
}

bool pst_url_ends_with(const char *url, const char *tail)
{
	size_t len = pst_url_name_len(url), n = strlen(tail);

	return len > n && !strncmp(url + len - n, tail, n);
}

/* Appends `len` bytes to the text in `to`, of which *at bytes are used. */
static bool append(char to[PATH_MAX], size_t *at, const char *text, size_t len)
{
	if (len >= PATH_MAX - *at)
		return false;
	memcpy(to + *at, text, len);
	*at += len;
	to[*at] = '\0';
	return true;
}

static bool append_encoded(char to[PATH_MAX], size_t *at, const char *name)
{
	char escape[4];

	for (; *name; name++) {
		bool plain = isalnum((unsigned char)*name) || strchr("-._~/", *name);

		snprintf(escape, sizeof(escape), "%%%02X", (unsigned char)*name);
		if (!append(to, at, plain ? name : escape, plain ? 1 : 3))
			return false;
	}
	return true;
}

int pst_url_join(char to[PATH_MAX], const char *dir, const char *name)
{
	size_t len = pst_url_name_len(dir), at = 0;
	const char *query = dir + len;

	while (len && dir[len - 1] == '/')
		len--;
	if (append(to, &at, dir, len) && append(to, &at, "/", 1) && append_encoded(to, &at, name) &&
	    append(to, &at, query, strlen(query)))
		return 0;
	return pst_weights_fail_errno(ENAMETOOLONG, name, NULL, PST_NO_OFF, "%m");
}

int pst_url_dir(char to[PATH_MAX], const char *url)
{
	size_t name = pst_url_name_len(url), len = name, at = 0;

	while (len && url[len - 1] != '/')
		len--;
	if (append(to, &at, url, len) && append(to, &at, url + name, strlen(url + name)))
		return 0;
	return pst_weights_fail_errno(ENAMETOOLONG, url, NULL, PST_NO_OFF, "%m");
}

/* ---- reading ---- */

int pst_url_open(const char *url, unsigned flags, struct penstock_storage **out, uint64_t *length)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	int64_t ret;

	opts.flags = flags;
	ret = penstock_open(url, &opts, &st);
	if (ret < 0)
		return pst_weights_fail_lib((int)ret, url, NULL, PST_NO_OFF);
	ret = penstock_storage_length(st);
	if (ret < 0) {
		pst_weights_fail_lib((int)ret, url, NULL, PST_NO_OFF);
		penstock_close(st);
		return (int)ret;
	}
	*out = st;
	*length = (uint64_t)ret;
	return 0;
}

uint64_t pst_url_version(const struct penstock_storage *st)
{
	struct penstock_storage_info info = {.size = sizeof(info)};

	return penstock_storage_get_info(st, &info) ? 0 : info.version;
}

int pst_url_read(const char *url, struct penstock_storage *st, void *to, size_t len, uint64_t off)
{
	struct penstock_device *host;
	int64_t n = penstock_device_open("host", NULL, &host);

	if (n < 0)
		return pst_weights_fail_lib((int)n, NULL, NULL, PST_NO_OFF);
	n = len ? penstock_read(st, host, to, len, off) : 0;
	if (n < 0)
		pst_weights_fail_lib((int)n, url, NULL, off);
	penstock_device_close(host);
	if (n >= 0 && (uint64_t)n < len)
		return pst_weights_fail(ENODATA, PENSTOCK_WHY_SHRANK, url, NULL, off + (uint64_t)n,
					"it ends before these bytes");
	return n < 0 ? (int)n : 0;
}

int pst_url_read_file(const char *url, uint64_t max, char **out, size_t *len)
{
	struct penstock_storage *st;
	uint64_t length;
	char *bytes;
	int ret = pst_url_open(url, PENSTOCK_O_PREFETCH, &st, &length);

	if (ret)
		return ret;
	if (length > max) {
		penstock_close(st);
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, url, NULL, PST_NO_OFF,
					"it has more than %llu bytes", (unsigned long long)max);
	}
	bytes = malloc((size_t)length + 1);
	ret = bytes ? pst_url_read(url, st, bytes, (size_t)length, 0)
		    : pst_weights_no_memory("a file");
	penstock_close(st);
	if (ret) {
		free(bytes);
		return ret;
	}
	bytes[length] = '\0';
	*out = bytes;
	*len = (size_t)length;
	return 0;
}
