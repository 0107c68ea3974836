/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The headers that the subcommands share, and the tables of the subcommands. Each
 * subcommand ends with its table, and main.c lists them. The command uses only the public
 * API of the library, and src/check.
 */
#ifndef PENSTOCK_CLI_H
#define PENSTOCK_CLI_H

#include "args.h"
#include "json.h"
#include "progress.h"
#include "stop.h"
#include "tally.h"
#include "verify.h"

extern const struct command cmd_check, cmd_explain, cmd_cp, cmd_load, cmd_bench, cmd_topo,
	cmd_stats, cmd_run, cmd_gdsio;

#endif
