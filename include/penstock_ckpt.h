/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_ckpt.h - write and read the files of a checkpoint, check their bytes, and find, verify
 * and remove checkpoints in a folder.
 * It is built on penstock.h and follows the conventions of that header for errors, units,
 * ownership, threads, and structs that begin with `size`.
 *
 *	struct penstock_seg seg = {.buf = ptr, .dev = gpu, .row_len = len};
 *	struct penstock_item item = {sizeof(item), "weight", 0, len, &seg, 1, 0, 0};
 *
 *	penstock_part_write("/checkpoints/step-100/__0_0.distcp", &item, 1, NULL, NULL);
 *
 * A checkpoint is a folder. Its parts are files that ranks write, for example __0_0.distcp. A part
 * consists of items, for example one tensor with the bytes that describe it. The last file of a
 * checkpoint is its marker: a checkpoint without a marker is incomplete. PyTorch's distributed
 * checkpoints have the marker .metadata. A manifest is a file that lists parts and items with
 * their checksums. Programs that do not know manifests can ignore these files.
 */
#ifndef PENSTOCK_CKPT_H
#define PENSTOCK_CKPT_H

#include "penstock_weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- parts: write and read one file ------------------------------------------ */

/* A flag of penstock_item: `crc32c` is the checksum of all bytes of the item. */
#define PENSTOCK_ITEM_SUMMED 0x1u
/* A flag of penstock_item: penstock_part_read has compared the bytes with `crc32c`. */
#define PENSTOCK_ITEM_CHECKED 0x2u

/* An item: a range of a part, such as one tensor, and the memory for its bytes. */
struct penstock_item {
	size_t size;
	const char *name;  /* name for messages and manifests, such as a tensor's; NULL if none */
	uint64_t off, len; /* offset and length of the item in the part's file, in bytes */
	/* The memory, in order of the segments' offsets. The segments of a written item cover its
	 * range without gaps or overlaps. Those of a read item lie inside its range. `off` of a
	 * segment is an offset in the part. The caller owns the array and the memory. */
	const struct penstock_seg *segs;
	unsigned seg_count;
	unsigned flags;	 /* PENSTOCK_ITEM_* flags */
	uint32_t crc32c; /* CRC-32C (RFC 3720, appendix B.4) of all bytes of the item */
};

/* Options of penstock_part_write and penstock_part_read. */
struct penstock_part_opts {
	size_t size;
	enum penstock_class require; /* class of paths that each request requires, see
				      * penstock_req */
	enum penstock_effort effort; /* speed or little CPU time, for each request; see
				      * penstock_req */
	const char *path;	     /* name of the only path to use; NULL: the library chooses */
	int priority;		     /* priority of each request, from -4 to 3 */
	int sum;     /* 1: compute the checksums of written items, or check those of read items */
	int durable; /* 1: a write returns only when data and name survive a power cut */
	/* Length of the written file in bytes; 0 stands for the end of the last item. */
	uint64_t length;
	/* Function that the library calls about ten times a second, on the caller's thread, with
	 * the number of bytes moved so far; NULL if none. If the function returns non-zero, the
	 * library does not call it again, and cancels the read or write. The read or write then
	 * fails with -ECANCELED when the requests in flight have completed. */
	int (*look)(void *user, uint64_t bytes);
	void *user; /* pointer that is passed to `look` */
};
#define PENSTOCK_PART_OPTS_INIT                                                                   \
	{                                                                                         \
		sizeof(struct penstock_part_opts), PENSTOCK_ANY, PENSTOCK_THRIFTY, NULL, 0, 0, 0, \
			0, NULL, NULL                                                             \
	}

/*
 * Writes a part. The file gets its name when all bytes are written, so a partial file never has
 * the name, and an existing file is replaced at once. If the call fails, no new file remains, and
 * an existing file is unchanged.
 *
 * path		name of the file
 * items	the items, in order of their offsets; bytes between two items become zeros.
 *		If opts->sum is 1, the call sets `crc32c` and the flag PENSTOCK_ITEM_SUMMED of each
 *		item whose device can compute checksums, and clears the flag of the others
 * count	number of items
 * opts		the options; NULL stands for the defaults
 * report	receives what the call did, even if it failed; may be NULL
 *
 * If `path` is a block device, it is written in place, and bytes between two items are unchanged.
 * The memory must not change during the call. Work on the device that writes to the memory must
 * be complete before the call. Any thread. May block.
 *
 * -ENOSPC	the file system has too little space; nothing was written, and the message has the
 *		number of missing bytes
 * -EINVAL	an item's segments do not cover its range, the items are not in order, one ends
 *		beyond opts->length, or a flag is unknown
 * -ECANCELED	opts->look cancelled the call
 * -EIO		and other errors of penstock_open, penstock_transfer and penstock_commit
 */
