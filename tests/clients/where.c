/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that prints to stderr where a client crashed: the stack frames of the thread that got
 * the signal, as object and offset. The signal then has its default effect, so that the exit
 * status stays the client's. It also works during the exit, when Python's own handler is removed.
 * client.py preloads it if PENSTOCK_WHERE names it. It must never replace a handler.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FRAMES_MAX 64
#define STACK_BYTES 65536

static const int watched[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
static char stack[STACK_BYTES]; /* for the handler, as the thread's stack may have overflowed */

static void print_frames(int number, siginfo_t *info, void *context)
{
	void *frames[FRAMES_MAX];
	char line[80];
	int len = snprintf(line, sizeof(line), "where: signal %d at %p in thread %d of %d\n",
			   number, info->si_addr, gettid(), getpid());

	(void)context;
	if (write(STDERR_FILENO, line, (size_t)len) == len)
		backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
	raise(number); /* SA_RESETHAND: has its default effect after this handler returns */
}

__attribute__((constructor)) static void signals_watch(void)
{
	stack_t own = {.ss_sp = stack, .ss_size = sizeof(stack)};
	struct sigaction action = {.sa_sigaction = print_frames,
				   .sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK};
	struct sigaction was;
	void *frame;

	backtrace(&frame, 1);	 /* loads libgcc in advance, which a signal handler must not */
	sigaltstack(&own, NULL); /* of the first thread, which runs the exit */
	for (size_t i = 0; i < sizeof(watched) / sizeof(watched[0]); i++)
		if (!sigaction(watched[i], NULL, &was) && was.sa_handler == SIG_DFL)
			sigaction(watched[i], &action, NULL);
}
