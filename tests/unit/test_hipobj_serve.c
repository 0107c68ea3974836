/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests `penstock serve` and the storage s3:// with hipobj-rc-v2 in one process, over a fake
 * network card (fake_card.h): objects and parts of uploads both ways with all bytes compared, and
 * requests of the protocol that the gateway must refuse: requests with another access key or a
 * wrong cookie, too many, too long or late requests, and requests without permission. tests/lab/rc1
 * tests both sides as processes, with Soft-RoCE.
 */
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_card.h"
#include "gateway/serve.h"
#include "gateway/session.h"
#include "penstock.h"
#include "s3/sigv4.h"

#define MIB (1u << 20)
#define HERE "00000000000000000000ffff7f000001"
/* A client's token. It names queue pair 0x12 at 127.0.0.1. */
#define TOKEN                        \
	"0112000000" HERE "00000000" \
	"0000000000000000"           \
	"0000000000000000"           \
	"01"                         \
	"0000"

static const char key_file[] = "[WRITER]\nsecret = writer-secret\nbuckets = data\naccess = rw\n"
			       "[READER]\nsecret = reader-secret\nbuckets = data\naccess = r\n"
			       "[OTHER]\nsecret = other-secret\nbuckets = other\naccess = rw\n";

/* ---- the gateway ---- */

static struct {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned port, metrics_port;
	bool ended;
	int result;
	struct gw_options options;
	char root[256], keys[300], why[256];
	struct penstock_device *host;
} gw = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void gateway_ready(unsigned port, unsigned metrics_port)
{
	pthread_mutex_lock(&gw.lock);
	gw.port = port;
	gw.metrics_port = metrics_port;
	pthread_cond_signal(&gw.changed);
	pthread_mutex_unlock(&gw.lock);
}

static void *gateway_run(void *arg)
{
	int ret = gw_serve(&gw.options, gw.why, sizeof(gw.why));

	(void)arg;
	pthread_mutex_lock(&gw.lock);
	gw.result = ret;
	gw.ended = true;
	pthread_cond_signal(&gw.changed);
	pthread_mutex_unlock(&gw.lock);
	return NULL;
}

static void gateway_start(const char *transports)
{
	gw.port = 0;
	gw.ended = false;
	gw.options = (struct gw_options){
		.root = gw.root,
		.listen = "127.0.0.1:0",
		.metrics = "127.0.0.1:0",
		.keys = gw.keys,
		.region = "us-east-1",
		.rdma = transports,
		.threads = 8,
		.connections_max = 64,
		.connections_per_address_max = 64,
		.timeout_s = 20,
		.drain_s = 5,
		.body_max = 64 * MIB,
		.ready = gateway_ready,
	};
	assert_int_equal(pthread_create(&gw.thread, NULL, gateway_run, NULL), 0);
	pthread_mutex_lock(&gw.lock);
	while (!gw.port && !gw.ended)
		pthread_cond_wait(&gw.changed, &gw.lock);
	pthread_mutex_unlock(&gw.lock);
	if (gw.ended)
		fail_msg("%s", gw.why);
}

/* Ends the gateway, and with it all sessions. */
static void gateway_end(void)
{
	kill(getpid(), SIGTERM);
	pthread_join(gw.thread, NULL);
	assert_int_equal(gw.result, 0);
}

