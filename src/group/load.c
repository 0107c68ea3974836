/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements loads by all ranks of a group. All ranks share the reading: each rank reads its part
 * of the needed bytes into its own windows, which are buffers in shared memory. Each rank then
 * copies the bytes that it needs from the windows of all ranks. The plan divides this work
 * into rounds, with one chunk for each reader in a round. A rank arrives at the barrier of a round
 * when it has read its chunk of this round and has copied the previous round. So no window is
 * overwritten before every rank has copied from it. A rank that fails goes to the next barrier at
 * once. The other ranks check for this with pst_group_poll while they wait for their reads. Called
 * by programs; weights/load.c calls load_move through the hook pst_load_mover.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "group/compare_files.h"
#include "group/plan.h"
#include "group/watched_call.h"
#include "group/window.h"
#include "weights/err.h"
#include "weights/file.h"
#include "weights/load.h"

#define COPIES 64u
/* Time in ns that a failed load waits for its reads to complete. */
#define SETTLE_NS 2000000000
/* Time in ns between two calls of pst_group_poll, which detects failed ranks, while a rank waits
 * for a read. */
#define POLL_NS 250000000

/* The facts about the model that ranks compare. In the message, this struct is followed by the
 * hashes of the files, and by the first part of the need bitmap (the file ranges that the rank
 * needs). */
struct model_facts {
	uint64_t table, file_count, need_bytes, stores;
};
_Static_assert(sizeof(struct model_facts) + PST_FILES_COMPARED * 8 + PST_NEED_BYTES <=
		       PST_MESSAGE_MAX,
	       "facts fit what a rank says");

/* A read of this rank: the chunk that it reads in one round of the load. There is one struct for
 * each of the rank's windows (buffers that other ranks copy from). */
struct read_round {
	bool reading;
	uint64_t id;
	struct pst_group_chunk chunk;
};

struct group_move {
	struct penstock_group *g;
	struct pst_load *load;
	struct pst_extents *extents;
	/* For each extent: the largest end offset of this extent and of all earlier extents of
	 * the same file. */
	uint64_t *reach;
	struct pst_group_plan plan;
	struct pst_windows windows;
	struct penstock_queue *q;
	struct read_round *rounds; /* One element for each window of this rank. */
	/* Memory for the list of runs (contiguous needed ranges of the file) that one read consists
	 * of. */
	struct pst_extent *runs;
	struct penstock_copy_args copies[COPIES];
	unsigned rank, size, window_count, copy_count;
	uint64_t started; /* Number of rounds whose read has been submitted. */
	uint64_t delivered;
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- the same model on every rank ---- */

/* Returns how many bytes of the need bitmap (the file ranges that a rank needs), starting at byte
 * `at`, fit into one exchange of messages. */
static size_t need_len(const struct group_move *m, size_t at)
{
	size_t left = pst_group_plan_need_bytes(&m->plan) - at;

	return left < PST_NEED_BYTES ? left : PST_NEED_BYTES;
}

static size_t write_facts(struct group_move *m, unsigned char *to)
{
	const struct penstock_weights *w = m->load->w;
	struct model_facts facts = {.table = pst_group_plan_hash_tensors(&m->plan, w),
				    .file_count = w->file_count,
				    .need_bytes = pst_group_plan_need_bytes(&m->plan),
				    .stores = pst_group_plan_hash_stores(&m->plan)};
	size_t count = w->file_count < PST_FILES_COMPARED ? w->file_count : PST_FILES_COMPARED;
	unsigned char *files = to + sizeof(facts);
	uint64_t file = 0;

	memcpy(to, &facts, sizeof(facts));
	for (unsigned i = 0; i < w->file_count; i++) {
		file = (i < PST_FILES_COMPARED ? 0 : file) ^ pst_group_hash_stat(&w->files[i].stat);
		memcpy(files + (i < PST_FILES_COMPARED ? i : PST_FILES_COMPARED - 1) * sizeof(file),
		       &file, sizeof(file));
	}
	to = files + count * sizeof(file);
	pst_group_plan_add_need(&m->plan, m->extents);
	memcpy(to, m->plan.need, need_len(m, 0));
	return sizeof(facts) + count * sizeof(file) + need_len(m, 0);
}

/* Returns true if the message is as long as the numbers in its struct model_facts require. */
static bool facts_complete(const struct pst_message *messages)
{
	struct model_facts f;

	if (messages->len < sizeof(f))
		return false;
	memcpy(&f, messages->bytes, sizeof(f));
	return messages->len == sizeof(f) + min_u64(f.file_count, PST_FILES_COMPARED) * 8 +
					min_u64(f.need_bytes, PST_NEED_BYTES);
}

/* How the facts of rank 0 and of other ranks differ. `files` is a rank that found other files than
 * rank 0. `table` is a rank whose list of tensors, or length of the need bitmap, differs. Each is 0
 * if there is no such rank. */
struct mismatch {
	unsigned files, table;
	bool stores;
};

/* Compares the facts of every rank with the facts of rank 0. Each rank makes all comparisons
 * itself, so all ranks reach the same result. */
static int compare_facts(const struct group_move *m, const struct pst_message *messages,
			 struct mismatch *mismatch)
{
	const struct penstock_weights *w = m->load->w;
	const size_t head = sizeof(struct model_facts);
	struct model_facts first, other;

