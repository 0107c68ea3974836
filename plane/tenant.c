/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements tenant.h: the loop of a tenant's thread, the handling of HELLO and of memory, and the
 * end of a tenant. pst_plane_check checks each message of a tenant. A tenant that sends an invalid
 * message is disconnected.
 */
#include "tenant.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/log.h"

/* time in ms after which sending a message to a tenant fails, and the tenant is disconnected */
#define SEND_MS 10000
#define HELLO_MS 10000
#define BATCH 16 /* number of messages that are handled before completions are sent */

static void main_wake(const struct pl_plane *plane)
{
	const uint64_t one = 1;
	ssize_t n = write(plane->wake, &one, sizeof(one));

	(void)n; /* an error is ignored: only a counter near its limit could cause one */
}

/* ---- for roles ---- */

int pl_slot_take(struct pl_tenant *tenant, unsigned slot)
{
	int fd = tenant->slots[slot];

	tenant->slots[slot] = -1;
	return fd;
}

static void slots_clear(struct pl_tenant *tenant)
{
	for (unsigned i = 0; i < PST_PLANE_SLOTS; i++) {
		int fd = pl_slot_take(tenant, i);

		if (fd >= 0)
			close(fd);
	}
}

int pl_fail_limit(struct pl_tenant *tenant, enum pl_limit limit, unsigned long long max,
		  const char *what, struct pst_err *err)
{
	pl_count(&tenant->plane->counts.refused[limit]);
	return pst_fail_errno(err, limit == PL_LIMIT_IN_FLIGHT ? EAGAIN : EDQUOT, PENSTOCK_WHY_FULL,
			      "the plane permits a tenant %llu %s", max, what);
}

int pl_begin(struct pl_tenant *tenant, struct pst_err *err)
{
	struct pl_plane *plane = tenant->plane;

	if (tenant->in_flight >= plane->options->in_flight_max)
		return pl_fail_limit(tenant, PL_LIMIT_IN_FLIGHT, plane->options->in_flight_max,
				     "operations in flight", err);
	/* Counts the operation before it reads `draining`. The main thread sets `draining` before
	 * it reads the count. So either this thread reads true, or the main thread counts this
	 * operation. */
	pl_count(&plane->counts.in_flight);
	tenant->in_flight++;
	if (!atomic_load(&plane->draining))
		return 0;
	pl_end(tenant);
	return pst_fail_errno(err, ESHUTDOWN, PENSTOCK_WHY_CANCELLED, "the plane is about to end");
}

void pl_end(struct pl_tenant *tenant)
{
	struct pl_plane *plane = tenant->plane;

	tenant->in_flight--;
	if (atomic_fetch_sub(&plane->counts.in_flight, 1) == 1 && atomic_load(&plane->draining))
		main_wake(plane);
}

int pl_fail_name(struct pl_tenant *tenant, const char *what, struct pst_err *err)
{
	pl_count(&tenant->plane->counts.refused_name);
	pst_log(PST_LOG_WARN, "plane", "process %d of user %u named %s that it does not have",
		tenant->process, tenant->user, what);
	return pst_fail_errno(err, EACCES, PENSTOCK_WHY_NO_PERMISSION,
			      "this connection has not opened %s with this number", what);
}

int pl_fail_public(int code, struct pst_err *err)
{
	return pst_fail_errno(err, -code, penstock_errwhy(), "%s", penstock_errmsg());
}

int pl_send(struct pl_tenant *tenant, struct pst_plane_message *message)
{
	return pst_plane_send(tenant->fd, message, -1);
}

/* ---- memory ---- */

/* Returns 0, or -errno if memory of `len` bytes would exceed a limit of the tenant. */
static int memory_limits(struct pl_tenant *tenant, uint64_t len, struct pst_err *err)
{
	const struct pl_options *o = tenant->plane->options;

	if (tenant->memories.count >= o->memories_max)
		return pl_fail_limit(tenant, PL_LIMIT_MEMORY, o->memories_max, "buffers", err);
	if (len > o->memory_max || tenant->bytes > o->memory_max - len)
		return pl_fail_limit(tenant, PL_LIMIT_MEMORY, o->memory_max, "bytes of memory",
				     err);
	return 0;
}

static void memory_free(struct pl_tenant *tenant, struct pl_memory *m)
{
	tenant->role->memory_free(tenant, m);
	tenant->bytes -= m->len;
	atomic_fetch_sub(&tenant->plane->counts.memory, m->len);
	free(m);
}

static int memory_open(struct pl_tenant *tenant, const struct pst_plane_memory *message,
		       struct pst_plane_answer *answer, struct pst_err *err)
{
	struct pl_memory *m = calloc(1, sizeof(*m));
	struct pst_shared *shared = m ? &m->shared : NULL;
	int ret;

