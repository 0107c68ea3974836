/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulates data streams that share links, event by event. Also computes the streams' rates with a
 * formula, the closed form. A stream sends chunks of bytes over the links of its path. A link sends
 * one unit at a time, and an arbiter chooses the stream whose unit is next. A unit is a chunk, or
 * in the exact mode one TLP (PCIe packet).
 *
 * The rates of the chunk mode, of the exact mode and of the closed form differ by at most 1 % if
 * each stream has two or more chunks in flight. If it has one, they differ by up to 30 %. The same
 * arguments always give the same result: events at the same time keep their order, and random
 * numbers come from the seed.
 */
#ifndef PST_MODEL_SIM_H
#define PST_MODEL_SIM_H

#include <stdbool.h>
#include <stdint.h>

#define PST_SIM_LINKS 512
#define PST_SIM_STREAMS 64
#define PST_SIM_HOPS 12
/* Largest number of units in flight. A unit is a chunk, or one TLP (PCIe packet) in the exact
 * mode. */
#define PST_SIM_UNITS 32768
/* Number of buckets in the histogram of the chunks' latencies in nanoseconds: 32 for each of 40
 * powers of two. */
#define PST_SIM_BUCKETS (40 * 32)

enum pst_sim_kind {
	PST_SIM_MEMORY,
	PST_SIM_UPLINK,
	PST_SIM_CROSSBAR,
	PST_SIM_GPU,
	PST_SIM_DRIVE,
	PST_SIM_NIC,
	/* an imaginary link for one stream, which limits it to the bandwidth of its source */
	PST_SIM_SOURCE,
};
/* The names of the kinds, in the order of enum pst_sim_kind, separated by '|'. */
#define PST_SIM_KINDS "memory|uplink|crossbar|gpu|drive|nic|source"

enum pst_sim_arbiter { PST_SIM_RR, PST_SIM_WRR, PST_SIM_WFQ, PST_SIM_PRIORITY };

struct pst_sim_link {
	enum pst_sim_kind kind;
	unsigned number;    /* number of the link among the links of its kind, from 0 */
	bool reverse;	    /* true for the direction of an uplink that leads away from the GPUs */
	bool packets;	    /* whether the link carries TLPs (PCIe packets), which have overhead */
	double bytes_per_s; /* bandwidth, which payload and overhead share */
	double latency_ns;
	double switch_ns; /* additional time of a chunk that follows another stream's chunk */
};

struct pst_sim_stream {
	uint16_t path[PST_SIM_HOPS]; /* indexes of the links that a chunk passes, in this order */
	unsigned hops;
	double weight; /* share of a link relative to other streams, for the arbiters wrr and wfq */
	unsigned priority; /* the arbiter `priority` serves streams with higher numbers first */
};

struct pst_sim_net {
	struct pst_sim_link links[PST_SIM_LINKS];
	struct pst_sim_stream streams[PST_SIM_STREAMS];
	unsigned link_count, stream_count;
};

struct pst_sim_opts {
	unsigned chunk, payload, overhead; /* bytes */
	unsigned depth;			   /* number of chunks that each stream keeps in flight */
	enum pst_sim_arbiter arbiter;
	double jitter; /* largest random change of a unit's time on a link: 0.02 is up to 2 % */
	uint64_t seed;
	double seconds; /* simulated time; the rates and latencies leave out the first tenth */
	bool exact;	/* exact mode: simulates each TLP (PCIe packet) instead of whole chunks */
};

struct pst_sim_result {
	double stream_bytes_per_s[PST_SIM_STREAMS];
	/* for each link: share of the measured time in which it was busy, from 0 to 1 */
	double link_use[PST_SIM_LINKS];
	/* Bytes of the whole simulation: sent by the streams, arrived at the end of their paths,
	 * and still in flight at the end. The first number is the sum of the others. */
	uint64_t bytes_in, bytes_out, bytes_inside;
	uint64_t events;
	uint32_t latency[PST_SIM_BUCKETS];
};

/* The memory that a simulation needs. Only sim.c uses its contents. The caller allocates
 * pst_sim_bytes() bytes for it. */
struct pst_sim;
unsigned long pst_sim_bytes(void);

/* Simulates the streams of `net` and stores the results in *out. Returns NULL, or an error message
 * if the net has too many streams or links, no stream, or too many units in flight. */
const char *pst_sim_run(struct pst_sim *sim, const struct pst_sim_net *net,
			const struct pst_sim_opts *opts, struct pst_sim_result *out);

/* Returns a percentile of the chunks' latencies in ns, such as the median for p = 0.5. The share
 * `p` of the measured chunks had at most this latency. The value is rounded up by at most 3 %.
 * Values below 32 ns become 33 ns. Returns NaN if no chunk was measured. */
double pst_sim_percentile(const struct pst_sim_result *r, double p);

/* Returns how many bytes of payload a link carries in a second. If `shared` is true, chunks of
 * several streams alternate on the link, so that each chunk also takes the link's switch time. */
double pst_sim_capacity(const struct pst_sim_link *l, const struct pst_sim_opts *o, bool shared);

/* Computes the rate of each stream in bytes a second with a formula, without a simulation. The
 * rates are weighted max-min fair shares of the links' capacity. A stream has at most `depth`
 * chunks in flight, so its rate is at most depth * chunk / time of one chunk on idle links. */
void pst_sim_closed(const struct pst_sim_net *net, const struct pst_sim_opts *opts, double *rates);

#endif
