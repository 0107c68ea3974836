/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load by all ranks of a group: each reads its share of what any of them needs into its
 * windows, and every rank copies what it needs out of everybody's. In rounds, as the plan
 * has them, a chunk of each reader's at a time: a rank comes to the meeting of a round when
 * its chunk has been read and the round before has been copied, so that windows read ahead
 * are never overwritten before all have them. A rank that fails comes to the next meeting at
 * once, and the others look whether one has while they wait for what they read.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "group/plan.h"
#include "group/window.h"

#define COPIES 64u
#define SETTLE_NS 2000000000 /* what is read as a load fails may still end by itself */
#define LOOK_NS 250000000    /* a read that takes longer: are the other ranks still there? */
#define FILES_MAX PST_FILES_TOLD

struct facts { /* what ranks compare; the files' and the first of what is needed follow */
	uint64_t table, file_count, need_bytes, stores;
};
_Static_assert(sizeof(struct facts) + FILES_MAX * 8 + PST_NEED_BYTES <= PST_GROUP_SAY_MAX,
	       "facts fit what a rank says");

struct round { /* of this rank's reads, one in each window */
	bool reading;
	uint64_t id;
	struct pst_chunk chunk;
};

struct move {
	struct penstock_group *g;
	struct pst_load *load;
	struct pst_bits *bits;
	uint64_t *reach; /* of each bit: the end of it and those before, in its file */
	struct pst_share plan;
	struct pst_windows windows;
	struct penstock_queue *q;
	struct round *rounds; /* of each window of this rank's */
	struct pst_bit *runs; /* of one read */
	struct penstock_copy_args copies[COPIES];
	unsigned rank, size, window_count, copy_count;
	uint64_t started; /* rounds whose chunk is read or was */
	uint64_t delivered;
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- the same model on every rank ---- */

/* How much of what is needed is said at once, from `at` on. */
static size_t need_len(const struct move *m, size_t at)
{
	size_t left = pst_share_need_bytes(&m->plan) - at;

	return left < PST_NEED_BYTES ? left : PST_NEED_BYTES;
}

static size_t write_facts(struct move *m, unsigned char *to)
{
	const struct penstock_weights *w = m->load->w;
	struct facts facts = {.table = pst_share_table(&m->plan, w),
			      .file_count = w->shard_count,
			      .need_bytes = pst_share_need_bytes(&m->plan),
			      .stores = pst_share_stores(&m->plan)};
	size_t count = w->shard_count < FILES_MAX ? w->shard_count : FILES_MAX;
	unsigned char *files = to + sizeof(facts);
	uint64_t file = 0;

	memcpy(to, &facts, sizeof(facts));
	for (unsigned i = 0; i < w->shard_count; i++) {
		file = (i < FILES_MAX ? 0 : file) ^ pst_share_file(&w->shards[i].stat);
		memcpy(files + (i < FILES_MAX ? i : FILES_MAX - 1) * sizeof(file), &file,
		       sizeof(file));
	}
	to = files + count * sizeof(file);
	pst_share_need(&m->plan, m->bits);
	memcpy(to, m->plan.need, need_len(m, 0));
	return sizeof(facts) + count * sizeof(file) + need_len(m, 0);
}

int pst_said_wrong(unsigned rank)
{
	return pst_weights_fail(EPROTO, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"rank %u says what no rank does", rank);
}

/* Whether facts are as long as they say themselves. */
static bool is_whole(const struct pst_said *said)
{
	struct facts f;

	if (said->len < sizeof(f))
		return false;
	memcpy(&f, said->bytes, sizeof(f));
	return said->len ==
	       sizeof(f) + least(f.file_count, FILES_MAX) * 8 + least(f.need_bytes, PST_NEED_BYTES);
}

/* What a rank has that is not as rank 0 has it: that rank, or 0. */
struct odd {
	unsigned files, table;
	bool stores;
};

/* Every rank compares every other with rank 0, so all come to the same end. */
static int compare(const struct move *m, const struct pst_said *said, struct odd *odd)
{
	const struct penstock_weights *w = m->load->w;
	const size_t head = sizeof(struct facts);
	struct facts first, other;

	*odd = (struct odd){0, 0, false};
	for (unsigned r = 0; r < m->size; r++)
		if (!is_whole(&said[r]))
			return pst_said_wrong(r);
	memcpy(&first, said[0].bytes, head);
	for (unsigned r = m->size; r-- > 1;) {
		uint64_t count = first.file_count < FILES_MAX ? first.file_count : FILES_MAX;

		memcpy(&other, said[r].bytes, head);
		if (other.file_count != first.file_count)
			return pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, w->shards[0].path, NULL,
						PST_NO_OFF,
						"rank %u has a model of %llu files, "
						"rank 0 one of %llu",
						r, (unsigned long long)other.file_count,
						(unsigned long long)first.file_count);
		if (memcmp(said[r].bytes + head, said[0].bytes + head, 8 * count))
			odd->files = r;
		if (other.table != first.table || other.need_bytes != first.need_bytes)
			odd->table = r;
		odd->stores |= other.stores != first.stores;
	}
	return 0;
}

