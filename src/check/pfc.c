/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a NIC's counters of priority flow control (PFC), that is, of pause frames and discarded
 * packets, and sums them over all priorities. /sys does not have these counters. On the running
 * machine the code queries the NIC's driver as ethtool(8) does; any user may make this query. If
 * the facts come from a capture (copied files of another machine), it reads the stored output of
 * ethtool -S. Called by gates_fabric.c. It must never treat missing counters as counters that are
 * zero.
 */
#include "pfc.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define STATS_MAX 65536

/* Adds the value of a counter to the sums if `name` is the name of a PFC counter. The drivers
 * mlx5, ice and bnxt_en use names that contain the direction and the priority. */
static void pfc_counter_add(struct pst_pfc *pfc, const char *name, unsigned long long value)
{
	static const char *const pauses[] = {"%1[rt]x_prio%1u_pause%n",
					     "%1[rt]x_priority_%1u_xoff.nic%n",
					     "%1[rt]x_pfc_ena_frames_pri%1u%n"};
	char direction[2];
	unsigned priority;
	int end = 0;
	size_t i;

	for (i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++, end = 0) {
		if (sscanf(name, pauses[i], direction, &priority, &end) != 2 || !end || name[end])
			continue;
		pfc->known = true;
		if (direction[0] == 'r')
			pfc->received += value;
		else
			pfc->sent += value;
	}
	if (sscanf(name, "rx_prio%1u_discards%n", &priority, &end) == 1 && end && !name[end])
		pfc->discarded += value;
}

/* ---- this machine ------------------------------------------------------------------ */

static int ethtool_query(int fd, const char *interface, void *command)
{
	struct ifreq req = {.ifr_data = command};

	if (strlen(interface) >= sizeof(req.ifr_name))
		return -1;
	memcpy(req.ifr_name, interface, strlen(interface));
	return ioctl(fd, SIOCETHTOOL, &req);
}

static unsigned counter_count(int fd, const char *interface)
{
	union {
		struct ethtool_sset_info info;
		unsigned char bytes[sizeof(struct ethtool_sset_info) + sizeof(uint32_t)];
	} set = {.bytes = {0}};

	set.info.cmd = ETHTOOL_GSSET_INFO;
	set.info.sset_mask = 1u << ETH_SS_STATS;
	if (ethtool_query(fd, interface, &set) < 0 || !set.info.sset_mask)
		return 0;
	return set.info.data[0] < STATS_MAX ? set.info.data[0] : STATS_MAX;
}

static void driver_read(const char *interface, struct pst_pfc *out)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	unsigned i, count = fd < 0 ? 0 : counter_count(fd, interface);
	struct ethtool_gstrings *names =
		calloc(1, sizeof(*names) + (size_t)count * ETH_GSTRING_LEN);
	struct ethtool_stats *values = calloc(1, sizeof(*values) + count * sizeof(uint64_t));

	if (count && names && values) {
		names->cmd = ETHTOOL_GSTRINGS;
		names->string_set = ETH_SS_STATS;
		names->len = count;
		values->cmd = ETHTOOL_GSTATS;
		values->n_stats = count;
		if (ethtool_query(fd, interface, names) < 0 ||
		    ethtool_query(fd, interface, values) < 0)
			count = 0;
		for (i = 0; i < count && i < names->len && i < values->n_stats; i++) {
			char name[ETH_GSTRING_LEN + 1] = "";

			memcpy(name, names->data + (size_t)i * ETH_GSTRING_LEN, ETH_GSTRING_LEN);
			pfc_counter_add(out, name, values->data[i]);
		}
	}
	free(names);
	free(values);
	if (fd >= 0)
		close(fd);
}

/* ---- a capture --------------------------------------------------------------------- */

static void capture_read(const struct pst_check_facts *f, const char *interface,
			 struct pst_pfc *out)
{
	char *text, *line, *next, name[64];
	unsigned long long value;

	if (pst_sysfs_file(&f->fs, &text, 1 << 20, "captured/ethtool/%s", interface) < 0)
		return;
	for (line = text; line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (sscanf(line, " %63[^:]: %18llu", name, &value) == 2)
			pfc_counter_add(out, name, value);
	}
	free(text);
}

void pst_check_pfc(const struct pst_check_facts *f, const char *interface, struct pst_pfc *out)
{
	*out = (struct pst_pfc){.known = false};
	if (f->captured)
		capture_read(f, interface, out);
	else
		driver_read(interface, out);
}
