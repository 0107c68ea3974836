/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock plane`: parses its options, and runs the plane, a process that transfers S3
 * objects by RDMA for other processes. Access keys of the object store are never an option. The
 * plane gets them from the same places as requests for s3:// URLs do.
 */
#include <ctype.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "plane/plane.h"

#define WHY_MAX 1024
#define USERS_MAX 256

struct plane_args {
	struct pl_options plane;
	unsigned users[USERS_MAX], server_users[USERS_MAX];
	bool json;
};

enum option_code {
	LISTEN = 256,
	RDMA,
	ADDRESS,
	DEVICE,
	RDMA_NETWORKS,
	BUCKETS,
	METRICS,
	ROLE,
	USERS,
	SERVER_USERS,
	READ_ONLY,
	ENCRYPT,
	TENANTS,
	MEMORY,
	BUFFERS,
	WINDOWS,
	IN_FLIGHT,
	CHANNELS,
	DRAIN,
	JSON
};

/* Finds the number of a user. `text` is the user's name or number. Returns false if there is no
 * such user. */
static bool user_find(const char *text, unsigned *out)
{
	const struct passwd *found;
	uint64_t n;

	if (isdigit((unsigned char)*text)) {
		if (!parse_number(text, 0, UINT32_MAX - 1, &n))
			return false;
		*out = (unsigned)n;
		return true;
	}
	found = getpwnam(text);
	if (found)
		*out = found->pw_uid;
	return found;
}

/* Parses an option whose value is a list of users, separated by commas. */
static bool parse_users(const char *option, unsigned *users, unsigned *count)
{
	char name[256];

	*count = 0;
	for (const char *at = optarg; *at;) {
		size_t len = strcspn(at, ",");

		if (!len || len >= sizeof(name) || *count == USERS_MAX) {
			fail(EXIT_USAGE, "--%s needs names or numbers of users, at most %u", option,
			     USERS_MAX);
			return false;
		}
		memcpy(name, at, len);
		name[len] = '\0';
		if (!user_find(name, &users[*count])) {
			fail(EXIT_USAGE, "--%s: there is no user '%s'", option, name);
			return false;
		}
		++*count;
		at += len + (at[len] == ',');
	}
	return true;
}

static bool parse_role(struct pl_options *o)
{
	o->no_clients = !strcmp(optarg, "server");
	o->no_servers = !strcmp(optarg, "client");
	if (o->no_clients || o->no_servers || !strcmp(optarg, "both"))
		return true;
	fail(EXIT_USAGE, "--role needs client, server or both, not '%s'", optarg);
	return false;
}

/* Handles an option whose value is stored as text. Returns false if `c` is another option. */
static bool text_option(int c, struct pl_options *o)
{
	const char **texts[] = {
		[LISTEN - LISTEN] = &o->listen,		 [RDMA - LISTEN] = &o->transports,
		[ADDRESS - LISTEN] = &o->address,	 [DEVICE - LISTEN] = &o->device,
		[RDMA_NETWORKS - LISTEN] = &o->networks, [BUCKETS - LISTEN] = &o->buckets,
		[METRICS - LISTEN] = &o->metrics};

	if (c < LISTEN || c > METRICS)
		return false;
	*texts[c - LISTEN] = optarg;
	return true;
}

static bool other_option(int c, struct plane_args *a)
{
	struct pl_options *o = &a->plane;

	switch (c) {
	case ROLE:
		return parse_role(o);
	case USERS:
		return parse_users("users", a->users, &o->user_count);
	case SERVER_USERS:
		return parse_users("server-users", a->server_users, &o->server_user_count);
	case READ_ONLY:
		return o->read_only = true;
	case ENCRYPT:
		return o->require_encryption = true;
	case TENANTS:
		return parse_count("--tenants", optarg, 1, 4096, &o->tenants_max);
	case MEMORY:
		return parse_size("--memory", optarg, &o->memory_max);
	case BUFFERS:
		return parse_count("--buffers", optarg, 1, 1024, &o->memories_max);
	case WINDOWS:
		return parse_count("--windows", optarg, 1, PENSTOCK_OBJECT_WINDOWS_MAX,
				   &o->windows_max);
	case IN_FLIGHT:
		return parse_count("--in-flight", optarg, 1, PENSTOCK_OBJECT_REQUESTS_MAX,
				   &o->in_flight_max);
	case CHANNELS:
		return parse_count("--channels", optarg, 1, 64, &o->channels);
	case DRAIN:
		return parse_count("--drain", optarg, 0, 86400, &o->drain_s);
	default:
		return a->json = true;
	}
}

static int plane_parse(int argc, char **argv, struct plane_args *a)
{
	static const struct option options[] = {
		{"listen", required_argument, NULL, LISTEN},
		{"role", required_argument, NULL, ROLE},
		{"users", required_argument, NULL, USERS},
		{"buckets", required_argument, NULL, BUCKETS},
		{"read-only", no_argument, NULL, READ_ONLY},
		{"rdma", required_argument, NULL, RDMA},
		{"address", required_argument, NULL, ADDRESS},
		{"device", required_argument, NULL, DEVICE},
		{"rdma-networks", required_argument, NULL, RDMA_NETWORKS},
		{"server-users", required_argument, NULL, SERVER_USERS},
		{"require-encryption", no_argument, NULL, ENCRYPT},
		{"metrics", required_argument, NULL, METRICS},
		{"tenants", required_argument, NULL, TENANTS},
		{"memory", required_argument, NULL, MEMORY},
		{"buffers", required_argument, NULL, BUFFERS},
		{"windows", required_argument, NULL, WINDOWS},
		{"in-flight", required_argument, NULL, IN_FLIGHT},
		{"channels", required_argument, NULL, CHANNELS},
		{"drain", required_argument, NULL, DRAIN},
		{"json", no_argument, NULL, JSON},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0}};
	int c;

	while ((c = next_option(argc, argv, &cmd_plane, options)) != -1) {
		if (c == 'h')
			return -1;
		if (c == '?' || (!text_option(c, &a->plane) && !other_option(c, a)))
			return EXIT_USAGE;
	}
	if (optind != argc)
		return fail(EXIT_USAGE, "plane takes options only, see 'penstock plane --help'");
	if (!a->plane.listen || !*a->plane.listen || *a->plane.listen == '-')
		return fail(EXIT_USAGE, "--listen needs the path of a socket%s",
			    a->plane.listen && *a->plane.listen ? ", which does not begin with '-'"
								: "");
	return 0;
}

static bool as_json;

/* Prints where the plane, which is this process, listens for other processes. A program that starts
 * the plane can wait for this line. */
static void print_ready(const struct pl_options *options, unsigned metrics_port)
{
	struct json j;

	if (as_json) {
		json_open(&j, stdout);
		json_bool(&j, "ok", true);
		json_text(&j, "socket", options->listen);
		json_int(&j, "metrics_port", metrics_port);
		json_int(&j, "protocol", pl_version());
		json_int(&j, "tenants_max", options->tenants_max);
		json_close(&j);
	} else {
		printf("penstock: plane at ");
		print_name(stdout, options->listen);
		if (metrics_port)
			printf(", metrics at port %u", metrics_port);
		printf("\n");
	}
	flush_output();
}

static int plane_run(int argc, char **argv)
{
	struct plane_args a = {
		.plane = {.tenants_max = 64,
			  .memories_max = 256,
			  .memory_max = UINT64_C(16) << 30,
			  .windows_max = 1024,
			  .in_flight_max = 64,
			  .drain_s = 30,
			  .ready = print_ready},
	};
	char why[WHY_MAX];
	int code = plane_parse(argc, argv, &a);

	if (code)
		return code < 0 ? EXIT_DONE : code;
	a.plane.users = a.users;
	a.plane.server_users = a.server_users;
	as_json = a.json;
	if (pl_serve(&a.plane, why, sizeof(why)))
		return fail(EXIT_FAILED, "%s", why);
	return EXIT_DONE;
}

const struct command cmd_plane = {
	.name = "plane",
	.usage = "--listen SOCKET ...",
	.summary = "hold the NIC and the keys of S3 over RDMA for other programs",
	.help = "  --listen SOCKET        path of the Unix socket for tenants\n"
		"  --role ROLE            what tenants may be: client, server or both (both)\n"
		"  --users LIST           users that may be tenants, beside root and the own one\n"
		"  --buckets LIST         buckets that clients may use (default: all)\n"
		"  --read-only            refuse to write objects\n"
		"  --rdma LIST            shm1, rc1, tcp1, ofi1 (default: all but ofi1)\n"
		"  --address LIST         addresses of this host at which servers reach the plane\n"
		"  --rdma-networks LIST   networks of clients with several network cards, such\n"
		"                         as 10.1.0.0/16\n"
		"  --device NAME          GPU for windows in GPU memory, such as cuda:0\n"
		"  --server-users LIST    users whose servers may open windows by shm1\n"
		"  --require-encryption   use only transports that encrypt or stay on the host\n"
		"  --metrics ADDRESS:PORT serve /metrics and /healthz there\n"
		"  --tenants N            maximum number of tenants (64); a user of --users\n"
		"                         may have half of those that others leave\n"
		"  --memory SIZE          memory that a tenant may share (16GiB)\n"
		"  --buffers N            buffers of a tenant (256)\n"
		"  --windows N            open windows of a tenant (1024)\n"
		"  --in-flight N          requests or moves of a tenant at the same time (64)\n"
		"  --channels N           moves of a server at the same time (4)\n"
		"  --drain SECONDS        time for open requests after SIGTERM (30)\n"
		"  --json                 print one JSON object\n",
	.run = plane_run,
};
