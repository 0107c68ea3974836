/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the gates that check the network: RDMA devices and their links, RoCE addresses, packet
 * size, error counters of the NICs, and NVMe over fabrics. A capture (copies of a machine's /sys
 * and /proc files) omits private addresses and names, so the gates must never print them. The only
 * exception is the identity of an NVMe target, which may be printed on the running machine.
 */
#include "gates_fabric.h"

#include <stdio.h>
#include <string.h>

#include "line.h"
#include "pfc.h"
#include "pick.h"

#define GIDS_MAX 256
/* Number of bytes in a packet with 4096 bytes of payload and the headers of RoCE v2 over IPv6
 * and VLAN. */
#define MTU_FULL 4200

static bool nic_is_ethernet(const struct pst_check_subject *nic)
{
	return !strcmp(nic->transport, "ethernet");
}

static const struct pst_end *subject_end(const struct pst_check_facts *f,
					 const struct pst_check_subject *subject)
{
	size_t i;

	for (i = 0; i < f->topo->end_count; i++)
		if (f->topo->ends[i].name == subject->name)
			return &f->topo->ends[i];
	return NULL;
}

/* ---- RDMA devices ---------------------------------------------------------------- */

static void inspect_rdma(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned i, down = 0, soft = 0;
	const struct pst_end *first = NULL;
	char text[128];

	if (!f->nic_count && !f->is_url)
		return;
	if (!f->nic_count) {
		pst_line_no(line, "this machine has no RDMA device");
		line->need = PST_NEED_DIRECT;
		pst_line_todo(
			line,
			"objects arrive by TCP, and the CPU copies them; RDMA needs an RDMA NIC");
		return;
	}
	for (i = 0; i < f->nic_count; i++) {
		const struct pst_end *end = subject_end(f, &f->nics[i]);

		if (!end)
			continue;
		pst_line_detail(line, "%-8s %s, %s, %s, %s", end->name,
				end->model[0] ? end->model : "unknown model", end->transport,
				end->rate[0] ? end->rate : "rate unknown",
				end->state[0] ? end->state : "state unknown");
		soft += !strcmp(end->transport, "software");
		if (end->state[0] && strcmp(end->state, "ACTIVE")) {
			down++;
			first = first ? first : end;
		}
	}
	pst_subjects_text(f->nics, f->nic_count, text, sizeof(text));
	if (down) {
		pst_line_no(line, "%s is %s%s", first->name, first->state,
			    down > 1 ? ", others too" : "");
		if (!strcmp(first->state, "INIT"))
			pst_line_todo(line, "start a subnet manager (opensm) in this fabric");
	} else if (soft) {
		pst_line_no(line, "%u of %u are software: the CPU copies every byte", soft,
			    f->nic_count);
		pst_line_todo(line,
			      "remove them if the machine has RDMA NICs: rdma link delete NAME");
	} else {
		first = subject_end(f, &f->nics[0]);
		pst_line_ok(line, "%s, %s, %s", text,
			    first && first->rate[0] ? first->rate : "rate unknown",
			    f->nic_count > 1 ? "all active" : "active");
	}
}

/* ---- RoCE ------------------------------------------------------------------------ */

/* Returns the number of RoCE v2 entries in the NIC's GID table, or -1 if the table cannot be
 * read. */
static int roce_v2_count(const struct pst_check_facts *f, const char *nic)
{
	int count = 0, seen = 0;

	for (int i = 0; i < GIDS_MAX; i++) {
		char type[32];
		ssize_t got = pst_sysfs_text(&f->fs, type, sizeof(type),
					     "sys/class/infiniband/%s/ports/1/gid_attrs/types/%d",
					     nic, i);

		/* An empty entry cannot be read. The loop continues, because entries after an
		 * empty entry can be in use. */
		if (got <= 0)
			continue;
		seen++;
		count += !strcmp(type, "RoCE v2");
	}
	if (!seen &&
	    !pst_sysfs_exists(&f->fs, "sys/class/infiniband/%s/ports/1/gid_attrs/types", nic))
		return -1;
	return count;
}

