/* SPDX-License-Identifier: Apache-2.0 */
/* Gets and prints how the parts of an uploaded object moved. Called by the commands that write an
 * object. */
#include "parts.h"

void parts_get(struct parts *parts, const struct penstock_storage *st,
	       const struct penstock_device *dev)
{
	struct penstock_storage_info info = {.size = sizeof(info)};

	if (penstock_storage_get_info(st, &info))
		return;
	parts->rdma = info.parts_rdma;
	parts->http = info.parts_http;
	parts->device = info.parts_device;
	snprintf(parts->from, sizeof(parts->from), "%s", penstock_device_name(dev));
	snprintf(parts->why, sizeof(parts->why), "%s", info.parts_why ? info.parts_why : "");
}

void parts_json(struct json *j, const struct parts *parts)
{
	if (!parts->rdma && !parts->http)
		return;
	json_object(j, "parts");
	json_int(j, "rdma", parts->rdma);
	json_int(j, "http", parts->http);
	json_text(j, "reason", parts->why);
	if (parts->device)
		json_int(j, "device", parts->device);
	json_end(j);
}

void parts_print(FILE *f, const struct parts *parts)
{
	if (!parts->rdma && !parts->http)
		return;
	fprintf(f, "  parts of the object: %u by RDMA", parts->rdma);
	if (parts->device)
		fprintf(f, " (%u out of the memory of %s)", parts->device, parts->from);
	fprintf(f, ", %u by HTTP%s%s\n", parts->http, parts->why[0] ? ": " : "", parts->why);
}
