/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock ckpt`: lists the checkpoints of a folder, verifies a checkpoint against
 * its manifests, and removes old and incomplete checkpoints. It prints each removal, and asks for
 * no confirmation.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "penstock_ckpt.h"

enum action { LIST, VERIFY, PRUNE };

struct ckpt_args {
	enum action action;
	const char *dir;
	uint64_t keep;
	bool dry_run, newest, json, quiet;
};

/* State of the functions that print: the arguments, the JSON object, counts, and times. */
struct output {
	const struct ckpt_args *a;
	struct json j;
	uint64_t count, bytes; /* number of checkpoints, faults or removals; removed bytes */
	double start, shown;
};

static int ckpt_parse(int argc, char **argv, struct ckpt_args *a)
{
	static const struct option options[] = {{"keep", required_argument, NULL, 'k'},
						{"dry-run", no_argument, NULL, 'n'},
						{"newest", no_argument, NULL, 'N'},
						{"json", no_argument, NULL, 'j'},
						{"quiet", no_argument, NULL, 'q'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	static const char *const actions[] = {"list", "verify", "prune", NULL};
	const char *only = NULL; /* name of the last option that only `prune` has; NULL: none */
	int c;

	while ((c = next_option(argc, argv, &cmd_ckpt, options)) != -1) {
		if (c == 'k') {
			if (!parse_number(optarg, 1, UINT32_MAX, &a->keep))
				return fail(EXIT_USAGE, "--keep needs a number of 1 or more");
			only = "--keep";
		} else if (c == 'n') {
			a->dry_run = true;
			only = "--dry-run";
		} else if (c == 'N') {
			a->newest = true;
			only = "--newest";
		} else if (c == 'j') {
			a->json = true;
		} else if (c == 'q') {
			a->quiet = true;
		} else {
			return c == 'h' ? -1 : EXIT_USAGE;
		}
	}
	if (optind + 2 != argc)
		return fail(EXIT_USAGE, "ckpt needs list, verify or prune, and one folder, see "
					"'penstock ckpt --help'");
	a->dir = argv[optind + 1];
	for (unsigned i = 0; actions[i]; i++)
		if (!strcmp(argv[optind], actions[i])) {
			a->action = (enum action)i;
			return only && a->action != PRUNE
				       ? fail(EXIT_USAGE,
					      "%s works with 'penstock ckpt prune' only", only)
				       : 0;
		}
	return fail(EXIT_USAGE, "there is no '%s', use list, verify or prune", argv[optind]);
}

/* Prints the library's message or, if a signal has stopped the command, the name of the signal.
 * Returns the exit code. */
static int ckpt_fail(void)
{
	char text[64];
	int code;

	progress_end();
	if (!stop_signal)
		return fail_lib();
	code = stop_text(text, sizeof(text));
	return fail(code, "%s", text);
}

/* Completes the JSON object, and adds the error if the command has failed. */
static int ckpt_end(struct output *o, int code)
{
	if (!o->a->json)
		return code;
	json_bool(&o->j, "ok", !code);
	if (code)
		json_failure(&o->j, code, fail_text());
	json_close(&o->j);
	return code;
}

/* ---- list ---- */

static const char *state_name(enum penstock_ckpt_state state)
{
	static const char *const names[] = {"complete", "incomplete", "damaged"};

	return names[state];
}

static void list_json(struct json *j, const struct penstock_ckpt *c)
{
	json_object(j, NULL);
	json_text(j, "path", c->path);
	json_text(j, "state", state_name(c->state));
	json_text(j, "text", c->text);
	json_int(j, "bytes", (int64_t)c->bytes);
	json_int(j, "parts", (int64_t)c->part_count);
	json_int(j, "stray_files", (int64_t)c->stray_count);
	json_int(j, "stray_bytes", (int64_t)c->stray_bytes);
	json_int(j, "saved_ns", c->saved_ns);
	json_int(j, "ranks", c->ranks);
	json_bool(j, "manifest", c->summed);
	json_end(j);
}

static int list_one(void *user, const struct penstock_ckpt *c)
{
	struct output *o = user;
	char when[32] = "", size[32], stray[32];
	time_t seconds_then = (time_t)(c->saved_ns / 1000000000);
	struct tm tm;

	o->count++;
	if (o->a->json) {
		list_json(&o->j, c);
		return 0;
	}
	if (gmtime_r(&seconds_then, &tm))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S UTC", &tm);
	printf("%-10s  %s  %9s  %" PRIu64 " part%s  ", state_name(c->state), when,
	       human((double)c->bytes, size, sizeof(size)), c->part_count,
	       c->part_count == 1 ? "" : "s");
	print_name(stdout, c->path);
	printf("\n");
	if (c->state != PENSTOCK_CKPT_COMPLETE || !c->summed) {
		printf("            ");
		print_words(stdout, 12, c->text);
	}
	if (c->stray_count)
		printf("            %" PRIu64 " stray file%s of earlier saves, %s\n",
		       c->stray_count, c->stray_count == 1 ? "" : "s",
		       human((double)c->stray_bytes, stray, sizeof(stray)));
	return 0;
}

static int ckpt_list(struct output *o)
{
	int ret;

	if (o->a->json)
		json_array(&o->j, "checkpoints");
	ret = penstock_ckpt_list(o->a->dir, list_one, o);
	if (o->a->json)
		json_array_end(&o->j);
	if (ret)
		return ckpt_end(o, ckpt_fail());
	if (!o->count && !o->a->json) {
		print_name(stdout, o->a->dir);
		printf(" has no checkpoints\n");
	}
	return ckpt_end(o, EXIT_DONE);
}

/* ---- verify ---- */

static void verify_fault(void *user, const struct penstock_ckpt_fault *f)
{
	struct output *o = user;

	o->count++;
	if (o->a->json) {
		json_object(&o->j, NULL);
		json_text(&o->j, "part", f->part);
		json_text(&o->j, "item", f->item);
		json_int(&o->j, "offset", (int64_t)f->off);
		json_int(&o->j, "bytes", (int64_t)f->len);
		json_text(&o->j, "text", f->text);
		json_end(&o->j);
		return;
	}
	progress_end();
	print_name(stdout, *f->part ? f->part : o->a->dir);
	if (*f->item) {
		printf(": item '");
		print_name(stdout, f->item);
		printf("'");
	}
	if (*f->part)
		printf(" at byte %" PRIu64, f->off);
	printf(": ");
	print_name(stdout, f->text);
	printf("\n");
}

static int verify_look(void *user, uint64_t bytes)
{
	struct output *o = user;
	char done[32], speed[32];

	if (progress_due(o->a->quiet, false, &o->shown))
		progress(
			false, "%s  %s/s", human((double)bytes, done, sizeof(done)),
			human((double)bytes / (seconds() - o->start + 1e-9), speed, sizeof(speed)));
	return stop_signal;
}

static int ckpt_verify(struct output *o)
{
	struct penstock_part_opts opts = PENSTOCK_PART_OPTS_INIT;
	struct penstock_verified v = {.size = sizeof(v)};
	char size[32];
	int ret;

	opts.look = verify_look;
	opts.user = o;
	if (o->a->json)
		json_array(&o->j, "faults");
	ret = penstock_ckpt_verify(o->a->dir, &opts, verify_fault, o, &v);
	progress_end();
	if (o->a->json) {
		json_array_end(&o->j);
		json_int(&o->j, "items", (int64_t)v.items);
		json_int(&o->j, "bytes", (int64_t)v.bytes);
		json_int(&o->j, "items_unsummed", (int64_t)v.items_unsummed);
		json_int(&o->j, "bytes_unsummed", (int64_t)v.bytes_unsummed);
		json_real(&o->j, "seconds", seconds() - o->start);
	} else if ((!ret || o->count) && !o->a->quiet) {
		printf("items that are right: %" PRIu64 ", %s\n", v.items,
		       human((double)v.bytes, size, sizeof(size)));
		if (v.items_unsummed)
			printf("items without a checksum: %" PRIu64 ", %s\n", v.items_unsummed,
			       human((double)v.bytes_unsummed, size, sizeof(size)));
	}
	return ckpt_end(o, ret ? ckpt_fail() : EXIT_DONE);
}

/* ---- prune ---- */

static int prune_one(void *user, const char *path, uint64_t bytes)
{
	struct output *o = user;
	char size[32];

	if (stop_signal)
		return 1;
	o->count++;
	o->bytes += bytes;
	if (o->a->json) {
		json_object(&o->j, NULL);
		json_text(&o->j, "path", path);
		json_int(&o->j, "bytes", (int64_t)bytes);
		json_end(&o->j);
	} else if (!o->a->quiet) {
		printf("%s ", o->a->dry_run ? "would remove" : "remove");
		print_name(stdout, path);
		printf(", %s\n", human((double)bytes, size, sizeof(size)));
	}
	return 0;
}

static int ckpt_prune(struct output *o)
{
	unsigned flags = (o->a->dry_run ? PENSTOCK_PRUNE_DRY_RUN : 0) |
			 (o->a->newest ? PENSTOCK_PRUNE_NEWEST : 0);
	int ret;

	if (o->a->json) {
		json_bool(&o->j, "dry_run", o->a->dry_run);
		json_array(&o->j, "removals");
	}
	ret = penstock_ckpt_prune(o->a->dir, (unsigned)o->a->keep, flags, prune_one, o);
	if (o->a->json) {
		json_array_end(&o->j);
		json_int(&o->j, "bytes", (int64_t)o->bytes);
	} else if (!ret && !o->count && !o->a->quiet) {
		printf("nothing to remove\n");
	}
	return ckpt_end(o, ret ? ckpt_fail() : EXIT_DONE);
}

static int ckpt_main(int argc, char **argv)
{
	static int (*const actions[])(struct output * o) = {ckpt_list, ckpt_verify, ckpt_prune};
	struct ckpt_args a = {.keep = 0};
	struct output o = {.a = &a};
	int code = ckpt_parse(argc, argv, &a);

	if (code)
		return code < 0 ? EXIT_DONE : code;
	catch_signals();
	o.start = seconds();
	if (a.json)
		json_open(&o.j, stdout);
	return actions[a.action](&o);
}

const struct command cmd_ckpt = {
	.name = "ckpt",
	.usage = "list|verify|prune DIR [options]",
	.summary = "list, verify and prune checkpoints",
	.help = "  --keep N   prune: keep the N newest complete checkpoints; without it, all\n"
		"  --dry-run  prune: remove nothing, only print what would be removed\n"
		"  --newest   prune: also remove what a save may still be writing\n"
		"  --json     print one JSON object, see penstock-json(5)\n"
		"  --quiet    print no progress, and no results that are not faults\n"
		"\n"
		"DIR is a checkpoint, or a folder with checkpoints: /path, file:///path, or\n"
		"s3://BUCKET/PREFIX for the objects of a store. 'list' prints whether each\n"
		"checkpoint is complete. 'verify' compares the bytes of one checkpoint with its\n"
		"manifest, and exits with 1 if there is a fault. 'prune' removes incomplete\n"
		"checkpoints, files that earlier saves have left, and with --keep old\n"
		"checkpoints. It asks nothing, and never removes the newest complete checkpoint.\n",
	.run = ckpt_main,
};
