/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds what a device-mapper device does with its bytes: linear, striped, crypt and so on. /sys
 * does not show this. Only the device mapper itself reports it, and only to root; a capture of
 * a machine holds its answer. Called by blockstack.c. It must never change a table, load a
 * module, or wait for a device.
 */
#ifndef PST_STORAGE_DMTABLE_H
#define PST_STORAGE_DMTABLE_H

#include <stdint.h>

#include "core/machine/sysfs.h"
#include "storage/blockstack.h"

struct pst_dm {
	enum pst_layer_kind kind;
	char detail[24]; /* The target, if the kind does not name it. */
	/* Bytes on one drive before the stripe continues on the next; 0: no stripe. */
	uint64_t stripe_bytes;
};

/* Reads the table of device `name` with these numbers: from the device mapper, or on a captured
 * machine from captured/dm-table/NAME. Returns 0, or -errno: unknown, *out untouched. */
int pst_dm_read(const struct pst_sysfs *fs, const char *name, uint32_t major, uint32_t minor,
		struct pst_dm *out);

/* Parses lines "START LENGTH TARGET PARAMETERS", as `dmsetup table` prints them. Pure. */
int pst_dm_parse(const char *text, struct pst_dm *out);

/* Parses the answer of DM_TABLE_STATUS: struct dm_ioctl and the specs after it. Pure. */
int pst_dm_take_answer(const void *answer, size_t len, struct pst_dm *out);

/* Derives the kind from the device's uuid, for processes that may not read the table. The kind
 * is DM_OTHER unless the uuid proves another. For an LVM volume it is UNKNOWN: the caller then
 * checks the layers below. */
void pst_dm_by_uuid(const char *uuid, struct pst_dm *out);

#endif
