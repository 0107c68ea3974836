/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that every wait in a group ends, whatever other ranks do. A rank waits for a rank that
 * never arrives, for a listening socket whose backlog is full, or for room to send descriptors.
 * A rank also waits for a stopped rank while a caller cancels or another rank dies.
 */
#include "group.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "group/barrier.h"

static struct penstock_group_opts group_opts(unsigned timeout_ms, unsigned stall_ms)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;

	go.dir = group_dir();
	go.timeout_ms = timeout_ms;
	go.stall_ms = stall_ms;
	go.window = 64 << 10;
	go.windows = 2;
	return go;
}

static void await_flag(atomic_bool *until, bool *late)
{
	const struct timespec moment = {.tv_nsec = 2000000};

	for (uint64_t end = now_ms() + LIMIT_MS; !atomic_load(until) && !*late;) {
		*late = now_ms() > end;
		nanosleep(&moment, NULL);
	}
}

static struct shared {
	atomic_bool gave_up, told, stopped, full;
} * shared;

static void share_memory(void)
{
	void *ptr = mmap(NULL, AREAS * sizeof(*shared), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(ptr, MAP_FAILED);
	shared = ptr;
	model_path();
	memset(outcomes, 0, AREAS * RANKS_MAX * sizeof(*outcomes));
}

/* ---- one rank has waited long, another never arrives ---- */

static int run_late_rank(unsigned rank, struct outcome *o)
{
	struct penstock_group_opts go = group_opts(LIMIT_MS, 1);
	struct penstock_loaded *loaded = NULL;
	struct penstock_weights *m;
	struct penstock_group *g;
	bool late = false;

	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_weights_open(made_path("group.safetensors"), NULL, &m) ||
	    penstock_group_open("long-ago", rank, 3, &go, &g))
		return -1;
	if (rank == 0)
		await_flag(&shared->gave_up, &late);
	if (rank < 2) {
		o->ret = penstock_group_load(g, m, &host, 1, NULL, NULL, &loaded);
		snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
		atomic_store(rank ? &shared->gave_up : &shared->told, true);
	}
	/* no rank may leave the group before rank 0 has its result */
	await_flag(&shared->told, &late);
	penstock_group_close(g);
	penstock_weights_close(m);
	return late;
}

/* Rank 0 arrives when rank 1 has waited for it for almost the whole time limit. Rank 2 never
 * arrives, and rank 0 must still report that. */
static void test_rank_waited_long(void **state)
{
	pid_t pids[3];

	(void)state;
	share_memory();
	for (unsigned r = 0; r < 3; r++) {
		pids[r] = fork();
		if (pids[r])
			continue;
		alarm(ALARM_S);
		_exit(run_late_rank(r, &outcomes[r]) ? 1 : 0);
	}
	for (unsigned r = 0; r < 3; r++) {
		int status = 0;

		assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
		assert_int_equal(status, 0);
	}
	for (unsigned r = 0; r < 2; r++)
		if (outcomes[r].ret != -ETIMEDOUT ||
		    !strstr(outcomes[r].text, r ? "rank 0" : "rank 2"))
			fail_msg("rank %u: %d, %s", r, outcomes[r].ret, outcomes[r].text);
	munmap(shared, AREAS * sizeof(*shared));
}

/* ---- a stopped listener ---- */

/* A connect to the socket must not block, even if the socket's backlog is full. */
static void test_full_backlog(void **state)
{
	struct penstock_group_opts go = group_opts(100, 0);
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0), waits;
	struct penstock_group *g;

	(void)state;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/penstock-full", go.dir);
	unlink(addr.sun_path);
	assert_int_equal(bind(listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(listener, 0), 0);
	waits = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_int_equal(connect(waits, (struct sockaddr *)&addr, sizeof(addr)), 0);
	alarm(ALARM_S);
	assert_int_equal(penstock_group_open("full", 1, 2, &go, &g), -ETIMEDOUT);
	alarm(0);
	assert_non_null(strstr(penstock_errmsg(), "rank 0 has not joined"));
	close(waits);
	close(listener);
	unlink(addr.sun_path);
}

/* ---- no room to send ---- */

