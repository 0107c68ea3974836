/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills the output line of a gate (a condition of the direct path): its state, its finding, the
 * action to take and the shell commands. Called by the gates. Control characters in the texts
 * become '?'.
 */
#ifndef PST_CHECK_LINE_H
#define PST_CHECK_LINE_H

#include "result.h"

/* pst_line_ok, pst_line_no and pst_line_unknown set the state of a gate's line (open, not open,
 * unknown) and the text of its finding. */
void pst_line_ok(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_line_no(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_line_unknown(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Sets the state to unknown, and sets a text which says that this user may not read `what`. */
void pst_line_no_permission(struct pst_check_line *line, bool captured, const char *what);

/* Sets the action to take, which replaces the gate's default action. */
void pst_line_todo(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* pst_line_detail appends one line for --verbose, pst_line_script one shell command for
 * --fix-script. A line or command that does not fit completely is dropped. */
void pst_line_detail(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void pst_line_script(struct pst_check_line *line, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Returns whether a name may appear in a shell script without quotes. Names in /sys can contain
 * any character. */
bool pst_line_name_is_plain(const char *name);

#endif
