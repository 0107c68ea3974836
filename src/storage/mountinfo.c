/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses /proc/self/mountinfo (proc(5)) to find one mount. blockstack.c and `penstock check` call
 * it. The text may be malformed or hostile, so the functions allocate nothing and never copy more
 * than fits. A field that does not fit becomes empty; it is never truncated.
 */
#include "storage/mountinfo.h"

#include <errno.h>
#include <string.h>

struct text_span {
	const char *at;
	size_t len;
};

/* The fields of a line of mountinfo that this file uses. */
struct mount_line {
	struct text_span id, dev, point, flags, type, source, options;
};

static const struct {
	/* Type in the mount table; NULL if the file system has no type of its own there. */
	const char *type;
	const char *name;
	uint64_t magic; /* f_type of statfs(2); 0 if it is unknown. */
} kinds[PST_FS_KINDS] = {
	[PST_FS_OTHER] = {NULL, "other", 0},
	[PST_FS_RAW_BLOCK] = {NULL, "raw block", 0},
	[PST_FS_EXT4] = {"ext4", "ext4", 0xef53},
	[PST_FS_XFS] = {"xfs", "xfs", 0x58465342},
	[PST_FS_BTRFS] = {"btrfs", "btrfs", 0x9123683e},
	[PST_FS_TMPFS] = {"tmpfs", "tmpfs", 0x01021994},
	[PST_FS_RAMFS] = {"ramfs", "ramfs", 0x858458f6},
	[PST_FS_OVERLAY] = {"overlay", "overlay", 0x794c7630},
	[PST_FS_FUSE] = {"fuse", "fuse", 0x65735546},
	[PST_FS_VIRTIOFS] = {"virtiofs", "virtiofs", 0x65735546},
	[PST_FS_9P] = {"9p", "9p", 0x01021997},
	[PST_FS_NFS] = {"nfs", "nfs", 0x6969},
	[PST_FS_NFS_RDMA] = {NULL, "nfs-rdma", 0x6969},
	[PST_FS_LUSTRE] = {"lustre", "lustre", 0x0bd00bd0},
	[PST_FS_WEKAFS] = {"wekafs", "wekafs", 0},
	[PST_FS_GPFS] = {"gpfs", "gpfs", 0x47504653},
	[PST_FS_BEEGFS] = {"beegfs", "beegfs", 0x19830326},
	[PST_FS_ZFS] = {"zfs", "zfs", 0x2fc12fc1},
};

const char *pst_fs_name(enum pst_fs fs)
{
	return (unsigned)fs < PST_FS_KINDS ? kinds[fs].name : "?";
}

enum pst_fs pst_fs_by_type(const char *type)
{
	unsigned i;

	for (i = 0; i < PST_FS_KINDS; i++)
		if (kinds[i].type && !strcmp(type, kinds[i].type))
			return (enum pst_fs)i;
	if (!strncmp(type, "fuse.", 5) || !strcmp(type, "fuseblk"))
		return PST_FS_FUSE;
	if (!strcmp(type, "nfs4"))
		return PST_FS_NFS;
	if (!strcmp(type, "devtmpfs") || !strcmp(type, "rootfs"))
		return PST_FS_TMPFS;
	return PST_FS_OTHER;
}

enum pst_fs pst_fs_by_magic(uint64_t magic)
{
	unsigned i;

	for (i = 0; i < PST_FS_KINDS; i++)
		if (magic && kinds[i].magic == magic)
			return (enum pst_fs)i;
	return PST_FS_OTHER;
}

bool pst_fs_magic_fits(enum pst_fs fs, uint64_t magic)
{
	if ((unsigned)fs >= PST_FS_KINDS || !kinds[fs].magic || !magic)
		return true;
	/* devtmpfs and rootfs have the type tmpfs, but some kernels build them on ramfs. Then
	 * statfs reports the magic number of ramfs. */
	if (fs == PST_FS_TMPFS && magic == kinds[PST_FS_RAMFS].magic)
		return true;
	return magic == kinds[fs].magic;
}

/* ---- text ------------------------------------------------------------------- */

/* Removes the next field from the line and returns it. One blank separates fields. */
static struct text_span field_next(struct text_span *rest)
{
	const char *end = rest->len ? memchr(rest->at, ' ', rest->len) : NULL;
	struct text_span got = {rest->at, end ? (size_t)(end - rest->at) : rest->len};
	size_t used = got.len + (end ? 1 : 0);