static void inspect_roce(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned i, all = 0, without = 0, hidden = 0;
	const char *first = NULL;

	for (i = 0; i < f->nic_count; i++) {
		int count;

		if (!nic_is_ethernet(&f->nics[i]))
			continue;
		all++;
		count = roce_v2_count(f, f->nics[i].name);
		hidden += count < 0;
		without += count == 0;
		if (!count && !first)
			first = f->nics[i].name;
		if (count >= 0)
			pst_line_detail(line, "%-8s %d RoCE v2 addresses", f->nics[i].name, count);
	}
	if (!all)
		return;
	if (without)
		pst_line_no(line, "%s has no RoCE v2 address%s", first,
			    without > 1 ? ", others too" : "");
	else if (hidden)
		pst_line_unknown(line, "the address tables of the NICs cannot be read");
	else
		pst_line_ok(line, "RoCE v2 on %s", all > 1 ? "every NIC" : "the NIC");
}

/* Writes the name of an RDMA device's network interface to `out`. Returns whether an interface
 * is visible. */
static bool nic_interface(const struct pst_check_facts *f, const char *nic, char *out, size_t len)
{
	struct pst_names names;
	bool found;

	if (pst_sysfs_text(&f->fs, out, len, "sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/0",
			   nic) > 0)
		return !strchr(out, '/');
	if (pst_sysfs_list(&f->fs, &names, "sys/class/infiniband/%s/device/net", nic) < 0)
		return false;
	found = names.count > 0 && strlen(names.name[0]) < len;
	if (found)
		memcpy(out, names.name[0], strlen(names.name[0]) + 1);
	pst_names_free(&names);
	return found;
}

static void inspect_mtu(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned i, all = 0, known = 0;
	int64_t least = INT64_MAX, mtu;
	char name[64], worst[64] = "";

	for (i = 0; i < f->nic_count; i++) {
		if (!nic_is_ethernet(&f->nics[i]))
			continue;
		all++;
		if (!nic_interface(f, f->nics[i].name, name, sizeof(name)) ||
		    pst_sysfs_number(&f->fs, &mtu, "sys/class/net/%s/mtu", name) < 0)
			continue;
		known++;
		pst_line_detail(line, "%-8s %s, MTU %lld", f->nics[i].name, name, (long long)mtu);
		if (mtu < least) {
			least = mtu;
			snprintf(worst, sizeof(worst), "%s", name);
		}
	}
	if (!all)
		return;
	if (!known) {
		pst_line_unknown(line, "the network interfaces of the NICs are not visible");
		pst_line_todo(line,
			      "run ip link, which shows the MTU (a container can hide interfaces)");
	} else if (least < MTU_FULL) {
		pst_line_no(line, "%s has %lld: RDMA packets hold %d bytes", worst,
			    (long long)least,
			    least >= 2200   ? 2048
			    : least >= 1150 ? 1024
					    : 512);
		if (pst_line_name_is_plain(worst))
			pst_line_script(line,
					"ip link set dev %s mtu 9000  # also on switch and peers",
					worst);
	} else {
		pst_line_ok(line, "%lld: RDMA packets hold 4096 bytes, the most", (long long)least);
	}
}

/* ---- counters of loss and congestion ----------------------------------------------- */

/* Returns a hardware counter of the NIC, or 0 if the counter does not exist. Sets *any to true
 * if it exists. */
static uint64_t counter_read(const struct pst_check_facts *f, const char *nic, const char *name,
			     bool *any)
{
	int64_t value;

	if (pst_sysfs_number(&f->fs, &value, "sys/class/infiniband/%s/ports/1/hw_counters/%s", nic,
			     name) < 0 ||
	    value < 0)
		return 0;
	*any = true;
	return (uint64_t)value;
}

