/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests transport rc1 of S3 over RDMA with a fake network card (fake_card.h). Compares all bytes
 * after each transfer. Tests accesses that the card refuses, releases of a window (memory that a
 * server may access) while a server writes to it, memory of the stand-in GPU, a card that fails or
 * is removed, and the failure of each call. tests/lab/rc1 tests the transport with Soft-RoCE.
 */
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

#include "sides.h"
#include "wire/rc1.h"

#define BUFFER_LEN (5u << 20)
#define MOVES 24

/* Changes a member of fake_card while other threads use the card. */
#define CARD_SET(member, value)             \
	do {                                \
		fake_card_lock();           \
		fake_card.member = (value); \
		fake_card_unlock();         \
	} while (0)

static struct penstock_object_client *client_open(const char *transports)
{
	const struct sides s = {.client_transports = transports};

	return sides_client(&s);
}

static void open_sides(struct sides *s, const char *transports, bool gpu)
{
	*s = (struct sides){.client_transports = transports, .timeout_ms = 2000, .len = BUFFER_LEN};
	sides_open(s, gpu);
}

static const char *transport_of(const struct penstock_object_window *window)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	return info.transport;
}

static void token_of(const struct penstock_object_window *window, struct pst_token *out)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_int_equal(pst_token_parse(info.token, strlen(info.token), out), 0);
	assert_int_equal(out->kind, PST_TOKEN_RC1);
}

/* Does what a server does for a request with this token: moves the bytes of several segments.
 * Returns the number of bytes or an error. */
static int64_t move_segs(struct sides *s, const struct pst_token *token, enum penstock_op op,
			 uint64_t off, const struct penstock_object_seg *segs, unsigned count)
{
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	char text[PST_TOKEN_MAX + 1];
	int n = pst_token_print(token, text), ret;

	assert_true(n > 0);
	ret = penstock_object_resolve(s->server, text, (size_t)n, NULL, &remote);
	if (ret)
		return ret;
	ret = penstock_object_move(remote, op, off, segs, count, 7);
	penstock_object_forget(remote);
	if (ret)
		return ret;
	assert_int_equal(penstock_object_wait(s->server, &done, 1, 20000), 1);
	return done.result;
}

/* Does what a server does for a request with this token: moves the bytes of one segment. Returns
 * the number of bytes or an error. */
static int64_t move_by(struct sides *s, const struct pst_token *token, enum penstock_op op,
		       uint64_t off, void *mem, uint64_t len)
{
	struct penstock_object_seg seg = {.ptr = mem, .len = len};

	return move_segs(s, token, op, off, &seg, 1);
}

static int64_t move(struct sides *s, const struct penstock_object_window *window,
		    enum penstock_op op, void *mem, uint64_t len)
{
	struct pst_token token;

	token_of(window, &token);
	return move_by(s, &token, op, 0, mem, len);
}

static unsigned char pattern_byte(size_t i, uint64_t seed)
{
	return (unsigned char)((i * 2654435761u + seed * 97) >> 7);
}

static void pattern(unsigned char *mem, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		mem[i] = pattern_byte(i, seed);
}

/* ---- moves ---- */

/* Splits `len` bytes at `mem` into segments of random length. Short segments are copied through
 * staging memory, and the card accesses long ones directly. */
static unsigned split(struct penstock_object_seg *segs, unsigned char *mem, uint64_t len,
		      uint64_t *seed)
{
	unsigned count = 0;

	while (len) {
		uint64_t max = test_random(seed) % 3 ? 100000 : 2 << 20;
		uint64_t n = test_random(seed) % max;

		n = n > len || count == PENSTOCK_OBJECT_SEGS_MAX - 1 ? len : n;
		segs[count++] = (struct penstock_object_seg){.ptr = mem, .len = n};
		mem += n;
		len -= n;
	}
	return count;
}

/* Moves random ranges. If `staged` is true, the card cannot register the server's memory, so all
 * bytes pass through staging memory. */
