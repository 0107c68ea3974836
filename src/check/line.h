/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills the line of a gate: its state, its finding, the action to take and the shell
 * commands. Called by the gates. Control characters in the texts become '?'.
 */
#ifndef PST_CHECK_LINE_H
#define PST_CHECK_LINE_H

#include "result.h"

/* Set the state of the line and the text of the finding. */
void pst_line_ok(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_line_no(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_line_unknown(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Sets the state to unknown because this user may not read `what`. */
void pst_line_no_permission(struct pst_check_line *line, bool captured, const char *what);

/* Sets the action to take, in place of the gate's default action. */
void pst_line_todo(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Append one line of details for --verbose, or one line of shell for --fix-script. A line
 * that does not fit is dropped as a whole. */
void pst_line_detail(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_line_script(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Returns whether a name may appear unquoted in a shell script. Names in /sys can hold any
 * character. */
bool pst_line_name_is_plain(const char *name);

#endif
