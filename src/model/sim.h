/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulates streams of chunks over links, event by event, and computes the shares of the streams in
 * closed form. A link serves one unit at a time, and an arbiter chooses the stream whose unit is
 * next. A unit is a chunk, or one TLP (PCIe packet) in the exact mode. The rates in both modes and
 * in closed form differ by at most 1 % if each stream has two or more chunks in flight. If it has
 * one, they differ by up to 30 %. The result depends only on the arguments: events at the same time
 * keep their order, and random numbers come from the seed.
 */
#ifndef PST_MODEL_SIM_H
#define PST_MODEL_SIM_H

#include <stdbool.h>
#include <stdint.h>

#define PST_SIM_LINKS 512
#define PST_SIM_STREAMS 64
#define PST_SIM_HOPS 12
/* Largest number of units in flight. */
#define PST_SIM_UNITS 32768
/* Number of buckets of the histogram of latencies: 32 for each power of two, in nanoseconds. */
#define PST_SIM_BUCKETS (40 * 32)

enum pst_sim_kind {
	PST_SIM_MEMORY,
	PST_SIM_UPLINK,
	PST_SIM_CROSSBAR,
	PST_SIM_GPU,
	PST_SIM_DRIVE,
	PST_SIM_NIC,
	PST_SIM_SOURCE, /* the limit of one stream's own source */
};
/* The names of the kinds, in the order of enum pst_sim_kind, separated by '|'. */
#define PST_SIM_KINDS "memory|uplink|crossbar|gpu|drive|nic|source"

enum pst_sim_arbiter { PST_SIM_RR, PST_SIM_WRR, PST_SIM_WFQ, PST_SIM_PRIORITY };

struct pst_sim_link {
	enum pst_sim_kind kind;
	unsigned number;    /* its number among the links of its kind */
	bool reverse;	    /* whether it leads away from the GPUs */
	bool packets;	    /* whether it carries TLPs, which have overhead */
	double bytes_per_s; /* bandwidth, including the overhead of TLPs */
	double latency_ns;
	double switch_ns; /* additional time of a chunk that follows another stream's chunk */
};

struct pst_sim_stream {
	uint16_t path[PST_SIM_HOPS]; /* indexes of the links, in the order of their use */
	unsigned hops;
	double weight;	   /* share, for the arbiters wrr and wfq */
	unsigned priority; /* the arbiter `priority` prefers higher numbers */
};

struct pst_sim_net {
	struct pst_sim_link links[PST_SIM_LINKS];
	struct pst_sim_stream streams[PST_SIM_STREAMS];
	unsigned link_count, stream_count;
};

struct pst_sim_opts {
	unsigned chunk, payload, overhead; /* bytes */
	unsigned depth;			   /* chunks in flight for each stream */
	enum pst_sim_arbiter arbiter;
	double jitter; /* fraction by which the time on a link varies at random */
	uint64_t seed;
	double seconds; /* simulated time; the first tenth is not measured */
	bool exact;	/* exact mode: a unit is a TLP, not a chunk */
};

struct pst_sim_result {
	double stream_bytes_per_s[PST_SIM_STREAMS];
	double link_use[PST_SIM_LINKS]; /* share of the measured time in which it is busy, 0 to 1 */
	/* bytes that were sent, that have arrived, and that are in flight at the end of the run */
	uint64_t bytes_in, bytes_out, bytes_inside;
	uint64_t events;
	uint32_t latency[PST_SIM_BUCKETS];
};

/* Memory of a run; its contents belong to sim.c. */
struct pst_sim;
unsigned long pst_sim_bytes(void);

/* Runs the simulation. Returns NULL, or a message if the network or the options do not fit. */
const char *pst_sim_run(struct pst_sim *sim, const struct pst_sim_net *net,
			const struct pst_sim_opts *opts, struct pst_sim_result *out);

/* Returns the latency in ns that a share `p` (0 to 1) of the measured chunks did not exceed, or NaN
 * if there were no chunks. The value is rounded up by at most 3 %. */
double pst_sim_percentile(const struct pst_sim_result *r, double p);

/* Returns how many bytes of payload a second a link carries. `shared` means that chunks of several
 * streams alternate, so that each chunk also takes the link's switch time. */
double pst_sim_capacity(const struct pst_sim_link *l, const struct pst_sim_opts *o, bool shared);

/* Computes the rate of each stream in bytes a second: weighted max-min fair shares of the links,
 * each at most depth * chunk / round trip. */
void pst_sim_closed(const struct pst_sim_net *net, const struct pst_sim_opts *opts, double *rates);

#endif
