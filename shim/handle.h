/* SPDX-License-Identifier: Apache-2.0 */
/* Registered files. A file stays open while a caller holds it, even after its deregistration. */
#ifndef SHIM_HANDLE_H
#define SHIM_HANDLE_H

#include <stdatomic.h>

#include "abi/cufile_abi.h"
#include "penstock.h"

struct shim_file {
	_Atomic uint64_t state; /* generation << 32 | LIVE | CLOSING | ENDING | users */
	struct penstock_storage *st;
	unsigned index; /* index of this entry in the table */
	int fd;		/* the caller's descriptor; dev and ino identify its file */
	uint64_t dev, ino;
	_Atomic unsigned logged; /* bitmap: 1 the first read, 2 the first write was logged */
	char *name;
	struct shim_file *next_free;
};

/* Returns the file of a handle and holds it until shim_file_leave. NULL: the handle is closed or
 * is not one of the drop-in. Any thread may call it; it takes no lock. */
struct shim_file *shim_file_enter(void *fh);
void shim_file_leave(struct shim_file *f);
/* Closes all files at the last close of the driver. Returns a code if one is in use, after a
 * short wait for calls that have just entered. The caller holds shim.lock. */
int shim_files_close(void);
/* Makes every handle invalid in the child of a fork. */
void shim_files_forked(void);

#endif
