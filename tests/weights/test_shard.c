/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests tensor parallelism. The models have the shapes of known families. Each rank's part is
 * compared with the expected heads, rows and blocks, which are written out in this file. Tensors
 * that cannot be split are refused. A rank reads no more than its part, and all ranks together
 * read no more than the file.
 */
#include "shard.h"

#define HIDDEN 64u
#define SEL_MAX 512u

/* The model has 8 heads of 8 elements, 2 key-value heads, and 4 experts. Its fused projection has 8
 * + 2 + 2 heads. */
static const struct made family[] = {
	{"model.embed_tokens.weight", "BF16", 16, 2, {101, HIDDEN}},
	{"model.layers.0.input_layernorm.weight", "BF16", 16, 1, {HIDDEN}},
	{"model.layers.0.mlp.down_proj.weight", "F8_E4M3", 8, 2, {HIDDEN, 512}},
	{"model.layers.0.mlp.down_proj.weight_scale_inv", "F32", 32, 2, {1, 4}},
	{"model.layers.0.mlp.gate_up_proj.weight", "BF16", 16, 2, {48, HIDDEN}},
	{"model.layers.0.self_attn.k_proj.bias", "BF16", 16, 1, {16}},
	{"model.layers.0.self_attn.k_proj.weight", "BF16", 16, 2, {16, HIDDEN}},
	{"model.layers.0.self_attn.o_proj.bias", "BF16", 16, 1, {HIDDEN}},
	{"model.layers.0.self_attn.o_proj.weight", "BF16", 16, 2, {HIDDEN, HIDDEN}},
	{"model.layers.0.self_attn.q_proj.weight", "F8_E4M3", 8, 2, {HIDDEN, HIDDEN}},
	{"model.layers.0.self_attn.q_proj.weight_scale", "F32", 32, 2, {HIDDEN, 1}},
	{"model.layers.1.self_attn.qkv_proj.weight", "BF16", 16, 2, {96, HIDDEN}},
	{"model.layers.1.mlp.gate.weight", "F32", 32, 2, {4, HIDDEN}},
	{"model.layers.1.mlp.experts.0.up_proj.weight", "BF16", 16, 2, {32, HIDDEN}},
	{"model.layers.1.mlp.experts.3.up_proj.weight", "BF16", 16, 2, {32, HIDDEN}},
	{"model.layers.2.feed.experts.gate_up_proj", "BF16", 16, 3, {4, HIDDEN, 32}},
	{"model.layers.2.feed.experts.down_proj", "BF16", 16, 3, {4, 16, HIDDEN}},
};

/* Writes to `list` the indices of dimension *dim that a rank gets, in the order in which it gets
 * them. Returns their count, or -1 if the rank gets the whole tensor. */
static int expected_selection(const struct made *m, unsigned rank, unsigned ranks, unsigned *dim,
			      unsigned *list)
{
	unsigned n = 0, kv = ranks <= 2 ? rank * 2 / ranks : rank / (ranks / 2);
	unsigned kvs = ranks <= 2 ? 2 / ranks : 1;

#define TAKE(from, count)                         \
	for (unsigned i_ = 0; i_ < (count); i_++) \
	list[n++] = (from) + i_
	*dim = 0;
	if (ranks == 1 || strstr(m->name, "layernorm") || strstr(m->name, "gate.weight") ||
	    strstr(m->name, "o_proj.bias"))
		return -1;
	if (strstr(m->name, "embed")) {
		unsigned each = 128 / ranks; /* vLLM and SGLang pad embeddings in this way. */

		for (unsigned i = rank * each; i < (rank + 1) * each && i < 101; i++)
			list[n++] = i;
	} else if (strstr(m->name, "scale_inv")) {
		/* The 512 columns form blocks of 128 columns. A rank gets its own blocks, or the
		 * one block that contains its part. */
		*dim = 1;
		TAKE(rank * 4 / ranks, ranks <= 4 ? 4 / ranks : 1);
	} else if (strstr(m->name, "experts.gate_up")) {
		*dim = 2;
		TAKE(rank * 16 / ranks, 16 / ranks);
		TAKE(16 + rank * 16 / ranks, 16 / ranks);
	} else if (strstr(m->name, "experts.down")) {
		*dim = 1;
		TAKE(rank * 16 / ranks, 16 / ranks);
	} else if (strstr(m->name, "gate_up")) {
		TAKE(rank * 24 / ranks, 24 / ranks);
		TAKE(24 + rank * 24 / ranks, 24 / ranks);
	} else if (strstr(m->name, "down_proj") || strstr(m->name, "o_proj")) {
		*dim = 1;
		TAKE(rank * (unsigned)m->shape[1] / ranks, (unsigned)m->shape[1] / ranks);
	} else if (strstr(m->name, "k_proj")) {
		TAKE(kv * 8, kvs * 8);
	} else if (strstr(m->name, "qkv")) {
		TAKE(rank * 64 / ranks, 64 / ranks);
		TAKE(64 + kv * 8, kvs * 8);
		TAKE(80 + kv * 8, kvs * 8);
	} else {
		TAKE(rank * (unsigned)m->shape[0] / ranks, (unsigned)m->shape[0] / ranks);
	}
	return (int)n;
}

