/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests transport ofi1 with client and server in one process, over three providers of libfabric
 * that need no network card. Tests what docs/object.md says about each provider: where bytes land,
 * what happens with a wrong key, and that no byte lands after a release. Also tests wire/no_ofi1.c,
 * which replaces the transport in builds without libfabric. tests/object/matrix tests two
 * processes.
 */
#include "test.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "penstock_object.h"
#include "s3/crc.h"
#include "s3/token.h"

/* Renames the tables of no_ofi1.c, because the library defines the same names. */
#define pst_ofi1_client missing_client
#define pst_ofi1_server missing_server
#include "../../src/wire/no_ofi1.c"
#undef pst_ofi1_client
#undef pst_ofi1_server

/* The sanitizers call these functions to learn which reports to suppress. libfabric 1.17 does not
 * free all memory of an endpoint. Its threads write to windows, as a network card would, while this
 * test reads them. */
const char *__lsan_default_suppressions(void);
const char *__tsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
	return "leak:libfabric.so";
}

const char *__tsan_default_suppressions(void)
{
	return "race:libfabric.so\nmutex:libfabric.so\ndeadlock:libfabric.so";
}

#define LEN (3u << 20)
#define LONG (64u << 20)
/* attempts to release a window during a move; several, because the move may end before the
 * release */
#define TRIES 8
#define MOVES 12

static const char *const providers[] = {"net", "tcp;ofi_rxm", "sockets"};
#define PROVIDERS (sizeof(providers) / sizeof(providers[0]))

struct sides {
	struct penstock_object_client *client;
	struct penstock_object_server *server;
	struct penstock_object_buffer *buffer;
	unsigned char *at; /* address of the buffer's memory */
};

static int client_open(const char *transports, const char *provider,
		       struct penstock_object_client **out)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;

	opts.transports = transports;
	opts.ofi_provider = provider;
	return penstock_object_client_open(&opts, out);
}

static struct penstock_object_server *server_open(void)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_server *server;

	opts.transports = "tcp1,ofi1";
	opts.channels = 1;
	if (penstock_object_server_open(&opts, &server))
		fail_msg("%s", penstock_errmsg());
	return server;
}

/* Opens both sides. Skips the case if the build or the machine has no libfabric. */
static void open_sides(struct sides *s, const char *provider, size_t len)
{
	if (client_open("ofi1", provider, &s->client)) {
		if (penstock_errwhy() == PENSTOCK_WHY_NOT_BUILT ||
		    penstock_errwhy() == PENSTOCK_WHY_NO_DRIVER)
			test_skip("%s", penstock_errmsg());
		fail_msg("%s: %s", provider, penstock_errmsg());
	}
	printf("# provider %s\n", provider);
	s->server = server_open();
	if (penstock_object_alloc(s->client, NULL, len, &s->buffer))
		fail_msg("%s", penstock_errmsg());
	s->at = penstock_object_ptr(s->buffer);
}

static void close_sides(struct sides *s)
{
	assert_int_equal(penstock_object_unregister(s->buffer), 0);
	penstock_object_server_close(s->server);
	penstock_object_client_close(s->client);
}

static struct penstock_object_window *window_open(struct sides *s, enum penstock_op op,
						  uint64_t off, uint64_t len)
{
	struct penstock_object_window *window;

	if (penstock_object_window_open(s->buffer, op, off, len, &window))
		fail_msg("%s", penstock_errmsg());
	return window;
}

static const char *token_of(const struct penstock_object_window *window)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.transport, "ofi1");
	assert_int_equal(info.encrypted, 0);
	assert_int_equal(info.on_host, 0);
	return info.token;
}

static void start(struct sides *s, const char *token, enum penstock_op op, uint64_t off,
		  const struct penstock_object_seg *segs, unsigned count)
{
	struct penstock_object_remote *remote;

	if (penstock_object_resolve(s->server, token, strlen(token), NULL, &remote))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_object_move(remote, op, off, segs, count, 5), 0);
	penstock_object_forget(remote);
}

static struct penstock_object_done wait_one(struct sides *s)
{
	struct penstock_object_done done;

	assert_int_equal(penstock_object_wait(s->server, &done, 1, 60000), 1);
	return done;
}

