/* SPDX-License-Identifier: Apache-2.0 */
/* Reads measurements for `penstock model --calibrate`. */
#ifndef PENSTOCK_CLI_MODEL_DATA_H
#define PENSTOCK_CLI_MODEL_DATA_H

#include <stddef.h>

#define MODEL_MEASURES 256

struct model_measure {
	double block, depth; /* bytes of a request, requests in flight; 0: unknown */
	double streams;	     /* GPUs that copied at the same time; 0: unknown */
	double gbps;
	double cpu_s_per_gb; /* 0: unknown */
	char path[16];	     /* as penstock bench names it, or "" */
};

struct model_measures {
	struct model_measure list[MODEL_MEASURES];
	unsigned count;
};

/*
 * Parses measurements and appends them: JSON of `penstock bench`, `penstock gdsio` and fio, lines
 * of gdsio, and objects with "streams" and "gb_per_s". The text must end with a NUL behind `len`
 * bytes; it is changed. Returns NULL, or what is wrong; *line is then the number of the line.
 */
const char *model_data_parse(char *text, size_t len, struct model_measures *out, unsigned *line);
/* Appends the measurements of a file. Returns 0, or an exit code after an error message. */
int model_data_read(const char *path, struct model_measures *out);

/* Parses the config.json of a Hugging Face model for the model `kvcache`. */
struct model_config {
	double layers, kv_heads, heads, head_dim, hidden, rank, rope, element_bytes;
};
/* Reads a file ("-": standard input). Returns 0, or an exit code after an error message. */
int model_config_read(const char *path, struct model_config *out);
const char *model_config_parse(char *text, size_t len, struct model_config *out, unsigned *line);

#endif
