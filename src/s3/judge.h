/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Responses of S3 over RDMA, in both roles: a client decides from a response what has happened to
 * the bytes, and a server composes the response. The functions have no side effects. Called by
 * src/object and src/wire. The most important rule: if the response to a PUT lacks the header
 * x-amz-rdma-reply, the bytes count as not stored. A server without RDMA ignores the token, stores
 * an empty object and replies with status 200.
 */
#ifndef PST_S3_JUDGE_H
#define PST_S3_JUDGE_H

#include <stdint.h>

#include "penstock_object.h"

/* Judges the response to a request whose window has `len` bytes. Fills all members of *verdict but
 * `size`. */
void pst_judge(enum penstock_op op, uint64_t len, const struct penstock_object_reply *reply,
	       struct penstock_object_verdict *verdict);

/* Judges the response to the READY of a session of hipobj-rc-v2 (hipobj.h), which moves exactly
 * `len` bytes. Fills the same members as pst_judge. The caller checks protocol and cookie. */
void pst_judge_final(uint64_t len, const struct penstock_object_reply *reply,
		     struct penstock_object_verdict *verdict);

/* Composes a response in *answer. The input is the members before `status`, and `has_crc64` and
 * `crc64`. The function sets all other members from `status` on. Returns 0, or -EINVAL if `op` or
 * `outcome` has no valid value. */
int pst_answer(struct penstock_object_answer *answer);

#endif
