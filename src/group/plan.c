/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which rank reads which bytes. The model's files are cut into chunks no longer than a
 * window (a buffer that one rank fills and all ranks copy from). Every rank computes the same
 * chunks. The chunks that at least one rank needs are assigned to rounds: each reader reads one
 * chunk per round. The total bytes of any two readers differ by at most the length of one chunk.
 * Only the needed parts of a chunk are read, in granules of some pages: if several hosts share a
 * model, the ranks of one host may need only a part of each tensor. Files of different stores
 * alternate, so that all stores are busy. Different hosts that load the same model start at
 * different chunks, so that they do not all read the same chunks from a server at once. This file
 * also computes the hashes that ranks compare before a load. Called by load.c and join.c. Does no
 * I/O.
 */
#include "group/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "group/hash.h"
#include "weights/err.h"

#define PAGE 4096u
#define CHUNK_MIN 65536u
/* Element of p->order for a reader that reads no chunk in this round. */
#define NOTHING UINT64_MAX
/* Number of bits in a small model's need bitmap, which one exchange can carry. */
#define BITS_FEW (PST_NEED_BYTES * 8u)
#define BITS_MOST (BITS_FEW * 16u)
/* Length in bytes of a granule (the bytes for which one bit of the need bitmap stands) of a large
 * model. A granule is longer if the model would otherwise need more than BITS_MOST bits. */
#define GRANULE (256u << 10)

/* ---- chunks ---- */

static void find_ranges(struct pst_group_plan *p, const struct penstock_weights *w)
{
	for (uint64_t i = 0; i < w->count; i++) {
		const struct pst_tensor_entry *e = &w->entries[i];
		struct pst_plan_file *file = &p->files[e->file];
		uint64_t begin = w->files[e->file].data_off + e->t->begin;
		uint64_t end = w->files[e->file].data_off + e->t->end;

		if (begin == end)
			continue;
		if (file->begin == file->end || begin < file->begin)
			file->begin = begin;
		if (end > file->end)
			file->end = end;
	}
}

/* Chooses the length of a chunk. A small model is cut into shorter chunks, so that every rank
 * has chunks to read. */
static uint64_t choose_chunk(const struct pst_group_plan *p)
{
	uint64_t sum = 0, chunk, shares = (uint64_t)p->ranks * p->settings->windows;

	for (unsigned i = 0; i < p->file_count; i++)
		sum += p->files[i].end - p->files[i].begin;
	chunk = (sum / shares + PAGE - 1) / PAGE * PAGE;
	chunk = chunk < CHUNK_MIN ? CHUNK_MIN : chunk;
	return chunk < p->settings->window ? chunk : p->settings->window;
}

/* Chooses the length of a granule, the number of bytes for which one bit of the need bitmap stands.
 * With shorter granules, the ranks read fewer bytes that no rank needs. But the need bitmap, which
 * all ranks exchange, is larger. */
static int choose_granule(struct pst_group_plan *p)
{
	uint64_t bits = p->count * p->chunk / GRANULE;

	bits = bits < BITS_FEW ? BITS_FEW : bits > BITS_MOST ? BITS_MOST : bits;
	p->granules = p->count && bits > p->count ? bits / p->count : 1;
	p->granule = (p->chunk / p->granules + PAGE - 1) / PAGE * PAGE;
	p->granule = p->granule ? p->granule : PAGE;
	p->granules = (p->chunk + p->granule - 1) / p->granule;
	p->need = calloc(pst_group_plan_need_bytes(p), 1);
	p->lens = calloc(p->count + 1, sizeof(*p->lens));
	return p->need && p->lens ? 0 : pst_weights_no_memory("what a group reads");
}

/* Numbers the stores (file systems) that the files are in. Files with the same st_dev are in the
 * same store. */
static void find_stores(struct pst_group_plan *p, const struct penstock_weights *w)
{
	for (unsigned i = 0; i < p->file_count; i++) {
		unsigned same = 0;

		while (same < i && w->files[same].stat.st_dev != w->files[i].stat.st_dev)
			same++;
		p->files[i].store = same < i ? p->files[same].store : p->store_count++;
	}
}

