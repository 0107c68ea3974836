/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the counters that a process publishes for other processes of the same user. A child makes
 * transfers and adds up their reports. The counters found through /proc/PID/fd, returned by the
 * library and printed by `penstock stats` must equal the sums of the child. The library refuses
 * to read the counters of another user's process. It also refuses if the process has exited, has
 * no counters, or has counters of another format.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "core/backends.h"
#include "core/base/stats.h"
#include "penstock.h"
#include "request.h"

#define LEN (3u << 20)
#define NOBODY 65534

/* Sums of the members of all reports that the child received, by path and direction. */
struct sums {
	uint64_t requests, failed, refused, chunks, retries, cpu_copied, dram_laid;
	struct {
		char name[16];
		uint64_t bytes[2];
	} paths[PENSTOCK_PATHS_MAX];
	unsigned path_count;
};

/* A child process, and a pipe: the child exits when the parent closes or writes the pipe. */
struct child {
	pid_t pid;
	int go;
};

static struct sums sums;
static struct child library_child; /* the child that makes transfers with the library */

/* ---- in the child ---- */

static void one_transfer(struct penstock_storage *st, struct penstock_device *dev, void *mem,
			 enum penstock_op op, const char *path, enum penstock_class require)
{
	struct penstock_seg seg = {.buf = mem, .dev = dev, .off = 5, .row_len = LEN - 77};
	struct penstock_req req;
	struct penstock_report report = {.size = sizeof(report)};
	int64_t n;

	req = test_request(st, &seg, 1, op);
	req.path = path;
	req.require = require;
	n = penstock_transfer(&req, &report);
	if (n == -EOPNOTSUPP) {
		sums.refused++;
		return;
	}
	sums.requests++;
	sums.failed += n < 0;
	sums.chunks += report.chunks;
	sums.retries += report.retries;
	sums.cpu_copied += report.cpu_copied;
	sums.dram_laid += report.dram_laid;
	for (unsigned i = 0; i < report.path_count; i++) {
		unsigned at = 0;

		while (at < sums.path_count && strcmp(sums.paths[at].name, report.paths[i].name))
			at++;
		if (at == sums.path_count)
			snprintf(sums.paths[sums.path_count++].name, 16, "%s",
				 report.paths[i].name);
		sums.paths[at].bytes[op] += report.paths[i].bytes;
	}
}

static void use_library(const char *file)
{
	/* Values of a request's member `path`. Each path "fault" makes the transfer fail or end
	 * early after some of its bytes have been moved and counted. */
	static const char *const ways[] = {NULL,
					   "bounce",
					   "staged",
					   "fault?eio=@1000000",
					   "fault:bounce?eio=@1000000",
					   "fault?short=@1000000",
					   "fault:bounce?short=@1000000"};
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_device *devs[2];
	struct penstock_storage *st;
	void *mem;

	opts.flags = PENSTOCK_O_WRITE;
	if (penstock_open(file, &opts, &st) < 0 ||
	    penstock_device_open("host", NULL, &devs[0]) < 0 ||
	    penstock_device_open("cuda:0", NULL, &devs[1]) < 0)
		_exit(3);
	for (unsigned d = 0; d < 2; d++) {
		if (penstock_alloc(devs[d], LEN, &mem))
			_exit(4);
		for (unsigned w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
			one_transfer(st, devs[d], mem, PENSTOCK_READ, ways[w], PENSTOCK_ANY);
			one_transfer(st, devs[d], mem, PENSTOCK_WRITE, ways[w], PENSTOCK_ANY);
		}
		one_transfer(st, devs[d], mem, PENSTOCK_READ, "bounce", PENSTOCK_DIRECT);
		penstock_free(devs[d], mem);
	}
	penstock_close(st);
}

/* Records more notes than the library keeps. A note is a text about a problem, which the library
 * publishes together with the counters. One note is repeated, one has several lines, and one is
 * truncated. */
static void leave_notes(void)
{
	char text[2048];

	for (unsigned i = 0; i < 12; i++) {
		snprintf(text, sizeof(text), "refused number %u", i);
		penstock_stats_note(text);
	}
	for (unsigned i = 0; i < 3; i++)
		penstock_stats_note("a \"name\" with\n\x1b a\\b, \xc3\xa4 \xff");
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	for (unsigned i = 0; i < 2; i++)
		penstock_stats_note(text);
}

