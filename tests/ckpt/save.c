/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save DIR PARTS BYTES [PAUSE_US]: saves one checkpoint after the other until it is killed. The
 * first is DIR/step-N, with N one greater than the largest number in DIR. After each save it
 * prints a line "durable N", and removes all checkpoints but the two newest. A checkpoint has
 * PARTS parts of up to BYTES bytes, which two threads write. The bytes of checkpoint N depend
 * only on N, so tests/ckpt/kills and lab/guest/ckpt-power.sh, which run the program, can check
 * them.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock_ckpt.h"

#define PARTS_MAX 16u
#define ITEMS 5u
#define PATH_BYTES 4096

struct part {
	char path[PATH_BYTES], name[32], names[ITEMS][32];
	struct penstock_item items[ITEMS];
	struct penstock_seg segs[ITEMS];
	unsigned char *mem;
	uint64_t bytes;
	int ret;
	char text[PENSTOCK_TEXT_MAX];
};

static struct part parts[PARTS_MAX];
static unsigned part_count;

static void die(const char *what)
{
	fprintf(stderr, "save: %s: %s\n", what,
		*penstock_errmsg() ? penstock_errmsg() : strerror(errno));
	exit(1);
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dULL;
}

/* Fills the memory of a part, and lists its items. */
static void part_make(struct part *p, const char *dir, unsigned long step, unsigned index,
		      uint64_t most)
{
	uint64_t seed = step * 100 + index + 1, off = 0;

	snprintf(p->name, sizeof(p->name), "__%u_0.distcp", index);
	snprintf(p->path, sizeof(p->path), "%s/%s", dir, p->name);
	for (unsigned i = 0; i < ITEMS; i++) {
		uint64_t len = next_random(&seed) % (most / ITEMS);

		off = i % 2 ? (off + 4095) / 4096 * 4096 : off;
		for (uint64_t b = 0; b + 8 <= len; b += 8)
			memcpy(p->mem + off + b, &(uint64_t){next_random(&seed)}, 8);
		snprintf(p->names[i], sizeof(p->names[i]), "item%u.%u", index, i);
		p->segs[i] = (struct penstock_seg){.buf = p->mem + off, .off = off, .row_len = len};
		p->items[i] = (struct penstock_item){.size = sizeof(p->items[0]),
						     .name = p->names[i],
						     .off = off,
						     .len = len,
						     .segs = &p->segs[i],
						     .seg_count = 1};
		off += len;
	}
	p->bytes = off;
}

/* Writes every second part, from the part `arg` on. */
static void *write_parts(void *arg)
{
	struct penstock_part_opts opts = PENSTOCK_PART_OPTS_INIT;

	opts.sum = opts.durable = 1;
	for (struct part *p = arg; p < parts + part_count; p += 2) {
		p->ret = penstock_part_write(p->path, p->items, ITEMS, &opts, NULL);
		snprintf(p->text, sizeof(p->text), "%s", p->ret ? penstock_errmsg() : "");
	}
	return NULL;
}

/* Syncs the folder that contains a new folder, so that the new folder's name is durable. */
static void sync_folder(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY);

	if (fd < 0 || fsync(fd))
		die(dir);
	close(fd);
}

static void write_marker(const char *dir)
{
	struct penstock_part_opts opts = PENSTOCK_PART_OPTS_INIT;
	struct penstock_seg seg = {.buf = (char[]){"marker"}, .row_len = 6};
	struct penstock_item item = {.size = sizeof(item), .len = 6, .segs = &seg, .seg_count = 1};
	char path[PATH_BYTES + 16];

	opts.durable = 1;
	snprintf(path, sizeof(path), "%s/.metadata", dir);
	if (penstock_part_write(path, &item, 1, &opts, NULL))
		die(path);
}

static void save(const char *root, unsigned long step, uint64_t most, useconds_t pause_us)
{
	struct penstock_part listed[PARTS_MAX];
	char dir[PATH_BYTES / 2], path[PATH_BYTES];
	pthread_t second;

	snprintf(dir, sizeof(dir), "%s/step-%lu", root, step);
	if (mkdir(dir, 0700))
		die(dir);
	sync_folder(root);
	for (unsigned i = 0; i < part_count; i++)
		part_make(&parts[i], dir, step, i, most);
	if (pthread_create(&second, NULL, write_parts, &parts[1]))
		die("pthread_create");
	write_parts(&parts[0]);
	pthread_join(second, NULL);
	for (unsigned i = 0; i < part_count; i++) {
		if (parts[i].ret) {
			fprintf(stderr, "save: %s\n", parts[i].text);
			exit(1);
		}
		listed[i] = (struct penstock_part){.size = sizeof(listed[0]),
						   .name = parts[i].name,
						   .bytes = parts[i].bytes,
						   .items = parts[i].items,
						   .item_count = ITEMS};
	}
	snprintf(path, sizeof(path), "%s/penstock.manifest", dir);
	if (penstock_manifest_write(path, part_count, listed, part_count))
		die(path);
	usleep(pause_us);
	write_marker(dir);
	printf("durable %lu\n", step);
	fflush(stdout);
	if (penstock_ckpt_prune(root, 2, 0, NULL, NULL))
		die("prune");
}

/* Returns the largest number of a checkpoint in the folder. */
static unsigned long last_step(const char *root)
{
	DIR *d = opendir(root);
	unsigned long last = 0;
	struct dirent *e;

	if (!d)
		die(root);
	while ((e = readdir(d))) {
		unsigned long step;

		if (!strncmp(e->d_name, "step-", 5)) {
			step = strtoul(e->d_name + 5, NULL, 10);
			last = step > last ? step : last;
		}
	}
	closedir(d);
	return last;
}

int main(int argc, char **argv)
{
	struct penstock_device *host;
	uint64_t most;

	if (argc < 4 || penstock_device_open("host", NULL, &host) < 0)
		die("usage: save DIR PARTS BYTES [PAUSE_US]");
	part_count = (unsigned)strtoul(argv[2], NULL, 10);
	most = strtoull(argv[3], NULL, 10);
	if (part_count < 1 || part_count > PARTS_MAX)
		die("PARTS is 1 to 16");
	for (unsigned i = 0; i < part_count; i++)
		if (posix_memalign((void **)&parts[i].mem, 4096, most + ITEMS * 4096))
			die("no memory");
	for (unsigned long step = last_step(argv[1]) + 1;; step++)
		save(argv[1], step, most, argc > 4 ? (useconds_t)strtoul(argv[4], NULL, 10) : 0);
}
