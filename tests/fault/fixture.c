/* SPDX-License-Identifier: Apache-2.0 */
/* Implements fixture.h. If a function here fails, the case that called it fails, and nothing is
 * cleaned up. */
#include "fixture.h"

#include <dirent.h>

unsigned char fixture_byte(uint64_t at, unsigned salt)
{
	return (unsigned char)((at + salt * 977u) * 2654435761u >> 13);
}

void fixture_fill(unsigned char *into, uint64_t len, unsigned salt)
{
	for (uint64_t i = 0; i < len; i++)
		into[i] = fixture_byte(i, salt);
}

const char *fixture_name(const char *what, bool memory)
{
	static char names[4][256];
	static unsigned turn;
	char *name = names[turn++ % 4];
	const char *tmp = getenv("TMPDIR");

	snprintf(name, sizeof(names[0]), "%s/penstock-fault-%d-%s",
		 memory ? "/dev/shm"
		 : tmp	? tmp
			: "/tmp",
		 (int)getpid(), what);
	return name;
}

void fixture_make_file(const char *name, uint64_t len, unsigned salt)
{
	unsigned char *bytes = malloc(len);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_non_null(bytes);
	assert_true(fd >= 0);
	fixture_fill(bytes, len, salt);
	assert_int_equal(write(fd, bytes, len), len);
	assert_int_equal(fsync(fd), 0);
	close(fd);
	free(bytes);
}

void fixture_overwrite(const char *name, const void *bytes, uint64_t len)
{
	int fd = open(name, O_WRONLY);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, len, 0), len);
	close(fd);
}

void fixture_set_cached(const char *name, bool warm)
{
	char block[65536];
	int fd = open(name, O_RDONLY);

	assert_true(fd >= 0);
	if (warm) {
		while (read(fd, block, sizeof(block)) > 0)
			;
	} else {
		assert_int_equal(fsync(fd), 0);
		assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	}
	close(fd);
}

void fixture_use_standin(void)
{
	test_use_standin_at("../standin/libcuda.so.1");
}

struct penstock_device *fixture_open_device_lanes(const char *name, const char *engine, size_t slot,
						  unsigned lanes)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct penstock_device *dev;

	opts.engine = engine;
	opts.lanes = lanes;
	opts.slot_bytes = slot ? slot : 1u << 20;
	opts.ring_bytes = 8 * opts.slot_bytes;
	if (penstock_device_open(name, &opts, &dev) < 0)
		fail_msg("%s: %s", name, penstock_errmsg());
	return dev;
}

struct penstock_device *fixture_open_device(const char *name, const char *engine, size_t slot)
{
	return fixture_open_device_lanes(name, engine, slot, 2);
}

bool fixture_has_uring(void)
{
	struct penstock_device *dev = fixture_open_device("host", "uring", 0);
	struct penstock_storage *st;
	int ret;

	assert_int_equal(penstock_open("mem:4KiB", NULL, &st), 0);
	ret = penstock_prepare(st, dev, PENSTOCK_READ);
	penstock_close(st);
	penstock_device_close(dev);
	return ret == 0;
}

static unsigned count_fds(bool rings)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	unsigned count = 0;
	char to[128];

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		ssize_t len = readlinkat(dirfd(dir), entry->d_name, to, sizeof(to) - 1);

		if (len < 0)
			continue;
		to[len] = 0;
		count += !strstr(to, "/maps") && !strstr(to, "stand-in") &&
			 rings == !strcmp(to, "anon_inode:[io_uring]");
	}
	closedir(dir);
	return count;
}

unsigned fixture_open_fds(void)
{
	return count_fds(false);
}

unsigned fixture_open_rings(void)
{
	return count_fds(true);
}

enum penstock_why fixture_errno_why(int code)
{
	switch (code) {
	case ENOSPC:
	case EDQUOT:
		return PENSTOCK_WHY_NO_SPACE;
	case ENOMEM:
		return PENSTOCK_WHY_NO_MEMORY;
	case EACCES:
		return PENSTOCK_WHY_NO_PERMISSION;
	case EMFILE:
		return PENSTOCK_WHY_NO_FILES;
	}
	return PENSTOCK_WHY_IO_ERROR;
}
