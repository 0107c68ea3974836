/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests failures that need real file systems and real signals: a disk that becomes full during a
 * write, a file that shrinks during a read, a storm of signals, a writer that is killed. The
 * program mounts small file systems, a tmpfs and ext4 on a loop device. It mounts them in its
 * own mount namespace, so that no other process sees them.
 */
#include "fixture.h"
#include "request.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/wait.h>
#define OLD_LEN ((1u << 20) + 77u)
#define LEN ((4u << 20) + 4321u)
#define BIG (48u << 20) /* length in bytes; larger than any of these disks */
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const engines[] = {"auto", "threads"};
static unsigned char *bytes, *back;
static char mount_point[256], name[300];
static const char *no_mount; /* reason why nothing can be mounted; NULL if mounts work */

static int setup(void **state)
{
	(void)state;
	bytes = malloc(BIG);
	back = malloc(BIG);
	snprintf(mount_point, sizeof(mount_point), "%s", fixture_name("place", false));
	snprintf(name, sizeof(name), "%s/file", mount_point);
	if (!bytes || !back || mkdir(mount_point, 0700))
		return -1;
	if (geteuid())
		no_mount = "only root can mount";
	else if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		 mount("none", mount_point, "tmpfs", 0, "size=8m"))
		no_mount = "mount is refused here";
	else
		umount(mount_point);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	rmdir(mount_point);
	free(bytes);
	free(back);
	return 0;
}

/* ---- small disks ---- */

static void mount_ext4(void)
{
	char image[300], command[2048];

	snprintf(image, sizeof(image), "%s", fixture_name("image", false));
	snprintf(command, sizeof(command),
		 "PATH=$PATH:/usr/sbin:/sbin; exec 2>/dev/null; truncate -s 24M '%s' && "
		 "mkfs.ext4 -q -F -b 4096 '%s' && mount -o loop '%s' '%s'",
		 image, image, image, mount_point);
	if (system(command)) {
		unlink(image);
		test_skip("no ext4 on a loop device can be mounted");
	}
	unlink(image); /* the unmount will free the image file */
}

static void mount_tmpfs(void)
{
	assert_int_equal(mount("none", mount_point, "tmpfs", 0, "size=8m"), 0);
}

static uint64_t free_bytes(void)
{
	struct statvfs fs;

	sync();
	assert_int_equal(statvfs(mount_point, &fs), 0);
	return (uint64_t)fs.f_bfree * fs.f_bsize;
}

/* Returns the number of files in the mounted folder. Does not count files that the file system
 * itself made. */
static unsigned count_files(void)
{
	DIR *d = opendir(mount_point);
	struct dirent *e;
	unsigned count = 0;

	assert_non_null(d);
	while ((e = readdir(d)))
		count += e->d_name[0] != '.' && strcmp(e->d_name, "lost+found") != 0;
	rewinddir(d);
	while ((e = readdir(d)))
		count += e->d_name[0] == '.' && strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
	closedir(d);
	return count;
}

/* Checks that the file has exactly the bytes of pattern `salt`. */
static void check_file(unsigned salt, uint64_t len)
{
	int fd = open(name, O_RDONLY);
	struct stat stat;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &stat), 0);
	assert_int_equal(stat.st_size, len);
	assert_int_equal(pread(fd, back, len, 0), len);
	close(fd);
	for (uint64_t i = 0; i < len; i++)
		if (back[i] != fixture_byte(i, salt))
			fail_msg("byte %llu of the file is %02x, not %02x", (unsigned long long)i,
				 back[i], fixture_byte(i, salt));
}

static int64_t write_big(struct penstock_storage *st, struct penstock_device *dev,
			 struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = bytes, .dev = dev, .row_len = BIG};
	struct penstock_req req;

	req = test_request(st, &seg, 1, PENSTOCK_WRITE);
	return penstock_transfer(&req, report);
}

static void check_no_space(int64_t ret, const struct penstock_report *report)
{
	if (ret != -ENOSPC || penstock_errwhy() != PENSTOCK_WHY_NO_SPACE)
		fail_msg("a full disk ended with %lld, %s, '%s'", (long long)ret,
			 penstock_why_name(penstock_errwhy()), penstock_errmsg());
	assert_non_null(strstr(penstock_errmsg(), strerror(ENOSPC)));
	if (!report)
		return;
	assert_int_equal(report->why, PENSTOCK_WHY_NO_SPACE);
	assert_true(report->bytes < BIG);
	assert_true(report->stop_off < BIG);
}

/* Replaces a file while the disk becomes full. The old file must stay, no other file may remain,
 * and the space must be freed. */
