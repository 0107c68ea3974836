/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of libmlx5 that transport DC_V1 calls. They are for queue pairs of NVIDIA's
 * dynamically connected transport, where the client's target (DCT) accepts any initiator (DCI) that
 * has its key. The first call of pst_mlx5_get loads the library.
 */
#ifndef PST_WIRE_MLX5_H
#define PST_WIRE_MLX5_H

#include <infiniband/mlx5dv.h>
#include <stdbool.h>

#include "core/base/err.h"

#define PST_MLX5_FUNCTIONS(X)                \
	X(is_supported, mlx5dv_is_supported) \
	X(create_qp, mlx5dv_create_qp)       \
	X(qp_ex_of, mlx5dv_qp_ex_from_ibv_qp_ex)

struct pst_mlx5 {
#define PST_MLX5_MEMBER(member, symbol) __typeof__(symbol) *member;
	PST_MLX5_FUNCTIONS(PST_MLX5_MEMBER)
#undef PST_MLX5_MEMBER
};

/* Returns the functions, or NULL with the reason in *err. Any thread may call it. */
const struct pst_mlx5 *pst_mlx5_get(struct pst_err *err);

#endif
