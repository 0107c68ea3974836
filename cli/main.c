/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command `penstock`: finds the subcommand and runs it. Help comes from the
 * subcommands' own tables.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const struct command *const commands[] = {
	&cmd_check, &cmd_explain, &cmd_cp,  &cmd_load,	&cmd_bench,
	&cmd_topo,  &cmd_stats,	  &cmd_run, &cmd_gdsio, NULL,
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
		   "'penstock help COMMAND' tells more; exit codes: 0 done, 1 failed, 2 usage,\n"
		   "3 refused by --require.\n");
}

/* What opens a file must not get the number of an output that the caller closed, or a
 * report ends up in it. Read-only: writing there fails, and is told. What another
 * program is started for finds them closed, as they were. */
static void keep_places(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY | O_CLOEXEC) != fd)
			_exit(EXIT_FAILED); /* nowhere to say why */
}

/* A report that was not written is a failure, whatever it would have said. */
static int close_output(int code)
{
	bool lost = ferror(stdout); /* by a full buffer, of which nobody knows why any more */

	errno = flush_output();
	if (!errno && !lost)
		return code;
	fail(EXIT_FAILED, "standard output cannot be written%s%s", errno ? ": " : "",
	     errno ? strerror(errno) : "");
	return code && code != EXIT_NOT_DIRECT ? code : EXIT_FAILED;
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

static const struct command *find(const char *name)
{
	for (unsigned i = 0; commands[i]; i++)
		if (!strcmp(name, commands[i]->name))
			return commands[i];
	return NULL;
}

static bool is(const char *word, const char *a, const char *b, const char *c)
{
	return !strcmp(word, a) || !strcmp(word, b) || !strcmp(word, c);
}

static int run(int argc, char **argv)
{
	const struct command *cmd = find(argv[1]);

	if (cmd)
		return cmd->run(argc - 1, argv + 1);
	if (is(argv[1], "--version", "-V", "version")) {
		printf("penstock %s\n", penstock_version());
		return EXIT_DONE;
	}
	if (!is(argv[1], "--help", "-h", "help"))
		return unknown(argv[1]);
	if (argc > 2 && !find(argv[2]) && strcmp(argv[2], "help") != 0)
		return unknown(argv[2]);
	if (argc > 2 && find(argv[2]))
		print_usage(stdout, find(argv[2]));
	else
		print_help(stdout);
	return EXIT_DONE;
}

int main(int argc, char **argv)
{
	const struct command *cmd = argc > 1 ? find(argv[1]) : NULL;

	keep_places();
	if (!cmd || !cmd->becomes) {
		signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error like any other, */
		signal(SIGXFSZ, SIG_IGN); /* and so is more than 'ulimit -f' lets a file have */
	}
	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	return close_output(run(argc, argv));
}
