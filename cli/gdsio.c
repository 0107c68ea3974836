/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock gdsio: takes the flags and job files of NVIDIA's gdsio and prints its line,
 * so that scripts which call that one can be pointed here. What a flag cannot mean here
 * is an error, never passed over. The report of the path goes to standard error.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gdsio.h"

#define DAY_S 86400

static const char *xfer_name(enum gdsio_xfer x)
{
	switch (x) {
	case GDSIO_CPU:
		return "CPUONLY";
	case GDSIO_CPU_GPU:
		return "CPU_GPU";
	case GDSIO_ASYNC:
		return "GPUD_ASYNC";
	case GDSIO_BATCH:
		return "GPU_BATCH";
	default:
		return "GPUD";
	}
}

static const char *op_name(bool write, bool random)
{
	return write ? random ? "RANDWRITE" : "WRITE" : random ? "RANDREAD" : "READ";
}

/* ---- options ---- */

static int bad(const char *option, const char *wants)
{
	return fail(EXIT_USAGE, "%s '%s': %s", option, optarg, wants);
}

static int take_number(const char *option, uint64_t max, const char *wants, uint64_t *out)
{
	return parse_number(optarg, 0, max, out) ? 0 : bad(option, wants);
}

static int take_name(const char *option, char *out)
{
	if (!*optarg || strlen(optarg) >= GDSIO_NAME_MAX)
		return bad(option, "a name of at most 1023 bytes");
	snprintf(out, GDSIO_NAME_MAX, "%s", optarg);
	return 0;
}

static int take_xfer(struct gdsio_args *a)
{
	uint64_t n;

	if (parse_number(optarg, 0, 7, &n) && gdsio_xfer(n, &a->xfer))
		return 0;
	return bad("-x", "0, 1, 2, 5 or 6; 3, 4 and 7 are not offered");
}

/* Of the job that the command line describes. */
static int take_job_option(int c, struct gdsio_job *job)
{
	uint64_t n = 0;
	int ret = 0;

	switch (c) {
	case 'f':
		return take_name("-f", job->file);
	case 'D':
		return take_name("-D", job->dir);
	case 'd':
		return gdsio_device(optarg, job) ? 0 : bad("-d", "the number of a GPU, or host");
	case 'n':
		ret = take_number("-n", 1023, "the number of a NUMA node", &n);
		job->node = (int)n;
		return ret;
	case 'm':
		ret = take_number("-m", 4, "0 to 4", &n);
		job->memory = gdsio_memory(n);
		return ret;
	case 'w':
		if (!parse_number(optarg, 1, GDSIO_THREADS_MAX, &n))
			return bad("-w", "1 to 1024 threads");
		job->threads = (unsigned)n;
		return 0;
	default:
		return -1;
	}
}

static int take_option(int c, struct gdsio_args *a)
{
	uint64_t n = 0;
	int ret;

	switch (c) {
	case 's':
		return gdsio_size(optarg, &a->size) && a->size ? 0 : bad("-s", "a size like 1G");
	case 'o':
		return gdsio_size(optarg, &a->start) ? 0 : bad("-o", "a size like 1M");
	case 'i':
		return gdsio_io_size(optarg, a) ? 0
						: bad("-i", "a size like 1M, or least:most:step");
	case 'x':
		return take_xfer(a);
	case 'I':
		ret = take_number("-I", 3, "0 (read), 1 (write), 2 (randread), 3 (randwrite)", &n);
		a->write = n & 1;
		a->random = n & 2;
		return ret;
	case 'T':
		ret = take_number("-T", DAY_S, "seconds, at most a day", &n);
		a->runtime_s = (unsigned)n;
		return ret;
	case 'k':
		return take_number("-k", UINT64_MAX, "a number", &a->seed);
	case 'B':
		if (!parse_number(optarg, 1, GDSIO_THREADS_MAX, &n))
			return bad("-B", "1 to 1024 transfers in a batch");
		a->batch = (unsigned)n;
		return 0;
	case 'O':
		ret = take_number("-O", 1, "0 (O_DIRECT) or 1 (page cache)", &n);
		a->cached = n;
		return ret;
	default:
		return -1;
	}
}

