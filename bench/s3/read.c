/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a whole object into memory twice, or writes one twice, for bench/s3/run. The first time
 * opens the connections, and the second one is measured. Before the second one, the program prints
 * "ready" and waits for a line on stdin, so that several programs can start at the same time.
 * Afterwards it prints the elapsed seconds, the CPU seconds of the process, and the number of
 * bytes.
 *
 *	read penstock URL [DEVICE]	with penstock_read
 *	read fresh URL DEVICE		the same, but opens the object again for the second read,
 *					so that its checksum is compared again
 *	read put URL DEVICE BYTES	with penstock_write out of memory of the device, and
 *					penstock_commit
 *	read curl URL CONNECTIONS	with a loop over libcurl's multi interface, whose write
 *					callback copies the bodies into one buffer; ranges of 8 MiB
 *
 * Compiled with -DWITH_CURL=0, it needs no libcurl.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "penstock.h"

#define RANGE (8u << 20)
#define CONNECTIONS_MAX 256

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static double cpu(void)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
	       (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

/* Prints "ready" and waits for the line that starts the measured read. */
static void gate(void)
{
	char line[8];

	printf("ready\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(1);
}

static void result(double seconds, double cpu_seconds, size_t len)
{
	printf("%.6f %.6f %zu\n", seconds, cpu_seconds, len);
}

static int read_penstock(const char *url, const char *name, bool fresh)
{
	struct penstock_storage *st;
	struct penstock_device *dev;
	double wall = 0, used = 0;
	int64_t length, n = 0;
	void *mem;

	if (penstock_open(url, NULL, &st) || penstock_device_open(name, NULL, &dev) < 0)
		goto failed;
	length = penstock_storage_length(st);
	if (length <= 0 || penstock_alloc(dev, (size_t)length, &mem))
		goto failed;
	for (int i = 0; i < 2 && n >= 0; i++) {
		if (i && fresh) {
			penstock_close(st);
			if (penstock_open(url, NULL, &st))
				goto failed;
		}
		if (i)
			gate();
		wall = now();
		used = cpu();
		n = penstock_read(st, dev, mem, (size_t)length, 0);
	}
	if (n == length) {
		wall = now() - wall;
		result(wall, cpu() - used, (size_t)length);
		return 0;
	}
failed:
	fprintf(stderr, "%s\n", penstock_errmsg());
	return 1;
}

/* Writes an object and commits it. */
static int put_once(const char *url, struct penstock_device *dev, const void *mem, size_t len)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage *st;
	int ret;

	opts.flags = PENSTOCK_O_REPLACE;
	opts.length = len;
	ret = penstock_open(url, &opts, &st);
	if (ret)
		return ret;
	ret = penstock_write(st, dev, mem, len, 0) == (int64_t)len ? penstock_commit(st, 1) : -1;
	penstock_close(st);
	return ret;
}

static int put_penstock(const char *url, const char *name, size_t len)
{
	struct penstock_device *dev;
	double wall = 0, used = 0;
	void *mem;

	if (penstock_device_open(name, NULL, &dev) < 0 || penstock_alloc(dev, len, &mem))
		goto failed;
	for (int i = 0; i < 2; i++) {
		if (i)
			gate();
		wall = now();
		used = cpu();
		if (put_once(url, dev, mem, len))
			goto failed;
	}
	wall = now() - wall;
	result(wall, cpu() - used, len);
	return 0;
failed:
	fprintf(stderr, "%s\n", penstock_errmsg());
	return 1;
}

#if WITH_CURL
#include <curl/curl.h>

struct transfer {
	CURL *curl;
	char *at;
	char range[64];
};

static size_t body_write(char *bytes, size_t size, size_t count, void *user)
{
	struct transfer *transfer = user;

	memcpy(transfer->at, bytes, size * count);
	transfer->at += size * count;
	return size * count;
}

static int64_t object_length(const char *url)
{
	CURL *curl = curl_easy_init();
	curl_off_t length = -1;

	curl_easy_setopt(curl, CURLOPT_URL, url);
	curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
	if (!curl_easy_perform(curl))
		curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	curl_easy_cleanup(curl);
	return length;
}

/* Assigns the next range of the object to a transfer, and starts the transfer. */
static void transfer_next(CURLM *multi, struct transfer *t, char *mem, uint64_t *next, uint64_t len)
{
	uint64_t end = len - *next < RANGE ? len : *next + RANGE;

	t->at = mem + *next;
	snprintf(t->range, sizeof(t->range), "%llu-%llu", (unsigned long long)*next,
		 (unsigned long long)end - 1);
	curl_easy_setopt(t->curl, CURLOPT_RANGE, t->range);
	*next = end;
	curl_multi_add_handle(multi, t->curl);
}

static int curl_once(CURLM *multi, struct transfer *transfers, unsigned count, char *mem,
		     uint64_t len)
{
	uint64_t next = 0;
	int running = 1, left, failed = 0;
	CURLMsg *msg;

	for (unsigned i = 0; i < count && next < len; i++)
		transfer_next(multi, &transfers[i], mem, &next, len);
	while (running) {
		curl_multi_perform(multi, &running);
		while ((msg = curl_multi_info_read(multi, &left))) {
			struct transfer *t;

			if (msg->msg != CURLMSG_DONE)
				continue;
			failed |= msg->data.result;
			curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&t);
			curl_multi_remove_handle(multi, t->curl);
			if (next < len) {
				transfer_next(multi, t, mem, &next, len);
				running = 1;
			}
		}
		if (running)
			curl_multi_poll(multi, NULL, 0, 100, NULL);
	}
	return failed;
}

