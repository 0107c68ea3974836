/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the rules of the gateway for requests to a folder of objects: signatures, rights of access
 * keys, hashes of bodies, paths, conditions and unknown operations. Calls the functions that
 * handle requests (gateway/front.h) in place of the HTTP server, so that mutants are found within
 * seconds; tests/s3 tests the gateway with clients. Each refused request must leave the files
 * unchanged.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "gateway/folder.h"
#include "gateway/front.h"
#include "s3/hash.h"

#define SECRET_WRITER "secret-of-the-writer"
#define SECRET_READER "secret-of-the-reader"
#define SECRET_OTHER "secret-of-the-other"
#define SECRET_ALL "secret-of-the-key-for-all"

static const char key_file[] = "[WRITER]\nsecret = " SECRET_WRITER "\nbuckets = data-*\n"
			       "access = rw\n"
			       "[READER]\nsecret = " SECRET_READER "\nbuckets = data-*\n"
			       "access = r\n"
			       "[OTHER]\nsecret = " SECRET_OTHER "\nbuckets = other\n"
			       "access = rw\n"
			       "[ALL]\nsecret = " SECRET_ALL "\nbuckets = *\n"
			       "access = rw\n";

/* Does nothing, because a real sync is slow. unit/test_durable tests the syncs. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	(void)fd;
	return 0;
}

struct place {
	char root[256];
	struct gw_front front;
};

/* A request to send. A member that is 0 stands for the value of a correct request by the access key
 * WRITER. */
struct question {
	const char *method, *target;
	const char *body;
	const char *access_key, *secret;
	const char *payload; /* header x-amz-content-sha256; NULL: digest of `body` */
	/* target that is sent; the signature is made for `target`; NULL: `target` is sent */
	const char *sent;
	const char *unsigned_header; /* name of a header that is added after the signature */
	struct pst_header more[4];   /* further signed headers */
	long late_s;		     /* seconds between the signature and the request */
	/* whether to change the signature, so that it is wrong */
	bool spoil;
};

/* A request in progress, and its reply. */
struct exchange {
	struct gw_front *front;
	struct gw_http_request http;
	char target[2048], date[PST_SIGV4_DATE], digest[PST_SHA256_HEX], length[24];
	struct pst_text authorization;
	bool wanted;
	unsigned status;
	char body[4096]; /* body of the reply, ends with a NUL */
};

static void header_add(struct exchange *x, const char *name, const char *value)
{
	assert_true(x->http.header_count < PST_SIGV4_HEADERS_MAX);
	x->http.headers[x->http.header_count++] = (struct pst_header){name, value};
}

static void sign(struct exchange *x, const struct question *q, time_t now)
{
	struct pst_sigv4_keys keys = {.access_key = q->access_key ? q->access_key : "WRITER",
				      .secret = q->secret ? q->secret : SECRET_WRITER,
				      .region = "us-east-1"};
	const char *query = strchr(q->target, '?');
	char path[1024];
	struct pst_sigv4_request req = {.method = q->method,
					.path = path,
					.query = query ? query + 1 : "",
					.headers = x->http.headers,
					.header_count = x->http.header_count,
					.payload = q->payload ? q->payload : x->digest};

	snprintf(path, sizeof(path), "%.*s", (int)strcspn(q->target, "?"), q->target);
	pst_sigv4_sign(&req, &keys, now, &x->authorization);
	assert_false(x->authorization.failed);
	pst_text_put(&x->authorization, "", 1);
	if (q->spoil) {
		char *last = &x->authorization.at[x->authorization.len - 2];

		*last = *last == '0' ? '1' : '0';
	}
	header_add(x, "authorization", x->authorization.at);
}

