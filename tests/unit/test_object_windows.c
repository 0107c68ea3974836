/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests when the client of S3 over RDMA stops sending tokens, which let a server access the
 * client's memory. It stops for the rest of the process after the server has ignored a token, and
 * for a minute after the server has declined many tokens in a row. Responses to tokens for device
 * memory do not make it stop. The test includes the source. It sets the time at which a pause ends,
 * so that it need not wait.
 */
#include "test.h"

#include <sys/socket.h>

#include "core/machine/nic.h"
#include "io/http_endpoint.h"
#include "s3/token.h"
#include "wire/client.h"
#include "wire/transport.h"

/* Replaces bind(2) in object_window.c. If `is_far` is true, the address of the server is none of
 * this host. */
static bool is_far;
static int server_bind(int fd, const struct sockaddr *address, socklen_t len);
#define bind server_bind
/* Replace two functions of src/wire that object_window.c calls. */
static int wire_released(struct pst_wire_grant *grant, struct pst_err *err);
static bool cut(const struct pst_wire_buffer *buffer);
#define pst_wire_release wire_released
#define pst_wire_buffer_is_cut cut
#include "../../src/storage/object_window.c"
#undef pst_wire_release
#undef pst_wire_buffer_is_cut
#undef bind

#define LEN 64u

static const struct pst_wire_client_ops transport;
static struct pst_wire_client wire_client; /* a client without network cards */
static struct pst_wire_buffer wire_buffer = {.client = &wire_client};
static struct pst_wire_grant inner = {.ops = &transport, .buffer = &wire_buffer};
static int no_sum(struct penstock_device *dev, enum pst_sum_kind kind, struct pst_sum *list,
		  unsigned count, bool unless_waiting, struct pst_err *err)
{
	(void)dev, (void)kind, (void)list, (void)count, (void)unless_waiting;
	return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "not called");
}

/* Functions of a device that computes checksums, and of one that does not. */
static const struct pst_device_ops sums = {.sum = no_sum}, no_sums;
static struct penstock_device device = {.name = "test:0", .serial = 7};
static struct pst_window host_window, device_window = {.dev = &device};

/* Fills in the response to a GET whose header x-amz-rdma-reply is `reply`. */
static void answer_fill(struct pst_object_call *call, const char *reply)
{
	struct pst_http_head *head = &call->http.head;

	inner.op = PENSTOCK_READ;
	inner.len = LEN;
	*head = (struct pst_http_head){.status = 206,
				       .has_length = true,
				       .length = strcmp(reply, "206") ? LEN : 0,
				       .has_range = true,
				       .range_last = LEN - 1};
	snprintf(head->rdma_reply, sizeof(head->rdma_reply), "%s", reply);
	if (!head->length)
		snprintf(head->rdma_bytes, sizeof(head->rdma_bytes), "%u", LEN);
}

/* Lets the client judge a response to a GET that was sent with the window `to`. `reply` is the
 * response's header x-amz-rdma-reply. Returns the next step of the request. */
static enum penstock_object_next answer_to(struct pst_object_windows *windows,
					   struct pst_window *to, const char *reply,
					   const char *checksum)
{
	struct pst_object_grant grant = {.windows = windows,
					 .window = to,
					 .inner = &inner,
					 .op = PENSTOCK_READ,
					 .len = LEN,
					 .verdict = PENSTOCK_OBJECT_VERDICT_INIT};
	struct pst_object_call call = {.method = "GET", .ranged = true, .last = LEN - 1};

	answer_fill(&call, reply);
	snprintf(call.http.head.rdma_checksum, sizeof(call.http.head.rdma_checksum), "%s",
		 checksum);
	return pst_object_grant_judge(&grant, &call, NULL);
}

/* Does the same as answer_to, with a window in host memory. */
static enum penstock_object_next answer(struct pst_object_windows *windows, const char *reply)
{
	return answer_to(windows, &host_window, reply, "");
}

