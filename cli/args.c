/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses options, sizes and numbers of the command line, and prints messages and wrapped text.
 * Called by all subcommands. Every message is one line on standard error.
 */
#include "args.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "file_url.h"
#include "size.h"

#define COLUMNS 80

/* the first error message of the command; "" if it has printed none */
static char first_error[LINE_MAX_BYTES];

int fail(int code, const char *fmt, ...)
{
	char text[LINE_MAX_BYTES];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (!first_error[0])
		memcpy(first_error, text, sizeof(text));
	/* A file name in the text can contain newlines and escape sequences. So this loop
	 * replaces control characters. */
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	fprintf(stderr, "penstock: %s\n", text);
	return code;
}

const char *fail_text(void)
{
	return first_error;
}

int flush_output(void)
{
	static int lost;

	if (fflush(stdout) && !lost)
		lost = errno;
	return lost;
}

const char *advice(enum penstock_why why)
{
	switch (why) {
	case PENSTOCK_WHY_NOT_FOUND:
		return ": check the name";
	case PENSTOCK_WHY_NO_PERMISSION:
		return ": see ls -l for its permissions";
	case PENSTOCK_WHY_READ_ONLY:
		return ": mount it for writing, or name another place";
	case PENSTOCK_WHY_NO_FILES:
		return ": allow more open files with ulimit -n";
	case PENSTOCK_WHY_NO_SPACE:
		return ": free some space, or name another place";
	case PENSTOCK_WHY_NO_DRIVER:
		return ": install the GPU's driver, or use the device host";
	case PENSTOCK_WHY_REQUIRE:
		return ": 'penstock explain' shows what would open such a path";
	default: /* the message already says what to do, or nothing can be done */
		return "";
	}
}

const char *advice_errno(int code)
{
	switch (code) {
	case ENOENT:
	case ENOTDIR:
	case ELOOP:
	case ENAMETOOLONG:
		return advice(PENSTOCK_WHY_NOT_FOUND);
	case EACCES:
	case EPERM:
		return advice(PENSTOCK_WHY_NO_PERMISSION);
	case EROFS:
		return advice(PENSTOCK_WHY_READ_ONLY);
	case EMFILE:
	case ENFILE:
		return advice(PENSTOCK_WHY_NO_FILES);
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		return advice(PENSTOCK_WHY_NO_SPACE);
	default:
		return "";
	}
}

const char *advice_for(enum penstock_why why, const char *message)
{
	return why == PENSTOCK_WHY_NO_PERMISSION && strstr(message, "://") ? "" : advice(why);
}

int fail_lib(void)
{
	return fail(EXIT_FAILED, "%s%s", penstock_errmsg(),
		    advice_for(penstock_errwhy(), penstock_errmsg()));
}

int code_without_device(enum penstock_class require)
{
	return require > PENSTOCK_ANY ? EXIT_REFUSED : EXIT_FAILED;
}

bool storage_is_object(const char *storage)
{
	static const char *const starts[] = {"s3://", "http://", "https://"};

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
		if (!strncmp(storage, starts[i], strlen(starts[i])))
			return true;
	return false;
}

const char *storage_path(const char *storage)
{
	if (storage_is_object(storage) || !strncmp(storage, "mem:", 4))
		return NULL;
	return pst_file_url_path(storage);
}

/* Returns the edit distance between two short words. */
static unsigned edit_distance(const char *a, const char *b)
{
	unsigned row[64], la = (unsigned)strlen(a), lb = (unsigned)strlen(b);

	if (la > 60 || lb > 60)
		return 100;
	for (unsigned j = 0; j <= lb; j++)
		row[j] = j;
	for (unsigned i = 1; i <= la; i++) {
		unsigned corner = row[0];

		row[0] = i;
		for (unsigned j = 1; j <= lb; j++) {
			unsigned old = row[j], best = corner + (a[i - 1] != b[j - 1]);

			if (old + 1 < best)
				best = old + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			corner = old;
			row[j] = best;
		}
	}
	return row[lb];
}

const char *closest(const char *word, const char *const *words)
{
	const char *best = NULL;
	unsigned half = (unsigned)strlen(word) / 2;
	/* Suggests a word only if its edit distance from the typed `word` is below `least`. A
	 * larger difference is probably no typing error. */
	unsigned least = half < 2 ? half + 1 : 3;

	for (unsigned i = 0; words[i]; i++) {
		unsigned d = edit_distance(word, words[i]);

		if (d < least) {
			least = d;
			best = words[i];
		}
	}
	return best;
}

void print_usage(FILE *f, const struct command *cmd)
{
	fprintf(f, "usage: penstock %s %s\n\n%s\n\n%s", cmd->name, cmd->usage, cmd->summary,
		cmd->help);
}

/* Returns how many options begin with the name in `word`, which is "--NAME" or "--NAME=VALUE".
 * Writes their names to `list`. */
static unsigned option_matches(const char *word, const struct option *options, char *list,
			       size_t len)
{
	size_t typed = strncmp(word, "--", 2) ? 0 : strcspn(word + 2, "="), at = 0;
	unsigned count = 0;

	for (; typed && options->name; options++) {
		if (strncmp(options->name, word + 2, typed))
			continue;
		if (at < len)
			at += (size_t)snprintf(list + at, len - at, "%s--%s", count ? ", " : "",
					       options->name);
		count++;
	}
	return count;
}

