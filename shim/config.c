/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: defaults, then cufile.json, then the environment. A file that
 * is no JSON changes nothing. Every key that is unknown, or stands where the
 * original too would pass over it, is reported once, with its right place; so is a
 * value of the wrong kind. Called at open; it must never fail a caller.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"
#include "keys.h"

#define FILE_MAX ((size_t)1 << 20)
#define NOTES_MAX 256u /* half of them for what is wrong, which no known key is */
#define NOTE_MAX 320u
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

void shim_config_defaults(struct shim_config *config)
{
	static const struct shim_config defaults = {
		.size =
			{
				[CUF_PROFILE_STATS] = 0,
				[CUF_MAX_IO_QUEUE_DEPTH] = 128,
				[CUF_MAX_IO_THREADS] = 4,
				[CUF_MIN_IO_THRESHOLD_KB] = 8192,
				[CUF_MAX_REQUEST_PARALLELISM] = 4,
				[CUF_MAX_DIRECT_IO_KB] = 16384,
				[CUF_MAX_DEVICE_CACHE_KB] = 131072,
				[CUF_PER_BUFFER_CACHE_KB] = 1024,
				[CUF_MAX_PINNED_KB] = 33554432,
				[CUF_IO_BATCHSIZE] = 128,
				[CUF_POLL_THRESHOLD_KB] = 4,
				[CUF_BATCH_TIMEOUT_MS] = 5,
			},
		.flag =
			{
				[CUF_PARAM_ALLOW_COMPAT_MODE] = true,
				[CUF_PARAM_PARALLEL_IO] = true,
				[CUF_PARAM_ALLOW_SYSTEM_MEMORY] = true,
			},
		.text = {[CUF_LOGGING_LEVEL] = "ERROR"},
		.posix = {3, {4, 1024, 16384}, {128, 64, 64}},
		.gpu = {4, {1024, 8192, 16384, 65536}, {128, 8, 4, 2}},
	};

	*config = defaults;
}

/* ---- notes: kept until the log knows where it goes; under shim.lock ---- */

static struct note {
	enum shim_level level;
	char text[NOTE_MAX];
} notes[NOTES_MAX];
static unsigned note_count;
static uint64_t said[NOTES_MAX * 2]; /* hashes, so that a reopened driver repeats nothing */
static unsigned said_count;
static bool any_lost; /* of what is wrong */

static bool is_said(uint64_t hash)
{
	for (unsigned i = 0; i < said_count; i++)
		if (said[i] == hash)
			return true;
	return false;
}

__attribute__((format(printf, 2, 3))) static void note(enum shim_level level, const char *fmt, ...)
{
	char text[NOTE_MAX];
	uint64_t hash;
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 127)
			*c = '?'; /* a name from the file must not make lines of its own */
	hash = shim_hash(SHIM_HASH, text);
	if (is_said(hash))
		return;
	if (said_count == COUNT(said) ||
	    note_count >= (level == SHIM_INFO ? NOTES_MAX / 2 : NOTES_MAX)) {
		any_lost |= level != SHIM_INFO;
		return;
	}
	said[said_count++] = hash;
	notes[note_count].level = level;
	memcpy(notes[note_count++].text, text, sizeof(text));
}

void shim_config_say(void)
{
	static bool lost_said;

	for (unsigned i = 0; i < note_count; i++)
		shim_log(notes[i].level, "%s", notes[i].text);
	note_count = 0;
	if (any_lost && !lost_said)
		shim_log(SHIM_NOTICE, "more is wrong with the configuration than is listed");
	lost_said |= any_lost;
}

/* ---- keys ---- */

static bool matches(const char *pattern, const char *path)
{
	for (;;) {
		size_t a = strcspn(pattern, "."), b = strcspn(path, ".");

		if (!(a == 1 && *pattern == '*' && b) && (a != b || strncmp(pattern, path, a) != 0))
			return false;
		if (!pattern[a] || !path[b])
			return pattern[a] == path[b];
		pattern += a + 1;
		path += b + 1;
	}
}