static void expect_shut(struct pst_object_windows *windows, enum penstock_why why)
{
	struct pst_err err = {0};
	int ret = pst_object_windows_check(windows, &err);

	print_message("# check %d, reason %d \"%s\"\n", ret, (int)err.why, err.text);
	assert_int_equal(ret, why ? -EOPNOTSUPP : 0);
	assert_int_equal(atomic_load(&windows->shut), why);
	assert_int_equal(err.why, why);
}

static void declines(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct pst_object_windows windows = {.endpoint = &endpoint};

	(void)state;
	/* Each decline (501) is counted. A response that used the token (206) resets the count, so
	 * the client still sends tokens. */
	for (unsigned i = 1; i < 2 * DECLINES_MAX; i++)
		assert_int_equal(answer(&windows, i == DECLINES_MAX ? "206" : "501"),
				 i == DECLINES_MAX ? PENSTOCK_OBJECT_DONE : PENSTOCK_OBJECT_BODY);
	expect_shut(&windows, PENSTOCK_WHY_NONE);
	/* A response to a GET does not count as an answer here, because pst_object_windows_answered
	 * only concerns PUT requests. */
	assert_false(pst_object_windows_answered(&windows));
	answer(&windows, "501");
	expect_shut(&windows, PENSTOCK_WHY_DECLINED);
	assert_true(pst_object_windows_decline(&windows));
	assert_true(windows.again_ns > pst_now_ns() + PAUSE_NS / 2);
	windows.again_ns = pst_now_ns() - 1;
	expect_shut(&windows, PENSTOCK_WHY_NONE);
	assert_false(pst_object_windows_decline(&windows));
}

static void ignored(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct pst_object_windows windows = {.endpoint = &endpoint};

	(void)state;
	assert_int_equal(answer(&windows, ""), PENSTOCK_OBJECT_BODY);
	expect_shut(&windows, PENSTOCK_WHY_NO_WINDOW);
	assert_int_equal(windows.again_ns, 0);
}

static unsigned releases;
/* whether a response had already shown at the last release that servers have ended all transfers */
static bool settled;

static int wire_released(struct pst_wire_grant *grant, struct pst_err *err)
{
	if (grant != &inner)
		return pst_wire_release(grant, err);
	releases++;
	settled = atomic_load(&grant->settled);
	return 0;
}

static bool cut(const struct pst_wire_buffer *buffer)
{
	(void)buffer;
	return false;
}

/* A response shows the end of one transfer. If the client had to repeat a request, the lost attempt
 * may have begun another transfer. So the release must then ensure that no server can still write
 * to the window. */
static void lost_attempt(void **state)
{
	static const struct {
		const char *reply;
		unsigned attempts;
		bool settled;
	} rows[] = {{"206", 1, true}, {"206", 2, false}, {"501", 1, false}};

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct pst_http_endpoint endpoint = {.host = "test"};
		struct pst_object_windows windows = {.endpoint = &endpoint};
		struct object_window window = {.buffer = NULL};
		struct pst_object_grant grant = {.windows = &windows,
						 .window = &window.window,
						 .inner = &inner,
						 .op = PENSTOCK_READ,
						 .len = LEN,
						 .verdict = PENSTOCK_OBJECT_VERDICT_INIT};
		struct pst_object_call call = {.method = "GET", .ranged = true, .last = LEN - 1};

		answer_fill(&call, rows[i].reply);
		call.http.attempts = rows[i].attempts;
		pst_object_grant_judge(&grant, &call, NULL);
		releases = 0;
		pst_object_grant_wait(&grant);
		print_message("# reply %s after %u attempts: settled %d, expected %d\n",
			      rows[i].reply, rows[i].attempts, settled, rows[i].settled);
		assert_int_equal(releases, 1);
		assert_int_equal(settled, rows[i].settled);
	}
}

/* After many declines, the client pauses: it sends no tokens for a while. A storage that is opened
 * during the pause can send tokens when the pause is over. If the client never sends tokens to the
 * server again, such a storage gets no windows at all. */