/* Sends the head and the body of a request. finish() completes the reply. */
static void begin(struct exchange *x, struct place *p, const struct question *q)
{
	time_t now = time(NULL) - q->late_s;
	const char *body = q->body ? q->body : "";

	*x = (struct exchange){.front = &p->front};
	x->http.method = q->method;
	x->http.target = x->target;
	x->http.reply.fd = -1;
	snprintf(x->target, sizeof(x->target), "%s", q->sent ? q->sent : q->target);
	snprintf(x->length, sizeof(x->length), "%zu", strlen(body));
	pst_sigv4_date(now, x->date);
	assert_true(pst_sha256_hex(body, strlen(body), x->digest));
	header_add(x, "host", "127.0.0.1:9000");
	header_add(x, "x-amz-date", x->date);
	header_add(x, "x-amz-content-sha256", q->payload ? q->payload : x->digest);
	for (unsigned i = 0; i < 4 && q->more[i].name; i++)
		header_add(x, q->more[i].name, q->more[i].value);
	sign(x, q, now);
	if (q->unsigned_header)
		header_add(x, q->unsigned_header, "1");
	if (q->body || !strcmp(q->method, "PUT"))
		header_add(x, "content-length", x->length);
	x->wanted = gw_front_calls.head(x->front, &x->http);
	if (x->wanted && *body)
		x->wanted = gw_front_calls.body(x->front, &x->http, body, strlen(body));
}

static void finish(struct exchange *x)
{
	struct gw_reply *reply = &x->http.reply;
	ssize_t n = 0;

	if (x->wanted)
		gw_front_calls.end(x->front, &x->http);
	x->status = reply->status;
	if (reply->fd >= 0)
		n = pread(reply->fd, x->body, sizeof(x->body) - 1, (off_t)reply->at);
	else if (reply->body.at)
		n = snprintf(x->body, sizeof(x->body), "%.*s", (int)reply->body.len,
			     reply->body.at);
	assert_true(n >= 0);
	x->body[(size_t)n < sizeof(x->body) ? (size_t)n : sizeof(x->body) - 1] = '\0';
	gw_front_calls.done(x->front, &x->http, true);
	if (reply->fd >= 0)
		close(reply->fd);
	free(reply->body.at);
	free(reply->headers.at);
	free(x->authorization.at);
}

/* Sends a request. Fails unless the reply has the status `status`, and a body that contains `text`.
 * If `text` is NULL, the body is not checked. */
static void expect(struct place *p, const struct question *q, unsigned status, const char *text)
{
	struct exchange x;

	begin(&x, p, q);
	finish(&x);
	if (x.status != status || (text && !strstr(x.body, text)))
		fail_msg("%s %s: got status %u and %s, wanted %u and %s", q->method, q->target,
			 x.status, x.body, status, text ? text : "anything");
}

static void expect_object(struct place *p, const char *target, const char *body)
{
	struct question q = {.method = "GET", .target = target};
	struct exchange x;

	begin(&x, p, &q);
	finish(&x);
	assert_int_equal(x.status, body ? 200 : 404);
	if (body)
		assert_string_equal(x.body, body);
}

static void place_open(struct place *p)
{
	char why[256] = "", keys[300];
	int fd;

	memset(p, 0, sizeof(*p));
	test_file_name(p->root, sizeof(p->root) - 10, "front");
	snprintf(p->root + strlen(p->root), 10, "-XXXXXX");
	assert_non_null(mkdtemp(p->root));
	if (gw_store_open(&p->front.server.store, p->root, why, sizeof(why)))
		fail_msg("%s", why);
	p->front.server.md5 = true;
	p->front.server.body_max = 1 << 20;
	p->front.server.region = "us-east-1";
	pthread_mutex_init(&p->front.server.keys_lock, NULL);
	snprintf(keys, sizeof(keys), "%s/keys", p->root);
	fd = open(keys, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, key_file, strlen(key_file)), strlen(key_file));
	close(fd);
	p->front.server.keys = gw_keys_read(keys, why, sizeof(why));
	if (!p->front.server.keys)
		fail_msg("%s", why);
	assert_int_equal(gw_bucket_make(&p->front.server.store, "data-1"), 0);
	assert_int_equal(gw_bucket_make(&p->front.server.store, "other"), 0);
	expect(p, &(struct question){.method = "PUT", .target = "/data-1/old", .body = "old"}, 200,
	       NULL);
	expect(p,
	       &(struct question){.method = "PUT",
				  .target = "/other/theirs",
				  .body = "theirs",
				  .access_key = "OTHER",
				  .secret = SECRET_OTHER},
	       200, NULL);
}

