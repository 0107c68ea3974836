/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the gate, which decides which writes to a file may be in flight at the same time. The gate
 * divides a file into places of 2 MiB or a multiple. Direct writes (O_DIRECT) and cached writes to
 * the same place exclude each other; all other writes may overlap. Waiting writes pass the gate in
 * order of arrival, every write passes in the end, and a forked child starts with an empty gate.
 * The test calls only the gate and writes nothing. A lane (an object for a worker thread) of the
 * test collects the writes that the gate lets start.
 */
#include "test.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/lane/lane.h"
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

static void io_done(struct pst_io *io)
{
	(void)io;
}

static void io_resume(struct pst_io *io)
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

/* Prepares a write at offset `at` with length `len`. The unit of both is a place, the 2 MiB unit of
 * the gate. */
static struct pst_io *write_of(struct pst_io *io, unsigned file, bool direct, double at, double len)
{
	double place = (double)files[file].place_bytes;

	*io = (struct pst_io){.st = &storages[file],
			      .lane = &lane,
			      .op = PST_IO_DRAIN,
			      .flags = direct ? PST_IO_DIRECT : 0,
			      .off = (uint64_t)(at * place),
			      .len = (uint64_t)(len * place),
			      .done = io_done};
	return io;
}

static bool gate_enter(unsigned i, unsigned file, bool direct, double at, double len)
{
	return pst_gate_enter(write_of(&ios[i], file, direct, at, len), io_resume);
}

/* Checks that the gate has let exactly the waiting writes in bitmap `want` start. It passes each of
 * them to the lane (worker thread) of the test. */
static void expect_back(uint64_t want)
{
	struct pst_io *io = atomic_exchange(&lane.io_inbox, NULL);
	uint64_t got = 0;

	for (; io; io = io->next) {
		got |= (uint64_t)1 << (io - ios);
		assert_int_equal(io->result, 0);
		io->done(io);
		assert_true(io->done == io_done && pst_file_io(io)->held);
	}
	assert_int_equal(got, want);
}

static void direct_and_cached_exclude_each_other(void **state)
{
	(void)state;
	/* Two direct writes in the same 2 MiB unit (unit 1) may be in flight together. */
	assert_true(gate_enter(0, 0, true, 1.5, 0.25));
	assert_true(gate_enter(1, 0, true, 1.75, 0.25));
	/* Meanwhile, cached writes in the next unit (2) and in the previous unit (0) may start. */
	assert_true(gate_enter(2, 0, false, 2, 0.1));
	assert_true(gate_enter(3, 0, false, 0.9, 0.1));
	/* A cached write in unit 1 of another file may start, too. */
	assert_true(gate_enter(4, 1, false, 1.5, 0.1));
	/* A cached write in unit 1 of the same file has to wait until both direct writes have
	 * ended. */
	assert_false(gate_enter(5, 0, false, 1, 0.001));
	pst_gate_leave(&ios[0]);
	expect_back(0);
	pst_gate_leave(&ios[1]);
	expect_back(1u << 5);
	/* A second cached write in the same unit may start while the first one is in flight; a
	 * direct write has to wait. */
	assert_true(gate_enter(6, 0, false, 1.99, 0.001));
	assert_false(gate_enter(7, 0, true, 1.5, 0.1));
	pst_gate_leave(&ios[5]);
	expect_back(0);
	pst_gate_leave(&ios[6]);
	expect_back(1u << 7);
	for (unsigned i = 2; i < 5; i++)
		pst_gate_leave(&ios[i]);
	pst_gate_leave(&ios[7]);
	expect_back(0);
}

static void write_across_several_places(void **state)
{
	(void)state;
	assert_true(gate_enter(0, 0, false, 1, 0.1));
	assert_true(gate_enter(1, 0, false, 3, 0.1));
	/* this direct write covers the 2 MiB units 0 to 3, where cached writes are in flight, so it
	 * waits */
	assert_false(gate_enter(2, 0, true, 0.5, 3));
	pst_gate_leave(&ios[0]);
	expect_back(0);
	assert_true(gate_enter(3, 0, true, 4, 0.5));
	pst_gate_leave(&ios[1]);
	expect_back(1u << 2);
	assert_false(gate_enter(4, 0, false, 0, 0.1));
	pst_gate_leave(&ios[2]);
	expect_back(1u << 4);
	pst_gate_leave(&ios[3]);
	pst_gate_leave(&ios[4]);
}

