/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests clients of S3 over RDMA with several network cards: for which card a client registers a
 * window (memory that the server may access), depending on distance, link and failures, and which
 * tokens a server then accepts. Two addresses of the loopback stand for two cards; with transport
 * rc1, both are fake cards (fake_card.h). The linker replaces the functions of core/machine/nic.c,
 * so that the test decides where the cards are.
 */
#include "test.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/machine/nic.h"
#include "core/machine/sysfs.h"
#include "fake_card.h"
#include "penstock_object.h"
#include "s3/token.h"

#define LEN (1u << 20)
#define A "127.0.0.1"
#define B "127.0.0.2"

/* distances of the two cards from host memory and from the GPU */
static unsigned far_host[2], far_gpu[2];
static bool down[2];

static unsigned number(const struct pst_wire_nic *nic)
{
	return !strcmp(nic->address, B);
}

void __wrap_pst_nic_find(const char *address, struct pst_wire_nic *out);
void __wrap_pst_nic_find(const char *address, struct pst_wire_nic *out)
{
	memset(out, 0, sizeof(*out));
	snprintf(out->address, sizeof(out->address), "%s", address);
}

unsigned __wrap_pst_nic_distance(const struct pst_wire_nic *nic, struct penstock_device *dev,
				 const void *ptr);
unsigned __wrap_pst_nic_distance(const struct pst_wire_nic *nic, struct penstock_device *dev,
				 const void *ptr)
{
	assert_non_null(ptr);
	return dev ? far_gpu[number(nic)] : far_host[number(nic)];
}

bool __real_pst_nic_is_up(struct pst_wire_nic *nic);
bool __wrap_pst_nic_is_up(struct pst_wire_nic *nic);
bool __wrap_pst_nic_is_up(struct pst_wire_nic *nic)
{
	return !down[number(nic)];
}

static unsigned sysfs_opens;
int __real_pst_sysfs_open(struct pst_sysfs *fs, const char *root);
int __wrap_pst_sysfs_open(struct pst_sysfs *fs, const char *root);
int __wrap_pst_sysfs_open(struct pst_sysfs *fs, const char *root)
{
	sysfs_opens++;
	return __real_pst_sysfs_open(fs, root);
}

static struct penstock_object_client *client;
static struct penstock_object_server *server;
static struct penstock_object_buffer *buffer;

static void open_sides(const char *transport, struct penstock_device *dev)
{
	struct penstock_object_client_opts c = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_server_opts s = PENSTOCK_OBJECT_SERVER_OPTS_INIT;

	fake_card_reset();
	memset(far_host, 0, sizeof(far_host));
	memset(far_gpu, 0, sizeof(far_gpu));
	memset(down, 0, sizeof(down));
	c.transports = transport;
	c.address = A "," B;
	s.channels = 1;
	s.timeout_ms = 2000;
	if (penstock_object_client_open(&c, &client) || penstock_object_server_open(&s, &server) ||
	    penstock_object_alloc(client, dev, LEN, &buffer))
		fail_msg("%s", penstock_errmsg());
}

static void close_sides(void)
{
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(client);
	penstock_object_server_close(server);
	assert_int_equal(fake_card.live, 0);
}

/* Opens a window. Fails unless the client has chosen the card with this address. Also fails unless
 * the reason that the client gives contains `why`. */
static struct penstock_object_window *window_at(const char *address, const char *why)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_window *window;

	if (penstock_object_window_open(buffer, PENSTOCK_READ, 0, LEN, &window))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.address, address);
	if (!strstr(info.why, why) || !*info.why != !*why)
		fail_msg("why: got '%s', wanted '%s'", info.why, why);
	/* The token must name the same address. */
	assert_non_null(strstr(info.token, address));
	return window;
}

/* Does what a server does for a GET: moves bytes into the window, after a request that came from
 * address `from`. Returns the number of bytes or an error. */
static int64_t move(struct penstock_object_window *window, const char *from)
{
	static unsigned char bytes[LEN];
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct penstock_object_seg seg = {.ptr = bytes, .len = LEN};
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	int ret;

	memset(bytes, 7, LEN);
	penstock_object_window_get_info(window, &info);
	peer.address = from;
	ret = penstock_object_resolve(server, info.token, strlen(info.token), &peer, &remote);
	if (ret)
		return ret;
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, &seg, 1, 0), 0);
	assert_int_equal(penstock_object_wait(server, &done, 1, -1), 1);
	penstock_object_forget(remote);
	return done.result;
}

/* Passes to the client a response of a server that has moved the bytes (`moved`), or has declined
 * the token. */
