/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main program of the command `penstock`: finds the subcommand and runs it. The help is in the
 * tables of the subcommands.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const struct command *const commands[] = {
	&cmd_check, &cmd_explain, &cmd_cp,  &cmd_load,	&cmd_ckpt,  &cmd_bench,
	&cmd_topo,  &cmd_stats,	  &cmd_run, &cmd_gdsio, &cmd_model, &cmd_serve, &cmd_plane,
	NULL,
};

static void print_help(FILE *f)
{
	fprintf(f,
		"penstock %s: from storage to device memory by the most direct path\n\n"
		"usage: penstock COMMAND [ARGUMENTS]\n\n",
		penstock_version());
	for (unsigned i = 0; commands[i]; i++)
		fprintf(f, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
	fprintf(f, "\nStorage: /path, file:///path, a block device, s3://bucket/key, "
		   "mem:1GiB?seed=7\n"
		   "Devices: host, cuda:0, peermem:0000:04:00.0, auto (the first GPU, else host)\n"
		   "'penstock help COMMAND' lists the options of a command.\n"
		   "Exit codes: 0 done, 1 failed, 2 usage, 3 refused by --require.\n");
}

/*
 * Opens /dev/null for each of the descriptors 0 to 2 that the caller closed. Otherwise a file
 * opened later could get such a number, and output could overwrite that file. The new
 * descriptors are read-only, so that a write to them fails and the command reports the failure.
 * They are close-on-exec, so that a program started by exec finds them closed, as the caller of
 * this command left them.
 */
static void reserve_std_fds(void)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY | O_CLOEXEC) != fd)
			/* prints nothing, because standard error may be closed */
			_exit(EXIT_FAILED);
}

/* Flushes standard output. Returns `code`, or a failure code if output was lost, even if the
 * subcommand itself succeeded. */
static int output_close(int code)
{
	/* whether an earlier write failed; the errno of that write is no longer known */
	bool lost = ferror(stdout);

	errno = flush_output();
	if (!errno && !lost)
		return code;
	fail(EXIT_FAILED, "standard output cannot be written%s%s", errno ? ": " : "",
	     errno ? strerror(errno) : "");
	return code && code != EXIT_NOT_DIRECT ? code : EXIT_FAILED;
}

static int command_unknown(const char *word)
{
	const char *names[sizeof(commands) / sizeof(commands[0])];
	const char *similar;
	unsigned i = 0;

	for (; commands[i]; i++)
		names[i] = commands[i]->name;
	names[i] = NULL;
	similar = closest(word, names);
	if (similar)
		return fail(EXIT_USAGE, "there is no command '%s', did you mean '%s'?", word,
			    similar);
	return fail(EXIT_USAGE, "there is no command '%s', see 'penstock --help'", word);
}

static const struct command *command_find(const char *name)
{
	for (unsigned i = 0; commands[i]; i++)
		if (!strcmp(name, commands[i]->name))
			return commands[i];
	return NULL;
}

/* Returns whether the user asked for JSON. It looks for the option itself, because a command may
 * fail before it has parsed its options. */
static bool json_is_wanted(const struct command *cmd, int argc, char **argv)
{
	if (cmd && cmd->becomes)
		return false;
	for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (strlen(argv[i]) > 2 && !strncmp("--json", argv[i], strlen(argv[i])))
			return true;
	return false;
}

/* If the command has failed before it could print its object, prints an object with the error. A
 * failure to write it is not reported, because the command has already printed its error. */
static void print_json_error(int code)
{
	struct json j;

	if (!code || json_begun() || !fail_text()[0])
		return;
	json_open(&j, stdout);
	json_bool(&j, "ok", false);
	json_failure(&j, code, fail_text());
	json_close(&j);
	fflush(stdout);
}

static bool word_is_one_of(const char *word, const char *a, const char *b, const char *c)
{
	return !strcmp(word, a) || !strcmp(word, b) || !strcmp(word, c);
}

static int command_run(int argc, char **argv)
{
	const struct command *cmd = command_find(argv[1]);

	if (cmd)
		return cmd->run(argc - 1, argv + 1);
	if (word_is_one_of(argv[1], "--version", "-V", "version")) {
		printf("penstock %s\n", penstock_version());
		return EXIT_DONE;
	}
	if (!word_is_one_of(argv[1], "--help", "-h", "help"))
		return command_unknown(argv[1]);
	if (argc > 2 && !command_find(argv[2]) && strcmp(argv[2], "help") != 0)
		return command_unknown(argv[2]);
	if (argc > 2 && command_find(argv[2]))
		print_usage(stdout, command_find(argv[2]));
	else
		print_help(stdout);
	return EXIT_DONE;
}

int main(int argc, char **argv)
{
	const struct command *cmd = argc > 1 ? command_find(argv[1]) : NULL;
	int code;

	reserve_std_fds();
	if (!cmd || !cmd->becomes) {
		signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe then fails with EPIPE */
		signal(SIGXFSZ, SIG_IGN); /* a write beyond 'ulimit -f' then fails with EFBIG */
	}
	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	code = output_close(command_run(argc, argv));
	if (json_is_wanted(cmd, argc, argv))
		print_json_error(code);
	return code;
}
