/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests transport DC_V1 of S3 over RDMA (NVIDIA's dynamically connected transport) with a fake
 * network card (fake_card.h, fake_mlx5.c): transfers with all bytes compared, the exact form of the
 * token that a client sends, accesses that the card refuses, keys of both sides, releases of
 * windows, memory of the stand-in GPU, and the failure of each call of the card. No test runs DC_V1
 * on a real card.
 */
#include "test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "s3/token.h"
#include "sides.h"

#define BUFFER_LEN (3u << 20)
#define MOVES 20

static int client_open(const struct sides *s, const char *address,
		       struct penstock_object_client **out)
{
	struct sides dc = *s;

	dc.client_transports = "DC_V1";
	return sides_client_try(&dc, address, out);
}

/* The caller has set the access keys. */
static void open_sides(struct sides *s, bool gpu)
{
	s->client_transports = s->server_transports = "DC_V1";
	s->timeout_ms = 300;
	s->len = BUFFER_LEN;
	sides_open(s, gpu);
}

/* Returns the text of the window's token, and parses it. */
static const char *token_of(const struct penstock_object_window *window, struct pst_token *out)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.transport, "DC_V1");
	assert_int_equal(pst_token_parse(info.token, strlen(info.token), out), 0);
	assert_int_equal(out->kind, PST_TOKEN_DC_V1);
	return info.token;
}

static int64_t move_text(struct sides *s, const char *token, enum penstock_op op, uint64_t off,
			 void *mem, uint64_t len)
{
	const struct penstock_object_seg segs[2] = {
		{.ptr = mem, .len = len / 3}, {.ptr = (char *)mem + len / 3, .len = len - len / 3}};
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	int ret = penstock_object_resolve(s->server, token, strlen(token), NULL, &remote);

	if (ret)
		return ret;
	ret = penstock_object_move(remote, op, off, segs, 2, 7);
	penstock_object_forget(remote);
	if (ret)
		return ret;
	assert_int_equal(penstock_object_wait(s->server, &done, 1, 20000), 1);
	return done.result;
}

static int64_t move_by(struct sides *s, const struct pst_token *token, enum penstock_op op,
		       uint64_t off, void *mem, uint64_t len)
{
	char text[PST_TOKEN_MAX + 1];

	assert_true(pst_token_print(token, text) > 0);
	return move_text(s, text, op, off, mem, len);
}

static void pattern(unsigned char *mem, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		mem[i] = (unsigned char)((i * 2654435761u + seed * 97) >> 7);
}

/* ---- moves ---- */

static void moves_all_bytes(void **state)
{
	unsigned char *expected = malloc(BUFFER_LEN), *local = malloc(BUFFER_LEN);
	struct sides s = {.client_key = 0};
	uint64_t seed = test_seed(1642);

	(void)state;
	assert_true(expected && local);
	open_sides(&s, false);
	pattern(s.at, BUFFER_LEN, 1);
	memcpy(expected, s.at, BUFFER_LEN);
	for (unsigned i = 0; i < MOVES; i++) {
		enum penstock_op op = i % 2 ? PENSTOCK_READ : PENSTOCK_WRITE;
		uint64_t off = test_random(&seed) % BUFFER_LEN;
		uint64_t len = i < 2 ? 0 : test_random(&seed) % (BUFFER_LEN - off + 1);
		uint64_t inner = len ? test_random(&seed) % len : 0;
		struct penstock_object_window *window = window_open(&s, op, off, len);
		struct pst_token token;

		token_of(window, &token);
		assert_int_equal(token.size, len);
		pattern(local, BUFFER_LEN, i + 2);
		assert_int_equal(move_by(&s, &token, op, inner, local, len - inner), len - inner);
		if (op == PENSTOCK_READ)
			memcpy(expected + off + inner, local, len - inner);
		else
			assert_memory_equal(local, expected + off + inner, len - inner);
		assert_memory_equal(s.at, expected, BUFFER_LEN);
		assert_int_equal(penstock_object_release(window), 0);
	}
	assert_true(fake_card.transfers > MOVES);
	close_sides(&s);
	free(expected);
	free(local);
}

static void moves_memory_of_a_gpu(void **state)
{
	static unsigned char local[10000], back[10000];
	const char *standin = getenv("PENSTOCK_STANDIN");
	struct penstock_object_window *window;
	struct sides s = {.client_key = 0};
	struct pst_token token;

	(void)state;
	if (standin && !strcmp(standin, "0"))
		test_skip("the fake card cannot access memory of a real GPU");
	open_sides(&s, true);
	pattern(local, sizeof(local), 5);
	window = window_open(&s, PENSTOCK_READ, 77, sizeof(local));
	token_of(window, &token);
	assert_int_equal(move_by(&s, &token, PENSTOCK_READ, 0, local, sizeof(local)),
			 sizeof(local));
	assert_int_equal(penstock_object_release(window), 0);
	window = window_open(&s, PENSTOCK_WRITE, 77, sizeof(back));
	token_of(window, &token);
	assert_int_equal(move_by(&s, &token, PENSTOCK_WRITE, 0, back, sizeof(back)), sizeof(back));
	assert_int_equal(penstock_object_release(window), 0);
	assert_memory_equal(local, back, sizeof(local));
	assert_int_equal(fake_card.dmabufs, 2);
	close_sides(&s);
}

