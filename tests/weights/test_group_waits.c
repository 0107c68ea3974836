/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits of a group that must end though nobody fails and nobody dies: for a rank that never
 * comes while others came long ago, at a socket that lets nobody in, for room for descriptors.
 */
#include "group.h"

#include <sys/socket.h>
#include <sys/un.h>

#include "job/group_link.h"

static struct penstock_group_opts group_opts(unsigned timeout_ms, unsigned stall_ms)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;

	go.dir = meeting_place();
	go.timeout_ms = timeout_ms;
	go.stall_ms = stall_ms;
	go.window = 64 << 10;
	go.windows = 2;
	return go;
}

static void no_longer_than(atomic_bool *until, bool *late)
{
	const struct timespec moment = {.tv_nsec = 2000000};

	for (uint64_t end = now_ms() + LIMIT_MS; !atomic_load(until) && !*late;) {
		*late = now_ms() > end;
		nanosleep(&moment, NULL);
	}
}

/* ---- one came long ago, another never comes ---- */

struct shared {
	atomic_bool gave_up, told;
};

static int one(unsigned rank, struct shared *shared, struct outcome *o)
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
		no_longer_than(&shared->gave_up, &late);
	if (rank < 2) {
		o->ret = penstock_group_load(g, m, &host, 1, NULL, NULL, &loaded);
		snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
		atomic_store(rank ? &shared->gave_up : &shared->told, true);
	}
	no_longer_than(&shared->told, &late); /* nobody leaves before */
	penstock_group_close(g);
	penstock_weights_close(m);
	return late;
}

/* Rank 1 has waited for rank 0 as long as it does when that comes at last, which gives up
 * rank 2 all the same. */
static void test_long_ago(void **state)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[3];

	(void)state;
	assert_ptr_not_equal(shared, MAP_FAILED);
	model_path();
	memset(outcomes, 0, RANKS_MAX * sizeof(*outcomes));
	for (unsigned r = 0; r < 3; r++) {
		pids[r] = fork();
		if (pids[r])
			continue;
		alarm(ALARM_S);
		_exit(one(r, shared, &outcomes[r]) ? 1 : 0);
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
	munmap(shared, sizeof(*shared));
}

/* ---- a listener that has stopped ---- */

/* Also where so many wait to be let in that there is no room for one more. */
static void test_nobody_let_in(void **state)
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
	assert_non_null(strstr(penstock_errmsg(), "rank 0 has not come"));
	close(waits);
	close(listener);
	unlink(addr.sun_path);
}

/* ---- too many descriptors under way ---- */

ssize_t __real_sendmsg(int sock, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *msg, int flags);

static bool too_many;

/* As for a user other than root whose descriptors that nobody has taken yet are as many as
 * a process may have: each second time that one is sent. */
ssize_t __wrap_sendmsg(int sock, const struct msghdr *msg, int flags)
{
	static bool fails;

	fails = !fails;
	if (!too_many || !msg->msg_controllen || !fails)
		return __real_sendmsg(sock, msg, flags);
	errno = ETOOMANYREFS;
	return -1;
}

static void test_too_many(void **state)
{
	struct job job = {.name = "too-many",
			  .path = model_path(),
			  .ranks = 3,
			  .opts = {.window = 64 << 10, .windows = 2, .stall_ms = 20000}};

	(void)state;
	too_many = true;
	all_right(&job);
	too_many = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_long_ago),
		cmocka_unit_test(test_nobody_let_in),
		cmocka_unit_test(test_too_many),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
