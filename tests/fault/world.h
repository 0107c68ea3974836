/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of this folder share: files of known bytes, device memory seen
 * from the host, and counts of what a process has open. Must never leave anything
 * open itself: a case compares the counts before and after.
 */
#ifndef PENSTOCK_FAULT_WORLD_H
#define PENSTOCK_FAULT_WORLD_H

#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "penstock.h"

/* The byte at `at` of what `salt` names. */
unsigned char world_byte(uint64_t at, unsigned salt);
void world_fill(unsigned char *into, uint64_t len, unsigned salt);

/* A name of this process in TMPDIR, or in /dev/shm if `memory`. */
const char *world_name(const char *what, bool memory);
/* A file of `len` bytes of `salt`, on its drive. */
void world_file(const char *name, uint64_t len, unsigned salt);
/* Lays `len` bytes over the front of a file that is there. */
void world_put(const char *name, const void *bytes, uint64_t len);
/* Takes the file out of the page cache, or puts it in. */
void world_cache(const char *name, bool warm);

/* As test_use_standin, from this folder. Before the library is first used. */
void world_use_standin(void);
/* A device with little pinned memory: two lanes, slots of `slot` bytes, 0: 1 MiB. */
struct penstock_device *world_device(const char *name, const char *engine, size_t slot);
struct penstock_device *world_device_of(const char *name, const char *engine, size_t slot,
					unsigned lanes);
/* Does the engine uring open here? */
bool world_has_uring(void);

/* Open descriptors of this process, less those that the stand-in has for a moment while it
 * pins memory: a lane that nobody waits for may be at it at any time; io_urings, which a
 * device's lanes open when they need them, apart. */
unsigned world_fds(void);
unsigned world_rings(void);

/* What an errno is called in a report. */
enum penstock_why world_why(int code);

#endif
