/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses a URL and the head of an HTTP response. Called by gates_endpoint.c and by a fuzz target.
 * It must never assume that a line ends, that a number is in range, or that a byte is printable.
 */
#include "http.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_host_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (c && strchr(".-_:%", c));
}

/* Sets the host and the port of `url`. `rest` is the text after the host: it must be empty or
 * begin with ":PORT", '/', '?' or '#'. */
static int url_set_host(struct pst_http_url *url, const char *host, size_t len, const char *rest)
{
	size_t i, digits;
	unsigned long port = 0;

	if (!len || len >= sizeof(url->host))
		return -EINVAL;
	for (i = 0; i < len; i++)
		if (!is_host_char(host[i]))
			return -EINVAL;
	memcpy(url->host, host, len);
	url->host[len] = '\0';
	snprintf(url->port, sizeof(url->port), url->tls ? "443" : "80");
	if (*rest == ':') {
		digits = strspn(++rest, "0123456789");
		for (i = 0; i < digits && i < 6; i++)
			port = port * 10 + (unsigned long)(rest[i] - '0');
		if (!digits || digits > 5 || !port || port > 65535)
			return -EINVAL;
		snprintf(url->port, sizeof(url->port), "%lu", port);
		rest += digits;
	}
	return *rest && !strchr("/?#", *rest) ? -EINVAL : 0;
}

int pst_http_url_parse(const char *text, struct pst_http_url *out)
{
	struct pst_http_url url = {.tls = !strncmp(text, "https://", 8)};
	const char *host = text + (url.tls ? 8 : 7), *end;
	int ret;

	if (!url.tls && strncmp(text, "http://", 7))
		return -EINVAL;
	if (*host == '[') {
		end = strchr(++host, ']');
		ret = end ? url_set_host(&url, host, (size_t)(end - host), end + 1) : -EINVAL;
	} else {
		end = host + strcspn(host, ":/?#");
		ret = url_set_host(&url, host, (size_t)(end - host), end);
	}
	if (!ret)
		*out = url;
	return ret;
}

/* Returns the value of the header line if the header's name is `name`, else NULL. */
static const char *header_value(const char *line, size_t len, const char *name, size_t *value_len)
{
	size_t n = strlen(name);

	if (len <= n || strncasecmp(line, name, n) || line[n] != ':')
		return NULL;
	for (n++; n < len && (line[n] == ' ' || line[n] == '\t');)
		n++;
	*value_len = len - n;
	return line + n;
}

static void header_parse(const char *line, size_t len, struct pst_http_answer *out)
{
	const char *value;
	size_t n, i;

	value = header_value(line, len, "server", &n);
	if (value && !out->server[0]) {
		for (i = 0; i < n && i < sizeof(out->server) - 1; i++)
			out->server[i] = value[i] > ' ' && value[i] < 0x7f ? value[i] : ' ';
		while (i && out->server[i - 1] == ' ')
			i--;
		out->server[i] = '\0';
	}
	if (header_value(line, len, "x-amz-rdma-reply", &n) ||
	    header_value(line, len, "x-amz-rdma-bytes-transferred", &n))
		out->rdma = true;
}

int pst_http_answer_parse(const char *text, size_t len, struct pst_http_answer *out)
{
	struct pst_http_answer answer = {0};
	size_t at = 0;

	/* The first line begins with a version and a status, for example "HTTP/1.1 403". */
	if (len < 12 || strncasecmp(text, "HTTP/1.", 7) || text[8] != ' ')
		return -EINVAL;
	for (at = 9; at < 12; at++) {
		if (text[at] < '0' || text[at] > '9')
			return -EINVAL;
		answer.status = answer.status * 10 + text[at] - '0';
	}
	while (at < len) {
		const char *end = memchr(text + at, '\n', len - at);
		size_t n = end ? (size_t)(end - text) - at : len - at, skip = n + 1;

		if (n && text[at + n - 1] == '\r')
			n--;
		if (!n)
			break; /* An empty line ends the head; the body follows. */
		header_parse(text + at, n, &answer);
		at += skip;
	}
	/* A server that supports S3 over RDMA reports the error InvalidRDMAToken for an invalid
	 * token (draft 1.0). */
	if (at < len && memmem(text + at, len - at, "InvalidRDMAToken", 16))
		answer.rdma = true;
	*out = answer;
	return 0;
}
