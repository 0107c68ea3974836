/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions to build the PCIe tree of the model `contention`, and the memory that the model needs
 * for a run. After the run, this memory has the bandwidth of each stream and the use of each link,
 * which `penstock model contention` prints. With the option --topo, the command builds a tree
 * itself, from the output of `penstock topo --json`.
 */
#ifndef PST_MODEL_CONTENTION_H
#define PST_MODEL_CONTENTION_H

#include "table.h"
#include "sim.h"

struct pst_model_space {
	struct pst_sim_net net;
	struct pst_sim_result result;
	/* bytes a second of each stream, computed with a formula, without the simulator */
	double closed[PST_SIM_STREAMS];
	bool simulated; /* whether the last run used the simulator, so that `result` is valid */
	/*
	 * The caller sets `given` if it has filled `net` itself. The model then builds no tree from
	 * its parameters. It uses the first streams of `net`, as many as the parameter `streams`
	 * says. The other parameters of streams, such as `depth`, still apply.
	 */
	bool given;
	/* set to skip the result best-streams, for which the model tries up to 64 numbers of
	 * streams */
	bool rates_only;
	/* memory of the simulator: struct pst_sim, which only sim.c defines */
	_Alignas(16) unsigned char sim[];
};

/* Returns the size in bytes of struct pst_model_space with the simulator's memory. The caller
 * allocates that many zero bytes. They serve any number of runs, one at a time. */
unsigned long pst_model_space_bytes(void);

/* Adds a link of `gbps` GB/s to a net and returns its index in net->links. `number` is its number
 * among the links of its kind. If the net is full (PST_SIM_LINKS), adds nothing and returns 0. */
unsigned pst_contention_link(struct pst_sim_net *net, enum pst_sim_kind kind, unsigned number,
			     bool reverse, double gbps);
/* Appends link number `link` of the net to the path of a stream. Does nothing if the path already
 * has PST_SIM_HOPS links. */
void pst_contention_hop(struct pst_sim_stream *s, unsigned link);
/* Writes the name of a link, such as "uplink 1", to `buf` of `len` bytes, and returns `buf`. If the
 * name is too long for `buf`, writes "". */
const char *pst_contention_link_name(const struct pst_sim_link *l, char *buf, unsigned len);

#endif
