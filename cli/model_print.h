/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the results of `penstock model` as text, JSON or CSV. */
#ifndef PENSTOCK_CLI_MODEL_PRINT_H
#define PENSTOCK_CLI_MODEL_PRINT_H

#include "json.h"
#include "model_setting.h"

/* Maximum number of settings that one table compares, each in a column of its own: the setting of
 * the command line, and up to four of --compare. */
#define MODEL_COLUMNS 5

struct model_columns {
	struct model_run *runs;
	const char *titles[MODEL_COLUMNS];
	unsigned count;
};

/* The results of a sweep: outs[i] has the model's results for value number i of the parameter. */
struct model_points {
	struct model_sweep sweep;
	double (*outs)[PST_MODEL_RESULTS];
	/* results to print; if result_count is 0, text shows the first few results, and CSV shows
	 * all */
	unsigned results[PST_MODEL_RESULTS], result_count;
};

void model_print_text(const struct model_columns *c);
void model_print_json(const struct model_columns *c);
void model_print_csv(const struct model_columns *c);
void model_print_points_text(const struct model_run *r, const struct model_points *p);
void model_print_points_json(const struct model_run *r, const struct model_points *p);
void model_print_points_csv(const struct model_run *r, const struct model_points *p);
#endif
