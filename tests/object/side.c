/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client or a server of S3 over RDMA, as a separate process for tests/object/matrix. It reads
 * commands from stdin, one per line, and prints one line for each. Only the command "start" makes
 * an HTTP request. For all others, the test passes the tokens from the client to the server.
 *
 *	side client TRANSPORT DEVICE MIB FENCE_MS [ADDRESS]
 *		TRANSPORT plane:SOCKET selects the plane (`penstock plane`) at SOCKET.
 *		ADDRESS: where servers reach the client; without it 127.0.0.1
 *		fill SEED	fills the buffer; prints "filled"
 *		sum OFF LEN	prints the CRC-32C of a range of the buffer
 *		get|put OFF LEN	opens a window; prints its token, or "window" with a plane
 *		start BUCKET KEY OFF FLAGS
 *			starts a request with the window; prints the result, and a message
 *		end MS		waits for a completion; prints it, or "none"
 *		wait		waits until the first bytes of the window change; prints "landed"
 *		release		closes the window; prints the result
 *		info		prints the counters
 *	side server DEVICE USER [PEER [SOCKET]]
 *		USER: the user to become; -1: none. PEER: address of the client; without it, or
 *		with "-", only addresses of the loopback are served. SOCKET: socket of a plane
 *		get|put|fget|fput TOKEN OFF LEN SEED
 *			moves LEN bytes at OFF of the window; prints "begun", and when it has
 *			ended the result, and the CRC-32C of the server's memory or a message.
 *			fget and fput use a file in place of memory
 */
#include <grp.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "penstock_object.h"

#define SERVER_MEMORY (64u << 20) /* bytes of memory of a server that uses `penstock plane` */

static int failed(const char *what)
{
	printf("error: %s: %s\n", what, penstock_errmsg());
	return 1;
}

static void fill(unsigned char *at, size_t len, uint64_t seed)
{
	uint64_t *word = (uint64_t *)at;

	for (size_t i = 0; i < len / 8; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		word[i] = seed;
	}
	for (size_t i = len & ~(size_t)7; i < len; i++)
		at[i] = (unsigned char)(seed >> 8 * (i & 7));
}

/* Returns memory of at least `len` bytes. Calls return the same memory, except when a call needs
 * more bytes than all earlier calls. */
static unsigned char *host_memory(size_t len)
{
	static unsigned char *mem;
	static size_t mapped;

	if (len > mapped) {
		mem = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		mapped = mem == MAP_FAILED ? 0 : len;
	}
	return mapped ? mem : NULL;
}

static int open_device(const char *name, struct penstock_device **out)
{
	*out = NULL;
	return strcmp(name, "host") ? penstock_device_open(name, NULL, out) : 0;
}

/* ---- client ---- */

struct client {
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct penstock_device *dev, *host;
	size_t len;
	uint64_t off;	/* offset of the window in the buffer */
	uint64_t first; /* the window's first bytes before a transfer */
};

static int client_fill(struct client *c, uint64_t seed)
{
	struct penstock_copy_args copy = {.size = sizeof(copy),
					  .dst_dev = c->dev ? c->dev : c->host,
					  .dst = penstock_object_ptr(c->buffer),
					  .src_dev = c->host,
					  .src = host_memory(c->len),
					  .row_len = c->len};

	if (!copy.src)
		return -1;
	fill(host_memory(c->len), c->len, seed);
	return penstock_copy(&copy, 1);
}

static void client_sum(struct client *c, uint64_t off, uint64_t len)
{
	struct penstock_sum_args sum = {.size = sizeof(sum),
					.dev = c->dev ? c->dev : c->host,
					.ptr = (char *)penstock_object_ptr(c->buffer) + off,
					.len = len};

	if (penstock_sum(&sum, 1))
		failed("sum");
	else
		printf("%08x\n", sum.crc32c);
}

static void client_info(const struct client *c)
{
	struct penstock_object_client_info i = {.size = sizeof(i)};

	penstock_object_client_get_info(c->client, &i);
	printf("late %" PRIu64 " wrong_cap %" PRIu64 " wrong_user %" PRIu64
	       " out_of_window %" PRIu64 " cut_off %" PRIu64 "\n",
	       i.late, i.wrong_cap, i.wrong_user, i.out_of_window, i.cut_off);
}

