/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the progress line of a long command, on a terminal only. */
#ifndef PENSTOCK_CLI_PROGRESS_H
#define PENSTOCK_CLI_PROGRESS_H

#include <stdbool.h>

/* Returns whether to print the progress line now. Standard error must be a terminal. In
 * addition, the previous line must be at least 0.2 s old, or this line must be the last. *shown
 * keeps the time of the previous line. */
bool progress_due(bool quiet, bool last, double *shown);
/* Prints the progress line over the previous one. If `last` is true, later output starts on a
 * line of its own. */
void progress(bool last, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Completes the line that progress() has printed, so that other output starts on its own line. */
void progress_end(void);

#endif
