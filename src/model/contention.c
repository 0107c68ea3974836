/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model `contention`. It computes the bandwidth of several data streams that share the links of
 * a PCIe tree. A stream runs between a GPU and host memory, a drive or a network card. The model
 * builds the tree from its parameters. It then computes each stream's bandwidth twice: with a
 * closed formula, and with the simulator in sim.c.
 */
#include "contention.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "models.h"

enum {
	STREAMS,
	GPUS,
	SWITCHES,
	SOCKETS,
	PLACEMENT,
	TRAFFIC,
	DIRECTION,
	SOURCE,
	GPU,
	UPLINK,
	CROSSBAR,
	MEMORY,
	DRIVES,
	DRIVE,
	NICS,
	NIC,
	PAYLOAD,
	OVERHEAD,
	CHUNK,
	DEPTH,
	HOP_NS,
	SWITCH_NS,
	ARBITER,
	HIGH,
	HIGH_WEIGHT,
	JITTER,
	SEED,
	DURATION,
	EXACT,
	PARAMS
};

enum { HOST_TRAFFIC, DRIVE_TRAFFIC, NIC_TRAFFIC, REMOTE_TRAFFIC };

#define GEN5 "PCIe Gen5 x16: 32 GT/s * 16 * 128/130 / 8"

static const struct pst_model_param params[] = {
	[STREAMS] = {"streams", "count", NULL, 8, 1, PST_SIM_STREAMS,
		     "streams; stream i uses GPU "
		     "i modulo gpus",
		     "one for each GPU"},
	[GPUS] = {"gpus", "count", NULL, 8, 1, 64, "GPUs", "HGX"},
	[SWITCHES] = {"switches", "count", NULL, 2, 1, 16, "PCIe switches", "published example"},
	[SOCKETS] = {"sockets", "count", NULL, 1, 1, 8, "memories that the switches share",
		     "one, the pessimistic case"},
	[PLACEMENT] = {"placement", "", "spread|packed", 0, 0, 0,
		       "whether GPUs are dealt to the switches in turn or fill one after the other",
		       "the first streams use different switches"},
	[TRAFFIC] = {"traffic", "", "host|drive|nic|remote-drive", 0, 0, 0,
		     "other end of the streams: host memory, a drive or NIC below the same switch, "
		     "or a drive below the next switch",
		     "copies from host memory"},
	[DIRECTION] = {"direction", "", "to-gpu|from-gpu", 0, 0, 0, "direction of the bytes",
		       "reads"},
	[SOURCE] = {"stream-gbps", "GB/s", NULL, 1000, 0.001, 1e6, "limit of a stream's own source",
		    "none"},
	[GPU] = {"gpu-gbps", "GB/s", NULL, 63, 0.001, 1e6,
		 "bandwidth of a GPU's link, one direction", GEN5},
	[UPLINK] = {"uplink-gbps", "GB/s", NULL, 63, 0.001, 1e6,
		    "bandwidth between a switch and the host, one direction", GEN5},
	[CROSSBAR] = {"crossbar-gbps", "GB/s", NULL, 1000, 0.001, 1e6, "bandwidth inside a switch",
		      "not blocking"},
	[MEMORY] = {"memory-gbps", "GB/s", NULL, 200, 0.001, 1e6,
		    "bandwidth of a socket's memory for these streams",
		    "eight channels of DDR5-4800 have 307 GB/s, of which streams reach two thirds"},
	[DRIVES] = {"drives", "count", NULL, 8, 1, 64, "drives, dealt to the switches in turn",
		    "one for each GPU"},
	[DRIVE] = {"drive-gbps", "GB/s", NULL, 14.2, 0.001, 1e6, "bandwidth of a drive",
		   "published example: 14.2 GB/s alone"},
	[NICS] = {"nics", "count", NULL, 8, 1, 64, "network cards, dealt to the switches in turn",
		  "one for each GPU"},
	[NIC] = {"nic-gbps", "GB/s", NULL, 50, 0.001, 1e6, "bandwidth of a network card",
		 "400 Gbit/s"},
	[PAYLOAD] = {"payload", "bytes", NULL, 256, 64, 4096, "payload of a TLP (PCIe packet)",
		     "common Max_Payload_Size"},
	[OVERHEAD] = {"overhead", "bytes", NULL, 24, 0, 256, "other bytes of a TLP",
		      "PCIe 5.0: framing 4, header of 64-bit addresses 16, LCRC 4"},
	[CHUNK] = {"chunk", "bytes", NULL, 65536, 64, 1 << 30, "bytes of a DMA chunk",
		   "an example"},
	[DEPTH] = {"depth", "count", NULL, 8, 1, 256, "chunks in flight of a stream",
		   "an example; enough to fill the links"},
	[HOP_NS] = {"hop-ns", "ns", NULL, 150, 0, 1e6, "latency of a hop",
		    "switch data sheets, 100 to 200 ns"},
	[SWITCH_NS] = {"switch-ns", "ns", NULL, 0, 0, 1e6,
		       "additional time of a chunk that follows a chunk of another stream",
		       "none: a fitted parameter"},
	[ARBITER] = {"arbitration", "", "rr|wrr|wfq|priority", 0, 0, 0,
		     "order of the streams on a link: round robin, weighted round robin, weighted "
		     "fair, strict priority",
		     "PCIe's default for ports"},
	[HIGH] = {"high-streams", "count", NULL, 0, 0, PST_SIM_STREAMS,
		  "first streams that are in the high traffic class", "none"},
	[HIGH_WEIGHT] = {"high-weight", "count", NULL, 4, 1, 1000,
			 "weight of a high stream, with wrr and wfq", "an example"},
	[JITTER] = {"jitter", "ratio", NULL, 0.02, 0, 0.9, "random variation of the time on a link",
		    "an example"},
	[SEED] = {"seed", "count", NULL, 1, 0, 9007199254740991.0, "seed of the random numbers",
		  "any"},
	[DURATION] = {"duration-ms", "ms", NULL, 20, 0, 10000,
		      "simulated time; 0: only the closed form", "enough for 1 % accuracy"},
	[EXACT] = {"exact", "", "chunks|tlps", 0, 0, 0, "unit that the simulator moves",
		   "chunks are a thousand times quicker"},
};

