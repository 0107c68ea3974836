/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests transport hipobj-rc-v2 with a fake network card (fake_card.h): transfers with all bytes
 * compared, wrong sessions and cookies, bounds of the server, memory of the stand-in GPU, releases,
 * and the failure of each call of the card. tests/lab/rc1 tests with Soft-RoCE.
 */
#include "test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "hipobj_message.h"
#include "sides.h"

#define BUFFER_LEN (3u << 20)
#define TRANSFERS 16
#define TIMEOUT_MS 300

/* The caller has set staging_max and rate_min. */
static void open_sides(struct sides *s, bool gpu)
{
	s->client_transports = s->server_transports = HIPOBJ;
	s->timeout_ms = TIMEOUT_MS;
	s->len = BUFFER_LEN;
	sides_open(s, gpu);
}

/* ---- the requests and responses, passed without HTTP ---- */

/* Composes the client's next request of the protocol for this window: PREPARE, READY or CANCEL.
 * Returns the number of its headers, or an error. */
static int compose(struct penstock_object_window *window, enum penstock_object_step step,
		   struct message *out)
{
	const char *path;
	int n = penstock_object_exchange(window, step, "/bucket/key", 77, &path, out->headers, 16);

	static const char *const paths[] = {"/.hipobj-rc/prepare", "/.hipobj-rc/ready",
					    "/.hipobj-rc/cancel"};

	if (n > 0)
		assert_string_equal(path, paths[step]);
	out->count = n < 0 ? 0 : (unsigned)n;
	return n;
}

/* Does what a server does for PREPARE, the first request of a transfer: opens a session and
 * composes the response. */
static int prepare(struct sides *s, const struct message *request, struct message *response,
		   struct penstock_object_remote **remote)
{
	const struct pst_hipobj_source source = {message_find, request};
	struct penstock_object_pairing pairing = PENSTOCK_OBJECT_PAIRING_INIT;
	struct pst_hipobj_prepare p;
	int ret = pst_hipobj_prepare_parse(&source, &p);

	if (ret)
		return ret;
	pairing.op = p.op;
	pairing.length = p.len;
	pairing.psn = p.psn;
	pairing.cookie = p.cookie;
	ret = penstock_object_prepare(s->server, p.token, strlen(p.token), NULL, &pairing, remote);
	if (ret)
		return ret;
	response->count = 0;
	put(response, "X-Amz-Rdma-Protocol", HIPOBJ);
	put(response, "X-Amz-Rdma-Reply", "200:%s", pairing.token);
	put(response, "X-Amz-Rdma-Session", SESSION);
	put(response, "X-Amz-Rdma-Psn", "%06x", pairing.server_psn);
	put(response, "X-Amz-Rdma-Qpn", "%x", pairing.qpn);
	if (pairing.address) {
		put(response, "X-Amz-Rdma-Mr-Addr", "%llx", (unsigned long long)pairing.address);
		put(response, "X-Amz-Rdma-Mr-Rkey", "%x", pairing.key);
	}
	return 0;
}

/* Passes the response to PREPARE (the request that opens a session) to the client. Returns the
 * client's next step. */
static enum penstock_object_next pair(struct penstock_object_window *window, int status,
				      const struct message *response,
				      struct penstock_object_verdict *verdict)
{
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;

	*verdict = (struct penstock_object_verdict)PENSTOCK_OBJECT_VERDICT_INIT;
	reply.status = status;
	reply.headers = response->headers;
	reply.header_count = response->count;
	if (penstock_object_paired(window, &reply, verdict))
		fail_msg("%s", penstock_errmsg());
	return verdict->next;
}

/* Does what a server does for READY, the request that starts the transfer of a session: moves all
 * bytes. Returns their number or an error. */
static int64_t ready(struct sides *s, struct penstock_object_remote *remote,
		     const struct message *request, enum penstock_op op,
		     const struct penstock_object_seg *segs, unsigned count)
{
	const struct pst_hipobj_source source = {message_find, request};
	struct penstock_object_done done;
	struct pst_hipobj_ready r;
	int ret = pst_hipobj_ready_parse(&source, &r);

	if (!ret)
		ret = penstock_object_ready(remote, r.qpn, r.address, r.key);
	if (!ret)
		ret = penstock_object_move(remote, op, 0, segs, count, 7);
	if (ret)
		return ret;
	assert_int_equal(penstock_object_wait(s->server, &done, 1, 20000), 1);
	return done.result;
}