/* ---- children ---- */

static void make_file(char *name, size_t len)
{
	const char *tmp = getenv("TMPDIR");
	char *bytes = calloc(1, LEN);
	int fd;

	snprintf(name, len, "%s/penstock-stats-%d", tmp ? tmp : "/tmp", (int)getpid());
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, bytes, LEN) != LEN)
		abort();
	close(fd);
	free(bytes);
}

/* Runs `work` in a child process, and waits until `work` has returned. The child then waits until
 * the parent closes or writes its pipe `go`. */
static struct child child_start(void (*work)(void *arg), void *arg)
{
	struct child child;
	int go[2], done[2];

	if (pipe(go) || pipe(done))
		abort();
	child.pid = fork();
	if (!child.pid) {
		char byte;

		close(go[1]);
		if (library_child.pid)
			/* Without this line the child would keep the pipe of library_child
			 * open. */
			close(library_child.go);
		work(arg);
		if (write(done[1], &sums, sizeof(sums)) != sizeof(sums))
			_exit(5);
		_exit(read(go[0], &byte, 1) != 0);
	}
	close(go[0]);
	close(done[1]);
	child.go = go[1];
	fcntl(child.go, F_SETFD, FD_CLOEXEC);
	if (read(done[0], &sums, sizeof(sums)) != sizeof(sums))
		/* The child has died. The sums are set to zero, so that the cases fail. */
		memset(&sums, 0, sizeof(sums));
	close(done[0]);
	return child;
}

static int child_end(struct child *child)
{
	int status = 0;

	if (child->pid <= 0)
		return 0;
	close(child->go);
	waitpid(child->pid, &status, 0);
	child->pid = 0;
	return status;
}

static void work_with_library(void *arg)
{
	use_library(arg);
	leave_notes();
}

static int setup(void **state)
{
	char name[256];

	(void)state;
	test_use_standin();
	make_file(name, sizeof(name));
	library_child = child_start(work_with_library, name);
	unlink(name);
	return !sums.requests;
}

static int teardown(void **state)
{
	(void)state;
	return child_end(&library_child);
}

/* ---- reading counters ---- */

/* Runs `penstock stats PID [--json]`, as this user or as the user nobody. Returns its exit status
 * and output. */
static int run_stats_command(pid_t pid, const char *json, bool as_nobody, char *out, size_t len)
{
	char exe[4096], number[16];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 32);
	int fds[2], status;
	size_t have = 0;
	pid_t child;

	assert_true(n > 0);
	exe[n] = '\0';
	snprintf(strrchr(exe, '/'), 32, "/../penstock");
	snprintf(number, sizeof(number), "%d", (int)pid);
	assert_int_equal(pipe(fds), 0);
	child = fork();
	if (!child) {
		/* The child opens the program first, and becomes the user nobody afterwards. This
		 * user may have no access to the program's folder. */
		int fd = open(exe, O_RDONLY | O_CLOEXEC);
		char *argv[] = {exe, "stats", number, (char *)(uintptr_t)json, NULL};

		dup2(fds[1], 1);
		dup2(fds[1], 2);
		if (as_nobody && (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY)))
			_exit(99);
		fexecve(fd, argv, environ);
		_exit(98);
	}
	close(fds[1]);
	while (have < len - 1 && (n = read(fds[0], out + have, len - 1 - have)) > 0)
		have += (size_t)n;
	out[have] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Returns the number after "name" in JSON: in the object of `path`, or in the outermost object if
 * `path` is NULL. */
static uint64_t number_of(const char *json, const char *path, const char *name)
{
	char key[64];
	const char *at = json;

	if (path) {
		snprintf(key, sizeof(key), "\"%s\": {", path);
		at = strstr(json, key);
		if (!at)
			fail_msg("no path %s in %s", path, json);
	}
	snprintf(key, sizeof(key), "\"%s\": ", name);
	at = strstr(at, key);
	if (!at)
		fail_msg("no %s in %s", name, json);
	return strtoull(at + strlen(key), NULL, 10);
}

