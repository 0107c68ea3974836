/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the data transfer of S3 over RDMA through penstock_object.h. Client and server are in one
 * process. Each transport is tested with memory of the host, of the caller and of the stand-in GPU.
 * Each case uses random offsets and pieces and compares all bytes of the buffer, so that it detects
 * a byte outside the window. tests/unit/test_wire_refuses.c tests what must be refused, and
 * tests/object/ tests two processes.
 */
#include "test.h"

#include <errno.h>
#include <poll.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "penstock_object.h"

#define BUFFER_LEN (5u << 20)
#define MOVES 24

struct sides {
	struct penstock_object_client *client;
	struct penstock_object_server *server;
	struct penstock_device *gpu;
};

static void open_sides(struct sides *s, const char *transport, bool gpu)
{
	struct penstock_object_client_opts c = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_server_opts o = PENSTOCK_OBJECT_SERVER_OPTS_INIT;

	s->gpu = NULL;
	if (gpu && penstock_device_open("cuda:0", NULL, &s->gpu) < 0)
		fail_msg("%s", penstock_errmsg());
	c.transports = transport;
	o.device = s->gpu;
	o.channels = 3;
	if (penstock_object_client_open(&c, &s->client) ||
	    penstock_object_server_open(&o, &s->server))
		fail_msg("%s", penstock_errmsg());
}

static void close_sides(struct sides *s)
{
	penstock_object_server_close(s->server);
	penstock_object_client_close(s->client);
	penstock_device_close(s->gpu);
}

/* Copies between host memory and a buffer, which may be in the memory of a GPU. */
static void copy(struct sides *s, void *dst, const void *src, size_t len, bool to_buffer)
{
	struct penstock_copy_args a = {.size = sizeof(a), .dst = dst, .src = src, .row_len = len};
	struct penstock_device *host;

	if (!s->gpu) {
		memcpy(dst, src, len);
		return;
	}
	assert_true(penstock_device_open("host", NULL, &host) >= 0);
	a.dst_dev = to_buffer ? s->gpu : host;
	a.src_dev = to_buffer ? host : s->gpu;
	assert_int_equal(penstock_copy(&a, 1), 0);
	penstock_device_close(host);
}

static struct penstock_object_remote *resolve(struct sides *s,
					      const struct penstock_object_window *window)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_remote *remote;

	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	if (penstock_object_resolve(s->server, info.token, strlen(info.token), NULL, &remote))
		fail_msg("%s", penstock_errmsg());
	return remote;
}

static int64_t wait_one(struct sides *s, uint64_t user)
{
	struct penstock_object_done done;

	assert_int_equal(penstock_object_wait(s->server, &done, 1, 20000), 1);
	assert_int_equal(done.user, user);
	if (done.result < 0)
		printf("# move failed: %s\n", done.text);
	return done.result;
}

/* Splits `len` bytes at `mem` into up to seven pieces of random length. */
static unsigned split(struct penstock_object_seg *segs, unsigned char *mem, uint64_t len,
		      uint64_t *seed)
{
	unsigned count = 0;

	while (len) {
		uint64_t n = count == 6 ? len : 1 + test_random(seed) % len;

		segs[count++] = (struct penstock_object_seg){.ptr = mem, .len = n};
		mem += n;
		len -= n;
	}
	return count;
}

