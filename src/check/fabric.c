/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gates of the network: RDMA devices and their links, RoCE's addresses and packet
 * size, what the NICs counted, and NVMe over fabrics. It must never
 * print an address or a name that a capture would have to leave out, but for the
 * identity of a target on the machine itself.
 */
#include <string.h>

#include "gate.h"

#define GIDS_MAX 256
/* A payload of 4096 bytes with RoCE v2's headers over IPv6 and VLAN. */
#define MTU_FULL 4200

static bool is_ethernet(const struct spot *nic)
{
	return !strcmp(nic->transport, "ethernet");
}

static const struct pst_end *end_of(const struct facts *f, const struct spot *spot)
{
	size_t i;

	for (i = 0; i < f->topo->end_count; i++)
		if (f->topo->ends[i].name == spot->name)
			return &f->topo->ends[i];
	return NULL;
}

/* ---- RDMA devices ---------------------------------------------------------------- */

static void look_rdma(const struct facts *f, struct pst_check_line *line)
{
	unsigned i, down = 0, soft = 0;
	const struct pst_end *first = NULL;
	char text[128];

	if (!f->nic_count && !f->is_url)
		return;
	if (!f->nic_count) {
		pst_no(line, "none in this machine");
		line->need = PST_NEED_DIRECT;
		pst_todo(line, "objects come by TCP, which the CPU copies; RDMA needs a NIC");
		return;
	}
	for (i = 0; i < f->nic_count; i++) {
		const struct pst_end *end = end_of(f, &f->nics[i]);

		if (!end)
			continue;
		pst_more(line, "%-8s %s, %s, %s, %s", end->name,
			 end->model[0] ? end->model : "unknown model", end->transport,
			 end->rate[0] ? end->rate : "rate not known",
			 end->state[0] ? end->state : "state not known");
		soft += !strcmp(end->transport, "software");
		if (end->state[0] && strcmp(end->state, "ACTIVE")) {
			down++;
			first = first ? first : end;
		}
	}
	pst_spots_text(f->nics, f->nic_count, text, sizeof(text));
	if (down) {
		pst_no(line, "%s is %s%s", first->name, first->state, down > 1 ? ", and more" : "");
		if (!strcmp(first->state, "INIT"))
			pst_todo(line, "start a subnet manager (opensm) in this fabric");
	} else if (soft) {
		pst_no(line, "%u of %u are software: their CPU copies every byte", soft,
		       f->nic_count);
		pst_todo(line, "remove them from machines that have NICs: rdma link delete NAME");
	} else {
		first = end_of(f, &f->nics[0]);
		pst_ok(line, "%s, %s, %s", text,
		       first && first->rate[0] ? first->rate : "rate not known",
		       f->nic_count > 1 ? "all active" : "active");
	}
}

/* ---- RoCE ------------------------------------------------------------------------ */

