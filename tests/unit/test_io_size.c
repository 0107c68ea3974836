/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests which I/O size (bytes in one system call) the library chooses for a storage. The drives are
 * simulated. The first drive is faster with long calls, the second with short calls. The third
 * drive changes its speed, and the fourth has too little work for a measurement. The test also
 * simulates the clock, so that the speed of the machine does not matter.
 */

#include "test.h"

#include "core/request/io_size.h"

#define MIB (1ull << 20)
#define SHORT (512u << 10)

static struct pst_io_size grain;
static uint64_t clock_ns, short_bytes, long_bytes;
static unsigned clock_reads;

static uint64_t fake_now(void)
{
	clock_reads++;
	return clock_ns;
}

/* Simulates a drive that reads `mib` MiB with at most `calls` calls in flight. The next call starts
 * when one completes. long_rate and short_rate are the drive's speeds with calls of 1 MiB and of
 * 512 KiB, in MB/s. */
static void drive_read(unsigned mib, uint64_t long_rate, uint64_t short_rate, unsigned calls)
{
	uint64_t inflight[16], begun_count = 0, ended_count = 0, bytes = 0, left = mib * MIB;

	while (left || bytes) {
		uint64_t len = pst_io_size_get(&grain);

		while (left && begun_count - ended_count < calls) {
			inflight[begun_count % 16] = len = len < left ? len : left;
			pst_io_size_started(&grain, len, bytes, fake_now);
			begun_count++;
			bytes += len;
			left -= len;
			len = pst_io_size_get(&grain);
		}
		len = inflight[ended_count++ % 16];
		clock_ns += len * 1000 / (len == SHORT ? short_rate : long_rate);
		*(len == SHORT ? &short_bytes : &long_bytes) += len;
		pst_io_size_completed(&grain, len, bytes, fake_now);
		bytes -= len;
	}
}

static int grain_reset(void **state)
{
	(void)state;
	memset(&grain, 0, sizeof(grain));
	clock_ns = 1;
	clock_reads = 0;
	short_bytes = long_bytes = 0;
	return 0;
}

static void faster_length_is_kept(void **state)
{
	(void)state;
	assert_int_equal(pst_io_size_get(&grain), SHORT);
	drive_read(512, 5500, 5000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
	drive_read(2048, 5500, 5000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
	grain_reset(NULL);
	drive_read(512, 2000, 2700, 16);
	assert_int_equal(pst_io_size_get(&grain), SHORT);
	assert_true(long_bytes > 0); /* the library has also tried long calls */
	grain_reset(NULL);
	/* The rates differ by no more than the error of a measurement, so the size stays SHORT. */
	drive_read(512, 3050, 3000, 16);
	assert_int_equal(pst_io_size_get(&grain), SHORT);
}

/* If calls of the length in use become slow, the other of the two lengths must be chosen at once.
 * If calls of the length that is not in use become faster, that length must be chosen at its next
 * measurement. */
static void changed_speed_changes_the_choice(void **state)
{
	(void)state;
	drive_read(512, 5000, 5500, 16);
	drive_read(512, 5000, 2000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
	grain_reset(NULL);
	drive_read(512, 4000, 5000, 16);
	assert_int_equal(pst_io_size_get(&grain), SHORT);
	long_bytes = 0;
	drive_read(3000, 4000, 5000, 16);
	/* The library tried no long calls in the last 3000 MiB. */
	assert_int_equal(long_bytes, 0);
	drive_read(3000, 8000, 5000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
	/* The library reads the clock once or twice for each measurement, not for each call. */
	assert_true(clock_reads > 90 && clock_reads < 130);
}

static void turns_that_measure_nothing(void **state)
{
	(void)state;
	/* with only 4 calls in flight, the library measures nothing */
	drive_read(512, 4000, 2000, 4);
	assert_int_equal(long_bytes, 0);
	/* the pause after each read makes the measurement invalid */
	for (unsigned i = 0; i < 8; i++) {
		drive_read(40, 4000, 2000, 16);
		clock_ns += 3000000;
	}
	assert_int_equal(long_bytes, 0);
	/* The caller requests 64 KiB at a time, which is too short to be measured. */
	for (unsigned i = 0; i < 50; i++) {
		pst_io_size_started(&grain, 65536, 0, fake_now);
		pst_io_size_completed(&grain, 65536, 65536, fake_now);
	}
	clock_ns += 3000000;
	drive_read(60, 4000, 2000, 16); /* too few bytes for a whole measurement */
	assert_int_equal(long_bytes, 0);
	drive_read(512, 4000, 2000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(faster_length_is_kept, grain_reset),
		cmocka_unit_test_setup(changed_speed_changes_the_choice, grain_reset),
		cmocka_unit_test_setup(turns_that_measure_nothing, grain_reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
