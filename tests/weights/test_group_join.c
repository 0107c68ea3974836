/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may join a group, and what is left of one that did not come about: ranks that are not
 * of one mind, processes of another user at either end of the socket, a rank 0 that was
 * killed as it waited, two groups of one name, no descriptor left for a rank that comes.
 */
#include "group.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "group/barrier.h"

#define MOMENT_NS 2000000

static void pause_for_a_moment(void)
{
	nanosleep(&(struct timespec){.tv_nsec = MOMENT_NS}, NULL);
}

static pid_t join_as(const char *name, unsigned rank, unsigned ranks, unsigned slot)
{
	pid_t pid = fork();

	if (!pid) {
		struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
		struct outcome *o = &outcomes[slot];
		struct penstock_group *g = NULL;

		alarm(ALARM_S);
		go.dir = meeting_place();
		go.timeout_ms = 1000 * ALARM_S / 2;
		o->ret = penstock_group_open(name, rank, ranks, &go, &g);
		snprintf(o->text, sizeof(o->text), "%s", o->ret ? penstock_errmsg() : "");
		penstock_group_close(g);
		_exit(0);
	}
	return pid;
}

static void test_not_of_one_mind(void **state)
{
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	a = join_as("sizes", 0, 2, 0);
	b = join_as("sizes", 1, 3, 1);
	waitpid(a, NULL, 0);
	waitpid(b, NULL, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(outcomes[i].ret, -EINVAL);
		assert_non_null(strstr(outcomes[i].text, "rank 1 was started as one of 3 ranks"));
	}
	a = join_as("twice", 0, 3, 0);
	b = join_as("twice", 2, 3, 1);
	waitpid(join_as("twice", 2, 3, 2), NULL, 0);
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

static void test_refused(void **state)
{
	const char *dir = meeting_place();
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
	assert_int_equal(try_open("a", 0, 2, open_dir, "this user alone"), -EPERM);
}

/* ---- what was left behind ---- */

static const char *socket_of(const char *name)
{
	char file[64];

	snprintf(file, sizeof(file), "meet/penstock-%s", name);
	return made_path(file);
}

/* Until rank 0 listens. */
static void await_socket(const char *path)
{
	for (uint64_t until = now_ms() + LIMIT_MS; access(path, F_OK);) {
		if (now_ms() > until)
			fail_msg("nobody listens at %s", path);
		pause_for_a_moment();
	}
}

static void ends_with(pid_t pid, unsigned slot, int code, const char *text)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	if (outcomes[slot].ret != code || !strstr(outcomes[slot].text, text))
		fail_msg("%d '%s', expected %d '%s'", outcomes[slot].ret, outcomes[slot].text, code,
			 text);
}

/* Its socket and its lock have names still, which is nobody's hindrance. */
static void test_killed(void **state)
{
	const char *path;
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	meeting_place();
	path = socket_of("killed");
	a = join_as("killed", 0, 2, 0);
	await_socket(path);
	assert_int_equal(kill(a, SIGKILL), 0);
	assert_int_equal(waitpid(a, NULL, 0), a);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(try_open("killed", 1, 2, meeting_place(), "rank 0 has not joined"),
			 -ETIMEDOUT);
	a = join_as("killed", 0, 2, 0);
	b = join_as("killed", 1, 2, 1);
	ends_with(a, 0, 0, "");
	ends_with(b, 1, 0, "");
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(access(made_path("meet/penstock-killed.lock"), F_OK), -1);
}

/* The second is told, the first is as it was. */
static void test_one_name(void **state)
{
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	meeting_place();
	a = join_as("name", 0, 2, 0);
	await_socket(socket_of("name"));
	assert_int_equal(try_open("name", 0, 2, meeting_place(), "another process is rank 0"),
			 -EBUSY);
	b = join_as("name", 1, 2, 1);
	ends_with(a, 0, 0, "");
	ends_with(b, 1, 0, "");
}

/* Who gives up first is not the one to look for. */
static void test_given_up(void **state)
{
	siginfo_t end = {.si_pid = 0};
	pid_t a;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	meeting_place();
	a = join_as("given-up", 0, 3, 0);
	await_socket(socket_of("given-up"));
	while (!end.si_pid) { /* its time may be over before it was let in */
		assert_true(try_open("given-up", 1, 3, meeting_place(), "") < 0);
		waitid(P_PID, (id_t)a, &end, WEXITED | WNOHANG | WNOWAIT);
	}
	ends_with(a, 0, -ECONNRESET,
		  "rank 1 exited before all ranks had joined; rank 2 has not joined");
}

/* Not one that is looked for again and again until the time is over. */
static void test_no_descriptor(void **state)
{
	pid_t a, b;

	(void)state;
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	meeting_place();
	a = fork();
	if (!a) {
		struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
		int next = dup(0);
		struct rlimit few = {(rlim_t)next + 2, (rlim_t)next + 2};
		struct penstock_group *g = NULL;

		alarm(ALARM_S);
		close(next);
		go.dir = meeting_place();
		setrlimit(RLIMIT_NOFILE, &few); /* a lock and a socket */
		outcomes[0].ret = penstock_group_open("few", 0, 2, &go, &g);
		snprintf(outcomes[0].text, sizeof(outcomes[0].text), "%s", penstock_errmsg());
		_exit(0);
	}
	b = join_as("few", 1, 2, 1);
	ends_with(a, 0, -EMFILE, "a rank's connection cannot be accepted");
	ends_with(b, 1, -ECONNRESET, "rank 0 exited before all ranks had joined");
}

/* ---- another user ---- */