enum {
	TOTAL,
	MEAN,
	LEAST,
	MOST,
	FAIR,
	P50,
	P99,
	P999,
	BUSIEST,
	BUSIEST_USE,
	CLOSED_TOTAL,
	CLOSED_LEAST,
	DIFFERENCE,
	BEST_STREAMS,
	BEST_TOTAL,
	ALONE,
	SHARE_ALONE,
	EVENTS,
	RESULTS
};

#define SIMULATED "discrete-event simulation, src/model/sim.c"
#define MAXMIN "weighted max-min fairness, Bertsekas and Gallager 1992"

static const struct pst_model_result results[] = {
	[TOTAL] = {"total-gbps", "GB/s", NULL, "bytes a second of all streams",
		   "simulated; closed-total-gbps if duration-ms is 0", SIMULATED},
	[MEAN] = {"stream-gbps", "GB/s", NULL, "mean of the streams", "total-gbps / streams",
		  SIMULATED},
	[LEAST] = {"slowest-stream-gbps", "GB/s", NULL, "slowest stream", "min", SIMULATED},
	[MOST] = {"fastest-stream-gbps", "GB/s", NULL, "fastest stream", "max", SIMULATED},
	[FAIR] = {"fairness", "ratio", NULL,
		  "1 if all streams are equal, 1 / streams if one has "
		  "everything",
		  "(sum x)^2 / (streams * sum x^2)", "Jain, Chiu and Hawe 1984"},
	[P50] = {"p50-us", "us", NULL, "median time of a chunk", "histogram, rounded by up to 3 %",
		 SIMULATED},
	[P99] = {"p99-us", "us", NULL, "time that 99 % do not exceed", "as p50-us", SIMULATED},
	[P999] = {"p999-us", "us", NULL, "time that 99.9 % do not exceed", "as p50-us", SIMULATED},
	[BUSIEST] = {"busiest-link", "", PST_SIM_KINDS, "kind of the link with the highest use",
		     "argmax", SIMULATED},
	[BUSIEST_USE] = {"busiest-use", "ratio", NULL, "share of the time in which it is busy",
			 "busy time / duration", SIMULATED},
	[CLOSED_TOTAL] = {"closed-total-gbps", "GB/s", NULL,
			  "bytes a second of all streams in closed form",
			  "sum of max-min fair shares", MAXMIN},
	[CLOSED_LEAST] = {"closed-slowest-gbps", "GB/s", NULL, "slowest stream in closed form",
			  "min of the shares", MAXMIN},
	[DIFFERENCE] = {"difference", "ratio", NULL, "simulation against closed form",
			"total-gbps / closed-total-gbps - 1", "check"},
	[BEST_STREAMS] = {"best-streams", "count", NULL,
			  "fewest streams that reach 99 % of the most bytes a second",
			  "closed form for 1 to 64 streams", MAXMIN},
	[BEST_TOTAL] = {"best-total-gbps", "GB/s", NULL, "bytes a second of so many streams",
			"closed form", MAXMIN},
	[ALONE] = {"alone-gbps", "GB/s", NULL, "one stream alone", "closed form for 1 stream",
		   MAXMIN},
	[SHARE_ALONE] = {"kept-share", "ratio", NULL, "what a stream keeps of that, on average",
			 "stream-gbps / alone-gbps", "ratio"},
	[EVENTS] = {"events", "count", NULL, "events of the simulation", "counted", SIMULATED},
};