static void opened_in_a_pause(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct hub hub = {.client = NULL};
	struct pst_object_windows *windows;
	struct pst_err err = {0};

	(void)state;
	pthread_mutex_lock(&lock);
	windows = windows_find(&endpoint, &hub, &err);
	pthread_mutex_unlock(&lock);
	assert_non_null(windows);
	for (unsigned i = 0; i < DECLINES_MAX; i++)
		answer(windows, "501");
	expect_shut(windows, PENSTOCK_WHY_DECLINED);
	assert_ptr_equal(windows_find(&endpoint, &hub, &err), windows);
	expect_shut(windows, PENSTOCK_WHY_DECLINED);
	windows->again_ns = pst_now_ns() - 1;
	expect_shut(windows, PENSTOCK_WHY_NONE);
	answer(windows, "");
	assert_null(windows_find(&endpoint, &hub, &err));
	print_message("# for good: %s\n", err.text);
	assert_int_equal(err.why, PENSTOCK_WHY_NO_WINDOW);
	all = windows->next;
	free(windows);
}

/* If a server does not serve a window in device memory, the bytes must move without this window,
 * whatever the reason is. */
static void device_windows(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct pst_object_windows windows = {.endpoint = &endpoint};

	(void)state;
	assert_int_equal(answer_to(&windows, &device_window, "206", ""), PENSTOCK_OBJECT_DONE);
	device.ops = &sums;
	assert_int_equal(answer_to(&windows, &device_window, "206", "CRC64NVME AAAAAAAAAAA="),
			 PENSTOCK_OBJECT_DONE);
	device.ops = &no_sums;
	assert_int_equal(answer_to(&windows, &device_window, "206", "CRC64NVME AAAAAAAAAAA="),
			 PENSTOCK_OBJECT_RESEND);
	for (unsigned i = 0; i < 2 * DECLINES_MAX; i++)
		assert_int_equal(answer_to(&windows, &device_window, i & 1 ? "501" : "", ""),
				 PENSTOCK_OBJECT_RESEND);
	expect_shut(&windows, PENSTOCK_WHY_NONE);
	assert_false(pst_object_windows_decline(&windows));
}

static void reached_devices(void **state)
{
	struct pst_http_endpoint endpoint = {.host = "test"};
	struct pst_object_windows windows = {.endpoint = &endpoint};
	struct penstock_device other = {.name = "test:1", .serial = 8};
	struct pst_err why, found;

	(void)state;
	pst_fail(&why, PENSTOCK_WHY_DECLINED, "no");
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), -EAGAIN);
	pst_object_windows_tested(&windows, &device, &why);
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), 0);
	assert_string_equal(found.text, "no");
	assert_int_equal(pst_object_windows_reach(&windows, &other, &found), -EAGAIN);
	/* After a minute, a new test transfer must show whether the server can access the device's
	 * memory. */
	windows.reaches->asked_ns -= REACH_NS;
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), -EAGAIN);
	pst_object_windows_tested(&windows, &device, NULL);
	windows.reaches->asked_ns -= REACH_NS;
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), 1);
	/* A process may open and close a device any number of times. The answer about the device
	 * that had the same index is forgotten. */
	pst_object_windows_tested(&windows, &other, &why);
	assert_int_equal(pst_object_windows_reach(&windows, &other, &found), 0);
	assert_int_equal(pst_object_windows_reach(&windows, &device, &found), -EAGAIN);
	assert_null(windows.reaches->next);
	other.index = 1;
	pst_object_windows_tested(&windows, &other, NULL);
	assert_int_equal(pst_object_windows_reach(&windows, &other, &found), 1);
	free(windows.reaches->next);
	free(windows.reaches);
}

static int server_bind(int fd, const struct sockaddr *address, socklen_t len)
{
	errno = EADDRNOTAVAIL;
	return is_far ? -1 : bind(fd, address, len);
}

static char window_address[INET6_ADDRSTRLEN]; /* address in the token of transport_of's window */

/* Stores the address in a token of transport tcp1 in window_address, or "" for other tokens. */
static void address_note(const struct penstock_object_window_info *info)
{
	struct pst_token token;

	assert_int_equal(pst_token_parse(info->token, strlen(info->token), &token), 0);
	snprintf(window_address, sizeof(window_address), "%s",
		 token.kind == PST_TOKEN_TCP1 ? token.tcp.at.address : "");
}

static struct pst_object_place place;

