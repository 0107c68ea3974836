/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests cases that are known to fail with NVIDIA's library, and unusual settings that its users are
 * known to have: no udev, a broken path to the configuration, limits larger than the machine's.
 * Also a failed open, stream calls without I/O threads, and files on an overlay. Each case runs in
 * a separate process, because parameters must be set before the driver is opened. Other tests of
 * such cases: tests/shim/preload tests which library a program gets, test_stats.c tests the layouts
 * of the statistics, and test_config.c tests the keys of the configuration.
 */
#include "shim_test.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LEN = 1 << 20, GOOD = 0, SKIP = 77, SKIP_DISK = 78 };

/* Prints a message and exits the child process if a condition is false. */
#define WANT(what)                                                                           \
	do {                                                                                 \
		if (!(what)) {                                                               \
			printf("# %s:%d: %s, errno %d\n", __FILE__, __LINE__, #what, errno); \
			fflush(stdout);                                                      \
			_exit(1);                                                            \
		}                                                                            \
	} while (0)

/* ---- files that the library opens ---- */

static _Atomic unsigned opens, udev_opens;

static void count_open(const char *name)
{
	opens++;
	udev_opens += name && strstr(name, "run/udev") != NULL;
}

#define OPENS(fn)                                                  \
	int fn(const char *name, int flags, ...)                   \
	{                                                          \
		static int (*real)(const char *, int, mode_t);     \
		mode_t mode;                                       \
		va_list args;                                      \
		st_real(#fn, &real);                               \
		va_start(args, flags);                             \
		mode = flags & O_CREAT ? va_arg(args, mode_t) : 0; \
		va_end(args);                                      \
		count_open(name);                                  \
		return real(name, flags, mode);                    \
	}
#define OPENS_AT(fn)                                                \
	int fn(int dir, const char *name, int flags, ...)           \
	{                                                           \
		static int (*real)(int, const char *, int, mode_t); \
		mode_t mode;                                        \
		va_list args;                                       \
		st_real(#fn, &real);                                \
		va_start(args, flags);                              \
		mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;  \
		va_end(args);                                       \
		count_open(name);                                   \
		return real(dir, name, flags, mode);                \
	}
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
OPENS(open)
OPENS_AT(openat)
#pragma GCC diagnostic pop

/* ---- shared by the cases ---- */

static char *dev;

static void start_cuda(void)
{
	pst_cu_ptr ptr;

	WANT(cu_load() && cu.cuMemAlloc(&ptr, LEN) == PST_CU_OK);
	dev = (char *)(uintptr_t)ptr;
}

/* Opens and registers a file, and reads, writes and reads it again through the drop-in
 * libcufile. */
static void use_file(const char *name, int flags)
{
	int fd = open(name, O_RDWR | flags), code;
	void *fh;

	if (fd < 0 && flags & O_DIRECT)
		return; /* the file system does not support O_DIRECT, so there is nothing to test */
	WANT(fd >= 0);
	fh = st_register(fd, &code);
	WANT(!code);
	WANT(cuFileRead(fh, dev, 70001, 3, 0) == 70001 && st_holds(dev, 3, 70001));
	WANT(cuFileWrite(fh, dev, 70001, 3, 0) == 70001);
	WANT(cuFileRead(fh, dev, LEN, 0, 0) == LEN && st_holds(dev, 0, LEN));
	cuFileHandleDeregister(fh);
	WANT(fcntl(fd, F_GETFD) >= 0);
	close(fd);
}

static void make_file(const char *name)
{
	unsigned char *bytes = malloc(LEN);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);

	st_fill(bytes, 0, LEN);
	WANT(fd >= 0 && write(fd, bytes, LEN) == LEN && fsync(fd) == 0);
	close(fd);
	free(bytes);
}

static void make_folder(char *name)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(name, PATH_MAX, "%s/known-XXXXXX", tmp ? tmp : "/tmp");
	WANT(mkdtemp(name));
}

/* Moves this process into a separate mount namespace. Returns false if the kernel refuses. */
static bool unshare_mounts(void)
{
	return !unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) &&
	       !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

/* ---- the cases ---- */

/* Files can be registered on a machine without a udev database. NVIDIA's library refuses every file
 * on such a machine. */
static int no_udev(void)
{
	char name[PATH_MAX];
	int memory;

	if (!access("/run/udev", F_OK) &&
	    (!unshare_mounts() || mount("none", "/run", "tmpfs", 0, NULL)))
		return SKIP;
	start_cuda();
	close(st_make("no-udev", LEN, O_RDONLY));
	use_file(st_path, 0);
	use_file(st_path, O_DIRECT);
	unlink(st_path);
	memory = memfd_create("no-udev", 0);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", memory);
	make_file(name);
	use_file(name, 0);
	use_file(name, O_DIRECT);
	WANT(!udev_opens);
	return GOOD;
}

/* DeepSpeed sets CUFILE_ENV_PATH_JSON with putenv(), which does not expand $PWD. It registers
 * the file again for each operation. A registration must not leak a descriptor and must not scan
 * all of /sys. */
static int register_each_time(void)
{
	char folder[PATH_MAX];
	unsigned opens_before = 0;
	int before, fd, code;
	void *fh;
	DIR *dir;

	setenv("CUFILE_ENV_PATH_JSON", "$PWD/local_cufile.json", 1);
	start_cuda();
	fd = st_make("anew", LEN, O_RDONLY);
	make_folder(folder);
	WANT(!chdir(folder) && !cuFileDriverOpen().err);
	WANT(!cuFileDriverSetMaxDirectIOSize(16384).err);
	/* The documentation says that SIZE_MAX means no limit. */
	WANT(!cuFileDriverSetMaxPinnedMemSize(SIZE_MAX).err);
	WANT(!cuFileBufRegister(dev, LEN, 0).err);
	before = dup(fd);
	close(before);
	for (int i = 0; i < 50; i++) {
		opens_before = i == 1 ? opens : opens_before;
		fh = st_register(fd, &code);
		WANT(!code && cuFileRead(fh, dev, 4096, i, 512 * i) == 4096);
		WANT(st_holds(dev + 512 * i, (uint64_t)i, 4096));
		cuFileHandleDeregister(fh);
	}
	/* A registration makes 2 open calls. At most once a second the library also inspects the
	 * layers between file and drives (the block stack), with about 40 more open calls. */
	WANT(opens - opens_before < 49 * 20);
	code = dup(fd);
	/* The first transfer opened a few descriptors; later transfers opened none. */
	WANT(code < before + 64);
	WANT(!cuFileBufDeregister(dev).err && !cuFileDriverClose().err);
	/* The working directory must contain no log file and no other file. */
	dir = opendir(".");
	for (struct dirent *e; (e = readdir(dir));)
		WANT(e->d_name[0] == '.');
	closedir(dir);
	unlink(st_path);
	WANT(!rmdir(folder));
	return GOOD;
}

/* ONNX Runtime enables peer-to-peer and disables compat mode through the API, before it opens
 * the driver. If no direct path exists, either the registration or the read must fail. All other
 * calls must succeed. */
static int only_direct(void)
{
	int memory = memfd_create("direct", 0), fd, code;
	void *fh;

	start_cuda();
	WANT(!cuFileSetParameterBool(CUF_PARAM_USE_PCIP2PDMA, true).err);
	WANT(!cuFileSetParameterBool(CUF_PARAM_ALLOW_COMPAT_MODE, false).err);
	WANT(!ftruncate(memory, LEN));
	st_register(memory, &code);
	WANT(code == CUF_IO_NOT_SUPPORTED && fcntl(memory, F_GETFD) >= 0);
	fd = st_make("direct", LEN, O_RDONLY);
	unlink(st_path);
	fh = st_register(fd, &code);
	WANT(!code || code == CUF_IO_NOT_SUPPORTED);
	if (!code) {
		char host[5000];

		WANT(cuFileRead(fh, dev, 4096, 0, 0) == -CUF_IO_NOT_SUPPORTED);
		/* The drive's DMA can transfer only whole blocks, so the CPU would have to copy the
		 * last bytes. Without compat mode the library may not use the CPU. */
		WANT(cuFileRead(fh, host, sizeof(host), 3, 0) == -CUF_IO_NOT_SUPPORTED);
	}
	cuFileHandleDeregister(fh);
	WANT(!cuFileDriverClose().err);
	WANT(!cuFileSetParameterBool(CUF_PARAM_ALLOW_COMPAT_MODE, true).err);
	fh = st_register(fd, &code);
	WANT(!code && cuFileRead(fh, dev, 4096, 7, 0) == 4096 && st_holds(dev, 7, 4096));
	return GOOD;
}

/* The process runs out of descriptors. Whichever open() inside the library fails, each of the
 * caller's descriptors must still refer to its own file. */
static int failed_opens(void)
{
	struct rlimit limit;
	struct stat was[64], is;
	int fd = st_make("failed", LEN, O_RDONLY), code = -1, open_fds[64], count = 0;

	unlink(st_path);
	WANT(!cuFileDriverOpen().err && !getrlimit(RLIMIT_NOFILE, &limit));
	for (int i = 0; i < 64; i++)
		if (!fstat(i, &is)) {
			open_fds[count] = i;
			was[count++] = is;
		}
	for (rlim_t most = (rlim_t)fd + 1; most < (rlim_t)fd + 16; most++) {
		WANT(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){most, limit.rlim_max}));
		cuFileHandleDeregister(st_register(fd, &code));
		WANT(!code || code == CUF_GETNEWFD_FAILED || code == CUF_IO_NOT_SUPPORTED);
		for (int i = 0; i < count; i++)
			WANT(!fstat(open_fds[i], &is) && is.st_ino == was[i].st_ino &&
			     is.st_dev == was[i].st_dev);
	}
	/* checks that the registration succeeded under the last limit, which is large enough */
	WANT(!code);
	return GOOD;
}