/* Passes the response to READY (the request that starts a transfer) to the client. Returns the
 * client's next step. */
static enum penstock_object_next judge(const struct penstock_object_window *window, int status,
				       uint64_t bytes, const char *cookie,
				       struct penstock_object_verdict *verdict)
{
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct message m = {.count = 0};

	put(&m, "x-amz-rdma-protocol", HIPOBJ);
	put(&m, "x-amz-rdma-bytes-transferred", "%llu", (unsigned long long)bytes);
	put(&m, "x-amz-rdma-cookie", "%s", cookie);
	*verdict = (struct penstock_object_verdict)PENSTOCK_OBJECT_VERDICT_INIT;
	reply.status = status;
	reply.headers = m.headers;
	reply.header_count = m.count;
	assert_int_equal(penstock_object_judge(window, &reply, verdict), 0);
	return verdict->next;
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

/* Opens a session for a window, which is memory that the server may access. */
static struct penstock_object_remote *session_open(struct sides *s,
						   struct penstock_object_window *window)
{
	struct penstock_object_verdict verdict;
	struct penstock_object_remote *remote;
	struct message request, response;

	assert_true(compose(window, PENSTOCK_OBJECT_PREPARE, &request) > 0);
	if (prepare(s, &request, &response, &remote))
		fail_msg("%s", penstock_errmsg());
	if (pair(window, 200, &response, &verdict) != PENSTOCK_OBJECT_DONE)
		fail_msg("%s", verdict.text);
	return remote;
}

/* Moves bytes between a window and `mem`, whose bytes are in `count` segments. */
static void transfer(struct sides *s, struct penstock_object_window *window, enum penstock_op op,
		     const struct penstock_object_seg *segs, unsigned count, uint64_t len)
{
	struct penstock_object_remote *remote = session_open(s, window);
	struct penstock_object_remote_info info = {.size = sizeof(info)};
	struct penstock_object_verdict verdict;
	struct message request;

	assert_true(compose(window, PENSTOCK_OBJECT_READY, &request) > 0);
	assert_int_equal(penstock_object_remote_get_info(remote, &info), 0);
	assert_int_equal(info.length, len);
	assert_string_equal(info.transport, HIPOBJ);
	assert_int_equal(ready(s, remote, &request, op, segs, count), len);
	if (judge(window, 200, len, message_find(&request, "x-amz-rdma-cookie"), &verdict) !=
	    PENSTOCK_OBJECT_DONE)
		fail_msg("%s", verdict.text);
	assert_int_equal(verdict.bytes, len);
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(window), 0);
}

/* ---- transfers ---- */

static void moves_all_bytes(void **state)
{
	unsigned char *expected = malloc(BUFFER_LEN), *local = malloc(BUFFER_LEN);
	struct sides s = {.staging_max = 0};
	uint64_t seed = test_seed(1641);

	(void)state;
	assert_true(expected && local);
	open_sides(&s, false);
	pattern(s.at, BUFFER_LEN, 1);
	memcpy(expected, s.at, BUFFER_LEN);
	for (unsigned i = 0; i < TRANSFERS; i++) {
		enum penstock_op op = i % 2 ? PENSTOCK_READ : PENSTOCK_WRITE;
		uint64_t off = test_random(&seed) % BUFFER_LEN;
		uint64_t len = 1 + test_random(&seed) % (BUFFER_LEN - off);
		uint64_t cut = test_random(&seed) % len;
		struct penstock_object_seg segs[2] = {{.ptr = local, .len = cut},
						      {.ptr = local + cut, .len = len - cut}};

		pattern(local, BUFFER_LEN, i + 2);
		transfer(&s, window_open(&s, op, off, len), op, segs, 2, len);
		if (op == PENSTOCK_READ)
			memcpy(expected + off, local, len);
		else
			assert_memory_equal(local, expected + off, len);
		assert_memory_equal(s.at, expected, BUFFER_LEN);
	}
	/* The card has sent one message for each transfer. */
	assert_int_equal(fake_card.transfers, TRANSFERS);
	close_sides(&s);
	free(expected);
	free(local);
}

