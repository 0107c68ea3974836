/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the mapping table of a device-mapper device, from the kernel or from a file that was copied
 * from another machine. Derives from all lines of the table one kind of layer for blockstack.c. It
 * must never report a plain kind (linear, striped or RAID) if one line of the table is of another
 * kind. It must never change a table.
 */
#include "storage/dmtable.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dm-ioctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define TABLE_BYTES 65536

static const struct {
	const char *target;
	enum pst_layer_kind kind;
} targets[] = {
	{"linear", PST_LAYER_LINEAR},	  {"striped", PST_LAYER_RAID0},
	{"crypt", PST_LAYER_DM_CRYPT},	  {"thin", PST_LAYER_DM_THIN},
	{"thin-pool", PST_LAYER_DM_THIN}, {"multipath", PST_LAYER_DM_MULTIPATH},
};

static bool kind_is_plain(enum pst_layer_kind kind)
{
	return kind == PST_LAYER_LINEAR || kind == PST_LAYER_RAID0 || kind == PST_LAYER_RAID1 ||
	       kind == PST_LAYER_RAID10;
}

/* Returns the kind of layer for a target "raid". The first word of its parameters is the RAID
 * level. */
static enum pst_layer_kind raid_kind(const char *params)
{
	size_t len = strcspn(params, " ");

	if (len == 5 && !strncmp(params, "raid0", 5))
		return PST_LAYER_RAID0;
	if (len == 5 && !strncmp(params, "raid1", 5))
		return PST_LAYER_RAID1;
	if (!strncmp(params, "raid10", 6))
		return PST_LAYER_RAID10;
	if (!strncmp(params, "raid4", 5) || !strncmp(params, "raid5", 5) ||
	    !strncmp(params, "raid6", 5))
		return PST_LAYER_RAID456;
	return PST_LAYER_DM_OTHER;
}

