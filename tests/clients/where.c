/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into a client, says where it crashed: the frames of the thread that got
 * the signal, as object and offset, to stderr. The signal then does what it would have
 * done, so that the exit status stays the client's. Also at exit, when Python's own
 * handler is gone. client.py preloads it if PENSTOCK_WHERE names it; it must never
 * touch a signal that somebody handles already.
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
static char stack[STACK_BYTES]; /* the thread's own may be what is broken */

static void say(int number, siginfo_t *info, void *context)
{
	void *frames[FRAMES_MAX];
	char line[80];
	int len = snprintf(line, sizeof(line), "where: signal %d at %p in thread %d of %d\n",
			   number, info->si_addr, gettid(), getpid());

	(void)context;
	if (write(STDERR_FILENO, line, (size_t)len) == len)
		backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
	raise(number); /* SA_RESETHAND: by default, when this returns */
}

__attribute__((constructor)) static void watch(void)
{
	stack_t own = {.ss_sp = stack, .ss_size = sizeof(stack)};
	struct sigaction action = {.sa_sigaction = say,
				   .sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK};
	struct sigaction was;
	void *frame;

	backtrace(&frame, 1);	 /* loads what it needs before it is needed */
	sigaltstack(&own, NULL); /* of the first thread, which is the one that exits */
	for (size_t i = 0; i < sizeof(watched) / sizeof(watched[0]); i++)
		if (!sigaction(watched[i], NULL, &was) && was.sa_handler == SIG_DFL)
			sigaction(watched[i], &action, NULL);
}
