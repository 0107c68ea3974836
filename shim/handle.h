/* SPDX-License-Identifier: Apache-2.0 */
/* The table of registered files. A file stays open while a cuFile call uses it, even if the program
 * deregisters it meanwhile. */
#ifndef SHIM_HANDLE_H
#define SHIM_HANDLE_H

#include <stdatomic.h>

#include "abi/cufile_abi.h"
#include "penstock.h"

struct shim_file {
	/* generation << 32 | LIVE | CLOSING | ENDING | number of calls using it */
	_Atomic uint64_t state;
	struct penstock_storage *st;
	unsigned index; /* index of this entry in the table */
	int fd;		/* the program's descriptor; `dev` and `ino` identify the file */
	int access; /* access mode of the descriptor: O_RDONLY, O_WRONLY or O_RDWR */
	uint64_t dev, ino;
	/* Bitmap of logged transfers: bit 0 is set after the first read, bit 1 after the first
	 * write. */
	_Atomic unsigned logged;
	char *name;
	struct shim_file *next_free;
};

/* Returns the file of a handle, which stays open until the caller calls shim_file_leave. Returns
 * NULL if the handle is closed or was not made by the drop-in. Any thread may call this function;
 * it takes no lock. */
struct shim_file *shim_file_enter(void *fh);
void shim_file_leave(struct shim_file *f);
/* Returns whether the open flags of a handle's descriptor permit the operation `op` (read or
 * write). Returns true for a wrong handle, because the transfer itself reports that error. */
bool shim_file_permits(void *fh, enum penstock_op op);
/* Closes all files at the last close of the driver. Waits a short time for cuFile calls that still
 * use a file. Returns a cuFile code if a call uses a file even after the wait. The caller holds
 * shim.lock. */
int shim_files_close(void);
/* Makes every handle invalid in the child of a fork. */
void shim_files_forked(void);

#endif
