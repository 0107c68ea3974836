/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Derives the verdict from the lines of all gates. The verdict tells whether bytes arrive and in
 * which class, and has a sentence for people. If the probe (a test transfer) has measured a path,
 * this result counts more than the gates (conditions of a path). Called by check.c. The verdict
 * must never be "direct" if it depends on a gate whose state is unknown.
 */
#include "verdict.h"

#include <stdio.h>
#include <string.h>

/* Writes the names of the gates that are in the state `state` and whose need (the effect of a gate
 * that is not open) is at least `least`. Returns the number of such gates. */
static unsigned list_lines(const struct pst_check *check, enum pst_check_state state,
			   enum pst_check_need least, char *out, size_t len)
{
	unsigned i, count = 0;
	size_t at = 0;

	out[0] = '\0';
	for (i = 0; i < check->line_count; i++) {
		const struct pst_check_line *line = &check->lines[i];

		if (line->state != state || line->need < least)
			continue;
		if (at + strlen(line->name) + 3 < len)
			at += (size_t)snprintf(out + at, len - at, "%s%s", count ? ", " : "",
					       line->name);
		count++;
	}
	return count;
}

static bool any_line(const struct pst_check *check, enum pst_check_state state,
		     enum pst_check_need need)
{
	unsigned i;

	for (i = 0; i < check->line_count; i++)
		if (check->lines[i].state == state && check->lines[i].need == need)
			return true;
	return false;
}

static void verdict_from_gates(struct pst_check *check)
{
	bool shut = any_line(check, PST_CHECK_NO, PST_NEED_DIRECT);
	bool copied = any_line(check, PST_CHECK_NO, PST_NEED_NO_COPY);

	check->works = !any_line(check, PST_CHECK_NO, PST_NEED_WORK);
	check->known = !any_line(check, PST_CHECK_UNKNOWN, PST_NEED_WORK);
	check->reached = copied ? PENSTOCK_ANY : shut ? PENSTOCK_NO_CPU_COPY : PENSTOCK_DIRECT;
	if (!copied && any_line(check, PST_CHECK_UNKNOWN, PST_NEED_NO_COPY)) {
		check->reached = PENSTOCK_ANY;
		check->known = false;
	} else if (!copied && !shut && any_line(check, PST_CHECK_UNKNOWN, PST_NEED_DIRECT)) {
		check->reached = PENSTOCK_NO_CPU_COPY;
		check->known = false;
	}
}

/* Returns whether no verdict is possible because no path was given. That is so only for the
 * device "host": any drive can write to host memory, so only the file system of the path
 * decides. */
static bool target_is_missing(const struct pst_check_facts *f)
{
	return f->host && !f->has_file && !f->is_url;
}

static void verdict_from_probe(struct pst_check *check)
{
	check->known = true;
	check->works = check->cold >= 0 && !check->paths[check->cold].error[0];
	check->reached = check->works ? check->paths[check->cold].explained.meets : PENSTOCK_ANY;
}

/* Returns whether the file is on a virtual drive. A guest cannot see the hardware behind such a
 * drive. */
static bool drive_is_virtual(const struct pst_check_facts *f)
{
	unsigned i;

	for (i = 0; i < f->drive_count; i++)
		if (f->has_file && !strncmp(f->drives[i].transport, "virtio", 6))
			return true;
	return false;
}

static void describe_probed(const struct pst_check_facts *f, struct pst_check *check)
{
	const struct pst_check_path *p = &check->paths[check->cold];
	const char *copies = check->reached == PENSTOCK_ANY ? "the CPU copies" : "no CPU copy";
	bool direct = check->reached == PENSTOCK_DIRECT;
	char names[160] = "";

	if (!direct)
		list_lines(check, PST_CHECK_NO, PST_NEED_DIRECT, names, sizeof(names));
	snprintf(check->verdict, sizeof(check->verdict), "%s: %s%s, %.2f GB/s, %s%s%s%s",
		 direct ? "direct" : "works, not direct", p->explained.name,
		 p->explained.proven > 0 ? ", proven by canary" : "", p->gb_per_s, copies,
		 check->reached != PENSTOCK_ANY && drive_is_virtual(f) ? ", as this guest sees it"
								       : "",
		 names[0] ? "; shut by " : "", names);
}

void pst_check_verdict(const struct pst_check_facts *f, struct pst_check *check)
{
	char names[160];

	if (check->probed)
		verdict_from_probe(check);
	else
		verdict_from_gates(check);
	if (target_is_missing(f)) {
		check->known = false;
		check->reached = PENSTOCK_ANY;
		snprintf(
			check->verdict, sizeof(check->verdict),
			"a transfer into host memory depends on the file: give a PATH to check it");
	} else if (!check->works) {
		list_lines(check, PST_CHECK_NO, PST_NEED_WORK, names, sizeof(names));
		if (check->probed && check->cold >= 0)
			snprintf(check->verdict, sizeof(check->verdict),
				 "does not work: path %s is used, and failed: %.180s",
				 check->paths[check->cold].explained.name,
				 check->paths[check->cold].error);
		else
			snprintf(check->verdict, sizeof(check->verdict), "does not work: %s",
				 names[0] ? names : "no path is open");
	} else if (check->probed) {
		describe_probed(f, check);
	} else if (check->reached == PENSTOCK_DIRECT) {
		snprintf(check->verdict, sizeof(check->verdict),
			 "direct, as far as %s: every gate is open%s",
			 drive_is_virtual(f) ? "this guest sees" : "can be seen",
			 f->is_url     ? ""
			 : f->has_file ? ", nothing was tried"
				       : ", give a PATH to try it");
	} else if (!any_line(check, PST_CHECK_NO, PST_NEED_DIRECT) &&
		   !any_line(check, PST_CHECK_NO, PST_NEED_NO_COPY) && !check->known) {
		list_lines(check, PST_CHECK_UNKNOWN, PST_NEED_DIRECT, names, sizeof(names));
		snprintf(check->verdict, sizeof(check->verdict),
			 "works; it is not known whether it is direct: %s", names);
	} else {
		list_lines(check, PST_CHECK_NO, PST_NEED_DIRECT, names, sizeof(names));
		snprintf(check->verdict, sizeof(check->verdict), "works, not direct%s: shut by %s",
			 check->reached == PENSTOCK_ANY && check->known ? ", the CPU copies" : "",
			 names);
		if (!check->known) {
			size_t at = strlen(check->verdict);

			list_lines(check, PST_CHECK_UNKNOWN, PST_NEED_NO_COPY, names,
				   sizeof(names));
			snprintf(check->verdict + at, sizeof(check->verdict) - at,
				 "; it is not known whether the CPU copies: %s", names);
		}
	}
}
