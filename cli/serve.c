/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock serve`: parses the options of the gateway, and runs it or repairs its
 * folder. no_serve.c takes its place in builds without a gateway. No option takes a secret.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "gateway/repair.h"
#include "gateway/serve.h"
#include "size.h"

#define WHY_MAX 1024

struct serve_args {
	struct gw_options gateway;
	bool repair, json, region_any;
	uint64_t lease_s, upload_lease_s;
};

enum option_code {
	ROOT = 256,
	LISTEN,
	KEYS,
	METRICS,
	REGION,
	DOMAIN,
	CERT,
	KEY,
	ACCESS_LOG,
	RDMA,
	DEVICE,
	RDMA_NETWORKS,
	UPSTREAM,
	NO_MD5,
	THREADS,
	CONNECTIONS,
	PER_ADDRESS,
	TIMEOUT,
	MIN_RATE,
	DRAIN,
	BODY_MAX,
	BUFFER_MEMORY,
	REPAIR,
	LEASE,
	UPLOAD_LEASE,
	JSON
};

static bool parse_seconds(const char *option, uint64_t *out)
{
	unsigned n;

	if (!parse_count(option, optarg, 1, 1u << 30, &n))
		return false;
	*out = n;
	return true;
}

/* Handles an option whose value is stored as text. Returns false if `c` is another option. */
static bool text_option(int c, struct gw_options *o)
{
	const char **texts[] = {[ROOT - ROOT] = &o->root,
				[LISTEN - ROOT] = &o->listen,
				[KEYS - ROOT] = &o->keys,
				[METRICS - ROOT] = &o->metrics,
				[REGION - ROOT] = &o->region,
				[DOMAIN - ROOT] = &o->domain,
				[CERT - ROOT] = &o->cert,
				[KEY - ROOT] = &o->key,
				[ACCESS_LOG - ROOT] = &o->access_log,
				[RDMA - ROOT] = &o->rdma,
				[DEVICE - ROOT] = &o->device,
				[RDMA_NETWORKS - ROOT] = &o->rdma_networks,
				[UPSTREAM - ROOT] = &o->upstream};

	if (c < ROOT || c > UPSTREAM)
		return false;
	*texts[c - ROOT] = optarg;
	return true;
}

static bool other_option(int c, struct serve_args *a)
{
	struct gw_options *o = &a->gateway;

	switch (c) {
	case NO_MD5:
		return o->no_md5 = true;
	case REPAIR:
		return a->repair = true;
	case JSON:
		return a->json = true;
	case THREADS:
		return parse_count("--threads", optarg, 1, 1024, &o->threads);
	case CONNECTIONS:
		return parse_count("--connections", optarg, 1, 1000000, &o->connections_max);
	case PER_ADDRESS:
		return parse_count("--connections-per-address", optarg, 1, 1000000,
				   &o->connections_per_address_max);
	case TIMEOUT:
		return parse_count("--timeout", optarg, 1, 86400, &o->timeout_s);
	case MIN_RATE:
		return parse_count("--min-rate", optarg, 0, 1u << 30, &o->rate_min);
	case DRAIN:
		return parse_count("--drain", optarg, 0, 86400, &o->drain_s);
	case BODY_MAX:
		return parse_size("--body-max", optarg, &o->body_max);
	case BUFFER_MEMORY:
		return parse_size("--buffer-memory", optarg, &o->buffer_memory);
	case LEASE:
		return parse_seconds("--lease", &a->lease_s);
	default:
		return parse_seconds("--upload-lease", &a->upload_lease_s);
	}
}

static int serve_parse(int argc, char **argv, struct serve_args *a)
{
	static const struct option options[] = {
		{"root", required_argument, NULL, ROOT},
		{"upstream", required_argument, NULL, UPSTREAM},
		{"listen", required_argument, NULL, LISTEN},
		{"keys", required_argument, NULL, KEYS},
		{"metrics", required_argument, NULL, METRICS},
		{"region", required_argument, NULL, REGION},
		{"domain", required_argument, NULL, DOMAIN},
		{"cert", required_argument, NULL, CERT},
		{"key", required_argument, NULL, KEY},
		{"access-log", required_argument, NULL, ACCESS_LOG},
		{"rdma", required_argument, NULL, RDMA},
		{"device", required_argument, NULL, DEVICE},
		{"rdma-networks", required_argument, NULL, RDMA_NETWORKS},
		{"no-md5", no_argument, NULL, NO_MD5},
		{"threads", required_argument, NULL, THREADS},
		{"connections", required_argument, NULL, CONNECTIONS},
		{"connections-per-address", required_argument, NULL, PER_ADDRESS},
		{"timeout", required_argument, NULL, TIMEOUT},
		{"min-rate", required_argument, NULL, MIN_RATE},
		{"drain", required_argument, NULL, DRAIN},
		{"body-max", required_argument, NULL, BODY_MAX},
		{"buffer-memory", required_argument, NULL, BUFFER_MEMORY},
		{"repair", no_argument, NULL, REPAIR},
		{"lease", required_argument, NULL, LEASE},
		{"upload-lease", required_argument, NULL, UPLOAD_LEASE},
		{"json", no_argument, NULL, JSON},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0}};
	int c;

	while ((c = next_option(argc, argv, &cmd_serve, options)) != -1) {
		if (c == 'h')
			return -1;
		if (c == '?' || (!text_option(c, &a->gateway) && !other_option(c, a)))
			return EXIT_USAGE;
	}
	if (optind != argc)
		return fail(EXIT_USAGE, "serve takes options only, see 'penstock serve --help'");
	if (a->gateway.root && a->gateway.upstream)
		return fail(EXIT_USAGE, "--root and --upstream exclude each other");
	if (!a->gateway.root && (a->repair || !a->gateway.upstream))
		return fail(EXIT_USAGE, "--root is missing: the folder with the buckets%s",
			    a->repair ? "" : "; or --upstream: the server that has them");
	if (a->repair)
		return 0;
	if (!a->gateway.listen || !a->gateway.keys)
		return fail(EXIT_USAGE, "--%s is missing, see 'penstock serve --help'",
			    a->gateway.listen ? "keys" : "listen");
	if (!a->gateway.cert != !a->gateway.key)
		return fail(EXIT_USAGE, "--cert and --key belong together");
	if (a->gateway.region && !strcmp(a->gateway.region, "any"))
		a->gateway.region = NULL;
	return 0;
}

static bool as_json;

/* Prints where the gateway listens. Programs that start it wait for this line. */
static void print_ready(unsigned port, unsigned metrics_port)
{
	struct json j;

	if (as_json) {
		json_open(&j, stdout);
		json_bool(&j, "ok", true);
		json_int(&j, "port", port);
		json_int(&j, "metrics_port", metrics_port);
		json_close(&j);
	} else {
		printf("penstock: serving at port %u", port);
		if (metrics_port)
			printf(", metrics at port %u", metrics_port);
		printf("\n");
	}
	flush_output();
}

static void print_notice(const char *text)
{
	fail(EXIT_FAILED, "%s", text);
}

static int repair_run(const struct serve_args *a)
{
	struct gw_repair_result result;
	char why[WHY_MAX];
	struct json j;

	if (gw_repair(a->gateway.root, a->lease_s, a->upload_lease_s, &result, why, sizeof(why)))
		return fail(EXIT_FAILED, "%s", why);
	if (a->json) {
		json_open(&j, stdout);
		json_bool(&j, "ok", true);
		json_int(&j, "drafts_removed", result.drafts);
		json_int(&j, "uploads_removed", result.uploads);
		json_int(&j, "records_removed", result.records);
		json_int(&j, "moves_completed", result.moves);
		json_int(&j, "in_use", result.kept);
		json_close(&j);
	} else {
		printf("removed %u drafts, %u uploads, %u records; completed %u moves; %u in use\n",
		       result.drafts, result.uploads, result.records, result.moves, result.kept);
	}
	return EXIT_DONE;
}

static int serve_run(int argc, char **argv)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	struct serve_args a = {
		.gateway = {.region = "us-east-1",
			    .threads = cpus < 8	   ? 32
				       : cpus > 64 ? 256
						   : (unsigned)cpus * 4,
			    .connections_max = 4096,
			    .timeout_s = 60,
			    .rate_min = 1024,
			    .drain_s = 30,
			    .body_max = 5ull << 30,
			    .buffer_memory = 64u << 20,
			    .ready = print_ready,
			    .notice = print_notice},
		.lease_s = 3600,
		.upload_lease_s = 7 * 86400,
	};
	char why[WHY_MAX];
	int code = serve_parse(argc, argv, &a);

	if (code)
		return code < 0 ? EXIT_DONE : code;
	as_json = a.json;
	if (a.repair)
		return repair_run(&a);
	if (gw_serve(&a.gateway, why, sizeof(why)))
		return fail(EXIT_FAILED, "%s", why);
	return EXIT_DONE;
}

const struct command cmd_serve = {
	.name = "serve",
	.usage = "--root DIR|--upstream URL --listen ADDR --keys FILE ...",
	.summary = "serve the files of a folder, or another server, by the protocol of S3",
	.help = "  --root DIR             folder whose folders are the buckets\n"
		"  --upstream URL         pass requests to this S3 server, signed with its keys\n"
		"  --listen ADDRESS:PORT  where to listen; port 0 takes a free port\n"
		"  --keys FILE            access keys: sections with secret, buckets, access\n"
		"  --metrics ADDRESS:PORT serve /metrics and /healthz there, without a signature\n"
		"  --region NAME          region that signatures must name (us-east-1), or any\n"
		"  --domain NAME          accept hosts BUCKET.NAME, too\n"
		"  --cert FILE            certificates for TLS; read again on SIGHUP\n"
		"  --key FILE             the certificate's key, which others may not read\n"
		"  --access-log FILE      write a line of JSON for each request; -: stdout\n"
		"  --rdma LIST            transports of S3 over RDMA: shm1, rc1, tcp1, ofi1,\n"
		"                         hipobj-rc-v2, DC_V1 (default: the first three), or none\n"
		"  --rdma-networks LIST   networks of clients with several network cards, such\n"
		"                         as 10.1.0.0/16\n"
		"  --device NAME          GPU for clients' windows in GPU memory, such as cuda:0\n"
		"  --no-md5               don't compute MD5: ETags are random\n"
		"  --threads N            threads that serve connections\n"
		"  --connections N        maximum number of connections (4096)\n"
		"  --connections-per-address N  the same for each client address (no limit)\n"
		"  --timeout SECONDS      end connections without traffic (60)\n"
		"  --min-rate BYTES       end transfers with fewer bytes a second (1024)\n"
		"  --body-max SIZE        longest object or part in one request (5GiB)\n"
		"  --buffer-memory SIZE   staging of all requests to the upstream (64MiB)\n"
		"  --drain SECONDS        time for open requests after SIGTERM (30)\n"
		"  --repair               remove what crashed gateways have left, and exit\n"
		"  --lease SECONDS        with --repair: age of a draft that nobody uses (3600)\n"
		"  --upload-lease SECONDS with --repair: age of an abandoned upload (604800)\n"
		"  --json                 print one JSON object\n",
	.run = serve_run,
};
