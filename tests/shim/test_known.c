/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the original is known to want or to get wrong, and clients are known to do, one
 * case each: no udev, a broken path to the configuration, parameters that ask for what
 * cannot be, a failed open, stream calls without its threads, files that lie on an
 * overlay. Each case is a process of its own, for parameters are set before the driver
 * opens. Which library answers is tests/shim/preload's, layouts are test_stats.c's, the
 * configuration's keys test_config.c's.
 */
#include "shim_test.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LEN = 1 << 20, GOOD = 0, SKIP = 77, SKIP_DISK = 78 };

/* Ends the process with the line where something was not as wanted. */
#define WANT(what)                                                                           \
	do {                                                                                 \
		if (!(what)) {                                                               \
			printf("# %s:%d: %s, errno %d\n", __FILE__, __LINE__, #what, errno); \
			fflush(stdout);                                                      \
			_exit(1);                                                            \
		}                                                                            \
	} while (0)

/* ---- what the library looks for ---- */

static _Atomic unsigned asked, asked_udev;

static void ask(const char *name)
{
	asked++;
	asked_udev += name && strstr(name, "run/udev") != NULL;
}

#define OPENS(fn)                                                  \
	int fn(const char *name, int flags, ...)                   \
	{                                                          \
		static int (*own)(const char *, int, mode_t);      \
		void *sym = own ? NULL : dlsym(RTLD_NEXT, #fn);    \
		mode_t mode;                                       \
		va_list args;                                      \
		if (sym)                                           \
			memcpy(&own, &sym, sizeof(sym));           \
		va_start(args, flags);                             \
		mode = flags & O_CREAT ? va_arg(args, mode_t) : 0; \
		va_end(args);                                      \
		ask(name);                                         \
		return own(name, flags, mode);                     \
	}
#define OPENS_AT(fn)                                               \
	int fn(int dir, const char *name, int flags, ...)          \
	{                                                          \
		static int (*own)(int, const char *, int, mode_t); \
		void *sym = own ? NULL : dlsym(RTLD_NEXT, #fn);    \
		mode_t mode;                                       \
		va_list args;                                      \
		if (sym)                                           \
			memcpy(&own, &sym, sizeof(sym));           \
		va_start(args, flags);                             \
		mode = flags & O_CREAT ? va_arg(args, mode_t) : 0; \
		va_end(args);                                      \
		ask(name);                                         \
		return own(dir, name, flags, mode);                \
	}
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
OPENS(open)
OPENS_AT(openat)
#pragma GCC diagnostic pop

/* ---- what all do ---- */

static char *dev;

static void start_cuda(void)
{
	pst_cu_ptr ptr;

	WANT(cu_load() && cu.cuMemAlloc(&ptr, LEN) == PST_CU_OK);
	dev = (char *)(uintptr_t)ptr;
}

static bool holds(const char *at, uint64_t off, size_t len)
{
	unsigned char *got = malloc(len), *want = malloc(len);
	bool same;

	WANT(cu.cuMemcpyDtoHAsync(got, (uintptr_t)at, len, NULL) == PST_CU_OK &&
	     cu.cuStreamSynchronize(NULL) == PST_CU_OK);
	st_fill(want, off, len);
	same = !memcmp(got, want, len);
	free(got);
	free(want);
	return same;
}

/* Registers, reads, writes, reads again and deregisters, by a path. */
static void use_file(const char *name, int flags)
{
	int fd = open(name, O_RDWR | flags), code;
	void *fh;

	if (fd < 0 && flags & O_DIRECT)
		return; /* not on this file system */
	WANT(fd >= 0);
	fh = st_register(fd, &code);
	WANT(!code);
	WANT(cuFileRead(fh, dev, 70001, 3, 0) == 70001 && holds(dev, 3, 70001));
	WANT(cuFileWrite(fh, dev, 70001, 3, 0) == 70001);
	WANT(cuFileRead(fh, dev, LEN, 0, 0) == LEN && holds(dev, 0, LEN));
	cuFileHandleDeregister(fh);
	WANT(fcntl(fd, F_GETFD) >= 0);
	close(fd);
}

static void make(const char *name)
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

/* A mount namespace of its own; false: refused here. */
static bool apart(void)
{
	return !unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS) &&
	       !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

/* ---- the cases ---- */

/* The original fails every registration where there is no udev database. */
static int no_udev(void)
{
	char name[PATH_MAX];
	int memory;

	if (!access("/run/udev", F_OK) && (!apart() || mount("none", "/run", "tmpfs", 0, NULL)))
		return SKIP;
	start_cuda();
	close(st_make("no-udev", LEN, O_RDONLY));
	use_file(st_path, 0);
	use_file(st_path, O_DIRECT);
	unlink(st_path);
	memory = memfd_create("no-udev", 0);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", memory);
	make(name);
	use_file(name, 0);
	use_file(name, O_DIRECT);
	WANT(!asked_udev);
	return GOOD;
}

/* DeepSpeed: putenv() does not expand, and a file is registered anew for each operation,
 * which must not cost a descriptor each, nor a look at all of /sys. */
static int each_operation_anew(void)
{
	char folder[PATH_MAX];
	unsigned before_asked = 0;
	int before, fd, code;
	void *fh;
	DIR *dir;

	setenv("CUFILE_ENV_PATH_JSON", "$PWD/local_cufile.json", 1);
	start_cuda();
	fd = st_make("anew", LEN, O_RDONLY);
	make_folder(folder);
	WANT(!chdir(folder) && !cuFileDriverOpen().err);
	WANT(!cuFileDriverSetMaxDirectIOSize(16384).err);
	WANT(!cuFileDriverSetMaxPinnedMemSize(SIZE_MAX).err); /* documented as no limit */
	WANT(!cuFileBufRegister(dev, LEN, 0).err);
	before = dup(fd);
	close(before);
	for (int i = 0; i < 50; i++) {
		before_asked = i == 1 ? asked : before_asked;
		fh = st_register(fd, &code);
		WANT(!code && cuFileRead(fh, dev, 4096, i, 512 * i) == 4096);
		WANT(holds(dev + 512 * i, (uint64_t)i, 4096));
		cuFileHandleDeregister(fh);
	}
	WANT(asked - before_asked < 49 * 20); /* 2 each, 40 for each second that passed */
	code = dup(fd);
	WANT(code < before + 64); /* those of the first transfer, and no more */
	WANT(!cuFileBufDeregister(dev).err && !cuFileDriverClose().err);
	/* No log file in the working directory, nor anything else. */
	dir = opendir(".");
	for (struct dirent *e; (e = readdir(dir));)
		WANT(e->d_name[0] == '.');
	closedir(dir);
	unlink(st_path);
	WANT(!rmdir(folder));
	return GOOD;
}

/* ONNX Runtime asks for peer-to-peer and forbids compat mode, by API and before open:
 * where that cannot be, the registration or the read fails, and nothing else does. */
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
		/* No DMA ends at a byte: what it leaves would be somebody's copy. */
		WANT(cuFileRead(fh, host, sizeof(host), 3, 0) == -CUF_IO_NOT_SUPPORTED);
	}
	cuFileHandleDeregister(fh);
	WANT(!cuFileDriverClose().err);
	WANT(!cuFileSetParameterBool(CUF_PARAM_ALLOW_COMPAT_MODE, true).err);
	fh = st_register(fd, &code);
	WANT(!code && cuFileRead(fh, dev, 4096, 7, 0) == 4096 && holds(dev, 7, 4096));
	return GOOD;
}

/* No descriptor is left for the library: whichever of its opens fails, what the caller
 * has open stays what it was. */
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
	WANT(!code); /* with room for all */
	return GOOD;
}