ssize_t __real_sendmsg(int sock, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *msg, int flags);
int __real_accept4(int sock, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_accept4(int sock, struct sockaddr *addr, socklen_t *len, int flags);

static bool too_many, narrow;

/* Makes every second sendmsg that passes a descriptor fail. For users other than root, the
 * kernel fails such calls if too many descriptors are in flight. */
ssize_t __wrap_sendmsg(int sock, const struct msghdr *msg, int flags)
{
	static bool fails;
	ssize_t n;

	fails = !fails;
	if (too_many && msg->msg_controllen && fails) {
		errno = ETOOMANYREFS;
		return -1;
	}
	n = __real_sendmsg(sock, msg, flags);
	if (n < 0 && narrow && (errno == EAGAIN || errno == EWOULDBLOCK))
		atomic_store(&shared->full, true);
	return n;
}

/* Shrinks the send buffer of the accepted socket, so that a few packets fill it. */
int __wrap_accept4(int sock, struct sockaddr *addr, socklen_t *len, int flags)
{
	int fd = __real_accept4(sock, addr, len, flags), little = 1;

	if (narrow && fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
	return fd;
}

static void test_too_many_descriptors(void **state)
{
	struct job job = {.name = "too-many",
			  .path = model_path(),
			  .ranks = 3,
			  .opts = {.window = 64 << 10, .windows = 2, .stall_ms = 20000}};

	(void)state;
	too_many = true;
	run_and_check(&job);
	too_many = false;
}

/* ---- a stopped rank ---- */

#define LATE "fault:bounce?delay_us=4000000000" /* More than an hour. */
#define RANKS 6u

/* Rank `stops` stops itself by SIGSTOP at the first call of its callback. Rank `off` cancels as
 * soon as the stopped rank blocks the group. */
static const struct {
	const char *name;
	unsigned ranks, stops;
	unsigned off;  /* The rank that cancels; RANKS if none does. */
	unsigned dies; /* The rank that is killed; RANKS if none is. */
	const char *text;
} rows[] = {
	/* Rank 0 is stopped. Rank 1 has a slow read and cancels, but cannot tell rank 0. */
	{"stop-0", 2, 0, 1, RANKS, "cancelled"},
	/* Rank 1 is stopped and its socket is full, so rank 0 blocks while it sends to rank 1.
	 * The other ranks wait for messages that rank 0 would send to them after that. */
	{"stop-1", RANKS, 1, 0, RANKS, "rank 0 was cancelled"},
	{"stop-2", RANKS, 1, 4, RANKS, "rank 4 of group 'stop-2' is lost: it closed"},
	{"stop-3", RANKS, 1, RANKS, 4, "rank 4 of group 'stop-3' is lost: its process"},
};

struct place {
	unsigned row, rank;
};

static int stop_or_cancel(void *user)
{
	const struct place *at = user;
	bool stops = rows[at->row].stops == at->rank;

	if (stops && !atomic_exchange(&shared->stopped, true))
		raise(SIGSTOP);
	return rows[at->row].off == at->rank &&
	       atomic_load(rows[at->row].stops ? &shared->full : &shared->stopped);
}

static int run_beside_stopped(struct place *at, struct outcome *o)
{
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_group_opts go = group_opts(LIMIT_MS, 0);
	struct penstock_loaded *loaded = NULL;
	struct penstock_weights *m;
	struct penstock_group *g;
	bool late = false;

	lo.look = stop_or_cancel;
	lo.user = at;
	lo.path = rows[at->row].stops ? NULL : LATE;
	narrow = rows[at->row].stops && !at->rank;
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_weights_open(made_path("group.safetensors"), NULL, &m) ||
	    penstock_group_open(rows[at->row].name, at->rank, rows[at->row].ranks, &go, &g))
		return -1;
	if (narrow)
		await_flag(&shared->stopped, &late);
	o->ret = penstock_group_load(g, m, &host, 1, &lo, NULL, &loaded);
	snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
	penstock_group_close(g);
	penstock_weights_close(m);
	return late || loaded;
}

static void await_end(pid_t pid, int wanted)
{
	const struct timespec moment = {.tv_nsec = 2000000};
	int status = 0;

	for (uint64_t end = now_ms() + LIMIT_MS; !waitpid(pid, &status, WNOHANG);) {
		if (now_ms() > end)
			fail_msg("a rank waits still");
		nanosleep(&moment, NULL);
	}
	assert_int_equal(status, wanted);
}

static void row_start(unsigned row, pid_t *pids)
{
	for (unsigned r = 0; r < rows[row].ranks; r++) {
		struct place at = {row, r};

		pids[r] = fork();
		if (pids[r])
			continue;
		alarm(ALARM_S);
		/* Ends this process if its parent ends. This matters if the process is stopped:
		 * alarm() cannot end a stopped process. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		shared += row;
		_exit(run_beside_stopped(&at, &outcomes[row * RANKS_MAX + r]));
	}
}

static void row_check(unsigned row, const pid_t *pids)
{
	unsigned stops = rows[row].stops, dies = rows[row].dies;

	for (unsigned r = 0; r < rows[row].ranks; r++)
		if (r != stops)
			await_end(pids[r], r == dies ? SIGKILL : 0);
	kill(pids[stops], SIGKILL);
	assert_int_equal(waitpid(pids[stops], NULL, 0), pids[stops]);
	for (unsigned r = 0; r < rows[row].ranks; r++) {
		const struct outcome *o = &outcomes[row * RANKS_MAX + r];

		if (r == stops || r == dies)
			continue;
		if (r == rows[row].off ? o->ret != -ECANCELED || !strstr(o->text, "cancelled")
				       : !o->ret || !strstr(o->text, rows[row].text))
			fail_msg("%s, rank %u: %d, %s", rows[row].name, r, o->ret, o->text);
	}
}

static void test_stopped_rank(void **state)
{
	pid_t pids[COUNT(rows)][RANKS];
	bool late = false;

	(void)state;
	share_memory();
	for (unsigned i = 0; i < COUNT(rows); i++)
		row_start(i, pids[i]);
	for (unsigned i = 0; i < COUNT(rows); i++) {
		if (rows[i].dies == RANKS)
			continue;
		await_flag(&shared[i].full, &late);
		kill(pids[i][rows[i].dies], SIGKILL);
	}
	for (unsigned i = 0; i < COUNT(rows); i++)
		row_check(i, pids[i]);
	munmap(shared, AREAS * sizeof(*shared));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rank_waited_long),
		cmocka_unit_test(test_full_backlog),
		cmocka_unit_test(test_too_many_descriptors),
		cmocka_unit_test(test_stopped_rank),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
