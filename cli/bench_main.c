/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock bench`: parses the options, caches or drops the file's pages as requested,
 * repeats the run and the measurement of its limit, and prints the result. bench.c measures a run,
 * bench_limits.c its limit.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "bench_limits.h"
#include "cli.h"

/* Number of rounds with --limits. A round measures the run and then its limit. */
#define ROUNDS 3

static bool option_size(const char *option, uint64_t *out)
{
	if (!parse_size(option, optarg, out))
		return false;
	if (!*out)
		fail(EXIT_USAGE, "%s '%s': give at least 1", option, optarg);
	return *out > 0;
}

static bool mode_parse(const char *text, struct bench_args *a)
{
	static const struct {
		const char *name;
		bool write, random;
	} modes[] = {{"read", false, false},
		     {"write", true, false},
		     {"randread", false, true},
		     {"randwrite", true, true}};

	for (unsigned i = 0; i < 4; i++) {
		if (strcmp(text, modes[i].name))
			continue;
		a->write = modes[i].write;
		a->random = modes[i].random;
		return true;
	}
	fail(EXIT_USAGE, "--rw '%s': use read, write, randread or randwrite", text);
	return false;
}

static bool option_parse(int c, struct bench_args *a)
{
	uint64_t n = 0;
	char *end;

	switch (c) {
	case 'w':
		return mode_parse(optarg, a);
	case 'b':
		return option_size("--block", &a->block);
	case 's':
		return option_size("--size", &a->size);
	case 'd':
		if (!parse_number(optarg, 1, 4096, &n))
			return fail(EXIT_USAGE, "--depth '%s': give 1 to 4096", optarg), false;
		a->depth = (unsigned)n;
		return true;
	case 'l':
		if (!parse_number(optarg, 1, 32, &n))
			return fail(EXIT_USAGE, "--lanes '%s': give 1 to 32", optarg), false;
		a->lanes = (unsigned)n;
		return true;
	case 't':
		a->runtime = strtod(optarg, &end);
		if (end == optarg || *end || !(a->runtime > 0 && a->runtime <= 86400))
			return fail(EXIT_USAGE, "--runtime '%s': give seconds, at most a day",
				    optarg),
			       false;
		return true;
	case 'p':
		a->path = optarg;
		return true;
	case 'e':
		return parse_effort(optarg, &a->effort);
	case 'r':
		return parse_class(optarg, &a->require);
	case 'g':
		return parse_engine(optarg, &a->engine);
	case 'C':
		a->cold = true;
		return true;
	case 'W':
		a->warm = true;
		return true;
	case 'U':
		a->cpu_load = true;
		return true;
	case 'o':
		a->own_lane = true;
		return true;
	case 'L':
		a->limits = true;
		return true;
	case 'j':
		a->json = true;
		return true;
	case 'O':
		a->overwrite = true;
		return true;
	case 'q':
		a->quiet = true;
		return true;
	default:
		return false;
	}
}

static int bench_parse(int argc, char **argv, struct bench_args *a)
{
	static const struct option options[] = {{"rw", required_argument, NULL, 'w'},
						{"block", required_argument, NULL, 'b'},
						{"size", required_argument, NULL, 's'},
						{"depth", required_argument, NULL, 'd'},
						{"lanes", required_argument, NULL, 'l'},
						{"runtime", required_argument, NULL, 't'},
						{"path", required_argument, NULL, 'p'},
						{"effort", required_argument, NULL, 'e'},
						{"require", required_argument, NULL, 'r'},
						{"engine", required_argument, NULL, 'g'},
						{"cold", no_argument, NULL, 'C'},
						{"warm", no_argument, NULL, 'W'},
						{"cpu-load", no_argument, NULL, 'U'},
						{"own-lane", no_argument, NULL, 'o'},
						{"limits", no_argument, NULL, 'L'},
						{"json", no_argument, NULL, 'j'},
						{"overwrite", no_argument, NULL, 'O'},
						{"quiet", no_argument, NULL, 'q'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	struct stat stat_buf;
	int c;

	while ((c = next_option(argc, argv, &cmd_bench, options)) != -1) {
		if (c == 'h')
			return -1;
		if (c == '?' || !option_parse(c, a))
			return EXIT_USAGE;
	}
	if (optind + 2 != argc)
		return fail(EXIT_USAGE,
			    "bench needs a storage and a device, see 'penstock bench --help'");
	a->storage = argv[optind];
	a->device = argv[optind + 1];
	if (a->cold && (a->warm || a->write))
		return fail(EXIT_USAGE, "--cold is for reads, and cannot be combined with --warm");
	if ((a->cold || a->warm || a->limits) && !storage_path(a->storage))
		return fail(EXIT_USAGE,
			    "--cold, --warm and --limits need a file, not mem: storage "
			    "or an object");
	if (a->write && a->random && storage_is_object(a->storage))
		return fail(EXIT_USAGE,
			    "%s: an object is written from its start to its end: use --rw write",
			    a->storage);
	if (a->limits && !a->write && !a->cold && !a->warm)
		return fail(EXIT_USAGE, "--limits of reads needs --cold or --warm: otherwise run "
					"and limit could read from different places");
	if (!a->block)
		a->block = a->random ? 4096 : 4u << 20;
	if (!a->depth)
		a->depth = a->random ? 32 : 8;
	if (a->block > SIZE_MAX / a->depth)
		return fail(
			EXIT_USAGE,
			"%u blocks of %llu bytes do not fit into memory: give a smaller --depth "
			"or --block",
			a->depth, (unsigned long long)a->block);
	if (a->write && !a->overwrite && storage_path(a->storage) &&
	    !stat(storage_path(a->storage), &stat_buf))
		return fail(EXIT_FAILED, "%s exists: add --overwrite to write into it", a->storage);
	return 0;
}

/* Returns whether the file cannot have pages in the page cache: it is a folder, an empty file,
 * or a pipe, on which open(2) would block. The run itself reports an error for such a file. */
static bool has_no_pages(const char *file)
{
	struct stat st;

	return !stat(file, &st) && !S_ISBLK(st.st_mode) && (!S_ISREG(st.st_mode) || !st.st_size);
}

/* Shows the present step of the command on the progress line, unless requests are in flight. */
static void step_progress(const struct bench_args *a, const char *step)
{
	double shown = 0;

	if (progress_due(a->quiet, true, &shown))
		progress(false, "round %u of %u: %s", a->round, a->rounds, step);
}

/* Ends the progress line and prints an error. */
static int bench_fail(int code, const char *text)
{
	progress_end();
	return fail(code, "%s", text);
}

/* Drops the file's pages from the page cache or reads them into it, as the options request.
 * Returns 0, or an exit code after it has printed the error. */
static int cache_prepare(const struct bench_args *a, uint64_t length)
{
	int ret = 0;

	if ((a->cold || a->warm) && has_no_pages(storage_path(a->storage)))
		return 0;
	if (a->cold || a->warm)
		step_progress(a, a->cold ? "dropping the file from the page cache"
					 : "reading the file into the page cache");
	if (a->cold)
		ret = bench_make_cold(storage_path(a->storage));
	else if (a->warm)
		ret = bench_make_warm(storage_path(a->storage), length);
	if (!ret)
		return 0;
	progress_end();
	if (ret != -EBUSY)
		return fail(EXIT_FAILED, "cannot open %s: %s%s", a->storage, strerror(-ret),
			    advice_errno(-ret));
	return fail(EXIT_FAILED,
		    "%s: its pages cannot be %s, or that cannot be verified, so no figure is "
		    "valid: leave out %s",
		    a->storage, a->cold ? "dropped" : "read in", a->cold ? "--cold" : "--warm");
}

#define LOAD_MAX 1024

/* Starts one busy process for each CPU that this process may use. It does not start threads
 * instead, because their CPU time would count as CPU time of the run. Returns the number of
 * processes. */
static unsigned load_start(pid_t *pids)
{
	pid_t parent = getpid();
	unsigned made = 0, cpus = 1;
	cpu_set_t set;

	if (!sched_getaffinity(0, sizeof(set), &set))
		cpus = (unsigned)CPU_COUNT(&set);
	while (made < cpus && made < LOAD_MAX) {
		pids[made] = fork();
		if (pids[made] < 0)
			break;
		if (pids[made]) {
			made++;
			continue;
		}
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (volatile bool on = getppid() == parent; on;)
			;
		_exit(0);
	}
	return made;
}

static void load_stop(const pid_t *pids, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
}

static double gb_per_s(const struct bench_result *r)
{
	return r->seconds > 0 ? (double)r->tally.bytes / r->seconds / 1e9 : 0;
}

struct limit {
	double gb_per_s;
	char what[BENCH_LIMIT_TEXT]; /* description of the measurement */
};

/* Returns whether the speed of the plain calls is a limit of the run. For reads of cached bytes,
 * they copy the bytes into host memory only. A run that copies cached bytes into a GPU does
 * something else, and has other limits. All other runs need the drive, as the plain calls do. */
static bool plain_is_limit(const struct bench_args *a, const struct bench_result *r)
{
	return r->on_host || !a->warm || a->write;
}

static void limit_json(struct json *j, const struct bench_args *a, const struct bench_result *r,
		       double ours, const struct limit *limit)
{
	if (plain_is_limit(a, r)) {
		json_real(j, "limit_gb_per_s", limit->gb_per_s);
		json_text(j, "limit", limit->what);
		json_real(j, "ratio", ours / limit->gb_per_s);
	} else {
		json_real(j, "plain_gb_per_s", limit->gb_per_s);
		json_text(j, "plain", limit->what);
	}
}

static void limit_print(const struct bench_args *a, const struct bench_result *r, double ours,
			const struct limit *limit)
{
	if (isnan(limit->gb_per_s))
		printf("limit not measured (%s), no ratio\n", limit->what);
	else if (plain_is_limit(a, r))
		printf("limit %.3f GB/s (%s): ratio %.3f\n", limit->gb_per_s, limit->what,
		       ours / limit->gb_per_s);
	else
		printf("plain calls %.3f GB/s (%s): no limit for %s, so no ratio\n",
		       limit->gb_per_s, limit->what, a->device);
}

static void result_print(const struct bench_args *a, const struct bench_result *r, double ours,
			 const struct limit *limit)
{
	double gb = (double)r->tally.bytes / 1e9, iops = (double)r->ops / r->seconds;
	struct json j;

	if (a->json) {
		json_open(&j, stdout);
		json_int(&j, "bytes", (int64_t)r->tally.bytes);
		json_real(&j, "seconds", r->seconds);
		json_real(&j, "gb_per_s", ours);
		json_real(&j, "iops", iops);
		json_real(&j, "p50_us", bench_percentile(r, 0.5));
		json_real(&j, "p99_us", bench_percentile(r, 0.99));
		json_real(&j, "p999_us", bench_percentile(r, 0.999));
		json_real(&j, "cpu_s_per_gb", gb > 0 ? r->cpu_seconds / gb : 0);
		json_int(&j, "block", (int64_t)a->block);
		json_int(&j, "depth", a->depth);
		tally_json(&j, &r->tally);
		parts_json(&j, &r->parts);
		if (a->limits)
			limit_json(&j, a, r, ours, limit);
		json_close(&j);
		return;
	}
	printf("%s %s: %.3f GB/s, %.0f IOPS, %.4f CPU-s/GB\n", a->random ? "random" : "sequential",
	       a->write ? "write" : "read", ours, iops, gb > 0 ? r->cpu_seconds / gb : 0);
	printf("latency p50 %.1f, p99 %.1f, p99.9 %.1f us\n", bench_percentile(r, 0.5),
	       bench_percentile(r, 0.99), bench_percentile(r, 0.999));
	if (a->limits)
		limit_print(a, r, ours, limit);
	tally_print(stdout, "path", &r->tally);
	parts_print(stdout, &r->parts);
}

/* Compares two limits. A limit that could not be measured is the lowest. */
static int compare_limits(const void *a, const void *b)
{
	const double x = ((const struct limit *)a)->gb_per_s;
	const double y = ((const struct limit *)b)->gb_per_s;

	if (isnan(x) || isnan(y))
		return isnan(y) - isnan(x);
	return (x > y) - (x < y);
}

static int compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/*
 * Returns the length in bytes of the part of the file that is measured. Opens a block device,
 * because only an open device reports its length, and stores the descriptor in *held. The
 * device stays open, because the kernel drops its cached pages when its last descriptor is
 * closed.
 */
static uint64_t measured_length(const struct bench_args *a, int *held)
{
	const char *file = storage_path(a->storage);
	struct stat stat_buf;
	uint64_t length;
	off_t end;

	*held = -1;
	if (!file || stat(file, &stat_buf))
		return 0;
	length = (uint64_t)stat_buf.st_size;
	if (S_ISBLK(stat_buf.st_mode)) {
		*held = open(file, O_RDONLY | O_CLOEXEC);
		end = *held < 0 ? -1 : lseek(*held, 0, SEEK_END);
		length = end < 0 ? 0 : (uint64_t)end;
	}
	return a->size && a->size < length ? a->size : length;
}

static int bench_rounds(struct bench_args *a, struct bench_result *r)
{
	double ours[ROUNDS] = {0};
	struct limit limits[ROUNDS] = {{.gb_per_s = 0}};
	unsigned count = a->limits ? ROUNDS : 1;
	const char *file = storage_path(a->storage);
	/* lstat() also finds a symbolic link that points nowhere. Such a link existed before the
	 * run, so a failed run must not remove it. */
	struct stat found;
	bool created = file && lstat(file, &found);
	int held, ret = 0;
	uint64_t length = measured_length(a, &held);

	a->rounds = count;
	for (unsigned i = 0; !ret && i < count; i++) {
		a->round = i + 1;
		ret = cache_prepare(a, length);
		if (!ret)
			ret = bench_run(a, r);
		if (ret && r->error[0])
			bench_fail(ret, r->error);
		ours[i] = gb_per_s(r);
		if (ret || !a->limits)
			continue;
		ret = cache_prepare(a, length);
		step_progress(a, "measuring the limit");
		if (!ret)
			limits[i].gb_per_s =
				bench_limit(a, r->length, limits[i].what, sizeof(limits[i].what));
		if (stop_signal && !ret) {
			ret = stop_text(r->error, sizeof(r->error));
			bench_fail(ret, r->error);
		}
	}
	progress_end();
	if (held >= 0)
		close(held);
	if (ret && created)
		unlink(file); /* removes the file that an earlier round created */
	if (ret)
		return ret;
	qsort(ours, count, sizeof(*ours), compare_doubles);
	qsort(limits, count, sizeof(*limits), compare_limits);
	result_print(a, r, ours[count / 2], &limits[count / 2]);
	return EXIT_DONE;
}

static int bench_main(int argc, char **argv)
{
	struct bench_args a = {.runtime = 3};
	struct bench_result *r;
	pid_t busy[LOAD_MAX];
	unsigned made = 0;
	int ret = bench_parse(argc, argv, &a);

	if (ret)
		return ret < 0 ? EXIT_DONE : ret;
	r = calloc(1, sizeof(*r));
	if (!r)
		return fail(EXIT_FAILED, "out of memory");
	/* A file that is written must be removed after a signal. bench.c opens an object before it
	 * catches signals. */
	if (a.write && !storage_is_object(a.storage))
		catch_signals();
	if (a.cpu_load)
		made = load_start(busy);
	ret = bench_rounds(&a, r);
	load_stop(busy, made);
	free(r);
	return ret;
}

const struct command cmd_bench = {
	.name = "bench",
	.usage = "STORAGE DEVICE [options]",
	.summary = "measure GB/s, IOPS, latency and CPU time of transfers",
	.help = "  --rw MODE      read, write, randread or randwrite (read)\n"
		"  --block N      length of a request (4MiB, random 4KiB)\n"
		"  --depth N      requests in flight (8, random 32)\n"
		"  --runtime S    seconds (3); a cold sequential run ends with the file\n"
		"  --size N       bytes to read, or length of the file to create for writes; an\n"
		"                 object is written up to this length, in whole blocks\n"
		"  --cold         first drop the file from the page cache, and verify that\n"
		"  --warm         first read the file into the page cache, and verify that\n"
		"  --limits       also measure plain system calls, alternately, and print the\n"
		"                 ratio; reads need --cold or --warm\n"
		"  --own-lane     use an inline lane: this thread moves requests of up to 1 MiB\n"
		"  --cpu-load     keep every CPU busy with other processes\n"
		"  --lanes N      threads of the device (default: by CPUs and device)\n"
		"  --require C    any, no-cpu-copy or direct; exit 3 if it cannot be met\n"
		"  --effort E     thrifty (least CPU time), balanced (in between) or\n"
		"                 fast (most bytes per second)\n"
		"  --path P       use only this path, for tests\n"
		"  --engine E     auto, uring or threads\n"
		"  --overwrite    write into a file that exists, or replace an object\n"
		"  --quiet        print no progress line\n"
		"  --json         print one JSON object, see penstock-json(5)\n",
	.run = bench_main,
};
