/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `penstock check` found: a line for each gate between storage and device, in
 * three layers, and what follows from them. The one header that the command sees;
 * gate.h is for the gates themselves. core does not know this folder. It must never
 * call a path open because nothing could be seen: what cannot be read is unknown.
 */
#ifndef PST_CHECK_CHECK_H
#define PST_CHECK_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "penstock.h"

#define PST_CHECK_LINES_MAX 48
#define PST_CHECK_MORE_MAX 4096

enum pst_check_layer { PST_CHECK_DEVICE, PST_CHECK_FABRIC, PST_CHECK_FILE, PST_CHECK_LAYERS };

enum pst_check_state {
	PST_CHECK_NOT_HERE, /* the gate does not exist on this way: it gets no line */
	PST_CHECK_OK,
	PST_CHECK_NO,
	PST_CHECK_UNKNOWN,
};

/* What a gate that is shut costs. */
enum pst_check_need {
	PST_NEED_NOTHING, /* nothing here: other transports and other software need it */
	PST_NEED_SPEED,	  /* bytes arrive by the same path, slower */
	PST_NEED_DIRECT,  /* without it nothing is direct */
	PST_NEED_NO_COPY, /* without it the CPU copies every byte */
	PST_NEED_WORK,	  /* without it no byte arrives */
};

struct pst_check_line {
	const char *name; /* static, as all but the arrays */
	enum pst_check_layer layer;
	enum pst_check_state state;
	enum pst_check_need need;
	char seen[PENSTOCK_TEXT_MAX];  /* one line */
	char more[PST_CHECK_MORE_MAX]; /* lines, for --verbose; "" none */
	const char *why;	       /* why the gate matters */
	char todo[PENSTOCK_TEXT_MAX];  /* the one thing to do; "" when ok */
	char script[8192];	       /* shell lines that do it; "" none */
};

/* One path of the probe. */
struct pst_check_path {
	struct penstock_explain_path explained;
	bool measured;
	bool cached;	 /* what was measured came out of the page cache */
	double gb_per_s; /* 10^9 bytes a second */
	double cpu_copies, dram_passes;
	char error[PENSTOCK_TEXT_MAX]; /* it was open and failed: why; "" */
};

struct pst_check {
	const char *target; /* PATH or URL; NULL none */
	char machine[PENSTOCK_TEXT_MAX];
	char device[PENSTOCK_TEXT_MAX]; /* what the bytes shall reach */
	struct pst_check_line lines[PST_CHECK_LINES_MAX];
	unsigned line_count;
	bool captured; /* the facts are not this machine's */

	bool probed;
	char engine[64];
	int cold, warm; /* index of the path that would be used; -1 none */
	struct pst_check_path paths[PENSTOCK_PATHS_MAX];
	unsigned path_count;

	/* The verdict. `known` false: a gate that it rests on is unknown. */
	bool works, known;
	enum penstock_class reached;
	char verdict[PENSTOCK_TEXT_MAX];
};

struct pst_check_opts {
	const char *root;   /* facts are read beneath it; NULL: this machine */
	const char *target; /* a path or URL; NULL: device and fabric only */
	const char *device; /* as penstock_device_open takes it; NULL: "auto" */
	bool quick;	    /* milliseconds for each path in place of a second */
};

/*
 * Looks at everything, on the real machine with a file also by a scratch file beside
 * it, which is gone however this ends. 0 and *out, to be freed with pst_check_free;
 * or -errno with a sentence in `why`: -ENOENT there is no such path, -ENODEV no such
 * device, -EINVAL a capture that is none. Blocks for seconds.
 */
int pst_check_run(const struct pst_check_opts *opts, struct pst_check **out, char *why,
		  size_t why_len);
void pst_check_free(struct pst_check *check);

#endif
