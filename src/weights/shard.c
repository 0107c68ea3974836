/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes the part of a tensor that a rank needs under tensor parallelism. A table of patterns
 * for tensors' names tells how each layer is split; callers can add patterns. The end of a
 * tensor's name tells how the tensor is stored. config.json has the numbers of heads and
 * experts. Called by load.c and bindings. Does no I/O except reading config.json.
 */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights/config.h"
#include "weights/err.h"
#include "weights/files.h"
#include "weights/find.h"

#define WORDS_UNIT 64u

static const struct penstock_cut_rule built_in[] = {
	/* Routers and low-rank projections are small, so every rank gets the whole tensor. */
	{"*.mlp.gate.*", PENSTOCK_CUT_WHOLE},
	{"*.block_sparse_moe.gate.*", PENSTOCK_CUT_WHOLE},
	{"*.shared_expert_gate.*", PENSTOCK_CUT_WHOLE},
	{"*.q_a_proj.*", PENSTOCK_CUT_WHOLE},
	{"*.kv_a_proj_with_mqa.*", PENSTOCK_CUT_WHOLE},
	/* One tensor holds all experts. The shapes are [experts, in, 2 x out] for gate_up_proj
	 * and [experts, in, out] for down_proj. */
	{"*.experts.gate_up_proj", PENSTOCK_CUT_LAST_HALVES},
	{"*.experts.down_proj", PENSTOCK_CUT_INNER},
	{"*.qkv_proj.*", PENSTOCK_CUT_QKV},
	{"*.gate_up_proj.*", PENSTOCK_CUT_HALVES},
	{"*.q_proj.*", PENSTOCK_CUT_QUERIES},
	{"*.k_proj.*", PENSTOCK_CUT_HEADS},
	{"*.v_proj.*", PENSTOCK_CUT_HEADS},
	{"*.q_b_proj.*", PENSTOCK_CUT_QUERIES},
	/* kv_b_proj has keys and values for each query head, so it is split by query heads and not
	 * by key-value heads. */
	{"*.kv_b_proj.*", PENSTOCK_CUT_QUERIES},
	{"*.o_proj.*", PENSTOCK_CUT_LAST},
	{"*.gate_proj.*", PENSTOCK_CUT_FIRST},
	{"*.up_proj.*", PENSTOCK_CUT_FIRST},
	{"*.down_proj.*", PENSTOCK_CUT_LAST},
	{"*.experts.*.w1.*", PENSTOCK_CUT_FIRST},
	{"*.experts.*.w3.*", PENSTOCK_CUT_FIRST},
	{"*.experts.*.w2.*", PENSTOCK_CUT_LAST},
	{"*embed_tokens.weight", PENSTOCK_CUT_WORDS},
	{"lm_head.*", PENSTOCK_CUT_WORDS},
	{"*.lm_head.*", PENSTOCK_CUT_WORDS},
};

const struct penstock_cut_rule *penstock_cut_rules(unsigned *count)
{
	if (!count) {
		pst_weights_fail_null("the output pointer");
		return NULL;
	}
	*count = sizeof(built_in) / sizeof(built_in[0]);
	return built_in;
}

/* ---- one tensor ---- */

/* How a tensor is stored, that is, which of its dimensions are the outputs and the inputs of its
 * layer. */
enum layout {
	ROWS, /* Shape [outputs, inputs]; the shape of a bias is [outputs]. */
	/* Shape [inputs, outputs]. One element may pack several values, and one row may stand for a
	 * group of inputs (quantized models). */
	COLUMNS,
	INPUTS, /* One value for each input. */
	SHAPE,	/* The tensor contains the shape of a weight; every rank needs all of it. */
};

struct cut {
	const struct penstock_weights *w;
	const struct penstock_shard_opts *o;
	const struct pst_st_tensor *t;
	const char *path;
	unsigned heads, kv_heads, experts;
	unsigned dim, part_count;
	struct {
		uint64_t first, count;
	} parts[PENSTOCK_SHARD_PIECES];
};

static int cut_fail(const struct cut *c, const char *what)
{
	return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, c->path, c->t->name, PST_NO_OFF,
				"%s", what);
}

static int fail_indivisible(const struct cut *c, uint64_t length, unsigned ranks)
{
	return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, c->path, c->t->name, PST_NO_OFF,
				"%llu of dimension %u cannot be shared by %u ranks",
				(unsigned long long)length, c->dim, ranks);
}

/* Fails if the query heads cannot be shared evenly between the ranks. A rank cannot use a part of a
 * head. */
