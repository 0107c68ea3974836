/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_weights_iter: hands out a model tensor by tensor in file order, through a
 * window of device memory. The window is a ring of batches; each batch is read by one request.
 * New batches are read ahead of the caller. The oldest batch is freed when the caller has
 * released all its tensors. A batch takes at most a quarter of the window, so that the next
 * batch fits while the caller still holds the previous one. A tensor that is longer than a
 * quarter of the window gets its own allocation. At most two such allocations exist at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "weights/err.h"
#include "weights/move.h"
#include "weights/open.h"
#include "weights/place.h"

#define WINDOW_DEFAULT (1ull << 30)
/* Maximum number of batches in the window (the device memory into which tensors are read ahead). */
#define BATCHES_MAX 64u
/* A batch of tensors takes at most 1/BATCH_PARTS of the window, the memory for tensors read
 * ahead. */
#define BATCH_PARTS 4u
#define WINDOW_LEAST (1u << 18)
/* Maximum number of tensors that do not fit in the window (the memory for tensors read ahead) and
 * so have memory of their own. Counts tensors that are being read and tensors that the caller
 * holds. */
#define OWN_MAX 2u
/* Maximum number of tensors in a batch. */
#define TENSORS_MAX 16384u

struct batch {
	uint64_t first, count; /* Index of the batch's first tensor; number of its tensors. */
	uint64_t start, len;   /* Byte range in the window; unused if has_own_memory. */
	/* Whether the batch is a single long tensor with its own allocation. */
	bool has_own_memory;
	char *mem;
	uint64_t held; /* Number of tensors not yet released. */
	struct pst_extents extents;
	uint64_t id; /* Id of the batch's request. */
	uint64_t *offs;
	/* One flag for each tensor of the batch: whether the caller has received the tensor and not
	 * yet released it. */
	bool *out;
	bool done;
};

struct penstock_weights_iter {
	struct penstock_weights *model; /* The iterator owns a reference. */
	struct pst_load load;
	struct penstock_device *dev;
	struct penstock_queue *q;
	char *window;
	uint64_t window_len, batch_most;
	/* The batches of tensors that are being read or in use, in file order, starting with
	 * `oldest`. */
	struct batch batches[BATCHES_MAX];
	unsigned oldest, batch_count, own_count;
	/* How many of the model's tensors have been put into batches. */
	uint64_t planned;
	uint64_t next; /* Index of the next tensor to give to the caller. */
};

static struct batch *batch_at(struct penstock_weights_iter *it, unsigned i)
{
	return &it->batches[(it->oldest + i) % BATCHES_MAX];
}

/* Returns the batch that contains a tensor, or NULL if no batch does. */
static struct batch *batch_of(struct penstock_weights_iter *it, uint64_t tensor)
{
	for (unsigned i = 0; i < it->batch_count; i++) {
		struct batch *b = batch_at(it, i);

		if (tensor >= b->first && tensor - b->first < b->count)
			return b;
	}
	return NULL;
}

static uint64_t bytes_of(const struct penstock_weights *w, uint64_t tensor)
{
	return w->entries[tensor].t->end - w->entries[tensor].t->begin;
}

/* ---- reading ahead ---- */

/* Returns the number of tensors, from tensor `first` on, that go into one batch. All of them are
 * in the same file. Returns at least 1, except at the end of the model. */
static uint64_t batch_tensor_count(const struct penstock_weights_iter *it, uint64_t first)
{
	const struct penstock_weights *w = it->load.w;
	uint64_t count = 0, bytes = 0;

	while (first + count < w->count && count < TENSORS_MAX &&
	       w->entries[first + count].file == w->entries[first].file) {
		/* An upper bound on the memory that the tensors need, including the gaps that
		 * pst_place_tensors leaves between tensors. */
		bytes += bytes_of(w, first + count) / 8 * 9 + 128 + it->load.opts.align;
		if (count && bytes > it->batch_most)
			break;
		count++;
	}
	return count;
}

/* Finds `len` contiguous free bytes in the window, the device memory for tensors read ahead. They
 * are between the newest batch and the window's end or, if there is too little room, at the
 * window's start. Returns false if there is no such range. */
