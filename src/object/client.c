/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client half of penstock_object.h: checks arguments, and calls the data plane (src/wire). A
 * buffer and a window of the API are those of the data plane.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "object/memory.h"
#include "wire/client.h"

struct penstock_object_client {
	struct pst_wire_client *wire;
	unsigned generation; /* fork generation of the process that opened it */
};

static struct pst_wire_buffer *inner_buffer(const struct penstock_object_buffer *buffer)
{
	return (struct pst_wire_buffer *)buffer;
}

static struct pst_wire_grant *inner_window(const struct penstock_object_window *window)
{
	return (struct pst_wire_grant *)window;
}

int penstock_object_client_open(const struct penstock_object_client_opts *opts,
				struct penstock_object_client **out)
{
	struct penstock_object_client_opts o;
	const struct pst_wire_devices *devices;
	struct penstock_object_client *client;
	struct pst_err err = {0};
	int ret;

	if (pst_struct_copy_in(&o, sizeof(o), opts, "the options", &err))
		return pst_err_publish(&err);
	if (!out)
		return pst_fail_null("out");
	client = calloc(1, sizeof(*client));
	if (!client)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a client");
	devices = pst_object_devices_open();
	if (!devices) {
		free(client);
		return -ENOMEM;
	}
	ret = pst_wire_client_open(&o, devices, &client->wire, &err);
	if (ret) {
		pst_object_devices_close();
		free(client);
		return pst_err_publish(&err);
	}
	client->generation = pst_fork_generation();
	*out = client;
	return 0;
}

void penstock_object_client_close(struct penstock_object_client *client)
{
	struct pst_err err;

	/* The client of a parent process has no thread here, so it is left alone. */
	if (!client || pst_fork_check(client->generation, &err))
		return;
	pst_wire_client_close(client->wire);
	pst_object_devices_close();
	free(client);
}

static int buffer_open(struct penstock_object_client *client, struct penstock_device *dev,
		       void *ptr, size_t len, struct penstock_object_buffer **out)
{
	struct pst_wire_buffer *buffer;
	struct pst_err err = {0};
	int ret;

	if (!client || !out)
		return pst_fail_null(client ? "out" : "the client");
	ret = pst_fork_check(client->generation, &err);
	if (!ret)
		ret = pst_wire_buffer_open(client->wire, pst_object_device(dev), ptr, len, &buffer,
					   &err);
	if (ret)
		return pst_err_publish(&err);
	*out = (struct penstock_object_buffer *)buffer;
	return 0;
}

int penstock_object_alloc(struct penstock_object_client *client, struct penstock_device *dev,
			  size_t len, struct penstock_object_buffer **out)
{
	return buffer_open(client, dev, NULL, len, out);
}

int penstock_object_register(struct penstock_object_client *client, struct penstock_device *dev,
			     void *ptr, size_t len, struct penstock_object_buffer **out)
{
	return ptr ? buffer_open(client, dev, ptr, len, out) : pst_fail_null("the memory");
}

void *penstock_object_ptr(const struct penstock_object_buffer *buffer)
{
	if (buffer)
		return pst_wire_buffer_ptr(inner_buffer(buffer));
	pst_fail_null("the buffer");
	return NULL;
}

int penstock_object_unregister(struct penstock_object_buffer *buffer)
{
	struct pst_err err = {0};

	if (buffer && pst_wire_buffer_close(inner_buffer(buffer), &err))
		return pst_err_publish(&err);
	return 0;
}

int penstock_object_window_open(struct penstock_object_buffer *buffer, enum penstock_op op,
				uint64_t off, uint64_t len, struct penstock_object_window **out)
{
	struct pst_wire_grant *grant;
	struct pst_err err = {0};

	if (!buffer || !out)
		return pst_fail_null(buffer ? "out" : "the buffer");
	if (pst_wire_window_open(inner_buffer(buffer), op, off, len, &grant, &err))
		return pst_err_publish(&err);
	*out = (struct penstock_object_window *)grant;
	return 0;
}

int penstock_object_window_get_info(const struct penstock_object_window *window,
				    struct penstock_object_window_info *info)
{
	struct penstock_object_window_info found = {0};

