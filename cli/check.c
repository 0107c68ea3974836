/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock check: options, exit code, and which of the printers. It changes nothing
 * on the machine but for a scratch file beside PATH, which never stays.
 */
#include <errno.h>
#include <string.h>

#include "check_print.h"

struct args {
	struct pst_check_opts opts;
	bool json, script, verbose, expects;
	enum penstock_class expect;
};

static int parse_expect(struct args *a, const char *word)
{
	a->expects = true;
	if (!parse_class(word, &a->expect))
		return EXIT_USAGE;
	if (a->expect == PENSTOCK_ANY)
		return fail(EXIT_USAGE, "--expect wants direct or no-cpu-copy");
	return 0;
}

static int parse(int argc, char **argv, struct args *a)
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
		return fail(EXIT_USAGE, "--json and --fix-script exclude each other");
	if (optind + 1 < argc)
		return fail(EXIT_USAGE, "check takes one path or URL, '%s' is another",
			    argv[optind + 1]);
	if (optind < argc)
		a->opts.target = argv[optind];
	return 0;
}

/* Only what is known counts as met. */
static int exit_code(const struct args *a, const struct pst_check *check)
{
	if (a->expects)
		return check->works && check->known && check->reached >= a->expect ? EXIT_DONE
										   : EXIT_REFUSED;
	if (!check->works)
		return EXIT_FAILED;
	return check->known && check->reached == PENSTOCK_DIRECT ? EXIT_DONE : EXIT_NOT_DIRECT;
}

static int run(int argc, char **argv)
{
	struct args a = {.expects = false};
	struct pst_check *check;
	char why[PENSTOCK_TEXT_MAX] = "";
	int ret = parse(argc, argv, &a);

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
		fail(ret, "check: %s was expected: %s", class_name(a.expect), check->verdict);
	pst_check_free(check);
	return ret;
}

const struct command cmd_check = {
	.name = "check",
	.usage = "[PATH|URL] [options]",
	.summary = "is the direct path open here, and what to do where it is not",
	.help = "  --device D      host, cuda:0, peermem:0000:04:00.0 or auto\n"
		"  --verbose       what was seen, device by device; why each gate matters\n"
		"  --json          one object, see penstock-json(5)\n"
		"  --fix-script    print a shell script that opens what can be opened; it is\n"
		"                  not run\n"
		"  --expect CLASS  direct or no-cpu-copy: exit 3 unless it is met\n"
		"  --root DIR      DIR/sys and DIR/proc are the machine (a capture); nothing is\n"
		"                  tried on it\n"
		"  --quick         milliseconds for each path in place of a second\n\n"
		"exit codes: 0 direct or --expect met, 1 does not work, 2 usage,\n"
		"3 --expect not met, 4 works but is not direct\n",
	.run = run,
};
