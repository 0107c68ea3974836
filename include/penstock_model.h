/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_model.h - computes how fast a storage path would be, and what it costs to wait for it.
 * It follows the conventions of penstock.h for errors and threads.
 *
 *	static const char *const names[] = {"window-s", "stall-s"};
 *	double values[2];
 *
 *	n = penstock_model_run("checkpoint", "params=405,nodes=64,drives=8", names, values, 2);
 *
 * A model is a function from parameters to results. Each parameter has a default. The command
 * `penstock model` lists the models. `penstock model NAME --help` lists the parameters of a model
 * with their units, ranges and sources, and the results with their formulas. The functions of this
 * header compute the same numbers as the command. They move no bytes, and need no device.
 */
#ifndef PENSTOCK_MODEL_H
#define PENSTOCK_MODEL_H

#include "penstock.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Computes results of a model.
 *
 * model	name of the model, such as "pipeline"
 * settings	parameters that differ from their defaults: "NAME=VALUE,NAME=VALUE". A number of
 *		bytes may have a unit, such as "size=4MiB". "preset=NAME" sets the parameters of a
 *		preset; later settings override earlier ones. NULL or "": all defaults.
 * names	names of the wanted results
 * values	array for the results, in the order of `names`. A result without a meaning for these
 *		settings becomes NaN. A result that is a choice becomes the number of its word, see
 *		penstock_model_word. The array is unchanged if the call fails.
 * count	length of both arrays
 *
 * The model "contention" simulates, which can take seconds. The others take microseconds. Returns
 * 0, -EINVAL if a name is unknown or a value is out of its range, or -ENOMEM. Any thread.
 */
PENSTOCK_API int penstock_model_run(const char *model, const char *settings,
				    const char *const *names, double *values, unsigned count);

/*
 * Writes the word of a result that is a choice, such as "drive" for the result "slowest-hop" of the
 * model "pipeline".
 *
 * model	name of the model
 * name		name of the result
 * value	its value, from penstock_model_run
 * buf, size	memory for the word; 32 bytes are enough
 *
 * Returns 0, -EINVAL if the result has no such word, or -ENOSPC if the word does not fit. Any
 * thread; does not block.
 */
PENSTOCK_API int penstock_model_word(const char *model, const char *name, double value, char *buf,
				     size_t size);

#ifdef __cplusplus
}
#endif

#endif
