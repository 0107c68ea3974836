/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks whose callers want no more of a load: while they read, while they wait for the
 * others, and before all have come. They end, and the others are told.
 */
#include "group.h"

#define LATE "fault:bounce?delay_us=4000000000" /* an hour, more or less */

struct asked {
	unsigned count;
};

/* No, as the rank has waited for a moment. */
static int no(void *user)
{
	struct asked *asked = user;

	return ++asked->count == 3;
}

/* Rank `who` is asked, rank `slow` reads; what it has come to. */
static int one(const struct job *job, unsigned rank, struct outcome *o)
{
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_group_opts go = job->opts;
	struct penstock_loaded *loaded = NULL;
	struct asked asked = {0};
	struct penstock_weights *m;
	struct penstock_group *g;
	int ret;

	go.size = sizeof(go);
	go.dir = meeting_place();
	go.timeout_ms = 1000 * ALARM_S / 2;
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_weights_open(job->path, NULL, &m) ||
	    penstock_group_open(job->name, rank, job->ranks, &go, &g))
		return -1;
	if (rank == job->who)
		lo.look = no;
	if (rank == job->slow)
		lo.path = LATE;
	lo.user = &asked;
	ret = penstock_group_load(g, m, &host, 1, &lo, NULL, &loaded);
	snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
	if (loaded || (rank == job->who && asked.count != 3))
		snprintf(o->wrong, sizeof(o->wrong), "asked %u times", asked.count);
	penstock_group_close(g);
	penstock_weights_close(m);
	return ret;
}

/* All at once, as reads that hang are waited for a little in each. Rank `who` reads what takes
 * an hour, or another does while it has come to the meeting already, whoever rank 0 is. */
static const struct {
	const char *name;
	unsigned who, slow;
} rows[] = {{"off-0", 0, 0}, {"off-1", 2, 2}, {"off-2", 0, 1}, {"off-3", 1, 0}, {"off-4", 1, 2}};

#define RANKS 3u

static void check_end(unsigned row, unsigned rank, const struct outcome *o, int status)
{
	bool own = rank == rows[row].who;

	/* One that has waited in vain for rank 0 to hear of it leaves. */
	if (status || *o->wrong || !o->ret || (own && o->ret != -ECANCELED) ||
	    (!own && !strstr(o->text, "cancelled") && !strstr(o->text, "it closed the group")))
		fail_msg("%s, rank %u: status %#x, %d, %s %s", rows[row].name, rank, status, o->ret,
			 o->text, o->wrong);
}

static void test_all_end(void **state)
{
	struct job job = {
		.path = model_path(), .ranks = RANKS, .opts = {.window = 64 << 10, .windows = 2}};
	pid_t pids[COUNT(rows)][RANKS];

	(void)state;
	for (unsigned i = 0; i < COUNT(rows) * RANKS; i++) {
		struct outcome *o = &outcomes[i];

		job.name = rows[i / RANKS].name;
		job.who = rows[i / RANKS].who;
		job.slow = rows[i / RANKS].slow;
		pids[i / RANKS][i % RANKS] = fork();
		if (pids[i / RANKS][i % RANKS])
			continue;
		alarm(ALARM_S);
		o->ret = one(&job, i % RANKS, o);
		_exit(0);
	}
	for (unsigned i = 0; i < COUNT(rows) * RANKS; i++) {
		pid_t pid = pids[i / RANKS][i % RANKS];
		int status = 0;

		assert_int_equal(waitpid(pid, &status, 0), pid);
		check_end(i / RANKS, i % RANKS, &outcomes[i], status);
	}
}

/* ---- again and again ---- */

#define ROUNDS 8u

/* In load `i` rank `who` says no when it is asked for the `when`th time. */
static void no_of(uint64_t seed, unsigned i, unsigned *who, unsigned *when)
{
	uint64_t x = (seed + i) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
	*who = (unsigned)(x >> 40) % RANKS;
	*when = 1 + (unsigned)(x >> 20) % 5;
}

static int say_no(void *user)
{
	unsigned *left = user;

	return *left && !--*left;
}

static int one_of_some(const struct job *job, unsigned rank, uint64_t seed, int *rets)
{
	struct penstock_group_opts go = job->opts;
	struct penstock_weights *m;
	struct penstock_group *g;

	go.size = sizeof(go);
	go.dir = meeting_place();
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_weights_open(job->path, NULL, &m) ||
	    penstock_group_open(job->name, rank, RANKS, &go, &g))
		return -1;
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
		struct penstock_loaded *loaded = NULL;
		unsigned who, left;

		no_of(seed, i, &who, &left);
		if (who != rank)
			left = 0;
		lo.path = "fault:bounce?delay_us=60000";
		lo.look = say_no;
		lo.user = &left;
		rets[i] = penstock_group_load(g, m, &host, 1, &lo, NULL, &loaded);
		if (!rets[i] != !!loaded)
			return -1;
		penstock_loaded_free(loaded);
	}
	penstock_group_close(g);
	penstock_weights_close(m);
	return 0;
}

/* Whenever one says no, a load ends alike on all ranks, and the next one begins. */
static void test_again(void **state)
{
	struct job job = {.name = "off-again",
			  .path = model_path(),
			  .opts = {.window = 64 << 10, .windows = 2}};
	int(*rets)[ROUNDS] = mmap(NULL, RANKS * sizeof(*rets), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t seed = test_seed(5);
	pid_t pids[RANKS];
	unsigned off = 0;

	(void)state;
	assert_ptr_not_equal(rets, MAP_FAILED);
	for (unsigned r = 0; r < RANKS; r++) {
		pids[r] = fork();
		if (pids[r])
			continue;
		alarm(ALARM_S);
		_exit(one_of_some(&job, r, seed, rets[r]) ? 1 : 0);
	}
	for (unsigned r = 0; r < RANKS; r++) {
		int status = 0;

		assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
		if (status)
			fail_msg("rank %u ended with %#x", r, status);
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		for (unsigned r = 0; r < RANKS; r++)
			if (rets[r][i] != rets[0][i] || (rets[0][i] && rets[0][i] != -ECANCELED))
				fail_msg("load %u: %d on rank 0, %d on rank %u", i, rets[0][i],
					 rets[r][i], r);
		off += rets[0][i] != 0;
	}
	assert_true(off > 0);
	munmap(rets, RANKS * sizeof(*rets));
}

/* A rank that never comes is waited for no longer than its caller wants. */
static void test_joining(void **state)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_group *g = NULL;

	(void)state;
	go.dir = meeting_place();
	go.look = no;
	for (unsigned rank = 0; rank < 2; rank++) {
		struct asked asked = {0};

		go.user = &asked;
		assert_int_equal(penstock_group_open("alone", rank, 2, &go, &g), -ECANCELED);
		assert_null(g);
		assert_int_equal(asked.count, 3);
	}
}

/* Nor is this host's turn. */
static void test_turn(void **state)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_group *g = NULL;
	struct asked asked = {0};

	(void)state;
	go.look = no;
	go.user = &asked;
	go.host = 1;
	go.hosts = 2;
	go.jitter_ms = 8000000; /* half of it, and more, for the second host */
	alarm(ALARM_S);
	assert_int_equal(penstock_group_open("turn", 0, 1, &go, &g), -ECANCELED);
	alarm(0);
	assert_null(g);
	assert_int_equal(asked.count, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_end),
		cmocka_unit_test(test_again),
		cmocka_unit_test(test_joining),
		cmocka_unit_test(test_turn),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
