/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements common.h: random bytes, the hash of the host, the clock, copies between devices, and
 * the waits of a server's thread. The functions have no static state.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "wire/common.h"

#define ROCE_PORT 4791 /* UDP port of RoCE v2 */
#define BOOT_ID "/proc/sys/kernel/random/boot_id"

uint64_t pst_wire_now_ms(void)
{
	return pst_now_ns() / 1000000;
}

int pst_wire_random(void *out, size_t len, struct pst_err *err)
{
	/* A getrandom(2) of at most 256 bytes always returns all of them. */
	if (len > 256 || getrandom(out, len, 0) != (ssize_t)len)
		return pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR,
				      "the kernel gave no random bytes");
	return 0;
}

/* Computes a 128-bit FNV-1a hash of the text "penstock" and the boot id. The boot id is no secret.
 * The text makes the hash differ from hashes of the boot id that other programs publish. */
int pst_wire_host(unsigned char out[PST_TOKEN_HOST], struct pst_err *err)
{
	const unsigned __int128 prime = ((unsigned __int128)1 << 88) + 0x13b;
	unsigned __int128 hash =
		((unsigned __int128)0x6c62272e07bb0142u << 64) | 0x62b821756295c58du;
	char text[64] = "penstock";
	int fd = open(BOOT_ID, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text + 8, sizeof(text) - 8);
	int code = errno;

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return pst_fail_errno(err, n ? code : EIO, PENSTOCK_WHY_UNSUPPORTED,
				      "%s cannot be read: %s", BOOT_ID,
				      n ? strerror(code) : "it is empty");
	for (ssize_t i = 0; i < n + 8; i++)
		hash = (hash ^ (unsigned char)text[i]) * prime;
	for (unsigned i = 0; i < PST_TOKEN_HOST; i++, hash >>= 8)
		out[i] = (unsigned char)hash;
	return 0;
}

/* ---- where a client listens ---- */

int pst_wire_own_place(const struct pst_wire_client *client, struct pst_token_place *out,
		       struct pst_err *err)
{
	const char *address = client->opts.address ? client->opts.address : "127.0.0.1";
	unsigned char binary[16];

	out->v6 = inet_pton(AF_INET6, address, binary) == 1;
	if (client->opts.port < 0 || client->opts.port > UINT16_MAX ||
	    strlen(address) > PST_TOKEN_ADDRESS_MAX ||
	    (!out->v6 && inet_pton(AF_INET, address, binary) != 1))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%.60s, port %d: not a numeric address and a port", address,
				client->opts.port);
	snprintf(out->address, sizeof(out->address), "%s", address);
	out->port = (uint16_t)client->opts.port;
	return 0;
}

socklen_t pst_wire_sockaddr(const struct pst_token_place *place, struct sockaddr_storage *out)
{
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
	struct sockaddr_in *four = (struct sockaddr_in *)out;

	memset(out, 0, sizeof(*out));
	if (place->v6) {
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(place->port);
		inet_pton(AF_INET6, place->address, &six->sin6_addr);
		return sizeof(*six);
	}
	four->sin_family = AF_INET;
	four->sin_port = htons(place->port);
	inet_pton(AF_INET, place->address, &four->sin_addr);
	return sizeof(*four);
}

bool pst_wire_place_of(const struct sockaddr_storage *address, struct pst_token_place *out)
{
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
	const struct sockaddr_in *four = (const struct sockaddr_in *)address;

	memset(out, 0, sizeof(*out));
	out->v6 = address->ss_family == AF_INET6;
	out->port = ntohs(out->v6 ? six->sin6_port : four->sin_port);
	if (!out->v6 && address->ss_family != AF_INET)
		return false;
	return inet_ntop(address->ss_family,
			 out->v6 ? (const void *)&six->sin6_addr : (const void *)&four->sin_addr,
			 out->address, sizeof(out->address));
}

void pst_wire_gid_place(const unsigned char gid[16], struct pst_token_place *out)
{
	static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};

	memset(out, 0, sizeof(*out));
	out->v6 = memcmp(gid, mapped, sizeof(mapped)) != 0;
	out->port = ROCE_PORT;
	inet_ntop(out->v6 ? AF_INET6 : AF_INET, out->v6 ? gid : gid + 12, out->address,
		  sizeof(out->address));
}

int pst_wire_route(const struct pst_token_place *client, struct pst_token_place *out,
		   struct pst_err *err)
{
	struct sockaddr_storage address;
	socklen_t len = pst_wire_sockaddr(client, &address);
	int fd = socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), ret = 0;

	if (fd < 0 || connect(fd, (struct sockaddr *)&address, len) ||
	    (len = sizeof(address), getsockname(fd, (struct sockaddr *)&address, &len)) ||
	    !pst_wire_place_of(&address, out))
		ret = pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_DEVICE,
				     "this host has no address that reaches %s", client->address);
	if (fd >= 0)
		close(fd);
	return ret;
}