static int take_switch(int c, struct gdsio_args *a)
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
		return fail(EXIT_USAGE,
			    "-p (NVLinks) is not offered: peers are reached without it");
	default:
		return -1;
	}
}

/* ---- what makes sense together ---- */

static int judge_job(const struct gdsio_args *a, const struct gdsio_job *job)
{
	bool library = a->xfer == GDSIO_DIRECT || a->xfer == GDSIO_BATCH;

	if (!job->file[0] == !job->dir[0])
		return fail(EXIT_USAGE, "gdsio wants either a file (-f) or a folder (-D)");
	if (job->memory != GDSIO_DEVICE && !library)
		return fail(EXIT_USAGE, "-m %d goes with -x 0 and 6 only", (int)job->memory);
	if (a->xfer == GDSIO_ASYNC && !strcmp(job->device, "host"))
		return fail(EXIT_USAGE, "-x 5 is in the order of a GPU's stream: -d host has none");
	if (job->memory == GDSIO_PINNED && !strcmp(job->device, "host"))
		return fail(EXIT_USAGE, "-m 2 is pinned for a GPU: with -d host it is -m 3");
	return 0;
}

static int judge(const struct gdsio_args *a)
{
	uint64_t threads = 0, end;
	int ret = 0;

	for (unsigned i = 0; !ret && i < a->job_count; i++) {
		ret = judge_job(a, &a->jobs[i]);
		threads += (uint64_t)a->jobs[i].threads * gdsio_depth(a);
	}
	if (ret)
		return ret;
	if (threads > GDSIO_THREADS_MAX)
		return fail(EXIT_USAGE, "at most %d %s of all jobs", GDSIO_THREADS_MAX,
			    a->batch ? "transfers at once (-w times -B)" : "threads");
	if (a->batch && a->xfer != GDSIO_BATCH)
		return fail(EXIT_USAGE, "-B is for batches: -x 6");
	if (a->write && !a->size)
		return fail(EXIT_USAGE, "-s says how much is written: -s 1G");
	if (a->unaligned && !a->random)
		return fail(EXIT_USAGE, "-U is for random offsets: -I 2 or -I 3");
	if (__builtin_add_overflow(a->start, a->size, &end) || end > INT64_MAX)
		return fail(EXIT_USAGE, "-o and -s together are beyond 8 EiB");
	return 0;
}

static int read_job_file(const char *name, struct gdsio_args *a)
{
	char *text = malloc(GDSIO_FILE_MAX + 1);
	FILE *f = fopen(name, "re");
	size_t len = f && text ? fread(text, 1, GDSIO_FILE_MAX + 1, f) : 0;
	int ret;

	if (!f || !text || ferror(f))
		ret = fail(EXIT_FAILED, "%s: %s%s", name, strerror(errno),
			   errno == ENOENT ? ": check the name" : "");
	else if (len > GDSIO_FILE_MAX)
		ret = fail(EXIT_USAGE, "%s is longer than 64 KiB, which no job file is", name);
	else
		ret = gdsio_job_text(name, text, len, a);
	if (f)
		fclose(f);
	free(text);
	return ret;
}

static int parse(int argc, char **argv, struct gdsio_args *a)
{
	static const struct option options[] = {{"json", no_argument, NULL, 'j'},
						{"quiet", no_argument, NULL, 'q'},
						{"help", no_argument, NULL, 'h'},
						{NULL, 0, NULL, 0}};
	bool flags = false;
	int c, ret;

	a->job_count = 1;
	a->io_min = a->io_max = 1u << 20;
	a->jobs[0] = (struct gdsio_job){.device = "cuda:0", .threads = 1, .node = -1};
	while ((c = next_option(argc, argv, &cmd_gdsio, options)) != -1) {
		if (c == 'h')
			return -1;
		flags = flags || (c != 'j' && c != 'q');
		ret = take_job_option(c, &a->jobs[0]);
		if (ret < 0)
			ret = take_option(c, a);
		if (ret < 0)
			ret = take_switch(c, a);
		if (ret)
			return EXIT_USAGE;
	}
	if (optind + 1 < argc || (optind < argc && flags))
		return fail(EXIT_USAGE, "gdsio wants either flags or one job file, '%s' is more",
			    argv[optind + 1 < argc ? optind + 1 : optind]);
	ret = optind < argc ? read_job_file(argv[optind], a) : 0;
	return ret ? ret : judge(a);
}

