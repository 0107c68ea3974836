/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the topology of the machine, or the counters of a process, to a file descriptor, as text
 * or as JSON. `penstock topo` and `penstock stats` call it. The process that wrote the counters may
 * be hostile, so the code checks all that it reads from them.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/utf8.h"
#include "core/base/stats.h"
#include "core/machine/topo_print.h"
#include "core/machine/topo_read.h"

/* Opens a stdio stream that writes to a duplicate of `fd`, so that closing the stream leaves the
 * caller's descriptor open. */
static FILE *output_open(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	FILE *f = copy < 0 ? NULL : fdopen(copy, "w");

	if (!f && copy >= 0)
		close(copy);
	return f;
}

/* Closes the stream. Returns an error if any write to the stream failed. */
static int output_close(FILE *f)
{
	bool failed = ferror(f);

	errno = 0; /* cleared, so that the message below can name only an error of fclose */
	if (fclose(f) || failed)
		return pst_fail_errno(NULL, EIO, PENSTOCK_WHY_IO_ERROR,
				      "the output cannot be written%s%s", errno ? ": " : "",
				      errno ? strerror(errno) : "");
	return 0;
}

int penstock_topo(const char *sys_root, int json, int fd)
{
	struct pst_topo *topo;
	char why[PENSTOCK_TEXT_MAX];
	int ret = pst_topo_open(sys_root ? sys_root : "", &topo, why, sizeof(why));
	FILE *f;

	if (ret < 0)
		return pst_fail_errno(NULL, ret, pst_why_from_errno(ret), "%s", why);
	f = output_open(fd);
	if (!f) {
		pst_topo_close(topo);
		return pst_fail_errno(NULL, errno, pst_why_from_errno(errno), "descriptor %d: %m",
				      fd);
	}
	if (json)
		pst_topo_print_json(topo, f);
	else
		pst_topo_print(topo, f);
	pst_topo_close(topo);
	return output_close(f);
}

/* ---- counters ---- */

#define MEMFD_LINK "/memfd:" PST_STATS_NAME

/* Opens the memfd that holds the counters of process `pid`. The kernel allows this only to the
 * user of the process, and to root. */
static int stats_memfd_open(int pid)
{
	char dir[64], name[320], target[128];
	struct dirent *entry;
	int fd = -ENOENT;
	DIR *d;

	snprintf(dir, sizeof(dir), "/proc/%d/fd", pid);
	d = opendir(dir);
	if (!d)
		return -errno;
	while (fd < 0 && (entry = readdir(d))) {
		ssize_t n;

		snprintf(name, sizeof(name), "%s/%s", dir, entry->d_name);
		n = readlink(name, target, sizeof(target) - 1);
		if (n <= 0)
			continue;
		target[n] = '\0';
		if (strncmp(target, MEMFD_LINK, sizeof(MEMFD_LINK) - 1))
			continue;
		fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (fd < 0)
			fd = -errno;
	}
	closedir(d);
	return fd;
}

/* A note is a message to the user among the counters of a process. This function terminates its
 * text with a NUL and replaces control characters, so that the note prints as one line. It drops
 * the note if the process was changing the note while it was copied. */
static void note_sanitize(struct pst_stats_note *note)
{
	if (note->begun != note->done)
		note->done = 0;
	note->text[sizeof(note->text) - 1] = '\0';
	for (char *c = note->text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 127)
			*c = '?';
}

/* Returns the note with the lowest sequence number above `after`, or NULL if there is none. */
static const struct pst_stats_note *note_next(const struct pst_stats *s, uint64_t after)
{
	const struct pst_stats_note *next = NULL;

	for (unsigned i = 0; i < PST_STATS_NOTES; i++)
		if (s->notes[i].done > after && (!next || s->notes[i].done < next->done))
			next = &s->notes[i];
	return next;
}

/* Returns whether a path's name ends within `capacity` bytes and consists of characters that the
 * library's path names have. */
