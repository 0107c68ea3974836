/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP of object_client.c and object_server.c. It stands for the HTTP code that your program
 * already has, and handles only what these two programs send each other.
 */
#ifndef OBJECT_HTTP_H
#define OBJECT_HTTP_H

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <penstock_object.h>

#define HTTP_HEADERS_MAX 32

/* A connection, and the head of the last message that was received. The members `in` and `out` are
 * NULL if the connection is not open. */
struct http {
	FILE *in, *out;
	char first[1024]; /* request line or status line */
	struct penstock_object_header headers[HTTP_HEADERS_MAX];
	unsigned header_count;
	char lines[HTTP_HEADERS_MAX][1024];
};

static inline void http_close(struct http *h)
{
	if (h->in)
		fclose(h->in);
	if (h->out)
		fclose(h->out);
	h->in = h->out = NULL;
}

/* Takes over the connected socket `sock`. Returns 0, or -1 after an error or if `sock` is -1. */
static inline int http_open(struct http *h, int sock)
{
	h->in = sock < 0 ? NULL : fdopen(sock, "r");
	h->out = sock < 0 ? NULL : fdopen(dup(sock), "w");
	if (h->in && h->out)
		return 0;
	perror("HTTP");
	http_close(h);
	return -1;
}

/* Connects to a port of this host. Returns 0, or -1 after an error. */
static inline int http_connect(struct http *h, int port)
{
	struct sockaddr_in at = {0};
	int sock = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_family = AF_INET;
	at.sin_port = htons((unsigned short)port);
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (sock >= 0 && connect(sock, (struct sockaddr *)&at, sizeof(at))) {
		close(sock);
		sock = -1;
	}
	return http_open(h, sock);
}

/* Listens at a free port of the loopback interface. Returns the socket, or -1 after an error. */
static inline int http_listen(int *port)
{
	struct sockaddr_in at = {0};
	socklen_t len = sizeof(at);
	int sock = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (sock < 0 || bind(sock, (struct sockaddr *)&at, len) || listen(sock, 8) ||
	    getsockname(sock, (struct sockaddr *)&at, &len)) {
		perror("HTTP");
		return -1;
	}
	*port = ntohs(at.sin_port);
	return sock;
}

/* Sends a message. `len` is the value of Content-Length, or -1 for none. `body` may be NULL. */
static inline void http_send(struct http *h, const char *first,
			     const struct penstock_object_header *headers, int count, long len,
			     const void *body)
{
	fprintf(h->out, "%s\r\n", first);
	for (int i = 0; i < count; i++)
		fprintf(h->out, "%s: %s\r\n", headers[i].name, headers[i].value);
	if (len >= 0)
		fprintf(h->out, "Content-Length: %ld\r\n", len);
	fprintf(h->out, "\r\n");
	if (body)
		fwrite(body, 1, (size_t)len, h->out);
	fflush(h->out);
}

/* Receives the head of a message. Its body can then be read from h->in. Returns 0, or -1 if the
 * connection has ended. */
static inline int http_receive(struct http *h)
{
	char line[1024], *colon;

	h->header_count = 0;
	if (!fgets(h->first, sizeof(h->first), h->in))
		return -1;
	while (fgets(line, sizeof(line), h->in)) {
		struct penstock_object_header *header = &h->headers[h->header_count];
		char *name = h->lines[h->header_count];

		if (*line == '\r')
			return 0;
		line[strcspn(line, "\r\n")] = '\0';
		if (h->header_count == HTTP_HEADERS_MAX - 1 || !(colon = strchr(line, ':')))
			continue;
		*colon = '\0';
		memcpy(name, line, sizeof(line));
		header->name = name;
		header->value = name + (colon - line) + 1;
		header->value += strspn(header->value, " ");
		h->header_count++;
	}
	return -1;
}

/* Returns the value of a header of the received message, or NULL. */
static inline const char *http_header(const struct http *h, const char *name)
{
	for (unsigned i = 0; i < h->header_count; i++)
		if (!strcasecmp(h->headers[i].name, name))
			return h->headers[i].value;
	return NULL;
}

/* Returns the length of the body of the received message. */
static inline size_t http_length(const struct http *h)
{
	const char *value = http_header(h, "content-length");

	return value ? strtoul(value, NULL, 10) : 0;
}

#endif
