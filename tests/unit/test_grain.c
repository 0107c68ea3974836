/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which length of calls a storage is read by, for drives that are made up: one that likes
 * long ones, one that likes short ones, one that changes its mind, one that has too little
 * to do to tell. The clock is the drive's, so that no machine is too slow for it.
 */

#include "test.h"

#include "core/request/io_size.h"

#define MIB (1ull << 20)
#define SHORT (512u << 10)

static struct pst_io_size grain;
static uint64_t clock_ns, short_bytes, long_bytes;
static unsigned asked;

static uint64_t now(void)
{
	asked++;
	return clock_ns;
}

/* The drive has `calls` on their way, and begins the
 * next when one ends. At these rates (MB/s) for long and short calls. */
static void read_on(unsigned mib, uint64_t at_long, uint64_t at_short, unsigned calls)
{
	uint64_t way[16], begun = 0, ended = 0, bytes = 0, left = mib * MIB;

	while (left || bytes) {
		uint64_t len = pst_io_size_get(&grain);

		while (left && begun - ended < calls) {
			way[begun % 16] = len = len < left ? len : left;
			pst_io_size_started(&grain, len, bytes, now);
			begun++;
			bytes += len;
			left -= len;
			len = pst_io_size_get(&grain);
		}
		len = way[ended++ % 16];
		clock_ns += len * 1000 / (len == SHORT ? at_short : at_long);
		*(len == SHORT ? &short_bytes : &long_bytes) += len;
		pst_io_size_completed(&grain, len, bytes, now);
		bytes -= len;
	}
}

static int start(void **state)
{
	(void)state;
	memset(&grain, 0, sizeof(grain));
	clock_ns = 1;
	asked = 0;
	short_bytes = long_bytes = 0;
	return 0;
}

static void what_is_quicker_is_kept(void **state)
{
	(void)state;
	assert_int_equal(pst_io_size_get(&grain), SHORT);
	read_on(512, 5500, 5000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
	read_on(2048, 5500, 5000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
	start(NULL);
	read_on(512, 2000, 2700, 16);
	assert_int_equal(pst_io_size_get(&grain), SHORT);
	assert_true(long_bytes > 0); /* it was asked */
	start(NULL);
	read_on(512, 3050, 3000, 16); /* no more than two measurements differ by */
	assert_int_equal(pst_io_size_get(&grain), SHORT);
}

/* At once when the one that is kept gets slow, and some time later when another is better. */
static void a_drive_may_change(void **state)
{
	(void)state;
	read_on(512, 5000, 5500, 16);
	read_on(512, 5000, 2000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
	start(NULL);
	read_on(512, 4000, 5000, 16);
	assert_int_equal(pst_io_size_get(&grain), SHORT);
	long_bytes = 0;
	read_on(3000, 4000, 5000, 16);
	assert_int_equal(long_bytes, 0); /* not all the time */
	read_on(3000, 8000, 5000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
	assert_true(asked > 90 && asked < 130); /* the clock, once a turn or so */
}

static void what_says_nothing(void **state)
{
	(void)state;
	read_on(512, 4000, 2000, 4); /* not enough on their way */
	assert_int_equal(long_bytes, 0);
	for (unsigned i = 0; i < 8; i++) { /* it had nothing to do in each turn */
		read_on(40, 4000, 2000, 16);
		clock_ns += 3000000;
	}
	assert_int_equal(long_bytes, 0);
	for (unsigned i = 0; i < 50; i++) { /* somebody's own, all the time */
		pst_io_size_started(&grain, 65536, 0, now);
		pst_io_size_completed(&grain, 65536, 65536, now);
	}
	clock_ns += 3000000;
	read_on(60, 4000, 2000, 16); /* less than a turn */
	assert_int_equal(long_bytes, 0);
	read_on(512, 4000, 2000, 16);
	assert_int_equal(pst_io_size_get(&grain), MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(what_is_quicker_is_kept, start),
		cmocka_unit_test_setup(a_drive_may_change, start),
		cmocka_unit_test_setup(what_says_nothing, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