/* ---- output ---- */

/* In KiB, as the line has it; less than one is not hidden. */
static const char *kib(uint64_t bytes, char *buf, size_t len)
{
	if (bytes % 1024)
		snprintf(buf, len, "%.3f", (double)bytes / 1024);
	else
		snprintf(buf, len, "%llu", (unsigned long long)bytes / 1024);
	return buf;
}

static unsigned threads_of(const struct gdsio_args *a)
{
	unsigned n = 0;

	for (unsigned i = 0; i < a->job_count; i++)
		n += a->jobs[i].threads;
	return n;
}

/* Of batches: threads that submit them, and how many transfers each has. */
static unsigned drivers_of(const struct gdsio_args *a)
{
	return a->batch ? threads_of(a) : a->job_count;
}

static unsigned depth_of(const struct gdsio_args *a)
{
	return a->batch ? a->batch : threads_of(a);
}

static double rate(const struct gdsio_result *r)
{
	return r->seconds > 0 ? (double)r->bytes / r->seconds / (double)(1ull << 30) : 0;
}

static double latency(const struct gdsio_result *r)
{
	return r->ops ? r->latency_us / (double)r->ops : 0;
}

static void print_line(const struct gdsio_args *a, bool write, const struct gdsio_result *r)
{
	char least[32], most[32], step[32];

	printf("IoType: %s XferType: %s ", op_name(write, a->random), xfer_name(a->xfer));
	if (a->xfer == GDSIO_BATCH)
		printf("Threads: %u IoDepth: %u ", drivers_of(a), depth_of(a));
	else
		printf("Threads: %u ", threads_of(a));
	printf("DataSetSize: %llu/%llu(KiB) IOSize: %s", (unsigned long long)r->bytes / 1024,
	       (unsigned long long)r->size / 1024, kib(a->io_min, least, sizeof(least)));
	if (a->io_min != a->io_max)
		printf(":%s:%s", kib(a->io_max, most, sizeof(most)),
		       kib(a->io_step, step, sizeof(step)));
	printf("(KiB) Throughput: %.6f GiB/sec, Avg_Latency: %.6f usecs ops: %llu total_time %.6f "
	       "secs\n",
	       rate(r), latency(r), (unsigned long long)r->ops, r->seconds);
	flush_output();
}

static void json_result(struct json *j, const struct gdsio_result *r)
{
	json_int(j, "bytes", (int64_t)r->bytes);
	json_int(j, "ops", (int64_t)r->ops);
	json_real(j, "seconds", r->seconds);
	json_real(j, "gib_per_s", rate(r));
	json_real(j, "avg_latency_us", latency(r));
}

static void print_json(const struct gdsio_args *a, const struct gdsio_result *first,
		       const struct gdsio_result *again)
{
	bool plain = a->xfer == GDSIO_CPU || a->xfer == GDSIO_CPU_GPU;
	struct json j;

	json_open(&j, stdout);
	json_text(&j, "io_type", op_name(a->write, a->random));
	json_text(&j, "xfer_type", xfer_name(a->xfer));
	json_int(&j, "threads", a->xfer == GDSIO_BATCH ? drivers_of(a) : threads_of(a));
	json_int(&j, "io_depth", a->xfer == GDSIO_BATCH ? depth_of(a) : 1);
	json_int(&j, "dataset_bytes", (int64_t)first->size);
	json_int(&j, "io_min", (int64_t)a->io_min);
	json_int(&j, "io_max", (int64_t)a->io_max);
	json_result(&j, first);
	json_bool(&j, "verified", a->verify);
	if (again) {
		json_object(&j, "read_again");
		json_result(&j, again);
		json_end(&j);
	}
	if (!plain)
		tally_json(&j, &first->tally);
	json_close(&j);
}

