/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of transport tcp1. The client listens, and sends a greeting to each connection. The
 * server sends nothing before it has received the greeting. So a token cannot make the server send
 * data to a program that is not a client. Then the server sends commands, each with the id and
 * capability of a window, and the client replies to them in order. All numbers are little-endian.
 *
 * A command WRITE is followed by `len` bytes for the window. A reply to READ with status 0 is
 * followed by `len` bytes from the window. `crc` is the CRC-32C of these bytes.
 */
#ifndef PST_WIRE_TCP1_H
#define PST_WIRE_TCP1_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "s3/token.h"

#define PST_TCP1_GREETING "PENSTOCK tcp1 1\n"
#define PST_TCP1_GREETING_LEN 16
#define PST_TCP1_MAGIC 0x31504354u /* "TCP1" */
/* maximum number of bytes after a command or a reply */
#define PST_TCP1_FRAME_MAX (1u << 20)
#define PST_TCP1_COMMAND_LEN 56
#define PST_TCP1_REPLY_LEN 24

enum pst_tcp1_kind {
	PST_TCP1_WRITE = 1, /* command: write the bytes that follow into the window */
	PST_TCP1_READ = 2,  /* command: reply with bytes of the window */
	PST_TCP1_REPLY = 3,
};

struct pst_tcp1_command {
	uint32_t kind;
	uint64_t seq, id, off;
	unsigned char cap[PST_TOKEN_CAP];
	uint32_t len, crc;
};

struct pst_tcp1_reply {
	uint32_t status; /* enum pst_wire_status */
	uint64_t seq;
	uint32_t len, crc;
};

static inline void pst_tcp1_put32(unsigned char *at, uint32_t n)
{
	n = htole32(n);
	memcpy(at, &n, sizeof(n));
}

static inline void pst_tcp1_put64(unsigned char *at, uint64_t n)
{
	n = htole64(n);
	memcpy(at, &n, sizeof(n));
}

static inline uint32_t pst_tcp1_get32(const unsigned char *at)
{
	uint32_t n;

	memcpy(&n, at, sizeof(n));
	return le32toh(n);
}

static inline uint64_t pst_tcp1_get64(const unsigned char *at)
{
	uint64_t n;

	memcpy(&n, at, sizeof(n));
	return le64toh(n);
}

static inline void pst_tcp1_put_command(unsigned char *out, const struct pst_tcp1_command *c)
{
	pst_tcp1_put32(out, PST_TCP1_MAGIC);
	pst_tcp1_put32(out + 4, c->kind);
	pst_tcp1_put64(out + 8, c->seq);
	pst_tcp1_put64(out + 16, c->id);
	memcpy(out + 24, c->cap, PST_TOKEN_CAP);
	pst_tcp1_put64(out + 40, c->off);
	pst_tcp1_put32(out + 48, c->len);
	pst_tcp1_put32(out + 52, c->crc);
}

/* Parses a command. Returns 0, or -1 if it is malformed. */
static inline int pst_tcp1_get_command(const unsigned char *in, struct pst_tcp1_command *c)
{
	c->kind = pst_tcp1_get32(in + 4);
	c->seq = pst_tcp1_get64(in + 8);
	c->id = pst_tcp1_get64(in + 16);
	memcpy(c->cap, in + 24, PST_TOKEN_CAP);
	c->off = pst_tcp1_get64(in + 40);
	c->len = pst_tcp1_get32(in + 48);
	c->crc = pst_tcp1_get32(in + 52);
	return pst_tcp1_get32(in) == PST_TCP1_MAGIC && c->len <= PST_TCP1_FRAME_MAX &&
			       (c->kind == PST_TCP1_WRITE || c->kind == PST_TCP1_READ)
		       ? 0
		       : -1;
}

static inline void pst_tcp1_put_reply(unsigned char *out, const struct pst_tcp1_reply *r)
{
	pst_tcp1_put32(out, PST_TCP1_MAGIC);
	out[4] = PST_TCP1_REPLY;
	out[5] = 0;
	out[6] = (unsigned char)r->status;
	out[7] = 0;
	pst_tcp1_put64(out + 8, r->seq);
	pst_tcp1_put32(out + 16, r->len);
	pst_tcp1_put32(out + 20, r->crc);
}

/* Parses a reply. Returns 0, or -1 if it is malformed. */
static inline int pst_tcp1_get_reply(const unsigned char *in, struct pst_tcp1_reply *r)
{
	r->status = in[6];
	r->seq = pst_tcp1_get64(in + 8);
	r->len = pst_tcp1_get32(in + 16);
	r->crc = pst_tcp1_get32(in + 20);
	return pst_tcp1_get32(in) == PST_TCP1_MAGIC && in[4] == PST_TCP1_REPLY && !in[5] &&
			       !in[7] && r->len <= PST_TCP1_FRAME_MAX
		       ? 0
		       : -1;
}

#endif
