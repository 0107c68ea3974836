/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that all subcommands share: exit codes, the description of a
 * subcommand (struct command), options, sizes, messages on standard error and text on standard
 * output.
 */
#ifndef PENSTOCK_CLI_ARGS_H
#define PENSTOCK_CLI_ARGS_H

#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "penstock.h"

/* Capacity in bytes of a message on standard error, enough for two long paths and a sentence. */
#define LINE_MAX_BYTES 9216
/* Maximum number of a command's options that next_option() compares with a misspelt option. */
#define OPTIONS_MAX 80

enum {
	EXIT_DONE = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
	EXIT_REFUSED = 3,
	/* only `penstock check` uses this code: the test transfer works, but no path is direct */
	EXIT_NOT_DIRECT = 4
};

struct command {
	const char *name;
	const char *usage; /* the arguments, as the usage line shows them after the name */
	const char *summary;
	const char *help; /* the options, with one line for each */
	int (*run)(int argc, char **argv);
	const char *flags; /* short options for getopt; NULL if there are only long options */
	/* whether the command replaces itself by another program with exec; that program inherits
	 * the signal handling */
	bool becomes;
};

/* ---- messages ---- */

/* Prints "penstock: " and the text as one line on standard error. Returns `code`. */
int fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns the text of the first message that fail() printed, or "" if it printed none. */
const char *fail_text(void);
/* Prints the library's last message and, from advice(), an action to take. Returns EXIT_FAILED. */
int fail_lib(void);
/* Returns a text to append to an error message. The text is ": " and an action to take, or ""
 * if the message already names an action or no action helps. */
const char *advice(enum penstock_why why);
const char *advice_errno(int code);
/* Returns advice(why) for a message that the library wrote. If the message is about an object, its
 * text names the right action already: the advice about the permissions of files would be wrong. */
const char *advice_for(enum penstock_why why, const char *message);
/* Returns the exit code for a device that cannot be opened. The code is EXIT_REFUSED if `require`
 * names a class of paths, because no path can meet this class without the device. Otherwise it is
 * EXIT_FAILED. */
int code_without_device(enum penstock_class require);
/* Flushes standard output, so that its text appears before later messages on standard error.
 * Returns 0, or the errno of the first output that was lost. */
int flush_output(void);

/* ---- options ---- */

void print_usage(FILE *f, const struct command *cmd);
/* Calls getopt_long and returns the option. Returns -1 after the last option, and 'h' after it has
 * printed the help. If an option is wrong, prints an error, which suggests a similar option if
 * there is one, and returns '?'. */
int next_option(int argc, char **argv, const struct command *cmd, const struct option *options);
/* Returns the word of the NULL-terminated list that is most similar to `word`, or NULL if none
 * is similar. */
const char *closest(const char *word, const char *const *words);
/* Returns whether a storage is an object of an object store. */
bool storage_is_object(const char *storage);
/* Returns the path of the file that a storage names. Returns NULL if the storage is in memory
 * ("mem:..."), an object ("s3://...") or a file URL of another host, which no call can open. */
const char *storage_path(const char *storage);

/* These functions parse the value of an option. After an error they print a message and return
 * false, except that parse_number() prints nothing. The comment at pst_size_parse() describes the
 * form of a size. */
bool parse_size(const char *option, const char *text, uint64_t *out);
bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool parse_count(const char *option, const char *text, unsigned min, unsigned max, unsigned *out);
bool parse_class(const char *text, enum penstock_class *out);
bool parse_effort(const char *text, enum penstock_effort *out);
bool parse_engine(const char *text, const char **out);
const char *class_name(enum penstock_class c);

/* ---- text ---- */

/* Returns the time of a monotonic clock in seconds. */
double seconds(void);
/* Prints the name of a file, with '?' in place of each control character. */
void print_name(FILE *f, const char *name);
/* Prints a text, wrapped at 80 columns, and a newline. The cursor must be at `column`. All
 * lines after the first are indented to that column. */
void print_words(FILE *f, unsigned column, const char *text);
/* Writes a size such as "12.3 GB" to `buf`, and returns `buf`. */
const char *human(double bytes, char *buf, size_t len);

#endif
