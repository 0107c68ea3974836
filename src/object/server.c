/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server half of penstock_object.h: checks arguments, and calls the data plane (src/wire) and
 * the rules of responses (src/s3/judge.c).
 */
#include <errno.h>
#include <stdlib.h>

#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "object/memory.h"
#include "s3/judge.h"
#include "wire/server.h"

struct penstock_object_server {
	struct pst_wire_server *wire;
	unsigned generation; /* fork generation of the process that opened it */
};

static struct pst_wire_remote *inner_remote(const struct penstock_object_remote *remote)
{
	return (struct pst_wire_remote *)remote;
}

int penstock_object_server_open(const struct penstock_object_server_opts *opts,
				struct penstock_object_server **out)
{
	struct penstock_object_server_opts o;
	const struct pst_wire_devices *devices;
	struct penstock_object_server *server;
	struct pst_err err = {0};
	int ret;

	if (pst_struct_copy_in(&o, sizeof(o), opts, "the options", &err))
		return pst_err_publish(&err);
	if (!out)
		return pst_fail_null("out");
	server = calloc(1, sizeof(*server));
	if (!server)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for a server");
	devices = pst_object_devices_open();
	if (!devices) {
		free(server);
		return -ENOMEM;
	}
	o.device = pst_object_device(o.device);
	ret = pst_wire_server_open(&o, devices, &server->wire, &err);
	if (ret) {
		pst_object_devices_close();
		free(server);
		return pst_err_publish(&err);
	}
	server->generation = pst_fork_generation();
	*out = server;
	return 0;
}

void penstock_object_server_close(struct penstock_object_server *server)
{
	struct pst_err err;

	/* The server of a parent process has no threads here, so it is left alone. */
	if (!server || pst_fork_check(server->generation, &err))
		return;
	pst_wire_server_close(server->wire);
	pst_object_devices_close();
	free(server);
}

int penstock_object_resolve(struct penstock_object_server *server, const char *token, size_t len,
			    const struct penstock_object_peer *peer,
			    struct penstock_object_remote **out)
{
	struct pst_wire_remote *remote;
	struct penstock_object_peer p;
	struct pst_err err = {0};
	int ret;

	if (!server || !token || !out)
		return pst_fail_null(!server ? "the server" : !token ? "the token" : "out");
	if (pst_struct_copy_in(&p, sizeof(p), peer, "the peer", &err))
		return pst_err_publish(&err);
	ret = pst_fork_check(server->generation, &err);
	if (!ret)
		ret = pst_wire_resolve(server->wire, token, len, &p, &remote, &err);
	if (ret) {
		pst_err_publish(&err);
		return ret;
	}
	*out = (struct penstock_object_remote *)remote;
	return 0;
}

int penstock_object_prepare(struct penstock_object_server *server, const char *token, size_t len,
			    const struct penstock_object_peer *peer,
			    struct penstock_object_pairing *pairing,
			    struct penstock_object_remote **out)
{
	struct penstock_object_pairing found;
	struct pst_wire_remote *remote;
	struct penstock_object_peer p;
	struct pst_err err = {0};
	int ret;

	if (!server || !token || !pairing || !out)
		return pst_fail_null(!server	? "the server"
				     : !token	? "the token"
				     : !pairing ? "the pairing"
						: "out");
	if (pst_struct_copy_in(&p, sizeof(p), peer, "the peer", &err) ||
	    pst_struct_copy_in(&found, sizeof(found), pairing, "the pairing", &err))
		return pst_err_publish(&err);
	if (found.op != PENSTOCK_READ && found.op != PENSTOCK_WRITE)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "operation %d is unknown",
				found.op);
	ret = pst_fork_check(server->generation, &err);
	if (!ret)
		ret = pst_wire_prepare(server->wire, token, len, &p, &found, &remote, &err);
	if (ret) {
		pst_err_publish(&err);
		return ret;
	}
	*out = (struct penstock_object_remote *)remote;
	return pst_struct_copy_out(pairing, &found, sizeof(found));
}

int penstock_object_ready(struct penstock_object_remote *remote, uint32_t qpn, uint64_t address,
			  uint32_t key)
{
	struct pst_err err = {0};

	if (!remote)
		return pst_fail_null("the remote window");
	if (pst_wire_ready(inner_remote(remote), qpn, address, key, &err))
		return pst_err_publish(&err);
	return 0;
}

int penstock_object_remote_get_info(const struct penstock_object_remote *remote,
				    struct penstock_object_remote_info *info)
{
	struct penstock_object_remote_info found = {0};

	if (!remote)
		return pst_fail_null("the remote window");
	pst_wire_remote_info(inner_remote(remote), &found);
	return pst_struct_copy_out(info, &found, sizeof(found));
}

int penstock_object_move(struct penstock_object_remote *remote, enum penstock_op op, uint64_t off,
			 const struct penstock_object_seg *segs, unsigned seg_count, uint64_t user)
{
	struct penstock_object_seg list[PENSTOCK_OBJECT_SEGS_MAX];
	struct pst_err err = {0};

	if (!remote || (seg_count && !segs))
		return pst_fail_null(remote ? "the array of segments" : "the remote window");
	for (unsigned i = 0; i < seg_count && i < PENSTOCK_OBJECT_SEGS_MAX; i++) {
		list[i] = segs[i];
		list[i].dev = pst_object_device(segs[i].dev);
	}
	if (pst_wire_move(inner_remote(remote), op, off, list, seg_count, user, &err))
		return pst_err_publish(&err);
	return 0;
}

int penstock_object_poll(struct penstock_object_server *server, struct penstock_object_done *done,
			 unsigned max)
{
	return penstock_object_wait(server, done, max, 0);
}

int penstock_object_wait(struct penstock_object_server *server, struct penstock_object_done *done,
			 unsigned max, int timeout_ms)
{
	struct pst_err err = {0};

	if (!server || (max && !done))
		return pst_fail_null(server ? "the array of completions" : "the server");
	/* A wait would take the parent's event. */
	if (pst_fork_check(server->generation, &err))
		return pst_err_publish(&err);
	return pst_wire_wait(server->wire, done, max, timeout_ms);
}

int penstock_object_fd(struct penstock_object_server *server)
{
	return server ? pst_wire_fd(server->wire) : pst_fail_null("the server");
}

void penstock_object_forget(struct penstock_object_remote *remote)
{
	if (remote)
		pst_wire_forget(inner_remote(remote));
}

int penstock_object_answer_fill(struct penstock_object_answer *answer)
{
	if (!answer)
		return pst_fail_null("the answer");
	/* The headers point into the caller's struct, so it cannot be a copy of another length. */
	if (answer->size < sizeof(*answer))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "size of the answer is not set");
	if (pst_answer(answer))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"operation %d or outcome %d is "
				"unknown",
				answer->op, answer->outcome);
	return 0;
}

int penstock_object_server_get_info(const struct penstock_object_server *server,
				    struct penstock_object_server_info *info)
{
	struct penstock_object_server_info found = {0};

	if (!server)
		return pst_fail_null("the server");
	pst_wire_server_info(server->wire, &found);
	return pst_struct_copy_out(info, &found, sizeof(found));
}
