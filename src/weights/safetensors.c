/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the header of a safetensors file; see safetensors.h. A malformed or hostile header can
 * contain any values. The functions here check all of them, and other code then trusts offsets,
 * shapes and names. After the check, the tensors cover the data from the first byte to the last in
 * order, and no two tensors overlap. An error names the tensor and the offset.
 */
#include "weights/safetensors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/utf8.h"
#include "common/json.h"
#include "weights/sort_names.h"

#define RANK_MAX PENSTOCK_RANK_MAX

struct header_state {
	struct pst_json in;
	struct pst_st st;
	size_t tensors_capacity, shapes_capacity, pairs_capacity, shape_count;
	const char *name; /* Name of the tensor being parsed. */
	bool no_memory;
};

static const struct {
	const char *name;
	unsigned bits;
} dtypes[] = {{"none", 0},
#define ROW(code, name, bits) {name, bits},
	      PENSTOCK_DTYPE_LIST(ROW)
#undef ROW
};

const char *penstock_dtype_name(unsigned dtype)
{
	return dtype < PENSTOCK_DTYPES ? dtypes[dtype].name : "none";
}

unsigned penstock_dtype_bits(unsigned dtype)
{
	return dtype < PENSTOCK_DTYPES ? dtypes[dtype].bits : 0;
}

int pst_st_dtype(const char *name)
{
	for (int i = 1; i < PENSTOCK_DTYPES; i++)
		if (!strcmp(name, dtypes[i].name))
			return i;
	return 0;
}

int pst_st_bytes(enum penstock_dtype dtype, const uint64_t *shape, unsigned rank, uint64_t *out)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < rank; i++)
		if (__builtin_mul_overflow(n, shape[i], &n))
			return false;
	if (__builtin_mul_overflow(n, (uint64_t)dtypes[dtype].bits, &n) || n % 8)
		return false;
	*out = n / 8;
	return true;
}

/* ---- errors ---- */

__attribute__((format(printf, 4, 5))) static int
header_fail(struct pst_st_error *err, const char *tensor, uint64_t at, const char *fmt, ...)
{
	va_list args;

	err->at = at;
	if (snprintf(err->tensor, sizeof(err->tensor), "%s", tensor) >= (int)sizeof(err->tensor))
		pst_utf8_end(err->tensor, sizeof(err->tensor) - 1);
	va_start(args, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, args);
	va_end(args);
	return -EBADMSG;
}

int64_t pst_st_header_length(const unsigned char prefix[PST_ST_PREFIX], uint64_t file_len,
			     struct pst_st_error *err)
{
	uint64_t len = 0;

	for (unsigned i = PST_ST_PREFIX; i-- > 0;)
		len = len << 8 | prefix[i];
	/* A length that begins with these four bytes is above the limit, unless the next four are
	 * zero. In a zip archive, they are not zero. */
	if (len > PST_ST_HEADER_MAX && !memcmp(prefix, "PK\3\4", 4))
		return header_fail(err, "", 0,
				   "it is a zip archive, as torch.save writes, not a safetensors "
				   "file: use torch.load or penstock.torch.load");
	if (len > PST_ST_HEADER_MAX)
		return header_fail(err, "", 0,
				   "it claims a header of %llu bytes; %u are the most that is read",
				   (unsigned long long)len, PST_ST_HEADER_MAX);
	if (file_len < PST_ST_PREFIX || len > file_len - PST_ST_PREFIX)
		return header_fail(err, "", 0,
				   "it claims a header of %llu bytes, but the file has only %llu",
				   (unsigned long long)len, (unsigned long long)file_len);
	if (len < 2)
		return header_fail(
			err, "", 0,
			"it claims a header of %llu bytes, but the shortest, {}, has two",
			(unsigned long long)len);
	return (int64_t)len;
}

/* ---- growing tables ---- */

/* Makes room for another element in *table, which has `count` elements of `each` bytes. */
static bool table_grow(struct header_state *s, void *table, size_t *capacity, size_t count,
		       size_t each)
{
	void *old, *more;

	if (count < *capacity)
		return true;
	memcpy(&old, table, sizeof(old));
	more = reallocarray(old, *capacity ? *capacity * 2 : 64, each);
	if (!more) {
		s->no_memory = true;
		return pst_json_wrong(&s->in, "no memory");
	}
	*capacity = *capacity ? *capacity * 2 : 64;
	memcpy(table, &more, sizeof(more));
	return true;
}

/* ---- parsing ---- */

static bool read_shape(struct header_state *s, struct pst_st_tensor *t)
{
	bool first = true;

	t->rank = 0;
	if (!pst_json_take(&s->in, '['))
		return false;
	while (pst_json_more(&s->in, ']', &first)) {
		if (t->rank == RANK_MAX)
			return pst_json_wrong(&s->in, "the shape has too many dimensions");
		if (!table_grow(s, &s->st.shapes, &s->shapes_capacity, s->shape_count,
				sizeof(uint64_t)) ||
		    !pst_json_number(&s->in, &s->st.shapes[s->shape_count]))
			return false;
		s->shape_count++;
		t->rank++;
	}
	return !s->in.what;
}