	if (!m)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "the plane has no memory left");
	*shared = (struct pst_shared)PST_SHARED_INIT;
	shared->dev = message->cuda ? tenant->plane->device : NULL;
	shared->len = message->len;
	memcpy(shared->exported.bytes, message->exported, sizeof(shared->exported.bytes));
	if (message->cuda) {
		shared->exported.fd = message->fds ? pl_slot_take(tenant, 0) : -1;
		shared->lease = pl_slot_take(tenant, 1);
	} else {
		shared->fd = pl_slot_take(tenant, 0);
		shared->read_fd = pl_slot_take(tenant, 1);
	}
	ret = memory_limits(tenant, message->len, err);
	if (!ret && message->cuda && !shared->dev)
		ret = pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				     "the plane has no GPU: start it with --device");
	if (ret)
		pst_shared_close(shared);
	else
		ret = pst_shared_open(shared, err);
	m->len = message->len;
	if (!ret) {
		ret = tenant->role->memory_take(tenant, m, err);
		if (ret)
			pst_shared_close(shared);
	}
	if (ret) {
		free(m);
		return ret;
	}
	tenant->bytes += m->len;
	atomic_fetch_add(&tenant->plane->counts.memory, m->len);
	m->id = pl_table_add(&tenant->memories, m);
	if (m->id) {
		answer->id = m->id;
		return 0;
	}
	memory_free(tenant, m);
	return pst_fail(err, PENSTOCK_WHY_IO_ERROR, "the plane has no number for the memory");
}

static int memory_close(struct pl_tenant *tenant, uint64_t id, struct pst_err *err)
{
	struct pl_memory *m = pl_table_find(&tenant->memories, id);

	if (!m)
		return pl_fail_name(tenant, "memory", err);
	if (m->users)
		return pst_fail_errno(err, EBUSY, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%u windows or moves of the memory are open", m->users);
	pl_table_remove(&tenant->memories, id);
	memory_free(tenant, m);
	return 0;
}

/* ---- messages ---- */

/* Sends the answer to a tenant's message, with the result and the error. */
static int answer_send(struct pl_tenant *tenant, struct pst_plane_message *answer, int result,
		       const struct pst_err *err)
{
	answer->kind = PST_PLANE_ANSWER;
	answer->answer.result = result < 0 ? result : 0;
	if (result < 0) {
		answer->answer.why = err->why;
		memcpy(answer->answer.text, err->text, sizeof(answer->answer.text));
	}
	return pl_send(tenant, answer);
}

static int hello_check(const struct pl_plane *plane, const struct pst_plane_hello *hello,
		       struct pst_err *err)
{
	if (hello->first > PST_PLANE_VERSION_MAX || hello->last < PST_PLANE_VERSION_MIN)
		return pst_fail_errno(err, EPROTONOSUPPORT, PENSTOCK_WHY_UNSUPPORTED,
				      "the plane speaks version %u of the protocol, and the tenant "
				      "%u to %u: use the same release of Penstock",
				      PST_PLANE_VERSION_MAX, hello->first, hello->last);
	if ((hello->role != PST_PLANE_CLIENT && hello->role != PST_PLANE_SERVER) ||
	    (hello->role == PST_PLANE_CLIENT ? plane->options->no_clients
					     : plane->options->no_servers))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
				      "the plane does not have this role (option --role)");
	return 0;
}

/* Handles HELLO: gives the tenant its role, or refuses it. */
static int hello_handle(struct pl_tenant *tenant, const struct pst_plane_message *message)
{
	struct pst_plane_message answer = {.seq = message->seq};
	const struct pst_plane_hello *hello = &message->hello;
	struct pl_plane *plane = tenant->plane;
	const struct pl_role *role = hello->role == PST_PLANE_CLIENT ? &pl_client : &pl_server;
	struct pst_err err = {0};
	int ret;

	if (tenant->role)
		return -EPROTO;
	ret = hello_check(plane, hello, &err);
	if (ret)
		pl_count(&plane->counts.refused_version);
	else
		ret = role->open(tenant, hello, &err);
	if (ret) {
		/* Sends the tenant the reason. If that fails, the connection ends in any case. */
		(void)answer_send(tenant, &answer, ret, &err);
		return ret;
	}
	tenant->role = role;
	pl_count(&plane->counts.tenants_total[hello->role == PST_PLANE_SERVER]);
	pst_log(PST_LOG_INFO, "plane", "process %d of user %u is a %s", tenant->process,
		tenant->user, role->name);
	answer.kind = PST_PLANE_WELCOME;
	answer.welcome.version = PST_PLANE_VERSION_MAX;
	answer.welcome.in_flight = plane->options->in_flight_max;
	return pl_send(tenant, &answer);
}

static int info_handle(struct pl_tenant *tenant, uint64_t seq)
{
	struct pst_plane_message answer = {.seq = seq, .kind = PST_PLANE_COUNTS};

	tenant->role->counts(tenant, &answer.counts);
	return pl_send(tenant, &answer);
}

