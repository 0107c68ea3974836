/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_url.h: parses the URLs of objects. No message contains the query of a presigned
 * URL, because it is a signature that gives access.
 */
#include "storage/object_url.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "s3/uri.h"

#define TARGET_MAX 8192 /* maximum length of a presigned URL's path and query */

bool pst_object_url_match(const char *url)
{
	return !strncmp(url, "s3://", 5) || !strncmp(url, "http://", 7) ||
	       !strncmp(url, "https://", 8);
}

bool pst_object_server_is_plain(const struct pst_object_server *server)
{
	unsigned char address[sizeof(struct in6_addr)];

	return !strcmp(server->host, "localhost") ||
	       inet_pton(AF_INET, server->host, address) == 1 ||
	       inet_pton(AF_INET6, server->host, address) == 1;
}

/* Parses "HOST[:PORT]" of `len` bytes. */
static bool authority_parse(const char *text, size_t len, struct pst_object_server *out)
{
	const char *end = text + len, *host = text, *port;
	size_t host_len;

	if (len && *text == '[') { /* an IPv6 address */
		const char *close = memchr(text, ']', len);

		if (!close)
			return false;
		host = text + 1;
		host_len = (size_t)(close - host);
		port = close + 1;
	} else {
		const char *colon = memchr(text, ':', len);

		port = colon ? colon : end;
		host_len = (size_t)(port - text);
	}
	if (!host_len || host_len >= sizeof(out->host) || (port < end && *port != ':'))
		return false;
	for (size_t i = 0; i < host_len; i++)
		if (!isalnum((unsigned char)host[i]) && !strchr("-._:", host[i]))
			return false;
	memcpy(out->host, host, host_len);
	out->host[host_len] = '\0';
	out->port = out->tls ? 443 : 80;
	if (port == end)
		return true;
	out->port = 0;
	for (port++; port < end && isdigit((unsigned char)*port) && out->port < 65536; port++)
		out->port = out->port * 10 + (unsigned)(*port - '0');
	out->port_given = true;
	return port == end && out->port > 0 && out->port < 65536;
}

int pst_object_server_parse(const char *endpoint, struct pst_object_server *out,
			    struct pst_err *err)
{
	const char *at = strstr(endpoint, "://");
	size_t len;

	memset(out, 0, sizeof(*out));
	out->tls = !strncmp(endpoint, "https://", 8);
	if (!at || (!out->tls && strncmp(endpoint, "http://", 7)))
		goto bad;
	at += 3;
	len = strcspn(at, "/?#");
	if (at[len] && strcmp(at + len, "/"))
		goto bad;
	if (authority_parse(at, len, out))
		return 0;
bad:
	/* The message omits an endpoint with an '@', because the text before it may be a
	 * password. */
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			"endpoint '%.60s': want http://HOST:PORT or https://HOST",
			strchr(endpoint, '@') ? "...@..." : endpoint);
}

void pst_object_server_authority(const struct pst_object_server *server,
				 char out[PST_OBJECT_AUTHORITY])
{
	bool brackets = strchr(server->host, ':'); /* an IPv6 address */
	int len = snprintf(out, PST_OBJECT_AUTHORITY, "%s%s%s", brackets ? "[" : "", server->host,
			   brackets ? "]" : "");

	if (server->port != (server->tls ? 443u : 80u))
		snprintf(out + len, PST_OBJECT_AUTHORITY - (size_t)len, ":%u", server->port);
}

/* ---- s3:// ---- */

static bool flag_parse(const char *value, int *out)
{
	*out = !strcmp(value, "1") || !strcmp(value, "true");
	return *out || !strcmp(value, "0") || !strcmp(value, "false");
}

/* Only letters, digits and '-' are valid, because the region becomes part of a host name and of a
 * header. */
bool pst_object_region_is_valid(const char *region)
{
	for (; *region; region++)
		if (!isalnum((unsigned char)*region) && *region != '-')
			return false;
	return true;
}

static bool rdma_parse(const char *value, enum pst_object_rdma *out)
{
	static const char *const names[] = {
		[PST_OBJECT_RDMA_AUTO] = "auto",
		[PST_OBJECT_RDMA_OFF] = "off",
		[PST_OBJECT_RDMA_ON] = "on",
		[PST_OBJECT_RDMA_REQUIRE] = "require",
	};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(value, names[i])) {
			*out = (enum pst_object_rdma)i;
			return true;
		}
	return false;
}

static bool text_set(char *out, size_t out_len, const char *value)
{
	return (size_t)snprintf(out, out_len, "%s", value) < out_len;
}

/* Stores a list of addresses. Returns false if an element of the list is not a numeric address, or
 * if the list has too many elements. The empty list is valid. */
