/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes groups, which are processes (ranks) that load a model together. The ranks
 * connect through a socket in a directory that only this user may enter: rank 0 listens, and the
 * other ranks connect to it. Both ends check which user's process is at the other end. When all
 * ranks have joined, rank 0 removes the socket's name. Called by programs. It never waits longer
 * than the caller's timeout.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "group/barrier.h"
#include "group/plan.h"
#include "weights/err.h"

/* Default timeout in ms. It is long because Python programs that start together may finish
 * importing their modules at very different times. */
#define TIMEOUT_MS 120000u
#define RETRY_MS 10 /* Time between two attempts to connect to rank 0, in ms. */
/* Time in ms that rank 0 waits for a hello, the first packet of a connection. A rank sends it as
 * soon as it has connected. */
#define HELLO_MS 2000
/* Default time in ms that the ranks at a barrier wait for a missing rank. It is long because a rank
 * on slow storage may arrive late. */
#define STALL_MS 600000u
/* Default length in bytes of a window, a buffer that one rank fills and all ranks copy from. With
 * 16 MiB instead of 64 MiB, a first load takes 1.4 times as long. */
#define WINDOW (64u << 20)
#define WINDOWS 4u

struct hello {
	uint32_t version, size;
	struct pst_group_settings settings;
};
#define VERSION 3u

/* Sleeps for `ms` milliseconds. Returns false if a signal ended the sleep early. */
static bool sleep_ms(uint32_t ms)
{
	const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l};

	return !nanosleep(&time, NULL);
}

static int join_fail(int code, enum penstock_why why, const char *path, const char *what)
{
	errno = code;
	return pst_weights_fail(code, why, path, NULL, PST_NO_OFF, "%s", what);
}

static int join_fail_errno(int code, const char *path, const char *what)
{
	return pst_weights_fail_errno(code, path, NULL, PST_NO_OFF, "%s: %s", what, strerror(code));
}

/* ---- the socket's address ---- */

/* Returns true if only this user may enter the directory, so that no other user can have created
 * a socket in it. */
static bool dir_is_private(const char *dir)
{
	struct stat st;

	return !lstat(dir, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
	       !(st.st_mode & 077);
}

static const char *choose_dir(const char *asked, char *own, size_t size)
{
	const char *run = getenv("XDG_RUNTIME_DIR");

	if (asked)
		return asked;
	if (run && *run == '/' && dir_is_private(run))
		return run;
	snprintf(own, size, "/tmp/penstock-%lu", (unsigned long)geteuid());
	/* Ignores a failure of mkdir, because dir_is_private rejects the directory in that
	 * case. */
	mkdir(own, 0700);
	return own;
}

static int make_address(const struct penstock_group *g, const char *asked, struct sockaddr_un *addr)
{
	char own[64];
	const char *dir = choose_dir(asked, own, sizeof(own));
	int n;

	*addr = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(addr->sun_path, sizeof(addr->sun_path), "%s/penstock-%s", dir, g->name);
	if (n < 0 || (size_t)n >= sizeof(addr->sun_path))
		return pst_weights_fail(ENAMETOOLONG, PENSTOCK_WHY_BAD_ARGUMENT, dir, NULL,
					PST_NO_OFF,
					"with the group's name '%s' it is longer than "
					"the %zu bytes of a socket's",
					g->name, sizeof(addr->sun_path) - 1);
	if (!dir_is_private(dir))
		return join_fail(EPERM, PENSTOCK_WHY_NO_PERMISSION, dir,
				 "must be a directory that only this user may enter (mode 0700)");
	return 0;
}

/* ---- the peer ---- */

/* Checks that the process at the other end belongs to this user. Also opens a pidfd, which
 * reports the exit of that process. */
static int check_peer(struct pst_link *link)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(link->sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return -errno;
	if (cred.uid != geteuid())
		return -EPERM;
#ifdef SYS_pidfd_open
	/* The pidfd is needed because a child that inherited the socket keeps it open after its
	 * parent exits. The pid is 0 if the process is in another pid namespace. In that case,
	 * and on kernels without pidfd_open (before Linux 5.3), only the socket reports the end
	 * of the process. */
	link->pid = cred.pid;
	link->pidfd = cred.pid > 0 ? (int)syscall(SYS_pidfd_open, cred.pid, 0) : -1;
#endif
	return 0;
}

/* Opens a socket. It is non-blocking, because connect would otherwise never return if rank 0
 * is stopped and its backlog is full. */
static int open_socket(const char *path)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return sock < 0 ? join_fail_errno(errno, path, "no socket") : sock;
}

