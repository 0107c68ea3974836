/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the gates that check this process's limits: locked memory, memory and CPUs of its
 * control group, and io_uring under seccomp and sysctl. Containers often set such limits. If the
 * file that holds a limit is missing, the limit must never count as harmless.
 */
#include "gates_limits.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "line.h"

/* Largest number of bytes of pinned host memory that the library's buffers (rings) for a GPU use
 * with the library's default settings. */
#define RING_BYTES (256ULL << 20)
#define CAP_IPC_LOCK_BIT 14
#define CAP_SYS_ADMIN_BIT 21

/* Reads the number that follows "KEY:" in /proc/self/status. Returns whether the key exists. */
static bool status_value(const struct pst_check_facts *f, const char *key, int base,
			 unsigned long long *out)
{
	char *text, *at;
	bool found = false;
	size_t len = strlen(key);

	if (pst_sysfs_file(&f->fs, &text, 65536, "proc/self/status") < 0)
		return false;
	for (at = text; at && !found; at = strchr(at, '\n')) {
		char *end;

		at += *at == '\n';
		if (strncmp(at, key, len) || at[len] != ':')
			continue;
		*out = strtoull(at + len + 1, &end, base);
		found = end != at + len + 1;
	}
	free(text);
	return found;
}

/* Returns whether this process has capability number `bit`, which must be below 32. If
 * /proc/self/status cannot be read, calls capget(2) instead, but only on the running machine. */
static bool process_is_capable(const struct pst_check_facts *f, unsigned bit)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
	unsigned long long caps;

	if (status_value(f, "CapEff", 16, &caps))
		return caps >> bit & 1;
	return !f->captured && !syscall(SYS_capget, &head, data) && data[0].effective >> bit & 1;
}

/* Returns the soft limit of locked memory according to getrlimit(2), in bytes; -1 if there is no
 * limit, -2 if unknown. */
static long long memlock_getrlimit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		return -2;
	return limit.rlim_cur == RLIM_INFINITY ? -1 : (long long)limit.rlim_cur;
}

/* Returns the soft limit of locked memory in bytes; -1 if there is no limit, -2 if unknown. */
static long long memlock_limit(const struct pst_check_facts *f)
{
	long long limit = -2;
	char *text, *at, word[32];

	if (pst_sysfs_file(&f->fs, &text, 65536, "proc/self/limits") < 0)
		return f->captured ? -2 : memlock_getrlimit();
	at = strstr(text, "Max locked memory");
	if (at && sscanf(at + 17, "%31s", word) == 1) {
		char *end;

		limit = strtoll(word, &end, 10);
		if (!strcmp(word, "unlimited"))
			limit = -1;
		else if (*end || limit < 0)
			limit = -2;
	}
	free(text);
	return limit;
}

static const char *bytes_text(unsigned long long bytes, char *out, size_t len)
{
	if (bytes >> 30 && !(bytes & ((1ULL << 30) - 1)))
		snprintf(out, len, "%llu GiB", bytes >> 30);
	else if (bytes >> 20)
		snprintf(out, len, "%llu MiB", bytes >> 20);
	else
		snprintf(out, len, "%llu KiB", bytes >> 10);
	return out;
}

static void inspect_memlock(const struct pst_check_facts *f, struct pst_check_line *line)
{
	long long limit = memlock_limit(f);
	char text[32];

	if (!f->has_file && !f->is_url)
		return;
	if (limit == -2) {
		pst_line_unknown(line, "the limits of this process cannot be read");
		pst_line_todo(line, "run ulimit -l, which shows the limit");
	} else if (limit == -1) {
		pst_line_ok(line, "unlimited");
	} else if (process_is_capable(f, CAP_IPC_LOCK_BIT)) {
		pst_line_ok(line, "%s, which does not apply to this user (CAP_IPC_LOCK)",
			    bytes_text((unsigned long long)limit, text, sizeof(text)));
	} else if ((unsigned long long)limit < RING_BYTES) {
		pst_line_no(line, "%s", bytes_text((unsigned long long)limit, text, sizeof(text)));
		pst_line_script(
			line, "echo '* - memlock unlimited' >/etc/security/limits.d/penstock.conf");
		pst_line_script(line, "# undo: rm /etc/security/limits.d/penstock.conf");
		pst_line_script(line, "# a service: LimitMEMLOCK=infinity");
		pst_line_script(line, "# a container: docker run --ulimit memlock=-1");
	} else {
		pst_line_ok(line, "%s", bytes_text((unsigned long long)limit, text, sizeof(text)));
	}
}

/* ---- control groups -------------------------------------------------------------- */

/* Reads the file `name` of this process's control group. If that group has no such file or is not
 * visible, reads the file of the topmost visible group. Returns whether it found the file. */
