/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the parser of safetensors headers: it returns every tensor of a valid header, and
 * refuses every invalid one with the right message.
 */
#include "test.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>

#include "weights/safetensors.h"
#include "weights/sort_names.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct pst_st_error err;
static struct pst_st st;

static int parse(const char *json, size_t len, uint64_t data_len)
{
	char *text = malloc(len + 1);

	memcpy(text, json, len);
	return pst_st_parse(text, len, data_len, &st, &err);
}

static void check_parsed(const char *json, uint64_t data_len, size_t count)
{
	if (parse(json, strlen(json), data_len))
		fail_msg("%s: %s (tensor '%s')", json, err.text, err.tensor);
	assert_int_equal(st.count, count);
}

static void test_valid(void **state)
{
	static const char json[] =
		"{\"__metadata__\":{\"format\":\"pt\",\"a\":\"\"},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
		"\"a\":{\"data_offsets\":[0,4],\"shape\":[],\"dtype\":\"I32\"},"
		"\"z\":{\"dtype\":\"U8\",\"shape\":[0,9],\"data_offsets\":[28,28],"
		"\"more\":[1,{\"x\":null}]}}   ";

	(void)state;
	check_parsed(json, 28, 3);
	assert_string_equal(st.tensors[0].name, "a");
	assert_int_equal(st.tensors[0].rank, 0);
	assert_int_equal(st.tensors[0].dtype, PENSTOCK_DTYPE_I32);
	assert_string_equal(st.tensors[1].name, "b");
	assert_int_equal(st.tensors[1].rank, 2);
	assert_int_equal(st.tensors[1].shape[0], 2);
	assert_int_equal(st.tensors[1].shape[1], 3);
	assert_int_equal(st.tensors[1].begin, 4);
	assert_int_equal(st.tensors[1].end, 28);
	assert_int_equal(st.tensors[2].shape[1], 9);
	assert_true(st.has_metadata);
	assert_int_equal(st.pair_count, 2);
	assert_string_equal(st.pairs[0].key, "a");
	assert_string_equal(st.pairs[1].value, "pt");
	pst_st_free(&st);
	check_parsed("{}", 0, 0);
	pst_st_free(&st);
	check_parsed("{ \n\t\r}", 0, 0);
	pst_st_free(&st);
}