static void replace_on_full_disk(struct penstock_device *dev, uint64_t length)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st = NULL;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t before;
	int64_t ret;

	fixture_make_file(name, OLD_LEN, 1);
	before = free_bytes();
	opts.flags = PENSTOCK_O_REPLACE;
	opts.length = length;
	ret = penstock_open(name, &opts, &st);
	if (length) {
		check_no_space(ret, NULL);
		assert_null(st);
	} else {
		assert_int_equal(ret, 0);
		check_no_space(write_big(st, dev, &report), &report);
		check_file(1, OLD_LEN); /* checks that the old file is unchanged */
		penstock_close(st);
	}
	check_file(1, OLD_LEN);
	assert_int_equal(count_files(), 1);
	assert_in_range(free_bytes(), before - 65536, before + 65536);
	unlink(name);
}

/* Creates a file while the disk becomes full. The file has the bytes up to the offset where the
 * request stopped. */
static void create_on_full_disk(struct penstock_device *dev)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct stat there;
	int fd;

	opts.flags = PENSTOCK_O_CREATE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	check_no_space(write_big(st, dev, &report), &report);
	penstock_close(st);
	fd = open(name, O_RDONLY);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &there), 0);
	/* Pieces of the request that lie after stop_off may have been written, too. */
	if ((uint64_t)there.st_size > BIG || (uint64_t)there.st_size < report.stop_off)
		fail_msg("the file has %lld bytes, it stopped at %llu", (long long)there.st_size,
			 (unsigned long long)report.stop_off);
	assert_int_equal(pread(fd, back, BIG, 0), there.st_size);
	close(fd);
	for (uint64_t i = 0; i < report.stop_off; i++)
		if (back[i] != bytes[i])
			fail_msg("byte %llu is %02x, not %02x", (unsigned long long)i, back[i],
				 bytes[i]);
	unlink(name);
	/* If the storage is aborted instead, no file is left. */
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	check_no_space(write_big(st, dev, &report), &report);
	assert_int_equal(penstock_abort(st), 0);
	penstock_close(st);
	assert_int_equal(count_files(), 0);
	opts.length = BIG;
	check_no_space(penstock_open(name, &opts, &st), NULL);
	assert_int_equal(count_files(), 0);
}

/* Extends an existing file while the disk becomes full. The old bytes must stay. */
static void extend_on_full_disk(struct penstock_device *dev)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	struct stat there;
	int fd;

	fixture_make_file(name, OLD_LEN, 1);
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	check_no_space(penstock_write(st, dev, bytes, BIG, OLD_LEN), NULL);
	penstock_close(st);
	fd = open(name, O_RDONLY);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &there), 0);
	assert_in_range(there.st_size, OLD_LEN, OLD_LEN + BIG);
	assert_int_equal(pread(fd, back, OLD_LEN, 0), OLD_LEN);
	close(fd);
	for (uint64_t i = 0; i < OLD_LEN; i++)
		assert_int_equal(back[i], fixture_byte(i, 1));
	unlink(name);
}

/* After the failure, the same device can write data that fits on the disk. */
static void write_that_fits(struct penstock_device *dev)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = PENSTOCK_O_REPLACE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	assert_int_equal(penstock_write(st, dev, bytes, LEN, 0), LEN);
	assert_int_equal(penstock_commit(st, 1), 0);
	penstock_close(st);
	check_file(2, LEN);
	unlink(name);
}

static void check_full_disk(void (*mount_disk)(void))
{
	if (no_mount)
		test_skip("%s", no_mount);
	mount_disk();
	fixture_fill(bytes, BIG, 2);
	for (unsigned e = 0; e < COUNT(engines); e++) {
		struct penstock_device *dev = fixture_open_device("host", engines[e], 0);

		replace_on_full_disk(dev, 0);
		replace_on_full_disk(dev, BIG);
		create_on_full_disk(dev);
		extend_on_full_disk(dev);
		write_that_fits(dev);
		penstock_device_close(dev);
	}
	assert_int_equal(count_files(), 0);
	assert_int_equal(umount(mount_point),
			 0); /* checks that no descriptor keeps the mount busy */
}

static void full_disk_tmpfs(void **state)
{
	(void)state;
	check_full_disk(mount_tmpfs);
}

static void full_disk_ext4(void **state)
{
	(void)state;
	check_full_disk(mount_ext4);
}

/* ---- a file that shrinks while it is read ---- */

struct shrink {
	int fd;
	uint64_t to;
	_Atomic int go;
};

static void *shrink_file(void *arg)
{
	struct shrink *s = arg;

	while (!atomic_load(&s->go))
		;
	for (int i = atomic_load(&s->go); i > 1; i--)
		sched_yield();
	if (ftruncate(s->fd, (off_t)s->to))
		return arg; /* ends the thread; the comparison of bytes then fails */
	return NULL;
}

/* Reads while another thread shrinks the file. The read ends at the new end of the file or after
 * it. All bytes before the place where the read ends are right. */
