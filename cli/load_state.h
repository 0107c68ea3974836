/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares what the files of `penstock load` share: the arguments, the state of one process's load
 * (with --ranks, it is in shared memory), failures, and the signal that stops the command.
 */
#ifndef PENSTOCK_CLI_LOAD_STATE_H
#define PENSTOCK_CLI_LOAD_STATE_H

#include <signal.h>

#include "cli.h"
#include "penstock_weights.h"

#define RANKS_MAX PENSTOCK_GROUP_MAX
#define DEVICES_MAX RANKS_MAX /* enough for one device in each rank */
#define WORDS_MAX 64
_Static_assert(WORDS_MAX <= DEVICES_MAX, "every device that is named fits");

struct words {
	char *text; /* The text of the option, with NULs in place of its commas. */
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
	uint64_t ranks; /* Number of processes to fork; 0 loads in this process. */
};

/* The result for one device in one process: number of bytes that it received, and time in s. */
struct part {
	char name[64];
	uint64_t bytes;
	double took;
};

struct loading {
	const struct args *a;
	struct penstock_weights *w;
	struct penstock_device *devs[DEVICES_MAX];
	unsigned dev_count;
	struct penstock_group *group; /* NULL if there is no group. */
	struct penstock_loaded *loaded;
	struct penstock_load_report report;
	struct tally tally;
	struct part parts[RANKS_MAX]; /* For each device; with --ranks, for each rank. */
	unsigned part_count, files;
	uint64_t total, tensors;
	double start, shown, took;
	bool verified;
	int code;
	char text[512];
};

/* Number of the signal that stopped the command; 0 if none did. */
extern volatile sig_atomic_t load_stopped;
/* If `caught` is false, SIGINT, SIGTERM and SIGHUP end the process. If `caught` is true, they only
 * set load_stopped; but without `always`, a second signal of the same kind ends the process. */
void load_catch_signals(bool caught, bool always);

/* Records a failure and its exit code. Does nothing if a failure is already recorded. */
void load_note(struct loading *l, int code, const char *fmt, const char *what);
/* Records a failure of the library, with its message and what to do next. */
void load_note_lib(struct loading *l);
/* Does the same as load_note_lib, but with an exit code that the caller chooses. */
void load_note_lib_code(struct loading *l, int code);

#endif