static int read_curl(const char *url, unsigned count)
{
	static struct transfer transfers[CONNECTIONS_MAX];
	CURLM *multi = curl_multi_init();
	int64_t length = object_length(url);
	char *mem = length > 0 ? aligned_alloc(4096, (size_t)(length + 4095) / 4096 * 4096) : NULL;
	double wall = 0, used = 0;

	if (!mem || !count || count > CONNECTIONS_MAX)
		return 1;
	for (unsigned i = 0; i < count; i++) {
		transfers[i].curl = curl_easy_init();
		curl_easy_setopt(transfers[i].curl, CURLOPT_URL, url);
		curl_easy_setopt(transfers[i].curl, CURLOPT_BUFFERSIZE, 512 * 1024L);
		curl_easy_setopt(transfers[i].curl, CURLOPT_FAILONERROR, 1L);
		curl_easy_setopt(transfers[i].curl, CURLOPT_WRITEFUNCTION, body_write);
		curl_easy_setopt(transfers[i].curl, CURLOPT_WRITEDATA, &transfers[i]);
		curl_easy_setopt(transfers[i].curl, CURLOPT_PRIVATE, &transfers[i]);
	}
	for (int i = 0; i < 2; i++) {
		if (i)
			gate();
		wall = now();
		used = cpu();
		if (curl_once(multi, transfers, count, mem, (uint64_t)length))
			return 1;
	}
	wall = now() - wall;
	result(wall, cpu() - used, (size_t)length);
	return 0;
}
#else
static int read_curl(const char *url, unsigned count)
{
	(void)url;
	(void)count;
	return 1;
}
#endif

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "penstock"))
		return read_penstock(argv[2], argc > 3 ? argv[3] : "host", false);
	if (argc > 3 && !strcmp(argv[1], "fresh"))
		return read_penstock(argv[2], argv[3], true);
	if (argc > 4 && !strcmp(argv[1], "put"))
		return put_penstock(argv[2], argv[3], strtoull(argv[4], NULL, 0));
	if (argc > 3 && !strcmp(argv[1], "curl"))
		return read_curl(argv[2], (unsigned)strtoul(argv[3], NULL, 10));
	fprintf(stderr, "usage: read penstock URL [DEVICE] | read fresh URL DEVICE | "
			"read put URL DEVICE BYTES | read curl URL CONNECTIONS\n");
	return 2;
}