static void read_while_shrinking(struct penstock_device *dev, struct penstock_device *host,
				 void *mem, const char *path, uint64_t *random)
{
	struct shrink s = {.fd = open(name, O_RDWR), .to = test_random(random) % LEN};
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = LEN};
	struct penstock_req req;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_storage *st;
	pthread_t thread;
	void *failed;
	int64_t n;

	assert_true(s.fd >= 0);
	assert_int_equal(pwrite(s.fd, bytes, LEN, 0), LEN);
	if (test_random(random) % 2)
		fixture_set_cached(name, false);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	assert_int_equal(penstock_prepare(st, dev, PENSTOCK_READ), 0);
	req = test_request(st, &seg, 1, PENSTOCK_READ);
	req.path = path;
	req.flags = test_random(random) % 2 ? PENSTOCK_R_EXACT : 0;
	assert_int_equal(pthread_create(&thread, NULL, shrink_file, &s), 0);
	atomic_store(&s.go, 1 + (int)(test_random(random) % 200));
	n = penstock_transfer(&req, &report);
	pthread_join(thread, &failed);
	assert_null(failed);
	if (n == -ENODATA && (req.flags & PENSTOCK_R_EXACT)) {
		assert_int_equal(report.why, PENSTOCK_WHY_SHRANK);
		n = (int64_t)report.stop_off;
	}
	if (n < (int64_t)s.to || n > LEN)
		fail_msg("cut to %llu, %lld were read: %s", (unsigned long long)s.to, (long long)n,
			 n < 0 ? penstock_errmsg() : "");
	test_copy(host, back, dev, mem, LEN);
	for (uint64_t i = 0; i < (uint64_t)n; i++)
		if (back[i] != bytes[i] && (i < s.to || back[i]))
			fail_msg("cut to %llu, read %lld: byte %llu is %02x, not %02x",
				 (unsigned long long)s.to, (long long)n, (unsigned long long)i,
				 back[i], bytes[i]);
	/* A second read, of the shorter file, returns the bytes up to its end. */
	req.flags = 0;
	n = penstock_transfer(&req, NULL);
	assert_int_equal(n, s.to);
	penstock_close(st);
	close(s.fd);
}

static void file_shrinks_during_read(void **state)
{
	static const char *const paths[] = {NULL, "bounce", "staged"};
	uint64_t random = test_seed(2106);

	(void)state;
	snprintf(name, sizeof(name), "%s", fixture_name("shrinks", false));
	fixture_make_file(name, LEN, 2);
	fixture_fill(bytes, LEN, 2);
	for (unsigned e = 0; e < COUNT(engines); e++)
		for (unsigned d = 0; d < 2; d++) {
			struct penstock_device *dev, *host;
			void *mem;

			dev = fixture_open_device(d ? "cuda:0" : "host", engines[e], 256u << 10);
			host = fixture_open_device("host", engines[e], 256u << 10);
			assert_int_equal(penstock_alloc(dev, LEN, &mem), 0);
			for (unsigned i = 0; i < 12; i++) {
				const char *path = paths[i % 3];

				/* For a GPU, the library would choose the path "mapped" by itself.
				 * Another case tests that path. */
				read_while_shrinking(dev, host, mem, d && !path ? "bounce" : path,
						     &random);
			}
			penstock_free(dev, mem);
			penstock_device_close(host);
			penstock_device_close(dev);
		}
	unlink(name);
	snprintf(name, sizeof(name), "%s/file", mount_point);
}

/* ---- a storm of signals ---- */

static _Atomic unsigned alarms;

static void on_alarm(int number)
{
	(void)number;
	atomic_fetch_add(&alarms, 1);
}

static void write_and_read_file(struct penstock_device *dev, unsigned salt)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	fixture_fill(bytes, LEN, salt);
	opts.flags = PENSTOCK_O_REPLACE;
	opts.length = salt % 2 ? LEN : 0;
	if (penstock_open(name, &opts, &st))
		fail_msg("open: %s", penstock_errmsg());
	for (uint64_t off = 0; off < LEN;) {
		uint64_t len = off % 3 ? 65537 : 1500000, n = len < LEN - off ? len : LEN - off;
		int64_t ret = penstock_write(st, dev, bytes + off, n, off);

		if (ret != (int64_t)n)
			fail_msg("write: %lld: %s", (long long)ret, penstock_errmsg());
		off += n;
	}
	if (penstock_commit(st, salt % 4 == 0))
		fail_msg("commit: %s", penstock_errmsg());
	memset(back, 0xee, LEN);
	for (uint64_t off = 0; off < LEN;) {
		uint64_t len = off % 3 ? 65537 : 1500000, n = len < LEN - off ? len : LEN - off;
		int64_t ret = penstock_read(st, dev, back + off, n, off);

		if (ret != (int64_t)n)
			fail_msg("read: %lld: %s", (long long)ret, penstock_errmsg());
		off += n;
	}
	penstock_close(st);
	assert_memory_equal(back, bytes, LEN);
}

