/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only real file systems and real signals do: a disk that is full in the middle
 * of a write, a file that shrinks under a read, a storm of signals, a writer that is
 * killed. Small ones are mounted in a mount namespace of this process: a tmpfs, and
 * ext4 on a loop device. Nothing is mounted where others see it.
 */
#include "world.h"

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
#define BIG (48u << 20) /* no disk of these has that much */
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const engines[] = {"auto", "threads"};
static unsigned char *bytes, *back;
static char place[256], name[300];
static const char *no_mount; /* why not */

static int setup(void **state)
{
	(void)state;
	bytes = malloc(BIG);
	back = malloc(BIG);
	snprintf(place, sizeof(place), "%s", world_name("place", false));
	snprintf(name, sizeof(name), "%s/file", place);
	if (!bytes || !back || mkdir(place, 0700))
		return -1;
	if (geteuid())
		no_mount = "only root can mount";
	else if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		 mount("none", place, "tmpfs", 0, "size=8m"))
		no_mount = "mount is refused here";
	else
		umount(place);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	rmdir(place);
	free(bytes);
	free(back);
	return 0;
}

/* ---- small disks ---- */

static void mount_ext4(void)
{
	char image[300], command[2048];

	snprintf(image, sizeof(image), "%s", world_name("image", false));
	snprintf(command, sizeof(command),
		 "PATH=$PATH:/usr/sbin:/sbin; exec 2>/dev/null; truncate -s 24M '%s' && "
		 "mkfs.ext4 -q -F -b 4096 '%s' && mount -o loop '%s' '%s'",
		 image, image, image, place);
	if (system(command)) {
		unlink(image);
		test_skip("no ext4 on a loop device can be mounted");
	}
	unlink(image); /* goes with the mount */
}

static void mount_tmpfs(void)
{
	assert_int_equal(mount("none", place, "tmpfs", 0, "size=8m"), 0);
}

static uint64_t room(void)
{
	struct statvfs fs;

	sync();
	assert_int_equal(statvfs(place, &fs), 0);
	return (uint64_t)fs.f_bfree * fs.f_bsize;
}

/* Files beside those of the file system itself. */
static unsigned entries(void)
{
	DIR *d = opendir(place);
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

/* The file is all of `salt`, from its first to its last byte. */
static void file_is(unsigned salt, uint64_t len)
{
	int fd = open(name, O_RDONLY);
	struct stat stat;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &stat), 0);
	assert_int_equal(stat.st_size, len);
	assert_int_equal(pread(fd, back, len, 0), len);
	close(fd);
	for (uint64_t i = 0; i < len; i++)
		if (back[i] != world_byte(i, salt))
			fail_msg("byte %llu of the file is %02x, not %02x", (unsigned long long)i,
				 back[i], world_byte(i, salt));
}

static int64_t write_big(struct penstock_storage *st, struct penstock_device *dev,
			 struct penstock_report *report)
{
	struct penstock_seg seg = {.buf = bytes, .dev = dev, .row_len = BIG};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = PENSTOCK_WRITE;
	return penstock_transfer(&req, report);
}

static void check_full(int64_t ret, const struct penstock_report *report)
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

/* Replacing: the old file stays, nothing else does, and the room comes back. */
static void full_replace(struct penstock_device *dev, uint64_t length)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st = NULL;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	uint64_t before;
	int64_t ret;

	world_file(name, OLD_LEN, 1);
	before = room();
	opts.flags = PENSTOCK_O_REPLACE;
	opts.length = length;
	ret = penstock_open(name, &opts, &st);
	if (length) {
		check_full(ret, NULL);
		assert_null(st);
	} else {
		assert_int_equal(ret, 0);
		check_full(write_big(st, dev, &report), &report);
		file_is(1, OLD_LEN); /* nobody sees half of it */
		penstock_close(st);
	}
	file_is(1, OLD_LEN);
	assert_int_equal(entries(), 1);
	assert_in_range(room(), before - 65536, before + 65536);
	unlink(name);
}

/* Creating: what is left is what was written, right up to where it stopped. */
static void full_create(struct penstock_device *dev)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct stat there;
	int fd;

	opts.flags = PENSTOCK_O_CREATE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	check_full(write_big(st, dev, &report), &report);
	penstock_close(st);
	fd = open(name, O_RDONLY);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &there), 0);
	/* Behind where it stopped, pieces may have had room yet, up to the very end. */
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
	/* and the same, given up: nothing is left */
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	check_full(write_big(st, dev, &report), &report);
	assert_int_equal(penstock_abort(st), 0);
	penstock_close(st);
	assert_int_equal(entries(), 0);
	opts.length = BIG;
	check_full(penstock_open(name, &opts, &st), NULL);
	assert_int_equal(entries(), 0);
}

