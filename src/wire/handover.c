/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements handover.h. The server's functions decide whether a descriptor may be passed, and
 * refuse in every case of doubt. The client's functions never map a passed file: the file may
 * become shorter at any time, and an access behind its end would kill the process.
 */
#include "wire/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cachestat.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* in asm-generic/socket.h since Linux 6.5 */
#endif

/* ---- server ---- */

static int refuse(struct pst_err *err, const char *reason)
{
	return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_PERMISSION,
			      "no file for the client: %s", reason);
}

/* Returns the number of the process of a pidfd in the PID namespace of /proc, which may be another
 * one than that of this process. Returns 0 if the process has ended, or has no number there. */
static int proc_number(int pidfd)
{
	char name[40], text[512], *line;
	int fd, number = 0;
	ssize_t n;

	snprintf(name, sizeof(name), "/proc/self/fdinfo/%d", pidfd);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	line = strstr(text, "\nPid:");
	if (!line || sscanf(line, "\nPid: %d", &number) != 1)
		return 0;
	return number > 0 ? number : 0;
}

/* Returns whether a file in the directory of the process `number` in /proc and the file `own` are
 * the same. */
static bool proc_is_same(int number, const char *theirs, const char *own)
{
	struct stat a, b;
	char name[40];

	snprintf(name, sizeof(name), "/proc/%d/%s", number, theirs);
	return !stat(name, &a) && !stat(own, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* The rights of a process: when it opens a file, the kernel compares them with the file's mode. */
struct rights {
	unsigned user;
	bool any_file;	   /* has a capability to read files whatever their modes are */
	char groups[4096]; /* the process's group and supplementary groups, as /proc tells them */
};

/* Reads the rights of a process from its file `status` in /proc. Returns false if /proc does not
 * tell all of them. */
static bool proc_rights(const char *name, struct rights *out)
{
	const unsigned long long reads = 1ull << CAP_DAC_OVERRIDE | 1ull << CAP_DAC_READ_SEARCH;
	unsigned long long caps = 0;
	unsigned have = 0, group = 0;
	char line[4000];
	FILE *file = fopen(name, "re");

	if (!file)
		return false;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "Uid: %*u %*u %*u %u", &out->user) == 1) {
			have |= 1;
		} else if (sscanf(line, "Gid: %*u %*u %*u %u", &group) == 1) {
			have |= 2;
		} else if (!strncmp(line, "Groups:", 7) && strchr(line, '\n')) {
			snprintf(out->groups, sizeof(out->groups), "%u %s", group, line);
			have |= 4;
		} else if (sscanf(line, "CapEff: %llx", &caps) == 1) {
			have |= 8;
		}
	}
	fclose(file);
	out->any_file = caps & reads;
	return have == 15;
}

/* Returns NULL if the process `number` may read every file that this process may read, and else why
 * that is in doubt. */
static const char *proc_may_read(int number)
{
	struct rights own, theirs;
	char name[40];

	snprintf(name, sizeof(name), "/proc/%d/status", number);
	if (!proc_is_same(number, "ns/user", "/proc/self/ns/user") ||
	    !proc_rights("/proc/self/status", &own) || !proc_rights(name, &theirs))
		return "it has another user namespace, or /proc does not tell";
	if (theirs.user && theirs.user != own.user)
		return "it belongs to another user";
	return theirs.any_file || (!own.any_file && theirs.user == own.user &&
				   !strcmp(theirs.groups, own.groups))
		       ? NULL
		       : "it may read fewer files than the server";
}

int pst_wire_handover_peer(int sock, struct pst_err *err)
{
	struct pollfd alive = {-1, POLLIN, 0};
	const char *reason = NULL;
	struct ucred peer;
	socklen_t len = sizeof(peer);
	int number;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return refuse(err, "its user is unknown");
	if (peer.uid && peer.uid != geteuid())
		return refuse(err, "it belongs to another user");
	len = sizeof(alive.fd);
	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &alive.fd, &len))
		return refuse(err, "the kernel does not identify its process");
	number = proc_number(alive.fd);
	if (!number || !proc_is_same(number, "ns/mnt", "/proc/self/ns/mnt"))
		reason = "it has another mount namespace, or /proc does not tell";
	else if (!proc_is_same(number, "root", "/"))
		reason = "it has another root directory, or /proc does not tell";
	/* SO_PEERCRED has the user that made the client's socket. The process may have become
	 * another user since then. */
	else
		reason = proc_may_read(number);
	/* The process still exists, so no other process had its number in between. */
	if (!reason && poll(&alive, 1, 0))
		reason = "its process has ended";
	close(alive.fd);
	return reason ? refuse(err, reason) : 0;
}