/* Returns true if the settings that rank 0 sent are in their valid ranges. Other code uses the
 * settings without a further check. */
static bool settings_valid(const struct pst_group_settings *how)
{
	return how->window && !(how->window % 4096) && how->window <= 1u << 30 &&
	       how->windows > 1 && how->windows <= PST_GROUP_WINDOWS_MAX && how->stall_ms &&
	       how->host < how->hosts;
}

static struct hello make_hello(const struct penstock_group *g)
{
	return (struct hello){.version = VERSION, .size = g->size, .settings = g->settings};
}

/* ---- rank 0 ---- */

/* Receives the hello, the first packet of a new connection, and adds the rank that sent it. Returns
 * the error if the group cannot be formed. Returns 0 in all other cases, even if the connection
 * does not come from a rank. */
static int admit_rank(struct penstock_group *g, struct pst_link *link, const char *path)
{
	uint64_t until = pst_group_now_ms() + HELLO_MS;
	struct pst_message message = g->scratch;
	struct hello hello;
	struct pst_packet packet;

	if (check_peer(link) || pst_link_receive(link, until, &packet, &message) < 0) {
		/* The process at the other end belongs to another user, or has closed the
		 * connection again. */
		pst_link_close(link);
		return 0;
	}
	if (message.fd >= 0)
		close(message.fd);
	memset(&hello, 0, sizeof(hello));
	memcpy(&hello, message.bytes, message.len < sizeof(hello) ? message.len : sizeof(hello));
	if (hello.version != VERSION || message.len != sizeof(hello))
		return join_fail(EPROTO, PENSTOCK_WHY_BAD_ARGUMENT, path,
				 "a rank uses another version of the library");
	if (hello.size != g->size)
		return pst_weights_fail(
			EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, path, NULL, PST_NO_OFF,
			"rank %u was started as one of %u ranks, rank 0 as one of %u", packet.rank,
			hello.size, g->size);
	if (!packet.rank || packet.rank >= g->size || g->links[packet.rank].sock >= 0)
		return pst_weights_fail(EEXIST, PENSTOCK_WHY_BAD_ARGUMENT, path, NULL, PST_NO_OFF,
					"two processes were started as rank %u", packet.rank);
	g->links[packet.rank] = *link;
	*link = PST_LINK_NONE;
	return 0;
}

static unsigned first_missing_rank(const struct penstock_group *g)
{
	unsigned rank = 1;

	while (rank < g->size && g->links[rank].sock >= 0)
		rank++;
	return rank;
}

/* Fails if a rank that has joined has exited. A rank that has joined sends nothing more, so any
 * event on its socket means that it has exited. */
static int check_connected(const struct penstock_group *g, const char *path,
			   const struct pollfd *fds)
{
	for (unsigned i = 1; i < g->size; i++)
		if (fds[2 * i].revents || fds[2 * i + 1].revents)
			return pst_weights_fail(ECONNRESET, PENSTOCK_WHY_IO_ERROR, path, NULL,
						PST_NO_OFF,
						"rank %u exited before all ranks had joined; rank "
						"%u has not joined",
						i, first_missing_rank(g));
	return 0;
}

static int accept_all(struct penstock_group *g, int listener, const char *path, uint64_t until,
		      struct pst_link *late)
{
	struct pollfd fds[2 * PST_GROUP_MAX + 1];
	int ret = 0;