static int group_open(void **state)
{
	sigset_t signals;
	int fd;

	(void)state;
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	test_file_name(gw.root, sizeof(gw.root) - 10, "hipobj");
	snprintf(gw.root + strlen(gw.root), 10, "-XXXXXX");
	assert_non_null(mkdtemp(gw.root));
	snprintf(gw.keys, sizeof(gw.keys), "%s.keys", gw.root);
	fd = open(gw.keys, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(write(fd, key_file, strlen(key_file)), strlen(key_file));
	close(fd);
	setenv("AWS_ACCESS_KEY_ID", "WRITER", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "writer-secret", 1);
	setenv("AWS_DEFAULT_REGION", "us-east-1", 1);
	unsetenv("AWS_REGION");
	unsetenv("AWS_SESSION_TOKEN");
	unsetenv("AWS_PROFILE");
	return penstock_device_open("host", NULL, &gw.host) < 0;
}

/* ---- requests by hand ---- */

struct answer {
	int status;
	char text[16384];
};

static struct answer ask(const char *method, const char *path, const char *key,
			 const char *const *headers);

/* Starts the gateway with the bucket "data". */
static void gateway_open(const char *transports)
{
	struct answer a;

	gateway_start(transports);
	a = ask("PUT", "/data", NULL, NULL);
	if (a.status != 200 && a.status != 409)
		fail_msg("%s", a.text);
}

/* Sends a signed request, and returns the answer. `key` is the access key; NULL: WRITER. `headers`
 * is a list of names and values. */
static struct answer ask(const char *method, const char *path, const char *key,
			 const char *const *headers)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)gw.port)};
	struct pst_header list[24];
	struct pst_sigv4_request req = {.method = method,
					.path = path,
					.query = "",
					.headers = list,
					.payload = "UNSIGNED-PAYLOAD"};
	struct pst_sigv4_keys keys = {
		.access_key = "WRITER", .secret = "writer-secret", .region = "us-east-1"};
	struct pst_text out = {NULL, 0, 0, false};
	struct answer a = {.status = 0};
	char date[PST_SIGV4_DATE], host[32], line[256];
	time_t now = time(NULL);
	size_t got = 0;
	ssize_t n;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (key) {
		keys.access_key = key;
		keys.secret = !strcmp(key, "READER") ? "reader-secret" : "other-secret";
	}
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	snprintf(host, sizeof(host), "127.0.0.1:%u", gw.port);
	pst_sigv4_date(now, date);
	list[0] = (struct pst_header){"host", host};
	list[1] = (struct pst_header){"x-amz-date", date};
	list[2] = (struct pst_header){"x-amz-content-sha256", "UNSIGNED-PAYLOAD"};
	for (req.header_count = 3; headers && *headers; headers += 2)
		list[req.header_count++] = (struct pst_header){headers[0], headers[1]};
	snprintf(line, sizeof(line), "%s %s HTTP/1.1\r\nconnection: close\r\ncontent-length: 0\r\n",
		 method, path);
	pst_text_put_str(&out, line);
	for (unsigned i = 0; i < req.header_count; i++) {
		pst_text_put_str(&out, list[i].name);
		pst_text_put_str(&out, ": ");
		pst_text_put_str(&out, list[i].value);
		pst_text_put_str(&out, "\r\n");
	}
	pst_text_put_str(&out, "authorization: ");
	pst_sigv4_sign(&req, &keys, now, &out);
	pst_text_put_str(&out, "\r\n\r\n");
	assert_false(out.failed);
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(send(fd, out.at, out.len, 0), out.len);
	while ((n = recv(fd, a.text + got, sizeof(a.text) - 1 - got, 0)) > 0)
		got += (size_t)n;
	close(fd);
	free(out.at);
	assert_int_equal(sscanf(a.text, "HTTP/1.1 %d", &a.status), 1);
	return a;
}

/* Returns the value of a counter of the gateway. `name` ends with a space. */
static int counter(const char *name)
{
	const unsigned port = gw.port;
	struct answer a;
	const char *at;
	int count;

	gw.port = gw.metrics_port;
	a = ask("GET", "/metrics", NULL, NULL);
	gw.port = port;
	at = strstr(a.text, name);
	if (!at || sscanf(at + strlen(name), "%d", &count) != 1)
		fail_msg("no counter %s in %s", name, a.text);
	return count;
}

/* Returns how many requests the gateway has declined for a reason. */
static int declined(const char *reason)
{
	char name[100];

	snprintf(name, sizeof(name), "penstock_rdma_declined_total{reason=\"%s\"} ", reason);
	return counter(name);
}

static int sessions_refused(void)
{
	return counter("\npenstock_sessions_refused_total ");
}

/* Copies the value of a header of the answer. Returns whether there is one. */
static bool value_of(const struct answer *a, const char *name, char *out, size_t max)
{
	char key[64];
	const char *at;

	snprintf(key, sizeof(key), "\r\n%s: ", name);
	at = strcasestr(a->text, key);
	if (!at)
		return false;
	at += strlen(key);
	snprintf(out, max, "%.*s", (int)strcspn(at, "\r"), at);
	return true;
}