/* A later write does not overtake a waiting write, even if no write in flight excludes the later
 * write. */
static void waiting_write_is_not_overtaken(void **state)
{
	(void)state;
	assert_true(gate_enter(0, 0, true, 0, 0.1));
	assert_false(gate_enter(1, 0, false, 0.5, 0.1));
	/* This direct write came after a waiting cached write, so it has to wait as well. */
	assert_false(gate_enter(2, 0, true, 0.7, 0.1));
	assert_false(gate_enter(3, 0, false, 0.9, 0.1));
	/* no write is in flight in unit 1 (2 MiB at offset 2 MiB), so this write may start */
	assert_true(gate_enter(4, 0, true, 1, 0.1));
	pst_gate_leave(&ios[0]);
	/* only write 1 may start; write 3 came after write 2, and both still wait */
	expect_back(1u << 1);
	pst_gate_leave(&ios[1]);
	expect_back(1u << 2);
	pst_gate_leave(&ios[2]);
	expect_back(1u << 3);
	pst_gate_leave(&ios[3]);
	pst_gate_leave(&ios[4]);
}

/* Two handles of one file share one gate. A write of an inline lane, which works only inside the
 * application's calls, passes the gate without waiting, because no thread could resume that
 * lane. */
static void same_inode_and_inline_lane(void **state)
{

	(void)state;
	pst_gate_open(&files[1], &stats[0]);
	assert_true(gate_enter(0, 0, true, 0, 0.1));
	assert_false(gate_enter(1, 1, false, 0, 0.1));
	lane.kind = PST_LANE_INLINE;
	assert_true(gate_enter(2, 0, false, 0, 0.1));
	pst_gate_leave(&ios[2]);
	expect_back(0);
	lane.kind = PST_LANE_PUMP;
	pst_gate_leave(&ios[0]);
	expect_back(1u << 1);
	pst_gate_leave(&ios[1]);
}

static void forked_child_has_an_empty_gate(void **state)
{
	int status = 0;
	pid_t child;

	(void)state;
	assert_true(gate_enter(0, 0, true, 0, 0.1));
	assert_false(gate_enter(1, 0, false, 0, 0.1));
	child = fork();
	if (!child)
		_exit(!gate_enter(2, 0, false, 0, 0.1));
	assert_true(child > 0 && waitpid(child, &status, 0) == child);
	assert_int_equal(status, 0);
	pst_gate_leave(&ios[0]);
	expect_back(1u << 1);
	pst_gate_leave(&ios[1]);
}

/* ---- many threads ---- */

/* Numbers of cached and of direct writes that the gate has let start and that are in flight. */
static _Atomic int inside[2];
static _Atomic bool overlapped;

static void *gate_hammer(void *arg)
{
	struct pst_lane own_lane = {.pump = &pump, .wake_fd = -1};
	uint64_t random = 1 + (uintptr_t)arg;

	for (unsigned i = 0; i < 20000; i++) {
		bool direct = test_random(&random) % 2;
		struct pst_io io;

		write_of(&io, 0, direct, (double)(test_random(&random) % 8) / 10, 0.1);
		io.lane = &own_lane;
		if (!pst_gate_enter(&io, io_resume)) {
			while (!atomic_load(&own_lane.io_inbox))
				sched_yield();
			assert_true(atomic_exchange(&own_lane.io_inbox, NULL) == &io);
		}
		atomic_fetch_add(&inside[direct], 1);
		if (atomic_load(&inside[!direct]))
			atomic_store(&overlapped, true);
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
		assert_int_equal(pthread_create(&threads[i], NULL, gate_hammer, (void *)i), 0);
	for (unsigned i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
	assert_false(atomic_load(&overlapped));
	assert_true(gate_enter(0, 0, true, 0, 3)); /* The gate is empty. */
	pst_gate_leave(&ios[0]);
	assert_true(gate_enter(0, 0, false, 0, 3));
	pst_gate_leave(&ios[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(direct_and_cached_exclude_each_other, setup),
		cmocka_unit_test_setup(write_across_several_places, setup),
		cmocka_unit_test_setup(waiting_write_is_not_overtaken, setup),
		cmocka_unit_test_setup(same_inode_and_inline_lane, setup),
		cmocka_unit_test_setup(forked_child_has_an_empty_gate, setup),
		cmocka_unit_test_setup(many_threads, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
