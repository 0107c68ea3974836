/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which writes may be on their way at once: direct ones and cached ones of one place of a
 * file may not, all others may; who came first goes first, nobody is forgotten, and a
 * child of a fork starts anew. The gate alone, with a lane that hands back what waits;
 * nothing is written.
 */
#include "test.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/lane/pump.h"
#include "storage/file_gate.h"

#define PLACE (2u << 20)
#define IOS 64

static struct pst_file files[2];
static struct penstock_storage storages[2];
static struct pst_pump pump;
static struct pst_lane lane;
static struct pst_io ios[IOS];
static struct stat stats[2];

static void ended(struct pst_io *io)
{
	(void)io;
}

static void go_on(struct pst_io *io)
{
	io->done = pst_file_io(io)->then;
}

static int setup(void **state)
{
	(void)state;
	memset(&lane, 0, sizeof(lane));
	lane.pump = &pump;
	lane.wake_fd = -1;
	for (unsigned i = 0; i < 2; i++) {
		memset(&files[i], 0, sizeof(files[i]));
		memset(&storages[i], 0, sizeof(storages[i]));
		stats[i].st_mode = S_IFREG;
		stats[i].st_dev = 7;
		stats[i].st_ino = 100 + i;
		storages[i].priv = &files[i];
		pst_gate_open(&files[i], &stats[i]);
		assert_int_equal(files[i].place_bytes % PLACE, 0);
	}
	return 0;
}

/* In places of the file, whatever their length is here. */
static struct pst_io *write_of(struct pst_io *io, unsigned file, bool direct, double at, double len)
{
	double place = (double)files[file].place_bytes;

	*io = (struct pst_io){.st = &storages[file],
			      .lane = &lane,
			      .op = PST_IO_DRAIN,
			      .flags = direct ? PST_IO_DIRECT : 0,
			      .off = (uint64_t)(at * place),
			      .len = (uint64_t)(len * place),
			      .done = ended};
	return io;
}

static bool enter(unsigned i, unsigned file, bool direct, double at, double len)
{
	return pst_gate_enter(write_of(&ios[i], file, direct, at, len), go_on);
}

/* What came back to the lane is exactly the ios of this mask. */
static void expect_back(uint64_t want)
{
	struct pst_io *io = atomic_exchange(&lane.io_inbox, NULL);
	uint64_t got = 0;

	for (; io; io = io->next) {
		got |= (uint64_t)1 << (io - ios);
		assert_int_equal(io->result, 0);
		io->done(io);
		assert_true(io->done == ended && pst_file_io(io)->held);
	}
	assert_int_equal(got, want);
}

static void kinds_are_kept_apart(void **state)
{
	(void)state;
	assert_true(enter(0, 0, true, 1.5, 0.25)); /* direct beside direct */
	assert_true(enter(1, 0, true, 1.75, 0.25));
	assert_true(enter(2, 0, false, 2, 0.1)); /* cached in the next place, the one before, */
	assert_true(enter(3, 0, false, 0.9, 0.1));
	assert_true(enter(4, 1, false, 1.5, 0.1));  /* and in another file */
	assert_false(enter(5, 0, false, 1, 0.001)); /* in the same: not */
	pst_gate_leave(&ios[0]);
	expect_back(0);
	pst_gate_leave(&ios[1]);
	expect_back(1u << 5);
	assert_true(enter(6, 0, false, 1.99, 0.001)); /* cached beside cached */
	assert_false(enter(7, 0, true, 1.5, 0.1));
	pst_gate_leave(&ios[5]);
	expect_back(0);
	pst_gate_leave(&ios[6]);
	expect_back(1u << 7);
	for (unsigned i = 2; i < 5; i++)
		pst_gate_leave(&ios[i]);
	pst_gate_leave(&ios[7]);
	expect_back(0);
}

static void a_write_of_several_places(void **state)
{
	(void)state;
	assert_true(enter(0, 0, false, 1, 0.1));
	assert_true(enter(1, 0, false, 3, 0.1));
	assert_false(enter(2, 0, true, 0.5, 3)); /* 0 to 3 */
	pst_gate_leave(&ios[0]);
	expect_back(0);
	assert_true(enter(3, 0, true, 4, 0.5));
	pst_gate_leave(&ios[1]);
	expect_back(1u << 2);
	assert_false(enter(4, 0, false, 0, 0.1));
	pst_gate_leave(&ios[2]);
	expect_back(1u << 4);
	pst_gate_leave(&ios[3]);
	pst_gate_leave(&ios[4]);
}

