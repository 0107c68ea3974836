/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the result of `penstock check` for people, with one line for each gate, which is a
 * requirement of a path. If a gate is not open, a further line states why the gate matters and
 * which action opens it. Called by check.c. Colours appear only on a terminal.
 */
#include "check_print.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "args.h"
#include "drive.h"

#define COLUMN 26 /* column at which the text of a gate starts */

static bool colours_are_wanted(FILE *f)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(fileno(f)) && !(no && no[0]) && !(term && !strcmp(term, "dumb"));
}

static const char *const states[] = {
	[PST_CHECK_NOT_HERE] = "not-here",
	[PST_CHECK_OK] = "ok",
	[PST_CHECK_NO] = "no",
	[PST_CHECK_UNKNOWN] = "unknown",
};

static const char *const layers[] = {"device", "fabric", "file"};

static const char *const needs[] = {"nothing", "speed", "direct", "no-cpu-copy", "work"};

const char *check_state_name(enum pst_check_state state)
{
	return states[state];
}

const char *check_layer_name(enum pst_check_layer layer)
{
	return layers[layer];
}

const char *check_need_name(enum pst_check_need need)
{
	return needs[need];
}

static void labelled_print(FILE *f, const char *label, const char *text)
{
	fprintf(f, "%*s%-4s ", COLUMN - 5, "", label);
	print_words(f, COLUMN, text);
}

static void details_print(FILE *f, const char *text)
{
	while (*text) {
		size_t n = strcspn(text, "\n");

		fprintf(f, "%*s%.*s\n", COLUMN, "", (int)n, text);
		text += n + (text[n] == '\n');
	}
}

static void gate_print(FILE *f, const struct pst_check_line *line, bool verbose)
{
	static const char *const colours[] = {"", "\033[32m", "\033[31m", "\033[33m"};
	bool paint = colours_are_wanted(f);
	/* A gate (requirement of a path) that no path of Penstock needs gets no colour, because its
	 * state does not matter. */
	bool calm = line->need == PST_NEED_NOTHING && line->state != PST_CHECK_OK;

	fprintf(f, "  %s%-7s%s  %-14s ", paint && !calm ? colours[line->state] : "",
		states[line->state], paint && !calm ? "\033[0m" : "", line->name);
	print_words(f, COLUMN, line->seen);
	if (verbose)
		details_print(f, line->more);
	if (verbose || (line->state != PST_CHECK_OK && !calm))
		labelled_print(f, "why", line->why);
	if (line->todo[0] && (verbose || !calm))
		labelled_print(f, "do", line->todo);
}

const char *check_drive_name(const struct pst_check *check)
{
	const char *name = check->target ? storage_path(check->target) : NULL;
	int fd = name ? open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
	bool memory = fd >= 0 && drive_is_memory(fd);

	if (fd >= 0)
		close(fd);
	return memory ? "memory" : "drive";
}

static void unmeasured_path_print(FILE *f, const struct pst_check_path *p)
{
	fprintf(f, "  %-9s %9s  ", p->explained.name, "-");
	print_words(f, 23, p->error[0] ? p->error : p->explained.text);
}

static void paths_print(FILE *f, const struct pst_check *check)
{
	const char *drive = check_drive_name(check);

	fprintf(f, "\n  %-9s %9s  %-6s %10s  %s\n", "path", "GB/s", "from", "CPU copies", "class");
	for (unsigned i = 0; i < check->path_count; i++) {
		const struct pst_check_path *p = &check->paths[i];
		bool cold = (int)i == check->cold, warm = (int)i == check->warm;

		if (p->measured)
			fprintf(f, "  %-9s %9.2f  %-6s %10.2f  %-*s%s\n", p->explained.name,
				p->gb_per_s, p->cached ? "cache" : drive, p->cpu_copies,
				cold || warm ? 12 : 0, class_name(p->explained.meets),
				cold && warm ? "<- used"
				: cold	     ? "<- used for uncached bytes"
				: warm	     ? "<- used for cached bytes"
					     : "");
		else
			unmeasured_path_print(f, p);
	}
}

void check_print(FILE *f, const struct pst_check *check, bool verbose)
{
	int layer = -1;

	fprintf(f, "%s%s\n", check->captured ? "captured machine: " : "", check->machine);
	print_name(f, check->target ? check->target : "all drives of the machine");
	fprintf(f, " to %s\n", check->device);
	for (unsigned i = 0; i < check->line_count; i++) {
		if ((int)check->lines[i].layer != layer) {
			layer = (int)check->lines[i].layer;
			fprintf(f, "\n%s\n", layers[layer]);
		}
		gate_print(f, &check->lines[i], verbose);
	}
	if (check->probed)
		paths_print(f, check);
	fputc('\n', f);
	print_words(f, 0, check->verdict);
	flush_output();
}
