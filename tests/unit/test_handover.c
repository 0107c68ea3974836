/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests windows that take a file (wire/handover.h). Client and server are in one process. For the
 * clients that must get no file, the client is a child process: of another user, in another mount
 * namespace, and with another root directory. Each case compares the memory around the window, and
 * checks that the number of open descriptors has not changed.
 */
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cachestat.h"
#include "wire/client.h"
#include "wire/server.h"

#define FILE_LEN 3000001u
#define GUARD 61u /* bytes before and after the window that must not change */
#define RANGES 40

static const struct pst_wire_devices devices;

struct sides {
	struct pst_wire_client *client;
	struct pst_wire_server *server;
	unsigned char *bytes, *mem; /* the contents of the file, and the memory for windows */
	int fd;
	unsigned descriptors;
};

static unsigned descriptors_count(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static void server_open(struct sides *s, int pass_files)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct pst_err err;

	opts.transports = "shm1";
	opts.channels = 1;
	opts.pass_files = pass_files;
	assert_int_equal(pst_wire_server_open(&opts, &devices, &s->server, &err), 0);
}

static int client_open(const char *transports, struct pst_wire_client **out)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct pst_err err;

	opts.transports = transports;
	return pst_wire_client_open(&opts, &devices, 0, out, &err);
}

static void sides_open(struct sides *s)
{
	uint64_t seed = test_seed(33);
	FILE *file = tmpfile();
	char name[40];

	assert_non_null(file);
	s->bytes = malloc(FILE_LEN);
	s->mem = malloc(FILE_LEN + 2 * GUARD);
	assert_true(s->bytes && s->mem);
	for (unsigned i = 0; i < FILE_LEN; i++)
		s->bytes[i] = (unsigned char)(test_random(&seed) >> 8);
	assert_int_equal(fwrite(s->bytes, 1, FILE_LEN, file), FILE_LEN);
	assert_int_equal(fflush(file), 0);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fileno(file));
	s->fd = open(name, O_RDONLY | O_CLOEXEC);
	assert_true(s->fd >= 0);
	fclose(file);
	assert_int_equal(client_open(NULL, &s->client), 0);
	server_open(s, 1);
	s->descriptors = 0;
}

static void sides_close(struct sides *s)
{
	pst_wire_server_close(s->server);
	if (s->client)
		pst_wire_client_close(s->client);
	close(s->fd);
	free(s->bytes);
	free(s->mem);
}

/* Opens a window of `len` bytes behind the guard. */
static struct pst_wire_grant *window_open(struct sides *s, uint64_t len)
{
	struct pst_wire_grant *grant;
	struct pst_err err;

	memset(s->mem, 0x5a, FILE_LEN + 2 * GUARD);
	if (pst_wire_window_take(s->client, s->mem + GUARD, len, &grant, &err))
		fail_msg("%s", err.text);
	return grant;
}

/* Resolves a token, moves `count` segments to the window at `off`, and returns the result. */
static int64_t token_move(struct sides *s, const char *token, uint64_t off,
			  const struct penstock_object_seg *segs, unsigned count, char *why)
{
	const struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct penstock_object_done done;
	struct pst_wire_remote *remote;
	struct pst_err err;

	if (pst_wire_resolve(s->server, token, strlen(token), &peer, &remote, &err))
		fail_msg("%s", err.text);
	assert_int_equal(pst_wire_move(remote, PENSTOCK_READ, off, segs, count, 7, &err), 0);
	pst_wire_forget(remote);
	assert_int_equal(pst_wire_wait(s->server, &done, 1, 20000), 1);
	assert_int_equal(done.user, 7);
	if (why)
		memcpy(why, done.text, sizeof(done.text));
	return done.result;
}

static int64_t move(struct sides *s, struct pst_wire_grant *grant,
		    const struct penstock_object_seg *segs, unsigned count)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	pst_wire_window_info(grant, &info);
	assert_string_equal(info.transport, "shm1");
	return token_move(s, info.token, 0, segs, count, NULL);
}

static struct penstock_object_seg piece(const struct sides *s, uint64_t off, uint64_t len)
{
	return (struct penstock_object_seg){.has_fd = 1, .fd = s->fd, .fd_off = off, .len = len};
}

