/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures time and CPU time, and writes the CSV. It reads the CPU time only when the process is
 * idle, before and after a measurement, so that the library's cleanup after a request counts.
 * The CSV also has the CPU time of the whole machine, which includes kernel threads and
 * interrupts. So no other program should run on the machine.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define QUIET_US 20000
/* The process counts as idle if it used less than QUIET_CPU seconds of CPU time within QUIET_US
 * microseconds. */
#define QUIET_CPU 0.0004
#define QUIET_TRIES 100

uint64_t meter_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static double cpu_of(int usage_of)
{
	struct rusage u;

	getrusage(usage_of, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static double cpu_now(void)
{
	return cpu_of(RUSAGE_SELF) + cpu_of(RUSAGE_CHILDREN);
}

/* Adds the fields of the first line of /proc/stat except idle and iowait. The fields for guests
 * are left out, because the user time includes them. */
static double machine_now(void)
{
	unsigned long long v[8] = {0};
	FILE *f = fopen("/proc/stat", "re");
	double sum = 0;

	if (!f)
		return 0;
	if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3],
		   &v[4], &v[5], &v[6], &v[7]) == 8)
		sum = (double)(v[0] + v[1] + v[2] + v[5] + v[6]);
	fclose(f);
	return sum / (double)sysconf(_SC_CLK_TCK);
}

static void idle_wait(void)
{
	double before = cpu_now();

	for (int i = 0; i < QUIET_TRIES; i++) {
		double after;

		usleep(QUIET_US);
		after = cpu_now();
		if (after - before < QUIET_CPU)
			return;
		before = after;
	}
}

void meter_start(struct meter *m)
{
	idle_wait();
	m->machine = machine_now();
	m->cpu = cpu_now();
	m->began_ns = meter_ns();
}

void meter_stop(const struct meter *m, struct sample *s)
{
	s->seconds = (double)(meter_ns() - m->began_ns) * 1e-9;
}

double meter_settle(const struct meter *m, struct sample *s)
{
	uint64_t from = meter_ns();
	double took;

	idle_wait();
	took = (double)(meter_ns() - from) * 1e-9 - QUIET_US * 1e-6;
	s->cpu = cpu_now() - m->cpu;
	s->machine = machine_now() - m->machine;
	return took > 0 ? took : 0;
}

void meter_row(struct bench *b, const char *group, const char *name, unsigned rep,
	       const struct sample *s)
{
	double gb = (double)s->bytes * 1e-9;

	fprintf(b->csv, "%s%s%s,%s,%u,%llu,%.9f,%.6f,%.3f,%llu,%.3f,%.3f,%s,%s,%s\n", group,
		b->tag ? "@" : "", b->tag ? b->tag : "", name, rep, (unsigned long long)s->bytes,
		s->seconds, s->cpu, s->machine, (unsigned long long)s->ops, s->p50_us, s->p99_us,
		s->path, s->engine, s->note);
	fflush(b->csv);
	fprintf(stderr, "%-10s %-28s %2u ", group, name, rep);
	if (s->ops)
		fprintf(stderr, "%9.0f op/s  p50 %8.2f  p99 %8.2f us", (double)s->ops / s->seconds,
			s->p50_us, s->p99_us);
	else if (s->bytes)
		fprintf(stderr, "%8.2f GB/s  %6.4f CPU-s/GB", gb / s->seconds, s->cpu / gb);
	else
		fprintf(stderr, "%8.3f ms", s->seconds * 1e3);
	fprintf(stderr, "  %s %s %s\n", s->path, s->engine, s->note);
}

int meter_compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}