/* Sends PREPARE, the request of hipobj-rc-v2 that opens a session, for `size` bytes. Its header
 * `name` has the value `value`. If `value` is NULL, the request does not have this header. */
static struct answer prepare_size(const char *key, const char *name, const char *value,
				  const char *size)
{
	const char *all[] = {"x-amz-rdma-protocol",
			     "hipobj-rc-v2",
			     "x-amz-rdma-token",
			     TOKEN,
			     "x-amz-rdma-psn",
			     "00a1b2",
			     "x-amz-rdma-cookie",
			     "deadbeef",
			     "x-amz-rdma-op",
			     "PUT",
			     "x-amz-rdma-target",
			     "/data/by-hand",
			     "x-amz-rdma-size",
			     size,
			     NULL};
	const char *list[20];
	unsigned n = 0;

	for (unsigned i = 0; all[i]; i += 2) {
		bool changed = name && !strcmp(all[i], name);

		if (changed && !value)
			continue;
		list[n++] = all[i];
		list[n++] = changed ? value : all[i + 1];
	}
	list[n] = NULL;
	return ask("POST", "/.hipobj-rc/prepare", key, list);
}

static struct answer prepare(const char *key, const char *name, const char *value)
{
	return prepare_size(key, name, value, "4096");
}

/* Sends READY (the request that starts a session's transfer) or CANCEL. `token` is the value of one
 * more header, or NULL. */
static struct answer proceed_token(const char *step, const char *key, const char *session,
				   const char *cookie, const char *token)
{
	const char *list[] = {"x-amz-rdma-protocol",
			      "hipobj-rc-v2",
			      "x-amz-rdma-session",
			      session,
			      "x-amz-rdma-cookie",
			      cookie,
			      "x-amz-rdma-qpn",
			      "12",
			      "x-amz-rdma-mr-addr",
			      "1000",
			      "x-amz-rdma-mr-rkey",
			      "1",
			      token ? "x-amz-rdma-token" : NULL,
			      token,
			      NULL};
	char path[64];

	snprintf(path, sizeof(path), "/.hipobj-rc/%s", step);
	return ask("POST", path, key, list);
}

static struct answer proceed(const char *step, const char *key, const char *session,
			     const char *cookie)
{
	return proceed_token(step, key, session, cookie, NULL);
}

static void expect(const struct answer *a, int status, const char *text)
{
	if (a->status != status || (text && !strstr(a->text, text)))
		fail_msg("found '%.500s', expected %d and '%s'", a->text, status, text ? text : "");
}

/* ---- objects ---- */

/* Writes the URL of an object. `rdma` is the value of the URL's parameter `rdma`. */
static void url_of(const char *key, const char *rdma, char out[300])
{
	snprintf(out, 300,
		 "s3://data/%s?endpoint=http://127.0.0.1:%u&rdma=%s&rdma-transports=hipobj-rc-v2",
		 key, gw.port, rdma);
}

/* Writes an object. Returns the number of its parts that moved by RDMA. */
static unsigned object_put(const char *key, const unsigned char *bytes, size_t len, bool require)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage_info info = {.size = sizeof(info)};
	struct penstock_storage *st;
	char url[300];

	opts.flags = PENSTOCK_O_WRITE | PENSTOCK_O_CREATE | PENSTOCK_O_REPLACE;
	opts.length = len;
	url_of(key, require ? "require" : "on", url);
	if (penstock_open(url, &opts, &st))
		fail_msg("%s", penstock_errmsg());
	if (penstock_write(st, gw.host, bytes, len, 0) != (int64_t)len || penstock_commit(st, 1))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal(penstock_storage_get_info(st, &info), 0);
	if (info.parts_why)
		printf("# %s: %s\n", key, info.parts_why);
	penstock_close(st);
	return info.parts_rdma;
}

/* Reads a range. If `require` is true, the bytes must move by RDMA. */
static void object_get(const char *key, unsigned char *bytes, size_t len, uint64_t off,
		       bool require)
{
	struct penstock_storage *st;
	char url[300];

	url_of(key, require ? "require" : "on", url);
	if (penstock_open(url, NULL, &st))
		fail_msg("%s", penstock_errmsg());
	if (penstock_read(st, gw.host, bytes, len, off) != (int64_t)len)
		fail_msg("%s", penstock_errmsg());
	penstock_close(st);
}

