/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The global state of the drop-in (Penstock's libcufile): the lock, the configuration and the
 * devices. open.c fills it, driver.c clears it.
 * Lock order: shim.lock, then the locks of batch.c and async.c, then all other locks. While a
 * thread holds one of these other locks, it takes no further lock.
 * ARCHITECTURE.md, section Words, explains the project's words.
 */
#ifndef SHIM_STATE_H
#define SHIM_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "config.h"
#include "penstock.h"

/* Number of GPUs that the drop-in can use. It ignores GPUs with larger ordinals. */
#define SHIM_GPUS_MAX 64

struct shim {
	pthread_mutex_t lock;
	_Atomic bool open;
	bool was_open; /* whether the driver was ever opened; guarded by lock */
	/* Whether the program can no longer set parameters, even while the driver is closed.
	 * Guarded by lock. */
	bool params_fixed;
	long uses;	     /* number of opens minus number of closes; guarded by lock */
	_Atomic int require; /* an enum penstock_class: kind of path that transfers need */
	_Atomic int effort;  /* an enum penstock_effort: prefer low CPU time or speed */
	_Atomic int version; /* result of shim_version, 0 if it has not been computed yet */
	/* Configuration, valid while the driver is open; guarded by lock. */
	struct shim_config config;
	_Atomic(struct penstock_device *) host;
	_Atomic(struct penstock_device *) gpus[SHIM_GPUS_MAX];
	/* Bit i is set if prepare.c has prepared GPU i, or has logged why it could not. */
	_Atomic uint64_t prepared;
	/* Function that collects completed stream requests. async.c sets it when it submits the
	 * first stream request. */
	void (*_Atomic harvest)(void);
};
extern struct shim shim;

/* Returns the version of cuFile that decides the layout of statistics, for example 1150 for
 * 1.15. */
int shim_version(void);
/* Returns 0 and the device of a GPU, or a cuFile code. Opens the device when it is first used.
 * The code is CUF_DRIVER_CLOSING if another thread has closed the driver. */
int shim_gpu(int ordinal, struct penstock_device **dev);
/* Does the same as shim_gpu, but the caller already holds shim.lock. */
int shim_gpu_locked(int ordinal, struct penstock_device **dev);
/* Collects completed stream requests: counts their results and releases their files. */
void shim_harvest(void);

#endif