/* ---- the token ---- */

static void token_has_81_characters(void **state)
{
	static const unsigned colons[] = {16, 25, 34, 39, 46, 48};
	static unsigned char local[4096];
	struct penstock_object_window *window;
	struct sides s = {.client_key = 0};
	struct pst_token token;
	char longer[160];
	const char *text;

	(void)state;
	open_sides(&s, false);
	window = window_open(&s, PENSTOCK_READ, 8192 + 77, 4096);
	text = token_of(window, &token);
	assert_int_equal(strlen(text), 81);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(text[colons[i]], ':');
	assert_string_equal(text + 49, "00000000000000000000ffff7f000001");
	assert_int_equal(text[47], '1');
	assert_int_equal(token.base, fake_card.iova);
	assert_int_equal(token.base % 4096, 77);
	assert_int_equal(fake_card.len, 4096);
	/* Older clients append address and length to the token again. The server must use only the
	 * first fields. */
	snprintf(longer, sizeof(longer), "%s:%016llx:%016x", text, (unsigned long long)token.base,
		 1);
	assert_int_equal(move_text(&s, longer, PENSTOCK_READ, 0, local, sizeof(local)),
			 sizeof(local));
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* A token cannot name 4 GiB, because its field for the length has 32 bits. The test registers 5
 * GiB, although its memory is shorter: the library does not access the memory before it opens a
 * window. */
static void window_of_4_gib_is_refused(void **state)
{
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct sides s = {.client_key = 0};

	(void)state;
	open_sides(&s, false);
	assert_int_equal(penstock_object_register(s.client, NULL, s.at, (size_t)5 << 30, &buffer),
			 0);
	assert_int_equal(
		penstock_object_window_open(buffer, PENSTOCK_READ, 0, UINT64_C(1) << 32, &window),
		-EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "4 GiB"));
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

/* ---- what is refused ---- */

static void refuses_what_the_token_does_not_allow(void **state)
{
	static unsigned char local[8192];
	struct penstock_object_window *window;
	struct sides s = {.client_key = 0};
	struct pst_token right, wrong;

	(void)state;
	open_sides(&s, false);
	memset(s.at, 0x11, BUFFER_LEN);
	window = window_open(&s, PENSTOCK_READ, 4096 + 10, 4096);
	token_of(window, &right);
	wrong = right;
	wrong.dc.rkey++;
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
	wrong.dc.dct++;
	assert_int_equal(move_by(&s, &wrong, PENSTOCK_READ, 0, local, 4096), -ECONNRESET);
	/* The server must refuse a token that names a host other than the client's. It must also
	 * refuse a token without a GID, which a client sends if its card has no RoCE. */
	wrong = right;
	wrong.dc.gid[15]++;
	wrong.dc.gid[12] = 192;
	assert_int_equal(move_by(&s, &wrong, PENSTOCK_READ, 0, local, 4096), -EOPNOTSUPP);
	wrong = right;
	wrong.dc.has_gid = false;
	assert_int_equal(move_by(&s, &wrong, PENSTOCK_READ, 0, local, 4096), -EOPNOTSUPP);
	for (unsigned i = 0; i < BUFFER_LEN; i++)
		if (s.at[i] != 0x11)
			fail_msg("byte %u is %02x", i, s.at[i]);
	assert_int_equal(move_by(&s, &right, PENSTOCK_READ, 0, local, 4096), 4096);
	assert_int_equal(s.at[4096 + 9] << 8 | s.at[4096 + 10], 0x1100);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(move_by(&s, &right, PENSTOCK_READ, 0, local, 4096), -EACCES);
	close_sides(&s);
}

/* Client and server need the same access key of DC_V1, from the options or from the environment. */
static void key_must_be_the_same(void **state)
{
	static const struct {
		uint64_t client, server;
		const char *environment;
		int64_t result;
	} rows[] = {
		{0, 0, NULL, 4096},
		{0, 0xffeeddcc, NULL, 4096},
		{0x1234, 0x1234, NULL, 4096},
		{0x1234, 0, NULL, -EACCES},
		{0, 0, "0x777", 4096},
		{0, 0x777, "0x777", 4096},
		{0, 0xffeeddcc, "0x777", -EACCES},
	};
	static unsigned char local[4096];

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct sides s = {.client_key = rows[i].client, .server_key = rows[i].server};
		struct penstock_object_window *window;
		struct pst_token token;
		int64_t found;

		if (rows[i].environment)
			setenv("PENSTOCK_DC_KEY", rows[i].environment, 1);
		open_sides(&s, false);
		memset(s.at, 0x11, 4096);
		window = window_open(&s, PENSTOCK_READ, 0, 4096);
		token_of(window, &token);
		found = move_by(&s, &token, PENSTOCK_READ, 0, local, 4096);
		if (found != rows[i].result || (found < 0 && s.at[0] != 0x11))
			fail_msg("row %u: found %lld, expected %lld; the first byte is %02x", i,
				 (long long)found, (long long)rows[i].result, s.at[0]);
		assert_int_equal(penstock_object_release(window), 0);
		close_sides(&s);
		unsetenv("PENSTOCK_DC_KEY");
	}
}