/* Moves one piece of memory and returns the result. */
static int64_t move(struct sides *s, const char *token, enum penstock_op op, uint64_t off,
		    void *mem, uint64_t len)
{
	struct penstock_object_seg seg = {.ptr = mem, .len = len};
	struct penstock_object_done done;

	start(s, token, op, off, &seg, 1);
	done = wait_one(s);
	if (done.result < 0)
		printf("# %" PRId64 ": %s\n", done.result, done.text);
	return done.result;
}

/* Passes to the client a successful response with this checksum. If `crc64` is NULL, the response
 * has no checksum. Returns the client's next step. */
static int judge(struct penstock_object_window *window, uint64_t bytes, const uint64_t *crc64)
{
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct penstock_object_verdict verdict = PENSTOCK_OBJECT_VERDICT_INIT;
	struct penstock_object_answer answer = PENSTOCK_OBJECT_ANSWER_INIT;

	answer.outcome = PENSTOCK_OBJECT_MOVED;
	answer.bytes = bytes;
	answer.has_crc64 = crc64 != NULL;
	answer.crc64 = crc64 ? *crc64 : 0;
	assert_int_equal(penstock_object_answer_fill(&answer), 0);
	reply.status = answer.status;
	reply.headers = answer.headers;
	reply.header_count = answer.header_count;
	assert_int_equal(penstock_object_judge(window, &reply, &verdict), 0);
	printf("# verdict %d, %" PRIu64 " bytes: %s\n", verdict.next, verdict.bytes, verdict.text);
	assert_int_equal(verdict.bytes, verdict.next == PENSTOCK_OBJECT_DONE ? bytes : 0);
	return (int)verdict.next;
}

/* Splits memory into three segments, so that transfers cross their borders. */
static void split(struct penstock_object_seg segs[3], unsigned char *mem, uint64_t len,
		  uint64_t *seed)
{
	for (unsigned i = 0; i < 3; i++) {
		uint64_t n = i == 2 ? len : test_random(seed) % (len + 1);

		segs[i] = (struct penstock_object_seg){.ptr = mem, .len = n};
		mem += n;
		len -= n;
	}
}

/* Moves random ranges, and compares the whole buffer with a copy of what it must contain. */
static void move_ranges(struct sides *s, uint64_t *seed)
{
	unsigned char *expected = malloc(LEN), *local = malloc(LEN);
	struct penstock_object_server_info info = {.size = sizeof(info)};
	uint64_t out = 0, in = 0;

	assert_true(expected && local);
	for (unsigned i = 0; i < LEN; i++)
		expected[i] = (unsigned char)test_random(seed);
	memcpy(s->at, expected, LEN);
	for (unsigned i = 0; i < MOVES; i++) {
		enum penstock_op op = i & 1 ? PENSTOCK_WRITE : PENSTOCK_READ;
		uint64_t off = test_random(seed) % LEN, len = 1 + test_random(seed) % (LEN - off);
		uint64_t inner = i == 2 ? 0 : test_random(seed) % len;
		uint64_t n = i == 2 ? len : 1 + test_random(seed) % (len - inner);
		struct penstock_object_window *window = window_open(s, op, off, len);
		struct penstock_object_seg segs[3];
		struct penstock_object_done done;

		for (uint64_t k = 0; k < n; k++)
			local[k] = (unsigned char)(test_random(seed) >> 8);
		if (op == PENSTOCK_READ)
			memcpy(expected + off + inner, local, n);
		split(segs, local, n, seed);
		start(s, token_of(window), op, inner, segs, 3);
		done = wait_one(s);
		if (done.result != (int64_t)n)
			fail_msg("result %" PRId64 " of %" PRIu64 ": %s", done.result, n,
				 done.text);
		assert_int_equal(done.has_crc64, 1);
		assert_int_equal(done.crc64, ~pst_crc_raw(PST_CRC64NVME, UINT64_MAX, local, n));
		assert_memory_equal(local, expected + off + inner, n);
		if (op == PENSTOCK_READ && !inner)
			assert_int_equal(judge(window, n, &done.crc64), PENSTOCK_OBJECT_DONE);
		assert_int_equal(penstock_object_release(window), 0);
		assert_memory_equal(s->at, expected, LEN);
		*(op == PENSTOCK_READ ? &out : &in) += n;
	}
	assert_int_equal(penstock_object_server_get_info(s->server, &info), 0);
	assert_string_equal(info.traffic[1].transport, "ofi1");
	assert_int_equal(info.traffic[1].bytes_out, out);
	assert_int_equal(info.traffic[1].bytes_in, in);
	free(expected);
	free(local);
}

