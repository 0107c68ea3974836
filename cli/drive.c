/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements drive.h: follows the block devices below a file through /sys. Device mapper and md
 * devices lead to the devices that they consist of, and loop devices to their backing file. Called
 * by verify.c. It must never use the library, because it checks the library's work.
 */
#include "drive.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define DEPTH_MAX 8 /* maximum number of devices on top of each other */

static bool file_is_memory(int fd, unsigned depth);

/* Reads the first line of a file of /sys. Returns whether it exists. */
static bool line_read(const char *dir, const char *name, char *text, size_t len)
{
	char path[4096];
	FILE *f;
	bool got;

	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path))
		return false;
	f = fopen(path, "re");
	got = f && fgets(text, (int)len, f);
	if (f)
		fclose(f);
	if (got)
		text[strcspn(text, "\n")] = '\0';
	return got;
}

/* Returns whether a loop device, whose folder in /sys is `dir`, reads from memory: its backing file
 * is read through the page cache, or is itself in memory. */
static bool loop_is_memory(const char *dir, unsigned depth)
{
	char text[4096];
	bool memory;
	int fd;

	if (!line_read(dir, "loop/dio", text, sizeof(text)) || strcmp(text, "1") != 0)
		return true;
	if (!line_read(dir, "loop/backing_file", text, sizeof(text)))
		return false;
	fd = open(text, O_PATH | O_CLOEXEC);
	memory = fd >= 0 && file_is_memory(fd, depth + 1);
	if (fd >= 0)
		close(fd);
	return memory;
}

static bool name_begins(const char *name, const char *prefix)
{
	return !strncmp(name, prefix, strlen(prefix));
}

/* Returns whether a block device, whose folder in /sys is `dir`, reads from memory. */
static bool device_is_memory(const char *dir, unsigned depth)
{
	char path[4096 + 300], real[4096];
	const char *name;
	struct dirent *slave;
	bool memory = false;
	DIR *d;

	if (depth > DEPTH_MAX || !realpath(dir, real))
		return false;
	/* In /sys, a partition's folder is inside the folder of its disk. The name of the disk is
	 * needed. */
	snprintf(path, sizeof(path), "%s/partition", real);
	if (!access(path, F_OK))
		*strrchr(real, '/') = '\0';
	name = strrchr(real, '/') + 1;
	if (name_begins(name, "ram") || name_begins(name, "zram"))
		return true;
	snprintf(path, sizeof(path), "%s/loop", real);
	if (!access(path, F_OK))
		return loop_is_memory(real, depth);
	snprintf(path, sizeof(path), "%s/slaves", real);
	d = opendir(path);
	while (d && !memory && (slave = readdir(d))) {
		if (slave->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/slaves/%s", real, slave->d_name);
		memory = device_is_memory(path, depth + 1);
	}
	if (d)
		closedir(d);
	return memory;
}

static bool number_is_memory(dev_t number, unsigned depth)
{
	char dir[64];

	snprintf(dir, sizeof(dir), "/sys/dev/block/%u:%u", major(number), minor(number));
	return device_is_memory(dir, depth);
}

/* Finds the source of the mount with this id, such as "/dev/loop0", in /proc/self/mountinfo. */
static bool mount_source(unsigned long long id, char *source, size_t len)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, *at;
	size_t room = 0;
	bool found = false;

	while (f && !found && getline(&line, &room, f) > 0) {
		if (strtoull(line, NULL, 10) != id || !(at = strstr(line, " - ")))
			continue;
		/* the rest of the line is " - TYPE SOURCE OPTIONS" */
		at = strchr(at + 3, ' ');
		found = at && snprintf(source, len, "%.*s", (int)strcspn(at + 1, " "), at + 1) > 0;
	}
	free(line);
	if (f)
		fclose(f);
	return found;
}

/* Finds the id of the mount that holds the file. Returns false if kernel or libc do not report it.
 */
static bool mount_id(int fd, unsigned long long *id)
{
#ifdef STATX_MNT_ID
	struct statx stx;

	if (!statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &stx) && stx.stx_mask & STATX_MNT_ID) {
		*id = stx.stx_mnt_id;
		return true;
	}
#endif
	(void)fd;
	(void)id;
	return false;
}

static bool file_is_memory(int fd, unsigned depth)
{
	char source[1024];
	struct statfs fs;
	unsigned long long id;
	struct stat stat_buf;

	if (fstat(fd, &stat_buf))
		return false;
	/* Check this first: fstatfs(2) returns the type of the file system that holds the device
	 * node, and that is tmpfs for /dev. */
	if (S_ISBLK(stat_buf.st_mode))
		return number_is_memory(stat_buf.st_rdev, depth);
	if (!fstatfs(fd, &fs) && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC))
		return true;
	if (major(stat_buf.st_dev))
		return number_is_memory(stat_buf.st_dev, depth);
	/* A file system on several devices, such as btrfs, reports a device number that belongs to
	 * no device. In that case the code uses the device in /proc/self/mountinfo. */
	return mount_id(fd, &id) && mount_source(id, source, sizeof(source)) &&
	       !stat(source, &stat_buf) && S_ISBLK(stat_buf.st_mode) &&
	       number_is_memory(stat_buf.st_rdev, depth);
}

bool drive_is_memory(int fd)
{
	return file_is_memory(fd, 0);
}
