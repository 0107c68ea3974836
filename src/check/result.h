/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options and the result of `penstock check`. The result has one line for each gate
 * between storage and device, one entry for each measured path, and the verdict that follows
 * from them. The gates fill it, and the command prints it. A gate whose facts cannot be read
 * is unknown, never open.
 */
#ifndef PST_CHECK_RESULT_H
#define PST_CHECK_RESULT_H

#include <stdbool.h>
#include <stddef.h>

#include "penstock.h"

#define PST_CHECK_LINES_MAX 48
#define PST_CHECK_MORE_MAX 4096

struct pst_check_opts {
	const char *root;   /* folder that holds the facts of a capture; NULL: this machine */
	const char *target; /* path or URL; NULL: check device and fabric only */
	const char *device; /* device name as in penstock_device_open(); NULL: "auto" */
	bool quick;	    /* measure each path for milliseconds instead of a second */
};

enum pst_check_layer { PST_CHECK_DEVICE, PST_CHECK_FABRIC, PST_CHECK_FILE, PST_CHECK_LAYERS };

enum pst_check_state {
	PST_CHECK_NOT_HERE, /* The gate does not exist on this route and gets no line. */
	PST_CHECK_OK,
	PST_CHECK_NO,
	PST_CHECK_UNKNOWN,
};

/* The loss that a shut gate causes. The values are ordered from harmless to fatal. */
enum pst_check_need {
	PST_NEED_NOTHING, /* No loss: only other transports and other software need the gate. */
	PST_NEED_SPEED,	  /* The same path carries the bytes, at lower speed. */
	PST_NEED_DIRECT,  /* No path is direct. */
	PST_NEED_NO_COPY, /* The CPU copies every byte. */
	PST_NEED_WORK,	  /* No byte arrives. */
};

/* The finding of one gate. Strings behind pointers are static. */
struct pst_check_line {
	const char *name;
	enum pst_check_layer layer;
	enum pst_check_state state;
	enum pst_check_need need;
	char seen[PENSTOCK_TEXT_MAX];  /* the finding, in one line */
	char more[PST_CHECK_MORE_MAX]; /* further lines for --verbose; "": none */
	const char *why;	       /* the reason why the gate matters */
	char todo[PENSTOCK_TEXT_MAX];  /* the one action to take; "" if the state is ok */
	char script[8192];	       /* shell commands that open the gate; "": none */
};

/* The measurement of one path. */
struct pst_check_path {
	struct penstock_explain_path explained;
	bool measured;
	bool cached;	 /* the measured bytes came from the page cache */
	double gb_per_s; /* 10^9 bytes per second */
	double cpu_copies, dram_passes;
	char error[PENSTOCK_TEXT_MAX]; /* why an open path failed; "": it did not */
};

struct pst_check {
	const char *target; /* path or URL; NULL: none */
	char machine[PENSTOCK_TEXT_MAX];
	char device[PENSTOCK_TEXT_MAX]; /* destination of the bytes */
	struct pst_check_line lines[PST_CHECK_LINES_MAX];
	unsigned line_count;
	bool captured; /* the facts come from the capture of a machine */

	bool probed;
	char engine[64];
	int cold, warm; /* indexes of the paths for uncached and for cached bytes; -1: none */
	struct pst_check_path paths[PENSTOCK_PATHS_MAX];
	unsigned path_count;

	/* The verdict. `known` is false if it depends on a gate whose state is unknown. */
	bool works, known;
	enum penstock_class reached;
	char verdict[PENSTOCK_TEXT_MAX];
};

#endif
