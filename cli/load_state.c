/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records the failures of `penstock load` and the signals that stop it. Called by the other load
 * files. It prints nothing: load.c prints the first failure.
 */
#include "load_state.h"

#include <string.h>

volatile sig_atomic_t load_stopped;

static void on_signal(int signal)
{
	load_stopped = signal;
}

/* A signal that was ignored when the command started stays ignored, as after nohup or in a
 * background job. SIGTERM is an exception: it must be able to end a rank that waits for others
 * to join. */
void load_catch_signals(bool caught, bool always)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction old, action = {.sa_handler = caught ? on_signal : SIG_DFL,
					.sa_flags = always ? 0 : (int)SA_RESETHAND};

	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (!sigaction(signals[i], NULL, &old) &&
		    (old.sa_handler != SIG_IGN || (!caught && signals[i] == SIGTERM)))
			sigaction(signals[i], &action, NULL);
}

void load_note(struct loading *l, int code, const char *fmt, const char *what)
{
	if (l->code)
		return;
	l->code = code;
	snprintf(l->text, sizeof(l->text), fmt, what);
}

static const char *load_advice(enum penstock_why why)
{
	switch (why) {
	case PENSTOCK_WHY_NO_MEMORY:
		return ": --select takes fewer tensors, --shard a part of each";
	case PENSTOCK_WHY_STALE:
	case PENSTOCK_WHY_SHRANK:
		return ": try again when no program writes to the file";
	default:
		return advice(why);
	}
}

void load_note_lib_code(struct loading *l, int code)
{
	char text[sizeof(l->text)];

	snprintf(text, sizeof(text), "%s%s", penstock_errmsg(), load_advice(penstock_errwhy()));
	load_note(l, code, "%s", text);
}

/* If no path can meet the class that --require names, the exit code is EXIT_REFUSED. */
void load_note_lib(struct loading *l)
{
	load_note_lib_code(l, l->a->load.require > PENSTOCK_ANY &&
					      penstock_errwhy() == PENSTOCK_WHY_REQUIRE
				      ? EXIT_REFUSED
				      : EXIT_FAILED);
}
