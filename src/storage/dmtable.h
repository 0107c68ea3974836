/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out how a device-mapper device maps its bytes: linear, striped, crypt and so on. /sys does
 * not show this. Only the device mapper itself reports the mapping, and only to root. A capture (a
 * copy of another machine's /sys and /proc) contains that report. blockstack.c calls these
 * functions. They must never change a table, load a module, or wait for a device.
 */
#ifndef PST_STORAGE_DMTABLE_H
#define PST_STORAGE_DMTABLE_H

#include <stdint.h>

#include "core/machine/sysfs.h"
#include "storage/blockstack.h"

struct pst_dm {
	enum pst_layer_kind kind;
	/* Name of the device-mapper target, unless `kind` already determines it. */
	char detail[24];
	/* Number of bytes after which the device continues on the next drive; 0 if the device
	 * is not striped. */
	uint64_t stripe_bytes;
};

/* Reads the mapping table of the device with this name and these numbers from the kernel's device
 * mapper. If `fs` is a capture of another machine, it reads captured/dm-table/NAME instead. Returns
 * 0, or -errno with *out unchanged if the table cannot be read. */
int pst_dm_read(const struct pst_sysfs *fs, const char *name, uint32_t major, uint32_t minor,
		struct pst_dm *out);

/* Parses a mapping table: lines "START LENGTH TARGET PARAMETERS", as `dmsetup table` prints them.
 * It has no side effects. */
int pst_dm_parse(const char *text, struct pst_dm *out);

/* Parses the answer of the ioctl DM_TABLE_STATUS: a struct dm_ioctl, followed by the target
 * specs. It has no side effects. */
int pst_dm_take_answer(const void *answer, size_t len, struct pst_dm *out);

/* Derives the kind of layer from the device's uuid, for processes that may not read the mapping
 * table. The kind is PST_LAYER_DM_OTHER unless the uuid proves another kind. For an LVM volume it
 * is PST_LAYER_UNKNOWN, and the caller then checks the layers below. */
void pst_dm_by_uuid(const char *uuid, struct pst_dm *out);

#endif