static int open_memfd(pid_t pid)
{
	char name[64], target[128];

	for (int i = 0; i < 1024; i++) {
		ssize_t n;

		snprintf(name, sizeof(name), "/proc/%d/fd/%d", (int)pid, i);
		n = readlink(name, target, sizeof(target) - 1);
		if (n <= 0)
			continue;
		target[n] = '\0';
		if (!strncmp(target, "/memfd:" PST_STATS_NAME, 7 + strlen(PST_STATS_NAME)))
			return open(name, O_RDONLY | O_CLOEXEC);
	}
	return -1;
}

/* ---- the cases ---- */

/* The shared memory has a version, a sealed length, and counters that equal the sums of the
 * child. */
static void shared_memory_has_the_sums(void **state)
{
	static struct pst_stats stats;
	uint64_t chunks = 0, retries = 0, latencies = 0, cpu_copied = 0, dram_laid = 0;
	int fd = open_memfd(library_child.pid);

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &stats, sizeof(stats), 0), sizeof(stats));
	assert_int_equal(lseek(fd, 0, SEEK_END), sizeof(stats));
	assert_int_equal(fcntl(fd, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW),
			 F_SEAL_SHRINK | F_SEAL_GROW);
	close(fd);
	assert_true(stats.magic == PST_STATS_MAGIC);
	assert_int_equal(stats.version, PST_STATS_VERSION);
	assert_int_equal(stats.size, sizeof(stats));
	assert_int_equal(stats.pid, library_child.pid);
	assert_int_equal(stats.requests, sums.requests);
	assert_int_equal(stats.failed, sums.failed);
	assert_int_equal(stats.refused, sums.refused);
	assert_int_equal(stats.path_count, pst_path_count);
	for (unsigned i = 0; i < stats.path_count; i++) {
		const struct pst_stats_path *p = &stats.paths[i];

		assert_string_equal(p->name, pst_paths[i]->name);
		chunks += p->chunks[0] + p->chunks[1];
		retries += p->retries;
		cpu_copied += p->cpu_copied;
		dram_laid += p->dram_laid;
		for (unsigned b = 0; b < PST_STATS_BUCKETS; b++)
			latencies += p->latency[b];
		for (unsigned s = 0; s < sums.path_count; s++) {
			if (strcmp(sums.paths[s].name, p->name))
				continue;
			assert_int_equal(p->bytes[0], sums.paths[s].bytes[0]);
			assert_int_equal(p->bytes[1], sums.paths[s].bytes[1]);
		}
	}
	assert_true(sums.retries > 0 && sums.failed > 0 && sums.refused > 0);
	assert_int_equal(retries, sums.retries);
	/* The counters count every attempt as a chunk, while the reports count retries separately.
	 */
	assert_int_equal(chunks, sums.chunks + sums.retries);
	assert_int_equal(latencies, chunks);
	assert_int_equal(cpu_copied, sums.cpu_copied);
	assert_int_equal(dram_laid, sums.dram_laid);
}

static void check_json(const char *json)
{
	uint64_t chunks = 0, cpu_copied = 0;

	assert_int_equal(number_of(json, NULL, "version"), PST_STATS_VERSION);
	assert_int_equal(number_of(json, NULL, "pid"), library_child.pid);
	assert_int_equal(number_of(json, NULL, "requests"), sums.requests);
	assert_int_equal(number_of(json, NULL, "refused"), sums.refused);
	assert_int_equal(number_of(json, NULL, "failed"), sums.failed);
	for (unsigned i = 0; i < pst_path_count; i++) {
		chunks += number_of(json, pst_paths[i]->name, "read_chunks") +
			  number_of(json, pst_paths[i]->name, "write_chunks");
		cpu_copied += number_of(json, pst_paths[i]->name, "cpu_copied");
	}
	assert_int_equal(chunks, sums.chunks + sums.retries);
	assert_int_equal(cpu_copied, sums.cpu_copied);
	for (unsigned s = 0; s < sums.path_count; s++) {
		const char *name = sums.paths[s].name;

		assert_int_equal(number_of(json, name, "read_bytes"), sums.paths[s].bytes[0]);
		assert_int_equal(number_of(json, name, "write_bytes"), sums.paths[s].bytes[1]);
	}
}

