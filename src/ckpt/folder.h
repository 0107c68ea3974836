/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Folders of checkpoints: which files of a folder belong to a checkpoint, and whether the
 * checkpoint is complete. A part *.distcp may be a symbolic link to a file of the same name on
 * another drive. No function follows any other symbolic link inside a folder, or changes a file.
 */
#ifndef PST_CKPT_FOLDER_H
#define PST_CKPT_FOLDER_H

#include <limits.h>
#include <stdbool.h>

#include "ckpt/dir.h"
#include "penstock_ckpt.h"

/* Kind of a file, which follows from its name. */
enum pst_file_kind {
	PST_FILE_OTHER,	      /* not a file of a checkpoint */
	PST_FILE_PART,	      /* *.distcp, *.safetensors */
	PST_FILE_MARKER,      /* .metadata, *.safetensors.index.json */
	PST_FILE_RANK_MARKER, /* __N.metadata: marker of a rank N that saves without the others */
	PST_FILE_MANIFEST,    /* *penstock.manifest */
	PST_FILE_TEMP,	      /* a file that an interrupted write has left */
};

enum pst_file_kind pst_file_kind(const char *name);
/* Returns whether `name` in the folder `dir` is a symbolic link to a part on another drive. A
 * striped save, which writes parts to several drives, makes such links. The target is an absolute
 * path. It has the same file name as the link, and its folder has the same name as `dir`. `target`
 * receives the path. */
bool pst_part_link(const struct pst_ckpt_dir *dir, const char *name, char target[PATH_MAX]);

/* Returns whether the error means that this process lacks memory or descriptors. Such an error says
 * nothing about the file that was to be read. So the caller must fail, and must not call the file
 * damaged. */
bool pst_ckpt_error_is_ours(int code);

/* A file of a checkpoint. */
struct pst_ckpt_file {
	char *name;
	enum pst_file_kind kind;
	uint64_t bytes;
	int64_t time_ns; /* time of its last change, in ns since 1970 */
	bool stray;	 /* whether it belongs to an earlier save into the same folder */
	bool linked;	 /* whether it is a symbolic link to a part on another drive */
	bool missing;	 /* whether it is a link whose target does not exist */
};

/* A folder or prefix, and the files of a checkpoint in it, sorted by name. */
struct pst_ckpt_folder {
	struct pst_ckpt_dir dir;
	struct pst_ckpt_file *files;
	uint64_t count, capacity;
	bool found; /* whether the folder has a file of a checkpoint that is not temporary */
	struct penstock_ckpt ckpt; /* ckpt.path belongs to the caller, ckpt.text is `text` */
	char text[PENSTOCK_TEXT_MAX];
};

/*
 * Opens and describes a folder.
 *
 * in, name, path	what pst_ckpt_dir_open takes; ckpt.path becomes the name for messages
 * out			receives the folder; close it with pst_ckpt_folder_close
 *
 * A folder without files of a checkpoint has `count` 0.
 */
int pst_ckpt_folder_open(const struct pst_ckpt_dir *in, const char *name, const char *path,
			 struct pst_ckpt_folder *out);
void pst_ckpt_folder_close(struct pst_ckpt_folder *f);

#endif