/* Moves random ranges, and compares the whole buffer with a copy of what it must contain. */
static void move_ranges(struct sides *s, struct penstock_object_buffer *buffer,
			const char *transport)
{
	const bool own_offset = strcmp(transport, "shm1") != 0;
	unsigned char *at = penstock_object_ptr(buffer);
	unsigned char *expected = malloc(BUFFER_LEN), *found = malloc(BUFFER_LEN);
	unsigned char *local = malloc(BUFFER_LEN);
	uint64_t seed = test_seed(4711), moved = 0, written = 0;
	struct penstock_object_client_info info = {.size = sizeof(info)};
	struct penstock_object_server_info counts = {.size = sizeof(counts)};

	assert_true(expected && found && local);
	for (unsigned i = 0; i < BUFFER_LEN; i++)
		expected[i] = (unsigned char)test_random(&seed);
	copy(s, at, expected, BUFFER_LEN, true);
	for (unsigned i = 0; i < MOVES; i++) {
		enum penstock_op op = i & 1 ? PENSTOCK_WRITE : PENSTOCK_READ;
		uint64_t off = test_random(&seed) % BUFFER_LEN;
		uint64_t len, inner, n;
		struct penstock_object_seg segs[8];
		struct penstock_object_window *window;
		struct penstock_object_remote *remote;

		if (!own_offset)
			off &= ~UINT64_C(4095);
		len = 1 + test_random(&seed) % (BUFFER_LEN - off);
		inner = test_random(&seed) % len;
		n = 1 + test_random(&seed) % (len - inner);
		if (penstock_object_window_open(buffer, op, off, len, &window))
			fail_msg("%s", penstock_errmsg());
		remote = resolve(s, window);
		for (uint64_t k = 0; k < n; k++)
			local[k] = (unsigned char)(test_random(&seed) >> 8);
		if (op == PENSTOCK_READ)
			memcpy(expected + off + inner, local, n);
		assert_int_equal(penstock_object_move(remote, op, inner, segs,
						      split(segs, local, n, &seed), i),
				 0);
		penstock_object_forget(remote);
		assert_int_equal(wait_one(s, i), n);
		assert_int_equal(penstock_object_release(window), 0);
		moved += n;
		written += op == PENSTOCK_READ ? n : 0;
		if (op == PENSTOCK_WRITE)
			assert_memory_equal(local, expected + off + inner, n);
		copy(s, found, at, BUFFER_LEN, false);
		assert_memory_equal(found, expected, BUFFER_LEN);
	}
	assert_int_equal(penstock_object_client_get_info(s->client, &info), 0);
	assert_int_equal(info.windows, MOVES);
	assert_int_equal(info.bytes, moved);
	assert_int_equal(info.late + info.wrong_cap + info.out_of_window + info.bad_checksum, 0);
	assert_int_equal(penstock_object_server_get_info(s->server, &counts), 0);
	for (unsigned i = 0; i < PENSTOCK_OBJECT_TRANSPORTS_MAX; i++) {
		const struct penstock_object_traffic *t = &counts.traffic[i];
		bool used = t->transport && !strcmp(t->transport, transport);

		assert_int_equal(t->bytes_out, used ? written : 0);
		assert_int_equal(t->bytes_in, used ? moved - written : 0);
	}
	free(expected);
	free(found);
	free(local);
}

static void move_by(const char *transport, bool gpu)
{
	struct sides s;
	struct penstock_object_buffer *buffer;

	open_sides(&s, transport, gpu);
	if (penstock_object_alloc(s.client, s.gpu, BUFFER_LEN, &buffer))
		fail_msg("%s", penstock_errmsg());
	assert_int_equal((uintptr_t)penstock_object_ptr(buffer) % (gpu ? 4096 : 2 << 20), 0);
	move_ranges(&s, buffer, transport);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

static void shm1_moves_all_bytes(void **state)
{
	(void)state;
	move_by("shm1", false);
}

static void tcp1_moves_all_bytes(void **state)
{
	(void)state;
	move_by("tcp1", false);
}

static void tcp1_moves_gpu_memory(void **state)
{
	(void)state;
	move_by("tcp1", true);
}

static void tcp1_uses_memory_of_the_caller(void **state)
{
	unsigned char *mem = malloc(BUFFER_LEN);
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct sides s;

	(void)state;
	open_sides(&s, NULL, false);
	assert_int_equal(penstock_object_register(s.client, NULL, mem, BUFFER_LEN, &buffer), 0);
	assert_ptr_equal(penstock_object_ptr(buffer), mem);
	move_ranges(&s, buffer, "tcp1");
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 1, &window), 0);
	assert_int_equal(penstock_object_unregister(buffer), -EBUSY);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	free(mem);
	close_sides(&s);
}

/* The client must prefer transport shm1, and use tcp1 for windows (memory that the server may
 * access) that shm1 cannot share. */
