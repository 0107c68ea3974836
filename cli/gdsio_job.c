/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Job files of `penstock gdsio`: [global] says what is done, each other section is a
 * job, threads on a file or in a folder. Keys are the original's. Lines are "key=value",
 * empty, or begin with # or ;. Nothing is skipped in silence: an unknown key, a key in
 * the wrong section or twice is an error that names the line. Bounded by
 * GDSIO_FILE_MAX and GDSIO_JOBS_MAX; must not allocate. The values that flags have,
 * too, are read here.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gdsio.h"

/* ---- values ---- */

/* The original's K, M and G are powers of two, with or without a B behind. */
bool gdsio_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMGT";
	unsigned long long n;
	unsigned shift = 0;
	const char *unit;
	char *end;

	if (!isdigit((unsigned char)*text))
		return false;
	errno = 0;
	n = strtoull(text, &end, 10);
	if (*end) {
		unit = strchr(units, toupper((unsigned char)*end));
		if (!unit && strcmp(end, "B"))
			return false;
		shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
		end++;
		if (shift && (!strcmp(end, "B") || !strcmp(end, "iB")))
			end += strlen(end);
	}
	if (errno || *end || n > (unsigned long long)INT64_MAX >> shift)
		return false;
	*out = n << shift;
	return true;
}

bool gdsio_io_size(const char *text, struct gdsio_args *a)
{
	uint64_t n[3] = {0};
	char part[32];
	unsigned count = 0;

	for (; count < 3; count++) {
		size_t len = strcspn(text, ":");

		if (len >= sizeof(part))
			return false;
		memcpy(part, text, len);
		part[len] = '\0';
		if (!gdsio_size(part, &n[count]) || !n[count] || n[count] > 1ull << 32)
			return false;
		text += len;
		if (!*text)
			break;
		text++;
	}
	if (count == 1 || count == 3 || (count == 2 && n[0] > n[1]))
		return false;
	a->io_min = n[0];
	a->io_max = count ? n[1] : n[0];
	a->io_step = n[2];
	return true;
}

bool gdsio_xfer(uint64_t number, enum gdsio_xfer *out)
{
	if (number > 6 || number == 3 || number == 4)
		return false;
	*out = (enum gdsio_xfer)number;
	return true;
}

bool gdsio_device(const char *text, struct gdsio_job *job)
{
	uint64_t n;

	if (!strncmp(text, "cuda:", 5))
		text += 5;
	if (!strcmp(text, "host"))
		snprintf(job->device, sizeof(job->device), "host");
	else if (parse_number(text, 0, 1023, &n))
		snprintf(job->device, sizeof(job->device), "cuda:%u", (unsigned)n);
	else
		return false;
	return true;
}

/* ---- the file ---- */

enum where { NOWHERE, GLOBAL, JOB };

struct reader {
	const char *name;
	unsigned line;
	struct gdsio_args *a;
	struct gdsio_job *job;
	enum where where;
	uint64_t seen[2]; /* keys of this section, by their index below; of [global] */
};

enum key {
	XFER,
	RW,
	BS,
	SIZE,
	RUNTIME,
	VERIFY,
	SKIP,
	NVLINKS,
	SEED,
	FILL,
	REFILL,
	UNALIGNED,
	START,
	NAME,
	NODE,
	DEVICE,
	THREADS,
	FOLDER,
	FILENAME,
	MEMORY,
	KEYS
};

static const struct {
	const char *name;
	enum where where;
	const char *wants;
} keys[KEYS] = {
	[XFER] = {"xfer_type", GLOBAL, "0, 1, 2, 5 or 6"},
	[RW] = {"rw", GLOBAL, "read, write, randread or randwrite"},
	[BS] = {"bs", GLOBAL, "a size like 1M, or least:most:step"},
	[SIZE] = {"size", GLOBAL, "a size like 1G"},
	[RUNTIME] = {"runtime", GLOBAL, "seconds, at most a day"},
	[VERIFY] = {"do_verify", GLOBAL, "0 or 1"},
	[SKIP] = {"skip_bufregister", GLOBAL, "0 or 1"},
	[NVLINKS] = {"enable_nvlinks", GLOBAL, "0: peers are reached without being asked"},
	[SEED] = {"random_seed", GLOBAL, "a number"},
	[FILL] = {"fill_random", GLOBAL, "0 or 1"},
	[REFILL] = {"refill_buffer", GLOBAL, "0 or 1"},
	[UNALIGNED] = {"unaligned_random", GLOBAL, "0 or 1"},
	[START] = {"start_offset", GLOBAL, "a size like 1M"},
	[NAME] = {"name", GLOBAL, "a word"},
	[NODE] = {"numa_node", JOB, "the number of a node"},
	[DEVICE] = {"gpu_dev_id", JOB, "the number of a GPU, or host"},
	[THREADS] = {"num_threads", JOB, "1 to 1024"},
	[FOLDER] = {"directory", JOB, "the name of a folder"},
	[FILENAME] = {"filename", JOB, "the name of a file"},
	[MEMORY] = {"mem_type", JOB, "0 to 4"},
};

static int wrong(const struct reader *r, const char *what, const char *more)
{
	return fail(EXIT_USAGE, "%s, line %u: %s%s", r->name, r->line, what, more);
}

static bool yes_or_no(const char *text, bool *out)
{
	uint64_t n;

	if (!parse_number(text, 0, 1, &n))
		return false;
	*out = n;
	return true;
}

