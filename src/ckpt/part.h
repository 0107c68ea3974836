/* SPDX-License-Identifier: Apache-2.0 */
/* Reads parts of a checkpoint for penstock_ckpt_verify. Defines which flags an item may have. */
#ifndef PST_CKPT_PART_H
#define PST_CKPT_PART_H

#include "penstock_ckpt.h"

/* All flags of penstock_item, and the message about an item with another flag. */
#define PST_ITEM_FLAGS (PENSTOCK_ITEM_SUMMED | PENSTOCK_ITEM_CHECKED)
#define PST_ITEM_FLAG_UNKNOWN "a flag of the item is unknown"

/* Reads the items (ranges) of a part (a data file of a checkpoint) that is open as `st`, and stores
 * the checksums of the bytes in the items. `path` is the file's name for messages. The segments
 * must cover the items, and their memory must be host memory. The device "host" must be open. */
int pst_part_read_sums(struct penstock_storage *st, const char *path, struct penstock_item *items,
		       uint64_t count, const struct penstock_part_opts *opts);

#endif
