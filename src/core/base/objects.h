/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's storages and devices: opening by name, and the table that makes a
 * device one per process. objects.c is the only place that walks the backends.
 */
#ifndef PST_CORE_OBJECTS_H
#define PST_CORE_OBJECTS_H

#include "core/ops.h"

/* A storage over a table of the caller's choice: for backends under test. */
int pst_storage_open_ops(const struct pst_storage_ops *ops, const char *url, int fd,
			 const struct penstock_storage_opts *opts, struct penstock_storage **out,
			 struct pst_err *err);

/* Starts the device's pump once. */
int pst_device_start_pump(struct penstock_device *dev, struct pst_err *err);

/* Every pump's lanes drop what they keep of a storage that closes. */
void pst_pumps_invalidate(struct penstock_storage *st);

/* Devices stay while requests of other pumps have parts on them; bit i: device i. */
void pst_devices_hold(uint64_t mask);
void pst_devices_release(uint64_t mask);

/* The device that a pointer belongs to, NULL if none of the open ones. */
struct penstock_device *pst_device_find(const void *ptr);

/* Index of a path by name, -1: none. */
int pst_path_index(const char *name);

/* Copies a struct of the caller's size over zeros: what we do not know of it must be
 * zero, what it does not have is. */
int pst_struct_copy_in(void *into, size_t ours, const void *from, const char *what,
		       struct pst_err *err);
/* The other way: as much of ours as the caller's struct holds. */
int pst_struct_copy_out(void *into, const void *ours, size_t size);

/* Counts forks: an object made under another count belongs to the parent. */
unsigned pst_fork_generation(void);
/* -EOWNERDEAD for such an object: a child may use nothing of its parent's. */
int pst_fork_check(unsigned made, struct pst_err *err);

#endif
