/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the copy of bytes, see copy.h. */
#include "copy.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define BUFFER (1u << 20)
/* maximum number of bytes that the kernel copies between two checks of `stop` */
#define PIECE (64u << 20)

static int copy_through_memory(const atomic_bool *stop, int fd, uint64_t from, uint64_t len,
			       const struct gw_draft *draft, uint64_t to, struct pst_hash *md5,
			       struct pst_hash *sum)
{
	char *buffer = malloc(BUFFER);
	int ret = buffer ? 0 : -ENOMEM;

	while (!ret && len) {
		ssize_t n = pread(fd, buffer, len < BUFFER ? len : BUFFER, (off_t)from);

		if (atomic_load(stop)) {
			ret = -ECANCELED;
			break;
		}
		if (n <= 0) {
			if (n < 0 && errno == EINTR)
				continue;
			ret = n ? -errno : -EIO;
			break;
		}
		if (md5)
			pst_hash_put(md5, buffer, (size_t)n);
		if (sum)
			pst_hash_put(sum, buffer, (size_t)n);
		ret = gw_draft_write(draft, buffer, (size_t)n, to);
		from += (uint64_t)n;
		to += (uint64_t)n;
		len -= (uint64_t)n;
	}
	free(buffer);
	return ret;
}

int gw_copy(const atomic_bool *stop, int fd, uint64_t from, uint64_t len,
	    const struct gw_draft *draft, uint64_t to, struct pst_hash *md5, struct pst_hash *sum)
{
	while (len && !md5 && !sum) {
		off64_t in = (off64_t)from, out = (off64_t)to;
		ssize_t n = copy_file_range(fd, &in, draft->fd, &out, len < PIECE ? len : PIECE, 0);

		if (atomic_load(stop))
			return -ECANCELED;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == EIO))
			return -errno;
		if (n <= 0)
			/* the file systems do not support copies inside the kernel, so copy through
			 * memory */
			break;
		from += (uint64_t)n;
		to += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return len ? copy_through_memory(stop, fd, from, len, draft, to, md5, sum) : 0;
}
