/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the library begins a thread: with its own stack size, whatever the process' limit was,
 * and with all signals blocked, which the thread that begins it is not.
 */
#include "test.h"

#include <stdbool.h>

#include "common/thread.h"

struct seen {
	size_t stack;
	bool blocked;
};

static void *look(void *arg)
{
	struct seen *seen = arg;
	pthread_attr_t attr;
	sigset_t set;

	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstacksize(&attr, &seen->stack);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	seen->blocked = sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGUSR1) == 1;
	return NULL;
}

static struct seen start(void)
{
	struct seen seen = {0, false};
	pthread_t thread;

	assert_int_equal(pst_thread_start(&thread, look, &seen), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	return seen;
}

static void test_start(void **state)
{
	struct seen seen = start();
	sigset_t set;

	(void)state;
	assert_int_equal(seen.stack, PST_THREAD_STACK);
	assert_true(seen.blocked);
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	assert_int_equal(sigismember(&set, SIGUSR1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_start)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
