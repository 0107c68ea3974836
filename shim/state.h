/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one state of the drop-in in a process: the lock, the configuration and the devices.
 * open.c fills it, driver.c empties it.
 * Lock order: shim.lock, then the locks of batch.c and async.c, then the others, none of which is
 * held while another is taken.
 */
#ifndef SHIM_STATE_H
#define SHIM_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "config.h"
#include "penstock.h"

#define SHIM_GPUS_MAX 64 /* ordinals of GPUs that the drop-in can use */

struct shim {
	pthread_mutex_t lock;
	_Atomic bool open;
	bool was_open;		   /* the driver was opened at least once; under lock */
	bool params_fixed;	   /* a call before the open fixed the parameters; under lock */
	long uses;		   /* number of opens without a close; under lock */
	_Atomic int require;	   /* enum penstock_class of every transfer */
	_Atomic int version;	   /* the version that shim_version returns, 0: not read yet */
	struct shim_config config; /* valid while the driver is open; under lock */
	_Atomic(struct penstock_device *) host;
	_Atomic(struct penstock_device *) gpus[SHIM_GPUS_MAX];
	/* Collects completed stream requests. async.c sets it with its first request. */
	void (*_Atomic harvest)(void);
};
extern struct shim shim;

/* Returns the cuFile version, as 1150 for 1.15, that decides the layout of statistics. */
int shim_version(void);
/* Returns the device of a GPU, which its first use opens, or a code. CUF_DRIVER_CLOSING: the
 * driver was closed meanwhile. */
int shim_gpu(int ordinal, struct penstock_device **dev);
/* Does the same as shim_gpu; the caller holds shim.lock. */
int shim_gpu_locked(int ordinal, struct penstock_device **dev);
/* Collects completed stream requests: releases their files and counts their results. */
void shim_harvest(void);

#endif
