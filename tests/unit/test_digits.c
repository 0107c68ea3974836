/* SPDX-License-Identifier: Apache-2.0 */
/* Tests hex digits, the digests of ETags, and base64: published values, random bytes, and texts
 * that must be refused. */
#include "test.h"

#include <ctype.h>
#include <errno.h>

#include "common/digits.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void hex_values(void **state)
{
	(void)state;
	for (int c = -128; c < 256; c++) {
		const char text[2] = {(char)c, '\0'};
		int wanted = isxdigit((unsigned char)c) ? (int)strtol(text, NULL, 16) : -1;

		if (pst_hex_value((char)c) != wanted)
			fail_msg("character %d: %d, expected %d", c, pst_hex_value((char)c),
				 wanted);
	}
}

static void hex(void **state)
{
	static const unsigned char wanted[] = {0x00, 0x9f, 0xa0, 0xff};
	static const char *const wrong[] = {"",		"0",	    "009fa0f",	"009fa0fg",
					    "g09fa0ff", "009f a0f", "0x9fa0ff", "009fa0-f"};
	unsigned char bytes[4];
	char text[9];

	(void)state;
	pst_hex(wanted, sizeof(wanted), text);
	assert_string_equal(text, "009fa0ff");
	pst_hex(wanted, 0, text);
	assert_string_equal(text, "");
	assert_true(pst_hex_parse("009fA0Ff", 4, bytes));
	assert_memory_equal(bytes, wanted, 4);
	memset(bytes, 0, sizeof(bytes));
	assert_true(pst_hex_parse("009fa0ffmore", 4, bytes));
	assert_memory_equal(bytes, wanted, 4);
	assert_true(pst_hex_parse("", 0, bytes));
	for (unsigned i = 0; i < COUNT(wrong); i++) {
		/* Uses a block of exactly the text's length, so that a sanitizer detects a read
		 * beyond its end. */
		char *copy = strdup(wrong[i]);

		assert_non_null(copy);
		if (pst_hex_parse(copy, 4, bytes))
			fail_msg("'%s' is accepted", wrong[i]);
		free(copy);
	}
}

static void digests_of_etags(void **state)
{
	static const struct {
		const char *text;
		bool good;
	} rows[] = {
		{"d41d8cd98f00b204e9800998ecf8427e", true},
		{"d41d8cd98f00b204e9800998ecf8427e\"", true},
		{"d41d8cd98f00b204e9800998ecf8427e-2", true},
		{"d41d8cd98f00b204e9800998ecf8427", false},
		{"d41d8cd98f00b204e9800998ecf8427e0", false},
		{"D41D8CD98F00B204E9800998ECF8427E", false},
		{"d41d8cd98f00b204e9800998ecf8427E", false},
		{"\"d41d8cd98f00b204e9800998ecf8427e", false},
		{"", false},
	};
	static const unsigned char wanted[16] = {0xd4, 0x1d, 0x8c, 0xd9, 0x8f, 0x00, 0xb2, 0x04,
						 0xe9, 0x80, 0x09, 0x98, 0xec, 0xf8, 0x42, 0x7e};

	(void)state;
	for (unsigned i = 0; i < COUNT(rows); i++) {
		unsigned char digest[16] = {0};
		bool good = pst_md5_parse(rows[i].text, digest);

		if (good != rows[i].good)
			fail_msg("'%s': %d, expected %d", rows[i].text, good, rows[i].good);
		if (good)
			assert_memory_equal(digest, wanted, sizeof(wanted));
	}
}

/* Tests base64 with the values of RFC 4648, section 10, and with random bytes. */
static void base64(void **state)
{
	static const char *const texts[] = {"",		"Zg==",	    "Zm8=",    "Zm9v",
					    "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
	uint64_t seed = test_seed(10);
	char text[128];
	unsigned char bytes[64], again[64];

	(void)state;
	for (unsigned n = 0; n < COUNT(texts); n++) {
		pst_base64("foobar", n, text);
		assert_string_equal(text, texts[n]);
	}
	for (unsigned i = 0; i < 1000; i++) {
		size_t len = test_random(&seed) % sizeof(bytes);

		for (size_t k = 0; k < len; k++)
			bytes[k] = (unsigned char)test_random(&seed);
		pst_base64(bytes, len, text);
		assert_int_equal(pst_base64_parse(text, strlen(text), again, len), len);
		assert_memory_equal(again, bytes, len);
		if (len)
			assert_int_equal(pst_base64_parse(text, strlen(text), again, len - 1),
					 -EINVAL);
	}
}

static void texts_that_are_no_base64(void **state)
{
	static const char *const texts[] = {"Z",
					    "Zg",
					    "Zg=",
					    "Zg===",
					    "Z===",
					    "====",
					    "=Zg=",
					    "Zh==",
					    "Zm9=",
					    "Zm9v=",
					    "Zm 9v",
					    "Zm9v\n",
					    "Zm9-",
					    "Zm_v",
					    "Zg==Zg==",
					    "\xff"
					    "m9v"};
	char out[64];

	(void)state;
	for (unsigned i = 0; i < COUNT(texts); i++)
		if (pst_base64_parse(texts[i], strlen(texts[i]), out, sizeof(out)) != -EINVAL)
			fail_msg("'%s' is accepted", texts[i]);
	/* A NUL is not a base64 digit. */
	assert_int_equal(pst_base64_parse("Zm\0v", 4, out, sizeof(out)), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hex_values),
		cmocka_unit_test(hex),
		cmocka_unit_test(digests_of_etags),
		cmocka_unit_test(base64),
		cmocka_unit_test(texts_that_are_no_base64),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
