/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism: what each rank gets of models in the shapes of known families is
 * compared with lists of heads, rows and blocks written down here; what cannot be cut is
 * refused; ranks read no more than their part, and together no more than the file.
 */
#include "shard.h"

#define HIDDEN 64u
#define SEL_MAX 512u

/* Heads: 8 of 8 elements; key-value heads 2; fused: 8 + 2 + 2 heads; 4 experts. */
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

/* Which of dimension *dim a rank gets, in order; -1: all of it. */
static int select_for(const struct made *m, unsigned rank, unsigned ranks, unsigned *dim,
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
		unsigned each = 128 / ranks; /* as vLLM and SGLang pad it */

		for (unsigned i = rank * each; i < (rank + 1) * each && i < 101; i++)
			list[n++] = i;
	} else if (strstr(m->name, "scale_inv")) {
		/* Blocks of 128 columns of 512: a rank's own, or the one it lies in. */
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

/* Element by element, by the definition of a row-major array. */
static void compare(const struct made *m, unsigned dim, const unsigned *list, unsigned n,
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

	how.rank = rank;
	how.ranks = ranks;
	opts.shard = &how;
	if (penstock_weights_load(w, &dev, 1, &opts, &report, &loaded))
		fail_msg("rank %u of %u: %s", rank, ranks, penstock_errmsg());
	for (unsigned i = 0; i < COUNT(family); i++) {
		const struct made *m = &family[i];
		struct penstock_shard shard = {.size = sizeof(shard)};
		unsigned list[SEL_MAX], dim;
		int n = select_for(m, rank, ranks, &dim, list);
		uint64_t t = (uint64_t)penstock_weights_find(w, m->name);
		unsigned char *got;

		if (n < 0) {
			n = (int)m->shape[0];
			for (unsigned k = 0; k < (unsigned)n; k++)
				list[k] = k;
		}
		assert_int_equal(penstock_weights_shard(w, t, &how, &shard), 0);
		if (shard.shape[dim] != (unsigned)n)
			fail_msg("%s: %llu of dimension %u for rank %u of %u, expected %d", m->name,
				 (unsigned long long)shard.shape[dim], dim, rank, ranks, n);
		assert_int_equal(shard.bytes, made_bytes(m) / m->shape[dim] * (unsigned)n);
		got = read_back(dev, penstock_loaded_ptr(loaded, 0, t), shard.bytes);
		compare(m, dim, list, (unsigned)n, got);
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
	how = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
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

/* All parts on other drives: the config is beside the index. */
static void test_elsewhere(void **state)
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
		how = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
		how.ranks = 4;
		how.rank = 3;
		if (penstock_weights_shard(w, 0, &how, &shard))
			fail_msg("%s", penstock_errmsg());
		assert_int_equal(shard.pieces[0].first, 8);
		penstock_weights_close(w);
		w = NULL;
		unlink(made_path("home/model.safetensors.index.json")); /* nor an index */
	}
}

/* The same by the caller's numbers; the config is missing. */
static void test_numbers(void **state)
{
	(void)state;
	make_family(NULL);
	how.heads = 8;
	how.kv_heads = 2;
	check_rank(host, 3, 4);
}

/* Where the config says nothing of them, every query head has keys and values. */
static void test_own_heads(void **state)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int64_t t;

	(void)state;
	make_family("{\"num_attention_heads\": 8, \"num_key_value_heads\": null}");
	how.rank = 3;
	how.ranks = 8;
	t = penstock_weights_find(w, "model.layers.0.self_attn.k_proj.weight");
	assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &how, &shard), 0);
	assert_int_equal(shard.shape[0], 2);
	assert_int_equal(shard.pieces[0].first, 6);
}