static void move_ranges(bool staged)
{
	unsigned char *expected = malloc(BUFFER_LEN), *local = malloc(BUFFER_LEN);
	uint64_t seed = test_seed(1601);
	struct sides s;

	assert_true(expected && local);
	open_sides(&s, "rc1", false);
	pattern(s.at, BUFFER_LEN, 1);
	memcpy(expected, s.at, BUFFER_LEN);
	for (unsigned i = 0; i < MOVES; i++) {
		enum penstock_op op = i % 2 ? PENSTOCK_READ : PENSTOCK_WRITE;
		uint64_t off = test_random(&seed) % BUFFER_LEN;
		uint64_t len = i < 2 ? 0 : test_random(&seed) % (BUFFER_LEN - off + 1);
		uint64_t inner = len ? test_random(&seed) % len : 0;
		struct penstock_object_seg segs[PENSTOCK_OBJECT_SEGS_MAX];
		unsigned count = split(segs, local, len - inner, &seed);
		struct penstock_object_window *window = window_open(&s, op, off, len);
		struct pst_token token;

		assert_string_equal(transport_of(window), "rc1");
		token_of(window, &token);
		assert_int_equal(token.size, len);
		pattern(local, BUFFER_LEN, i + 2);
		assert_int_equal(move_segs(&s, &token, op, inner, segs, count), len - inner);
		if (op == PENSTOCK_READ)
			memcpy(expected + off + inner, local, len - inner);
		else
			assert_memory_equal(local, expected + off + inner, len - inner);
		assert_memory_equal(s.at, expected, BUFFER_LEN);
		assert_int_equal(penstock_object_release(window), 0);
		/* The connection is open and has registered its staging memory, so further
		 * registrations may fail. */
		CARD_SET(local_errno, staged ? ENOMEM : 0);
	}
	printf("# the longest of %u transfers has %u bytes\n", fake_card.transfers,
	       fake_card.longest);
	assert_int_equal(fake_card.longest, staged ? 256 << 10 : 1 << 20);
	close_sides(&s);
	free(expected);
	free(local);
}

static void moves_all_bytes(void **state)
{
	(void)state;
	move_ranges(false);
}

static void moves_all_bytes_staged(void **state)
{
	(void)state;
	move_ranges(true);
}

/* A client must register only the window's bytes, and allow only the direction of the window. The
 * base address in the token must not reveal the address of the memory. */