	while (!ret && first_missing_rank(g) < g->size) {
		uint64_t now = pst_group_now_ms();

		ret = pst_group_poll_caller(g);
		if (ret)
			return ret;
		if (now >= until)
			return pst_weights_fail(ETIMEDOUT, PENSTOCK_WHY_DEADLINE, path, NULL,
						PST_NO_OFF, "rank %u of %u has not joined",
						first_missing_rank(g), g->size);
		for (unsigned i = 0; i < g->size; i++) {
			fds[2 * i] = (struct pollfd){g->links[i].sock, POLLIN, 0};
			fds[2 * i + 1] = (struct pollfd){g->links[i].pidfd, POLLIN, 0};
		}
		fds[2 * g->size] = (struct pollfd){listener, POLLIN, 0};
		ret = pst_group_wait_fds(fds, 2 * g->size + 1,
					 pst_group_ms_until(pst_group_next_poll_ms(g, until)));
		if (ret < 0) {
			ret = ret == -EINTR
				      ? 0
				      : join_fail_errno(-ret, path, "the ranks cannot be awaited");
			continue;
		}
		ret = check_connected(g, path, fds);
		if (ret || !fds[2 * g->size].revents)
			continue;
		late->sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (late->sock >= 0)
			ret = admit_rank(g, late, path);
		else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
			ret = join_fail_errno(errno, path,
					      "a rank's connection cannot be accepted");
	}
	return ret;
}

/* Sends the result `ret` of forming the group to all ranks that have joined, and to the refused
 * rank `late`. */
static void answer_all(struct penstock_group *g, int ret, const struct pst_link *late)
{
	struct pst_packet packet = {.seq = 1, .code = ret};
	struct hello hello = make_hello(g);
	const struct pst_message message = {(unsigned char *)&hello, sizeof(hello), -1};

	if (ret) {
		packet.why = penstock_errwhy();
		snprintf(packet.text, sizeof(packet.text), "%s", penstock_errmsg());
	}
	for (unsigned i = 1; i <= g->size; i++) {
		const struct pst_link *link = i < g->size ? &g->links[i] : late;

		/* Ignores a failure to send, because the first barrier detects a rank that has
		 * exited meanwhile. */
		if (link->sock >= 0)
			pst_link_send(link, 0, &packet, &message);
	}
}

/* Locks the lock file that belongs to the socket's name. Only the holder of the lock may remove
 * a name that a dead process has left. */
static int lock_name(const char *path, char *lock_path, size_t size)
{
	struct stat held, named;
	int fd;

	snprintf(lock_path, size, "%s.lock", path);
	for (;;) {
		fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0)
			return join_fail_errno(errno, lock_path, "cannot be opened");
		if (flock(fd, LOCK_EX | LOCK_NB)) {
			close(fd);
			return join_fail(EBUSY, PENSTOCK_WHY_BAD_ARGUMENT, path,
					 "another process is rank 0 of a group of this name that "
					 "is still waiting for its ranks");
		}
		if (!fstat(fd, &held) && !stat(lock_path, &named) && held.st_ino == named.st_ino)
			return fd;
		/* The previous holder removed the lock file while this process waited for the lock,
		 * so open it again. */
		close(fd);
	}
}

static int join_as_root(struct penstock_group *g, const struct sockaddr_un *addr, uint64_t until)
{
	char lock_path[sizeof(addr->sun_path) + 8];
	struct pst_link late = PST_LINK_NONE;
	int ret, sock, held = lock_name(addr->sun_path, lock_path, sizeof(lock_path));

	if (held < 0)
		return held;
	sock = open_socket(addr->sun_path);
	ret = sock < 0 ? sock : 0;
	unlink(addr->sun_path); /* a killed process may have left a socket of this name */
	if (!ret && (bind(sock, (const struct sockaddr *)addr, sizeof(*addr)) ||
		     listen(sock, (int)PST_GROUP_MAX)))
		ret = join_fail_errno(errno, addr->sun_path, "cannot listen");
	if (!ret)
		ret = accept_all(g, sock, addr->sun_path, until, &late);
	unlink(addr->sun_path);
	if (sock >= 0)
		close(sock);
	answer_all(g, ret, &late);
	pst_link_close(&late);
	unlink(lock_path);
	close(held);
	return ret;
}

/* ---- the other ranks ---- */

