/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture for the tests of transports that use a network card: a client and a server in one
 * process, connected by the fake card, and a buffer of the client. Included by test_dc.c,
 * test_hipobj.c and test_rc1.c.
 */
#ifndef TESTS_SIDES_H
#define TESTS_SIDES_H

#include "test.h"

#include "fake_card.h"
#include "penstock_object.h"

/* The test sets the members up to `len`; 0 and NULL stand for the library's defaults. */
struct sides {
	const char *client_transports, *server_transports;
	uint64_t client_key, server_key; /* access keys of DC_V1 */
	uint64_t staging_max;
	unsigned timeout_ms, rate_min; /* of the server */
	size_t len;		       /* of the buffer */
	/* sides_open sets these members */
	struct penstock_object_client *client;
	struct penstock_object_server *server;
	struct penstock_object_buffer *buffer;
	struct penstock_device *gpu; /* NULL: the buffer is in host memory */
	unsigned char *at;	     /* the buffer's first byte */
};

/* Opens a client whose card has the address `address`. Returns the library's result. */
static inline int sides_client_try(const struct sides *s, const char *address,
				   struct penstock_object_client **out)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;

	opts.transports = s->client_transports;
	opts.address = address;
	opts.dc_key = s->client_key;
	return penstock_object_client_open(&opts, out);
}

static inline struct penstock_object_client *sides_client(const struct sides *s)
{
	struct penstock_object_client *client;

	if (sides_client_try(s, "127.0.0.1", &client))
		fail_msg("%s", penstock_errmsg());
	return client;
}

/* Opens both sides and a buffer, in memory of the stand-in GPU if `gpu` is true. */
static inline void sides_open(struct sides *s, bool gpu)
{
	struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;

	fake_card_reset();
	s->gpu = NULL;
	if (gpu && penstock_device_open("cuda:0", NULL, &s->gpu) < 0)
		fail_msg("%s", penstock_errmsg());
	opts.transports = s->server_transports;
	opts.channels = 1;
	opts.timeout_ms = s->timeout_ms;
	opts.rate_min = s->rate_min;
	opts.staging_max = s->staging_max;
	opts.dc_key = s->server_key;
	s->client = sides_client(s);
	assert_int_equal(penstock_object_server_open(&opts, &s->server), 0);
	if (penstock_object_alloc(s->client, s->gpu, s->len, &s->buffer))
		fail_msg("%s", penstock_errmsg());
	s->at = penstock_object_ptr(s->buffer);
}

/* Closes the buffer and both sides. If the test has closed the client, `client` is NULL. Checks
 * that the fake card then has no object left. */
static inline void close_sides(struct sides *s)
{
	if (s->client) {
		assert_int_equal(penstock_object_unregister(s->buffer), 0);
		penstock_object_client_close(s->client);
	}
	penstock_object_server_close(s->server);
	penstock_device_close(s->gpu);
	assert_int_equal(fake_card.live, 0);
}

static inline struct penstock_object_window *window_open(struct sides *s, enum penstock_op op,
							 uint64_t off, uint64_t len)
{
	struct penstock_object_window *window;

	if (penstock_object_window_open(s->buffer, op, off, len, &window))
		fail_msg("%s", penstock_errmsg());
	return window;
}

#endif
