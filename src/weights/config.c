/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads from a model's config.json how the model can be split between ranks: the numbers of
 * attention heads and experts, and the order of quantization groups. Called by shard.c. A value
 * that is missing from the file stays unknown: this file never guesses a value.
 */
#include "weights/config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "weights/url.h"

/* Returns true for a key whose value is an object that the parser must read too. A multimodal
 * model keeps the values of its language model in such an object. */
static bool is_nested(const char *key, unsigned depth)
{
	static const char *const language[] = {"text_config", "llm_config", "language_config"};
	bool is = !strcmp(key, "quantization_config") && depth < 2;

	for (unsigned i = 0; i < 3; i++)
		is |= !depth && !strcmp(key, language[i]);
	return is;
}

static int read_config(struct pst_json *in, struct pst_config *c, unsigned depth)
{
	static const char *const experts[] = {"num_local_experts", "n_routed_experts",
					      "num_experts"};
	bool first = true;
	uint64_t n;
	char *key;
	size_t len;

	if (!pst_json_take(in, '{'))
		return -EBADMSG;
	while (pst_json_more(in, '}', &first)) {
		unsigned *into = NULL;
		int next;

		if (!pst_json_string(in, &key, &len) || !pst_json_take(in, ':'))
			return -EBADMSG;
		if (!strcmp(key, "num_attention_heads"))
			into = &c->heads;
		else if (!strcmp(key, "num_key_value_heads"))
			into = &c->kv_heads;
		else if (!strcmp(key, "num_key_value_heads_per_layer"))
			c->kv_varies = true;
		for (unsigned i = 0; i < 3; i++)
			into = strcmp(key, experts[i]) ? into : &c->experts;
		next = pst_json_peek(in);
		if (into == &c->kv_heads && next == '[')
			c->kv_varies = true;
		if (!strcmp(key, "desc_act"))
			c->order = next == 't'	 ? PST_ORDER_BY_ACT
				   : next == 'f' ? PST_ORDER_PLAIN
						 : c->order;
		if (next == '{' && is_nested(key, depth)) {
			if (read_config(in, c, depth + 1))
				return -EBADMSG;
		} else if (into && next >= '0' && next <= '9') {
			if (!pst_json_number(in, &n) || n > UINT_MAX)
				return -EBADMSG;
			*into = (unsigned)n;
		} else if (!pst_json_skip(in)) {
			return -EBADMSG;
		}
	}
	return in->what ? -EBADMSG : 0;
}

/* Adds the values of the JSON file `file` of the model. Searches for the file only in the
 * directory of the model's index, since the model's other files may be in directories on other
 * drives. If the file cannot be read, the values stay unknown; a function that needs an unknown
 * value reports the error. */
static void read_beside(const struct penstock_weights *w, const char *file,
			struct pst_config *config)
{
	struct pst_config c = *config;
	struct pst_json in = {.python_numbers = true};
	const char *path = w->file_count ? w->files[0].path : "", *slash = strrchr(path, '/');
	char name[PATH_MAX];
	int n;

	if (pst_url_match(path)) {
		char dir[PATH_MAX];

		n = !pst_url_is_s3(path) || pst_url_dir(dir, path) || pst_url_join(name, dir, file)
			    ? -1
			    : 0;
	} else if (w->list.home)
		n = snprintf(name, sizeof(name), "%s/%s", w->list.home, file);
	else
		n = snprintf(name, sizeof(name), "%.*s%s", slash ? (int)(slash - path + 1) : 0,
			     path, file);
	if (n < 0 || n >= (int)sizeof(name) || pst_read_whole_file(name, &in.text, &in.len))
		return;
	if (!read_config(&in, &c, 0))
		*config = c;
	free(in.text);
}

void pst_weights_read_config(struct penstock_weights *w)
{
	struct pst_config c = {.read = true};

	pthread_mutex_lock(&w->lock);
	if (!w->config.read) {
		read_beside(w, "config.json", &c);
		if (c.heads && !c.kv_heads && !c.kv_varies)
			/* A config.json without the key "num_key_value_heads" means one
			 * key-value head for each query head. */
			c.kv_heads = c.heads;
		/* The first tools for GPTQ wrote the key "desc_act" to quantize_config.json. */
		if (c.order == PST_ORDER_UNKNOWN)
			read_beside(w, "quantize_config.json", &c);
		w->config = c;
	}
	pthread_mutex_unlock(&w->lock);
}
