/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catches the signals that end a command early, so that the command can remove incomplete
 * output first. Used by the commands that write. It must never catch a signal that was
 * ignored at the start.
 */
#include "stop.h"

#include <string.h>
#include <time.h>

#include "args.h"

/* A second signal within this time, in whole seconds, counts as the same request to stop. */
#define TWICE_S 2

volatile sig_atomic_t stop_signal;

static volatile sig_atomic_t stop_signal_s; /* monotonic time of the signal */

/*
 * Records the signal. A later second signal ends the process at once, even if the command
 * hangs. An early second one is ignored: timeout(1) sends each signal twice, to its child and
 * to the child's process group, and so does a terminal next to a shell that forwards it. Such
 * a pair must not prevent the removal of incomplete output.
 */
static void signal_record(int signal)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (stop_signal && now.tv_sec - stop_signal_s >= TWICE_S) {
		sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
		raise(signal); /* takes effect when this handler returns */
	}
	if (!stop_signal) {
		stop_signal_s = (sig_atomic_t)now.tv_sec;
		stop_signal = signal;
	}
}

void catch_signals(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction old;

	/* nohup and a shell's background jobs ignore signals; those stay ignored. */
	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (!sigaction(signals[i], NULL, &old) && old.sa_handler != SIG_IGN)
			sigaction(signals[i], &(struct sigaction){.sa_handler = signal_record},
				  NULL);
}

int stop_text(char *text, size_t len)
{
	snprintf(text, len, "stopped by %s", strsignal((int)stop_signal));
	return 128 + (int)stop_signal; /* the exit code that a shell reports for the signal */
}

void abort_storage(struct penstock_storage *st)
{
	if (st && penstock_abort(st))
		fail(EXIT_FAILED, "%s", penstock_errmsg());
}
