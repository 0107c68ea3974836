/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the transports of S3 over RDMA, the preferred one first. No other file for S3 over RDMA
 * lists them. client.c and server.c use the list.
 */
#include <string.h>

#include "wire/transports.h"

/* The order of preference. shm1 comes first: its bytes are copied only once and stay on the host.
 * Then comes rc1, whose bytes the network card moves. The last three are used only if the options
 * name them. For ofi1 the reason is that loading libfabric takes time and changes the process, for
 * example its signal handlers. The protocols hipobj-rc-v2 and DC_V1 are experimental. */
const struct pst_wire_transport pst_wire_transports[] = {
	{&pst_shm1_client, &pst_shm1_server},	  {&pst_rc1_client, &pst_rc1_server},
	{&pst_tcp1_client, &pst_tcp1_server},	  {&pst_ofi1_client, &pst_ofi1_server},
	{&pst_hipobj_client, &pst_hipobj_server}, {&pst_dc_client, &pst_dc_server},
};
const unsigned pst_wire_transport_count =
	sizeof(pst_wire_transports) / sizeof(pst_wire_transports[0]);

int pst_wire_each(const char *list, int (*use)(void *user, unsigned index), void *user,
		  struct pst_err *err)
{
	int ret = 0;

	for (unsigned i = 0; !list && i < pst_wire_transport_count && !ret; i++)
		ret = pst_wire_transports[i].client->named ? 0 : use(user, i);
	while (list && *list && !ret) {
		size_t len = strcspn(list, ",");
		unsigned i = 0;

		while (i < pst_wire_transport_count &&
		       (strlen(pst_wire_transports[i].client->name) != len ||
			strncmp(pst_wire_transports[i].client->name, list, len)))
			i++;
		if (i == pst_wire_transport_count)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"there is no transport %.*s; use shm1, rc1, tcp1, ofi1, "
					"hipobj-rc-v2 or DC_V1",
					(int)(len < 32 ? len : 32), list);
		ret = use(user, i);
		list += len + (list[len] == ',');
	}
	return ret;
}
