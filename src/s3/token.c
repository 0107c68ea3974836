/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements token.h. Each kind of token has a function that parses it and one that prints it, and
 * the table `kinds` lists these functions. The parsers share a cursor, which moves over the text
 * and never beyond its end.
 */
#include "s3/token.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/digits.h"

#define HIPOBJ_BYTES 44 /* 1 + 4 + 16 + 4 + 8 + 8 + 1 + 2, see hipobj_parse */

/* The part of a token's text that has not been parsed yet. */
struct cursor {
	const char *at, *end;
};

/* ---- fields ---- */

static bool take(struct cursor *in, char c)
{
	if (in->at == in->end || *in->at != c)
		return false;
	in->at++;
	return true;
}

/* Consumes between `min` and `max` hex digits, at most 16. */
static bool take_number(struct cursor *in, unsigned min, unsigned max, uint64_t *out)
{
	uint64_t n = 0;
	unsigned count = 0;

	for (; in->at < in->end && pst_hex_value(*in->at) >= 0; in->at++) {
		if (count++ == max)
			return false;
		n = n << 4 | (unsigned)pst_hex_value(*in->at);
	}
	*out = n;
	return count >= min;
}

/* Consumes exactly 2 * `len` hex digits. */
static bool take_bytes(struct cursor *in, unsigned char *out, size_t len)
{
	if ((size_t)(in->end - in->at) < 2 * len)
		return false;
	if (!pst_hex_parse(in->at, len, out))
		return false;
	in->at += 2 * len;
	return true;
}

/* Consumes the text before the next colon, at most `max` bytes of printable ASCII, and the colon.
 * At least one byte must precede the colon. */
static bool take_word(struct cursor *in, char *out, size_t max)
{
	size_t n = 0;

	for (; in->at < in->end && *in->at != ':'; in->at++) {
		if (n == max || *in->at <= ' ' || *in->at > '~')
			return false;
		out[n++] = *in->at;
	}
	out[n] = '\0';
	return n && take(in, ':');
}

static uint64_t little_endian(const unsigned char *at, unsigned len)
{
	uint64_t n = 0;

	while (len--)
		n = n << 8 | at[len];
	return n;
}

static void put_little_endian(unsigned char *at, uint64_t n, unsigned len)
{
	for (; len; len--, n >>= 8)
		*at++ = (unsigned char)n;
}

/* ---- DC_V1 ---- */

static bool dc_parse(struct cursor *in, struct pst_token *t)
{
	uint64_t rkey, lid, dct, has_gid, again;

	if (!take_number(in, 16, 16, &t->base) || !take(in, ':') ||
	    !take_number(in, 8, 8, &t->size) || !take(in, ':') || !take_number(in, 8, 8, &rkey) ||
	    !take(in, ':') || !take_number(in, 4, 4, &lid) || !take(in, ':') ||
	    !take_number(in, 6, 6, &dct) || !take(in, ':') || !take_number(in, 1, 1, &has_gid) ||
	    has_gid > 1 || !take(in, ':') || !take_bytes(in, t->dc.gid, sizeof(t->dc.gid)))
		return false;
	t->dc.rkey = (uint32_t)rkey;
	t->dc.lid = (uint16_t)lid;
	t->dc.dct = (uint32_t)dct;
	t->dc.has_gid = has_gid;
	if (in->at == in->end)
		return true;
	/* An older form of the token appends address and length once more. These copies are
	 * ignored, because the window must not be longer than the first two fields state. */
	return take(in, ':') && take_number(in, 16, 16, &again) && take(in, ':') &&
	       take_number(in, 16, 16, &again);
}

static int dc_print(const struct pst_token *t, char *out, size_t size)
{
	char gid[33];

	if (t->size > UINT32_MAX || t->dc.dct > 0xffffff)
		return -EINVAL;
	pst_hex(t->dc.gid, sizeof(t->dc.gid), gid);
	return snprintf(out, size, "%016llx:%08llx:%08x:%04x:%06x:%x:%s",
			(unsigned long long)t->base, (unsigned long long)t->size, t->dc.rkey,
			t->dc.lid, t->dc.dct, t->dc.has_gid, gid);
}

