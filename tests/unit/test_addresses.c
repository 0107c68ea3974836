/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the gateway's table of client addresses: the limit for each address, IPv4 and IPv6, the
 * maximum number of addresses, and random connections next to a plain list of them.
 */
#include "test.h"

#include <arpa/inet.h>

#include "gateway/addresses.h"

#define RANDOM_IPS 24
#define RANDOM_EACH 3

static struct in6_addr ip_of(const char *text)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

	if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
		return gw_address_of((const struct sockaddr *)&v4);
	assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
	return gw_address_of((const struct sockaddr *)&v6);
}

static bool enter(struct gw_addresses *table, const char *text)
{
	struct in6_addr ip = ip_of(text);

	return gw_addresses_enter(table, &ip);
}

static void leave(struct gw_addresses *table, const char *text)
{
	struct in6_addr ip = ip_of(text);

	gw_addresses_leave(table, &ip);
}

static void each_address_has_a_limit(void **state)
{
	struct gw_addresses *table = gw_addresses_open(100, 2);

	(void)state;
	assert_non_null(table);
	assert_true(enter(table, "10.0.0.1"));
	assert_true(enter(table, "10.0.0.1"));
	assert_false(enter(table, "10.0.0.1"));
	assert_true(enter(table, "10.0.0.2"));
	leave(table, "10.0.0.1");
	assert_true(enter(table, "10.0.0.1"));
	assert_false(enter(table, "10.0.0.1"));
	gw_addresses_close(table);
}

static void mapped_ipv4_is_ipv4(void **state)
{
	struct gw_addresses *table = gw_addresses_open(100, 1);

	(void)state;
	assert_true(enter(table, "10.0.0.1"));
	assert_false(enter(table, "::ffff:10.0.0.1"));
	assert_true(enter(table, "::10.0.0.1"));
	assert_true(enter(table, "2001:db8::1"));
	assert_false(enter(table, "2001:db8::1"));
	leave(table, "::ffff:10.0.0.1");
	assert_true(enter(table, "10.0.0.1"));
	gw_addresses_close(table);
}

static void number_of_addresses_is_limited(void **state)
{
	struct gw_addresses *table = gw_addresses_open(3, 5);

	(void)state;
	assert_true(enter(table, "10.0.0.1"));
	assert_true(enter(table, "10.0.0.2"));
	assert_true(enter(table, "10.0.0.3"));
	assert_false(enter(table, "10.0.0.4"));
	assert_true(enter(table, "10.0.0.3"));
	leave(table, "10.0.0.2");
	assert_true(enter(table, "10.0.0.4"));
	gw_addresses_close(table);
}

static void without_a_table_nothing_is_limited(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 10; i++)
		assert_true(enter(NULL, "10.0.0.1"));
	leave(NULL, "10.0.0.1");
	gw_addresses_close(NULL);
}

/* The table is nearly full, so that many addresses are not at the place of their hash. */
static void random_connections(void **state)
{
	struct gw_addresses *table = gw_addresses_open(RANDOM_IPS - 4, RANDOM_EACH);
	unsigned counts[RANDOM_IPS] = {0}, used = 0;
	uint64_t seed = test_seed(1);

	(void)state;
	for (unsigned i = 0; i < 200000; i++) {
		unsigned at = test_random(&seed) % RANDOM_IPS;
		struct in6_addr ip = {.s6_addr = {0x20, 1, [15] = (uint8_t)at}};

		if (test_random(&seed) % 2) {
			bool wanted = counts[at] ? counts[at] < RANDOM_EACH : used < RANDOM_IPS - 4;

			assert_int_equal(gw_addresses_enter(table, &ip), wanted);
			used += wanted && !counts[at];
			counts[at] += wanted;
		} else if (counts[at]) {
			gw_addresses_leave(table, &ip);
			counts[at]--;
			used -= !counts[at];
		}
	}
	gw_addresses_close(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_address_has_a_limit),
		cmocka_unit_test(mapped_ipv4_is_ipv4),
		cmocka_unit_test(number_of_addresses_is_limited),
		cmocka_unit_test(without_a_table_nothing_is_limited),
		cmocka_unit_test(random_connections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
