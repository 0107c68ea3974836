/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what an open queue costs: memory only for the entries in use, and one descriptor. If no
 * descriptor is left, the error message says so.
 */
#include "queued.h"

#include <sys/resource.h>

static long resident_pages(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	long pages = 0;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
	fclose(f);
	return pages;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
/* With a sanitizer, unused memory of a queue is resident, too: the sanitizer keeps shadow memory
 * for every mapping. */
#define SHADOWED true
#else
#define SHADOWED false
#endif

/* A queue of the maximum size carries one request. The unused entries of the queue must cost no
 * memory. */
static void unused_entries_cost_no_memory(void **state)
{
	struct penstock_queue_opts opts = {.requests_max = PENSTOCK_REQUESTS_MAX, .segs_max = 256};
	long before, some = (4l << 20) / sysconf(_SC_PAGESIZE);
	struct penstock_queue *large;

	(void)state;
	begin_case(0, 1);
	opts.size = sizeof(opts);
	/* Starts the device's pump (its threads and their memory) before the measurement, because
	 * this memory does not belong to the queue. */
	submit_read(0, 0, 4096);
	assert_int_equal(wait_queue(1, 1, -1), 1);
	before = resident_pages();
	assert_int_equal(penstock_queue_open(&opts, &large), 0);
	penstock_queue_close(q);
	q = large;
	submit_read(0, 0, 4096);
	assert_int_equal(wait_queue(1, 1, -1), 1);
	assert_true(SHADOWED || resident_pages() - before < some);
	penstock_queue_close(q);
	q = NULL;
	assert_true(SHADOWED || resident_pages() - before < some);
}

/* If the process has no descriptor left, opening a queue fails with -EMFILE, and the message names
 * the eventfd. */
static void open_without_descriptors_left(void **state)
{
	struct penstock_queue *more;
	struct rlimit limit, were;
	int next;

	(void)state;
	begin_case(0, 1);
	next = dup(0); /* the number that the next opened descriptor would get */
	assert_true(next > 0);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &were), 0);
	limit = (struct rlimit){(rlim_t)next, were.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	next = penstock_queue_open(NULL, &more);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &were), 0);
	assert_int_equal(next, -EMFILE);
	assert_non_null(strstr(penstock_errmsg(), "eventfd"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(unused_entries_cost_no_memory, close_queue_and_remote),
		cmocka_unit_test_teardown(open_without_descriptors_left, close_queue_and_remote),
	};

	return run_queues(tests);
}
