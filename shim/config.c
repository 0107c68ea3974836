/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the configuration: the defaults, then cufile.json, then the environment. open.c and
 * params.c call this file. A cufile.json that is not valid JSON changes no parameter. An unknown
 * key is logged once. A key in a wrong section, where NVIDIA's library ignores it too, is logged
 * once, and the message names the right section. Each value of the wrong kind is logged once. This
 * file must never make a caller fail.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"
#include "keys.h"
#include "log.h"

#define FILE_MAX ((size_t)1 << 20)
/* Size of the buffer for the path of a key. A longer path is truncated and then matches no
 * known key. */
#define KEY_PATH_MAX 256u
/* Largest number of notes (messages that are logged later); at most half are of level INFO, so that
 * errors have room. */
#define NOTES_MAX 256u
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

/* Smallest and largest value of each size parameter, in the unit of the parameter. */
static const struct {
	size_t min, max;
} limits[CUF_SIZE_PARAMS] = {
	[CUF_PROFILE_STATS] = {0, 3},
	[CUF_MAX_IO_QUEUE_DEPTH] = {1, 1 << 20},
	[CUF_MAX_IO_THREADS] = {0, 1024},
	[CUF_MIN_IO_THRESHOLD_KB] = {0, 1 << 30},
	[CUF_MAX_REQUEST_PARALLELISM] = {0, 1024},
	[CUF_MAX_DIRECT_IO_KB] = {1, 1 << 30},
	[CUF_MAX_DEVICE_CACHE_KB] = {0, UINT32_MAX},
	[CUF_PER_BUFFER_CACHE_KB] = {0, UINT32_MAX},
	[CUF_MAX_PINNED_KB] = {0, SIZE_MAX}, /* no limit */
	[CUF_IO_BATCHSIZE] = {1, 16384},
	[CUF_POLL_THRESHOLD_KB] = {0, 1 << 30},
	[CUF_BATCH_TIMEOUT_MS] = {0, UINT32_MAX},
};

void shim_config_limits(enum cuf_size_param param, size_t *min, size_t *max)
{
	*min = limits[param].min;
	*max = limits[param].max;
}

/* ---- notes: messages kept until the log is set up; under shim.lock ---- */

static struct note {
	enum shim_level level;
	char text[NOTE_MAX];
} notes[NOTES_MAX];
static unsigned note_count;
/* Hashes of all notes (messages to log later) of this process, so that a second open of the driver
 * logs none of them again. */
static uint64_t noted[NOTES_MAX * 2];
static unsigned noted_count;
static bool any_lost; /* whether a note was dropped because `notes` was full */

static bool is_noted(uint64_t hash)
{
	for (unsigned i = 0; i < noted_count; i++)
		if (noted[i] == hash)
			return true;
	return false;
}

/* Stores a message in `notes` until the log is set up, unless the same message was stored
 * before. */
__attribute__((format(printf, 2, 3))) static void note_add(enum shim_level level, const char *fmt,
							   ...)
{
	char text[NOTE_MAX];
	uint64_t hash;
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	for (char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 127)
			*c = '?'; /* so that a name in cufile.json cannot add lines to the log */
	hash = shim_hash(SHIM_HASH, text);
	if (is_noted(hash))
		return;
	if (noted_count == COUNT(noted) ||
	    note_count >= (level == SHIM_INFO ? NOTES_MAX / 2 : NOTES_MAX)) {
		any_lost |= level != SHIM_INFO;
		return;
	}
	noted[noted_count++] = hash;
	notes[note_count].level = level;
	memcpy(notes[note_count++].text, text, sizeof(text));
}

void shim_config_log_notes(void)
{
	static bool lost_logged;

	for (unsigned i = 0; i < note_count; i++)
		shim_log(notes[i].level, "%s", notes[i].text);
	note_count = 0;
	if (any_lost && !lost_logged)
		shim_log(SHIM_NOTICE, "the configuration has more errors than are listed");
	lost_logged |= any_lost;
}

/* ---- cufile.json ---- */

enum value_type { VALUE_NULL, VALUE_BOOL, VALUE_NUMBER, VALUE_TEXT, VALUE_OBJECT, VALUE_ARRAY };