int pst_group_plan_make(struct pst_group_plan *p, const struct penstock_weights *w,
			const struct pst_group_settings *settings, unsigned ranks)
{
	*p = (struct pst_group_plan){
		.settings = settings, .ranks = ranks, .file_count = w->file_count};
	p->files = calloc(w->file_count ? w->file_count : 1, sizeof(*p->files));
	if (!p->files)
		return pst_weights_no_memory("what a group reads");
	find_ranges(p, w);
	find_stores(p, w);
	p->chunk = choose_chunk(p);
	for (unsigned i = 0; i < p->file_count; i++) {
		struct pst_plan_file *file = &p->files[i];

		file->base = file->begin / PAGE * PAGE;
		file->first = p->count;
		if (file->end > file->begin)
			p->count += (file->end - file->base + p->chunk - 1) / p->chunk;
	}
	p->order = calloc(p->count + ranks, sizeof(*p->order));
	p->needed = calloc(p->count + 1, sizeof(*p->needed));
	p->stores = calloc(p->store_count + 1, sizeof(*p->stores));
	if (!p->order || !p->needed || !p->stores)
		return pst_weights_no_memory("what a group reads");
	return choose_granule(p);
}

void pst_group_plan_free(struct pst_group_plan *p)
{
	free(p->files);
	free(p->order);
	free(p->needed);
	free(p->stores);
	free(p->need);
	free(p->lens);
	memset(p, 0, sizeof(*p));
}