	*mismatch = (struct mismatch){0, 0, false};
	for (unsigned r = 0; r < m->size; r++)
		if (!facts_complete(&messages[r]))
			return pst_message_invalid(r);
	memcpy(&first, messages[0].bytes, head);
	for (unsigned r = m->size; r-- > 1;) {
		uint64_t count = first.file_count < PST_FILES_COMPARED ? first.file_count
								       : PST_FILES_COMPARED;

		memcpy(&other, messages[r].bytes, head);
		if (other.file_count != first.file_count)
			return pst_weights_fail(
				ESTALE, PENSTOCK_WHY_STALE, w->files[0].path, NULL, PST_NO_OFF,
				"rank %u opened a model of %llu files, rank 0 one of %llu", r,
				(unsigned long long)other.file_count,
				(unsigned long long)first.file_count);
		if (memcmp(messages[r].bytes + head, messages[0].bytes + head, 8 * count))
			mismatch->files = r;
		if (other.table != first.table || other.need_bytes != first.need_bytes)
			mismatch->table = r;
		mismatch->stores |= other.stores != first.stores;
	}
	return 0;
}

/* Checks whether the load can continue despite the differences that compare_facts found. Different
 * stat fields are accepted if the files' contents are equal, and different stores (file systems)
 * are treated as one store. */
static int resolve_mismatch(struct group_move *m, struct pst_message *messages,
			    const struct mismatch *mismatch)
{
	struct penstock_weights *w = m->load->w;
	int ret = mismatch->files ? pst_group_compare_files(m->g, w, messages) : 0;

	if (!ret && mismatch->table)
		ret = pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, w->files[0].path, NULL,
				       PST_NO_OFF, "rank %u opened other tensors of it than rank 0",
				       mismatch->table);
	if (!ret && mismatch->stores)
		pst_group_plan_merge_stores(&m->plan);
	return ret;
}

/* Adds the need bitmaps (the file ranges that ranks need) of all ranks to this rank's bitmap, from
 * byte `at` on. The last bytes of each rank's message are its bitmap. */
static void merge_need(struct group_move *m, const struct pst_message *messages, size_t at)
{
	size_t len = need_len(m, at);

	for (unsigned r = 0; r < m->size; r++)
		for (size_t i = 0; i < len && r != m->rank; i++)
			m->plan.need[at + i] |= messages[r].bytes[messages[r].len - len + i];
}

/* Exchanges the part of the need bitmap (the file ranges that ranks need) that did not fit into the
 * first message, as happens with a large model. */
static int exchange_need(struct group_move *m, struct pst_message *messages)
{
	size_t all = pst_group_plan_need_bytes(&m->plan);
	int ret = 0;

	for (size_t at = PST_NEED_BYTES; at < all && !ret; at += PST_NEED_BYTES) {
		ret = pst_group_exchange(m->g, 0, m->plan.need + at, need_len(m, at), -1, messages);
		for (unsigned r = 0; r < m->size && !ret; r++)
			if (messages[r].len != need_len(m, at))
				ret = pst_message_invalid(r);
		if (!ret)
			merge_need(m, messages, at);
		pst_messages_free(m->g, messages);
	}
	return ret;
}