/* Stream-ordered calls work although parallel I/O is off and there are no I/O threads. NVIDIA's
 * library needs parallel I/O and its threads. As in PyTorch, the result is a local variable of a
 * function that waits for the stream before it returns. */
static int streams_without_threads(void)
{
	struct pst_cu_stream *stream;
	size_t len = 9000;
	off_t off = 5, zero = 0;
	ssize_t bytes = -7;
	int fd = st_make("threads", LEN, O_RDONLY), code;
	void *fh;

	unlink(st_path);
	start_cuda();
	WANT(!cuFileSetParameterBool(CUF_PARAM_PARALLEL_IO, false).err);
	WANT(!cuFileSetParameterSizeT(CUF_MAX_IO_THREADS, 0).err);
	fh = st_register(fd, &code);
	WANT(!code);
	stream = cu_stream();
	WANT(!cuFileReadAsync(fh, dev, &len, &off, &zero, &bytes, stream).err);
	WANT(cu.cuStreamSynchronize(stream) == PST_CU_OK);
	WANT(bytes == 9000 && st_holds(dev, 5, 9000));
	return GOOD;
}

/* Opening the driver is fast, whereas NVIDIA's library needs seconds. The test measures CPU
 * time, so that other processes do not influence the result. */
static int opens_quickly(void)
{
	struct timespec before, after;
	int64_t us;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	WANT(!cuFileDriverOpen().err);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	us = (after.tv_sec - before.tv_sec) * 1000000 + (after.tv_nsec - before.tv_nsec) / 1000;
	printf("# the driver opens in %lld us\n", (long long)us);
	fflush(stdout);
	WANT(us < 50000);
	return GOOD;
}