static void test_names(void **state)
{
	(void)state;
	check_parsed("{\"\\u0041\\n\\\\\\u00e4\\ud83d\\ude00\\/\":"
		     "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
		     1, 1);
	assert_string_equal(st.tensors[0].name, "A\n\\\xc3\xa4\xf0\x9f\x98\x80/");
	pst_st_free(&st);
	check_parsed("{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 1);
	assert_string_equal(st.tensors[0].name, "");
	pst_st_free(&st);
}

/* The parser must accept data of exactly the length that each dtype needs, and must refuse data
 * that is one byte shorter. */
static void test_dtypes(void **state)
{
	char json[200];

	(void)state;
	for (unsigned d = 1; d < PENSTOCK_DTYPES; d++) {
		unsigned bytes = penstock_dtype_bits(d) * 8 / 8; /* For 8 elements. */

		assert_true(penstock_dtype_bits(d) >= 4);
		snprintf(json, sizeof(json),
			 "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%u]}}",
			 penstock_dtype_name(d), bytes);
		check_parsed(json, bytes, 1);
		assert_int_equal(st.tensors[0].dtype, d);
		pst_st_free(&st);
		snprintf(json, sizeof(json),
			 "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%u]}}",
			 penstock_dtype_name(d), bytes - 1);
		assert_int_equal(parse(json, strlen(json), bytes - 1), -EBADMSG);
		assert_string_equal(err.tensor, "t");
	}
	assert_string_equal(penstock_dtype_name(PENSTOCK_DTYPES), "none");
	assert_int_equal(penstock_dtype_bits(PENSTOCK_DTYPES), 0);
}

#define T(fields) "{\"t\":{" fields "}}"
#define D "\"dtype\":\"U8\""
#define S "\"shape\":[4]"
#define O "\"data_offsets\":[0,4]"
#define TWO(a, b)                                              \
	"{\"a\":{" D ",\"shape\":[4],\"data_offsets\":" a "}," \
	"\"b\":{" D ",\"shape\":[4],\"data_offsets\":" b "}}"

/* Invalid headers, and for each header words that the message must contain. Each header is
 * followed by 4 bytes of data. */
static const struct {
	const char *json, *words;
} bad_headers[] = {
	{"[]", "'{' is missing"},
	{" {}", "'{' is missing"},
	{"{", "a string is missing"},
	{"{} x", "behind the end"},
	{"{}", "4 bytes follow the last tensor"},
	{T(D "," S "," O) "}", "behind the end"},
	{T(D "," S "," O ","), "a comma too many"},
	{T(D S "," O), "a comma is missing"},
	{T(D "," S), "no data_offsets"},
	{T(D "," O), "no shape"},
	{T(S "," O), "no dtype"},
	{T(D "," D "," S "," O), "twice"},
	{T("\"dtype\":\"U9\"," S "," O), "dtype is not known"},
	{T("\"dtype\":\"none\"," S "," O), "dtype is not known"},
	{T("\"dtype\":8," S "," O), "a string is missing"},
	{T(D ",\"shape\":4," O), "'[' is missing"},
	{T(D ",\"shape\":[-4]," O), "whole number"},
	{T(D ",\"shape\":[4.0]," O), "not whole"},
	{T(D ",\"shape\":[4e0]," O), "not whole"},
	{T(D ",\"shape\":[04]," O), "begins with 0"},
	{T(D ",\"shape\":[18446744073709551616]," O), "64 bits"},
	{T(D ",\"shape\":[4294967296,4294967296]," O), "too many elements"},
	{T("\"dtype\":\"F64\",\"shape\":[9223372036854775807]," O), "too many elements"},
	{T("\"dtype\":\"F4\",\"shape\":[9]," O), "no whole bytes"},
	{T("\"dtype\":\"F6_E2M3\",\"shape\":[3]," O), "no whole bytes"},
	{T(D "," S ",\"data_offsets\":[0]"), "fewer than two"},
	{T(D "," S ",\"data_offsets\":[0,4,8]"), "more than two"},
	{T(D "," S ",\"data_offsets\":[4,0]"), "its shape needs 4"},
	{T(D "," S ",\"data_offsets\":[0,5]"), "its shape needs 4"},
	{T(D ",\"shape\":[8],\"data_offsets\":[0,8]"), "truncated"},
	{T(D ",\"shape\":[2],\"data_offsets\":[0,2]"), "2 bytes follow"},
	{T(D ",\"shape\":[2],\"data_offsets\":[2,4]"), "a hole"},
	{TWO("[0,4]", "[0,4]"), "overlap"},
	{TWO("[0,4]", "[2,6]"), "overlap"},
	{TWO("[0,4]", "[8,12]"), "a hole"},
	{"{\"t\":{" D ",\"shape\":[4],\"data_offsets\":[0,4]},"
	 "\"t\":{" D ",\"shape\":[0],\"data_offsets\":[4,4]}}",
	 "twice"},
	{"{\"t\":{" D ",\"shape\":[4],\"data_offsets\":[0,4]},"
	 "\"\\u0074\":{" D ",\"shape\":[0],\"data_offsets\":[4,4]}}",
	 "twice"},
	{"{\"__metadata__\":{\"a\":1},\"t\":{" D "," S "," O "}}", "a string is missing"},
	{"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"},\"t\":{" D "," S "," O "}}", "twice"},
	{"{\"__metadata__\":{},\"__metadata__\":{},\"t\":{" D "," S "," O "}}", "twice"},
	{"{\"\\u0000\":{" D "," S "," O "}}", "a NUL"},
	{"{\"\\ud800\":{" D "," S "," O "}}", "surrogate"},
	{"{\"\\udc00\":{" D "," S "," O "}}", "surrogate"},
	{"{\"\\ud800\\u0041\":{" D "," S "," O "}}", "surrogate"},
	{"{\"\\x\":{" D "," S "," O "}}", "escape"},
	{"{\"\\u00g0\":{" D "," S "," O "}}", "hexadecimal"},
	{"{\"a\nb\":{" D "," S "," O "}}", "control character"},
	{"{\"\xff\":{" D "," S "," O "}}", "not UTF-8"},
	{"{\"\xc0\xaf\":{" D "," S "," O "}}", "not UTF-8"},
	{"{\"\xe0\x80\x80\":{" D "," S "," O "}}", "not UTF-8"},
	{"{\"\xed\xa0\x80\":{" D "," S "," O "}}", "not UTF-8"},
	{"{\"\xf4\x90\x80\x80\":{" D "," S "," O "}}", "not UTF-8"},
	{"{\"t", "without end"},
	{T(D "," S "," O ",\"x\":tru"), "a value is missing"},
	{T(D "," S "," O ",\"x\":-"), "a digit"},
	{T(D "," S "," O ",\"x\":NaN"), "a value is missing"},
	{T(D "," S "," O ",\"x\":[Infinity]"), "a value is missing"},
	{T(D "," S "," O ",\"x\":-Infinity"), "a digit"},
};

