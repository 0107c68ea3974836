/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests tensor parallelism of quantized layers: packed weights, zero points, and scales for
 * tensors, rows, blocks and groups, in the layouts of GPTQ, AWQ, compressed-tensors and
 * block-wise FP8. Each test compares the part that a rank gets with the expected half of the
 * tensor, which is written out in this file.
 */
#include "shard.h"

/* Each scale belongs to a block of 128 rows. A rank counts the blocks from the first row of its
 * part. A part that begins inside of a block and continues into the next block is refused. */
static void test_blocks(void **state)
{
	static const struct made list[] = {
		{"a.up_proj.weight", "F8_E4M3", 8, 2, {1536, 128}},
		{"a.up_proj.weight_scale_inv", "F32", 32, 2, {12, 1}},
		{"a.gate_up_proj.weight", "F8_E4M3", 8, 2, {1024, 128}},
		{"a.gate_up_proj.weight_scale_inv", "F32", 32, 2, {8, 1}},
	};
	struct penstock_shard shard = {.size = sizeof(shard)};

	(void)state;
	made_file(made_path("blocks.safetensors"), list, COUNT(list), 0);
	open_model(made_path("blocks.safetensors"));
	shard_opts = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	shard_opts.ranks = 4;
	shard_opts.rank = 1;
	assert_int_equal(piece_count_of("a.up_proj.weight_scale_inv"), 1);
	assert_int_equal(piece_count_of("a.gate_up_proj.weight_scale_inv"), 2);
	/* Each rank gets 192 rows, or 64 rows of each half of a fused tensor. */
	shard_opts.ranks = 8;
	check_refused("a.up_proj.weight_scale_inv", "blocks of 128");
	check_refused("a.gate_up_proj.weight_scale_inv", "blocks of 128");
	shard_opts.ranks = 24; /* each rank gets 64 rows, which are half a block */
	shard_opts.rank = 23;
	assert_int_equal(penstock_weights_shard(w, 1, &shard_opts, &shard), 0);
	assert_int_equal(shard.shape[0], 1);
	assert_int_equal(shard.pieces[0].first, 11);
}

/* Tensors with elements of 4 bits that are packed in words of 32 bits, with groups of 16 inputs
 * and 2 key-value heads. Rank 1 of 2 gets the second half of dimension `dim`, or the whole
 * tensor if `dim` is -1. */
static const struct {
	struct made made;
	int dim;
} quantized[] = {
	/* GPTQ: a layer with 64 inputs and 128 outputs, and a layer with 128 inputs and 64
	 * outputs. */
	{{"l.0.q_proj.qweight", "I32", 32, 2, {8, 128}}, 1},
	{{"l.0.q_proj.qzeros", "I32", 32, 2, {4, 16}}, 1},
	{{"l.0.q_proj.scales", "F16", 16, 2, {4, 128}}, 1},
	{{"l.0.q_proj.g_idx", "I32", 32, 1, {64}}, -1},
	{{"l.0.q_proj.bias", "F16", 16, 1, {128}}, 0},
	{{"l.0.o_proj.qweight", "I32", 32, 2, {16, 64}}, 0},
	{{"l.0.o_proj.qzeros", "I32", 32, 2, {8, 8}}, 0},
	{{"l.0.o_proj.scales", "F16", 16, 2, {8, 64}}, 0},
	{{"l.0.o_proj.g_idx", "I32", 32, 1, {128}}, 0},
	{{"l.0.o_proj.bias", "F16", 16, 1, {64}}, -1},
	/* GPTQ with one group for all inputs. */
	{{"l.1.o_proj.scales", "F16", 16, 2, {1, 64}}, -1},
	{{"l.1.o_proj.g_idx", "I32", 32, 1, {128}}, 0},
	/* AWQ: packed along the outputs, without g_idx. */
	{{"l.2.k_proj.qweight", "I32", 32, 2, {64, 4}}, 1},
	{{"l.2.k_proj.qzeros", "I32", 32, 2, {4, 4}}, 1},
	{{"l.2.k_proj.scales", "F16", 16, 2, {4, 32}}, 1},
	{{"l.2.experts.1.w2.qweight", "I32", 32, 2, {128, 8}}, 0},
	{{"l.2.experts.1.w2.qzeros", "I32", 32, 2, {8, 8}}, 0},
	{{"l.2.experts.1.w2.scales", "F16", 16, 2, {8, 64}}, 0},
	/* compressed-tensors, with groups in the order of the inputs and in another order. */
	{{"l.3.up_proj.weight_packed", "I32", 32, 2, {128, 8}}, 0},
	{{"l.3.up_proj.weight_scale", "BF16", 16, 2, {128, 4}}, 0},
	{{"l.3.up_proj.weight_shape", "I64", 64, 1, {2}}, -1},
	{{"l.3.down_proj.weight_packed", "I32", 32, 2, {64, 16}}, 1},
	{{"l.3.down_proj.weight_scale", "BF16", 16, 2, {64, 8}}, 1},
	{{"l.4.down_proj.weight_packed", "I32", 32, 2, {64, 16}}, 1},
	{{"l.4.down_proj.weight_scale", "BF16", 16, 2, {64, 8}}, -1},
	{{"l.4.down_proj.weight_g_idx", "I32", 32, 1, {128}}, 0},
	/* 8-bit elements with one scale for the tensor, and 4-bit elements with one scale for
	 * every 16 elements. */
	{{"l.5.q_proj.weight", "F8_E4M3", 8, 2, {128, 64}}, 0},
	{{"l.5.q_proj.weight_scale", "F32", 32, 1, {1}}, -1},
	{{"l.5.q_proj.input_scale", "F32", 32, 1, {1}}, -1},
	{{"l.5.k_proj.k_scale", "F32", 32, 0, {0}}, -1},
	{{"l.6.o_proj.weight", "U8", 8, 2, {64, 64}}, 1},
	{{"l.6.o_proj.weight_scale", "F8_E4M3", 8, 2, {64, 8}}, 1},
	{{"l.6.o_proj.weight_scale_2", "F32", 32, 1, {1}}, -1},
};

