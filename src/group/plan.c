/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a group reads and who reads it: a model's files are cut into chunks of a window,
 * the same ones on every rank, and those that some rank needs are dealt out in rounds, a
 * chunk for each reader, so that what ranks read never differs by more than a chunk. Of a
 * chunk only what some rank needs is read, by grains of a few pages: the ranks of one host
 * of several may need only a part of each tensor. Files of several stores take turns, so that
 * all stores work; hosts that load the same begin at different places, so that they do not ask
 * one server for the same at once. Also what ranks compare before they begin. Arithmetic
 * only; called by group_load.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "group/plan.h"

#define PAGE 4096u
#define CHUNK_MIN 65536u
#define NOTHING UINT64_MAX	       /* in the order: this reader has none in this round */
#define BITS_FEW (PST_NEED_BYTES * 8u) /* said at once, and enough for small models */
#define BITS_MOST (BITS_FEW * 16u)
#define GRAIN (256u << 10) /* of large ones, as long as so many bits are enough */

/* ---- chunks ---- */

static void take_parts(struct pst_share *p, const struct penstock_weights *w)
{
	for (uint64_t i = 0; i < w->count; i++) {
		const struct pst_entry *e = &w->entries[i];
		struct pst_part *part = &p->parts[e->shard];
		uint64_t begin = w->shards[e->shard].data_off + e->t->begin;
		uint64_t end = w->shards[e->shard].data_off + e->t->end;

		if (begin == end)
			continue;
		if (part->begin == part->end || begin < part->begin)
			part->begin = begin;
		if (end > part->end)
			part->end = end;
	}
}

/* Small models are cut finer, so that every rank has some of them to read. */
static uint64_t choose_chunk(const struct pst_share *p)
{
	uint64_t sum = 0, chunk, shares = (uint64_t)p->ranks * p->how->windows;

	for (unsigned i = 0; i < p->part_count; i++)
		sum += p->parts[i].end - p->parts[i].begin;
	chunk = (sum / shares + PAGE - 1) / PAGE * PAGE;
	chunk = chunk < CHUNK_MIN ? CHUNK_MIN : chunk;
	return chunk < p->how->window ? chunk : p->how->window;
}

/* The finer they are, the less is read of what no rank needs; but ranks say them all. */
static int choose_grain(struct pst_share *p)
{
	uint64_t bits = p->count * p->chunk / GRAIN;

	bits = bits < BITS_FEW ? BITS_FEW : bits > BITS_MOST ? BITS_MOST : bits;
	p->grains = p->count && bits > p->count ? bits / p->count : 1;
	p->grain = (p->chunk / p->grains + PAGE - 1) / PAGE * PAGE;
	p->grain = p->grain ? p->grain : PAGE;
	p->grains = (p->chunk + p->grain - 1) / p->grain;
	p->need = calloc(pst_share_need_bytes(p), 1);
	p->lens = calloc(p->count + 1, sizeof(*p->lens));
	return p->need && p->lens ? 0 : pst_weights_no_memory("what a group reads");
}

/* A store is a file system: who serves two of its files is the same. */
static void take_stores(struct pst_share *p, const struct penstock_weights *w)
{
	for (unsigned i = 0; i < p->part_count; i++) {
		unsigned same = 0;

		while (same < i && w->shards[same].stat.st_dev != w->shards[i].stat.st_dev)
			same++;
		p->parts[i].store = same < i ? p->parts[same].store : p->store_count++;
	}
}

int pst_share_make(struct pst_share *p, const struct penstock_weights *w,
		   const struct pst_group_how *how, unsigned ranks)
{
	*p = (struct pst_share){.how = how, .ranks = ranks, .part_count = w->shard_count};
	p->parts = calloc(w->shard_count ? w->shard_count : 1, sizeof(*p->parts));
	if (!p->parts)
		return pst_weights_no_memory("what a group reads");
	take_parts(p, w);
	take_stores(p, w);
	p->chunk = choose_chunk(p);
	for (unsigned i = 0; i < p->part_count; i++) {
		struct pst_part *part = &p->parts[i];

		part->base = part->begin / PAGE * PAGE;
		part->first = p->count;
		if (part->end > part->begin)
			p->count += (part->end - part->base + p->chunk - 1) / p->chunk;
	}
	p->order = calloc(p->count + ranks, sizeof(*p->order));
	p->wanted = calloc(p->count + 1, sizeof(*p->wanted));
	p->stores = calloc(p->store_count + 1, sizeof(*p->stores));
	if (!p->order || !p->wanted || !p->stores)
		return pst_weights_no_memory("what a group reads");
	return choose_grain(p);
}