static void test_bad_headers(void **state)
{
	(void)state;
	for (unsigned i = 0; i < COUNT(bad_headers); i++) {
		if (parse(bad_headers[i].json, strlen(bad_headers[i].json), 4) != -EBADMSG)
			fail_msg("taken: %s", bad_headers[i].json);
		if (!strstr(err.text, bad_headers[i].words))
			fail_msg("%s: '%s', expected words '%s'", bad_headers[i].json, err.text,
				 bad_headers[i].words);
		/* The reported offset must lie in the header, or in the data after the last
		 * tensor. */
		if (err.at >
		    strlen(bad_headers[i].json) + (strstr(err.text, "follow the last") ? 4 : 0))
			fail_msg("%s: at %llu", bad_headers[i].json, (unsigned long long)err.at);
		if (*err.tensor && strstr(err.text, "overlap"))
			assert_memory_equal(bad_headers[i].json + err.at, err.tensor,
					    strlen(err.tensor));
	}
}

/* A header that is cut short at any byte is refused, and the parser reads no byte after the
 * cut. */
static void test_truncated(void **state)
{
	static const char json[] = "{\"__metadata__\":{\"\\u00e4\":\"\xc3\xa4\"},"
				   "\"t\":{\"dtype\":\"U8\",\"shape\":[4],"
				   "\"data_offsets\":[0,4],\"x\":[1.5e3,{}]}}";

	(void)state;
	check_parsed(json, 4, 1);
	pst_st_free(&st);
	for (size_t len = 1; len < sizeof(json) - 1; len++)
		assert_int_equal(parse(json, len, 4), -EBADMSG);
}

static void check_depth(const char *open, const char *close, unsigned depth, bool taken)
{
	static char json[4096];
	size_t at = (size_t)snprintf(json, sizeof(json), "{\"t\":{" D "," S "," O ",\"x\":");

	for (unsigned i = 0; i < depth; i++)
		at += (size_t)snprintf(json + at, sizeof(json) - at, "%s", open);
	at += (size_t)snprintf(json + at, sizeof(json) - at, "0");
	for (unsigned i = 0; i < depth; i++)
		at += (size_t)snprintf(json + at, sizeof(json) - at, "%s", close);
	snprintf(json + at, sizeof(json) - at, "}}");
	assert_int_equal(parse(json, strlen(json), 4), taken ? 0 : -EBADMSG);
	if (taken)
		pst_st_free(&st);
	else
		assert_string_equal(err.text, "nested too deeply");
}

static void test_limits(void **state)
{
	static char json[16384];
	size_t at = (size_t)snprintf(json, sizeof(json), "{\"t\":{" D ",\"shape\":[4");

	(void)state;
	check_depth("[", "]", 64, true);
	check_depth("[", "]", 65, false);
	check_depth("{\"a\":", "}", 64, true);
	check_depth("{\"a\":", "}", 65, false);
	for (unsigned i = 1; i < PENSTOCK_RANK_MAX; i++)
		at += (size_t)snprintf(json + at, sizeof(json) - at, ",1");
	snprintf(json + at, sizeof(json) - at, "]," O "}}");
	check_parsed(json, 4, 1);
	pst_st_free(&st);
	snprintf(json + at, sizeof(json) - at, ",1]," O "}}");
	assert_int_equal(parse(json, strlen(json), 4), -EBADMSG);

	for (unsigned len = PST_ST_NAME_MAX; len <= PST_ST_NAME_MAX + 1; len++) {
		memset(json, 'n', len + 2);
		memcpy(json, "{\"", 2);
		snprintf(json + 2 + len, sizeof(json) - 2 - len, "\":{" D "," S "," O "}}");
		assert_int_equal(parse(json, strlen(json), 4),
				 len == PST_ST_NAME_MAX ? 0 : -EBADMSG);
		if (len == PST_ST_NAME_MAX)
			pst_st_free(&st);
	}
}

static void encode_le(unsigned char *to, uint64_t value)
{
	for (unsigned i = 0; i < 8; i++)
		to[i] = (unsigned char)(value >> 8 * i);
}

static void test_length(void **state)
{
	static const struct {
		uint64_t header, file;
		int64_t want;
	} rows[] = {
		{2, 10, 2},
		{2, 1000, 2},
		{3, 10, -1},
		{0, 10, -1},
		{1, 10, -1},
		{UINT64_MAX, 10, -1},
		{2, 7, -1},
		{0, 0, -1},
		{PST_ST_HEADER_MAX, UINT64_MAX, PST_ST_HEADER_MAX},
		{PST_ST_HEADER_MAX + 1, UINT64_MAX, -1},
		{UINT64_MAX - 7, UINT64_MAX, -1},
	};
	unsigned char prefix[8];

	(void)state;
	for (unsigned i = 0; i < COUNT(rows); i++) {
		encode_le(prefix, rows[i].header);
		assert_int_equal(pst_st_header_length(prefix, rows[i].file, &err),
				 rows[i].want < 0 ? -EBADMSG : rows[i].want);
	}
}

