/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests transport rc1 on a machine without an RDMA network card. A client that requires rc1 fails
 * with the reason, other clients use other transports, and servers decline tokens of rc1. Also
 * tests wire/no_rc1.c, no_hipobj.c and no_dc.c, which replace transports in builds without headers.
 * tests/lab/rc1 tests transfers.
 */
#include "test.h"

#include <unistd.h>

#include "penstock_object.h"

/* Renames the tables of the files, because the library defines the same names. */
#define pst_rc1_client missing_rc1_client
#define pst_rc1_server missing_rc1_server
#define pst_hipobj_client missing_hipobj_client
#define pst_hipobj_server missing_hipobj_server
#define pst_dc_client missing_dc_client
#define pst_dc_server missing_dc_server
#include "../../src/wire/no_dc.c"
#include "../../src/wire/no_hipobj.c"
#include "../../src/wire/no_rc1.c"
#undef pst_rc1_client
#undef pst_rc1_server
#undef pst_hipobj_client
#undef pst_hipobj_server
#undef pst_dc_client
#undef pst_dc_server

#define NUMBER "00112233445566778899aabbccddeeff"

/* Skips the case if the device of rdma_cm exists, because a client may then find a card. */
static void need_no_card(void)
{
	if (!access("/dev/infiniband/rdma_cm", F_OK))
		test_skip("this machine has an rdma_cm device");
}

static void missing_transports_name_the_reason(void **state)
{
	static const struct {
		const struct pst_wire_client_ops *client;
		const struct pst_wire_server_ops *server;
		const char *name;
		enum pst_token_kind kind;
		bool named;
	} rows[] = {
		{&missing_rc1_client, &missing_rc1_server, "rc1", PST_TOKEN_RC1, false},
		{&missing_hipobj_client, &missing_hipobj_server, "hipobj-rc-v2",
		 PST_TOKEN_HIPOBJ_RC_V2, true},
		{&missing_dc_client, &missing_dc_server, "DC_V1", PST_TOKEN_DC_V1, true},
	};

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		struct pst_err err = {0};

		assert_string_equal(rows[i].client->name, rows[i].name);
		assert_int_equal(rows[i].client->named, rows[i].named);
		assert_int_equal(rows[i].server->kind, rows[i].kind);
		assert_int_equal(rows[i].client->listen(NULL, NULL, &err), -EOPNOTSUPP);
		assert_int_equal(err.why, PENSTOCK_WHY_NOT_BUILT);
		assert_non_null(strstr(err.text, "librdmacm-dev"));
		assert_non_null(strstr(err.text, rows[i].name));
		err = (struct pst_err){0};
		assert_int_equal(rows[i].server->admit(NULL, NULL, NULL, &err), -EOPNOTSUPP);
		assert_int_equal(err.why, PENSTOCK_WHY_NOT_BUILT);
	}
}

static int client_open(const char *transports, const char *address, int require_encryption,
		       struct penstock_object_client **out)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;

	opts.transports = transports;
	opts.address = address;
	opts.require_encryption = require_encryption;
	return penstock_object_client_open(&opts, out);
}

static void client_names_the_reason(void **state)
{
	struct penstock_object_client *client = NULL;
	enum penstock_why why;

	(void)state;
	need_no_card();
	assert_true(client_open("rc1", "127.0.0.1", 0, &client) < 0);
	why = penstock_errwhy();
	if (why != PENSTOCK_WHY_NO_DEVICE && why != PENSTOCK_WHY_NO_DRIVER &&
	    why != PENSTOCK_WHY_NOT_BUILT)
		fail_msg("reason %d: %s", why, penstock_errmsg());
	assert_null(client);
	/* If a client names several transports, opening fails unless all of them are available. */
	assert_true(client_open("tcp1,rc1", "127.0.0.1", 0, &client) < 0);
	if (why != PENSTOCK_WHY_NOT_BUILT)
		assert_int_equal(client_open("rc1", "example.org", 0, &client), -EINVAL);
	assert_int_equal(client_open("rc1", "127.0.0.1", 1, &client), -EOPNOTSUPP);
}

/* A client whose options name no transport works without rc1. */
static void client_uses_others(void **state)
{
	static unsigned char memory[8192];
	struct penstock_object_client *client;
	struct penstock_object_buffer *buffer;
	struct penstock_object_window *window;
	struct penstock_object_window_info info = {.size = sizeof(info)};

	(void)state;
	need_no_card();
	assert_int_equal(client_open(NULL, "127.0.0.1", 0, &client), 0);
	assert_int_equal(penstock_object_register(client, NULL, memory, sizeof(memory), &buffer),
			 0);
	assert_int_equal(penstock_object_window_open(buffer, PENSTOCK_READ, 1, 5000, &window), 0);
	assert_int_equal(penstock_object_window_get_info(window, &info), 0);
	assert_string_equal(info.transport, "tcp1");
	assert_int_equal(penstock_object_release(window), 0);
	assert_int_equal(penstock_object_unregister(buffer), 0);
	penstock_object_client_close(client);
}

static void server_declines(void **state)
{
	static const struct {
		const char *token, *peer, *words;
		int encrypt, ret;
	} rows[] = {
		{"123:1000:rc1:192.0.2.1:4791:" NUMBER ":0000beef", "192.0.2.2", "did not come", 0,
		 -EOPNOTSUPP},
		{"123:1000:rc1:192.0.2.1:4791:" NUMBER ":0000beef", NULL, "did not come", 0,
		 -EOPNOTSUPP},
		{"123:1000:rc1:192.0.2.1:4791:" NUMBER ":0000beef", "192.0.2.1", "encrypt", 1,
		 -EOPNOTSUPP},
		/* The machine has no card, or the build has no library or header. */
		{"123:1000:rc1:192.0.2.1:4791:" NUMBER ":0000beef", "192.0.2.1", "rc1", 0,
		 -EOPNOTSUPP},
		{"123:1000:rc1:" NUMBER ":0000beef", "192.0.2.1", "malformed", 0, -EBADMSG},
	};

	(void)state;
	need_no_card();
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct penstock_object_server_opts opts = PENSTOCK_OBJECT_SERVER_OPTS_INIT;
		struct penstock_object_peer peer = PENSTOCK_OBJECT_PEER_INIT;
		struct penstock_object_server *server;
		struct penstock_object_remote *remote;
		int ret;

		opts.require_encryption = rows[i].encrypt;
		opts.channels = 1;
		peer.address = rows[i].peer;
		assert_int_equal(penstock_object_server_open(&opts, &server), 0);
		ret = penstock_object_resolve(server, rows[i].token, strlen(rows[i].token), &peer,
					      &remote);
		if (ret != rows[i].ret || (!strstr(penstock_errmsg(), rows[i].words) &&
					   !strstr(penstock_errmsg(), "this build has no rc1")))
			fail_msg("row %u: found %d '%s', expected %d '%s'", i, ret,
				 penstock_errmsg(), rows[i].ret, rows[i].words);
		/* No error message may contain the client's number from the token. */
		assert_null(strstr(penstock_errmsg(), "00112233"));
		penstock_object_server_close(server);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(missing_transports_name_the_reason),
		cmocka_unit_test(client_names_the_reason),
		cmocka_unit_test(client_uses_others),
		cmocka_unit_test(server_declines),
	};

	return cmocka_run_group_tests_name("wire_rc1", tests, NULL, NULL);
}