static int agree_plan(struct group_move *m, int status)
{
	struct pst_message *messages = calloc(m->size, sizeof(*messages));
	unsigned char *facts = malloc(PST_MESSAGE_MAX);
	struct mismatch mismatch = {0, 0, false};
	size_t len = 0;

	if (!messages || !facts)
		status = status ? status : pst_weights_no_memory("the ranks' messages");
	if (!status)
		status = pst_group_plan_make(&m->plan, m->load->w, pst_group_get_settings(m->g),
					     m->size);
	if (!status)
		len = write_facts(m, facts);
	if (messages && facts) {
		status = pst_group_exchange(m->g, status, facts, len, -1, messages);
		if (!status)
			status = compare_facts(m, messages, &mismatch);
		if (!status && !mismatch.table)
			merge_need(m, messages, 0);
		pst_messages_free(m->g, messages);
		if (!status)
			status = resolve_mismatch(m, messages, &mismatch);
		if (!status)
			status = exchange_need(m, messages);
		if (!status)
			pst_group_plan_deal(&m->plan);
	} else {
		status = pst_group_barrier(m->g, status);
	}
	free(messages);
	free(facts);
	return status;
}

/* ---- reading ---- */

static char *window_addr(const struct group_move *m, uint64_t round, unsigned rank,
			 const struct pst_group_chunk *c)
{
	return (char *)m->windows.list[rank].ptr + round % m->window_count * m->plan.chunk +
	       c->skip;
}

static int file_open_storage(struct penstock_weights *w, unsigned file)
{
	struct penstock_storage *st;

	return pst_model_file_storage(w, file, &st);
}

static int start_read(struct group_move *m, uint64_t round)
{
	struct read_round *r = &m->rounds[round % m->window_count];
	const struct pst_group_chunk *c = &r->chunk;
	uint64_t begin, end = 0;
	unsigned n = 0;
	char *place;
	int ret = 0;

	if (!pst_group_plan_chunk(&m->plan, round, m->rank, &r->chunk))
		return 0;
	place = window_addr(m, round, m->rank, c);
	for (; pst_group_plan_next_run(&m->plan, c, &begin, &end); n++)
		m->runs[n] = (struct pst_extent){
			.file = c->file,
			.seg = {.dev = m->windows.dev,
				.buf = place + (begin - c->begin),
				.off = begin,
				.row_len = end - begin},
		};
	m->runs[n - 1].seg.room = m->plan.chunk - c->skip - (c->end - c->begin);
	if (!pst_model_file_is_open(m->load->w, c->file))
		ret = pst_group_watched_call(m->g, m->load->w, file_open_storage, c->file);
	if (!ret)
		ret = pst_load_submit(m->load, m->q, m->runs, n, r, &r->id);
	r->reading = !ret;
	return ret;
}

/* Submits the reads of all rounds before round `end` that have not been submitted yet. */
static int group_read_ahead(struct group_move *m, uint64_t end)
{
	int ret = 0;

	for (; m->started < end && !ret; m->started++)
		ret = start_read(m, m->started);
	return ret;
}

static int await_read(struct group_move *m, uint64_t round)
{
	struct read_round *r = &m->rounds[round % m->window_count];
	struct penstock_done done;

	while (r->reading) {
		struct read_round *ended;
		int ret, n = penstock_wait(m->q, &done, 1, 1, POLL_NS);

		if (n < 0)
			return pst_weights_fail_lib(EIO, NULL, NULL, PST_NO_OFF);
		if (!n) {
			ret = pst_group_poll(m->g);
			if (ret)
				return ret;
			continue;
		}
		ended = done.user;
		ended->reading = false;
		pst_load_complete(m->load, &(struct pst_extent){.file = ended->chunk.file}, 1,
				  &done);
		if (m->windows.host)
			m->load->sum.report.dram_laid += ended->chunk.len;
	}
	return m->load->failed;
}

/* ---- copying ---- */

static int copies_flush(struct group_move *m)
{
	int ret = m->copy_count ? penstock_copy(m->copies, m->copy_count) : 0;

	m->copy_count = 0;
	return ret ? pst_weights_fail(ret, penstock_errwhy(), NULL, NULL, PST_NO_OFF,
				      "copying out of a group's window: %s", penstock_errmsg())
		   : 0;
}

static int copies_add(struct group_move *m, const struct penstock_seg *seg, const char *src,
		      uint64_t to, uint64_t len, uint64_t rows)
{
	struct penstock_load_report *sum = &m->load->sum.report;

	m->copies[m->copy_count++] = (struct penstock_copy_args){
		.size = sizeof(m->copies[0]),
		.dst_dev = seg->dev,
		.dst = (char *)seg->buf + to,
		.dst_pitch = seg->buf_pitch,
		.src_dev = m->windows.dev,
		.src = src,
		.src_pitch = seg->pitch,
		.row_len = len,
		.rows = rows,
	};
	m->delivered += len * rows;
	if (m->windows.host) {
		/* The copy goes through a slot (a piece of pinned staging memory), into which the
		 * CPU copies the bytes from the window. If the destination is host memory, the CPU
		 * also copies the bytes from the slot to the destination. */
		sum->cpu_copied += len * rows * (seg->dev == m->windows.host ? 2 : 1);
		sum->dram_laid += len * rows;
	}
	return m->copy_count == COPIES ? copies_flush(m) : 0;
}