static void moves_memory_of_a_gpu(void **state)
{
	const char *standin = getenv("PENSTOCK_STANDIN");
	static unsigned char local[10000], back[10000];
	const struct penstock_object_seg seg = {.ptr = local, .len = sizeof(local)};
	const struct penstock_object_seg seg_back = {.ptr = back, .len = sizeof(back)};
	struct sides s = {.staging_max = 0};

	(void)state;
	if (standin && !strcmp(standin, "0"))
		test_skip("the fake card cannot access memory of a real GPU");
	open_sides(&s, true);
	pattern(local, sizeof(local), 5);
	transfer(&s, window_open(&s, PENSTOCK_READ, 77, sizeof(local)), PENSTOCK_READ, &seg, 1,
		 sizeof(local));
	transfer(&s, window_open(&s, PENSTOCK_WRITE, 77, sizeof(back)), PENSTOCK_WRITE, &seg_back,
		 1, sizeof(back));
	assert_memory_equal(local, back, sizeof(local));
	assert_int_equal(fake_card.dmabufs, 2);
	close_sides(&s);
}

/* A server may receive the bytes of a PUT with several calls of penstock_object_move. */
static void divides_a_put(void **state)
{
	static unsigned char local[10001];
	struct sides s = {.staging_max = 0};
	struct penstock_object_window *window;
	struct penstock_object_remote *remote;
	struct penstock_object_done done;

	(void)state;
	open_sides(&s, false);
	pattern(s.at, sizeof(local), 9);
	window = window_open(&s, PENSTOCK_WRITE, 0, sizeof(local));
	remote = session_open(&s, window);
	assert_int_equal(penstock_object_ready(remote, 0, 0, 0), 0);
	for (size_t at = 0; at < sizeof(local); at += 4000) {
		size_t n = sizeof(local) - at < 4000 ? sizeof(local) - at : 4000;
		struct penstock_object_seg seg = {.ptr = local + at, .len = n};

		assert_int_equal(penstock_object_move(remote, PENSTOCK_WRITE, at, &seg, 1, 0), 0);
		assert_int_equal(penstock_object_wait(s.server, &done, 1, 20000), 1);
		assert_int_equal(done.result, n);
	}
	assert_memory_equal(local, s.at, sizeof(local));
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* ---- what is refused ---- */

/* Opens a window of 4096 bytes with a session, and changes header `name` of the request READY to
 * `value`. Then does what a server does for READY. Returns the number of moved bytes or an
 * error. */
static int64_t ready_with(struct sides *s, enum penstock_op op, enum penstock_op server_op,
			  const char *name, const char *value)
{
	static unsigned char local[4096];
	const struct penstock_object_seg seg = {.ptr = local, .len = sizeof(local)};
	struct penstock_object_window *window = window_open(s, op, 0, sizeof(local));
	struct penstock_object_remote *remote = session_open(s, window);
	struct message request;
	int64_t ret;

	assert_true(compose(window, PENSTOCK_OBJECT_READY, &request) > 0);
	for (unsigned i = 0; i < request.count; i++)
		if (name && !strcmp(request.headers[i].name, name))
			request.headers[i].value = value;
	ret = ready(s, remote, &request, server_op, &seg, 1);
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(window), 0);
	return ret;
}

static void refuses_wrong_requests(void **state)
{
	struct sides s = {.staging_max = 0};
	const enum penstock_op get = PENSTOCK_READ, put_op = PENSTOCK_WRITE;

	(void)state;
	open_sides(&s, false);
	memset(s.at, 0x11, BUFFER_LEN);
	assert_int_equal(ready_with(&s, get, get, "x-amz-rdma-qpn", "7"), -EINVAL);
	assert_int_equal(ready_with(&s, get, get, "x-amz-rdma-mr-addr", "0"), -EINVAL);
	assert_int_equal(ready_with(&s, get, get, "x-amz-rdma-mr-addr", "ffffffffffffffff"),
			 -EINVAL);
	assert_int_equal(ready_with(&s, get, get, "x-amz-rdma-mr-addr", "zz"), -EBADMSG);
	assert_int_equal(ready_with(&s, get, put_op, NULL, NULL), -EINVAL);
	/* The client's card refuses an access with a wrong memory key. */
	assert_int_equal(ready_with(&s, get, get, "x-amz-rdma-mr-rkey", "1"), -EACCES);
	for (unsigned i = 0; i < BUFFER_LEN; i++)
		if (s.at[i] != 0x11)
			fail_msg("byte %u is %02x", i, s.at[i]);
	assert_int_equal(ready_with(&s, get, get, NULL, NULL), 4096);
	close_sides(&s);
}

