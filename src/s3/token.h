/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of S3 over RDMA: the value of the header x-amz-rdma-token, which describes a window of a
 * client's memory. One parser and one printer for all syntaxes. Called by src/wire, src/object and
 * hipobj.c. A token comes from the network, so the parser reads no byte beyond its end, and accepts
 * only what the printer can print. The capability in a token is a secret: it must not get into a
 * message or a log.
 *
 * kind		syntax; <hex> is a number of at most 16 hex digits
 * DC_V1	<16>:<8>:<8>:<4>:<6>:<1>:<32>, all hex: address, length, memory key, LID, queue
 *		pair, whether there is a GID, GID. Older senders append :<16>:<16>.
 * ofi1		<hex>:<hex>:ofi1:<provider>:<endpoint's name in hex>:<key as hex>
 * hipobj-rc-v2	88 hex digits. Some senders append :<hex>:<hex>, an address and a length.
 * rc1		<hex>:<hex>:rc1:<address>:<port>:<connection, 32 hex>:<memory key, 8 hex>
 * tcp1		<hex>:<hex>:tcp1:<address>:<port>:<capability, 32 hex>
 * shm1		<hex>:<hex>:shm1:<host, 32 hex>:<m, c or f>:<handle>:<capability, 32 hex>;
 *		m: shared host memory, c: memory of a GPU, f: the window takes a file
 */
#ifndef PST_S3_TOKEN_H
#define PST_S3_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PST_TOKEN_MAX 512 /* maximum length of a token, without its NUL */
#define PST_TOKEN_CAP 16  /* length of a capability in bytes */
/* length in bytes of the hash that identifies a host in a token of shm1 */
#define PST_TOKEN_HOST 16
#define PST_TOKEN_HANDLE_MAX 64	  /* maximum length of a handle of shm1 */
#define PST_TOKEN_ADDRESS_MAX 45  /* maximum length of an IPv6 address in text */
#define PST_TOKEN_PROVIDER_MAX 63 /* maximum length of a libfabric provider's name */
#define PST_TOKEN_NAME_MAX 96	  /* maximum length of a libfabric endpoint's name, in bytes */

enum pst_token_kind {
	PST_TOKEN_DC_V1,
	PST_TOKEN_OFI1,
	PST_TOKEN_HIPOBJ_RC_V2,
	PST_TOKEN_RC1,
	PST_TOKEN_TCP1,
	PST_TOKEN_SHM1,
	PST_TOKEN_KINDS,
};

/* The address and the port at which a client listens. */
struct pst_token_place {
	bool v6;
	char address[PST_TOKEN_ADDRESS_MAX + 1]; /* without brackets */
	uint16_t port;
};

/* A token. `base` is the window's address, or another number that names the window. `size` is its
 * length in bytes. Only the member of the union that belongs to `kind` is set. */
struct pst_token {
	enum pst_token_kind kind;
	uint64_t base, size;
	union {
		struct {
			uint32_t rkey, dct; /* dct: 24 bits */
			uint16_t lid;
			bool has_gid;
			unsigned char gid[16];
		} dc;
		struct {
			char provider[PST_TOKEN_PROVIDER_MAX + 1];
			unsigned char name[PST_TOKEN_NAME_MAX];
			size_t name_len;
			uint64_t key;
		} ofi;
		struct {
			uint8_t transport; /* 0: dynamically connected, 1: reliable connection */
			uint8_t port;
			uint16_t lid;
			uint32_t qpn, rkey;
			unsigned char gid[16];
		} hipobj;
		struct {
			struct pst_token_place at;
			/* capability: the server sends it when it connects */
			unsigned char conn[PST_TOKEN_CAP];
			uint32_t rkey;
		} rc;
		struct {
			struct pst_token_place at;
			unsigned char cap[PST_TOKEN_CAP];
		} tcp;
		struct {
			unsigned char host[PST_TOKEN_HOST];
			bool cuda; /* the window is in the memory of a GPU */
			/* The window takes a file: the server passes the object's file, and the
			 * client copies the bytes itself. Not together with `cuda`. */
			bool file;
			char handle[PST_TOKEN_HANDLE_MAX + 1];
			unsigned char cap[PST_TOKEN_CAP];
		} shm;
	};
};

/* Parses a token of `len` bytes. Ignores blanks before and after it, and one semicolon at its end.
 * Returns 0, or -EBADMSG if it is malformed. *out is written only on success. */
int pst_token_parse(const char *text, size_t len, struct pst_token *out);

/* Writes a token as text with a NUL, and returns its length. Returns -EINVAL if a field has a value
 * that a token cannot have. */
int pst_token_print(const struct pst_token *token, char out[PST_TOKEN_MAX + 1]);

/* Returns the name of a kind, such as "tcp1". */
const char *pst_token_name(enum pst_token_kind kind);

#endif