PENSTOCK_API int penstock_part_write(const char *path, struct penstock_item *items, uint64_t count,
				     const struct penstock_part_opts *opts,
				     struct penstock_load_report *report);

/*
 * Reads ranges of a file into memory.
 *
 * path		name of the file
 * items	the items, in any order. If opts->sum is 1 and an item has the flag
 *		PENSTOCK_ITEM_SUMMED and segments that cover its whole range in order, the call
 *		compares the checksum of the bytes in memory with `crc32c`, and sets the flag
 *		PENSTOCK_ITEM_CHECKED. It clears the flag of all other items
 * count	number of items
 * opts		the options; NULL stands for the defaults
 * report	receives what the call did, even if it failed; may be NULL
 *
 * Any thread. May block.
 *
 * -EBADMSG	the bytes of an item have another checksum; penstock_weights_get_place tells
 *		file, item and offset. All items have been read; those whose checksum was right have
 *		the flag PENSTOCK_ITEM_CHECKED
 * -EINVAL	a segment lies outside the range of its item, or a flag is unknown
 * -ENODATA	the file ends before the last item
 * -ECANCELED	opts->look cancelled the call
 * -EIO		and other errors of penstock_open and penstock_transfer
 */
PENSTOCK_API int penstock_part_read(const char *path, struct penstock_item *items, uint64_t count,
				    const struct penstock_part_opts *opts,
				    struct penstock_load_report *report);

/* ---- manifests: the checksums of a checkpoint -------------------------------- */

/* A part (a file that one rank wrote) with its items, as a manifest lists them. */
struct penstock_part {
	size_t size;
	const char *name; /* name of the file, relative to the checkpoint's folder */
	uint64_t bytes;	  /* length of the file */
	const struct penstock_item *items; /* the items; their segments are not used */
	uint64_t item_count;
};

struct penstock_manifest;

/*
 * Writes a manifest, durably, and replaces an existing file at once.
 *
 * path		name of the file. Its last component must end with "penstock.manifest"
 * ranks	number of ranks that wrote the checkpoint
 * parts	the parts; a name must be UTF-8, must not be "." or "..", and must have no slash
 * count	number of parts
 *
 * A manifest consists of lines of JSON. The first line describes the checkpoint. Each further line
 * describes one part. The last line has the number of parts and the checksum of all lines before
 * it, so that a truncated or changed manifest is detected. Any thread. May block.
 *
 * -EINVAL	a name cannot be written to a manifest, a part occurs twice, the items of a part
 *		overlap or end beyond it, a flag is unknown, or the manifest would have more than
 *		512 MiB
 * -ENOSPC	and other errors of open(2), write(2), fsync(2) and rename(2)
 */
PENSTOCK_API int penstock_manifest_write(const char *path, unsigned ranks,
					 const struct penstock_part *parts, uint64_t count);

/*
 * Reads all manifests of a checkpoint's folder, which are all files whose names end with
 * "penstock.manifest". The manifests together must name no part twice. While a save replaces a
 * checkpoint, the folder has the manifests of the old and of the new checkpoint. A manifest may
 * list the checkpoint's marker (the file that a save writes last) as a part with one item. The call
 * ignores such a manifest if the marker in the folder has another checksum: then another program
 * has saved a checkpoint there since, or the marker is damaged.
 *
 * dir	the folder
 * out	receives the manifest; close it with penstock_manifest_close
 *
 * Any thread. May block.
 *
 * -ENOENT	the folder has no manifest, or only ignored ones
 * -EBADMSG	a manifest is truncated, changed or malformed
 * -EFBIG	the manifests have more than 1 GiB together
 */
PENSTOCK_API int penstock_manifest_open(const char *dir, struct penstock_manifest **out);

/* Returns the number of parts of a manifest. */
PENSTOCK_API uint64_t penstock_manifest_parts(const struct penstock_manifest *m);