static void all_bytes_move(void **state)
{
	uint64_t seed = test_seed(31);
	struct sides s;

	(void)state;
	for (unsigned p = 0; p < PROVIDERS; p++) {
		open_sides(&s, providers[p], LEN);
		move_ranges(&s, &seed);
		close_sides(&s);
	}
}

/* A server moves the bytes of a file into a window in memory that the client's caller allocated.
 * A move of no bytes into an empty window succeeds, too. */
static void other_memory(void **state)
{
	unsigned char *mine = calloc(1, LEN), *expected = malloc(LEN);
	struct penstock_object_seg seg = {.len = LEN - 9, .has_fd = 1, .fd_off = 9};
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	FILE *file = tmpfile();
	struct sides s;

	(void)state;
	assert_true(mine && expected && file);
	open_sides(&s, "net", LEN);
	for (unsigned i = 0; i < LEN; i++)
		expected[i] = (unsigned char)(i * 7 + i / 251);
	assert_int_equal(fwrite(expected, 1, LEN, file), LEN);
	fflush(file);
	seg.fd = fileno(file);
	assert_int_equal(penstock_object_register(s.client, NULL, mine, LEN, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 9, LEN - 9, &window),
			 0);
	start(&s, token_of(window), PENSTOCK_READ, 0, &seg, 1);
	assert_int_equal(wait_one(&s).result, LEN - 9);
	assert_memory_equal(mine + 9, expected + 9, LEN - 9);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 9, 0, &window), 0);
	assert_int_equal(move(&s, token_of(window), PENSTOCK_READ, 0, mine, 0), 0);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
	fclose(file);
	free(mine);
	free(expected);
}

/* Checks that a move fails, and that no byte of the buffer changes. */
static void refused(struct sides *s, const char *token, enum penstock_op op, uint64_t off,
		    const char *what)
{
	static unsigned char local[4096], before[4096];
	unsigned char *copy = malloc(LEN);
	int64_t result;

	assert_non_null(copy);
	memset(local, 0x5a, sizeof(local));
	memcpy(before, local, sizeof(local));
	memcpy(copy, s->at, LEN);
	result = move(s, token, op, off, local, sizeof(local));
	if (result >= 0)
		fail_msg("%s: the server reports %" PRId64, what, result);
	assert_memory_equal(copy, s->at, LEN);
	/* A refused move must not pass any bytes of the client to the server. */
	assert_memory_equal(local, before, sizeof(local));
	free(copy);
}

/* Returns a copy of a token: its key is XORed with `flip`, and its length is increased by
 * `more`. */
static const char *changed(const char *token, uint64_t flip, uint64_t more)
{
	static char text[PST_TOKEN_MAX + 1];
	struct pst_token t;

	assert_int_equal(pst_token_parse(token, strlen(token), &t), 0);
	t.ofi.key ^= flip;
	t.size += more;
	assert_true(pst_token_print(&t, text) > 0);
	return text;
}

static void wrong_tokens(void **state)
{
	struct penstock_object_window *window, *other;
	static unsigned char bytes[4096];
	char old[PST_TOKEN_MAX + 1];
	struct sides s;

	(void)state;
	for (unsigned p = 0; p < PROVIDERS; p++) {
		open_sides(&s, providers[p], LEN);
		memset(s.at, 0x11, LEN);
		window = window_open(&s, PENSTOCK_READ, 8192, 65536);
		refused(&s, changed(token_of(window), 1, 0), PENSTOCK_READ, 0, "a wrong key");
		refused(&s, changed(token_of(window), UINT64_C(1) << 63, 0), PENSTOCK_READ, 0,
			"a key with another highest bit");
		refused(&s, changed(token_of(window), 0, 65536), PENSTOCK_READ, 65536 - 2048,
			"bytes beyond the end");
		refused(&s, token_of(window), PENSTOCK_WRITE, 0, "the other direction");
		/* The window must still work after the refused moves. */
		memset(bytes, 0x77, sizeof(bytes));
		assert_int_equal(move(&s, token_of(window), PENSTOCK_READ, 61440, bytes, 4096),
				 4096);
		assert_int_equal(s.at[8192 + 61440], 0x77);
		other = window_open(&s, PENSTOCK_WRITE, 0, 8192);
		refused(&s, changed(token_of(other), 4, 0), PENSTOCK_WRITE, 0, "a wrong key");
		refused(&s, token_of(other), PENSTOCK_READ, 0, "the other direction");
		snprintf(old, sizeof(old), "%s", token_of(window));
		assert_int_equal(penstock_object_release(window), 0);
		refused(&s, old, PENSTOCK_READ, 0, "a released token");
		assert_int_equal(penstock_object_release(other), 0);
		close_sides(&s);
	}
}

