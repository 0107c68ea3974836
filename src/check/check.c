/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the check: reads the facts, inspects every gate (a condition of a direct path) in the order
 * of the tables, and derives the verdict. Called by the command `penstock check`. A failure in one
 * gate must never suppress the line of another gate.
 */
#include "check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facts.h"
#include "gates_device.h"
#include "gates_endpoint.h"
#include "gates_fabric.h"
#include "gates_file.h"
#include "gates_limits.h"
#include "gates_pcie.h"
#include "pick.h"
#include "probe.h"
#include "target.h"
#include "verdict.h"

static void gates_inspect(const struct pst_check_facts *f, const struct pst_check_gate *gates,
			  struct pst_check *check)
{
	for (; gates->name; gates++) {
		struct pst_check_line *line = &check->lines[check->line_count];

		if (check->line_count == PST_CHECK_LINES_MAX)
			return;
		*line = (struct pst_check_line){.name = gates->name,
						.layer = gates->layer,
						.need = gates->need,
						.why = gates->why};
		gates->inspect(f, line);
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

static void describe_machine(const struct pst_check_facts *f, struct pst_check *check)
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
		pst_subjects_text(f->devices, f->device_count, check->device,
				  sizeof(check->device));
}

int pst_check_run(const struct pst_check_opts *opts, struct pst_check **out, char *why,
		  size_t why_len)
{
	static const struct pst_check_gate *const tables[] = {
		pst_check_device_gates,	  pst_check_pcie_gates,	 pst_check_fabric_gates,
		pst_check_endpoint_gates, pst_check_limit_gates, pst_check_file_gates};
	struct pst_check *check = calloc(1, sizeof(*check));
	struct pst_check_facts *f = calloc(1, sizeof(*f));
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
	ret = pst_facts_read(f, why, why_len);
	if (!ret)
		ret = pst_check_pick(f, why, why_len);
	if (!ret && opts->target)
		ret = pst_check_target(f, why, why_len);
	if (ret < 0)
		goto out;
	check->captured = f->captured;
	describe_machine(f, check);
	if (f->has_file && !f->captured)
		pst_check_probe(f);
	if (f->is_url && !f->captured)
		pst_check_try_endpoint(f);
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		gates_inspect(f, tables[i], check);
	pst_check_verdict(f, check);
	*out = check;
	check = NULL;
out:
	if (f)
		pst_facts_free(f);
	free(f);
	free(check);
	return ret;
}

void pst_check_free(struct pst_check *check)
{
	free(check);
}
