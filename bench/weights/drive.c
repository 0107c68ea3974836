/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the limit of the drive: one pass over a file with O_DIRECT and many calls in flight.
 * It uses the same code as bench_core. weights.py runs it between its loads, after it has
 * checked that the file is not cached.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../bench.h"
#include "drive.h"

int drive_bench(const char *file, char **words, int count)
{
	struct drive_way way = {.engine = "uring"};
	struct sample s = {.bytes = 0};
	struct meter m;
	struct stat st;
	int fd, ret;

	if (count != 4)
		return -EINVAL;
	way.engine = words[0];
	way.threads = (unsigned)strtoul(words[1], NULL, 10);
	way.depth = (unsigned)strtoul(words[2], NULL, 10);
	way.block = strtoul(words[3], NULL, 10) * KIB;
	fd = drive_open(file, false);
	if (fd < 0 || fstat(fd, &st) || !way.block || !way.threads || !way.depth) {
		fprintf(stderr, "bench_weights: %s: %s\n", file, strerror(fd < 0 ? -fd : EINVAL));
		return 1;
	}
	s.bytes = (uint64_t)st.st_size / way.block * way.block;
	/* This call is not measured; it allocates and touches the buffer. The measured pass
	 * below reads the same block again. */
	ret = drive_move(fd, false, 0, 1, way.block, &way);
	meter_start(&m);
	if (!ret)
		ret = drive_move(fd, false, 0, s.bytes / way.block, way.block, &way);
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	close(fd);
	if (ret || !s.bytes) {
		fprintf(stderr, "bench_weights: %s: %s\n", file,
			ret ? strerror(-ret) : "shorter than a block");
		return 1;
	}
	printf("{\"bytes\": %llu, \"seconds\": %.9f, \"cpu\": %.6f}\n", (unsigned long long)s.bytes,
	       s.seconds, s.cpu);
	return 0;
}
