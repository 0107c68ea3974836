/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the PCIe tree of the model `contention` and keeps the details of its last run. The command
 * prints these details, and it builds a tree of its own from the output of `penstock topo --json`.
 */
#ifndef PST_MODEL_CONTENTION_H
#define PST_MODEL_CONTENTION_H

#include "table.h"
#include "sim.h"

struct pst_model_space {
	struct pst_sim_net net;
	struct pst_sim_result result;
	double closed[PST_SIM_STREAMS]; /* bytes a second of each stream, in closed form */
	bool simulated;			/* whether `result` is valid */
	/*
	 * If `given` is set, the model uses `net` instead of a tree from the parameters. The
	 * parameters of the streams still apply, and `streams` says how many of them to use.
	 */
	bool given;
	bool rates_only; /* whether to skip the slow search for the best number of streams */
	/* The simulator's memory follows at the end. */
	_Alignas(16) unsigned char sim[];
};

/* Returns the size of struct pst_model_space in bytes. The caller allocates that many zero bytes,
 * and may pass them to any number of runs, one at a time. */
unsigned long pst_model_space_bytes(void);

/* Adds a link to a net and returns its index. Returns 0 if the net is full. */
unsigned pst_contention_link(struct pst_sim_net *net, enum pst_sim_kind kind, unsigned number,
			     bool reverse, double gbps);
/* Appends a link to the path of a stream. */
void pst_contention_hop(struct pst_sim_stream *s, unsigned link);
/* Writes the name of a link, such as "uplink 1", to `buf` and returns it. */
const char *pst_contention_link_name(const struct pst_sim_link *l, char *buf, unsigned len);

#endif