/* The log has a line for each file, even if an earlier file had the same path and the same
 * reason. */
static int log_every_file(void)
{
	char folder[PATH_MAX], log[PATH_MAX + 8], line[PATH_MAX * 2];
	unsigned lines = 0;
	FILE *f;

	make_folder(folder);
	snprintf(log, sizeof(log), "%s/log", folder);
	setenv("CUFILE_LOGFILE_PATH", log, 1);
	for (int i = 0; i < 30; i++) {
		int fd = st_make("named", 4096, O_RDONLY), code;
		void *fh = st_register(fd, &code);
		char host[100];

		unlink(st_path);
		WANT(!code && cuFileRead(fh, host, 100, 0, 0) == 100);
		cuFileHandleDeregister(fh);
		close(fd);
	}
	f = fopen(log, "r");
	while (f && fgets(line, sizeof(line), f))
		lines += strstr(line, "read into host by path ") != NULL;
	WANT(f && lines == 30);
	fclose(f);
	unlink(log);
	WANT(!rmdir(folder));
	return GOOD;
}

/* If the driver is opened again after its last close, it reads the configuration again. A
 * parameter that the program has set through the API applies to one open only, as documented. */
static int config_read_again(void)
{
	size_t kb = 0, batch = 0;

	for (size_t i = 1; i < 4; i++) {
		setenv("CUFILE_PER_BUFFER_CACHE_SIZE", i == 1 ? "100" : i == 2 ? "200" : "300", 1);
		WANT(i > 1 || !cuFileSetParameterSizeT(CUF_IO_BATCHSIZE, 9).err);
		WANT(!cuFileGetParameterSizeT(CUF_PER_BUFFER_CACHE_KB, &kb).err && kb == i * 100);
		WANT(!cuFileDriverOpen().err);
		WANT(!cuFileGetParameterSizeT(CUF_PER_BUFFER_CACHE_KB, &kb).err && kb == i * 100);
		WANT(!cuFileGetParameterSizeT(CUF_IO_BATCHSIZE, &batch).err);
		WANT(batch == (i == 1 ? 9 : 128));
		WANT(!cuFileDriverClose().err);
	}
	return GOOD;
}