/* Compares the rank's part element by element. Computes the place of each element as in a
 * row-major array. */
static void compare_selection(const struct made *m, unsigned dim, const unsigned *list, unsigned n,
			      const unsigned char *got)
{
	uint64_t inner = m->bits / 8, outer = 1, at = 0;

	for (unsigned i = 0; i < dim; i++)
		outer *= m->shape[i];
	for (unsigned i = dim + 1; i < m->rank; i++)
		inner *= m->shape[i];
	for (uint64_t o = 0; o < outer; o++)
		for (unsigned s = 0; s < n; s++)
			for (uint64_t b = 0; b < inner; b++, at++)
				if (got[at] !=
				    made_byte(m->name, (o * m->shape[dim] + list[s]) * inner + b))
					fail_msg("%s: byte %llu differs", m->name,
						 (unsigned long long)at);
}

static void check_rank(struct penstock_device *dev, unsigned rank, unsigned ranks)
{
	struct penstock_loaded *loaded;

	shard_opts.rank = rank;
	shard_opts.ranks = ranks;
	opts.shard = &shard_opts;
	if (penstock_weights_load(w, &dev, 1, &opts, &report, &loaded))
		fail_msg("rank %u of %u: %s", rank, ranks, penstock_errmsg());
	for (unsigned i = 0; i < COUNT(family); i++) {
		const struct made *m = &family[i];
		struct penstock_shard shard = {.size = sizeof(shard)};
		unsigned list[SEL_MAX], dim;
		int n = expected_selection(m, rank, ranks, &dim, list);
		uint64_t t = (uint64_t)penstock_weights_find(w, m->name);
		unsigned char *got;

		if (n < 0) {
			n = (int)m->shape[0];
			for (unsigned k = 0; k < (unsigned)n; k++)
				list[k] = k;
		}
		assert_int_equal(penstock_weights_shard(w, t, &shard_opts, &shard), 0);
		if (shard.shape[dim] != (unsigned)n)
			fail_msg("%s: %llu of dimension %u for rank %u of %u, expected %d", m->name,
				 (unsigned long long)shard.shape[dim], dim, rank, ranks, n);
		assert_int_equal(shard.bytes, made_bytes(m) / m->shape[dim] * (unsigned)n);
		got = read_back(dev, penstock_loaded_ptr(loaded, 0, t), shard.bytes);
		compare_selection(m, dim, list, (unsigned)n, got);
		free(got);
	}
	penstock_loaded_free(loaded);
}

static void make_family(const char *config)
{
	made_file(made_path("family.safetensors"), family, COUNT(family), 0);
	if (config)
		made_text(made_path("config.json"), config);
	else
		unlink(made_path("config.json"));
	open_model(made_path("family.safetensors"));
	shard_opts = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
}

