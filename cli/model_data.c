/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the files that `penstock model` accepts as input, other than topologies: measurements, and
 * the config.json of a model. */
#include "model_data.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "model_json.h"
#include "size.h"

#define GIB 1073741824.0

/* The parser's state: the measurement whose values are being read, and defaults from fio's global
 * options. */
struct reading {
	struct model_measures *out;
	struct model_measure one;
	double fio_read, fio_write, threads, global_block, global_depth, global_jobs, jobs;
	bool too_many;
};

static void measure_end(struct reading *r)
{
	struct model_measure *m = &r->one;

	if (m->depth <= 0 && r->threads > 0)
		m->depth = r->threads;
	if (m->gbps > 0 && isfinite(m->gbps) && (m->block >= 1 || m->streams >= 1)) {
		if (r->out->count < MODEL_MEASURES)
			r->out->list[r->out->count++] = *m;
		else
			r->too_many = true;
	}
	memset(m, 0, sizeof(*m));
	r->threads = 0;
}

/* Stores a value if its key is one of those that `penstock bench` and `penstock gdsio` print, or
 * the key "streams" of measurements of several GPUs. */
static void penstock_value(struct reading *r, const struct model_json_value *v)
{
	static const struct {
		const char *key;
		size_t offset;
		double factor;
	} keys[] = {
		{"gb_per_s", offsetof(struct model_measure, gbps), 1},
		{"gib_per_s", offsetof(struct model_measure, gbps), GIB * 1e-9},
		{"block", offsetof(struct model_measure, block), 1},
		{"io_max", offsetof(struct model_measure, block), 1},
		{"depth", offsetof(struct model_measure, depth), 1},
		{"streams", offsetof(struct model_measure, streams), 1},
		{"cpu_s_per_gb", offsetof(struct model_measure, cpu_s_per_gb), 1},
		{"dram_passes", offsetof(struct model_measure, dram_passes), 1},
	};

	if (!strcmp(v->path, "path") && v->text)
		snprintf(r->one.path, sizeof(r->one.path), "%s", v->text);
	if (!strncmp(v->path, "paths.", 6) && v->kind == MODEL_JSON_NUMBER) {
		r->one.bytes += v->number;
		r->one.path_bytes = fmax(r->one.path_bytes, v->number);
	}
	if (!strcmp(v->path, "threads"))
		r->threads = v->number;
	for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (!strcmp(v->path, keys[i].key) && v->kind == MODEL_JSON_NUMBER)
			*(double *)(void *)((char *)&r->one + keys[i].offset) =
				v->number * keys[i].factor;
}

/* Returns the value of an option of fio, which is a JSON number, or a text such as "64k". */
static double fio_number(const struct model_json_value *v)
{
	char text[32];
	uint64_t bytes;

	if (v->kind == MODEL_JSON_NUMBER)
		return v->number;
	snprintf(text, sizeof(text), "%s", v->text);
	for (char *c = text; *c; c++)
		if (*c == 'm' || *c == 'g' || *c == 't')
			*c = (char)(*c - 'a' + 'A');
	return pst_size_parse(text, &bytes) ? (double)bytes : 0;
}

static void fio_value(struct reading *r, const struct model_json_value *v)
{
	const char *key = strrchr(v->path, '.');
	bool global = !strncmp(v->path, "global options.", 15);

	if (!strcmp(v->path, "jobs.read.bw_bytes"))
		r->fio_read = v->number;
	if (!strcmp(v->path, "jobs.write.bw_bytes"))
		r->fio_write = v->number;
	if (!key || (!global && strncmp(v->path, "jobs.job options.", 17) != 0))
		return;
	if (!strcmp(key, ".bs"))
		*(global ? &r->global_block : &r->one.block) = fio_number(v);
	else if (!strcmp(key, ".iodepth"))
		*(global ? &r->global_depth : &r->one.depth) = fio_number(v);
	else if (!strcmp(key, ".numjobs"))
		*(global ? &r->global_jobs : &r->jobs) = fio_number(v);
}

/* Completes the measurement of a job of fio. For options that the job does not set, fio's global
 * options apply. */
static void fio_end(struct reading *r)
{
	double jobs = r->jobs > 0 ? r->jobs : r->global_jobs > 0 ? r->global_jobs : 1;

	if (r->one.block <= 0)
		r->one.block = r->global_block > 0 ? r->global_block : 4096; /* fio's default */
	if (r->one.depth <= 0)
		r->one.depth = r->global_depth > 0 ? r->global_depth : 1;
	r->one.depth *= jobs;
	r->one.gbps = fmax(r->fio_read, r->fio_write) * 1e-9;
	r->fio_read = r->fio_write = r->jobs = 0;
	measure_end(r);
}

static void data_value(void *arg, const struct model_json_value *v)
{
	struct reading *r = arg;

	if (v->kind != MODEL_JSON_END) {
		penstock_value(r, v);
		fio_value(r, v);
	} else if (!strcmp(v->path, "jobs")) {
		fio_end(r);
	} else if (!*v->path) {
		measure_end(r);
		r->global_block = r->global_depth = r->global_jobs = 0;
	}
}

