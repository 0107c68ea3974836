/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the result of `penstock check` as one JSON object, which penstock-json(5) and
 * docs/json.schema.json describe. Called by check.c. Keys of the object must never be removed.
 */
#include "check_json.h"

#include "args.h"
#include "check_print.h"
#include "json.h"

static void gate_print_json(struct json *j, const struct pst_check_line *line)
{
	json_object(j, line->name);
	json_text(j, "layer", check_layer_name(line->layer));
	json_text(j, "state", check_state_name(line->state));
	json_text(j, "need", check_need_name(line->need));
	json_text(j, "seen", line->seen);
	json_text(j, "details", line->more);
	json_text(j, "why", line->why);
	json_text(j, "todo", line->todo);
	json_end(j);
}

static void path_print_json(struct json *j, const struct pst_check_path *p, const char *drive)
{
	json_object(j, p->explained.name);
	json_bool(j, "usable", p->explained.usable && !p->error[0]);
	json_bool(j, "measured", p->measured);
	if (p->measured) {
		json_text(j, "from", p->cached ? "cache" : drive);
		json_real(j, "gb_per_s", p->gb_per_s);
		json_real(j, "cpu_copies", p->cpu_copies);
		json_real(j, "dram_passes", p->dram_passes);
	}
	json_text(j, "meets", class_name(p->explained.meets));
	json_text(j, "code", penstock_why_name(p->explained.why));
	json_text(j, "text", p->error[0] ? p->error : p->explained.text);
	json_text(j, "fix", p->explained.fix);
	json_end(j);
}

static const char *checked_path_name(const struct pst_check *check, int index)
{
	return check->probed && index >= 0 ? check->paths[index].explained.name : NULL;
}

void check_print_json(FILE *f, const struct pst_check *check, int code)
{
	const char *drive = check_drive_name(check);
	struct json j;

	json_open(&j, f);
	json_text(&j, "verdict", check->verdict);
	json_int(&j, "exit", code);
	json_bool(&j, "works", check->works);
	json_bool(&j, "known", check->known);
	json_text(&j, "class", check->works ? class_name(check->reached) : NULL);
	json_text(&j, "machine", check->machine);
	json_bool(&j, "captured", check->captured);
	json_text(&j, "target", check->target);
	json_text(&j, "device", check->device);
	json_object(&j, "gates");
	for (unsigned i = 0; i < check->line_count; i++)
		gate_print_json(&j, &check->lines[i]);
	json_end(&j);
	json_bool(&j, "probed", check->probed);
	json_text(&j, "engine", check->probed ? check->engine : NULL);
	json_text(&j, "cold", checked_path_name(check, check->cold));
	json_text(&j, "warm", checked_path_name(check, check->warm));
	json_object(&j, "paths");
	for (unsigned i = 0; check->probed && i < check->path_count; i++)
		path_print_json(&j, &check->paths[i], drive);
	json_end(&j);
	json_close(&j);
}