/* The original wants parallel I/O and threads for it. PyTorch's result is a variable on
 * the stack of a function that then waits for the stream. */
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
	WANT(cu.cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0) == PST_CU_OK);
	WANT(!cuFileReadAsync(fh, dev, &len, &off, &zero, &bytes, stream).err);
	WANT(cu.cuStreamSynchronize(stream) == PST_CU_OK);
	WANT(bytes == 9000 && holds(dev, 5, 9000));
	return GOOD;
}

/* The original needs seconds. CPU time, so that others' work does not count. */
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

/* A log file names each file, also those that went like others before. */
static int log_names_each(void)
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

/* After the last close file and environment are read again; what was set was for one open,
 * as documented. */
static int read_again(void)
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

/* 1.14 and 1.15 have a flag for NVTX ranges, as NVIDIA's bindings try; those after refuse
 * it. */
static int nvtx_of(const char *version, int code)
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
	return nvtx_of("1.15", CUF_SUCCESS);
}

static int nvtx_of_17(void)
{
	return nvtx_of("1.17", CUF_INVALID_VALUE);
}

/* A container's files: of the image below, written to above, new ones, on tmpfs. */
static int overlay(void)
{
	char folder[PATH_MAX];

	make_folder(folder);
	if (!apart() || mount("none", folder, "tmpfs", 0, NULL))
		return rmdir(folder) ? 1 : SKIP;
	WANT(!chdir(folder) && !mkdir("low", 0700) && !mkdir("up", 0700) && !mkdir("work", 0700) &&
	     !mkdir("all", 0700));
	make("low/image");
	if (mount("none", "all", "overlay", 0, "lowerdir=low,upperdir=up,workdir=work"))
		return SKIP;
	start_cuda();
	make("all/new");
	use_file("all/new", 0);
	use_file("all/new", O_DIRECT);
	use_file("all/image", 0); /* which copies it up */
	use_file("all/image", O_DIRECT);
	use_file("low/image", 0);
	WANT(!chdir("/") && !umount2(folder, MNT_DETACH) && !rmdir(folder));
	return GOOD;
}

