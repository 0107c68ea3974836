/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File handles. A handle is a place in a table and the number of its use, never an
 * address: one that was closed, or is somebody else's, is told apart without
 * looking at memory that it might point to. Whoever uses a file holds it; the last
 * to let go of a closed one frees it. Places are never freed, only used again.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim.h"
#include "stats.h"

#define PAGE 256u
#define PAGES 256u
#define FILES_MAX (PAGE * PAGES)
#define MAGIC 0xcf1eu /* the middle of a handle: addresses do not have it */

/* shim_file.state: a live file is found; a closing one is only held; while it ends, the
 * last who held it closes what is behind it; with none of these its place is free. */
#define LIVE (1ull << 31)
#define CLOSING (1ull << 30)
#define ENDING (1ull << 29)
#define USERS (ENDING - 1)

#define LAST_WAIT_NS 1000000000

static _Atomic(struct shim_file *) pages[PAGES];
static unsigned file_count;				       /* places made; under shim.lock */
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows; a leaf */
static struct shim_file *free_files;
static struct shim_file **by_fd; /* the live file of a descriptor number */
static int by_fd_count;

static uint32_t generation_of(uint64_t state)
{
	return (uint32_t)(state >> 32);
}

/* generation 31 bits, magic 16, place 16: never negative as an intptr_t. */
static void *handle_of(uint32_t generation, unsigned index)
{
	return (void *)(uintptr_t)((uint64_t)generation << 32 | MAGIC << 16 | index);
}

static struct shim_file *place(unsigned index)
{
	struct shim_file *page = atomic_load_explicit(&pages[index / PAGE], memory_order_acquire);

	return page ? &page[index % PAGE] : NULL;
}

static void put_place(struct shim_file *f)
{
	pthread_mutex_lock(&files_lock);
	f->next_free = free_files;
	free_files = f;
	pthread_mutex_unlock(&files_lock);
}

static void end(struct shim_file *f)
{
	penstock_close(f->st);
	f->st = NULL;
	free(f->name);
	f->name = NULL;
	atomic_fetch_and_explicit(&f->state, ~ENDING, memory_order_release);
	put_place(f);
}

void shim_file_leave(struct shim_file *f)
{
	uint64_t state = atomic_fetch_sub_explicit(&f->state, 1, memory_order_acq_rel) - 1;

	/* One of those who see it unused and closing takes the last step. */
	while ((state & CLOSING) && !(state & USERS))
		if (atomic_compare_exchange_weak_explicit(
			    &f->state, &state, (state & ~CLOSING) | ENDING, memory_order_acq_rel,
			    memory_order_acquire)) {
			end(f);
			return;
		}
}

struct shim_file *shim_file_enter(void *fh)
{
	uint64_t handle = (uintptr_t)fh, state;
	struct shim_file *f;

	if ((handle >> 16 & 0xffff) != MAGIC)
		return NULL;
	f = place((unsigned)(handle & 0xffff));
	if (!f)
		return NULL;
	state = atomic_fetch_add_explicit(&f->state, 1, memory_order_acquire);
	if (generation_of(state) == (uint32_t)(handle >> 32) && (state & LIVE))
		return f;
	shim_file_leave(f);
	return NULL;
}

/* ---- registering; all under shim.lock ---- */

static struct shim_file *take_place(void)
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

static int room_for_fd(int fd)
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

static int remember_fd(struct shim_file *f)
{
	int code;

	pthread_mutex_lock(&files_lock);
	code = room_for_fd(f->fd);
	if (!code)
		by_fd[f->fd] = f;
	pthread_mutex_unlock(&files_lock);
	return code;
}

static void forget_fd(const struct shim_file *f)
{
	pthread_mutex_lock(&files_lock);
	if (f->fd < by_fd_count && by_fd[f->fd] == f)
		by_fd[f->fd] = NULL;
	pthread_mutex_unlock(&files_lock);
}

static int check_descr(const struct cuf_descr *descr, struct stat *stat)
{
	int flags;

	if (descr->type == CUF_WIN32 || descr->type == CUF_USERSPACE_FS)
		return CUF_IO_NOT_SUPPORTED;
	if (descr->type != CUF_FD || descr->handle.fd < 0)
		return CUF_INVALID_VALUE;
	flags = fcntl(descr->handle.fd, F_GETFL);
	if (flags < 0 || fstat(descr->handle.fd, stat))
		return CUF_INVALID_VALUE; /* it is not open */
	if (flags & O_PATH)
		return CUF_INVALID_FILE_OPEN_FLAG;
	if (!S_ISREG(stat->st_mode) && !S_ISBLK(stat->st_mode))
		return CUF_INVALID_FILE_TYPE;
	return 0;
}

/* The same file under the same number. A number whose file was closed and that names
 * another one by now is free. */
static bool is_registered(int fd, const struct stat *stat)
{
	const struct shim_file *f;
	bool is;

	pthread_mutex_lock(&files_lock);
	f = fd < by_fd_count ? by_fd[fd] : NULL;
	is = f && (atomic_load(&f->state) & LIVE) && f->fd == fd &&
	     f->dev == (uint64_t)stat->st_dev && f->ino == (uint64_t)stat->st_ino;
	pthread_mutex_unlock(&files_lock);
	return is;
}

static char *name_of(int fd)
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