/* Handles a message and its descriptor. If the result is negative, the tenant is disconnected. */
static int message_handle(struct pl_tenant *tenant, const struct pst_plane_message *message, int fd)
{
	struct pst_plane_message answer = {.seq = message->seq};
	struct pst_err err = {0};
	int ret = 0;

	if (message->kind == PST_PLANE_HELLO)
		return hello_handle(tenant, message);
	if (message->kind == PST_PLANE_FD) {
		int old = tenant->role ? pl_slot_take(tenant, message->fd.slot) : -1;

		if (!tenant->role || old >= 0) {
			close(fd);
			if (old >= 0)
				close(old);
			return -EPROTO;
		}
		tenant->slots[message->fd.slot] = fd;
		return 0;
	}
	if (!tenant->role)
		return -EPROTO;
	if (message->kind == PST_PLANE_INFO)
		return info_handle(tenant, message->seq);
	if (message->kind == PST_PLANE_MEMORY)
		ret = memory_open(tenant, &message->memory, &answer.answer, &err);
	else if (message->kind == PST_PLANE_MEMORY_CLOSE)
		ret = memory_close(tenant, message->name.id, &err);
	else if (message->kind != PST_PLANE_PING)
		ret = tenant->role->handle(tenant, message, &answer, &err);
	slots_clear(tenant);
	if (ret == -EPROTO)
		return ret;
	return answer_send(tenant, &answer, ret, &err);
}

/* Handles up to BATCH messages that have arrived. */
static int receive_some(struct pl_tenant *tenant)
{
	struct pst_plane_message message;
	int fd, ret = 1;

	for (unsigned i = 0; i < BATCH && ret > 0; i++) {
		ret = pst_plane_receive(tenant->fd, &message, false, &fd);
		if (ret > 0) {
			int code = message_handle(tenant, &message, fd);

			ret = code < 0 ? code : 1;
		}
	}
	return ret < 0 ? ret : 0;
}

/* ---- the thread ---- */

/* Frees all objects of the tenant. */
static void tenant_clear(struct pl_tenant *tenant)
{
	struct pl_memory *m;

	/* Closes the connection first, so that a tenant which waits for an answer stops waiting. */
	close(tenant->fd);
	tenant->fd = -1;
	slots_clear(tenant);
	if (!tenant->role)
		return;
	tenant->role->stop(tenant);
	while (tenant->in_flight)
		pl_end(tenant);
	while ((m = pl_table_pop(&tenant->memories)))
		memory_free(tenant, m);
	tenant->role->close(tenant);
}

static void *tenant_run(void *arg)
{
	struct pl_tenant *tenant = arg;
	struct pl_plane *plane = tenant->plane;
	int ret = 0;

	while (!ret) {
		struct pollfd fds[3] = {{tenant->fd, POLLIN, 0},
					{plane->stop, POLLIN, 0},
					{tenant->role ? tenant->role->fd(tenant) : -1, POLLIN, 0}};
		int n = poll(fds, 3, tenant->role ? -1 : HELLO_MS);

		if (fds[1].revents || (!n && !tenant->role))
			break;
		if (fds[2].revents)
			ret = tenant->role->forward(tenant);
		if (!ret && fds[0].revents)
			ret = receive_some(tenant);
	}
	if (ret == -EPROTO) {
		pl_count(&plane->counts.malformed);
		pst_log(PST_LOG_WARN, "plane", "process %d of user %u sent a malformed message",
			tenant->process, tenant->user);
	}
	tenant_clear(tenant);
	pl_table_close(&tenant->memories);
	atomic_fetch_sub(&plane->counts.tenants, 1);
	atomic_store(&tenant->ended, true);
	main_wake(plane);
	return NULL;
}

int pl_tenant_start(struct pl_plane *plane, int fd, unsigned user, int process,
		    struct pl_tenant **out)
{
	struct pl_tenant *tenant = calloc(1, sizeof(*tenant));
	int code;

	if (!tenant || pl_table_open(&tenant->memories, plane->options->memories_max)) {
		close(fd);
		free(tenant);
		return -ENOMEM;
	}
	tenant->plane = plane;
	tenant->fd = fd;
	tenant->user = user;
	tenant->process = process;
	for (unsigned i = 0; i < PST_PLANE_SLOTS; i++)
		tenant->slots[i] = -1;
	pst_plane_socket_set(fd, SEND_MS);
	pl_count(&plane->counts.tenants);
	code = pst_thread_start(&tenant->thread, tenant_run, tenant);
	if (code) {
		atomic_fetch_sub(&plane->counts.tenants, 1);
		close(fd);
		pl_table_close(&tenant->memories);
		free(tenant);
		return -code;
	}
	*out = tenant;
	return 0;
}