/* A session has a cookie, a random number. A PUT must fail if the client's write has a different
 * cookie. */
static void refuses_another_cookie(void **state)
{
	static unsigned char local[4096];
	const struct penstock_object_seg seg = {.ptr = local, .len = sizeof(local)};
	struct sides s = {.staging_max = 0};
	struct penstock_object_verdict verdict;
	struct penstock_object_window *window;
	struct penstock_object_remote *remote;
	struct message request, response;

	(void)state;
	open_sides(&s, false);
	window = window_open(&s, PENSTOCK_WRITE, 0, sizeof(local));
	assert_true(compose(window, PENSTOCK_OBJECT_PREPARE, &request) > 0);
	for (unsigned i = 0; i < request.count; i++)
		if (!strcmp(request.headers[i].name, "x-amz-rdma-cookie"))
			request.headers[i].value = "00000000";
	assert_int_equal(prepare(&s, &request, &response, &remote), 0);
	assert_int_equal(pair(window, 200, &response, &verdict), PENSTOCK_OBJECT_DONE);
	assert_true(compose(window, PENSTOCK_OBJECT_READY, &request) > 0);
	assert_int_equal(ready(&s, remote, &request, PENSTOCK_WRITE, &seg, 1), -EACCES);
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* Through a session's queue pair, the server can access only the memory of that session's window,
 * even with the address and key of another window: each window has its own protection domain. */
static void reaches_no_other_window(void **state)
{
	static unsigned char local[4096];
	const struct penstock_object_seg seg = {.ptr = local, .len = sizeof(local)};
	struct sides s = {.staging_max = 0};
	struct penstock_object_window *one, *other;
	struct penstock_object_remote *remote;
	struct message request, foreign;
	struct pst_hipobj_ready r;
	const struct pst_hipobj_source source = {message_find, &foreign};

	(void)state;
	open_sides(&s, false);
	memset(s.at, 0x11, BUFFER_LEN);
	one = window_open(&s, PENSTOCK_READ, 0, sizeof(local));
	other = window_open(&s, PENSTOCK_READ, 1 << 20, sizeof(local));
	remote = session_open(&s, one);
	penstock_object_forget(session_open(&s, other));
	assert_true(compose(one, PENSTOCK_OBJECT_READY, &request) > 0);
	assert_true(compose(other, PENSTOCK_OBJECT_READY, &foreign) > 0);
	assert_int_equal(pst_hipobj_ready_parse(&source, &r), 0);
	/* Uses the queue pair of window `one` with the address and key of window `other`. */
	assert_int_equal(penstock_object_ready(remote, 0, r.address, r.key), 0);
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, &seg, 1, 0), 0);
	{
		struct penstock_object_done done;

		assert_int_equal(penstock_object_wait(s.server, &done, 1, 20000), 1);
		assert_int_equal(done.result, -EACCES);
	}
	assert_int_equal(s.at[1 << 20], 0x11);
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(one), 0);
	assert_int_equal(penstock_object_release(other), 0);
	close_sides(&s);
}

static void bounds_sessions(void **state)
{
	struct sides s = {.staging_max = 3 * 4096};
	struct penstock_object_window *windows[4], *longer;
	struct penstock_object_remote *remotes[4], *none = NULL;
	struct message request, response;

	(void)state;
	open_sides(&s, false);
	longer = window_open(&s, PENSTOCK_READ, 0, 3 * 4096 + 1);
	assert_true(compose(longer, PENSTOCK_OBJECT_PREPARE, &request) > 0);
	assert_int_equal(prepare(&s, &request, &response, &none), -EFBIG);
	for (unsigned i = 0; i < 4; i++)
		windows[i] = window_open(&s, PENSTOCK_READ, 0, 4096);
	for (unsigned i = 0; i < 3; i++)
		remotes[i] = session_open(&s, windows[i]);
	assert_true(compose(windows[3], PENSTOCK_OBJECT_PREPARE, &request) > 0);
	assert_int_equal(prepare(&s, &request, &response, &none), -EAGAIN);
	assert_null(none);
	/* The server allows three sessions here. After one has ended, it can open another one. */
	penstock_object_forget(remotes[1]);
	assert_int_equal(prepare(&s, &request, &response, &remotes[1]), 0);
	/* The test may free sessions after it has closed their server. */
	penstock_object_server_close(s.server);
	s.server = NULL;
	for (unsigned i = 0; i < 3; i++)
		penstock_object_forget(remotes[i]);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(penstock_object_release(windows[i]), 0);
	assert_int_equal(penstock_object_release(longer), 0);
	close_sides(&s);
}