static bool iter_window_find(struct penstock_weights_iter *it, uint64_t len, uint64_t *start)
{
	const struct batch *oldest = NULL, *newest = NULL;
	uint64_t head;

	*start = 0;
	for (unsigned i = 0; i < it->batch_count; i++) {
		const struct batch *b = batch_at(it, i);

		/* A batch whose tensors are all empty occupies no memory in the window. */
		if (b->has_own_memory || !b->len)
			continue;
		oldest = oldest ? oldest : b;
		newest = b;
	}
	if (!newest)
		return len <= it->window_len;
	head = (newest->start + newest->len + 4095) & ~4095ull;
	if (newest->start >= oldest->start) {
		if (head <= it->window_len && len <= it->window_len - head) {
			*start = head;
			return true;
		}
		return len <= oldest->start;
	}
	*start = head;
	return head <= oldest->start && len <= oldest->start - head;
}

/* Returns true if a tensor is longer than a batch may be. Such a tensor gets its own memory, so the
 * length of the window (the memory for tensors read ahead) does not depend on it. */
static bool is_long_tensor(const struct penstock_weights_iter *it, uint64_t tensor)
{
	return bytes_of(it->load.w, tensor) > it->batch_most;
}

/* Assigns memory to a batch. Returns 1 on success, 0 if no memory is free at the moment, or a
 * negative error. */
static int batch_place(struct penstock_weights_iter *it, struct batch *b)
{
	void *mem = NULL;
	int ret;

	b->mem = it->window;
	if (!b->len)
		return 1;
	/* A long tensor is alone in its batch and gets an allocation of its own. */
	if (!is_long_tensor(it, b->first)) {
		if (!iter_window_find(it, b->len, &b->start))
			return 0;
		b->mem = it->window + b->start;
		return 1;
	}
	if (it->own_count == OWN_MAX)
		return 0;
	ret = pst_load_alloc(&it->load, it->dev, b->len, &mem);
	if (ret)
		return ret;
	b->mem = mem;
	b->has_own_memory = true;
	it->own_count++;
	return 1;
}

static void batch_free(struct penstock_weights_iter *it, struct batch *b)
{
	if (b->has_own_memory) {
		pst_load_free(&it->load.opts, it->dev, b->mem, b->len);
		it->load.held -= b->len;
		it->own_count--;
	}
	free(b->extents.list);
	free(b->offs);
	free(b->out);
	*b = (struct batch){.first = 0};
}

static int iter_batch_submit(struct penstock_weights_iter *it, struct batch *b)
{
	const struct penstock_weights *w = it->load.w;
	int ret = 0;

	/* pst_place_tensors places the tensors so that no other data shares the first and the last
	 * memory page of an extent that pst_place_widen would widen. So pst_place_widen may read
	 * whole pages there. */
	b->extents.own_pages = true;
	for (uint64_t i = 0; i < b->count && !ret; i++) {
		const struct pst_tensor_entry *e = &w->entries[b->first + i];
		struct penstock_seg seg = {
			.buf = b->mem + b->offs[i],
			.dev = it->dev,
			.off = w->files[e->file].data_off + e->t->begin,
			.row_len = bytes_of(w, b->first + i),
		};

		ret = pst_extents_add(&b->extents, e->file, &seg);
	}
	if (ret)
		return ret;
	it->load.lead += pst_place_widen(&b->extents);
	/* If all tensors of the batch are empty, there is nothing to read. */
	b->done = !b->extents.count;
	return b->done ? 0
		       : pst_load_submit(&it->load, it->q, b->extents.list, b->extents.count, b,
					 &b->id);
}

/* Makes the next batch and submits its read. Returns 1 on success, 0 if no memory is free or no
 * tensor is left, or a negative error. */