static void command_prints_the_sums(void **state)
{
	static char text[65536];
	char want[128];
	int fd = memfd_create("printed", 0);
	ssize_t n;

	(void)state;
	assert_int_equal(run_stats_command(library_child.pid, "--json", false, text, sizeof(text)),
			 0);
	check_json(text);
	assert_int_equal(penstock_stats(library_child.pid, 1, fd), 0);
	n = pread(fd, text, sizeof(text) - 1, 0);
	assert_true(n > 0);
	text[n] = '\0';
	close(fd);
	check_json(text);
	assert_int_equal(run_stats_command(library_child.pid, NULL, false, text, sizeof(text)), 0);
	snprintf(want, sizeof(want), "process %d: %llu requests, %llu refused, %llu failed",
		 (int)library_child.pid, (unsigned long long)sums.requests,
		 (unsigned long long)sums.refused, (unsigned long long)sums.failed);
	assert_non_null(strstr(text, want));
	for (unsigned s = 0; s < sums.path_count; s++) {
		if (!sums.paths[s].bytes[0])
			continue;
		snprintf(want, sizeof(want), "\n%-8s %12.1f %12.1f ", sums.paths[s].name,
			 (double)sums.paths[s].bytes[0] / 1e6,
			 (double)sums.paths[s].bytes[1] / 1e6);
		if (!strstr(text, want))
			fail_msg("no line '%s' in %s", want + 1, text);
	}
}

/* `penstock stats` prints the latest eight notes, oldest first, one note on each line. The last
 * note is a long one. */
static void latest_notes_are_printed(void **state)
{
	static char text[65536];
	const char *at;

	(void)state;
	assert_int_equal(run_stats_command(library_child.pid, NULL, false, text, sizeof(text)), 0);
	at = strstr(text, "note: ");
	assert_non_null(at);
	assert_null(strstr(text, "refused number 5 "));
	for (unsigned i = 6; i < 12; i++) {
		char want[64];
		int len = snprintf(want, sizeof(want), "note: refused number %u (1x)\n", i);

		if (strncmp(at, want, (size_t)len) != 0)
			fail_msg("not %s but %s", want, at);
		at += len;
	}
	at = strstr(text, "note: a \"name\" with?? a\\b, \xc3\xa4 \xff (3x)\nnote: xxx");
	assert_non_null(at);
	at = strstr(at, "note: x") + strlen("note: ");
	assert_int_equal(strspn(at, "x"), PST_STATS_NOTE_MAX - 1);
	assert_string_equal(at + PST_STATS_NOTE_MAX - 1, " (2x)\n");
	assert_int_equal(run_stats_command(library_child.pid, "--json", false, text, sizeof(text)),
			 0);
	assert_non_null(strstr(text, "\"notes\": [{\"times\": 1, "
				     "\"text\": \"refused number 6\"}, "));
	assert_non_null(strstr(text, "{\"times\": 3, \"text\": "
				     "\"a \\\"name\\\" with?? a\\\\b, \xc3\xa4 \\ufffd\"}, "));
}

static void another_user_is_refused(void **state)
{
	static char text[65536];

	(void)state;
	if (geteuid())
		test_skip("only root can become another user");
	assert_int_equal(run_stats_command(library_child.pid, "--json", true, text, sizeof(text)),
			 1);
	assert_non_null(strstr(text, "another user"));
	assert_null(strstr(text, "requests"));
}

/* ---- processes without readable counters ---- */

static void do_nothing(void *arg)
{
	(void)arg;
}

/* Creates counters that the library must refuse: with another version, with a wrong length, or with
 * an unprintable path name. */
static void make_foreign_counters(void *arg)
{
	unsigned kind = *(unsigned *)arg;
	struct pst_stats *stats = calloc(1, sizeof(*stats));
	size_t len = kind == 3 ? sizeof(*stats) / 2 : sizeof(*stats);
	int fd = memfd_create(PST_STATS_NAME, 0);

	stats->magic = PST_STATS_MAGIC + (kind == 0);
	stats->version = PST_STATS_VERSION + (kind == 1);
	stats->size = sizeof(*stats);
	stats->path_count = kind == 2 ? PENSTOCK_PATHS_MAX + 1 : 1;
	memcpy(stats->paths[0].name, kind == 4 ? "a\"\033c" : "null", 4);
	if (fd < 0 || write(fd, stats, len) != (ssize_t)len)
		_exit(6);
}

