/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Includes the headers that the subcommands share, and declares the tables of the subcommands. Each
 * subcommand's file ends with its table; main.c lists the tables. The command `penstock` uses only
 * the public API of the library, src/check and src/model.
 * ARCHITECTURE.md, section Words, explains the project's words.
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
	cmd_stats, cmd_run, cmd_gdsio, cmd_ckpt, cmd_model, cmd_serve, cmd_plane;

#endif
