/* SPDX-License-Identifier: Apache-2.0 */
/*
 * p2pdma-probe: reads and writes between a file and p2pmem, the memory that a drive publishes
 * for peer-to-peer DMA, without Penstock. The lab's scripts run it in the guest to show whether
 * the virtual machine itself can do peer-to-peer DMA. It prints one JSON object for each
 * operation. After an error it must never try again, use another way or hide the error, because
 * the kernel's answer is the result. Exit status: 0 all bytes are right, 1 a transfer failed or
 * bytes are wrong, 2 wrong usage or the setup failed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096, EXTENT_MAX = 256, MARK_BYTES = 512 };

struct job {
	const char *file;
	const char *mem;     /* "host" for host memory, or the path of the file p2pmem/allocate */
	const char *fill;    /* contents of the memory before a read: "wrong", "right" or "zeros" */
	uint64_t offset;     /* offset in the file */
	uint64_t bytes;	     /* length of the transfer in bytes */
	uint64_t chunk;	     /* number of bytes of each read or write system call */
	uint64_t mem_offset; /* offset of the buffer in the mapped memory */
	uint64_t map_offset; /* offset that is passed to mmap */
	uint64_t seed;	     /* seed from which the file's contents are computed */
	bool buffered;	     /* whether the file is opened without O_DIRECT */
	bool bounce;  /* whether the drive accesses a buffer in host memory, and the CPU copies
		       * between this buffer and the device memory */
	bool private; /* whether to map with MAP_PRIVATE instead of MAP_SHARED */
	bool zeros;   /* whether the file contains only zeros */
	bool keep;    /* whether operation `exhaust` keeps the memory until the program is killed */
};

