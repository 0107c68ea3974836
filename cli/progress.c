/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The line on a terminal that says how far a command is, written over and over. Used by
 * those that may take long. Never wider than the terminal, or each would stay, and none of
 * a longer one before it is left.
 */
#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

#define EVERY_S 0.2

bool progress_due(bool quiet, bool last, double *shown)
{
	double now = seconds();

	if (quiet || !isatty(STDERR_FILENO) || (now - *shown < EVERY_S && !last))
		return false;
	*shown = now;
	return true;
}

void progress(bool last, const char *fmt, ...)
{
	static int before; /* how long the last one was */
	struct winsize size = {.ws_col = 0};
	char line[256];
	int len, most;
	va_list args;

	va_start(args, fmt);
	len = vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	most = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || !size.ws_col ? 80 : size.ws_col;
	if (most > (int)sizeof(line))
		most = (int)sizeof(line);
	len = len < most ? len : most - 1;
	before = before < most ? before : most - 1;
	fprintf(stderr, "\r%.*s%*s%s", len, line, before > len ? before - len : 0, "",
		last ? "\n" : "");
	before = last ? 0 : len;
}
