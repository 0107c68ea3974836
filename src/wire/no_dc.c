/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces transport DC_V1 in a build without the headers of libibverbs, librdmacm and libmlx5. A
 * client does not offer the transport, and a server declines its tokens. Both report the reason.
 */
#include "wire/common.h"

static int no_dc_fail(struct pst_err *err)
{
	return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NOT_BUILT,
			      "this build has no DC_V1, which needs libibverbs-dev, "
			      "librdmacm-dev and infiniband/mlx5dv.h");
}

static int no_dc_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
			struct pst_err *err)
{
	(void)client;
	(void)listener;
	return no_dc_fail(err);
}

static int no_dc_admit(const struct pst_wire_server *server, const struct pst_token *token,
		       const struct penstock_object_peer *peer, struct pst_err *err)
{
	(void)server;
	(void)token;
	(void)peer;
	return no_dc_fail(err);
}

const struct pst_wire_client_ops pst_dc_client = {
	.name = "DC_V1",
	.named = true,
	.listen = no_dc_listen,
};

const struct pst_wire_server_ops pst_dc_server = {
	.kind = PST_TOKEN_DC_V1,
	.admit = no_dc_admit,
};