static void test_family(void **state)
{
	(void)state;
	make_family("{\"x\": [1, {\"num_attention_heads\": 3}], \"z\": [0.0, -1.5e3, "
		    "Infinity, -Infinity, NaN], \"text_config\": "
		    "{\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"y\": null}}");
	for (unsigned ranks = 1; ranks <= 8; ranks *= 2)
		for (unsigned rank = 0; rank < ranks; rank++)
			check_rank(rank % 2 ? gpu : host, rank, ranks);
}

/* The files with the tensors are on other drives (option `dirs`). The library must find
 * config.json beside the index, or in the model's folder if there is no index. */
static void test_config_beside_index(void **state)
{
	static const struct made m = {"a.k_proj.weight", "BF16", 16, 2, {16, HIDDEN}};
	const char *home = made_path("home"), *drive = made_path("drive");
	struct penstock_weights_opts wo = PENSTOCK_WEIGHTS_OPTS_INIT;
	struct penstock_shard shard = {.size = sizeof(shard)};

	(void)state;
	made_dir(home);
	made_dir(drive);
	made_file(made_path("drive/part.safetensors"), &m, 1, 0);
	made_text(made_path("home/model.safetensors.index.json"),
		  "{\"weight_map\": {\"a.k_proj.weight\": \"part.safetensors\"}}");
	made_text(made_path("home/config.json"),
		  "{\"llm_config\": {\"num_attention_heads\": 8, \"num_key_value_heads\": 2}}");
	wo.dirs = &drive;
	wo.dir_count = 1;
	for (unsigned i = 0; i < 2; i++) {
		if (penstock_weights_open(home, &wo, &w))
			fail_msg("%s", penstock_errmsg());
		shard_opts = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
		shard_opts.ranks = 4;
		shard_opts.rank = 3;
		if (penstock_weights_shard(w, 0, &shard_opts, &shard))
			fail_msg("%s", penstock_errmsg());
		assert_int_equal(shard.pieces[0].first, 8);
		penstock_weights_close(w);
		w = NULL;
		/* Removes the index for the second iteration. */
		unlink(made_path("home/model.safetensors.index.json"));
	}
}

/* The caller's options give the number of attention heads, because the model has no config.json. */
static void test_caller_numbers(void **state)
{
	(void)state;
	make_family(NULL);
	shard_opts.heads = 8;
	shard_opts.kv_heads = 2;
	check_rank(host, 3, 4);
}

/* If config.json has no num_key_value_heads, every query head has its own keys and values. */
static void test_no_kv_heads_key(void **state)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int64_t t;

	(void)state;
	make_family("{\"num_attention_heads\": 8, \"num_key_value_heads\": null}");
	shard_opts.rank = 3;
	shard_opts.ranks = 8;
	t = penstock_weights_find(w, "model.layers.0.self_attn.k_proj.weight");
	assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &shard_opts, &shard), 0);
	assert_int_equal(shard.shape[0], 2);
	assert_int_equal(shard.pieces[0].first, 6);
}

/* If layers have different numbers of key-value heads, the library refuses to split them instead of
 * guessing. */
static void test_varying_heads(void **state)
{
	static const char *const lists[] = {"num_key_value_heads", "num_key_value_heads_per_layer"};
	struct penstock_shard shard = {.size = sizeof(shard)};
	char config[256];
	int64_t t;

	(void)state;
	for (unsigned i = 0; i < COUNT(lists); i++) {
		snprintf(config, sizeof(config), "{\"%s\": [2, 4], \"num_attention_heads\": 8}",
			 lists[i]);
		make_family(config);
		shard_opts.ranks = 8;
		t = penstock_weights_find(w, "model.layers.0.self_attn.k_proj.weight");
		assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &shard_opts, &shard),
				 -EINVAL);
		assert_non_null(strstr(penstock_errmsg(), "key-value heads is not known"));
		shard_opts.kv_heads = 2;
		assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &shard_opts, &shard), 0);
	}
}

