/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores a file as an object, and reads the object back into other memory, through a plane. A plane
 * is the process `penstock plane`, which has the keys of the object store and uses the network
 * card. This program only allocates the memory for the bytes. Without a plane (SOCKET is "-"), the
 * same calls send the requests from this process, with the keys of its environment.
 *
 * *	object_plane SOCKET|- BUCKET FILE
 */
#include <stdio.h>
#include <string.h>

#include <penstock_object.h>

/* Moves `len` bytes between the buffer and the object "example". Prints the transport that moved
 * them. Returns 0 or -1. */
static int move(struct penstock_object_client *client, struct penstock_object_buffer *buffer,
		enum penstock_op op, uint64_t off, size_t len, const char *bucket)
{
	struct penstock_object_request request = PENSTOCK_OBJECT_REQUEST_INIT;
	struct penstock_object_window *window;
	struct penstock_object_end end;
	int ret = -1;

	request.bucket = bucket;
	request.key = "example";
	if (penstock_object_window_open(buffer, op, off, len, &window) < 0) {
		fprintf(stderr, "object_plane: %s\n", penstock_errmsg());
		return -1;
	}
	if (penstock_object_start(window, &request) < 0)
		fprintf(stderr, "object_plane: %s\n", penstock_errmsg());
	else if (penstock_object_client_wait(client, &end, 1, -1) != 1)
		fprintf(stderr, "object_plane: no completion\n");
	else if (end.result != (int64_t)len)
		fprintf(stderr, "object_plane: %s\n", end.text);
	else
		ret = 0;
	/* Until penstock_object_release returns, the memory must not be used for anything else. */
	if (penstock_object_release(window) < 0)
		ret = -1;
	if (!ret)
		printf("%s by %s, ", op == PENSTOCK_WRITE ? "PUT" : "GET", end.transport);
	return ret;
}

int main(int argc, char **argv)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	FILE *file = argc > 3 ? fopen(argv[3], "rb") : NULL;
	size_t len, second;
	long end;
	char *mem;
	int ret;

	if (!file || fseek(file, 0, SEEK_END) || (end = ftell(file)) <= 0) {
		fprintf(stderr, "usage: object_plane SOCKET|- BUCKET FILE\n");
		return 2;
	}
	rewind(file);
	len = (size_t)end;
	/* offset in the buffer, on a page boundary, to which the object is read back */
	second = (len + 4095) / 4096 * 4096;
	opts.plane = strcmp(argv[1], "-") ? argv[1] : NULL;
	if (penstock_object_client_open(&opts, &client) < 0 ||
	    penstock_object_alloc(client, NULL, second + len, &buffer) < 0) {
		fprintf(stderr, "object_plane: %s\n", penstock_errmsg());
		return 1;
	}
	mem = penstock_object_ptr(buffer);
	if (fread(mem, 1, len, file) != len)
		return 1;
	fclose(file);
	ret = move(client, buffer, PENSTOCK_WRITE, 0, len, argv[2]);
	if (!ret)
		ret = move(client, buffer, PENSTOCK_READ, second, len, argv[2]);
	if (!ret)
		printf("%s\n", memcmp(mem, mem + second, len) ? "other bytes" : "the same bytes");
	penstock_object_unregister(buffer);
	penstock_object_client_close(client);
	return ret ? 1 : 0;
}
