/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registers files and checks handles. A handle is a number made of the index of a table entry and
 * the generation of the entry; it is never an address. So the drop-in recognises a closed handle,
 * or a handle of another library, without an access to memory at that address. While a cuFile call
 * uses a file, it is a holder of the file, which means that it is counted in shim_file.state. After
 * a file is closed, its last holder frees the file's resources. The table entries are reused, but
 * their memory must never be freed, because a thread may check an old handle at any time.
 */
#include "handle.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda.h"
#include "abi/cufile_calls.h"
#include "fail.h"
#include "log.h"
#include "open.h"
#include "state.h"
#include "stats.h"

#define PAGE 256u
#define PAGES 256u
#define FILES_MAX (PAGE * PAGES)
#define MAGIC 0xcf1eu /* value of bits 16 to 31 of each handle; no valid address has it */

/*
 * Bits of shim_file.state. An entry is free if none of them is set.
 * LIVE: the handle is valid.
 * CLOSING: the handle is invalid, but holders (calls that use the file) remain.
 * ENDING: the last holder is freeing the file's resources.
 */
#define LIVE (1ull << 31)
#define CLOSING (1ull << 30)
#define ENDING (1ull << 29)
#define USERS (ENDING - 1)

#define LAST_WAIT_NS 1000000000

static _Atomic(struct shim_file *) pages[PAGES];
/* Number of entries in `pages`, including free entries; guarded by shim.lock. */
static unsigned file_count;
/* Guards free_files, by_fd and by_fd_count. A thread that holds it takes no other lock. */
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shim_file *free_files;
/* Registered file of each descriptor number, NULL if there is none. */
static struct shim_file **by_fd;
static int by_fd_count;

static uint32_t state_generation(uint64_t state)
{
	return (uint32_t)(state >> 32);
}

/* Returns a handle: 31 bits of generation, 16 bits of MAGIC, 16 bits of index. As an intptr_t it
 * is never negative. */
static void *handle_make(uint32_t generation, unsigned index)
{
	return (void *)(uintptr_t)((uint64_t)generation << 32 | MAGIC << 16 | index);
}

static struct shim_file *file_at(unsigned index)
{
	struct shim_file *page = atomic_load_explicit(&pages[index / PAGE], memory_order_acquire);

	return page ? &page[index % PAGE] : NULL;
}

static void entry_free(struct shim_file *f)
{
	pthread_mutex_lock(&files_lock);
	f->next_free = free_files;
	free_files = f;
	pthread_mutex_unlock(&files_lock);
}

static void file_free(struct shim_file *f)
{
	penstock_close(f->st);
	f->st = NULL;
	free(f->name);
	f->name = NULL;
	atomic_fetch_and_explicit(&f->state, ~ENDING, memory_order_release);
	entry_free(f);
}

void shim_file_leave(struct shim_file *f)
{
	uint64_t state = atomic_fetch_sub_explicit(&f->state, 1, memory_order_acq_rel) - 1;

	/* Several threads may see that the file is closing and unused. The thread whose exchange
	 * succeeds frees the file's resources. */
	while ((state & CLOSING) && !(state & USERS))
		if (atomic_compare_exchange_weak_explicit(
			    &f->state, &state, (state & ~CLOSING) | ENDING, memory_order_acq_rel,
			    memory_order_acquire)) {
			file_free(f);
			return;
		}
}

struct shim_file *shim_file_enter(void *fh)
{
	uint64_t handle = (uintptr_t)fh, state;
	struct shim_file *f;

	if ((handle >> 16 & 0xffff) != MAGIC)
		return NULL;
	f = file_at((unsigned)(handle & 0xffff));
	if (!f)
		return NULL;
	state = atomic_fetch_add_explicit(&f->state, 1, memory_order_acquire);
	if (state_generation(state) == (uint32_t)(handle >> 32) && (state & LIVE))
		return f;
	shim_file_leave(f);
	return NULL;
}