static void storm_of_signals(void **state)
{
	const struct itimerval often = {{0, 150}, {0, 150}}, never = {{0, 0}, {0, 0}};
	struct sigaction on = {.sa_handler = on_alarm}, before;
	const unsigned rounds = 8;

	(void)state;
	snprintf(name, sizeof(name), "%s", fixture_name("storm", false));
	assert_int_equal(sigaction(SIGALRM, &on, &before), 0); /* without SA_RESTART */
	for (unsigned e = 0; e < COUNT(engines); e++) {
		struct penstock_device *dev = fixture_open_device("host", engines[e], 0);

		atomic_store(&alarms, 0);
		assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
		for (unsigned i = 0; i < rounds; i++)
			write_and_read_file(dev, 2 + i);
		assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
		penstock_device_close(dev);
		printf("# %s: %u signals\n", engines[e], atomic_load(&alarms));
		assert_true(atomic_load(&alarms) > rounds);
	}
	sigaction(SIGALRM, &before, NULL);
	unlink(name);
	snprintf(name, sizeof(name), "%s/file", mount_point);
}

/* ---- a writer that is killed ---- */

/* Replaces the file by pattern 3, then 4, 5 and so on, and reports each commit through `report_fd`,
 * until the process is killed. */
static void write_until_killed(const char *engine, int report_fd)
{
	struct penstock_device *dev = fixture_open_device("host", engine, 0);
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = PENSTOCK_O_REPLACE;
	for (unsigned char salt = 3;; salt++) {
		fixture_fill(bytes, LEN, salt);
		if (write(report_fd, "w", 1) != 1 || penstock_open(name, &opts, &st) ||
		    penstock_write(st, dev, bytes, LEN, 0) != LEN || penstock_commit(st, 0))
			_exit(1);
		penstock_close(st);
		if (write(report_fd, &salt, 1) != 1)
			_exit(1);
	}
}

/* Removes temporary files, whose names start with ".file.penstock-". Any other file fails the
 * case. */
static unsigned remove_temporary_files(unsigned most)
{
	DIR *d = opendir(mount_point);
	struct dirent *e;
	unsigned found = 0;

	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
		    !strcmp(e->d_name, "file"))
			continue;
		if (strncmp(e->d_name, ".file.penstock-", 15) != 0)
			fail_msg("a killed writer left %s", e->d_name);
		found++;
		unlinkat(dirfd(d), e->d_name, 0);
	}
	closedir(d);
	assert_in_range(found, 0, most);
	return found;
}

/* Kills a process that replaces a file. Returns 1 if it was killed before a commit finished. */
static unsigned kill_writer(const char *engine, uint64_t after_us)
{
	unsigned char got, done = 2;
	int status, pipes[2], fd;
	struct stat stat;
	pid_t pid;

	fixture_make_file(name, LEN, 2);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		write_until_killed(engine, pipes[1]);
	close(pipes[1]);
	assert_int_equal(read(pipes[0], &got, 1), 1); /* waits until the writer has started */
	usleep((useconds_t)after_us);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	while (read(pipes[0], &got, 1) == 1)
		if (got != 'w')
			done = got;
	close(pipes[0]);
	fd = open(name, O_RDONLY);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &stat), 0);
	close(fd);
	assert_int_equal(stat.st_size, LEN);
	assert_int_equal(stat.st_nlink, 1);
	/* The file on the disk is complete. It is the last version whose commit was reported, or
	 * the next version. */
	assert_int_equal(pread(fd = open(name, O_RDONLY), &got, 1, 4242), 1);
	close(fd);
	check_file(got == fixture_byte(4242, done) ? done : done + 1, LEN);
	return remove_temporary_files(1);
}

static void killed_writer_leaves_a_whole_file(void **state)
{
	uint64_t random = test_seed(9);
	unsigned middle = 0;

	(void)state;
	for (unsigned i = 0; i < 16; i++)
		middle += kill_writer(engines[i % 2], test_random(&random) % 40000);
	printf("# %u of 16 were killed in the middle\n", middle);
	unlink(name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* This case comes first. It forks children that use the library, and a child must
		 * not do so if its parent has used the library before. */
		cmocka_unit_test(killed_writer_leaves_a_whole_file),
		cmocka_unit_test(full_disk_tmpfs),
		cmocka_unit_test(full_disk_ext4),
		cmocka_unit_test(file_shrinks_during_read),
		cmocka_unit_test(storm_of_signals),
	};

	fixture_use_standin();
	return cmocka_run_group_tests_name("disk", tests, setup, teardown);
}
