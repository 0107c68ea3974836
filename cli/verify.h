/* SPDX-License-Identifier: Apache-2.0 */
/* Compares a copy with its source, for `penstock cp --verify`. */
#ifndef PENSTOCK_CLI_VERIFY_H
#define PENSTOCK_CLI_VERIFY_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct verify {
	const char *src, *copy;
	uint64_t length; /* length of the source in bytes, for the progress line */
	/* whether the copy is a device, which may be longer than the source */
	bool longer;
	bool progress; /* whether to print a progress line if standard error is a terminal */
	/* number of the signal that ends the comparison; 0 if none has arrived */
	const volatile sig_atomic_t *stop_signal;
	char *text; /* buffer for the message of a failure */
	size_t text_len;
	/* result: whether both files were read from a drive; false if they may have come from
	 * memory */
	bool from_drive;
};
/* Reads both files from the drive with plain pread(2), and compares them. Returns 0 if they have
 * the same content, else an exit code with the message in v->text. */
int verify_files(struct verify *v);
/* Gives the copy the owner, group and permissions of the file `dst`, which the copy is about to
 * replace. Does nothing if `dst` does not exist. */
void keep_permissions(const char *copy, const char *dst);

#endif
