/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the checkpoints of a folder, for penstock_ckpt_list and penstock_ckpt_prune. */
#ifndef PST_CKPT_LIST_H
#define PST_CKPT_LIST_H

#include "ckpt/folder.h"

/* Checkpoints, sorted by time. */
struct pst_ckpt_list {
	const char *name;	 /* the caller's name of the folder */
	struct pst_ckpt_dir dir; /* the folder in which the checkpoints are */
	bool self;		 /* whether `dir` is itself the only checkpoint */
	struct pst_ckpt_entry {
		struct penstock_ckpt ckpt;
		char *path, *name; /* its path, and the name of its folder in the list's folder */
		char text[PENSTOCK_TEXT_MAX];
	} * entries;
	uint64_t count, capacity;
};

/* Finds all checkpoints of a folder, see penstock_ckpt_list. */
int pst_ckpt_list_open(const char *dir, struct pst_ckpt_list *out);
void pst_ckpt_list_close(struct pst_ckpt_list *list);

#endif