static void registers_the_window_only(void **state)
{
	struct penstock_object_window *window;
	struct pst_token token;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	window = window_open(&s, PENSTOCK_READ, 8192 + 77, 12345);
	token_of(window, &token);
	assert_int_equal(fake_card.len, 12345);
	assert_int_equal(fake_card.iova % 4096, 77);
	assert_int_equal(token.base, fake_card.iova);
	assert_int_equal(fake_card.access, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	assert_int_equal(penstock_object_release(window), 0);
	window = window_open(&s, PENSTOCK_WRITE, 4095, 1);
	assert_int_equal(fake_card.len, 1);
	assert_int_equal(fake_card.iova % 4096, 4095);
	assert_int_equal(fake_card.access, IBV_ACCESS_REMOTE_READ);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(fake_card.regions, 2);
	close_sides(&s);
}

static void refuses_what_the_token_does_not_allow(void **state)
{
	static unsigned char local[8192];
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_window *window;
	struct pst_token right, wrong;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	memset(s.at, 0x11, BUFFER_LEN);
	window = window_open(&s, PENSTOCK_READ, 4096 + 10, 4096);
	token_of(window, &right);
	wrong = right;
	wrong.rc.rkey++;
	assert_int_equal(move_by(&s, &wrong, PENSTOCK_READ, 0, local, 4096), -EACCES);
	wrong = right;
	wrong.base--;
	assert_int_equal(move_by(&s, &wrong, PENSTOCK_READ, 0, local, 1), -EACCES);
	wrong = right;
	wrong.size += 4096;
	assert_int_equal(move_by(&s, &wrong, PENSTOCK_READ, 1, local, 4096), -EACCES);
	assert_int_equal(move_by(&s, &right, PENSTOCK_WRITE, 0, local, 4096), -EACCES);
	assert_int_equal(move_by(&s, &right, PENSTOCK_READ, 1, local, 4096), -ERANGE);
	wrong = right;
	wrong.rc.conn[15] ^= 1;
	assert_int_equal(move_by(&s, &wrong, PENSTOCK_READ, 0, local, 4096), -EOPNOTSUPP);
	penstock_object_client_get_info(s.client, &info);
	assert_int_equal(info.wrong_cap, 1);
	for (unsigned i = 0; i < BUFFER_LEN; i++)
		if (s.at[i] != 0x11)
			fail_msg("byte %u is %02x", i, s.at[i]);
	assert_int_equal(move_by(&s, &right, PENSTOCK_READ, 0, local, 4096), 4096);
	assert_int_equal(s.at[4096 + 9] << 8 | s.at[4096 + 10], 0x1100);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(move_by(&s, &right, PENSTOCK_READ, 0, local, 4096), -EACCES);
	close_sides(&s);
}

/* A card may give a new memory region the key of a deregistered one. A late transfer with the token
 * of the first window must not reach the second window. */
static void a_key_that_is_used_again_opens_nothing(void **state)
{
	static unsigned char local[4096];
	struct penstock_object_window *window;
	struct pst_token late;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	CARD_SET(same_key, 0xbeef00);
	memset(s.at, 0x11, BUFFER_LEN);
	memset(local, 0x22, sizeof(local));
	window = window_open(&s, PENSTOCK_READ, 0, sizeof(local));
	token_of(window, &late);
	assert_int_equal(penstock_object_release(window), 0);
	window = window_open(&s, PENSTOCK_READ, 0, sizeof(local));
	assert_int_equal(late.rc.rkey, 0xbeef00);
	assert_int_equal(move_by(&s, &late, PENSTOCK_READ, 0, local, sizeof(local)), -EACCES);
	assert_int_equal(s.at[0], 0x11);
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, sizeof(local)), sizeof(local));
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* ---- releases ---- */

struct writer {
	struct sides *s;
	struct pst_token token;
	unsigned char *mem;
	int64_t result;
};

static void *writer_run(void *arg)
{
	struct writer *w = arg;

	w->result = move_by(w->s, &w->token, PENSTOCK_READ, 0, w->mem, BUFFER_LEN);
	return NULL;
}

/* While a server moves bytes to a window, waits until `after` transfers have ended. Then releases
 * the window and writes to its memory. No later transfer may change these bytes. */
static void release_within(struct sides *s, unsigned char *local, unsigned after)
{
	struct penstock_object_window *window = window_open(s, PENSTOCK_READ, 0, BUFFER_LEN);
	struct writer w = {s, {0}, local, 0};
	unsigned end, seen;
	pthread_t thread;

	token_of(window, &w.token);
	end = fake_card.transfers + after;
	fake_card_gate(end);
	assert_int_equal(pthread_create(&thread, NULL, writer_run, &w), 0);
	do {
		fake_card_lock();
		seen = fake_card.transfers;
		fake_card_unlock();
	} while (seen < end);
	assert_int_equal(penstock_object_release(window), 0);
	memset(s->at, 0x33, BUFFER_LEN);
	fake_card_gate(0);
	pthread_join(thread, NULL);
	assert_int_equal(w.result, -EACCES);
	assert_int_equal(fake_card.transfers, end);
	for (unsigned at = 0; at < BUFFER_LEN; at++)
		if (s->at[at] != 0x33)
			fail_msg("after %u transfers: byte %u is %02x", after, at, s->at[at]);
}