/* Copies the part of an extent that lies in a chunk. One copy moves all whole rows; a separate
 * copy moves each partial row. */
static int copy_extent(struct group_move *m, const struct penstock_seg *seg,
		       const struct pst_group_chunk *c, const char *src)
{
	uint64_t rows = seg->rows ? seg->rows : 1, pitch = rows > 1 ? seg->pitch : seg->row_len;
	uint64_t i = c->begin > seg->off ? (c->begin - seg->off) / pitch : 0;

	while (i < rows && seg->off + i * pitch < c->end) {
		uint64_t at = seg->off + i * pitch, n = 1;
		uint64_t begin = at > c->begin ? at : c->begin;
		uint64_t end = at + seg->row_len < c->end ? at + seg->row_len : c->end;
		int ret;

		if (begin < end) {
			if (end - begin == seg->row_len)
				n = (c->end - end) / pitch + 1;
			n = n < rows - i ? n : rows - i;
			ret = copies_add(m, seg, src + (begin - c->begin),
					 i * seg->buf_pitch + (begin - at), end - begin, n);
			if (ret)
				return ret;
		}
		i += n;
	}
	return 0;
}

/* Returns the index of the first extent that ends after offset `off` of the file. If the file
 * has no such extent, returns the index of the first extent of a later file. */
static size_t first_extent(const struct group_move *m, unsigned file, uint64_t off)
{
	size_t low = 0, high = m->extents->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct pst_extent *b = &m->extents->list[mid];

		if (b->file < file || (b->file == file && m->reach[mid] <= off))
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static int copy_round(struct group_move *m, uint64_t round)
{
	for (unsigned i = 0; i < m->size; i++) {
		/* Each rank starts with the window of a different rank, so that not all ranks copy
		 * from one window at the same time. */
		unsigned rank = (m->rank + i) % m->size;
		struct pst_group_chunk c;
		int ret;

		if (!pst_group_plan_chunk(&m->plan, round, rank, &c))
			continue;
		for (size_t b = first_extent(m, c.file, c.begin); b < m->extents->count; b++) {
			const struct pst_extent *extent = &m->extents->list[b];

			if (extent->file != c.file || extent->seg.off >= c.end)
				break;
			ret = copy_extent(m, &extent->seg, &c, window_addr(m, round, rank, &c));
			if (ret)
				return ret;
		}
	}
	return copies_flush(m);
}

/* ---- rounds ---- */

/* Checks that the files that this rank has read are unchanged. The other ranks check the files
 * that they have read. */
static int check_files(struct penstock_weights *w, unsigned which)
{
	int ret = 0;

	(void)which;
	for (unsigned i = 0; i < w->file_count && !ret; i++)
		if (pst_model_file_is_open(w, i))
			ret = pst_model_file_check(&w->files[i], w->sources[i].fd);
	return ret;
}

static int run_rounds(struct group_move *m, int ret)
{
	const uint64_t windows = m->window_count, ahead = m->plan.ahead;

	if (!ret)
		ret = group_read_ahead(m, min_u64(windows, ahead));
	for (uint64_t t = 0; t < m->plan.round_count; t++) {
		if (!ret)
			ret = await_read(m, t);
		ret = pst_group_barrier(m->g, ret);
		if (ret)
			return ret;
		/* All ranks have copied round t - 1, so its window can be overwritten. */
		ret = group_read_ahead(m, min_u64(t + windows, t + 1 + ahead));
		if (!ret)
			ret = copy_round(m, t);
	}
	if (!ret)
		ret = pst_group_watched_call(m->g, m->load->w, check_files, 0);
	return pst_group_barrier(m->g, ret);
}

static int move_prepare(struct group_move *m)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	const struct pst_extents *extents = m->extents;
	int ret;

	m->rounds = calloc(m->window_count, sizeof(*m->rounds));
	m->reach = calloc(extents->count ? extents->count : 1, sizeof(*m->reach));
	m->runs = calloc(m->plan.runs_max, sizeof(*m->runs));
	if (!m->rounds || !m->reach || !m->runs)
		return pst_weights_no_memory("a group's load");
	for (size_t i = 0; i < extents->count; i++) {
		const struct penstock_seg *seg = &extents->list[i].seg;
		uint64_t end =
			seg->off + (seg->rows ? seg->rows - 1 : 0) * seg->pitch + seg->row_len;
		bool same = i && extents->list[i - 1].file == extents->list[i].file;

		m->reach[i] = same && m->reach[i - 1] > end ? m->reach[i - 1] : end;
	}
	opts.requests_max = m->window_count;
	opts.segs_max = m->plan.runs_max;
	ret = penstock_queue_open(&opts, &m->q);
	return ret ? pst_weights_fail_lib(ret, NULL, NULL, PST_NO_OFF) : 0;
}

