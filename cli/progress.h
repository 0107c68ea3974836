/* SPDX-License-Identifier: Apache-2.0 */
/* The progress line of a long command, on a terminal only. */
#ifndef PENSTOCK_CLI_PROGRESS_H
#define PENSTOCK_CLI_PROGRESS_H

#include <stdbool.h>

/* Returns whether to print the progress line: standard error is a terminal, and the last line
 * is 0.2 s old, or this one is the last. Keeps the time of the line in *shown. */
bool progress_due(bool quiet, bool last, double *shown);
/* Prints the progress line over the previous one. The last line stays on the terminal. */
void progress(bool last, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