static bool group_value(const struct pst_check_facts *f, const char *controller, const char *name,
			char *out, size_t len)
{
	char *text, *line, *next;
	bool found = false;

	if (pst_sysfs_file(&f->fs, &text, 65536, "proc/self/cgroup") < 0)
		return false;
	for (line = text; line && *line && !found; line = next) {
		char *colon = strchr(line, ':'), *path;

		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		path = colon ? strchr(colon + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		if (strcmp(colon + 1, controller) || strstr(path, ".."))
			continue;
		found = pst_sysfs_text(&f->fs, out, len, "sys/fs/cgroup/%s%s%s/%s", controller,
				       controller[0] ? "/" : "", path + (*path == '/'), name) > 0 ||
			pst_sysfs_text(&f->fs, out, len, "sys/fs/cgroup/%s%s%s", controller,
				       controller[0] ? "/" : "", name) > 0;
	}
	free(text);
	return found;
}

static void inspect_cgroup(const struct pst_check_facts *f, struct pst_check_line *line)
{
	char text[64], size[32], cpus[32] = "";
	unsigned long long memory = 0, quota, period;
	bool bounded = false;

	if (!f->has_file && !f->is_url)
		return;
	/* If there is no limit, version 1 of control groups reports a limit of several exabytes. */
	if (group_value(f, "", "memory.max", text, sizeof(text)) ||
	    group_value(f, "memory", "memory.limit_in_bytes", text, sizeof(text)))
		bounded = sscanf(text, "%20llu", &memory) == 1 && memory < 1ULL << 50;
	if (group_value(f, "", "cpu.max", text, sizeof(text)) &&
	    sscanf(text, "%20llu %20llu", &quota, &period) == 2 && period)
		snprintf(cpus, sizeof(cpus), "%.1f CPUs", (double)quota / (double)period);
	if (!bounded && !cpus[0]) {
		if (pst_sysfs_exists(&f->fs, "proc/self/cgroup"))
			pst_line_ok(line, "no limit on memory or CPUs");
		else
			pst_line_unknown(line, "the control group of this process cannot be read");
		return;
	}
	bytes_text(memory, size, sizeof(size));
	if (bounded && memory < 2 * RING_BYTES)
		pst_line_no(line, "%s of memory%s%s", size, cpus[0] ? ", " : "", cpus);
	else
		pst_line_ok(line, "%s%s%s%s", bounded ? size : "", bounded ? " of memory" : "",
			    bounded && cpus[0] ? ", " : "", cpus);
}

/* ---- io_uring -------------------------------------------------------------------- */

/* Creates an io_uring of the smallest size and closes it. Returns 0, or an errno. */
static int uring_try(void)
{
	struct io_uring_params params;
	long fd;

	memset(&params, 0, sizeof(params));
	fd = syscall(__NR_io_uring_setup, 1, &params);
	if (fd < 0)
		return errno;
	close((int)fd);
	return 0;
}

static void inspect_uring(const struct pst_check_facts *f, struct pst_check_line *line)
{
	unsigned long long seccomp = 0;
	int64_t off = 0;
	int error;

	if (!f->has_file && !f->is_url)
		return;
	/* PENSTOCK_HAS_URING describes this build, but says nothing about the library on a captured
	 * machine. */
	if (!f->captured && !PENSTOCK_HAS_URING) {
		pst_line_no(line, "this Penstock was built without liburing");
		pst_line_todo(line, "install liburing-dev and build Penstock again");
		return;
	}
	if (pst_sysfs_number(&f->fs, &off, "proc/sys/kernel/io_uring_disabled") < 0)
		off = 0;
	if (f->captured) {
		if (off == 2 || (off == 1 && !process_is_capable(f, CAP_SYS_ADMIN_BIT)))
			pst_line_no(line, "kernel.io_uring_disabled is %d", (int)off);
		else if (f->kernel && f->kernel < 5001)
			pst_line_no(line, "Linux %s has no io_uring", f->release);
		else if (!status_value(f, "Seccomp", 10, &seccomp))
			pst_line_unknown(line,
					 "it cannot be read whether seccomp forbids io_uring");
		else if (seccomp == 2)
			pst_line_unknown(line,
					 "a seccomp filter is active and may forbid io_uring");
		else
			pst_line_ok(line, "allowed");
	} else {
		error = uring_try();
		if (!error)
			pst_line_ok(line, "allowed");
		else if (off)
			pst_line_no(line, "kernel.io_uring_disabled is %d", (int)off);
		else
			pst_line_no(line, "%s%s", strerror(error),
				    error == EPERM ? ": probably the seccomp filter of a container"
						   : "");
	}
	if (off)
		pst_line_script(line,
				"sysctl -w kernel.io_uring_disabled=0  # until the next boot");
	else
		pst_line_script(line, "# docker run --security-opt seccomp=FILE, with a FILE that "
				      "allows io_uring_*");
}

const struct pst_check_gate pst_check_limit_gates[] = {
	{"memlock", PST_CHECK_FILE, PST_NEED_SPEED, inspect_memlock,
	 "without locked memory the ring cannot be registered, and every read pins its pages anew",
	 "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity, docker --ulimit memlock=-1"},
	{"cgroup", PST_CHECK_FILE, PST_NEED_SPEED, inspect_cgroup,
	 "ring and page cache use the group's memory, and the lane threads use its CPUs",
	 "give the container at least 1 GiB more than the application needs"},
	{"io_uring", PST_CHECK_FILE, PST_NEED_SPEED, inspect_uring,
	 "without io_uring a thread waits for each read in flight, which costs CPU time",
	 "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile"},
	{.name = NULL},
};
