/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces transport hipobj-rc-v2 in a build without the headers of libibverbs and librdmacm. A
 * client does not offer the transport, and a server declines its tokens. Both report the reason.
 */
#include "wire/common.h"

static int no_hipobj_fail(struct pst_err *err)
{
	return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NOT_BUILT,
			      "this build has no hipobj-rc-v2, which needs libibverbs-dev and "
			      "librdmacm-dev");
}

static int no_hipobj_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
			    struct pst_err *err)
{
	(void)client;
	(void)listener;
	return no_hipobj_fail(err);
}

static int no_hipobj_admit(const struct pst_wire_server *server, const struct pst_token *token,
			   const struct penstock_object_peer *peer, struct pst_err *err)
{
	(void)server;
	(void)token;
	(void)peer;
	return no_hipobj_fail(err);
}

const struct pst_wire_client_ops pst_hipobj_client = {
	.name = "hipobj-rc-v2",
	.named = true,
	.listen = no_hipobj_listen,
};

const struct pst_wire_server_ops pst_hipobj_server = {
	.kind = PST_TOKEN_HIPOBJ_RC_V2,
	.admit = no_hipobj_admit,
};