/* Growing what is there: what it had stays. */
static void full_grow(struct penstock_device *dev)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	struct stat there;
	int fd;

	world_file(name, OLD_LEN, 1);
	opts.flags = PENSTOCK_O_WRITE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	check_full(penstock_write(st, dev, bytes, BIG, OLD_LEN), NULL);
	penstock_close(st);
	fd = open(name, O_RDONLY);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &there), 0);
	assert_in_range(there.st_size, OLD_LEN, OLD_LEN + BIG);
	assert_int_equal(pread(fd, back, OLD_LEN, 0), OLD_LEN);
	close(fd);
	for (uint64_t i = 0; i < OLD_LEN; i++)
		assert_int_equal(back[i], world_byte(i, 1));
	unlink(name);
}

/* Afterwards the same device writes what fits. */
static void still_works(struct penstock_device *dev)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = PENSTOCK_O_REPLACE;
	assert_int_equal(penstock_open(name, &opts, &st), 0);
	assert_int_equal(penstock_write(st, dev, bytes, LEN, 0), LEN);
	assert_int_equal(penstock_commit(st, 1), 0);
	penstock_close(st);
	file_is(2, LEN);
	unlink(name);
}

static void full(void (*mount_it)(void))
{
	if (no_mount)
		test_skip("%s", no_mount);
	mount_it();
	world_fill(bytes, BIG, 2);
	for (unsigned e = 0; e < COUNT(engines); e++) {
		struct penstock_device *dev = world_device("host", engines[e], 0);

		full_replace(dev, 0);
		full_replace(dev, BIG);
		full_create(dev);
		full_grow(dev);
		still_works(dev);
		penstock_device_close(dev);
	}
	assert_int_equal(entries(), 0);
	assert_int_equal(umount(place), 0); /* nothing holds it */
}

static void full_tmpfs(void **state)
{
	(void)state;
	full(mount_tmpfs);
}

static void full_ext4(void **state)
{
	(void)state;
	full(mount_ext4);
}

/* ---- a file that shrinks while it is read ---- */

struct shrink {
	int fd;
	uint64_t to;
	_Atomic int go;
};

static void *shrinker(void *arg)
{
	struct shrink *s = arg;

	while (!atomic_load(&s->go))
		;
	for (int i = atomic_load(&s->go); i > 1; i--)
		sched_yield();
	if (ftruncate(s->fd, (off_t)s->to))
		return arg; /* the bytes will show it */
	return NULL;
}

/* It ends short, at or behind the new end, and all up to there is right. */
static void shrunk_read(struct penstock_device *dev, struct penstock_device *host, void *mem,
			const char *path, uint64_t *random)
{
	struct shrink s = {.fd = open(name, O_RDWR), .to = test_random(random) % LEN};
	struct penstock_seg seg = {.buf = mem, .dev = dev, .row_len = LEN};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_storage *st;
	pthread_t thread;
	void *failed;
	int64_t n;

	assert_true(s.fd >= 0);
	assert_int_equal(pwrite(s.fd, bytes, LEN, 0), LEN);
	if (test_random(random) % 2)
		world_cache(name, false);
	assert_int_equal(penstock_open(name, NULL, &st), 0);
	assert_int_equal(penstock_prepare(st, dev, PENSTOCK_READ), 0);
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.path = path;
	req.flags = test_random(random) % 2 ? PENSTOCK_R_EXACT : 0;
	assert_int_equal(pthread_create(&thread, NULL, shrinker, &s), 0);
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
	/* now that it is short, it is short for everybody */
	req.flags = 0;
	n = penstock_transfer(&req, NULL);
	assert_int_equal(n, s.to);
	penstock_close(st);
	close(s.fd);
}