static bool read_offsets(struct header_state *s, struct pst_st_tensor *t)
{
	bool first = true;
	uint64_t values[2];
	unsigned count = 0;

	if (!pst_json_take(&s->in, '['))
		return false;
	while (pst_json_more(&s->in, ']', &first)) {
		if (count == 2)
			return pst_json_wrong(&s->in, "data_offsets has more than two numbers");
		if (!pst_json_number(&s->in, &values[count++]))
			return false;
	}
	if (!s->in.what && count != 2)
		return pst_json_wrong(&s->in, "data_offsets has fewer than two numbers");
	t->begin = values[0];
	t->end = values[1];
	return !s->in.what;
}

static bool read_dtype(struct header_state *s, struct pst_st_tensor *t)
{
	size_t len;
	char *name;
	int dtype;

	if (!pst_json_string(&s->in, &name, &len))
		return false;
	dtype = pst_st_dtype(name);
	if (!dtype)
		return pst_json_wrong(&s->in, "the dtype is not known");
	t->dtype = (enum penstock_dtype)dtype;
	return true;
}

/* Parses the JSON object of one tensor: {"dtype": ..., "shape": [...], "data_offsets": [begin,
 * end]}, with its fields in any order. */
static bool read_info(struct header_state *s, struct pst_st_tensor *t)
{
	static const char *const fields[] = {"dtype", "shape", "data_offsets"};
	bool first = true, ok;
	unsigned seen = 0;
	size_t len;
	char *key;

	if (!pst_json_take(&s->in, '{'))
		return false;
	while (pst_json_more(&s->in, '}', &first)) {
		unsigned i = 0;

		if (!pst_json_string(&s->in, &key, &len) || !pst_json_take(&s->in, ':'))
			return false;
		while (i < 3 && strcmp(key, fields[i]))
			i++;
		if (i < 3 && seen & 1u << i)
			return pst_json_wrong(&s->in, "a field occurs twice");
		seen |= i < 3 ? 1u << i : 0;
		ok = i == 0   ? read_dtype(s, t)
		     : i == 1 ? read_shape(s, t)
		     : i == 2 ? read_offsets(s, t)
			      /* Ignores any other field, since other programs add fields. */
			      : pst_json_skip(&s->in);
		if (!ok)
			return false;
	}
	if (!s->in.what && seen != 7)
		return pst_json_wrong(&s->in, !(seen & 1)   ? "the tensor has no dtype"
					      : !(seen & 2) ? "the tensor has no shape"
							    : "the tensor has no data_offsets");
	return !s->in.what;
}

static bool read_metadata(struct header_state *s)
{
	bool first = true;
	size_t len;

	if (s->st.has_metadata)
		return pst_json_wrong(&s->in, "the metadata occur twice");
	s->st.has_metadata = true;
	if (!pst_json_take(&s->in, '{'))
		return false;
	while (pst_json_more(&s->in, '}', &first)) {
		char *key, *value;

		if (!table_grow(s, &s->st.pairs, &s->pairs_capacity, s->st.pair_count,
				sizeof(*s->st.pairs)) ||
		    !pst_json_string(&s->in, &key, &len) || !pst_json_take(&s->in, ':') ||
		    !pst_json_string(&s->in, &value, &len))
			return false;
		s->st.pairs[s->st.pair_count++] = (struct pst_st_pair){key, value};
	}
	return !s->in.what;
}

static bool read_header(struct header_state *s)
{
	bool first = true;
	size_t len;
	char *name;

	if (s->in.text[0] != '{')
		return pst_json_wrong(&s->in, "'{' is missing");
	s->in.at = 1;
	while (pst_json_more(&s->in, '}', &first)) {
		struct pst_st_tensor *t;

		if (!pst_json_string(&s->in, &name, &len) || !pst_json_take(&s->in, ':'))
			return false;
		s->name = name;
		if (!strcmp(name, PST_ST_METADATA)) {
			if (!read_metadata(s))
				return false;
			continue;
		}
		if (len > PST_ST_NAME_MAX)
			return pst_json_wrong(&s->in, "the name has more than 4096 bytes");
		if (!table_grow(s, &s->st.tensors, &s->tensors_capacity, s->st.count,
				sizeof(*s->st.tensors)))
			return false;
		t = &s->st.tensors[s->st.count];
		*t = (struct pst_st_tensor){.name = name};
		if (!read_info(s, t))
			return false;
		s->st.count++;
	}
	if (!s->in.what)
		s->name = "";
	return !s->in.what && pst_json_end(&s->in);
}

/* ---- checks over the whole header ---- */