/* However many more of the first kind come. */
static void who_waits_is_not_overtaken(void **state)
{
	(void)state;
	assert_true(enter(0, 0, true, 0, 0.1));
	assert_false(enter(1, 0, false, 0.5, 0.1));
	assert_false(enter(2, 0, true, 0.7, 0.1)); /* it came later */
	assert_false(enter(3, 0, false, 0.9, 0.1));
	assert_true(enter(4, 0, true, 1, 0.1)); /* not in its way */
	pst_gate_leave(&ios[0]);
	expect_back(1u << 1); /* and not 3, which came behind 2 */
	pst_gate_leave(&ios[1]);
	expect_back(1u << 2);
	pst_gate_leave(&ios[2]);
	expect_back(1u << 3);
	pst_gate_leave(&ios[3]);
	pst_gate_leave(&ios[4]);
}

/* Two handles of one file are one file; the lane of a queue waits for nobody. */
static void whose_file_and_whose_lane(void **state)
{
	_Atomic(struct pst_request *) list = NULL;

	(void)state;
	pst_gate_open(&files[1], &stats[0]);
	assert_true(enter(0, 0, true, 0, 0.1));
	assert_false(enter(1, 1, false, 0, 0.1));
	lane.completed = &list;
	assert_true(enter(2, 0, false, 0, 0.1));
	pst_gate_leave(&ios[2]);
	expect_back(0);
	lane.completed = NULL;
	pst_gate_leave(&ios[0]);
	expect_back(1u << 1);
	pst_gate_leave(&ios[1]);
}

static void a_child_starts_anew(void **state)
{
	int status = 0;
	pid_t child;

	(void)state;
	assert_true(enter(0, 0, true, 0, 0.1));
	assert_false(enter(1, 0, false, 0, 0.1));
	child = fork();
	if (!child)
		_exit(!enter(2, 0, false, 0, 0.1));
	assert_true(child > 0 && waitpid(child, &status, 0) == child);
	assert_int_equal(status, 0);
	pst_gate_leave(&ios[0]);
	expect_back(1u << 1);
	pst_gate_leave(&ios[1]);
}

/* ---- many threads ---- */

static _Atomic int inside[2]; /* of each kind, in the one place */
static _Atomic bool together;

static void *hammer(void *arg)
{
	struct pst_lane own = {.pump = &pump, .wake_fd = -1};
	uint64_t random = 1 + (uintptr_t)arg;

	for (unsigned i = 0; i < 20000; i++) {
		bool direct = test_random(&random) % 2;
		struct pst_io io;

		write_of(&io, 0, direct, (double)(test_random(&random) % 8) / 10, 0.1);
		io.lane = &own;
		if (!pst_gate_enter(&io, go_on)) {
			while (!atomic_load(&own.io_inbox))
				sched_yield();
			assert_true(atomic_exchange(&own.io_inbox, NULL) == &io);
		}
		atomic_fetch_add(&inside[direct], 1);
		if (atomic_load(&inside[!direct]))
			atomic_store(&together, true);
		if (i % 64 == 0)
			sched_yield();
		atomic_fetch_sub(&inside[direct], 1);
		pst_gate_leave(&io);
	}
	return NULL;
}

static void many_threads(void **state)
{
	pthread_t threads[6];

	(void)state;
	for (uintptr_t i = 0; i < 6; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, hammer, (void *)i), 0);
	for (unsigned i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
	assert_false(atomic_load(&together));
	assert_true(enter(0, 0, true, 0, 3)); /* all have left */
	pst_gate_leave(&ios[0]);
	assert_true(enter(0, 0, false, 0, 3));
	pst_gate_leave(&ios[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(kinds_are_kept_apart, setup),
		cmocka_unit_test_setup(a_write_of_several_places, setup),
		cmocka_unit_test_setup(who_waits_is_not_overtaken, setup),
		cmocka_unit_test_setup(whose_file_and_whose_lane, setup),
		cmocka_unit_test_setup(a_child_starts_anew, setup),
		cmocka_unit_test_setup(many_threads, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
