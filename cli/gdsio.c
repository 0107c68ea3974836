/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock gdsio`: accepts the flags and job files of NVIDIA's gdsio and prints the
 * same result line, so that scripts written for NVIDIA's program can use it. The report of the
 * path goes to standard error. A flag that has no meaning for Penstock must cause an error, or a
 * line in the report; it must never be ignored.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "gdsio_job.h"
#include "gdsio_run.h"

#define DAY_S 86400

/* Names of the transfer types in the result line of NVIDIA's gdsio. */
static const char *const xfer_names[GDSIO_XFERS] = {
	[GDSIO_DIRECT] = "GPUD",
	[GDSIO_CPU] = "CPUONLY",
	[GDSIO_CPU_GPU] = "CPU_GPU",
	[GDSIO_STAGED] = "CPU_ASYNC_GPU",
	[GDSIO_CACHED_GPU] = "CPU_CACHED_GPU",
	[GDSIO_ASYNC] = "GPUD_ASYNC",
	[GDSIO_BATCH] = "GPU_BATCH",
	[GDSIO_BATCH_ASYNC] = "GPU_BATCH_STREAM",
};

static const char *op_name(bool write, bool random)
{
	return write ? random ? "RANDWRITE" : "WRITE" : random ? "RANDREAD" : "READ";
}

/* ---- options ---- */

static int option_invalid(const char *option, const char *wants)
{
	return fail(EXIT_USAGE, "%s '%s': give %s", option, optarg, wants);
}

static int option_number(const char *option, uint64_t max, const char *wants, uint64_t *out)
{
	return parse_number(optarg, 0, max, out) ? 0 : option_invalid(option, wants);
}

static int option_name(const char *option, char *out)
{
	if (!*optarg || strlen(optarg) >= GDSIO_NAME_MAX)
		return option_invalid(option, "a name of at most 1023 bytes");
	snprintf(out, GDSIO_NAME_MAX, "%s", optarg);
	return 0;
}

static int option_xfer(struct gdsio_args *a)
{
	uint64_t n;

	if (parse_number(optarg, 0, 7, &n) && gdsio_xfer(n, &a->xfer))
		return 0;
	return option_invalid("-x", "0 to 7");
}

/* The options that describe a job. Each may be given once for each job. */
enum job_option { TARGET, DEVICE, NODE, MEMORY, THREADS, JOB_OPTIONS };

static int job_option(int c)
{
	switch (c) {
	case 'f':
	case 'D':
		return TARGET;
	case 'd':
		return DEVICE;
	case 'n':
		return NODE;
	case 'm':
		return MEMORY;
	case 'w':
		return THREADS;
	default:
		return JOB_OPTIONS;
	}
}

/* Parses the value of option `c` of a job. */
static int job_option_value(int c, struct gdsio_job *job)
{
	uint64_t n = 0;
	int ret;

	switch (c) {
	case 'f':
		return option_name("-f", job->file);
	case 'D':
		return option_name("-D", job->dir);
	case 'd':
		return gdsio_device(optarg, job)
			       ? 0
			       : option_invalid("-d", "the number of a GPU, or host");
	case 'n':
		ret = option_number("-n", 1023, "the number of a NUMA node", &n);
		job->node = (int)n;
		return ret;
	case 'm':
		ret = option_number("-m", 4, "0 to 4", &n);
		job->memory = gdsio_memory(n);
		return ret;
	default:
		if (!parse_number(optarg, 1, GDSIO_THREADS_MAX, &n))
			return option_invalid("-w", "1 to 1024 threads");
		job->threads = (unsigned)n;
		return 0;
	}
}

/* Parses an option `c` that describes a job. `given` has the number of times that each such
 * option was given so far; the n-th time, the option describes the n-th job. Returns 0, an exit
 * code, or -1 if `c` is an option of another kind. */
static int job_option_parse(int c, struct gdsio_args *a, unsigned *given)
{
	int option = job_option(c);

	if (option == JOB_OPTIONS)
		return -1;
	if (given[option] == GDSIO_JOBS_MAX)
		return fail(EXIT_USAGE,
			    "-%c is given more than %d times: a run can have only %d jobs", c,
			    GDSIO_JOBS_MAX, GDSIO_JOBS_MAX);
	return job_option_value(c, &a->jobs[given[option]++]);
}

/* Copies the value of an option from one job to another. */
static void job_option_copy(struct gdsio_job *to, const struct gdsio_job *from, int option)
{
	if (option == DEVICE)
		memcpy(to->device, from->device, sizeof(to->device));
	else if (option == NODE)
		to->node = from->node;
	else if (option == MEMORY)
		to->memory = from->memory;
	else
		to->threads = from->threads;
}

/* Completes the jobs of the command line: there is a job for each -f or -D, and an option that
 * is given once applies to all jobs. */
static int jobs_complete(struct gdsio_args *a, const unsigned *given)
{
	static const char letters[JOB_OPTIONS] = {'f', 'd', 'n', 'm', 'w'};

	a->job_count = given[TARGET] ? given[TARGET] : 1;
	for (int option = DEVICE; option < JOB_OPTIONS; option++) {
		if (given[option] > 1 && given[option] != a->job_count)
			return fail(EXIT_USAGE,
				    "-%c is given %u times, and -f and -D define %u job%s: give "
				    "it once, or once for each job",
				    letters[option], given[option], a->job_count,
				    a->job_count > 1 ? "s" : "");
		for (unsigned i = 1; given[option] == 1 && i < a->job_count; i++)
			job_option_copy(&a->jobs[i], &a->jobs[0], option);
	}
	for (unsigned i = 1; i < a->job_count; i++)
		if (!a->jobs[i].file[0] != !a->jobs[0].file[0])
			return fail(EXIT_USAGE, "-f and -D cannot be used together: put the jobs "
						"into a job file");
	return 0;
}

/* Parses an option `c` that applies to the whole run. Returns 0, an exit code, or -1 if `c` is
 * an option of another kind. */
static int run_option_parse(int c, struct gdsio_args *a)
{
	uint64_t n = 0;
	int ret;

	switch (c) {
	case 's':
		return gdsio_size(optarg, &a->size) && a->size
			       ? 0
			       : option_invalid("-s", "a size like 1G");
	case 'o':
		return gdsio_size(optarg, &a->start) ? 0 : option_invalid("-o", "a size like 1M");
	case 'i':
		return gdsio_io_size(optarg, a)
			       ? 0
			       : option_invalid("-i", "a size like 1M, or least:most:step");
	case 'x':
		return option_xfer(a);
	case 'I':
		ret = option_number("-I", 3, "0 (read), 1 (write), 2 (randread), 3 (randwrite)",
				    &n);
		a->write = n & 1;
		a->random = n & 2;
		return ret;
	case 'T':
		ret = option_number("-T", DAY_S, "seconds, at most a day", &n);
		a->runtime_s = (unsigned)n;
		return ret;
	case 'k':
		return option_number("-k", UINT64_MAX, "a number", &a->seed);
	case 'B':
		if (!parse_number(optarg, 1, GDSIO_THREADS_MAX, &n))
			return option_invalid("-B", "1 to 1024 transfers in a batch");
		a->batch = (unsigned)n;
		return 0;
	case 'O':
		ret = option_number("-O", 1, "0 (O_DIRECT) or 1 (page cache)", &n);
		a->cached = n;
		return ret;
	default:
		return -1;
	}
}

/* Parses an option `c` that has no value. Returns 0, an exit code, or -1 if `c` is unknown. */
static int switch_parse(int c, struct gdsio_args *a)
{
	switch (c) {
	case 'U':
		a->unaligned = true;
		return 0;
	case 'R':
		a->fill = true;
		return 0;
	case 'F':
		a->refill = true;
		return 0;
	case 'V':
		a->verify = true;
		return 0;
	case 'b':
		a->skip_register = true;
		return 0;
	case 'j':
		a->json = true;
		return 0;
	case 'q':
		a->quiet = true;
		return 0;
	case 'p':
		a->nvlinks = true;
		return 0;
	case 'W':
		a->overwrite = true;
		return 0;
	default:
		return -1;
	}
}

/* ---- combinations of options ---- */

static int gdsio_check_job(const struct gdsio_args *a, const struct gdsio_job *job)
{
	bool library = a->xfer == GDSIO_DIRECT || a->xfer == GDSIO_BATCH;

	if (!job->file[0] == !job->dir[0])
		return fail(EXIT_USAGE, "gdsio needs either a file (-f) or a folder (-D)");
	if (job->memory != GDSIO_DEVICE && !library)
		return fail(EXIT_USAGE, "-m %d works with -x 0 and -x 6 only", (int)job->memory);
	if (gdsio_is_ordered(a) && !strcmp(job->device, "host"))
		return fail(EXIT_USAGE,
			    "-x %d needs the stream of a GPU, and -d host has none: name a GPU",
			    (int)a->xfer);
	if (a->xfer == GDSIO_STAGED && !strcmp(job->device, "host"))
		return fail(EXIT_USAGE, "-x 3 copies from host memory to a GPU: name a GPU");
	if (job->memory == GDSIO_PINNED && !strcmp(job->device, "host"))
		return fail(EXIT_USAGE,
			    "-m 2 pins memory for a GPU: with -d host use -m 3 instead");
	return 0;
}

static int gdsio_check_args(const struct gdsio_args *a)
{
	uint64_t threads = 0, end;
	int ret = 0;

	for (unsigned i = 0; !ret && i < a->job_count; i++) {
		ret = gdsio_check_job(a, &a->jobs[i]);
		threads += (uint64_t)a->jobs[i].threads * gdsio_depth(a);
	}
	if (ret)
		return ret;
	if (threads > GDSIO_THREADS_MAX)
		return fail(EXIT_USAGE, "all jobs together can have at most %d %s: give less",
			    GDSIO_THREADS_MAX,
			    a->batch ? "concurrent transfers (-w times -B)" : "threads");
	if (a->batch && !gdsio_is_batch(a))
		return fail(EXIT_USAGE, "-B is for batches: add -x 6 or -x 7");
	if (a->write && !a->size)
		return fail(EXIT_USAGE, "a write needs its size: add -s, for example -s 1G");
	if (a->unaligned && !a->random)
		return fail(EXIT_USAGE, "-U is for random offsets: use -I 2 or -I 3");
	if (__builtin_add_overflow(a->start, a->size, &end) || end > INT64_MAX)
		return fail(EXIT_USAGE, "-o and -s together are more than 8 EiB: give less");
	return 0;
}

static int job_file_read(const char *name, struct gdsio_args *a)
{
	char *text = malloc(GDSIO_FILE_MAX + 1);
	FILE *f = fopen(name, "re");
	size_t len = f && text ? fread(text, 1, GDSIO_FILE_MAX + 1, f) : 0;
	int ret;

	if (!f || !text || ferror(f))
		ret = fail(EXIT_FAILED, "%s: %s%s", name, strerror(errno),
			   errno == ENOENT ? ": check the name" : "");
	else if (len > GDSIO_FILE_MAX)
		ret = fail(EXIT_USAGE, "%s is longer than 64 KiB, the limit of a job file", name);
	else
		ret = gdsio_job_text(name, text, len, a);
	if (f)
		fclose(f);
	free(text);
	return ret;
}

static int gdsio_parse(int argc, char **argv, struct gdsio_args *a)
{
	static const struct option options[] = {{"json", no_argument, NULL, 'j'},
						{"overwrite", no_argument, NULL, 'W'},
						{"quiet", no_argument, NULL, 'q'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	unsigned given[JOB_OPTIONS] = {0};
	bool flags = false;
	int c, ret;

	a->io_min = a->io_max = 1u << 20;
	for (unsigned i = 0; i < GDSIO_JOBS_MAX; i++)
		a->jobs[i] = (struct gdsio_job){.device = "cuda:0", .threads = 1, .node = -1};
	while ((c = next_option(argc, argv, &cmd_gdsio, options)) != -1) {
		if (c == 'h')
			return -1;
		flags = flags || (c != 'j' && c != 'q' && c != 'W');
		ret = job_option_parse(c, a, given);
		if (ret < 0)
			ret = run_option_parse(c, a);
		if (ret < 0)
			ret = switch_parse(c, a);
		if (ret)
			return EXIT_USAGE;
	}
	if (optind + 1 < argc || (optind < argc && flags))
		return fail(EXIT_USAGE, "gdsio accepts either flags or one job file, remove '%s'",
			    argv[optind + 1 < argc ? optind + 1 : optind]);
	ret = optind < argc ? job_file_read(argv[optind], a) : jobs_complete(a, given);
	return ret ? ret : gdsio_check_args(a);
}

/* ---- output ---- */

/* Writes a size in KiB to `buf` in the form of NVIDIA's result line: with decimals only if it
 * is not a whole number of KiB. */
static const char *kib_text(uint64_t bytes, char *buf, size_t len)
{
	if (bytes % 1024)
		snprintf(buf, len, "%.3f", (double)bytes / 1024);
	else
		snprintf(buf, len, "%llu", (unsigned long long)bytes / 1024);
	return buf;
}

static unsigned thread_count(const struct gdsio_args *a)
{
	unsigned n = 0;

	for (unsigned i = 0; i < a->job_count; i++)
		n += a->jobs[i].threads;
	return n;
}

/* batch_threads returns the number of threads that submit batches. batch_depth returns the
 * number of transfers in a batch. */
static unsigned batch_threads(const struct gdsio_args *a)
{
	return a->batch ? thread_count(a) : a->job_count;
}

static unsigned batch_depth(const struct gdsio_args *a)
{
	return a->batch ? a->batch : thread_count(a);
}

static double gib_per_s(const struct gdsio_result *r)
{
	return r->seconds > 0 ? (double)r->bytes / r->seconds / (double)(1ull << 30) : 0;
}

static double latency_mean_us(const struct gdsio_result *r)
{
	return r->ops ? r->latency_us / (double)r->ops : 0;
}

static void gdsio_print_line(const struct gdsio_args *a, bool write, const struct gdsio_result *r)
{
	char least[32], most[32], step[32];

	printf("IoType: %s XferType: %s ", op_name(write, a->random), xfer_names[a->xfer]);
	if (gdsio_is_batch(a))
		printf("Threads: %u IoDepth: %u ", batch_threads(a), batch_depth(a));
	else
		printf("Threads: %u ", thread_count(a));
	printf("DataSetSize: %llu/%llu(KiB) IOSize: %s", (unsigned long long)r->bytes / 1024,
	       (unsigned long long)r->size / 1024, kib_text(a->io_min, least, sizeof(least)));
	if (a->io_min != a->io_max)
		printf(":%s:%s", kib_text(a->io_max, most, sizeof(most)),
		       kib_text(a->io_step, step, sizeof(step)));
	printf("(KiB) Throughput: %.6f GiB/sec, Avg_Latency: %.6f usecs ops: %llu total_time %.6f "
	       "secs\n",
	       gib_per_s(r), latency_mean_us(r), (unsigned long long)r->ops, r->seconds);
	flush_output();
}

static void gdsio_print_json_result(struct json *j, const struct gdsio_result *r)
{
	json_int(j, "bytes", (int64_t)r->bytes);
	json_int(j, "ops", (int64_t)r->ops);
	json_real(j, "seconds", r->seconds);
	json_real(j, "gib_per_s", gib_per_s(r));
	json_real(j, "avg_latency_us", latency_mean_us(r));
}

static void gdsio_print_json(const struct gdsio_args *a, const struct gdsio_result *first,
			     const struct gdsio_result *again)
{
	struct json j;

	json_open(&j, stdout);
	json_text(&j, "io_type", op_name(a->write, a->random));
	json_text(&j, "xfer_type", xfer_names[a->xfer]);
	json_int(&j, "threads", gdsio_is_batch(a) ? batch_threads(a) : thread_count(a));
	json_int(&j, "io_depth", gdsio_is_batch(a) ? batch_depth(a) : 1);
	json_int(&j, "dataset_bytes", (int64_t)first->size);
	json_int(&j, "io_min", (int64_t)a->io_min);
	json_int(&j, "io_max", (int64_t)a->io_max);
	gdsio_print_json_result(&j, first);
	json_bool(&j, "verified", a->verify);
	if (again) {
		json_object(&j, "read_again");
		gdsio_print_json_result(&j, again);
		json_end(&j);
	}
	if (!gdsio_is_plain(a))
		tally_json(&j, &first->tally);
	json_close(&j);
}

/* Prints the path that carried the bytes. For -x 1, 2 and 4 prints the system calls instead,
 * because these transfers do not use the library. */
static void gdsio_print_path(const struct gdsio_args *a, const struct gdsio_result *r)
{
	if (a->quiet || a->json)
		return;
	if (!gdsio_is_plain(a))
		tally_print(stderr, "path", &r->tally);
	else
		fprintf(stderr, "path\n  none: plain pread(2) and pwrite(2) %s, %s\n",
			gdsio_is_cached(a) ? "through the page cache" : "with O_DIRECT",
			a->xfer == GDSIO_CPU ? "without a device"
					     : "and a copy to or from the device");
	if (a->nvlinks)
		fprintf(stderr, "  nvlinks: not used, because no path goes through another GPU\n");
}

static int gdsio_run_passes(const struct gdsio_args *a, struct gdsio_run *r)
{
	struct gdsio_result first, again;
	bool replay = a->write && a->verify;

	int ret = gdsio_pass(r, a->write, false, &first);

	if (ret)
		return fail(ret, "%s", first.error);
	if (!a->json)
		gdsio_print_line(a, a->write, &first);
	gdsio_print_path(a, &first);
	if (replay) {
		if (!a->json)
			printf("Verifying data\n");
		flush_output();
		ret = gdsio_pass(r, false, true, &again);
		if (ret)
			return fail(ret, "%s", again.error);
		if (!a->json)
			gdsio_print_line(a, false, &again);
		gdsio_print_path(a, &again);
	}
	if (a->json)
		gdsio_print_json(a, &first, replay ? &again : NULL);
	return EXIT_DONE;
}

static int gdsio_main(int argc, char **argv)
{
	struct gdsio_args *a = calloc(1, sizeof(*a));
	struct gdsio_run *r;
	char error[GDSIO_TEXT_MAX];
	int ret;

	if (!a)
		return fail(EXIT_FAILED, "out of memory");
	ret = gdsio_parse(argc, argv, a);
	if (!ret) {
		if (a->write) /* to remove incomplete files; a read creates none */
			catch_signals();
		r = gdsio_open(a, error);
		ret = r ? gdsio_run_passes(a, r) : fail(EXIT_FAILED, "%s", error);
		if (r && gdsio_close(r, ret, error))
			ret = fail(EXIT_FAILED, "%s", error);
	}
	free(a);
	return ret < 0 ? EXIT_DONE : ret;
}

const struct command cmd_gdsio = {
	.name = "gdsio",
	.usage = "-f FILE | -D FOLDER [flags], or JOBFILE",
	.summary = "measure like NVIDIA's gdsio: same flags, same output line",
	.help = "  -f FILE       all threads share FILE\n"
		"  -D FOLDER     each thread has its own file FOLDER/gdsio.N\n"
		"  -d N|host     number of the GPU (0), or host memory instead\n"
		"  -m M          memory: 0, 1 of the GPU, 2 pinned, 3 malloc, 4 mmap (0)\n"
		"  -n NODE       run the threads on that NUMA node\n"
		"  -w N          threads; with -x 6 or 7 and no -B the transfers in a batch (1)\n"
		"                -f or -D several times: as many jobs; give -d, -m, -n and -w\n"
		"                once for all jobs, or once for each\n"
		"  -B N          with -x 6 or 7: each thread has a batch of N transfers\n"
		"  -s SIZE       bytes of the file, with -D of each file\n"
		"  -o SIZE       offset in the file where the transfers start (0)\n"
		"  -i SIZE       bytes of a transfer, or LEAST:MOST:STEP (1M)\n"
		"  -x X          0 storage to GPU, 1 storage to CPU, 2 storage to CPU to GPU,\n"
		"                3 through pinned memory, 4 through the page cache, 5 in stream\n"
		"                order, 6 in batches, 7 in batches in stream order (0)\n"
		"  -I N          0 read, 1 write, 2 randread, 3 randwrite (0)\n"
		"  -T SECONDS    repeat for this time; default: transfer every byte once\n"
		"  -V            write bytes that depend on -k, and compare what is read\n"
		"  -k SEED       seed of the random offsets and of the bytes of -V (0)\n"
		"  -U            random offsets of any byte, not multiples of the transfer\n"
		"  -R, -F        write random bytes; -F: different ones in each transfer\n"
		"  -O N          0 O_DIRECT, 1 through the page cache (0)\n"
		"  -b            do not register host memory\n"
		"  -p            permit NVLinks, which no path uses\n"
		"  --overwrite   write into files that exist, and through links\n"
		"  --quiet       print no report of the path on standard error\n"
		"  --json        print one JSON object, see penstock-json(5)\n",
	.run = gdsio_main,
	.flags = ":f:D:d:n:m:w:s:o:i:x:I:T:k:O:URFVbpB:h",
};