static bool direction(const char *text, struct gdsio_args *a)
{
	static const char *const names[] = {"read", "write", "randread", "randwrite"};

	for (unsigned i = 0; i < 4; i++) {
		if (strcmp(text, names[i]))
			continue;
		a->write = i & 1;
		a->random = i & 2;
		return true;
	}
	return false;
}

static bool name_of(const char *text, char *out)
{
	return *text && snprintf(out, GDSIO_NAME_MAX, "%s", text) < GDSIO_NAME_MAX;
}

static bool take_global(struct gdsio_args *a, enum key key, const char *text)
{
	uint64_t n = 0;
	bool no;

	switch (key) {
	case XFER:
		return parse_number(text, 0, 7, &n) && gdsio_xfer(n, &a->xfer);
	case RW:
		return direction(text, a);
	case BS:
		return gdsio_io_size(text, a);
	case SIZE:
		return gdsio_size(text, &a->size);
	case RUNTIME:
		if (!parse_number(text, 0, 86400, &n))
			return false;
		a->runtime_s = (unsigned)n;
		return true;
	case VERIFY:
		return yes_or_no(text, &a->verify);
	case SKIP:
		return yes_or_no(text, &a->skip_register);
	case NVLINKS:
		return yes_or_no(text, &no) && !no;
	case SEED:
		return parse_number(text, 0, UINT64_MAX, &a->seed);
	case FILL:
		return yes_or_no(text, &a->fill);
	case REFILL:
		return yes_or_no(text, &a->refill);
	case UNALIGNED:
		return yes_or_no(text, &a->unaligned);
	case START:
		return gdsio_size(text, &a->start);
	default: /* NAME says nothing about what is done */
		return key == NAME;
	}
}

static bool take_job(struct gdsio_job *job, enum key key, const char *text)
{
	uint64_t n;

	switch (key) {
	case NODE:
		if (!parse_number(text, 0, 1023, &n))
			return false;
		job->node = (int)n;
		return true;
	case DEVICE:
		return gdsio_device(text, job);
	case THREADS:
		if (!parse_number(text, 1, GDSIO_THREADS_MAX, &n))
			return false;
		job->threads = (unsigned)n;
		return true;
	case FOLDER:
		return name_of(text, job->dir);
	case FILENAME:
		return name_of(text, job->file);
	default:
		if (!parse_number(text, 0, 4, &n))
			return false;
		job->memory = gdsio_memory(n);
		return key == MEMORY;
	}
}

static int take(struct reader *r, const char *name, const char *text)
{
	unsigned key = 0;

	while (key < KEYS && strcmp(name, keys[key].name))
		key++;
	if (key == KEYS)
		return wrong(r, "there is no key ", name);
	if (r->where == NOWHERE)
		return wrong(r, "a key before the first section: ", name);
	if (keys[key].where != r->where)
		return wrong(r, name,
			     r->where == JOB ? " belongs into [global]"
					     : " belongs into a job's section");
	if (r->seen[r->where == GLOBAL] & 1ull << key)
		return wrong(r, name, " is there twice");
	r->seen[r->where == GLOBAL] |= 1ull << key;
	if (r->where == GLOBAL ? take_global(r->a, (enum key)key, text)
			       : take_job(r->job, (enum key)key, text))
		return 0;
	return fail(EXIT_USAGE, "%s, line %u: %s wants %s, not '%s'", r->name, r->line, name,
		    keys[key].wants, text);
}

static int section(struct reader *r, char *text)
{
	size_t len = strlen(text);

	if (len < 3 || text[len - 1] != ']')
		return wrong(r, "a section is [global] or [NAME], not ", text);
	if (!strcmp(text, "[global]")) {
		r->where = GLOBAL;
		return 0;
	}
	if (r->a->job_count == GDSIO_JOBS_MAX)
		return wrong(r, "more than 64 jobs", "");
	r->where = JOB;
	r->seen[0] = 0;
	r->job = &r->a->jobs[r->a->job_count++];
	*r->job = (struct gdsio_job){.device = "cuda:0", .threads = 1, .node = -1};
	return 0;
}

/* Without blanks at both ends. */
static char *trim(char *text)
{
	char *end = text + strlen(text);

	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	while (isspace((unsigned char)*text))
		text++;
	return text;
}

static int take_line(struct reader *r, char *line)
{
	char *text = trim(line), *is;

	if (!*text || *text == '#' || *text == ';')
		return 0;
	if (*text == '[')
		return section(r, text);
	is = strchr(text, '=');
	if (!is)
		return wrong(r, "neither a section nor key=value: ", text);
	*is = '\0';
	return take(r, trim(text), trim(is + 1));
}

int gdsio_job_text(const char *name, const char *text, size_t len, struct gdsio_args *a)
{
	struct reader r = {.name = name, .a = a};
	char line[GDSIO_NAME_MAX + 64];
	int ret = 0;

	a->job_count = 0;
	for (size_t at = 0; !ret && at < len;) {
		const char *end = memchr(text + at, '\n', len - at);
		size_t n = end ? (size_t)(end - text) - at : len - at;

		r.line++;
		if (n >= sizeof(line) || memchr(text + at, '\0', n))
			return wrong(&r, "it is no text, or too long", "");
		memcpy(line, text + at, n);
		line[n] = '\0';
		ret = take_line(&r, line);
		at += n + 1;
	}
	if (!ret && !a->job_count)
		return fail(EXIT_USAGE, "%s has no job: a section beside [global]", name);
	return ret;
}
