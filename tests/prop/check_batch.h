/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks a batch of completed requests: the bytes in memory and storage, the results and the
 * reports must match the requests. test_bytes.c includes this file after its request generator.
 * The checks read the storage with system calls. They use the library only for storages that
 * system calls cannot read.
 */

/* ---- what was requested ---- */

static unsigned device_of(const struct penstock_seg *seg)
{
	const char *mem = (const char *)seg->buf + seg->buf_off;

	for (unsigned d = 0; d < DEVICES; d++)
		if (mem >= env.arenas[d].mem && mem < env.arenas[d].mem + ARENA)
			return d;
	case_fail("the buffer of a segment is in no arena");
	return 0;
}

static uint64_t rows_of(const struct penstock_seg *seg)
{
	return seg->rows ? seg->rows : 1;
}

/* Returns how many bytes of one row of a segment are before storage offset `end`. */
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

static uint64_t before_end(const struct gen *gen, uint64_t end)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < gen->req.seg_count; i++)
		sum += seg_before(&gen->segs[i], end);
	return sum;
}

/* Returns the lowest storage offset before which `bytes` of the requested bytes lie. */
static uint64_t end_for(const struct gen *gen, uint64_t bytes)
{
	uint64_t low = 0, high = env.len; /* the search ends at the end of the storage */

	while (low < high) {
		uint64_t mid = low + (high - low) / 2;

		if (before_end(gen, mid) < bytes)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static size_t arena_offset(const struct penstock_seg *seg, unsigned d, uint64_t row)
{
	return (size_t)((char *)seg->buf + seg->buf_off - env.arenas[d].mem) + row * seg->buf_pitch;
}

/* ---- memory ---- */

/* Expects that all requested bytes before storage offset `end` have arrived in memory. The memory
 * for bytes after `end` may contain anything, because a direct read writes zeros up to the end of
 * its block. */
static void expect_read(const struct gen *gen, uint64_t end)
{
	for (unsigned i = 0; i < gen->req.seg_count; i++) {
		const struct penstock_seg *seg = &gen->segs[i];
		unsigned d = device_of(seg);

		for (uint64_t r = 0; r < rows_of(seg); r++) {
			size_t at = arena_offset(seg, d, r);
			uint64_t n = row_before(seg, r, end), rest = seg->row_len - n;

			memcpy(env.arenas[d].shadow + at, env.expected + seg->off + r * seg->pitch,
			       n);
			memset(compared[d] + at + n, 0, rest);
			if (r == rows_of(seg) - 1)
				memset(compared[d] + at + seg->row_len, 0, seg->room);
		}
	}
}

/* Checks the error with which a generated request ended. Fails the case unless the test caused this
 * error: by a fault, a cancel, a deadline, a required path or class, a range beyond the storage's
 * end, or a durable request without segments. */
static void check_error(const struct gen *gen)
{
	int64_t n = gen->result;
	bool asked = gen->req.path || gen->req.require > PENSTOCK_ANY;

	if (n == -EINVAL && !gen->req.seg_count && gen->req.flags & PENSTOCK_R_DURABLE)
		return; /* A durable request without segments is refused, because no device could
			 * make its sync. */
	if (n == -EOPNOTSUPP && asked)
		return;
	if ((n == -EIO || n == -EOPNOTSUPP) && gen->faulty)
		return;
	if ((n == -ECANCELED || n == -ETIME) && gen->stopped)
		return;
	if (n == -ENODATA && gen->req.flags & PENSTOCK_R_EXACT &&
	    (gen->faulty || before_end(gen, env.len) < before_end(gen, UINT64_MAX / 2)))
		return;
	case_fail("it failed: %lld %s", (long long)n,
		  gen->report.size ? gen->report.text : penstock_errmsg());
}

/* Returns by how many bytes the file may be longer than env.len. A file that was created may
 * have a padded tail until its commit. */
static uint64_t file_slack(void)
{
	return env.growing ? 4095 : 0;
}

static void check_read(struct gen *gen)
{
	uint64_t want = before_end(gen, env.len);
	uint64_t all = before_end(gen, UINT64_MAX / 2);

	if (gen->result < 0) {
		check_error(gen);
		/* If the request has no report, the library refused it and moved nothing. */
		if (gen->report.size)
			expect_read(gen, 0);
		return;
	}
	if ((!gen->faulty && (uint64_t)gen->result < want) ||
	    (uint64_t)gen->result > before_end(gen, env.len + file_slack()))
		case_fail("%lld bytes were read, the storage has %llu", (long long)gen->result,
			  (unsigned long long)want);
	if (gen->req.flags & PENSTOCK_R_EXACT && (uint64_t)gen->result != all)
		case_fail("%lld bytes and no error, exactly %llu were requested",
			  (long long)gen->result, (unsigned long long)all);
	expect_read(gen, end_for(gen, (uint64_t)gen->result));
}

/* ---- storage ---- */

/* Applies a write to the expected bytes in `to`. Returns the storage offset after the last byte of
 * the write. */
static uint64_t apply_write(const struct gen *gen, unsigned char *to)
{
	uint64_t end = 0;

	for (unsigned i = 0; i < gen->req.seg_count; i++) {
		const struct penstock_seg *seg = &gen->segs[i];
		unsigned d = device_of(seg);

		for (uint64_t r = 0; r < rows_of(seg) && seg->row_len; r++)
			memcpy(to + seg->off + r * seg->pitch,
			       env.arenas[d].shadow + arena_offset(seg, d, r), seg->row_len);
		if (seg->row_len && end_of(seg) > end)
			end = end_of(seg);
	}
	return end;
}

/* Checks that each byte of a failed write has its old or its new value. */
static void check_half_written(const struct gen *gen)
{
	for (unsigned i = 0; i < gen->req.seg_count; i++) {
		const struct penstock_seg *seg = &gen->segs[i];
		unsigned d = device_of(seg);

		for (uint64_t r = 0; r < rows_of(seg) && seg->row_len; r++) {
			uint64_t off = seg->off + r * seg->pitch;
			const unsigned char *is = env.back;
			const unsigned char *new = env.arenas[d].shadow + arena_offset(seg, d, r);
			uint64_t n = row_before(seg, r, env.len);

			if (env.fd < 0)
				n = n ? (uint64_t)penstock_read(env.st, env.arenas[0].dev, env.back,
								n, off)
				      : 0;
			else
				assert_int_equal(pread(env.fd, env.back, n, (off_t)off), n);
			for (uint64_t b = 0; b < n; b++)
				if (is[b] != env.expected[off + b] && is[b] != new[b])
					case_fail("byte %llu is %02x, neither %02x nor %02x",
						  (unsigned long long)(off + b), is[b],
						  env.expected[off + b], new[b]);
			memcpy(env.expected + off, is, n);
		}
	}
}

static void check_writes(void)
{
	uint64_t len = env.len, len_max = 0;
	struct stat stat;

	for (unsigned i = 0; i < gen_count; i++) {
		const struct gen *gen = &gens[i];
		uint64_t all = before_end(gen, UINT64_MAX / 2), end;

		if (gen->result < 0)
			check_error(gen);
		else if ((uint64_t)gen->result != all)
			case_fail("%lld of %llu bytes were written", (long long)gen->result,
				  (unsigned long long)all);
		if (gen->result >= 0) {
			end = apply_write(gen, env.expected);
			len = end > len ? end : len;
		} else if (gen->report.size) {
			end = apply_write(gen, scratch);
			len_max = end > len_max ? end : len_max;
		}
	}
	if (len_max > len && env.fd >= 0) {
		assert_int_equal(fstat(env.fd, &stat), 0);
		if ((uint64_t)stat.st_size > len_max)
			case_fail("the file has %llu bytes, at most %llu were written",
				  (unsigned long long)stat.st_size, (unsigned long long)len_max);
		len = (uint64_t)stat.st_size > len ? (uint64_t)stat.st_size : len;
	}
	env.len = len;
	for (unsigned i = 0; i < gen_count; i++)
		if (gens[i].result < 0 && gens[i].report.size)
			check_half_written(&gens[i]);
	check_storage(0, env.len);
}

/* ---- reports ---- */

static uint64_t path_bytes(const struct penstock_report *r, const char *name)
{
	for (unsigned i = 0; i < r->path_count; i++)
		if (!strcmp(r->paths[i].name, name))
			return r->paths[i].bytes;
	return 0;
}

/* Returns how many of the requested bytes are in the storage. A byte that is requested twice
 * counts once. */
static uint64_t bytes_once(const struct gen *gen)
{
	uint64_t sum = 0, from = UINT64_MAX, to = 0;

	for (unsigned i = 0; i < gen->req.seg_count; i++) {
		const struct penstock_seg *seg = &gen->segs[i];
		uint64_t end = end_of(seg) < env.len ? end_of(seg) : env.len;

		if (!seg->row_len || seg->off >= end)
			continue;
		from = seg->off < from ? seg->off : from;
		to = end > to ? end : to;
	}
	if (to <= from)
		return 0;
	memset(scratch, 0, to - from);
	for (unsigned i = 0; i < gen->req.seg_count; i++)
		for (uint64_t r = 0; r < rows_of(&gen->segs[i]); r++)
			memset(scratch + gen->segs[i].off + r * gen->segs[i].pitch - from, 1,
			       row_before(&gen->segs[i], r, env.len));
	for (uint64_t i = 0; i < to - from; i++)
		sum += scratch[i];
	return sum;
}

static void check_sums(const struct gen *gen)
{
	const struct penstock_report *r = &gen->report;
	const char *name = gen->req.path ? strrchr(gen->req.path, ':') : NULL;
	uint64_t sum = 0, most = 0;

	name = name ? name + 1 : gen->faulty ? NULL : gen->req.path;
	for (unsigned i = 0; i < r->path_count; i++) {
		const struct penstock_report_path *row = &r->paths[i];

		sum += row->bytes;
		most = row->bytes > most ? row->bytes : most;
		path_names[i] = row->name;
		bytes_by_path[i] += row->bytes;
		if (row->bytes && name && strncmp(name, row->name, strlen(row->name)))
			case_fail("%s carried bytes, not %s", row->name, name);
		if (!row->text || (!row->bytes && !row->why && before_end(gen, UINT64_MAX / 2)))
			case_fail("no reason why %s carried nothing", row->name);
	}
	if (sum != r->bytes || r->result != gen->result)
		case_fail("paths carried %llu of %llu bytes, result %lld", (unsigned long long)sum,
			  (unsigned long long)r->bytes, (long long)r->result);
	if (most != path_bytes(r, r->path) || r->end_ns < r->start_ns)
		case_fail("the report names %s as the path of most bytes", r->path);
	if (gen->result < 0 ? !r->text[0] : r->text[0] != '\0')
		case_fail("a result of %lld and the text '%s'", (long long)gen->result, r->text);
	if (gen->req.require && r->cpu_copied)
		case_fail("a CPU copied %llu bytes", (unsigned long long)r->cpu_copied);
	if (gen->req.require == PENSTOCK_DIRECT && r->dram_laid)
		case_fail("%llu bytes were written to host memory",
			  (unsigned long long)r->dram_laid);
}

/* Checks the number of bytes that the storage moved. It must count each requested byte once. For
 * reads, it may also count bytes in the gaps between requested bytes. */
static void check_moved(const struct gen *gen)
{
	uint64_t unique = bytes_once(gen), most = 0;

	for (unsigned i = 0; i < gen->req.seg_count; i++) {
		const struct penstock_seg *seg = &gen->segs[i];
		uint64_t there = env.len + file_slack();
		uint64_t end = end_of(seg) < there ? end_of(seg) : there;

		most += seg->row_len && end > seg->off ? end - seg->off : 0;
	}
	if (gen->req.op == PENSTOCK_WRITE)
		most = unique;
	if (gen->report.bytes < unique || gen->report.bytes > most)
		case_fail("%llu bytes were moved, not %llu to %llu",
			  (unsigned long long)gen->report.bytes, (unsigned long long)unique,
			  (unsigned long long)most);
}

/* Checks how many bytes the CPU copied, and how many bytes were written to host memory on the way.
 * Each of these two numbers depends on the paths that carried the bytes. */
static void check_costs(const struct gen *gen)
{
	const struct penstock_report *r = &gen->report;
	uint64_t bounce = path_bytes(r, "bounce"), staged = path_bytes(r, "staged");
	uint64_t mapped = path_bytes(r, "mapped"), odirect = path_bytes(r, "odirect");
	uint64_t cpu = bounce + (env.listed ? 0 : staged + odirect), host = 0;
	uint64_t cached = env.kind == MEM ? 0 : bounce, low, high;
	/* A FAST read may copy in steps that stay in the CPU's L2 cache (L2 bounce). The CPU then
	 * copies each byte twice. */
	uint64_t twice =
		gen->req.op == PENSTOCK_READ && gen->req.effort == PENSTOCK_FAST ? cached : 0;
	uint64_t most;

	for (unsigned i = 0; i < gen->req.seg_count; i++)
		if (device_of(&gen->segs[i]) == 0)
			host += seg_before(&gen->segs[i], env.len + file_slack());
	/* If the file system and its drives are not on the library's allow-list for O_DIRECT, it is
	 * unknown whether the CPU copied the bytes into the page cache. So the report may count one
	 * more copy of each byte that the path "mapped" moved. */
	most = cpu + twice + host + (env.listed ? 0 : mapped);
	low = staged + (host ? 0 : bounce);
	high = staged + bounce + cached + mapped;
	if (gen->req.op == PENSTOCK_WRITE)
		low += cached;
	if (r->cpu_copied < cpu || (!r->retries && r->cpu_copied > most))
		case_fail("CPUs copied %llu bytes, not %llu to %llu",
			  (unsigned long long)r->cpu_copied, (unsigned long long)cpu,
			  (unsigned long long)most);
	if (gen->req.seg_count == 1 && rows_of(&gen->segs[0]) == 1 && !r->retries &&
	    !file_slack() && !twice && (env.listed || !mapped) &&
	    r->cpu_copied != cpu + (host ? staged : 0))
		case_fail("CPUs copied %llu bytes of a single row, not %llu",
			  (unsigned long long)r->cpu_copied,
			  (unsigned long long)(cpu + (host ? staged : 0)));
	if (r->dram_laid < low || (!r->retries && r->dram_laid > high))
		case_fail("%llu bytes were written to host memory, not %llu to %llu",
			  (unsigned long long)r->dram_laid, (unsigned long long)low,
			  (unsigned long long)high);
}

static void check_report(const struct gen *gen)
{
	requests++;
	refused += !gen->report.size;
	failed += gen->report.size && gen->result < 0;
	if (!gen->report.size)
		return;
	check_sums(gen);
	if (gen->result < 0 || gen->faulty)
		return;
	check_moved(gen);
	check_costs(gen);
}

/* ---- one batch, one environment, all of them ---- */

static void check_one_batch(void)
{
	size_t text = env.text_len;
	bool write;

	make_batch();
	write = gens[0].req.op == PENSTOCK_WRITE;
	fill_arenas();
	for (unsigned d = 0; d < DEVICES; d++)
		memset(compared[d], 1, env.arenas[d].used);
	randomize_cache();
	/* A write beyond the end of the file leaves zeros between the old end and the write. */
	if (write)
		memset(env.expected + env.len, 0, BYTES_MAX - env.len);
	run_batch();
	for (unsigned i = 0; i < gen_count && !write; i++)
		check_read(&gens[i]);
	check_arenas(compared);
	if (write)
		check_writes();
	for (unsigned i = 0; i < gen_count; i++)
		check_report(&gens[i]);
	env.text_len = text;
	env.text[text] = '\0';
}

static uint64_t run_ns(void)
{
	const char *text = getenv("PENSTOCK_PROP_SECONDS");

	return (text ? strtoull(text, NULL, 10) : 3) * 1000000000u;
}

static void random_transfers(void **state)
{
	uint64_t seed = test_seed(20261121), start = test_now_ns();
	unsigned long environments = 0;

	(void)state;
	do {
		environment_open(seed + environments++);
		for (unsigned i = 0; i < BATCHES; i++)
			check_one_batch();
		environment_close();
	} while (test_now_ns() - start < run_ns());
	printf("# %lu environments, %lu requests, %lu refused, %lu failed\n", environments,
	       requests, refused, failed);
	for (unsigned i = 0; i < PENSTOCK_PATHS_MAX && path_names[i]; i++)
		printf("# %s carried %lu bytes\n", path_names[i], bytes_by_path[i]);
}
