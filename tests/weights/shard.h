/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of shards: what penstock_weights_shard says of a tensor of the open model.
 * Included by test_shard.c and test_quantized.c only.
 */
#ifndef PENSTOCK_TEST_SHARD_H
#define PENSTOCK_TEST_SHARD_H

#include "load.h"

static struct penstock_shard_opts how; /* which rank, of how many */

static inline unsigned pieces_of(const char *name)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int64_t t = penstock_weights_find(w, name);

	assert_true(t >= 0);
	if (penstock_weights_shard(w, (uint64_t)t, &how, &shard))
		fail_msg("%s", penstock_errmsg());
	return shard.piece_count;
}

/* A name that the model has not is a number that it has not. */
static inline void refuses(const char *name, const char *words)
{
	struct penstock_shard shard = {.size = sizeof(shard)};
	int64_t t = penstock_weights_find(w, name);
	uint64_t number = t < 0 ? penstock_weights_count(w) : (uint64_t)t;
	int ret = penstock_weights_shard(w, number, &how, &shard);

	if (ret != -EINVAL || !strstr(penstock_errmsg(), words))
		fail_msg("%s: %d '%s', expected '%s'", name, ret, penstock_errmsg(), words);
}

#endif