static void test_experts(void **state)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	struct penstock_loaded *loaded;
	int64_t t;

	(void)state;
	make_family("{\"num_attention_heads\": 8, \"num_key_value_heads\": 2, "
		    "\"n_routed_experts\": 4}");
	shard_opts.ranks = 2;
	shard_opts.expert_ranks = 2;
	shard_opts.expert_rank = 1;
	assert_int_equal(piece_count_of("model.layers.1.mlp.experts.0.up_proj.weight"), 0);
	assert_int_equal(piece_count_of("model.layers.1.mlp.experts.3.up_proj.weight"), 1);
	t = penstock_weights_find(w, "model.layers.2.feed.experts.down_proj");
	assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &shard_opts, &shard), 0);
	assert_int_equal(shard.shape[0], 2);
	assert_int_equal(shard.pieces[0].first, 2);
	opts.shard = &shard_opts;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
	t = penstock_weights_find(w, "model.layers.1.mlp.experts.0.up_proj.weight");
	assert_null(penstock_loaded_ptr(loaded, 0, (uint64_t)t));
	t = penstock_weights_find(w, "model.layers.1.mlp.experts.3.up_proj.weight");
	check_tensor(host, penstock_loaded_ptr(loaded, 0, (uint64_t)t),
		     "model.layers.1.mlp.experts.3.up_proj.weight", 32 * HIDDEN * 2);
	penstock_loaded_free(loaded);
}

static void test_refusals(void **state)
{
	static const struct made nibbles = {"layers.0.o_proj.weight", "F4", 4, 2, {36, 2}};
	struct penstock_loaded *loaded = NULL;

	(void)state;
	make_family(NULL);
	shard_opts.ranks = 2;
	check_refused("model.layers.0.self_attn.k_proj.weight", "key-value heads is not known");
	check_refused("model.layers.1.self_attn.qkv_proj.weight", "heads is not known");
	opts.shard = &shard_opts;
	use_counter();
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), -EINVAL);
	assert_null(loaded);
	assert_int_equal(held_count, 0);
	shard_opts.expert_ranks = 2;
	check_refused("model.layers.1.mlp.experts.3.up_proj.weight", "experts is not known");
	shard_opts.heads = 8;
	shard_opts.kv_heads = 2;
	shard_opts.ranks = 3;
	check_refused("model.layers.0.self_attn.q_proj.weight", "shared by 3 ranks");
	check_refused("model.layers.0.self_attn.k_proj.weight", "shared by 3 ranks");
	shard_opts.ranks = 2;
	shard_opts.rank = 2;
	check_refused("model.layers.0.self_attn.q_proj.weight", "rank 2 of 2");
	shard_opts.rank = 0;
	check_refused("no such name", "tensor 17");
	/* The options give fewer experts than the model has, so no rank would get the last
	 * experts. */
	shard_opts.expert_ranks = 2;
	shard_opts.experts = 2;
	check_refused("model.layers.1.mlp.experts.3.up_proj.weight",
		      "expert 3, but there are only 2");
	make_family("{\"num_attention_heads\": 8, \"num_key_value_heads\": ");
	shard_opts.ranks = 2;
	check_refused("model.layers.0.self_attn.k_proj.weight", "not known");
	/* A row has only one byte, and a rank would get half of this byte. */
	made_file(made_path("nibbles.safetensors"), &nibbles, 1, 0);
	open_model(made_path("nibbles.safetensors"));
	check_refused(nibbles.name, "whole bytes");
}

/* The caller's rules are applied before the built-in rules. The caller can read the built-in
 * rules. */
static void test_rules(void **state)
{
	static const struct penstock_cut_rule mine[] = {
		{"*.input_layernorm.*", PENSTOCK_CUT_FIRST},
	};
	unsigned count;

	(void)state;
	make_family(NULL);
	assert_non_null(penstock_cut_rules(&count));
	assert_true(count > 15);
	shard_opts.rules = mine;
	shard_opts.rule_count = 1;
	shard_opts.ranks = 4;
	for (shard_opts.rank = 0; shard_opts.rank < 4; shard_opts.rank++) {
		struct penstock_shard shard = {.size = sizeof(shard)};
		int64_t t = penstock_weights_find(w, "model.layers.0.input_layernorm.weight");

		assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &shard_opts, &shard), 0);
		assert_int_equal(shard.shape[0], HIDDEN / 4);
		assert_int_equal(shard.pieces[0].first, shard_opts.rank * HIDDEN / 4);
	}
}

