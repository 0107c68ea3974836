/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeds the server half of S3 over RDMA in a small HTTP server. It stores one object, in memory.
 * If a request has a token, which names memory of the client (a window), the object's bytes move by
 * RDMA between this memory and the window. Otherwise they are the body of the request or the
 * response. A real server also checks the signature of the request, which must cover
 * x-amz-rdma-token.
 *
 * *	object_server REQUESTS [plain|SOCKET]
 *
 * Prints the port that it listens on, serves this number of requests, and exits. With "plain", it
 * ignores tokens, like a server that does not support RDMA. With the path of a plane's socket,
 * the process `penstock plane` moves the bytes, and holds the network card.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <penstock_object.h>

#define OBJECT_MAX (64u << 20)

static void *object; /* the stored object */
static size_t object_len;
static int plain; /* whether the server ignores tokens */

/* Finds a header in the request, and copies its value. Returns whether it exists. */
static int find_header(const char *head, const char *name, char *value, size_t size)
{
	size_t len = strlen(name);

	for (const char *at = strchr(head, '\n'); at; at = strchr(at + 1, '\n'))
		if (!strncasecmp(at + 1, name, len) && at[1 + len] == ':') {
			const char *from = at + 2 + len + strspn(at + 2 + len, " ");

			snprintf(value, size, "%.*s", (int)strcspn(from, "\r\n"), from);
			return 1;
		}
	return 0;
}

/* Receives a request up to its empty line. Bytes of a body stay in the socket. */
static int receive_head(int sock, char *head, size_t size)
{
	size_t n = 0;

	while (n + 1 < size && recv(sock, head + n, 1, 0) == 1) {
		head[++n] = '\0';
		if (n >= 4 && !strcmp(head + n - 4, "\r\n\r\n"))
			return 0;
	}
	return -1;
}

/* Moves the bytes between the object in memory and the client's window. Sets answer->outcome. */
static void move_object(struct penstock_object_server *server, const char *token,
			struct penstock_object_answer *answer)
{
	struct penstock_object_remote_info window = {sizeof(window), 0, NULL, 0, 0};
	struct penstock_object_seg seg = {NULL, object, object_len, 0, 0, 0};
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	int ret = penstock_object_resolve(server, token, strlen(token), NULL, &remote);

	answer->outcome = ret == -EBADMSG ? PENSTOCK_OBJECT_MALFORMED : PENSTOCK_OBJECT_DECLINED;
	if (ret < 0)
		return;
	penstock_object_remote_get_info(remote, &window);
	if (answer->op == PENSTOCK_WRITE)
		seg.len = window.length;
	/* If the bytes do not fit into the object's memory, no transfer starts, and answer->outcome
	 * stays "declined". */
	if (seg.len <= OBJECT_MAX && penstock_object_move(remote, answer->op, 0, &seg, 1, 0) == 0 &&
	    penstock_object_wait(server, &done, 1, -1) == 1) {
		answer->outcome = done.result < 0 ? PENSTOCK_OBJECT_FAILED : PENSTOCK_OBJECT_MOVED;
		answer->bytes = done.result < 0 ? 0 : (uint64_t)done.result;
		if (answer->op == PENSTOCK_WRITE && done.result >= 0)
			object_len = (size_t)done.result;
	}
	penstock_object_forget(remote);
}

static void serve(struct penstock_object_server *server, int sock)
{
	struct penstock_object_answer answer = PENSTOCK_OBJECT_ANSWER_INIT;
	char head[8192], token[1024], length[32] = "0";
	FILE *out = fdopen(sock, "w");

	if (!out || receive_head(sock, head, sizeof(head)) < 0)
		return;
	answer.op = strncmp(head, "PUT ", 4) ? PENSTOCK_READ : PENSTOCK_WRITE;
	find_header(head, "content-length", length, sizeof(length));
	if (!plain && find_header(head, "x-amz-rdma-token", token, sizeof(token))) {
		move_object(server, token, &answer);
		penstock_object_answer_fill(&answer);
	} else {
		answer.status = 200;
		answer.body = answer.op == PENSTOCK_READ;
		if (!answer.body) {
			object_len = strtoul(length, NULL, 10) % OBJECT_MAX;
			if (object_len &&
			    recv(sock, object, object_len, MSG_WAITALL) != (ssize_t)object_len)
				return;
		}
	}
	fprintf(out, "HTTP/1.1 %d %s\r\n", answer.status, answer.error ? answer.error : "OK");
	for (unsigned i = 0; i < answer.header_count; i++)
		fprintf(out, "%s: %s\r\n", answer.headers[i].name, answer.headers[i].value);
	fprintf(out, "Content-Length: %zu\r\n\r\n", answer.body ? object_len : 0);
	if (answer.body)
		fwrite(object, 1, object_len, out);
	fclose(out);
}

int main(int argc, char **argv)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_server *server;
	struct sockaddr_in at = {0};
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	plain = argc > 2 && !strcmp(argv[2], "plain");
	opts.plane = argc > 2 && !plain ? argv[2] : NULL;
	/* The library allocates the object's memory, because a plane (another process) can access
	 * only such memory. */
	if (argc < 2 || penstock_object_server_open(&opts, &server) < 0 ||
	    penstock_object_server_alloc(server, NULL, OBJECT_MAX, &object) < 0) {
		fprintf(stderr, "object_server: %s\n",
			argc < 2 ? "give the number of requests" : penstock_errmsg());
		return 1;
	}
	if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 8) ||
	    getsockname(listener, (struct sockaddr *)&at, &len)) {
		perror("object_server");
		return 1;
	}
	printf("%u\n", ntohs(at.sin_port));
	fflush(stdout);
	for (long left = strtol(argv[1], NULL, 10); left > 0; left--)
		serve(server, accept(listener, NULL, NULL));
	penstock_object_server_free(server, object);
	penstock_object_server_close(server);
	return 0;
}