static int check_heads(const struct cut *c)
{
	if (!(c->heads % c->o->ranks))
		/* The ranks can share the heads evenly, or the number of heads is unknown (0). */
		return 0;
	return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, c->path, c->t->name, PST_NO_OFF,
				"%u heads cannot be shared by %u ranks", c->heads, c->o->ranks);
}

/* Adds this rank's share of the range [start, start + length), which is split evenly. */
static int add_even_part(struct cut *c, uint64_t start, uint64_t length)
{
	unsigned ranks = c->o->ranks;

	if (length % ranks)
		return fail_indivisible(c, length, ranks);
	c->parts[c->part_count].first = start + length / ranks * c->o->rank;
	c->parts[c->part_count++].count = length / ranks;
	return 0;
}

/* Adds this rank's share of a range that consists of key-value heads. If there are fewer heads
 * than ranks, neighbouring ranks get the same head. */
static int add_head_part(struct cut *c, uint64_t start, uint64_t length)
{
	unsigned ranks = c->o->ranks;

	if (!c->kv_heads)
		return cut_fail(
			c, "the number of key-value heads is not known (it is not in config.json)");
	if (length % c->kv_heads)
		return fail_indivisible(c, length, c->kv_heads);
	if (c->kv_heads >= ranks)
		return c->kv_heads % ranks ? fail_indivisible(c, c->kv_heads, ranks)
					   : add_even_part(c, start, length);
	if (ranks % c->kv_heads)
		return fail_indivisible(c, c->kv_heads, ranks);
	c->parts[c->part_count].count = length / c->kv_heads;
	c->parts[c->part_count++].first =
		start + length / c->kv_heads * (c->o->rank / (ranks / c->kv_heads));
	return 0;
}

/* Returns true if this tensor of keys or values has as many heads as the queries of its layer.
 * In such a layer the number of key-value heads that config.json has does not apply. */
static bool as_many_as_queries(const struct cut *c)
{
	const char *at = strstr(c->t->name, ".k_proj.");
	char name[PST_ST_NAME_MAX + 1];
	int64_t found;

	at = at ? at : strstr(c->t->name, ".v_proj.");
	if (!at)
		return false;
	snprintf(name, sizeof(name), "%s", c->t->name);
	name[at - c->t->name + 1] = 'q';
	found = pst_weights_index(c->w, name);
	return found >= 0 && c->w->entries[found].t->rank == c->t->rank &&
	       c->w->entries[found].t->shape[c->dim] == c->t->shape[c->dim];
}

static int add_qkv(struct cut *c, uint64_t length)
{
	uint64_t all, q, kv;
	int ret;

	if (!c->kv_heads || !c->heads)
		return cut_fail(c, "the number of heads is not known (it is not in config.json)");
	all = c->heads + 2ull * c->kv_heads;
	if (length % all)
		return fail_indivisible(c, length, (unsigned)all);
	q = length / all * c->heads;
	kv = length / all * c->kv_heads;
	ret = check_heads(c);
	if (!ret)
		ret = add_even_part(c, 0, q);
	if (!ret)
		ret = add_head_part(c, q, kv);
	return ret ? ret : add_head_part(c, q + kv, kv);
}

static int add_halves(struct cut *c, uint64_t length)
{
	int ret;

	if (length % 2)
		return fail_indivisible(c, length, 2);
	ret = add_even_part(c, 0, length / 2);
	return ret ? ret : add_even_part(c, length / 2, length / 2);
}

/* Returns the number of vocabulary words that each rank gets. Like inference engines, it first
 * rounds the vocabulary up to a multiple of 64, provided that the rounded number can be split
 * evenly. */
static uint64_t words_of(uint64_t length, unsigned ranks)
{
	uint64_t padded = (length + WORDS_UNIT - 1) / WORDS_UNIT * WORDS_UNIT;

	return padded % ranks ? (length + ranks - 1) / ranks : padded / ranks;
}

static enum layout layout_of(const char *name)
{
	static const struct {
		const char *tail;
		enum layout layout;
	} tails[] = {
		/* GPTQ and AWQ store eight weights of 4 bits in one element. GPTQ's qweight is
		 * [in / 8, out], AWQ's is [in, out / 8]. qzeros is [groups, out / 8], and scales
		 * is [groups, out]. In all of them the second dimension is the outputs. */
		{".qweight", COLUMNS}, {".qzeros", COLUMNS},	  {".scales", COLUMNS},
		{".g_idx", INPUTS},    {".weight_g_idx", INPUTS}, {".weight_shape", SHAPE},
	};

	for (unsigned i = 0; i < sizeof(tails) / sizeof(tails[0]); i++)
		if (pst_ends_with(name, tails[i].tail))
			return tails[i].layout;
	return ROWS;
}