static const struct key *find_key(const char *path)
{
	for (size_t i = 0; i < COUNT(keys); i++)
		if (matches(keys[i].path, path))
			return &keys[i];
	return NULL;
}

static const char *last_name(const char *path)
{
	const char *dot = strrchr(path, '.');

	return dot ? dot + 1 : path;
}

/* Where a key of this name would count, or NULL. */
static const char *right_place(const char *path)
{
	const char *name = last_name(path);

	for (size_t i = 0; i < COUNT(keys); i++)
		if (!strcmp(last_name(keys[i].path), name) && strcmp(name, "*") != 0)
			return keys[i].path;
	for (size_t i = 0; i < COUNT(meant); i++)
		if (!strcmp(meant[i].name, name))
			return meant[i].path;
	return NULL;
}

static bool unknown(const struct shim_json_value *v)
{
	const char *place = right_place(v->path);
	const char *what = v->type == SHIM_JSON_OBJECT ? "section" : "key";

	if (place && !strcmp(place, v->path))
		return false;
	if (place)
		note(SHIM_NOTICE,
		     "cufile.json line %d: the %s '%s' has no effect there: its place is '%s'",
		     v->line, what, v->path, place);
	else
		note(SHIM_NOTICE, "cufile.json line %d: the %s '%s' is not known", v->line, what,
		     v->path);
	return false;
}

static bool bad_value(const struct shim_json_value *v, const char *want)
{
	note(SHIM_NOTICE, "cufile.json line %d: '%s' wants %s: the default stays", v->line, v->path,
	     want);
	return false;
}

static bool set_size(struct shim_config *config, const struct key *key,
		     const struct shim_json_value *v)
{
	size_t min = 0, max = 0;
	char want[80];

	cuFileGetParameterMinMaxValue(key->which, &min, &max);
	if (v->type == SHIM_JSON_NUMBER && v->whole && v->number >= min && v->number <= max) {
		config->size[key->which] = (size_t)v->number;
		return true;
	}
	snprintf(want, sizeof(want), "a whole number from %zu to %zu", min, max);
	return bad_value(v, want);
}

static bool set_text(struct shim_config *config, const struct key *key,
		     const struct shim_json_value *v)
{
	if (v->type != SHIM_JSON_TEXT_VALUE || strlen(v->text) >= SHIM_TEXT)
		return bad_value(v, "a short string");
	if (key->which == CUF_LOGGING_LEVEL && shim_log_level(v->text) < 0)
		return bad_value(v, "one of NOTICE, ERROR, WARN, INFO, DEBUG, TRACE");
	memcpy(config->text[key->which], v->text, strlen(v->text) + 1);
	return true;
}

static bool set_slab(struct shim_slabs *slabs, bool kb, const struct shim_json_value *v)
{
	if (v->type == SHIM_JSON_ARRAY && v->index < 0) {
		if (kb)
			slabs->count = 0;
		return true;
	}
	if (v->type != SHIM_JSON_NUMBER || !v->whole || v->index < 0 || v->index >= SHIM_SLABS)
		return bad_value(v, "a list of whole numbers");
	if (kb) {
		slabs->kb[v->index] = (size_t)v->number;
		slabs->count = v->index + 1;
	} else {
		slabs->number[v->index] = (size_t)v->number;
	}
	return true;
}

static bool set(struct shim_config *config, const struct key *key, const struct shim_json_value *v)
{
	switch (key->kind) {
	case SIZE:
		return set_size(config, key, v);
	case FLAG:
		if (v->type != SHIM_JSON_BOOL)
			return bad_value(v, "true or false");
		config->flag[key->which] = v->flag;
		return true;
	case TEXT:
		return set_text(config, key, v);
	case POSIX_KB:
	case POSIX_COUNT:
		return set_slab(&config->posix, key->kind == POSIX_KB, v);
	case GPU_KB:
	case GPU_COUNT:
		return set_slab(&config->gpu, key->kind == GPU_KB, v);
	case SECTION:
		return v->type == SHIM_JSON_OBJECT || bad_value(v, "a section in { }");
	default: /* taken with all that is in it */
		return false;
	}
}