/* Returns word i of the contents that belong to job->seed, by the last step of splitmix64. */
static uint64_t word(const struct job *job, uint64_t i)
{
	uint64_t x = job->seed * 0x9e3779b97f4a7c15ull + i;

	if (job->zeros)
		return 0;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* Prints that the setup failed, and exits. */
static int die(const char *what, const char *name)
{
	fprintf(stderr, "p2pdma-probe: %s %s: %m\n", what, name);
	printf("{\"op\":\"setup\",\"step\":\"%s\",\"errno\":\"%s\"}\n", what,
	       strerrorname_np(errno));
	exit(2);
}

static int open_file(const struct job *job, int flags)
{
	int fd = open(job->file, flags | O_CLOEXEC | (job->buffered ? 0 : O_DIRECT), 0644);

	if (fd < 0)
		die("open", job->file);
	return fd;
}

/* Maps enough pages for mem_offset + bytes. Returns NULL and sets errno if the kernel refuses. */
static char *map_mem(const struct job *job)
{
	size_t len = (job->mem_offset + job->bytes + BLOCK - 1) / BLOCK * BLOCK;
	int how = job->private ? MAP_PRIVATE : MAP_SHARED;
	void *p;
	int fd, err;

	if (!strcmp(job->mem, "host")) {
		p = mmap(NULL, len, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		return p == MAP_FAILED ? NULL : p;
	}
	fd = open(job->mem, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, how, fd, (off_t)job->map_offset);
	err = errno;
	close(fd);
	errno = err;
	return p == MAP_FAILED ? NULL : p;
}

/*
 * Fills the buffer with the contents of the file, or with their complement. If the buffer is
 * memory of a device, the CPU must access it only in aligned words of 8 bytes, which memcpy does
 * not guarantee.
 */
static void put_words(const struct job *job, char *buf, bool complement)
{
	volatile uint64_t *to = (volatile uint64_t *)buf;
	uint64_t i;

	for (i = 0; i < job->bytes / 8; i++) {
		uint64_t w = word(job, job->offset / 8 + i);

		to[i] = complement ? ~w : w;
	}
	__sync_synchronize();
}

/* Copies in aligned words of 8 bytes, because the CPU must access device memory only so. */
static void copy_words(char *to, const char *from, uint64_t bytes)
{
	uint64_t i;

	for (i = 0; i < bytes / 8; i++)
		((volatile uint64_t *)to)[i] = ((const volatile uint64_t *)from)[i];
	__sync_synchronize();
}

/* Moves all bytes in chunks, and stops at the first error. Returns the number of bytes moved. */
static uint64_t transfer(const struct job *job, int fd, char *buf, bool write, int *err)
{
	uint64_t done = 0;

	*err = 0;
	while (done < job->bytes) {
		uint64_t len = job->bytes - done < job->chunk ? job->bytes - done : job->chunk;
		off_t at = (off_t)(job->offset + done);
		ssize_t n =
			write ? pwrite(fd, buf + done, len, at) : pread(fd, buf + done, len, at);

		if (n <= 0) {
			*err = n < 0 ? errno : ENODATA;
			break;
		}
		done += (uint64_t)n;
	}
	return done;
}

/* Result of comparing the words of the buffer after a read. It is empty after a write, because
 * another process must read and compare the file. */
struct tally {
	uint64_t words;	    /* number of words compared */
	uint64_t right;	    /* number of words with the right value */
	uint64_t untouched; /* number of words that still have the value from before the read */
};

/* Compares the buffer with the contents of the file. */
static struct tally count_words(const struct job *job, const char *buf)
{
	const volatile uint64_t *from = (const volatile uint64_t *)buf;
	struct tally t = {.words = job->bytes / 8};
	uint64_t i;

	for (i = 0; i < t.words; i++) {
		uint64_t want = word(job, job->offset / 8 + i), got = from[i];

		t.right += got == want;
		t.untouched += got == ~want;
	}
	return t;
}

/* Prints the result of an operation as JSON. Returns the exit status. */
static int report(const struct job *job, const char *op, uint64_t done, int err,
		  const struct tally *t)
{
	printf("{\"op\":\"%s\",\"file\":\"%s\",\"mem\":\"%s\",\"how\":\"%s\",", op, job->file,
	       strcmp(job->mem, "host") ? "p2pmem" : "host",
	       job->buffered ? "buffered"
	       : job->bounce ? "bounce"
			     : "direct");
	printf("\"bytes\":%" PRIu64 ",\"done\":%" PRIu64 ",\"errno\":", job->bytes, done);
	printf(err ? "\"%s\"," : "null,", strerrorname_np(err));
	printf("\"words\":%" PRIu64 ",\"right\":%" PRIu64 ",\"untouched\":%" PRIu64 "}\n", t->words,
	       t->right, t->untouched);
	return err || done != job->bytes || t->right != t->words;
}

/* Maps the buffer. If that fails, prints the error and stores the exit status in *code. */
static char *map_or_report(const struct job *job, const char *op, int *code)
{
	char *map = map_mem(job);

	if (!map) {
		int err = errno;

		fprintf(stderr, "p2pdma-probe: map %s: %s\n", job->mem, strerror(err));
		*code = report(job, op, 0, err, &(struct tally){0});
	}
	return map;
}

/* Reads the file into the buffer and compares each word. */
static int op_read(struct job *job)
{
	struct job host = *job;
	struct tally t;
	uint64_t done;
	int code, err, fd = open_file(job, O_RDONLY);
	char *map = map_or_report(job, "read", &code), *buf, *via;

	if (!map)
		return code;
	buf = map + job->mem_offset;
	if (!strcmp(job->fill, "zeros"))
		memset(buf, 0, job->bytes);
	else
		put_words(job, buf, strcmp(job->fill, "right"));
	if (job->bounce) {
		host.mem = "host";
		via = map_mem(&host);
		if (!via)
			die("map", "host");
		done = transfer(job, fd, via + job->mem_offset, false, &err);
		copy_words(buf, via + job->mem_offset, done);
	} else {
		done = transfer(job, fd, buf, false, &err);
	}
	t = count_words(job, buf);
	return report(job, "read", done, err, &t);
}

/* Writes the buffer to the file. */
static int op_write(struct job *job)
{
	struct job host = *job;
	uint64_t done;
	int code, err, fd = open_file(job, O_WRONLY);
	char *map = map_or_report(job, "write", &code), *buf;

	if (!map)
		return code;
	buf = map + job->mem_offset;
	put_words(job, buf, false);
	if (job->bounce) {
		host.mem = "host";
		map = map_mem(&host);
		if (!map)
			die("map", "host");
		copy_words(map + job->mem_offset, buf, job->bytes);
		buf = map + job->mem_offset;
	}
	done = transfer(job, fd, buf, true, &err);
	if (fsync(fd) && !err)
		err = errno;
	return report(job, "write", done, err, &(struct tally){0});
}

/* Writes a whole file from host memory, so that it has no holes and no unwritten extents. */
static int op_fill(struct job *job)
{
	uint64_t done;
	int code, err, fd = open_file(job, O_WRONLY | O_CREAT);
	char *map = map_or_report(job, "fill", &code);

	if (!map)
		return code;
	put_words(job, map, false);
	done = transfer(job, fd, map, true, &err);
	if (fsync(fd) && !err)
		err = errno;
	return report(job, "fill", done, err, &(struct tally){0});
}

/* Maps more and more of the memory until the kernel refuses, and prints the error. */
static int op_exhaust(struct job *job)
{
	unsigned int taken = 0;

	while (taken < 100000 && map_mem(job))
		taken++;
	printf("{\"op\":\"exhaust\",\"bytes\":%" PRIu64 ",\"taken\":%u,\"errno\":\"%s\"}\n",
	       job->bytes, taken, strerrorname_np(errno));
	fflush(stdout);
	if (job->keep)
		pause();
	return 0;
}

/* Prints the extents of a file, in sectors of its drive. Prints a line "START COUNT" for each. */
static int op_extents(struct job *job)
{
	size_t len = sizeof(struct fiemap) + EXTENT_MAX * sizeof(struct fiemap_extent);
	struct fiemap *map = calloc(1, len);
	int fd = open(job->file, O_RDONLY | O_CLOEXEC);
	uint32_t i, bad = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED |
			  FIEMAP_EXTENT_NOT_ALIGNED;

	if (!map || fd < 0)
		die("open", job->file);
	map->fm_length = FIEMAP_MAX_OFFSET;
	map->fm_flags = FIEMAP_FLAG_SYNC;
	map->fm_extent_count = EXTENT_MAX;
	if (ioctl(fd, FS_IOC_FIEMAP, map))
		die("fiemap", job->file);
	for (i = 0; i < map->fm_mapped_extents; i++) {
		struct fiemap_extent *e = &map->fm_extents[i];

		if (e->fe_flags & bad) {
			fprintf(stderr, "p2pdma-probe: %s: an extent has no fixed sectors\n",
				job->file);
			return 1;
		}
		printf("%" PRIu64 " %" PRIu64 "\n", (uint64_t)e->fe_physical / 512,
		       (uint64_t)e->fe_length / 512);
	}
	if (!i || !(map->fm_extents[i - 1].fe_flags & FIEMAP_EXTENT_LAST)) {
		fprintf(stderr, "p2pdma-probe: %s: no extents, or more than %d\n", job->file,
			EXTENT_MAX);
		return 1;
	}
	free(map);
	close(fd);
	return 0;
}

/* Reads one sector. check-trace recognises this read as a mark in QEMU's trace. */
static int op_mark(struct job *job)
{
	char *buf = aligned_alloc(BLOCK, BLOCK);
	int fd = open(job->file, O_RDONLY | O_DIRECT | O_CLOEXEC);

	if (!buf || fd < 0)
		die("open", job->file);
	if (pread(fd, buf, MARK_BYTES, (off_t)job->offset) != MARK_BYTES)
		die("pread", job->file);
	free(buf);
	close(fd);
	return 0;
}

static const struct op {
	const char *name;
	int (*run)(struct job *job);
} ops[] = {
	{"read", op_read},	 {"write", op_write},	  {"fill", op_fill},
	{"exhaust", op_exhaust}, {"extents", op_extents}, {"mark", op_mark},
};

static void usage(void)
{
	fputs("usage: p2pdma-probe read|write|fill|exhaust|extents|mark [--file F]\n"
	      "  [--mem host|.../p2pmem/allocate] [--bytes N] [--offset N] [--chunk N]\n"
	      "  [--seed N] [--zeros] [--fill wrong|right|zeros] [--mem-offset N]\n"
	      "  [--map-offset N] [--private] [--buffered] [--bounce]\n  [--keep]\n",
	      stderr);
	exit(2);
}

/* Parses a decimal number. If the text is not a decimal number, prints the usage and exits. */
static uint64_t number(const char *text)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-')
		usage();
	return n;
}

/* Parses the command line's options into `job`. */
static void options(int argc, char **argv, struct job *job)
{
	static const struct option long_opts[] = {
		{"file", 1, NULL, 'f'},	      {"mem", 1, NULL, 'm'},
		{"bytes", 1, NULL, 'b'},      {"offset", 1, NULL, 'o'},
		{"chunk", 1, NULL, 'c'},      {"seed", 1, NULL, 's'},
		{"fill", 1, NULL, 'F'},	      {"mem-offset", 1, NULL, 'M'},
		{"map-offset", 1, NULL, 'O'}, {"private", 0, NULL, 'p'},
		{"buffered", 0, NULL, 'B'},   {"bounce", 0, NULL, 'x'},
		{"zeros", 0, NULL, 'z'},      {"keep", 0, NULL, 'k'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", long_opts, NULL)) != -1) {
		switch (c) {
		case 'f':
			job->file = optarg;
			break;
		case 'm':
			job->mem = optarg;
			break;
		case 'b':
			job->bytes = number(optarg);
			break;
		case 'o':
			job->offset = number(optarg);
			break;
		case 'c':
			job->chunk = number(optarg);
			break;
		case 's':
			job->seed = number(optarg);
			break;
		case 'F':
			job->fill = optarg;
			break;
		case 'M':
			job->mem_offset = number(optarg);
			break;
		case 'O':
			job->map_offset = number(optarg);
			break;
		case 'p':
			job->private = true;
			break;
		case 'B':
			job->buffered = true;
			break;
		case 'x':
			job->bounce = true;
			break;
		case 'z':
			job->zeros = true;
			break;
		case 'k':
			job->keep = true;
			break;
		default:
			usage();
		}
	}
	if (optind != argc || job->bytes % 8 || !job->bytes || !job->chunk || job->offset % 8 ||
	    job->mem_offset % 8)
		usage();
}

int main(int argc, char **argv)
{
	struct job job = {.file = "",
			  .mem = "host",
			  .fill = "wrong",
			  .bytes = 1 << 20,
			  .chunk = 1 << 20,
			  .seed = 1};
	size_t i;

	if (argc < 2)
		usage();
	options(argc - 1, argv + 1, &job);
	for (i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		if (!strcmp(argv[1], ops[i].name))
			return ops[i].run(&job);
	}
	usage();
}