bool pst_wire_same_place(const struct pst_token_place *a, const struct pst_token_place *b)
{
	return a->port == b->port && a->v6 == b->v6 && !strcmp(a->address, b->address);
}

/* ---- copies ---- */

int pst_wire_copy(const struct pst_wire_devices *devices, struct penstock_device *dst_dev,
		  void *dst, struct penstock_device *src_dev, const void *src, size_t len)
{
	struct penstock_copy_args args = {.size = sizeof(args),
					  .dst_dev = dst_dev ? dst_dev : devices->host,
					  .dst = dst,
					  .src_dev = src_dev ? src_dev : devices->host,
					  .src = src,
					  .row_len = len};

	if (!dst_dev && !src_dev) {
		memcpy(dst, src, len);
		return 0;
	}
	return devices->copy(&args, 1);
}

/* ---- for channels of a server ---- */

/* Converts a numeric address to the 16 bytes of an IPv6 address. An IPv4 address becomes
 * ::ffff:a.b.c.d, the IPv4-mapped form. */
static bool address_bytes(const char *text, unsigned char out[16])
{
	memset(out, 0, 10);
	out[10] = out[11] = 0xff;
	return inet_pton(AF_INET, text, out + 12) == 1 || inet_pton(AF_INET6, text, out) == 1;
}

static bool is_loopback(const unsigned char *bytes)
{
	static const unsigned char six[16] = {[15] = 1}, four[12] = {[10] = 0xff, [11] = 0xff};

	return !memcmp(bytes, six, 16) || (!memcmp(bytes, four, 12) && bytes[12] == 127);
}

/* Parses a network "ADDRESS/BITS" of `len` characters, such as 10.1.0.0/16. */
static bool network_parse(const char *text, size_t len, struct pst_wire_network *out)
{
	char address[PST_TOKEN_ADDRESS_MAX + 1];
	const char *slash = memchr(text, '/', len);
	size_t n = slash ? (size_t)(slash - text) : len;
	unsigned bits = 0, max;

	if (!slash || n >= sizeof(address) || slash + 1 == text + len || text + len - slash > 4)
		return false;
	memcpy(address, text, n);
	address[n] = '\0';
	for (const char *at = slash + 1; at < text + len; at++) {
		if (*at < '0' || *at > '9')
			return false;
		bits = bits * 10 + (unsigned)(*at - '0');
	}
	max = strchr(address, ':') ? 128 : 32;
	out->bits = bits + 128 - max;
	return bits <= max && address_bytes(address, out->bytes);
}

int pst_wire_networks_parse(struct pst_wire_server *server, const char *list, struct pst_err *err)
{
	while (list && *list) {
		size_t len = strcspn(list, ",");

		if (server->network_count == PST_WIRE_NETWORKS_MAX ||
		    !network_parse(list, len, &server->networks[server->network_count]))
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"%.60s: want networks such as 10.1.0.0/16, at most %u",
					list, PST_WIRE_NETWORKS_MAX);
		server->network_count++;
		list += len + (list[len] == ',');
	}
	return 0;
}

static bool network_has(const struct pst_wire_network *network, const unsigned char *address)
{
	unsigned whole = network->bits / 8, rest = network->bits % 8;

	return !memcmp(network->bytes, address, whole) &&
	       (!rest || !((network->bytes[whole] ^ address[whole]) >> (8 - rest)));
}

/* Returns whether the server may connect to the address `named` in a token, if the HTTP request
 * with the token came from `from`. So a token cannot make the server connect to other hosts. */
static bool may_name(const struct pst_wire_server *server, const unsigned char *named,
		     const unsigned char *from)
{
	if (!memcmp(named, from, 16) || (is_loopback(named) && is_loopback(from)))
		return true;
	for (unsigned i = 0; i < server->network_count; i++)
		if (network_has(&server->networks[i], named))
			return true;
	return false;
}

int pst_wire_admit_place(const struct pst_wire_server *server, const char *name,
			 const struct pst_token_place *place,
			 const struct penstock_object_peer *peer, struct pst_err *err)
{
	unsigned char named[16], from[16];

	if (server->opts.require_encryption)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_REQUIRE,
				      "%s does not encrypt, and encryption is required", name);
	if (!address_bytes(place->address, named) ||
	    (peer->address && !address_bytes(peer->address, from)))
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "an address is not numeric");
	if (peer->address ? !may_name(server, named, from) : !is_loopback(named))
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_PERMISSION,
				      "the token names the address %s, from which the request did "
				      "not come",
				      place->address);
	return 0;
}

int pst_wire_check(const struct pst_wire_channel *channel)
{
	struct pollfd stop = {channel->server->stop, POLLIN, 0};

	if (poll(&stop, 1, 0) > 0)
		return -ECANCELED;
	return pst_wire_now_ms() > channel->deadline_ms ? -ETIMEDOUT : 0;
}