/* ---- file systems on a disk of their own ---- */

/* Made, mounted on the working directory's "disk", and gone with this process. */
static bool mount_disk(const char *type)
{
	char command[512];

	snprintf(command, sizeof(command),
		 "PATH=$PATH:/usr/sbin:/sbin; exec >/dev/null 2>&1; truncate -s 320M image && "
		 "mkfs.%s -q image && mount -t %s -o loop image disk; is=$?; rm -f image; exit $is",
		 type, type);
	return !system(command);
}

/* Holes, room that was never written, and a write beyond the end. */
static void holes(const char *name)
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
	WANT(cuFileRead(fh, dev, LEN, 5 * LEN + 77, 0) == LEN && holds(dev, 0, LEN));
	WANT(lseek(fd, 0, SEEK_END) == 6 * LEN + 77);
	WANT(pread(fd, got, LEN, 4 * LEN) == LEN && !memcmp(got, zeros, LEN));
	cuFileHandleDeregister(fh);
	close(fd);
}

/* All ways of moving bytes at once: a batch of them, and a stream. */
static void many_ways(const char *name, int flags)
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
	for (unsigned i = 0; i < 16; i++) {
		params[i] = (struct cuf_io_params){.mode = CUF_BATCH, .fh = fh, .opcode = CUF_READ};
		params[i].u.batch.base = dev;
		params[i].u.batch.base_offset = params[i].u.batch.file_offset = (off_t)i * 60001;
		params[i].u.batch.size = 60001;
	}
	WANT(cu.cuMemsetD8Async((uintptr_t)dev, 0, LEN, NULL) == PST_CU_OK &&
	     cu.cuStreamSynchronize(NULL) == PST_CU_OK);
	WANT(!cuFileBatchIOSubmit(batch, 16, params, 0).err);
	WANT(!cuFileBatchIOGetStatus(batch, 16, &nr, events, NULL).err && nr == 16);
	for (unsigned i = 0; i < nr; i++)
		WANT(events[i].status == CUF_COMPLETE && events[i].ret == 60001);
	WANT(holds(dev, 0, 16 * 60001));
	cuFileBatchIODestroy(batch);
	WANT(!cuFileReadAsync(fh, dev, &len, &off, &zero, &bytes, (void *)2).err);
	WANT(cu.cuStreamSynchronize((void *)2) == PST_CU_OK);
	WANT(bytes == (ssize_t)len && holds(dev, 4097, len));
	cuFileHandleDeregister(fh);
	close(fd);
}

/* What a loop device reads from its own file nobody vouches for. */
static void nothing_is_direct(const char *name)
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
	own = apart() && !chdir(folder) && !mkdir("disk", 0700);
	mounted = own && mount_disk(type);
	if (mounted) {
		start_cuda();
		make("disk/file");
		use_file("disk/file", 0);
		use_file("disk/file", O_DIRECT);
		many_ways("disk/file", 0);
		many_ways("disk/file", O_DIRECT);
		holes("disk/holes");
		nothing_is_direct("disk/file");
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

/* ---- */

static const struct {
	const char *name;
	int (*run)(void);
} known[] = {
	{"no_udev", no_udev},
	{"each_operation_anew", each_operation_anew},
	{"only_direct", only_direct},
	{"failed_opens", failed_opens},
	{"streams_without_threads", streams_without_threads},
	{"opens_quickly", opens_quickly},
	{"log_names_each", log_names_each},
	{"read_again", read_again},
	{"nvtx_of_15", nvtx_of_15},
	{"nvtx_of_17", nvtx_of_17},
	{"overlay", overlay},
	{"ext4", ext4},
	{"xfs", xfs},
};
enum { COUNT = sizeof(known) / sizeof(known[0]) };

static void alone(void **state)
{
	const char *name = *state;
	char self[PATH_MAX] = "";
	int status;
	pid_t pid;

	assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		execl(self, self, name, (char *)NULL);
		_exit(99);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status == SKIP << 8)
		test_skip("mount is refused here");
	if (status == SKIP_DISK << 8)
		test_skip("no %s on a loop device can be mounted", name);
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[COUNT];

	for (unsigned i = 0; i < COUNT; i++) {
		if (argc > 1 && !strcmp(argv[1], known[i].name))
			return known[i].run();
		tests[i] = (struct CMUnitTest){known[i].name, alone, NULL, NULL,
					       (void *)(uintptr_t)known[i].name};
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