static void nothing_lands_after_a_release(void **state)
{
	unsigned char *local = malloc(BUFFER_LEN);
	struct sides s;

	(void)state;
	assert_non_null(local);
	open_sides(&s, "rc1", false);
	memset(local, 0x22, BUFFER_LEN);
	/* The move consists of 5 transfers, so the test releases the window after each of the first
	 * four. */
	for (unsigned after = 1; after < 5; after++)
		release_within(&s, local, after);
	close_sides(&s);
	free(local);
}

/* If the card cannot deregister the memory region of a window, the client must stop all connections
 * and try again. */
static void stops_connections_that_hold_a_region(void **state)
{
	static unsigned char local[4096];
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_window *window, *other;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, 4096), 4096);
	CARD_SET(dereg_fail, 1);
	assert_int_equal(penstock_object_release(window), 0);
	penstock_object_client_get_info(s.client, &info);
	assert_int_equal(info.cut_off, 1);
	assert_int_equal(info.stuck, 0);
	assert_int_equal(fake_card.stops, 1);
	/* The server must notice that its connection was stopped, and make a new one. */
	other = window_open(&s, PENSTOCK_READ, 4096, 4096);
	assert_int_equal(move(&s, other, PENSTOCK_READ, local, 4096), 4096);
	assert_int_equal(penstock_object_release(other), 0);
	close_sides(&s);
}

static void reports_a_region_that_does_not_end(void **state)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_window *window;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	CARD_SET(dereg_fail, 2);
	assert_int_equal(penstock_object_release(window), -ETIMEDOUT);
	assert_non_null(strstr(penstock_errmsg(), "fake0"));
	penstock_object_client_get_info(s.client, &info);
	assert_int_equal(info.cut_off, 1);
	assert_int_equal(info.stuck, 1);
	/* The client keeps the memory mapped, because the card may still access it. */
	CARD_SET(dereg_fail, 1);
	assert_int_equal(penstock_object_unregister(s.buffer), 0);
	s.at[0] = 1;
	penstock_object_client_close(s.client);
	s.client = NULL;
	/* The region that could not be deregistered and its protection domain are left on the
	 * card. */
	assert_int_equal(fake_card.live, 2);
	fake_card_forget();
	close_sides(&s);
}

/* ---- memory that the card cannot access ---- */

static void next_transport_serves_the_window(void **state)
{
	struct penstock_object_window *window;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1,tcp1", false);
	CARD_SET(reg_errno, ENOMEM);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	assert_string_equal(transport_of(window), "tcp1");
	assert_int_equal(penstock_object_release(window), 0);
	CARD_SET(reg_errno, 0);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	assert_string_equal(transport_of(window), "rc1");
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
	open_sides(&s, "rc1", false);
	CARD_SET(reg_errno, ENOMEM);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, 0, 4096, &window),
			 -ENOMEM);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_MEMLOCK);
	assert_non_null(strstr(penstock_errmsg(), "RLIMIT_MEMLOCK"));
	CARD_SET(reg_errno, EFAULT);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, 0, 4096, &window),
			 -EFAULT);
	close_sides(&s);
}

/* A client must register memory of a GPU as a dma-buf, or as peer memory if the GPU has no dma-buf.
 * If both fail, another transport must carry the transfers of the window. */
