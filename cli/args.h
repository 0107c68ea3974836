/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all subcommands share: exit codes, the table of a subcommand, options, sizes,
 * messages on standard error and text on standard output.
 */
#ifndef PENSTOCK_CLI_ARGS_H
#define PENSTOCK_CLI_ARGS_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "penstock.h"

/* Capacity of a message on standard error: enough for two long paths and a sentence. */
#define LINE_MAX_BYTES 9216

enum {
	EXIT_DONE = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
	EXIT_REFUSED = 3,
	EXIT_NOT_DIRECT = 4 /* only from check: the transfer works, but no path is direct */
};

struct command {
	const char *name;
	const char *usage; /* arguments, as the usage line shows them after the name */
	const char *summary;
	const char *help; /* options, one line each */
	int (*run)(int argc, char **argv);
	const char *flags; /* short options for getopt; NULL: long options only */
	bool becomes;	   /* becomes another program, which inherits the signal handling */
};

/* ---- messages ---- */

/* Prints one line on standard error: "penstock: ...". Returns `code`. */
int fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints the library's last message and the advice for it. Returns EXIT_FAILED. */
int fail_lib(void);
/* Returns a text to append to the message of a failure: ": " and an action to take, or "" if
 * the message already names one. */
const char *advice(enum penstock_why why);
const char *advice_errno(int code);
/* Returns the exit code for a device that cannot be opened: EXIT_REFUSED if a class is
 * required, because no path meets it then. */
int code_without_device(enum penstock_class require);
/* Flushes standard output, so that it appears before later messages on standard error.
 * Returns 0, or the errno of the first part that was lost. */
int flush_output(void);

/* ---- options ---- */

void print_usage(FILE *f, const struct command *cmd);
/* Calls getopt_long. Returns the option, -1 at the end, '?' after an error that it printed
 * (with the closest option), or 'h' after it printed the help. */
int next_option(int argc, char **argv, const struct command *cmd, const struct option *options);
/* Returns the word of the NULL-terminated list that is closest to `word`, or NULL if none is
 * similar. */
const char *closest(const char *word, const char *const *words);
/* Returns the path of the file that a storage names, or NULL for mem: storage. */
const char *storage_path(const char *storage);

/* Parse the value of an option. Return false after they printed the error. parse_number()
 * leaves the message to its caller. A size is like "4KiB", "1MiB", "2G" or "512". */
bool parse_size(const char *option, const char *text, uint64_t *out);
bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool parse_class(const char *text, enum penstock_class *out);
bool parse_effort(const char *text, enum penstock_effort *out);
bool parse_engine(const char *text, const char **out);
const char *class_name(enum penstock_class c);

/* ---- text ---- */

/* Returns the seconds of a monotonic clock. */
double seconds(void);
/* Prints the name of a file with a '?' for each control character. */
void print_name(FILE *f, const char *name);
/* Prints words and a newline, wrapped at 80 columns. The cursor must be at `column`; further
 * lines are indented to it. */
void print_words(FILE *f, unsigned column, const char *text);
/* Writes a size such as "12.3 GB" to `buf` and returns it. */
const char *human(double bytes, char *buf, size_t len);

#endif