unsigned pst_contention_link(struct pst_sim_net *net, enum pst_sim_kind kind, unsigned number,
			     bool reverse, double gbps)
{
	struct pst_sim_link *l;

	if (net->link_count == PST_SIM_LINKS)
		return 0;
	l = &net->links[net->link_count];
	memset(l, 0, sizeof(*l));
	l->kind = kind;
	l->number = number;
	l->reverse = reverse;
	l->packets = kind == PST_SIM_UPLINK || kind == PST_SIM_CROSSBAR || kind == PST_SIM_GPU;
	l->bytes_per_s = gbps * 1e9;
	return net->link_count++;
}

void pst_contention_hop(struct pst_sim_stream *s, unsigned link)
{
	if (s->hops < PST_SIM_HOPS)
		s->path[s->hops++] = (uint16_t)link;
}

const char *pst_contention_link_name(const struct pst_sim_link *l, char *buf, unsigned len)
{
	unsigned word_len, at = 0, digits = 1;
	const char *word = pst_model_choice(PST_SIM_KINDS, l->kind, &word_len);

	for (unsigned n = l->number; n >= 10; n /= 10)
		digits++;
	if (word_len + 1 + digits + (l->reverse ? 3 : 0) + 1 > len) {
		buf[0] = '\0';
		return buf;
	}
	memcpy(buf, word, word_len);
	at = word_len;
	buf[at++] = ' ';
	for (unsigned n = l->number, i = digits; i-- > 0; n /= 10)
		buf[at + i] = (char)('0' + n % 10);
	at += digits;
	memcpy(buf + at, l->reverse ? " up" : "", l->reverse ? 4 : 1);
	return buf;
}

/* ---- the tree ---- */

/* For each kind of link: the index of its first link in the array pst_sim_net.links. The links of a
 * kind follow each other there. */
struct tree {
	unsigned memory, uplink, uplink_up, crossbar, gpu, drive, nic, source;
};

static unsigned links_add(struct pst_sim_net *net, enum pst_sim_kind kind, bool reverse,
			  double count, double gbps)
{
	unsigned first = net->link_count;

	for (unsigned i = 0; i < (unsigned)count; i++)
		pst_contention_link(net, kind, i, reverse, gbps);
	return first;
}