/* ---- hipobj-rc-v2 ---- */

static bool hipobj_parse(struct cursor *in, struct pst_token *t)
{
	unsigned char raw[HIPOBJ_BYTES];
	uint64_t again;

	if (!take_bytes(in, raw, sizeof(raw)) || raw[0] > 1)
		return false;
	t->hipobj.transport = raw[0];
	t->hipobj.qpn = (uint32_t)little_endian(raw + 1, 4);
	memcpy(t->hipobj.gid, raw + 5, sizeof(t->hipobj.gid));
	t->hipobj.rkey = (uint32_t)little_endian(raw + 21, 4);
	t->base = little_endian(raw + 25, 8);
	t->size = little_endian(raw + 33, 8);
	t->hipobj.port = raw[41];
	t->hipobj.lid = (uint16_t)little_endian(raw + 42, 2);
	if (in->at == in->end)
		return true;
	/* Some senders append address and length once more. As with DC_V1, these copies are
	 * ignored. */
	return take(in, ':') && take_number(in, 1, 16, &again) && take(in, ':') &&
	       take_number(in, 1, 16, &again);
}

static int hipobj_print(const struct pst_token *t, char *out, size_t size)
{
	unsigned char raw[HIPOBJ_BYTES] = {t->hipobj.transport};

	if (t->hipobj.transport > 1 || size <= 2 * HIPOBJ_BYTES)
		return -EINVAL;
	put_little_endian(raw + 1, t->hipobj.qpn, 4);
	memcpy(raw + 5, t->hipobj.gid, sizeof(t->hipobj.gid));
	put_little_endian(raw + 21, t->hipobj.rkey, 4);
	put_little_endian(raw + 25, t->base, 8);
	put_little_endian(raw + 33, t->size, 8);
	raw[41] = t->hipobj.port;
	put_little_endian(raw + 42, t->hipobj.lid, 2);
	pst_hex(raw, sizeof(raw), out);
	return 2 * HIPOBJ_BYTES;
}

/* ---- the kinds that begin with base:size:name: ---- */

static bool ofi_parse(struct cursor *in, struct pst_token *t)
{
	const char *colon;
	size_t digits;

	if (!take_word(in, t->ofi.provider, PST_TOKEN_PROVIDER_MAX))
		return false;
	colon = memchr(in->at, ':', (size_t)(in->end - in->at));
	digits = colon ? (size_t)(colon - in->at) : 0;
	t->ofi.name_len = digits / 2;
	return digits && digits % 2 == 0 && t->ofi.name_len <= PST_TOKEN_NAME_MAX &&
	       take_bytes(in, t->ofi.name, t->ofi.name_len) && take(in, ':') &&
	       take_number(in, 1, 16, &t->ofi.key);
}

static int ofi_print(const struct pst_token *t, char *out, size_t size)
{
	char name[2 * PST_TOKEN_NAME_MAX + 1];

	if (!t->ofi.name_len || t->ofi.name_len > PST_TOKEN_NAME_MAX)
		return -EINVAL;
	pst_hex(t->ofi.name, t->ofi.name_len, name);
	return snprintf(out, size, "%.*s:%s:%llx", PST_TOKEN_PROVIDER_MAX, t->ofi.provider, name,
			(unsigned long long)t->ofi.key);
}

/* Consumes an address: IPv4, or IPv6 in brackets, as numbers. A name is refused, because a client
 * must not be able to make the server send DNS queries. */
static bool take_address(struct cursor *in, struct pst_token_place *place)
{
	unsigned char binary[16];
	char end;
	size_t n = 0;

	place->v6 = take(in, '[');
	end = place->v6 ? ']' : ':';
	for (; in->at < in->end && *in->at != end; in->at++) {
		if (n == PST_TOKEN_ADDRESS_MAX || !*in->at)
			return false;
		place->address[n++] = *in->at;
	}
	place->address[n] = '\0';
	return inet_pton(place->v6 ? AF_INET6 : AF_INET, place->address, binary) == 1 &&
	       take(in, end) && (!place->v6 || take(in, ':'));
}