int pst_wire_wait_fd(const struct pst_wire_channel *channel, int fd, short events)
{
	struct pollfd fds[2] = {{fd, events, 0}, {channel->server->stop, POLLIN, 0}};
	uint64_t now = pst_wire_now_ms(), until = now + channel->silence_ms;

	/* The time limit `timeout_ms` begins anew with each call, so only a move without progress
	 * exceeds it. `deadline_ms` is the time limit of the whole move, and does not change. */
	if (until > channel->deadline_ms)
		until = channel->deadline_ms;
	for (; now <= until; now = pst_wire_now_ms()) {
		int n = poll(fds, 2, (int)(until - now));

		if (n > 0 && fds[1].revents)
			return -ECANCELED;
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
	return -ETIMEDOUT;
}

int pst_wire_status_fail(unsigned status, struct pst_err *err)
{
	switch (status) {
	case PST_WIRE_REFUSED:
		return pst_fail_errno(err, EACCES, PENSTOCK_WHY_NO_PERMISSION,
				      "the client has refused the token: it is wrong, or released");
	case PST_WIRE_OUTSIDE:
		return pst_fail_errno(err, ERANGE, PENSTOCK_WHY_BAD_ARGUMENT,
				      "range or direction do not fit the client's window");
	case PST_WIRE_CHECKSUM:
		return pst_fail_errno(err, EBADMSG, PENSTOCK_WHY_MALFORMED,
				      "the checksum shows that bytes were damaged on the way");
	case PST_WIRE_FAULT:
		return pst_fail_errno(err, EIO, PENSTOCK_WHY_DEVICE_ERROR,
				      "the client cannot access its memory");
	default:
		return pst_fail_errno(err, EPROTO, PENSTOCK_WHY_MALFORMED,
				      "the client sent the unknown status %u", status);
	}
}

struct penstock_object_seg pst_wire_seg_at(const struct pst_wire_move *move, uint64_t at,
					   uint64_t max)
{
	for (unsigned i = 0; i < move->seg_count; i++) {
		struct penstock_object_seg seg = move->segs[i];

		if (at < seg.len) {
			seg.ptr = seg.has_fd ? NULL : (char *)seg.ptr + at;
			seg.fd_off += at;
			seg.len = seg.len - at < max ? seg.len - at : max;
			return seg;
		}
		at -= seg.len;
	}
	return (struct penstock_object_seg){0};
}

/* Reads a segment's range of a file into `mem`, or writes `mem` to that range. Moves all bytes or
 * fails. */
static int file_io(const struct penstock_object_seg *seg, char *mem, uint64_t len, bool read_file,
		   struct pst_err *err)
{
	for (uint64_t done = 0; done < len;) {
		off_t at = (off_t)(seg->fd_off + done);
		ssize_t n = read_file ? pread(seg->fd, mem + done, len - done, at)
				      : pwrite(seg->fd, mem + done, len - done, at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return pst_fail_errno(err, errno, pst_why_from_errno(errno),
					      "the object's file: %m");
		if (!n)
			return pst_fail_errno(err, ENODATA, PENSTOCK_WHY_SHRANK,
					      "the object's file has become shorter");
		done += (uint64_t)n;
	}
	return 0;
}

int pst_wire_seg_copy(struct pst_wire_channel *channel, const struct penstock_object_seg *seg,
		      struct penstock_device *dev, void *mem, bool gather, struct pst_err *err)
{
	const struct pst_wire_devices *devices = channel->server->devices;
	int ret;

	if (seg->has_fd && dev) {
		ret = devices->file_io(seg->fd, seg->fd_off, dev, mem, seg->len, gather);
		return ret < 0 ? pst_fail_errno(err, -ret, penstock_errwhy(), "%s",
						penstock_errmsg())
			       : 0;
	}
	if (seg->has_fd)
		return file_io(seg, mem, seg->len, gather, err);
	ret = gather ? pst_wire_copy(devices, dev, mem, seg->dev, seg->ptr, seg->len)
		     : pst_wire_copy(devices, seg->dev, seg->ptr, dev, mem, seg->len);
	return ret ? pst_fail_errno(err, -ret, PENSTOCK_WHY_DEVICE_ERROR, "%s", penstock_errmsg())
		   : 0;
}

int pst_wire_stage(struct pst_wire_channel *channel, const struct pst_wire_move *move, uint64_t at,
		   void *mem, uint64_t len, bool gather, struct pst_err *err)
{
	for (uint64_t done = 0; done < len;) {
		struct penstock_object_seg seg = pst_wire_seg_at(move, at + done, len - done);
		int ret = pst_wire_seg_copy(channel, &seg, NULL, (char *)mem + done, gather, err);

		if (ret)
			return ret;
		done += seg.len;
	}
	return 0;
}