static int connect_to_root(struct penstock_group *g, const struct sockaddr_un *addr, uint64_t until)
{
	for (;;) {
		int code, sock = open_socket(addr->sun_path);

		if (sock < 0)
			return sock;
		if (!connect(sock, (const struct sockaddr *)addr, sizeof(*addr))) {
			g->links[0].sock = sock;
			return 0;
		}
		code = errno;
		close(sock);
		if (code != ENOENT && code != ECONNREFUSED && code != EINTR && code != EAGAIN)
			return join_fail_errno(code, addr->sun_path, "cannot be connected to");
		if (pst_group_now_ms() >= until)
			return join_fail(ETIMEDOUT, PENSTOCK_WHY_DEADLINE, addr->sun_path,
					 "rank 0 has not joined");
		code = pst_group_poll_caller(g);
		if (code)
			return code;
		sleep_ms(RETRY_MS);
	}
}

static int join_as_member(struct penstock_group *g, const struct sockaddr_un *addr, uint64_t until)
{
	struct pst_packet own = {.seq = 1, .rank = g->rank}, answer;
	struct hello hello = make_hello(g);
	const struct pst_message mine = {(unsigned char *)&hello, sizeof(hello), -1};
	struct pst_message message = g->scratch;
	int ret = connect_to_root(g, addr, until), off;
	uint64_t soon;

	if (ret)
		return ret;
	if (check_peer(&g->links[0]))
		return join_fail(EPERM, PENSTOCK_WHY_NO_PERMISSION, addr->sun_path,
				 "another user's process listens there");
	/* Ignores a failure to send: the receive below then finds the socket closed. */
	pst_link_send(&g->links[0], until, &own, &mine);
	do {
		soon = pst_group_next_poll_ms(g, until);
		ret = pst_link_receive(&g->links[0], soon, &answer, &message);
		off = ret == -ETIMEDOUT ? pst_group_poll_caller(g) : 0;
	} while (ret == -ETIMEDOUT && soon < until && !off);
	if (off)
		return off;
	if (ret == -ETIMEDOUT)
		return join_fail(ETIMEDOUT, PENSTOCK_WHY_DEADLINE, addr->sun_path,
				 "not all ranks have joined");
	if (ret < 0)
		return join_fail(ECONNRESET, PENSTOCK_WHY_IO_ERROR, addr->sun_path,
				 "rank 0 exited before all ranks had joined");
	if (answer.code)
		return pst_weights_fail(answer.code, (enum penstock_why)answer.why, NULL, NULL,
					PST_NO_OFF, "%s", answer.text);
	if (message.fd >= 0)
		close(message.fd);
	memcpy(&hello, message.bytes, message.len < sizeof(hello) ? message.len : sizeof(hello));
	if (message.len != sizeof(hello) || hello.version != VERSION ||
	    !settings_valid(&hello.settings))
		return join_fail(EPROTO, PENSTOCK_WHY_BAD_ARGUMENT, addr->sun_path,
				 "rank 0 uses another version of the library");
	g->settings = hello.settings;
	return 0;
}

/* ---- open and close ---- */

/* Waits for settings.delay_ms, because hosts that load the same model start at different times.
 * Calls the caller's callback during the wait. */
static int await_turn(struct penstock_group *g)
{
	uint64_t until = pst_group_now_ms() + g->settings.delay_ms;
	bool quiet = true;
	int ret = 0;

	while (quiet && !ret && pst_group_now_ms() < until) {
		quiet = sleep_ms((uint32_t)pst_group_ms_until(pst_group_next_poll_ms(g, until)));
		ret = pst_group_poll_caller(g);
	}
	return ret;
}

static int check_args(const char *name, unsigned rank, unsigned size,
		      const struct penstock_group_opts *opts)
{
	if (!name || !*name || strchr(name, '/'))
		return join_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL,
				 "a group's name must not be empty or have a slash in it");
	if (strlen(name) >= sizeof(((struct penstock_group *)0)->name))
		return pst_weights_fail(ENAMETOOLONG, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL,
					PST_NO_OFF, "a group's name may have %zu bytes at most",
					sizeof(((struct penstock_group *)0)->name) - 1);
	if (!size || size > PST_GROUP_MAX || rank >= size)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"rank %u of %u ranks: ranks are numbered from 0, and a "
					"group has %u at most",
					rank, size, PST_GROUP_MAX);
	if (opts->hosts ? opts->host >= opts->hosts : opts->host)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"host %u of %u hosts: hosts are numbered from 0",
					opts->host, opts->hosts);
	if (opts->window % 4096 || opts->window > 1u << 30 ||
	    opts->windows > PST_GROUP_WINDOWS_MAX || opts->windows == 1)
		return join_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL,
				 "a rank has 2 to 64 windows, each of whole pages up to 1 GiB");
	return 0;
}