static bool take(void *arg, const struct shim_json_value *v)
{
	struct shim_config *config = arg;
	const struct key *key;

	if (!*v->path) /* the whole file */
		return v->type == SHIM_JSON_OBJECT;
	key = find_key(v->path);
	if (!key)
		return v->index < 0 ? unknown(v) : false;
	if (key->note && v->index < 0)
		note(SHIM_INFO, "cufile.json line %d: '%s' changes nothing: %s", v->line, v->path,
		     key->note);
	return set(config, key, v);
}

void shim_config_text(struct shim_config *config, const char *text, size_t len)
{
	struct shim_config *fresh = malloc(sizeof(*fresh));
	const char *what;
	int line;

	if (!fresh)
		return;
	*fresh = *config;
	line = shim_json_read(text, len, take, fresh, &what);
	if (line)
		note(SHIM_NOTICE, "cufile.json line %d: expected %s: the file is passed over", line,
		     what);
	else
		*config = *fresh;
	free(fresh);
}

/* ---- the file ---- */

static void read_file(struct shim_config *config, int fd, const char *path)
{
	char *text = malloc(FILE_MAX + 1);
	size_t len = 0;
	ssize_t n = 1;

	while (text && len <= FILE_MAX && n > 0) {
		n = read(fd, text + len, FILE_MAX + 1 - len);
		len += n > 0 ? (size_t)n : 0;
	}
	if (!text || n < 0)
		note(SHIM_NOTICE, "cannot read %s: %s", path, strerror(text ? errno : ENOMEM));
	else if (len > FILE_MAX)
		note(SHIM_NOTICE, "%s is longer than %zu bytes: it is passed over", path, FILE_MAX);
	else
		shim_config_text(config, text, len);
	free(text);
}

static void find_file(struct shim_config *config)
{
	const char *named = getenv("CUFILE_ENV_PATH_JSON");
	const char *path = named && *named ? named : "/etc/cufile.json";
	struct stat stat;
	/* A pipe by that name must not stop anybody. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0 || fstat(fd, &stat) || !S_ISREG(stat.st_mode)) {
		if (path == named)
			note(SHIM_NOTICE, "CUFILE_ENV_PATH_JSON: %s cannot be read: defaults hold",
			     path);
	} else {
		snprintf(config->file, sizeof(config->file), "%s", path);
		read_file(config, fd, path);
	}
	if (fd >= 0)
		close(fd);
}

/* ---- the environment ---- */

static void env_flag(struct shim_config *config, const char *name, enum cuf_bool_param which)
{
	const char *text = getenv(name);

	if (!text || !*text)
		return;
	if (!strcasecmp(text, "true") || !strcmp(text, "1"))
		config->flag[which] = true;
	else if (!strcasecmp(text, "false") || !strcmp(text, "0"))
		config->flag[which] = false;
	else
		note(SHIM_NOTICE, "%s wants true or false, not '%.40s'", name, text);
}

static void env_size(struct shim_config *config, const char *name, enum cuf_size_param which)
{
	const char *text = getenv(name);
	size_t min, max;
	unsigned long long value;
	char *end;

	if (!text || !*text)
		return;
	cuFileGetParameterMinMaxValue((int)which, &min, &max);
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || *text == '-' || value < min || value > max)
		note(SHIM_NOTICE, "%s wants a number from %zu to %zu, not '%.40s'", name, min, max,
		     text);
	else
		config->size[which] = (size_t)value;
}

static void env_text(struct shim_config *config, const char *name, enum cuf_string_param which)
{
	const char *text = getenv(name);

	if (!text || !*text)
		return;
	if (strlen(text) >= SHIM_TEXT || (which == CUF_LOGGING_LEVEL && shim_log_level(text) < 0))
		note(SHIM_NOTICE, "%s has a value that is passed over: '%.40s'", name, text);
	else
		memcpy(config->text[which], text, strlen(text) + 1);
}