/* What is odd may be so for a reason. */
static int settle_odds(struct move *m, struct pst_said *said, const struct odd *odd)
{
	struct penstock_weights *w = m->load->w;
	int ret = odd->files ? pst_group_same(m->g, w, said) : 0;

	if (!ret && odd->table)
		ret = pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, w->shards[0].path, NULL,
				       PST_NO_OFF,
				       "rank %u has opened other tensors of it than "
				       "rank 0",
				       odd->table);
	if (!ret && odd->stores)
		pst_share_one_store(&m->plan);
	return ret;
}

/* What others have said at the end of their words that they need. */
static void take_need(struct move *m, const struct pst_said *said, size_t at)
{
	size_t len = need_len(m, at);

	for (unsigned r = 0; r < m->size; r++)
		for (size_t i = 0; i < len && r != m->rank; i++)
			m->plan.need[at + i] |= said[r].bytes[said[r].len - len + i];
}

/* The rest of what is needed, of large models. */
static int tell_need(struct move *m, struct pst_said *said)
{
	size_t all = pst_share_need_bytes(&m->plan);
	int ret = 0;

	for (size_t at = PST_NEED_BYTES; at < all && !ret; at += PST_NEED_BYTES) {
		ret = pst_group_tell(m->g, 0, m->plan.need + at, need_len(m, at), -1, said);
		for (unsigned r = 0; r < m->size && !ret; r++)
			if (said[r].len != need_len(m, at))
				ret = pst_said_wrong(r);
		if (!ret)
			take_need(m, said, at);
		pst_said_free(m->g, said);
	}
	return ret;
}

static int agree(struct move *m, int status)
{
	struct pst_said *said = calloc(m->size, sizeof(*said));
	unsigned char *facts = malloc(PST_GROUP_SAY_MAX);
	struct odd odd = {0, 0, false};
	size_t len = 0;

	if (!said || !facts)
		status = status ? status : pst_weights_no_memory("what ranks say");
	if (!status)
		status = pst_share_make(&m->plan, m->load->w, pst_group_how(m->g), m->size);
	if (!status)
		len = write_facts(m, facts);
	if (said && facts) {
		status = pst_group_tell(m->g, status, facts, len, -1, said);
		if (!status)
			status = compare(m, said, &odd);
		if (!status && !odd.table)
			take_need(m, said, 0);
		pst_said_free(m->g, said);
		if (!status)
			status = settle_odds(m, said, &odd);
		if (!status)
			status = tell_need(m, said);
		if (!status)
			pst_share_deal(&m->plan);
	} else {
		status = pst_group_meet(m->g, status);
	}
	free(said);
	free(facts);
	return status;
}

/* ---- reading ---- */

static char *place_of(const struct move *m, uint64_t round, unsigned rank,
		      const struct pst_chunk *c)
{
	return (char *)m->windows.list[rank].ptr + round % m->window_count * m->plan.chunk +
	       c->skip;
}

static int open_file(struct penstock_weights *w, unsigned shard)
{
	struct penstock_storage *st;

	return pst_shard_storage(w, shard, &st);
}

static int start_read(struct move *m, uint64_t round)
{
	struct round *r = &m->rounds[round % m->window_count];
	const struct pst_chunk *c = &r->chunk;
	uint64_t begin, end = 0;
	unsigned n = 0;
	char *place;
	int ret = 0;

	if (!pst_share_chunk(&m->plan, round, m->rank, &r->chunk))
		return 0;
	place = place_of(m, round, m->rank, c);
	for (; pst_share_run(&m->plan, c, &begin, &end); n++)
		m->runs[n] = (struct pst_bit){
			.shard = c->shard,
			.seg = {.dev = m->windows.dev,
				.buf = place + (begin - c->begin),
				.off = begin,
				.row_len = end - begin},
		};
	m->runs[n - 1].seg.room = m->plan.chunk - c->skip - (c->end - c->begin);
	if (!pst_shard_is_open(m->load->w, c->shard))
		ret = pst_group_apart(m->g, m->load->w, open_file, c->shard);
	if (!ret)
		ret = pst_load_submit(m->load, m->q, m->runs, n, r, &r->id);
	r->reading = !ret;
	return ret;
}

