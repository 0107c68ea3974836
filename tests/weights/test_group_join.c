/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how a group forms, and which files and processes a failed attempt leaves behind. The
 * cases are ranks with contradicting options, two groups of one name, and a process of another
 * user at either end of the socket. In further cases, rank 0 was killed while it waited, or has
 * no descriptor left.
 */
#include "group.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "group/barrier.h"

#define MOMENT_NS 2000000

static void sleep_moment(void)
{
	nanosleep(&(struct timespec){.tv_nsec = MOMENT_NS}, NULL);
}

static pid_t fork_join(const char *name, unsigned rank, unsigned ranks, unsigned slot)
{
	pid_t pid = fork();

	if (!pid) {
		struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
		struct outcome *o = &outcomes[slot];
		struct penstock_group *g = NULL;

		alarm(ALARM_S);
		go.dir = group_dir();
		go.timeout_ms = 1000 * ALARM_S / 2;
		o->ret = penstock_group_open(name, rank, ranks, &go, &g);
		snprintf(o->text, sizeof(o->text), "%s", o->ret ? penstock_errmsg() : "");
		penstock_group_close(g);
		_exit(0);
	}
	return pid;
}

static void test_contradicting_ranks(void **state)
{
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	a = fork_join("sizes", 0, 2, 0);
	b = fork_join("sizes", 1, 3, 1);
	waitpid(a, NULL, 0);
	waitpid(b, NULL, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(outcomes[i].ret, -EINVAL);
		assert_non_null(strstr(outcomes[i].text, "rank 1 was started as one of 3 ranks"));
	}
	a = fork_join("twice", 0, 3, 0);
	b = fork_join("twice", 2, 3, 1);
	waitpid(fork_join("twice", 2, 3, 2), NULL, 0);
	waitpid(a, NULL, 0);
	waitpid(b, NULL, 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(outcomes[i].ret, -EEXIST);
		assert_non_null(strstr(outcomes[i].text, "two processes were started as rank 2"));
	}
}

static int try_open(const char *name, unsigned rank, unsigned ranks, const char *dir,
		    const char *text)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_group *g;
	int ret;

	go.dir = dir;
	go.timeout_ms = 30;
	ret = penstock_group_open(name, rank, ranks, &go, &g);
	if (!ret)
		penstock_group_close(g);
	else if (!strstr(penstock_errmsg(), text))
		fail_msg("'%s', expected '%s'", penstock_errmsg(), text);
	return ret;
}

static void test_bad_arguments(void **state)
{
	const char *dir = group_dir();
	char open_dir[1024], name[200];

	(void)state;
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(try_open(name, 0, 2, dir, "63 bytes at most"), -ENAMETOOLONG);
	name[63] = '\0';
	snprintf(open_dir, sizeof(open_dir), "/tmp/%0100d", 1);
	assert_int_equal(try_open(name, 0, 2, open_dir, "longer than the 107"), -ENAMETOOLONG);
	assert_int_equal(try_open("", 0, 2, dir, "must not be empty"), -EINVAL);
	assert_int_equal(try_open("a/b", 0, 2, dir, "have a slash in it"), -EINVAL);
	assert_int_equal(try_open("a", 2, 2, dir, "rank 2 of 2"), -EINVAL);
	assert_int_equal(try_open("a", 0, 0, dir, "rank 0 of 0"), -EINVAL);
	assert_int_equal(try_open("a", 0, 2, dir, "rank 1 of 2 has not joined"), -ETIMEDOUT);
	assert_int_equal(try_open("a", 1, 2, dir, "rank 0 has not joined"), -ETIMEDOUT);
	assert_int_equal(try_open("a", 0, 1, dir, ""), 0);
	snprintf(open_dir, sizeof(open_dir), "%s", made_path("open"));
	mkdir(open_dir, 0755);
	chmod(open_dir, 0755);
	assert_int_equal(try_open("a", 0, 2, open_dir, "only this user"), -EPERM);
}

/* ---- what a failed attempt leaves behind ---- */

static const char *socket_path(const char *name)
{
	char file[64];

	snprintf(file, sizeof(file), "meet/penstock-%s", name);
	return made_path(file);
}