/* Consumes an address, a port, and the colon after it. */
static bool take_place(struct cursor *in, struct pst_token_place *place)
{
	unsigned port = 0, digits = 0;

	if (!take_address(in, place))
		return false;
	for (; in->at < in->end && *in->at >= '0' && *in->at <= '9' && digits < 6; digits++)
		port = port * 10 + (unsigned)(*in->at++ - '0');
	if (!port || port > UINT16_MAX || !take(in, ':'))
		return false;
	place->port = (uint16_t)port;
	return true;
}

/* Writes an address, a port, and a colon. */
static int put_place(const struct pst_token_place *place, char *out, size_t size)
{
	unsigned char binary[16];

	if (inet_pton(place->v6 ? AF_INET6 : AF_INET, place->address, binary) != 1 || !place->port)
		return -EINVAL;
	return snprintf(out, size, "%s%s%s:%u:", place->v6 ? "[" : "", place->address,
			place->v6 ? "]" : "", place->port);
}

static bool rc_parse(struct cursor *in, struct pst_token *t)
{
	uint64_t rkey;

	if (!take_place(in, &t->rc.at) || !take_bytes(in, t->rc.conn, sizeof(t->rc.conn)) ||
	    !take(in, ':') || !take_number(in, 8, 8, &rkey))
		return false;
	t->rc.rkey = (uint32_t)rkey;
	return true;
}

static int rc_print(const struct pst_token *t, char *out, size_t size)
{
	char conn[2 * PST_TOKEN_CAP + 1];
	int n = put_place(&t->rc.at, out, size);

	pst_hex(t->rc.conn, sizeof(t->rc.conn), conn);
	return n < 0 ? n : n + snprintf(out + n, size - (size_t)n, "%s:%08x", conn, t->rc.rkey);
}

static bool tcp_parse(struct cursor *in, struct pst_token *t)
{
	return take_place(in, &t->tcp.at) && take_bytes(in, t->tcp.cap, sizeof(t->tcp.cap));
}

static int tcp_print(const struct pst_token *t, char *out, size_t size)
{
	char cap[2 * PST_TOKEN_CAP + 1];
	int n = put_place(&t->tcp.at, out, size);

	pst_hex(t->tcp.cap, sizeof(t->tcp.cap), cap);
	return n < 0 ? n : n + snprintf(out + n, size - (size_t)n, "%s", cap);
}

static bool is_handle(const char *text)
{
	return *text && text[strspn(text, "0123456789abcdefghijklmnopqrstuvwxyz"
					  "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_")] == '\0';
}

static bool shm_parse(struct cursor *in, struct pst_token *t)
{
	if (!take_bytes(in, t->shm.host, sizeof(t->shm.host)) || !take(in, ':'))
		return false;
	t->shm.cuda = take(in, 'c');
	t->shm.file = !t->shm.cuda && take(in, 'f');
	return (t->shm.cuda || t->shm.file || take(in, 'm')) && take(in, ':') &&
	       take_word(in, t->shm.handle, PST_TOKEN_HANDLE_MAX) && is_handle(t->shm.handle) &&
	       take_bytes(in, t->shm.cap, sizeof(t->shm.cap));
}

static int shm_print(const struct pst_token *t, char *out, size_t size)
{
	const char kind = t->shm.cuda ? 'c' : t->shm.file ? 'f' : 'm';
	char host[2 * PST_TOKEN_HOST + 1], cap[2 * PST_TOKEN_CAP + 1];

	if (!is_handle(t->shm.handle) || (t->shm.cuda && t->shm.file))
		return -EINVAL;
	pst_hex(t->shm.host, sizeof(t->shm.host), host);
	pst_hex(t->shm.cap, sizeof(t->shm.cap), cap);
	return snprintf(out, size, "%s:%c:%s:%s", host, kind, t->shm.handle, cap);
}

/* ---- all kinds ---- */

