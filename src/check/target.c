/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolves the target of a check. For a path it looks up the mount, the block stack (the layers
 * from the file system to the drives) and the drives. A URL needs no look-up. If the facts come
 * from a capture (copied files of another machine), it uses only the mount table of the capture.
 * Called by check.c. It must never open a file for writing, and never block on a pipe.
 */
#include "target.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/file_url.h"
#include "core/base/err.h"

const char *pst_check_target_path(const struct pst_check_facts *f)
{
	return pst_file_url_path(f->opts->target);
}

/* Reads the device number of a block device, for example "259:3", from the capture (copied /sys and
 * /proc files of another machine). Returns whether the capture has the block device. */
static bool captured_block_find(const struct pst_check_facts *f, const char *name,
				struct pst_blockstack_in *in)
{
	char text[32];

	return !strchr(name, '/') &&
	       pst_sysfs_text(&f->fs, text, sizeof(text), "sys/class/block/%s/dev", name) > 0 &&
	       sscanf(text, "%9u:%9u", &in->major, &in->minor) == 2;
}

/* Finds the mount that holds `path`, which is the mount whose mount point is the longest prefix
 * of `path`. */
static int captured_mount_find(struct pst_check_facts *f, const char *path,
			       struct pst_blockstack_in *in, char *why, size_t why_len)
{
	char point[sizeof(f->point)], *text, *slash;
	struct pst_mount mount;
	ssize_t len = pst_sysfs_file(&f->fs, &text, 1 << 20, "proc/self/mountinfo");
	int ret = -ENOENT;

	if (len < 0) {
		snprintf(why, why_len, "the capture has no mount table; capture the machine again");
		return (int)len;
	}
	if (path[0] != '/' || (size_t)snprintf(point, sizeof(point), "%s", path) >= sizeof(point)) {
		free(text);
		snprintf(
			why, why_len,
			"%s: name the whole path, from /; a captured machine has no current folder",
			path);
		return -EINVAL;
	}
	while (ret < 0) {
		struct pst_mount_key key = {.id = -1, .point = point[0] ? point : "/"};

		ret = pst_mount_find(text, (size_t)len, &key, &mount);
		if (!ret || !point[0])
			break;
		slash = strrchr(point, '/');
		*slash = '\0';
	}
	free(text);
	if (ret < 0) {
		snprintf(why, why_len, "the captured machine has no mount that holds %s", path);
		return ret;
	}
	snprintf(f->point, sizeof(f->point), "%s", mount.point);
	in->major = mount.major;
	in->minor = mount.minor;
	in->mount_point = f->point;
	return 0;
}

/* Looks up the device number, file system and mount of a path on the running machine. */
static int real_file_find(const char *path, struct pst_blockstack_in *in, char *why, size_t why_len)
{
	struct stat st;
	struct statfs fs;
	int fd = open(path, O_PATH | O_CLOEXEC), ret = fd < 0 ? -errno : 0;

	if (!ret && fstat(fd, &st) < 0)
		ret = -errno;
	/* Fails if this user may not read the file: a measurement of a scratch file next to it
	 * would be useless to this user. */
	if (!ret && S_ISREG(st.st_mode) && faccessat(AT_FDCWD, path, R_OK, AT_EACCESS))
		ret = -errno;
	if (!ret && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISBLK(st.st_mode)) {
		snprintf(why, why_len,
			 "%s is neither a file, a folder nor a block device: name one of these",
			 pst_path_tail(path));
		ret = -ESPIPE;
	} else if (ret) {
		snprintf(why, why_len, "%s: %s", pst_path_tail(path), strerror(-ret));
	}
	if (ret) {
		if (fd >= 0)
			close(fd);
		return ret;
	}
	in->is_block = S_ISBLK(st.st_mode);
	in->major = major(in->is_block ? st.st_rdev : st.st_dev);
	in->minor = minor(in->is_block ? st.st_rdev : st.st_dev);
	if (!in->is_block && fstatfs(fd, &fs) == 0)
		in->fs_magic = (uint64_t)fs.f_type & UINT32_MAX;
#ifdef STATX_MNT_ID
	{
		struct statx stx;

		if (!syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &stx) &&
		    stx.stx_mask & STATX_MNT_ID)
			in->mount_id = (int64_t)stx.stx_mnt_id;
	}
