/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock load: a model's tensors into the memory of one device or of several, which
 * get the same bytes read once. Shows how fast it is and by which path; --verify copies
 * everything back and compares it with plain reads of the files. What was loaded is
 * given back at the end: the command measures and proves, it serves nobody.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "penstock_weights.h"

#define DEVICES_MAX 16
#define WORDS_MAX 64
#define STEP (256ull << 20)  /* between two looks at the progress */
#define BLOCK (8u << 20)     /* compared at once */

struct words {
	char *text; /* cut at its commas */
	const char *list[WORDS_MAX];
	unsigned count;
};

struct args {
	const char *model, *engine;
	struct words devices, stripes;
	const char *names[WORDS_MAX];
	struct penstock_weights_opts open;
	struct penstock_load_opts load;
	struct penstock_shard_opts shard;
	bool verify, json, quiet;
};

struct loading {
	const struct args *a;
	struct penstock_weights *w;
	struct penstock_device *devs[DEVICES_MAX];
	unsigned dev_count;
	struct penstock_loaded *loaded;
	struct penstock_load_report report;
	struct tally tally;
	uint64_t total;
	double start, shown, took;
	bool verified;
	int code;
	char text[512];
};

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	stopped = signal;
}

/* ---- arguments ---- */

static int split(struct words *w, const char *option, const char *text)
{
	char *at, *next;

	free(w->text);
	w->count = 0;
	w->text = strdup(text);
	for (at = w->text; at; at = next) {
		next = strchr(at, ',');
		if (next)
			*next++ = '\0';
		if (w->count == WORDS_MAX || !*at)
			return fail(EXIT_USAGE, "--%s wants names with commas between them",
				    option);
		w->list[w->count++] = at;
	}
	return w->text ? 0 : fail(EXIT_FAILED, "no memory");
}

/* "tp=R/N", "ep=R/N" or both with a comma between them. */
static int take_shard(struct args *a, const char *text)
{
	struct penstock_shard_opts *s = &a->shard;
	int used = 0;

	*s = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	while (*text) {
		unsigned rank, ranks;
		char kind;

		if (sscanf(text, "%cp=%u/%u%n", &kind, &rank, &ranks, &used) != 3 ||
		    (kind != 't' && kind != 'e') || rank >= ranks ||
		    (text[used] && text[used] != ','))
			return fail(EXIT_USAGE, "--shard wants tp=R/N, ep=R/N or both with a "
						"comma, R from 0 to N-1");
		*(kind == 't' ? &s->rank : &s->expert_rank) = rank;
		*(kind == 't' ? &s->ranks : &s->expert_ranks) = ranks;
		text += used + (text[used] == ',');
	}
	a->load.shard = s;
	return 0;
}