static int prepare_token(struct sides *s, const char *token, const char *address, uint64_t length)
{
	struct penstock_object_pairing pairing = PENSTOCK_OBJECT_PAIRING_INIT;
	struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct penstock_object_remote *remote;
	int ret;

	peer.address = address;
	pairing.length = length;
	pairing.psn = 1;
	ret = penstock_object_prepare(s->server, token, strlen(token), &peer, &pairing, &remote);
	if (!ret)
		penstock_object_forget(remote);
	return ret;
}

static void refuses_tokens(void **state)
{
	/* Tokens of a queue pair at an address: HERE is the GID of 127.0.0.1, THERE the GID of
	 * 192.0.2.1. */
#define TOKEN(transport, gid)               \
	transport "12000000" gid "00000000" \
		  "0000000000000000"        \
		  "0000000000000000"        \
		  "01"                      \
		  "0000"
#define HERE "00000000000000000000ffff7f000001"
#define THERE "00000000000000000000ffffc0000201"
	static const char right[] = TOKEN("01", HERE), dynamic[] = TOKEN("00", HERE);
	static const char there[] = TOKEN("01", THERE);
	struct sides s = {.staging_max = 0};
	struct penstock_object_remote *remote;
	char longer[128];

	(void)state;
	open_sides(&s, false);
	assert_int_equal(prepare_token(&s, right, NULL, 1), 0);
	assert_int_equal(prepare_token(&s, right, "127.0.0.1", 1), 0);
	snprintf(longer, sizeof(longer), "%s:1000:10", right);
	assert_int_equal(prepare_token(&s, longer, NULL, 1), 0);
	assert_int_equal(prepare_token(&s, right, NULL, 0), -EBADMSG);
	assert_int_equal(prepare_token(&s, right, NULL, UINT64_C(1) << 31), -EFBIG);
	assert_int_equal(prepare_token(&s, right, "192.0.2.1", 1), -EOPNOTSUPP);
	assert_int_equal(prepare_token(&s, there, NULL, 1), -EOPNOTSUPP);
	assert_int_equal(prepare_token(&s, dynamic, NULL, 1), -EBADMSG);
	assert_int_equal(prepare_token(&s, "1:2:tcp1:127.0.0.1:1:" SESSION, NULL, 1), -EBADMSG);
	assert_int_equal(prepare_token(&s, "zz", NULL, 1), -EBADMSG);
	/* Without a PREPARE, the server must decline the token, because only PREPARE gives it the
	 * session's numbers that a transfer needs. */
	assert_int_equal(penstock_object_resolve(s.server, right, strlen(right), NULL, &remote),
			 -EOPNOTSUPP);
	assert_non_null(strstr(penstock_errmsg(), "/.hipobj-rc/prepare"));
	close_sides(&s);
}

/* ---- the client's decisions ---- */

