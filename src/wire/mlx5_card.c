/* SPDX-License-Identifier: Apache-2.0 */
/* Implements mlx5_card.h: opens a network card with the dynamically connected transport, and reads
 * the access key. */
#include "wire/mlx5_card.h"

#include <errno.h>
#include <stdlib.h>

#define KEY_NAME "PENSTOCK_DC_KEY"
#define KEY_DEFAULT 0xffeeddcc

int pst_dc_card_open(struct pst_card *card, const struct pst_mlx5 **out, const char *address,
		     struct pst_err *err)
{
	int ret;

	*out = pst_mlx5_get(err);
	if (!*out)
		return err->code;
	ret = pst_card_open(card, "DC_V1", address, err);
	if (ret)
		return ret;
	if (card->v->qp_to_qp_ex && (*out)->is_supported(card->context->device))
		return 0;
	ret = pst_fail(err, PENSTOCK_WHY_NO_DEVICE,
		       "%s has no dynamically connected transport, which DC_V1 needs: only cards "
		       "of NVIDIA have it",
		       card->name);
	pst_card_close(card);
	return ret;
}

int pst_dc_key(uint64_t key, uint64_t *out, struct pst_err *err)
{
	const char *text = getenv(KEY_NAME);
	char *end;

	*out = key ? key : KEY_DEFAULT;
	if (key || !text || !*text)
		return 0;
	errno = 0;
	*out = strtoull(text, &end, 0);
	/* the message does not contain the value, because the key is a secret */
	if (*end || errno || text[0] == '-')
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				KEY_NAME " is no number of at most 64 bits");
	return 0;
}