static int take_option(struct args *a, int c)
{
	bool ok = true;

	switch (c) {
	case 'D':
		return split(&a->devices, "device", optarg);
	case 'S':
		return split(&a->stripes, "stripe", optarg);
	case 's':
		if (a->open.name_count == WORDS_MAX)
			return fail(EXIT_USAGE, "at most %d --select", WORDS_MAX);
		a->names[a->open.name_count++] = optarg;
		return 0;
	case 'T':
		return take_shard(a, optarg);
	case 'R':
		a->open.revision = optarg;
		return 0;
	case 'r':
		ok = parse_class(optarg, &a->load.require);
		break;
	case 'e':
		ok = parse_effort(optarg, &a->load.effort);
		break;
	case 'p':
		a->load.path = optarg;
		return 0;
	case 'g':
		a->engine = optarg;
		return 0;
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

static int parse(int argc, char **argv, struct args *a)
{
	static const struct option options[] = {{"device", required_argument, NULL, 'D'},
						{"stripe", required_argument, NULL, 'S'},
						{"select", required_argument, NULL, 's'},
						{"shard", required_argument, NULL, 'T'},
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
	ret = split(&a->devices, "device", "auto");
	while (!ret && (c = next_option(argc, argv, &cmd_load, options)) != -1)
		ret = take_option(a, c);
	if (ret)
		return ret;
	if (optind + 1 != argc)
		return fail(EXIT_USAGE, "load wants one model: a file, a directory, an index or "
					"owner/name of a Hugging Face cache");
	if (a->devices.count > DEVICES_MAX)
		return fail(EXIT_USAGE, "at most %d devices", DEVICES_MAX);
	a->model = argv[optind];
	a->open.names = a->names;
	a->open.dirs = a->stripes.list;
	a->open.dir_count = a->stripes.count;
	return 0;
}

/* ---- loading ---- */

static void note(struct loading *l, int code, const char *fmt, const char *what)
{
	if (l->code)
		return;
	l->code = code;
	snprintf(l->text, sizeof(l->text), fmt, what);
}

/* The library's sentence; a class that cannot be met is a refusal. */
static void note_lib(struct loading *l)
{
	bool refused = l->a->load.require > PENSTOCK_ANY &&
		       penstock_errwhy() == PENSTOCK_WHY_REQUIRE;

	note(l, refused ? EXIT_REFUSED : EXIT_FAILED, "%s", penstock_errmsg());
}

static void show(struct loading *l, bool last)
{
	double now = seconds();
	char done[32], speed[32];

	if (l->a->quiet || !isatty(STDERR_FILENO) || (now - l->shown < 0.2 && !last))
		return;
	l->shown = now;
	fprintf(stderr, "\r%3.0f %%  %s  %s/s   %s",
		l->total ? 100.0 * (double)l->tally.bytes / (double)l->total : 100.0,
		human((double)l->tally.bytes, done, sizeof(done)),
		human((double)l->tally.bytes / (now - l->start + 1e-9), speed, sizeof(speed)),
		last ? "\n" : "");
}

static int each(void *user, unsigned file, const struct penstock_report *report)
{
	struct loading *l = user;

	(void)file;
	tally_add(&l->tally, report);
	show(l, false);
	return stopped;
}

static void open_all(struct loading *l)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;

	opts.engine = l->a->engine;
	if (penstock_weights_open(l->a->model, &l->a->open, &l->w)) {
		note_lib(l);
		return;
	}
	for (unsigned i = 0; i < l->a->devices.count; i++) {
		if (penstock_device_open(l->a->devices.list[i], &opts, &l->devs[i]) < 0) {
			note(l, l->a->load.require > PENSTOCK_ANY ? EXIT_REFUSED : EXIT_FAILED,
			     "%s", penstock_errmsg());
			return;
		}
		l->dev_count++;
		for (unsigned k = 0; k < i; k++)
			if (l->devs[k] == l->devs[i])
				note(l, EXIT_USAGE, "--device names %s twice",
				     penstock_device_name(l->devs[i]));
	}
	for (uint64_t i = 0; !l->code && i < penstock_weights_count(l->w); i++) {
		struct penstock_tensor t = {.size = sizeof(t)};
		struct penstock_shard s = {.size = sizeof(s)};

		penstock_weights_get(l->w, i, &t);
		if (!l->a->load.shard)
			l->total += t.bytes;
		else if (penstock_weights_shard(l->w, i, l->a->load.shard, &s))
			note_lib(l);
		else
			l->total += s.bytes;
	}
}

static void load(struct loading *l)
{
	struct penstock_load_opts opts = l->a->load;

	opts.each = each;
	opts.user = l;
	if (isatty(STDERR_FILENO) && !l->a->quiet)
		opts.request_bytes = STEP;
	l->report.size = sizeof(l->report);
	l->start = seconds();
	if (penstock_weights_load(l->w, l->devs, l->dev_count, &opts, &l->report, &l->loaded)) {
		if (stopped)
			note(l, 128 + (int)stopped, "stopped by %s", strsignal((int)stopped));
		note_lib(l);
	}
	l->took = seconds() - l->start;
	show(l, true);
}

/* ---- verifying ---- */

static bool pread_all(int fd, char *to, size_t len, uint64_t off)
{
	while (len) {
		ssize_t n = pread(fd, to, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		to += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return true;
}

struct check {
	struct loading *l;
	struct penstock_device *host;
	const char *name;
	char *blocks; /* two of BLOCK */
	int fd;
};

/* `len` bytes of device memory against the file from `off` on. */
static bool same_bytes(const struct check *c, unsigned dev, const char *at, uint64_t off,
		       uint64_t len)
{
	for (uint64_t done = 0; done < len; done += BLOCK) {
		uint64_t part = len - done < BLOCK ? len - done : BLOCK;
		struct penstock_copy_args copy = {.size = sizeof(copy),
						  .dst_dev = c->host,
						  .dst = c->blocks,
						  .src_dev = c->l->devs[dev],
						  .src = at + done,
						  .row_len = part};

		if (penstock_copy(&copy, 1)) {
			note_lib(c->l);
			return false;
		}
		if (!pread_all(c->fd, c->blocks + BLOCK, part, off + done)) {
			note(c->l, EXIT_FAILED, "%s: it could not be read again", c->name);
			return false;
		}
		if (memcmp(c->blocks, c->blocks + BLOCK, part)) {
			note(c->l, EXIT_FAILED, "%s: what was loaded differs from the file",
			     c->name);
			return false;
		}
	}
	return true;
}

/* Each row of a rank's part where it belongs. */
static bool same_piece(const struct check *c, unsigned dev, const char *base,
		       const struct penstock_tensor *t, const struct penstock_piece *p)
{
	uint64_t rows = 1, inner = penstock_dtype_bits(t->dtype), extent, len;

	if (!t->rank || (!p->dim && !p->count))
		return same_bytes(c, dev, base, t->off, t->bytes);
	for (unsigned i = 0; i < p->dim; i++)
		rows *= t->shape[i];
	for (unsigned i = p->dim + 1; i < t->rank; i++)
		inner *= t->shape[i];
	extent = t->shape[p->dim] * inner / 8;
	len = p->count * inner / 8;
	for (uint64_t r = 0; r < rows; r++)
		if (!same_bytes(c, dev, base + (uintptr_t)p->ptr + r * p->pitch,
				t->off + r * extent + p->first * inner / 8, len))
			return false;
	return true;
}

static bool same_tensor(struct check *c, unsigned dev, uint64_t index,
			const struct penstock_tensor *t)
{
	const char *base = penstock_loaded_ptr(c->l->loaded, dev, index);
	struct penstock_shard s = {.size = sizeof(s), .piece_count = 1};

	c->name = t->name;
	if (c->l->a->load.shard &&
	    penstock_weights_shard(c->l->w, index, c->l->a->load.shard, &s)) {
		note_lib(c->l);
		return false;
	}
	for (unsigned i = 0; i < s.piece_count; i++)
		if (!same_piece(c, dev, base, t, &s.pieces[i]))
			return false;
	return true;
}

static void verify(struct loading *l)
{
	struct check c = {.l = l, .blocks = malloc(2 * BLOCK), .fd = -1};
	struct penstock_weights_file f = {.size = sizeof(f)};
	unsigned file = UINT32_MAX;

	if (!c.blocks || penstock_device_open("host", NULL, &c.host) < 0)
		note(l, EXIT_FAILED, "%s", c.blocks ? penstock_errmsg() : "no memory to verify");
	for (uint64_t i = 0; !l->code && i < penstock_weights_count(l->w); i++) {
		struct penstock_tensor t = {.size = sizeof(t)};

		penstock_weights_get(l->w, i, &t);
		if (t.file != file) {
			if (c.fd >= 0)
				close(c.fd);
			file = t.file;
			penstock_weights_get_file(l->w, file, &f);
			c.fd = open(f.path, O_RDONLY | O_CLOEXEC);
			if (c.fd < 0)
				note(l, EXIT_FAILED, "%s: it could not be opened again", f.path);
		}
		for (unsigned d = 0; !l->code && d < l->dev_count; d++)
			same_tensor(&c, d, i, &t);
		if (stopped)
			note(l, 128 + (int)stopped, "stopped by %s", strsignal((int)stopped));
	}
	if (c.fd >= 0)
		close(c.fd);
	free(c.blocks);
	penstock_device_close(c.host);
	l->verified = !l->code;
}

/* ---- the end ---- */

static void report_json(const struct loading *l)
{
	double rate = (double)l->total / 1e9 / (l->took > 0 ? l->took : 1e-9);
	struct json j;

	json_open(&j, stdout);
	json_bool(&j, "ok", !l->code);
	json_text(&j, "model", l->a->model);
	json_int(&j, "files", l->w ? penstock_weights_file_count(l->w) : 0);
	json_int(&j, "tensors", l->w ? (int64_t)penstock_weights_count(l->w) : 0);
	json_int(&j, "bytes", (int64_t)l->report.read);
	json_int(&j, "delivered", (int64_t)l->report.bytes);
	json_int(&j, "device_bytes", (int64_t)l->report.device_bytes);
	json_real(&j, "seconds", l->took);
	json_object(&j, "devices");
	for (unsigned i = 0; i < l->dev_count; i++) {
		json_object(&j, penstock_device_name(l->devs[i]));
		json_int(&j, "bytes", l->code ? 0 : (int64_t)l->total);
		json_real(&j, "gb_per_s", l->code ? 0 : rate);
		json_end(&j);
	}
	json_end(&j);
	json_text(&j, "require", class_name(l->a->load.require));
	tally_json(&j, &l->tally);
	json_bool(&j, "verified", l->verified);
	if (l->code)
		json_text(&j, "error", l->text);
	json_close(&j);
}

static void report(const struct loading *l)
{
	char size[32], rate[32];

	if (l->a->json) {
		report_json(l);
		return;
	}
	if (l->code)
		return;
	printf("%llu tensors of %u files, %s in %.2f s%s\n",
	       (unsigned long long)penstock_weights_count(l->w), penstock_weights_file_count(l->w),
	       human((double)l->total, size, sizeof(size)), l->took,
	       l->verified ? "; copied back and compared with the files: the same" : "");
	for (unsigned i = 0; i < l->dev_count; i++)
		printf("  %-8s %12s/s\n", penstock_device_name(l->devs[i]),
		       human((double)l->total / (l->took > 0 ? l->took : 1), rate, sizeof(rate)));
	tally_print(stdout, "read", &l->tally);
}

static int run(int argc, char **argv)
{
	struct args a = {.model = NULL};
	struct loading l = {.a = &a};
	int ret = parse(argc, argv, &a);

	if (!ret) {
		sigaction(SIGINT, &(struct sigaction){.sa_handler = stop}, NULL);
		sigaction(SIGTERM, &(struct sigaction){.sa_handler = stop}, NULL);
		open_all(&l);
		if (!l.code)
			load(&l);
		if (!l.code && a.verify)
			verify(&l);
		if (l.code)
			fail(l.code, "%s", l.text);
		report(&l);
		ret = l.code;
	}
	penstock_loaded_free(l.loaded);
	penstock_weights_close(l.w);
	for (unsigned i = 0; i < l.dev_count; i++)
		penstock_device_close(l.devs[i]);
	free(a.devices.text);
	free(a.stripes.text);
	return ret < 0 ? EXIT_DONE : ret; /* -1: the help was asked for */
}

const struct command cmd_load = {
	.name = "load",
	.usage = "MODEL [--device D,...] [--stripe DIR,...] [--select GLOB] [--verify] [--json]",
	.summary = "a model's tensors into device memory, and how fast that was",
	.help = "  --device D,...   devices; each gets all of it, read once (auto)\n"
		"  --stripe DIR,... further directories that hold parts of the model\n"
		"  --select GLOB    only tensors whose name matches; may be repeated\n"
		"  --shard tp=R/N   only what rank R of N needs; ep=R/N spreads experts\n"
		"  --revision R     of a model in a Hugging Face cache (main)\n"
		"  --require CLASS  any, no-cpu-copy or direct: refused (exit 3) if it cannot be "
		"met\n"
		"  --effort E       thrifty (least CPU) or fast (most bytes a second)\n"
		"  --verify         copy everything back and compare it with the files\n"
		"  --path P         only this path, for tests\n"
		"  --engine E       auto, uring or threads\n"
		"  --quiet          no progress\n"
		"  --json           one object, see penstock-json(5)\n",
	.run = run,
};