static struct pst_group_settings choose_settings(const struct penstock_group_opts *opts)
{
	unsigned hosts = opts->hosts ? opts->hosts : 1;
	uint32_t random = 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = (uint32_t)pst_group_now_ms();
	return (struct pst_group_settings){
		.window = opts->window ? opts->window : WINDOW,
		.windows = opts->windows ? opts->windows : WINDOWS,
		.stall_ms = opts->stall_ms ? opts->stall_ms : STALL_MS,
		.reads_max = opts->reads_max,
		.host = opts->host,
		.hosts = hosts,
		.delay_ms = pst_group_plan_delay(opts->jitter_ms, opts->host, hosts, random),
	};
}

static struct penstock_group *group_new(const char *name, unsigned rank, unsigned size,
					const struct penstock_group_opts *opts)
{
	struct penstock_group *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->rank = rank;
	g->size = size;
	g->lost.rank = -1;
	g->pid = getpid();
	g->seq = 1;
	g->settings = choose_settings(opts);
	snprintf(g->name, sizeof(g->name), "%s", name);
	g->links = calloc(size, sizeof(*g->links));
	g->packets = calloc(size, sizeof(*g->packets));
	g->empty = calloc(size, sizeof(*g->empty));
	g->scratch = (struct pst_message){malloc(PST_MESSAGE_MAX), 0, -1};
	for (unsigned i = 0; g->links && i < size; i++)
		g->links[i] = PST_LINK_NONE;
	for (unsigned i = 0; g->empty && i < size; i++)
		g->empty[i] = g->scratch;
	if (g->links && g->packets && g->empty && g->scratch.bytes)
		return g;
	penstock_group_close(g);
	return NULL;
}

int penstock_group_open(const char *name, unsigned rank, unsigned size,
			const struct penstock_group_opts *from, struct penstock_group **out)
{
	struct pst_load caller = {.failed = 0};
	struct penstock_group_opts opts;
	struct sockaddr_un addr;
	struct penstock_group *g;
	uint64_t until;
	int ret = pst_weights_struct_in(&opts, sizeof(opts), from, "penstock_group_opts");

	if (!ret && !out)
		ret = pst_weights_fail_null("the output pointer");
	if (!ret)
		ret = check_args(name, rank, size, &opts);
	if (ret)
		return ret;
	g = group_new(name, rank, size, &opts);
	if (!g)
		return pst_weights_no_memory("a group");
	until = pst_group_now_ms() + (opts.timeout_ms ? opts.timeout_ms : TIMEOUT_MS);
	caller.opts.look = opts.look;
	caller.opts.user = opts.user;
	pst_group_set_progress(g, &caller);
	if (size > 1)
		ret = make_address(g, opts.dir, &addr);
	if (!ret && size > 1)
		ret = rank ? join_as_member(g, &addr, until) : join_as_root(g, &addr, until);
	if (!ret)
		ret = await_turn(g);
	pst_group_set_progress(g, NULL);
	if (ret) {
		penstock_group_close(g);
		return ret;
	}
	*out = g;
	return 0;
}

void penstock_group_close(struct penstock_group *g)
{
	struct pst_packet packet = {.seq = PST_SEQ_LEFT};

	if (!g)
		return;
	for (unsigned i = 0; g->links && i < g->size; i++) {
		/* Tells the other ranks that this rank closes the group, so that they do not
		 * take its exit for a crash. */
		if (g->links[i].sock >= 0 && g->pid == getpid())
			pst_link_send(&g->links[i], 0, &packet, NULL);
		pst_link_close(&g->links[i]);
	}
	free(g->links);
	free(g->packets);
	free(g->empty);
	free(g->scratch.bytes);
	free(g);
}
