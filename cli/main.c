/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command `penstock`: finds the subcommand and runs it. Help comes from the
 * subcommands' own tables.
 */
#include <signal.h>
#include <string.h>

#include "cli.h"

static const struct command *const commands[] = {
	&cmd_check, &cmd_explain, &cmd_cp, &cmd_bench, &cmd_topo, &cmd_stats, NULL,
};

static void print_help(FILE *f)
{
	fprintf(f,
		"penstock %s: bytes from storage into device memory by the most direct path\n\n"
		"usage: penstock COMMAND [ARGUMENTS]\n\n",
		penstock_version());
	for (unsigned i = 0; commands[i]; i++)
		fprintf(f, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
	fprintf(f, "\nStorage: /path, file:///path, a block device, mem:1GiB?seed=7\n"
		   "Devices: host, cuda:0, peermem:0000:04:00.0, auto (the first GPU, else host)\n"
		   "'penstock COMMAND --help' tells more; exit codes: 0 done, 1 failed, 2 usage,\n"
		   "3 refused by --require.\n");
}

static int unknown(const char *word)
{
	const char *names[sizeof(commands) / sizeof(commands[0])];
	const char *near;
	unsigned i = 0;

	for (; commands[i]; i++)
		names[i] = commands[i]->name;
	names[i] = NULL;
	near = closest(word, names);
	if (near)
		return fail(EXIT_USAGE, "there is no command '%s', did you mean '%s'?", word, near);
	return fail(EXIT_USAGE, "there is no command '%s', see 'penstock --help'", word);
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error like any other */
	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		print_help(stdout);
		return EXIT_DONE;
	}
	if (!strcmp(argv[1], "--version")) {
		printf("penstock %s\n", penstock_version());
		return EXIT_DONE;
	}
	for (unsigned i = 0; commands[i]; i++)
		if (!strcmp(argv[1], commands[i]->name))
			return commands[i]->run(argc - 1, argv + 1);
	return unknown(argv[1]);
}