static void decides_about_responses(void **state)
{
	static const struct {
		int status;
		const char *name, *value; /* header of the response that is changed */
		enum penstock_object_next next;
		int remember, open;
	} rows[] = {
		{200, NULL, NULL, PENSTOCK_OBJECT_DONE, 0, 1},
		{200, "X-Amz-Rdma-Protocol", "other", PENSTOCK_OBJECT_RESEND, 1, 0},
		{200, "X-Amz-Rdma-Session", "00", PENSTOCK_OBJECT_RESEND, 1, 0},
		{200, "X-Amz-Rdma-Psn", "000000", PENSTOCK_OBJECT_RESEND, 1, 0},
		{200, "X-Amz-Rdma-Psn", "1000000", PENSTOCK_OBJECT_RESEND, 1, 0},
		{200, "X-Amz-Rdma-Qpn", "1", PENSTOCK_OBJECT_RESEND, 1, 0},
		{200, "X-Amz-Rdma-Reply", "501", PENSTOCK_OBJECT_RESEND, 1, 0},
		{200, "X-Amz-Rdma-Mr-Rkey", "0", PENSTOCK_OBJECT_RESEND, 0, 1},
		{501, NULL, NULL, PENSTOCK_OBJECT_RESEND, 1, 0},
		{503, "X-Amz-Rdma-Protocol", "other", PENSTOCK_OBJECT_RESEND, 0, 0},
		{413, NULL, NULL, PENSTOCK_OBJECT_RESEND, 0, 0},
		{403, NULL, NULL, PENSTOCK_OBJECT_RESEND, 0, 0},
		{404, "X-Amz-Rdma-Protocol", "other", PENSTOCK_OBJECT_RESEND, 1, 0},
		{0, "X-Amz-Rdma-Protocol", "other", PENSTOCK_OBJECT_RESEND, 0, 0},
	};
	struct sides s = {.staging_max = 0};

	(void)state;
	open_sides(&s, false);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct penstock_object_window *window = window_open(&s, PENSTOCK_WRITE, 0, 99);
		struct penstock_object_verdict v;
		struct penstock_object_remote *remote;
		struct message request, response;
		int cancel;

		assert_true(compose(window, PENSTOCK_OBJECT_READY, &request) < 0);
		assert_true(compose(window, PENSTOCK_OBJECT_CANCEL, &request) < 0);
		assert_true(compose(window, PENSTOCK_OBJECT_PREPARE, &request) > 0);
		assert_int_equal(prepare(&s, &request, &response, &remote), 0);
		for (unsigned j = 0; j < response.count; j++)
			if (rows[i].name && !strcmp(response.headers[j].name, rows[i].name))
				response.headers[j].value = rows[i].value;
		pair(window, rows[i].status, &response, &v);
		cancel = compose(window, PENSTOCK_OBJECT_CANCEL, &request) > 0;
		if (v.next != rows[i].next || v.remember != rows[i].remember ||
		    cancel != rows[i].open)
			fail_msg("row %u: found %d %d %d '%s', expected %d %d %d", i, v.next,
				 v.remember, cancel, v.text, rows[i].next, rows[i].remember,
				 rows[i].open);
		assert_int_equal(compose(window, PENSTOCK_OBJECT_READY, &request) > 0,
				 rows[i].next == PENSTOCK_OBJECT_DONE);
		penstock_object_forget(remote);
		assert_int_equal(penstock_object_release(window), 0);
	}
	close_sides(&s);
}

/* The client must not trust a response that reports success: its card must also have received the
 * cookie of the session. */
static void believes_the_card(void **state)
{
	static unsigned char local[4096];
	const struct penstock_object_seg seg = {.ptr = local, .len = sizeof(local)};
	struct sides s = {.staging_max = 0};

	(void)state;
	open_sides(&s, false);
	for (unsigned i = 0; i < 6; i++) {
		struct penstock_object_window *window =
			window_open(&s, PENSTOCK_READ, 0, sizeof(local));
		struct penstock_object_remote *remote = session_open(&s, window);
		struct penstock_object_verdict v;
		struct message request;
		const char *cookie;
		enum penstock_object_next expected = i == 0   ? PENSTOCK_OBJECT_DONE
						     : i == 4 ? PENSTOCK_OBJECT_ERROR
							      : PENSTOCK_OBJECT_RESEND;

		fake_card_lock();
		fake_card.silent = i == 1;
		fake_card_unlock();
		assert_true(compose(window, PENSTOCK_OBJECT_READY, &request) > 0);
		cookie = message_find(&request, "x-amz-rdma-cookie");
		assert_int_equal(ready(&s, remote, &request, PENSTOCK_READ, &seg, 1), 4096);
		judge(window,
		      i == 3   ? 500
		      : i == 4 ? 412
			       : 200,
		      i == 5 ? 4095 : 4096, i == 2 ? "00000000" : cookie, &v);
		if (v.next != expected)
			fail_msg("row %u: found %d '%s', expected %d", i, v.next, v.text, expected);
		penstock_object_forget(remote);
		assert_int_equal(penstock_object_release(window), 0);
	}
	close_sides(&s);
}

/* If the client never writes the bytes of a PUT, the server's transfer must end at its time
 * limit. */
