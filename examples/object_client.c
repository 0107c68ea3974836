/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeds the client half of S3 over RDMA in a small HTTP client. It stores a file as an object, and
 * reads the object back into other memory. The bytes move by RDMA if the server can, and as bodies
 * if it cannot. A real client also signs the request, with the headers of penstock_object_headers.
 *
 * *	object_client PORT FILE
 */
#include "object_http.h"

static struct http http; /* the connection of the current request */
static struct penstock_object_verdict verdict;
static int port;

/* Sends a request with headers or with a body, and receives the head of the response. */
static void ask(const char *method, const struct penstock_object_header *headers, int count,
		const char *body, size_t len, struct penstock_object_reply *reply)
{
	*reply = (struct penstock_object_reply)PENSTOCK_OBJECT_REPLY_INIT;
	http_close(&http);
	if (http_connect(&http, port) < 0)
		exit(1);
	http_send(&http, method, headers, count, body ? (long)len : -1, body);
	if (http_receive(&http) == 0) /* otherwise the response is lost: its status stays 0 */
		sscanf(http.first, "HTTP/1.1 %d", &reply->status);
	reply->headers = http.headers;
	reply->header_count = http.header_count;
}

/* Moves `len` bytes between the buffer and the object. Returns the name of the transport, or "HTTP"
 * if they moved as a body, or NULL after an error. */
static const char *move(struct penstock_object_buffer *buffer, enum penstock_op op, uint64_t off,
			size_t len)
{
	const char *method = op == PENSTOCK_READ ? "GET /bucket/key HTTP/1.1\r\nHost: localhost"
						 : "PUT /bucket/key HTTP/1.1\r\nHost: localhost";
	struct penstock_object_header headers[PENSTOCK_OBJECT_HEADERS_MAX];
	struct penstock_object_window_info info = {sizeof(info), NULL, NULL, 0, 0, NULL, NULL};
	char *mem = (char *)penstock_object_ptr(buffer) + off;
	struct penstock_object_window *window;
	struct penstock_object_reply reply;
	static char transport[32];
	int count;

	if (penstock_object_window_open(buffer, op, off, len, &window) < 0)
		return NULL;
	penstock_object_window_get_info(window, &info);
	snprintf(transport, sizeof(transport), "%s", info.transport); /* valid until the release */
	count = penstock_object_headers(window, headers, PENSTOCK_OBJECT_HEADERS_MAX);
	ask(method, headers, count, NULL, 0, &reply);
	reply.expect = len;
	verdict = (struct penstock_object_verdict)PENSTOCK_OBJECT_VERDICT_INIT;
	penstock_object_judge(window, &reply, &verdict);
	/* Until penstock_object_release returns, the server may still access the memory by RDMA. */
	if (penstock_object_release(window) < 0 || verdict.next == PENSTOCK_OBJECT_ERROR)
		return NULL;
	if (verdict.next == PENSTOCK_OBJECT_DONE)
		return transport;
	if (verdict.next == PENSTOCK_OBJECT_RESEND)
		ask(method, NULL, 0, op == PENSTOCK_WRITE ? mem : NULL, len, &reply);
	return reply.status == 200 && (op == PENSTOCK_WRITE || fread(mem, 1, len, http.in) == len)
		       ? "HTTP"
		       : NULL;
}

int main(int argc, char **argv)
{
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	FILE *file = argc > 2 ? fopen(argv[2], "rb") : NULL;
	const char *put, *get;
	size_t len, half;
	char *mem;

	if (!file || fseek(file, 0, SEEK_END) || ftell(file) <= 0) {
		fprintf(stderr, "usage: object_client PORT FILE\n");
		return 2;
	}
	len = (size_t)ftell(file);
	half = (len + 4095) / 4096 * 4096; /* page boundary where the object is read back to */
	port = (int)strtol(argv[1], NULL, 10);
	rewind(file);
	if (penstock_object_client_open(NULL, &client) < 0 ||
	    penstock_object_alloc(client, NULL, half + len, &buffer) < 0) {
		fprintf(stderr, "object_client: %s\n", penstock_errmsg());
		return 1;
	}
	mem = penstock_object_ptr(buffer);
	put = fread(mem, 1, len, file) == len ? move(buffer, PENSTOCK_WRITE, 0, len) : NULL;
	get = put ? move(buffer, PENSTOCK_READ, half, len) : NULL;
	if (get)
		printf("%zu bytes: PUT by %s, GET by %s, %s\n", len, put, get,
		       memcmp(mem, mem + half, len) ? "other bytes" : "the same bytes");
	else
		fprintf(stderr, "object_client: the %s failed: %s\n", put ? "GET" : "PUT",
			verdict.text[0] ? verdict.text : penstock_errmsg());
	penstock_object_unregister(buffer);
	penstock_object_client_close(client);
	return !get;
}