static void pattern(unsigned char *mem, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		mem[i] = (unsigned char)((i * 2654435761u + seed * 97) >> 7);
}

static unsigned transfers(void)
{
	unsigned n;

	fake_card_lock();
	n = fake_card.transfers;
	fake_card_unlock();
	return n;
}

static void moves_objects(void **state)
{
	static const size_t lens[] = {1, 4096, 100001, 5 * MIB, 21 * MIB + 5};
	unsigned char *bytes = malloc(21 * MIB + 5), *back = malloc(21 * MIB + 5);

	(void)state;
	gateway_open("hipobj-rc-v2");
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		unsigned before = transfers(), parts;
		size_t part = lens[i] > 3 * MIB ? 3 * MIB + 1 : lens[i];

		pattern(bytes, lens[i], i);
		parts = object_put("object", bytes, lens[i], true);
		printf("# %zu bytes in %u parts\n", lens[i], parts);
		assert_int_equal(transfers() - before, parts);
		assert_int_equal(parts > 1, lens[i] > 16 * MIB);
		before = transfers();
		object_get("object", back, lens[i], 0, true);
		assert_memory_equal(bytes, back, lens[i]);
		object_get("object", back, part, lens[i] - part, true);
		assert_memory_equal(bytes + lens[i] - part, back, part);
		assert_true(transfers() - before >= 2);
	}
	gateway_end();
	free(bytes);
	free(back);
}

/* If the gateway does not serve hipobj-rc-v2, the storage s3:// moves the bytes by HTTP. */
static void uses_http_instead(void **state)
{
	static unsigned char bytes[200000], back[200000];
	unsigned before = transfers();
	struct answer a;

	(void)state;
	gateway_open("tcp1");
	a = prepare(NULL, NULL, NULL);
	expect(&a, 501, "x-amz-rdma-protocol-status: unsupported");
	pattern(bytes, sizeof(bytes), 7);
	assert_int_equal(object_put("object", bytes, sizeof(bytes), false), 0);
	object_get("object", back, sizeof(back), 0, false);
	assert_memory_equal(bytes, back, sizeof(bytes));
	assert_int_equal(transfers(), before);
	gateway_end();
}

/* ---- what is refused ---- */

static void refuses_requests(void **state)
{
	static const struct {
		const char *key, *name, *value;
		int status;
		const char *text;
	} rows[] = {
		{NULL, NULL, NULL, 200, "x-amz-rdma-mr-rkey: "},
		{NULL, "x-amz-rdma-op", "GET", 200, "x-amz-rdma-reply: 200:01"},
		{NULL, "x-amz-rdma-protocol", "hipobj-rc-v3", 501, "unsupported"},
		{NULL, "x-amz-rdma-protocol", NULL, 501, "unsupported"},
		{NULL, "x-amz-rdma-cookie", NULL, 400, "InvalidRequest"},
		{NULL, "x-amz-rdma-psn", "0", 400, "InvalidRequest"},
		{NULL, "x-amz-rdma-token", "zz", 400, "InvalidRequest"},
		{NULL, "x-amz-rdma-token", "1:2:tcp1:127.0.0.1:1:00112233445566778899aabbccddeeff",
		 400, "InvalidRequest"},
		{NULL, "x-amz-rdma-size", "2147483648", 413, "RDMATooLarge"},
		{NULL, "x-amz-rdma-size", "400000000", 413, "RDMATooLarge"},
		{NULL, "x-amz-rdma-target", "/data", 400, "names no object"},
		{NULL, "x-amz-rdma-target", "/data/%zz", 400, "InvalidURI"},
		{NULL, "x-amz-rdma-target", "/other/key", 403, "AccessDenied"},
		{"READER", NULL, NULL, 403, "AccessDenied"},
		{"READER", "x-amz-rdma-op", "GET", 200, "x-amz-rdma-reply: 200:01"},
		{"OTHER", NULL, NULL, 403, "AccessDenied"},
	};
	struct answer a;

	(void)state;
	gateway_open("hipobj-rc-v2");
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		a = prepare(rows[i].key, rows[i].name, rows[i].value);
		if (a.status != rows[i].status || !strcasestr(a.text, rows[i].text))
			fail_msg("row %u: found '%.700s', expected %d and '%s'", i, a.text,
				 rows[i].status, rows[i].text);
	}
	a = ask("GET", "/.hipobj-rc/prepare", NULL, NULL);
	expect(&a, 501, "NotImplemented");
	a = ask("POST", "/.hipobj-rc/other", NULL, NULL);
	expect(&a, 501, "NotImplemented");
	assert_int_equal(declined("malformed-message"), 4);
	assert_int_equal(declined("too-long"), 2);
	assert_int_equal(declined("no-transport"), 2);
	assert_int_equal(declined("busy"), 0);
	gateway_end();
}