struct value {
	enum value_type type;
	/* Path of the value: member names from the root, joined by dots; "" for the root. */
	const char *path;
	int index; /* index in the array that contains the value; -1 if no array contains it */
	unsigned line;
	bool flag;	 /* the value if `type` is VALUE_BOOL */
	bool whole;	 /* whether the value is a whole number that fits `number` */
	uint64_t number; /* the value if `type` is VALUE_NUMBER and `whole` is true */
	char *text;	 /* the value if `type` is VALUE_TEXT */
};

struct walk {
	struct pst_json in;
	struct shim_config *config;
	char path[KEY_PATH_MAX]; /* path of the value that is being read */
};

static void unknown_note(const struct value *v)
{
	const char *place = shim_key_place(v->path);
	const char *what = v->type == VALUE_OBJECT ? "section" : "key";

	if (place && !strcmp(place, v->path))
		return;
	if (place)
		note_add(SHIM_NOTICE,
			 "cufile.json line %u: the %s '%s' has no effect there: its place is '%s'",
			 v->line, what, v->path, place);
	else
		note_add(SHIM_NOTICE, "cufile.json line %u: the %s '%s' is not known", v->line,
			 what, v->path);
}

static bool value_refuse(const struct value *v, const char *want)
{
	note_add(SHIM_NOTICE, "cufile.json line %u: '%s' must be %s: its default applies", v->line,
		 v->path, want);
	return false;
}

static bool size_set(struct shim_config *config, const struct shim_key *key, const struct value *v)
{
	size_t min, max;
	char want[80];

	shim_config_limits((enum cuf_size_param)key->which, &min, &max);
	if (v->type == VALUE_NUMBER && v->whole && v->number >= min && v->number <= max) {
		config->size[key->which] = (size_t)v->number;
		return true;
	}
	snprintf(want, sizeof(want), "a whole number from %zu to %zu", min, max);
	return value_refuse(v, want);
}

static bool text_set(struct shim_config *config, const struct shim_key *key, const struct value *v)
{
	if (v->type != VALUE_TEXT || strlen(v->text) >= SHIM_TEXT)
		return value_refuse(v, "a short string");
	if (key->which == CUF_LOGGING_LEVEL && shim_log_level(v->text) < 0)
		return value_refuse(v, "one of NOTICE, ERROR, WARN, INFO, DEBUG, TRACE");
	memcpy(config->text[key->which], v->text, strlen(v->text) + 1);
	return true;
}

/* Sets one number in a list of slabs (pools of buffers of one size): the size of the slab's buffers
 * in KiB if `kb` is true, else their number. If the value is the array of sizes, clears the list,
 * because the elements of the array follow. */
static bool slab_set(struct shim_slabs *slabs, bool kb, const struct value *v)
{
	if (v->type == VALUE_ARRAY && v->index < 0) {
		if (kb)
			slabs->count = 0;
		return true;
	}
	if (v->type != VALUE_NUMBER || !v->whole || v->index < 0 || v->index >= SHIM_SLABS)
		return value_refuse(v, "a list of whole numbers");
	if (kb) {
		slabs->kb[v->index] = (size_t)v->number;
		slabs->count = v->index + 1;
	} else {
		slabs->number[v->index] = (size_t)v->number;
	}
	return true;
}

static bool key_set(struct shim_config *config, const struct shim_key *key, const struct value *v)
{
	switch (key->kind) {
	case SHIM_KEY_SIZE:
		return size_set(config, key, v);
	case SHIM_KEY_FLAG:
		if (v->type != VALUE_BOOL)
			return value_refuse(v, "true or false");
		config->flag[key->which] = v->flag;
		return true;
	case SHIM_KEY_TEXT:
		return text_set(config, key, v);
	case SHIM_KEY_POSIX_KB:
	case SHIM_KEY_POSIX_COUNT:
		return slab_set(&config->posix, key->kind == SHIM_KEY_POSIX_KB, v);
	case SHIM_KEY_GPU_KB:
	case SHIM_KEY_GPU_COUNT:
		return slab_set(&config->gpu, key->kind == SHIM_KEY_GPU_KB, v);
	case SHIM_KEY_SECTION:
		return v->type == VALUE_OBJECT || value_refuse(v, "a section in { }");
	default:
		return false;
	}
}

