/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of `penstock load` share: its arguments, and one load by one process,
 * which with --ranks lies in memory that the others see. Never more than the command's.
 */
#ifndef PENSTOCK_CLI_LOAD_H
#define PENSTOCK_CLI_LOAD_H

#include <signal.h>

#include "cli.h"
#include "penstock_weights.h"

#define RANKS_MAX PENSTOCK_GROUP_MAX
#define DEVICES_MAX RANKS_MAX /* each may be a rank's */
#define WORDS_MAX 64
_Static_assert(WORDS_MAX <= DEVICES_MAX, "there is room for all devices that are named");

struct words {
	char *text; /* cut at its commas */
	const char *list[WORDS_MAX];
	unsigned count;
};

struct args {
	const char *model, *engine;
	struct words devices, stripes;
	const char *names[WORDS_MAX];
	struct penstock_weights_opts open;
	struct penstock_load_opts load;
	struct penstock_shard_opts shard;
	struct penstock_group_opts group;
	bool verify, json, quiet, effort_asked;
	uint64_t ranks; /* processes, 0: this one */
};

struct part { /* what one device got, in one process */
	char name[64];
	uint64_t bytes;
	double took;
};

struct loading {
	const struct args *a;
	struct penstock_weights *w;
	struct penstock_device *devs[DEVICES_MAX];
	unsigned dev_count;
	struct penstock_group *group; /* NULL: alone */
	struct penstock_loaded *loaded;
	struct penstock_load_report report;
	struct tally tally;
	struct part parts[RANKS_MAX]; /* of each device, or of each rank */
	unsigned part_count, files;
	uint64_t total, tensors;
	double start, shown, took;
	bool verified;
	int code;
	char text[512];
};

extern volatile sig_atomic_t load_stopped; /* by this signal, 0: not */
/* SIGINT, SIGTERM and SIGHUP set it, or end the process: if not `caught`, and the second of
 * a kind unless it is `always`. */
void load_catch_signals(bool caught, bool always);

/* The first failure is the one that is told; _lib: the library's sentence. */
void load_note(struct loading *l, int code, const char *fmt, const char *what);
void load_note_lib(struct loading *l);

/* One process' part of it, and what it opened closed again. */
void load_do(struct loading *l);
void load_close(struct loading *l);

/* The same by a->ranks processes, their parts together in `l`. */
void load_by_ranks(struct loading *l, struct args *a);

/* Copies everything back and compares it with plain reads of the files. */
void load_verify(struct loading *l);

#endif
