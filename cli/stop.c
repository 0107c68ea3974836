/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals that end a command before it is done: they are noted, so that what was begun
 * can be taken back. Used by the commands that write. Must never take a signal away from
 * who ignores it.
 */
#include <string.h>

#include "cli.h"

volatile sig_atomic_t stopped;

static void stop(int signal)
{
	stopped = signal;
}

/* Those that are ignored stay so: nohup, a shell's job in the background. */
void catch_signals(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction old;

	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (!sigaction(signals[i], NULL, &old) && old.sa_handler != SIG_IGN)
			/* The second of a kind ends it at once, whatever it hangs in. */
			sigaction(signals[i],
				  &(struct sigaction){.sa_handler = stop, .sa_flags = SA_RESETHAND},
				  NULL);
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
