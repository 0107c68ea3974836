/* SPDX-License-Identifier: Apache-2.0 */
/* Implements PutObject. Called through route.c. */
#include "op_put.h"

#include "condition.h"
#include "rdma.h"
#include "stored.h"

bool gw_check_put(struct gw_request *req)
{
	bool exclusive;

	return gw_stored_check(req) && gw_rdma_check(req) && gw_condition_store(req, &exclusive);
}

void gw_op_put(struct gw_request *req)
{
	struct gw_store *store = &req->server->store;
	struct gw_meta meta = {0};
	char etag[GW_ETAG_MAX];
	bool exclusive;
	int ret;

	/* Another request may have changed the stored object while the body arrived. So check the
	 * conditions again. */
	if (!gw_condition_store(req, &exclusive))
		return;
	gw_stored_etag(req, etag);
	gw_meta_add(&meta, "etag", etag);
	gw_stored_add(req, &meta);
	gw_stored_sum(req, &meta);
	if (req->body.sum_kind != PST_HASH_KINDS) {
		gw_meta_add(&meta, "x-amz-checksum-type", "FULL_OBJECT");
		gw_header_add(req, "x-amz-checksum-type", "FULL_OBJECT");
	}
	ret = gw_draft_finish(store, &req->body.draft, &meta);
	/* Another request may have changed the stored object while the draft was synced. So check
	 * the conditions once more. */
	if (!ret && !gw_condition_store(req, &exclusive)) {
		gw_meta_close(&meta);
		return;
	}
	if (!ret)
		ret = gw_draft_publish(store, &req->body.draft, req->bucket_fd, req->key,
				       req->key_len, exclusive);
	gw_meta_close(&meta);
	if (ret) {
		gw_fail_errno(req, ret, GW_NoSuchBucket);
		return;
	}
	gw_header_etag(req, etag);
	gw_reply_empty(req, 200);
}