static bool is_scale(const char *name)
{
	const char *last = strrchr(name, '.');

	return strstr(last ? last : name, "scale") || strstr(last ? last : name, "zero");
}

/* Returns true if the same layer also has a tensor whose name ends with `tail`. */
static bool has_sibling(const struct cut *c, const char *tail)
{
	const char *last = strrchr(c->t->name, '.');
	char name[PST_ST_NAME_MAX + 32];

	snprintf(name, sizeof(name), "%.*s%s", (int)(last ? last - c->t->name : 0), c->t->name,
		 tail);
	return pst_weights_index(c->w, name) >= 0;
}

/* Called for a layer that is split by inputs. Returns 1 if the inputs of a quantization group are
 * scattered over the layer (desc_act); each rank then needs the scales of all groups. Returns 0 if
 * the inputs of each group are contiguous, and an error if their order is not known. */
static int groups_are_mixed(const struct cut *c)
{
	if (has_sibling(c, ".weight_g_idx"))
		/* Tools that quantize models write the tensor weight_g_idx only for layers in which
		 * the inputs of a group are scattered. */
		return 1;
	if (!has_sibling(c, ".g_idx"))
		return 0;
	if (c->w->config.order == PST_ORDER_UNKNOWN)
		return cut_fail(c, "whether its groups are ordered by activation (desc_act) is not "
				   "known (it is not in config.json)");
	return c->w->config.order == PST_ORDER_BY_ACT;
}

/* Sets c->dim to the dimension of this tensor that the rule `cut` splits. Returns 1 if the
 * tensor is split, 0 if it is not, or a negative error. */
static int choose_dim(struct cut *c, enum penstock_cut cut)
{
	const bool inputs = cut == PENSTOCK_CUT_LAST;
	const unsigned last = c->t->rank - 1;
	int mixed = 0;

	if (cut == PENSTOCK_CUT_WHOLE || c->o->ranks == 1 || !c->t->rank)
		return 0;
	c->dim = 0;
	switch (layout_of(c->t->name)) {
	case SHAPE:
		return 0;
	case INPUTS:
		return inputs;
	case COLUMNS:
		c->dim = inputs ? 0 : last;
		break;
	case ROWS:
		if (!inputs && cut != PENSTOCK_CUT_LAST_HALVES && cut != PENSTOCK_CUT_INNER)
			break;
		if (!last)
			/* A tensor of one dimension is a bias, which every rank needs as a
			 * whole. */
			return 0;
		c->dim = cut == PENSTOCK_CUT_INNER ? last - 1 : last;
	}
	if (!is_scale(c->t->name))
		return 1;
	if (c->t->shape[c->dim] <= 1)
		return 0; /* One scale applies to the whole weight, so every rank needs it. */
	if (inputs)
		mixed = groups_are_mixed(c);
	return mixed < 0 ? mixed : !mixed;
}

static int apply_rule(struct cut *c, enum penstock_cut cut)
{
	uint64_t length, each;
	int ret;

	c->part_count = 0;
	ret = choose_dim(c, cut);
	if (ret <= 0)
		return ret;
	length = c->t->shape[c->dim];
	switch (cut) {
	case PENSTOCK_CUT_QUERIES:
		ret = check_heads(c);
		return ret ? ret : add_even_part(c, 0, length);
	case PENSTOCK_CUT_HEADS:
		return as_many_as_queries(c) ? add_even_part(c, 0, length)
					     : add_head_part(c, 0, length);
	case PENSTOCK_CUT_QKV:
		return add_qkv(c, length);
	case PENSTOCK_CUT_HALVES:
	case PENSTOCK_CUT_LAST_HALVES:
		return add_halves(c, length);
	case PENSTOCK_CUT_WORDS:
		/* In the layout COLUMNS, an element packs the values of several vocabulary words.
		 * So words_of(), which rounds the number of words up, does not apply. */
		each = layout_of(c->t->name) == COLUMNS ? (length + c->o->ranks - 1) / c->o->ranks
							: words_of(length, c->o->ranks);
		c->part_count = 1;
		c->parts[0].first = each * c->o->rank < length ? each * c->o->rank : length;
		c->parts[0].count =
			length - c->parts[0].first < each ? length - c->parts[0].first : each;
		return 0;
	default:
		return add_even_part(c, 0, length);
	}
}

static enum penstock_cut rule_for(const struct penstock_shard_opts *o, const char *name)
{
	for (unsigned i = 0; i < o->rule_count; i++)
		if (!fnmatch(o->rules[i].glob, name, 0))
			return o->rules[i].cut;
	for (unsigned i = 0; i < sizeof(built_in) / sizeof(built_in[0]); i++)
		if (!fnmatch(built_in[i].glob, name, 0))
			return built_in[i].cut;
	return PENSTOCK_CUT_WHOLE;
}