extern char **environ;

/* What of the original's family of names is set and does nothing here, or nowhere. */
static void env_others(void)
{
	static const char *const acting[] = {
		"CUFILE_ENV_PATH_JSON",		"CUFILE_LOGGING_LEVEL",
		"CUFILE_LOGFILE_PATH",		"CUFILE_USE_PCIP2PDMA",
		"CUFILE_FORCE_COMPAT_MODE",	"CUFILE_SKIP_TOPOLOGY_DETECTION",
		"CUFILE_STREAM_MEMOPS_BYPASS",	"CUFILE_STATS_LEVEL",
		"CUFILE_MAX_DEVICE_CACHE_SIZE", "CUFILE_PER_BUFFER_CACHE_SIZE",
	};
	static const char *const known[] = {
		"CUFILE_LOGFILE_MAX_SIZE_MB",
		"CUFILE_NVTX",
		"CUFILE_DMABUF_ENABLE",
		"CUFILE_EXPERIMENTAL_FS",
		"CUFILE_IO_PRIORITY",
		"CUFILE_ETH_SL",
		"CUFILE_IB_SL",
		"CUFILE_SKIP_BUFFER_VALIDITY_CHECK",
		"CUFILE_VISIBLE_DEVICES",
		"CUFILE_RDMA_",
	};
	/* Listed by tools for the original, which does not read it. */
	static const char compat[] = "CUFILE_ALLOW_COMPAT_MODE";

	for (char **e = environ; e && *e; e++) {
		int len = (int)strcspn(*e, "=");
		bool acts = strncmp(*e, "CUFILE_", 7) != 0, noted = false;

		for (size_t i = 0; i < COUNT(acting); i++)
			acts |= strlen(acting[i]) == (size_t)len &&
				!strncmp(*e, acting[i], (size_t)len);
		for (size_t i = 0; i < COUNT(known); i++)
			noted |= !strncmp(*e, known[i], strlen(known[i]));
		if (!acts && noted)
			note(SHIM_INFO, "%.*s changes nothing here", len, *e);
		else if (!acts && !strncmp(*e, compat, sizeof(compat) - 1))
			note(SHIM_NOTICE,
			     "the environment's %.*s has no effect: its place is cufile.json's "
			     "'properties.allow_compat_mode'",
			     len, *e);
		else if (!acts)
			note(SHIM_NOTICE, "the environment's %.*s is not known",
			     len > 80 ? 80 : len, *e);
	}
}

void shim_config_load(struct shim_config *config)
{
	shim_config_defaults(config);
	find_file(config);
	env_text(config, "CUFILE_LOGGING_LEVEL", CUF_LOGGING_LEVEL);
	env_text(config, "CUFILE_LOGFILE_PATH", CUF_LOGFILE_PATH);
	env_flag(config, "CUFILE_USE_PCIP2PDMA", CUF_PARAM_USE_PCIP2PDMA);
	env_flag(config, "CUFILE_FORCE_COMPAT_MODE", CUF_PARAM_FORCE_COMPAT_MODE);
	env_flag(config, "CUFILE_SKIP_TOPOLOGY_DETECTION", CUF_PARAM_SKIP_TOPOLOGY);
	env_flag(config, "CUFILE_STREAM_MEMOPS_BYPASS", CUF_PARAM_STREAM_MEMOPS_BYPASS);
	env_size(config, "CUFILE_STATS_LEVEL", CUF_PROFILE_STATS);
	env_size(config, "CUFILE_MAX_DEVICE_CACHE_SIZE", CUF_MAX_DEVICE_CACHE_KB);
	env_size(config, "CUFILE_PER_BUFFER_CACHE_SIZE", CUF_PER_BUFFER_CACHE_KB);
	env_others();
}
