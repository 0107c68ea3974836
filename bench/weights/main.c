/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_weights: measures how long it takes to load a model in C, in one process and in several.
 * gpu.sh and gpus.sh in this folder run it. The first word selects what it measures:
 *
 *	bench_weights load FILE          each step of a load, from open to pointers
 *	bench_weights small MANY ONE     many small tensors, and one tensor of the same bytes
 *	bench_weights limit FILE         limits of the machine, without the library
 *	bench_weights group FILE         a load by several processes, one for each GPU
 *	bench_weights drive FILE WAY     limit of the drive
 *	bench_weights first FILE         limit of the first load of a process
 */
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "drive.h"
#include "ranks.h"

#define BARRIER_S 120.0

double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

double cpu_time(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

struct shared *shared_new(void)
{
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (s == MAP_FAILED) {
		perror("bench_weights: mmap");
		exit(1);
	}
	return s;
}

const char *effort_name(const struct job *job)
{
	static const char *const names[] = {"thrifty", "fast", "balanced"};

	return names[job->effort];
}

bool ranks_barrier(struct shared *s, unsigned barrier, unsigned ranks)
{
	double until = now() + BARRIER_S;

	atomic_fetch_add(&s->arrived[barrier], 1);
	while (atomic_load(&s->arrived[barrier]) < ranks) {
		if (atomic_load(&s->gave_up) || now() > until)
			return false;
		sched_yield();
	}
	return true;
}

unsigned run_ranks(const struct job *job, struct shared *s,
		   int (*fn)(const struct job *job, struct shared *s, unsigned rank))
{
	pid_t pids[RANKS_MAX];
	unsigned bad = 0;

	fflush(NULL);
	for (unsigned i = 0; i < job->ranks; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			int ret = fn(job, s, i);

			if (ret)
				atomic_store(&s->gave_up, 1);
			fflush(NULL);
			_exit(ret ? 1 : 0);
		}
	}
	for (unsigned i = 0; i < job->ranks; i++) {
		int status = 0;

		waitpid(pids[i], &status, 0);
		if (job->dies == (int)i ? !WIFSIGNALED(status) : status != 0) {
			fprintf(stderr, "bench_weights: rank %u ended with status %#x\n", i,
				(unsigned)status);
			bad++;
		}
	}
	return bad;
}

void device_name(const struct job *job, unsigned rank, char *out, size_t len)
{
	if (!strcmp(job->device, "cuda"))
		snprintf(out, len, "cuda:%u", rank);
	else
		snprintf(out, len, "%s", job->device);
}

void csv_row(const struct job *job, const char *what, unsigned rep, unsigned rank,
	     const struct run *r)
{
	if (!job->csv)
		return;
	if (!ftell(job->csv))
		fprintf(job->csv, "what,ranks,window_mib,windows,rep,rank,read,bytes,begin,end,"
				  "cpu_s,cpu_copied,path\n");
	fprintf(job->csv, "%s,%u,%llu,%u,%u,%u,%llu,%llu,%.6f,%.6f,%.6f,%llu,%s\n", what,
		job->ranks, (unsigned long long)(job->window / MIB), job->windows, rep, rank,
		(unsigned long long)r->read, (unsigned long long)r->bytes, r->begin, r->end, r->cpu,
		(unsigned long long)r->cpu_copied, r->path);
	fflush(job->csv);
}

static int usage(void)
{
	fprintf(stderr,
		"bench_weights load FILE | small MANY ONE | limit FILE | group FILE |\n"
		"              drive FILE uring|threads THREADS DEPTH KIB | first FILE\n"
		"  --device NAME    cuda (each rank its own), cuda:0, host\n"
		"  --ranks N        --reps N         --csv FILE (rows are added)\n"
		"  --window MIB     --windows N      of the group\n"
		"  --fast --balanced         --kept           --shard      --into     --verify\n"
		"  --dies RANK      this rank is killed during the load\n");
	return 2;
}

static const struct option options[] = {
	{"device", 1, NULL, 'd'},   {"ranks", 1, NULL, 'r'},  {"reps", 1, NULL, 'n'},
	{"csv", 1, NULL, 'c'},	    {"window", 1, NULL, 'w'}, {"windows", 1, NULL, 'W'},
	{"fast", 0, NULL, 'f'},	    {"kept", 0, NULL, 'k'},   {"shard", 0, NULL, 's'},
	{"balanced", 0, NULL, 'b'}, {"into", 0, NULL, 'i'},   {"verify", 0, NULL, 'v'},
	{"dies", 1, NULL, 'x'},	    {NULL, 0, NULL, 0},
};

static int parse_options(struct job *job, int argc, char **argv)
{
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		unsigned n = optarg ? (unsigned)strtoul(optarg, NULL, 10) : 0;

		switch (c) {
		case 'd':
			job->device = optarg;
			break;
		case 'r':
			job->ranks = n;
			break;
		case 'n':
			job->reps = n;
			break;
		case 'c':
			job->csv = fopen(optarg, "a");
			break;
		case 'w':
			job->window = n * MIB;
			break;
		case 'W':
			job->windows = n;
			break;
		case 'f':
			job->effort = PENSTOCK_FAST;
			break;
		case 'b':
			job->effort = PENSTOCK_BALANCED;
			break;
		case 'k':
			job->kept = true;
			break;
		case 's':
			job->shard = true;
			break;
		case 'i':
			job->into = true;
			break;
		case 'v':
			job->verify = true;
			break;
		case 'x':
			job->dies = (int)n;
			break;
		default:
			return -EINVAL;
		}
	}
	return job->ranks && job->ranks <= RANKS_MAX && job->reps && job->reps <= REPS_MAX
		       ? 0
		       : -EINVAL;
}

int main(int argc, char **argv)
{
	struct job job = {.device = "cuda", .ranks = 1, .reps = 3, .dies = -1};
	double link, in;
	char **words;

	if (parse_options(&job, argc, argv) || argc - optind < 2)
		return usage();
	words = argv + optind;
	job.file = words[1];
	if (!strcmp(words[0], "load"))
		return load_bench(&job);
	if (!strcmp(words[0], "small") && argc - optind == 3)
		return small_bench(&job, words[1], words[2]);
	if (!strcmp(words[0], "limit"))
		return limit_bench(&job, &link, &in);
	if (!strcmp(words[0], "group"))
		return group_bench(&job);
	if (!strcmp(words[0], "first"))
		return first_bench(&job);
	if (!strcmp(words[0], "drive") && argc - optind == 6)
		return drive_bench(words[1], words + 2, 4);
	return usage();
}
