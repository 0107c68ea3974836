/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the parser of objects' URLs: keys, options, endpoints, presigned URLs and bad URLs. */
#include "test.h"

#include "storage/object_url.h"

static struct pst_err err;

static void keys_are_bytes(void **state)
{
	struct pst_object_url url;

	(void)state;
	assert_int_equal(pst_object_url_parse("s3://my.bucket/a/%00%ff+b%3Fc//", &url, &err), 0);
	assert_string_equal(url.bucket, "my.bucket");
	assert_int_equal(url.key_len, 10);
	assert_memory_equal(url.key, "a/\0\377+b?c//", 10);
	assert_int_equal(url.path_style, -1);
	assert_false(url.presigned || url.anonymous || url.insecure || url.unchecked);
	pst_object_url_clear(&url);
}

static void options_are_decoded(void **state)
{
	struct pst_object_url url;

	(void)state;
	assert_int_equal(pst_object_url_parse("s3://b/k?endpoint=http%3A%2F%2Fh:9&region=r-1&"
					      "profile=p&path-style=0&anonymous=1&insecure=true&"
					      "unchecked=1&"
					      "timeout=5",
					      &url, &err),
			 0);
	assert_string_equal(url.endpoint, "http://h:9");
	assert_string_equal(url.region, "r-1");
	assert_string_equal(url.profile, "p");
	assert_int_equal(url.path_style, 0);
	assert_true(url.anonymous && url.insecure && url.unchecked);
	assert_int_equal(url.timeout_s, 5);
	assert_string_equal(url.name, "s3://b/k");
}

#define EIGHT "192.0.2.1,192.0.2.2,192.0.2.3,192.0.2.4,192.0.2.5,192.0.2.6,192.0.2.7,192.0.2.8"
#define WANT "want numeric addresses of this host, at most 8, such as 192.0.2.1,192.0.2.2"

/* Lists of addresses in the option rdma-addresses. `stored` is the decoded list, or NULL if the URL
 * must be refused. */
static void addresses(void **state)
{
	static const struct {
		const char *list, *stored;
	} tries[] = {
		{"", ""},
		{"192.0.2.1", "192.0.2.1"},
		{"192.0.2.1,192.0.2.2", "192.0.2.1,192.0.2.2"},
		{"192.0.2.1%2C192.0.2.2", "192.0.2.1,192.0.2.2"},
		{"fd00::1,::1,192.0.2.1", "fd00::1,::1,192.0.2.1"},
		{"fd00%3A%3A1", "fd00::1"},
		{EIGHT, EIGHT},
		{EIGHT ",192.0.2.9", NULL},
		{"192.0.2.1,", NULL},
		{",192.0.2.1", NULL},
		{",", NULL},
		{"192.0.2.1,,192.0.2.2", NULL},
		{"192.0.2.1;192.0.2.2", NULL},
		{"192.0.2.1, 192.0.2.2", NULL},
		{"192.0.2", NULL},
		{"192.0.2.1:18515", NULL},
		{"[fd00::1]", NULL},
		{"mlx5_0", NULL},
	};
	struct pst_object_url url;
	char text[200];

	(void)state;
	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		int ret;

		snprintf(text, sizeof(text), "s3://b/k?rdma-addresses=%s", tries[i].list);
		err.text[0] = '\0';
		ret = pst_object_url_parse(text, &url, &err);
		printf("# %s: %d, \"%s\"\n", text, ret, ret ? err.text : url.addresses);
		assert_int_equal(ret, tries[i].stored ? 0 : -EINVAL);
		if (tries[i].stored)
			assert_string_equal(url.addresses, tries[i].stored);
		else
			assert_non_null(strstr(err.text, WANT));
	}
}