/* Releases a window in the middle of a long move, and writes to its memory again. Returns whether
 * the release came before the end of the move. */
static bool late_bytes(const char *provider, enum penstock_op op)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};
	unsigned char *local = malloc(LONG);
	struct penstock_object_seg seg = {.ptr = local, .len = LONG};
	struct penstock_object_window *window;
	struct penstock_object_done done;
	struct sides s;
	size_t landed = 0;

	assert_non_null(local);
	open_sides(&s, provider, LONG);
	memset(local, 0x33, LONG);
	memset(s.at, 0x11, LONG);
	window = window_open(&s, op, 0, LONG);
	start(&s, token_of(window), op, 0, &seg, 1);
	while (*(volatile unsigned char *)(op == PENSTOCK_READ ? s.at : local) ==
	       (op == PENSTOCK_READ ? 0x11 : 0x33))
		;
	assert_int_equal(penstock_object_release(window), 0);
	for (size_t i = 0; i < LONG; i += 4096)
		landed += s.at[i] == 0x33;
	memset(s.at, 0x22, LONG);
	done = wait_one(&s);
	printf("# released after %zu MiB, result %" PRId64 " %s\n", landed >> 8, done.result,
	       done.text);
	/* This second move shows that the server has ended the first one, and that the client's
	 * thread has handled all earlier events. */
	window = window_open(&s, PENSTOCK_WRITE, 0, 1);
	assert_int_equal(move(&s, token_of(window), PENSTOCK_WRITE, 0, local, 1), 1);
	assert_int_equal(penstock_object_release(window), 0);
	for (size_t i = 0; i < LONG; i++)
		if (s.at[i] != 0x22)
			fail_msg("%s: byte %zu is %02x", provider, i, s.at[i]);
	/* The server must have read only bytes that were written before the release. */
	for (size_t i = 1; i < LONG && op == PENSTOCK_WRITE; i++)
		if (local[i] == 0x22)
			fail_msg("%s: byte %zu was read after the release", provider, i);
	assert_int_equal(penstock_object_client_get_info(s.client, &info), 0);
	assert_int_equal(info.cut_off, 2);
	assert_int_equal(info.stuck, 0);
	close_sides(&s);
	free(local);
	return done.result < 0;
}

static void no_byte_after_a_release(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2 * PROVIDERS; i++) {
		unsigned tries = 0;

		while (!late_bytes(providers[i / 2], i % 2 ? PENSTOCK_WRITE : PENSTOCK_READ))
			if (++tries == TRIES)
				fail_msg("no release came in the middle of a move");
	}
}

/* The client keeps the endpoint after a release if the response shows that no transfer is in
 * flight. */
static void settled_windows_share_an_endpoint(void **state)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct penstock_object_verdict verdict = PENSTOCK_OBJECT_VERDICT_INIT;
	unsigned char name[PST_TOKEN_NAME_MAX];
	struct penstock_object_window *window;
	struct pst_token token;
	struct sides s;
	uint64_t crc;

	(void)state;
	open_sides(&s, "net", LEN);
	crc = ~pst_crc_raw(PST_CRC64NVME, UINT64_MAX, s.at, 100);
	for (unsigned i = 0; i < 4; i++) {
		window = window_open(&s, PENSTOCK_READ, 0, 100);
		assert_int_equal(
			pst_token_parse(token_of(window), strlen(token_of(window)), &token), 0);
		if (!i)
			memcpy(name, token.ofi.name, sizeof(name));
		assert_int_equal(!memcmp(name, token.ofi.name, sizeof(name)), i < 3);
		if (!i) {
			assert_int_equal(judge(window, 100, &crc), PENSTOCK_OBJECT_DONE);
		} else {
			/* Status 404 shows that the server has not begun a transfer. Status 500
			 * leaves this open. */
			reply.status = i == 1 ? 404 : 500;
			assert_int_equal(penstock_object_judge(window, &reply, &verdict), 0);
		}
		assert_int_equal(penstock_object_release(window), 0);
		assert_int_equal(penstock_object_client_get_info(s.client, &info), 0);
		assert_int_equal(info.cut_off, i < 2 ? 0 : i - 1);
	}
	close_sides(&s);
}