/* ---- scales ---- */

/* Returns the weight that the scale `name` belongs to, or NULL if `name` is no scale of a
 * weight. */
static const struct pst_st_tensor *weight_of(const struct penstock_weights *w, const char *name)
{
	static const char *const tails[] = {"_scale_inv", "_scale"};
	char base[PST_ST_NAME_MAX + 1];

	for (unsigned i = 0; i < 2; i++) {
		int64_t found;

		if (!pst_ends_with(name, tails[i]))
			continue;
		snprintf(base, sizeof(base), "%.*s", (int)(strlen(name) - strlen(tails[i])), name);
		found = pst_weights_index(w, base);
		if (found >= 0)
			return w->entries[found].t;
	}
	return NULL;
}

static int inside_block(const struct cut *c, uint64_t block)
{
	return pst_weights_fail(
		EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, c->path, c->t->name, PST_NO_OFF,
		"%u ranks would cut its weight inside of the scale's blocks of %llu", c->o->ranks,
		(unsigned long long)block);
}

/* Converts the ranges of rows or columns taken from a weight into ranges of its scale, which has
 * one element per row, per column or per block. A range must begin at the start of a block or
 * lie inside one block; otherwise this rank's scales would not match its part of the weight. */
static int cut_blocks(struct cut *c, const struct pst_st_tensor *weight)
{
	static const unsigned blocks[] = {1, 128, 64, 32, 256, 16, 8};
	uint64_t whole = weight->shape[c->dim], scales, b = 0;

	if (c->dim >= c->t->rank || c->t->shape[c->dim] <= 1) {
		/* One scale applies to the whole weight, so every rank needs it. */
		c->part_count = 0;
		return 0;
	}
	scales = c->t->shape[c->dim];
	for (unsigned i = 0; i < sizeof(blocks) / sizeof(blocks[0]) && !b; i++)
		b = (whole + blocks[i] - 1) / blocks[i] == scales ? blocks[i] : 0;
	if (!b)
		return cut_fail(c, "its number of blocks does not match its weight");
	for (unsigned i = 0; i < c->part_count; i++) {
		bool last = i + 1 == c->part_count;

		if ((c->parts[i].first % b && c->parts[i].first % b + c->parts[i].count > b) ||
		    (!last && c->parts[i].count % b))
			return inside_block(c, b);
	}
	for (unsigned i = 0; i < c->part_count; i++) {
		uint64_t end = (c->parts[i].first + c->parts[i].count + b - 1) / b;

		c->parts[i].first /= b;
		c->parts[i].count = end - c->parts[i].first;
	}
	return 0;
}

/* Splits a tensor by the rule for its name. A scale is split in the same way as its weight. */
static int cut_layer(struct cut *c)
{
	const struct pst_st_tensor *scale = c->t, *weight = weight_of(c->w, c->t->name);
	int ret;

	if (!weight)
		return apply_rule(c, rule_for(c->o, c->t->name));
	c->t = weight;
	ret = apply_rule(c, rule_for(c->o, weight->name));
	c->t = scale;
	return !ret && c->part_count ? cut_blocks(c, weight) : ret;
}

/* ---- experts ---- */

/* Returns the number after "experts." in a tensor's name, or -1 if there is none. */
static int64_t expert_of(const char *name)
{
	const char *at = strstr(name, "experts.");
	char *end;
	long long n;

	if (!at || at == name || at[-1] != '.' || at[8] < '0' || at[8] > '9')
		return -1;
	n = strtoll(at + 8, &end, 10);
	return *end == '.' ? n : -1;
}

/* Splits the tensors of experts between the expert ranks. Returns 1 if the tensor belongs to
 * experts and so needs no further split, 0 if it belongs to no expert, < 0 on error. Sets *none
 * to true if this rank needs no part of the tensor. */
static int cut_experts(struct cut *c, bool *none)
{
	const struct penstock_shard_opts *o = c->o;
	bool stacked = strstr(c->t->name, ".experts.") != NULL;
	int64_t n = expert_of(c->t->name);
	uint64_t each;

	if (o->expert_ranks <= 1 || (n < 0 && !stacked))
		return 0;
	c->part_count = 0;
	c->dim = 0;
	if (n < 0 && c->t->rank < 2)
		return 1;
	if (n < 0)
		c->experts = (unsigned)c->t->shape[0];
	if (!c->experts)
		return cut_fail(c, "the number of experts is not known (it is not in config.json)");
	if (c->experts % o->expert_ranks)
		return fail_indivisible(c, c->experts, o->expert_ranks);
	if (n >= (int64_t)c->experts)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, c->path, c->t->name,
					PST_NO_OFF,
					"it belongs to expert %lld, but there are only %u",
					(long long)n, c->experts);
	each = c->experts / o->expert_ranks;
	*none = n >= 0 && (uint64_t)n / each != o->expert_rank;
	if (n < 0) {
		c->part_count = 1;
		c->parts[0].first = each * o->expert_rank;
		c->parts[0].count = each;
	}
	return 1;
}

