/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the progress line of a long command on a terminal. Each new line overwrites the previous
 * one completely. A progress line must never be wider than the terminal: it would wrap, and its
 * first row could not be overwritten.
 */
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "args.h"

#define EVERY_S 0.2

bool progress_due(bool quiet, bool last, double *shown)
{
	double now = seconds();

	if (quiet || !isatty(STDERR_FILENO) || (now - *shown < EVERY_S && !last))
		return false;
	*shown = now;
	return true;
}

/* length of the previous progress line; 0 if it has been completed */
static int before;

void progress_end(void)
{
	if (before)
		fputc('\n', stderr);
	before = 0;
}

void progress(bool last, const char *fmt, ...)
{
	struct winsize size = {.ws_col = 0};
	char line[256];
	int len, columns;
	va_list args;

	va_start(args, fmt);
	len = vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || !size.ws_col ? 80 : size.ws_col;
	if (columns > (int)sizeof(line))
		columns = (int)sizeof(line);
	len = len < columns ? len : columns - 1;
	before = before < columns ? before : columns - 1;
	fprintf(stderr, "\r%.*s%*s%s", len, line, before > len ? before - len : 0, "",
		last ? "\n" : "");
	before = last ? 0 : len;
}
