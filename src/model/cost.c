/* SPDX-License-Identifier: Apache-2.0 */
/* The model `cost`. It computes the price of the time in which GPUs wait for storage, and the days
 * after which a faster storage path has saved more than it cost. */
#include <math.h>
#include <stddef.h>

#include "models.h"

enum { GPU_HOUR, GPUS, WAIT, DIRECT_WAIT, EVENTS, USE, COST, COST_YEAR, PARAMS };

static const struct pst_model_param params[] = {
	[GPU_HOUR] = {"gpu-hour", "price", NULL, 1, 0, 1e6, "price of a GPU for an hour",
		      "1, so that prices are GPU hours: give your own, or use a preset"},
	[GPUS] = {"gpus", "count", NULL, 64, 1, 1e7, "GPUs that wait together",
		  "8 nodes of 8 GPUs"},
	[WAIT] = {"wait-s", "s", NULL, 60, 0, 1e9, "waiting time of an event on the present path",
		  "an example: use `penstock model checkpoint` or `weights`"},
	[DIRECT_WAIT] = {"direct-wait-s", "s", NULL, 42, 0, 1e9,
			 "waiting time of an event on the direct path",
			 "an example: the published hops allow at most 1.44 times less"},
	[EVENTS] = {"events", "1/day", NULL, 48, 0, 1e9, "events a day",
		    "a checkpoint every 30 minutes"},
	[USE] = {"use", "ratio", NULL, 1, 0, 1, "share of the days on which the GPUs run",
		 "always"},
	[COST] = {"direct-cost", "price", NULL, 1000, 0, 1e12,
		  "one-time cost of the direct path: drives, cables, work",
		  "an example in GPU hours"},
	[COST_YEAR] = {"direct-cost-year", "price", NULL, 0, 0, 1e12,
		       "yearly cost of the direct path: support, work", "none"},
};

enum { HOURS, DAY, YEAR, DIRECT_HOURS, SAVED_HOURS, SAVED_DAY, SAVED_YEAR, BREAK_EVEN, RESULTS };

static const struct pst_model_result results[] = {
	[HOURS] = {"wasted-gpu-h", "h/day", NULL, "GPU hours lost a day on the present path",
		   "gpus * wait-s * events * use / 3600", "product"},
	[DAY] = {"wasted-day", "price", NULL, "their price a day", "wasted-gpu-h * gpu-hour",
		 "product"},
	[YEAR] = {"wasted-year", "price", NULL, "their price a year", "wasted-day * 365",
		  "product"},
	[DIRECT_HOURS] = {"direct-gpu-h", "h/day", NULL, "GPU hours lost a day on the direct path",
			  "gpus * direct-wait-s * events * use / 3600", "product"},
	[SAVED_HOURS] = {"saved-gpu-h", "h/day", NULL, "GPU hours that the direct path saves a day",
			 "wasted-gpu-h - direct-gpu-h", "difference"},
	[SAVED_DAY] = {"saved-day", "price", NULL, "price saved a day, without the yearly cost",
		       "saved-gpu-h * gpu-hour - direct-cost-year / 365", "difference"},
	[SAVED_YEAR] = {"saved-year", "price", NULL, "price saved a year", "saved-day * 365",
			"product"},
	[BREAK_EVEN] = {"break-even-days", "days", NULL,
			"days after which the direct path has paid for itself",
			"direct-cost / saved-day; none if it saves nothing", "equal sums"},
};

static const char *run(const double *in, double *out, struct pst_model_space *space)
{
	double each = in[GPUS] * in[EVENTS] * in[USE] / 3600;

	(void)space;
	out[HOURS] = each * in[WAIT];
	out[DAY] = out[HOURS] * in[GPU_HOUR];
	out[YEAR] = out[DAY] * 365;
	out[DIRECT_HOURS] = each * in[DIRECT_WAIT];
	out[SAVED_HOURS] = out[HOURS] - out[DIRECT_HOURS];
	out[SAVED_DAY] = out[SAVED_HOURS] * in[GPU_HOUR] - in[COST_YEAR] / 365;
	out[SAVED_YEAR] = out[SAVED_DAY] * 365;
	out[BREAK_EVEN] = out[SAVED_DAY] > 0 ? in[COST] / out[SAVED_DAY] : NAN;
	return NULL;
}

#define BLOCKS "Amazon EC2 Capacity Blocks page, rates in force until 2025-01-01, USD"

static const struct pst_model_preset presets[] = {
	{"aws-block-h100", "H100 of a p5.48xlarge, reserved", BLOCKS, {{"gpu-hour", 4.916}}},
	{"aws-block-h200", "H200 of a p5e.48xlarge, reserved", BLOCKS, {{"gpu-hour", 5.408}}},
	{"aws-block-a100", "A100 of a p4d.24xlarge, reserved", BLOCKS, {{"gpu-hour", 1.844}}},
};

const struct pst_model pst_model_cost = {
	.name = "cost",
	.summary = "price of waiting GPUs, and when the direct path has paid for itself",
	.params = params,
	.results = results,
	.presets = presets,
	.param_count = PARAMS,
	.result_count = RESULTS,
	.preset_count = sizeof(presets) / sizeof(presets[0]),
	.run = run,
};