/*
 * Describes a part. The strings and the items are valid until penstock_manifest_close. The items
 * are sorted by offset. They are items->size bytes apart, which may be more than this header's
 * sizeof(struct penstock_item).
 *
 * -ENOENT	there is no part with this index
 */
PENSTOCK_API int penstock_manifest_get(const struct penstock_manifest *m, uint64_t index,
				       struct penstock_part *out);

/*
 * Finds the item of a part that begins at offset `off`.
 *
 * part		name of the part
 * out		receives the item, valid until penstock_manifest_close; its segments are NULL
 *
 * -ENOENT	the manifest lists no such item
 */
PENSTOCK_API int penstock_manifest_find(const struct penstock_manifest *m, const char *part,
					uint64_t off, struct penstock_item *out);

/* Closes a manifest. NULL is allowed. */
PENSTOCK_API void penstock_manifest_close(struct penstock_manifest *m);

/* ---- folders with checkpoints ------------------------------------------------ */

/* The state of a checkpoint. */
enum penstock_ckpt_state {
	PENSTOCK_CKPT_COMPLETE = 0, /* The checkpoint has its marker (the file that a save writes
				     * last) and all parts that its manifests list. */
	PENSTOCK_CKPT_INCOMPLETE,   /* The checkpoint lacks its marker: a save runs, or was
				     * interrupted. */
	PENSTOCK_CKPT_DAMAGED,	    /* The checkpoint has its marker, but is damaged: a part that a
				     * manifest or an index of safetensors files names is missing, a
				     * part's length differs from the manifest, or the marker or a
				     * manifest cannot be read. */
};

/* A checkpoint in a folder. */
struct penstock_ckpt {
	size_t size;
	const char *path; /* path of the checkpoint's folder; it begins with the path that the
			   * caller gave */
	enum penstock_ckpt_state state;
	const char *text;     /* one sentence about the state, such as which part is missing */
	uint64_t bytes;	      /* bytes of all files of the checkpoint, without the stray files */
	uint64_t part_count;  /* number of parts (files that ranks wrote) that exist */
	uint64_t stray_count; /* number of files of earlier saves into the same folder: parts that
			       * the manifest does not list, and temporary files */
	uint64_t stray_bytes; /* bytes of the stray files */
	int64_t saved_ns;     /* modification time of the marker, or of the newest file if there is
			       * no marker, in ns since 1970 */
	unsigned ranks;	      /* number of ranks (processes) that wrote the checkpoint; 0 if there
			       * is no manifest */
	int summed;	      /* 1 if the checkpoint has a manifest with checksums, else 0 */
};

/*
 * Calls a function for each checkpoint in a folder, in order of `saved_ns`.
 *
 * Parts are the files *.distcp and *.safetensors. A marker is .metadata (PyTorch's distributed
 * checkpoints), *.safetensors.index.json, or model.safetensors. If ranks save without
 * collectives, each rank N writes a marker __N.metadata, and the checkpoint is complete when all of
 * these markers exist.
 * Temporary files are .NAME.penstock-* and *.metadata.tmp. A part *.distcp may be a symbolic link
 * to a part on another drive. The link's target must be an absolute path, whose file has the same
 * name as the link, and whose folder has the same name as the checkpoint's folder. Other symbolic
 * links are not followed, and are no files of a checkpoint.
 *
 * dir	A folder that is a checkpoint, or whose direct subfolders are checkpoints. Other
 *	subfolders are ignored. A file URL stands for its path, and penstock_ckpt.path then begins
 *	with this path. s3://BUCKET/PREFIX, with the options of penstock_open, stands for the
 *	objects whose keys begin with PREFIX/, and penstock_ckpt.path is then the URL without
 *	options. penstock_manifest_open, penstock_ckpt_verify and penstock_ckpt_prune take such
 *	names, too.
 * each	The function. The checkpoint is valid until it returns. If it returns non-zero, the call
 *	ends and returns that value.
 * user	Pointer that is passed to `each`.
 *
 * Returns 0, or the value of `each`. Any thread. May block.
 *
 * -ENOENT	the folder or the bucket does not exist
 * -EOPNOTSUPP	this build has no objects
 */
PENSTOCK_API int penstock_ckpt_list(const char *dir,
				    int (*each)(void *user, const struct penstock_ckpt *ckpt),
				    void *user);