/* Only the access key that opened a session may use it. The session ends after the request READY,
 * which moves its bytes, and after a request with a wrong cookie. */
static void keeps_sessions_apart(void **state)
{
	char session[64], foreign[64];
	struct answer a;

	(void)state;
	gateway_open("hipobj-rc-v2");
	a = prepare(NULL, "x-amz-rdma-op", "GET");
	assert_true(value_of(&a, "x-amz-rdma-session", session, sizeof(session)));
	assert_int_equal(strlen(session), 32);
	/* Access key READER may read the object, but can neither use nor end WRITER's session. */
	a = proceed("ready", "READER", session, "deadbeef");
	expect(&a, 404, "NoSuchRDMASession");
	a = proceed("cancel", "READER", session, "deadbeef");
	expect(&a, 200, NULL);
	/* The session exists: the gateway has found it, and reports NoSuchKey because the object
	 * does not exist. */
	a = proceed("ready", NULL, session, "deadbeef");
	expect(&a, 404, "NoSuchKey");
	a = proceed("ready", NULL, session, "deadbeef");
	expect(&a, 404, "NoSuchRDMASession");
	/* A wrong cookie ends the session. */
	a = prepare(NULL, NULL, NULL);
	assert_true(value_of(&a, "x-amz-rdma-session", session, sizeof(session)));
	a = proceed("ready", NULL, session, "deadbeee");
	expect(&a, 404, "NoSuchRDMASession");
	a = proceed("ready", NULL, session, "deadbeef");
	expect(&a, 404, "NoSuchRDMASession");
	/* CANCEL, the request with which a client gives up, ends the session, too. */
	a = prepare("READER", "x-amz-rdma-op", "GET");
	assert_true(value_of(&a, "x-amz-rdma-session", foreign, sizeof(foreign)));
	a = proceed("cancel", "READER", foreign, "deadbeef");
	expect(&a, 200, NULL);
	a = proceed("ready", "READER", foreign, "deadbeef");
	expect(&a, 404, "NoSuchRDMASession");
	a = proceed("ready", NULL, "zz", "deadbeef");
	expect(&a, 400, "InvalidRequest");
	gateway_end();
	assert_int_equal(fake_card.live, 0);
}

/* READY, the request that starts a session's transfer, uses the window of its session, even if it
 * has a token of another window. So the session ends with the request, and frees its memory and its
 * queue pair. */
static void ignores_a_token_in_a_ready(void **state)
{
	static const char token[] = "1000:1000:tcp1:127.0.0.1:1:00112233445566778899aabbccddeeff";
	static const char *const targets[] = {"/data/by-hand",
					      "/data/by-hand?partNumber=1&uploadId=none"};
	char session[64];
	struct answer a;
	int live;

	(void)state;
	gateway_open("hipobj-rc-v2,tcp1");
	for (unsigned i = 0; i < 2; i++) {
		a = prepare(NULL, "x-amz-rdma-target", targets[i]);
		assert_true(value_of(&a, "x-amz-rdma-session", session, sizeof(session)));
		a = proceed_token("ready", NULL, session, "deadbeef", token);
		printf("# READY with a token: %d\n", a.status);
		if (i)
			expect(&a, 404, "NoSuchUpload");
		else
			expect(&a, 500, "RDMATransferFailed");
	}
	gateway_end();
	/* The gateway has ended its sessions, and no other object of the card is left. */
	fake_card_lock();
	live = fake_card.live;
	fake_card_unlock();
	assert_int_equal(live, 0);
}