static void gpu_memory(void **state)
{
	static unsigned char local[100000];
	struct penstock_object_window *window;
	const char *standin = getenv("PENSTOCK_STANDIN");
	struct pst_token token;
	struct sides s;

	(void)state;
	if (standin && !strcmp(standin, "0"))
		test_skip("the fake card cannot access memory of a real GPU");
	open_sides(&s, "rc1", true);
	pattern(local, sizeof(local), 5);
	window = window_open(&s, PENSTOCK_READ, 33, sizeof(local));
	assert_int_equal(fake_card.dmabufs, 1);
	assert_int_equal(fake_card.len, sizeof(local));
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, sizeof(local)), sizeof(local));
	assert_int_equal(penstock_object_release(window), 0);
	memset(local, 0, sizeof(local));
	window = window_open(&s, PENSTOCK_WRITE, 33, sizeof(local));
	assert_int_equal(move(&s, window, PENSTOCK_WRITE, local, sizeof(local)), sizeof(local));
	assert_int_equal(penstock_object_release(window), 0);
	for (unsigned i = 0; i < sizeof(local); i++)
		if (local[i] != pattern_byte(i, 5))
			fail_msg("byte %u is wrong", i);
	CARD_SET(dmabuf_errno, EOPNOTSUPP);
	window = window_open(&s, PENSTOCK_READ, 77, 5000);
	token_of(window, &token);
	assert_int_equal(token.base % 4096, 77);
	assert_int_equal(fake_card.dmabufs, 3);
	assert_int_equal(fake_card.regions, 3);
	assert_int_equal(penstock_object_release(window), 0);
	CARD_SET(reg_errno, EFAULT);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, 0, 4096, &window),
			 -EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "Operation not supported"));
	assert_non_null(strstr(penstock_errmsg(), "Bad address"));
	assert_non_null(strstr(penstock_errmsg(), "host memory"));
	close_sides(&s);
	open_sides(&s, "rc1,tcp1", true);
	CARD_SET(dmabuf_errno, EOPNOTSUPP);
	CARD_SET(reg_errno, EFAULT);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	assert_string_equal(transport_of(window), "tcp1");
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* ---- connections ---- */

static void card_is_removed(void **state)
{
	static unsigned char local[4096];
	struct penstock_object_window *window, *next;
	bool tcp1 = false;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1,tcp1", false);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, 4096), 4096);
	fake_card_remove();
	/* The client's thread handles the removal asynchronously, so the loop opens windows until
	 * one uses tcp1. */
	while (!tcp1) {
		next = window_open(&s, PENSTOCK_READ, 4096, 4096);
		tcp1 = !strcmp(transport_of(next), "tcp1");
		assert_int_equal(penstock_object_release(next), 0);
	}
	CARD_SET(dereg_fail, 2);
	assert_int_equal(penstock_object_release(window), 0);
	penstock_object_unregister(s.buffer);
	penstock_object_client_close(s.client);
	s.client = NULL;
	/* Calls for a removed card fail, so the region cannot be deregistered. */
	penstock_object_server_close(s.server);
	assert_int_equal(fake_card.live, 2);
	fake_card_forget();
	assert_int_equal(fake_card.live, 0);
}

static void client_is_gone(void **state)
{
	static unsigned char local[4096];
	struct penstock_object_window *window;
	struct pst_token token;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	token_of(window, &token);
	assert_int_equal(move_by(&s, &token, PENSTOCK_READ, 0, local, 4096), 4096);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(s.buffer), 0);
	penstock_object_client_close(s.client);
	s.client = NULL;
	assert_int_equal(move_by(&s, &token, PENSTOCK_READ, 0, local, 4096), -EOPNOTSUPP);
	close_sides(&s);
}

/* All connections of a server's channel must share one registration of the channel's staging
 * memory. */
static void connections_share_the_staging_memory(void **state)
{
	static unsigned char local[4096], theirs[4096];
	struct penstock_object_buffer *buffer;
	struct penstock_object_client *other;
	struct penstock_object_window *window, *second;
	unsigned before;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	other = client_open("rc1");
	assert_int_equal(penstock_object_register(other, NULL, theirs, sizeof(theirs), &buffer), 0);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 4096, &second), 0);
	memset(local, 0x55, sizeof(local));
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, 4096), 4096);
	before = fake_card.live;
	memset(local, 0x66, sizeof(local));
	assert_int_equal(move(&s, second, PENSTOCK_READ, local, 4096), 4096);
	/* The second connection adds the server's event channel, id, completion channel, completion
	 * queue and queue pair, and the client's id and queue pair. */
	assert_int_equal(fake_card.live, before + 7);
	assert_int_equal(s.at[4095] << 8 | theirs[4095], 0x5566);
	assert_int_equal(penstock_object_release(second), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(other);
	/* Closing the other client must not close the card, because the first connection still uses
	 * it. */
	memset(local, 0x77, sizeof(local));
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, 4096), 4096);
	assert_int_equal(s.at[4095], 0x77);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* If the server cannot register its memory, the move fails before any transfer, and the client may
 * use HTTP. */
