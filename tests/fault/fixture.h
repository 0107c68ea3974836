/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture of the fault tests: files of known bytes, devices with little memory, and counts of
 * open descriptors. Every test in this folder includes it. The fixture itself must not leave
 * anything open, because the cases compare the counts from before and after.
 */
#ifndef PENSTOCK_FAULT_FIXTURE_H
#define PENSTOCK_FAULT_FIXTURE_H

#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "penstock.h"

/* The bytes of a file or buffer follow a pattern that `salt` selects. fixture_byte returns
 * the byte at offset `at` of the pattern. fixture_fill writes the first `len` bytes of the
 * pattern. */
unsigned char fixture_byte(uint64_t at, unsigned salt);
void fixture_fill(unsigned char *into, uint64_t len, unsigned salt);

/* Returns the name of a file of this process in TMPDIR, or in /dev/shm if `memory` is true. */
const char *fixture_name(const char *what, bool memory);
/* Creates a file with `len` bytes of pattern `salt` and syncs it to its drive. */
void fixture_make_file(const char *name, uint64_t len, unsigned salt);
/* Overwrites the first `len` bytes of an existing file. */
void fixture_overwrite(const char *name, const void *bytes, uint64_t len);
/* Reads the file into the page cache if `warm` is true. Otherwise drops the file from the page
 * cache. */
void fixture_set_cached(const char *name, bool warm);

/* Makes the library load the simulated CUDA driver (the stand-in). Only programs in this folder
 * may use this function; those in the parent folder use test_use_standin. */
void fixture_use_standin(void);
/* Both functions open a device with little pinned memory. A slot, which is a piece of this memory,
 * has `slot` bytes, or 1 MiB if `slot` is 0. fixture_open_device opens a device with two lanes
 * (worker threads), and fixture_open_device_lanes opens one with `lanes` lanes. */
struct penstock_device *fixture_open_device(const char *name, const char *engine, size_t slot);
struct penstock_device *fixture_open_device_lanes(const char *name, const char *engine, size_t slot,
						  unsigned lanes);
/* Reports whether the engine uring opens on this machine. */
bool fixture_has_uring(void);

/* Count the open descriptors of this process. fixture_open_fds counts all descriptors except
 * io_urings, and fixture_open_rings counts only io_urings. Lanes (threads of the library) open
 * io_urings when they need them, so these are counted separately. fixture_open_fds also leaves out
 * the descriptors of the stand-in driver, which has one for each block of device memory and holds
 * one briefly while a lane pins memory. A lane may pin memory at any time. The last lane of a GPU
 * allocates device memory when it starts, and a first request does not wait for that. */
unsigned fixture_open_fds(void);
unsigned fixture_open_rings(void);

/* Returns the reason that the library gives for an errno. */
enum penstock_why fixture_errno_why(int code);

#endif
