/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the output of `penstock topo --json` and builds the links of the model `contention` from
 * it, which form a tree. A stream is a flow of bytes between a GPU and another device. Stream
 * number i belongs to GPU i modulo the number of GPUs. Its other end is the memory of the GPU's
 * NUMA node, or the nearest drive or network card.
 */
#include "model_topo.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "contention.h"
#include "model_json.h"

#define DEVICES 160
#define BRIDGES 512
#define CHAIN 8

struct link {
	double mts, width, gbps; /* megatransfers/s, number of lanes, GB/s (0: unknown) */
};

struct device {
	char kind[8];
	int node;
	struct link link;
	char chain[CHAIN][20]; /* addresses of the bridges up to the root, nearest first */
	unsigned chain_count;
	/* indices of the bridges that are upstream ports of switches, the nearest first */
	unsigned ups[CHAIN], up_count;
};

struct bridge {
	char address[20], role[16];
	struct link link;
	unsigned number; /* number of the switch to which the bridge belongs */
};

struct model_topo {
	struct device devices[DEVICES], device;
	struct bridge bridges[BRIDGES], bridge;
	unsigned device_count, bridge_count, switch_count;
	bool is_topo, too_large;
};

static void text_keep(char *out, size_t len, const char *text)
{
	snprintf(out, len, "%s", text);
}

/* Computes the bandwidth of a PCIe link in GB/s from its transfer rate and width. `code` is the
 * share of the bits that are data, which depends on the generation. */
static void link_finish(struct link *l)
{
	double code = l->mts >= 64000 ? 236.0 / 256 : l->mts >= 8000 ? 128.0 / 130 : 0.8;

	l->gbps = l->mts * l->width / 8 * 1e-3 * code;
}

static void link_value(struct link *l, const char *key, double number)
{
	if (!strcmp(key, "mts"))
		l->mts = number;
	else if (!strcmp(key, "width"))
		l->width = number;
}

static void device_value(struct model_topo *t, const char *key, const struct model_json_value *v)
{
	struct device *d = &t->device;

	if (!strcmp(key, "kind") && v->text)
		text_keep(d->kind, sizeof(d->kind), v->text);
	else if (!strcmp(key, "numa") && v->number >= 0 && v->number < 8)
		d->node = (int)v->number;
	else if (!strncmp(key, "link.", 5))
		link_value(&d->link, key + 5, v->number);
	else if (!strcmp(key, "bridges") && v->text && d->chain_count < CHAIN)
		text_keep(d->chain[d->chain_count++], sizeof(d->chain[0]), v->text);
}

static void bridge_value(struct model_topo *t, const char *key, const struct model_json_value *v)
{
	struct bridge *b = &t->bridge;

	if (!strcmp(key, "bdf") && v->text)
		text_keep(b->address, sizeof(b->address), v->text);
	else if (!strcmp(key, "role") && v->text)
		text_keep(b->role, sizeof(b->role), v->text);
	else if (!strncmp(key, "link.", 5))
		link_value(&b->link, key + 5, v->number);
}

static void device_end(struct model_topo *t)
{
	link_finish(&t->device.link);
	if (t->device_count < DEVICES)
		t->devices[t->device_count++] = t->device;
	else
		t->too_large = true;
	memset(&t->device, 0, sizeof(t->device));
}

static void bridge_end(struct model_topo *t)
{
	link_finish(&t->bridge.link);
	if (!strcmp(t->bridge.role, "switch-up"))
		t->bridge.number = t->switch_count++;
	if (t->bridge_count < BRIDGES && t->switch_count <= 64)
		t->bridges[t->bridge_count++] = t->bridge;
	else
		t->too_large = true;
	memset(&t->bridge, 0, sizeof(t->bridge));
}

static void topo_value(void *arg, const struct model_json_value *v)
{
	struct model_topo *t = arg;

	if (!strcmp(v->path, "schema") && v->text)
		t->is_topo = !strncmp(v->text, "penstock-topo-", 14);
	else if (v->kind == MODEL_JSON_END && !strcmp(v->path, "devices"))
		device_end(t);
	else if (v->kind == MODEL_JSON_END && !strcmp(v->path, "bridges"))
		bridge_end(t);
	else if (!strncmp(v->path, "devices.", 8))
		device_value(t, v->path + 8, v);
	else if (!strncmp(v->path, "bridges.", 8))
		bridge_value(t, v->path + 8, v);
}

