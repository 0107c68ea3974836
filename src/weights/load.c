/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements two of the three ways to receive a model (iter.c has the third): the whole model into
 * one allocation per device, and single pieces into the caller's memory. Both ways make a list of
 * extents. An extent is a file range with the memory for it. move.c reads the extents. If several
 * processes load together, a function that src/group passes reads them instead. Called by programs
 * and by src/group. A load never leaves partial results: it frees its allocations if it fails, and
 * it checks all pieces before the first byte moves.
 */
#include "weights/load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "weights/err.h"
#include "weights/place.h"

/* Offset of a tensor that has no place in memory, because this rank needs no part of it. */
#define NOWHERE UINT64_MAX

/* ---- pieces ---- */

static int piece_fail(const struct penstock_weights *w, uint64_t tensor, int code,
		      enum penstock_why why, const char *what)
{
	const struct pst_tensor_entry *e = &w->entries[tensor];

	return pst_weights_fail(code, why, w->files[e->file].path, e->t->name, PST_NO_OFF, "%s",
				what);
}

static int piece_out_of_range(const struct penstock_weights *w, const struct penstock_piece *p)
{
	const struct pst_tensor_entry *e = &w->entries[p->tensor];

	return pst_weights_fail(
		ERANGE, PENSTOCK_WHY_BAD_ARGUMENT, w->files[e->file].path, e->t->name, PST_NO_OFF,
		"%llu from %llu on of dimension %u, rows %llu from %llu on: "
		"outside of its shape",
		(unsigned long long)p->count, (unsigned long long)p->first, p->dim,
		(unsigned long long)p->outer_count, (unsigned long long)p->outer_first);
}

/* Translates a piece (a part of a tensor) into a segment, that is, into an offset in the file, the
 * length of a row, the distance between rows and the number of rows. */
static int piece_to_seg(const struct penstock_weights *w, const struct penstock_piece *p,
			struct penstock_seg *seg)
{
	const struct pst_tensor_entry *e = &w->entries[p->tensor];
	const struct pst_st_tensor *t = e->t;
	uint64_t outer = 1, inner = penstock_dtype_bits(t->dtype), extent = 1, end;
	uint64_t count = p->count, rows = p->outer_count;

	if (p->dim >= (t->rank ? t->rank : 1))
		return piece_out_of_range(w, p);
	if (t->begin == t->end)
		return 0; /* An empty tensor has no bytes to read. */
	for (unsigned i = 0; i < p->dim; i++)
		/* Cannot overflow, since the check of the file's header multiplied all
		 * dimensions. */
		outer *= t->shape[i];
	for (unsigned i = p->dim + 1; i < t->rank; i++)
		inner *= t->shape[i];
	if (t->rank)
		extent = t->shape[p->dim];
	if (!count && p->first <= extent)
		count = extent - p->first;
	if (!rows && p->outer_first <= outer)
		rows = outer - p->outer_first;
	if (__builtin_add_overflow(p->first, count, &end) || end > extent ||
	    __builtin_add_overflow(p->outer_first, rows, &end) || end > outer)
		return piece_out_of_range(w, p);
	if (p->first * inner % 8 || count * inner % 8 || (rows > 1 && extent * inner % 8))
		return piece_fail(w, p->tensor, EINVAL, PENSTOCK_WHY_UNALIGNED,
				  "the piece does not begin and end at whole bytes");
	seg->row_len = count * inner / 8;
	seg->pitch = extent * inner / 8;
	seg->rows = rows;
	seg->off = w->files[e->file].data_off + t->begin + p->outer_first * seg->pitch +
		   p->first * inner / 8;
	if (!rows)
		seg->row_len = 0;
	return 0;
}

static int piece_check_size(const struct penstock_weights *w, const struct penstock_piece *p,
			    struct penstock_seg *seg)
{
	const struct pst_tensor_entry *e = &w->entries[p->tensor];
	uint64_t want;

