/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands share: exit codes, options, sizes, errors, JSON. Each
 * subcommand is one file with one function, listed in main.c. The command uses the
 * public API only.
 */
#ifndef PENSTOCK_CLI_H
#define PENSTOCK_CLI_H

#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "penstock.h"

/* A line on standard error has room for two names and what is said of them. */
#define LINE_MAX_BYTES 9216

enum {
	EXIT_DONE = 0,
	EXIT_FAILED = 1,
	EXIT_USAGE = 2,
	EXIT_REFUSED = 3,
	EXIT_NOT_DIRECT = 4 /* of check: it works */
};

struct command {
	const char *name;
	const char *usage; /* the line behind the name */
	const char *summary;
	const char *help; /* options, a line each */
	int (*run)(int argc, char **argv);
	const char *flags; /* for getopt; NULL: long options only */
	bool becomes;	   /* another program, which gets signals as they were */
};
extern const struct command cmd_check, cmd_explain, cmd_cp, cmd_load, cmd_bench, cmd_topo,
	cmd_stats, cmd_run, cmd_gdsio;

/* One line on standard error: "penstock: ...". Returns `code`. */
int fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Standard output so far goes out before what is said on standard error. 0, or the errno
 * by which a part of it was lost, now or before. */
int flush_output(void);
/* The library's last message and what to do about it; EXIT_FAILED. */
int fail_lib(void);
/* The exit code where a device cannot be had: with a class required, no path meets it. */
int code_without_device(enum penstock_class require);
/* What to do about a failure, to be put behind its sentence; "" if that says it. */
const char *advice(enum penstock_why why);
const char *advice_errno(int code);

void print_usage(FILE *f, const struct command *cmd);
/* getopt_long with a 'did you mean' and --help. -1 at the end, '?' on an error that has
 * been printed, 'h' after the help has been printed. */
int next_option(int argc, char **argv, const struct command *cmd, const struct option *options);
/* The closest of `words` (NULL-terminated), NULL if none is near. */
const char *closest(const char *word, const char *const *words);

/* The file that a storage names, NULL for mem:. */
const char *file_of(const char *storage);

/* "4KiB", "1MiB", "2G", "512". Like those below false once the error, which names the
 * option, has been printed; parse_number leaves that to the caller. */
bool parse_size(const char *option, const char *text, uint64_t *out);
bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool parse_class(const char *text, enum penstock_class *out);
bool parse_effort(const char *text, enum penstock_effort *out);
bool parse_engine(const char *text, const char **out);
const char *class_name(enum penstock_class c);

double seconds(void);

/* ---- stop.c ---- */

/* The signal that asked the command to end early, 0: none; noted once catch_signals was
 * called. */
extern volatile sig_atomic_t stopped;
void catch_signals(void);
/* What to say of it, and the exit code for it. */
int say_stopped(char *text, size_t len);
/* Takes back what was written, and says so if that fails. */
void give_up(struct penstock_storage *st);

/* A file's name, whatever it holds: what would move the cursor is a '?'. */
void print_name(FILE *f, const char *name);
/* Text in words and a newline, within 80 columns; its first word stands where the cursor
 * is, the lines behind it begin at `column`. */
void print_words(FILE *f, unsigned column, const char *text);
/* "12.3 GB" into `buf`. */
const char *human(double bytes, char *buf, size_t len);

/* ---- progress.c ---- */

/* Whether there is a terminal to show it on, and time to: five times a second, and at the
 * end. *shown is when that was last. */
bool progress_due(bool quiet, bool last, double *shown);
/* The line, over the one before; the last one stays. */
void progress(bool last, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- JSON: an object at a time, commas and escaping looked after ---- */

struct json {
	FILE *f;
	bool first;
};
void json_open(struct json *j, FILE *f); /* { */
void json_close(struct json *j);	 /* }\n */
void json_text(struct json *j, const char *key, const char *value);
void json_int(struct json *j, const char *key, int64_t value);
void json_real(struct json *j, const char *key, double value);
void json_bool(struct json *j, const char *key, bool value);
void json_object(struct json *j, const char *key); /* "key": { */
void json_end(struct json *j);			   /* } */

/* ---- what several requests together did: report.c ---- */

struct tally {
	const char *names[PENSTOCK_PATHS_MAX];
	uint64_t path_bytes[PENSTOCK_PATHS_MAX];
	enum penstock_why why[PENSTOCK_PATHS_MAX];
	char text[PENSTOCK_PATHS_MAX][PENSTOCK_TEXT_MAX];
	unsigned path_count;
	uint64_t bytes, cpu_copied, dram_laid, retries, chunks;
	const char *engine;
	enum penstock_why engine_why;
};
void tally_add(struct tally *t, const struct penstock_report *report);
void tally_merge(struct tally *t, const struct tally *other);
const char *tally_path(const struct tally *t);
void tally_json(struct json *j, const struct tally *t);
void tally_print(FILE *f, const char *label, const struct tally *t);

/* ---- verify.c ---- */

struct verify {
	const char *src, *copy;
	uint64_t length; /* with progress: of what is shown */
	bool longer;	 /* the copy may be: what is behind it in a device is not looked at */
	bool progress;	 /* on standard error, if that is a terminal */
	const volatile sig_atomic_t *stopped; /* the signal to end early for, 0: none */
	char *text;			      /* what was found */
	size_t text_len;
	bool from_drive; /* set: neither came out of memory, as far as anybody can see */
};
/* Reads both files again from the drive, with plain pread, and compares. 0: the same;
 * else an exit code and the text. */
int verify_files(struct verify *v);
/* Makes a copy the same users' as the file that it is going to replace, if there is one. */
void keep_permissions(const char *copy, const char *dst);

#endif