static unsigned switch_of(const double *in, unsigned gpu)
{
	if (in[PLACEMENT] > 0)
		return gpu / (unsigned)ceil(in[GPUS] / in[SWITCHES]);
	return gpu % (unsigned)in[SWITCHES];
}

/* Returns the number of the drive or network card that stream `i` uses, out of the devices below
 * switch `sw`. The streams use these devices in turn. There are `count` devices in all, and device
 * d is below switch d modulo the number of switches. */
static unsigned device_of(const double *in, double count, unsigned sw, unsigned i)
{
	unsigned switches = (unsigned)in[SWITCHES];
	unsigned below = ((unsigned)count - 1 - sw) / switches + 1;

	return sw + switches * ((i / switches) % below);
}

/* Appends the links that stream `i` passes to its path, in the order from the memory, drive or
 * network card to the GPU. For the other direction, the caller reverses the path. */
static void path_build(const double *in, const struct tree *t, struct pst_sim_stream *s, unsigned i)
{
	unsigned gpu = i % (unsigned)in[GPUS], sw = switch_of(in, gpu), far;
	unsigned switches = (unsigned)in[SWITCHES];

	pst_contention_hop(s, t->source + i);
	switch ((int)in[TRAFFIC]) {
	case HOST_TRAFFIC:
		pst_contention_hop(s, t->memory + sw * (unsigned)in[SOCKETS] / switches);
		pst_contention_hop(s, t->uplink + sw);
		break;
	case DRIVE_TRAFFIC:
		pst_contention_hop(s, t->drive + device_of(in, in[DRIVES], sw, i));
		break;
	case NIC_TRAFFIC:
		pst_contention_hop(s, t->nic + device_of(in, in[NICS], sw, i));
		break;
	default:
		far = (sw + 1) % switches;
		pst_contention_hop(s, t->drive + device_of(in, in[DRIVES], far, i));
		pst_contention_hop(s, t->crossbar + far);
		pst_contention_hop(s, t->uplink_up + far);
		pst_contention_hop(s, t->uplink + sw);
	}
	pst_contention_hop(s, t->crossbar + sw);
	pst_contention_hop(s, t->gpu + gpu);
}

static void path_reverse(struct pst_sim_stream *s)
{
	for (unsigned a = 0, b = s->hops - 1; a < b; a++, b--) {
		uint16_t link = s->path[a];

		s->path[a] = s->path[b];
		s->path[b] = link;
	}
}

static void net_build(const double *in, unsigned streams, struct pst_sim_net *net)
{
	struct tree t;

	net->link_count = 0;
	net->stream_count = streams;
	t.memory = links_add(net, PST_SIM_MEMORY, false, in[SOCKETS], in[MEMORY]);
	t.uplink = links_add(net, PST_SIM_UPLINK, false, in[SWITCHES], in[UPLINK]);
	t.uplink_up = links_add(net, PST_SIM_UPLINK, true, in[SWITCHES], in[UPLINK]);
	t.crossbar = links_add(net, PST_SIM_CROSSBAR, false, in[SWITCHES], in[CROSSBAR]);
	t.gpu = links_add(net, PST_SIM_GPU, false, in[GPUS], in[GPU]);
	t.drive = links_add(net, PST_SIM_DRIVE, false, in[DRIVES], in[DRIVE]);
	t.nic = links_add(net, PST_SIM_NIC, false, in[NICS], in[NIC]);
	t.source = links_add(net, PST_SIM_SOURCE, false, streams, in[SOURCE]);
	for (unsigned i = 0; i < streams; i++) {
		net->streams[i].hops = 0;
		path_build(in, &t, &net->streams[i], i);
		if (in[DIRECTION] > 0)
			path_reverse(&net->streams[i]);
	}
}

/* Sets the weight and priority of each stream, and the latency and switch time of each link, from
 * the model's parameters. */