static void place_close(struct place *p)
{
	char command[300];

	gw_keys_release(p->front.server.keys);
	pthread_mutex_destroy(&p->front.server.keys_lock);
	gw_store_close(&p->front.server.store);
	snprintf(command, sizeof(command), "rm -r '%s'", p->root);
	assert_int_equal(system(command), 0);
}

/* ---- the cases ---- */

static void correct_requests_are_served(void **state)
{
	struct place p;

	(void)state;
	place_open(&p);
	expect_object(&p, "/data-1/old", "old");
	expect(&p, &(struct question){.method = "PUT", .target = "/data-1/a/b", .body = "new"}, 200,
	       NULL);
	expect_object(&p, "/data-1/a/b", "new");
	expect(&p,
	       &(struct question){.method = "GET",
				  .target = "/data-1/old",
				  .access_key = "READER",
				  .secret = SECRET_READER},
	       200, "old");
	expect(&p, &(struct question){.method = "DELETE", .target = "/data-1/a/b"}, 204, NULL);
	expect_object(&p, "/data-1/a/b", NULL);
	place_close(&p);
}

static void wrong_signatures_are_refused(void **state)
{
	static const struct question wrong[] = {
		{.spoil = true},
		{.secret = SECRET_READER},
		{.access_key = "NOBODY"},
		{.sent = "/data-1/another"},
		{.late_s = 1000},
		{.late_s = -1000},
		{.unsigned_header = "x-amz-meta-a"},
	};
	static const char *const code[] = {"SignatureDoesNotMatch", "SignatureDoesNotMatch",
					   "InvalidAccessKeyId",    "SignatureDoesNotMatch",
					   "RequestTimeTooSkewed",  "RequestTimeTooSkewed",
					   "AccessDenied"};
	struct place p;

	(void)state;
	place_open(&p);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct question q = wrong[i];

		q.method = "PUT";
		q.target = "/data-1/old";
		q.body = "changed";
		expect(&p, &q, 403, code[i]);
		q.method = "GET";
		q.body = NULL;
		expect(&p, &q, 403, code[i]);
	}
	assert_int_equal(atomic_load(&p.front.server.metrics.refused_auth),
			 2 * sizeof(wrong) / sizeof(wrong[0]));
	expect_object(&p, "/data-1/old", "old");
	expect_object(&p, "/data-1/another", NULL);
	place_close(&p);
}

static void keys_reach_their_buckets_only(void **state)
{
	static const struct question forbidden[] = {
		{.method = "GET", .target = "/other/theirs"},
		{.method = "HEAD", .target = "/other/theirs"},
		{.method = "GET", .target = "/other"},
		{.method = "DELETE", .target = "/other/theirs"},
		{.method = "PUT", .target = "/other/theirs", .body = "changed"},
		{.method = "PUT", .target = "/another"},
		{.method = "PUT",
		 .target = "/data-1/copy",
		 .more = {{"x-amz-copy-source", "/other/theirs"}}},
	};
	struct place p;

	(void)state;
	place_open(&p);
	for (unsigned i = 0; i < sizeof(forbidden) / sizeof(forbidden[0]); i++)
		expect(&p, &forbidden[i], 403,
		       strcmp(forbidden[i].method, "HEAD") ? "AccessDenied" : NULL);
	expect_object(&p, "/data-1/copy", NULL);
	expect(&p,
	       &(struct question){.method = "GET",
				  .target = "/other/theirs",
				  .access_key = "OTHER",
				  .secret = SECRET_OTHER},
	       200, "theirs");
	expect(&p, &(struct question){.method = "GET", .target = "/"}, 200,
	       "<Buckets><Bucket><Name>data-1</Name>");
	expect(&p,
	       &(struct question){.method = "GET",
				  .target = "/",
				  .access_key = "OTHER",
				  .secret = SECRET_OTHER},
	       200, "<Buckets><Bucket><Name>other</Name>");
	place_close(&p);
}