/* Reads of the rounds before `end`, as far as they are not under way. */
static int read_ahead(struct move *m, uint64_t end)
{
	int ret = 0;

	for (; m->started < end && !ret; m->started++)
		ret = start_read(m, m->started);
	return ret;
}

static int await_read(struct move *m, uint64_t round)
{
	struct round *r = &m->rounds[round % m->window_count];
	struct penstock_done done;

	while (r->reading) {
		struct round *ended;
		int ret, n = penstock_wait(m->q, &done, 1, 1, LOOK_NS);

		if (n < 0)
			return pst_weights_retell(EIO, NULL, NULL, PST_NO_OFF);
		if (!n) {
			ret = pst_group_look(m->g);
			if (ret)
				return ret;
			continue;
		}
		ended = done.user;
		ended->reading = false;
		pst_load_done(m->load, &(struct pst_bit){.shard = ended->chunk.shard}, 1, &done);
		if (m->windows.host)
			m->load->report.dram_laid += ended->chunk.len;
	}
	return m->load->failed;
}

/* ---- copying ---- */

static int flush(struct move *m)
{
	int ret = m->copy_count ? penstock_copy(m->copies, m->copy_count) : 0;

	m->copy_count = 0;
	return ret ? pst_weights_fail(ret, penstock_errwhy(), NULL, NULL, PST_NO_OFF,
				      "out of a group's window: %s", penstock_errmsg())
		   : 0;
}

static int add_copy(struct move *m, const struct penstock_seg *seg, const char *src, uint64_t to,
		    uint64_t len, uint64_t rows)
{
	struct penstock_load_report *sum = &m->load->report;

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
		/* By a CPU into a slot, and out of it where the host is the end. */
		sum->cpu_copied += len * rows * (seg->dev == m->windows.host ? 2 : 1);
		sum->dram_laid += len * rows;
	}
	return m->copy_count == COPIES ? flush(m) : 0;
}

/* What of a piece lies in a chunk: whole rows at once, cut ones alone. */
static int copy_piece(struct move *m, const struct penstock_seg *seg, const struct pst_chunk *c,
		      const char *src)
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
			ret = add_copy(m, seg, src + (begin - c->begin),
				       i * seg->buf_pitch + (begin - at), end - begin, n);
			if (ret)
				return ret;
		}
		i += n;
	}
	return 0;
}

/* The first piece of a file that reaches behind `off`, or one behind them. */
static size_t first_piece(const struct move *m, unsigned shard, uint64_t off)
{
	size_t low = 0, high = m->bits->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct pst_bit *b = &m->bits->list[mid];

		if (b->shard < shard || (b->shard == shard && m->reach[mid] <= off))
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static int copy_round(struct move *m, uint64_t round)
{
	for (unsigned i = 0; i < m->size; i++) {
		unsigned rank = (m->rank + i) % m->size; /* not all from one at once */
		struct pst_chunk c;
		int ret;

		if (!pst_share_chunk(&m->plan, round, rank, &c))
			continue;
		for (size_t b = first_piece(m, c.shard, c.begin); b < m->bits->count; b++) {
			const struct pst_bit *bit = &m->bits->list[b];

			if (bit->shard != c.shard || bit->seg.off >= c.end)
				break;
			ret = copy_piece(m, &bit->seg, &c, place_of(m, round, rank, &c));
			if (ret)
				return ret;
		}
	}
	return flush(m);
}

/* ---- rounds ---- */

/* What this rank has read; the others look after theirs. */
static int unchanged(struct penstock_weights *w, unsigned which)
{
	int ret = 0;

	(void)which;
	for (unsigned i = 0; i < w->shard_count && !ret; i++)
		if (pst_shard_is_open(w, i))
			ret = pst_shard_same(&w->shards[i], w->sources[i].fd);
	return ret;
}

static int run(struct move *m, int ret)
{
	const uint64_t windows = m->window_count, ahead = m->plan.ahead;

	if (!ret)
		ret = read_ahead(m, least(windows, ahead));
	for (uint64_t t = 0; t < m->plan.round_count; t++) {
		if (!ret)
			ret = await_read(m, t);
		ret = pst_group_meet(m->g, ret);
		if (ret)
			return ret;
		/* All have copied what was in the window of round t - 1. */
		ret = read_ahead(m, least(t + windows, t + 1 + ahead));
		if (!ret)
			ret = copy_round(m, t);
	}
	if (!ret)
		ret = pst_group_apart(m->g, m->load->w, unchanged, 0);
	return pst_group_meet(m->g, ret);
}

static int prepare(struct move *m)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	const struct pst_bits *bits = m->bits;
	int ret;

	m->rounds = calloc(m->window_count, sizeof(*m->rounds));
	m->reach = calloc(bits->count ? bits->count : 1, sizeof(*m->reach));
	m->runs = calloc(m->plan.runs_max, sizeof(*m->runs));
	if (!m->rounds || !m->reach || !m->runs)
		return pst_weights_no_memory("a group's load");
	for (size_t i = 0; i < bits->count; i++) {
		const struct penstock_seg *seg = &bits->list[i].seg;
		uint64_t end =
			seg->off + (seg->rows ? seg->rows - 1 : 0) * seg->pitch + seg->row_len;
		bool same = i && bits->list[i - 1].shard == bits->list[i].shard;

		m->reach[i] = same && m->reach[i - 1] > end ? m->reach[i - 1] : end;
	}
	opts.requests_max = m->window_count;
	opts.segs_max = m->plan.runs_max;
	ret = penstock_queue_open(&opts, &m->q);
	return ret ? pst_weights_retell(ret, NULL, NULL, PST_NO_OFF) : 0;
}

