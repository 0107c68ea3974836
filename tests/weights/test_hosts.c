/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests several hosts that load the same model from one store, which is a file system that the
 * hosts share. Two groups on this machine play two hosts. The tests check which bytes each host
 * reads, and where in the file it starts. They check how many requests a store gets at the same
 * time. They also check properties of the read plan for random models.
 */
#include "group.h"

#include "group/plan.h"

/* ---- requests in flight, counted at penstock_submit and penstock_wait ---- */

struct seen {
	int now, most;
	/* Offset of each rank's first request, and how many ranks have made one. */
	uint64_t first_off[RANKS_MAX], first_count;
};
static struct seen *seen; /* Observations of the ranks of this host, in memory that they share. */

int __real_penstock_submit(struct penstock_queue *q, const struct penstock_req *reqs,
			   unsigned count, uint64_t *ids);
int __wrap_penstock_submit(struct penstock_queue *q, const struct penstock_req *reqs,
			   unsigned count, uint64_t *ids);
int __real_penstock_wait(struct penstock_queue *q, struct penstock_done *done, unsigned min,
			 unsigned max, int64_t timeout_ms);
int __wrap_penstock_wait(struct penstock_queue *q, struct penstock_done *done, unsigned min,
			 unsigned max, int64_t timeout_ms);