static void waits_no_longer_than_its_limit(void **state)
{
	static unsigned char local[4096];
	const struct penstock_object_seg seg = {.ptr = local, .len = sizeof(local)};
	struct sides s = {.staging_max = 0};
	struct penstock_object_window *window;
	struct penstock_object_remote *remote;
	struct message request, response;
	struct penstock_object_done done;

	(void)state;
	open_sides(&s, false);
	window = window_open(&s, PENSTOCK_WRITE, 0, sizeof(local));
	assert_true(compose(window, PENSTOCK_OBJECT_PREPARE, &request) > 0);
	assert_int_equal(prepare(&s, &request, &response, &remote), 0);
	assert_int_equal(penstock_object_ready(remote, 0, 0, 0), 0);
	assert_int_equal(penstock_object_move(remote, PENSTOCK_WRITE, 0, &seg, 1, 0), 0);
	assert_int_equal(penstock_object_wait(s.server, &done, 1, 20000), 1);
	assert_int_equal(done.result, -ETIMEDOUT);
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* The card reports all bytes of a session at once, so the time without a report may be as long as a
 * slow network needs for the whole session. The move of one piece of the session has this time,
 * too. */
static void waits_for_a_slow_network(void **state)
{
	static unsigned char local[BUFFER_LEN];
	const struct penstock_object_seg segs[] = {{.ptr = local, .len = 4096},
						   {.ptr = local + 4096, .len = BUFFER_LEN - 4096}};
	struct sides s = {.staging_max = 0, .rate_min = 1u << 30};
	struct penstock_object_verdict verdict;
	struct penstock_object_window *window;
	struct penstock_object_remote *remote;
	struct message request, response;
	struct penstock_object_done done;
	int count;

	(void)state;
	open_sides(&s, false);
	pattern(s.at, BUFFER_LEN, 5);
	window = window_open(&s, PENSTOCK_WRITE, 0, BUFFER_LEN);
	assert_true(compose(window, PENSTOCK_OBJECT_PREPARE, &request) > 0);
	assert_int_equal(prepare(&s, &request, &response, &remote), 0);
	assert_int_equal(penstock_object_ready(remote, 0, 0, 0), 0);
	assert_int_equal(penstock_object_move(remote, PENSTOCK_WRITE, 0, segs, 1, 0), 0);
	/* Longer than timeout_ms of the server. */
	count = penstock_object_wait(s.server, &done, 1, TIMEOUT_MS + 50);
	if (count)
		fail_msg("the move ended early: %lld %s", (long long)done.result, done.text);
	assert_int_equal(pair(window, 200, &response, &verdict), PENSTOCK_OBJECT_DONE);
	assert_int_equal(penstock_object_wait(s.server, &done, 1, 20000), 1);
	assert_int_equal(done.result, 4096);
	assert_int_equal(penstock_object_move(remote, PENSTOCK_WRITE, 4096, segs + 1, 1, 0), 0);
	assert_int_equal(penstock_object_wait(s.server, &done, 1, 20000), 1);
	assert_int_equal(done.result, BUFFER_LEN - 4096);
	assert_memory_equal(local, s.at, BUFFER_LEN);
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides(&s);
}

/* After the client has released a window, no byte from the server may arrive in the window's
 * memory. */
static void fences_a_late_server(void **state)
{
	static unsigned char local[4096];
	const struct penstock_object_seg seg = {.ptr = local, .len = sizeof(local)};
	struct sides s = {.staging_max = 0};
	struct penstock_object_window *window;
	struct penstock_object_remote *remote;
	struct message request;
	int64_t ret;

	(void)state;
	open_sides(&s, false);
	memset(s.at, 0x11, 4096);
	window = window_open(&s, PENSTOCK_READ, 0, sizeof(local));
	remote = session_open(&s, window);
	assert_true(compose(window, PENSTOCK_OBJECT_READY, &request) > 0);
	/* Copies the headers' values, which are valid only until the release of the window. */
	for (unsigned i = 0; i < request.count; i++) {
		snprintf(request.texts[i], sizeof(request.texts[i]), "%s",
			 request.headers[i].value);
		request.headers[i].value = request.texts[i];
	}
	assert_int_equal(penstock_object_release(window), 0);
	ret = ready(&s, remote, &request, PENSTOCK_READ, &seg, 1);
	assert_int_equal(ret, -ECONNRESET);
	assert_int_equal(s.at[0], 0x11);
	penstock_object_forget(remote);
	/* If the card cannot destroy a queue pair, the release fails, and the buffer stays
	 * allocated. */
	window = window_open(&s, PENSTOCK_READ, 0, sizeof(local));
	fake_card_lock();
	fake_card.destroy_fail = 1;
	fake_card_unlock();
	assert_int_equal(penstock_object_release(window), -ETIMEDOUT);
	assert_int_equal(penstock_object_unregister(s.buffer), 0);
	penstock_object_client_close(s.client);
	penstock_object_server_close(s.server);
	/* penstock_object_client_close has destroyed the queue pair. */
	assert_int_equal(fake_card.live, 0);
}

/* ---- failures ---- */

/* Runs a whole transfer, during which one call of the card may fail. Returns whether the transfer
 * succeeded. */
static bool transfer_with_failure(struct sides *s, enum penstock_op op)
{
	static unsigned char local[4096];
	const struct penstock_object_seg seg = {.ptr = local, .len = sizeof(local)};
	struct penstock_object_remote *remote = NULL;
	struct penstock_object_window *window;
	struct penstock_object_verdict v;
	struct message request, response;
	bool well = false;

	if (penstock_object_window_open(s->buffer, op, 0, sizeof(local), &window))
		return false;
	assert_true(compose(window, PENSTOCK_OBJECT_PREPARE, &request) > 0);
	if (!prepare(s, &request, &response, &remote) &&
	    pair(window, 200, &response, &v) == PENSTOCK_OBJECT_DONE) {
		assert_true(compose(window, PENSTOCK_OBJECT_READY, &request) > 0);
		if (ready(s, remote, &request, op, &seg, 1) == 4096)
			well = judge(window, 200, 4096, message_find(&request, "x-amz-rdma-cookie"),
				     &v) == PENSTOCK_OBJECT_DONE;
	}
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(window), 0);
	return well;
}