/* Once a rank has failed or gone: reads end early, as far as they can; true: all have. What
 * the store has in its hands already it may keep for long, and nobody is to wait for that. */
static bool settle(struct move *m)
{
	struct penstock_done done[PST_GROUP_WINDOWS_MAX];
	unsigned left = 0;

	for (unsigned i = 0; i < m->window_count; i++) {
		if (!m->rounds[i].reading)
			continue;
		penstock_cancel(m->q, m->rounds[i].id); /* it may have ended by itself */
		left++;
	}
	return !left || penstock_wait(m->q, done, left, left, SETTLE_NS) == (int)left;
}

static int move_all(struct move *m, struct penstock_device *dev)
{
	struct penstock_queue *busy = NULL;
	int ret =
		pst_windows_open(&m->windows, m->g, m->load, dev, m->plan.chunk * m->window_count);

	if (!ret)
		ret = run(m, prepare(m));
	pst_windows_leave(&m->windows, m->g, !ret);
	if (ret && m->q && !settle(m))
		busy = m->q;
	else
		penstock_queue_close(m->q); /* nothing reads into the window from here on */
	pst_windows_close(&m->windows, m->load, busy);
	free(m->rounds);
	free(m->reach);
	free(m->runs);
	return ret;
}

int pst_group_move(struct penstock_group *g, struct pst_load *load, struct pst_bits *bits,
		   int status)
{
	struct penstock_device *host = NULL, *dev;
	struct move m = {.g = g, .load = load, .bits = bits};
	int ret;

	pst_group_heed(g, load);
	m.rank = pst_group_rank(g);
	m.size = pst_group_size(g);
	m.window_count = pst_group_how(g)->windows;
	if (!status)
		pst_bits_order(bits);
	if (!status && !bits->count) { /* this rank only reads */
		ret = penstock_device_open("host", NULL, &host);
		status = ret < 0 ? ret : 0;
	}
	dev = bits->count ? bits->list[0].seg.dev : host;
	ret = agree(&m, status);
	if (!ret && m.plan.round_count)
		ret = move_all(&m, dev);
	else if (!ret)
		ret = pst_group_meet(g, 0);
	pst_group_heed(g, NULL);
	penstock_device_close(host);
	pst_share_free(&m.plan);
	load->report.bytes = ret ? 0 : m.delivered;
	return ret;
}

/* ---- what callers see ---- */

int penstock_group_load(struct penstock_group *g, struct penstock_weights *w,
			struct penstock_device *const *devs, unsigned dev_count,
			const struct penstock_load_opts *opts, struct penstock_load_report *report,
			struct penstock_loaded **out)
{
	int ret = pst_group_check_owner(g);

	return ret ? ret : pst_weights_load(g, w, devs, dev_count, opts, report, out);
}

int penstock_group_load_into(struct penstock_group *g, struct penstock_weights *w,
			     const struct penstock_piece *pieces, uint64_t count,
			     const struct penstock_load_opts *opts,
			     struct penstock_load_report *report)
{
	int ret = pst_group_check_owner(g);

	return ret ? ret : pst_weights_load_into(g, w, pieces, count, opts, report);
}
