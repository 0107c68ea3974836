/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the storage "mem:SIZE?seed=N". It generates its bytes from the seed N, each block at
 * the first access to the block. So every open with the same URL yields the same bytes. Written
 * bytes are lost when the storage closes. Tests use it, and so do benchmarks that leave out the
 * drive. It is also the smallest example of a storage without a file descriptor.
 */
#include <ctype.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/size.h"
#include "core/base/splitmix64.h"
#include "storage/mem.h"

#define BLOCK 65536u

enum { EMPTY, BUSY, MADE };

struct mem_storage {
	char *base;
	uint64_t len;
	uint64_t seed;
	_Atomic unsigned char *state; /* State of each block: EMPTY, BUSY or MADE. */
};

static void block_make(struct mem_storage *mem, uint64_t block)
{
	unsigned char state = EMPTY;
	uint64_t *words = (uint64_t *)(void *)(mem->base + block * BLOCK);

	if (atomic_load_explicit(&mem->state[block], memory_order_acquire) == MADE)
		return;
	if (!atomic_compare_exchange_strong(&mem->state[block], &state, BUSY)) {
		while (atomic_load_explicit(&mem->state[block], memory_order_acquire) != MADE)
			sched_yield();
		return;
	}
	for (unsigned i = 0; i < BLOCK / 8; i++)
		words[i] = pst_splitmix64(mem->seed + block * (BLOCK / 8) + i);
	atomic_store_explicit(&mem->state[block], MADE, memory_order_release);
}

/* Parses the text after "mem:", for example "64MiB?seed=7". */
static int mem_parse(const char *text, struct mem_storage *mem, struct pst_err *err)
{
	const char *end = pst_size_parse(text, &mem->len);
	char *rest = NULL;

	errno = 0;
	if (end && !strncmp(end, "?seed=", 6) && isdigit((unsigned char)end[6])) {
		mem->seed = strtoull(end + 6, &rest, 10);
		end = rest;
	}
	if (!end || *end || errno)
		goto bad;
	if (mem->len > (uint64_t)1 << 46)
		return pst_fail_errno(err, EFBIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "mem:%.60s: more than 64 TiB", text);
	return 0;
bad:
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			"mem:%.60s: want mem:SIZE[?seed=N], with a SIZE like 64MiB", text);
}

static void mem_close(struct penstock_storage *st)
{
	struct mem_storage *mem = st->priv;

	if (mem->base)
		munmap(mem->base, (mem->len + BLOCK - 1) / BLOCK * BLOCK);
	free((void *)mem->state);
	free(mem);
}

static int mem_open(struct penstock_storage *st, const char *url, int fd,
		    const struct penstock_storage_opts *opts, struct pst_err *err)
{
	struct mem_storage *mem = calloc(1, sizeof(*mem));
	uint64_t blocks;
	int ret;

	(void)fd;
	if (!mem)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a storage");
	st->priv = mem;
	ret = mem_parse(url + strlen("mem:"), mem, err);
	if (ret) {
		free(mem);
		return ret;
	}
	blocks = (mem->len + BLOCK - 1) / BLOCK;
	mem->state = calloc(blocks ? blocks : 1, 1);
	if (blocks)
		mem->base = mmap(NULL, blocks * BLOCK, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!mem->state || mem->base == MAP_FAILED) {
		mem->base = NULL;
		mem_close(st);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for %.60s", url);
	}
	st->facts.length = mem->len;
	st->facts.writable = opts->flags & PENSTOCK_O_WRITE;
	pst_fail(&st->facts.why_direct, PENSTOCK_WHY_NO_FD,
		 "a direct path needs a file, and mem: storage is memory");
	snprintf(st->facts.text, sizeof(st->facts.text), "%llu bytes of this process's memory",
		 (unsigned long long)mem->len);
	return 0;
}

static int mem_move(struct pst_io *io)
{
	struct mem_storage *mem = io->st->priv;
	uint64_t off = io->off;
	uint64_t left = off < mem->len ? mem->len - off : 0;

	left = left < io->len ? left : io->len;
	if (io->op == PST_IO_DRAIN && left < io->len) {
		pst_fail(&io->err, PENSTOCK_WHY_NO_SPACE, "mem storage ends at %llu",
			 (unsigned long long)mem->len);
		io->result = io->err.code;
		io->done(io);
		return 0;
	}
	io->result = (int64_t)left;
	for (uint64_t b = off / BLOCK; left && b <= (off + left - 1) / BLOCK; b++)
		block_make(mem, b);
	for (unsigned i = 0; i < io->iov_count && left; i++) {
		uint64_t n = io->iov[i].iov_len < left ? io->iov[i].iov_len : left;

		if (io->op == PST_IO_FILL)
			memcpy(io->iov[i].iov_base, mem->base + off, n);
		else
			memcpy(mem->base + off, io->iov[i].iov_base, n);
		off += n;
		left -= n;
	}
	io->engine = "none";
	io->done(io);
	return 0;
}

static bool mem_match(const char *url)
{
	return !strncmp(url, "mem:", 4);
}

const struct pst_storage_ops pst_storage_mem = {
	.name = "mem",
	.match = mem_match,
	.open = mem_open,
	.close = mem_close,
	.fill = mem_move,
	.drain = mem_move,
};
