/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock load`: loads a model's tensors into the memory of one device or several.
 * Several devices get the same bytes, but the bytes are read only once. With --ranks each
 * device has its own process. Prints the speed and the path. --verify copies all tensors back
 * and compares them with plain reads of the files. The command only measures and verifies: it
 * frees the memory at the end.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "load_one.h"
#include "load_ranks.h"
#include "load_state.h"

/* ---- arguments ---- */

static int split_words(struct words *w, const char *option, const char *text)
{
	char *at, *next;

	free(w->text);
	w->count = 0;
	w->text = strdup(text);
	for (at = w->text; at; at = next) {
		next = strchr(at, ',');
		if (next)
			*next++ = '\0';
		if (w->count == WORDS_MAX)
			return fail(EXIT_USAGE, "--%s takes %d names at most", option, WORDS_MAX);
		if (!*at)
			return fail(EXIT_USAGE, "--%s wants names with commas between them",
				    option);
		w->list[w->count++] = at;
	}
	return w->text ? 0 : fail(EXIT_FAILED, "no memory");
}

/* Parses "R/N", with R from 0 to N-1. Returns a pointer to the text after it, or NULL if the
 * text is malformed. */
static const char *parse_part(const char *text, unsigned *part, unsigned *parts)
{
	unsigned long long values[2];

	for (unsigned i = 0; i < 2; i++) {
		char *end;

		if (*text < '0' || *text > '9')
			return NULL;
		values[i] = strtoull(text, &end, 10);
		if (values[i] > UINT_MAX || (!i && *end != '/'))
			return NULL;
		text = end + !i;
	}
	*part = (unsigned)values[0];
	*parts = (unsigned)values[1];
	return *part < *parts ? text : NULL;
}

/* Parses an option of the group, whose processes (ranks) load the model together. If any such
 * option is given, this process joins a group, even if it is the only rank. */
static int parse_group(struct args *a, int c)
{
	struct penstock_group_opts *g = &a->group;
	const char *end;
	uint64_t n;

	a->ranks = a->ranks ? a->ranks : 1;
	if (c == 'H') {
		end = parse_part(optarg, &g->host, &g->hosts);
		return end && !*end ? 0 : fail(EXIT_USAGE, "--host wants H/M, H from 0 to M-1");
	}
	if (!parse_number(optarg, 0, UINT_MAX, &n))
		return fail(EXIT_USAGE, "--%s wants a number",
			    c == 'J'   ? "jitter-ms"
			    : c == 'M' ? "reads-max"
				       : "stall-ms");
	*(c == 'J' ? &g->jitter_ms : c == 'M' ? &g->reads_max : &g->stall_ms) = (unsigned)n;
	return 0;
}

/* Parses "tp=R/N" (tensor parallelism), "ep=R/N" (expert parallelism), or both with a comma between
 * them. R is this rank, and N is the number of ranks. */
static int parse_shard(struct args *a, const char *text)
{
	struct penstock_shard_opts *s = &a->shard;
	bool more = true;

	*s = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	while (more) {
		const char kind = *text, *end = NULL;

		if ((kind == 't' || kind == 'e') && text[1] == 'p' && text[2] == '=')
			end = kind == 't' ? parse_part(text + 3, &s->rank, &s->ranks)
					  : parse_part(text + 3, &s->expert_rank, &s->expert_ranks);
		if (!end || (*end && *end != ','))
			return fail(EXIT_USAGE, "--shard wants tp=R/N, ep=R/N or both with a "
						"comma, R from 0 to N-1");
		more = *end;
		text = end + more;
	}
	a->load.shard = s;
	return 0;
}

static int parse_option(struct args *a, int c)
{
	bool ok = true;

	switch (c) {
	case 'D':
		return split_words(&a->devices, "device", optarg);
	case 'S':
		return split_words(&a->stripes, "stripe", optarg);
	case 's':
		if (a->open.name_count == WORDS_MAX)
			return fail(EXIT_USAGE, "--select may be given %d times at most",
				    WORDS_MAX);
		a->names[a->open.name_count++] = optarg;
		return 0;
	case 'T':
		return parse_shard(a, optarg);
	case 'N':
		if (!parse_number(optarg, 1, RANKS_MAX, &a->ranks))
			return fail(EXIT_USAGE, "--ranks wants 1 to %d", RANKS_MAX);
		return 0;
	case 'H':
	case 'J':
	case 'M':
	case 'L':
		return parse_group(a, c);
	case 'R':
		a->open.revision = optarg;
		return 0;
	case 'r':
		ok = parse_class(optarg, &a->load.require);
		break;
	case 'e':
		ok = a->effort_asked = parse_effort(optarg, &a->load.effort);
		break;
	case 'p':
		a->load.path = optarg;
		return 0;
	case 'g':
		ok = parse_engine(optarg, &a->engine);
		break;
	case 'V':
		a->verify = true;
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case 'q':
		a->quiet = true;
		return 0;
	default:
		return c == 'h' ? -1 : EXIT_USAGE;
	}
	return ok ? 0 : EXIT_USAGE;
}

static int parse_args(int argc, char **argv, struct args *a)
{
	static const struct option options[] = {{"device", required_argument, NULL, 'D'},
						{"stripe", required_argument, NULL, 'S'},
						{"select", required_argument, NULL, 's'},
						{"shard", required_argument, NULL, 'T'},
						{"ranks", required_argument, NULL, 'N'},
						{"host", required_argument, NULL, 'H'},
						{"jitter-ms", required_argument, NULL, 'J'},
						{"reads-max", required_argument, NULL, 'M'},
						{"stall-ms", required_argument, NULL, 'L'},
						{"revision", required_argument, NULL, 'R'},
						{"require", required_argument, NULL, 'r'},
						{"effort", required_argument, NULL, 'e'},
						{"path", required_argument, NULL, 'p'},
						{"engine", required_argument, NULL, 'g'},
						{"verify", no_argument, NULL, 'V'},
						{"json", no_argument, NULL, 'j'},
						{"quiet", no_argument, NULL, 'q'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	int c, ret;

	a->open = (struct penstock_weights_opts)PENSTOCK_WEIGHTS_OPTS_INIT;
	a->load = (struct penstock_load_opts)PENSTOCK_LOAD_OPTS_INIT;
	a->group = (struct penstock_group_opts)PENSTOCK_GROUP_OPTS_INIT;
	ret = split_words(&a->devices, "device", "auto");
	while (!ret && (c = next_option(argc, argv, &cmd_load, options)) != -1)
		ret = parse_option(a, c);
	if (ret)
		return ret;
	if (optind + 1 != argc || !*argv[optind])
		return fail(EXIT_USAGE, "load wants one model: a file, a directory, an index or "
					"owner/name of a Hugging Face cache");
	if (a->load.path && !strcmp(a->load.path, "null"))
		return fail(EXIT_USAGE, "--path null moves nothing: it is for 'penstock bench'");
	a->model = argv[optind];
	a->open.names = a->names;
	a->open.dirs = a->stripes.list;
	a->open.dir_count = a->stripes.count;
	return 0;
}

/* ---- results ---- */

static void print_json(const struct loading *l)
{
	struct json j;

	json_open(&j, stdout);
	json_bool(&j, "ok", !l->code);
	json_text(&j, "model", l->a->model);
	json_int(&j, "files", l->files);
	json_int(&j, "tensors", (int64_t)l->tensors);
	json_int(&j, "bytes", (int64_t)l->tally.bytes);
	json_int(&j, "delivered", (int64_t)l->report.bytes);
	json_int(&j, "device_bytes", (int64_t)l->report.device_bytes);
	json_real(&j, "seconds", l->took);
	json_object(&j, "devices");
	for (unsigned i = 0; i < l->part_count; i++) {
		json_object(&j, l->parts[i].name);
		json_int(&j, "bytes", (int64_t)l->parts[i].bytes);
		json_real(&j, "gb_per_s", (double)l->parts[i].bytes / 1e9 / l->parts[i].took);
		json_end(&j);
	}
	json_end(&j);
	json_text(&j, "require", class_name(l->a->load.require));
	tally_json(&j, &l->tally);
	json_bool(&j, "verified", l->verified);
	if (l->code)
		json_failure(&j, l->code, l->text);
	json_close(&j);
}

static void print_report(const struct loading *l)
{
	char size[32], rate[32];

	if (l->a->json) {
		print_json(l);
		return;
	}
	if (l->code)
		return;
	printf("%llu tensor%s of %u file%s, %s in %.2f s%s\n", (unsigned long long)l->tensors,
	       l->tensors == 1 ? "" : "s", l->files, l->files == 1 ? "" : "s",
	       human((double)l->total, size, sizeof(size)), l->took,
	       l->verified ? "; copied back and compared with the files: the same" : "");
	for (unsigned i = 0; i < l->part_count; i++)
		printf("  %-8s %12s/s\n", l->parts[i].name,
		       human((double)l->parts[i].bytes / l->parts[i].took, rate, sizeof(rate)));
	tally_print(stdout, "read", &l->tally);
}

static int load_main(int argc, char **argv)
{
	struct args a = {.model = NULL};
	struct loading l = {.a = &a};
	int ret = parse_args(argc, argv, &a);

	if (!ret) {
		load_catch_signals(true, false);
		if (a.ranks)
			load_by_ranks(&l, &a);
		else
			load_run(&l);
		if (l.code)
			fail(l.code, "%s", l.text);
		print_report(&l);
		ret = l.code;
	}
	load_close(&l);
	free(a.devices.text);
	free(a.stripes.text);
	return ret < 0 ? EXIT_DONE : ret; /* -1 means that the help was printed */
}

const struct command cmd_load = {
	.name = "load",
	.usage = "MODEL [options]",
	.summary = "a model's tensors into device memory, and how fast that was",
	.help = "  --device D,...   devices; each gets the whole model, read once (auto)\n"
		"  --stripe DIR,... further directories that hold files of the model\n"
		"  --select GLOB    load only tensors whose name matches; may be repeated\n"
		"  --shard tp=R/N   load only what rank R of N needs; ep=R/N spreads experts\n"
		"  --ranks N        load by N processes, each with the next device of the list:\n"
		"                   each reads a share and copies the rest from the others; with\n"
		"                   --shard the first loads part R, the next R+1, and so on\n"
		"  --host H/M       number of this host among M that load the model together\n"
		"  --jitter-ms N    start after up to N milliseconds, hosts one after the other\n"
		"  --reads-max N    at most N requests in flight at one file system\n"
		"  --stall-ms N     give up a process after the others waited so long (600000)\n"
		"  --revision R     revision of a model in a Hugging Face cache (main)\n"
		"  --require CLASS  any, no-cpu-copy or direct; exit 3 if it cannot be met\n"
		"  --effort E       thrifty (least CPU), balanced or fast (most bytes a second);\n"
		"                   by default fast with several ranks, else thrifty\n"
		"  --verify         copy everything back and compare it with the files\n"
		"  --path P         use only this path, for tests\n"
		"  --engine E       auto, uring or threads\n"
		"  --quiet          print no progress\n"
		"  --json           one object, see penstock-json(5)\n",
	.run = load_main,
};
