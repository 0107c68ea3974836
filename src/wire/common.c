/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements common.h: random bytes, the host's hash, the clock, copies between devices, and waits
 * of a channel. No function keeps state.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "wire/common.h"

#define BOOT_ID "/proc/sys/kernel/random/boot_id"

uint64_t pst_wire_now_ms(void)
{
	return pst_now_ns() / 1000000;
}

int pst_wire_random(void *out, size_t len, struct pst_err *err)
{
	/* getrandom(2) returns up to 256 bytes without interruption. */
	if (len > 256 || getrandom(out, len, 0) != (ssize_t)len)
		return pst_fail_errno(err, EIO, PENSTOCK_WHY_IO_ERROR,
				      "the kernel gave no random bytes");
	return 0;
}

/* FNV-1a with 128 bits. The boot id is no secret; the hash only makes it unequal to what other
 * programs publish. */
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
	uint64_t now = pst_wire_now_ms(), until = now + channel->server->opts.timeout_ms;

	/* The time limit begins anew with each byte, but the deadline does not. */
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

/* Reads or writes all bytes of a range of a file. */
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