/* Eight IPv6 addresses of the greatest length fit into the option. */
static void longest_addresses(void **state)
{
	static const char longest[] = "fd00:1111:2222:3333:4444:5555:192.168.100.100";
	struct pst_object_url url;
	char text[500] = "s3://b/k?rdma-addresses=";

	(void)state;
	for (unsigned i = 0; i < PST_OBJECT_ADDRESSES_MAX; i++) {
		size_t len = strlen(text);

		snprintf(text + len, sizeof(text) - len, "%s%s", i ? "," : "", longest);
	}
	assert_int_equal(pst_object_url_parse(text, &url, &err), 0);
	assert_string_equal(url.addresses, strchr(text, '=') + 1);
}

/* The environment has the default of the option rdma-addresses. */
static void addresses_of_the_environment(void **state)
{
	struct pst_object_url url;

	(void)state;
	setenv("PENSTOCK_RDMA_ADDRESSES", "192.0.2.1,fd00::1", 1);
	assert_int_equal(pst_object_url_parse("s3://b/k", &url, &err), 0);
	assert_string_equal(url.addresses, "192.0.2.1,fd00::1");
	assert_int_equal(pst_object_url_parse("s3://b/k?rdma-addresses=192.0.2.2", &url, &err), 0);
	assert_string_equal(url.addresses, "192.0.2.2");
	assert_int_equal(pst_object_url_parse("s3://b/k?rdma-addresses=", &url, &err), 0);
	assert_string_equal(url.addresses, "");
	setenv("PENSTOCK_RDMA_ADDRESSES", "192.0.2.1 192.0.2.2", 1);
	assert_int_equal(pst_object_url_parse("s3://b/k", &url, &err), -EINVAL);
	print_message("# %s\n", err.text);
	assert_string_equal(err.text, "PENSTOCK_RDMA_ADDRESSES=192.0.2.1 192.0.2.2: " WANT);
	unsetenv("PENSTOCK_RDMA_ADDRESSES");
}

static void names_have_no_secrets(void **state)
{
	struct pst_object_url url;
	char text[600];

	(void)state;
	assert_int_equal(
		pst_object_url_parse("https://[::1]:8443/b/k%20k?X-Amz-Signature=abc", &url, &err),
		0);
	assert_true(url.presigned && url.server.tls);
	assert_string_equal(url.server.host, "::1");
	assert_int_equal(url.server.port, 8443);
	assert_string_equal(url.target, "/b/k%20k?X-Amz-Signature=abc");
	assert_string_equal(url.name, "https://[::1]:8443/b/k%20k");
	pst_object_url_clear(&url);
	memset(text, 'k', sizeof(text));
	memcpy(text, "https://h/\n", 11);
	memcpy(text + 550, "END?secret", 11);
	assert_true(pst_object_url_parse(text, &url, &err) < 0);
	assert_null(strstr(err.text, "secret"));
	assert_null(strchr(err.text, '\n'));
	assert_non_null(strstr(err.text, "END"));
}

static void names_have_no_passwords(void **state)
{
	static const char *const bad[] = {"https://user:secret@host/key",
					  "https://user:secret@b@host:1/key",
					  "https://user:secret/more@host/key",
					  "https://user:secret?more@host/key",
					  "s3://user:secret@bucket/key",
					  "s3://user:secret@bucket?x=1",
					  "s3://b/k?endpoint=http://user:secret@h%0A"};
	struct pst_object_url url;
	char text[1300] = "s3://b/k?endpoint=http://user:secret@";

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_true(pst_object_url_parse(bad[i], &url, &err) < 0);
		printf("# %s\n", err.text);
		assert_null(strstr(err.text, "secret"));
	}
	memset(text + strlen(text), 'h', sizeof(text) - 1 - strlen(text));
	text[sizeof(text) - 1] = '\0';
	assert_true(pst_object_url_parse(text, &url, &err) < 0);
	printf("# %s\n", err.text);
	assert_null(strstr(err.text, "secret"));
	/* the '@' belongs to the key, so it is not cut off like a password */
	assert_int_equal(pst_object_url_parse("https://h/b/a@k?x", &url, &err), 0);
	assert_string_equal(url.name, "https://h/b/a@k");
	pst_object_url_clear(&url);
}

