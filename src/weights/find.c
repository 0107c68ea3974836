/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks up tensors, files and metadata of an open model. Called by programs, and through find.h by
 * the loads. It does no I/O and never changes the model.
 */
#include "weights/find.h"

#include <errno.h>
#include <string.h>

#include "weights/err.h"

const char *pst_model_file_tensor_at(const struct pst_model_file *file, uint64_t off)
{
	size_t low = 0, high = file->st.count;

	/* A read may begin at the page boundary before the first tensor, so the offset may be
	 * before the first byte of the data. */
	off -= off < file->data_off ? off : file->data_off;
	/* A binary search for the first tensor that ends behind the offset. */
	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (file->st.tensors[mid].end <= off)
			low = mid + 1;
		else
			high = mid;
	}
	return low < file->st.count ? file->st.tensors[low].name : "";
}

uint64_t penstock_weights_count(const struct penstock_weights *w)
{
	if (w)
		return w->count;
	pst_weights_fail_null("the model");
	return 0;
}

static int fail_out_of_range(const char *what, uint64_t index, uint64_t count)
{
	return pst_weights_fail(ENOENT, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"%s %llu is out of range: there are %llu", what,
				(unsigned long long)index, (unsigned long long)count);
}

int penstock_weights_get(const struct penstock_weights *w, uint64_t index,
			 struct penstock_tensor *out)
{
	const struct pst_tensor_entry *e;
	struct penstock_tensor tensor;

	if (!w || !out)
		return pst_weights_fail_null("the model or the output pointer");
	if (index >= w->count)
		return fail_out_of_range("tensor", index, w->count);
	e = &w->entries[index];
	tensor = (struct penstock_tensor){
		.name = e->t->name,
		.dtype = e->t->dtype,
		.rank = e->t->rank,
		.shape = e->t->shape,
		.bytes = e->t->end - e->t->begin,
		.file = e->file,
		.off = w->files[e->file].data_off + e->t->begin,
	};
	pst_weights_struct_out(out, &tensor, sizeof(tensor));
	return 0;
}

int64_t pst_weights_index(const struct penstock_weights *w, const char *name)
{
	uint64_t low = 0, high = w->count;

	while (low < high) {
		uint64_t mid = low + (high - low) / 2;
		int c = strcmp(name, w->entries[w->by_name[mid]].t->name);

		if (!c)
			return w->by_name[mid];
		if (c < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return -ENOENT;
}

int64_t penstock_weights_find(const struct penstock_weights *w, const char *name)
{
	int64_t found;

	if (!w || !name)
		return pst_weights_fail_null("the model or the name");
	found = pst_weights_index(w, name);
	if (found >= 0)
		return found;
	return pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND,
				w->file_count == 1 ? w->files[0].path : NULL, name, PST_NO_OFF,
				"there is no such tensor");
}

unsigned penstock_weights_file_count(const struct penstock_weights *w)
{
	if (w)
		return w->file_count;
	pst_weights_fail_null("the model");
	return 0;
}

int penstock_weights_get_file(const struct penstock_weights *w, unsigned file,
			      struct penstock_weights_file *out)
{
	struct penstock_weights_file f;

	if (!w || !out)
		return pst_weights_fail_null("the model or the output pointer");
	if (file >= w->file_count)
		return fail_out_of_range("file", file, w->file_count);
	f = (struct penstock_weights_file){
		.path = w->files[file].path,
		.length = (uint64_t)w->files[file].stat.st_size,
		.data_off = w->files[file].data_off,
		.pair_count = (unsigned)w->files[file].st.pair_count,
		.has_metadata = w->files[file].st.has_metadata,
	};
	pst_weights_struct_out(out, &f, sizeof(f));
	return 0;
}

int penstock_weights_get_metadata(const struct penstock_weights *w, unsigned file, unsigned index,
				  const char **key, const char **value)
{
	if (!w || !key || !value)
		return pst_weights_fail_null("the model or an output pointer");
	if (file >= w->file_count)
		return fail_out_of_range("file", file, w->file_count);
	if (index >= w->files[file].st.pair_count)
		return fail_out_of_range("pair", index, w->files[file].st.pair_count);
	*key = w->files[file].st.pairs[index].key;
	*value = w->files[file].st.pairs[index].value;
	return 0;
}
