/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces transport ofi1 in a build without libfabric. Client and server fail with a message about
 * what is missing. */
#include "wire/transport.h"

#define MISSING                                                                           \
	"this build has no ofi1: build it with libfabric (on Debian and Ubuntu: apt-get " \
	"install libfabric-dev) and meson setup -Dlibfabric=enabled"

static int no_listen(struct pst_wire_client *client, struct pst_wire_listener *listener,
		     struct pst_err *err)
{
	(void)client;
	(void)listener;
	return pst_fail(err, PENSTOCK_WHY_NOT_BUILT, MISSING);
}

static int no_admit(const struct pst_wire_server *server, const struct pst_token *token,
		    const struct penstock_object_peer *peer, struct pst_err *err)
{
	(void)server;
	(void)token;
	(void)peer;
	return pst_fail(err, PENSTOCK_WHY_NOT_BUILT, MISSING);
}

const struct pst_wire_client_ops pst_ofi1_client = {
	.name = "ofi1",
	.named = true,
	.listen = no_listen,
};

const struct pst_wire_server_ops pst_ofi1_server = {
	.kind = PST_TOKEN_OFI1,
	.admit = no_admit,
};
