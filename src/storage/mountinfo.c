/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses /proc/self/mountinfo (proc(5)) for one mount. Called by blockstack.c and
 * `penstock check`. Pure functions over text that may be hostile: no allocation,
 * no copy longer than its room; a field that does not fit is empty, not cut.
 */
#include "storage/mountinfo.h"

#include <errno.h>
#include <string.h>

struct span {
	const char *at;
	size_t len;
};

/* One line, as far as it is used. */
struct line {
	struct span id, dev, point, flags, type, source, options;
};

static const struct {
	const char *type; /* NULL: never the type of a mount */
	const char *name;
	uint64_t magic; /* of statfs(2); 0: not known */
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
	/* devtmpfs and rootfs are built on either of the two. */
	if (fs == PST_FS_TMPFS && magic == kinds[PST_FS_RAMFS].magic)
		return true;
	return magic == kinds[fs].magic;
}

/* ---- text ------------------------------------------------------------------- */

/* Takes the next field, divided by one blank, off the rest of a line. */
static struct span field(struct span *rest)
{
	const char *end = rest->len ? memchr(rest->at, ' ', rest->len) : NULL;
	struct span got = {rest->at, end ? (size_t)(end - rest->at) : rest->len};
	size_t used = got.len + (end ? 1 : 0);

	rest->at += used;
	rest->len -= used;
	return got;
}

static bool is(struct span span, const char *text)
{
	return span.len == strlen(text) && !memcmp(span.at, text, span.len);
}

/* Undoes \040 and its like; "" when it does not fit or cannot be printed. */
static void copy(char *out, size_t out_len, struct span span)
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

static bool number(struct span span, uint64_t max, uint64_t *out)
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

static bool dev_numbers(struct span span, uint32_t *major, uint32_t *minor)
{
	const char *colon = span.len ? memchr(span.at, ':', span.len) : NULL;
	struct span first, second;
	uint64_t a, b;

	if (!colon)
		return false;
	first = (struct span){span.at, (size_t)(colon - span.at)};
	second = (struct span){colon + 1, span.len - first.len - 1};
	if (!number(first, UINT32_MAX, &a) || !number(second, UINT32_MAX, &b))
		return false;
	*major = (uint32_t)a;
	*minor = (uint32_t)b;
	return true;
}

/* "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue" */
static bool split(struct span rest, struct line *line)
{
	struct span optional;

	line->id = field(&rest);
	field(&rest); /* parent */
	line->dev = field(&rest);
	field(&rest); /* root of the mount within the file system */
	line->point = field(&rest);
	line->flags = field(&rest);
	do {
		if (!rest.len)
			return false;
		optional = field(&rest);
	} while (!is(optional, "-"));
	line->type = field(&rest);
	line->source = field(&rest);
	line->options = field(&rest);
	return line->type.len && line->options.len;
}

/* ---- what it means ---------------------------------------------------------- */

static void read_option(struct span option, struct pst_mount *out)
{
	static const char upper[] = "upperdir=";

	if (is(option, "data=ordered"))
		out->data = PST_DATA_ORDERED;
	else if (is(option, "data=writeback"))
		out->data = PST_DATA_WRITEBACK;
	else if (is(option, "data=journal"))
		out->data = PST_DATA_JOURNAL;
	else if (is(option, "dax") || is(option, "dax=always"))
		out->dax = true;
	else if (is(option, "noload") || is(option, "norecovery"))
		out->no_recovery = true;
	else if (is(option, "ro"))
		out->read_only = true;
	else if (option.len > 6 && !memcmp(option.at, "rtdev=", 6))
		out->real_time = true;
	else if (out->fs == PST_FS_NFS &&
		 (is(option, "proto=rdma") || is(option, "proto=rdma6") || is(option, "rdma")))
		out->fs = PST_FS_NFS_RDMA;
	else if (out->fs == PST_FS_OVERLAY && option.len > sizeof(upper) - 1 &&
		 !memcmp(option.at, upper, sizeof(upper) - 1))
		copy(out->upper, sizeof(out->upper),
		     (struct span){option.at + sizeof(upper) - 1,
				   option.len - (sizeof(upper) - 1)});
}

static void read_options(struct span options, struct pst_mount *out)
{
	while (options.len) {
		const char *comma = memchr(options.at, ',', options.len);
		size_t len = comma ? (size_t)(comma - options.at) : options.len;

		read_option((struct span){options.at, len}, out);
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

		read_option((struct span){text, len}, mount);
		text += len;
		text += *text == '\n';
	}
}

static bool fill(const struct line *line, struct pst_mount *out)
{
	uint64_t id;

	*out = (struct pst_mount){0};
	if (!number(line->id, INT64_MAX, &id) || !dev_numbers(line->dev, &out->major, &out->minor))
		return false;
	out->id = (int64_t)id;
	copy(out->type, sizeof(out->type), line->type);
	copy(out->point, sizeof(out->point), line->point);
	copy(out->source, sizeof(out->source), line->source);
	out->fs = pst_fs_by_type(out->type);
	read_options(line->flags, out);
	read_options(line->options, out);
	return true;
}

/* The next line that can be split; false at the end. A last line without its end
 * is one that was cut off. */
static bool next_line(struct span *rest, struct line *line)
{
	while (rest->len) {
		const char *end = memchr(rest->at, '\n', rest->len);
		struct span whole;

		if (!end)
			return false;
		whole = (struct span){rest->at, (size_t)(end - rest->at)};
		rest->at = end + 1;
		rest->len -= whole.len + 1;
		if (split(whole, line))
			return true;
	}
	return false;
}

enum by { BY_ID, BY_POINT, BY_DEV, BYS };

static bool matches(const struct pst_mount *mount, const struct pst_mount_key *key, enum by by)
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

/* How many bytes of `path` the mount point covers; 0: the path is not below it. */
static size_t covers(const char *point, const char *path)
{
	size_t len = strlen(point);

	if (!strcmp(point, "/"))
		return 1;
	if (!len || strncmp(path, point, len) || (path[len] && path[len] != '/'))
		return 0;
	return len;
}

/* What an overlay's upper folder lies on: seen only where its path means the same
 * here, so not inside the container that stands on it. */
static void find_upper(const char *text, size_t len, struct pst_mount *overlay)
{
	struct span rest = {text, len};
	struct pst_mount mount;
	struct line line;
	size_t best = 0;

	while (overlay->upper[0] == '/' && next_line(&rest, &line)) {
		size_t covered;

		if (!fill(&line, &mount))
			continue;
		covered = covers(mount.point, overlay->upper);
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
	struct line line;
	unsigned by;

	for (by = 0; by < BYS && !have; by++) {
		struct span rest = {text, len};

		/* The last one: of two mounts on a point, the later hides the first. */
		while (next_line(&rest, &line))
			if (fill(&line, &mount) && matches(&mount, key, (enum by)by)) {
				found = mount;
				have = true;
			}
	}
	if (!have)
		return -ENOENT;
	if (found.fs == PST_FS_OVERLAY)
		find_upper(text, len, &found);
	*out = found;
	return 0;
}
