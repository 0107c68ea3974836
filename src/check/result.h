/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options and the result of `penstock check`. A gate is a condition of a path between storage
 * and device. The result has one line for each gate, one entry for each measured path, and the
 * verdict, which follows from these lines and entries. The gates fill in the result, and the
 * command prints it. A gate whose facts cannot be read gets the state unknown, never ok.
 */
#ifndef PST_CHECK_RESULT_H
#define PST_CHECK_RESULT_H

#include <stdbool.h>
#include <stddef.h>

#include "penstock.h"

#define PST_CHECK_LINES_MAX 48
#define PST_CHECK_MORE_MAX 4096

struct pst_check_opts {
	/* folder of a capture, which holds copies of another machine's /sys and /proc files;
	 * NULL checks the running machine */
	const char *root;
	/* path or URL to check; NULL checks only the device and the fabric */
	const char *target;
	/* device name as for penstock_device_open(); NULL stands for "auto" */
	const char *device;
	/* measure each path for 50 ms instead of a second */
	bool quick;
};

enum pst_check_layer { PST_CHECK_DEVICE, PST_CHECK_FABRIC, PST_CHECK_FILE, PST_CHECK_LAYERS };

enum pst_check_state {
	PST_CHECK_NOT_HERE, /* The gate does not apply here and gets no line. */
	PST_CHECK_OK,
	PST_CHECK_NO,
	PST_CHECK_UNKNOWN,
};

/* The effect of a gate (a condition of a path) that is not open. The values are ordered from
 * harmless to fatal. */
enum pst_check_need {
	/* The gate has no effect on Penstock; only other transports or other software need it. */
	PST_NEED_NOTHING,
	/* While the gate is not open, the same path carries the bytes, but more slowly. */
	PST_NEED_SPEED,
	PST_NEED_DIRECT,  /* While the gate is not open, no path is direct. */
	PST_NEED_NO_COPY, /* While the gate is not open, the CPU copies every byte. */
	PST_NEED_WORK,	  /* While the gate is not open, no byte arrives. */
};

/* The output line of one gate, with its finding. Strings behind pointers are static. */
struct pst_check_line {
	const char *name;
	enum pst_check_layer layer;
	enum pst_check_state state;
	enum pst_check_need need;
	char seen[PENSTOCK_TEXT_MAX];  /* the finding, in one line */
	char more[PST_CHECK_MORE_MAX]; /* further lines for --verbose; "" if there are none */
	const char *why;	       /* the reason why the gate matters */
	char todo[PENSTOCK_TEXT_MAX];  /* the action to take; "" if the state is ok */
	/* shell commands that open the gate; "" if there are none */
	char script[8192];
};

/* The measurement of one path. */
struct pst_check_path {
	struct penstock_explain_path explained;
	bool measured;
	bool cached;	 /* whether the measured bytes came from the page cache */
	double gb_per_s; /* speed in 10^9 bytes per second */
	double cpu_copies, dram_passes;
	/* reason why the test transfer on this path failed; "" if it did not fail */
	char error[PENSTOCK_TEXT_MAX];
};

struct pst_check {
	const char *target; /* path or URL to check; NULL if none was given */
	char machine[PENSTOCK_TEXT_MAX];
	char device[PENSTOCK_TEXT_MAX]; /* description of the device that receives the bytes */
	struct pst_check_line lines[PST_CHECK_LINES_MAX];
	unsigned line_count;
	bool captured; /* whether the facts are copies from another machine */

	bool probed;
	char engine[64];
	/* index in `paths` of the path for uncached bytes, and of the path for cached bytes; -1
	 * if there is no such path */
	int cold, warm;
	struct pst_check_path paths[PENSTOCK_PATHS_MAX];
	unsigned path_count;

	/* The verdict. `known` is false if the verdict depends on a gate whose state is unknown. */
	bool works, known;
	enum penstock_class reached;
	char verdict[PENSTOCK_TEXT_MAX];
};

#endif
