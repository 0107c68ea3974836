/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how `penstock check` reads the priority flow control counters of this machine. The test
 * defines its own ioctl(), which simulates a network driver. The simulated driver returns the
 * counter names of real drivers, or fails at one of the steps. tests/cli/check-replay tests
 * counters that were captured on other machines. tests/run runs this test.
 */
#include "../test.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <sys/ioctl.h>

#include "check/pfc.h"

static const char *const *names; /* Names of the driver's counters. Their values are 1, 2, 4, ... */
/* Number of counters in `names`, and the number that the simulated driver reports. */
static unsigned count, reported_count;
static uint32_t refused; /* The ethtool command that ioctl() refuses. */

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	struct ifreq *req;
	uint32_t cmd;
	unsigned i;

	(void)fd;
	va_start(args, request);
	req = va_arg(args, struct ifreq *);
	va_end(args);
	memcpy(&cmd, req->ifr_data, sizeof(cmd));
	if (request != SIOCETHTOOL || strcmp(req->ifr_name, "eth0") || cmd == refused) {
		errno = EOPNOTSUPP;
		return -1;
	}
	if (cmd == ETHTOOL_GSSET_INFO) {
		struct ethtool_sset_info *info = (void *)req->ifr_data;

		info->data[0] = reported_count;
	} else if (cmd == ETHTOOL_GSTRINGS) {
		struct ethtool_gstrings *strings = (void *)req->ifr_data;

		for (i = 0; i < count && i < strings->len; i++)
			strncpy((char *)strings->data + (size_t)i * ETH_GSTRING_LEN, names[i],
				ETH_GSTRING_LEN);
	} else if (cmd == ETHTOOL_GSTATS) {
		struct ethtool_stats *stats = (void *)req->ifr_data;

		for (i = 0; i < count && i < stats->n_stats; i++)
			stats->data[i] = 1ull << i;
	}
	return 0;
}

static struct pst_pfc pfc_read(const char *const *list, unsigned len)
{
	static const struct pst_check_facts this_machine = {.captured = false};
	struct pst_pfc pfc;

	names = list;
	count = reported_count = len;
	pst_check_pfc(&this_machine, "eth0", &pfc);
	return pfc;
}

static void counter_names_of_drivers(void **state)
{
	static const char *const mlx5[] = {
		"rx_packets",	     "rx_prio0_pause",		"rx_prio3_pause", "tx_prio3_pause",
		"rx_prio3_discards", "rx_prio3_pause_duration", "rx_prio33_pause"};
	static const char *const ice[] = {"rx_priority_3_xoff.nic", "rx_priority_3_xon.nic",
					  "tx_priority_3_xoff.nic"};
	static const char *const bnxt[] = {"rx_pfc_ena_frames_pri3", "tx_pfc_ena_frames_pri3"};
	static const char *const other[] = {"rx_pause", "xx_prio3_pause", "rx_prio3_discards"};
	struct pst_pfc pfc = pfc_read(mlx5, 7);

	(void)state;
	assert_true(pfc.known);
	assert_int_equal(pfc.received, 2 + 4);
	assert_int_equal(pfc.sent, 8);
	assert_int_equal(pfc.discarded, 16);
	pfc = pfc_read(ice, 3);
	assert_true(pfc.known && pfc.received == 1 && pfc.sent == 4);
	pfc = pfc_read(bnxt, 2);
	assert_true(pfc.known && pfc.received == 1 && pfc.sent == 2);
	pfc = pfc_read(other, 3);
	assert_true(!pfc.known && !pfc.received && !pfc.sent && pfc.discarded == 4);
}

static void failed_queries(void **state)
{
	static const char *const some[] = {"rx_prio3_pause"};
	static const uint32_t commands[] = {ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS, ETHTOOL_GSTATS};
	struct pst_check_facts this_machine = {.captured = false};
	struct pst_pfc pfc;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		refused = commands[i];
		assert_false(pfc_read(some, 1).known);
	}
	refused = 0;
	assert_false(pfc_read(some, 0).known);
	pst_check_pfc(&this_machine, "no-such-interface-with-a-long-name", &pfc);
	assert_false(pfc.known);
	pst_check_pfc(&this_machine, "eth1", &pfc);
	assert_false(pfc.known);
	/* The driver reports more counters than `penstock check` reads. */
	assert_true(pfc_read(some, 1).known);
	reported_count = UINT32_MAX;
	pst_check_pfc(&this_machine, "eth0", &pfc);
	assert_true(pfc.received == 1 && !pfc.sent);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counter_names_of_drivers),
		cmocka_unit_test(failed_queries),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