	seg->buf = p->ptr;
	seg->buf_pitch = p->pitch ? p->pitch : seg->row_len;
	if (!seg->row_len)
		return 0;
	if (!p->ptr)
		return piece_fail(w, p->tensor, EINVAL, PENSTOCK_WHY_BAD_ARGUMENT,
				  "its destination is NULL");
	if (seg->rows > 1 && seg->buf_pitch < seg->row_len)
		return piece_fail(w, p->tensor, EINVAL, PENSTOCK_WHY_BAD_ARGUMENT,
				  "its destination's pitch is shorter than a row");
	if (__builtin_mul_overflow(seg->rows - 1, seg->buf_pitch, &want) ||
	    __builtin_add_overflow(want, seg->row_len, &want) || want > p->room)
		return pst_weights_fail(ENOSPC, PENSTOCK_WHY_NO_SPACE, w->files[e->file].path,
					e->t->name, PST_NO_OFF,
					"its destination has %llu bytes, it needs %llu",
					(unsigned long long)p->room, (unsigned long long)want);
	return 0;
}

static int piece_check_device(const struct penstock_weights *w, const struct penstock_piece *p,
			      struct penstock_seg *seg)
{
	const struct pst_tensor_entry *e = &w->entries[p->tensor];
	struct penstock_device *dev = NULL;

	seg->dev = p->dev;
	if (!seg->row_len)
		return 0;
	if (penstock_device_of(p->ptr, &dev))
		return piece_fail(w, p->tensor, ENODEV, PENSTOCK_WHY_NO_DEVICE,
				  "its destination is not on an open device");
	if (p->dev && dev != p->dev)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, w->files[e->file].path,
					e->t->name, PST_NO_OFF,
					"its destination is on %s, but the piece says %s",
					penstock_device_name(dev), penstock_device_name(p->dev));
	seg->dev = dev;
	return 0;
}

static int load_piece_add(const struct penstock_weights *w, const struct penstock_piece *p,
			  struct pst_extents *extents)
{
	struct penstock_seg seg = {.buf = NULL};
	const struct pst_tensor_entry *e;
	int ret;

	if (p->tensor >= w->count)
		return pst_weights_fail(ENOENT, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"tensor %llu is out of range: the model has %llu",
					(unsigned long long)p->tensor,
					(unsigned long long)w->count);
	e = &w->entries[p->tensor];
	if (p->dtype != PENSTOCK_DTYPE_NONE && p->dtype != e->t->dtype)
		return pst_weights_fail(
			EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, w->files[e->file].path, e->t->name,
			PST_NO_OFF, "it is %s, but its destination is %s",
			penstock_dtype_name(e->t->dtype), penstock_dtype_name(p->dtype));
	ret = piece_to_seg(w, p, &seg);
	if (!ret)
		ret = piece_check_size(w, p, &seg);
	if (!ret)
		ret = piece_check_device(w, p, &seg);
	if (!ret && seg.rows > 1 && seg.row_len == seg.pitch && seg.row_len == seg.buf_pitch) {
		seg.row_len *= seg.rows;
		seg.rows = 1;
	}
	return ret ? ret : pst_extents_add(extents, e->file, &seg);
}

/* ---- all at once ---- */

struct penstock_loaded {
	struct penstock_load_opts opts;
	struct penstock_device **devs;
	void **bases;
	unsigned dev_count;
	uint64_t len, first, count;
	uint64_t *offs;
};

/* Sets *off to the file offset at which a rank's part of a tensor begins, if the part is
 * contiguous in the file. Sets *off to 0 if it is not contiguous. */
static int shard_file_off(const struct penstock_weights *w, const struct penstock_shard *shard,
			  uint64_t *off)
{
	struct penstock_seg seg = {.buf = NULL};
	int ret = shard->piece_count ? piece_to_seg(w, &shard->pieces[0], &seg) : 0;

	*off = shard->piece_count == 1 && seg.rows <= 1 ? seg.off : 0;
	return ret;
}

/* Computes where a rank's parts of the tensors lie in memory, one part after the other. A long part
 * that is contiguous in its file does not share its memory pages with other parts; see place.c. */
static int place_shards(struct pst_load *load, struct penstock_loaded *l)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	const struct penstock_weights *w = load->w;

	for (uint64_t i = 0; i < l->count; i++) {
		const struct pst_tensor_entry *e = &w->entries[l->first + i];
		int ret = penstock_weights_shard(load->w, l->first + i, load->opts.shard, &shard);
		uint64_t off;

		if (!ret)
			ret = shard_file_off(w, &shard, &off);
		if (ret)
			return ret;
		l->offs[i] = NOWHERE;
		if (shard.piece_count)
			l->offs[i] = pst_place_one(l->len, off, shard.bytes, e->t->dtype,
						   load->opts.align, &l->len);
	}
	return 0;
}