static void judge(struct penstock_object_window *window, bool moved, char *text)
{
	struct penstock_object_verdict verdict = PENSTOCK_OBJECT_VERDICT_INIT;
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct penstock_object_header headers[2] = {
		{"x-amz-rdma-reply", moved ? "200" : "501"},
		{"x-amz-rdma-bytes-transferred", "1048576"},
	};

	reply.status = 200;
	reply.headers = headers;
	reply.header_count = moved ? 2 : 1;
	assert_int_equal(penstock_object_judge(window, &reply, &verdict), 0);
	assert_int_equal(verdict.next, moved ? PENSTOCK_OBJECT_DONE : PENSTOCK_OBJECT_BODY);
	snprintf(text, PENSTOCK_TEXT_MAX, "%s", verdict.text);
}

static void choose(const char *transport)
{
	struct penstock_object_window *window;
	char text[PENSTOCK_TEXT_MAX];

	open_sides(transport, NULL);
	/* If both cards are equally near, the client uses the first card of the list. */
	assert_int_equal(penstock_object_release(window_at(A, "")), 0);
	/* The client uses the card that is nearer to the window's memory. */
	far_host[0] = 2;
	window = window_at(B, "");
	assert_int_equal(move(window, B), LEN);
	assert_int_equal(((unsigned char *)penstock_object_ptr(buffer))[LEN - 1], 7);
	judge(window, true, text);
	assert_int_equal(penstock_object_release(window), 0);
	/* The nearer card has no link, so the client uses the other card. */
	down[1] = true;
	window = window_at(A, B " is nearer, but has no link");
	assert_int_equal(move(window, A), LEN);
	assert_int_equal(penstock_object_release(window), 0);
	/* If no card has a link, the client uses the nearer card. */
	down[0] = true;
	assert_int_equal(penstock_object_release(window_at(B, "")), 0);
	down[0] = down[1] = false;
	/* The server has declined a token with the nearer card. So for the next window, the client
	 * uses the other card. */
	window = window_at(B, "");
	judge(window, false, text);
	assert_non_null(strstr(text, "prefer other cards than that of " B));
	assert_int_equal(penstock_object_release(window), 0);
	window = window_at(A, B " is nearer, but a transfer has just failed there");
	assert_int_equal(move(window, A), LEN);
	/* The server has declined tokens with both cards. So for the next window, the client uses
	 * the nearer card again. */
	judge(window, false, text);
	assert_int_equal(penstock_object_release(window), 0);
	window = window_at(B, "");
	/* The transfers of both cards keep failing. The card whose failure is the oldest is used,
	 * so that both cards are tried in turn. */
	judge(window, false, text);
	assert_int_equal(penstock_object_release(window), 0);
	window = window_at(A, B " is nearer, but a transfer has just failed there");
	judge(window, false, text);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_release(window_at(B, "")), 0);
	close_sides();
}

static void chosen_tcp1(void **state)
{
	(void)state;
	choose("tcp1");
}

static void chosen_rc1(void **state)
{
	(void)state;
	choose("rc1");
}

/* For a window in memory of a GPU, the client must use the card that is nearest to the GPU. The
 * distances from a GPU differ from the distances from host memory. */
static void gpu(void **state)
{
	struct penstock_device *dev;

	(void)state;
	if (penstock_device_open("cuda:0", NULL, &dev) < 0)
		fail_msg("%s", penstock_errmsg());
	open_sides("rc1", dev);
	far_host[1] = far_gpu[0] = 5;
	assert_int_equal(penstock_object_release(window_at(B, "")), 0);
	close_sides();
	open_sides("rc1", NULL);
	far_host[1] = far_gpu[0] = 5;
	assert_int_equal(penstock_object_release(window_at(A, "")), 0);
	close_sides();
	penstock_device_close(dev);
}

/* If a card cannot register the memory of a window, the client must use the other card. If the
 * server cannot reach the card in the token, the transfer fails. */
static void failures(void **state)
{
	struct penstock_object_window *window;

	(void)state;
	open_sides("rc1", NULL);
	fake_card_lock();
	fake_card.fail_at = fake_card.calls + 1;
	fake_card_unlock();
	assert_int_equal(penstock_object_release(window_at(B, A ": ")), 0);
	window = window_at(A, "");
	fake_card_lock();
	fake_card.lost = 1; /* no server can reach the card whose address ends with 1 */
	fake_card_unlock();
	assert_int_equal(move(window, A), -EOPNOTSUPP);
	assert_int_equal(penstock_object_release(window), 0);
	far_host[0] = 9;
	window = window_at(B, "");
	assert_int_equal(move(window, B), LEN);
	assert_int_equal(penstock_object_release(window), 0);
	close_sides();
}