/* Finds the switches between a device and the root. */
static void switches_find(struct model_topo *t, struct device *d)
{
	for (unsigned i = 0; i < d->chain_count; i++)
		for (unsigned k = 0; k < t->bridge_count; k++)
			if (!strcmp(t->bridges[k].role, "switch-up") &&
			    !strcmp(t->bridges[k].address, d->chain[i]))
				d->ups[d->up_count++] = k;
}

const char *model_topo_parse(char *text, size_t len, struct model_topo *t, unsigned *line)
{
	const char *wrong = model_json_walk(text, len, topo_value, t, line);

	if (wrong)
		return wrong;
	*line = 1;
	if (!t->is_topo)
		return "this is not the output of 'penstock topo --json'";
	if (t->too_large)
		return "the machine has more devices than a model holds";
	for (unsigned i = 0; i < t->device_count; i++)
		switches_find(t, &t->devices[i]);
	if (!model_topo_gpus(t))
		return "the machine has no GPU";
	return NULL;
}

size_t model_topo_bytes(void)
{
	return sizeof(struct model_topo);
}

struct model_topo *model_topo_read(const char *path)
{
	struct model_topo *t = calloc(1, sizeof(*t));
	size_t len;
	unsigned line;
	const char *wrong;
	char *text = t ? model_file_read(path, &len) : NULL;

	if (!text) {
		free(t);
		return NULL;
	}
	wrong = model_topo_parse(text, len, t, &line);
	free(text);
	if (!wrong)
		return t;
	fail(EXIT_FAILED, "%s: line %u: %s", path, line, wrong);
	free(t);
	return NULL;
}

unsigned model_topo_gpus(const struct model_topo *t)
{
	unsigned count = 0;

	for (unsigned i = 0; i < t->device_count; i++)
		count += !strcmp(t->devices[i].kind, "gpu");
	return count;
}

/* ---- the tree ---- */

struct build {
	const struct model_topo *t;
	const struct pst_model *m;
	const double *in;
	struct pst_sim_net *net;
	unsigned memory[8], uplink[64], uplink_up[64], crossbar[64], device[DEVICES];
	/* for each device: number of streams that have this drive or network card as their other
	 * end */
	unsigned used[DEVICES];
};

static double param(const struct build *b, const char *name)
{
	return b->in[pst_model_param_index(b->m, name)];
}

static void links_build(struct build *b)
{
	unsigned numbers[3] = {0};

	for (unsigned i = 0; i < 8; i++)
		b->memory[i] = pst_contention_link(b->net, PST_SIM_MEMORY, i, false,
						   param(b, "memory-gbps"));
	for (unsigned i = 0; i < b->t->bridge_count; i++) {
		const struct bridge *one = &b->t->bridges[i];
		double gbps = one->link.gbps > 0 ? one->link.gbps : param(b, "uplink-gbps");

		if (strcmp(one->role, "switch-up") != 0)
			continue;
		b->uplink[one->number] =
			pst_contention_link(b->net, PST_SIM_UPLINK, one->number, false, gbps);
		b->uplink_up[one->number] =
			pst_contention_link(b->net, PST_SIM_UPLINK, one->number, true, gbps);
		b->crossbar[one->number] = pst_contention_link(
			b->net, PST_SIM_CROSSBAR, one->number, false, param(b, "crossbar-gbps"));
	}
	for (unsigned i = 0; i < b->t->device_count; i++) {
		const struct device *d = &b->t->devices[i];
		bool gpu = !strcmp(d->kind, "gpu"), drive = !strcmp(d->kind, "drive");
		unsigned kind = gpu ? 0 : drive ? 1 : 2;
		double most = param(b, gpu ? "gpu-gbps" : drive ? "drive-gbps" : "nic-gbps");

		/* The parameter is a drive's or network card's own speed. The link may be slower,
		 * and then it limits the device. For a GPU, the link's bandwidth replaces the
		 * parameter. */
		if (d->link.gbps > 0 && (gpu || d->link.gbps < most))
			most = d->link.gbps;
		b->device[i] = pst_contention_link(b->net, (enum pst_sim_kind)(PST_SIM_GPU + kind),
						   numbers[kind]++, false, most);
	}
}

