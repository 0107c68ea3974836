/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests random models, both whole and split for a rank by each rule, with requests of random
 * lengths. Each byte must be in its place, and each tensor must be aligned. Nothing may be
 * written outside of the allocation, which is surrounded by guard bytes.
 */
#include "load.h"

#define ROUNDS 80u
#define TENSORS 10u
#define GUARD_BYTES 16384u /* Number of guard bytes on either side of the allocation. */
#define GUARD 0xa5

static unsigned char *memory;
static size_t memory_len;

static void *guarded_alloc(void *user, struct penstock_device *dev, size_t len, size_t align)
{
	void *ptr = NULL;

	(void)user;
	assert_int_equal(align, 4096);
	if (penstock_alloc(dev, len + 2ull * GUARD_BYTES, &ptr))
		return NULL;
	memset(ptr, GUARD, len + 2ull * GUARD_BYTES);
	memory = ptr;
	memory_len = len;
	return (char *)ptr + GUARD_BYTES;
}

static void guarded_free(void *user, struct penstock_device *dev, void *ptr, size_t len)
{
	(void)user;
	(void)len;
	assert_int_equal(penstock_free(dev, (char *)ptr - GUARD_BYTES), 0);
}

static void check_guards(void)
{
	for (size_t i = 0; i < GUARD_BYTES; i++)
		if (memory[i] != GUARD || memory[GUARD_BYTES + memory_len + i] != GUARD)
			fail_msg("%zu bytes in front or %zu behind of %zu: overwritten",
				 (size_t)GUARD_BYTES - i, i, memory_len);
}

/* ---- models ---- */

static uint64_t random_below(uint64_t *seed, uint64_t n)
{
	return test_random(seed) % n;
}

/* Chooses random tensors. If `even` is true, their lengths often give a tensor the same offset
 * within a page in memory as in the file. */
static unsigned draw_tensors(struct made *list, char (*names)[40], bool even, uint64_t *seed)
{
	static const struct {
		const char *name, *dtype;
		unsigned bits;
	} kinds[] = {
		{"l%u.q_proj.weight", "BF16", 16},     {"l%u.gate_up_proj.weight", "U8", 8},
		{"l%u.o_proj.weight", "F32", 32},      {"l%u.norm.weight", "U8", 8},
		{"l%u.x.qkv_proj.weight", "BF16", 16}, {"l%u.gate_up_proj.bias", "F32", 32},
	};
	unsigned count = 1 + (unsigned)random_below(seed, TENSORS);

	for (unsigned i = 0; i < count; i++) {
		unsigned k = (unsigned)random_below(seed, 6);

		snprintf(names[i], sizeof(names[i]), kinds[k].name, i);
		list[i] = (struct made){
			names[i],
			kinds[k].dtype,
			kinds[k].bits,
			2,
			{24 * (1 + random_below(seed, random_below(seed, 3) ? 8 : 60)),
			 4 * (1 + random_below(seed, random_below(seed, 3) ? 16 : 300))}};
		if (even)
			list[i].shape[1] = 512;
		if (strstr(names[i],
			   "norm")) { /* the lengths of norm tensors shift the tensors after them */
			list[i].rank = 1;
			list[i].shape[0] =
				1 + random_below(seed, random_below(seed, 2) ? 300 : 150000);
			list[i].shape[0] = even ? (list[i].shape[0] | 511) + 1 : list[i].shape[0];
		}
	}
	return count;
}

static void make_model(const struct made *list, unsigned count, unsigned pad, bool even)
{
	struct penstock_weights_file f = {.size = sizeof(f)};
	const char *path = made_path("places.safetensors");

	made_file(path, list, count, pad);
	open_model(path);
	if (!even)
		return;
	assert_int_equal(penstock_weights_get_file(w, 0, &f), 0);
	made_file(path, list, count, pad + (unsigned)(-f.data_off % 512));
	open_model(path);
}

static void check_piece(const struct penstock_tensor *t, const struct penstock_piece *p,
			const unsigned char *base)
{
	uint64_t inner = penstock_dtype_bits(t->dtype) / 8, outer = 1, extent = t->shape[p->dim];
	uint64_t count = p->count ? p->count : extent, pitch;

	for (unsigned i = 0; i < p->dim; i++)
		outer *= t->shape[i];
	for (unsigned i = p->dim + 1; i < t->rank; i++)
		inner *= t->shape[i];
	pitch = p->pitch ? p->pitch : count * inner;
	base += (uintptr_t)p->ptr;
	for (uint64_t o = 0; o < outer; o++) {
		uint64_t from = (o * extent + p->first) * inner;

		for (uint64_t b = 0; b < count * inner; b++)
			if (base[o * pitch + b] != made_byte(t->name, from + b))
				fail_msg("%s: byte %llu is another's", t->name,
					 (unsigned long long)(from + b));
	}
}

static void check_placed(const struct penstock_loaded *loaded, uint64_t index,
			 const struct penstock_shard_opts *how)
{
	struct penstock_shard s = {.size = sizeof(s)};
	struct penstock_tensor t = {.size = sizeof(t)};
	const unsigned char *base = penstock_loaded_ptr(loaded, 0, index);

	assert_int_equal(penstock_weights_get(w, index, &t), 0);
	assert_int_equal(penstock_weights_shard(w, index, how, &s), 0);
	if (s.piece_count)
		assert_int_equal((uintptr_t)base % (penstock_dtype_bits(t.dtype) / 8), 0);
	if (s.piece_count && opts.align)
		assert_int_equal((uintptr_t)base % opts.align, 0);
	for (unsigned i = 0; i < s.piece_count; i++)
		check_piece(&t, &s.pieces[i], base);
}

static void test_places(void **state)
{
	struct penstock_shard_opts how = PENSTOCK_SHARD_OPTS_INIT;
	struct made list[TENSORS];
	char names[TENSORS][40];
	uint64_t seed = test_seed(5);

	(void)state;
	how.heads = 8;
	how.kv_heads = 2;
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct penstock_loaded *loaded;
		bool even = round % 2;
		unsigned count = draw_tensors(list, names, even, &seed);

		make_model(list, count, (unsigned)random_below(&seed, round % 3 ? 9 : 4097), even);
		how.ranks = round % 4 ? 1u << random_below(&seed, 3) : 1;
		how.rank = (unsigned)random_below(&seed, how.ranks);
		setup(NULL);
		opts.shard = round % 4 ? &how : NULL;
		opts.alloc = guarded_alloc;
		opts.free = guarded_free;
		opts.align = random_below(&seed, 4) ? 0 : 1u << random_below(&seed, 13);
		opts.request_bytes =
			random_below(&seed, 3) ? 0 : 50000 + random_below(&seed, 200000);
		opts.effort = round % 5 ? PENSTOCK_FAST : PENSTOCK_THRIFTY;
		if (penstock_weights_load(w, &host, 1, &opts, &report, &loaded))
			fail_msg("round %u: %s", round, penstock_errmsg());
		check_guards();
		for (uint64_t t = 0; t < count; t++)
			check_placed(loaded, t, &how);
		penstock_loaded_free(loaded);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {CASE(test_places)};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