/* Returns the bytes from offset `off` of the buffer on, up to 8 of them. One byte is not enough to
 * notice a transfer, because one of 256 transfers does not change it. */
static uint64_t client_word(const struct client *c, uint64_t off)
{
	const size_t len = c->len - off < 8 ? c->len - off : 8;
	volatile unsigned char *at = (unsigned char *)penstock_object_ptr(c->buffer) + off;
	unsigned char bytes[8] = {0};
	struct penstock_copy_args copy = {.size = sizeof(copy),
					  .dst_dev = c->host,
					  .dst = bytes,
					  .src_dev = c->dev,
					  .src = (const void *)at,
					  .row_len = len};
	uint64_t word;

	for (size_t i = 0; i < len && !c->dev; i++)
		bytes[i] = at[i];
	if (c->dev && len && penstock_copy(&copy, 1))
		failed("copy");
	memcpy(&word, bytes, sizeof(word));
	return word;
}

static void client_wait(const struct client *c)
{
	while (client_word(c, c->off) == c->first)
		;
	puts("landed");
}

static void client_window(struct client *c, enum penstock_op op, uint64_t off, uint64_t len)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	c->off = off;
	c->first = off < c->len ? client_word(c, off) : 0;
	if (penstock_object_window_open(c->buffer, op, off, len, &c->window))
		failed("window");
	else if (!penstock_object_window_get_info(c->window, &info))
		puts(*info.token ? info.token : "window");
}

static void client_start(const struct client *c, const char *line)
{
	struct penstock_object_request request = PENSTOCK_OBJECT_REQUEST_INIT;
	char bucket[64], key[512];
	int ret;

	if (sscanf(line, "start %63s %511s %" SCNu64 " %u", bucket, key, &request.off,
		   &request.flags) != 4) {
		puts("error: start");
		return;
	}
	request.bucket = bucket;
	request.key = key;
	request.user = 4711;
	ret = penstock_object_start(c->window, &request);
	printf("%d %s\n", ret, ret ? penstock_errmsg() : "");
}

static void client_end(const struct client *c, int timeout_ms)
{
	static const char *const next[] = {"done", "body", "resend", "error"};
	struct penstock_object_end end;

	if (penstock_object_client_wait(c->client, &end, 1, timeout_ms) != 1)
		puts("none");
	else if (end.user != 4711)
		puts("error: the completion of another request");
	else
		printf("%" PRId64 " %s %s %d %s\n", end.result, next[end.next],
		       *end.transport ? end.transport : "-", end.status, end.text);
}

static int client_main(char **argv)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct client c = {.len = strtoull(argv[4], NULL, 0) << 20};
	char line[1024], word[16];
	uint64_t a, b;

	if (!strncmp(argv[2], "plane:", 6)) {
		opts.plane = argv[2] + 6;
		opts.plane_ms = (unsigned)strtoul(argv[5], NULL, 0);
	} else {
		opts.transports = argv[2];
		opts.fence_ms = (unsigned)strtoul(argv[5], NULL, 0);
		opts.address = argv[6];
	}
	if (open_device(argv[3], &c.dev) < 0 || penstock_device_open("host", NULL, &c.host) < 0 ||
	    penstock_object_client_open(&opts, &c.client) ||
	    penstock_object_alloc(c.client, c.dev, c.len, &c.buffer))
		return failed("client");
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		a = b = 0;
		if (sscanf(line, "%15s %" SCNu64 " %" SCNu64, word, &a, &b) < 1)
			continue;
		if (!strcmp(word, "fill") && client_fill(&c, a))
			failed("fill");
		else if (!strcmp(word, "fill"))
			puts("filled");
		else if (!strcmp(word, "sum"))
			client_sum(&c, a, b);
		else if (!strcmp(word, "get") || !strcmp(word, "put"))
			client_window(&c, *word == 'g' ? PENSTOCK_READ : PENSTOCK_WRITE, a, b);
		else if (!strcmp(word, "wait"))
			client_wait(&c);
		else if (!strcmp(word, "start"))
			client_start(&c, line);
		else if (!strcmp(word, "end"))
			client_end(&c, (int)a);
		else if (!strcmp(word, "release")) {
			printf("%d\n", penstock_object_release(c.window));
			c.window = NULL;
		} else {
			client_info(&c);
		}
	}
	penstock_object_release(c.window);
	penstock_object_unregister(c.buffer);
	penstock_object_client_close(c.client);
	penstock_device_close(c.dev);
	penstock_device_close(c.host);
	return 0;
}

