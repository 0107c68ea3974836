/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the log of the drop-in (Penstock's libcufile). Each line is one write(2), to the log file
 * of the configuration, or to stderr if none is configured. The drop-in logs when the driver is
 * opened, when a file is first used, and when a call fails. The log must never create a file in the
 * working directory, and a transfer that succeeds must log nothing unless it is the first of its
 * file.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "penstock.h"

/* Largest number of lines, so that a program that fails in a loop does not fill a disk. */
#define LINES_MAX 10000u

static const char *const level_names[] = {"NOTICE", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"};
static _Atomic int level_max = SHIM_ERROR;
static _Atomic int log_fd = -1;
static _Atomic unsigned line_count;

int shim_log_level(const char *name)
{
	for (int i = 0; i < (int)(sizeof(level_names) / sizeof(level_names[0])); i++)
		if (!strcasecmp(name, level_names[i]))
			return i;
	return -1;
}

bool shim_log_to_file(void)
{
	return atomic_load(&log_fd) >= 0;
}

void shim_log(enum shim_level level, const char *fmt, ...)
{
	char line[1024];
	int len, len_max = (int)sizeof(line) - 2, fd = atomic_load(&log_fd), saved = errno;
	unsigned number;
	va_list args;

	if ((int)level > atomic_load_explicit(&level_max, memory_order_relaxed))
		return;
	number = atomic_fetch_add(&line_count, 1);
	if (number > LINES_MAX)
		return;
	len = snprintf(line, sizeof(line), "penstock cufile %d %s: ", (int)getpid(),
		       level_names[level]);
	va_start(args, fmt);
	if (number == LINES_MAX)
		len += snprintf(line + len, (size_t)(len_max - len), "the log ends after %u lines",
				LINES_MAX);
	else
		len += vsnprintf(line + len, (size_t)(len_max - len), fmt, args);
	va_end(args);
	if (len > len_max)
		len = len_max;
	line[len++] = '\n';
	if (write(fd >= 0 ? fd : STDERR_FILENO, line, (size_t)len) < 0)
		/* A failure is ignored, because there is no other place to report that the log
		 * cannot be written. */
		errno = saved;
	errno = saved;
}

void shim_log_refused(const char *fmt, ...)
{
	char text[900];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	shim_log(SHIM_NOTICE, "%s", text);
	penstock_stats_note(text);
}

/* Opens the log file. With O_NONBLOCK, a pipe that has no reader or is full does not block the
 * program. */
static int log_open(const char *path)
{
	return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
		    0644);
}

void shim_log_setup(const char *level, const char *file, const char *dir)
{
	/* Descriptor of the log file. It is never closed, because another thread may be writing to
	 * it. */
	static int kept = -1;
	int number = shim_log_level(level), fd = -1;
	char in_dir[PATH_MAX];

	atomic_store(&level_max, number >= 0 ? number : SHIM_ERROR);
	if (!*file && *dir) {
		snprintf(in_dir, sizeof(in_dir), "%s/cufile.log", dir);
		file = in_dir;
	}
	if (*file)
		fd = log_open(file);
	if (fd >= 0 && kept >= 0) {
		dup3(fd, kept, O_CLOEXEC);
		close(fd);
	} else if (fd >= 0) {
		kept = fd;
	}
	atomic_store(&log_fd, fd >= 0 ? kept : -1);
	if (*file && fd < 0)
		shim_log(SHIM_WARN, "cannot write the log to %s (%m), it goes to stderr", file);
}
