/* SPDX-License-Identifier: Apache-2.0 */
/* Adds up the reports of several requests, and prints the sum as text or JSON. */
#ifndef PENSTOCK_CLI_TALLY_H
#define PENSTOCK_CLI_TALLY_H

#include "json.h"
#include "penstock.h"

struct tally {
	const char *names[PENSTOCK_PATHS_MAX];
	uint64_t path_bytes[PENSTOCK_PATHS_MAX];
	/* for each path, the engine that tally_add() elected as the main one, and its lead in
	 * bytes */
	const char *engines[PENSTOCK_PATHS_MAX];
	uint64_t engine_lead[PENSTOCK_PATHS_MAX];
	enum penstock_why why[PENSTOCK_PATHS_MAX];
	/* for each path: sentence that explains why[i], the reason why it was not used */
	char text[PENSTOCK_PATHS_MAX][PENSTOCK_TEXT_MAX];
	unsigned path_count;
	uint64_t bytes, cpu_copied, dram_laid, retries, chunks;
	enum penstock_why engine_why;
};
void tally_add(struct tally *t, const struct penstock_report *report);
void tally_merge(struct tally *t, const struct tally *other);
/* Returns the path that carried most bytes, or "none". */
const char *tally_path(const struct tally *t);
/* Returns the main engine of the path that tally_path() returns, or "none". */
const char *tally_engine(const struct tally *t);
void tally_json(struct json *j, const struct tally *t);
void tally_print(FILE *f, const char *label, const struct tally *t);

#endif