/* Judges the response of a server that reports that it has moved `len` bytes. */
static struct penstock_object_verdict judge(struct pst_wire_grant *grant, uint64_t len)
{
	struct penstock_object_verdict verdict = PENSTOCK_OBJECT_VERDICT_INIT;
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	char number[24];
	const struct penstock_object_header headers[] = {{"x-amz-rdma-reply", "200"},
							 {"x-amz-rdma-bytes-transferred", number},
							 {"content-length", "0"}};

	snprintf(number, sizeof(number), "%llu", (unsigned long long)len);
	reply.status = 200;
	reply.headers = headers;
	reply.header_count = 3;
	reply.expect = len;
	pst_wire_judge(grant, &reply, &verdict);
	return verdict;
}

static void release(struct pst_wire_grant *grant)
{
	struct pst_err err;

	assert_int_equal(pst_wire_release(grant, &err), 0);
}

/* Checks that the memory has `len` bytes of the file from `off` on, and nothing else. */
static void expect_bytes(const struct sides *s, uint64_t off, uint64_t len)
{
	for (unsigned i = 0; i < GUARD; i++) {
		assert_int_equal(s->mem[i], 0x5a);
		assert_int_equal(s->mem[GUARD + len + i], 0x5a);
	}
	assert_memory_equal(s->mem + GUARD, s->bytes + off, len);
}

/* Checks that there are at most as many descriptors as at any call before. Waits up to 30 s,
 * because the client's thread accepts and closes its end of a connection later than the server. So
 * each count, also the first, can include a connection that is about to be closed. */
static void expect_descriptors(struct sides *s)
{
	unsigned count = descriptors_count();

	if (!s->descriptors)
		s->descriptors = count;
	for (unsigned i = 0; i < 30000 && count > s->descriptors; i++) {
		poll(NULL, 0, 1);
		count = descriptors_count();
	}
	assert_in_range(count, 0, s->descriptors);
	s->descriptors = count;
}

/* ---- reads ---- */

static void copies_each_range_once(void **state)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_server_info counts = {.size = sizeof(counts)};
	uint64_t seed = test_seed(34), moved = 0;
	struct sides s;

	(void)state;
	sides_open(&s);
	for (unsigned i = 0; i < RANGES; i++) {
		uint64_t off = i ? test_random(&seed) % FILE_LEN : 0;
		uint64_t len = i ? test_random(&seed) % (FILE_LEN - off + 1) : FILE_LEN;
		struct penstock_object_seg seg = piece(&s, off, i == 1 ? 0 : len);
		struct pst_wire_grant *grant = window_open(&s, seg.len);
		struct penstock_object_verdict verdict;

		assert_int_equal(move(&s, grant, &seg, 1), seg.len);
		/* The server writes no byte; the thread that judges the response does. */
		assert_int_equal(s.mem[GUARD], 0x5a);
		verdict = judge(grant, seg.len);
		assert_int_equal(verdict.next, PENSTOCK_OBJECT_DONE);
		assert_int_equal(verdict.bytes, seg.len);
		release(grant);
		expect_bytes(&s, off, seg.len);
		expect_descriptors(&s);
		moved += seg.len;
	}
	pst_wire_client_info(s.client, &info);
	assert_int_equal(info.bytes, moved);
	assert_int_equal(info.malformed + info.wrong_cap + info.late + info.out_of_window, 0);
	pst_wire_server_info(s.server, &counts);
	assert_string_equal(counts.traffic[0].transport, "shm1");
	assert_int_equal(counts.traffic[0].bytes_out, moved);
	sides_close(&s);
}

/* Before the server passes a file, it reads the range into the page cache. So the client, which
 * copies on a thread that serves other requests, too, does not wait for the drive. */