/* Whether a path is direct between the file and this device, as far as anybody can know
 * before the first transfer; if not, why. Where nothing is written yet to prove it on the
 * first transfer decides. */
static bool is_direct(struct penstock_storage *st, struct penstock_device *dev, enum penstock_op op,
		      char *text, size_t text_len)
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

/* With compat mode off: could any device of this machine be reached directly? Host memory
 * first: it asks CUDA nothing, and what it cannot have few GPUs can. */
static int check_direct(struct penstock_storage *st, int fd, char *text, size_t text_len)
{
	enum penstock_op op =
		(fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY ? PENSTOCK_WRITE : PENSTOCK_READ;
	char gpu_text[PENSTOCK_TEXT_MAX];
	int count;

	if (is_direct(st, atomic_load(&shim.host), op, text, text_len))
		return 0;
	count = shim_cuda_count();
	for (int i = 0; i < count && i < SHIM_GPUS_MAX; i++) {
		struct penstock_device *dev;

		if (!shim_gpu_locked(i, &dev) && is_direct(st, dev, op, gpu_text, sizeof(gpu_text)))
			return 0;
	}
	return CUF_IO_NOT_SUPPORTED;
}

static int code_of_open(int64_t ret)
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

static int open_file(struct shim_file *f, int fd, const struct stat *stat)
{
	char text[PENSTOCK_TEXT_MAX * 2];
	int ret = penstock_open_fd(fd, NULL, &f->st), code = 0;

	if (ret < 0) {
		shim_log(SHIM_ERROR, "descriptor %d: %s", fd, penstock_errmsg());
		return code_of_open(ret);
	}
	f->fd = fd;
	f->dev = (uint64_t)stat->st_dev;
	f->ino = (uint64_t)stat->st_ino;
	atomic_store(&f->said, 0);
	f->name = name_of(fd);
	if (atomic_load(&shim.require) == PENSTOCK_DIRECT)
		code = check_direct(f->st, fd, text, sizeof(text));
	if (code)
		shim_log_refused("%s: refused, compat mode is off: %s", f->name ? f->name : "file",
				 text);
	else
		code = remember_fd(f);
	if (code) {
		penstock_close(f->st);
		f->st = NULL;
		free(f->name);
		f->name = NULL;
	}
	return code;
}

static int register_file(const struct cuf_descr *descr, void **out)
{
	struct shim_file *f;
	struct stat stat;
	uint32_t generation, old;
	int code = check_descr(descr, &stat);

	if (code)
		return code;
	if (is_registered(descr->handle.fd, &stat))
		return CUF_HANDLE_ALREADY_REGISTERED;
	f = take_place();
	if (!f)
		return CUF_NOMEM_ERROR;
	code = open_file(f, descr->handle.fd, &stat);
	if (code) {
		put_place(f);
		return code;
	}
	/* Others may be touching the count of a place that was used before. */
	old = generation_of(atomic_load(&f->state));
	generation = old >= 0x7fffffff ? 1 : old + 1;
	atomic_fetch_add(&f->state, ((uint64_t)generation << 32) - ((uint64_t)old << 32) + LIVE);
	*out = handle_of(generation, f->index);
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
		code = register_file(descr, fh);
	pthread_mutex_unlock(&shim.lock);
	shim_count(SHIM_HDL_REGISTER, !code);
	return shim_err(code);
}

/* Nobody finds it any more; who holds it keeps it until they let go. */
static bool shut(struct shim_file *f)
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

	shim_async_harvest(); /* what ended holds its file until it is looked at */
	f = shim_file_enter(fh);
	ok = f && shut(f);
	if (ok)
		forget_fd(f);
	shim_count(SHIM_HDL_DEREGISTER, ok);
	if (f)
		shim_file_leave(f);
	else
		shim_log(SHIM_ERROR, "deregistering %p, which is no file of ours", fh);
}

static bool any_held(void)
{
	for (unsigned i = 0; i < file_count; i++) {
		uint64_t state = atomic_load(&place(i)->state);

		if (state & (CLOSING | ENDING) || ((state & LIVE) && (state & USERS)))
			return true;
	}
	return false;
}

/* Whoever came in just before a file was shut is waited for: they hold devices too. */
int shim_files_close(void)
{
	uint64_t until = shim_now_ns() + LAST_WAIT_NS;

	if (any_held())
		return CUF_DRIVER_CLOSING;
	for (unsigned i = 0; i < file_count; i++) {
		struct shim_file *f = place(i);

		atomic_fetch_add(&f->state, 1);
		if (shut(f))
			forget_fd(f);
		shim_file_leave(f);
	}
	while (any_held() && shim_now_ns() < until)
		sched_yield();
	return any_held() ? CUF_DRIVER_CLOSING : 0;
}

void shim_files_forked(void)
{
	pthread_mutex_init(&files_lock, NULL);
	free_files = NULL;
	for (unsigned i = 0; i < file_count; i++) {
		struct shim_file *f = place(i);
		uint64_t state = atomic_load(&f->state);

		/* Its use ends here; what it holds is the parent's. */
		atomic_store(&f->state, state & ~(LIVE | CLOSING | ENDING | USERS));
		f->st = NULL;
		f->next_free = free_files;
		free_files = f;
	}
	by_fd = NULL; /* may have been moving at that moment: left to the child's end */
	by_fd_count = 0;
}