/* How many entries of the table are of RoCE v2; -1: the table cannot be read. */
static int roce_v2(const struct facts *f, const char *nic)
{
	int count = 0, seen = 0;

	for (int i = 0; i < GIDS_MAX; i++) {
		char type[32];
		ssize_t got = pst_sysfs_text(&f->fs, type, sizeof(type),
					     "sys/class/infiniband/%s/ports/1/gid_attrs/types/%d",
					     nic, i);

		/* Empty entries cannot be read; the numbers may have gaps. */
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

static void look_gid(const struct facts *f, struct pst_check_line *line)
{
	unsigned i, all = 0, without = 0, hidden = 0;
	const char *first = NULL;

	for (i = 0; i < f->nic_count; i++) {
		int count;

		if (!is_ethernet(&f->nics[i]))
			continue;
		all++;
		count = roce_v2(f, f->nics[i].name);
		hidden += count < 0;
		without += count == 0;
		if (!count && !first)
			first = f->nics[i].name;
		if (count >= 0)
			pst_more(line, "%-8s %d entries of RoCE v2", f->nics[i].name, count);
	}
	if (!all)
		return;
	if (without)
		pst_no(line, "%s%s has no address of RoCE v2", first,
		       without > 1 ? " and more" : "");
	else if (hidden)
		pst_unknown(line, "the tables of addresses cannot be read");
	else
		pst_ok(line, "RoCE v2 on %s", all > 1 ? "every NIC" : "the NIC");
}

/* The network interface of an RDMA device; false: none is to be seen. */
static bool interface_of(const struct facts *f, const char *nic, char *out, size_t len)
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

static void look_mtu(const struct facts *f, struct pst_check_line *line)
{
	unsigned i, all = 0, known = 0;
	int64_t least = INT64_MAX, mtu;
	char name[64], worst[64] = "";

	for (i = 0; i < f->nic_count; i++) {
		if (!is_ethernet(&f->nics[i]))
			continue;
		all++;
		if (!interface_of(f, f->nics[i].name, name, sizeof(name)) ||
		    pst_sysfs_number(&f->fs, &mtu, "sys/class/net/%s/mtu", name) < 0)
			continue;
		known++;
		pst_more(line, "%-8s %s, MTU %lld", f->nics[i].name, name, (long long)mtu);
		if (mtu < least) {
			least = mtu;
			snprintf(worst, sizeof(worst), "%s", name);
		}
	}
	if (!all)
		return;
	if (!known) {
		pst_unknown(line, "the NICs' network interfaces cannot be seen");
		pst_todo(line, "ip link shows the MTU (a container may hide the host's)");
	} else if (least < MTU_FULL) {
		pst_no(line, "%s has %lld: RDMA's packets are %d bytes", worst, (long long)least,
		       least >= 2200   ? 2048
		       : least >= 1150 ? 1024
				       : 512);
		if (pst_plain_name(worst))
			pst_script(line, "ip link set dev %s mtu 9000  # and on switch and peers",
				   worst);
	} else {
		pst_ok(line, "%lld: full RDMA packets of 4096 bytes", (long long)least);
	}
}

/* ---- what was counted ------------------------------------------------------------ */

static uint64_t counter(const struct facts *f, const char *nic, const char *name, bool *any)
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
	unsigned long long lost, marked; /* packets; signs of congestion by ECN */
	unsigned long long paused;	 /* pause frames of PFC, both ways */
	bool any, pfc;			 /* is anything counted; is PFC */
	const char *unpaused;		 /* lost packets and never a pause; NULL none */
};

static void add_counts(const struct facts *f, const char *nic, struct counts *all,
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
		lost += counter(f, nic, lost_names[n], &all->any);
	for (n = 0; n < sizeof(marked_names) / sizeof(marked_names[0]); n++)
		marked += counter(f, nic, marked_names[n], &all->any);
	if (interface_of(f, nic, interface, sizeof(interface)))
		pst_check_pfc(f, interface, &pfc);
	lost += pfc.discarded;
	pst_more(line, "%-8s lost %llu, congestion signs %llu", nic, lost, marked);
	if (pfc.known)
		pst_more(line, "%-8s pause frames of PFC: %llu received, %llu sent", nic,
			 pfc.received, pfc.sent);
	if (lost && pfc.known && !pfc.received && !pfc.sent)
		all->unpaused = nic;
	all->lost += lost;
	all->marked += marked;
	all->paused += pfc.received + pfc.sent;
	all->pfc |= pfc.known;
}

static void look_congestion(const struct facts *f, struct pst_check_line *line)
{
	struct counts all = {.any = false};
	unsigned i, nics = 0;
	char pauses[64] = "";

	for (i = 0; i < f->nic_count; i++) {
		if (!is_ethernet(&f->nics[i]))
			continue;
		nics++;
		add_counts(f, f->nics[i].name, &all, line);
	}
	if (!nics)
		return;
	if (all.pfc)
		snprintf(pauses, sizeof(pauses), ", %llu pause frames of PFC", all.paused);
	if (!all.any && !all.pfc) {
		pst_unknown(line, "the NICs show no counters of loss, ECN and PFC here");
	} else if (all.lost) {
		pst_no(line,
		       "%llu packets lost or late since the counters began, %llu signs of "
		       "congestion%s",
		       all.lost, all.marked, pauses);
		if (all.unpaused)
			pst_todo(line,
				 "turn PFC on for RoCE's priority, on NIC and switch: %s never "
				 "saw a pause frame",
				 all.unpaused);
	} else {
		pst_ok(line, "no packet lost, %llu signs of congestion by ECN%s", all.marked,
		       pauses);
	}
}

/* ---- NVMe over fabrics ------------------------------------------------------------ */

static bool is_fabric(const char *transport)
{
	return !strcmp(transport, "rdma") || !strcmp(transport, "tcp") ||
	       !strcmp(transport, "fc") || !strcmp(transport, "loop");
}

static void list_session(const struct facts *f, const struct pst_end *end,
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
	pst_more(line, "%-6s %s, %s, %s queues of %s%s%s", end->name, end->transport,
		 end->state[0] ? end->state : "state not known", queues, depth, nqn[0] ? ", " : "",
		 nqn);
}

/* Is this controller one that the check is about? */
static bool wanted(const struct facts *f, const struct pst_end *end)
{
	unsigned i;

	if (end->kind != PST_END_DRIVE || !is_fabric(end->transport))
		return false;
	for (i = 0; i < f->drive_count; i++)
		if (!strcmp(f->drives[i].name, end->name))
			return true;
	return !f->has_file;
}

static void look_nvmeof(const struct facts *f, struct pst_check_line *line)
{
	unsigned count = 0, dead = 0, tcp = 0;
	const struct pst_end *first = NULL;
	char transports[64] = "";
	size_t i;

	for (i = 0; i < f->topo->end_count; i++) {
		const struct pst_end *end = &f->topo->ends[i];

		if (!wanted(f, end))
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
		pst_no(line, "%u of %u sessions not live: %s is %s", dead, count, first->name,
		       first->state);
		if (f->has_file && dead == count)
			line->need = PST_NEED_WORK;
		pst_script(line, "nvme list-subsys  # then nvme connect-all, or the target's log");
	} else if (tcp) {
		pst_ok(line, "%u session%s live (%s); the CPU copies what comes by tcp", count,
		       count == 1 ? "" : "s", transports);
	} else {
		pst_ok(line, "%u session%s live (%s)", count, count == 1 ? "" : "s", transports);
	}
}

const struct gate pst_check_fabric_gates[] = {
	{"rdma", PST_CHECK_FABRIC, PST_NEED_SPEED, look_rdma,
	 "remote storage reaches memory without the CPU only through an active RDMA NIC",
	 "plug in the cable or open the switch's port: rdma link shows the state"},
	{"roce", PST_CHECK_FABRIC, PST_NEED_SPEED, look_gid,
	 "RDMA over Ethernet is routed only with RoCE v2 addresses",
	 "give the NIC's network interface an IP address: the table fills by itself"},
	{"mtu", PST_CHECK_FABRIC, PST_NEED_SPEED, look_mtu,
	 "short packets cost the NICs more work for the same bytes",
	 "set an MTU of 9000 on interface, switch and peers alike"},
	{"congestion", PST_CHECK_FABRIC, PST_NEED_SPEED, look_congestion,
	 "a packet that RoCE loses is sent again with all that came after it",
	 "set PFC or ECN on switch and NICs, alike on all of the way"},
	{"nvme-of", PST_CHECK_FABRIC, PST_NEED_SPEED, look_nvmeof,
	 "a session that is not live serves no reads; its I/O waits or fails",
	 "nvme list-subsys shows paths and states; reconnect, or look at the target"},
	{.name = NULL},
};