/* If the client writes no bytes by RDMA, the gateway must store no object for a PUT. */
static void stores_nothing_that_has_not_come(void **state)
{
	char session[64];
	struct answer a;

	(void)state;
	gateway_open("hipobj-rc-v2");
	a = prepare(NULL, NULL, NULL);
	assert_true(value_of(&a, "x-amz-rdma-session", session, sizeof(session)));
	a = proceed("ready", NULL, session, "deadbeef");
	expect(&a, 500, "RDMATransferFailed");
	a = ask("HEAD", "/data/by-hand", NULL, NULL);
	expect(&a, 404, NULL);
	gateway_end();
}

static void bounds_sessions(void **state)
{
	unsigned count = 0;
	char retry[16];
	struct answer a;

	(void)state;
	gateway_open("hipobj-rc-v2");
	do {
		a = prepare(NULL, NULL, NULL);
		count++;
	} while (a.status == 200 && count <= GW_SESSIONS_OWNER);
	expect(&a, 503, "SlowDown");
	assert_true(value_of(&a, "retry-after", retry, sizeof(retry)));
	assert_int_equal(count, GW_SESSIONS_OWNER + 1);
	assert_int_equal(declined("busy"), 1);
	assert_int_equal(sessions_refused(), 1);
	/* The limit applies to each access key, so another key can still open a session. */
	a = prepare("READER", "x-amz-rdma-op", "GET");
	expect(&a, 200, NULL);
	gateway_end();
	assert_int_equal(fake_card.live, 0);
}

/* Opens a session of `mib` MiB. Returns the status, and stores the session's ID. */
static int session_open(const char *key, unsigned mib, char id[64])
{
	char size[24];
	struct answer a;

	snprintf(size, sizeof(size), "%u", mib << 20);
	/* READER may not write, so all sessions read. */
	a = prepare_size(key, "x-amz-rdma-op", "GET", size);
	if (a.status == 200)
		assert_true(value_of(&a, "x-amz-rdma-session", id, 64));
	else
		expect(&a, 503, "SlowDown");
	printf("# %s asks for %u MiB: %d\n", key ? key : "WRITER", mib, a.status);
	return a.status;
}

/* An access key may have all memory of sessions, but only until another one wants some. */
static void shares_memory(void **state)
{
	char ids[4][64], id[64];
	struct answer a;

	(void)state;
	gateway_open("hipobj-rc-v2");
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(session_open(NULL, 64, ids[i]), 200);
	assert_int_equal(session_open(NULL, 64, id), 503);
	assert_int_equal(session_open("READER", 32, id), 503);
	assert_int_equal(sessions_refused(), 2);
	/* READER waits for memory. So WRITER does not get back memory that it gives up, because it
	 * still has at least half of all memory. */
	for (unsigned i = 0; i < 2; i++) {
		a = proceed("cancel", NULL, ids[i], "deadbeef");
		expect(&a, 200, NULL);
		assert_int_equal(session_open(NULL, 32, id), 503);
	}
	assert_int_equal(session_open("READER", 32, id), 200);
	assert_int_equal(session_open("READER", 96, id), 200);
	/* READER has asked for too much, and thus does not count as waiting. */
	assert_int_equal(session_open("READER", 64, id), 503);
	a = proceed("cancel", NULL, ids[2], "deadbeef");
	expect(&a, 200, NULL);
	assert_int_equal(session_open(NULL, 64, ids[2]), 200);
	assert_int_equal(sessions_refused(), 5);
	gateway_end();
	assert_int_equal(fake_card.live, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refuses_requests),
		cmocka_unit_test(keeps_sessions_apart),
		cmocka_unit_test(ignores_a_token_in_a_ready),
		cmocka_unit_test(stores_nothing_that_has_not_come),
		cmocka_unit_test(bounds_sessions),
		cmocka_unit_test(shares_memory),
		cmocka_unit_test(moves_objects),
		cmocka_unit_test(uses_http_instead),
	};

	return cmocka_run_group_tests_name("hipobj_serve", tests, group_open, NULL);
}
