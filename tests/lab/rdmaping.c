/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rdmaping: moves memory between two processes by one-sided RDMA in both directions, compares
 * the bytes and measures the speed. lab/guest/rdma.sh runs the two processes (the ends) in two
 * network namespaces. The ends exchange addresses over TCP, and move the data only by RDMA
 * verbs. The CPU of the passive end must not touch the data that the active end moves. An access
 * with a wrong key must be refused. Prints one JSON object for each step. Exit status: 0 all
 * steps succeeded, 1 a step failed, 2 wrong usage.
 *
 *	rdmaping listen ADDRESS PORT DEVICE [corrupt]
 *	rdmaping connect ADDRESS PORT DEVICE
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 8 << 20, PIECE = 64 << 10, DEPTH = 16, WAIT_S = 240, TRIES = 5000 };
enum { SEED_WRITE = 11, SEED_READ = 12, SEED_OLD = 13 };

/* Data that one end sends to the other end over TCP. Both ends run on the same machine, so they
 * have the same byte order. */
struct card {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint64_t *mem;
	int gid_index, link;
	enum ibv_mtu mtu;
	struct card mine, theirs;
};

/* Prints an error and exits. */
static int die(const char *what)
{
	fprintf(stderr, "rdmaping: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Returns word i of the contents that belong to a seed. */
static uint64_t word(uint64_t seed, uint64_t i)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + i;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	return x ^ (x >> 31);
}

static void fill(uint64_t *mem, uint64_t seed)
{
	for (uint64_t i = 0; i < BYTES / 8; i++)
		mem[i] = word(seed, i);
}

/* Returns the number of words that differ from the contents that belong to a seed. */
static uint64_t wrong_words(const uint64_t *mem, uint64_t seed)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < BYTES / 8; i++)
		count += mem[i] != word(seed, i);
	return count;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- the TCP connection between the ends ---- */

/* Listens or connects, as `mode` says, and returns the connected socket. */
static int link_open(const char *mode, const char *address, const char *port)
{
	struct sockaddr_in at = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, link;

	if (fd < 0 || inet_pton(AF_INET, address, &at.sin_addr) != 1)
		die("address");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (!strcmp(mode, "connect")) {
		/* Tries again as long as the other end does not listen. */
		for (int i = 0; connect(fd, (struct sockaddr *)&at, sizeof(at)); i++) {
			if (i == TRIES)
				die("connect");
			usleep(50000);
		}
		return fd;
	}
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 1))
		die("listen");
	link = accept(fd, NULL, NULL);
	if (link < 0)
		die("accept");
	close(fd);
	return link;
}

static void link_send(int fd, const void *data, size_t len)
{
	if (send(fd, data, len, MSG_NOSIGNAL) != (ssize_t)len)
		die("send");
}

static void link_receive(int fd, void *data, size_t len)
{
	if (recv(fd, data, len, MSG_WAITALL) != (ssize_t)len)
		die("the other end closed the connection");
}

/* ---- verbs ---- */

/* Finds the index of the RoCE v2 address (GID) for IPv4, which the connection between the ends
 * uses. */
static void find_gid(struct end *e, const struct ibv_port_attr *port)
{
	for (int i = 0; i < port->gid_tbl_len; i++) {
		struct ibv_gid_entry entry;

		if (ibv_query_gid_ex(e->ctx, 1, (uint32_t)i, &entry, 0) ||
		    entry.gid_type != IBV_GID_TYPE_ROCE_V2 || entry.gid.raw[10] != 0xff ||
		    entry.gid.raw[11] != 0xff)
			continue;
		e->gid_index = i;
		e->mine.gid = entry.gid;
		return;
	}
	errno = ENOENT;
	die("the device has no RoCE v2 address");
}

/* Opens an RDMA device, and creates memory, completion queue and queue pair. */
static void open_end(struct end *e, const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {DEPTH, 1, 1, 1, 0}};
	struct ibv_port_attr port;

	for (int i = 0; list && list[i] && !e->ctx; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			e->ctx = ibv_open_device(list[i]);
	if (!e->ctx)
		die(name);
	if (ibv_query_port(e->ctx, 1, &port))
		die("port");
	e->mtu = port.active_mtu;
	find_gid(e, &port);
	e->pd = ibv_alloc_pd(e->ctx);
	e->cq = ibv_create_cq(e->ctx, 2 * DEPTH, NULL, NULL, 0);
	e->mem = aligned_alloc(4096, BYTES);
	if (!e->pd || !e->cq || !e->mem)
		die("set-up");
	e->mr = ibv_reg_mr(e->pd, e->mem, BYTES,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ);
	if (!e->mr)
		die("registering memory");
	init.send_cq = init.recv_cq = e->cq;
	e->qp = ibv_create_qp(e->pd, &init);
	if (!e->qp)
		die("queue pair");
	e->mine.qpn = e->qp->qp_num;
	e->mine.psn = (uint32_t)getpid() & 0xffffff;
	e->mine.rkey = e->mr->rkey;
	e->mine.addr = (uintptr_t)e->mem;
}

