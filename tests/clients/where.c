/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that prints to stderr where a client has crashed: the stack frames of the thread that
 * got the signal, each as object and offset. After that the signal has its default effect, so that
 * the client's exit status does not change. The library also works during the exit, when Python
 * has removed its own handler. client.py preloads it if PENSTOCK_WHERE names it. It must never
 * replace an existing handler.
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
/* Stack of the signal handler, because the thread's own stack may have overflowed. */
static char stack[STACK_BYTES];

static void print_frames(int number, siginfo_t *info, void *context)
{
	void *frames[FRAMES_MAX];
	char line[80];
	int len = snprintf(line, sizeof(line), "where: signal %d at %p in thread %d of %d\n",
			   number, info->si_addr, gettid(), getpid());

	(void)context;
	if (write(STDERR_FILENO, line, (size_t)len) == len)
		backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
	/* With SA_RESETHAND the signal has its default effect once this handler has returned. */
	raise(number);
}

__attribute__((constructor)) static void signals_watch(void)
{
	stack_t own = {.ss_sp = stack, .ss_size = sizeof(stack)};
	struct sigaction action = {.sa_sigaction = print_frames,
				   .sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK};
	struct sigaction was;
	void *frame;

	/* This first call makes glibc load libgcc, because a signal handler must not load it. */
	backtrace(&frame, 1);
	/* Sets a separate stack for signal handlers on the first thread, which also runs the exit
	 * handlers. */
	sigaltstack(&own, NULL);
	for (size_t i = 0; i < sizeof(watched) / sizeof(watched[0]); i++)
		if (!sigaction(watched[i], NULL, &was) && was.sa_handler == SIG_DFL)
			sigaction(watched[i], &action, NULL);
}