/* Finds the windows for a server that is on this host, or on another one. `transports` is the
 * option rdma-transports, and `addresses` is the option rdma-addresses. Returns NULL with the
 * reason in *why if there are none. */
static struct pst_object_windows *windows_of(bool far, const char *transports,
					     const char *addresses, struct pst_err *why)
{
	static struct pst_http_endpoint endpoint = {.host = "127.0.0.1"};
	struct sockaddr_in at = {.sin_family = AF_INET,
				 .sin_port = htons(9),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct pst_object_windows *windows;

	place.endpoint = &endpoint;
	place.url.rdma = PST_OBJECT_RDMA_REQUIRE;
	memcpy(&endpoint.addresses[0], &at, sizeof(at));
	endpoint.address_lens[0] = sizeof(at);
	endpoint.address_count = 1;
	snprintf(place.url.transports, sizeof(place.url.transports), "%s", transports);
	snprintf(place.url.addresses, sizeof(place.url.addresses), "%s", addresses);
	is_far = far;
	windows = pst_object_windows_find(&place, why);
	print_message("# a server on %s host, \"%s\", \"%s\": %s\n", far ? "another" : "this",
		      transports, addresses, windows ? "open" : why->text);
	return windows;
}

/* Opens a window and prints its transport. The arguments are those of windows_of. Returns the name
 * of the transport, or NULL with the reason in *why. */
static const char *window_transport(bool far, const char *transports, const char *addresses,
				    struct pst_err *why)
{
	struct pst_object_windows *windows = windows_of(far, transports, addresses, why);
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct pst_object_grant grant = {.windows = NULL};
	struct pst_window *window;

	if (!windows)
		return NULL;
	assert_int_equal(pst_object_window_open(windows, NULL, LEN, &window, why), 0);
	assert_int_equal(
		pst_object_grant_open(&grant, windows, window, PENSTOCK_READ, LEN, why), 0);
	pst_wire_window_info(grant.inner, &info);
	address_note(&info);
	print_message("# by %s, at %s\n", grant.transport, window_address);
	assert_true(pst_wire_revoke(grant.inner));
	assert_int_equal((pst_wire_release)(grant.inner, why), 0);
	window->close(window);
	return info.transport;
}

static const char *transport_of(bool far, const char *transports, struct pst_err *why)
{
	return window_transport(far, transports, "", why);
}

/* Closes all clients, and forgets the endpoints. */
static void hubs_close(void)
{
	while (hubs) {
		struct hub *hub = hubs;

		hubs = hub->next;
		pst_wire_client_close(hub->client);
		free(hub);
	}
	while (all) {
		struct pst_object_windows *windows = all;

		all = windows->next;
		free(windows);
	}
}

/* A server on another host gets no token of a transport that works only on one host. By default, a
 * storage offers no transport that is slower than HTTP. */
static void transports_of_a_host(void **state)
{
	struct pst_err why;

	(void)state;
	assert_string_equal(transport_of(false, "", &why), "shm1");
	assert_string_equal(transport_of(true, "shm1,tcp1", &why), "tcp1");
	assert_string_equal(transport_of(false, "shm1,tcp1", &why), "shm1");
	assert_string_equal(transport_of(false, "tcp1", &why), "tcp1");
	assert_null(transport_of(true, "", &why));
	assert_non_null(strstr(why.text, "no transport is left"));
	assert_non_null(strstr(why.text, "tcp1, slower than HTTP, must be named"));
	assert_null(transport_of(true, "shm1", &why));
	assert_non_null(strstr(why.text, "shm1 works only if the server is on this host"));
	hubs_close();
}

static unsigned hub_count(void)
{
	unsigned count = 0;

	for (const struct hub *hub = hubs; hub; hub = hub->next)
		count++;
	return count;
}

/* A window is at the first of the addresses that the URL lists, or at the address that leads to the
 * server. Storages with different lists share no client. */
static void addresses_of_a_host(void **state)
{
	static const struct {
		bool far;
		const char *list, *address;
		unsigned hubs; /* number of clients after the row */
	} rows[] = {
		{false, "127.0.0.2,127.0.0.3", "127.0.0.2", 1},
		{false, "127.0.0.3,127.0.0.2", "127.0.0.3", 2},
		{false, "127.0.0.2,127.0.0.3", "127.0.0.2", 2},
		{false, "127.0.0.2", "127.0.0.2", 3},
		{false, "", "127.0.0.1", 4},
		{true, "127.0.0.2,127.0.0.3", "127.0.0.2", 5},
		/* An address of another host is left out. */
		{false, "203.0.113.1,127.0.0.4", "127.0.0.4", 6},
	};
	struct pst_err why;

	(void)state;
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_string_equal(window_transport(rows[i].far, "tcp1", rows[i].list, &why),
				    "tcp1");
		assert_string_equal(window_address, rows[i].address);
		assert_int_equal(hub_count(), rows[i].hubs);
	}
	/* The transport shm1 needs no address. */
	assert_string_equal(window_transport(false, "shm1", "203.0.113.1,203.0.113.2", &why),
			    "shm1");
	assert_null(window_transport(false, "tcp1", "203.0.113.1,203.0.113.2", &why));
	assert_non_null(strstr(why.text, "tcp1 cannot listen at 203.0.113.2: "));
	hubs_close();
}