static void test_bad_rules(void **state)
{
	struct penstock_cut_rule mine[] = {{"*", PENSTOCK_CUT_WHOLE}, {NULL, 0}};

	(void)state;
	make_family(NULL);
	shard_opts.ranks = 2;
	shard_opts.rules = mine;
	shard_opts.rule_count = 2;
	check_refused("model.layers.0.input_layernorm.weight", "rule 1");
	shard_opts.rule_count = 1;
	mine[0].cut = (enum penstock_cut)(PENSTOCK_CUT_INNER + 7);
	check_refused("model.layers.0.input_layernorm.weight", "rule 0");
	shard_opts.rules = NULL;
	check_refused("model.layers.0.input_layernorm.weight", "rule");
}

/* A rank never gets a part of a head. */
static void test_whole_heads_only(void **state)
{
	(void)state;
	make_family(NULL);
	shard_opts.ranks = 4;
	shard_opts.heads = 8;
	shard_opts.kv_heads = 2;
	assert_int_equal(piece_count_of("model.layers.0.self_attn.q_proj.weight"), 1);
	shard_opts.heads = 6;
	check_refused("model.layers.0.self_attn.q_proj.weight",
		      "6 heads cannot be shared by 4 ranks");
	shard_opts.heads = 10;
	shard_opts.kv_heads = 1;
	check_refused("model.layers.1.self_attn.qkv_proj.weight",
		      "10 heads cannot be shared by 4 ranks");
	shard_opts.heads = 2;
	shard_opts.kv_heads = 1;
	check_refused("model.layers.0.self_attn.q_proj.weight",
		      "2 heads cannot be shared by 4 ranks");
	shard_opts.heads = 0; /* unknown number of heads: split by rows */
	assert_int_equal(piece_count_of("model.layers.0.self_attn.q_proj.weight"), 1);
}

/* A part of the model, such as a vision tower, has another number of heads than config.json says.
 * If this part has as many keys as queries, its keys are split like its queries. */
static void test_other_tower_heads(void **state)
{
	static const struct made list[] = {
		{"text.0.k_proj.weight", "BF16", 16, 2, {16, HIDDEN}},
		{"text.0.q_proj.weight", "BF16", 16, 2, {64, HIDDEN}},
		{"vision.0.k_proj.bias", "BF16", 16, 1, {128}},
		{"vision.0.q_proj.bias", "BF16", 16, 1, {128}},
		{"vision.0.q_proj.weight", "BF16", 16, 2, {128, HIDDEN}},
		{"vision.0.v_proj.weight", "BF16", 16, 2, {128, HIDDEN}},
	};
	static const unsigned first[] = {8, 40, 80, 80, 80, 80};
	static const unsigned count[] = {8, 8, 16, 16, 16, 16};
	struct penstock_shard shard = {.size = sizeof(shard)};

	(void)state;
	made_file(made_path("other-heads.safetensors"), list, COUNT(list), 0);
	open_model(made_path("other-heads.safetensors"));
	shard_opts = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	shard_opts.heads = 8;
	shard_opts.kv_heads = 2;
	shard_opts.ranks = 8;
	shard_opts.rank = 5;
	for (unsigned i = 0; i < COUNT(list); i++) {
		if (penstock_weights_shard(w, i, &shard_opts, &shard))
			fail_msg("%s", penstock_errmsg());
		assert_int_equal(shard.pieces[0].first, first[i]);
		assert_int_equal(shard.pieces[0].count, count[i]);
	}
}

/* A rank whose part is a range of dimension 0 reads little more than this part. If one call
 * loads the parts of all ranks, the file is read once, whichever dimension is split. */
