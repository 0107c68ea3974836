/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeds the client half of S3 over RDMA in a small HTTP client. It stores a file as an object, and
 * reads the object back into other memory. The bytes move by RDMA if the server can, and as bodies
 * if it cannot. A real client also signs its requests; the signature covers the headers that
 * penstock_object_headers returns.
 *
 * *	object_client PORT FILE
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <penstock_object.h>

#define HEADERS_MAX 32

static int port;

/* A response: its status and headers, and the connection, from which the body can be read. */
struct response {
	struct penstock_object_reply reply;
	struct penstock_object_header headers[HEADERS_MAX];
	char lines[HEADERS_MAX][1024];
	FILE *http;
};

/* Receives status and headers of a response. If the connection ends before them, the status stays
 * 0. */
static void receive(struct response *r)
{
	char line[1024], *colon;

	r->reply = (struct penstock_object_reply)PENSTOCK_OBJECT_REPLY_INIT;
	r->reply.headers = r->headers;
	if (!fgets(line, sizeof(line), r->http) ||
	    sscanf(line, "HTTP/1.1 %d", &r->reply.status) != 1)
		return;
	while (fgets(line, sizeof(line), r->http) && *line != '\r') {
		unsigned i = r->reply.header_count;

		line[strcspn(line, "\r\n")] = '\0';
		if (i == HEADERS_MAX || !(colon = strchr(line, ':')))
			continue;
		memcpy(r->lines[i], line, sizeof(line));
		r->lines[i][colon - line] = '\0';
		r->headers[i].name = r->lines[i];
		r->headers[i].value = r->lines[i] + (colon - line) + 1;
		r->headers[i].value += strspn(r->headers[i].value, " ");
		r->reply.header_count++;
	}
}

/* Sends a request and receives the head of the response. `body` is NULL if the request has no body.
 * Returns 0, or -1 if there is no connection. */
static int request(const char *method, const struct penstock_object_header *headers, int count,
		   const char *body, size_t len, struct response *r)
{
	struct sockaddr_in at = {0};
	int sock = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_family = AF_INET;
	at.sin_port = htons((unsigned short)port);
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (sock < 0 || connect(sock, (struct sockaddr *)&at, sizeof(at)) ||
	    !(r->http = fdopen(sock, "r+"))) {
		perror("object_client");
		return -1;
	}
	fprintf(r->http, "%s /bucket/key HTTP/1.1\r\nHost: localhost\r\n", method);
	for (int i = 0; i < count; i++)
		fprintf(r->http, "%s: %s\r\n", headers[i].name, headers[i].value);
	if (body)
		fprintf(r->http, "Content-Length: %zu\r\n", len);
	fprintf(r->http, "\r\n");
	if (body)
		fwrite(body, 1, len, r->http);
	fflush(r->http);
	receive(r);
	return 0;
}

/* Moves `len` bytes between the buffer and the object. Returns the name of the transport, or "HTTP"
 * if they moved as a body, or NULL after an error. */
static const char *move(struct penstock_object_buffer *buffer, enum penstock_op op, uint64_t off,
			size_t len)
{
	struct penstock_object_header headers[PENSTOCK_OBJECT_HEADERS_MAX];
	struct penstock_object_verdict verdict = PENSTOCK_OBJECT_VERDICT_INIT;
	struct penstock_object_window_info info = {sizeof(info), NULL, NULL, 0, 0, NULL, NULL};
	const char *method = op == PENSTOCK_READ ? "GET" : "PUT", *how = NULL;
	char *mem = (char *)penstock_object_ptr(buffer) + off;
	struct penstock_object_window *window;
	static struct response r;
	int count, body = 0;

	if (penstock_object_window_open(buffer, op, off, len, &window) < 0)
		return NULL;
	penstock_object_window_get_info(window, &info);
	count = penstock_object_headers(window, headers, PENSTOCK_OBJECT_HEADERS_MAX);
	if (request(method, headers, count, NULL, 0, &r) < 0)
		return NULL;
	r.reply.expect = len;
	penstock_object_judge(window, &r.reply, &verdict);
	/* Until penstock_object_release returns, the server may still access the memory by RDMA. So
	 * this program uses the memory for a body only afterwards. */
	if (penstock_object_release(window) < 0)
		verdict.next = PENSTOCK_OBJECT_ERROR;
	if (verdict.next == PENSTOCK_OBJECT_DONE)
		how = info.transport;
	body = verdict.next == PENSTOCK_OBJECT_BODY;
	if (verdict.next == PENSTOCK_OBJECT_RESEND) {
		fclose(r.http);
		if (request(method, NULL, 0, op == PENSTOCK_WRITE ? mem : NULL, len, &r) < 0)
			return NULL;
		body = op == PENSTOCK_READ;
		how = r.reply.status == 200 ? "HTTP" : NULL;
	}
	if (body)
		how = fread(mem, 1, len, r.http) == len ? "HTTP" : NULL;
	if (!how)
		fprintf(stderr, "object_client: %s: %s\n", method, verdict.text);
	fclose(r.http);
	return how;
}

int main(int argc, char **argv)
{
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	FILE *file = argc > 2 ? fopen(argv[2], "rb") : NULL;
	const char *put, *get;
	long len, second;
	char *mem;

	if (!file || fseek(file, 0, SEEK_END) || (len = ftell(file)) <= 0) {
		fprintf(stderr, "usage: object_client PORT FILE\n");
		return 2;
	}
	port = (int)strtol(argv[1], NULL, 10);
	rewind(file);
	second = (len + 4095) / 4096 * 4096; /* page boundary where the object is read back to */
	if (penstock_object_client_open(NULL, &client) < 0 ||
	    penstock_object_alloc(client, NULL, (size_t)(second + len), &buffer) < 0) {
		fprintf(stderr, "object_client: %s\n", penstock_errmsg());
		return 1;
	}
	mem = penstock_object_ptr(buffer);
	if (fread(mem, 1, (size_t)len, file) != (size_t)len)
		return 1;
	fclose(file);
	put = move(buffer, PENSTOCK_WRITE, 0, (size_t)len);
	get = put ? move(buffer, PENSTOCK_READ, (uint64_t)second, (size_t)len) : NULL;
	if (get)
		printf("%ld bytes: PUT by %s, GET by %s, %s\n", len, put, get,
		       memcmp(mem, mem + second, (size_t)len) ? "other bytes" : "the same bytes");
	penstock_object_unregister(buffer);
	penstock_object_client_close(client);
	return !get;
}
