/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scenario with one failure, in a process of its own, so that what a library makes once
 * is among what fails: its outcome, and what it leaves behind when all is closed. Used by
 * who fails each allocation and who fails each call of the driver.
 */
#ifndef PENSTOCK_FAULT_AFRESH_H
#define PENSTOCK_FAULT_AFRESH_H

#include "world.h"

/* What a child leaves for its parent. */
struct afresh {
	int ret;			/* of the scenario that met the fault */
	long blocks, mapped, fds, live; /* in the end; live: of the stand-in */
	char text[400];			/* why the case fails, or empty */
};

/* The first that is said stays. */
#define afresh_say(out, ...)                                                     \
	do {                                                                     \
		if (!(out)->text[0])                                             \
			snprintf((out)->text, sizeof((out)->text), __VA_ARGS__); \
	} while (0)

/* `len` bytes that a child and its parent both see, all 0; NULL: none. */
void *afresh_shared(size_t len);
/* Runs child(arg) in a process of its own with a clock, and waits; then `out` is complete. */
void afresh_run(void (*child)(void *arg), void *arg, struct afresh *out);
/* That it left no more than an untouched one did; `lax`: of the stand-in it may. */
void afresh_judge(struct afresh *out, const struct afresh *clean, bool lax);

/* A function of the stand-in's own; NULL where it is not loaded. */
void *afresh_standin(const char *function);

/* A device with little pinned memory; *ret is 0 or the error. */
struct penstock_device *afresh_device(const char *name, const char *engine, int *ret);
/* Reads `len` bytes in the order of the default stream: 0 or an error. */
int afresh_read_stream(struct penstock_storage *st, struct penstock_device *dev, void *mem,
		       uint64_t len, struct afresh *out);

#endif
