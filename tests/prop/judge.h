/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold after a batch of requests, from what was asked and what the library
 * said of it: bytes in memory and storage, results, reports. Included by test_bytes.c
 * behind its requests. It looks at the storage by itself, never through the library.
 */

/* ---- what was asked ---- */

static unsigned device_of(const struct penstock_seg *seg)
{
	const char *mem = (const char *)seg->buf + seg->buf_off;

	for (unsigned d = 0; d < DEVICES; d++)
		if (mem >= w.arenas[d].mem && mem < w.arenas[d].mem + ARENA)
			return d;
	wrong("a segment in no arena");
	return 0;
}

static uint64_t rows_of(const struct penstock_seg *seg)
{
	return seg->rows ? seg->rows : 1;
}

/* Bytes of a segment's row that lie before storage byte `end`. */
static uint64_t row_before(const struct penstock_seg *seg, uint64_t row, uint64_t end)
{
	uint64_t off = seg->off + row * seg->pitch;

	return end <= off ? 0 : end - off < seg->row_len ? end - off : seg->row_len;
}

static uint64_t seg_before(const struct penstock_seg *seg, uint64_t end)
{
	uint64_t sum = 0;

	for (uint64_t r = 0; r < rows_of(seg); r++)
		sum += row_before(seg, r, end);
	return sum;
}

static uint64_t before_end(const struct ask *ask, uint64_t end)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < ask->req.seg_count; i++)
		sum += seg_before(&ask->segs[i], end);
	return sum;
}