static void check_refused(pid_t pid, int code, const char *words)
{
	static char text[4096];
	int fd = memfd_create("refused", 0);

	assert_int_equal(penstock_stats(pid, 1, fd), code);
	assert_int_equal(lseek(fd, 0, SEEK_END), 0);
	close(fd);
	assert_non_null(strstr(penstock_errmsg(), words));
	assert_int_equal(run_stats_command(pid, NULL, false, text, sizeof(text)), 1);
	assert_non_null(strstr(text, words));
}

static void foreign_counters_are_refused(void **state)
{
	struct sums keep = sums;

	(void)state;
	for (unsigned kind = 0; kind < 5; kind++) {
		struct child child = child_start(make_foreign_counters, &kind);

		check_refused(child.pid, -EPROTO, "another version");
		assert_int_equal(child_end(&child), 0);
	}
	sums = keep;
}

/* A process that uses the library forks a child that never calls it. The child does not show the
 * counters of its parent. */
static void idle_child_has_no_counters(void **state)
{
	struct sums keep = sums;
	struct child child;
	int fd = open("/dev/null", O_WRONLY);

	(void)state;
	/* After this call, the process counts as a user of the library. */
	assert_int_equal(penstock_stats(0, 0, fd), 0);
	close(fd);
	child = child_start(do_nothing, NULL);
	assert_true(open_memfd(child.pid) < 0);
	check_refused(child.pid, -ESRCH, "has not used Penstock");
	assert_int_equal(child_end(&child), 0);
	sums = keep;
}

/* Runs in a child process. Makes one request and checks that the child's own counters show exactly
 * one. */
static void use_library_in_child(void)
{
	static struct pst_stats seen;
	int fd = open_memfd(getpid());

	if (fd >= 0)
		_exit(2);
/* The thread sanitizer does not support children that create threads. */
#ifdef __SANITIZE_THREAD__
	pst_stats_get()->requests++;
#else
	struct penstock_storage *st;
	struct penstock_device *dev;
	char byte;

	if (penstock_open("mem:4KiB", NULL, &st) || penstock_device_open("host", NULL, &dev) < 0 ||
	    penstock_read(st, dev, &byte, 1, 0) != 1)
		_exit(6);
#endif
	fd = open_memfd(getpid());
	if (fd < 0 || pread(fd, &seen, sizeof(seen), 0) != sizeof(seen) || seen.requests != 1 ||
	    seen.pid != (uint32_t)getpid())
		_exit(4);
}

/* A child that uses the library counts from zero. After an exec the child has no counters. */
static void child_counts_from_zero(void **state)
{
	int go[2], done[2], status, null = open("/dev/null", O_WRONLY);
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(go), 0);
	assert_int_equal(pipe2(done, O_CLOEXEC), 0);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		close(go[1]);
		if (library_child.pid)
			close(library_child.go);
		dup2(go[0], 0);
		dup2(null, 1);
		use_library_in_child();
		execlp("cat", "cat", (char *)NULL);
		_exit(3);
	}
	close(go[0]);
	close(done[1]);
	assert_int_equal(read(done[0], &byte, 1),
			 0); /* the exec has closed the child's end of the pipe */
	assert_true(open_memfd(pid) < 0);
	check_refused(pid, -ESRCH, "has not used Penstock");
	close(go[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(done[0]);
	close(null);
}

/* The counters vanish when their process exits. */
static void counters_end_with_their_process(void **state)
{
	pid_t pid = library_child.pid;

	(void)state;
	assert_int_equal(child_end(&library_child), 0);
	assert_true(open_memfd(pid) < 0);
	check_refused(pid, -ESRCH, "does not run");
}

/* A process that never called the library has no counters. This case must run first, before the
 * test itself calls the library. */
static void process_without_library_calls(void **state)
{
	struct sums keep = sums;
	struct child child = child_start(do_nothing, NULL);

	(void)state;
	assert_true(open_memfd(child.pid) < 0);
	check_refused(child.pid, -ESRCH, "has not used Penstock");
	assert_int_equal(child_end(&child), 0);
	sums = keep;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(process_without_library_calls),
		cmocka_unit_test(shared_memory_has_the_sums),
		cmocka_unit_test(command_prints_the_sums),
		cmocka_unit_test(another_user_is_refused),
		cmocka_unit_test(idle_child_has_no_counters),
		cmocka_unit_test(foreign_counters_are_refused),
		cmocka_unit_test(latest_notes_are_printed),
		cmocka_unit_test(child_counts_from_zero),
		cmocka_unit_test(counters_end_with_their_process),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