static unsigned file_of_chunk(const struct pst_group_plan *p, uint64_t c)
{
	unsigned low = 0, high = p->file_count - 1;

	/* A binary search for the last file whose first chunk is chunk c or an earlier one. */
	while (low < high) {
		unsigned mid = low + (high - low + 1) / 2;

		if (p->files[mid].first <= c)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

static bool is_needed(const struct pst_group_plan *p, uint64_t bit)
{
	return p->need[bit / 8] >> (bit % 8) & 1;
}

bool pst_group_plan_next_run(const struct pst_group_plan *p, const struct pst_group_chunk *c,
			     uint64_t *begin, uint64_t *end)
{
	const struct pst_plan_file *file = &p->files[c->file];
	uint64_t at = file->base + (c->index - file->first) * p->chunk;
	uint64_t most = at + p->chunk < file->end ? at + p->chunk : file->end;
	uint64_t first = c->index * p->granules, i = 0, n;

	if (*end >= most)
		return false;
	if (*end > at)
		i = (*end - at + p->granule - 1) / p->granule;
	while (i < p->granules && !is_needed(p, first + i))
		i++;
	for (n = i; n < p->granules && is_needed(p, first + n); n++)
		;
	*begin = at + i * p->granule > file->begin ? at + i * p->granule : file->begin;
	*end = at + n * p->granule < most ? at + n * p->granule : most;
	return *begin < *end;
}

static void chunk_at(const struct pst_group_plan *p, uint64_t index, struct pst_group_chunk *out)
{
	uint64_t begin, end = 0;

	*out = (struct pst_group_chunk){.index = index, .file = file_of_chunk(p, index)};
	while (pst_group_plan_next_run(p, out, &begin, &end)) {
		if (!out->len)
			out->begin = begin;
		out->end = end;
		out->len += end - begin;
	}
	out->skip = out->len ? out->begin - p->files[out->file].base -
				       (index - p->files[out->file].first) * p->chunk
			     : 0;
}

bool pst_group_plan_chunk(const struct pst_group_plan *p, uint64_t round, unsigned rank,
			  struct pst_group_chunk *out)
{
	uint64_t c = NOTHING;

	if (round < p->round_count && rank < p->readers)
		c = p->order[round * p->readers + rank];
	if (c != NOTHING)
		chunk_at(p, c, out);
	return c != NOTHING;
}

/* ---- what ranks need ---- */

size_t pst_group_plan_need_bytes(const struct pst_group_plan *p)
{
	return (size_t)(p->count * p->granules / 8 + 1);
}

/* Returns the index of the bit in the need bitmap (p->need) that stands for offset `off` of a file.
 */
static uint64_t need_bit(const struct pst_group_plan *p, const struct pst_plan_file *file,
			 uint64_t off)
{
	uint64_t c = (off - file->base) / p->chunk;

	return (file->first + c) * p->granules + (off - file->base - c * p->chunk) / p->granule;
}

void pst_group_plan_add_need(struct pst_group_plan *p, const struct pst_extents *bits)
{
	for (size_t i = 0; i < bits->count; i++) {
		const struct penstock_seg *seg = &bits->list[i].seg;
		const struct pst_plan_file *file = &p->files[bits->list[i].file];
		uint64_t rows = seg->rows ? seg->rows : 1;
		uint64_t end = seg->off + (rows - 1) * seg->pitch + seg->row_len;
		uint64_t last = need_bit(p, file, end - 1);

		for (uint64_t bit = need_bit(p, file, seg->off); bit <= last; bit++)
			p->need[bit / 8] |= (unsigned char)(1u << (bit % 8));
	}
}

/* Computes for each chunk the number of bytes to read, and the largest number of runs (contiguous
 * needed ranges) in one chunk. */
static void measure_chunks(struct pst_group_plan *p)
{
	p->runs_max = 0;
	for (uint64_t c = 0; c < p->count; c++) {
		struct pst_group_chunk chunk = {.index = c, .file = file_of_chunk(p, c)};
		uint64_t begin, end = 0;
		unsigned runs = 0;

		p->lens[c] = 0;
		for (; pst_group_plan_next_run(p, &chunk, &begin, &end); runs++)
			p->lens[c] += end - begin;
		p->runs_max = runs > p->runs_max ? runs : p->runs_max;
	}
}

/* ---- which rank reads what ---- */

static unsigned store_of_chunk(const struct pst_group_plan *p, uint64_t c)
{
	return p->files[file_of_chunk(p, c)].store;
}

/* Returns the index of the first chunk at or after chunk `c` that belongs to `store` (a file
 * system) and that some rank needs. Returns p->count if there is none. */
static uint64_t next_needed(const struct pst_group_plan *p, unsigned store, uint64_t c)
{
	while (c < p->count && (!p->lens[c] || store_of_chunk(p, c) != store))
		c++;
	return c;
}

/* Lists all needed chunks and returns their count. The chunks of one store are in file order.
 * The next chunk always comes from the store with the largest fraction of its chunks left, so
 * that all stores finish at the same time. */
static uint64_t list_needed(struct pst_group_plan *p)
{
	uint64_t n = 0;

	for (unsigned s = 0; s < p->store_count; s++) {
		struct pst_plan_store *store = &p->stores[s];
		uint64_t c = next_needed(p, s, 0);

		*store = (struct pst_plan_store){.next = c};
		for (; c < p->count; c = next_needed(p, s, c + 1))
			store->all++;
		store->left = store->all;
	}
	for (;;) {
		struct pst_plan_store *best = &p->stores[0];
		unsigned which = 0;

		for (unsigned s = 1; s < p->store_count; s++) {
			struct pst_plan_store *store = &p->stores[s];

			if (store->left * best->all > best->left * store->all || !best->left) {
				best = store;
				which = s;
			}
		}
		if (!best->left)
			return n;
		p->needed[n++] = best->next;
		best->left--;
		best->next = next_needed(p, which, best->next + 1);
	}
}

/* Returns the chunk at position `i` of this host's order. Each host begins at a different chunk
 * of the list, and continues at the list's start when it reaches the end. */
static uint64_t needed_at(const struct pst_group_plan *p, uint64_t count, uint64_t i)
{
	return p->needed[(i + count * p->settings->host / p->settings->hosts) % count];
}

/* Returns the largest number of requests that one store has in flight when `width` consecutive
 * chunks of the list are in flight at the same time. */
static uint64_t peak_reads(struct pst_group_plan *p, uint64_t count, uint64_t width)
{
	uint64_t most = 0;

	for (unsigned s = 0; s < p->store_count; s++)
		/* In this function, the member `left` of a store counts the store's chunks in
		 * flight. */
		p->stores[s].left = 0;
	for (uint64_t i = 0; i < count; i++) {
		struct pst_plan_store *store =
			&p->stores[store_of_chunk(p, needed_at(p, count, i))];

		if (i >= width)
			p->stores[store_of_chunk(p, needed_at(p, count, i - width))].left--;
		most = ++store->left > most ? store->left : most;
	}
	return most;
}

/* Chooses the number of rounds that are read ahead: as many as a rank has windows, which are
 * buffers for one chunk each. If one store would then get more than reads_max requests at once,
 * first reduces the rounds, then the number of readers. */
static void choose_width(struct pst_group_plan *p, uint64_t count)
{
	unsigned most = p->settings->reads_max;

	p->readers = p->ranks;
	p->ahead = p->settings->windows;
	while (most && p->readers * p->ahead > most &&
	       peak_reads(p, count, (uint64_t)p->readers * p->ahead) > most) {
		if (p->ahead > 1)
			p->ahead--;
		else
			p->readers--;
	}
}

/* Assigns the chunks of one round to the readers: the reader with the fewest bytes so far gets
 * the longest chunk. So the readers' totals never differ by more than the length of one chunk. */
static void deal_round(const struct pst_group_plan *p, uint64_t *row, uint64_t *sums)
{
	struct {
		uint64_t index, len;
	} chunks[PST_GROUP_MAX];
	bool served[PST_GROUP_MAX] = {false};

	for (unsigned k = 0; k < p->readers; k++) {
		chunks[k].index = row[k];
		chunks[k].len = row[k] != NOTHING ? p->lens[row[k]] : 0;
	}
	for (unsigned i = 0; i < p->readers; i++) {
		unsigned least = p->readers, longest = i;

		for (unsigned k = 0; k < p->readers; k++)
			if (!served[k] && (least == p->readers || sums[k] < sums[least]))
				least = k;
		for (unsigned k = i + 1; k < p->readers; k++)
			if (chunks[k].len > chunks[longest].len)
				longest = k;
		served[least] = true;
		row[least] = chunks[longest].index;
		sums[least] += chunks[longest].len;
		chunks[longest] = chunks[i];
	}
}

void pst_group_plan_deal(struct pst_group_plan *p)
{
	uint64_t sums[PST_GROUP_MAX] = {0}, count;

	measure_chunks(p);
	count = list_needed(p);
	choose_width(p, count);
	p->round_count = (count + p->readers - 1) / p->readers;
	for (uint64_t i = 0; i < p->round_count * p->readers; i++)
		p->order[i] = i < count ? needed_at(p, count, i) : NOTHING;
	for (uint64_t t = 0; t < p->round_count; t++)
		deal_round(p, &p->order[t * p->readers], sums);
}

uint32_t pst_group_plan_delay(uint32_t jitter_ms, unsigned host, unsigned hosts, uint32_t random)
{
	uint64_t begin = (uint64_t)jitter_ms * host / hosts;
	uint64_t end = (uint64_t)jitter_ms * (host + 1ull) / hosts;

	return (uint32_t)(begin + random % (end - begin + 1));
}

/* ---- what ranks compare ---- */

static uint64_t hash_add3(uint64_t h, uint64_t a, uint64_t b, uint64_t c)
{
	return pst_hash_add(pst_hash_add(pst_hash_add(h, a), b), c);
}

uint64_t pst_group_plan_hash_tensors(const struct pst_group_plan *p,
				     const struct penstock_weights *w)
{
	uint64_t h = hash_add3(1, p->chunk, p->count, w->count);

	for (uint64_t i = 0; i < w->count; i++)
		h = hash_add3(h, w->entries[i].file, w->entries[i].t->begin, w->entries[i].t->end);
	return h;
}

uint64_t pst_group_plan_hash_stores(const struct pst_group_plan *p)
{
	uint64_t h = 1;

	for (unsigned i = 0; i < p->file_count; i++)
		h = pst_hash_add(h, p->files[i].store);
	return h;
}

void pst_group_plan_merge_stores(struct pst_group_plan *p)
{
	for (unsigned i = 0; i < p->file_count; i++)
		p->files[i].store = 0;
	p->store_count = p->file_count ? 1 : 0;
}