/* Brings the queue pair through the states INIT, RTR and RTS. */
static void connect_ends(struct end *e)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	if (ibv_modify_qp(e->qp, &attr,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die("to INIT");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
				    .path_mtu = e->mtu,
				    .dest_qp_num = e->theirs.qpn,
				    .rq_psn = e->theirs.psn,
				    .max_dest_rd_atomic = 4,
				    .min_rnr_timer = 12};
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = e->theirs.gid;
	attr.ah_attr.grh.sgid_index = (uint8_t)e->gid_index;
	attr.ah_attr.grh.hop_limit = 1;
	if (ibv_modify_qp(e->qp, &attr,
			  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		die("to RTR");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
				    .sq_psn = e->mine.psn,
				    .timeout = 18,
				    .retry_cnt = 7,
				    .rnr_retry = 7,
				    .max_rd_atomic = 4};
	if (ibv_modify_qp(e->qp, &attr,
			  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		die("to RTS");
}

/* Posts an RDMA read or write of one piece of the memory. */
static void post(struct end *e, enum ibv_wr_opcode op, uint64_t at, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)e->mem + at, PIECE, e->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = at,
				 .sg_list = &sge,
				 .num_sge = 1,
				 .opcode = op,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	wr.wr.rdma.remote_addr = e->theirs.addr + at;
	wr.wr.rdma.rkey = rkey;
	errno = ibv_post_send(e->qp, &wr, &bad);
	if (errno)
		die("post");
}

/* Waits for one completion and returns its status. */
static enum ibv_wc_status reap(struct end *e)
{
	double limit = now() + WAIT_S;
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(e->cq, 1, &wc)) == 0) {
		errno = ETIMEDOUT;
		if (now() > limit)
			die("waiting for a completion");
	}
	if (n < 0)
		die("poll");
	return wc.status;
}

/* Moves all of the memory, with DEPTH pieces in flight. Returns the time in seconds. */
static double move_all(struct end *e, enum ibv_wr_opcode op)
{
	double start = now();
	uint64_t posted = 0, done = 0;

	while (done < BYTES) {
		enum ibv_wc_status status;

		while (posted < BYTES && posted - done < DEPTH * PIECE) {
			post(e, op, posted, e->theirs.rkey);
			posted += PIECE;
		}
		status = reap(e);
		if (status != IBV_WC_SUCCESS) {
			fprintf(stderr, "rdmaping: %s\n", ibv_wc_status_str(status));
			exit(1);
		}
		done += PIECE;
	}
	return now() - start;
}

/* Prints the result of a step. Returns whether all words have their right values. */
static bool print_step(const char *op, uint64_t count, double took)
{
	printf("{\"op\":\"%s\",\"bytes\":%d,\"wrong\":%llu,\"gb_per_s\":%.6f}\n", op, BYTES,
	       (unsigned long long)count, BYTES / took / 1e9);
	fflush(stdout);
	return !count;
}

/* ---- the two ends ---- */

/* Runs the passive end, which does nothing while the active end moves data. When the active end
 * reports that its write is complete, the passive end checks its own memory. */
static bool passive(struct end *e, bool corrupt)
{
	uint64_t count, ok;
	char go = 0;

	fill(e->mem, SEED_OLD);
	link_send(e->link, &go, 1);
	link_receive(e->link, &go, 1);
	e->mem[BYTES / 16] ^= corrupt;
	count = wrong_words(e->mem, SEED_WRITE);
	fill(e->mem, SEED_READ);
	link_send(e->link, &count, sizeof(count));
	/* The active end reads this memory until it sends its result. */
	link_receive(e->link, &ok, sizeof(ok));
	return ok && !count;
}

/* Runs the active end: writes the passive end's memory, reads that memory, and tries an access with
 * a wrong key. */
static bool active(struct end *e)
{
	uint64_t count, ok;
	enum ibv_wc_status status;
	double took;
	char go;

	link_receive(e->link, &go, 1);
	fill(e->mem, SEED_WRITE);
	took = move_all(e, IBV_WR_RDMA_WRITE);
	link_send(e->link, &go, 1);
	link_receive(e->link, &count, sizeof(count));
	ok = print_step("write", count, took);
	fill(e->mem, SEED_OLD);
	took = move_all(e, IBV_WR_RDMA_READ);
	ok &= print_step("read", wrong_words(e->mem, SEED_READ), took);
	post(e, IBV_WR_RDMA_READ, 0, e->theirs.rkey ^ 0x5500);
	status = reap(e);
	ok &= status == IBV_WC_REM_ACCESS_ERR;
	printf("{\"op\":\"wrong key\",\"status\":\"%s\"}\n", ibv_wc_status_str(status));
	link_send(e->link, &ok, sizeof(ok));
	return ok;
}

int main(int argc, char **argv)
{
	struct end e = {.link = -1};
	bool listens = argc > 4 && !strcmp(argv[1], "listen"), ok;

	if (argc < 5 || (!listens && strcmp(argv[1], "connect"))) {
		fprintf(stderr, "usage: rdmaping listen|connect ADDRESS PORT DEVICE [corrupt]\n");
		return 2;
	}
	open_end(&e, argv[4]);
	e.link = link_open(argv[1], argv[2], argv[3]);
	link_send(e.link, &e.mine, sizeof(e.mine));
	link_receive(e.link, &e.theirs, sizeof(e.theirs));
	connect_ends(&e);
	ok = listens ? passive(&e, argc > 5) : active(&e);
	ibv_destroy_qp(e.qp);
	ibv_dereg_mr(e.mr);
	ibv_destroy_cq(e.cq);
	ibv_dealloc_pd(e.pd);
	ibv_close_device(e.ctx);
	free(e.mem);
	close(e.link);
	return ok ? 0 : 1;
}