static bool addresses_set(char *out, size_t out_len, const char *value)
{
	unsigned char binary[sizeof(struct in6_addr)];
	const char *at = value;

	for (unsigned count = 0; *value; count++) {
		char address[INET6_ADDRSTRLEN];
		size_t len = strcspn(at, ",");

		if (len >= sizeof(address) || count == PST_OBJECT_ADDRESSES_MAX)
			return false;
		memcpy(address, at, len);
		address[len] = '\0';
		if (inet_pton(AF_INET, address, binary) != 1 &&
		    inet_pton(AF_INET6, address, binary) != 1)
			return false;
		at += len;
		if (!*at++)
			break;
	}
	return text_set(out, out_len, value);
}

/* Fails because of a list that addresses_set has refused. `name` is the option or the variable. */
static int addresses_fail(const char *prefix, const char *name, const char *value,
			  struct pst_err *err)
{
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			"%s%s=%.60s: want numeric addresses of this host, at most %u, such as "
			"192.0.2.1,192.0.2.2",
			prefix, name, value, PST_OBJECT_ADDRESSES_MAX);
}

static int option_set(struct pst_object_url *url, const char *name, const char *value,
		      struct pst_err *err)
{
	int flag = 0;
	bool ok;

	if (!strcmp(name, "endpoint")) {
		ok = text_set(url->endpoint, sizeof(url->endpoint), value);
	} else if (!strcmp(name, "region")) {
		ok = pst_object_region_is_valid(value) &&
		     text_set(url->region, sizeof(url->region), value);
	} else if (!strcmp(name, "profile")) {
		ok = text_set(url->profile, sizeof(url->profile), value);
	} else if (!strcmp(name, "path-style")) {
		ok = flag_parse(value, &url->path_style);
	} else if (!strcmp(name, "anonymous")) {
		ok = flag_parse(value, &flag);
		url->anonymous = flag;
	} else if (!strcmp(name, "insecure")) {
		ok = flag_parse(value, &flag);
		url->insecure = flag;
	} else if (!strcmp(name, "unchecked")) {
		ok = flag_parse(value, &flag);
		url->unchecked = flag;
	} else if (!strcmp(name, "rdma")) {
		ok = rdma_parse(value, &url->rdma);
	} else if (!strcmp(name, "rdma-transports")) {
		ok = text_set(url->transports, sizeof(url->transports), value);
	} else if (!strcmp(name, "rdma-addresses")) {
		ok = addresses_set(url->addresses, sizeof(url->addresses), value);
	} else if (!strcmp(name, "timeout")) {
		char *end;
		unsigned long n = strtoul(value, &end, 10);

		ok = isdigit((unsigned char)*value) && !*end && n > 0 && n <= 3600;
		url->timeout_s = (unsigned)n;
	} else {
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%s: '%.30s' is no option: use endpoint, region, profile, "
				"path-style, anonymous, insecure, timeout, unchecked, rdma, "
				"rdma-transports or rdma-addresses, and write a question mark in "
				"a key as %%3F",
				url->name, name);
	}
	if (ok)
		return 0;
	/* the value is not printed, because it may contain a password */
	if (!strcmp(name, "endpoint"))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%s: the endpoint is too long",
				url->name);
	if (!strcmp(name, "rdma-addresses")) {
		char prefix[sizeof(url->name) + 2];

		snprintf(prefix, sizeof(prefix), "%s: ", url->name);
		return addresses_fail(prefix, name, value, err);
	}
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%s: %s=%.60s is not valid", url->name,
			name, value);
}

/* Decodes an option's value. Returns false if it is malformed or contains a control character,
 * which could end a line of a request. */
static bool value_decode(const char *text, char *out)
{
	long len = pst_uri_parse(text, strlen(text), false, out);

	for (long i = 0; i < len; i++)
		if ((unsigned char)out[i] < ' ' || out[i] == 127)
			return false;
	return len >= 0;
}

static int options_parse(struct pst_object_url *url, const char *query, struct pst_err *err)
{
	while (*query) {
		char part[1400], value[1400];
		size_t len = strcspn(query, "&");
		char *equals;
		int ret;

		if (len >= sizeof(part))
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%s: an option is too long",
					url->name);
		memcpy(part, query, len);
		part[len] = '\0';
		query += len + (query[len] == '&');
		equals = strchr(part, '=');
		if (equals)
			*equals++ = '\0';
		if (!equals || !value_decode(equals, value))
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"%s: option '%.60s' is not of the form NAME=VALUE",
					url->name, part);
		ret = option_set(url, part, value, err);
		if (ret)
			return ret;
	}
	return 0;
}

/* Takes the defaults of the options rdma, rdma-transports and rdma-addresses from the
 * environment. */