void pst_share_free(struct pst_share *p)
{
	free(p->parts);
	free(p->order);
	free(p->wanted);
	free(p->stores);
	free(p->need);
	free(p->lens);
	memset(p, 0, sizeof(*p));
}

static unsigned part_of(const struct pst_share *p, uint64_t c)
{
	unsigned low = 0, high = p->part_count - 1;

	while (low < high) { /* the last part that begins at or before it */
		unsigned mid = low + (high - low + 1) / 2;

		if (p->parts[mid].first <= c)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

static bool needed(const struct pst_share *p, uint64_t bit)
{
	return p->need[bit / 8] >> (bit % 8) & 1;
}

bool pst_share_run(const struct pst_share *p, const struct pst_chunk *c, uint64_t *begin,
		   uint64_t *end)
{
	const struct pst_part *part = &p->parts[c->shard];
	uint64_t at = part->base + (c->index - part->first) * p->chunk;
	uint64_t most = at + p->chunk < part->end ? at + p->chunk : part->end;
	uint64_t first = c->index * p->grains, i = 0, n;

	if (*end >= most)
		return false;
	if (*end > at)
		i = (*end - at + p->grain - 1) / p->grain;
	while (i < p->grains && !needed(p, first + i))
		i++;
	for (n = i; n < p->grains && needed(p, first + n); n++)
		;
	*begin = at + i * p->grain > part->begin ? at + i * p->grain : part->begin;
	*end = at + n * p->grain < most ? at + n * p->grain : most;
	return *begin < *end;
}

static void chunk_at(const struct pst_share *p, uint64_t index, struct pst_chunk *out)
{
	uint64_t begin, end = 0;

	*out = (struct pst_chunk){.index = index, .shard = part_of(p, index)};
	while (pst_share_run(p, out, &begin, &end)) {
		if (!out->len)
			out->begin = begin;
		out->end = end;
		out->len += end - begin;
	}
	out->skip = out->len ? out->begin - p->parts[out->shard].base -
				       (index - p->parts[out->shard].first) * p->chunk
			     : 0;
}

bool pst_share_chunk(const struct pst_share *p, uint64_t round, unsigned rank,
		     struct pst_chunk *out)
{
	uint64_t c = NOTHING;

	if (round < p->round_count && rank < p->readers)
		c = p->order[round * p->readers + rank];
	if (c != NOTHING)
		chunk_at(p, c, out);
	return c != NOTHING;
}

/* ---- what ranks need ---- */

size_t pst_share_need_bytes(const struct pst_share *p)
{
	return (size_t)(p->count * p->grains / 8 + 1);
}

/* The bit of a byte of a file. */
static uint64_t bit_of(const struct pst_share *p, const struct pst_part *part, uint64_t off)
{
	uint64_t c = (off - part->base) / p->chunk;

	return (part->first + c) * p->grains + (off - part->base - c * p->chunk) / p->grain;
}

void pst_share_need(struct pst_share *p, const struct pst_bits *bits)
{
	for (size_t i = 0; i < bits->count; i++) {
		const struct penstock_seg *seg = &bits->list[i].seg;
		const struct pst_part *part = &p->parts[bits->list[i].shard];
		uint64_t rows = seg->rows ? seg->rows : 1;
		uint64_t end = seg->off + (rows - 1) * seg->pitch + seg->row_len;
		uint64_t last = bit_of(p, part, end - 1);

		for (uint64_t bit = bit_of(p, part, seg->off); bit <= last; bit++)
			p->need[bit / 8] |= (unsigned char)(1u << (bit % 8));
	}
}

/* What is read of each chunk, and in how many pieces. */
static void measure(struct pst_share *p)
{
	p->runs_max = 0;
	for (uint64_t c = 0; c < p->count; c++) {
		struct pst_chunk chunk = {.index = c, .shard = part_of(p, c)};
		uint64_t begin, end = 0;
		unsigned runs = 0;

		p->lens[c] = 0;
		for (; pst_share_run(p, &chunk, &begin, &end); runs++)
			p->lens[c] += end - begin;
		p->runs_max = runs > p->runs_max ? runs : p->runs_max;
	}
}

/* ---- who reads what ---- */

static unsigned store_of(const struct pst_share *p, uint64_t c)
{
	return p->parts[part_of(p, c)].store;
}

/* The store's next chunk that is needed, from `c` on. */
static uint64_t next_of(const struct pst_share *p, unsigned store, uint64_t c)
{
	while (c < p->count && (!p->lens[c] || store_of(p, c) != store))
		c++;
	return c;
}

/* All that is needed, in file order; stores take turns so that all end together: the
 * next chunk is of the store that has the largest part of its own left. */
static uint64_t list_wanted(struct pst_share *p)
{
	uint64_t n = 0;

	for (unsigned s = 0; s < p->store_count; s++) {
		struct pst_store *store = &p->stores[s];
		uint64_t c = next_of(p, s, 0);

		*store = (struct pst_store){.next = c};
		for (; c < p->count; c = next_of(p, s, c + 1))
			store->all++;
		store->left = store->all;
	}
	for (;;) {
		struct pst_store *best = &p->stores[0];
		unsigned which = 0;

		for (unsigned s = 1; s < p->store_count; s++) {
			struct pst_store *store = &p->stores[s];

			if (store->left * best->all > best->left * store->all || !best->left) {
				best = store;
				which = s;
			}
		}
		if (!best->left)
			return n;
		p->wanted[n++] = best->next;
		best->left--;
		best->next = next_of(p, which, best->next + 1);
	}
}

/* The chunk at place `i`: this host begins at its own place and comes around. */
static uint64_t wanted_at(const struct pst_share *p, uint64_t count, uint64_t i)
{
	return p->wanted[(i + count * p->how->host / p->how->hosts) % count];
}

/* The most requests that one store would see when `width` chunks are under way. */
static uint64_t most_at_once(struct pst_share *p, uint64_t count, uint64_t width)
{
	uint64_t most = 0;

	for (unsigned s = 0; s < p->store_count; s++)
		p->stores[s].left = 0; /* under way */
	for (uint64_t i = 0; i < count; i++) {
		struct pst_store *store = &p->stores[store_of(p, wanted_at(p, count, i))];

		if (i >= width)
			p->stores[store_of(p, wanted_at(p, count, i - width))].left--;
		most = ++store->left > most ? store->left : most;
	}
	return most;
}

/* As many rounds at once as the windows hold, less where a store would see too many
 * requests, and at last fewer readers. */
static void choose_width(struct pst_share *p, uint64_t count)
{
	unsigned most = p->how->reads_max;

	p->readers = p->ranks;
	p->ahead = p->how->windows;
	while (most && p->readers * p->ahead > most &&
	       most_at_once(p, count, (uint64_t)p->readers * p->ahead) > most) {
		if (p->ahead > 1)
			p->ahead--;
		else
			p->readers--;
	}
}

/* One round: the longest chunk to who has read least. With that, sums that differ by a
 * chunk at most still do afterwards. */
static void deal_round(const struct pst_share *p, uint64_t *row, uint64_t *sums)
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

void pst_share_deal(struct pst_share *p)
{
	uint64_t sums[PST_GROUP_MAX] = {0}, count;

	measure(p);
	count = list_wanted(p);
	choose_width(p, count);
	p->round_count = (count + p->readers - 1) / p->readers;
	for (uint64_t i = 0; i < p->round_count * p->readers; i++)
		p->order[i] = i < count ? wanted_at(p, count, i) : NOTHING;
	for (uint64_t t = 0; t < p->round_count; t++)
		deal_round(p, &p->order[t * p->readers], sums);
}

uint32_t pst_share_delay(uint32_t jitter_ms, unsigned host, unsigned hosts, uint32_t random)
{
	uint64_t begin = (uint64_t)jitter_ms * host / hosts;
	uint64_t end = (uint64_t)jitter_ms * (host + 1ull) / hosts;

	return (uint32_t)(begin + random % (end - begin + 1));
}

/* ---- the same everywhere ---- */

uint64_t pst_share_mix(uint64_t h, uint64_t value)
{
	h = (h ^ value) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static uint64_t mix3(uint64_t h, uint64_t a, uint64_t b, uint64_t c)
{
	return pst_share_mix(pst_share_mix(pst_share_mix(h, a), b), c);
}

uint64_t pst_share_table(const struct pst_share *p, const struct penstock_weights *w)
{
	uint64_t h = mix3(1, p->chunk, p->count, w->count);

	for (uint64_t i = 0; i < w->count; i++)
		h = mix3(h, w->entries[i].shard, w->entries[i].t->begin, w->entries[i].t->end);
	return h;
}

uint64_t pst_share_file(const struct stat *st)
{
	uint64_t h = mix3(1, st->st_dev, st->st_ino, (uint64_t)st->st_size);

	return mix3(h, (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec, 0);
}

uint64_t pst_share_stores(const struct pst_share *p)
{
	uint64_t h = 1;

	for (unsigned i = 0; i < p->part_count; i++)
		h = pst_share_mix(h, p->parts[i].store);
	return h;
}

void pst_share_one_store(struct pst_share *p)
{
	for (unsigned i = 0; i < p->part_count; i++)
		p->parts[i].store = 0;
	p->store_count = p->part_count ? 1 : 0;
}