static int iter_read_ahead(struct penstock_weights_iter *it)
{
	uint64_t count = batch_tensor_count(it, it->planned);
	struct batch *b = batch_at(it, it->batch_count);
	int ret;

	if (!count || it->batch_count == BATCHES_MAX)
		return 0;
	b->offs = calloc(count, sizeof(*b->offs));
	b->out = calloc(count, sizeof(*b->out));
	if (!b->offs || !b->out) {
		batch_free(it, b);
		return pst_weights_no_memory("a batch");
	}
	b->first = it->planned;
	b->count = b->held = count;
	b->len = pst_place_tensors(it->load.w, b->first, count, it->load.opts.align, b->offs);
	ret = batch_place(it, b);
	if (ret > 0)
		ret = iter_batch_submit(it, b);
	else if (!ret)
		ret = 1; /* A later call tries again to make this batch. */
	if (ret) {
		batch_free(it, b);
		return ret < 0 ? ret : 0;
	}
	it->planned += count;
	it->batch_count++;
	return 1;
}

/* ---- public functions ---- */

/* Returns the length in bytes of the memory for tensors read ahead: `window`, or less if all
 * tensors fit in less. Long tensors do not count, because they have memory of their own. */
static uint64_t window_for(const struct penstock_weights *w, uint64_t window, uint64_t batch_most)
{
	uint64_t sum = 4096;

	for (uint64_t t = 0; t < w->count && sum < window; t++)
		sum += bytes_of(w, t) <= batch_most ? bytes_of(w, t) + 8192 : 0;
	return sum < window ? sum : window;
}

/* Checks that the device has enough memory for any two consecutive long tensors, by allocating
 * that much and freeing it again. The iteration allocates each long tensor only just before it
 * reads the tensor. Without this check it could fail halfway. */
static int probe_long(struct penstock_weights_iter *it)
{
	const struct penstock_weights *w = it->load.w;
	uint64_t before = 0, len, off, most[2] = {0, 0};
	void *mem[2] = {NULL, NULL};
	int ret = 0;

	for (uint64_t t = 0; t < w->count; t++) {
		if (!is_long_tensor(it, t))
			continue;
		len = pst_place_tensors(w, t, 1, it->load.opts.align, &off);
		if (before + len > most[0] + most[1]) {
			most[0] = before;
			most[1] = len;
		}
		before = len;
	}
	for (unsigned i = 0; i < 2 && !ret; i++)
		ret = most[i] ? pst_load_alloc(&it->load, it->dev, most[i], &mem[i]) : 0;
	for (unsigned i = 0; i < 2; i++) {
		if (!mem[i])
			continue;
		pst_load_free(&it->load.opts, it->dev, mem[i], most[i]);
		it->load.held -= most[i];
	}
	return ret;
}

static int open_window(struct penstock_weights_iter *it)
{
	uint64_t most = it->load.opts.window ? it->load.opts.window : WINDOW_DEFAULT;
	void *window = NULL;
	int ret;

	most = most > WINDOW_LEAST ? most : WINDOW_LEAST;
	it->batch_most = most / BATCH_PARTS;
	it->window_len = window_for(it->load.w, most, it->batch_most);
	ret = pst_load_alloc(&it->load, it->dev, it->window_len, &window);
	it->window = window;
	return ret ? ret : probe_long(it);
}

int penstock_weights_iter_open(struct penstock_weights *w, struct penstock_device *dev,
			       const struct penstock_load_opts *opts,
			       struct penstock_weights_iter **out)
{
	struct penstock_queue_opts q = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_weights_iter *it;
	int ret;

	if (!w || !dev || !out)
		return pst_weights_fail_null("the model, the device or the output pointer");
	it = calloc(1, sizeof(*it));
	if (!it)
		return pst_weights_no_memory("an iterator");
	it->dev = dev;
	it->model = w;
	pst_weights_ref(w);
	ret = pst_load_init(&it->load, w, opts);
	if (!ret)
		ret = open_window(it);
	if (!ret) {
		q.requests_max = BATCHES_MAX;
		q.segs_max = TENSORS_MAX;
		ret = penstock_queue_open(&q, &it->q);
		if (ret)
			pst_weights_fail_lib(ret, NULL, NULL, PST_NO_OFF);
	}
	if (ret) {
		penstock_weights_iter_close(it);
		return ret;
	}
	*out = it;
	return 0;
}