/* Sets the parameter that the value belongs to. If the value is an object or an array, returns
 * whether the caller must read each of its members. */
static bool value_apply(struct shim_config *config, const struct value *v)
{
	const struct shim_key *key;

	if (!*v->path)
		return v->type == VALUE_OBJECT;
	key = shim_key_find(v->path);
	if (!key) {
		if (v->index < 0)
			unknown_note(v);
		return false;
	}
	if (key->note && v->index < 0)
		note_add(SHIM_INFO, "cufile.json line %u: '%s' changes nothing: %s", v->line,
			 v->path, key->note);
	return key_set(config, key, v);
}

/* Reads a string, a number, true, false or null. `in` is at the first byte of the value. */
static bool plain_read(struct pst_json *in, struct value *v)
{
	const char *first = in->text + in->at;
	struct pst_json number = {.text = in->text + in->at, .lenient = true};
	size_t len;

	if (*first == '"') {
		v->type = VALUE_TEXT;
		return pst_json_string(in, &v->text, &len);
	}
	if (!pst_json_skip(in))
		return false;
	if (*first == 't' || *first == 'f') {
		v->type = VALUE_BOOL;
		v->flag = *first == 't';
	} else if (*first != 'n') {
		v->type = VALUE_NUMBER;
		number.len = (size_t)(in->text + in->at - first);
		v->whole = pst_json_number(&number, &v->number) && number.at == number.len;
	}
	return true;
}

/* Reads a member's name and appends it to the path. Replaces a dot inside the name by a question
 * mark: "properties.io_batchsize" in quotes is one name, and must not match the key io_batchsize
 * in the section properties. */
static bool name_read(struct walk *w)
{
	size_t at = strlen(w->path), len;
	char *name;

	if (!pst_json_string(&w->in, &name, &len) || !pst_json_take(&w->in, ':'))
		return false;
	for (char *dot = name; (dot = strchr(dot, '.'));)
		*dot = '?';
	snprintf(w->path + at, sizeof(w->path) - at, "%s%s", at ? "." : "", name);
	return true;
}

static bool members_read(struct walk *w, bool object);

/* Reads one value. The recursion is never deeper than the known keys, because unknown objects
 * and arrays are skipped. */
static bool value_read(struct walk *w, int index)
{
	int c = pst_json_peek(&w->in);
	struct value v = {.path = w->path, .index = index, .line = w->in.lines + 1};

	if (c == '{' || c == '[') {
		v.type = c == '{' ? VALUE_OBJECT : VALUE_ARRAY;
		return value_apply(w->config, &v) ? members_read(w, c == '{')
						  : pst_json_skip(&w->in);
	}
	if (!c)
		return pst_json_wrong(&w->in, "a value is missing");
	if (!plain_read(&w->in, &v))
		return false;
	value_apply(w->config, &v);
	return true;
}

static bool members_read(struct walk *w, bool object)
{
	const size_t path_len = strlen(w->path);
	bool first = true;
	int count = 0;

	pst_json_take(&w->in, object ? '{' : '[');
	while (pst_json_more(&w->in, object ? '}' : ']', &first)) {
		if (object && !name_read(w))
			return false;
		if (!value_read(w, object ? -1 : count++))
			return false;
		w->path[path_len] = '\0';
	}
	return !w->in.what;
}

void shim_config_text(struct shim_config *config, char *text, size_t len)
{
	/* Byte order mark, which some editors write before UTF-8 text; it is skipped. */
	static const char mark[] = "\xef\xbb\xbf";
	struct shim_config *fresh = malloc(sizeof(*fresh));
	struct walk w = {.in = {.text = text, .len = len, .lenient = true}, .config = fresh};

	if (!fresh)
		return;
	*fresh = *config;
	if (len >= sizeof(mark) - 1 && !memcmp(text, mark, sizeof(mark) - 1))
		w.in.at = sizeof(mark) - 1;
	if (value_read(&w, -1) && pst_json_end(&w.in))
		*config = *fresh;
	else
		note_add(SHIM_NOTICE, "cufile.json line %u: %s: the file is ignored",
			 w.in.lines + 1, w.in.what);
	free(fresh);
}