static int rdma_defaults(struct pst_object_url *out, struct pst_err *err)
{
	const char *rdma = getenv("PENSTOCK_RDMA"), *list = getenv("PENSTOCK_RDMA_TRANSPORTS");
	const char *addresses = getenv("PENSTOCK_RDMA_ADDRESSES");

	if (rdma && *rdma && !rdma_parse(rdma, &out->rdma))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"PENSTOCK_RDMA=%.30s: want auto, off, on or require", rdma);
	if (list && !text_set(out->transports, sizeof(out->transports), list))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"PENSTOCK_RDMA_TRANSPORTS=%.30s... is too long: want transports "
				"such as shm1,tcp1",
				list);
	if (addresses && !addresses_set(out->addresses, sizeof(out->addresses), addresses))
		return addresses_fail("", "PENSTOCK_RDMA_ADDRESSES", addresses, err);
	return 0;
}

static int s3_parse(const char *text, struct pst_object_url *out, struct pst_err *err)
{
	size_t len = strcspn(text, "?"), bucket_len = strcspn(text, "/?");
	char key[3 * PST_OBJECT_KEY_MAX + 1];
	int ret = rdma_defaults(out, err);
	long n;

	if (ret)
		return ret;
	if (!bucket_len || bucket_len >= sizeof(out->bucket) || text[bucket_len] != '/')
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%s: want s3://BUCKET/KEY, with a bucket and a key", out->name);
	memcpy(out->bucket, text, bucket_len);
	out->bucket[bucket_len] = '\0';
	for (const char *at = out->bucket; *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr("-._", *at))
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"%s: a bucket's name has letters, digits, '-', '.' and "
					"'_' only",
					out->name);
	n = len - bucket_len - 1 < sizeof(key)
		    ? pst_uri_parse(text + bucket_len + 1, len - bucket_len - 1, false, key)
		    : -E2BIG;
	if (n == -EINVAL)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%s: the key has a malformed %%XX: write a percent sign as %%25",
				out->name);
	if (n < 0 || n > PST_OBJECT_KEY_MAX)
		return pst_fail_errno(err, ENAMETOOLONG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s: a key has at most %u bytes", out->name,
				      PST_OBJECT_KEY_MAX);
	memcpy(out->key, key, (size_t)n);
	out->key[n] = '\0';
	out->key_len = (size_t)n;
	return text[len] ? options_parse(out, text + len + 1, err) : 0;
}

/* ---- presigned ---- */

static int presigned_parse(const char *url, struct pst_object_url *out, struct pst_err *err)
{
	const char *at = strstr(url, "://") + 3;
	size_t len = strcspn(at, "/?#");

	out->presigned = true;
	out->server.tls = !strncmp(url, "https:", 6);
	/* The message does not show the URL. The URL may contain a password, and a password with a
	 * '/' or a '?' would be parsed as a host and a port. */
	if (!authority_parse(at, len, &out->server))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the URL has no valid host: want "
				"http[s]://HOST[:PORT]/BUCKET/KEY?X-Amz-...");
	at += len;
	len = strcspn(at, "#");
	if (!len || *at != '/' || len >= TARGET_MAX)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%s: the path is missing or too long", out->name);
	for (size_t i = 0; i < len; i++)
		if (at[i] <= ' ' || at[i] > '~')
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"%s: the URL must be percent-encoded", out->name);
	out->target = strndup(at, len);
	if (!out->target)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a URL");
	return 0;
}

/* Stores in out->name the URL as messages show it. The name has neither the query nor the text
 * before an '@' in the authority, which may be a password. A long name is shortened in the middle.
 * Control characters become '?'. */
static void name_set(struct pst_object_url *out, const char *url)
{
	const char *rest = strstr(url, "://") + 3;
	size_t scheme = (size_t)(rest - url), authority = strcspn(rest, "/?#"), len;
	size_t half = sizeof(out->name) / 2 - 2;
	const char *sign = memrchr(rest, '@', authority);

	rest = sign ? sign + 1 : rest;
	len = strcspn(rest, "?#");
	if (scheme + len < sizeof(out->name))
		snprintf(out->name, sizeof(out->name), "%.*s%.*s", (int)scheme, url, (int)len,
			 rest);
	else
		snprintf(out->name, sizeof(out->name), "%.*s%.*s...%.*s", (int)scheme, url,
			 (int)(half - scheme), rest, (int)half, rest + len - half);
	for (char *at = out->name; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 127)
			*at = '?';
}

int pst_object_url_parse(const char *url, struct pst_object_url *out, struct pst_err *err)
{
	memset(out, 0, sizeof(*out));
	out->path_style = -1;
	name_set(out, url);
	return strncmp(url, "s3://", 5) ? presigned_parse(url, out, err)
					: s3_parse(url + 5, out, err);
}

void pst_object_url_clear(struct pst_object_url *url)
{
	free(url->target);
	url->target = NULL;
}