/* Versions 1.14 and 1.15 of cuFile have a parameter for NVTX ranges. NVIDIA's Python bindings set
 * this parameter. Later versions refuse the parameter. */
static int nvtx_flag(const char *version, int code)
{
	bool on = false;

	setenv("PENSTOCK_CUFILE_VERSION", version, 1);
	for (int i = 0; i < 2; i++) {
		WANT(cuFileSetParameterBool(CUF_PARAM_NVTX, !i).err == code);
		WANT(cuFileGetParameterBool(CUF_PARAM_NVTX, &on).err == code);
		WANT(on == (!code && !i));
	}
	return GOOD;
}

static int nvtx_of_15(void)
{
	return nvtx_flag("1.15", CUF_SUCCESS);
}

static int nvtx_of_17(void)
{
	return nvtx_flag("1.17", CUF_INVALID_VALUE);
}

/* Uses files in a container whose file system is an overlay. The files are files of the image,
 * files that a write copies to the upper layer, new files, and files on tmpfs. */
static int overlay(void)
{
	char folder[PATH_MAX];

	make_folder(folder);
	if (!unshare_mounts() || mount("none", folder, "tmpfs", 0, NULL))
		return rmdir(folder) ? 1 : SKIP;
	WANT(!chdir(folder) && !mkdir("low", 0700) && !mkdir("up", 0700) && !mkdir("work", 0700) &&
	     !mkdir("all", 0700));
	make_file("low/image");
	if (mount("none", "all", "overlay", 0, "lowerdir=low,upperdir=up,workdir=work"))
		return SKIP;
	start_cuda();
	make_file("all/new");
	use_file("all/new", 0);
	use_file("all/new", O_DIRECT);
	use_file("all/image", 0); /* the write copies the file to the upper layer */
	use_file("all/image", O_DIRECT);
	use_file("low/image", 0);
	WANT(!chdir("/") && !umount2(folder, MNT_DETACH) && !rmdir(folder));
	return GOOD;
}

/* ---- file systems on a loop device ---- */

/* Makes a file system in a file and mounts it on the folder "disk" of the working directory, in
 * this process's own mount namespace. */
static bool mount_disk(const char *type)
{
	char command[512];

	snprintf(command, sizeof(command),
		 "PATH=$PATH:/usr/sbin:/sbin; exec >/dev/null 2>&1; truncate -s 320M image && "
		 "mkfs.%s -q image && mount -t %s -o loop image disk; is=$?; rm -f image; exit $is",
		 type, type);
	return !system(command);
}

/* Reads holes, reads allocated blocks that were never written, and writes past the end of the
 * file. */
static void use_holes(const char *name)
{
	static unsigned char zeros[LEN], got[LEN];
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600), code;
	void *fh = st_register(fd, &code);

	WANT(!code && !ftruncate(fd, LEN));
	WANT(!posix_fallocate(fd, LEN, LEN));
	for (int i = 0; i < 2; i++) {
		memset(got, 0xee, LEN);
		WANT(cuFileRead(fh, got, LEN, (off_t)i * LEN, 0) == LEN);
		WANT(!memcmp(got, zeros, LEN));
	}
	WANT(cuFileRead(fh, dev, LEN, 0, 0) == LEN);
	WANT(cu.cuMemcpyDtoHAsync(got, (uintptr_t)dev, LEN, NULL) == PST_CU_OK &&
	     cu.cuStreamSynchronize(NULL) == PST_CU_OK && !memcmp(got, zeros, LEN));
	st_fill(got, 0, LEN);
	WANT(cuFileWrite(fh, got, LEN, 5 * LEN + 77, 0) == LEN);
	WANT(cuFileRead(fh, dev, LEN, 5 * LEN + 77, 0) == LEN && st_holds(dev, 0, LEN));
	WANT(lseek(fd, 0, SEEK_END) == 6 * LEN + 77);
	WANT(pread(fd, got, LEN, 4 * LEN) == LEN && !memcmp(got, zeros, LEN));
	cuFileHandleDeregister(fh);
	close(fd);
}