static void picks_a_transport_for_each_window(void **state)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct sides s;

	(void)state;
	open_sides(&s, NULL, false);
	assert_int_equal(penstock_object_alloc(s.client, NULL, 8192, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 4096, 1, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.transport, "shm1");
	assert_int_equal(info.on_host, 1);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 1, 1, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.transport, "tcp1");
	assert_int_equal(info.on_host, 0);
	assert_int_equal(info.encrypted, 0);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 8192, 1, &window),
			 -ERANGE);
	assert_int_equal(penstock_object_window_open(buffer, 7, 0, 1, &window), -EINVAL);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

/* Returns how often threads of this process went to sleep. */
static long sleeps(void)
{
	struct rusage usage;

	assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
	return usage.ru_nvcsw;
}

/* A channel is a thread of the server. If it wakes up for a move of another channel, it goes to
 * sleep again, and the kernel counts this sleep. */
static void a_move_wakes_up_one_channel(void **state)
{
	enum { CHANNELS = 32, TIMES = 200, SLEEPS_MAX = 12 };
	struct penstock_object_server_opts o = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct penstock_object_remote *remote;
	struct penstock_object_done done;
	char bytes[64] = "";
	struct penstock_object_seg seg = {.ptr = bytes, .len = sizeof(bytes)};
	struct sides s;
	long before;

	(void)state;
	open_sides(&s, "shm1", false);
	penstock_object_server_close(s.server);
	o.channels = CHANNELS;
	assert_int_equal(penstock_object_server_open(&o, &s.server), 0);
	assert_int_equal(penstock_object_alloc(s.client, NULL, sizeof(bytes), &buffer), 0);
	assert_int_equal(
		penstock_object_window_open(buffer, PENSTOCK_READ, 0, sizeof(bytes), &window), 0);
	remote = resolve(&s, window);
	before = sleeps();
	for (unsigned i = 0; i < TIMES; i++) {
		assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, &seg, 1, i), 0);
		assert_int_equal(penstock_object_wait(s.server, &done, 1, 20000), 1);
		assert_int_equal(done.result, sizeof(bytes));
	}
	before = sleeps() - before;
	printf("# %ld sleeps for %d moves by %d channels\n", before, TIMES, CHANNELS);
	assert_in_range(before, 0, SLEEPS_MAX * TIMES);
	penstock_object_forget(remote);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

/* Many moves are in flight on several channels (threads of the server). A program can wait for them
 * with poll(2). */
