/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the parts of include/penstock.h that involve other processes or a kernel that refuses
 * calls: exports, forks, io_uring, and a descriptor that the process may not open again. The
 * CUDA driver is the stand-in. The program starts itself as a child process with a role and an
 * argument: see `roles` in main.
 */
#include "api.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- processes ---- */

/* Runs this program as a child in `role`, with argument `what`. Returns the child's exit status,
 * which identifies the check that failed. */
static int run_as(const char *role, const char *what)
{
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int status = -1;
	pid_t pid;

	assert_true(n > 0);
	self[n] = '\0';
	fflush(stdout);
	pid = fork();
	if (!pid) {
		execl(self, self, role, what, (char *)NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Runs in a child: imports memory that the parent exported and reads it. */
static int role_import(const char *hex)
{
	struct penstock_export in = PENSTOCK_EXPORT_INIT;
	struct penstock_copy_args copy = {sizeof(copy)};
	struct penstock_device *owner;
	unsigned char back[4096];
	void *mem;

	for (size_t i = 0; i < sizeof(in.bytes); i++)
		sscanf(hex + 2 * i, "%2hhx", &in.bytes[i]);
	if (penstock_device_open("cuda:0", NULL, &gpu) || penstock_device_open("host", NULL, &host))
		return 1;
	if (penstock_import_memory(gpu, &in, &mem))
		return 2;
	if (penstock_device_of(mem, &owner) || owner != gpu)
		return 3;
	copy.dst_dev = host;
	copy.dst = back;
	copy.src_dev = gpu;
	copy.src = mem;
	copy.row_len = sizeof(back);
	if (penstock_copy(&copy, 1))
		return 4;
	for (size_t i = 0; i < sizeof(back); i++)
		if (back[i] != (unsigned char)(i * 7))
			return 5;
	if (penstock_free(gpu, mem))
		return 6;
	in.bytes[0] ^= 1;
	if (penstock_import_memory(gpu, &in, &mem) != -EINVAL)
		return 7;
	penstock_device_close(gpu);
	penstock_device_close(host);
	return 0;
}

static void exported_memory_is_imported(void **state)
{
	struct penstock_export out = PENSTOCK_EXPORT_INIT;
	struct penstock_copy_args copy = {sizeof(copy)};
	char hex[2 * sizeof(out.bytes) + 1];
	unsigned char bytes[4096];
	void *mem;

	(void)state;
	assert_int_equal(penstock_export_memory(host, bytes, sizeof(bytes), &out), -EOPNOTSUPP);
	assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_UNSUPPORTED);
	assert_int_equal(penstock_import_memory(host, &out, &mem), -EOPNOTSUPP);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 7);
	assert_int_equal(penstock_alloc(gpu, sizeof(bytes), &mem), 0);
	copy.dst_dev = gpu;
	copy.dst = mem;
	copy.src_dev = host;
	copy.src = bytes;
	copy.row_len = sizeof(bytes);
	assert_int_equal(penstock_copy(&copy, 1), 0);
	assert_int_equal(penstock_export_memory(gpu, mem, sizeof(bytes), &out), 0);
	for (size_t i = 0; i < sizeof(out.bytes); i++)
		snprintf(hex + 2 * i, 3, "%02x", out.bytes[i]);
	assert_int_equal(run_as("import", hex), 0);
	assert_int_equal(penstock_free(gpu, mem), 0);
}

/* Exits the child if x is not y, with a status derived from the line number. The child cannot use
 * cmocka's assertions, because cmocka runs in the parent. */
#define CHILD_WANTS(x, y)                          \
	do {                                       \
		if ((x) != (y))                    \
			_exit(__LINE__ % 250 + 1); \
	} while (0)

static void child_checks(struct penstock_storage *old, struct penstock_storage *made,
			 struct penstock_queue *q)
{
	struct penstock_copy_args copy = {sizeof(copy)};
	struct penstock_sum_args sum = {sizeof(sum)};
	struct penstock_explanation why = {.size = sizeof(why)};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {.dev = host};
	struct penstock_storage *own;
	struct penstock_queue *mine;
	char byte = 0;
	void *mem;

	seg.buf = &byte;
	req.storage = old;
	req.segs = &seg;
	req.seg_count = 1;
	copy.dst_dev = copy.src_dev = host;
	copy.dst = &byte;
	copy.src = &byte;
	copy.row_len = 1;
	sum.dev = host;
	sum.ptr = &byte;
	sum.len = 1;
	CHILD_WANTS(penstock_read(old, host, &byte, 1, 0), -EOWNERDEAD);
	CHILD_WANTS(penstock_errwhy(), PENSTOCK_WHY_BAD_ARGUMENT);
	CHILD_WANTS(penstock_explain(&req, &why), -EOWNERDEAD);
	CHILD_WANTS(penstock_prepare(old, host, PENSTOCK_READ), -EOWNERDEAD);
	CHILD_WANTS(penstock_storage_length(old), -EOWNERDEAD);
	CHILD_WANTS(penstock_commit(made, 0), -EOWNERDEAD);
	CHILD_WANTS(penstock_abort(made), -EOWNERDEAD);
	CHILD_WANTS(penstock_copy(&copy, 1), -EOWNERDEAD);
	CHILD_WANTS(penstock_sum(&sum, 1), -EOWNERDEAD);
	CHILD_WANTS(penstock_alloc(gpu, 1, &mem), -EOWNERDEAD);
	CHILD_WANTS(penstock_free(gpu, &byte), -EOWNERDEAD);
	CHILD_WANTS(penstock_register(gpu, &byte, 1), -EOWNERDEAD);
	CHILD_WANTS(penstock_unregister(gpu, &byte), -EOWNERDEAD);
	CHILD_WANTS(penstock_submit(q, &req, 1, NULL), -EOWNERDEAD);
	CHILD_WANTS(penstock_wait(q, NULL, 1, 0, -1), -EOWNERDEAD);
	CHILD_WANTS(penstock_poll(q, NULL, 0), -EOWNERDEAD);
	CHILD_WANTS(penstock_cancel(q, 1), -EOWNERDEAD);
	CHILD_WANTS(penstock_queue_fd(q), -EOWNERDEAD);
	/* The child may open its own storage and queue. It cannot use the inherited device,
	 * because the device's lanes are threads of the parent. */
	CHILD_WANTS(penstock_open(file_name, NULL, &own), 0);
	CHILD_WANTS(penstock_queue_open(NULL, &mine), 0);
	req.storage = own;
	CHILD_WANTS(penstock_submit(mine, &req, 1, NULL), -EOWNERDEAD);
	CHILD_WANTS(penstock_read(own, host, &byte, 1, 0), -EOWNERDEAD);
	penstock_queue_close(mine);
	penstock_close(own);
	penstock_queue_close(q);
	penstock_close(made);
	penstock_close(old);
	penstock_device_close(gpu);
	penstock_device_close(host);
	CHILD_WANTS(penstock_open(file_name, NULL, &own), 0);
	CHILD_WANTS(penstock_storage_length(own), LEN);
/* ThreadSanitizer does not support a forked child that creates threads. */
#ifndef __SANITIZE_THREAD__
	CHILD_WANTS(penstock_device_open("host", NULL, &host), 0);
	CHILD_WANTS(penstock_read(own, host, &byte, 1, 0), 1);
#endif
	penstock_close(own);
	_exit(0);
}

/* A forked child closes the objects that it inherited. The parent can still use these objects,
 * including a file that is still being written. */
static void child_closes_inherited_objects(void **state)
{
	static const unsigned flags[] = {PENSTOCK_O_REPLACE, PENSTOCK_O_CREATE};
	struct penstock_storage *old, *made;
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	char name[sizeof(file_name) + 8], bytes[] = "written before the fork";
	struct stat stat_made;
	struct penstock_queue *q;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(penstock_queue_open(NULL, &q), 0);
	snprintf(name, sizeof(name), "%s.made", file_name);
	for (unsigned i = 0; i < COUNT(flags); i++) {
		old = test_file_open(0);
		opts.flags = flags[i];
		opts.length = 1000;
		assert_int_equal(penstock_open(name, &opts, &made), 0);
		assert_int_equal(penstock_write(made, host, bytes, sizeof(bytes), 0),
				 sizeof(bytes));
		fflush(stdout);
		pid = fork();
		if (!pid)
			child_checks(old, made, q);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
		if (flags[i] == PENSTOCK_O_CREATE) {
			assert_int_equal(stat(name, &stat_made), 0);
			assert_int_equal(stat_made.st_size, 1000);
		}
		assert_int_equal(penstock_commit(made, 0), 0);
		penstock_close(made);
		penstock_close(old);
		assert_int_equal(stat(name, &stat_made), 0);
		assert_int_equal(stat_made.st_size, 1000);
		assert_int_equal(unlink(name), 0);
	}
	penstock_queue_close(q);
}

/* ThreadSanitizer does not support a forked child that creates threads. In the
 * child, AddressSanitizer's allocator keeps locks that were held at the fork (gcc 12). */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define FORK_WHILE_LOCKED
#define CHILDREN 16

static _Atomic bool enough;

/* Thread that holds the library's locks as often as possible: it opens a storage, prepares a
 * route to the device and closes the storage. */
static void *locks_busy(void *arg)
{
	while (!enough) {
		struct penstock_storage *st = test_file_open(0);

		assert_int_equal(penstock_prepare(st, host, PENSTOCK_READ), 0);
		penstock_close(st);
	}
	return arg;
}

/* Forks while another thread holds the library's locks. The child must be able to open its own
 * device and storage, and to read. */
static void fork_while_locks_are_held(void **state)
{
	unsigned failed = 0;
	pthread_t thread;

	(void)state;
	enough = false;
	assert_int_equal(pthread_create(&thread, NULL, locks_busy, NULL), 0);
	for (unsigned i = 0; i < CHILDREN; i++) {
		struct penstock_storage *own;
		struct penstock_device *mine;
		int status = -1;
		char byte;
		pid_t pid;

		/* waits a moment, so that each fork interrupts the busy thread at another point */
		usleep(300);
		pid = fork();
		if (!pid) {
			alarm(20);
			CHILD_WANTS(penstock_device_open("host", NULL, &mine), 0);
			CHILD_WANTS(penstock_open(file_name, NULL, &own), 0);
			CHILD_WANTS(penstock_read(own, mine, &byte, 1, 0), 1);
			_exit(0);
		}
		failed += waitpid(pid, &status, 0) != pid || status;
		if (failed)
			/* Stops here, because each further child would also hang until its alarm
			 * after 20 s. */
			break;
	}
	enough = true;
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(failed, 0);
}
#endif

/* ---- system calls that the kernel refuses ---- */

/* Makes all later system calls with number `nr` in this process fail with error `code`. */
static int syscall_refuse(unsigned nr, unsigned code)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {COUNT(filter), filter};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

#define CANNOT_REFUSE 200
/* Length in bytes of a request that lanes (the library's worker threads) move. The caller's thread
 * moves short requests itself. */
#define LANES (4u << 20)

/* Runs in a child: makes a system call fail. `what` has the call's number and the error. Returns
 * the reason (PENSTOCK_WHY_*) why the library does not submit its I/O through io_uring with all its
 * features. Returns CANNOT_REFUSE or more if a check fails. */
static int role_engine(const char *what)
{
	struct penstock_explanation why = {.size = sizeof(why)};
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_seg seg = {0};
	unsigned nr, code;
	static char bytes[LANES];

	if (sscanf(what, "%u %u", &nr, &code) == 2 && syscall_refuse(nr, code))
		return CANNOT_REFUSE;
	if (penstock_device_open("host", NULL, &host) ||
	    penstock_open("mem:4MiB", NULL, &req.storage))
		return CANNOT_REFUSE + 1;
	seg.dev = host;
	seg.buf = bytes;
	req.segs = &seg;
	req.seg_count = 1;
	if (penstock_explain(&req, &why))
		return CANNOT_REFUSE + 2;
	printf("# engine %s: %s\n", why.engine, why.engine_text);
	if (!why.engine || (why.engine_why && !why.engine_text[0]))
		return CANNOT_REFUSE + 3;
	if (why.engine_why == PENSTOCK_WHY_NO_URING && strcmp(why.engine, "threads") != 0)
		return CANNOT_REFUSE + 4;
	/* The caller's thread moves one byte itself, without an I/O engine, so the report gives no
	 * reason for the choice of an engine. */
	seg.row_len = 1;
	if (penstock_transfer(&req, &report) != 1 || report.engine_why != PENSTOCK_WHY_NONE)
		return CANNOT_REFUSE + 6;
	/* Lanes move a request of LANES bytes, so the report gives the reason why they do not use
	 * the best I/O engine. */
	seg.row_len = LANES;
	if (penstock_transfer(&req, &report) != LANES || report.engine_why != why.engine_why)
		return CANNOT_REFUSE + 7;
	penstock_close(req.storage);
	penstock_device_close(host);
	if (why.engine_why == PENSTOCK_WHY_NONE && strcmp(why.engine, "uring") != 0)
		return CANNOT_REFUSE + 5;
	return (int)why.engine_why;
}

static void engine_reports_refused_calls(void **state)
{
	static const struct {
		unsigned nr, code;
		enum penstock_why why;
	} cases[] = {
		{SYS_io_uring_setup, EPERM, PENSTOCK_WHY_NO_URING},
		{SYS_io_uring_setup, ENOSYS, PENSTOCK_WHY_NO_URING},
		{SYS_io_uring_setup, ENOMEM, PENSTOCK_WHY_MEMLOCK},
		{SYS_io_uring_register, ENOMEM, PENSTOCK_WHY_MEMLOCK},
		{SYS_io_uring_register, EOPNOTSUPP, PENSTOCK_WHY_NO_FIXED},
	};
	char what[32];
	int base = run_as("engine", "unchanged"), got;

	(void)state;
	if (base == PENSTOCK_WHY_NO_URING)
		test_skip("io_uring is refused here");
	if (base == PENSTOCK_WHY_NOT_BUILT)
		test_skip("this build has no io_uring");
	assert_true(base == PENSTOCK_WHY_NONE || base == PENSTOCK_WHY_MEMLOCK);
	for (unsigned i = 0; i < COUNT(cases); i++) {
		/* With a low limit of locked memory the kernel may refuse to create an io_uring.
		 * Then the library never makes the call that this case refuses. */
		if (base == PENSTOCK_WHY_MEMLOCK && cases[i].why == PENSTOCK_WHY_NO_FIXED)
			continue;
		snprintf(what, sizeof(what), "%u %u", cases[i].nr, cases[i].code);
		got = run_as("engine", what);
		if (got == CANNOT_REFUSE)
			test_skip("seccomp is refused here");
		assert_int_equal(got, cases[i].why);
	}
}

/* ---- a descriptor that cannot be opened again ---- */

/* Runs in a child: passes the library a descriptor of a file with mode 0 that another user owns.
 * The process cannot open that file again, by its name or through /proc/self/fd. */
static int role_reopen(const char *name)
{
	struct penstock_storage *st;
	struct penstock_storage_info info = {.size = sizeof(info)};
	int fd = open(name, O_RDONLY);
	char byte = 1;

	if (fd < 0 || fchmod(fd, 0))
		return 1;
	if (geteuid() == 0 && setuid(65534))
		return 2;
	if (penstock_open_fd(fd, NULL, &st))
		return 3;
	if (penstock_storage_get_info(st, &info) ||
	    !strstr(info.text, penstock_why_text(PENSTOCK_WHY_REOPEN)))
		return 4;
	if (penstock_device_open("host", NULL, &host) || penstock_read(st, host, &byte, 1, 0) != 1)
		return 5;
	penstock_close(st);
	penstock_device_close(host);
	return byte ? 6 : 0;
}

static void descriptor_without_reopen(void **state)
{
	int status;

	(void)state;
	status = run_as("reopen", file_name);
	chmod(file_name, 0600);
	assert_int_equal(status, 0);
}

#ifdef FORK_WHILE_LOCKED
static void *device_lookup_loop(void *ptr)
{
	struct penstock_device *owner;

	for (;;)
		penstock_device_of(ptr, &owner);
	return NULL;
}

/* Runs in a child: forks while two threads look up the device of a pointer, before any device is
 * open. Each forked child must be able to open a device. An alarm ends a child that hangs on a
 * lock. */
static int role_lookup(const char *what)
{
	struct penstock_storage *file;
	pthread_t thread;

	if (penstock_open(what, NULL, &file))
		return 1;
	for (unsigned i = 0; i < 2; i++)
		if (pthread_create(&thread, NULL, device_lookup_loop, file_name))
			return 2;
	for (unsigned i = 0; i < 100; i++) {
		struct penstock_device *dev;
		int status = -1;
		pid_t pid = fork();

		if (!pid) {
			alarm(10);
			_exit(penstock_device_open("host", NULL, &dev) < 0);
		}
		if (waitpid(pid, &status, 0) != pid || status)
			return 3;
	}
	return 0;
}

static void fork_during_device_lookups(void **state)
{
	(void)state;
	assert_int_equal(run_as("lookup", file_name), 0);
}
#endif

/* Runs in a child: opens a queue before all other objects, and forks. The queue belongs to the
 * process that opened it, so a call in the forked process must fail with -EOWNERDEAD. */
static int role_queue(const char *what)
{
	struct penstock_queue *q;
	int status = -1;
	pid_t pid;

	(void)what;
	if (penstock_queue_open(NULL, &q))
		return 1;
	pid = fork();
	if (!pid) {
		CHILD_WANTS(penstock_poll(q, NULL, 0), -EOWNERDEAD);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		return 2;
	if (penstock_poll(q, NULL, 0))
		return 3;
	penstock_queue_close(q);
	return 0;
}

static void first_queue_belongs_to_parent(void **state)
{
	(void)state;
	assert_int_equal(run_as("queue", ""), 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(const char *what);
	} roles[] = {{"import", role_import},
		     {"engine", role_engine},
		     {"reopen", role_reopen},
#ifdef FORK_WHILE_LOCKED
		     {"lookup", role_lookup},
#endif
		     {"queue", role_queue}};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exported_memory_is_imported),
		cmocka_unit_test(child_closes_inherited_objects),
#ifdef FORK_WHILE_LOCKED
		cmocka_unit_test(fork_while_locks_are_held),
		cmocka_unit_test(fork_during_device_lookups),
#endif
		cmocka_unit_test(engine_reports_refused_calls),
		cmocka_unit_test(descriptor_without_reopen),
		cmocka_unit_test(first_queue_belongs_to_parent),
	};

	test_use_standin();
	for (unsigned i = 0; argc == 3 && i < COUNT(roles); i++)
		if (!strcmp(argv[1], roles[i].name))
			return roles[i].run(argv[2]);
	return cmocka_run_group_tests(tests, setup, teardown);
}
