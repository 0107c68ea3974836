/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the parser of the XML lists of objects that an S3 store returns. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/listing.h"
#include "test.h"

#define HEAD "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/\">"
#define TAIL "</ListBucketResult>\n"

/* The objects of the parsed page, as one text. */
static char seen[1024];

static int add(void *user, const struct pst_listed *o)
{
	size_t len = strlen(seen);

	(void)user;
	snprintf(seen + len, sizeof(seen) - len, "%s%s %llu %lld;", o->key, o->folder ? " +" : "",
		 (unsigned long long)o->bytes, (long long)o->time_ns);
	return 0;
}

static int parse(const char *page, const char **next)
{
	static char text[4096];

	snprintf(text, sizeof(text), "%s", page);
	seen[0] = '\0';
	return pst_listing_parse(text, strlen(text), add, NULL, next);
}

static void test_page(void **state)
{
	const char *next;

	(void)state;
	assert_int_equal(parse(HEAD "<Name>b</Name><IsTruncated>true</IsTruncated>"
				    "<NextContinuationToken>a&amp;b&lt;</NextContinuationToken>"
				    "<Contents><Key>run/a%2Bb+c</Key>"
				    "<LastModified>1970-01-01T00:00:02.250Z</LastModified>"
				    "<ETag>&quot;x&#34;</ETag><Size>42</Size>"
				    "<Owner><ID>Key</ID></Owner></Contents>"
				    "<Contents><Size>0</Size><Key>&#x20ac;&#65;</Key></Contents>"
				    "<CommonPrefixes><Prefix>run/step/</Prefix></CommonPrefixes>"
				    "<EncodingType>url</EncodingType>" TAIL,
			       &next),
			 0);
	assert_string_equal(seen, "run/a+b c 42 2250000000;\xe2\x82\xac"
				  "A 0 0;run/step/ + 0 0;");
	assert_string_equal(next, "a&b<");
	/* Without <EncodingType>url</EncodingType>, the parser must not decode the keys. */
	assert_int_equal(parse(HEAD "<Contents><Key>a%2Bb+c</Key></Contents>" TAIL, &next), 0);
	assert_string_equal(seen, "a%2Bb+c 0 0;");
	assert_null(next);
}

static void test_malformed(void **state)
{
	static const char *const pages[] = {
		"",
		"hello",
		"<a>",
		"<a></b>",
		"<a></a></a>",
		"<!DOCTYPE a><a/>",
		"<a><!-- c --></a>",
		"<a><Contents></Contents></a>",
		"<a><Contents><Key></Key></Contents></a>",
		"<a><Contents><Key>&x;</Key></Contents></a>",
		"<a><Contents><Key>&#xd800;</Key></Contents></a>",
		"<a><Contents><Key>&amp</Key></Contents></a>",
		"<a><Contents><Key>k</Key><Size>-1</Size></Contents></a>",
		"<a><Contents><Key>k</Key><Size>99999999999999999999</Size></Contents></a>",
		"<a><Contents><Key>k</Key><LastModified>now</LastModified></Contents></a>",
		"<a><EncodingType>url</EncodingType><Contents><Key>%0</Key></Contents></a>",
		"<a><EncodingType>url</EncodingType><Contents><Key>a%00</Key></Contents></a>",
		"<a><IsTruncated>true</IsTruncated></a>",
		"<a><b><c><d><e><f><g><h><i></i></h></g></f></e></d></c></b></a>",
	};
	const char *next;

	(void)state;
	for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		int ret = parse(pages[i], &next);

		if (ret != -EBADMSG)
			fail_msg("%s: %d instead of %d", pages[i], ret, -EBADMSG);
		assert_null(next);
	}
}

static int stop(void *user, const struct pst_listed *o)
{
	(void)o;
	++*(int *)user;
	return 7;
}

static void test_stop(void **state)
{
	char text[] = "<a><Contents><Key>a</Key></Contents><Contents><Key>b</Key></Contents></a>";
	const char *next;
	int calls = 0;

	(void)state;
	assert_int_equal(pst_listing_parse(text, strlen(text), stop, &calls, &next), 7);
	assert_int_equal(calls, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_page),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