	rest->at += used;
	rest->len -= used;
	return got;
}

static bool span_is(struct text_span span, const char *text)
{
	return span.len == strlen(text) && !memcmp(span.at, text, span.len);
}

/* Copies a field and decodes escapes such as \040. Copies "" if the field does not fit or
 * contains NUL. */
static void span_copy(char *out, size_t out_len, struct text_span span)
{
	size_t i, len = 0;

	for (i = 0; i < span.len && len < out_len; i++) {
		const char *at = span.at + i;
		unsigned char c = (unsigned char)*at;

		if (c == '\\' && span.len - i > 3 && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' &&
		    at[2] <= '7' && at[3] >= '0' && at[3] <= '7') {
			c = (unsigned char)((at[1] - '0') << 6 | (at[2] - '0') << 3 |
					    (at[3] - '0'));
			i += 3;
		}
		if (!c)
			break;
		out[len++] = (char)c;
	}
	if (i < span.len || len == out_len)
		len = 0;
	out[len] = '\0';
}

static bool span_number(struct text_span span, uint64_t max, uint64_t *out)
{
	uint64_t value = 0;
	size_t i;

	if (!span.len || span.len > 18)
		return false;
	for (i = 0; i < span.len; i++) {
		if (span.at[i] < '0' || span.at[i] > '9')
			return false;
		value = value * 10 + (uint64_t)(span.at[i] - '0');
	}
	*out = value;
	return value <= max;
}

static bool span_dev_numbers(struct text_span span, uint32_t *major, uint32_t *minor)
{
	const char *colon = span.len ? memchr(span.at, ':', span.len) : NULL;
	struct text_span first, second;
	uint64_t a, b;

	if (!colon)
		return false;
	first = (struct text_span){span.at, (size_t)(colon - span.at)};
	second = (struct text_span){colon + 1, span.len - first.len - 1};
	if (!span_number(first, UINT32_MAX, &a) || !span_number(second, UINT32_MAX, &b))
		return false;
	*major = (uint32_t)a;
	*minor = (uint32_t)b;
	return true;
}

/* Splits a line such as "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root
 * rw,errors=continue". */
static bool line_split(struct text_span rest, struct mount_line *line)
{
	struct text_span optional;

	line->id = field_next(&rest);
	field_next(&rest); /* Skips the id of the parent mount. */
	line->dev = field_next(&rest);
	/* Skips the field with the directory within the file system that is mounted. */
	field_next(&rest);
	line->point = field_next(&rest);
	line->flags = field_next(&rest);
	do {
		if (!rest.len)
			return false;
		optional = field_next(&rest);
	} while (!span_is(optional, "-"));
	line->type = field_next(&rest);
	line->source = field_next(&rest);
	line->options = field_next(&rest);
	return line->type.len && line->options.len;
}

/* ---- interpreting the fields ---- */

static void option_read(struct text_span option, struct pst_mount *out)
{
	static const char upper[] = "upperdir=";

	if (span_is(option, "data=ordered"))
		out->data = PST_DATA_ORDERED;
	else if (span_is(option, "data=writeback"))
		out->data = PST_DATA_WRITEBACK;
	else if (span_is(option, "data=journal"))
		out->data = PST_DATA_JOURNAL;
	else if (span_is(option, "dax") || span_is(option, "dax=always"))
		out->dax = true;
	else if (span_is(option, "noload") || span_is(option, "norecovery"))
		out->no_recovery = true;
	else if (span_is(option, "ro"))
		out->read_only = true;
	else if (option.len > 6 && !memcmp(option.at, "rtdev=", 6))
		out->real_time = true;
	else if (out->fs == PST_FS_NFS &&
		 (span_is(option, "proto=rdma") || span_is(option, "proto=rdma6") ||
		  span_is(option, "rdma")))
		out->fs = PST_FS_NFS_RDMA;
	else if (out->fs == PST_FS_OVERLAY && option.len > sizeof(upper) - 1 &&
		 !memcmp(option.at, upper, sizeof(upper) - 1))
		span_copy(out->upper, sizeof(out->upper),
			  (struct text_span){option.at + sizeof(upper) - 1,
					     option.len - (sizeof(upper) - 1)});
}

