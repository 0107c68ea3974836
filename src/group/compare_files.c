/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether ranks that see a file under another device or inode number see the same one, as
 * they do through another mount: by its size, its time of change, its header and a piece of
 * each of its tensors. Called by group_load.c, collectively, and only where the numbers
 * differ. It never makes two files one that differ in any of that.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "group/plan.h"

#define PIECE 4096u
#define PIECES_MAX 4096u /* of a model, as they may all come from a far store */
#define FILES_MAX PST_FILES_TOLD

/* ---- one file ---- */

static uint64_t mix_bytes(uint64_t h, const char *bytes, size_t len)
{
	uint64_t word = 0;

	for (; len >= sizeof(word); bytes += sizeof(word), len -= sizeof(word)) {
		memcpy(&word, bytes, sizeof(word));
		h = pst_share_mix(h, word);
	}
	word = 0;
	memcpy(&word, bytes, len);
	return pst_share_mix(pst_share_mix(h, word), len);
}

/* The middle of a tensor. */
static size_t piece_of(const struct pst_shard *shard, size_t tensor, off_t *off)
{
	const struct pst_st_tensor *t = &shard->st.tensors[tensor];
	uint64_t len = t->end - t->begin < PIECE ? t->end - t->begin : PIECE;

	*off = (off_t)(shard->data_off + t->begin + (t->end - t->begin - len) / 2);
	return len;
}

static int mix_pieces(const struct pst_shard *shard, int fd, size_t step, uint64_t *h)
{
	char bytes[PIECE];
	off_t off;

	/* All are asked for before the first is waited for. */
	for (size_t i = 0; i < shard->st.count; i += step) {
		size_t len = piece_of(shard, i, &off);

		posix_fadvise(fd, off, (off_t)len, POSIX_FADV_WILLNEED);
	}
	for (size_t i = 0; i < shard->st.count; i += step) {
		size_t len = piece_of(shard, i, &off);
		ssize_t n;

		do
			n = pread(fd, bytes, len, off);
		while (n < 0 && errno == EINTR);
		if (n < 0)
			return pst_weights_fail_errno(errno, shard->path, shard->st.tensors[i].name,
						      (uint64_t)off, "%m");
		*h = mix_bytes(*h, bytes, (size_t)n);
	}
	return 0;
}

static int look_at(struct penstock_weights *w, unsigned index)
{
	struct pst_shard *shard = &w->shards[index];
	const struct stat *st = &shard->stat;
	size_t most = PIECES_MAX / w->shard_count + 1;
	struct penstock_storage *storage;
	int ret = pst_shard_storage(w, index, &storage);
	uint64_t h;

	if (ret)
		return ret;
	h = pst_share_mix(pst_share_mix(1, (uint64_t)st->st_size), (uint64_t)st->st_mtim.tv_sec);
	h = pst_share_mix(h, (uint64_t)st->st_mtim.tv_nsec);
	/* As the parser left it: the same for the same bytes. */
	h = mix_bytes(h, shard->st.text, shard->data_off - PST_ST_PREFIX);
	ret = mix_pieces(shard, w->sources[index].fd, shard->st.count / most + 1, &h);
	if (!ret)
		shard->content = h ? h : 1;
	return ret;
}

/* ---- all of them ---- */

/* Once a model, as it may be loaded in many parts. */
static int look_at_all(struct penstock_weights *w, unsigned which)
{
	int ret = 0;

	(void)which;
	for (unsigned i = 0; i < w->shard_count && !ret; i++)
		if (!w->shards[i].content)
			ret = look_at(w, i);
	return ret;
}

static int compare(const struct penstock_weights *w, unsigned ranks, const struct pst_said *said)
{
	for (unsigned r = 1; r < ranks; r++)
		if (said[r].len != said[0].len)
			return pst_said_wrong(r);
	for (unsigned r = 1; r < ranks; r++) {
		size_t i = 0, count = said[0].len / sizeof(uint64_t);

		while (i < count && !memcmp(said[r].bytes + 8 * i, said[0].bytes + 8 * i, 8))
			i++;
		if (i < count)
			return pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, w->shards[i].path, NULL,
						PST_NO_OFF,
						"rank %u has another file than rank 0 "
						"(size, time of change or content differ)",
						r);
	}
	return 0;
}

int pst_group_same(struct penstock_group *g, struct penstock_weights *w, struct pst_said *said)
{
	size_t count = w->shard_count < FILES_MAX ? w->shard_count : FILES_MAX;
	uint64_t *files = calloc(count + 1, sizeof(*files));
	int ret = files ? pst_group_apart(g, w, look_at_all, 0)
			: pst_weights_no_memory("what ranks say");

	for (unsigned i = 0; i < w->shard_count && !ret; i++)
		files[i < FILES_MAX ? i : FILES_MAX - 1] ^= w->shards[i].content;
	ret = pst_group_tell(g, ret, files, count * sizeof(*files), -1, said);
	if (!ret)
		ret = compare(w, pst_group_size(g), said);
	pst_said_free(g, said);
	free(files);
	return ret;
}