static void test_bytes_read(void **state)
{
	static const struct made list[] = {
		{"a.q_proj.weight", "BF16", 16, 2, {1024, 512}},
		{"a.o_proj.weight", "BF16", 16, 2, {512, 1024}},
	};
	struct penstock_weights_opts some = PENSTOCK_WEIGHTS_OPTS_INIT;
	struct penstock_piece p[16];
	struct penstock_loaded *loaded;
	const char *path = made_path("reads.safetensors");
	char *mem;

	(void)state;
	made_file(path, list, 2, 0);
	some.names = (const char *const[]){"*.q_proj.*"};
	some.name_count = 1;
	shard_opts = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	shard_opts.ranks = 8;
	assert_int_equal(penstock_weights_open(path, &some, &w), 0);
	opts.shard = &shard_opts;
	for (shard_opts.rank = 0; shard_opts.rank < 8; shard_opts.rank++) {
		assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), 0);
		assert_int_equal(report.bytes, 1u << 17);
		assert_true(report.read <= (1u << 17) * 105 / 100);
		penstock_loaded_free(loaded);
	}
	open_model(path);
	assert_int_equal(penstock_alloc(gpu, 2u << 20, (void **)&mem), 0);
	for (unsigned i = 0; i < 16; i++) {
		struct penstock_shard shard = {.size = sizeof(shard)};

		shard_opts.rank = i / 2;
		assert_int_equal(penstock_weights_shard(w, i % 2, &shard_opts, &shard), 0);
		assert_int_equal(shard.piece_count, 1);
		p[i] = shard.pieces[0];
		p[i].dev = gpu;
		p[i].ptr = mem + ((size_t)i << 17) + (uintptr_t)p[i].ptr;
	}
	opts.shard = NULL;
	if (penstock_weights_load_into(w, p, 16, &opts, &report))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(report.bytes, 2u << 20);
	assert_int_equal(report.read, 2u << 20);
	penstock_free(gpu, mem);
}

/* In memory, a rank's part may directly follow another tensor. This happens if that tensor ends at
 * the same offset within a page at which the part begins in the file. Loading the part must not
 * overwrite that tensor, nor the bytes in front of the allocation. */
static void test_neighbours(void **state)
{
	static struct made list[] = {
		{"a.norm.weight", "U8", 8, 1, {6208}},
		{"b.gate_up_proj.weight", "U8", 8, 2, {0, 64}},
	};
	struct penstock_weights_file f = {.size = sizeof(f)};
	const char *path = made_path("neighbours.safetensors");
	unsigned met = 0, pad = 0;

	(void)state;
	for (unsigned rows = 1100; rows < 1164; rows++) {
		struct penstock_loaded *loaded;
		uint64_t off;

		list[1].shape[0] = 4 * rows;
		made_file(path, list, 2, pad);
		open_model(path);
		assert_int_equal(penstock_weights_get_file(w, 0, &f), 0);
		/* The new shapes have the same number of digits, so the header's length stays
		 * the same. */
		if (f.data_off % 64) {
			pad += 64 - f.data_off % 64;
			rows--;
			continue;
		}
		off = f.data_off + 6208 + 64 * rows;
		if (off % 4096 != 6208 % 4096)
			continue;
		met++;
		shard_opts = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
		shard_opts.rank = 1;
		shard_opts.ranks = 2;
		opts.shard = &shard_opts;
		assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
		check_tensor(host, penstock_loaded_ptr(loaded, 0, 0), list[0].name, 6208);
		penstock_loaded_free(loaded);
	}
	assert_int_equal(met, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_family),
		CASE(test_config_beside_index),
		CASE(test_caller_numbers),
		CASE(test_no_kv_heads_key),
		CASE(test_varying_heads),
		CASE(test_experts),
		CASE(test_refusals),
		CASE(test_rules),
		CASE(test_bad_rules),
		CASE(test_whole_heads_only),
		CASE(test_other_tower_heads),
		CASE(test_bytes_read),
		CASE(test_neighbours),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
