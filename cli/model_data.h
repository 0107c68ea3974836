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
	char path[16];	     /* name of the path as penstock bench prints it; "": unknown */
	/* Bytes of all paths together, and of the path that carried the most; 0: unknown. */
	double bytes, path_bytes;
	/* bytes written to host memory for each byte that was delivered; 0: unknown or none */
	double dram_passes;
};

struct model_measures {
	struct model_measure list[MODEL_MEASURES];
	unsigned count;
};

/*
 * Parses measurements and appends them to `out`. Accepts the JSON of `penstock bench`, `penstock
 * gdsio` and fio, result lines of gdsio, and JSON objects with "streams" and "gb_per_s". `text`
 * must have a NUL after its `len` bytes, and is overwritten during the parsing. Returns NULL, or an
 * error message with the number of the wrong line in *line.
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