static void options_read(struct text_span options, struct pst_mount *out)
{
	while (options.len) {
		const char *comma = memchr(options.at, ',', options.len);
		size_t len = comma ? (size_t)(comma - options.at) : options.len;

		option_read((struct text_span){options.at, len}, out);
		len += comma ? 1 : 0;
		options.at += len;
		options.len -= len;
	}
}

void pst_mount_ext4_options(const char *text, struct pst_mount *mount)
{
	mount->data = PST_DATA_NO_JOURNAL;
	while (*text) {
		size_t len = strcspn(text, "\n");

		option_read((struct text_span){text, len}, mount);
		text += len;
		text += *text == '\n';
	}
}

static bool mount_fill(const struct mount_line *line, struct pst_mount *out)
{
	uint64_t id;

	*out = (struct pst_mount){0};
	if (!span_number(line->id, INT64_MAX, &id) ||
	    !span_dev_numbers(line->dev, &out->major, &out->minor))
		return false;
	out->id = (int64_t)id;
	span_copy(out->type, sizeof(out->type), line->type);
	span_copy(out->point, sizeof(out->point), line->point);
	span_copy(out->source, sizeof(out->source), line->source);
	out->fs = pst_fs_by_type(out->type);
	options_read(line->flags, out);
	options_read(line->options, out);
	return true;
}

/* Finds the next line that has all fields. Returns false at the end of the text. A last line
 * without a newline is incomplete and is ignored. */
static bool line_next(struct text_span *rest, struct mount_line *line)
{
	while (rest->len) {
		const char *end = memchr(rest->at, '\n', rest->len);
		struct text_span whole;

		if (!end)
			return false;
		whole = (struct text_span){rest->at, (size_t)(end - rest->at)};
		rest->at = end + 1;
		rest->len -= whole.len + 1;
		if (line_split(whole, line))
			return true;
	}
	return false;
}

enum by { BY_ID, BY_POINT, BY_DEV, BYS };

static bool mount_matches(const struct pst_mount *mount, const struct pst_mount_key *key,
			  enum by by)
{
	switch (by) {
	case BY_ID:
		return key->id >= 0 && mount->id == key->id;
	case BY_POINT:
		return key->point && mount->point[0] && !strcmp(mount->point, key->point);
	default:
		return key->has_dev && mount->major == key->major && mount->minor == key->minor;
	}
}

/* Returns the length of the mount point `point` if `path` is the mount point or below it, else
 * 0. */
static size_t path_covered(const char *point, const char *path)
{
	size_t len = strlen(point);

	if (!strcmp(point, "/"))
		return 1;
	if (!len || strncmp(path, point, len) || (path[len] && path[len] != '/'))
		return 0;
	return len;
}

/* Finds the file system of an overlay's upper directory. This works only if this process sees
 * the upper directory under the same path. A process inside a container whose root is the
 * overlay does not see it. */
static void overlay_find_upper(const char *text, size_t len, struct pst_mount *overlay)
{
	struct text_span rest = {text, len};
	struct pst_mount mount;
	struct mount_line line;
	size_t best = 0;

	while (overlay->upper[0] == '/' && line_next(&rest, &line)) {
		size_t covered;

		if (!mount_fill(&line, &mount))
			continue;
		covered = path_covered(mount.point, overlay->upper);
		if (!covered || covered < best)
			continue;
		best = covered;
		memcpy(overlay->upper_fs, mount.type, sizeof(mount.type));
		if (mount.major == overlay->major && mount.minor == overlay->minor)
			overlay->upper_fs[0] = '\0';
	}
}

int pst_mount_find(const char *text, size_t len, const struct pst_mount_key *key,
		   struct pst_mount *out)
{
	struct pst_mount mount, found;
	bool have = false;
	struct mount_line line;
	unsigned by;

	for (by = 0; by < BYS && !have; by++) {
		struct text_span rest = {text, len};

		/* Use the last match: if two mounts have the same mount point, the later one
		 * hides the first. */
		while (line_next(&rest, &line))
			if (mount_fill(&line, &mount) && mount_matches(&mount, key, (enum by)by)) {
				found = mount;
				have = true;
			}
	}
	if (!have)
		return -ENOENT;
	if (found.fs == PST_FS_OVERLAY)
		overlay_find_upper(text, len, &found);
	*out = found;
	return 0;
}