/* ---- the result ---- */

static int fill_shard(const struct cut *c, uint64_t tensor, struct penstock_shard *s)
{
	uint64_t inner = penstock_dtype_bits(c->t->dtype), outer = 1, sum = 0, at = 0;

	s->rank = c->t->rank;
	memcpy(s->shape, c->t->shape, c->t->rank * sizeof(s->shape[0]));
	s->bytes = c->t->end - c->t->begin;
	s->piece_count = c->part_count ? c->part_count : 1;
	if (!c->part_count) {
		s->pieces[0] = (struct penstock_piece){
			.size = sizeof(s->pieces[0]), .tensor = tensor, .room = s->bytes};
		return 0;
	}
	for (unsigned i = 0; i < c->dim; i++)
		outer *= c->t->shape[i];
	for (unsigned i = c->dim + 1; i < c->t->rank; i++)
		inner *= c->t->shape[i];
	for (unsigned i = 0; i < c->part_count; i++)
		sum += c->parts[i].count;
	s->shape[c->dim] = sum;
	s->bytes = outer * (sum * inner / 8);
	if (!sum || c->t->begin == c->t->end) {
		s->piece_count = 0;
		return 0;
	}
	for (unsigned i = 0; i < c->part_count; i++) {
		if (c->parts[i].first * inner % 8 || c->parts[i].count * inner % 8)
			return cut_fail(c, "a rank's part does not begin and end at whole bytes");
		s->pieces[i] = (struct penstock_piece){
			.size = sizeof(s->pieces[i]),
			.tensor = tensor,
			.dim = c->dim,
			.first = c->parts[i].first,
			.count = c->parts[i].count,
			.ptr = (void *)(uintptr_t)at,
			.room = s->bytes - at,
			.pitch = sum * inner / 8,
		};
		at += c->parts[i].count * inner / 8;
	}
	return 0;
}

static int check_rules(const struct penstock_shard_opts *o)
{
	for (unsigned i = 0; i < o->rule_count; i++)
		if (!o->rules || !o->rules[i].glob ||
		    (unsigned)o->rules[i].cut > PENSTOCK_CUT_QUERIES)
			return pst_weights_fail(
				EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"rule %u of %u has no glob, or an unknown cut", i, o->rule_count);
	return 0;
}

int penstock_weights_shard(struct penstock_weights *w, uint64_t tensor,
			   const struct penstock_shard_opts *from, struct penstock_shard *out)
{
	struct penstock_shard_opts o;
	struct penstock_shard shard = {.size = sizeof(shard)};
	struct cut c = {.w = w, .o = &o};
	bool none = false;
	int ret = pst_weights_struct_in(&o, sizeof(o), from, "penstock_shard_opts");

	if (ret)
		return ret;
	if (!w || !out)
		return pst_weights_fail_null("the model or the output pointer");
	o.ranks = o.ranks ? o.ranks : 1;
	o.expert_ranks = o.expert_ranks ? o.expert_ranks : 1;
	if (tensor >= w->count || o.rank >= o.ranks || o.expert_rank >= o.expert_ranks)
		return pst_weights_fail(
			EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
			"rank %u of %u, expert rank %u of %u or tensor %llu is out of range",
			o.rank, o.ranks, o.expert_rank, o.expert_ranks, (unsigned long long)tensor);
	ret = check_rules(&o);
	if (ret)
		return ret;
	pst_weights_read_config(w);
	c.t = w->entries[tensor].t;
	c.path = w->files[w->entries[tensor].file].path;
	c.heads = o.heads ? o.heads : w->config.heads;
	c.kv_heads = o.kv_heads ? o.kv_heads : w->config.kv_heads;
	c.experts = o.experts ? o.experts : w->config.experts;
	ret = cut_experts(&c, &none);
	if (!ret)
		ret = cut_layer(&c);
	if (ret < 0)
		return ret;
	ret = none ? 0 : fill_shard(&c, tensor, &shard);
	if (!ret)
		pst_weights_struct_out(out, &shard, sizeof(shard));
	return ret;
}