/* Which path it was; of -x 1 and 2 what was called, because no path was. */
static void print_path(const struct gdsio_args *a, const struct gdsio_result *r)
{
	if (a->quiet || a->json)
		return;
	if (a->xfer != GDSIO_CPU && a->xfer != GDSIO_CPU_GPU)
		tally_print(stderr, "path", &r->tally);
	else
		fprintf(stderr, "path\n  none: plain pread(2) and pwrite(2) %s, %s\n",
			a->cached ? "through the page cache" : "with O_DIRECT",
			a->xfer == GDSIO_CPU ? "no device has a part in it"
					     : "then a copy to or from the device");
}

static int passes(const struct gdsio_args *a, struct gdsio_run *r)
{
	struct gdsio_result first, again;
	bool replay = a->write && a->verify;

	int ret = gdsio_pass(r, a->write, false, &first);

	if (ret)
		return fail(ret, "%s", first.error);
	if (!a->json)
		print_line(a, a->write, &first);
	print_path(a, &first);
	if (replay) {
		if (!a->json)
			printf("Verifying data\n");
		flush_output();
		ret = gdsio_pass(r, false, true, &again);
		if (ret)
			return fail(ret, "%s", again.error);
		if (!a->json)
			print_line(a, false, &again);
		print_path(a, &again);
	}
	if (a->json)
		print_json(a, &first, replay ? &again : NULL);
	return EXIT_DONE;
}

static int run(int argc, char **argv)
{
	struct gdsio_args *a = calloc(1, sizeof(*a));
	struct gdsio_run *r;
	char error[GDSIO_TEXT_MAX];
	int ret;

	if (!a)
		return fail(EXIT_FAILED, "no memory");
	ret = parse(argc, argv, a);
	if (!ret) {
		if (a->write) /* a read leaves nothing that is to be taken back */
			catch_signals();
		r = gdsio_open(a, error);
		ret = r ? passes(a, r) : fail(EXIT_FAILED, "%s", error);
		if (r && gdsio_close(r, ret, error))
			ret = fail(EXIT_FAILED, "%s", error);
	}
	free(a);
	return ret < 0 ? EXIT_DONE : ret;
}

const struct command cmd_gdsio = {
	.name = "gdsio",
	.usage = "-f FILE | -D FOLDER [flags], or JOBFILE",
	.summary = "takes the flags of NVIDIA's gdsio, and prints its line",
	.help = "  -f FILE       threads share it; -D FOLDER: each has FOLDER/gdsio.N\n"
		"  -d N|host     the GPU (0), or host memory in its place\n"
		"  -m M          memory: 0, 1 the GPU's, 2 pinned, 3 malloc, 4 mmap (0)\n"
		"  -n NODE       threads run on that NUMA node\n"
		"  -w N          threads, or with -x 6 and no -B the batch's depth (1)\n"
		"  -B N          with -x 6: a batch of N transfers for each thread\n"
		"  -s SIZE       of the file, of each with -D; -o SIZE: where to begin\n"
		"  -i SIZE       of a transfer, or LEAST:MOST:STEP (1M)\n"
		"  -x X          0 storage to GPU, 1 to CPU, 2 by the CPU to GPU,\n"
		"                5 in stream order, 6 in batches (0)\n"
		"  -I N          0 read, 1 write, 2 randread, 3 randwrite (0)\n"
		"  -T SECONDS    so long, again and again; else once through\n"
		"  -V            compare what is read with what -V wrote, by -k\n"
		"  -k SEED       of random offsets and of -V; -U: offsets of any byte\n"
		"  -R, -F        random bytes are written, other ones each time\n"
		"  -O N          0 O_DIRECT, 1 through the page cache (0)\n"
		"  -b            no host memory is registered\n"
		"  --quiet       no report of the path on standard error\n"
		"  --json        one object, see penstock-json(5)\n",
	.run = run,
	.flags = ":f:D:d:n:m:w:s:o:i:x:I:T:k:O:URFVbpB:h",
};
