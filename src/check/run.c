/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the check: reads the facts, lets every gate look in the order of the tables,
 * and draws the verdict. Called by the command. It must never let one gate's trouble
 * keep another from its line.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "gate.h"

static void say(char *out, size_t len, const char *fmt, va_list args)
{
	vsnprintf(out, len, fmt, args);
	for (; *out; out++)
		if ((unsigned char)*out < ' ' || (unsigned char)*out == 0x7f)
			*out = '?';
}

#define SAY(out)                                    \
	do {                                        \
		va_list args;                       \
		va_start(args, fmt);                \
		say((out), sizeof(out), fmt, args); \
		va_end(args);                       \
	} while (0)

void pst_ok(struct pst_check_line *line, const char *fmt, ...)
{
	SAY(line->seen);
	line->state = PST_CHECK_OK;
}

void pst_no(struct pst_check_line *line, const char *fmt, ...)
{
	SAY(line->seen);
	line->state = PST_CHECK_NO;
}

void pst_unknown(struct pst_check_line *line, const char *fmt, ...)
{
	SAY(line->seen);
	line->state = PST_CHECK_UNKNOWN;
}

void pst_todo(struct pst_check_line *line, const char *fmt, ...)
{
	SAY(line->todo);
}

/* One whole line behind what is there. */
static void append(char *text, size_t room, const char *one)
{
	size_t len = strlen(text), add = strlen(one);

	if (len + add + 2 > room)
		return;
	memcpy(text + len, one, add);
	memcpy(text + len + add, "\n", 2);
}

void pst_more(struct pst_check_line *line, const char *fmt, ...)
{
	char one[PENSTOCK_TEXT_MAX];

	SAY(one);
	append(line->more, sizeof(line->more), one);
}

void pst_script(struct pst_check_line *line, const char *fmt, ...)
{
	char one[512];

	SAY(one);
	append(line->script, sizeof(line->script), one);
}

bool pst_plain_name(const char *name)
{
	return name[0] && name[0] != '-' &&
	       !name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				  "0123456789_.:/-")];
}

void pst_not_allowed(const struct facts *f, struct pst_check_line *line, const char *what)
{
	pst_unknown(line, "no permission to read %s", what);
	pst_todo(line, f->captured ? "capture the machine as root to see" : "run as root to see");
}

static void run_gates(const struct facts *f, const struct gate *gates, struct pst_check *check)
{
	for (; gates->name; gates++) {
		struct pst_check_line *line = &check->lines[check->line_count];

		if (check->line_count == PST_CHECK_LINES_MAX)
			return;
		*line = (struct pst_check_line){.name = gates->name,
						.layer = gates->layer,
						.need = gates->need,
						.why = gates->why};
		gates->look(f, line);
		if (line->state == PST_CHECK_NOT_HERE)
			continue;
		if (line->state == PST_CHECK_OK) {
			line->todo[0] = '\0';
			line->script[0] = '\0';
		} else if (!line->todo[0]) {
			snprintf(line->todo, sizeof(line->todo), "%s", gates->todo);
		}
		check->line_count++;
	}
}

static void describe(const struct facts *f, struct pst_check *check)
{
	snprintf(check->machine, sizeof(check->machine), "Linux %s, %u GPU%s, %u drive%s, %u NIC%s",
		 f->release[0] ? f->release : "of unknown version", f->gpu_count,
		 f->gpu_count == 1 ? "" : "s", f->drive_total, f->drive_total == 1 ? "" : "s",
		 f->nic_count, f->nic_count == 1 ? "" : "s");
	if (f->host)
		snprintf(check->device, sizeof(check->device), "host memory");
	else if (f->peermem)
		snprintf(check->device, sizeof(check->device), "memory of %s",
			 f->devices[0].pci->bdf);
	else
		pst_spots_text(f->devices, f->device_count, check->device, sizeof(check->device));
}

int pst_check_run(const struct pst_check_opts *opts, struct pst_check **out, char *why,
		  size_t why_len)
{
	static const struct gate *const tables[] = {
		pst_check_device_gates,	  pst_check_pcie_gates,	 pst_check_fabric_gates,
		pst_check_endpoint_gates, pst_check_limit_gates, pst_check_file_gates};
	struct pst_check *check = calloc(1, sizeof(*check));
	struct facts *f = calloc(1, sizeof(*f));
	int ret = -ENOMEM;

	if (!check || !f) {
		snprintf(why, why_len, "out of memory");
		goto out;
	}
	f->opts = opts;
	f->fs.fd = -1;
	f->check = check;
	check->target = opts->target;
	check->cold = check->warm = -1;
	ret = pst_check_facts(f, why, why_len);
	if (!ret && opts->target)
		ret = pst_check_target(f, why, why_len);
	if (ret < 0)
		goto out;
	check->captured = f->captured;
	describe(f, check);
	if (f->has_file && !f->captured)
		pst_check_probe(f);
	if (f->is_url && !f->captured)
		pst_check_endpoint(f);
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		run_gates(f, tables[i], check);
	pst_check_verdict(f, check);
	*out = check;
	check = NULL;
out:
	if (f)
		pst_check_facts_free(f);
	free(f);
	free(check);
	return ret;
}

void pst_check_free(struct pst_check *check)
{
	free(check);
}