/* Tests lists of addresses that the option `address` must accept or refuse. */
static void lists(void **state)
{
	static const struct {
		const char *list;
		int result;
	} tries[] = {
		{A "," B, 0},
		{A ",203.0.113.1", 0}, /* the second address cannot be bound */
		{"203.0.113.1,203.0.113.2", -EADDRNOTAVAIL},
		{A ",nonsense", -EINVAL},
		{A ",", 0},
		{"," A, -EINVAL},
		{A "," A "," A "," A "," A "," A "," A "," A, 0},
		{A "," A "," A "," A "," A "," A "," A "," A "," A, -EINVAL},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
		struct penstock_object_client *c = NULL;

		opts.transports = "shm1,tcp1";
		opts.address = tries[i].list;
		printf("# %s\n", tries[i].list);
		assert_int_equal(penstock_object_client_open(&opts, &c), tries[i].result);
		penstock_object_client_close(c);
	}
}

/* A token may name the address of its sender, or one in the networks of the server's option
 * `networks`. */
static void networks(void **state)
{
	static const struct {
		const char *networks, *named, *from;
		int result;
	} tries[] = {
		{NULL, "10.1.2.3", "10.1.2.3", 0},
		{NULL, "10.1.2.3", "10.1.2.4", -EOPNOTSUPP},
		{NULL, B, A, 0}, /* all loopback addresses count as one host */
		{NULL, B, "10.1.2.3", -EOPNOTSUPP},
		{"10.1.0.0/16", "10.1.2.3", "10.9.9.9", 0},
		{"10.1.0.0/16", "10.2.2.3", "10.9.9.9", -EOPNOTSUPP},
		{"10.1.2.2/31", "10.1.2.3", "10.9.9.9", 0},
		{"10.1.2.2/32", "10.1.2.3", "10.9.9.9", -EOPNOTSUPP},
		{"fd00::/8,10.1.0.0/17", "10.1.127.3", "10.9.9.9", 0},
		{"fd00::/8,10.1.0.0/17", "10.1.128.3", "10.9.9.9", -EOPNOTSUPP},
		{"0.0.0.0/0", "192.0.2.7", "10.9.9.9", 0},
		{"0.0.0.0/0", "fd00::1", "10.9.9.9", -EOPNOTSUPP},
	};
	static const char *const wrong[] = {"10.1.0.0",	     "10.1.0.0/",   "10.1.0.0/33",
					    "x/8",	     "10.1.0.0/1x", "fd00::/129",
					    "10.1.0.0/0000", ",",	    "/8"};
	struct penstock_object_server *s;

	(void)state;
	for (unsigned i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
		struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
		struct pst_token token = {.kind = PST_TOKEN_TCP1, .base = 4096, .size = 4096};
		struct penstock_object_remote *remote = NULL;
		char text[PST_TOKEN_MAX + 1];

		token.tcp.at.port = 1;
		token.tcp.at.v6 = strchr(tries[i].named, ':') != NULL;
		snprintf(token.tcp.at.address, sizeof(token.tcp.at.address), "%s", tries[i].named);
		assert_true(pst_token_print(&token, text) > 0);
		opts.networks = tries[i].networks;
		peer.address = tries[i].from;
		assert_int_equal(penstock_object_server_open(&opts, &s), 0);
		printf("# %s by %s\n", tries[i].named, tries[i].from);
		assert_int_equal(penstock_object_resolve(s, text, strlen(text), &peer, &remote),
				 tries[i].result);
		penstock_object_forget(remote);
		penstock_object_server_close(s);
	}
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;

		opts.networks = wrong[i];
		printf("# %s\n", wrong[i]);
		assert_int_equal(penstock_object_server_open(&opts, &s), -EINVAL);
	}
}

/* Reading the state of a link takes longer than opening a window on the card. So the state is read
 * again only after some time. */
static void link_state(void **state)
{
	struct pst_wire_nic nic = {.name = "lo"};

	(void)state;
	sysfs_opens = 0;
	for (unsigned i = 0; i < 3; i++)
		assert_true(__real_pst_nic_is_up(&nic));
	printf("# reads of the link's state: %u\n", sysfs_opens);
	assert_int_equal(sysfs_opens, 1);
	atomic_store(&nic.known_ms, 1);
	assert_true(__real_pst_nic_is_up(&nic));
	assert_int_equal(sysfs_opens, 2);
	/* The state of the link is that of the last read. */
	atomic_store(&nic.is_down, true);
	assert_false(__real_pst_nic_is_up(&nic));
	assert_int_equal(sysfs_opens, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chosen_tcp1), cmocka_unit_test(chosen_rc1),
		cmocka_unit_test(gpu),	       cmocka_unit_test(failures),
		cmocka_unit_test(lists),       cmocka_unit_test(networks),
		cmocka_unit_test(link_state),
	};

	test_use_standin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