/* The first storage byte such that so many asked for lie before it. */
static uint64_t end_for(const struct ask *ask, uint64_t bytes)
{
	uint64_t low = 0, high = w.len; /* what is behind is nobody's */

	while (low < high) {
		uint64_t mid = low + (high - low) / 2;

		if (before_end(ask, mid) < bytes)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static size_t place_of(const struct penstock_seg *seg, unsigned d, uint64_t row)
{
	return (size_t)((char *)seg->buf + seg->buf_off - w.arenas[d].mem) + row * seg->buf_pitch;
}

/* ---- memory ---- */

/* Everything asked for that lies before `end` is there. What is asked for behind it may
 * be anything: a direct read lays zeros down to the end of its block. */
static void expect_read(const struct ask *ask, uint64_t end)
{
	for (unsigned i = 0; i < ask->req.seg_count; i++) {
		const struct penstock_seg *seg = &ask->segs[i];
		unsigned d = device_of(seg);

		for (uint64_t r = 0; r < rows_of(seg); r++) {
			size_t at = place_of(seg, d, r);
			uint64_t n = row_before(seg, r, end), rest = seg->row_len - n;

			memcpy(w.arenas[d].shadow + at, w.truth + seg->off + r * seg->pitch, n);
			memset(care[d] + at + n, 0, rest);
			if (r == rows_of(seg) - 1)
				memset(care[d] + at + seg->row_len, 0, seg->room);
		}
	}
}

/* May it have ended so? */
static void check_error(const struct ask *ask)
{
	int64_t n = ask->result;
	bool asked = ask->req.path || ask->req.require > PENSTOCK_ANY;

	if (n == -EINVAL && !ask->req.seg_count && ask->req.flags & PENSTOCK_R_DURABLE)
		return; /* there is no device to do it */
	if (n == -EOPNOTSUPP && asked)
		return;
	if ((n == -EIO || n == -EOPNOTSUPP) && ask->faulty)
		return;
	if ((n == -ECANCELED || n == -ETIME) && ask->stopped)
		return;
	if (n == -ENODATA && ask->req.flags & PENSTOCK_R_EXACT &&
	    (ask->faulty || before_end(ask, w.len) < before_end(ask, UINT64_MAX / 2)))
		return;
	wrong("it failed: %lld %s", (long long)n,
	      ask->report.size ? ask->report.text : penstock_errmsg());
}

/* An object that is ours until commit may have a padded tail until then. */
static uint64_t slack(void)
{
	return w.growing ? 4095 : 0;
}

static void judge_read(struct ask *ask)
{
	uint64_t want = before_end(ask, w.len);
	uint64_t all = before_end(ask, UINT64_MAX / 2);

	if (ask->result < 0) {
		check_error(ask);
		if (ask->report.size) /* else it was refused, and nothing moved */
			expect_read(ask, 0);
		return;
	}
	if ((!ask->faulty && (uint64_t)ask->result < want) ||
	    (uint64_t)ask->result > before_end(ask, w.len + slack()))
		wrong("%lld bytes were read, %llu are there", (long long)ask->result,
		      (unsigned long long)want);
	if (ask->req.flags & PENSTOCK_R_EXACT && (uint64_t)ask->result != all)
		wrong("%lld bytes and no error, exactly %llu were asked for",
		      (long long)ask->result, (unsigned long long)all);
	expect_read(ask, end_for(ask, (uint64_t)ask->result));
}

/* ---- storage ---- */

/* What it writes becomes the truth; how far it reaches. */
static uint64_t apply_write(const struct ask *ask, unsigned char *to)
{
	uint64_t end = 0;

	for (unsigned i = 0; i < ask->req.seg_count; i++) {
		const struct penstock_seg *seg = &ask->segs[i];
		unsigned d = device_of(seg);

		for (uint64_t r = 0; r < rows_of(seg) && seg->row_len; r++)
			memcpy(to + seg->off + r * seg->pitch,
			       w.arenas[d].shadow + place_of(seg, d, r), seg->row_len);
		if (seg->row_len && end_of(seg) > end)
			end = end_of(seg);
	}
	return end;
}

/* Each byte of a write that failed is as before or as it should have become. */
static void check_half_written(const struct ask *ask)
{
	for (unsigned i = 0; i < ask->req.seg_count; i++) {
		const struct penstock_seg *seg = &ask->segs[i];
		unsigned d = device_of(seg);

		for (uint64_t r = 0; r < rows_of(seg) && seg->row_len; r++) {
			uint64_t off = seg->off + r * seg->pitch;
			const unsigned char *is = w.back;
			const unsigned char *new = w.arenas[d].shadow + place_of(seg, d, r);
			uint64_t n = row_before(seg, r, w.len);

			if (w.fd < 0)
				n = n ? (uint64_t)penstock_read(w.st, w.arenas[0].dev, w.back, n,
								off)
				      : 0;
			else
				assert_int_equal(pread(w.fd, w.back, n, (off_t)off), n);
			for (uint64_t b = 0; b < n; b++)
				if (is[b] != w.truth[off + b] && is[b] != new[b])
					wrong("byte %llu is %02x, neither %02x nor %02x",
					      (unsigned long long)(off + b), is[b],
					      w.truth[off + b], new[b]);
			memcpy(w.truth + off, is, n);
		}
	}
}

static void judge_writes(void)
{
	uint64_t len = w.len, may = 0;
	struct stat stat;

	for (unsigned i = 0; i < ask_count; i++) {
		const struct ask *ask = &asks[i];
		uint64_t all = before_end(ask, UINT64_MAX / 2), end;

		if (ask->result < 0)
			check_error(ask);
		else if ((uint64_t)ask->result != all)
			wrong("%lld of %llu bytes were written", (long long)ask->result,
			      (unsigned long long)all);
		if (ask->result >= 0) {
			end = apply_write(ask, w.truth);
			len = end > len ? end : len;
		} else if (ask->report.size) {
			end = apply_write(ask, before);
			may = end > may ? end : may;
		}
	}
	if (may > len && w.fd >= 0) {
		assert_int_equal(fstat(w.fd, &stat), 0);
		if ((uint64_t)stat.st_size > may)
			wrong("the file has %llu bytes, at most %llu were written",
			      (unsigned long long)stat.st_size, (unsigned long long)may);
		len = (uint64_t)stat.st_size > len ? (uint64_t)stat.st_size : len;
	}
	w.len = len;
	for (unsigned i = 0; i < ask_count; i++)
		if (asks[i].result < 0 && asks[i].report.size)
			check_half_written(&asks[i]);
	check_storage(0, w.len);
}

/* ---- reports ---- */

static uint64_t path_bytes(const struct penstock_report *r, const char *name)
{
	for (unsigned i = 0; i < r->path_count; i++)
		if (!strcmp(r->paths[i].name, name))
			return r->paths[i].bytes;
	return 0;
}

/* Storage bytes that are asked for and there, each once. */
static uint64_t bytes_once(const struct ask *ask)
{
	uint64_t sum = 0, from = UINT64_MAX, to = 0;

	for (unsigned i = 0; i < ask->req.seg_count; i++) {
		const struct penstock_seg *seg = &ask->segs[i];
		uint64_t end = end_of(seg) < w.len ? end_of(seg) : w.len;

		if (!seg->row_len || seg->off >= end)
			continue;
		from = seg->off < from ? seg->off : from;
		to = end > to ? end : to;
	}
	if (to <= from)
		return 0;
	memset(before, 0, to - from);
	for (unsigned i = 0; i < ask->req.seg_count; i++)
		for (uint64_t r = 0; r < rows_of(&ask->segs[i]); r++)
			memset(before + ask->segs[i].off + r * ask->segs[i].pitch - from, 1,
			       row_before(&ask->segs[i], r, w.len));
	for (uint64_t i = 0; i < to - from; i++)
		sum += before[i];
	return sum;
}

static void check_sums(const struct ask *ask)
{
	const struct penstock_report *r = &ask->report;
	const char *name = ask->req.path ? strrchr(ask->req.path, ':') : NULL;
	uint64_t sum = 0, most = 0;

	name = name ? name + 1 : ask->faulty ? NULL : ask->req.path;
	for (unsigned i = 0; i < r->path_count; i++) {
		const struct penstock_report_path *row = &r->paths[i];

		sum += row->bytes;
		most = row->bytes > most ? row->bytes : most;
		path_names[i] = row->name;
		moved_by[i] += row->bytes;
		if (row->bytes && name && strncmp(name, row->name, strlen(row->name)))
			wrong("%s carried bytes, not %s", row->name, name);
		if (!row->text || (!row->bytes && !row->why && before_end(ask, UINT64_MAX / 2)))
			wrong("no reason why %s carried nothing", row->name);
	}
	if (sum != r->bytes || r->result != ask->result)
		wrong("paths carried %llu of %llu bytes, result %lld", (unsigned long long)sum,
		      (unsigned long long)r->bytes, (long long)r->result);
	if (most != path_bytes(r, r->path) || r->end_ns < r->start_ns)
		wrong("it says that %s carried most", r->path);
	if (ask->result < 0 ? !r->text[0] : r->text[0] != '\0')
		wrong("a result of %lld and the text '%s'", (long long)ask->result, r->text);
	if (ask->req.require && r->cpu_copied)
		wrong("a CPU copied %llu bytes", (unsigned long long)r->cpu_copied);
	if (ask->req.require == PENSTOCK_DIRECT && r->dram_laid)
		wrong("%llu bytes lay in host memory", (unsigned long long)r->dram_laid);
}

/* How many bytes the storage moved, each once, and those in gaps that were read along. */
static void check_moved(const struct ask *ask)
{
	uint64_t once = bytes_once(ask), most = 0;

	for (unsigned i = 0; i < ask->req.seg_count; i++) {
		const struct penstock_seg *seg = &ask->segs[i];
		uint64_t there = w.len + slack();
		uint64_t end = end_of(seg) < there ? end_of(seg) : there;

		most += seg->row_len && end > seg->off ? end - seg->off : 0;
	}
	if (ask->req.op == PENSTOCK_WRITE)
		most = once;
	if (ask->report.bytes < once || ask->report.bytes > most)
		wrong("%llu bytes were moved, not %llu to %llu",
		      (unsigned long long)ask->report.bytes, (unsigned long long)once,
		      (unsigned long long)most);
}

/* CPU copies and bytes laid down, by the paths that carried them. */
static void check_costs(const struct ask *ask)
{
	const struct penstock_report *r = &ask->report;
	uint64_t bounce = path_bytes(r, "bounce"), staged = path_bytes(r, "staged");
	uint64_t mapped = path_bytes(r, "mapped"), odirect = path_bytes(r, "odirect");
	uint64_t cpu = bounce + (w.listed ? 0 : staged + odirect), host = 0;
	uint64_t cached = w.kind == MEM ? 0 : bounce, low, high;
	/* Some that are to be fast go past a processor's cache, by two copies. */
	uint64_t twice =
		ask->req.op == PENSTOCK_READ && ask->req.effort == PENSTOCK_FAST ? cached : 0;
	uint64_t most;

	for (unsigned i = 0; i < ask->req.seg_count; i++)
		if (device_of(&ask->segs[i]) == 0)
			host += seg_before(&ask->segs[i], w.len + slack());
	most = cpu + twice + host + (w.listed ? 0 : mapped); /* nobody knows what fills the cache */
	low = staged + (host ? 0 : bounce);
	high = staged + bounce + cached + mapped;
	if (ask->req.op == PENSTOCK_WRITE)
		low += cached;
	if (r->cpu_copied < cpu || (!r->retries && r->cpu_copied > most))
		wrong("CPUs copied %llu bytes, not %llu to %llu", (unsigned long long)r->cpu_copied,
		      (unsigned long long)cpu, (unsigned long long)most);
	if (ask->req.seg_count == 1 && rows_of(&ask->segs[0]) == 1 && !r->retries && !slack() &&
	    !twice && (w.listed || !mapped) && r->cpu_copied != cpu + (host ? staged : 0))
		wrong("CPUs copied %llu bytes to their one place, not %llu",
		      (unsigned long long)r->cpu_copied,
		      (unsigned long long)(cpu + (host ? staged : 0)));
	if (r->dram_laid < low || (!r->retries && r->dram_laid > high))
		wrong("%llu bytes were laid down, not %llu to %llu",
		      (unsigned long long)r->dram_laid, (unsigned long long)low,
		      (unsigned long long)high);
}

static void judge_report(const struct ask *ask)
{
	requests++;
	refused += !ask->report.size;
	failed += ask->report.size && ask->result < 0;
	if (!ask->report.size)
		return;
	check_sums(ask);
	if (ask->result < 0 || ask->faulty)
		return;
	check_moved(ask);
	check_costs(ask);
}

/* ---- one batch, one world, all of them ---- */

static void batch(void)
{
	size_t text = w.text_len;
	bool write;

	ask_all();
	write = asks[0].req.op == PENSTOCK_WRITE;
	fill_arenas();
	for (unsigned d = 0; d < DEVICES; d++)
		memset(care[d], 1, w.arenas[d].used);
	disturb_cache();
	if (write) /* what lies behind the end is zero when something is written behind it */
		memset(w.truth + w.len, 0, BYTES_MAX - w.len);
	do_all();
	for (unsigned i = 0; i < ask_count && !write; i++)
		judge_read(&asks[i]);
	check_arenas(care);
	if (write)
		judge_writes();
	for (unsigned i = 0; i < ask_count; i++)
		judge_report(&asks[i]);
	w.text_len = text;
	w.text[text] = '\0';
}

static uint64_t run_ns(void)
{
	const char *text = getenv("PENSTOCK_PROP_SECONDS");

	return (text ? strtoull(text, NULL, 10) : 3) * 1000000000u;
}

static void any_transfers(void **state)
{
	uint64_t seed = test_seed(20261121), start = now_ns();
	unsigned long worlds = 0;

	(void)state;
	do {
		open_world(seed + worlds++);
		for (unsigned i = 0; i < BATCHES; i++)
			batch();
		close_world();
	} while (now_ns() - start < run_ns());
	printf("# %lu worlds, %lu requests, %lu refused, %lu failed\n", worlds, requests, refused,
	       failed);
	for (unsigned i = 0; i < PENSTOCK_PATHS_MAX && path_names[i]; i++)
		printf("# %s carried %lu bytes\n", path_names[i], moved_by[i]);
}