/* Layers that differ in them are not cut by a guess. */
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
		how.ranks = 8;
		t = penstock_weights_find(w, "model.layers.0.self_attn.k_proj.weight");
		assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &how, &shard), -EINVAL);
		assert_non_null(strstr(penstock_errmsg(), "key-value heads is not known"));
		how.kv_heads = 2;
		assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &how, &shard), 0);
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
	how.ranks = 2;
	how.expert_ranks = 2;
	how.expert_rank = 1;
	assert_int_equal(pieces_of("model.layers.1.mlp.experts.0.up_proj.weight"), 0);
	assert_int_equal(pieces_of("model.layers.1.mlp.experts.3.up_proj.weight"), 1);
	t = penstock_weights_find(w, "model.layers.2.feed.experts.down_proj");
	assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &how, &shard), 0);
	assert_int_equal(shard.shape[0], 2);
	assert_int_equal(shard.pieces[0].first, 2);
	opts.shard = &how;
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
	t = penstock_weights_find(w, "model.layers.1.mlp.experts.0.up_proj.weight");
	assert_null(penstock_loaded_ptr(loaded, 0, (uint64_t)t));
	t = penstock_weights_find(w, "model.layers.1.mlp.experts.3.up_proj.weight");
	check(host, penstock_loaded_ptr(loaded, 0, (uint64_t)t),
	      "model.layers.1.mlp.experts.3.up_proj.weight", 32 * HIDDEN * 2);
	penstock_loaded_free(loaded);
}

static void test_refusals(void **state)
{
	static const struct made nibbles = {"layers.0.o_proj.weight", "F4", 4, 2, {36, 2}};
	struct penstock_loaded *loaded = NULL;

	(void)state;
	make_family(NULL);
	how.ranks = 2;
	refuses("model.layers.0.self_attn.k_proj.weight", "key-value heads is not known");
	refuses("model.layers.1.self_attn.qkv_proj.weight", "heads is not known");
	opts.shard = &how;
	use_counter();
	assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), -EINVAL);
	assert_null(loaded);
	assert_int_equal(held_count, 0);
	how.expert_ranks = 2;
	refuses("model.layers.1.mlp.experts.3.up_proj.weight", "experts is not known");
	how.heads = 8;
	how.kv_heads = 2;
	how.ranks = 3;
	refuses("model.layers.0.self_attn.q_proj.weight", "shared by 3 ranks");
	refuses("model.layers.0.self_attn.k_proj.weight", "shared by 3 ranks");
	how.ranks = 2;
	how.rank = 2;
	refuses("model.layers.0.self_attn.q_proj.weight", "rank 2 of 2");
	how.rank = 0;
	refuses("no such name", "tensor 17");
	/* Fewer experts than there are: nobody would have the last ones. */
	how.expert_ranks = 2;
	how.experts = 2;
	refuses("model.layers.1.mlp.experts.3.up_proj.weight", "expert 3, but there are only 2");
	make_family("{\"num_attention_heads\": 8, \"num_key_value_heads\": ");
	how.ranks = 2;
	refuses("model.layers.0.self_attn.k_proj.weight", "not known");
	/* A rank would get half of the only byte of each row, not nothing. */
	made_file(made_path("nibbles.safetensors"), &nibbles, 1, 0);
	open_model(made_path("nibbles.safetensors"));
	refuses(nibbles.name, "whole bytes");
}

/* Rules of the caller's go first; the built-in ones can be read. */
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
	how.rules = mine;
	how.rule_count = 1;
	how.ranks = 4;
	for (how.rank = 0; how.rank < 4; how.rank++) {
		struct penstock_shard shard = {.size = sizeof(shard)};
		int64_t t = penstock_weights_find(w, "model.layers.0.input_layernorm.weight");

		assert_int_equal(penstock_weights_shard(w, (uint64_t)t, &how, &shard), 0);
		assert_int_equal(shard.shape[0], HIDDEN / 4);
		assert_int_equal(shard.pieces[0].first, how.rank * HIDDEN / 4);
	}
}

static void test_bad_rules(void **state)
{
	struct penstock_cut_rule mine[] = {{"*", PENSTOCK_CUT_WHOLE}, {NULL, 0}};

	(void)state;
	make_family(NULL);
	how.ranks = 2;
	how.rules = mine;
	how.rule_count = 2;
	refuses("model.layers.0.input_layernorm.weight", "rule 1");
	how.rule_count = 1;
	mine[0].cut = (enum penstock_cut)(PENSTOCK_CUT_INNER + 7);
	refuses("model.layers.0.input_layernorm.weight", "rule 0");
	how.rules = NULL;
	refuses("model.layers.0.input_layernorm.weight", "rule");
}

