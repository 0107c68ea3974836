/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a model in one process for `penstock load`: opens the model and the devices, loads, shows
 * the progress and verifies. Called by load.c, and by load_ranks.c in the process of each rank.
 */
#include "load_one.h"

#include <string.h>
#include <unistd.h>

#include "load_verify.h"

#define STEP (256ull << 20) /* Number of bytes between two updates of the progress. */

static void show_progress(struct loading *l, bool last)
{
	double rate = (double)l->tally.bytes / (seconds() - l->start + 1e-9);
	char done[32], speed[32];

	if (!progress_due(l->a->quiet, last, &l->shown))
		return;
	progress(last, "%3.0f %%  %s  %s/s",
		 l->total ? 100.0 * (double)l->tally.bytes / (double)l->total : 100.0,
		 human((double)l->tally.bytes, done, sizeof(done)),
		 human(rate, speed, sizeof(speed)));
}

static int on_report(void *user, unsigned file, const struct penstock_report *report)
{
	struct loading *l = user;

	(void)file;
	tally_add(&l->tally, report);
	show_progress(l, false);
	return load_stopped;
}

static int on_poll(void *user)
{
	(void)user;
	return load_stopped;
}

static void load_open(struct loading *l)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	opts.engine = l->a->engine;
	if (penstock_weights_open(l->a->model, &l->a->open, &l->w)) {
		load_note_lib(l);
		return;
	}
	l->files = penstock_weights_file_count(l->w);
	l->tensors = penstock_weights_count(l->w);
	for (unsigned i = 0; i < l->a->devices.count; i++) {
		if (penstock_device_open(l->a->devices.list[i], &opts, &l->devs[i]) < 0) {
			load_note_lib_code(l, code_without_device(l->a->load.require));
			return;
		}
		l->dev_count++;
		for (unsigned k = 0; k < i; k++)
			if (l->devs[k] == l->devs[i])
				load_note(l, EXIT_USAGE, "--device names %s twice",
					  penstock_device_name(l->devs[i]));
	}
	for (uint64_t i = 0; !l->code && i < penstock_weights_count(l->w); i++) {
		struct penstock_tensor t = {.size = sizeof(t)};
		struct penstock_shard s = {.size = sizeof(s)};

		penstock_weights_get(l->w, i, &t);
		if (!l->a->load.shard)
			l->total += t.bytes;
		else if (penstock_weights_shard(l->w, i, l->a->load.shard, &s))
			load_note_lib(l);
		else
			l->total += s.bytes;
	}
}

static void load_tensors(struct loading *l)
{
	struct penstock_load_opts opts = l->a->load;
	int ret;

	opts.each = on_report;
	opts.look = on_poll;
	opts.user = l;
	if (!l->a->effort_asked)
		opts.effort = penstock_weights_effort(l->w, (unsigned)l->a->ranks);
	if (isatty(STDERR_FILENO) && !l->a->quiet)
		opts.request_bytes = STEP;
	l->report.size = sizeof(l->report);
	l->start = seconds();
	ret = l->group ? penstock_group_load(l->group, l->w, l->devs, l->dev_count, &opts,
					     &l->report, &l->loaded)
		       : penstock_weights_load(l->w, l->devs, l->dev_count, &opts, &l->report,
					       &l->loaded);
	if (ret) {
		if (load_stopped)
			load_note(l, 128 + (int)load_stopped, "stopped by %s",
				  strsignal((int)load_stopped));
		load_note_lib(l);
	}
	l->took = seconds() - l->start;
	/* l->tally adds up the reports of single requests. These reports do not include the copies
	 * from the group's windows, which are buffers that one rank fills and all ranks copy from.
	 * l->report includes these copies. */
	if (l->group) {
		l->tally.cpu_copied = l->report.cpu_copied;
		l->tally.dram_laid = l->report.dram_laid;
	}
	for (l->part_count = 0; l->part_count < l->dev_count; l->part_count++) {
		struct part *p = &l->parts[l->part_count];

		snprintf(p->name, sizeof(p->name), "%s",
			 penstock_device_name(l->devs[l->part_count]));
		p->bytes = l->code ? 0 : l->total;
		p->took = l->took > 0 ? l->took : 1e-9;
	}
	show_progress(l, true);
}

void load_run(struct loading *l)
{
	load_open(l);
	if (!l->code)
		load_tensors(l);
	if (!l->code && l->a->verify)
		load_verify(l);
}

void load_close(struct loading *l)
{
	penstock_group_close(l->group);
	penstock_loaded_free(l->loaded);
	penstock_weights_close(l->w);
	for (unsigned i = 0; i < l->dev_count; i++)
		penstock_device_close(l->devs[i]);
}
