/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock check`: parses the options, runs the check of src/check, prints the
 * result for people, as JSON or as a script, and derives the exit code. The command must never
 * change the machine. The one exception is a scratch file next to PATH, which is always gone
 * when the command has ended.
 */
#include <errno.h>
#include <string.h>

#include "check.h"
#include "check_json.h"
#include "check_print.h"
#include "check_script.h"
#include "cli.h"

struct check_args {
	struct pst_check_opts opts;
	bool json, script, verbose, expects;
	enum penstock_class expect;
};

static int parse_expect(struct check_args *a, const char *word)
{
	a->expects = true;
	if (!parse_class(word, &a->expect))
		return EXIT_USAGE;
	if (a->expect == PENSTOCK_ANY)
		return fail(EXIT_USAGE, "--expect any: use direct or no-cpu-copy");
	return 0;
}

static int check_parse(int argc, char **argv, struct check_args *a)
{
	static const struct option options[] = {{"device", required_argument, NULL, 'd'},
						{"json", no_argument, NULL, 'j'},
						{"fix-script", no_argument, NULL, 'f'},
						{"expect", required_argument, NULL, 'e'},
						{"root", required_argument, NULL, 'r'},
						{"quick", no_argument, NULL, 'q'},
						{"verbose", no_argument, NULL, 'v'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	int c, ret = 0;

	while (!ret && (c = next_option(argc, argv, &cmd_check, options)) != -1) {
		if (c == 'd')
			a->opts.device = optarg;
		else if (c == 'j')
			a->json = true;
		else if (c == 'f')
			a->script = true;
		else if (c == 'e')
			ret = parse_expect(a, optarg);
		else if (c == 'r')
			a->opts.root = optarg;
		else if (c == 'q')
			a->opts.quick = true;
		else if (c == 'v')
			a->verbose = true;
		else
			return c == 'h' ? -1 : EXIT_USAGE;
	}
	if (ret)
		return ret;
	if (a->json && a->script)
		return fail(EXIT_USAGE, "--json and --fix-script cannot be combined: choose one");
	if (optind + 1 < argc)
		return fail(EXIT_USAGE, "check accepts one path or URL, remove '%s'",
			    argv[optind + 1]);
	if (optind < argc)
		a->opts.target = argv[optind];
	return 0;
}

/* Returns the exit code. A class of paths can depend on a gate (a requirement of a path) whose
 * state is unknown. The class then counts as not met. */
static int exit_code(const struct check_args *a, const struct pst_check *check)
{
	if (a->expects)
		return check->works && check->known && check->reached >= a->expect ? EXIT_DONE
										   : EXIT_REFUSED;
	if (!check->works)
		return EXIT_FAILED;
	return check->known && check->reached == PENSTOCK_DIRECT ? EXIT_DONE : EXIT_NOT_DIRECT;
}

static int check_main(int argc, char **argv)
{
	struct check_args a = {.expects = false};
	struct pst_check *check;
	char why[PENSTOCK_TEXT_MAX] = "";
	int ret = check_parse(argc, argv, &a);

	if (ret)
		return ret < 0 ? EXIT_DONE : ret;
	ret = pst_check_run(&a.opts, &check, why, sizeof(why));
	if (ret < 0)
		return fail(EXIT_FAILED, "check: %s%s", why,
			    ret == -ENODEV && penstock_errwhy() == PENSTOCK_WHY_NO_DRIVER
				    ? advice(PENSTOCK_WHY_NO_DRIVER)
				    : advice_errno(-ret));
	ret = exit_code(&a, check);
	if (a.json)
		check_print_json(stdout, check, ret);
	else if (a.script)
		check_print_script(stdout, check);
	else
		check_print(stdout, check, a.verbose);
	if (ret == EXIT_REFUSED)
		fail(ret, "check: %s was expected, the result is: %s", class_name(a.expect),
		     check->verdict);
	pst_check_free(check);
	return ret;
}

const struct command cmd_check = {
	.name = "check",
	.usage = "[PATH|URL] [options]",
	.summary = "check whether the direct path is open, and what to do if it is not",
	.help = "  --device D      device to check: host, cuda:0, peermem:0000:04:00.0 or auto\n"
		"  --verbose       print details of each device, and why each gate matters\n"
		"  --json          print one JSON object, see penstock-json(5)\n"
		"  --fix-script    print a shell script that opens the gates; does not run it\n"
		"  --expect CLASS  direct or no-cpu-copy: exit 3 unless the class is met\n"
		"  --root DIR      check a captured machine: read DIR/sys and DIR/proc, and\n"
		"                  measure nothing\n"
		"  --quick         measure each path for milliseconds instead of a second\n\n"
		"exit codes: 0 direct or --expect met, 1 does not work, 2 usage,\n"
		"3 --expect not met, 4 works but is not direct\n",
	.run = check_main,
};