static void passes_only_cached_bytes(void **state)
{
	uint64_t all = pst_pages_of(0, FILE_LEN), pages = 0;
	struct penstock_object_seg seg;
	struct pst_wire_grant *grant;
	struct sides s;

	(void)state;
	sides_open(&s);
	if (pst_cachestat(s.fd, 0, FILE_LEN, &pages)) {
		sides_close(&s);
		test_skip("this kernel does not say what is cached");
	}
	assert_int_equal(fdatasync(s.fd), 0);
	assert_int_equal(posix_fadvise(s.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	assert_int_equal(pst_cachestat(s.fd, 0, FILE_LEN, &pages), 0);
	if (pages == all)
		print_message("# this file system keeps its files in memory\n");
	seg = piece(&s, 0, FILE_LEN);
	grant = window_open(&s, seg.len);
	assert_int_equal(move(&s, grant, &seg, 1), seg.len);
	assert_int_equal(pst_cachestat(s.fd, 0, FILE_LEN, &pages), 0);
	assert_int_equal(pages, all);
	assert_int_equal(judge(grant, seg.len).next, PENSTOCK_OBJECT_DONE);
	release(grant);
	expect_bytes(&s, 0, seg.len);
	sides_close(&s);
}

/* Judges a response after which the client must request the bytes again. */
static void expect_resend(struct sides *s, struct pst_wire_grant *grant, uint64_t len,
			  const char *words)
{
	struct penstock_object_verdict verdict = judge(grant, len);

	print_message("# %s\n", verdict.text);
	assert_int_equal(verdict.next, PENSTOCK_OBJECT_RESEND);
	assert_int_equal(verdict.bytes, 0);
	assert_non_null(strstr(verdict.text, words));
	release(grant);
	expect_descriptors(s);
}

static void finds_missing_bytes(void **state)
{
	struct penstock_object_seg seg;
	struct pst_wire_grant *grant;
	char name[40];
	struct sides s;

	(void)state;
	sides_open(&s);
	seg = piece(&s, 0, 5000);
	grant = window_open(&s, 5000);
	assert_int_equal(move(&s, grant, &seg, 1), 5000);
	judge(grant, 5000);
	release(grant);
	expect_descriptors(&s);

	grant = window_open(&s, 5000);
	expect_resend(&s, grant, 5000, "has not passed the file");

	/* The server passes fewer bytes than its response says. */
	grant = window_open(&s, 5000);
	seg = piece(&s, 0, 4999);
	assert_int_equal(move(&s, grant, &seg, 1), 4999);
	expect_resend(&s, grant, 5000, "has not passed the file of the range");

	/* The file becomes shorter after the server has passed it. */
	grant = window_open(&s, FILE_LEN);
	seg = piece(&s, 0, FILE_LEN);
	assert_int_equal(move(&s, grant, &seg, 1), FILE_LEN);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", s.fd);
	assert_int_equal(truncate(name, FILE_LEN - 1), 0);
	expect_resend(&s, grant, FILE_LEN, "shorter than the range");
	sides_close(&s);
}

/* A repeated request makes the server pass the file again. A window that is released, or whose
 * client closes, must not keep the file. */
static void keeps_no_descriptor(void **state)
{
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_window_info window = {.size = sizeof(window)};
	struct penstock_object_seg first, second;
	struct pst_wire_grant *grant;
	char token[PST_TOKEN_MAX + 1];
	unsigned before;
	struct sides s;

	(void)state;
	sides_open(&s);
	first = piece(&s, 0, 100000);
	second = piece(&s, 77, 100000);
	for (unsigned i = 0; i < 3; i++) {
		grant = window_open(&s, 100000);
		assert_int_equal(move(&s, grant, &first, 1), 100000);
		assert_int_equal(move(&s, grant, &second, 1), 100000);
		if (i)
			assert_int_equal(judge(grant, 100000).next, PENSTOCK_OBJECT_DONE);
		release(grant);
		expect_descriptors(&s);
	}
	expect_bytes(&s, 77, 100000);

	grant = window_open(&s, 100000);
	pst_wire_window_info(grant, &window);
	memcpy(token, window.token, strlen(window.token) + 1);
	release(grant);
	assert_int_equal(token_move(&s, token, 0, &first, 1, NULL), -EACCES);
	pst_wire_client_info(s.client, &info);
	assert_int_equal(info.late, 1);
	assert_int_equal(s.mem[GUARD], 0x5a);

	/* The server's failed move has closed its connection, so the counts begin anew. */
	grant = window_open(&s, 100000);
	before = descriptors_count();
	assert_int_equal(move(&s, grant, &first, 1), 100000);
	pst_wire_client_close(s.client);
	s.client = NULL;
	pst_wire_server_close(s.server);
	assert_true(descriptors_count() < before);
	server_open(&s, 1);
	before = descriptors_count();
	assert_int_equal(client_open("shm1", &s.client), 0);
	pst_wire_client_close(s.client);
	s.client = NULL;
	assert_int_equal(descriptors_count(), before);
	sides_close(&s);
}

/* ---- refusals of the server ---- */

static void expect_refused(struct sides *s, uint64_t off, const struct penstock_object_seg *segs,
			   unsigned count, const char *words)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct pst_wire_grant *grant = window_open(s, FILE_LEN);
	char why[PENSTOCK_TEXT_MAX];

	pst_wire_window_info(grant, &info);
	assert_int_equal(token_move(s, info.token, off, segs, count, why), -EOPNOTSUPP);
	print_message("# %s\n", why);
	assert_non_null(strstr(why, words));
	expect_resend(s, grant, 1, "has not passed the file");
}

static void passes_only_ranges_of_files(void **state)
{
	unsigned char byte = 1;
	struct penstock_object_seg segs[2];
	char name[40];
	int pipes[2];
	struct sides s;

	(void)state;
	sides_open(&s);
	segs[0] = segs[1] = piece(&s, 0, 1);
	expect_descriptors(&s); /* without a connection, which a refusal ends */
	expect_refused(&s, 1, segs, 1, "one range of one file");
	expect_refused(&s, 0, segs, 2, "one range of one file");
	segs[0] = (struct penstock_object_seg){.ptr = &byte, .len = 1};
	expect_refused(&s, 0, segs, 1, "in memory");
	segs[0] = piece(&s, FILE_LEN - 1, 2);
	expect_refused(&s, 0, segs, 1, "shorter than the object");
	segs[0] = piece(&s, 0, 1);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", s.fd);
	segs[0].fd = open(name, O_RDWR | O_CLOEXEC);
	assert_true(segs[0].fd >= 0);
	s.descriptors++;
	expect_refused(&s, 0, segs, 1, "open for reading only");
	close(segs[0].fd);
	segs[0].fd = open(name, O_PATH | O_CLOEXEC);
	expect_refused(&s, 0, segs, 1, "open for reading only");
	close(segs[0].fd);
	segs[0].fd = open("/", O_RDONLY | O_CLOEXEC);
	expect_refused(&s, 0, segs, 1, "not a regular file");
	close(segs[0].fd);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	segs[0].fd = pipes[0];
	s.descriptors++; /* a pipe has two */
	expect_refused(&s, 0, segs, 1, "not a regular file");
	close(pipes[0]);
	close(pipes[1]);
	sides_close(&s);
}

/* Without the option, the server declines the token before any connection. A client whose first
 * transport is another one opens no such windows. */
static void both_sides_must_agree(void **state)
{
	const struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct pst_wire_remote *remote;
	struct pst_wire_client *client;
	struct pst_wire_grant *grant;
	struct pst_err err;
	struct sides s;

	(void)state;
	sides_open(&s);
	pst_wire_server_close(s.server);
	server_open(&s, 0);
	grant = window_open(&s, 100);
	pst_wire_window_info(grant, &info);
	assert_int_equal(
		pst_wire_resolve(s.server, info.token, strlen(info.token), &peer, &remote, &err),
		-EOPNOTSUPP);
	release(grant);
	assert_int_equal(client_open("tcp1,shm1", &client), 0);
	assert_false(pst_wire_client_takes_files(client));
	assert_int_equal(pst_wire_window_take(client, s.mem, 1, &grant, &err), -EOPNOTSUPP);
	pst_wire_client_close(client);
	assert_true(pst_wire_client_takes_files(s.client));
	sides_close(&s);
}

/* ---- clients that get no file ---- */

static bool become_other_user(void)
{
	return !setgroups(0, NULL) && !setgid(65534) && !setuid(65534);
}

/* Leaves root after the socket has been made, whose credentials stay those of root. */
static bool leave_root(void)
{
	return !geteuid() && become_other_user();
}

/* Gives up the capabilities to read files whose modes forbid it. */
static bool drop_capabilities(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct caps[2];

	if (geteuid() || syscall(SYS_capget, &head, caps))
		return false;
	caps[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
	return !syscall(SYS_capset, &head, caps);
}

static bool unshare_mounts(void)
{
	return !unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS);
}

static bool change_root(void)
{
	return !chroot("/proc") && !chdir("/");
}

static bool stay(void)
{
	return true;
}

/* Runs in a child process: changes the process, opens a window, writes its token, and waits until
 * the parent closes the pipe. Changes the root directory last, because the client needs /proc, and
 * leaves root last. */
static void child_run(bool (*change)(void), int out, int in)
{
	const bool late = change == change_root || change == leave_root;
	static unsigned char mem[4096];
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct pst_wire_client *client;
	struct pst_wire_grant *grant;
	struct pst_err err;
	const char *token = "";
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (late || change()) {
		if (client_open("shm1", &client) ||
		    pst_wire_window_take(client, mem, sizeof(mem), &grant, &err))
			_exit(1);
		pst_wire_window_info(grant, &info);
		token = late && !change() ? "" : info.token;
	}
	if (write(out, token, strlen(token) + 1) < 0)
		_exit(1);
	/* The result does not matter: the parent closes the pipe or has ended. */
	(void)!read(in, &byte, 1);
	_exit(0);
}

/* A child process with a window, and the pipe whose end ends it. */
struct child {
	pid_t pid;
	int end;
	char token[PST_TOKEN_MAX + 1]; /* "" if the child could not change itself */
};

static void child_start(struct child *child, bool (*change)(void))
{
	int to[2], from[2];

	assert_true(!pipe2(to, O_CLOEXEC) && !pipe2(from, O_CLOEXEC));
	fflush(stdout);
	child->pid = fork();
	assert_true(child->pid >= 0);
	if (!child->pid) {
		close(to[1]);
		child_run(change, from[1], to[0]);
	}
	close(to[0]);
	close(from[1]);
	assert_true(read(from[0], child->token, sizeof(child->token) - 1) > 0);
	close(from[0]);
	child->end = to[1];
}

static void child_stop(const struct child *child)
{
	int status;

	close(child->end);
	assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
	assert_int_equal(status, 0);
}

static void strangers_get_no_file(void **state)
{
	enum { ROWS = 6 };
	static const struct {
		const char *name;
		bool (*change)(void);
		const char *words;
	} rows[ROWS] = {{"the same user and namespace", stay, NULL},
			{"another user", become_other_user, "another user"},
			{"another mount namespace", unshare_mounts, "another mount namespace"},
			{"another root directory", change_root, "another root directory"},
			{"a user that was root", leave_root, "another user"},
			{"fewer capabilities", drop_capabilities, "may read fewer files"}};
	static struct child children[ROWS];
	struct penstock_object_seg seg;
	unsigned refused = 0;
	struct sides s;

	(void)state;
	/* The children start before this process has threads. */
	for (unsigned i = 0; i < ROWS; i++)
		child_start(&children[i], rows[i].change);
	sides_open(&s);
	seg = piece(&s, 0, 4096);
	for (unsigned i = 0; i < ROWS; i++) {
		char why[PENSTOCK_TEXT_MAX] = "";
		int64_t result;

		if (!children[i].token[0])
			continue;
		result = token_move(&s, children[i].token, 0, &seg, 1, why);
		print_message("# %s: %lld %s\n", rows[i].name, (long long)result, why);
		assert_int_equal(result, rows[i].words ? -EOPNOTSUPP : 4096);
		if (rows[i].words)
			assert_non_null(strstr(why, rows[i].words));
		refused += rows[i].words != NULL;
	}
	sides_close(&s);
	/* The last child first, because it has copies of the pipes of the others. */
	for (unsigned i = ROWS; i; i--)
		child_stop(&children[i - 1]);
	if (!refused) {
		print_message("# this process may change neither its user nor its namespaces\n");
		skip();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_each_range_once),
		cmocka_unit_test(passes_only_cached_bytes),
		cmocka_unit_test(finds_missing_bytes),
		cmocka_unit_test(keeps_no_descriptor),
		cmocka_unit_test(passes_only_ranges_of_files),
		cmocka_unit_test(both_sides_must_agree),
		cmocka_unit_test(strangers_get_no_file),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
