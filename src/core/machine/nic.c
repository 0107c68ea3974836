/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements nic.h with /sys and the machine's PCI topology. The first call of pst_nic_distance
 * reads the topology, which then stays in memory until the process ends. Only clients with several
 * addresses call it.
 */
#include "core/machine/nic.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/machine/pci_address.h"
#include "core/machine/sysfs.h"
#include "core/machine/topo_read.h"
#include "core/ops.h"

#define MPOL_F_NODE 1 /* flags of get_mempolicy(2) */
#define MPOL_F_ADDR 2
/* Distances between host memory and a network card. Distances of GPU memory are values of enum
 * pst_nearness. */
#define SAME_NODE 0u
#define UNKNOWN_NODE 1u
#define OTHER_NODE 2u
#define FAR (PST_NEAR_SYS + 1u)
/* Time in ms after which the state of a card's link is read from /sys again. A read takes 30 us,
 * and each opening of a window asks for the state of all cards. */
#define LINK_MS 1000

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct pst_topo *topo; /* NULL if the topology cannot be read */

static void topo_load(void)
{
	char why[200];

	if (pst_topo_open(NULL, &topo, why, sizeof(why)) < 0)
		topo = NULL;
}

/* Returns whether the socket address `at` is the numeric IP address `text`. */
static bool is_address(const struct sockaddr *at, const char *text)
{
	unsigned char binary[sizeof(struct in6_addr)];

	if (!at)
		return false;
	if (at->sa_family == AF_INET)
		return inet_pton(AF_INET, text, binary) == 1 &&
		       !memcmp(&((const struct sockaddr_in *)at)->sin_addr, binary, 4);
	return at->sa_family == AF_INET6 && inet_pton(AF_INET6, text, binary) == 1 &&
	       !memcmp(&((const struct sockaddr_in6 *)at)->sin6_addr, binary, 16);
}

/* Stores the PCI address of the network interface `name` in `out`. For a virtual interface, `out`
 * stays "". */
static void interface_bdf(const char *name, char out[PST_BDF_LEN])
{
	char link[80], path[PATH_MAX];

	snprintf(link, sizeof(link), "/sys/class/net/%s/device", name);
	if (realpath(link, path))
		pst_path_bdf(path, out);
}

void pst_nic_find(const char *address, struct pst_wire_nic *out)
{
	struct ifaddrs *all;

	memset(out, 0, sizeof(*out));
	snprintf(out->address, sizeof(out->address), "%s", address);
	if (getifaddrs(&all))
		return;
	for (const struct ifaddrs *i = all; i && !out->name[0]; i = i->ifa_next)
		if (is_address(i->ifa_addr, address))
			snprintf(out->name, sizeof(out->name), "%s", i->ifa_name);
	freeifaddrs(all);
	if (out->name[0])
		interface_bdf(out->name, out->bdf);
}

/* Returns the distance between the page at `ptr` and the card, by comparing their NUMA nodes. */
static unsigned host_distance(const struct pst_wire_nic *nic, const void *ptr)
{
	int near = pst_topo_numa_of(topo, nic->bdf), node = -1;

	if (near < 0 || syscall(SYS_get_mempolicy, &node, NULL, 0, ptr, MPOL_F_NODE | MPOL_F_ADDR))
		return UNKNOWN_NODE;
	return node == near ? SAME_NODE : OTHER_NODE;
}

unsigned pst_nic_distance(const struct pst_wire_nic *nic, struct penstock_device *dev,
			  const void *ptr)
{
	int near;

	pthread_once(&once, topo_load);
	if (!topo || !nic->bdf[0])
		return FAR;
	if (!dev)
		return host_distance(nic, ptr);
	if (!dev->facts.bdf[0])
		return FAR;
	near = pst_topo_nearness(topo, dev->facts.bdf, nic->bdf);
	return near < 0 ? FAR : (unsigned)near;
}

bool pst_nic_is_up(struct pst_wire_nic *nic)
{
	uint64_t now_ms = pst_now_ns() / 1000000, known_ms = atomic_load(&nic->known_ms);
	struct pst_sysfs fs;
	int64_t carrier = 0;
	bool up;
	int ret;

	if (!nic->name[0])
		return true; /* without a name the state is unknown, and the card counts as up */
	if (known_ms && now_ms - known_ms < LINK_MS)
		return !atomic_load(&nic->is_down);
	if (pst_sysfs_open(&fs, NULL))
		return true;
	/* The read fails with EINVAL if the interface is down. */
	ret = pst_sysfs_number(&fs, &carrier, "sys/class/net/%s/carrier", nic->name);
	pst_sysfs_close(&fs);
	up = ret == -ENOENT || (!ret && carrier);
	atomic_store(&nic->is_down, !up);
	atomic_store(&nic->known_ms, now_ms);
	return up;
}