int pst_wire_handover_file(const struct penstock_object_seg *seg, struct pst_err *err)
{
	int flags = seg->has_fd ? fcntl(seg->fd, F_GETFL) : -1;
	struct stat st;

	if (!seg->has_fd)
		return refuse(err, "the bytes are in memory");
	if (flags < 0 || (flags & (O_ACCMODE | O_PATH)) != O_RDONLY)
		return refuse(err, "the descriptor is not open for reading only");
	if (fstat(seg->fd, &st) || !S_ISREG(st.st_mode))
		return refuse(err, "the object is not a regular file");
	if (seg->fd_off > (uint64_t)st.st_size || seg->len > (uint64_t)st.st_size - seg->fd_off)
		return refuse(err, "the file is shorter than the object");
	return 0;
}

bool pst_wire_handover_cached(const struct penstock_object_seg *seg)
{
	uint64_t pages;

	return !pst_cachestat(seg->fd, seg->fd_off, seg->len, &pages) &&
	       pages >= pst_pages_of(seg->fd_off, seg->fd_off + seg->len);
}

/* ---- client ---- */

enum pst_wire_status pst_wire_handover_put(struct pst_wire_grant *grant, int *fd, uint64_t off,
					   uint64_t len)
{
	int flags = *fd < 0 ? -1 : fcntl(*fd, F_GETFL), old = grant->file;

	/* This thread serves all connections. So it makes no call here that a file system could
	 * delay. */
	if (flags < 0 || (flags & (O_ACCMODE | O_PATH)) != O_RDONLY)
		return PST_WIRE_REFUSED;
	grant->file = *fd;
	grant->file_off = off;
	grant->file_len = len;
	*fd = old;
	return PST_WIRE_OK;
}

int pst_wire_handover_take(struct pst_wire_grant *grant)
{
	int fd = grant->file;

	grant->file = -1;
	return fd;
}

void pst_wire_handover_close(int fd)
{
	if (fd >= 0)
		close(fd);
}

/* Reads `len` bytes at offset `off` of a file. Returns NULL, or why it has not read all of them. */
static const char *read_all(int fd, unsigned char *mem, uint64_t off, uint64_t len)
{
	struct stat st;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "the server has not passed a regular file";
	if (off > (uint64_t)st.st_size || len > (uint64_t)st.st_size - off)
		return "the server has passed a file that is shorter than the range";
	for (uint64_t done = 0; done < len;) {
		ssize_t n = pread(fd, mem + done, len - done, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return "the passed file cannot be read";
		if (!n)
			return "the passed file has become shorter";
		done += (uint64_t)n;
	}
	return NULL;
}

void pst_wire_handover_copy(struct pst_wire_grant *grant, struct penstock_object_verdict *verdict)
{
	struct pst_wire_client *client = grant->buffer->client;
	const char *reason = NULL;
	uint64_t off, len;
	int fd;

	if (!verdict->bytes)
		return;
	pthread_mutex_lock(&client->lock);
	fd = pst_wire_handover_take(grant);
	off = grant->file_off;
	len = grant->file_len;
	pthread_mutex_unlock(&client->lock);
	if (fd < 0 || len != verdict->bytes)
		reason = "the server has not passed the file of the range";
	else
		reason = read_all(fd, grant->mem, off, len);
	pst_wire_handover_close(fd);
	if (!reason) {
		atomic_fetch_add(&client->counts.bytes, len);
		return;
	}
	verdict->next = PENSTOCK_OBJECT_RESEND;
	verdict->bytes = 0;
	snprintf(verdict->text, sizeof(verdict->text), "%s", reason);
}