static void net_finish(const double *in, struct pst_sim_net *net)
{
	for (unsigned i = 0; i < net->stream_count; i++) {
		bool high = i < (unsigned)in[HIGH];

		net->streams[i].weight = high ? in[HIGH_WEIGHT] : 1;
		net->streams[i].priority = high;
	}
	for (unsigned i = 0; i < net->link_count; i++) {
		bool own = net->links[i].kind == PST_SIM_SOURCE;

		net->links[i].latency_ns = own ? 0 : in[HOP_NS];
		net->links[i].switch_ns = own ? 0 : in[SWITCH_NS];
	}
}

/* ---- the results ---- */

static double closed_total(const struct pst_sim_net *net, const struct pst_sim_opts *opts,
			   double *rates, double *least)
{
	double total = 0;

	pst_sim_closed(net, opts, rates);
	*least = INFINITY;
	for (unsigned i = 0; i < net->stream_count; i++) {
		total += rates[i];
		*least = fmin(*least, rates[i]);
	}
	return total * 1e-9;
}

/* Sets out[BEST_STREAMS] to the fewest streams whose total bandwidth is at least 99 % of the
 * maximum. Tries all numbers of streams, up to 64 or to the streams of a given tree. Also sets
 * out[BEST_TOTAL] to their total, and out[ALONE] to the bandwidth of one stream. Changes
 * space->net, so the caller must build the tree again. */
static void best_find(const double *in, const struct pst_sim_opts *opts,
		      struct pst_model_space *space, double *out)
{
	double totals[PST_SIM_STREAMS + 1] = {0}, most = 0, least;
	unsigned limit = space->given ? space->net.stream_count : PST_SIM_STREAMS;

	for (unsigned n = 1; n <= limit; n++) {
		if (space->given)
			space->net.stream_count = n;
		else
			net_build(in, n, &space->net);
		net_finish(in, &space->net);
		totals[n] = closed_total(&space->net, opts, space->closed, &least);
		most = fmax(most, totals[n]);
	}
	out[ALONE] = totals[1];
	for (unsigned n = limit; n > 0; n--)
		if (totals[n] >= 0.99 * most)
			out[BEST_STREAMS] = n;
	out[BEST_TOTAL] = totals[(unsigned)out[BEST_STREAMS]];
}

static void streams_report(const struct pst_model_space *space, double *out)
{
	const double *rates = space->simulated ? space->result.stream_bytes_per_s : space->closed;
	unsigned n = space->net.stream_count;
	double sum = 0, squares = 0;

	out[LEAST] = INFINITY;
	out[MOST] = 0;
	for (unsigned i = 0; i < n; i++) {
		sum += rates[i] * 1e-9;
		squares += rates[i] * 1e-9 * (rates[i] * 1e-9);
		out[LEAST] = fmin(out[LEAST], rates[i] * 1e-9);
		out[MOST] = fmax(out[MOST], rates[i] * 1e-9);
	}
	out[TOTAL] = sum;
	out[MEAN] = sum / n;
	out[FAIR] = squares > 0 ? sum * sum / (n * squares) : NAN;
	out[SHARE_ALONE] = out[MEAN] / out[ALONE];
}

static void simulation_report(const struct pst_model_space *space, double *out)
{
	out[P50] = pst_sim_percentile(&space->result, 0.5) * 1e-3;
	out[P99] = pst_sim_percentile(&space->result, 0.99) * 1e-3;
	out[P999] = pst_sim_percentile(&space->result, 0.999) * 1e-3;
	out[BUSIEST_USE] = 0;
	for (unsigned i = 0; i < space->net.link_count; i++) {
		if (space->result.link_use[i] <= out[BUSIEST_USE])
			continue;
		out[BUSIEST_USE] = space->result.link_use[i];
		out[BUSIEST] = space->net.links[i].kind;
	}
	out[DIFFERENCE] = out[TOTAL] / out[CLOSED_TOTAL] - 1;
	out[EVENTS] = (double)space->result.events;
}

