/* SPDX-License-Identifier: Apache-2.0 */
/* penstock topo, penstock stats: what the library shows from outside. */
#include <fcntl.h>
#include <unistd.h>

#include "cli.h"

/* The library would say what is wrong with a descriptor, here it has a name. */
static bool can_print(void)
{
	if ((fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) != O_RDONLY)
		return true;
	fail(EXIT_FAILED, "standard output cannot be written: it is not open for writing");
	return false;
}

static int run_topo(int argc, char **argv)
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
		return fail(EXIT_USAGE, "topo takes no argument, '%s' is one", argv[optind]);
	if (!can_print())
		return EXIT_FAILED;
	if (penstock_topo(root, json, STDOUT_FILENO) < 0)
		return fail_lib();
	return EXIT_DONE;
}

const struct command cmd_topo = {
	.name = "topo",
	.usage = "[--json] [--sys-root DIR]",
	.summary = "GPUs, drives, NICs, NUMA nodes, and how near they are to each other",
	.help = "  --json          one object, see penstock-json(5)\n"
		"  --sys-root DIR  read DIR/sys and DIR/proc instead (a captured machine)\n",
	.run = run_topo,
};

static int run_stats(int argc, char **argv)
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
		return fail(EXIT_USAGE, "stats wants the number of one process, see pgrep(1)");
	if (!can_print())
		return EXIT_FAILED;
	if (penstock_stats((int)pid, json, STDOUT_FILENO) < 0)
		return fail(EXIT_FAILED, "%s", penstock_errmsg());
	return EXIT_DONE;
}

const struct command cmd_stats = {
	.name = "stats",
	.usage = "PID [--json]",
	.summary = "the counters of a running process of yours",
	.help = "  --json  one object, see penstock-json(5)\n",
	.run = run_stats,
};
