/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses job files of `penstock gdsio`, and values, such as sizes, that command-line flags and job
 * files have in common. The section [global] describes the transfers. Each other section is a job:
 * a number of threads that work on a file or in a folder. The keys are the same as in job files of
 * NVIDIA's gdsio. A line is "key=value", empty, or a comment after # or ;. An unknown key, a key in
 * the wrong section, or a repeated key is an error, whose message names the line. The parser must
 * not allocate memory; GDSIO_FILE_MAX and GDSIO_JOBS_MAX limit its input.
 */
#include "gdsio_job.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "size.h"

/* ---- values ---- */

/* Accepts the sizes of the other subcommands. In them, K, M and G are powers of 1024, as in
 * NVIDIA's gdsio. Also accepts the units m, g and t in lower case. */
bool gdsio_size(const char *text, uint64_t *out)
{
	size_t len = strlen(text);
	const char *end;
	char upper[32];

	if (len && len < sizeof(upper) && strchr("mgt", text[len - 1])) {
		memcpy(upper, text, len + 1);
		upper[len - 1] = (char)toupper((unsigned char)upper[len - 1]);
		text = upper;
	}
	end = pst_size_parse(text, out);
	return end && !*end;
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
	if (number >= GDSIO_XFERS)
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

enum section { NO_SECTION, GLOBAL, JOB };

struct job_reader {
	const char *name;
	unsigned line;
	struct gdsio_args *a;
	struct gdsio_job *job;
	enum section section;
	/* bit masks of the keys seen so far: [0] in this job's section, [1] in [global] */
	uint64_t seen[2];
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
	enum section section;
	const char *wants; /* description of a valid value */
} keys[KEYS] = {
	[XFER] = {"xfer_type", GLOBAL, "0 to 7"},
	[RW] = {"rw", GLOBAL, "read, write, randread or randwrite"},
	[BS] = {"bs", GLOBAL, "a size like 1M, or least:most:step"},
	[SIZE] = {"size", GLOBAL, "a size like 1G"},
	[RUNTIME] = {"runtime", GLOBAL, "seconds, at most a day"},
	[VERIFY] = {"do_verify", GLOBAL, "0 or 1"},
	[SKIP] = {"skip_bufregister", GLOBAL, "0 or 1"},
	[NVLINKS] = {"enable_nvlinks", GLOBAL, "0 or 1"},
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

static int line_fail(const struct job_reader *r, const char *what, const char *more)
{
	return fail(EXIT_USAGE, "%s, line %u: %s%s", r->name, r->line, what, more);
}

static bool bool_parse(const char *text, bool *out)
{
	uint64_t n;

	if (!parse_number(text, 0, 1, &n))
		return false;
	*out = n;
	return true;
}

static bool rw_parse(const char *text, struct gdsio_args *a)
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

static bool name_parse(const char *text, char *out)
{
	return *text && snprintf(out, GDSIO_NAME_MAX, "%s", text) < GDSIO_NAME_MAX;
}

static bool global_key_parse(struct gdsio_args *a, enum key key, const char *text)
{
	uint64_t n = 0;

	switch (key) {
	case XFER:
		return parse_number(text, 0, 7, &n) && gdsio_xfer(n, &a->xfer);
	case RW:
		return rw_parse(text, a);
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
		return bool_parse(text, &a->verify);
	case SKIP:
		return bool_parse(text, &a->skip_register);
	case NVLINKS:
		return bool_parse(text, &a->nvlinks);
	case SEED:
		return parse_number(text, 0, UINT64_MAX, &a->seed);
	case FILL:
		return bool_parse(text, &a->fill);
	case REFILL:
		return bool_parse(text, &a->refill);
	case UNALIGNED:
		return bool_parse(text, &a->unaligned);
	case START:
		return gdsio_size(text, &a->start);
	default: /* the key NAME sets only a label, which needs no parsing */
		return key == NAME;
	}
}

static bool job_key_parse(struct gdsio_job *job, enum key key, const char *text)
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
		return name_parse(text, job->dir);
	case FILENAME:
		return name_parse(text, job->file);
	default:
		if (!parse_number(text, 0, 4, &n))
			return false;
		job->memory = gdsio_memory(n);
		return key == MEMORY;
	}
}

static int key_parse(struct job_reader *r, const char *name, const char *text)
{
	unsigned key = 0;

	while (key < KEYS && strcmp(name, keys[key].name))
		key++;
	if (key == KEYS)
		return line_fail(r, "there is no key ", name);
	if (r->section == NO_SECTION)
		return line_fail(r, "a key before the first section: ", name);
	if (keys[key].section != r->section)
		return line_fail(r, name,
				 r->section == JOB ? " belongs into [global]"
						   : " belongs into a job's section");
	if (r->seen[r->section == GLOBAL] & 1ull << key)
		return line_fail(r, name, " appears twice in this section: remove one");
	r->seen[r->section == GLOBAL] |= 1ull << key;
	if (r->section == GLOBAL ? global_key_parse(r->a, (enum key)key, text)
				 : job_key_parse(r->job, (enum key)key, text))
		return 0;
	return fail(EXIT_USAGE, "%s, line %u: %s must be %s, not '%s'", r->name, r->line, name,
		    keys[key].wants, text);
}

static int section_parse(struct job_reader *r, char *text)
{
	size_t len = strlen(text);

	if (len < 3 || text[len - 1] != ']')
		return line_fail(r, "a section is [global] or [NAME], not ", text);
	if (!strcmp(text, "[global]")) {
		r->section = GLOBAL;
		return 0;
	}
	if (r->a->job_count == GDSIO_JOBS_MAX)
		return line_fail(r, "this is job 65, but a file can have only 64 jobs", "");
	r->section = JOB;
	r->seen[0] = 0;
	r->job = &r->a->jobs[r->a->job_count++];
	*r->job = (struct gdsio_job){.device = "cuda:0", .threads = 1, .node = -1};
	return 0;
}

/* Removes the blanks at both ends of the text and returns its new start. */
static char *text_trim(char *text)
{
	char *end = text + strlen(text);

	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	while (isspace((unsigned char)*text))
		text++;
	return text;
}

static int line_parse(struct job_reader *r, char *line)
{
	char *text = text_trim(line), *equals;

	if (!*text || *text == '#' || *text == ';')
		return 0;
	if (*text == '[')
		return section_parse(r, text);
	equals = strchr(text, '=');
	if (!equals)
		return line_fail(r, "neither a section nor key=value: ", text);
	*equals = '\0';
	return key_parse(r, text_trim(text), text_trim(equals + 1));
}

int gdsio_job_text(const char *name, const char *text, size_t len, struct gdsio_args *a)
{
	struct job_reader r = {.name = name, .a = a};
	char line[GDSIO_NAME_MAX + 64];
	int ret = 0;

	a->job_count = 0;
	for (size_t at = 0; !ret && at < len;) {
		const char *end = memchr(text + at, '\n', len - at);
		size_t n = end ? (size_t)(end - text) - at : len - at;

		r.line++;
		if (n >= sizeof(line) || memchr(text + at, '\0', n))
			return line_fail(&r, "the line is too long, or is not text", "");
		memcpy(line, text + at, n);
		line[n] = '\0';
		ret = line_parse(&r, line);
		at += n + 1;
	}
	if (!ret && !a->job_count)
		return fail(EXIT_USAGE, "%s has no job: add a section besides [global]", name);
	return ret;
}