/* Waits until rank 0 listens on the socket at `path`. */
static void await_socket(const char *path)
{
	for (uint64_t until = now_ms() + LIMIT_MS; access(path, F_OK);) {
		if (now_ms() > until)
			fail_msg("nobody listens at %s", path);
		sleep_moment();
	}
}

static void check_end(pid_t pid, unsigned slot, int code, const char *text)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	if (outcomes[slot].ret != code || !strstr(outcomes[slot].text, text))
		fail_msg("%d '%s', expected %d '%s'", outcomes[slot].ret, outcomes[slot].text, code,
			 text);
}

/* If rank 0 is killed, its socket and its lock file stay. They must not disturb the next group of
 * this name. */
static void test_rank0_killed(void **state)
{
	const char *path;
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	group_dir();
	path = socket_path("killed");
	a = fork_join("killed", 0, 2, 0);
	await_socket(path);
	assert_int_equal(kill(a, SIGKILL), 0);
	assert_int_equal(waitpid(a, NULL, 0), a);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(try_open("killed", 1, 2, group_dir(), "rank 0 has not joined"),
			 -ETIMEDOUT);
	a = fork_join("killed", 0, 2, 0);
	b = fork_join("killed", 1, 2, 1);
	check_end(a, 0, 0, "");
	check_end(b, 1, 0, "");
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(access(made_path("meet/penstock-killed.lock"), F_OK), -1);
}

/* A second rank 0 for the same group name fails. The first group is unaffected. */
static void test_two_groups_one_name(void **state)
{
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	group_dir();
	a = fork_join("name", 0, 2, 0);
	await_socket(socket_path("name"));
	assert_int_equal(try_open("name", 0, 2, group_dir(), "another process is rank 0"), -EBUSY);
	b = fork_join("name", 1, 2, 1);
	check_end(a, 0, 0, "");
	check_end(b, 1, 0, "");
}

/* One rank gives up and another never comes. Rank 0 must report the rank that gave up. */
static void test_rank_gives_up(void **state)
{
	siginfo_t end = {.si_pid = 0};
	pid_t a;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	group_dir();
	a = fork_join("given-up", 0, 3, 0);
	await_socket(socket_path("given-up"));
	while (!end.si_pid) { /* this attempt may time out before rank 0 accepts it */
		assert_true(try_open("given-up", 1, 3, group_dir(), "") < 0);
		waitid(P_PID, (id_t)a, &end, WEXITED | WNOHANG | WNOWAIT);
	}
	check_end(a, 0, -ECONNRESET,
		  "rank 1 exited before all ranks had joined; rank 2 has not joined");
}

/* If rank 0 has no descriptor left for a connection, it fails at once. It does not retry until the
 * timeout. */
static void test_no_descriptor_left(void **state)
{
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	group_dir();
	a = fork();
	if (!a) {
		struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
		int next = dup(0);
		struct rlimit few = {(rlim_t)next + 2, (rlim_t)next + 2};
		struct penstock_group *g = NULL;

		alarm(ALARM_S);
		close(next);
		go.dir = group_dir();
		setrlimit(RLIMIT_NOFILE, &few); /* enough descriptors for a lock and a socket */
		outcomes[0].ret = penstock_group_open("few", 0, 2, &go, &g);
		snprintf(outcomes[0].text, sizeof(outcomes[0].text), "%s", penstock_errmsg());
		_exit(0);
	}
	b = fork_join("few", 1, 2, 1);
	check_end(a, 0, -EMFILE, "a rank's connection cannot be accepted");
	check_end(b, 1, -ECONNRESET, "rank 0 exited before all ranks had joined");
}

/* ---- another user ---- */

/* Changes to another user. Unlike ordinary users, this process may then still enter every
 * directory. */
static bool become_other_user(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2];

	if (seteuid(65534) || syscall(SYS_capget, &head, caps))
		return false;
	caps[0].effective |= 1u << CAP_DAC_OVERRIDE;
	return !syscall(SYS_capset, &head, caps);
}

static bool can_become_other_user(void)
{
	int status = 1;
	pid_t pid = fork();

	if (!pid)
		_exit(become_other_user() ? 0 : 1);
	waitpid(pid, &status, 0);
	return !status;
}

static struct sockaddr_un socket_address(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	return addr;
}