/* Returns the number that follows `word` in the line, or 0. Sets *rest to the text after the
 * number. */
static double number_after(const char *line, const char *word, const char **rest)
{
	const char *at = strstr(line, word);
	char *end;
	double value;

	*rest = "";
	if (!at)
		return 0;
	value = strtod(at + strlen(word), &end);
	*rest = end;
	return end > at + strlen(word) && isfinite(value) ? value : 0;
}

/* Parses an output line of gdsio. Ignores lines that are no results. */
static void gdsio_line(struct reading *r, const char *line)
{
	const char *rest;

	if (strncmp(line, "IoType:", 7) != 0)
		return;
	r->one.depth = number_after(line, "Threads: ", &rest);
	r->one.block = number_after(line, "IOSize: ", &rest) * 1024;
	if (strncmp(rest, "(KiB)", 5) != 0)
		r->one.block = 0;
	r->one.gbps = number_after(line, "Throughput: ", &rest) * GIB * 1e-9;
	if (strncmp(rest, " GiB/sec", 8) != 0)
		r->one.gbps = 0;
	if (strstr(line, "XferType: CPU_GPU"))
		snprintf(r->one.path, sizeof(r->one.path), "staged");
	measure_end(r);
}

const char *model_data_parse(char *text, size_t len, struct model_measures *out, unsigned *line)
{
	struct reading r = {.out = out};
	const char *wrong = NULL;
	unsigned before = out->count;

	*line = 1;
	if (text[strspn(text, " \t\r\n")] == '{') {
		wrong = model_json_walk(text, len, data_value, &r, line);
	} else {
		for (char *at = text, *next; at; at = next) {
			next = strchr(at, '\n');
			if (next)
				*next++ = '\0';
			gdsio_line(&r, at);
		}
	}
	if (wrong)
		return wrong;
	*line = 1;
	if (r.too_many)
		return "the files have more than 256 measurements";
	return out->count == before ? "there is no measurement: give the output of penstock bench "
				      "--json, fio --output-format=json or gdsio"
				    : NULL;
}

int model_data_read(const char *path, struct model_measures *out)
{
	size_t len;
	unsigned line;
	char *text = model_file_read(path, &len);
	const char *wrong;

	if (!text)
		return EXIT_FAILED;
	wrong = model_data_parse(text, len, out, &line);
	free(text);
	return wrong ? fail(EXIT_FAILED, "%s: line %u: %s", path, line, wrong) : 0;
}

/* ---- config.json ---- */

static void config_value(void *arg, const struct model_json_value *v)
{
	struct model_config *c = arg;
	/* The config.json of a model that also processes images has the settings of its language
	 * model in text_config. */
	const char *key = !strncmp(v->path, "text_config.", 12) ? v->path + 12 : v->path;
	const struct {
		const char *key;
		double *out;
	} keys[] = {
		{"num_hidden_layers", &c->layers},  {"num_key_value_heads", &c->kv_heads},
		{"num_attention_heads", &c->heads}, {"head_dim", &c->head_dim},
		{"hidden_size", &c->hidden},	    {"kv_lora_rank", &c->rank},
		{"qk_rope_head_dim", &c->rope},
	};

	for (unsigned i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (v->kind == MODEL_JSON_NUMBER && !strcmp(key, keys[i].key))
			*keys[i].out = v->number;
	if (v->kind != MODEL_JSON_TEXT || (strcmp(key, "torch_dtype") && strcmp(key, "dtype")))
		return;
	if (!strcmp(v->text, "float32"))
		c->element_bytes = 4;
	else if (!strncmp(v->text, "float8", 6))
		c->element_bytes = 1;
	else
		c->element_bytes = 2; /* bfloat16, float16 */
}

const char *model_config_parse(char *text, size_t len, struct model_config *out, unsigned *line)
{
	const char *wrong;

	memset(out, 0, sizeof(*out));
	out->element_bytes = 2;
	wrong = model_json_walk(text, len, config_value, out, line);
	if (wrong)
		return wrong;
	*line = 1;
	if (out->kv_heads <= 0)
		/* a model without grouped-query attention has keys and values for each attention
		 * head */
		out->kv_heads = out->heads;
	if (out->head_dim <= 0 && out->heads > 0)
		out->head_dim = floor(out->hidden / out->heads);
	if (out->layers < 1 || (out->rank < 1 && (out->kv_heads < 1 || out->head_dim < 1)))
		return "this is no config.json of a language model: num_hidden_layers, "
		       "num_attention_heads or hidden_size is missing";
	return NULL;
}

int model_config_read(const char *path, struct model_config *out)
{
	size_t len;
	unsigned line;
	char *text = model_file_read(path, &len);
	const char *wrong;

	if (!text)
		return EXIT_FAILED;
	wrong = model_config_parse(text, len, out, &line);
	free(text);
	return wrong ? fail(EXIT_FAILED, "%s: line %u: %s", path, line, wrong) : 0;
}