struct counts {
	/* number of packets that were lost or arrived out of order */
	unsigned long long lost;
	unsigned long long marked; /* number of congestion marks that ECN reported */
	unsigned long long paused; /* number of PFC pause frames, received and sent */
	/* `any`: whether at least one NIC has counters; `pfc`: whether at least one NIC counts
	 * PFC frames */
	bool any, pfc;
	/* name of a NIC with lost packets but no pause frames; NULL if there is none */
	const char *unpaused;
};

static void counts_add(const struct pst_check_facts *f, const char *nic, struct counts *all,
		       struct pst_check_line *line)
{
	static const char *const lost_names[] = {"out_of_sequence", "packet_seq_err",
						 "local_ack_timeout_err", "rx_icrc_encapsulated"};
	static const char *const marked_names[] = {"np_ecn_marked_roce_packets", "np_cnp_sent",
						   "rp_cnp_handled"};
	unsigned long long lost = 0, marked = 0;
	struct pst_pfc pfc = {.known = false};
	char interface[64];
	size_t n;

	for (n = 0; n < sizeof(lost_names) / sizeof(lost_names[0]); n++)
		lost += counter_read(f, nic, lost_names[n], &all->any);
	for (n = 0; n < sizeof(marked_names) / sizeof(marked_names[0]); n++)
		marked += counter_read(f, nic, marked_names[n], &all->any);
	if (nic_interface(f, nic, interface, sizeof(interface)))
		pst_check_pfc(f, interface, &pfc);
	lost += pfc.discarded;
	pst_line_detail(line, "%-8s lost %llu, congestion signs %llu", nic, lost, marked);
	if (pfc.known)
		pst_line_detail(line, "%-8s PFC pause frames: %llu received, %llu sent", nic,
				pfc.received, pfc.sent);
	if (lost && pfc.known && !pfc.received && !pfc.sent)
		all->unpaused = nic;
	all->lost += lost;
	all->marked += marked;
	all->paused += pfc.received + pfc.sent;
	all->pfc |= pfc.known;
}

static void inspect_congestion(const struct pst_check_facts *f, struct pst_check_line *line)
{
	struct counts all = {.any = false};
	unsigned i, nics = 0;
	char pauses[64] = "";

	for (i = 0; i < f->nic_count; i++) {
		if (!nic_is_ethernet(&f->nics[i]))
			continue;
		nics++;
		counts_add(f, f->nics[i].name, &all, line);
	}
	if (!nics)
		return;
	if (all.pfc)
		snprintf(pauses, sizeof(pauses), ", %llu PFC pause frames", all.paused);
	if (!all.any && !all.pfc) {
		pst_line_unknown(line, "the NICs show no counters of loss, ECN or PFC");
	} else if (all.lost) {
		pst_line_no(
			line,
			"%llu packets lost or late since the counters were reset, %llu signs of "
			"congestion%s",
			all.lost, all.marked, pauses);
		if (all.unpaused)
			pst_line_todo(line,
				      "enable PFC for RoCE's priority, on NIC and switch: %s never "
				      "saw a pause frame",
				      all.unpaused);
	} else {
		pst_line_ok(line, "no packet lost, %llu signs of congestion (ECN)%s", all.marked,
			    pauses);
	}
}

/* ---- NVMe over fabrics ------------------------------------------------------------ */

static bool transport_is_fabric(const char *transport)
{
	return !strcmp(transport, "rdma") || !strcmp(transport, "tcp") ||
	       !strcmp(transport, "fc") || !strcmp(transport, "loop");
}

static void list_session(const struct pst_check_facts *f, const struct pst_end *end,
			 struct pst_check_line *line)
{
	char nqn[128] = "", queues[16], depth[16];