static int loaded_new(struct pst_load *load, struct penstock_device *const *devs, unsigned count,
		      struct penstock_loaded **out)
{
	struct penstock_loaded *l = calloc(1, sizeof(*l));
	struct penstock_weights *w = load->w;

	if (!l)
		return pst_weights_no_memory("a load");
	*out = l;
	l->opts = load->opts;
	l->first = load->opts.first;
	l->count = load->opts.count ? load->opts.count : w->count - l->first;
	l->offs = calloc(l->count ? l->count : 1, sizeof(*l->offs));
	l->devs = calloc(count, sizeof(*l->devs));
	l->bases = calloc(count, sizeof(*l->bases));
	if (!l->offs || !l->devs || !l->bases)
		return pst_weights_no_memory("a load");
	if (load->opts.shard) {
		int ret = place_shards(load, l);

		if (ret)
			return ret;
	} else {
		l->len = pst_place_tensors(w, l->first, l->count, load->opts.align, l->offs);
	}
	for (unsigned i = 0; i < count; i++) {
		/* Allocates at least one page, so that every tensor has an address even if all
		 * tensors are empty. */
		int ret = pst_load_alloc(load, devs[i], l->len ? l->len : 4096, &l->bases[i]);

		if (ret)
			return ret;
		l->devs[i] = devs[i];
		l->dev_count++;
	}
	return 0;
}

static int list_tensors(const struct penstock_loaded *l, const struct penstock_weights *w,
			struct pst_extents *extents)
{
	/* pst_place_tensors places the tensors so that no other data shares the first and the last
	 * memory page of an extent that pst_place_widen would widen. So pst_place_widen may read
	 * whole pages there. */
	extents->own_pages = true;
	/* Handles one device after the other, so that extents of adjacent tensors follow each
	 * other and are joined. The list is sorted by file later. */
	for (unsigned i = 0; i < l->dev_count; i++) {
		for (uint64_t t = 0; t < l->count; t++) {
			const struct pst_tensor_entry *e = &w->entries[l->first + t];
			struct penstock_seg seg = {
				.buf = (char *)l->bases[i] + l->offs[t],
				.dev = l->devs[i],
				.off = w->files[e->file].data_off + e->t->begin,
				.row_len = e->t->end - e->t->begin,
			};
			int ret = pst_extents_add(extents, e->file, &seg);

			if (ret)
				return ret;
		}
	}
	return 0;
}

static int list_shards(const struct penstock_loaded *l, struct penstock_weights *w,
		       const struct penstock_shard_opts *opts, struct pst_extents *extents)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int ret = 0;

	for (uint64_t t = 0; t < l->count && !ret; t++) {
		const struct pst_st_tensor *tensor = w->entries[l->first + t].t;
		uint64_t off;

		ret = penstock_weights_shard(w, l->first + t, opts, &shard);
		if (!ret)
			ret = shard_file_off(w, &shard, &off);
		if (!ret)
			extents->own_pages = pst_place_has_own_pages(off, shard.bytes,
								     tensor->dtype, l->opts.align);
		for (unsigned i = 0; !ret && i < shard.piece_count * l->dev_count; i++) {
			struct penstock_piece p = shard.pieces[i % shard.piece_count];
			unsigned d = i / shard.piece_count;

			p.ptr = (char *)l->bases[d] + l->offs[t] + (uintptr_t)p.ptr;
			p.dev = l->devs[d];
			ret = load_piece_add(w, &p, extents);
		}
	}
	return ret;
}

static int check_load(const struct pst_load *load, struct penstock_device *const *devs,
		      unsigned dev_count, struct penstock_loaded **out)
{
	const struct penstock_weights *w = load->w;

	if (!w || !out)
		return pst_weights_fail_null("the model or the output pointer");
	for (unsigned i = 0; i < (dev_count ? dev_count : 1); i++)
		if (!devs || !dev_count || !devs[i])
			return pst_weights_fail_null("a device or the list of devices");
	if (load->opts.first > w->count || load->opts.count > w->count - load->opts.first)
		return pst_weights_fail(
			ERANGE, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
			"%llu tensors from tensor %llu on are out of range: the model has %llu",
			(unsigned long long)load->opts.count, (unsigned long long)load->opts.first,
			(unsigned long long)w->count);
	return 0;
}