static int by_place(const void *a, const void *b)
{
	const struct pst_st_tensor *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Returns the offset of a tensor's name in the header. Messages point there, since the tensor's
 * values follow its name. */
static uint64_t name_offset(const struct pst_st *st, const char *name)
{
	return (uint64_t)(name - st->text);
}

/* Checks that each byte of the data belongs to exactly one tensor. `len` is the length of the
 * header. `data_len` is the length of the data that follow the header. */
static int check_places(struct pst_st *st, size_t len, uint64_t data_len, struct pst_st_error *err)
{
	uint64_t at = 0, bytes;

	for (size_t i = 0; i < st->count; i++) {
		const struct pst_st_tensor *t = &st->tensors[i];

		if (!pst_st_bytes(t->dtype, t->shape, t->rank, &bytes))
			return header_fail(err, t->name, name_offset(st, t->name),
					   "its shape has too many elements, or no whole bytes");
		if (t->end < t->begin || t->end - t->begin != bytes)
			return header_fail(
				err, t->name, name_offset(st, t->name),
				"data_offsets are %llu to %llu, but its shape needs %llu bytes",
				(unsigned long long)t->begin, (unsigned long long)t->end,
				(unsigned long long)bytes);
		if (t->begin != at)
			return header_fail(
				err, t->name, name_offset(st, t->name),
				"it begins at %llu, the tensor before it ends at %llu: %s",
				(unsigned long long)t->begin, (unsigned long long)at,
				t->begin < at ? "they overlap" : "a hole");
		at = t->end;
	}
	if (at > data_len)
		return header_fail(
			err, st->tensors[st->count - 1].name,
			name_offset(st, st->tensors[st->count - 1].name),
			"the file is truncated: the tensors need %llu bytes, it has %llu",
			(unsigned long long)at, (unsigned long long)data_len);
	if (at < data_len)
		return header_fail(err, "", len + at, "%llu bytes follow the last tensor",
				   (unsigned long long)(data_len - at));
	return 0;
}

static int name_tensors(struct pst_st *st, struct pst_named *list, struct pst_st_error *err)
{
	for (size_t i = 0; i < st->count; i++)
		list[i] = (struct pst_named){0, st->tensors[i].name, (uint32_t)i};
	pst_sort_names(list, st->count);
	for (size_t i = 0; i < st->count; i++) {
		st->by_name[i] = list[i].at;
		if (i && !strcmp(list[i - 1].name, list[i].name))
			return header_fail(err, list[i].name, name_offset(st, list[i].name),
					   "it occurs twice");
	}
	return 0;
}

static int order_pairs(struct pst_st *st, struct pst_named *list, struct pst_st_error *err)
{
	struct pst_st_pair *ordered = malloc((st->pair_count + 1) * sizeof(*ordered));

	if (!ordered)
		return -ENOMEM;
	for (size_t i = 0; i < st->pair_count; i++)
		list[i] = (struct pst_named){0, st->pairs[i].key, (uint32_t)i};
	pst_sort_names(list, st->pair_count);
	for (size_t i = 0; i < st->pair_count; i++)
		ordered[i] = st->pairs[list[i].at];
	free(st->pairs);
	st->pairs = ordered;
	for (size_t i = 1; i < st->pair_count; i++)
		if (!strcmp(ordered[i - 1].key, ordered[i].key))
			return header_fail(err, "", name_offset(st, ordered[i].key),
					   "the metadata have '%.100s' twice", ordered[i].key);
	return 0;
}

static int check_names(struct pst_st *st, struct pst_st_error *err)
{
	size_t most = st->count > st->pair_count ? st->count : st->pair_count;
	struct pst_named *list;
	int ret = -ENOMEM;

	if (most > UINT32_MAX)
		return ret;
	list = malloc((most + 1) * sizeof(*list));
	st->by_name = malloc((st->count + 1) * sizeof(*st->by_name));
	if (list && st->by_name)
		ret = name_tensors(st, list, err);
	if (!ret)
		ret = order_pairs(st, list, err);
	free(list);
	return ret;
}

int pst_st_parse(char *text, size_t len, uint64_t data_len, struct pst_st *out,
		 struct pst_st_error *err)
{
	struct header_state s = {.in = {text, len, 0, NULL}, .st = {.text = text}, .name = ""};
	size_t at = 0;
	int ret = 0;

	*err = (struct pst_st_error){.at = UINT64_MAX};
	text[len] = '\0';
	if (!read_header(&s)) {
		header_fail(err, s.name, s.in.at, "%s", s.in.what);
		ret = s.no_memory ? -ENOMEM : -EBADMSG;
	}
	if (!ret) {
		/* Sets the pointers into the table of shapes only now, because the table may
		 * have moved while it grew. */
		for (size_t i = 0; i < s.st.count; i++) {
			s.st.tensors[i].shape = s.st.shapes ? s.st.shapes + at : NULL;
			at += s.st.tensors[i].rank;
		}
		if (s.st.count)
			qsort(s.st.tensors, s.st.count, sizeof(*s.st.tensors), by_place);
		ret = check_places(&s.st, len, data_len, err);
	}
	if (!ret)
		ret = check_names(&s.st, err);
	if (ret) {
		if (ret == -ENOMEM)
			snprintf(err->text, sizeof(err->text), "no memory for its header");
		pst_st_free(&s.st);
		return ret;
	}
	*out = s.st;
	return 0;
}

void pst_st_free(struct pst_st *st)
{
	free(st->tensors);
	free(st->by_name);
	free(st->pairs);
	free(st->shapes);
	free(st->text);
	*st = (struct pst_st){.tensors = NULL};
}