#endif
	close(fd);
	return 0;
}

/* Returns whether `drive` of the block stack (for example nvme0n1, nvme0c0n1 or sda) is the
 * drive `end` of the topology (nvme0 or sda). For a drive over fabrics, the number after the 'c'
 * is the controller's number: nvme0c1n1 belongs to nvme1. */
static bool end_is_drive(const struct pst_check_facts *f, const struct pst_end *end,
			 const struct pst_stack_drive *drive)
{
	size_t len = strlen(end->name);
	const char *path = strchr(drive->name + 1, 'c');

	if (end->kind != PST_END_DRIVE)
		return false;
	if (strncmp(drive->name, "nvme", 4))
		return !strcmp(drive->name, end->name);
	if (drive->bdf[0])
		return end->pci >= 0 && !strcmp(f->topo->pci[end->pci].bdf, drive->bdf);
	if (path)
		return !strncmp(end->name, "nvme", 4) &&
		       !strncmp(end->name + 4, path + 1, len - 4) && path[1 + len - 4] == 'n';
	return !strncmp(drive->name, end->name, len) && drive->name[len] == 'n';
}

/* Replaces the list of all drives of the machine by a list of the drives that the checked path is
 * on. */
static void drives_set_from_stack(struct pst_check_facts *f)
{
	unsigned i;
	size_t j;

	f->drive_count = 0;
	for (i = 0; i < f->stack.drive_count && f->drive_count < PST_CHECK_SUBJECTS_MAX; i++) {
		const struct pst_stack_drive *drive = &f->stack.drives[i];
		struct pst_check_subject *subject = &f->drives[f->drive_count++];

		*subject = (struct pst_check_subject){
			.name = drive->name,
			.maker = "",
			.model = drive->model,
			.transport = drive->transport,
			.pci = drive->bdf[0] ? pst_topo_pci(f->topo, drive->bdf) : NULL,
		};
		for (j = 0; j < f->topo->end_count; j++)
			if (end_is_drive(f, &f->topo->ends[j], drive))
				subject->name = f->topo->ends[j].name;
	}
}

int pst_check_target(struct pst_check_facts *f, char *why, size_t why_len)
{
	struct pst_blockstack_in in = {.mount_id = -1};
	const char *path = pst_check_target_path(f), *scheme = path ? strstr(path, "://") : NULL;
	int ret = 0;

	if (!path) {
		snprintf(why, why_len, "%s: " PST_FILE_URL_HOST, f->opts->target);
		return -EINVAL;
	}
	if (!path[0]) {
		snprintf(why, why_len, "the path is empty: name a file or folder");
		return -EINVAL;
	}
	if (scheme) {
		f->is_url = true;
		if (!strncmp(path, "s3://", 5) || !strncmp(path, "http://", 7) ||
		    !strncmp(path, "https://", 8))
			return 0;
		snprintf(why, why_len, "%s: unknown kind of URL, use s3://, http:// or https://",
			 path);
		return -EINVAL;
	}
	if (!f->captured)
		ret = real_file_find(path, &in, why, why_len);
	else if (!strncmp(path, "/dev/", 5) && captured_block_find(f, path + 5, &in))
		in.is_block = true;
	else
		ret = captured_mount_find(f, path, &in, why, why_len);
	if (ret < 0)
		return ret;
	/* Ignores an error. The list of block layers in f->stack is then incomplete, and the gates
	 * report this as unknown, never as direct. */
	(void)pst_blockstack_read(f->opts->root, &in, &f->stack);
	f->is_block = in.is_block;
	snprintf(f->point, sizeof(f->point), "%s",
		 in.is_block		   ? path
		 : f->stack.mount.point[0] ? f->stack.mount.point
					   : f->point);
	f->has_file = true;
	drives_set_from_stack(f);
	return 0;
}