static const struct {
	const char *name;
	/* whether the text begins with base:size:name:, where base and size are those of struct
	 * pst_token */
	bool named;
	bool (*parse)(struct cursor *in, struct pst_token *out);
	int (*print)(const struct pst_token *token, char *out, size_t size);
} kinds[PST_TOKEN_KINDS] = {
	[PST_TOKEN_DC_V1] = {"DC_V1", false, dc_parse, dc_print},
	[PST_TOKEN_OFI1] = {"ofi1", true, ofi_parse, ofi_print},
	[PST_TOKEN_HIPOBJ_RC_V2] = {"hipobj-rc-v2", false, hipobj_parse, hipobj_print},
	[PST_TOKEN_RC1] = {"rc1", true, rc_parse, rc_print},
	[PST_TOKEN_TCP1] = {"tcp1", true, tcp_parse, tcp_print},
	[PST_TOKEN_SHM1] = {"shm1", true, shm_parse, shm_print},
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/* Removes blanks at both ends, and one semicolon at the end. */
static struct cursor strip(const char *text, size_t len)
{
	struct cursor in = {text, text + len};

	while (in.at < in.end && is_blank(*in.at))
		in.at++;
	while (in.at < in.end && is_blank(in.end[-1]))
		in.end--;
	if (in.at < in.end && in.end[-1] == ';')
		in.end--;
	while (in.at < in.end && is_blank(in.end[-1]))
		in.end--;
	return in;
}

/* Finds the kind by the name in the third field, and consumes the first three fields. Returns
 * PST_TOKEN_KINDS if no kind has this name. */
static enum pst_token_kind named_kind(struct cursor *in, struct pst_token *t)
{
	char name[8];

	if (take_number(in, 1, 16, &t->base) && take(in, ':') && take_number(in, 1, 16, &t->size) &&
	    take(in, ':') && take_word(in, name, sizeof(name) - 1))
		for (unsigned i = 0; i < PST_TOKEN_KINDS; i++)
			if (kinds[i].named && !strcmp(kinds[i].name, name))
				return i;
	return PST_TOKEN_KINDS;
}

/* Returns the length of the text before the first colon. */
static size_t first_field(const struct cursor *in)
{
	const char *colon = memchr(in->at, ':', (size_t)(in->end - in->at));

	return (size_t)((colon ? colon : in->end) - in->at);
}

int pst_token_parse(const char *text, size_t len, struct pst_token *out)
{
	struct pst_token t;
	struct cursor in, start;

	if (!text || len > PST_TOKEN_MAX)
		return -EBADMSG;
	memset(&t, 0, sizeof(t));
	in = start = strip(text, len);
	t.kind = named_kind(&in, &t);
	if (t.kind == PST_TOKEN_KINDS) {
		in = start;
		t.kind = first_field(&in) == 2 * HIPOBJ_BYTES ? PST_TOKEN_HIPOBJ_RC_V2
							      : PST_TOKEN_DC_V1;
	}
	if (!kinds[t.kind].parse(&in, &t) || in.at != in.end)
		return -EBADMSG;
	/* The window must not reach beyond the address space. */
	if (t.size && t.base > UINT64_MAX - (t.size - 1))
		return -EBADMSG;
	*out = t;
	return 0;
}

int pst_token_print(const struct pst_token *token, char out[PST_TOKEN_MAX + 1])
{
	const size_t size = PST_TOKEN_MAX + 1;
	int head = 0, tail;

	if ((unsigned)token->kind >= PST_TOKEN_KINDS)
		return -EINVAL;
	if (kinds[token->kind].named)
		head = snprintf(out, size, "%llx:%llx:%s:", (unsigned long long)token->base,
				(unsigned long long)token->size, kinds[token->kind].name);
	tail = kinds[token->kind].print(token, out + head, size - (size_t)head);
	return tail < 0 || head + tail > PST_TOKEN_MAX ? -EINVAL : head + tail;
}

const char *pst_token_name(enum pst_token_kind kind)
{
	return (unsigned)kind < PST_TOKEN_KINDS ? kinds[kind].name : "unknown";
}