/* ---- server ---- */

static int become(long user)
{
	if (user < 0)
		return 0;
	return setgroups(0, NULL) || setresgid((gid_t)user, (gid_t)user, (gid_t)user) ||
	       setresuid((uid_t)user, (uid_t)user, (uid_t)user);
}

/* Returns memory for a transfer of `len` bytes. If the server uses a plane (`penstock plane`),
 * this memory has SERVER_MEMORY bytes. */
static unsigned char *server_memory(struct penstock_object_server *server, bool plane, size_t len)
{
	static void *mem;

	if (!plane)
		return host_memory(len ? len : 1);
	if (!mem && penstock_object_server_alloc(server, NULL, SERVER_MEMORY, &mem))
		exit(failed("memory"));
	return len <= SERVER_MEMORY ? mem : NULL;
}

static void server_move(struct penstock_object_server *server, unsigned char *mem,
			const char *token, const struct penstock_object_peer *peer,
			enum penstock_op op, uint64_t off, uint64_t len, uint64_t seed, FILE *file)
{
	struct penstock_object_seg seg = {.ptr = mem, .len = len};
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	struct penstock_sum_args sum = {.size = sizeof(sum), .ptr = seg.ptr, .len = len};
	int ret = penstock_object_resolve(server, token, strlen(token), peer, &remote);

	fill(seg.ptr, len, seed);
	if (file) {
		seg.has_fd = 1;
		seg.fd = fileno(file);
		if (pwrite(seg.fd, seg.ptr, len, 0) != (ssize_t)len)
			puts("error: no space for a file");
	}
	puts("begun");
	if (ret) {
		printf("%d %s\n", ret, penstock_errmsg());
		return;
	}
	ret = penstock_object_move(remote, op, off, &seg, 1, 0);
	penstock_object_forget(remote);
	if (ret)
		printf("%d %s\n", ret, penstock_errmsg());
	else if (penstock_object_wait(server, &done, 1, -1) != 1)
		puts("error: no completion");
	else if (done.result < 0)
		printf("%" PRId64 " %s\n", done.result, done.text);
	else if (file && pread(seg.fd, seg.ptr, len, 0) != (ssize_t)len)
		puts("error: the file is too short");
	else if (penstock_sum(&sum, 1))
		failed("sum");
	else
		printf("%" PRId64 " %08x\n", done.result, sum.crc32c);
}

static int server_main(char **argv)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct penstock_object_server *server;
	struct penstock_device *host;
	char line[1024], word[16], token[PENSTOCK_OBJECT_TOKEN_MAX + 1];
	FILE *file = tmpfile();
	uint64_t off, len, seed;

	if (argv[4] && argv[5]) {
		opts.plane = argv[5];
	} else {
		opts.transports = "shm1,rc1,tcp1,ofi1";
		opts.channels = 1;
	}
	peer.address = argv[4] && strcmp(argv[4], "-") != 0 ? argv[4] : NULL;
	if (become(strtol(argv[3], NULL, 0)) || open_device(argv[2], &opts.device) < 0 ||
	    penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_object_server_open(&opts, &server))
		return failed("server");
	puts("ready");
	while (fgets(line, sizeof(line), stdin))
		if (sscanf(line, "%15s %512s %" SCNu64 " %" SCNu64 " %" SCNu64, word, token, &off,
			   &len, &seed) == 5)
			server_move(server, server_memory(server, opts.plane, len), token, &peer,
				    strstr(word, "get") ? PENSTOCK_READ : PENSTOCK_WRITE, off, len,
				    seed, *word == 'f' ? file : NULL);
	penstock_object_server_close(server);
	penstock_device_close(opts.device);
	penstock_device_close(host);
	return 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if ((argc == 6 || argc == 7) && !strcmp(argv[1], "client"))
		return client_main(argv);
	if (argc >= 4 && argc <= 6 && !strcmp(argv[1], "server"))
		return server_main(argv);
	fprintf(stderr, "side: see the comment of side.c\n");
	return 2;
}