static void many_moves_complete_once(void **state)
{
	static unsigned char local[64][65536];
	struct penstock_object_window *windows[64];
	struct penstock_object_remote *remotes[64];
	struct penstock_object_buffer *buffer;
	struct penstock_object_done done[8];
	unsigned seen[64] = {0}, count = 0;
	struct sides s;

	(void)state;
	open_sides(&s, NULL, false);
	assert_int_equal(penstock_object_alloc(s.client, NULL, sizeof(local), &buffer), 0);
	for (unsigned i = 0; i < 64; i++) {
		struct penstock_object_seg seg = {.ptr = local[i], .len = sizeof(local[i])};

		memset(local[i], (int)i + 1, sizeof(local[i]));
		/* Every second window has an odd offset. shm1 cannot share such a window, so it
		 * uses tcp1. */
		assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ,
							     i * sizeof(local[i]) + i % 2,
							     sizeof(local[i]) - i % 2, &windows[i]),
				 0);
		remotes[i] = resolve(&s, windows[i]);
		seg.len -= i % 2;
		assert_int_equal(penstock_object_move(remotes[i], PENSTOCK_READ, 0, &seg, 1, i), 0);
		penstock_object_forget(remotes[i]);
	}
	while (count < 64) {
		struct pollfd fd = {penstock_object_fd(s.server), POLLIN, 0};
		int n;

		assert_int_equal(poll(&fd, 1, 20000), 1);
		n = penstock_object_poll(s.server, done, 8);
		assert_true(n > 0);
		for (int i = 0; i < n; i++, count++) {
			assert_int_equal(done[i].result, 65536 - done[i].user % 2);
			seen[done[i].user]++;
		}
	}
	for (unsigned i = 0; i < 64; i++) {
		const unsigned char *at = penstock_object_ptr(buffer);

		assert_int_equal(seen[i], 1);
		assert_int_equal(penstock_object_release(windows[i]), 0);
		assert_int_equal(at[i * 65536 + 1], i + 1);
		assert_int_equal(at[i * 65536 + 65535], i + 1);
	}
	assert_int_equal(penstock_object_poll(s.server, done, 8), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

/* If the server process belongs to another user, it gets a read-only descriptor of the memory. It
 * must not be able to open the file again for writing. */
static void memory_is_the_users_own(void **state)
{
	struct penstock_object_buffer *buffer;
	unsigned found = 0;
	struct sides s;

	(void)state;
	open_sides(&s, "shm1", false);
	assert_int_equal(penstock_object_alloc(s.client, NULL, 8192, &buffer), 0);
	for (int fd = 0; fd < 1000; fd++) {
		char name[40], link[40] = "";
		struct stat stat;

		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		if (readlink(name, link, sizeof(link) - 1) < 0 ||
		    strncmp(link, "/memfd:penstock-window", 22))
			continue;
		assert_int_equal(fstat(fd, &stat), 0);
		assert_int_equal(stat.st_mode & 0777, 0600);
		found++;
	}
	assert_int_equal(found, 2);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

static void headers_of_a_request(void **state)
{
	struct penstock_object_header h[PENSTOCK_OBJECT_HEADERS_MAX];
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct penstock_object_verdict verdict = PENSTOCK_OBJECT_VERDICT_INIT;
	struct penstock_object_window_info info = {.size = sizeof(info)};
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct sides s;

	(void)state;
	open_sides(&s, NULL, false);
	assert_int_equal(penstock_object_alloc(s.client, NULL, 1, &buffer), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 1, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_int_equal(penstock_object_headers(window, h, 4), 2);
	assert_string_equal(h[0].name, "x-amz-rdma-token");
	assert_string_equal(h[0].value, info.token);
	assert_string_equal(h[1].name, "x-amz-content-sha256");
	assert_string_equal(h[1].value, "UNSIGNED-PAYLOAD");
	assert_int_equal(penstock_object_judge(window, &reply, &verdict), 0);
	assert_int_equal(verdict.next, PENSTOCK_OBJECT_ERROR);
	verdict.size = 0;
	assert_int_equal(penstock_object_judge(window, &reply, &verdict), -EINVAL);
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_WRITE, 0, 1, &window), 0);
	assert_int_equal(penstock_object_headers(window, h, 2), -E2BIG);
	assert_int_equal(penstock_object_headers(window, h, 3), 3);
	assert_string_equal(h[2].name, "content-length");
	assert_string_equal(h[2].value, "0");
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

static void limits_are_kept(void **state)
{
	static struct penstock_object_window *windows[PENSTOCK_OBJECT_WINDOWS_MAX + 1];
	struct penstock_object_seg segs[PENSTOCK_OBJECT_SEGS_MAX + 1] = {{.len = 0}};
	struct penstock_object_server_info info = {.size = sizeof(info)};
	struct penstock_object_remote_info facts = {.size = sizeof(facts)};
	struct penstock_object_buffer *buffer;
	struct penstock_object_remote *remote;
	struct sides s;
	char byte = 1;

	(void)state;
	open_sides(&s, "tcp1", false);
	assert_int_equal(penstock_object_alloc(s.client, NULL, 10, &buffer), 0);
	for (unsigned i = 0; i < PENSTOCK_OBJECT_WINDOWS_MAX; i++)
		assert_int_equal(
			penstock_object_window_open(buffer, PENSTOCK_READ, 0, 10, &windows[i]), 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 0, 10,
						     &windows[PENSTOCK_OBJECT_WINDOWS_MAX]),
			 -EAGAIN);
	remote = resolve(&s, windows[0]);
	assert_int_equal(penstock_object_remote_get_info(remote, &facts), 0);
	assert_int_equal(facts.length, 10);
	assert_string_equal(facts.transport, "tcp1");
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, segs,
					      PENSTOCK_OBJECT_SEGS_MAX + 1, 0),
			 -E2BIG);
	segs[0] = (struct penstock_object_seg){.ptr = &byte, .len = 11};
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, segs, 1, 0), -ERANGE);
	segs[0].len = 1;
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 10, segs, 1, 0), -ERANGE);
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, UINT64_MAX, segs, 1, 0),
			 -ERANGE);
	assert_int_equal(penstock_object_move(remote, 5, 0, segs, 1, 0), -EINVAL);
	/* A move of no bytes succeeds. */
	assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 10, NULL, 0, 9), 0);
	assert_int_equal(wait_one(&s, 9), 0);
	assert_int_equal(penstock_object_server_get_info(s.server, &info), 0);
	assert_int_equal(info.resolved, 1);
	assert_int_equal(info.moves, 1);
	penstock_object_forget(remote);
	for (unsigned i = 0; i < PENSTOCK_OBJECT_WINDOWS_MAX; i++)
		assert_int_equal(penstock_object_release(windows[i]), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

/* The server's segments may be ranges of a file or memory. */
static void moves_files_by(const char *transport, bool gpu)
{
	static unsigned char bytes[3 << 20], found[sizeof(bytes)];
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct penstock_object_remote *remote;
	struct penstock_object_seg segs[3];
	FILE *file = tmpfile();
	uint64_t seed = test_seed(99);
	struct sides s;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)test_random(&seed);
	assert_int_equal(fwrite(bytes, 1, sizeof(bytes), file), sizeof(bytes));
	fflush(file);
	segs[0] = (struct penstock_object_seg){.ptr = bytes, .len = 100};
	segs[1] = (struct penstock_object_seg){
		.len = sizeof(bytes) - 200, .has_fd = 1, .fd = fileno(file), .fd_off = 100};
	segs[2] = (struct penstock_object_seg){.ptr = bytes + sizeof(bytes) - 100, .len = 100};
	open_sides(&s, transport, gpu);
	assert_int_equal(penstock_object_alloc(s.client, s.gpu, sizeof(bytes), &buffer), 0);
	for (unsigned op = PENSTOCK_READ; op <= PENSTOCK_WRITE; op++) {
		assert_int_equal(penstock_object_window_open(buffer, op, 0, sizeof(bytes), &window),
				 0);
		remote = resolve(&s, window);
		assert_int_equal(penstock_object_move(remote, op, 0, segs, 3, op), 0);
		assert_int_equal(wait_one(&s, op), sizeof(bytes));
		/* A move fails if the file ends before the segment. */
		segs[1].fd_off += sizeof(bytes);
		assert_int_equal(penstock_object_move(remote, PENSTOCK_READ, 0, segs, 3, 7), 0);
		assert_true(wait_one(&s, 7) < 0);
		segs[1].fd_off = 100;
		penstock_object_forget(remote);
		assert_int_equal(penstock_object_release(window), 0);
		if (op == PENSTOCK_READ) {
			copy(&s, found, penstock_object_ptr(buffer), sizeof(found), false);
			assert_memory_equal(found, bytes, sizeof(bytes));
			/* Moves the bytes of the window back to the file and to the memory. */
			memset(bytes, 0, sizeof(bytes));
			assert_int_equal(ftruncate(fileno(file), 0), 0);
		}
	}
	assert_int_equal(pread(fileno(file), bytes + 100, sizeof(bytes) - 200, 100),
			 sizeof(bytes) - 200);
	assert_memory_equal(found, bytes, sizeof(bytes));
	fclose(file);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	close_sides(&s);
}

static void moves_files(void **state)
{
	(void)state;
	moves_files_by("shm1", false);
	moves_files_by("tcp1", false);
	moves_files_by("tcp1", true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shm1_moves_all_bytes),
		cmocka_unit_test(memory_is_the_users_own),
		cmocka_unit_test(tcp1_moves_all_bytes),
		cmocka_unit_test(tcp1_moves_gpu_memory),
		cmocka_unit_test(tcp1_uses_memory_of_the_caller),
		cmocka_unit_test(picks_a_transport_for_each_window),
		cmocka_unit_test(a_move_wakes_up_one_channel),
		cmocka_unit_test(many_moves_complete_once),
		cmocka_unit_test(moves_files),
		cmocka_unit_test(headers_of_a_request),
		cmocka_unit_test(limits_are_kept),
	};

	test_use_standin();
	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
