/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Logging: see log.h. The first call of pst_log reads PENSTOCK_LOG. Each line is written by one
 * write(2), so that lines of several threads do not mix.
 */
#include "core/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static char setting[256]; /* a copy of PENSTOCK_LOG */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Returns the level with this name, or -1 if there is none. */
static int level_parse(const char *name, size_t len)
{
	for (unsigned i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++)
		if (strlen(level_names[i]) == len && !strncmp(name, level_names[i], len))
			return (int)i;
	return -1;
}

/* Copies the environment variable PENSTOCK_LOG to `setting`. Warns of a level name that does not
 * exist, because otherwise the user would not learn why the expected lines are missing. */
static void setting_read(void)
{
	const char *env = getenv("PENSTOCK_LOG"), *item = setting;
	char line[sizeof(setting) + 96];

	if (env)
		snprintf(setting, sizeof(setting), "%s", env);
	while (*item) {
		size_t len = strcspn(item, ",");
		const char *colon = memchr(item, ':', len);
		const char *name = colon ? colon + 1 : item;

		if (len && level_parse(name, (size_t)(item + len - name)) < 0) {
			int n = snprintf(line, sizeof(line),
					 "penstock warn log: PENSTOCK_LOG: no level '%.*s': use "
					 "error, warn, info or debug\n",
					 (int)(item + len - name), name);

			if (write(STDERR_FILENO, line, (size_t)n) < 0)
				/* a failed write to stderr is ignored, as nothing can report it */
				return;
		}
		item += len + (item[len] == ',');
	}
}

/* Returns the lowest importance at which messages of a backend are written: the level that
 * PENSTOCK_LOG sets for this backend. If it sets none, returns the level that it sets for all
 * backends, or else `warn`. */
static int backend_level(const char *backend)
{
	int common = PST_LOG_WARN, own = -1;
	const char *item = setting;

	while (*item) {
		size_t len = strcspn(item, ",");
		const char *colon = memchr(item, ':', len);
		size_t name_len = colon ? (size_t)(colon - item) : 0;

		if (!colon) {
			int level = level_parse(item, len);

			if (level >= 0)
				common = level;
		} else if (strlen(backend) == name_len && !strncmp(item, backend, name_len)) {
			own = level_parse(colon + 1, len - name_len - 1);
		}
		item += len + (item[len] == ',');
	}
	return own >= 0 ? own : common;
}

void pst_log(enum pst_log_level level, const char *backend, const char *fmt, ...)
{
	char line[512];
	va_list args;
	int len;

	pthread_once(&once, setting_read);
	if ((int)level > backend_level(backend))
		return;
	len = snprintf(line, sizeof(line), "penstock %s %s: ", level_names[level], backend);
	va_start(args, fmt);
	len += vsnprintf(line + len, sizeof(line) - (size_t)len - 1, fmt, args);
	va_end(args);
	if (len > (int)sizeof(line) - 2)
		len = (int)sizeof(line) - 2;
	line[len++] = '\n';
	if (write(STDERR_FILENO, line, (size_t)len) < 0)
		return; /* a failed write to stderr is ignored, as nothing can report it */
}