static void file_read(struct shim_config *config, int fd, const char *path)
{
	char *text = malloc(FILE_MAX + 1);
	size_t len = 0;
	ssize_t n = 1;

	while (text && len <= FILE_MAX && n > 0) {
		n = read(fd, text + len, FILE_MAX + 1 - len);
		len += n > 0 ? (size_t)n : 0;
	}
	if (!text || n < 0)
		note_add(SHIM_NOTICE, "cannot read %s: %s", path, strerror(text ? errno : ENOMEM));
	else if (len > FILE_MAX)
		note_add(SHIM_NOTICE, "%s is longer than %zu bytes: the file is ignored", path,
			 FILE_MAX);
	else
		shim_config_text(config, text, len);
	free(text);
}

static void file_find(struct shim_config *config)
{
	const char *named = getenv("CUFILE_ENV_PATH_JSON");
	const char *path = named && *named ? named : "/etc/cufile.json";
	struct stat stat;
	/* O_NONBLOCK, so that the open does not block if the name belongs to a pipe. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0 || fstat(fd, &stat) || !S_ISREG(stat.st_mode)) {
		if (path == named)
			note_add(SHIM_NOTICE,
				 "CUFILE_ENV_PATH_JSON: %s cannot be read: the defaults apply",
				 path);
	} else {
		snprintf(config->file, sizeof(config->file), "%s", path);
		file_read(config, fd, path);
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
		note_add(SHIM_NOTICE, "%s must be true or false, not '%.40s'", name, text);
}

static void env_size(struct shim_config *config, const char *name, enum cuf_size_param which)
{
	const char *text = getenv(name);
	size_t min, max;
	unsigned long long value;
	char *end;

	if (!text || !*text)
		return;
	shim_config_limits(which, &min, &max);
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || *text == '-' || value < min || value > max)
		note_add(SHIM_NOTICE, "%s must be a number from %zu to %zu, not '%.40s'", name, min,
			 max, text);
	else
		config->size[which] = (size_t)value;
}

static void env_text(struct shim_config *config, const char *name, enum cuf_string_param which)
{
	const char *text = getenv(name);

	if (!text || !*text)
		return;
	if (strlen(text) >= SHIM_TEXT || (which == CUF_LOGGING_LEVEL && shim_log_level(text) < 0))
		note_add(SHIM_NOTICE, "%s: the value '%.40s' is not valid and is ignored", name,
			 text);
	else
		memcpy(config->text[which], text, strlen(text) + 1);
}

extern char **environ;

/* Adds a note (a message that is logged later) for each CUFILE_ environment variable that has no
 * effect: either only NVIDIA's library knows the variable, or neither library does. */
static void env_others(void)
{
	static const char *const effective[] = {
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
	/* NVIDIA's tools list this variable, although NVIDIA's library does not read it. So this
	 * function adds a special message for it. */
	static const char compat[] = "CUFILE_ALLOW_COMPAT_MODE";

	for (char **e = environ; e && *e; e++) {
		int len = (int)strcspn(*e, "=");
		bool acts = strncmp(*e, "CUFILE_", 7) != 0, is_known = false;

		for (size_t i = 0; i < COUNT(effective); i++)
			acts |= strlen(effective[i]) == (size_t)len &&
				!strncmp(*e, effective[i], (size_t)len);
		for (size_t i = 0; i < COUNT(known); i++)
			is_known |= !strncmp(*e, known[i], strlen(known[i]));
		if (!acts && is_known)
			note_add(SHIM_INFO, "%.*s changes nothing here", len, *e);
		else if (!acts && !strncmp(*e, compat, sizeof(compat) - 1))
			note_add(SHIM_NOTICE,
				 "the environment's %.*s has no effect: its place is cufile.json's "
				 "'properties.allow_compat_mode'",
				 len, *e);
		else if (!acts)
			note_add(SHIM_NOTICE, "the environment's %.*s is not known",
				 len > 80 ? 80 : len, *e);
	}
}

void shim_config_load(struct shim_config *config)
{
	shim_config_defaults(config);
	file_find(config);
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