/* Forks a process that connects to the group's socket and sends a message that no rank of this
 * version sends. The process then waits until the connection is closed. */
static pid_t fork_intruder(const char *path, bool other_user)
{
	pid_t pid = fork();

	if (!pid) {
		struct sockaddr_un addr = socket_address(path);
		struct pst_link link = PST_LINK_NONE;
		struct pst_message said = {(unsigned char *)"x", 1, -1};
		struct pst_packet note = {.seq = 1, .rank = 1};
		char byte;

		alarm(ALARM_S);
		if (other_user && !become_other_user())
			_exit(1);
		link.sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		if (connect(link.sock, (struct sockaddr *)&addr, sizeof(addr)))
			_exit(2);
		pst_link_send(&link, UINT64_MAX, &note, &said);
		while (recv(link.sock, &byte, 1, 0) > 0)
			;
		_exit(0);
	}
	return pid;
}

static void test_intruder_connects(void **state)
{
	int status = 1;
	pid_t a, b, c;

	(void)state;
	if (!can_become_other_user())
		test_skip("only root can become another user");
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	group_dir();
	/* If the intruder runs as the same user, the group fails. */
	a = fork_join("intruder", 0, 2, 0);
	await_socket(socket_path("intruder"));
	c = fork_intruder(socket_path("intruder"), false);
	assert_int_equal(waitpid(c, &status, 0), c);
	assert_int_equal(status, 0);
	check_end(a, 0, -EPROTO, "another version");
	/* An intruder that runs as another user is ignored. */
	a = fork_join("intruder", 0, 2, 0);
	await_socket(socket_path("intruder"));
	c = fork_intruder(socket_path("intruder"), true);
	assert_int_equal(waitpid(c, &status, 0), c);
	assert_int_equal(status, 0);
	b = fork_join("intruder", 1, 2, 1);
	check_end(a, 0, 0, "");
	check_end(b, 1, 0, "");
}

/* A rank does not connect to a socket that another user listens on. */
static void test_impostor_listens(void **state)
{
	struct sockaddr_un addr;
	pid_t pid;

	(void)state;
	if (!can_become_other_user())
		test_skip("only root can become another user");
	group_dir();
	addr = socket_address(socket_path("impostor"));
	unlink(addr.sun_path);
	pid = fork();
	if (!pid) {
		int sock = -1;

		alarm(ALARM_S);
		if (become_other_user())
			sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		if (bind(sock, (struct sockaddr *)&addr, sizeof(addr)) || listen(sock, 1))
			_exit(1);
		pause();
	}
	await_socket(addr.sun_path);
	for (int ret = -ETIMEDOUT; ret != -EPERM;) /* -ETIMEDOUT: the impostor does not listen
						    * yet. */
		assert_true((ret = try_open("impostor", 1, 2, group_dir(), "")) == -ETIMEDOUT ||
			    ret == -EPERM);
	assert_non_null(strstr(penstock_errmsg(), "another user's process listens there"));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	unlink(addr.sun_path);
}

/* ---- a process of this user that sends invalid messages ---- */

/* Plays rank 0 for a rank that joins, and sends it one invalid message. If `facts` is false, this
 * is the hello message that answers the rank's own: it announces `windows` windows, and has at most
 * `said_len` bytes. If `facts` is true, the hello message is valid, and the invalid message follows
 * at the first barrier. There every rank sends its facts, which describe the model's files. The
 * invalid message is then a copy of the joining rank's own facts, cut to `said_len` bytes. */
