/* SPDX-License-Identifier: Apache-2.0 */
/* Compares a copy with its source for `penstock cp --verify`. */
#ifndef PENSTOCK_CLI_VERIFY_H
#define PENSTOCK_CLI_VERIFY_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct verify {
	const char *src, *copy;
	uint64_t length; /* length of the source, for the progress line */
	bool longer;	 /* the copy is a device and may be longer than the source */
	bool progress;	 /* print a progress line if standard error is a terminal */
	const volatile sig_atomic_t *stop_signal; /* signal that ends the comparison; 0: none */
	char *text;				  /* buffer for the message of a failure */
	size_t text_len;
	bool from_drive; /* result: as far as visible, both files were read from a drive */
};
/* Reads both files again from the drive, with plain pread(2), and compares them. Returns 0 if
 * they are the same, else an exit code with the message in v->text. */
int verify_files(struct verify *v);
/* Gives the copy the owner, group and permissions of the file that it is about to replace, if
 * that file exists. */
void keep_permissions(const char *copy, const char *dst);

#endif
