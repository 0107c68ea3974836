/* SPDX-License-Identifier: Apache-2.0 */
/* Catches the signals that end a command early, so that the command can first remove incomplete
 * output. */
#ifndef PENSTOCK_CLI_STOP_H
#define PENSTOCK_CLI_STOP_H

#include <signal.h>
#include <stddef.h>

#include "penstock.h"

/* Number of the signal that asked the command to stop; 0 if none did. Only set after
 * catch_signals() was called. */
extern volatile sig_atomic_t stop_signal;

/* Catches SIGINT, SIGTERM and SIGHUP from now on. */
void catch_signals(void);
/* Writes "stopped by" and the signal's name to `text`. Returns the exit code for the signal. */
int stop_text(char *text, size_t len);
/* Discards the uncommitted writes to the storage. Prints a message if that fails. */
void abort_storage(struct penstock_storage *st);

#endif