static void play_rank0(const char *name, uint32_t windows, size_t said_len, bool facts)
{
	struct hello {
		uint32_t version, size;
		struct pst_group_settings how;
	} hello = {3, 2, {.window = 4096, .windows = windows, .stall_ms = 1000, .hosts = 1}};
	struct sockaddr_un addr = socket_address(socket_path(name));
	struct pst_link link = PST_LINK_NONE;
	struct pst_packet note, answer = {.seq = 1};
	unsigned char *bytes = malloc(PST_MESSAGE_MAX);
	struct pst_message said = {bytes, 0, -1},
			   own = {(unsigned char *)&hello, sizeof(hello), -1};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	alarm(ALARM_S);
	unlink(addr.sun_path); /* removes a socket that a killed test may have left */
	if (bind(sock, (struct sockaddr *)&addr, sizeof(addr)) || listen(sock, 1))
		_exit(1);
	link.sock = accept(sock, NULL, NULL);
	if (pst_link_receive(&link, UINT64_MAX, &note, &said) != 1)
		_exit(2);
	own.len = said_len < sizeof(hello) && !facts ? said_len : sizeof(hello);
	pst_link_send(&link, UINT64_MAX, &answer, &own);
	if (facts && pst_link_receive(&link, UINT64_MAX, &note, &said) == 1) {
		answer.seq = note.seq;
		pst_link_send(&link, UINT64_MAX, &answer, NULL);
		said.len = said_len;
		pst_link_send(&link, UINT64_MAX, &answer,
			      &said); /* sends only the first said_len bytes */
	}
	while (pst_link_receive(&link, UINT64_MAX, &note, &said) == 1)
		;
	_exit(0);
}

static const struct {
	const char *name;
	uint32_t windows;
	size_t len;
	bool facts;
} bad_answers[] = {
	{"no-hello", 2, 0, false},     {"short-hello", 2, 8, false}, {"no-windows", 0, 999, false},
	{"one-window", 1, 999, false}, {"no-facts", 2, 0, true},     {"short-facts", 2, 40, true},
};

static void test_bad_answers(void **state)
{
	struct penstock_weights *m;

	(void)state;
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	assert_int_equal(penstock_weights_open(model_path(), NULL, &m), 0);
	for (unsigned i = 0; i < COUNT(bad_answers); i++) {
		struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
		struct penstock_loaded *loaded = NULL;
		struct penstock_group *g = NULL;
		int ret, status = 0;
		pid_t pid;

		go.dir = group_dir();
		go.timeout_ms = LIMIT_MS;
		pid = fork();
		if (!pid)
			play_rank0(bad_answers[i].name, bad_answers[i].windows, bad_answers[i].len,
				   bad_answers[i].facts);
		ret = penstock_group_open(bad_answers[i].name, 1, 2, &go, &g);
		assert_true(!ret || !bad_answers[i].facts);
		if (!ret)
			ret = penstock_group_load(g, m, &host, 1, NULL, NULL, &loaded);
		if (ret != -EPROTO)
			fail_msg("%s: %d, %s", bad_answers[i].name, ret, penstock_errmsg());
		penstock_group_close(g);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		unlink(socket_path(bad_answers[i].name));
	}
	penstock_weights_close(m);
	penstock_device_close(host);
}

/* A rank receives a packet with two descriptors, which no rank of the library sends. It must use
 * one descriptor and close the other. */
static void test_two_descriptors(void **state)
{
	struct {
		struct cmsghdr head;
		int fds[2];
	} control = {{CMSG_LEN(2 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS}, {0, 0}};
	struct pst_packet note = {.magic = PST_PACKET_MAGIC};
	struct iovec iov = {&note, sizeof(note)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	struct pst_message said = {malloc(PST_MESSAGE_MAX), 0, -1};
	struct pst_link link = PST_LINK_NONE;
	int pair[2], before, after;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	link.sock = pair[0];
	before = dup(0);
	close(before);
	assert_int_equal(sendmsg(pair[1], &msg, 0), sizeof(note));
	assert_int_equal(pst_link_receive(&link, UINT64_MAX, &note, &said), 1);
	assert_true(said.fd >= 0);
	close(said.fd);
	after = dup(0);
	close(after);
	assert_int_equal(after, before);
	assert_int_equal(fcntl(before + 1, F_GETFD), -1);
	close(pair[0]);
	close(pair[1]);
	free(said.bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_contradicting_ranks),
		cmocka_unit_test(test_bad_arguments),
		cmocka_unit_test(test_rank0_killed),
		cmocka_unit_test(test_two_groups_one_name),
		cmocka_unit_test(test_rank_gives_up),
		cmocka_unit_test(test_no_descriptor_left),
		cmocka_unit_test(test_intruder_connects),
		cmocka_unit_test(test_impostor_listens),
		cmocka_unit_test(test_bad_answers),
		cmocka_unit_test(test_two_descriptors),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