static void open_quantized(const char *config, const char *quantize_config)
{
	struct made list[COUNT(quantized)];

	for (unsigned i = 0; i < COUNT(quantized); i++)
		list[i] = quantized[i].made;
	made_file(made_path("quantized.safetensors"), list, COUNT(list), 0);
	made_text(made_path("config.json"), config);
	if (quantize_config)
		made_text(made_path("quantize_config.json"), quantize_config);
	else
		unlink(made_path("quantize_config.json"));
	open_model(made_path("quantized.safetensors"));
	shard_opts = (struct penstock_shard_opts)PENSTOCK_SHARD_OPTS_INIT;
	shard_opts.ranks = 2;
	shard_opts.rank = 1;
	shard_opts.kv_heads = 2;
}

static void check_half(const char *name, int dim, const struct made *m)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int64_t t = penstock_weights_find(w, name);

	if (penstock_weights_shard(w, (uint64_t)t, &shard_opts, &shard))
		fail_msg("%s", penstock_errmsg());
	for (int d = 0; d < (int)m->rank; d++)
		if (shard.shape[d] != (d == dim ? m->shape[d] / 2 : m->shape[d]))
			fail_msg("%s: %llu of dimension %d", name,
				 (unsigned long long)shard.shape[d], d);
	assert_int_equal(shard.piece_count, 1);
	assert_int_equal(shard.pieces[0].first, dim < 0 ? 0 : m->shape[dim] / 2);
}

static void test_quantized(void **state)
{
	(void)state;
	open_quantized("{\"quantization_config\": {\"bits\": 4, \"desc_act\": false}}", NULL);
	for (unsigned i = 0; i < COUNT(quantized); i++)
		check_half(quantized[i].made.name, quantized[i].dim, &quantized[i].made);
}

/* If groups are ordered by activation, the inputs of a rank may belong to any group. */
static void test_mixed_groups(void **state)
{
	(void)state;
	for (unsigned beside = 0; beside < 2; beside++) {
		open_quantized(beside ? "{}"
				      : "{\"text_config\": {\"quantization_config\": "
					"{\"desc_act\": true}}}",
			       beside ? "{\"desc_act\": true}" : NULL);
		for (unsigned i = 0; i < COUNT(quantized); i++) {
			const struct made *m = &quantized[i].made;
			bool mixed = !strcmp(m->name, "l.0.o_proj.scales") ||
				     !strcmp(m->name, "l.0.o_proj.qzeros");

			check_half(m->name, mixed ? -1 : quantized[i].dim, m);
		}
	}
	open_quantized("{}", NULL);
	check_refused("l.0.o_proj.scales", "desc_act) is not known");
	check_half("l.0.q_proj.scales", 1, &quantized[2].made);
	check_half("l.2.experts.1.w2.scales", 0, &quantized[17].made);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_blocks),
		CASE(test_quantized),
		CASE(test_mixed_groups),
	};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
