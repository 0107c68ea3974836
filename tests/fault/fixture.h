/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the fault tests: files of known bytes, devices with little memory, and counts of
 * open descriptors. Every test in this folder includes it. It must not leave anything open
 * itself, because the cases compare these counts before and after.
 */
#ifndef PENSTOCK_FAULT_FIXTURE_H
#define PENSTOCK_FAULT_FIXTURE_H

#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "penstock.h"

/* Return the byte at `at` of the pattern `salt`, and fill memory with the pattern. */
unsigned char fixture_byte(uint64_t at, unsigned salt);
void fixture_fill(unsigned char *into, uint64_t len, unsigned salt);

/* Returns a file name of this process in TMPDIR, or in /dev/shm if `memory`. */
const char *fixture_name(const char *what, bool memory);
/* Creates a file with `len` bytes of pattern `salt` and syncs it to its drive. */
void fixture_make_file(const char *name, uint64_t len, unsigned salt);
/* Overwrites the first `len` bytes of an existing file. */
void fixture_overwrite(const char *name, const void *bytes, uint64_t len);
/* Brings the file into the page cache, or drops it from there. */
void fixture_set_cached(const char *name, bool warm);

/* Makes the library load the stand-in driver, as test_use_standin does for programs one folder
 * up. */
void fixture_use_standin(void);
/* Open a device with little pinned memory: slots of `slot` bytes (0: 1 MiB), two or `lanes`
 * lanes. */
struct penstock_device *fixture_open_device(const char *name, const char *engine, size_t slot);
struct penstock_device *fixture_open_device_lanes(const char *name, const char *engine, size_t slot,
						  unsigned lanes);
/* Reports whether the engine uring opens on this machine. */
bool fixture_has_uring(void);

/* Count the open descriptors of this process: all but io_urings, and io_urings only. The first
 * count leaves out descriptors that the stand-in driver holds briefly while a lane pins memory,
 * because such a lane may run at any time. Lanes open io_urings when they need them. */
unsigned fixture_open_fds(void);
unsigned fixture_open_rings(void);

/* Returns the reason with which the library reports an errno. */
enum penstock_why fixture_errno_why(int code);

#endif