/* Another user, who may enter every directory all the same, as no ordinary one may. */
static bool become_another(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2];

	if (seteuid(65534) || syscall(SYS_capget, &head, caps))
		return false;
	caps[0].effective |= 1u << CAP_DAC_OVERRIDE;
	return !syscall(SYS_capset, &head, caps);
}

static bool can_become_another(void)
{
	int status = 1;
	pid_t pid = fork();

	if (!pid)
		_exit(become_another() ? 0 : 1);
	waitpid(pid, &status, 0);
	return !status;
}

static struct sockaddr_un address(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	return addr;
}

/* Connects and says something that no rank of this version would; its end is that of what
 * it said. */
static pid_t intrude(const char *path, bool another)
{
	pid_t pid = fork();

	if (!pid) {
		struct sockaddr_un addr = address(path);
		struct pst_link link = PST_LINK_NONE;
		struct pst_message said = {(unsigned char *)"x", 1, -1};
		struct pst_packet note = {.seq = 1, .rank = 1};
		char byte;

		alarm(ALARM_S);
		if (another && !become_another())
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

static void test_intruder(void **state)
{
	int status = 1;
	pid_t a, b, c;

	(void)state;
	if (!can_become_another())
		test_skip("only root can become another user");
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	meeting_place();
	/* This user's is listened to. */
	a = join_as("intruder", 0, 2, 0);
	await_socket(socket_of("intruder"));
	c = intrude(socket_of("intruder"), false);
	assert_int_equal(waitpid(c, &status, 0), c);
	assert_int_equal(status, 0);
	ends_with(a, 0, -EPROTO, "another version");
	/* Another's is not. */
	a = join_as("intruder", 0, 2, 0);
	await_socket(socket_of("intruder"));
	c = intrude(socket_of("intruder"), true);
	assert_int_equal(waitpid(c, &status, 0), c);
	assert_int_equal(status, 0);
	b = join_as("intruder", 1, 2, 1);
	ends_with(a, 0, 0, "");
	ends_with(b, 1, 0, "");
}

/* Nor is another user's socket spoken to. */
static void test_impostor(void **state)
{
	struct sockaddr_un addr;
	pid_t pid;

	(void)state;
	if (!can_become_another())
		test_skip("only root can become another user");
	meeting_place();
	addr = address(socket_of("impostor"));
	unlink(addr.sun_path);
	pid = fork();
	if (!pid) {
		int sock = -1;

		alarm(ALARM_S);
		if (become_another())
			sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		if (bind(sock, (struct sockaddr *)&addr, sizeof(addr)) || listen(sock, 1))
			_exit(1);
		pause();
	}
	await_socket(addr.sun_path);
	for (int ret = -ETIMEDOUT; ret != -EPERM;) /* -ETIMEDOUT: it does not listen yet */
		assert_true((ret = try_open("impostor", 1, 2, meeting_place(), "")) == -ETIMEDOUT ||
			    ret == -EPERM);
	assert_non_null(strstr(penstock_errmsg(), "another user's process listens there"));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	unlink(addr.sun_path);
}

/* ---- one of this user's that says what no rank does ---- */

/* A rank 0 that the test plays: what it answers to one that joins, and to its facts. */
static void play(const char *name, uint32_t windows, size_t said_len, bool facts)
{
	struct hello {
		uint32_t version, size;
		struct pst_group_settings how;
	} hello = {3, 2, {.window = 4096, .windows = windows, .stall_ms = 1000, .hosts = 1}};
	struct sockaddr_un addr = address(socket_of(name));
	struct pst_link link = PST_LINK_NONE;
	struct pst_packet note, answer = {.seq = 1};
	unsigned char *bytes = malloc(PST_MESSAGE_MAX);
	struct pst_message said = {bytes, 0, -1},
			   own = {(unsigned char *)&hello, sizeof(hello), -1};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	alarm(ALARM_S);
	unlink(addr.sun_path); /* of a test that was killed */
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
		pst_link_send(&link, UINT64_MAX, &answer, &said); /* its own, but not all */
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
} played[] = {
	{"no-hello", 2, 0, false},     {"short-hello", 2, 8, false}, {"no-windows", 0, 999, false},
	{"one-window", 1, 999, false}, {"no-facts", 2, 0, true},     {"short-facts", 2, 40, true},
};

static void test_played(void **state)
{
	struct penstock_weights *m;

	(void)state;
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	assert_int_equal(penstock_weights_open(model_path(), NULL, &m), 0);
	for (unsigned i = 0; i < COUNT(played); i++) {
		struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
		struct penstock_loaded *loaded = NULL;
		struct penstock_group *g = NULL;
		int ret, status = 0;
		pid_t pid;

		go.dir = meeting_place();
		go.timeout_ms = LIMIT_MS;
		pid = fork();
		if (!pid)
			play(played[i].name, played[i].windows, played[i].len, played[i].facts);
		ret = penstock_group_open(played[i].name, 1, 2, &go, &g);
		assert_true(!ret || !played[i].facts);
		if (!ret)
			ret = penstock_group_load(g, m, &host, 1, NULL, NULL, &loaded);
		if (ret != -EPROTO)
			fail_msg("%s: %d, %s", played[i].name, ret, penstock_errmsg());
		penstock_group_close(g);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		unlink(socket_of(played[i].name));
	}
	penstock_weights_close(m);
	penstock_device_close(host);
}

/* Of several descriptors in one packet, as no rank sends them, none is left. */
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
		cmocka_unit_test(test_not_of_one_mind), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_killed),		cmocka_unit_test(test_one_name),
		cmocka_unit_test(test_given_up),	cmocka_unit_test(test_no_descriptor),
		cmocka_unit_test(test_intruder),	cmocka_unit_test(test_impostor),
		cmocka_unit_test(test_played),		cmocka_unit_test(test_two_descriptors),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