static void endpoints(void **state)
{
	static const struct {
		const char *text, *host, *authority;
		unsigned port;
		int tls, plain, given;
	} good[] = {
		{"http://127.0.0.1:9000", "127.0.0.1", "127.0.0.1:9000", 9000, 0, 1, 1},
		{"https://s3.example.com/", "s3.example.com", "s3.example.com", 443, 1, 0, 0},
		{"http://localhost", "localhost", "localhost", 80, 0, 1, 0},
		{"http://h:443", "h", "h:443", 443, 0, 0, 1},
		{"https://h:443", "h", "h", 443, 1, 0, 1},
		{"https://[fe80::1]", "fe80::1", "[fe80::1]", 443, 1, 1, 0},
		{"https://[fe80::1]:9000", "fe80::1", "[fe80::1]:9000", 9000, 1, 1, 1},
	};
	static const char *const bad[] = {
		"",	      "127.0.0.1",	"ftp://h",	 "http://",	"http://h:",
		"http://h:0", "http://h:65536", "http://h/path", "http://h:1x", "http://[::1",
		"http://u@h", "http://[::1]x80"};
	struct pst_object_server server;
	char authority[PST_OBJECT_AUTHORITY];

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(pst_object_server_parse(good[i].text, &server, &err), 0);
		assert_string_equal(server.host, good[i].host);
		assert_int_equal(server.port, good[i].port);
		assert_int_equal(server.tls, good[i].tls);
		assert_int_equal(server.port_given, good[i].given);
		assert_int_equal(pst_object_server_is_plain(&server), good[i].plain);
		pst_object_server_authority(&server, authority);
		assert_string_equal(authority, good[i].authority);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_true(pst_object_server_parse(bad[i], &server, &err) < 0);
	assert_true(pst_object_server_parse("http://u:secret@h", &server, &err) < 0);
	assert_null(strstr(err.text, "secret"));
}

/* A URL without a key names the bucket. Only requests about the whole bucket accept such a URL. */
static void buckets(void **state)
{
	struct pst_object_url url;

	(void)state;
	assert_int_equal(pst_object_url_parse("s3://b/?region=r", &url, &err), 0);
	assert_string_equal(url.bucket, "b");
	assert_int_equal(url.key_len, 0);
	assert_string_equal(url.region, "r");
	pst_object_url_clear(&url);
}

static void bad_urls(void **state)
{
	static const char *const bad[] = {"s3://",
					  "s3:///k",
					  "s3://b",
					  "s3://b?x=1",
					  "s3://b/?x=1",
					  "s3://b/%",
					  "s3://b/%g0",
					  "s3://b:1/k",
					  "s3://b/k?x=1",
					  "s3://b/k?region",
					  "s3://b/k?region=x%0D%0Ax-amz-acl:%20public-read",
					  "s3://b/k?region=x%00y",
					  "s3://b/k?region=x/y",
					  "s3://b/k?profile=p%0A",
					  "s3://b/k?endpoint=http://h%7F",
					  "s3://b/k?path-style=2",
					  "s3://b/k?timeout=-1",
					  "s3://b/k?timeout=",
					  "http://h",
					  "http:///k",
					  "https://h/a b"};
	struct pst_object_url url;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		int ret = pst_object_url_parse(bad[i], &url, &err);

		if (ret >= 0)
			printf("# %s\n", bad[i]);
		assert_true(ret < 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_are_bytes),
		cmocka_unit_test(options_are_decoded),
		cmocka_unit_test(addresses),
		cmocka_unit_test(longest_addresses),
		cmocka_unit_test(addresses_of_the_environment),
		cmocka_unit_test(names_have_no_secrets),
		cmocka_unit_test(names_have_no_passwords),
		cmocka_unit_test(endpoints),
		cmocka_unit_test(buckets),
		cmocka_unit_test(bad_urls),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