static int collect_completions(struct penstock_weights_iter *it, int64_t patience_ns)
{
	struct penstock_done done[4];
	int n = penstock_wait(it->q, done, 1, 4, patience_ns);

	for (int i = 0; i < n; i++) {
		struct batch *ended = done[i].user;

		pst_load_complete(&it->load, ended->extents.list, ended->extents.count, &done[i]);
		ended->done = true;
	}
	return n;
}

/* Cancels all reads and waits until they have completed, so that no byte moves after a failure
 * has been reported. */
static void iter_cancel_batches(struct penstock_weights_iter *it)
{
	for (unsigned i = 0; i < it->batch_count; i++)
		if (!batch_at(it, i)->done)
			/* penstock_cancel fails if the request has completed already; that does
			 * no harm. */
			penstock_cancel(it->q, batch_at(it, i)->id);
	while (collect_completions(it, -1) > 0)
		;
}

/* Waits until `b` has been read or the iteration has failed. */
static int batch_await(struct penstock_weights_iter *it, struct batch *b)
{
	while (!b->done && !it->load.failed) {
		int64_t patience = pst_load_wait_ns(&it->load);
		int n = collect_completions(it, patience);

		if (n < 0 || (!n && patience < 0))
			it->load.failed = pst_weights_fail_lib(n ? n : EIO, NULL, NULL, PST_NO_OFF);
		pst_load_poll_caller(&it->load);
	}
	if (it->load.failed)
		iter_cancel_batches(it);
	return it->load.failed;
}

int penstock_weights_iter_next(struct penstock_weights_iter *it, uint64_t *tensor, void **ptr)
{
	struct batch *b;
	int ret;

	if (!it || !tensor || !ptr)
		return pst_weights_fail_null("the iterator or an output pointer");
	ret = it->load.failed;
	if (ret)
		return pst_weights_fail(ret, penstock_errwhy(), NULL, NULL, PST_NO_OFF,
					"the iterator failed at an earlier call");
	do {
		ret = iter_read_ahead(it);
	} while (ret > 0);
	if (ret)
		return it->load.failed = ret;
	if (it->next == it->load.w->count)
		return 0;
	b = batch_of(it, it->next);
	if (!b)
		return pst_weights_fail(ENOBUFS, PENSTOCK_WHY_FULL, NULL,
					it->load.w->entries[it->next].t->name, PST_NO_OFF,
					"the window is full of tensors that were not released");
	ret = batch_await(it, b);
	if (!ret && it->next == b->first && b->extents.count) {
		ret = pst_load_check_files(&it->load, &b->extents);
		it->load.failed = ret;
	}
	if (ret)
		return ret;
	*tensor = it->next;
	*ptr = b->mem + b->offs[it->next - b->first];
	b->out[it->next - b->first] = true;
	it->next++;
	return 1;
}

int penstock_weights_iter_release(struct penstock_weights_iter *it, uint64_t tensor)
{
	struct batch *b;

	if (!it)
		return pst_weights_fail_null("the iterator");
	b = batch_of(it, tensor);
	if (!b || !b->out[tensor - b->first])
		return pst_weights_fail(ENOENT, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"tensor %llu is not held by the caller",
					(unsigned long long)tensor);
	b->out[tensor - b->first] = false;
	b->held--;
	while (it->batch_count && !batch_at(it, 0)->held) {
		batch_free(it, batch_at(it, 0));
		it->oldest = (it->oldest + 1) % BATCHES_MAX;
		it->batch_count--;
	}
	return 0;
}

void penstock_weights_iter_report(const struct penstock_weights_iter *it,
				  struct penstock_load_report *out)
{
	if (it && out)
		pst_load_report(&it->load, out);
}

void penstock_weights_iter_close(struct penstock_weights_iter *it)
{
	if (!it)
		return;
	/* Waits for the reads in flight, which write to the memory freed below. */
	penstock_queue_close(it->q);
	for (unsigned i = 0; i < it->batch_count; i++)
		batch_free(it, batch_at(it, i));
	pst_load_free(&it->load.opts, it->dev, it->window, it->window_len);
	penstock_weights_close(it->model);
	free(it);
}
