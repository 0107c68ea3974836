/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the backends in this build, each in order of preference: see backends.c. */
#ifndef PST_CORE_BACKENDS_H
#define PST_CORE_BACKENDS_H

#include "core/ops.h"

extern const struct pst_storage_ops *const pst_storages[]; /* each table ends with NULL */
extern const struct pst_device_ops *const pst_devices[];
extern const struct pst_path_ops *const pst_paths[];	    /* the most direct path first */
extern const struct pst_engine_ops *const pst_engines[];    /* the last one works on any kernel */
extern const struct pst_engine_ops *const pst_engine_plain; /* the last engine of pst_engines */
extern const unsigned pst_path_count;

#endif