bool shim_file_permits(void *fh, enum penstock_op op)
{
	struct shim_file *f = shim_file_enter(fh);
	bool permits;

	if (!f)
		return true;
	permits = f->access != (op == PENSTOCK_READ ? O_WRONLY : O_RDONLY);
	shim_file_leave(f);
	return permits;
}

/* ---- registration; under shim.lock ---- */

static struct shim_file *entry_alloc(void)
{
	struct shim_file *f, *page;

	pthread_mutex_lock(&files_lock);
	f = free_files;
	if (f)
		free_files = f->next_free;
	pthread_mutex_unlock(&files_lock);
	if (f || file_count == FILES_MAX)
		return f;
	page = atomic_load(&pages[file_count / PAGE]);
	if (!page) {
		page = calloc(PAGE, sizeof(*page));
		if (!page)
			return NULL;
		atomic_store_explicit(&pages[file_count / PAGE], page, memory_order_release);
	}
	f = &page[file_count % PAGE];
	f->index = file_count++;
	return f;
}

/* Extends by_fd so that it has an element for the descriptor number `fd`. The caller holds
 * files_lock. */
static int by_fd_grow(int fd)
{
	int count = fd + 64;
	struct shim_file **more;

	if (fd < by_fd_count)
		return 0;
	more = realloc(by_fd, (size_t)count * sizeof(*more));
	if (!more)
		return CUF_NOMEM_ERROR;
	memset(more + by_fd_count, 0, (size_t)(count - by_fd_count) * sizeof(*more));
	by_fd = more;
	by_fd_count = count;
	return 0;
}

static int by_fd_add(struct shim_file *f)
{
	int code;

	pthread_mutex_lock(&files_lock);
	code = by_fd_grow(f->fd);
	if (!code)
		by_fd[f->fd] = f;
	pthread_mutex_unlock(&files_lock);
	return code;
}

static void by_fd_remove(const struct shim_file *f)
{
	pthread_mutex_lock(&files_lock);
	if (f->fd < by_fd_count && by_fd[f->fd] == f)
		by_fd[f->fd] = NULL;
	pthread_mutex_unlock(&files_lock);
}

static int descr_check(const struct cuf_descr *descr, struct stat *stat)
{
	int flags;

	if (descr->type == CUF_WIN32 || descr->type == CUF_USERSPACE_FS)
		return CUF_IO_NOT_SUPPORTED;
	if (descr->type != CUF_FD || descr->handle.fd < 0)
		return CUF_INVALID_VALUE;
	flags = fcntl(descr->handle.fd, F_GETFL);
	if (flags < 0 || fstat(descr->handle.fd, stat))
		return CUF_INVALID_VALUE; /* `fd` is not an open descriptor */
	if (flags & O_PATH)
		return CUF_INVALID_FILE_OPEN_FLAG;
	if (!S_ISREG(stat->st_mode) && !S_ISBLK(stat->st_mode))
		return CUF_INVALID_FILE_TYPE;
	return 0;
}

/* Returns whether this file is registered under this descriptor number. Returns false if the
 * caller has closed the registered descriptor and the number now belongs to another file. */
static bool fd_is_registered(int fd, const struct stat *stat)
{
	const struct shim_file *f;
	bool found;

	pthread_mutex_lock(&files_lock);
	f = fd < by_fd_count ? by_fd[fd] : NULL;
	found = f && (atomic_load(&f->state) & LIVE) && f->fd == fd &&
		f->dev == (uint64_t)stat->st_dev && f->ino == (uint64_t)stat->st_ino;
	pthread_mutex_unlock(&files_lock);
	return found;
}

static char *fd_path(int fd)
{
	char link[64], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n <= 0)
		return NULL;
	path[n] = '\0';
	return strdup(path);
}

/*
 * Returns whether a direct path between the file and the device exists, as far as this is known
 * before the first transfer. If none exists, writes the reason to `text`. If the file is empty, a
 * path cannot be tested: the function returns true, and the first transfer reports a missing path.
 */
