/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a check is asked about: a path, whose mount and block stack are looked up, or a
 * URL. On a captured machine the mount table alone is asked. Called by run.c. It must
 * never open a file for writing, nor wait for one.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/err.h"
#include "gate.h"

const char *pst_check_path_of(const struct facts *f)
{
	const char *target = f->opts->target;

	return strncmp(target, "file://", 7) ? target : target + 7;
}

/* The number of a block device of a capture: "259:3". */
static bool captured_block(const struct facts *f, const char *name, struct pst_blockstack_in *in)
{
	char text[32];

	return !strchr(name, '/') &&
	       pst_sysfs_text(&f->fs, text, sizeof(text), "sys/class/block/%s/dev", name) > 0 &&
	       sscanf(text, "%9u:%9u", &in->major, &in->minor) == 2;
}

/* The mount that holds a path: the longest point above it. */
static int captured_mount(struct facts *f, const char *path, struct pst_blockstack_in *in,
			  char *why, size_t why_len)
{
	char point[sizeof(f->point)], *text, *slash;
	struct pst_mount mount;
	ssize_t len = pst_sysfs_file(&f->fs, &text, 1 << 20, "proc/self/mountinfo");
	int ret = -ENOENT;

	if (len < 0) {
		snprintf(why, why_len, "the captured machine has no table of mounts");
		return (int)len;
	}
	if (path[0] != '/' || (size_t)snprintf(point, sizeof(point), "%s", path) >= sizeof(point)) {
		free(text);
		snprintf(why, why_len, "%s: on a captured machine a whole path is wanted", path);
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

/* Of the real machine: what the file system says of the path. */
static int real_file(const char *path, struct pst_blockstack_in *in, char *why, size_t why_len)
{
	struct stat st;
	struct statfs fs;
	int fd = open(path, O_PATH | O_CLOEXEC), ret = fd < 0 ? -errno : 0;

	if (!ret && fstat(fd, &st) < 0)
		ret = -errno;
	/* What a scratch file beside it shows is no answer for who may not read this one. */
	if (!ret && S_ISREG(st.st_mode) && faccessat(AT_FDCWD, path, R_OK, AT_EACCESS))
		ret = -errno;
	if (!ret && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode) && !S_ISBLK(st.st_mode)) {
		snprintf(why, why_len, "%s is neither file, folder nor block device",
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

/* Is the drive of the stack (nvme0n1, nvme0c0n1, sda) this one of the topology (nvme0,
 * sda)? Over fabrics a path is called by its controller: nvme0c1n1 is of nvme1. */
static bool is_drive(const struct facts *f, const struct pst_end *end,
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

/* The drives beneath take the place of all those of the machine. */
static void pick_drives(struct facts *f)
{
	unsigned i;
	size_t j;

	f->drive_count = 0;
	for (i = 0; i < f->stack.drive_count && f->drive_count < PST_CHECK_ENDS_MAX; i++) {
		const struct pst_stack_drive *drive = &f->stack.drives[i];
		struct spot *spot = &f->drives[f->drive_count++];

		*spot = (struct spot){
			.name = drive->name,
			.maker = "",
			.model = drive->model,
			.transport = drive->transport,
			.pci = drive->bdf[0] ? pst_topo_pci(f->topo, drive->bdf) : NULL,
		};
		for (j = 0; j < f->topo->end_count; j++)
			if (is_drive(f, &f->topo->ends[j], drive))
				spot->name = f->topo->ends[j].name;
	}
}

int pst_check_target(struct facts *f, char *why, size_t why_len)
{
	struct pst_blockstack_in in = {.mount_id = -1};
	const char *path = pst_check_path_of(f), *scheme = strstr(path, "://");
	int ret = 0;

	if (!path[0]) {
		snprintf(why, why_len, "an empty path names nothing");
		return -EINVAL;
	}
	if (scheme) {
		f->is_url = true;
		if (!strncmp(path, "s3://", 5) || !strncmp(path, "http://", 7) ||
		    !strncmp(path, "https://", 8))
			return 0;
		snprintf(why, why_len, "%s: URLs are s3://, http:// or https:// ones", path);
		return -EINVAL;
	}
	if (!f->captured)
		ret = real_file(path, &in, why, why_len);
	else if (!strncmp(path, "/dev/", 5) && captured_block(f, path + 5, &in))
		in.is_block = true;
	else
		ret = captured_mount(f, path, &in, why, why_len);
	if (ret < 0)
		return ret;
	/* An error leaves a stack that is not complete: unknown, never direct. */
	(void)pst_blockstack_read(f->opts->root, &in, &f->stack);
	f->is_block = in.is_block;
	snprintf(f->point, sizeof(f->point), "%s",
		 in.is_block		   ? path
		 : f->stack.mount.point[0] ? f->stack.mount.point
					   : f->point);
	f->has_file = true;
	pick_drives(f);
	return 0;
}