/* A fault that penstock_ckpt_verify has found. */
struct penstock_ckpt_fault {
	size_t size;
	const char *part;  /* name of the file, relative to the checkpoint's folder; "" if the
			    * checkpoint has no marker */
	const char *item;  /* name of the item (a range of the part, such as a tensor); "" if the
			    * fault is in no item */
	uint64_t off, len; /* offset and length of the faulty range of the part, in bytes */
	int code;	   /* -EBADMSG: the bytes are wrong, or the file is too long; -ENOENT: the
			    * file is missing; -ENODATA: the file is too short; or another error of
			    * open(2) or read(2) */
	const char *text;  /* one sentence */
};

/* Numbers of the items that penstock_ckpt_verify has read. */
struct penstock_verified {
	size_t size;
	uint64_t items, bytes;			 /* number and bytes of the items whose checksum was
						  * right */
	uint64_t items_unsummed, bytes_unsummed; /* number and bytes of the items without a checksum
						  * in the manifest */
	uint64_t faults;
};

/*
 * Reads all parts of a checkpoint and compares the bytes with its manifests. Bytes that are in the
 * page cache are not read from the drive. The call uses up to 128 MiB of memory for the bytes.
 *
 * dir		the checkpoint's folder
 * opts		options of the reads; NULL stands for the defaults. `look` gets the number of
 *		bytes read so far
 * each		function that is called for each fault; NULL if none. The fault is valid until the
 *		function returns
 * user		pointer that is passed to `each`
 * out		receives what was read; may be NULL
 *
 * Returns 0 if there is no fault. Any thread. May block.
 *
 * -EBADMSG	there is a fault
 * -ENOENT	the checkpoint has no manifest, or the folder does not exist
 * -ECANCELED	opts->look cancelled the call
 */
PENSTOCK_API int penstock_ckpt_verify(const char *dir, const struct penstock_part_opts *opts,
				      void (*each)(void *user,
						   const struct penstock_ckpt_fault *fault),
				      void *user, struct penstock_verified *out);

/* A flag of penstock_ckpt_prune: remove nothing, and only call `each` for what would be removed. */
#define PENSTOCK_PRUNE_DRY_RUN 0x1u
/* A flag of penstock_ckpt_prune: also remove incomplete checkpoints that are newer than the newest
 * complete checkpoint, and stray files that are newer than the marker of their checkpoint. A save
 * may still be writing them. */
#define PENSTOCK_PRUNE_NEWEST 0x2u

/*
 * Removes old checkpoints, incomplete ones, and stray files, from a folder.
 *
 * dir		the folder, see penstock_ckpt_list
 * keep		number of complete checkpoints to keep, the newest ones; 0 keeps all complete
 *		ones. At least one complete checkpoint is always kept
 * flags	PENSTOCK_PRUNE_* flags
 * each		function that is called before each removal, with the checkpoint's folder or the
 *		stray file; NULL if none. If it returns non-zero, the call ends and returns that
 *		value
 * user		pointer that is passed to `each`
 *
 * A checkpoint is old if it is complete or damaged, and older than the `keep` newest complete ones.
 * An incomplete checkpoint is removed if it is older than the newest complete one, and a stray file
 * if it is older than the marker of its own checkpoint, which must be complete. No running save
 * still writes such files. With PENSTOCK_PRUNE_NEWEST, newer ones are removed, too.
 *
 * The call skips a checkpoint into which a save of penstock.torch is writing. In an object store,
 * it may also skip a checkpoint whose job was killed in the last 20 s. With PENSTOCK_PRUNE_NEWEST,
 * it waits up to 20 s to find out whether the job still runs. It removes a checkpoint's marker
 * first, so that an interrupted removal leaves an incomplete checkpoint and never a damaged one. It
 * removes only files that a checkpoint consists of. A folder with other files loses its checkpoint,
 * but is not removed itself. Any thread. May block.
 *
 * -ENOENT	the folder does not exist
 * -EACCES	and other errors of unlink(2)
 */
PENSTOCK_API int penstock_ckpt_prune(const char *dir, unsigned keep, unsigned flags,
				     int (*each)(void *user, const char *path, uint64_t bytes),
				     void *user);

#ifdef __cplusplus
}
#endif

#endif