static bool file_is_direct(struct penstock_storage *st, struct penstock_device *dev,
			   enum penstock_op op, char *text, size_t text_len)
{
	struct penstock_seg seg = {.dev = dev, .row_len = 4096};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_explanation why = {.size = sizeof(why)};

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = op;
	req.require = PENSTOCK_DIRECT;
	if (penstock_explain(&req, &why) < 0) {
		snprintf(text, text_len, "%s", penstock_errmsg());
		return false;
	}
	snprintf(text, text_len, "no path is direct here");
	for (unsigned i = 0; i < why.path_count; i++) {
		const struct penstock_explain_path *path = &why.paths[i];

		if (path->why == PENSTOCK_WHY_UNPROVEN ||
		    (path->usable && path->meets == PENSTOCK_DIRECT))
			return true;
		if (!strcmp(path->name, "odirect"))
			snprintf(text, text_len, "%s: %s", why.storage_text, path->text);
	}
	return false;
}

/* If compat mode is off, every transfer needs a direct path. So this function checks whether a
 * direct path exists from the file to any device of the machine. Checks host memory first, because
 * that check needs no call to CUDA and usually suffices: few files have a direct path to a GPU but
 * none to host memory. */
static int file_check_direct(struct penstock_storage *st, int fd, char *text, size_t text_len)
{
	enum penstock_op op =
		(fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY ? PENSTOCK_WRITE : PENSTOCK_READ;
	char gpu_text[PENSTOCK_TEXT_MAX];
	int count;

	if (file_is_direct(st, atomic_load(&shim.host), op, text, text_len))
		return 0;
	count = shim_cuda_count();
	for (int i = 0; i < count && i < SHIM_GPUS_MAX; i++) {
		struct penstock_device *dev;

		if (!shim_gpu_locked(i, &dev) &&
		    file_is_direct(st, dev, op, gpu_text, sizeof(gpu_text)))
			return 0;
	}
	return CUF_IO_NOT_SUPPORTED;
}

static int open_code(int64_t ret)
{
	switch (ret) {
	case -ENOMEM:
		return CUF_NOMEM_ERROR;
	case -EMFILE:
	case -ENFILE:
		return CUF_GETNEWFD_FAILED;
	case -EACCES:
	case -EPERM:
		return CUF_PERMISSION_DENIED;
	case -EISDIR:
	case -ESPIPE:
	case -EINVAL:
		return CUF_INVALID_FILE_TYPE;
	default:
		return CUF_IO_NOT_SUPPORTED;
	}
}

static int file_open(struct shim_file *f, int fd, const struct stat *stat)
{
	char text[PENSTOCK_TEXT_MAX * 2];
	int ret = penstock_open_fd(fd, NULL, &f->st), code = 0;

	if (ret < 0) {
		shim_log(SHIM_ERROR, "descriptor %d: %s", fd, penstock_errmsg());
		return open_code(ret);
	}
	f->fd = fd;
	f->access = fcntl(fd, F_GETFL) & O_ACCMODE;
	f->dev = (uint64_t)stat->st_dev;
	f->ino = (uint64_t)stat->st_ino;
	atomic_store(&f->logged, 0);
	f->name = fd_path(fd);
	if (atomic_load(&shim.require) == PENSTOCK_DIRECT)
		code = file_check_direct(f->st, fd, text, sizeof(text));
	if (code)
		shim_log_refused("%s: refused, compat mode is off: %s", f->name ? f->name : "file",
				 text);
	else
		code = by_fd_add(f);
	if (code) {
		penstock_close(f->st);
		f->st = NULL;
		free(f->name);
		f->name = NULL;
	}
	return code;
}

static int file_register(const struct cuf_descr *descr, void **out)
{
	struct shim_file *f;
	struct stat stat;
	uint32_t generation, old;
	int code = descr_check(descr, &stat);

	if (code)
		return code;
	if (fd_is_registered(descr->handle.fd, &stat))
		return CUF_HANDLE_ALREADY_REGISTERED;
	f = entry_alloc();
	if (!f)
		return CUF_NOMEM_ERROR;
	code = file_open(f, descr->handle.fd, &stat);
	if (code) {
		entry_free(f);
		return code;
	}
	/* Uses an addition instead of a store, because a thread with an old handle may change
	 * the user count in the same word at any time. */
	old = state_generation(atomic_load(&f->state));
	generation = old >= 0x7fffffff ? 1 : old + 1;
	atomic_fetch_add(&f->state, ((uint64_t)generation << 32) - ((uint64_t)old << 32) + LIVE);
	*out = handle_make(generation, f->index);
	return 0;
}

struct cuf_error cuFileHandleRegister(void **fh, struct cuf_descr *descr)
{
	int code;

	if (!fh || !descr)
		return shim_err(CUF_INVALID_VALUE);
	pthread_mutex_lock(&shim.lock);
	code = shim_need_locked();
	if (!code)
		code = file_register(descr, fh);
	pthread_mutex_unlock(&shim.lock);
	shim_count(SHIM_HDL_REGISTER, !code);
	return shim_err(code);
}

/* Makes the handle invalid. Calls that already use the file may continue to use it. Returns false
 * if the handle was already invalid. */
static bool file_shut(struct shim_file *f)
{
	uint64_t state = atomic_load(&f->state);

	while (state & LIVE)
		if (atomic_compare_exchange_weak(&f->state, &state, (state & ~LIVE) | CLOSING))
			return true;
	return false;
}

void cuFileHandleDeregister(void *fh)
{
	struct shim_file *f;
	bool ok;

	/* Collects completed stream requests, because each of them counts as a user of its file
	 * until then. */
	shim_harvest();
	f = shim_file_enter(fh);
	ok = f && file_shut(f);
	if (ok)
		by_fd_remove(f);
	shim_count(SHIM_HDL_DEREGISTER, ok);
	if (f)
		shim_file_leave(f);
	else
		shim_log(SHIM_ERROR, "cannot deregister %p: it is not a registered file", fh);
}

static bool any_file_held(void)
{
	for (unsigned i = 0; i < file_count; i++) {
		uint64_t state = atomic_load(&file_at(i)->state);

		if (state & (CLOSING | ENDING) || ((state & LIVE) && (state & USERS)))
			return true;
	}
	return false;
}

int shim_files_close(void)
{
	uint64_t until = shim_now_ns() + LAST_WAIT_NS;

	if (any_file_held())
		return CUF_DRIVER_CLOSING;
	for (unsigned i = 0; i < file_count; i++) {
		struct shim_file *f = file_at(i);

		atomic_fetch_add(&f->state, 1);
		if (file_shut(f))
			by_fd_remove(f);
		shim_file_leave(f);
	}
	/* A call that started before its file was closed may still use the file and devices. */
	while (any_file_held() && shim_now_ns() < until)
		sched_yield();
	return any_file_held() ? CUF_DRIVER_CLOSING : 0;
}

void shim_files_forked(void)
{
	pthread_mutex_init(&files_lock, NULL);
	free_files = NULL;
	for (unsigned i = 0; i < file_count; i++) {
		struct shim_file *f = file_at(i);
		uint64_t state = atomic_load(&f->state);

		/* Makes the handle invalid in the child of a fork. Does not close the storage,
		 * which belongs to the parent. */
		atomic_store(&f->state, state & ~(LIVE | CLOSING | ENDING | USERS));
		f->st = NULL;
		f->next_free = free_files;
		free_files = f;
	}
	/* The memory of by_fd is not freed: another thread of the parent may have been reallocating
	 * it during the fork, so the pointer may be invalid. */
	by_fd = NULL;
	by_fd_count = 0;
}