/* Reads a file with a batch and with a stream-ordered call. */
static void use_batch_and_stream(const char *name, int flags)
{
	struct cuf_io_params params[16];
	struct cuf_io_event events[16];
	int fd = open(name, O_RDWR | flags), code;
	void *fh = st_register(fd, &code), *batch;
	size_t len = 100003;
	off_t off = 4097, zero = 0;
	ssize_t bytes = -7;
	unsigned nr = 16;

	WANT(!code && !cuFileBatchIOSetUp(&batch, 16).err);
	for (unsigned i = 0; i < 16; i++)
		params[i] = st_op(fh, CUF_READ, dev, 60001, (off_t)i * 60001, (off_t)i * 60001, i);
	WANT(cu.cuMemsetD8Async((uintptr_t)dev, 0, LEN, NULL) == PST_CU_OK &&
	     cu.cuStreamSynchronize(NULL) == PST_CU_OK);
	WANT(!cuFileBatchIOSubmit(batch, 16, params, 0).err);
	WANT(!cuFileBatchIOGetStatus(batch, 16, &nr, events, NULL).err && nr == 16);
	for (unsigned i = 0; i < nr; i++)
		WANT(events[i].status == CUF_COMPLETE && events[i].ret == 60001);
	WANT(st_holds(dev, 0, 16 * 60001));
	cuFileBatchIODestroy(batch);
	WANT(!cuFileReadAsync(fh, dev, &len, &off, &zero, &bytes, (void *)2).err);
	WANT(cu.cuStreamSynchronize((void *)2) == PST_CU_OK);
	WANT(bytes == (ssize_t)len && st_holds(dev, 4097, len));
	cuFileHandleDeregister(fh);
	close(fd);
}

/* Checks that no path to a file on a loop device counts as direct: the library cannot prove how
 * the loop driver reads its backing file. */
static void check_not_direct(const char *name)
{
	int fd = open(name, O_RDONLY), code;

	while (cuFileUseCount())
		WANT(!cuFileDriverClose().err);
	WANT(!cuFileSetParameterBool(CUF_PARAM_ALLOW_COMPAT_MODE, false).err);
	st_register(fd, &code);
	WANT(code == CUF_IO_NOT_SUPPORTED && fcntl(fd, F_GETFD) >= 0);
	close(fd);
}

static int on_disk(const char *type)
{
	char folder[PATH_MAX];
	bool own, mounted;

	make_folder(folder);
	own = unshare_mounts() && !chdir(folder) && !mkdir("disk", 0700);
	mounted = own && mount_disk(type);
	if (mounted) {
		start_cuda();
		make_file("disk/file");
		use_file("disk/file", 0);
		use_file("disk/file", O_DIRECT);
		use_batch_and_stream("disk/file", 0);
		use_batch_and_stream("disk/file", O_DIRECT);
		use_holes("disk/holes");
		check_not_direct("disk/file");
		WANT(!umount2("disk", MNT_DETACH));
	}
	WANT(!own || (!rmdir("disk") && !chdir("/")));
	WANT(!rmdir(folder));
	return mounted ? GOOD : SKIP_DISK;
}

static int ext4(void)
{
	return on_disk("ext4");
}

static int xfs(void)
{
	return on_disk("xfs");
}

static const struct {
	const char *name;
	int (*run)(void);
} cases[] = {
	{"no_udev", no_udev},
	{"register_each_time", register_each_time},
	{"only_direct", only_direct},
	{"failed_opens", failed_opens},
	{"streams_without_threads", streams_without_threads},
	{"opens_quickly", opens_quickly},
	{"log_every_file", log_every_file},
	{"config_read_again", config_read_again},
	{"nvtx_of_15", nvtx_of_15},
	{"nvtx_of_17", nvtx_of_17},
	{"overlay", overlay},
	{"ext4", ext4},
	{"xfs", xfs},
};
enum { COUNT = sizeof(cases) / sizeof(cases[0]) };

static void run_case(void **state)
{
	const char *name = *state;
	int code = st_run_self(name, NULL);

	if (code == SKIP)
		test_skip("mount is refused here");
	if (code == SKIP_DISK)
		test_skip("no %s on a loop device can be mounted", name);
	assert_int_equal(code, 0);
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[COUNT];

	for (unsigned i = 0; i < COUNT; i++) {
		if (argc > 1 && !strcmp(argv[1], cases[i].name))
			return cases[i].run();
		tests[i] = (struct CMUnitTest){cases[i].name, run_case, NULL, NULL,
					       (void *)(uintptr_t)cases[i].name};
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
