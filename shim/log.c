/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drop-in's log: one line, one write(2), to the file that the caller's
 * configuration names, else to stderr; never a file in the working directory.
 * NOTICE is always written. Called from open, first uses and failures only, never
 * where a transfer succeeds a second time.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shim.h"

/* A caller that fails in a loop shall not fill a disk. */
#define LINES_MAX 10000u

static const char *const names[] = {"NOTICE", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"};
static _Atomic int level = SHIM_ERROR;
static _Atomic int log_fd = -1;
static _Atomic unsigned lines;

int shim_log_level(const char *name)
{
	for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++)
		if (!strcasecmp(name, names[i]))
			return i;
	return -1;
}

bool shim_log_to_file(void)
{
	return atomic_load(&log_fd) >= 0;
}

void shim_log(enum shim_level at, const char *fmt, ...)
{
	char line[1024];
	int len, room = (int)sizeof(line) - 2, fd = atomic_load(&log_fd), saved = errno;
	unsigned number;
	va_list args;

	if ((int)at > atomic_load_explicit(&level, memory_order_relaxed))
		return;
	number = atomic_fetch_add(&lines, 1);
	if (number > LINES_MAX)
		return;
	len = snprintf(line, sizeof(line), "penstock cufile %d %s: ", (int)getpid(), names[at]);
	va_start(args, fmt);
	if (number == LINES_MAX)
		len += snprintf(line + len, (size_t)(room - len), "the log ends after %u lines",
				LINES_MAX);
	else
		len += vsnprintf(line + len, (size_t)(room - len), fmt, args);
	va_end(args);
	if (len > room)
		len = room;
	line[len++] = '\n';
	if (write(fd >= 0 ? fd : STDERR_FILENO, line, (size_t)len) < 0)
		errno = saved; /* nowhere left to say it */
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

/* A pipe that nobody reads, or that is full, does not hold the program up. */
static int open_log(const char *path)
{
	return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
		    0644);
}

/* The file that the environment names, else a file in the folder that the
 * configuration names; no name, no file. */
void shim_log_setup(const struct shim_config *config)
{
	const char *path = config->text[CUF_LOGFILE_PATH], *dir = config->text[CUF_LOG_DIR];
	int named = shim_log_level(config->text[CUF_LOGGING_LEVEL]), fd = -1;
	static int kept = -1; /* never closed: another thread may be writing to it */
	char in_dir[SHIM_TEXT + 64];

	atomic_store(&level, named >= 0 ? named : SHIM_ERROR);
	if (*path) {
		fd = open_log(path);
	} else if (*dir) {
		snprintf(in_dir, sizeof(in_dir), "%s/cufile.log", dir);
		path = in_dir;
		fd = open_log(path);
	}
	if (fd >= 0 && kept >= 0) {
		dup3(fd, kept, O_CLOEXEC);
		close(fd);
	} else if (fd >= 0) {
		kept = fd;
	}
	atomic_store(&log_fd, fd >= 0 ? kept : -1);
	if (*path && fd < 0)
		shim_log(SHIM_WARN, "cannot write the log to %s (%m), it goes to stderr", path);
}
