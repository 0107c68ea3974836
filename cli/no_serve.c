/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces serve.c in builds without the gateway: `penstock serve` prints which libraries the build
 * needs. */
#include "cli.h"

static int serve_run(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return fail(EXIT_FAILED, "this build has no gateway: install libmicrohttpd-dev, "
				 "libexpat1-dev and libssl-dev, and build with make install (a "
				 "build by pip has no gateway)");
}

const struct command cmd_serve = {
	.name = "serve",
	.usage = "",
	.summary = "serve the files of a folder as objects (not in this build)",
	.help = "This build has no gateway.\n",
	.run = serve_run,
};