	if (!window)
		return pst_fail_null("the window");
	pst_wire_window_info(inner_window(window), &found);
	return pst_struct_copy_out(info, &found, sizeof(found));
}

int penstock_object_headers(const struct penstock_object_window *window,
			    struct penstock_object_header *headers, unsigned max)
{
	struct penstock_object_window_info info;
	unsigned count = 2;

	if (!window || !headers)
		return pst_fail_null(window ? "the array of headers" : "the window");
	pst_wire_window_info(inner_window(window), &info);
	if (pst_wire_window_exchanges(inner_window(window)))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"a window of %s needs the requests of penstock_object_exchange",
				info.transport);
	if (pst_wire_window_op(inner_window(window)) == PENSTOCK_WRITE)
		count = 3;
	if (max < count)
		return pst_fail_errno(NULL, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the request has %u headers, but the array has %u places",
				      count, max);
	headers[0] = (struct penstock_object_header){"x-amz-rdma-token", info.token};
	headers[1] = (struct penstock_object_header){"x-amz-content-sha256", "UNSIGNED-PAYLOAD"};
	if (count == 3)
		headers[2] = (struct penstock_object_header){"content-length", "0"};
	return (int)count;
}

int penstock_object_exchange(struct penstock_object_window *window, enum penstock_object_step step,
			     const char *target, uint64_t offset, const char **path,
			     struct penstock_object_header *headers, unsigned max)
{
	const struct pst_wire_step s = {step, target, offset};
	struct penstock_object_header found[PENSTOCK_OBJECT_EXCHANGE_MAX];
	struct pst_err err = {0};
	int n;

	if (!window || !path || !headers)
		return pst_fail_null(!window ? "the window"
				     : !path ? "the path"
					     : "the array of headers");
	n = pst_wire_compose(inner_window(window), &s, path, found, &err);
	if (n < 0)
		return pst_err_publish(&err);
	if ((unsigned)n > max)
		return pst_fail_errno(NULL, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the request has %d headers, but the array has %u places", n,
				      max);
	memcpy(headers, found, (unsigned)n * sizeof(*headers));
	return n;
}

int penstock_object_paired(struct penstock_object_window *window,
			   const struct penstock_object_reply *reply,
			   struct penstock_object_verdict *verdict)
{
	struct penstock_object_verdict found = {.size = sizeof(found)};
	struct penstock_object_reply r;
	struct pst_err err = {0};

	if (!window || !reply)
		return pst_fail_null(window ? "the reply" : "the window");
	if (pst_struct_copy_in(&r, sizeof(r), reply, "the reply", &err))
		return pst_err_publish(&err);
	if (r.header_count && !r.headers)
		return pst_fail_null("the array of headers");
	if (pst_wire_paired(inner_window(window), &r, &found, &err))
		return pst_err_publish(&err);
	return pst_struct_copy_out(verdict, &found, sizeof(found));
}

int penstock_object_judge(const struct penstock_object_window *window,
			  const struct penstock_object_reply *reply,
			  struct penstock_object_verdict *verdict)
{
	struct penstock_object_verdict found = {.size = sizeof(found)};
	struct penstock_object_reply r;
	struct pst_err err;

	if (!window || !reply)
		return pst_fail_null(window ? "the reply" : "the window");
	if (pst_struct_copy_in(&r, sizeof(r), reply, "the reply", &err))
		return pst_err_publish(&err);
	if (r.header_count && !r.headers)
		return pst_fail_null("the array of headers");
	pst_wire_judge(inner_window(window), &r, &found);
	return pst_struct_copy_out(verdict, &found, sizeof(found));
}

int penstock_object_release(struct penstock_object_window *window)
{
	struct pst_err err = {0};

	if (window && pst_wire_release(inner_window(window), &err))
		return pst_err_publish(&err);
	return 0;
}

int penstock_object_client_get_info(const struct penstock_object_client *client,
				    struct penstock_object_client_info *info)
{
	struct penstock_object_client_info found = {0};

	if (!client)
		return pst_fail_null("the client");
	pst_wire_client_info(client->wire, &found);
	return pst_struct_copy_out(info, &found, sizeof(found));
}