int pst_weights_load(const struct pst_load_mover *mover, struct penstock_weights *w,
		     struct penstock_device *const *devs, unsigned dev_count,
		     const struct penstock_load_opts *opts, struct penstock_load_report *report,
		     struct penstock_loaded **out)
{
	struct pst_extents extents = {.list = NULL};
	struct penstock_loaded *l = NULL;
	struct pst_load load;
	int ret = pst_load_init(&load, w, opts);

	if (!ret)
		ret = check_load(&load, devs, dev_count, out);
	extents.most = load.opts.request_bytes;
	if (!ret)
		ret = loaded_new(&load, devs, dev_count, &l);
	if (!ret)
		ret = load.opts.shard ? list_shards(l, w, load.opts.shard, &extents)
				      : list_tensors(l, w, &extents);
	if (mover) {
		ret = mover->move(mover->arg, &load, &extents, ret);
	} else if (!ret) {
		load.lead = pst_place_widen(&extents);
		ret = pst_load_move(&load, &extents);
	}
	free(extents.list);
	if (report && l)
		pst_load_report(&load, report);
	if (ret) {
		penstock_loaded_free(l);
		return ret;
	}
	*out = l;
	return 0;
}

int penstock_weights_load(struct penstock_weights *w, struct penstock_device *const *devs,
			  unsigned dev_count, const struct penstock_load_opts *opts,
			  struct penstock_load_report *report, struct penstock_loaded **out)
{
	return pst_weights_load(NULL, w, devs, dev_count, opts, report, out);
}

void *penstock_loaded_ptr(const struct penstock_loaded *loaded, unsigned dev_index, uint64_t tensor)
{
	if (!loaded || dev_index >= loaded->dev_count || tensor < loaded->first ||
	    tensor - loaded->first >= loaded->count ||
	    loaded->offs[tensor - loaded->first] == NOWHERE)
		return NULL;
	return (char *)loaded->bases[dev_index] + loaded->offs[tensor - loaded->first];
}

void penstock_loaded_free(struct penstock_loaded *l)
{
	if (!l)
		return;
	for (unsigned i = 0; i < l->dev_count; i++)
		pst_load_free(&l->opts, l->devs[i], l->bases[i], l->len ? l->len : 4096);
	free(l->offs);
	free(l->devs);
	free(l->bases);
	free(l);
}

/* Returns PENSTOCK_FAST for several ranks and files that may change, because of speeds measured
 * with four processes that load one model (bench/README.md). PENSTOCK_FAST reaches 65 GB/s, because
 * the CPUs copy from the page cache. PENSTOCK_THRIFTY reaches 36 GB/s if the files must first be
 * registered with the GPU. It reaches 105 GB/s if the files are still registered from earlier
 * loads. */
enum penstock_effort penstock_weights_effort(const struct penstock_weights *w, unsigned ranks)
{
	return w && ranks > 1 && !(w->flags & PENSTOCK_WEIGHTS_IMMUTABLE) ? PENSTOCK_FAST
									  : PENSTOCK_THRIFTY;
}

/* ---- into the caller's memory ---- */

int pst_weights_load_into(const struct pst_load_mover *mover, struct penstock_weights *w,
			  const struct penstock_piece *pieces, uint64_t count,
			  const struct penstock_load_opts *opts,
			  struct penstock_load_report *report)
{
	struct pst_extents extents = {.apart = true};
	struct penstock_piece piece;
	struct pst_load load;
	int ret = pst_load_init(&load, w, opts);

	if (!ret && (!w || (count && !pieces)))
		ret = pst_weights_fail_null("the model or the list of pieces");
	extents.most = load.opts.request_bytes;
	for (uint64_t i = 0; i < count && !ret; i++) {
		ret = pst_weights_struct_at(&piece, sizeof(piece), pieces, i, "penstock_piece");
		if (!ret)
			ret = load_piece_add(w, &piece, &extents);
	}
	if (!ret || mover) {
		bool ready = !ret;

		ret = mover ? mover->move(mover->arg, &load, &extents, ret)
			    : pst_load_move(&load, &extents);
		if (report && ready)
			pst_load_report(&load, report);
	}
	free(extents.list);
	return ret;
}

int penstock_weights_load_into(struct penstock_weights *w, const struct penstock_piece *pieces,
			       uint64_t count, const struct penstock_load_opts *opts,
			       struct penstock_load_report *report)
{
	return pst_weights_load_into(NULL, w, pieces, count, opts, report);
}