int __wrap_penstock_submit(struct penstock_queue *q, const struct penstock_req *reqs,
			   unsigned count, uint64_t *ids)
{
	static bool submitted;
	int now = __atomic_add_fetch(&seen->now, (int)count, __ATOMIC_SEQ_CST);
	int most = __atomic_load_n(&seen->most, __ATOMIC_SEQ_CST);

	while (now > most && !__atomic_compare_exchange_n(&seen->most, &most, now, false,
							  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	if (!submitted)
		seen->first_off[__atomic_fetch_add(&seen->first_count, 1, __ATOMIC_SEQ_CST)] =
			reqs[0].segs[0].off;
	submitted = true;
	return __real_penstock_submit(q, reqs, count, ids);
}

int __wrap_penstock_wait(struct penstock_queue *q, struct penstock_done *done, unsigned min,
			 unsigned max, int64_t timeout_ms)
{
	int n = __real_penstock_wait(q, done, min, max, timeout_ms);

	__atomic_sub_fetch(&seen->now, n > 0 ? n : 0, __ATOMIC_SEQ_CST);
	return n;
}

/* ---- two hosts ---- */

#define HOSTS 2u
static struct job jobs[HOSTS];

static void run_two_hosts(unsigned ranks, unsigned reads_max)
{
	static const char *const names[HOSTS] = {"host-0", "host-1"};
	struct outcome *areas = outcomes;
	struct seen *all = mmap(NULL, HOSTS * sizeof(*all), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const char *path = model_path();
	uint64_t length = file_length(path);

	assert_ptr_not_equal(all, MAP_FAILED);
	for (unsigned h = 0; h < HOSTS; h++) {
		jobs[h] = (struct job){.name = names[h],
				       .path = path,
				       .ranks = ranks,
				       .gpus = ranks,
				       .opts = {.window = 64 << 10,
						.windows = 3,
						.host = h,
						.hosts = 2,
						.reads_max = reads_max}};
		outcomes = areas + h * RANKS_MAX;
		seen = &all[h];
		job_start(&jobs[h]);
	}
	for (unsigned h = 0; h < HOSTS; h++) {
		uint64_t lowest = UINT64_MAX;

		outcomes = areas + h * RANKS_MAX;
		job_wait(&jobs[h]);
		check_job_loaded(&jobs[h]);
		assert_int_equal(all[h].now, 0);
		if (reads_max)
			assert_true(all[h].most >= 1 && all[h].most <= (int)reads_max);
		else
			assert_true(all[h].most >= 3);
		for (unsigned i = 0; i < all[h].first_count; i++)
			lowest = all[h].first_off[i] < lowest ? all[h].first_off[i] : lowest;
		/* The second host starts in the middle of the file. */
		assert_int_equal(lowest > length / 3, h);
	}
	outcomes = areas;
	munmap(all, HOSTS * sizeof(*all));
}

static void test_two_hosts(void **state)
{
	(void)state;
	run_two_hosts(2, 0);
	run_two_hosts(4, 0);
}

/* Returns the number of bytes that a host needs if it runs the first half of the ranks: half of
 * each tensor that is split by rows, and all of each other tensor. */
static uint64_t half_host_bytes(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < COUNT(model); i++) {
		bool rows = strstr(model[i].name, "embed") || strstr(model[i].name, "up_proj") ||
			    strstr(model[i].name, "lm_head");

		sum += made_bytes(&model[i]) / (rows ? 2 : 1);
	}
	return sum;
}

/* Two hosts share the ranks of one tensor parallelism. Each host reads only what its ranks need. */
static void test_hosts_of_one_tp(void **state)
{
	struct outcome *areas = outcomes;
	const char *path = model_path();

	(void)state;
	for (unsigned h = 0; h < HOSTS; h++) {
		uint64_t read = 0;

		jobs[h] = (struct job){
			.name = "half",
			.path = path,
			.ranks = 2,
			.gpus = 2,
			.shard = true,
			.shard_first = 2 * h,
			.shard_ranks = 4,
			.opts = {.window = 256 << 10, .windows = 2, .host = h, .hosts = 2}};
		seen = calloc(1, sizeof(*seen));
		job_run(&jobs[h]);
		check_job_loaded(&jobs[h]);
		for (unsigned i = 0; i < 2; i++)
			read += outcomes[i].read;
		printf("# host %u has read %llu bytes of %llu, its ranks need %llu\n", h,
		       (unsigned long long)read, (unsigned long long)file_length(path),
		       (unsigned long long)half_host_bytes());
		assert_true(read * 100 <= half_host_bytes() * 105);
		free(seen);
	}
	outcomes = areas;
}

/* All ranks load the same few tensors in the middle of the file. The group must read these tensors
 * and little more. */
static void test_few_tensors(void **state)
{
	struct job job = {.name = "middle",
			  .path = model_path(),
			  .ranks = 2,
			  .gpus = 2,
			  .first = 2,
			  .count = 1,
			  .opts = {.window = 256 << 10, .windows = 2}};
	uint64_t read = 0;

	(void)state;
	seen = calloc(1, sizeof(*seen));
	job_run(&job);
	check_job_loaded(&job);
	for (unsigned i = 0; i < job.ranks; i++)
		read += outcomes[i].read;
	assert_true(read * 100 <= made_bytes(&model[2]) * 105);
	free(seen);
}

/* Loads a model as one of two ranks. The model is so large that the need bitmap (which parts of the
 * file a rank needs) does not fit into one message between the ranks. Each rank loads one small
 * tensor. Holes of 40 GiB surround these tensors. */
static int load_one_end(unsigned rank, const char *path, struct outcome *o)
{
	struct penstock_group_opts go = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_load_report r = {.size = sizeof(r)};
	struct penstock_piece p = {.size = sizeof(p), .tensor = 1 + 2 * rank};
	unsigned char bytes[5000];
	struct penstock_weights *m;
	struct penstock_group *g;
	int ret;

	alarm(ALARM_S);
	go.dir = group_dir();
	p.ptr = bytes;
	p.room = sizeof(bytes);
	if (penstock_device_open("host", NULL, &p.dev) < 0 ||
	    penstock_weights_open(path, NULL, &m) || penstock_group_open("large", rank, 2, &go, &g))
		return -1;
	ret = penstock_group_load_into(g, m, &p, 1, NULL, &r);
	o->read = r.read;
	for (unsigned i = 0; i < sizeof(bytes) && !ret; i++)
		ret = bytes[i] != made_byte(rank ? "second" : "first", i);
	if (ret)
		fprintf(stderr, "rank %u: %d, %s\n", rank, ret, penstock_errmsg());
	penstock_group_close(g);
	penstock_weights_close(m);
	return ret;
}

static void test_large_model(void **state)
{
	const char *path = made_path("large.safetensors"), *names[] = {"first", "second"};
	const uint64_t hole = 40ull << 30;
	unsigned char bytes[5000];
	char text[512] = {0};
	uint64_t at = 0;
	int fd, status, n = 8;
	pid_t pids[2];

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		uint64_t len = i % 2 ? sizeof(bytes) : hole;

		n += snprintf(text + n, sizeof(text) - (size_t)n,
			      "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[%llu],"
			      "\"data_offsets\":[%llu,%llu]}",
			      i ? "," : "{",
			      i % 2 ? names[i / 2]
			      : i   ? "b"
				    : "a",
			      (unsigned long long)len, (unsigned long long)at,
			      (unsigned long long)(at + len));
		at += len;
	}
	text[n++] = '}';
	text[0] = (char)(n - 8);
	text[1] = (char)((n - 8) >> 8);
	made_write(path, text, (size_t)n);
	fd = open(path, O_WRONLY);
	assert_true(fd >= 0);
	for (unsigned t = 0; t < 2; t++) {
		for (unsigned i = 0; i < sizeof(bytes); i++)
			bytes[i] = made_byte(names[t], i);
		assert_int_equal(pwrite(fd, bytes, sizeof(bytes),
					(off_t)((uint64_t)n + (t + 1) * hole + t * sizeof(bytes))),
				 sizeof(bytes));
	}
	close(fd);
	seen = calloc(1, sizeof(*seen));
	memset(outcomes, 0, 2 * sizeof(*outcomes));
	for (unsigned i = 0; i < 2; i++) {
		pids[i] = fork();
		if (!pids[i])
			_exit(load_one_end(i, path, &outcomes[i]) ? 1 : 0);
	}
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	/* The two ranks together read at most two granules, one for each tensor. A granule is the
	 * 256 KiB of the file for which one bit of the need bitmap stands. One message has the
	 * bits of 32 GiB. */
	assert_true(outcomes[0].read + outcomes[1].read <= 2 * (256 << 10));
	unlink(path);
	free(seen);
}

/* With a lower limit of simultaneous reads, the library first reduces the number of rounds of its
 * read plan that are in flight, and then the number of ranks that read. All ranks must still get
 * their tensors. */
static void test_reads_max(void **state)
{
	(void)state;
	run_two_hosts(2, 4);
	run_two_hosts(3, 2);
	run_two_hosts(2, 1);
}

static void test_jitter(void **state)
{
	struct penstock_group_opts opts_ = PENSTOCK_GROUP_OPTS_INIT;
	struct penstock_group *g;
	uint64_t begun = now_ms();

	(void)state;
	opts_.host = 1;
	opts_.hosts = 2;
	opts_.jitter_ms = 400;
	assert_int_equal(penstock_group_open("jitter", 0, 1, &opts_, &g), 0);
	assert_true(now_ms() - begun >= 199);
	penstock_group_close(g);
	opts_.host = 2;
	assert_int_equal(penstock_group_open("jitter", 0, 1, &opts_, &g), -EINVAL);
	assert_non_null(strstr(penstock_errmsg(), "host 2 of 2 hosts"));
	for (uint32_t random = 0; random < 5000; random += 7) {
		uint32_t a = pst_group_plan_delay(1000, 0, 3, random);
		uint32_t b = pst_group_plan_delay(1000, 1, 3, random);

		assert_true(a <= 333 && b >= 333 && b <= 666);
		assert_int_equal(pst_group_plan_delay(0, 1, 3, random), 0);
	}
}

/* Files in two directories are read at the same time, even without a group. */
static void test_two_directories(void **state)
{
	const char *dirs[] = {made_path("part-0"), made_path("part-1")};
	struct penstock_weights_opts how = PENSTOCK_WEIGHTS_OPTS_INIT;
	struct penstock_loaded *loaded;
	struct seen mine = {.now = 0};
	char path[1024];

	(void)state;
	seen = &mine;
	for (unsigned i = 0; i < 2; i++) {
		made_dir(dirs[i]);
		snprintf(path, sizeof(path), "%s/p%u.safetensors", dirs[i], i);
		made_file(path, &model[i], 1, 0);
	}
	how.dirs = &dirs[1];
	how.dir_count = 1;
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	assert_int_equal(penstock_weights_open(dirs[0], &how, &w), 0);
	assert_int_equal(penstock_weights_load(w, &host, 1, NULL, NULL, &loaded), 0);
	assert_int_equal(mine.most, 2);
	assert_int_equal(mine.now, 0);
	for (unsigned i = 0; i < 2; i++)
		check_tensor(host, penstock_loaded_ptr(loaded, 0, i), model[i].name,
			     made_bytes(&model[i]));
	penstock_loaded_free(loaded);
	penstock_weights_close(w);
	penstock_device_close(host);
	w = NULL;
}

/* ---- the plan, for random models ---- */

#define FILES_MOST 6u

struct drawn {
	struct penstock_weights model;
	struct pst_model_file files[FILES_MOST];
	struct pst_tensor_entry entries[FILES_MOST];
	struct pst_st_tensor tensors[FILES_MOST];
};

static void draw_model(struct drawn *d, uint64_t *seed)
{
	unsigned files = 1 + (unsigned)(test_random(seed) % FILES_MOST);

	memset(d, 0, sizeof(*d));
	for (unsigned i = 0; i < files; i++) {
		uint64_t begin = test_random(seed) % 9000;

		d->files[i].data_off = 8 + test_random(seed) % 5000;
		d->files[i].stat.st_dev = test_random(seed) % 3;
		d->tensors[i].begin = begin;
		d->tensors[i].end = begin + test_random(seed) % (i % 2 ? 3000000 : 200000);
		d->entries[i] = (struct pst_tensor_entry){&d->tensors[i], i};
	}
	d->model.files = d->files;
	d->model.entries = d->entries;
	d->model.file_count = files;
	d->model.count = files;
}

static bool is_needed(const struct pst_group_plan *p, uint64_t bit)
{
	return p->need[bit / 8] >> (bit % 8) & 1;
}

/* Checks that the plan reads each needed granule of a chunk exactly once, and no other granule. A
 * granule is the range of bytes for which one bit of the need bitmap stands. */
static void check_chunk(const struct pst_group_plan *p, const struct pst_group_chunk *c,
			bool *taken)
{
	const struct pst_plan_file *part = &p->files[c->file];
	uint64_t at = part->base + (c->index - part->first) * p->chunk;
	uint64_t begin, end = 0, len = 0, runs = 0;

	assert_int_equal(c->begin, at + c->skip);
	while (pst_group_plan_next_run(p, c, &begin, &end)) {
		assert_true(begin >= c->begin && end > begin && end <= c->end);
		assert_true(begin == part->begin || (begin - at) % p->granule == 0);
		for (uint64_t g = (begin - at) / p->granule; at + g * p->granule < end; g++) {
			assert_true(is_needed(p, c->index * p->granules + g));
			assert_false(taken[c->index * p->granules + g]);
			taken[c->index * p->granules + g] = true;
		}
		len += end - begin;
		runs++;
	}
	assert_int_equal(len, c->len);
	assert_true(runs <= p->runs_max && c->skip + c->end - c->begin <= p->chunk);
}

/* Checks that the plan reads each needed granule once, and that the readers' numbers of bytes
 * differ by one chunk at most. Also checks that no store (file system) gets more than reads_max
 * requests in rounds that may be in flight at the same time. */
static void check_plan(const struct drawn *d, const struct pst_group_plan *p)
{
	bool *taken = calloc(p->count * p->granules + 1, 1);
	uint64_t sums[PST_GROUP_MAX] = {0}, low = UINT64_MAX, high = 0;

	assert_non_null(taken);
	assert_true(p->readers >= 1 && p->readers <= p->ranks && p->ahead >= 1);
	for (uint64_t t = 0; t < p->round_count; t++) {
		unsigned at_store[3] = {0};
		struct pst_group_chunk c;

		for (uint64_t i = 0; i < (uint64_t)p->ahead * p->ranks; i++)
			if (pst_group_plan_chunk(p, t + i / p->ranks, (unsigned)(i % p->ranks), &c))
				at_store[d->files[c.file].stat.st_dev]++;
		for (unsigned s = 0; p->settings->reads_max && s < 3; s++)
			assert_true(at_store[s] <= p->settings->reads_max);
		for (unsigned r = 0; r < p->ranks; r++) {
			if (!pst_group_plan_chunk(p, t, r, &c))
				continue;
			check_chunk(p, &c, taken);
			sums[r] += c.len;
		}
	}
	for (unsigned f = 0; f < p->file_count; f++) {
		const struct pst_plan_file *part = &p->files[f];

		for (uint64_t off = part->begin; off < part->end;) {
			uint64_t c = (off - part->base) / p->chunk;
			uint64_t g = (off - part->base - c * p->chunk) / p->granule;
			uint64_t bit = (part->first + c) * p->granules + g;

			assert_int_equal(taken[bit], is_needed(p, bit));
			off = part->base + c * p->chunk + (g + 1) * p->granule;
			if (g + 1 == p->granules)
				off = part->base + (c + 1) * p->chunk;
		}
	}
	free(taken);
	for (unsigned r = 0; r < p->readers; r++) {
		low = sums[r] < low ? sums[r] : low;
		high = sums[r] > high ? sums[r] : high;
	}
	if (high - low > p->chunk)
		fail_msg("a rank reads %llu bytes, another %llu, a chunk has %llu",
			 (unsigned long long)high, (unsigned long long)low,
			 (unsigned long long)p->chunk);
}

static void test_plan(void **state)
{
	uint64_t seed = test_seed(7);

	(void)state;
	for (unsigned i = 0; i < 3000; i++) {
		struct pst_group_settings how = {.window = 65536 << test_random(&seed) % 3,
						 .windows = 2 + (uint32_t)(test_random(&seed) % 4),
						 .hosts = 1 + (uint32_t)(test_random(&seed) % 4)};
		struct pst_group_plan p;
		struct drawn d;

		how.host = (uint32_t)(test_random(&seed) % how.hosts);
		how.reads_max = i % 2 ? 0 : 1 + (uint32_t)(test_random(&seed) % 20);
		draw_model(&d, &seed);
		assert_int_equal(pst_group_plan_make(&p, &d.model, &how,
						     1 + (unsigned)(test_random(&seed) % 9)),
				 0);
		for (size_t b = 0; b < pst_group_plan_need_bytes(&p); b++)
			p.need[b] = i % 3 ? 0xff : (unsigned char)test_random(&seed);
		pst_group_plan_deal(&p);
		check_plan(&d, &p);
		pst_group_plan_free(&p);
	}
}

/* The plan must keep two drives busy all the time, so that the two drives finish at the same
 * time. */
static void test_two_stores(void **state)
{
	struct pst_group_settings how = {.window = 65536, .windows = 2, .hosts = 1};
	struct drawn d = {.model = {.file_count = 2, .count = 2}};
	struct pst_group_plan p;
	struct pst_group_chunk c;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		d.files[i] = (struct pst_model_file){.data_off = 4096, .stat = {.st_dev = i}};
		d.tensors[i] = (struct pst_st_tensor){.begin = 0, .end = 65536 * (i ? 8 : 16)};
		d.entries[i] = (struct pst_tensor_entry){&d.tensors[i], i};
	}
	d.model.files = d.files;
	d.model.entries = d.entries;
	assert_int_equal(pst_group_plan_make(&p, &d.model, &how, 3), 0);
	assert_int_equal(p.store_count, 2);
	memset(p.need, 0xff, pst_group_plan_need_bytes(&p));
	pst_group_plan_deal(&p);
	assert_int_equal(p.round_count, 8);
	for (unsigned t = 0; t < 8; t++) {
		unsigned of_second = 0;

		for (unsigned r = 0; r < 3; r++) {
			assert_true(pst_group_plan_chunk(&p, t, r, &c));
			of_second += c.file;
		}
		assert_int_equal(of_second, 1);
	}
	pst_group_plan_free(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_hosts),
		cmocka_unit_test(test_hosts_of_one_tp),
		cmocka_unit_test(test_few_tensors),
		cmocka_unit_test(test_large_model),
		cmocka_unit_test(test_reads_max),
		cmocka_unit_test(test_jitter),
		cmocka_unit_test(test_plan),
		cmocka_unit_test(test_two_stores),
		cmocka_unit_test(test_two_directories),
	};

	return cmocka_run_group_tests(tests, setup_group, NULL);
}