/* Combines the kind of one line of a table with the kind that the lines before it have given. */
static void dm_add_line(struct pst_dm *dm, const char *target, const char *params)
{
	enum pst_layer_kind kind = PST_LAYER_DM_OTHER;
	unsigned long long count, sectors;
	size_t i;

	for (i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
		if (!strcmp(target, targets[i].target))
			kind = targets[i].kind;
	if (!strcmp(target, "raid"))
		kind = raid_kind(params);
	if (!strcmp(target, "striped") && !dm->stripe_bytes &&
	    sscanf(params, "%9llu %9llu", &count, &sectors) == 2 && count > 1)
		dm->stripe_bytes = (uint64_t)sectors * 512;
	/* Each line of the table may have another kind. The device gets the kind that matters most
	 * for direct transfers: a kind that is not plain (see kind_is_plain) if any line has one,
	 * otherwise a RAID kind if any line has one, otherwise PST_LAYER_LINEAR. */
	if (dm->kind != PST_LAYER_UNKNOWN && !kind_is_plain(dm->kind))
		return;
	if (dm->kind != PST_LAYER_UNKNOWN && kind == PST_LAYER_LINEAR)
		return;
	dm->kind = kind;
	snprintf(dm->detail, sizeof(dm->detail), "%s", target);
}

int pst_dm_parse(const char *text, struct pst_dm *out)
{
	struct pst_dm dm = {0};

	while (*text) {
		size_t len = strcspn(text, "\n");
		unsigned long long start, length;
		char line[256], target[32];
		int behind = 0;

		/* A long line is truncated, because only the parameters at its start are needed. */
		snprintf(line, sizeof(line), "%.*s",
			 (int)(len < sizeof(line) ? len : sizeof(line) - 1), text);
		if (sscanf(line, "%18llu %18llu %31s %n", &start, &length, target, &behind) < 3 ||
		    !behind)
			return -EINVAL;
		dm_add_line(&dm, target, line + behind);
		text += len;
		text += *text == '\n';
	}
	if (dm.kind == PST_LAYER_UNKNOWN)
		return -ENODATA;
	*out = dm;
	return 0;
}

/* Parses the kernel's answer to DM_TABLE_STATUS. It contains head.target_count target specs. Each
 * spec's member `next` is the offset of the next spec, counted from the first spec. */
int pst_dm_take_answer(const void *answer, size_t len, struct pst_dm *out)
{
	struct pst_dm dm = {0};
	struct dm_ioctl head;
	const char *base;
	size_t at = 0, room;
	uint32_t i;

	if (len < sizeof(head))
		return -EMSGSIZE;
	memcpy(&head, answer, sizeof(head));
	if (head.flags & DM_BUFFER_FULL_FLAG || head.data_start > len)
		return -EMSGSIZE;
	base = (const char *)answer + head.data_start;
	room = len - head.data_start;
	for (i = 0; i < head.target_count; i++) {
		struct dm_target_spec spec;

		if (at > room || room - at <= sizeof(spec) ||
		    !memchr(base + at + sizeof(spec), '\0', room - at - sizeof(spec)))
			return -EMSGSIZE;
		memcpy(&spec, base + at, sizeof(spec));
		spec.target_type[sizeof(spec.target_type) - 1] = '\0';
		dm_add_line(&dm, spec.target_type, base + at + sizeof(spec));
		/* An offset that does not grow would make the loop read the same spec up to
		 * target_count times. */
		if (i + 1 < head.target_count && spec.next <= at)
			return -EMSGSIZE;
		at = spec.next;
	}
	if (dm.kind == PST_LAYER_UNKNOWN)
		return -ENODATA;
	*out = dm;
	return 0;
}

static int dm_query(uint32_t major, uint32_t minor, struct pst_dm *out)
{
	struct dm_ioctl *head;
	int fd, ret;

	fd = open("/dev/mapper/control", O_RDWR | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return -errno;
	head = calloc(1, TABLE_BYTES);
	if (!head) {
		close(fd);
		return -ENOMEM;
	}
	head->version[0] = DM_VERSION_MAJOR;
	head->data_size = TABLE_BYTES;
	head->data_start = sizeof(*head);
	/* Without DM_NOFLUSH_FLAG, this query would make a thin pool write its metadata to disk. */
	head->flags = DM_STATUS_TABLE_FLAG | DM_NOFLUSH_FLAG;
	head->dev = makedev(major, minor);
	ret = ioctl(fd, DM_TABLE_STATUS, head) < 0 ? -errno
						   : pst_dm_take_answer(head, TABLE_BYTES, out);
	free(head);
	close(fd);
	return ret;
}

int pst_dm_read(const struct pst_sysfs *fs, const char *name, uint32_t major, uint32_t minor,
		struct pst_dm *out)
{
	ssize_t len;
	char *text;
	int ret;

	if (!fs->confined)
		return dm_query(major, minor, out);
	len = pst_sysfs_file(fs, &text, TABLE_BYTES, "captured/dm-table/%s", name);
	if (len < 0)
		return (int)len;
	ret = pst_dm_parse(text, out);
	free(text);
	return ret;
}

void pst_dm_by_uuid(const char *uuid, struct pst_dm *out)
{
	size_t digits = strncmp(uuid, "part", 4) ? 0 : strspn(uuid + 4, "0123456789");

	*out = (struct pst_dm){.kind = PST_LAYER_DM_OTHER};
	if (!strncmp(uuid, "LVM-", 4))
		out->kind = PST_LAYER_UNKNOWN;
	else if (!strncmp(uuid, "CRYPT-VERITY-", 13) || !strncmp(uuid, "CRYPT-INTEGRITY-", 16))
		snprintf(out->detail, sizeof(out->detail), "%s",
			 uuid[6] == 'V' ? "verity" : "integrity");
	else if (!strncmp(uuid, "CRYPT-", 6))
		out->kind = PST_LAYER_DM_CRYPT;
	else if (!strncmp(uuid, "mpath-", 6))
		out->kind = PST_LAYER_DM_MULTIPATH;
	else if (digits && uuid[4 + digits] == '-')
		/* A uuid "partN-..." is that of a partition, which the program kpartx has
		 * mapped. */
		out->kind = PST_LAYER_LINEAR;
	else
		snprintf(out->detail, sizeof(out->detail), "%.*s",
			 (int)(strcspn(uuid, "-") < 23 ? strcspn(uuid, "-") : 23), uuid);
}
