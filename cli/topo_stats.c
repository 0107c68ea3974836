/* SPDX-License-Identifier: Apache-2.0 */
/* Implements `penstock topo` and `penstock stats`, which print what the library reports about
 * the machine and about a running process. */
#include <fcntl.h>
#include <unistd.h>

#include "cli.h"

/* Returns whether standard output is open for writing; prints the error if it is not. The library
 * writes to the descriptor, not to stdout. Without this check, the library's error message could
 * name only the descriptor's number. */
static bool stdout_is_writable(void)
{
	if ((fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) != O_RDONLY)
		return true;
	fail(EXIT_FAILED, "standard output cannot be written: open it for writing");
	return false;
}

static int topo_main(int argc, char **argv)
{
	static const struct option options[] = {{"json", no_argument, NULL, 'j'},
						{"sys-root", required_argument, NULL, 'r'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	const char *root = NULL;
	int json = 0, c;

	while ((c = next_option(argc, argv, &cmd_topo, options)) != -1) {
		if (c == 'j')
			json = 1;
		else if (c == 'r')
			root = optarg;
		else
			return c == 'h' ? EXIT_DONE : EXIT_USAGE;
	}
	if (optind != argc)
		return fail(EXIT_USAGE, "topo accepts no argument, remove '%s'", argv[optind]);
	if (!stdout_is_writable())
		return EXIT_FAILED;
	if (penstock_topo(root, json, STDOUT_FILENO) < 0)
		return fail_lib();
	return EXIT_DONE;
}

const struct command cmd_topo = {
	.name = "topo",
	.usage = "[--json] [--sys-root DIR]",
	.summary = "show GPUs, drives, NICs, NUMA nodes, and the distances between them",
	.help = "  --json          print one JSON object, see penstock-json(5)\n"
		"  --sys-root DIR  read a captured machine: DIR/sys and DIR/proc\n",
	.run = topo_main,
};

static int stats_main(int argc, char **argv)
{
	static const struct option options[] = {{"json", no_argument, NULL, 'j'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	uint64_t pid;
	int json = 0, c;

	while ((c = next_option(argc, argv, &cmd_stats, options)) != -1) {
		if (c != 'j')
			return c == 'h' ? EXIT_DONE : EXIT_USAGE;
		json = 1;
	}
	if (optind + 1 != argc || !parse_number(argv[optind], 1, 1u << 30, &pid))
		return fail(EXIT_USAGE, "stats needs the number of one process, see pgrep(1)");
	if (!stdout_is_writable())
		return EXIT_FAILED;
	if (penstock_stats((int)pid, json, STDOUT_FILENO) < 0)
		return fail(EXIT_FAILED, "%s", penstock_errmsg());
	return EXIT_DONE;
}

const struct command cmd_stats = {
	.name = "stats",
	.usage = "PID [--json]",
	.summary = "show the counters of a running process of this user",
	.help = "  --json  print one JSON object, see penstock-json(5)\n",
	.run = stats_main,
};