/* Returns the number of switches that the paths of `a` and `b` to the root have in common. */
static unsigned common_switches(const struct device *a, const struct device *b)
{
	unsigned n = 0;

	while (n < a->up_count && n < b->up_count &&
	       a->ups[a->up_count - 1 - n] == b->ups[b->up_count - 1 - n])
		n++;
	return n;
}

/* Returns the index of the device of kind `kind` (drive or network card) that is nearest to a GPU
 * or, if `far` is set, farthest from it. If several have the same distance, returns the one with
 * the fewest streams. Returns -1 if the machine has no such device. */
static int partner_find(struct build *b, const struct device *gpu, const char *kind, bool far)
{
	int best = -1, best_rank = 0;

	for (unsigned i = 0; i < b->t->device_count; i++) {
		const struct device *d = &b->t->devices[i];
		int rank = d->node == gpu->node ? 1 : 0;

		if (strcmp(d->kind, kind) != 0)
			continue;
		if (common_switches(d, gpu))
			rank = 1 + (int)common_switches(d, gpu);
		if (far)
			rank = -rank;
		if (best >= 0 &&
		    (rank < best_rank || (rank == best_rank && b->used[i] >= b->used[best])))
			continue;
		best = (int)i;
		best_rank = rank;
	}
	if (best >= 0)
		b->used[best]++;
	return best;
}

/* Appends to the stream's path the links from device `from` to the GPU. If `from` is NULL, the
 * path starts at the memory of the GPU's NUMA node. */
static void path_build(struct build *b, struct pst_sim_stream *s, const struct device *from,
		       const struct device *gpu)
{
	unsigned common = from ? common_switches(from, gpu) : 0;
	unsigned at;

	if (!from)
		pst_contention_hop(s, b->memory[gpu->node]);
	for (unsigned i = 0; from && i + common < from->up_count; i++) {
		at = b->t->bridges[from->ups[i]].number;
		pst_contention_hop(s, b->crossbar[at]);
		pst_contention_hop(s, b->uplink_up[at]);
	}
	if (common)
		pst_contention_hop(
			s, b->crossbar[b->t->bridges[gpu->ups[gpu->up_count - common]].number]);
	for (unsigned i = gpu->up_count - common; i-- > 0;) {
		at = b->t->bridges[gpu->ups[i]].number;
		pst_contention_hop(s, b->uplink[at]);
		pst_contention_hop(s, b->crossbar[at]);
	}
}

static const char *stream_build(struct build *b, unsigned i)
{
	static const char *const kinds[] = {NULL, "drive", "nic", "drive"};
	unsigned traffic = (unsigned)param(b, "traffic"), skip = i % model_topo_gpus(b->t), g = 0;
	struct pst_sim_stream *s = &b->net->streams[i];
	int partner = -1;

	while (strcmp(b->t->devices[g].kind, "gpu") != 0 || skip--)
		g++;
	s->hops = 0;
	pst_contention_hop(
		s, pst_contention_link(b->net, PST_SIM_SOURCE, i, false, param(b, "stream-gbps")));
	if (kinds[traffic]) {
		partner = partner_find(b, &b->t->devices[g], kinds[traffic], traffic == 3);
		if (partner < 0)
			return traffic == 2 ? "the topology has no network card"
					    : "the topology has no drive";
		pst_contention_hop(s, b->device[partner]);
	}
	path_build(b, s, partner < 0 ? NULL : &b->t->devices[partner], &b->t->devices[g]);
	pst_contention_hop(s, b->device[g]);
	for (unsigned a = 0, z = s->hops - 1; param(b, "direction") > 0 && a < z; a++, z--) {
		uint16_t link = s->path[a];

		s->path[a] = s->path[z];
		s->path[z] = link;
	}
	return NULL;
}

const char *model_topo_build(const struct model_topo *t, const struct pst_model *m,
			     const double *in, struct pst_model_space *space)
{
	struct build b = {.t = t, .m = m, .in = in, .net = &space->net};

	space->given = true;
	space->net.link_count = 0;
	space->net.stream_count = PST_SIM_STREAMS;
	links_build(&b);
	for (unsigned i = 0; i < PST_SIM_STREAMS; i++) {
		const char *wrong = stream_build(&b, i);

		if (wrong)
			return wrong;
	}
	return NULL;
}