static void readers_change_nothing(void **state)
{
	static const struct question changes[] = {
		{.method = "PUT", .target = "/data-1/old", .body = "changed"},
		{.method = "DELETE", .target = "/data-1/old"},
		{.method = "POST",
		 .target = "/data-1?delete",
		 .body = "<Delete><Object><Key>old</Key></Object></Delete>"},
		{.method = "POST", .target = "/data-1/old?uploads"},
		{.method = "PUT", .target = "/data-2"},
		{.method = "DELETE", .target = "/data-1"},
	};
	struct place p;

	(void)state;
	place_open(&p);
	for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct question q = changes[i];

		q.access_key = "READER";
		q.secret = SECRET_READER;
		expect(&p, &q, 403, "AccessDenied");
	}
	expect_object(&p, "/data-1/old", "old");
	place_close(&p);
}

static void bodies_must_match_their_hashes(void **state)
{
	static const struct question wrong[] = {
		/* the digest of an empty body */
		{.payload = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
		{.more = {{"content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="}}},
		{.more = {{"x-amz-checksum-crc32c", "AAAAAA=="}}},
	};
	static const char *const code[] = {"XAmzContentSHA256Mismatch", "BadDigest", "BadDigest"};
	struct place p;

	(void)state;
	place_open(&p);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct question q = wrong[i];

		q.method = "PUT";
		q.target = "/data-1/old";
		q.body = "changed";
		expect(&p, &q, 400, code[i]);
	}
	expect_object(&p, "/data-1/old", "old");
	place_close(&p);
}

/* Fails unless the file "sentinel" in the root is unchanged. Also fails if a request has created a
 * file outside of its bucket. */
static void expect_sentinel(const struct place *p)
{
	static const char *const gone[] = {"new", "x", "data-1/new"};
	char text[16] = "";
	int fd = openat(p->front.server.store.root, "sentinel", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(read(fd, text, sizeof(text) - 1), 8);
	close(fd);
	assert_string_equal(text, "sentinel");
	for (unsigned i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
		assert_int_equal(
			faccessat(p->front.server.store.root, gone[i], F_OK, AT_SYMLINK_NOFOLLOW),
			-1);
}

static void no_path_leaves_its_bucket(void **state)
{
	static const char *const keys[] = {
		"../sentinel",	   "%2e%2e/sentinel", "..%2fsentinel", "a/../../sentinel",
		"../new",	   "../data-1/new",   "/sentinel",     "link",
		"folder/sentinel", "folder/new"};
	struct question q = {.body = "changed"};
	struct place p;
	char target[100];
	int fd, bucket;

	(void)state;
	place_open(&p);
	fd = openat(p.front.server.store.root, "sentinel", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, "sentinel", 8), 8);
	close(fd);
	bucket = gw_bucket_open(&p.front.server.store, "data-1");
	assert_int_equal(symlinkat("../sentinel", bucket, "link"), 0);
	assert_int_equal(symlinkat("..", bucket, "folder"), 0);
	close(bucket);
	for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		struct exchange x;

		snprintf(target, sizeof(target), "/data-1/%s", keys[i]);
		q.target = target;
		q.method = "GET";
		begin(&x, &p, &q);
		finish(&x);
		assert_string_not_equal(x.body, "sentinel");
		q.method = "PUT";
		begin(&x, &p, &q);
		finish(&x);
		expect_sentinel(&p);
		/* If the request succeeded, the object must be in the bucket. If a link was in the
		 * object's path, the request has failed instead. */
		if (x.status == 200)
			expect_object(&p, target, "changed");
	}
	place_close(&p);
}