/* The header has 200,000 tensors. A parser with a quadratic algorithm would seem to hang. */
static void test_many_tensors(void **state)
{
	enum { MANY = 200000 };
	size_t room = (size_t)MANY * 80, at = 1;
	char *json = malloc(room);

	(void)state;
	json[0] = '{';
	for (unsigned i = 0; i < MANY; i++)
		at += (size_t)snprintf(json + at, room - at,
				       "%s\"layer.%u\":{\"dtype\":\"U8\",\"shape\":[1],"
				       "\"data_offsets\":[%u,%u]}",
				       i ? "," : "", i * 7919u % MANY, i, i + 1);
	at += (size_t)snprintf(json + at, room - at, "}");
	assert_int_equal(parse(json, at, MANY), 0);
	assert_int_equal(st.count, MANY);
	pst_st_free(&st);
	free(json);
}

/* Puts random bytes into a valid header. The parser may accept or refuse the header, but must not
 * crash. */
static void test_random_bytes(void **state)
{
	static const char json[] =
		"{\"__metadata__\":{\"k\":\"v\"},"
		"\"a\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
		"\"\\u00e4\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[8,10]}}";
	uint64_t seed = test_seed(5);
	char copy[sizeof(json)];

	(void)state;
	for (unsigned i = 0; i < 20000; i++) {
		memcpy(copy, json, sizeof(json));
		for (unsigned n = 1 + test_random(&seed) % 3; n; n--)
			copy[test_random(&seed) % (sizeof(json) - 1)] = (char)test_random(&seed);
		if (!parse(copy, sizeof(json) - 1, 10))
			pst_st_free(&st);
		else
			assert_true(err.text[0]);
	}
}

__attribute__((format(printf, 2, 3))) static int append(char *to, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(to, 64, fmt, args);
	va_end(args);
	return n;
}

/* Sorts thousands of names in the order of strcmp. The names have common prefixes of any length,
 * and some names are prefixes of others. */
static void test_sort_names(void **state)
{
	static struct pst_named list[20000];
	uint64_t seed = test_seed(11);
	char *names = malloc(COUNT(list) * 64);
	bool seen[COUNT(list)] = {false};

	(void)state;
	for (unsigned round = 0; round < 20; round++) {
		unsigned count = round < 10 ? round * 3 : (unsigned)COUNT(list);

		for (unsigned i = 0; i < count; i++) {
			unsigned same = (unsigned)(test_random(&seed) % 40), n = same;

			memset(names + i * 64, round % 2 ? 'x' : 0xc3, same);
			while (n < 60 && test_random(&seed) % 4)
				names[i * 64 + n++] = (char)("a\xff\x01z"[test_random(&seed) % 4]);
			names[i * 64 + n] = '\0';
			list[i] = (struct pst_named){0, names + i * 64, i};
		}
		pst_sort_names(list, count);
		memset(seen, 0, sizeof(seen));
		for (unsigned i = 0; i < count; i++) {
			assert_false(seen[list[i].at]);
			seen[list[i].at] = true;
			assert_ptr_equal(list[i].name, names + list[i].at * 64);
			assert_true(!i || strcmp(list[i - 1].name, list[i].name) <= 0);
		}
	}
	free(names);
}

/* Sorting needs neither a deep stack nor quadratic time. This must hold even if each name is one
 * letter longer than the one before it, or if two very long names differ only at their ends. */
static void test_long_common_prefixes(void **state)
{
	const size_t long_one = 4 << 20;
	char *text = malloc(2 * long_one + 1000000 * 8), *at = text;

	(void)state;
	at += append(at, "{\"__metadata__\":{\"");
	for (unsigned i = 0; i < 2; i++) {
		memset(at, 'k', long_one);
		at += long_one;
		at += append(at, "%u\":\"\",\"", i);
	}
	for (unsigned i = 0; i < 2000; i++) {
		memset(at, 'm', i);
		at += i;
		at += append(at, "\":\"\"%s", i < 1999 ? ",\"" : "}}");
	}
	assert_int_equal(parse(text, (size_t)(at - text), 0), 0);
	assert_int_equal(st.pair_count, 2002);
	assert_int_equal(strlen(st.pairs[0].key), 0);
	assert_int_equal(st.pairs[1].key[long_one], '0');
	pst_st_free(&st);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_valid),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_dtypes),
		cmocka_unit_test(test_bad_headers),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_length),
		cmocka_unit_test(test_many_tensors),
		cmocka_unit_test(test_random_bytes),
		cmocka_unit_test(test_sort_names),
		cmocka_unit_test(test_long_common_prefixes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