static void survives_the_failure_of_each_call(void **state)
{
	unsigned failed = 0;

	(void)state;
	for (unsigned at = 1; at < 100; at++) {
		struct sides s = {.staging_max = 0};
		unsigned calls;

		open_sides(&s, false);
		fake_card_lock();
		calls = fake_card.calls;
		fake_card.fail_at = calls + at;
		fake_card_unlock();
		if (!transfer_with_failure(&s, at % 2 ? PENSTOCK_READ : PENSTOCK_WRITE))
			failed++;
		calls = fake_card.calls - calls;
		/* After the failure, transfers must succeed again. */
		fake_card_lock();
		fake_card.fail_at = 0;
		fake_card_unlock();
		assert_true(transfer_with_failure(&s, PENSTOCK_READ));
		assert_true(transfer_with_failure(&s, PENSTOCK_WRITE));
		close_sides(&s);
		if (calls + 2 < at)
			break;
		assert_true(at < 99);
	}
	printf("# %u calls failed a transfer\n", failed);
	assert_true(failed > 15);
}

static void client_names_the_reason(void **state)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_client *client = NULL;

	(void)state;
	fake_card_reset();
	opts.transports = HIPOBJ;
	assert_int_equal(penstock_object_client_open(&opts, &client), -EINVAL);
	opts.address = "192.0.2.9";
	assert_int_equal(penstock_object_client_open(&opts, &client), -ENODEV);
	assert_non_null(strstr(penstock_errmsg(), "192.0.2.9"));
	opts.address = "127.0.0.1";
	opts.require_encryption = 1;
	assert_int_equal(penstock_object_client_open(&opts, &client), -EOPNOTSUPP);
	/* A client without opts.transports does not open hipobj-rc-v2. */
	opts = (struct penstock_object_client_opts)PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	assert_int_equal(penstock_object_client_open(&opts, &client), 0);
	penstock_object_client_close(client);
	assert_int_equal(fake_card.live, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(moves_all_bytes),
		cmocka_unit_test(moves_memory_of_a_gpu),
		cmocka_unit_test(divides_a_put),
		cmocka_unit_test(refuses_wrong_requests),
		cmocka_unit_test(refuses_another_cookie),
		cmocka_unit_test(reaches_no_other_window),
		cmocka_unit_test(bounds_sessions),
		cmocka_unit_test(refuses_tokens),
		cmocka_unit_test(decides_about_responses),
		cmocka_unit_test(believes_the_card),
		cmocka_unit_test(waits_no_longer_than_its_limit),
		cmocka_unit_test(waits_for_a_slow_network),
		cmocka_unit_test(fences_a_late_server),
		cmocka_unit_test(survives_the_failure_of_each_call),
		cmocka_unit_test(client_names_the_reason),
	};

	test_use_standin();
	setenv("PENSTOCK_STANDIN_DMABUF", "1", 1);
	return cmocka_run_group_tests_name("hipobj", tests, NULL, NULL);
}
