/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals that end a command before it is done: they are noted, so that what was begun
 * can be taken back. Used by the commands that write. Must never take a signal away from
 * who ignores it.
 */
#include <string.h>
#include <time.h>

#include "cli.h"

#define TWICE_S 2 /* so soon, counted in whole seconds, is the same wish once more */

volatile sig_atomic_t stopped;

static volatile sig_atomic_t stopped_s; /* when that was */

/* Another one ends it at once, whatever it hangs in. But timeout(1) sends each twice, to
 * its child and to the group that the child is in, and so does a terminal beside a shell
 * that passes it on: that must not keep from taking back what was begun. */
static void stop(int signal)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (stopped && now.tv_sec - stopped_s >= TWICE_S) {
		sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
		raise(signal); /* which comes as this one returns */
	}
	if (!stopped) {
		stopped_s = (sig_atomic_t)now.tv_sec;
		stopped = signal;
	}
}

/* Those that are ignored stay so: nohup, a shell's job in the background. */
void catch_signals(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction old;

	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (!sigaction(signals[i], NULL, &old) && old.sa_handler != SIG_IGN)
			sigaction(signals[i], &(struct sigaction){.sa_handler = stop}, NULL);
}

int say_stopped(char *text, size_t len)
{
	snprintf(text, len, "stopped by %s", strsignal((int)stopped));
	return 128 + (int)stopped; /* as a shell has it */
}

void give_up(struct penstock_storage *st)
{
	if (st && penstock_abort(st))
		fail(EXIT_FAILED, "%s", penstock_errmsg());
}