static bool path_name_valid(const char *name, size_t capacity)
{
	size_t len = strnlen(name, capacity);

	return len && len < capacity &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

/* Returns whether the counters have the layout of this version of the library. */
static bool stats_layout_known(const struct pst_stats *s)
{
	bool ok = s->magic == PST_STATS_MAGIC && s->version == PST_STATS_VERSION &&
		  s->size == sizeof(*s) && s->path_count <= PST_PATHS_MAX;

	for (unsigned i = 0; ok && i < s->path_count; i++)
		ok = path_name_valid(s->paths[i].name, sizeof(s->paths[i].name));
	return ok;
}

/* Copies the counters of process `pid`. The process may be hostile, so every name and text in
 * the counters is checked. */
static int stats_read(int pid, struct pst_stats *out)
{
	struct stat stat;
	int fd = stats_memfd_open(pid), code = 0;

	if (fd < 0)
		return pst_fail_errno(NULL, fd == -EACCES ? EACCES : ESRCH,
				      fd == -EACCES ? PENSTOCK_WHY_NO_PERMISSION
						    : PENSTOCK_WHY_NOT_FOUND,
				      fd == -EACCES ? "process %d belongs to another user"
						    : "process %d does not run, or has not used "
						      "Penstock",
				      pid);
	if (fstat(fd, &stat) || (size_t)stat.st_size < sizeof(*out) ||
	    pread(fd, out, sizeof(*out), 0) != (ssize_t)sizeof(*out))
		code = EPROTO;
	close(fd);
	if (code || !stats_layout_known(out))
		return pst_fail_errno(NULL, EPROTO, PENSTOCK_WHY_UNSUPPORTED,
				      "process %d uses another version of Penstock", pid);
	for (unsigned i = 0; i < PST_STATS_NOTES; i++)
		note_sanitize(&out->notes[i]);
	return 0;
}

/* Returns a latency in nanoseconds that the fraction `share` (0 to 1) of the path's chunks did not
 * exceed. It is the upper bound of a bucket of the histogram path->latency. */
static uint64_t percentile_ns(const struct pst_stats_path *path, double share)
{
	uint64_t total = 0, sum = 0;

	for (unsigned b = 0; b < PST_STATS_BUCKETS; b++)
		total += path->latency[b];
	if (!total)
		return 0;
	for (unsigned b = 0; b < PST_STATS_BUCKETS; b++) {
		sum += path->latency[b];
		if ((double)sum >= share * (double)total)
			return pst_stats_bucket_ns(b + 1 < PST_STATS_BUCKETS ? b + 1 : b);
	}
	return 0;
}

/* Prints text inside a JSON string. Invalid UTF-8, which a file name may contain, becomes
 * U+FFFD. */
static void json_escape_print(const char *text, FILE *f)
{
	while (*text) {
		unsigned n = pst_utf8_length(text, SIZE_MAX);

		if (*text == '"' || *text == '\\')
			fputc('\\', f);
		if (n)
			fwrite(text, 1, n, f);
		else
			fputs("\\ufffd", f);
		text += n ? n : 1;
	}
}

static void notes_print_json(const struct pst_stats *s, FILE *f)
{
	const struct pst_stats_note *note = NULL;
	const char *comma = "";

	fprintf(f, "\"notes\": [");
	while ((note = note_next(s, note ? note->done : 0))) {
		fprintf(f, "%s{\"times\": %llu, \"text\": \"", comma,
			(unsigned long long)note->times);
		json_escape_print(note->text, f);
		fprintf(f, "\"}");
		comma = ", ";
	}
	fprintf(f, "]");
}

static void stats_print_json(const struct pst_stats *s, FILE *f)
{
	const char *comma = "";

	fprintf(f,
		"{\"version\": %u, \"pid\": %u, \"requests\": %llu, \"refused\": %llu, "
		"\"failed\": %llu, \"canaries\": %llu, \"canaries_failed\": %llu, \"paths\": {",
		s->version, s->pid, (unsigned long long)s->requests, (unsigned long long)s->refused,
		(unsigned long long)s->failed, (unsigned long long)s->canaries,
		(unsigned long long)s->canaries_failed);
	for (unsigned i = 0; i < s->path_count; i++, comma = ", ") {
		const struct pst_stats_path *p = &s->paths[i];

		fprintf(f,
			"%s\"%s\": {\"read_chunks\": %llu, \"write_chunks\": %llu, "
			"\"read_bytes\": %llu, \"write_bytes\": %llu, \"cpu_copied\": %llu, "
			"\"dram_laid\": %llu, \"errors\": %llu, \"retries\": %llu, "
			"\"p50_us\": %.1f, \"p99_us\": %.1f, \"latency_ns\": [",
			comma, p->name, (unsigned long long)p->chunks[0],
			(unsigned long long)p->chunks[1], (unsigned long long)p->bytes[0],
			(unsigned long long)p->bytes[1], (unsigned long long)p->cpu_copied,
			(unsigned long long)p->dram_laid, (unsigned long long)p->errors,
			(unsigned long long)p->retries, (double)percentile_ns(p, 0.5) / 1e3,
			(double)percentile_ns(p, 0.99) / 1e3);
		for (unsigned b = 0, any = 0; b < PST_STATS_BUCKETS; b++) {
			if (!p->latency[b])
				continue;
			fprintf(f, "%s[%llu, %llu]", any++ ? ", " : "",
				(unsigned long long)pst_stats_bucket_ns(b),
				(unsigned long long)p->latency[b]);
		}
		fprintf(f, "]}");
	}
	fprintf(f, "}, ");
	notes_print_json(s, f);
	fprintf(f, "}\n");
}

static void stats_print_table(const struct pst_stats *s, FILE *f)
{
	const struct pst_stats_note *note = NULL;

	fprintf(f,
		"process %u: %llu request%s, %llu refused, %llu failed, %llu canar%s (%llu "
		"failed)\n",
		s->pid, (unsigned long long)s->requests, s->requests == 1 ? "" : "s",
		(unsigned long long)s->refused, (unsigned long long)s->failed,
		(unsigned long long)s->canaries, s->canaries == 1 ? "y" : "ies",
		(unsigned long long)s->canaries_failed);
	fprintf(f, "%-8s %12s %12s %10s %10s %8s %8s %10s %10s\n", "path", "read MB", "write MB",
		"chunks", "CPU MB", "errors", "retries", "p50 us", "p99 us");
	for (unsigned i = 0; i < s->path_count; i++) {
		const struct pst_stats_path *p = &s->paths[i];

		if (!p->chunks[0] && !p->chunks[1])
			continue;
		fprintf(f, "%-8s %12.1f %12.1f %10llu %10.1f %8llu %8llu %10.1f %10.1f\n", p->name,
			(double)p->bytes[0] / 1e6, (double)p->bytes[1] / 1e6,
			(unsigned long long)(p->chunks[0] + p->chunks[1]),
			(double)p->cpu_copied / 1e6, (unsigned long long)p->errors,
			(unsigned long long)p->retries, (double)percentile_ns(p, 0.5) / 1e3,
			(double)percentile_ns(p, 0.99) / 1e3);
	}
	while ((note = note_next(s, note ? note->done : 0)))
		fprintf(f, "note: %s (%llux)\n", note->text, (unsigned long long)note->times);
}

int penstock_stats(int pid, int json, int fd)
{
	struct pst_stats *copy;
	FILE *f;
	int ret;

	pst_stats_get(); /* `pid` may be this process, so create its counters */
	copy = malloc(sizeof(*copy));
	if (!copy)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for the counters");
	ret = stats_read(pid ? pid : (int)getpid(), copy);
	f = ret ? NULL : output_open(fd);
	if (!ret && !f)
		ret = pst_fail_errno(NULL, errno, PENSTOCK_WHY_BAD_ARGUMENT, "descriptor %d: %m",
				     fd);
	if (!ret) {
		if (json)
			stats_print_json(copy, f);
		else
			stats_print_table(copy, f);
		ret = output_close(f);
	}
	free(copy);
	return ret;
}
