/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Catches the signals that end a command early, so that the command can first remove incomplete
 * output. Used by the commands that write. It must never catch a signal that was ignored when the
 * command started.
 */
#include "stop.h"

#include <string.h>
#include <time.h>

#include "args.h"

/* A signal within this number of seconds after another counts as a repetition of that signal. */
#define TWICE_S 2

volatile sig_atomic_t stop_signal;

static volatile sig_atomic_t stop_signal_s; /* monotonic time of the last signal, in seconds */
static volatile sig_atomic_t aborting;	    /* the command is removing incomplete output */
static volatile sig_atomic_t abort_stop;    /* a signal arrived while `aborting` was set */

/*
 * Records the first signal. A second signal that comes later than TWICE_S ends the process at once,
 * even if the command hangs. But if the command is removing incomplete output, the second signal
 * ends only the removal, so that the command can print what remains. A signal within TWICE_S is
 * ignored, because timeout(1) sends each signal twice: to its child and to the child's process
 * group. A terminal does the same together with a shell that forwards the signal. Such a pair of
 * signals must not prevent the removal of incomplete output.
 */
static void signal_record(int signal)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (stop_signal && now.tv_sec - stop_signal_s < TWICE_S)
		return;
	if (stop_signal && (!aborting || abort_stop)) {
		sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
		raise(signal); /* the signal ends the process when this handler returns */
	}
	if (stop_signal)
		abort_stop = 1;
	else
		stop_signal = signal;
	stop_signal_s = (sig_atomic_t)now.tv_sec;
}

void catch_signals(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction old;

	/* Does not catch a signal that is ignored, as after nohup or in a background job of a
	 * shell. */
	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (!sigaction(signals[i], NULL, &old) && old.sa_handler != SIG_IGN)
			sigaction(signals[i], &(struct sigaction){.sa_handler = signal_record},
				  NULL);
}

int stop_text(char *text, size_t len)
{
	snprintf(text, len, "stopped by %s", strsignal((int)stop_signal));
	/* the exit code with which a shell reports the signal */
	return 128 + (int)stop_signal;
}

void abort_storage(struct penstock_storage *st)
{
	struct penstock_end_opts opts = PENSTOCK_END_OPTS_INIT;

	opts.stop = &abort_stop;
	aborting = 1;
	if (st && penstock_abort_with(st, &opts))
		fail(EXIT_FAILED, "%s", penstock_errmsg());
	aborting = 0;
}