/* Opens a window of a client with these network cards. */
static struct pst_window *cards_open(const char *addresses, struct pst_object_windows **windows)
{
	struct pst_window *window;
	struct pst_err err;

	*windows = windows_of(false, "tcp1", addresses, &err);
	assert_non_null(*windows);
	assert_int_equal(pst_object_window_open(*windows, NULL, LEN, &window, &err), 0);
	return window;
}

/* Makes another request with the window: opens its grant, and adds the token to the call. */
static void cards_offer(struct pst_object_windows *windows, struct pst_window *window,
			struct pst_object_grant *grant, struct pst_object_call *call)
{
	struct pst_err err;

	grant->window = NULL;
	assert_int_equal(pst_object_grant_open(grant, windows, window, PENSTOCK_READ, LEN, &err),
			 0);
	pst_object_grant_offer(grant, call);
}

/* Judges a response to a GET with the token of a grant, and releases the window, which must be at
 * this address. `has_card` tells whether another card must be left. */
static void card_answer(struct pst_object_grant *grant, struct pst_object_call *call,
			const char *address, const char *reply, bool has_card)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	pst_wire_window_info(grant->inner, &info);
	assert_string_equal(info.address, address);
	address_note(&info);
	assert_string_equal(window_address, address);
	assert_string_equal(call->token, info.token);
	call->ranged = true;
	call->last = LEN - 1;
	answer_fill(call, reply);
	pst_object_grant_judge(grant, call, NULL);
	print_message("# %s: %s\n", address, grant->verdict.text);
	assert_int_equal(pst_object_grant_has_card(grant), has_card);
	pst_object_grant_wait(grant);
}

/* If the server declines a token, the request is repeated with a token for the next card, but only
 * once for each card. The server gets no more tokens only after it has declined 32 in a row for
 * each card. */
static void next_card(void **state)
{
	struct pst_object_grant grant = {.windows = NULL};
	struct pst_object_call call = {.method = "GET", .place = &place};
	struct pst_object_windows *windows;
	struct pst_window *window = cards_open("127.0.0.2,127.0.0.3", &windows);

	(void)state;
	for (unsigned round = 0; round < DECLINES_MAX; round++) {
		call.http.patience_s = 0;
		cards_offer(windows, window, &grant, &call);
		card_answer(&grant, &call, "127.0.0.2", "501", true);
		expect_shut(windows, PENSTOCK_WHY_NONE);
		call.http.attempts = call.http.tries = 5;
		assert_true(pst_object_grant_again(&grant, &call));
		assert_int_equal(call.http.attempts + call.http.tries, 0);
		/* If no response comes, the error must not be that of the last response. */
		assert_int_equal(call.http.head.status, 0);
		card_answer(&grant, &call, "127.0.0.3", "501", false);
		assert_false(pst_object_grant_again(&grant, &call));
	}
	expect_shut(windows, PENSTOCK_WHY_DECLINED);
	windows->again_ns = pst_now_ns() - 1;
	/* A server that has moved the bytes, or that ignores tokens, gets no second token. */
	for (unsigned ignored = 0; ignored < 2; ignored++) {
		cards_offer(windows, window, &grant, &call);
		card_answer(&grant, &call, "127.0.0.2", ignored ? "" : "206", false);
		assert_false(pst_object_grant_again(&grant, &call));
	}
	window->close(window);
	hubs_close();
}