/* A request cannot use .penstock (the folder of the gateway's own files) or a folder outside of the
 * root as a bucket, even with a key that may use all buckets. */
static void other_folders_are_no_buckets(void **state)
{
	static const char *const targets[] = {"/.penstock", "/..", "/.", "/%2e%2e", "/..%2fother"};
	struct question q = {.access_key = "ALL", .secret = SECRET_ALL};
	struct place p;
	char object[40];

	(void)state;
	place_open(&p);
	for (unsigned i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
		q.target = targets[i];
		q.method = "GET";
		expect(&p, &q, 404, "NoSuchBucket");
		q.method = "PUT";
		expect(&p, &q, 400, "InvalidBucketName");
		snprintf(object, sizeof(object), "%s/new", targets[i]);
		q.target = object;
		expect(&p, &q, 404, "NoSuchBucket");
	}
	place_close(&p);
}

static void one_of_two_exclusive_writers_wins(void **state)
{
	const struct question first = {.method = "PUT",
				       .target = "/data-1/new",
				       .body = "first",
				       .more = {{"if-none-match", "*"}}};
	struct question second = first;
	struct exchange a, b;
	struct place p;

	(void)state;
	place_open(&p);
	second.body = "second";
	/* Two requests create the same object: the bodies of both arrive before the object
	 * exists. */
	begin(&a, &p, &first);
	begin(&b, &p, &second);
	finish(&b);
	finish(&a);
	assert_int_equal(b.status, 200);
	assert_int_equal(a.status, 412);
	expect_object(&p, "/data-1/new", "second");
	place_close(&p);
}

static void object_that_changes_during_a_put_stays(void **state)
{
	struct question conditional = {.method = "PUT",
				       .target = "/data-1/old",
				       .body = "mine",
				       .more = {{"if-match", "149603e6c03516362a8da23f624db945"}}};
	struct exchange x;
	struct place p;

	(void)state;
	place_open(&p);
	begin(&x, &p, &conditional);
	expect(&p, &(struct question){.method = "PUT", .target = "/data-1/old", .body = "theirs"},
	       200, NULL);
	finish(&x);
	assert_int_equal(x.status, 412);
	expect_object(&p, "/data-1/old", "theirs");
	place_close(&p);
}

static void unknown_requests_change_nothing(void **state)
{
	static const struct question unknown[] = {
		{.method = "PUT", .target = "/data-1/old?renewal", .body = "changed"},
		{.method = "PUT", .target = "/data-1/old?append", .body = "changed"},
		{.method = "DELETE", .target = "/data-1/old?renewal"},
		{.method = "PUT",
		 .target = "/data-1/old",
		 .body = "changed",
		 .more = {{"x-amz-server-side-encryption", "AES256"}}},
	};
	struct place p;

	(void)state;
	place_open(&p);
	for (unsigned i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
		expect(&p, &unknown[i], 501, "NotImplemented");
	expect(&p,
	       &(struct question){.method = "GET",
				  .target = "/data-1/old",
				  .more = {{"range", "bytes=0-0"}},
				  .unsigned_header = "range"},
	       400, "InvalidRequest");
	expect_object(&p, "/data-1/old", "old");
	place_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(correct_requests_are_served),
		cmocka_unit_test(wrong_signatures_are_refused),
		cmocka_unit_test(keys_reach_their_buckets_only),
		cmocka_unit_test(readers_change_nothing),
		cmocka_unit_test(bodies_must_match_their_hashes),
		cmocka_unit_test(no_path_leaves_its_bucket),
		cmocka_unit_test(other_folders_are_no_buckets),
		cmocka_unit_test(one_of_two_exclusive_writers_wins),
		cmocka_unit_test(object_that_changes_during_a_put_stays),
		cmocka_unit_test(unknown_requests_change_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