static void server_cannot_pin(void **state)
{
	static unsigned char local[4096];
	struct penstock_object_window *window;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	CARD_SET(local_errno, ENOMEM);
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, 4096), -EOPNOTSUPP);
	CARD_SET(local_errno, 0);
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, 4096), 4096);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* If a client does not answer, the move fails after the server's time limit. */
static void client_is_silent(void **state)
{
	static unsigned char local[4096];
	struct penstock_object_window *window;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	CARD_SET(hold, true);
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, 4096), -ETIMEDOUT);
	CARD_SET(hold, false);
	assert_int_equal(move(&s, window, PENSTOCK_READ, local, 4096), 4096);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* Many open connections that other programs make to a client must not prevent a server from
 * connecting. */
static void strangers_do_not_lock_out_servers(void **state)
{
	static unsigned char local[4096];
	unsigned char request[PST_RC1_REQUEST_LEN];
	struct rdma_conn_param param = {.private_data = request,
					.private_data_len = sizeof(request)};
	struct rdma_event_channel *channel;
	struct penstock_object_window *window;
	struct rdma_cm_id *ids[300];
	struct sockaddr_in at = {.sin_family = AF_INET};
	struct pst_token token;
	unsigned open;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	token_of(window, &token);
	pst_rc1_put_request(request, token.rc.conn);
	at.sin_port = htons(token.rc.at.port);
	channel = fake_verbs.create_event_channel();
	for (unsigned i = 0; i < 300; i++) {
		assert_int_equal(fake_verbs.create_id(channel, &ids[i], NULL, RDMA_PS_TCP), 0);
		assert_int_equal(fake_verbs.resolve_addr(ids[i], NULL, (struct sockaddr *)&at, 1),
				 0);
		assert_int_equal(fake_verbs.connect(ids[i], &param), 0);
	}
	assert_int_equal(move_by(&s, &token, PENSTOCK_READ, 0, local, 4096), 4096);
	/* The card counts objects. Each connection of the client is two objects, a queue pair and
	 * an id. Each id that this test has created is one more object. */
	fake_card_lock();
	open = fake_card.live;
	fake_card_unlock();
	printf("# %u objects for 301 connections\n", open);
	assert_in_range(open, 300 + 2 * 256, 300 + 2 * 256 + 20);
	for (unsigned i = 0; i < 300; i++)
		fake_verbs.destroy_id(ids[i]);
	fake_verbs.destroy_event_channel(channel);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* Another program listens at the port of the token, and accepts the connection without the greeting
 * of rc1. */
static void other_programs_get_no_transfer(void **state)
{
	static unsigned char local[4096];
	struct rdma_conn_param param = {.private_data = "hello", .private_data_len = 5};
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(4791)};
	struct writer w = {.mem = local};
	struct rdma_cm_id *id = NULL;
	pthread_t thread;
	struct sides s;

	(void)state;
	open_sides(&s, "rc1", false);
	channel = fake_verbs.create_event_channel();
	assert_int_equal(fake_verbs.create_id(channel, &listener, NULL, RDMA_PS_TCP), 0);
	assert_int_equal(fake_verbs.bind_addr(listener, (struct sockaddr *)&at), 0);
	assert_int_equal(fake_verbs.listen(listener, 1), 0);
	w.s = &s;
	w.token = (struct pst_token){.kind = PST_TOKEN_RC1, .size = BUFFER_LEN};
	w.token.rc.at = (struct pst_token_place){false, "127.0.0.1", 4791};
	assert_int_equal(pthread_create(&thread, NULL, writer_run, &w), 0);
	while (fake_verbs.get_cm_event(channel, &event))
		assert_int_equal(errno, EAGAIN);
	assert_int_equal(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	id = event->id;
	fake_verbs.ack_cm_event(event);
	assert_int_equal(fake_verbs.accept(id, &param), 0);
	pthread_join(thread, NULL);
	assert_int_equal(w.result, -EOPNOTSUPP);
	assert_int_equal(fake_card.transfers, 0);
	fake_verbs.destroy_id(id);
	fake_verbs.destroy_id(listener);
	fake_verbs.destroy_event_channel(channel);
	close_sides(&s);
}

/* ---- failures ---- */

/* Opens both sides and moves bytes while call `number` of the card fails. Returns false if fewer
 * than `number` calls were made. */
static bool fail_call(unsigned number)
{
	static unsigned char mem[300000], local[300000];
	struct penstock_object_client_opts c = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_server_opts o = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct sides s = {0};
	struct penstock_object_window *window;
	bool moved = false;
	int ret;

	fake_card_reset();
	fake_card.fail_at = number;
	c.transports = "rc1";
	c.address = "127.0.0.1";
	o.channels = 1;
	o.timeout_ms = 2000;
	memset(local, 0x44, sizeof(local));
	memset(mem, 0, sizeof(mem));
	assert_int_equal(penstock_object_server_open(&o, &s.server), 0);
	ret = penstock_object_client_open(&c, &s.client);
	if (ret)
		s.client = NULL;
	if (!ret)
		assert_int_equal(
			penstock_object_register(s.client, NULL, mem, sizeof(mem), &s.buffer), 0);
	if (!ret)
		ret = penstock_object_window_open(s.buffer, PENSTOCK_READ, 0, sizeof(mem), &window);
	if (!ret) {
		int64_t result = move(&s, window, PENSTOCK_READ, local, sizeof(local));

		moved = result == (int64_t)sizeof(local);
		ret = moved ? 0 : (int)result;
		assert_int_equal(penstock_object_release(window), 0);
	}
	if (moved && memcmp(mem, local, sizeof(mem)))
		fail_msg("call %u: the bytes are wrong", number);
	if (!moved && ret >= 0)
		fail_msg("call %u: no error, and no bytes", number);
	close_sides(&s);
	return fake_card.calls >= number;
}

static void each_call_fails_once(void **state)
{
	unsigned number = 1;

	(void)state;
	while (fail_call(number))
		number++;
	printf("# %u calls have failed\n", number - 1);
	assert_true(number > 20);
}

static void no_card(void **state)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_client *client;

	(void)state;
	fake_card_reset();
	fake_card.missing = true;
	opts.transports = "rc1";
	opts.address = "127.0.0.1";
	assert_int_equal(penstock_object_client_open(&opts, &client), -ENODEV);
	opts.address = NULL;
	assert_int_equal(penstock_object_client_open(&opts, &client), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "address"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(moves_all_bytes),
		cmocka_unit_test(moves_all_bytes_staged),
		cmocka_unit_test(registers_the_window_only),
		cmocka_unit_test(refuses_what_the_token_does_not_allow),
		cmocka_unit_test(a_key_that_is_used_again_opens_nothing),
		cmocka_unit_test(nothing_lands_after_a_release),
		cmocka_unit_test(stops_connections_that_hold_a_region),
		cmocka_unit_test(reports_a_region_that_does_not_end),
		cmocka_unit_test(next_transport_serves_the_window),
		cmocka_unit_test(gpu_memory),
		cmocka_unit_test(card_is_removed),
		cmocka_unit_test(client_is_gone),
		cmocka_unit_test(connections_share_the_staging_memory),
		cmocka_unit_test(server_cannot_pin),
		cmocka_unit_test(client_is_silent),
		cmocka_unit_test(strangers_do_not_lock_out_servers),
		cmocka_unit_test(other_programs_get_no_transfer),
		cmocka_unit_test(each_call_fails_once),
		cmocka_unit_test(no_card),
	};

	test_use_standin();
	setenv("PENSTOCK_STANDIN_DMABUF", "1", 1);
	return cmocka_run_group_tests_name("rc1", tests, NULL, NULL);
}
