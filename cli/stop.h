/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that end a command early, after it removed incomplete output. */
#ifndef PENSTOCK_CLI_STOP_H
#define PENSTOCK_CLI_STOP_H

#include <signal.h>
#include <stddef.h>

#include "penstock.h"

/* The signal that asked the command to stop; 0: none. Set only after catch_signals(). */
extern volatile sig_atomic_t stop_signal;

/* Catches SIGINT, SIGTERM and SIGHUP from now on. */
void catch_signals(void);
/* Writes "stopped by ..." to `text`. Returns the exit code for the signal. */
int stop_text(char *text, size_t len);
/* Discards the uncommitted writes to the storage; prints a message if that fails. */
void abort_storage(struct penstock_storage *st);

#endif