	if (pst_sysfs_text(&f->fs, queues, sizeof(queues), "sys/class/nvme/%s/queue_count",
			   end->name) <= 0)
		snprintf(queues, sizeof(queues), "?");
	if (pst_sysfs_text(&f->fs, depth, sizeof(depth), "sys/class/nvme/%s/sqsize", end->name) <=
	    0)
		snprintf(depth, sizeof(depth), "?");
	pst_sysfs_text(&f->fs, nqn, sizeof(nqn), "sys/class/nvme/%s/subsysnqn", end->name);
	pst_line_detail(line, "%-6s %s, %s, %s queues of %s%s%s", end->name, end->transport,
			end->state[0] ? end->state : "state unknown", queues, depth,
			nqn[0] ? ", " : "", nqn);
}

/* Returns whether this NVMe controller must be checked. It must be on a fabric and, if a file
 * is checked, hold a part of the file. */
static bool controller_is_checked(const struct pst_check_facts *f, const struct pst_end *end)
{
	unsigned i;

	if (end->kind != PST_END_DRIVE || !transport_is_fabric(end->transport))
		return false;
	for (i = 0; i < f->drive_count; i++)
		if (!strcmp(f->drives[i].name, end->name))
			return true;
	return !f->has_file;
}

static void inspect_nvmeof(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned count = 0, dead = 0, tcp = 0;
	const struct pst_end *first = NULL;
	char transports[64] = "";
	size_t i;

	for (i = 0; i < f->topo->end_count; i++) {
		const struct pst_end *end = &f->topo->ends[i];

		if (!controller_is_checked(f, end))
			continue;
		count++;
		tcp += !strcmp(end->transport, "tcp");
		if (!strstr(transports, end->transport) &&
		    strlen(transports) + strlen(end->transport) + 3 < sizeof(transports))
			snprintf(transports + strlen(transports),
				 sizeof(transports) - strlen(transports), "%s%s",
				 transports[0] ? ", " : "", end->transport);
		list_session(f, end, line);
		if (end->state[0] && strcmp(end->state, "live")) {
			dead++;
			first = first ? first : end;
		}
	}
	if (!count)
		return;
	if (dead) {
		pst_line_no(line, "%u of %u sessions are not live: %s is %s", dead, count,
			    first->name, first->state);
		if (f->has_file && dead == count)
			line->need = PST_NEED_WORK;
		pst_line_script(
			line,
			"nvme list-subsys  # then nvme connect-all, or read the target's log");
	} else if (tcp) {
		pst_line_ok(line, "%u session%s live (%s); the CPU copies bytes that arrive by tcp",
			    count, count == 1 ? "" : "s", transports);
	} else {
		pst_line_ok(line, "%u session%s live (%s)", count, count == 1 ? "" : "s",
			    transports);
	}
}

const struct pst_check_gate pst_check_fabric_gates[] = {
	{"rdma", PST_CHECK_FABRIC, PST_NEED_SPEED, inspect_rdma,
	 "remote storage reaches memory without a CPU copy only through an active RDMA NIC",
	 "plug in the cable or enable the switch port: rdma link shows the state"},
	{"roce", PST_CHECK_FABRIC, PST_NEED_SPEED, inspect_roce,
	 "routers forward RDMA over Ethernet only with RoCE v2 addresses",
	 "give the NIC's network interface an IP address: the kernel then fills the table"},
	{"mtu", PST_CHECK_FABRIC, PST_NEED_SPEED, inspect_mtu,
	 "with short packets the NICs do more work for the same bytes",
	 "set an MTU of 9000 on the interface, the switch and the peers"},
	{"congestion", PST_CHECK_FABRIC, PST_NEED_SPEED, inspect_congestion,
	 "RoCE sends a lost packet again together with every packet after it",
	 "enable PFC or ECN with the same settings on all switches and NICs of the route"},
	{"nvme-of", PST_CHECK_FABRIC, PST_NEED_SPEED, inspect_nvmeof,
	 "a session that is not live serves no reads; its I/O waits or fails",
	 "reconnect, or check the target; nvme list-subsys shows paths and states"},
	{.name = NULL},
};