/* ---- releases and failures ---- */

/* If the card cannot deregister a window's memory, the release destroys the client's DC target (the
 * queue pair that servers address). Then the server gets no access, and no window can be opened. */
static void destroys_the_target_for_a_fence(void **state)
{
	static unsigned char local[4096];
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_window *window, *next;
	struct sides s = {.client_key = 0};
	struct pst_token token;

	(void)state;
	open_sides(&s, false);
	window = window_open(&s, PENSTOCK_READ, 0, 4096);
	token_of(window, &token);
	fake_card_lock();
	fake_card.dereg_fail = 1;
	fake_card_unlock();
	assert_int_equal(penstock_object_release(window), 0);
	penstock_object_client_get_info(s.client, &info);
	assert_int_equal(info.cut_off, 1);
	assert_int_equal(move_by(&s, &token, PENSTOCK_READ, 0, local, 4096), -ECONNRESET);
	assert_int_equal(penstock_object_window_open(s.buffer, PENSTOCK_READ, 0, 4096, &next),
			 -EOPNOTSUPP);
	close_sides(&s);
}

static void survives_the_failure_of_each_call(void **state)
{
	static unsigned char local[4096];
	unsigned failed = 0, at;

	(void)state;
	for (at = 1; at < 60; at++) {
		struct penstock_object_client *client = NULL;
		struct penstock_object_window *window = NULL;
		struct sides s = {.client_key = 0};
		struct pst_token token;
		bool well = false;
		unsigned calls;

		open_sides(&s, false);
		fake_card_lock();
		calls = fake_card.calls;
		fake_card.fail_at = calls + at;
		fake_card_unlock();
		if (!client_open(&s, "127.0.0.1", &client) &&
		    !penstock_object_window_open(s.buffer, PENSTOCK_READ, 0, 4096, &window)) {
			token_of(window, &token);
			well = move_by(&s, &token, PENSTOCK_READ, 0, local, 4096) == 4096;
		}
		failed += !well;
		calls = fake_card.calls - calls;
		fake_card_lock();
		fake_card.fail_at = 0;
		fake_card_unlock();
		assert_int_equal(penstock_object_release(window), 0);
		penstock_object_client_close(client);
		/* After the failed call, the next transfer must succeed. */
		window = window_open(&s, PENSTOCK_WRITE, 0, 4096);
		token_of(window, &token);
		assert_int_equal(move_by(&s, &token, PENSTOCK_WRITE, 0, local, 4096), 4096);
		assert_int_equal(penstock_object_release(window), 0);
		close_sides(&s);
		if (calls < at)
			break;
	}
	printf("# %u of %u calls failed a transfer\n", failed, at);
	assert_true(failed > 15 && at < 60);
}

static void client_names_the_reason(void **state)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_client *client = NULL;
	struct sides s = {.client_key = 0};

	(void)state;
	fake_card_reset();
	assert_int_equal(client_open(&s, NULL, &client), -EINVAL);
	assert_int_equal(client_open(&s, "192.0.2.9", &client), -ENODEV);
	fake_card.plain = true;
	assert_int_equal(client_open(&s, "127.0.0.1", &client), -ENODEV);
	assert_non_null(strstr(penstock_errmsg(), "only cards of NVIDIA"));
	setenv("PENSTOCK_DC_KEY", "secret", 1);
	assert_int_equal(client_open(&s, "127.0.0.1", &client), -EINVAL);
	assert_null(strstr(penstock_errmsg(), "secret"));
	unsetenv("PENSTOCK_DC_KEY");
	fake_card.plain = false;
	/* A client without opts.transports does not open DC_V1. */
	assert_int_equal(penstock_object_client_open(&opts, &client), 0);
	penstock_object_client_close(client);
	assert_int_equal(fake_card.live, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(moves_all_bytes),
		cmocka_unit_test(moves_memory_of_a_gpu),
		cmocka_unit_test(token_has_81_characters),
		cmocka_unit_test(window_of_4_gib_is_refused),
		cmocka_unit_test(refuses_what_the_token_does_not_allow),
		cmocka_unit_test(key_must_be_the_same),
		cmocka_unit_test(destroys_the_target_for_a_fence),
		cmocka_unit_test(survives_the_failure_of_each_call),
		cmocka_unit_test(client_names_the_reason),
	};

	test_use_standin();
	setenv("PENSTOCK_STANDIN_DMABUF", "1", 1);
	unsetenv("PENSTOCK_DC_KEY");
	return cmocka_run_group_tests_name("dc", tests, NULL, NULL);
}
