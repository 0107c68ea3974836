/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's page: one HTML file that computes the models in a browser. */
#ifndef PENSTOCK_CLI_MODEL_PAGE_H
#define PENSTOCK_CLI_MODEL_PAGE_H

#include <stdint.h>

/* Writes the page to the file `path`. Returns 0, or an exit code after an error message. */
int model_page_write(const char *path);
/* Serves the page to browsers of this machine until a signal ends the command. Port 0 stands for
 * any free port. Returns an exit code. */
int model_page_serve(uint16_t port);

#endif
