/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock explain`: prints the path that a request would use. For every other path it
 * prints the reason why the path is not used, and the action that would open it. It must never
 * transfer bytes, except for the read canary, a small test read.
 */
#include "cli.h"

struct explain_args {
	const char *storage, *device;
	uint64_t size, offset;
	bool write, json;
	enum penstock_class require;
	enum penstock_effort effort;
};

static int explain_parse(int argc, char **argv, struct explain_args *a)
{
	static const struct option options[] = {
		{"size", required_argument, NULL, 's'},	  {"offset", required_argument, NULL, 'o'},
		{"write", no_argument, NULL, 'w'},	  {"require", required_argument, NULL, 'r'},
		{"effort", required_argument, NULL, 'e'}, {"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},	  {NULL, 0, NULL, 0}};
	int c;

	while ((c = next_option(argc, argv, &cmd_explain, options)) != -1) {
		bool ok = true;

		if (c == 's')
			ok = parse_size("--size", optarg, &a->size);
		else if (c == 'o')
			ok = parse_size("--offset", optarg, &a->offset);
		else if (c == 'w')
			a->write = true;
		else if (c == 'r')
			ok = parse_class(optarg, &a->require);
		else if (c == 'e')
			ok = parse_effort(optarg, &a->effort);
		else if (c == 'j')
			a->json = true;
		else
			return c == 'h' ? -1 : EXIT_USAGE;
		if (!ok)
			return EXIT_USAGE;
	}
	if (optind + 2 != argc)
		return fail(EXIT_USAGE,
			    "explain needs a storage and a device, see 'penstock explain --help'");
	if (a->write && !a->size && storage_is_object(argv[optind]))
		return fail(EXIT_USAGE, "%s: give the length of the object to write with --size",
			    argv[optind]);
	if (a->size > (uint64_t)INT64_MAX - a->offset)
		return fail(EXIT_USAGE,
			    "--offset and --size together are 8 EiB or more: give less");
	a->storage = argv[optind];
	a->device = argv[optind + 1];
	return 0;
}

static const char *explained_path_name(const struct penstock_explanation *e, int index)
{
	return index >= 0 ? e->paths[index].name : "none";
}

/* Returns whether the library would carry cached bytes of the request on the path with index `i` as
 * well as on the path e->taken, both at the same time. */
static bool explained_mix_used(const struct penstock_explanation *e, int i)
{
	return i >= 0 && i == e->mixed && e->resident > 0 && e->taken == e->warm;
}

static const char *residency_name(const struct penstock_explanation *e)
{
	return e->resident > 0 ? "yes" : e->resident ? "unknown" : "no";
}

static void explanation_print_json(const struct explain_args *a,
				   const struct penstock_explanation *e)
{
	struct json j;

	json_open(&j, stdout);
	json_text(&j, "path", explained_path_name(e, e->taken));
	json_text(&j, "engine", e->engine);
	json_object(&j, "paths");
	json_end(&j);
	json_int(&j, "cpu_copies", 0);
	json_int(&j, "dram_passes", 0);
	json_int(&j, "bytes", 0);
	json_int(&j, "seconds", 0);
	json_text(&j, "op", a->write ? "write" : "read");
	json_text(&j, "require", class_name(a->require));
	json_text(&j, "storage", e->storage_text);
	json_text(&j, "device", e->device_text);
	json_text(&j, "resident", residency_name(e));
	if (e->resident_why != PENSTOCK_WHY_NONE)
		json_text(&j, "resident_reason", penstock_why_name(e->resident_why));
	json_text(&j, "engine_reason", e->engine_text);
	json_text(&j, "cold", explained_path_name(e, e->cold));
	json_text(&j, "warm", explained_path_name(e, e->warm));
	json_text(&j, "unknown", explained_path_name(e, e->unknown));
	if (e->mixed >= 0)
		json_text(&j, "mixed", explained_path_name(e, e->mixed));
	json_object(&j, "reasons");
	for (unsigned i = 0; i < e->path_count; i++) {
		const struct penstock_explain_path *p = &e->paths[i];

		json_object(&j, p->name);
		json_text(&j, "code", penstock_why_name(p->why));
		json_text(&j, "text", p->text);
		json_bool(&j, "usable", p->usable);
		json_text(&j, "meets", class_name(p->meets));
		json_text(&j, "fix", p->fix);
		json_end(&j);
	}
	json_end(&j);
	json_close(&j);
}

static void explanation_print_table(const struct explain_args *a,
				    const struct penstock_explanation *e)
{
	printf("%s ", a->write ? "write" : "read");
	print_name(stdout, a->storage);
	printf(" %s %s: %s", a->write ? "from" : "to", a->device, explained_path_name(e, e->taken));
	if (explained_mix_used(e, e->mixed))
		printf(" and %s at once", explained_path_name(e, e->mixed));
	if (e->taken >= 0 && e->cold != e->warm && !a->write)
		printf(" (cached bytes: %s%s%s, others: %s)", explained_path_name(e, e->warm),
		       e->mixed >= 0 ? " and " : "",
		       e->mixed >= 0 ? explained_path_name(e, e->mixed) : "",
		       explained_path_name(e, e->cold));
	printf("\n  storage   %s\n  device    %s\n  engine    %s%s%s\n", e->storage_text,
	       e->device_text, e->engine, e->engine_text[0] ? ": " : "", e->engine_text);
	if (!a->write)
		printf("  in cache  %s%s%s\n", residency_name(e), e->resident < 0 ? ": " : "",
		       e->resident < 0 ? penstock_why_text(e->resident_why) : "");
	for (unsigned i = 0; i < e->path_count; i++) {
		const struct penstock_explain_path *p = &e->paths[i];

		char text[PENSTOCK_TEXT_MAX + 32];

		snprintf(text, sizeof(text), "%s %s%s%s",
			 (int)i == e->taken || explained_mix_used(e, (int)i) ? "USED"
			 : p->usable					     ? "open"
									     : "shut",
			 p->text, p->text[0] && p->proven > 0 ? " " : "",
			 p->proven > 0 ? "(proven by canary)" : "");
		printf("  %-9s ", p->name);
		print_words(stdout, 17, text);
		if (p->fix[0]) {
			printf("%17sto %s it: ", "", p->usable ? "use" : "open");
			print_words(stdout, p->usable ? 28 : 29, p->fix);
		}
	}
}

static int explain_main(int argc, char **argv)
{
	struct explain_args a = {.require = PENSTOCK_ANY};
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_explanation e = {.size = sizeof(e)};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_storage *st = NULL;
	struct penstock_device *dev;
	struct penstock_seg seg = {.rows = 1};
	int64_t length;
	int ret = explain_parse(argc, argv, &a);

	if (ret)
		return ret < 0 ? EXIT_DONE : ret;
	if (a.write)
		opts.flags = storage_is_object(a.storage) ? PENSTOCK_O_REPLACE : PENSTOCK_O_WRITE;
	if (penstock_open(a.storage, &opts, &st) && a.write &&
	    penstock_errwhy() == PENSTOCK_WHY_NOT_FOUND)
		return fail(EXIT_FAILED,
			    "%s: for a file that does not exist yet, name an existing file in "
			    "the same folder",
			    penstock_errmsg());
	if (!st)
		return fail_lib();
	length = penstock_storage_length(st);
	if ((!a.write || !a.size) && length >= 0 && a.offset > (uint64_t)length) {
		penstock_close(st);
		return fail(EXIT_FAILED,
			    "offset %llu is past the end of %s, which has %lld bytes%s",
			    (unsigned long long)a.offset, a.storage, (long long)length,
			    a.write ? ": give the length of the write with --size" : "");
	}
	if (penstock_device_open(a.device, NULL, &dev) < 0) {
		penstock_close(st);
		fail_lib();
		return code_without_device(a.require);
	}
	seg.dev = dev;
	seg.off = a.offset;
	/* cp.c has the same spare memory after its buffers. So `explain` names the path that `cp`
	 * uses. */
	seg.room = 4096;
	seg.row_len = a.size ? a.size : (uint64_t)(length > 0 ? length : 0) - a.offset;
	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = a.write ? PENSTOCK_WRITE : PENSTOCK_READ;
	req.require = a.require;
	req.effort = a.effort;
	if (penstock_explain(&req, &e))
		ret = fail_lib();
	else if (a.json)
		explanation_print_json(&a, &e);
	else
		explanation_print_table(&a, &e);
	if (!ret && e.taken < 0)
		ret = EXIT_REFUSED;
	penstock_close(st);
	penstock_device_close(dev);
	return ret;
}

const struct command cmd_explain = {
	.name = "explain",
	.usage = "STORAGE DEVICE [options]",
	.summary = "show which path a transfer would use, and why not the others",
	.help = "  --size N         length of the request (default: to the end of the storage)\n"
		"  --offset N       offset of the request in the storage\n"
		"  --write          explain a write; its direct path is proven by the first write\n"
		"  --require CLASS  any, no-cpu-copy or direct\n"
		"  --effort E       thrifty (least CPU time), balanced (in between) or\n"
		"                   fast (most bytes per second)\n"
		"  --json           print one JSON object, see penstock-json(5)\n",
	.run = explain_main,
};