static const char *params_wrong(const double *in, const struct pst_model_space *space)
{
	bool drives = in[TRAFFIC] == DRIVE_TRAFFIC || in[TRAFFIC] == REMOTE_TRAFFIC;

	if (space->given)
		return in[STREAMS] > space->net.stream_count
			       ? "the topology has fewer streams than `streams`"
			       : NULL;
	if (drives && in[DRIVES] < in[SWITCHES])
		return "each switch needs a drive: give at least as many drives as switches";
	if (in[TRAFFIC] == NIC_TRAFFIC && in[NICS] < in[SWITCHES])
		return "each switch needs a network card: give at least as many nics as switches";
	if (in[TRAFFIC] == REMOTE_TRAFFIC && in[SWITCHES] < 2)
		return "remote-drive needs two switches";
	return NULL;
}

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	const struct pst_sim_opts opts = {
		.chunk = (unsigned)in[CHUNK],
		.payload = (unsigned)in[PAYLOAD],
		.overhead = (unsigned)in[OVERHEAD],
		.depth = (unsigned)in[DEPTH],
		.arbiter = (enum pst_sim_arbiter)in[ARBITER],
		.jitter = in[JITTER],
		.seed = (uint64_t)in[SEED],
		.seconds = in[DURATION] * 1e-3,
		.exact = in[EXACT] > 0,
	};
	const char *wrong = params_wrong(in, space);
	unsigned given = space->net.stream_count;

	if (wrong)
		return wrong;
	for (unsigned i = 0; i < RESULTS; i++)
		out[i] = NAN;
	if (!space->rates_only)
		best_find(in, &opts, space, out);
	if (!space->given)
		net_build(in, (unsigned)in[STREAMS], &space->net);
	space->net.stream_count = (unsigned)in[STREAMS];
	net_finish(in, &space->net);
	out[CLOSED_TOTAL] = closed_total(&space->net, &opts, space->closed, &out[CLOSED_LEAST]);
	out[CLOSED_LEAST] *= 1e-9;
	space->simulated = in[DURATION] > 0;
	if (space->simulated)
		wrong = pst_sim_run((struct pst_sim *)(void *)space->sim, &space->net, &opts,
				    &space->result);
	if (!wrong) {
		streams_report(space, out);
		if (space->simulated)
			simulation_report(space, out);
	}
	if (space->given) /* restores the count, as a later run may use more streams of this net */
		space->net.stream_count = given;
	return wrong;
}

unsigned long pst_model_space_bytes(void)
{
	return sizeof(struct pst_model_space) + pst_sim_bytes();
}

static const struct pst_model_preset presets[] = {
	{"published-plain",
	 "8 GPUs and drives below two switches, plain link arithmetic",
	 "published example: 14.2 GB/s alone",
	 {{"traffic", DRIVE_TRAFFIC}, {"streams", 8}}},
	{"published-fit",
	 "the same, with crossbar-gbps fitted to 6.3 GB/s for each of eight",
	 "published example; 4 * 6.3 GB/s with the overhead of TLPs",
	 {{"traffic", DRIVE_TRAFFIC}, {"streams", 8}, {"crossbar-gbps", 27.5625}}},
	{"h200x8",
	 "8 H200 that copy from host memory, each below a port of its own",
	 "fitted to 55.4, 98 and 117 GB/s for one, two and four GPUs, measured; two sockets are a "
	 "guess",
	 {{"switches", 8},
	  {"sockets", 2},
	  {"placement", 1},
	  {"uplink-gbps", 1000},
	  {"gpu-gbps", 57},
	  {"memory-gbps", 117}}},
	{"two-on-one",
	 "two streams on one link",
	 "limit that must hold: each has half",
	 {{"gpus", 1}, {"switches", 1}, {"streams", 2}}},
};

const struct pst_model pst_model_contention = {
	.name = "contention",
	.summary = "streams that share the links of a PCIe tree, simulated",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
