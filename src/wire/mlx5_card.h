/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that the client and the server of transport DC_V1 share. */
#ifndef PST_WIRE_MLX5_CARD_H
#define PST_WIRE_MLX5_CARD_H

#include "wire/card.h"
#include "wire/mlx5.h"

/* Opens the card that has the address, like pst_card_open. Fails if the card does not support
 * dynamically connected queue pairs. */
int pst_dc_card_open(struct pst_card *card, const struct pst_mlx5 **mlx5, const char *address,
		     struct pst_err *err);
/* Determines the key that both sides must use, and stores it in *out. The key is `key` if that is
 * not 0, else the environment variable PENSTOCK_DC_KEY, else the default of the protocol. Returns
 * -EINVAL if the variable is not a number. */
int pst_dc_key(uint64_t key, uint64_t *out, struct pst_err *err);

#endif
