/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that both halves of transport DC_V1 share. */
#ifndef PST_WIRE_DC_H
#define PST_WIRE_DC_H

#include "wire/card.h"
#include "wire/mlx5.h"

/* Opens the card that has the address, if it has this transport. As pst_card_open. */
int pst_dc_card_open(struct pst_card *card, const struct pst_mlx5 **mlx5, const char *address,
		     struct pst_err *err);
/* Returns the key for both sides: `key` if it is not 0, or else that of the environment variable
 * PENSTOCK_DC_KEY, or else the default of the protocol. Returns -EINVAL if the variable is no
 * number. */
int pst_dc_key(uint64_t key, uint64_t *out, struct pst_err *err);

#endif
