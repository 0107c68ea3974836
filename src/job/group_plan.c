/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a group reads and who reads it: a model's files are cut into chunks of a window,
 * the same ones on every rank, and those that some rank needs are dealt out in turn. Also
 * what ranks compare before they begin. Arithmetic only; called by group_load.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "job/group_plan.h"

#define PAGE 4096u
#define CHUNK_MIN 65536u

static uint64_t mix(uint64_t h, uint64_t value)
{
	h = (h ^ value) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

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
static uint64_t choose_chunk(const struct pst_share *p, uint64_t window, unsigned shares)
{
	uint64_t sum = 0, chunk;

	for (unsigned i = 0; i < p->part_count; i++)
		sum += p->parts[i].end - p->parts[i].begin;
	chunk = (sum / shares + PAGE - 1) / PAGE * PAGE;
	chunk = chunk < CHUNK_MIN ? CHUNK_MIN : chunk;
	return chunk < window ? chunk : window;
}

int pst_share_make(struct pst_share *p, const struct penstock_weights *w, uint64_t window,
		  unsigned shares)
{
	memset(p, 0, sizeof(*p));
	p->part_count = w->shard_count;
	p->parts = calloc(w->shard_count ? w->shard_count : 1, sizeof(*p->parts));
	if (!p->parts)
		return pst_weights_no_memory("what a group reads");
	take_parts(p, w);
	p->chunk = choose_chunk(p, window, shares);
	for (unsigned i = 0; i < p->part_count; i++) {
		struct pst_part *part = &p->parts[i];

		part->base = part->begin / PAGE * PAGE;
		part->first = p->count;
		if (part->end > part->begin)
			p->count += (part->end - part->base + p->chunk - 1) / p->chunk;
	}
	p->unit = p->count / (PST_NEED_BYTES * 8u) + 1;
	p->order = calloc(p->count ? p->count : 1, sizeof(*p->order));
	return p->order ? 0 : pst_weights_no_memory("what a group reads");
}

void pst_share_free(struct pst_share *p)
{
	free(p->parts);
	free(p->order);
	p->parts = NULL;
	p->order = NULL;
}

size_t pst_share_need_bytes(const struct pst_share *p)
{
	return (size_t)(p->count / p->unit / 8 + 1);
}

void pst_share_need(const struct pst_share *p, const struct pst_bits *bits, unsigned char *need)
{
	for (size_t i = 0; i < bits->count; i++) {
		const struct penstock_seg *seg = &bits->list[i].seg;
		const struct pst_part *part = &p->parts[bits->list[i].shard];
		uint64_t rows = seg->rows ? seg->rows : 1;
		uint64_t end = seg->off + (rows - 1) * seg->pitch + seg->row_len;
		uint64_t c = part->first + (seg->off - part->base) / p->chunk;
		uint64_t last = part->first + (end - 1 - part->base) / p->chunk;

		for (; c <= last; c++)
			need[c / p->unit / 8] |= (unsigned char)(1u << (c / p->unit % 8));
	}
}

void pst_share_deal(struct pst_share *p, const unsigned char *need)
{
	p->order_count = 0;
	for (uint64_t c = 0; c < p->count; c++)
		if (need[c / p->unit / 8] >> (c / p->unit % 8) & 1)
			p->order[p->order_count++] = c;
}

void pst_share_chunk(const struct pst_share *p, uint64_t index, struct pst_chunk *out)
{
	uint64_t c = p->order[index], at;
	unsigned low = 0, high = p->part_count - 1;

	while (low < high) { /* the last part that begins at or before it */
		unsigned mid = low + (high - low + 1) / 2;

		if (p->parts[mid].first <= c)
			low = mid;
		else
			high = mid - 1;
	}
	at = p->parts[low].base + (c - p->parts[low].first) * p->chunk;
	out->shard = low;
	out->begin = at > p->parts[low].begin ? at : p->parts[low].begin;
	out->end = at + p->chunk < p->parts[low].end ? at + p->chunk : p->parts[low].end;
	out->skip = out->begin - at;
}

/* ---- the same everywhere ---- */

uint64_t pst_share_table(const struct pst_share *p, const struct penstock_weights *w)
{
	uint64_t h = mix(mix(mix(1, p->chunk), p->count), w->count);

	for (uint64_t i = 0; i < w->count; i++)
		h = mix(mix(mix(h, w->entries[i].shard), w->entries[i].t->begin),
			w->entries[i].t->end);
	return h;
}

uint64_t pst_share_file(const struct stat *st)
{
	uint64_t h = mix(mix(1, st->st_dev), st->st_ino);

	return mix(mix(mix(h, (uint64_t)st->st_size), (uint64_t)st->st_mtim.tv_sec),
		   (uint64_t)st->st_mtim.tv_nsec);
}
