/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether the ranks opened the same file. Ranks that reach a file through different
 * mounts can see different device or inode numbers. So this code compares the files' sizes,
 * times of modification, headers and a sample of each tensor. Called by load.c on every rank,
 * but only if the device or inode numbers differ. Must never report two files as the same if
 * any of the compared properties differs.
 */
#include "group/compare_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "group/hash.h"
#include "group/watched_call.h"
#include "weights/err.h"
#include "weights/file.h"
#include "weights/url.h"

#define SAMPLE_BYTES 4096u
/* Maximum number of samples of a whole model. It is limited because each sample may be a read
 * from remote storage. */
#define SAMPLES_MAX 4096u

/* ---- one file ---- */

uint64_t pst_group_hash_stat(const struct stat *st)
{
	const uint64_t fields[] = {st->st_dev, st->st_ino, (uint64_t)st->st_size,
				   (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec};
	uint64_t h = 1;

	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		h = pst_hash_add(h, fields[i]);
	return h;
}

static uint64_t hash_bytes(uint64_t h, const char *bytes, size_t len)
{
	uint64_t word = 0;

	for (; len >= sizeof(word); bytes += sizeof(word), len -= sizeof(word)) {
		memcpy(&word, bytes, sizeof(word));
		h = pst_hash_add(h, word);
	}
	word = 0;
	memcpy(&word, bytes, len);
	return pst_hash_add(pst_hash_add(h, word), len);
}

/* Returns the length of a tensor's sample, and sets *off to its offset. The sample is the middle
 * of the tensor. */
static size_t sample_of(const struct pst_model_file *file, size_t tensor, off_t *off)
{
	const struct pst_st_tensor *t = &file->st.tensors[tensor];
	uint64_t len = t->end - t->begin < SAMPLE_BYTES ? t->end - t->begin : SAMPLE_BYTES;

	*off = (off_t)(file->data_off + t->begin + (t->end - t->begin - len) / 2);
	return len;
}

/* Reads a sample of a local file. Returns the number of bytes, or a negative errno. */
static ssize_t sample_read(int fd, char *to, size_t len, off_t off)
{
	ssize_t n;

	do
		n = pread(fd, to, len, off);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static int hash_samples(const struct pst_model_file *file, struct penstock_storage *st, int fd,
			size_t step, uint64_t *h)
{
	char bytes[SAMPLE_BYTES];
	off_t off;

	/* First announces all samples to the kernel, so that it reads them in parallel. Then reads
	 * one sample after the other. */
	for (size_t i = 0; i < file->st.count; i += step) {
		size_t len = sample_of(file, i, &off);

		if (fd >= 0)
			posix_fadvise(fd, off, (off_t)len, POSIX_FADV_WILLNEED);
	}
	for (size_t i = 0; i < file->st.count; i += step) {
		size_t len = sample_of(file, i, &off);
		ssize_t n;

		if (fd < 0) {
			int ret = pst_url_read(file->path, st, bytes, len, (uint64_t)off);

			if (ret)
				return ret;
			n = (ssize_t)len;
		} else {
			n = sample_read(fd, bytes, len, off);
		}
		if (n < 0)
			return pst_weights_fail_errno((int)n, file->path, file->st.tensors[i].name,
						      (uint64_t)off, "%m");
		*h = hash_bytes(*h, bytes, (size_t)n);
	}
	return 0;
}

static int hash_file(struct penstock_weights *w, unsigned index)
{
	struct pst_model_file *file = &w->files[index];
	const struct stat *st = &file->stat;
	size_t most = SAMPLES_MAX / w->file_count + 1;
	struct penstock_storage *storage;
	int ret = pst_model_file_storage(w, index, &storage);
	uint64_t h;

	if (ret)
		return ret;
	h = pst_hash_add(pst_hash_add(1, (uint64_t)st->st_size), (uint64_t)st->st_mtim.tv_sec);
	h = pst_hash_add(h, (uint64_t)st->st_mtim.tv_nsec);
	/* The parser has changed this text, but it changes equal headers in the same way. So equal
	 * headers still have equal hashes. */
	h = hash_bytes(h, file->st.text, file->data_off - PST_ST_PREFIX);
	ret = hash_samples(file, storage, w->sources[index].fd, file->st.count / most + 1, &h);
	if (!ret)
		file->content = h ? h : 1;
	return ret;
}

/* ---- all files ---- */

/* Hashes the files that are not hashed yet. Keeps the hashes in the model, since a model may be
 * loaded in many steps. */
static int hash_all_files(struct penstock_weights *w, unsigned which)
{
	int ret = 0;

	(void)which;
	for (unsigned i = 0; i < w->file_count && !ret; i++)
		if (!w->files[i].content)
			ret = hash_file(w, i);
	return ret;
}

static int compare_hashes(const struct penstock_weights *w, unsigned ranks,
			  const struct pst_message *messages)
{
	for (unsigned r = 1; r < ranks; r++)
		if (messages[r].len != messages[0].len)
			return pst_message_invalid(r);
	for (unsigned r = 1; r < ranks; r++) {
		size_t i = 0, count = messages[0].len / sizeof(uint64_t);

		while (i < count &&
		       !memcmp(messages[r].bytes + 8 * i, messages[0].bytes + 8 * i, 8))
			i++;
		if (i < count)
			return pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, w->files[i].path, NULL,
						PST_NO_OFF,
						"rank %u has another file than rank 0 "
						"(size, time of change or content differ)",
						r);
	}
	return 0;
}

int pst_group_compare_files(struct penstock_group *g, struct penstock_weights *w,
			    struct pst_message *messages)
{
	size_t count = w->file_count < PST_FILES_COMPARED ? w->file_count : PST_FILES_COMPARED;
	uint64_t *files = calloc(count + 1, sizeof(*files));
	int ret = files ? pst_group_watched_call(g, w, hash_all_files, 0)
			: pst_weights_no_memory("the ranks' messages");

	for (unsigned i = 0; i < w->file_count && !ret; i++)
		files[i < PST_FILES_COMPARED ? i : PST_FILES_COMPARED - 1] ^= w->files[i].content;
	ret = pst_group_exchange(g, ret, files, count * sizeof(*files), -1, messages);
	if (!ret)
		ret = compare_hashes(w, pst_group_size(g), messages);
	pst_messages_free(g, messages);
	free(files);
	return ret;
}