static void shrinking(void **state)
{
	static const char *const paths[] = {NULL, "bounce", "staged"};
	uint64_t random = test_seed(2106);

	(void)state;
	snprintf(name, sizeof(name), "%s", world_name("shrinks", false));
	world_file(name, LEN, 2);
	world_fill(bytes, LEN, 2);
	for (unsigned e = 0; e < COUNT(engines); e++)
		for (unsigned d = 0; d < 2; d++) {
			struct penstock_device *dev, *host;
			void *mem;

			dev = world_device(d ? "cuda:0" : "host", engines[e], 256u << 10);
			host = world_device("host", engines[e], 256u << 10);
			assert_int_equal(penstock_alloc(dev, LEN, &mem), 0);
			for (unsigned i = 0; i < 12; i++) {
				const char *path = paths[i % 3];

				/* by itself a GPU would map it, which is its own case */
				shrunk_read(dev, host, mem, d && !path ? "bounce" : path, &random);
			}
			penstock_free(dev, mem);
			penstock_device_close(host);
			penstock_device_close(dev);
		}
	unlink(name);
	snprintf(name, sizeof(name), "%s/file", place);
}

/* ---- a storm of signals ---- */

static _Atomic unsigned alarms;

static void on_alarm(int number)
{
	(void)number;
	atomic_fetch_add(&alarms, 1);
}

static void storm_round(struct penstock_device *dev, unsigned salt)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	world_fill(bytes, LEN, salt);
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

static void storm(void **state)
{
	const struct itimerval often = {{0, 150}, {0, 150}}, never = {{0, 0}, {0, 0}};
	struct sigaction on = {.sa_handler = on_alarm}, before;
	const unsigned rounds = 8;

	(void)state;
	snprintf(name, sizeof(name), "%s", world_name("storm", false));
	assert_int_equal(sigaction(SIGALRM, &on, &before), 0); /* no SA_RESTART */
	for (unsigned e = 0; e < COUNT(engines); e++) {
		struct penstock_device *dev = world_device("host", engines[e], 0);

		atomic_store(&alarms, 0);
		assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
		for (unsigned i = 0; i < rounds; i++)
			storm_round(dev, 2 + i);
		assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
		penstock_device_close(dev);
		printf("# %s: %u signals\n", engines[e], atomic_load(&alarms));
		assert_true(atomic_load(&alarms) > rounds);
	}
	sigaction(SIGALRM, &before, NULL);
	unlink(name);
	snprintf(name, sizeof(name), "%s/file", place);
}

/* ---- a writer that is killed ---- */

/* Replaces the file by 3, 4, 5 ... and says so, until it is killed. */
static void write_for_ever(const char *engine, int say)
{
	struct penstock_device *dev = world_device("host", engine, 0);
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;

	opts.flags = PENSTOCK_O_REPLACE;
	for (unsigned char salt = 3;; salt++) {
		world_fill(bytes, LEN, salt);
		if (write(say, "w", 1) != 1 || penstock_open(name, &opts, &st) ||
		    penstock_write(st, dev, bytes, LEN, 0) != LEN || penstock_commit(st, 0))
			_exit(1);
		penstock_close(st);
		if (write(say, &salt, 1) != 1)
			_exit(1);
	}
}

/* Temporary files lie beside it as ".file.penstock-*"; nothing else does. */
static unsigned clear_place(unsigned most)
{
	DIR *d = opendir(place);
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

/* 1: it was killed before it had finished. */
static unsigned kill_one(const char *engine, uint64_t after_us)
{
	unsigned char got, done = 2;
	int status, pipes[2], fd;
	struct stat stat;
	pid_t pid;

	world_file(name, LEN, 2);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		write_for_ever(engine, pipes[1]);
	close(pipes[1]);
	assert_int_equal(read(pipes[0], &got, 1), 1); /* it has begun */
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
	/* the last that it said, or the one behind, whole */
	assert_int_equal(pread(fd = open(name, O_RDONLY), &got, 1, 4242), 1);
	close(fd);
	file_is(got == world_byte(4242, done) ? done : done + 1, LEN);
	return clear_place(1);
}

static void killed(void **state)
{
	uint64_t random = test_seed(9);
	unsigned middle = 0;

	(void)state;
	for (unsigned i = 0; i < 16; i++)
		middle += kill_one(engines[i % 2], test_random(&random) % 40000);
	printf("# %u of 16 were killed in the middle\n", middle);
	unlink(name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed), /* first: its children must be the first to use it */
		cmocka_unit_test(full_tmpfs), cmocka_unit_test(full_ext4),
		cmocka_unit_test(shrinking),  cmocka_unit_test(storm),
	};

	world_use_standin();
	return cmocka_run_group_tests_name("disk", tests, setup, teardown);
}