static int option_unknown(const char *word, const struct command *cmd, const struct option *options)
{
	const char *names[OPTIONS_MAX + 1], *near;
	char list[256];
	unsigned n = 0;

	if (option_matches(word, options, list, sizeof(list)) > 1) {
		fail(EXIT_USAGE, "'%s' is ambiguous, it stands for %s: give more letters", word,
		     list);
		return '?';
	}
	if (option_matches(word, options, list, sizeof(list)) == 1 && strchr(word, '=')) {
		fail(EXIT_USAGE, "%s takes no value, remove it from '%s'", list, word);
		return '?';
	}
	for (; options[n].name && n < OPTIONS_MAX; n++)
		names[n] = options[n].name;
	names[n] = NULL;
	near = closest(word + strspn(word, "-"), names);
	if (near)
		fail(EXIT_USAGE, "%s has no option '%s', did you mean '--%s'?", cmd->name, word,
		     near);
	else
		fail(EXIT_USAGE, "%s has no option '%s', see 'penstock %s --help'", cmd->name, word,
		     cmd->name);
	return '?';
}

int next_option(int argc, char **argv, const struct command *cmd, const struct option *options)
{
	int at = optind ? optind : 1, c;

	opterr = 0;
	c = getopt_long(argc, argv, cmd->flags ? cmd->flags : ":h", options, NULL);
	if (c == 'h') {
		print_usage(stdout, cmd);
		return 'h';
	}
	if (c == ':') {
		fail(EXIT_USAGE, "%s needs a value, see 'penstock %s --help'", argv[optind - 1],
		     cmd->name);
		return '?';
	}
	if (c != '?')
		return c;
	if (optind > at && optind - 1 < argc && argv[optind - 1][0] == '-')
		at = optind - 1;
	return option_unknown(argv[at], cmd, options);
}

bool parse_size(const char *option, const char *text, uint64_t *out)
{
	const char *end = pst_size_parse(text, out);

	if (end && !*end)
		return true;
	fail(EXIT_USAGE, "%s '%s': give a size like 4096, 4KiB, 1MB or 1.5GiB, below 8 EiB", option,
	     text);
	return false;
}

bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	unsigned long long n;
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || *end || n < min || n > max)
		return false;
	*out = n;
	return true;
}

bool parse_count(const char *option, const char *text, unsigned min, unsigned max, unsigned *out)
{
	uint64_t n;

	if (!parse_number(text, min, max, &n)) {
		fail(EXIT_USAGE, "%s needs a number from %u to %u, not '%s'", option, min, max,
		     text);
		return false;
	}
	*out = (unsigned)n;
	return true;
}

const char *class_name(enum penstock_class c)
{
	return c == PENSTOCK_DIRECT ? "direct" : c == PENSTOCK_NO_CPU_COPY ? "no-cpu-copy" : "any";
}

bool parse_class(const char *text, enum penstock_class *out)
{
	for (int c = PENSTOCK_ANY; c <= PENSTOCK_DIRECT; c++) {
		if (!strcmp(text, class_name((enum penstock_class)c))) {
			*out = (enum penstock_class)c;
			return true;
		}
	}
	fail(EXIT_USAGE, "there is no class '%s': use any, no-cpu-copy or direct", text);
	return false;
}

bool parse_effort(const char *text, enum penstock_effort *out)
{
	if (!strcmp(text, "thrifty"))
		*out = PENSTOCK_THRIFTY;
	else if (!strcmp(text, "balanced"))
		*out = PENSTOCK_BALANCED;
	else if (!strcmp(text, "fast"))
		*out = PENSTOCK_FAST;
	else
		return fail(EXIT_USAGE, "there is no effort '%s': use thrifty, balanced or fast",
			    text),
		       false;
	return true;
}

bool parse_engine(const char *text, const char **out)
{
	if (strcmp(text, "auto") != 0 && strcmp(text, "uring") != 0 && strcmp(text, "threads") != 0)
		return fail(EXIT_USAGE, "there is no engine '%s': use auto, uring or threads",
			    text),
		       false;
	*out = text;
	return true;
}

double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void print_name(FILE *f, const char *name)
{
	for (; *name; name++)
		fputc((unsigned char)*name < ' ' || *name == 0x7f ? '?' : *name, f);
}

void print_words(FILE *f, unsigned column, const char *text)
{
	unsigned used = column;

	while (*text) {
		unsigned n = (unsigned)strcspn(text, " ");

		if (used > column && used + 1 + n > COLUMNS) {
			fprintf(f, "\n%*s", (int)column, "");
			used = column;
		} else if (used > column) {
			fputc(' ', f);
			used++;
		}
		fprintf(f, "%.*s", (int)n, text);
		used += n;
		text += n;
		text += *text == ' ';
	}
	fputc('\n', f);
}

const char *human(double bytes, char *buf, size_t len)
{
	static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
	unsigned u = 0;

	while (bytes >= 1000 && u < 4) {
		bytes /= 1000;
		u++;
	}
	snprintf(buf, len, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
	return buf;
}
