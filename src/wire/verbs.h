/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libibverbs and librdmacm that the transports of RDMA network cards call. The
 * first call of pst_verbs_get loads the libraries, so that programs run on machines without them.
 * Functions of the data path, such as ibv_post_send, are inline functions of the headers. They call
 * the card's driver through the context's table, and need no symbol.
 *
 * Each member of the struct has the signature of a function of the libraries. Its name lacks the
 * prefix of the library, because some of the full names are also macros. The member create_qp is
 * the function of librdmacm, and create_plain_qp is the function of libibverbs.
 */
#ifndef PST_WIRE_VERBS_H
#define PST_WIRE_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "core/base/err.h"

#define PST_VERBS_IBV(X)                                  \
	X(alloc_pd, ibv_alloc_pd)                         \
	X(dealloc_pd, ibv_dealloc_pd)                     \
	X(reg_mr_iova, ibv_reg_mr_iova)                   \
	X(dereg_mr, ibv_dereg_mr)                         \
	X(create_cq, ibv_create_cq)                       \
	X(destroy_cq, ibv_destroy_cq)                     \
	X(create_comp_channel, ibv_create_comp_channel)   \
	X(destroy_comp_channel, ibv_destroy_comp_channel) \
	X(get_cq_event, ibv_get_cq_event)                 \
	X(ack_cq_events, ibv_ack_cq_events)               \
	X(modify_qp, ibv_modify_qp)                       \
	X(wc_status_str, ibv_wc_status_str)               \
	X(get_device_name, ibv_get_device_name)           \
	X(get_device_list, ibv_get_device_list)           \
	X(free_device_list, ibv_free_device_list)         \
	X(open_device, ibv_open_device)                   \
	X(close_device, ibv_close_device)                 \
	X(query_port, ibv_query_port)                     \
	X(create_ah, ibv_create_ah)                       \
	X(destroy_ah, ibv_destroy_ah)                     \
	X(create_srq, ibv_create_srq)                     \
	X(destroy_srq, ibv_destroy_srq)                   \
	X(create_plain_qp, ibv_create_qp)                 \
	X(destroy_plain_qp, ibv_destroy_qp)
/* Functions that older versions of libibverbs do not have; their members are then NULL. */
#define PST_VERBS_OPTIONAL(X)                    \
	X(reg_dmabuf_mr, ibv_reg_dmabuf_mr)      \
	X(query_gid_table, _ibv_query_gid_table) \
	X(qp_to_qp_ex, ibv_qp_to_qp_ex)
#define PST_VERBS_CM(X)                                      \
	X(create_event_channel, rdma_create_event_channel)   \
	X(destroy_event_channel, rdma_destroy_event_channel) \
	X(create_id, rdma_create_id)                         \
	X(destroy_id, rdma_destroy_id)                       \
	X(bind_addr, rdma_bind_addr)                         \
	X(listen, rdma_listen)                               \
	X(accept, rdma_accept)                               \
	X(reject, rdma_reject)                               \
	X(connect, rdma_connect)                             \
	X(disconnect, rdma_disconnect)                       \
	X(resolve_addr, rdma_resolve_addr)                   \
	X(resolve_route, rdma_resolve_route)                 \
	X(get_cm_event, rdma_get_cm_event)                   \
	X(ack_cm_event, rdma_ack_cm_event)                   \
	X(event_str, rdma_event_str)                         \
	X(create_qp, rdma_create_qp)                         \
	X(destroy_qp, rdma_destroy_qp)                       \
	X(get_src_port, rdma_get_src_port)

struct pst_verbs {
#define PST_VERBS_MEMBER(member, symbol) __typeof__(symbol) *member;
	PST_VERBS_IBV(PST_VERBS_MEMBER)
	PST_VERBS_OPTIONAL(PST_VERBS_MEMBER)
	PST_VERBS_CM(PST_VERBS_MEMBER)
#undef PST_VERBS_MEMBER
};

/* Returns the functions, or NULL with the reason in *err: a library is missing, or the kernel has
 * no RDMA connection manager. Any thread may call it. */
const struct pst_verbs *pst_verbs_get(struct pst_err *err);

/* Creates a channel for events of connections, whose descriptor does not block. Returns 0 or a
 * negative errno. */
int pst_verbs_channel(const struct pst_verbs *verbs, struct rdma_event_channel **out,
		      struct pst_err *err);

#endif
