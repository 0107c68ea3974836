/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeds the server half of S3 over RDMA in a small HTTP server. It stores one object, in memory.
 * If a request has a token, which names memory of the client (a window), the object's bytes move by
 * RDMA between this memory and the window. Otherwise they are the body of the request or the
 * response. A real server also checks the signature, which must cover x-amz-rdma-token.
 *
 * *	object_server REQUESTS [plain|SOCKET]
 *
 * Prints the port that it listens on, serves this number of requests, and exits. With "plain", it
 * ignores tokens, like a server that does not support RDMA. With the path of a plane's socket,
 * the process `penstock plane` moves the bytes.
 */
#include <errno.h>

#include "object_http.h"

#define OBJECT_MAX (64u << 20)

static void *object; /* the stored object */
static size_t object_len;
static int plain; /* whether the server ignores tokens */

/* Moves the bytes between the object in memory and the client's window. Sets answer->outcome. */
static void move_object(struct penstock_object_server *server, const char *token,
			struct penstock_object_answer *answer)
{
	struct penstock_object_remote_info window = {sizeof(window), 0, NULL, 0, 0, 0};
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
	/* If the bytes do not fit into the object's memory, the outcome stays "declined". */
	if (seg.len <= OBJECT_MAX && penstock_object_move(remote, answer->op, 0, &seg, 1, 0) == 0 &&
	    penstock_object_wait(server, &done, 1, -1) == 1) {
		answer->outcome = done.result < 0 ? PENSTOCK_OBJECT_FAILED : PENSTOCK_OBJECT_MOVED;
		answer->bytes = done.result < 0 ? 0 : (uint64_t)done.result;
		if (answer->op == PENSTOCK_WRITE && done.result >= 0)
			object_len = (size_t)done.result;
	}
	penstock_object_forget(remote);
}

static void serve(struct penstock_object_server *server, struct http *http)
{
	struct penstock_object_answer answer = PENSTOCK_OBJECT_ANSWER_INIT;
	const char *token = plain ? NULL : http_header(http, "x-amz-rdma-token");
	char first[64];

	answer.op = strncmp(http->first, "PUT ", 4) ? PENSTOCK_READ : PENSTOCK_WRITE;
	if (token) {
		move_object(server, token, &answer);
		penstock_object_answer_fill(&answer);
	} else {
		answer.status = 200;
		answer.body = answer.op == PENSTOCK_READ;
		if (!answer.body)
			object_len = fread(object, 1, http_length(http) % OBJECT_MAX, http->in);
	}
	snprintf(first, sizeof(first), "HTTP/1.1 %d %s", answer.status,
		 answer.error ? answer.error : "OK");
	http_send(http, first, answer.headers, (int)answer.header_count,
		  answer.body ? (long)object_len : 0, answer.body ? object : NULL);
}

int main(int argc, char **argv)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_server *server;
	static struct http http;
	int port, listener;

	plain = argc > 2 && !strcmp(argv[2], "plain");
	opts.plane = argc > 2 && !plain ? argv[2] : NULL;
	/* A plane, which is another process, can access only memory of the library. */
	if (argc < 2 || penstock_object_server_open(&opts, &server) < 0 ||
	    penstock_object_server_alloc(server, NULL, OBJECT_MAX, &object) < 0) {
		fprintf(stderr, "object_server: %s\n",
			argc < 2 ? "give the number of requests" : penstock_errmsg());
		return 1;
	}
	listener = http_listen(&port);
	printf("%d\n", port);
	fflush(stdout);
	for (long left = strtol(argv[1], NULL, 10); listener >= 0 && left > 0; left--) {
		if (!http_open(&http, accept(listener, NULL, NULL)) && !http_receive(&http))
			serve(server, &http);
		http_close(&http);
	}
	penstock_object_server_free(server, object);
	penstock_object_server_close(server);
	return listener < 0;
}
