/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the results of a sweep as an SVG file. */
#ifndef PENSTOCK_CLI_MODEL_PLOT_H
#define PENSTOCK_CLI_MODEL_PLOT_H

#include "model_print.h"

/* Writes the plot to the file `path`. Returns 0, or an exit code after an error message. */
int model_plot(const char *path, const struct model_run *r, const struct model_points *p);

#endif