/* Sets whether the network card of each listener has a link, as if it had just been read. */
static void links_set(const bool *is_up)
{
	struct pst_wire_client *client = hubs->client;

	for (unsigned i = 0; i < client->listener_count; i++) {
		struct pst_wire_nic *nic = &client->listeners[i].nic;

		snprintf(nic->name, sizeof(nic->name), "test%u", i);
		atomic_store(&nic->is_down, !is_up[i]);
		atomic_store(&nic->known_ms, pst_now_ns() / 1000000);
	}
}

/* A request is never repeated through a card that has failed, even if the other cards have no
 * link. */
static void next_card_without_link(void **state)
{
	struct pst_object_grant grant = {.windows = NULL};
	struct pst_object_call call = {.method = "GET", .place = &place};
	struct pst_object_windows *windows;
	struct pst_window *window = cards_open("127.0.0.2,127.0.0.3,127.0.0.4", &windows);

	(void)state;
	links_set((const bool[]){true, false, true});
	cards_offer(windows, window, &grant, &call);
	card_answer(&grant, &call, "127.0.0.2", "501", true);
	links_set((const bool[]){true, false, true});
	assert_true(pst_object_grant_again(&grant, &call));
	card_answer(&grant, &call, "127.0.0.4", "501", true);
	links_set((const bool[]){true, false, true});
	assert_false(pst_object_grant_again(&grant, &call));
	/* The failed repetition has released its window, so that it can be closed. */
	window->close(window);
	assert_int_equal(hubs->client->buffer_count, 0);
	hubs_close();
}

/* A request that is cancelled between its end and its repetition is not started again. The limit of
 * requests in flight could delay its end. */
static void next_card_cancelled(void **state)
{
	static struct pst_http_endpoint full = {.host = "test", .waiting_end = &full.waiting};
	static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
	static struct pst_object_call call = {.method = "GET", .place = &place};
	struct pst_object_grant grant = {.windows = NULL};
	struct pst_object_windows *windows;
	struct pst_window *window = cards_open("127.0.0.2,127.0.0.3", &windows);

	(void)state;
	call.http.endpoint = &full;
	cards_offer(windows, window, &grant, &call);
	card_answer(&grant, &call, "127.0.0.2", "501", true);
	assert_false(pst_http_cancel(&call.http));
	assert_false(pst_object_grant_restart(&grant, &call, &guard));
	window->close(window);
	assert_int_equal(hubs->client->buffer_count, 0);
	hubs_close();
}

/* The client asks the functions of the device table for the nearest card. */
static void cards_of_a_host(void **state)
{
	struct pst_wire_nic nic;

	(void)state;
	assert_ptr_equal(pst_object_device_table.nic_find, pst_nic_find);
	assert_ptr_equal(pst_object_device_table.nic_distance, pst_nic_distance);
	assert_ptr_equal(pst_object_device_table.nic_is_up, pst_nic_is_up);
	pst_object_device_table.nic_find("127.0.0.1", &nic);
	assert_string_equal(nic.name, "lo");
	assert_true(pst_object_device_table.nic_is_up(&nic));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(declines),
		cmocka_unit_test(ignored),
		cmocka_unit_test(lost_attempt),
		cmocka_unit_test(opened_in_a_pause),
		cmocka_unit_test(device_windows),
		cmocka_unit_test(reached_devices),
		cmocka_unit_test(transports_of_a_host),
		cmocka_unit_test(addresses_of_a_host),
		cmocka_unit_test(next_card),
		cmocka_unit_test(next_card_without_link),
		cmocka_unit_test(next_card_cancelled),
		cmocka_unit_test(cards_of_a_host),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
