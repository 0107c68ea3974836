/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how the library starts a thread: with the library's own stack size, whatever the stack
 * limit of the process is, and with all signals blocked. The signal mask of the starting thread
 * must stay unchanged.
 */
#include "test.h"

#include <stdbool.h>

#include "common/thread.h"

struct thread_state {
	size_t stack;
	bool blocked;
};

static void *thread_inspect(void *arg)
{
	struct thread_state *thread_state = arg;
	pthread_attr_t attr;
	sigset_t set;

	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstacksize(&attr, &thread_state->stack);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	thread_state->blocked = sigismember(&set, SIGINT) == 1 && sigismember(&set, SIGUSR1) == 1;
	return NULL;
}

static struct thread_state thread_observe(void)
{
	struct thread_state thread_state = {0, false};
	pthread_t thread;

	assert_int_equal(pst_thread_start(&thread, thread_inspect, &thread_state), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	return thread_state;
}

static void stack_size_and_signal_mask(void **state)
{
	struct thread_state thread_state = thread_observe();
	sigset_t set;

	(void)state;
	assert_int_equal(thread_state.stack, PST_THREAD_STACK);
	assert_true(thread_state.blocked);
	pthread_sigmask(SIG_SETMASK, NULL, &set);
	assert_int_equal(sigismember(&set, SIGUSR1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(stack_size_and_signal_mask)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