/* The client must compare the checksum of the window with the server's checksum. */
static void checksum_decides(void **state)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_window *window;
	struct sides s;
	uint64_t crc;

	(void)state;
	open_sides(&s, "net", LEN);
	memset(s.at, 0x42, LEN);
	crc = ~pst_crc_raw(PST_CRC64NVME, UINT64_MAX, s.at, 5000);
	window = window_open(&s, PENSTOCK_READ, 0, 6000);
	assert_int_equal(judge(window, 5000, &crc), PENSTOCK_OBJECT_DONE);
	assert_int_equal(judge(window, 4999, &crc), PENSTOCK_OBJECT_RESEND);
	assert_int_equal(judge(window, 5000, NULL), PENSTOCK_OBJECT_RESEND);
	s.at[4999] ^= 1;
	assert_int_equal(judge(window, 5000, &crc), PENSTOCK_OBJECT_RESEND);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_client_get_info(s.client, &info), 0);
	assert_int_equal(info.bad_checksum, 2);
	close_sides(&s);
}

/* A move to a client that has ended fails. The server still serves other clients. */
static void client_has_ended(void **state)
{
	static unsigned char bytes[4096];
	struct penstock_object_window *window;
	char old[PST_TOKEN_MAX + 1];
	uint64_t begun;
	struct sides s;

	(void)state;
	for (unsigned p = 0; p < PROVIDERS; p++) {
		open_sides(&s, providers[p], LEN);
		window = window_open(&s, PENSTOCK_READ, 0, 4096);
		snprintf(old, sizeof(old), "%s", token_of(window));
		assert_int_equal(move(&s, old, PENSTOCK_READ, 0, bytes, 4096), 4096);
		assert_int_equal(penstock_object_release(window), 0);
		assert_int_equal(penstock_object_unregister(s.buffer), 0);
		penstock_object_client_close(s.client);
		begun = test_now_ns();
		assert_true(move(&s, old, PENSTOCK_READ, 0, bytes, 4096) < 0);
		printf("# known after %llu ms\n",
		       (unsigned long long)((test_now_ns() - begun) / 1000000));
		assert_int_equal(client_open("ofi1", providers[p], &s.client), 0);
		assert_int_equal(penstock_object_alloc(s.client, NULL, LEN, &s.buffer), 0);
		s.at = penstock_object_ptr(s.buffer);
		window = window_open(&s, PENSTOCK_READ, 0, 4096);
		assert_int_equal(move(&s, token_of(window), PENSTOCK_READ, 0, bytes, 4096), 4096);
		assert_int_equal(penstock_object_release(window), 0);
		close_sides(&s);
	}
}

/* ---- what is declined ---- */

static void servers_decline(void **state)
{
	/* An address of an endpoint is a socket address with a port. These are 127.0.0.1, 192.0.2.1
	 * and ::1. */
#define LOCAL "020012347f0000010000000000000000"
#define OTHER "02001234c00002010000000000000000"
#define LOCAL6 "0a001234000000000000000000000000000000000000000100000000"
	static const struct {
		const char *token, *peer;
		int ret;
	} rows[] = {
		{"0:1000:ofi1:net:" LOCAL ":1", NULL, 0},
		{"0:1000:ofi1:tcp;ofi_rxm:" LOCAL ":1", "127.0.0.1", 0},
		{"0:1000:ofi1:net:" LOCAL6 ":1", "::1", 0},
		{"0:1000:ofi1:net:" OTHER ":1", "192.0.2.1", 0},
		{"0:1000:ofi1:net:" OTHER ":1", "::ffff:192.0.2.1", 0},
		{"0:1000:ofi1:net:" OTHER ":1", NULL, -EOPNOTSUPP},
		{"0:1000:ofi1:net:" OTHER ":1", "127.0.0.1", -EOPNOTSUPP},
		{"0:1000:ofi1:net:" LOCAL ":1", "192.0.2.1", -EOPNOTSUPP},
		{"0:1000:ofi1:net:" LOCAL6 ":1", "127.0.0.1", 0},
		{"0:1000:ofi1:shm:" LOCAL ":1", NULL, -EOPNOTSUPP},
		{"0:1000:ofi1:udp;ofi_rxd:" LOCAL ":1", NULL, -EOPNOTSUPP},
		{"0:1000:ofi1:net:" LOCAL "00:1", NULL, -EOPNOTSUPP},
		{"0:1000:ofi1:net:0200:1", NULL, -EOPNOTSUPP},
		{"0:1000:ofi1:net:66695f73686d3a2f2f313233:1", NULL, -EOPNOTSUPP},
	};
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_server *server, *silent;
	struct penstock_object_client *client;

	(void)state;
	if (client_open("ofi1", "net", &client))
		test_skip("%s", penstock_errmsg());
	penstock_object_client_close(client);
	server = server_open();
	/* A server accepts tokens of ofi1 only if its options name this transport. */
	assert_int_equal(penstock_object_server_open(NULL, &silent), 0);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
		struct penstock_object_remote *remote = NULL;
		const char *token = rows[i].token;
		int ret;

		peer.address = rows[i].peer;
		ret = penstock_object_resolve(server, token, strlen(token), &peer, &remote);
		if (ret != rows[i].ret)
			fail_msg("row %u: %d instead of %d: %s", i, ret, rows[i].ret,
				 penstock_errmsg());
		penstock_object_forget(remote);
		assert_int_equal(
			penstock_object_resolve(silent, token, strlen(token), &peer, &remote),
			-EOPNOTSUPP);
	}
	penstock_object_server_close(silent);
	penstock_object_server_close(server);
	opts.transports = "ofi1";
	opts.require_encryption = 1;
	assert_int_equal(penstock_object_server_open(&opts, &server), 0);
	assert_int_equal(penstock_object_resolve(server, rows[0].token, strlen(rows[0].token), NULL,
						 &(struct penstock_object_remote *){NULL}),
			 -EOPNOTSUPP);
	penstock_object_server_close(server);
}