/* Nobody gets half a head. */
static void test_heads(void **state)
{
	(void)state;
	make_family(NULL);
	how.ranks = 4;
	how.heads = 8;
	how.kv_heads = 2;
	assert_int_equal(pieces_of("model.layers.0.self_attn.q_proj.weight"), 1);
	how.heads = 6;
	refuses("model.layers.0.self_attn.q_proj.weight", "6 heads cannot be shared by 4 ranks");
	how.heads = 10;
	how.kv_heads = 1;
	refuses("model.layers.1.self_attn.qkv_proj.weight", "10 heads cannot be shared by 4 ranks");
	how.heads = 2;
	how.kv_heads = 1;
	refuses("model.layers.0.self_attn.q_proj.weight", "2 heads cannot be shared by 4 ranks");
	how.heads = 0; /* not known: by rows */
	assert_int_equal(pieces_of("model.layers.0.self_attn.q_proj.weight"), 1);
}

/* A part of the model that the config's heads are not of, such as one for images: as many
 * keys as queries are cut alike. */
static void test_other_heads(void **state)
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
	how = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	how.heads = 8;
	how.kv_heads = 2;
	how.ranks = 8;
	how.rank = 5;
	for (unsigned i = 0; i < COUNT(list); i++) {
		if (penstock_weights_shard(w, i, &how, &shard))
			fail_msg("%s", penstock_errmsg());
		assert_int_equal(shard.pieces[0].first, first[i]);
		assert_int_equal(shard.pieces[0].count, count[i]);
	}
}

/* A rank reads its part of dimension 0 and little more; all ranks in one call read the
 * file once, whichever dimension is cut. */
static void test_reads(void **state)
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
	how = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	how.ranks = 8;
	assert_int_equal(penstock_weights_open(path, &some, &w), 0);
	opts.shard = &how;
	for (how.rank = 0; how.rank < 8; how.rank++) {
		assert_int_equal(penstock_weights_load(w, &gpu, 1, &opts, &report, &loaded), 0);
		assert_int_equal(report.bytes, 1u << 17);
		assert_true(report.read <= (1u << 17) * 105 / 100);
		penstock_loaded_free(loaded);
	}
	open_model(path);
	assert_int_equal(penstock_alloc(gpu, 2u << 20, (void **)&mem), 0);
	for (unsigned i = 0; i < 16; i++) {
		struct penstock_shard shard = {.size = sizeof(shard)};

		how.rank = i / 2;
		assert_int_equal(penstock_weights_shard(w, i % 2, &how, &shard), 0);
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

/* A part that lies behind another tensor by chance as it lies in the file's pages leaves that
 * tensor's bytes alone, and those in front of the allocation. */
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
		if (f.data_off % 64) { /* its shapes' digits do not change */
			pad += 64 - f.data_off % 64;
			rows--;
			continue;
		}
		off = f.data_off + 6208 + 64 * rows;
		if (off % 4096 != 6208 % 4096)
			continue;
		met++;
		how = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
		how.rank = 1;
		how.ranks = 2;
		opts.shard = &how;
		assert_int_equal(penstock_weights_load(w, &host, 1, &opts, &report, &loaded), 0);
		check(host, penstock_loaded_ptr(loaded, 0, 0), list[0].name, 6208);
		penstock_loaded_free(loaded);
	}
	assert_int_equal(met, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_family),     CASE(test_elsewhere),	 CASE(test_numbers),
		CASE(test_own_heads),  CASE(test_varying_heads), CASE(test_experts),
		CASE(test_refusals),   CASE(test_rules),	 CASE(test_bad_rules),
		CASE(test_heads),      CASE(test_other_heads),	 CASE(test_reads),
		CASE(test_neighbours),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
