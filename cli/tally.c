/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds up the reports of several requests and prints the sum: the path that carried most bytes, the
 * bytes of each path, the copies by the CPU and the writes to host memory for each byte, and the
 * reason why each unused path was not used. Called by the commands that transfer bytes.
 */
#include "tally.h"

#include <string.h>

#include "args.h"

/* Returns whether reason `why` is more informative than reason `than`. The least informative
 * reason is "chosen other": every path that was not tried has it. */
static bool reason_is_better(enum penstock_why why, enum penstock_why than)
{
	if (than == PENSTOCK_WHY_NONE)
		return why != PENSTOCK_WHY_NONE;
	return than == PENSTOCK_WHY_CHOSEN_OTHER && why != PENSTOCK_WHY_NONE && why != than;
}

/* Adds `bytes` that `engine` carried on path `i`, and elects the main engine of the path
 * (Boyer-Moore majority vote). The lead of the elected engine grows with its own bytes and shrinks
 * with the bytes of other engines. If one engine carries more than half of the path's bytes, it is
 * elected in the end. */
static void tally_add_engine(struct tally *t, unsigned i, const char *engine, uint64_t bytes)
{
	if (t->engines[i] && !strcmp(t->engines[i], engine)) {
		t->engine_lead[i] += bytes;
	} else if (bytes > t->engine_lead[i] || !t->engines[i]) {
		t->engines[i] = engine;
		t->engine_lead[i] = bytes - t->engine_lead[i];
	} else {
		t->engine_lead[i] -= bytes;
	}
}

void tally_add(struct tally *t, const struct penstock_report *report)
{
	t->path_count = report->path_count;
	t->bytes += report->bytes;
	t->cpu_copied += report->cpu_copied;
	t->dram_laid += report->dram_laid;
	t->retries += report->retries;
	t->chunks += report->chunks;
	/* stores the reason of the latest report that has a reason */
	if (report->engine_why != PENSTOCK_WHY_NONE)
		t->engine_why = report->engine_why;
	for (unsigned i = 0; i < report->path_count; i++) {
		const struct penstock_report_path *path = &report->paths[i];

		t->names[i] = path->name;
		t->path_bytes[i] += path->bytes;
		if (path->bytes)
			tally_add_engine(t, i, path->engine, path->bytes);
		if (reason_is_better(path->why, t->why[i])) {
			t->why[i] = path->why;
			snprintf(t->text[i], sizeof(t->text[i]), "%s", path->text);
		}
	}
}

void tally_merge(struct tally *t, const struct tally *other)
{
	struct penstock_report r = {.bytes = other->bytes,
				    .cpu_copied = other->cpu_copied,
				    .dram_laid = other->dram_laid,
				    .retries = other->retries,
				    .chunks = other->chunks,
				    .engine_why = other->engine_why};

	if (!other->path_count)
		return; /* no request was added to `other` */
	r.path_count = other->path_count;
	for (unsigned i = 0; i < other->path_count; i++)
		r.paths[i] = (struct penstock_report_path){.name = other->names[i],
							   .bytes = other->path_bytes[i],
							   .engine = other->engines[i],
							   .why = other->why[i],
							   .text = other->text[i]};
	tally_add(t, &r);
}

/* Returns the index of the path that carried most bytes, or -1 if no byte moved. */
static int best_path(const struct tally *t)
{
	uint64_t most = 0;
	int best = -1;

	for (unsigned i = 0; i < t->path_count; i++) {
		if (t->path_bytes[i] > most) {
			most = t->path_bytes[i];
			best = (int)i;
		}
	}
	return best;
}

const char *tally_path(const struct tally *t)
{
	int best = best_path(t);

	return best < 0 ? "none" : t->names[best];
}

const char *tally_engine(const struct tally *t)
{
	int best = best_path(t);

	return best < 0 ? "none" : t->engines[best];
}

static double ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

/* Returns the reason why the preferred engine (io_uring) was not used, or "" if it was used. */
static const char *engine_reason(const struct tally *t)
{
	return t->engine_why == PENSTOCK_WHY_NONE ? "" : penstock_why_text(t->engine_why);
}

void tally_json(struct json *j, const struct tally *t)
{
	json_text(j, "path", tally_path(t));
	json_text(j, "engine", tally_engine(t));
	json_text(j, "engine_reason", engine_reason(t));
	json_object(j, "paths");
	for (unsigned i = 0; i < t->path_count; i++)
		if (t->path_bytes[i])
			json_int(j, t->names[i], (int64_t)t->path_bytes[i]);
	json_end(j);
	json_real(j, "cpu_copies", ratio(t->cpu_copied, t->bytes));
	json_real(j, "dram_passes", ratio(t->dram_laid, t->bytes));
	json_object(j, "reasons");
	for (unsigned i = 0; i < t->path_count; i++) {
		if (t->why[i] == PENSTOCK_WHY_NONE)
			continue;
		json_object(j, t->names[i]);
		json_text(j, "code", penstock_why_name(t->why[i]));
		json_text(j, "text", t->text[i]);
		json_end(j);
	}
	json_end(j);
	json_int(j, "chunks", (int64_t)t->chunks);
	json_int(j, "retries", (int64_t)t->retries);
}

void tally_print(FILE *f, const char *label, const struct tally *t)
{
	char size[32];

	fprintf(f, "%s\n", label);
	for (unsigned i = 0; i < t->path_count; i++)
		if (t->path_bytes[i])
			fprintf(f, "  %-8s %12s by %s\n", t->names[i],
				human((double)t->path_bytes[i], size, sizeof(size)), t->engines[i]);
	if (engine_reason(t)[0]) {
		fprintf(f, "  %-8s %12s ", "engine", tally_engine(t));
		print_words(f, 24, engine_reason(t));
	}
	for (unsigned i = 0; i < t->path_count; i++)
		if (!t->path_bytes[i] && t->why[i] != PENSTOCK_WHY_NONE) {
			fprintf(f, "  %-8s %12s ", t->names[i], "-");
			print_words(f, 24, t->text[i]);
		}
	fprintf(f, "  CPU copies %.2f, DRAM passes %.2f, %llu chunks, %llu retries\n",
		ratio(t->cpu_copied, t->bytes), ratio(t->dram_laid, t->bytes),
		(unsigned long long)t->chunks, (unsigned long long)t->retries);
}