static void clients_name_the_reason(void **state)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_client *client = NULL;
	struct sides s;

	(void)state;
	open_sides(&s, "net", LEN);
	close_sides(&s);
	assert_int_equal(client_open("ofi1", "shm", &client), -EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "shm"));
	/* With its cache, libfabric would keep windows accessible after their release. */
	unsetenv("FI_MR_CACHE_MAX_COUNT");
	assert_int_equal(client_open("ofi1", "verbs;ofi_rxm", &client), -EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "FI_MR_CACHE_MAX_COUNT"));
	opts.transports = "ofi1";
	opts.address = "example.org";
	assert_int_equal(penstock_object_client_open(&opts, &client), -EINVAL);
	opts.address = NULL;
	opts.require_encryption = 1;
	assert_int_equal(penstock_object_client_open(&opts, &client), -EOPNOTSUPP);
	assert_null(client);
}

/* ofi1 refuses windows in the memory of a GPU, so the client uses the next transport. */
static void gpu_memory_goes_another_way(void **state)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct penstock_device *gpu;

	(void)state;
	if (client_open("ofi1,tcp1", "net", &client))
		test_skip("%s", penstock_errmsg());
	if (penstock_device_open("cuda:0", NULL, &gpu) < 0)
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_object_alloc(client, gpu, 4096, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 4096, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.transport, "tcp1");
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(client);
	penstock_device_close(gpu);
}

static void missing_transport_names_the_reason(void **state)
{
	struct pst_err err = {0};

	(void)state;
	assert_string_equal(missing_client.name, "ofi1");
	assert_int_equal(missing_client.named, 1);
	assert_int_equal(missing_server.kind, PST_TOKEN_OFI1);
	assert_int_equal(missing_client.listen(NULL, NULL, &err), -EOPNOTSUPP);
	assert_int_equal(err.why, PENSTOCK_WHY_NOT_BUILT);
	assert_non_null(strstr(err.text, "libfabric-dev"));
	err = (struct pst_err){0};
	assert_int_equal(missing_server.admit(NULL, NULL, NULL, &err), -EOPNOTSUPP);
	assert_int_equal(err.why, PENSTOCK_WHY_NOT_BUILT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_bytes_move),
		cmocka_unit_test(other_memory),
		cmocka_unit_test(wrong_tokens),
		cmocka_unit_test(no_byte_after_a_release),
		cmocka_unit_test(settled_windows_share_an_endpoint),
		cmocka_unit_test(checksum_decides),
		cmocka_unit_test(client_has_ended),
		cmocka_unit_test(servers_decline),
		cmocka_unit_test(clients_name_the_reason),
		cmocka_unit_test(gpu_memory_goes_another_way),
		cmocka_unit_test(missing_transport_names_the_reason),
	};

	test_use_standin();
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
