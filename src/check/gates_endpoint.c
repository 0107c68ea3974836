/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the gates that check an object store: there are access keys, the server answers and
 * proves its identity, no firewall blocks it, it sends ranges of the object, and it writes bytes
 * into the client's memory itself (S3 over RDMA). Called by check.c. store.c makes the test
 * requests.
 */
#include "gates_endpoint.h"

#include <errno.h>

#include "line.h"

void pst_check_try_endpoint(struct pst_check_facts *f)
{
	pst_check_store_try(f->opts->target, &f->store);
}

/* Returns whether the facts come from a capture (copies of another machine's files). In that case,
 * sets the line to "unknown", because no connection is possible. */
static bool is_captured(const struct pst_check_facts *f, struct pst_check_line *line)
{
	if (f->captured)
		pst_line_unknown(line, "not probed: a captured machine cannot connect");
	return f->captured;
}

static void inspect_keys(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_store *s = &f->store;

	if (!f->is_url || f->captured || s->failed < PST_STORE_KEYS)
		return;
	if (s->failed == PST_STORE_KEYS)
		pst_line_no(line, "%s", s->text);
	else if (s->failed > PST_STORE_NAME)
		pst_line_ok(line, "%s", s->keys);
}

static void inspect_endpoint(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_store *s = &f->store;

	if (!f->is_url || is_captured(f, line))
		return;
	if (s->failed == PST_STORE_KEYS)
		pst_line_unknown(line, "not probed: there are no keys");
	else if (s->failed <= PST_STORE_ANSWER)
		pst_line_no(line, "%s", s->text);
	else
		pst_line_ok(line, "%.180s answers %u in %.1f ms", s->server, s->status,
			    s->answer_ms);
	if (s->failed == PST_STORE_URL)
		pst_line_todo(line, "name an object, s3://BUCKET/KEY, or a server, "
				    "http://HOST:PORT");
	else if (s->failed == PST_STORE_NAME)
		pst_line_todo(line, "check the name, and the DNS resolver of this machine");
}

static void inspect_tls(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_store *s = &f->store;

	if (!f->is_url || f->captured || !s->tls)
		return;
	if (s->failed == PST_STORE_ANSWER && s->code == -EKEYREJECTED)
		pst_line_no(line, "%s", s->text);
	else if (s->failed <= PST_STORE_ANSWER)
		pst_line_unknown(line, "the endpoint did not answer");
	else if (s->insecure)
		pst_line_no(line, "the certificate is not verified: insecure=1");
	else
		pst_line_ok(line, "the certificate of the endpoint is valid");
}

static void inspect_firewall(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_store *s = &f->store;

	if (!f->is_url || f->captured || s->failed < PST_STORE_ANSWER)
		return;
	if (s->failed > PST_STORE_ANSWER)
		pst_line_ok(line, "nothing blocks port %u", s->port);
	else if (s->code == -EPERM || s->code == -EACCES)
		pst_line_no(line, "a firewall rule of this machine forbids port %u", s->port);
	else if (s->code == -ETIMEDOUT)
		pst_line_unknown(line,
				 "no answer in %d s: the server hangs, or a firewall drops packets "
				 "to port %u",
				 PST_STORE_ANSWER_S, s->port);
	else if (s->code == -EHOSTUNREACH || s->code == -ENETUNREACH)
		pst_line_no(line, "no network route, or a firewall rejects port %u", s->port);
	else
		pst_line_ok(line, "nothing blocks port %u", s->port);
}

static void inspect_objects(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_store *s = &f->store;

	if (!f->is_url || is_captured(f, line))
		return;
	if (s->failed < PST_STORE_FOUND) {
		pst_line_unknown(line, "not read: the endpoint did not answer");
	} else if (!s->names_object) {
		pst_line_unknown(line, "nothing was read");
		pst_line_todo(line, "name an object: penstock check s3://BUCKET/KEY");
	} else if (s->failed != PST_STORE_DONE) {
		pst_line_no(line, "%s", s->text);
	} else if (!s->bytes) {
		pst_line_unknown(line, "the object is empty, so nothing was read");
	} else {
		pst_line_ok(line, "a range of %.1f MB in %.1f ms, %.2f GB/s, by %s",
			    (double)s->bytes / 1e6, s->read_ms,
			    (double)s->bytes / 1e6 / (s->read_ms > 0 ? s->read_ms : 1e-3),
			    s->engine);
	}
}

static void inspect_s3_rdma(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_store *s = &f->store;

	if (!f->is_url || is_captured(f, line))
		return;
	if (s->by_rdma && s->by_cpu) {
		pst_line_no(line, "the server moves the bytes itself, by %s, and a CPU copies them",
			    s->engine);
		pst_line_todo(line, "use RDMA network cards (rdma-transports=rc1)");
	} else if (s->by_rdma) {
		pst_line_ok(line, "the server moves the bytes itself, by %s", s->engine);
	} else if (!s->bytes) {
		pst_line_unknown(line, "nothing was read");
	} else if (s->rdma_not_asked) {
		pst_line_unknown(line, "%s", s->why_rdma);
		pst_line_todo(line, "add the option rdma=on to the URL");
	} else {
		pst_line_no(line, "%s",
			    s->why_rdma[0] ? s->why_rdma : "the server sent the bytes by HTTP");
	}
}

const struct pst_check_gate pst_check_endpoint_gates[] = {
	{"keys", PST_CHECK_FABRIC, PST_NEED_WORK, inspect_keys, "the server wants signed requests",
	 "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of ~/.aws"},
	{"endpoint", PST_CHECK_FABRIC, PST_NEED_WORK, inspect_endpoint,
	 "the endpoint serves the objects", "check the address, the port and that the store runs"},
	{"tls", PST_CHECK_FABRIC, PST_NEED_NOTHING, inspect_tls,
	 "without a valid certificate, another server could answer",
	 "name the certificate of its authority in AWS_CA_BUNDLE"},
	{"firewall", PST_CHECK_FABRIC, PST_NEED_WORK, inspect_firewall,
	 "a firewall on the way to the endpoint blocks every byte",
	 "open the port: see nft list ruleset on this machine, and the firewalls on the way"},
	{"s3-rdma", PST_CHECK_FABRIC, PST_NEED_NO_COPY, inspect_s3_rdma,
	 "with RDMA the store writes the destination itself, without a CPU copy",
	 "ask the store's operator for S3 over RDMA"},
	{"objects", PST_CHECK_FABRIC, PST_NEED_WORK, inspect_objects,
	 "Penstock reads ranges of objects",
	 "name an object that exists, and keys that may read it"},
	{.name = NULL},
};
