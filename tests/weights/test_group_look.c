/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests callers that cancel a group's load through the `look` callback: while the rank reads, while
 * it waits for other ranks, and before all ranks have joined. The load must end, and the other
 * ranks must get an error: that the load was cancelled, or that the rank has closed the group.
 */
#include "group.h"

#define LATE "fault:bounce?delay_us=4000000000" /* More than an hour. */

struct asked {
	unsigned count;
};

/* A `look` callback that cancels at its third call. The rank has then waited for a moment. */
static int cancel_third(void *user)
{
	struct asked *asked = user;

	return ++asked->count == 3;
}

/* Loads as one rank. Rank `bad_rank` gets the callback cancel_third, which cancels the load. A read
 * of rank `slow` never completes. */
static int run_canceller(const struct job *job, unsigned rank, struct outcome *o)
{
	struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
	struct penstock_group_opts go = job->opts;
	struct penstock_loaded *loaded = NULL;
	struct asked asked = {0};
	struct penstock_weights *m;
	struct penstock_group *g;
	int ret;

	go.size = sizeof(go);
	go.dir = group_dir();
	go.timeout_ms = 1000 * ALARM_S / 2;
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_weights_open(job->path, NULL, &m) ||
	    penstock_group_open(job->name, rank, job->ranks, &go, &g))
		return -1;
	if (rank == job->bad_rank)
		lo.look = cancel_third;
	if (rank == job->slow)
		lo.path = LATE;
	lo.user = &asked;
	ret = penstock_group_load(g, m, &host, 1, &lo, NULL, &loaded);
	snprintf(o->text, sizeof(o->text), "%s", penstock_errmsg());
	if (loaded || (rank == job->bad_rank && asked.count != 3))
		snprintf(o->mismatch, sizeof(o->mismatch), "asked %u times", asked.count);
	penstock_group_close(g);
	penstock_weights_close(m);
	return ret;
}

/* All rows of this table run at the same time, because each row waits a little for reads that hang.
 * The rank that cancels either makes the slow read itself, or waits at the barrier for another rank
 * that makes it. In some rows rank 0 cancels, and in some rows rank 0 makes the slow read. */
static const struct {
	const char *name;
	unsigned bad_rank, slow;
} rows[] = {{"off-0", 0, 0}, {"off-1", 2, 2}, {"off-2", 0, 1}, {"off-3", 1, 0}, {"off-4", 1, 2}};

#define RANKS 3u

static void check_row(unsigned row, unsigned rank, const struct outcome *o, int status)
{
	bool own = rank == rows[row].bad_rank;

	/* A rank that has cancelled waits for the answer of rank 0. If the answer does not come in
	 * time, it leaves the group, and the other ranks report that it closed the group. */
	if (status || *o->mismatch || !o->ret || (own && o->ret != -ECANCELED) ||
	    (!own && !strstr(o->text, "cancelled") && !strstr(o->text, "it closed the group")))
		fail_msg("%s, rank %u: status %#x, %d, %s %s", rows[row].name, rank, status, o->ret,
			 o->text, o->mismatch);
}

static void test_cancel_while_waiting(void **state)
{
	struct job job = {
		.path = model_path(), .ranks = RANKS, .opts = {.window = 64 << 10, .windows = 2}};
	pid_t pids[COUNT(rows)][RANKS];

	(void)state;
	for (unsigned i = 0; i < COUNT(rows) * RANKS; i++) {
		struct outcome *o = &outcomes[i];

		job.name = rows[i / RANKS].name;
		job.bad_rank = rows[i / RANKS].bad_rank;
		job.slow = rows[i / RANKS].slow;
		pids[i / RANKS][i % RANKS] = fork();
		if (pids[i / RANKS][i % RANKS])
			continue;
		alarm(ALARM_S);
		o->ret = run_canceller(&job, i % RANKS, o);
		_exit(0);
	}
	for (unsigned i = 0; i < COUNT(rows) * RANKS; i++) {
		pid_t pid = pids[i / RANKS][i % RANKS];
		int status = 0;

		assert_int_equal(waitpid(pid, &status, 0), pid);
		check_row(i / RANKS, i % RANKS, &outcomes[i], status);
	}
}

/* ---- many loads with random cancellations ---- */

#define ROUNDS 8u

/* Chooses at random which rank cancels load `i`, and at which call of its callback. */
static void draw_cancel(uint64_t seed, unsigned i, unsigned *who, unsigned *when)
{
	uint64_t x = (seed + i) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
	*who = (unsigned)(x >> 40) % RANKS;
	*when = 1 + (unsigned)(x >> 20) % 5;
}

static int cancel_after(void *user)
{
	unsigned *left = user;

	return *left && !--*left;
}

static int run_random_cancels(const struct job *job, unsigned rank, uint64_t seed, int *rets)
{
	struct penstock_group_opts go = job->opts;
	struct penstock_weights *m;
	struct penstock_group *g;

	go.size = sizeof(go);
	go.dir = group_dir();
	if (penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_weights_open(job->path, NULL, &m) ||
	    penstock_group_open(job->name, rank, RANKS, &go, &g))
		return -1;
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct penstock_load_opts lo = PENSTOCK_LOAD_OPTS_INIT;
		struct penstock_loaded *loaded = NULL;
		unsigned who, left;

		draw_cancel(seed, i, &who, &left);
		if (who != rank)
			left = 0;
		lo.path = "fault:bounce?delay_us=60000";
		lo.look = cancel_after;
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

/* Whenever a rank cancels, the load ends with the same code on all ranks, and then the next load
 * starts. */
static void test_random_cancels(void **state)
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
		_exit(run_random_cancels(&job, r, seed, rets[r]) ? 1 : 0);
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

/* A rank waits for another rank that never joins. If the rank's callback returns non-zero,
 * penstock_group_open must end with -ECANCELED. */
static void test_cancel_join(void **state)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_group *g = NULL;

	(void)state;
	go.dir = group_dir();
	go.look = cancel_third;
	for (unsigned rank = 0; rank < 2; rank++) {
		struct asked asked = {0};

		go.user = &asked;
		assert_int_equal(penstock_group_open("alone", rank, 2, &go, &g), -ECANCELED);
		assert_null(g);
		assert_int_equal(asked.count, 3);
	}
}

/* A host waits before it starts to read, so that hosts start at different times. If the callback
 * returns non-zero, this wait must end. */
static void test_cancel_jitter(void **state)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_group *g = NULL;
	struct asked asked = {0};

	(void)state;
	go.look = cancel_third;
	go.user = &asked;
	go.host = 1;
	go.hosts = 2;
	go.jitter_ms = 8000000; /* the second host waits for half of this time or longer */
	alarm(ALARM_S);
	assert_int_equal(penstock_group_open("turn", 0, 1, &go, &g), -ECANCELED);
	alarm(0);
	assert_null(g);
	assert_int_equal(asked.count, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cancel_while_waiting),
		cmocka_unit_test(test_random_cancels),
		cmocka_unit_test(test_cancel_join),
		cmocka_unit_test(test_cancel_jitter),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