/* Cancels this rank's reads after a rank has failed or is lost. Returns true if all of them
 * complete within SETTLE_NS. It does not wait longer, since a store may need a long time to
 * finish a read that it has started. */
static bool cancel_reads(struct group_move *m)
{
	struct penstock_done done[PST_GROUP_WINDOWS_MAX];
	unsigned left = 0;

	for (unsigned i = 0; i < m->window_count; i++) {
		if (!m->rounds[i].reading)
			continue;
		/* penstock_cancel fails if the read has completed already; that does no harm. */
		penstock_cancel(m->q, m->rounds[i].id);
		left++;
	}
	return !left || penstock_wait(m->q, done, left, left, SETTLE_NS) == (int)left;
}

static int move_run(struct group_move *m, struct penstock_device *dev)
{
	struct penstock_queue *busy = NULL;
	int ret =
		pst_windows_open(&m->windows, m->g, m->load, dev, m->plan.chunk * m->window_count);

	if (!ret)
		ret = run_rounds(m, move_prepare(m));
	pst_windows_unmap(&m->windows, m->g, !ret);
	if (ret && m->q && !cancel_reads(m))
		busy = m->q;
	else
		/* Waits for the reads, so that no read writes into the window after this call. */
		penstock_queue_close(m->q);
	pst_windows_close(&m->windows, m->load, busy);
	free(m->rounds);
	free(m->reach);
	free(m->runs);
	return ret;
}

static int load_move(void *arg, struct pst_load *load, struct pst_extents *extents, int status)
{
	struct penstock_group *g = arg;
	struct penstock_device *host = NULL, *dev;
	struct group_move m = {.g = g, .load = load, .extents = extents};
	int ret;

	pst_group_set_progress(g, load);
	m.rank = pst_group_rank(g);
	m.size = pst_group_size(g);
	m.window_count = pst_group_get_settings(g)->windows;
	if (!status)
		pst_extents_sort(extents);
	/* A rank that needs no bytes reads only for the other ranks, into host memory. */
	if (!status && !extents->count) {
		ret = penstock_device_open("host", NULL, &host);
		status = ret < 0 ? ret : 0;
	}
	dev = extents->count ? extents->list[0].seg.dev : host;
	ret = agree_plan(&m, status);
	if (!ret && m.plan.round_count)
		ret = move_run(&m, dev);
	else if (!ret)
		ret = pst_group_barrier(g, 0);
	pst_group_set_progress(g, NULL);
	penstock_device_close(host);
	pst_group_plan_free(&m.plan);
	load->sum.report.bytes = ret ? 0 : m.delivered;
	return ret;
}

/* ---- public functions ---- */

int penstock_group_load(struct penstock_group *g, struct penstock_weights *w,
			struct penstock_device *const *devs, unsigned dev_count,
			const struct penstock_load_opts *opts, struct penstock_load_report *report,
			struct penstock_loaded **out)
{
	const struct pst_load_mover mover = {load_move, g};
	int ret = g ? pst_group_check_owner(g) : pst_weights_fail_null("the group");

	return ret ? ret : pst_weights_load(&mover, w, devs, dev_count, opts, report, out);
}

int penstock_group_load_into(struct penstock_group *g, struct penstock_weights *w,
			     const struct penstock_piece *pieces, uint64_t count,
			     const struct penstock_load_opts *opts,
			     struct penstock_load_report *report)
{
	const struct pst_load_mover mover = {load_move, g};
	int ret = g ? pst_group_check_owner(g) : pst_weights_fail_null("the group");

	return ret ? ret : pst_weights_load_into(&mover, w, pieces, count, opts, report);
}
