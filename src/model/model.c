/* SPDX-License-Identifier: Apache-2.0 */
/* The list of all models, in the order in which `penstock model` and its HTML page show them. */
#include "model.h"

#include <string.h>

#include "models.h"

static const struct pst_model *const models[] = {
	&pst_model_registration, &pst_model_fence,    &pst_model_pipeline, &pst_model_contention,
	&pst_model_checkpoint,	 &pst_model_sizing,   &pst_model_cost,	   &pst_model_kvcache,
	&pst_model_weights,	 &pst_model_training,
};

const struct pst_model *pst_model_at(unsigned i)
{
	return i < sizeof(models) / sizeof(models[0]) ? models[i] : NULL;
}

const struct pst_model *pst_model_find(const char *name)
{
	for (unsigned i = 0; i < sizeof(models) / sizeof(models[0]); i++)
		if (!strcmp(models[i]->name, name))
			return models[i];
	return NULL;
}
