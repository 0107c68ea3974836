/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device-mapper device does with its bytes: linear, striped, crypt and so
 * on. /sys does not tell, only the device mapper itself does, and only to root;
 * a capture holds its answer. Called by blockstack.c. It must never change a
 * table, load a module, or wait for a device.
 */
#ifndef PST_STORAGE_DMTABLE_H
#define PST_STORAGE_DMTABLE_H

#include <stdint.h>

#include "core/machine/sysfs.h"
#include "storage/blockstack.h"

struct pst_dm {
	enum pst_layer_kind kind;
	char detail[24];       /* the target, where the kind does not say */
	uint64_t stripe_bytes; /* one drive's turn, 0 none */
};

/* Of the device `name` with these numbers. The real machine is asked, a captured
 * one has captured/dm-table/NAME. 0, or -errno: not known, *out untouched. */
int pst_dm_read(const struct pst_sysfs *fs, const char *name, uint32_t major, uint32_t minor,
		struct pst_dm *out);

/* Of lines "START LENGTH TARGET PARAMETERS", as `dmsetup table` prints them. Pure. */
int pst_dm_parse(const char *text, struct pst_dm *out);

/* Of what DM_TABLE_STATUS filled in: struct dm_ioctl and what follows. Pure. */
int pst_dm_take_answer(const void *answer, size_t len, struct pst_dm *out);

/* By the uuid, for those who may not ask: only what it proves; else DM_OTHER. A
 * volume of LVM is left to the caller, which sees what lies below it: UNKNOWN. */
void pst_dm_by_uuid(const char *uuid, struct pst_dm *out);

#endif
