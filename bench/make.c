/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the test file: a valid safetensors file of an exact length, so that loaders that read
 * only this format can use it. Its tensors are random bytes, written through the page cache in
 * large pieces. When this section returns, the file is on the drive and in the page cache.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"

#define PIECE (64u << 20)
#define TENSOR (64 * MIB)
#define HEADER 32768u

/* Writes the header of a safetensors file: 8 bytes with the length of the JSON, then the JSON,
 * padded with blanks to HEADER bytes in all. */
static int header_write(char *out, uint64_t data)
{
	size_t at = 8, room = HEADER;
	uint64_t json = HEADER - 8;

	memset(out, ' ', HEADER);
	memcpy(out, &json, 8);
	out[at++] = '{';
	for (uint64_t off = 0, i = 0; off < data; off += TENSOR, i++) {
		uint64_t end = off + TENSOR < data ? off + TENSOR : data;
		int n = snprintf(out + at, room - at,
				 "%s\"t%04llu\":{\"dtype\":\"BF16\",\"shape\":[%llu],"
				 "\"data_offsets\":[%llu,%llu]}",
				 off ? "," : "", (unsigned long long)i,
				 (unsigned long long)((end - off) / 2), (unsigned long long)off,
				 (unsigned long long)end);

		if (n < 0 || at + (size_t)n + 2 > room)
			return -E2BIG;
		at += (size_t)n;
	}
	out[at++] = '}';
	out[at] = ' '; /* Replaces the NUL that snprintf wrote. */
	return 0;
}

static int write_all(int fd, const char *mem, size_t len)
{
	while (len) {
		ssize_t n = write(fd, mem, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		mem += n;
		len -= (size_t)n;
	}
	return 0;
}

static int file_fill(int fd, uint64_t len, char *mem)
{
	uint64_t x = 88172645463325252u;
	int ret = 0;

	for (uint64_t at = 0; at < len && !ret; at += PIECE) {
		uint64_t n = len - at < PIECE ? len - at : PIECE;

		for (size_t i = 0; i < PIECE; i += 8) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			*(uint64_t *)(mem + i) = x;
		}
		if (!at)
			ret = header_write(mem, len - HEADER);
		if (!ret)
			ret = write_all(fd, mem, n);
	}
	return ret;
}

static int file_make(struct bench *b, uint64_t len)
{
	char *mem = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sample s = {.bytes = len};
	struct meter m;
	int fd = open(b->file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), ret;

	meter_start(&m);
	if (fd < 0 || mem == MAP_FAILED)
		ret = -errno;
	else
		ret = fallocate(fd, 0, 0, (off_t)len) ? -errno : file_fill(fd, len, mem);
	if (!ret)
		ret = fdatasync(fd) ? -errno : 0;
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	if (mem != MAP_FAILED)
		munmap(mem, PIECE);
	if (fd >= 0)
		close(fd);
	if (ret)
		bench_bad(b, "%s: %s", b->file, strerror(-ret));
	else
		meter_row(b, "make", "file", 0, &s);
	return ret;
}

static int section_make(struct bench *b)
{
	return file_make(b, b->len);
}

static int section_make_long(struct bench *b)
{
	return file_make(b, b->long_len);
}

const struct bench_section bench_prep[] = {
	{"make", "writes the test file", false, section_make},
	{"make_long", "writes the test file again with the longest size", false, section_make_long},
	{NULL, NULL, false, NULL},
};
