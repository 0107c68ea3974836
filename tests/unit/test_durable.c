/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests that the gateway's acknowledged changes survive a power cut. The linker wraps the system
 * calls of the gateway, and a model records which folder entries and which files have been synced.
 * The model has these rules:
 *   - a file is synced before its name appears;
 *   - when a call returns, the entries that it has made or removed are synced;
 *   - while a folder replaces an object under the same name, a power cut at any moment does not
 *     lose the object.
 * The files are real. The model assumes that a power cut may lose any unsynced entry and keep the
 * other entries.
 */
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>

#include "gateway/folder.h"
#include "gateway/keypath.h"
#include "gateway/store.h"
#include "gateway/upload.h"

#define ENTRIES 256
#define FILES 64

/* A name in a folder. `live` is the inode to which it leads now, and `durable` the inode to which
 * it leads after a power cut. 0 means that the name does not exist. */
struct entry {
	ino_t folder, live, durable;
	char name[96];
};

static struct entry entries[ENTRIES];
static unsigned entry_count;
static ino_t synced[FILES]; /* files that were synced after their last change */
/* description of the first broken rule; empty if none is broken */
static char broken[200];
/* the folder of drafts (objects that are still being written), whose entries may be lost in a power
 * cut */
static ino_t tmp_folder;
static bool no_attributes; /* whether the file system refuses extended attributes */
/* Inode of an object that must not be lost, and inode of the folder that contains the object's
 * name; 0: there is no such object. */
static ino_t guarded, guarded_folder;

static void rule_break(const char *what, const char *name)
{
	if (!broken[0])
		snprintf(broken, sizeof(broken), "%s: %s", what, name);
}

/* ---- the model ---- */

static ino_t inode_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) ? 0 : st.st_ino;
}

static struct entry *entry_find(ino_t folder, const char *name)
{
	for (unsigned i = 0; i < entry_count; i++)
		if (entries[i].folder == folder && !strcmp(entries[i].name, name))
			return &entries[i];
	return NULL;
}

static bool is_synced(ino_t file)
{
	for (unsigned i = 0; i < FILES; i++)
		if (synced[i] == file)
			return true;
	return false;
}

static void file_changed(ino_t file)
{
	for (unsigned i = 0; i < FILES; i++)
		if (synced[i] == file)
			synced[i] = 0;
}

static void file_synced(ino_t file)
{
	file_changed(file);
	for (unsigned i = 0; i < FILES; i++)
		if (!synced[i]) {
			synced[i] = file;
			return;
		}
	fail_msg("FILES is too small");
}

/* Returns whether a name leads to an inode both now and after a power cut. */
static bool leads_to(const struct entry *e, ino_t file)
{
	return e && e->live == file && e->durable == file;
}

/* Returns whether the guarded object can be found if its name leads to the inode `found`. This
 * inode must be the object itself, or a folder that contains the object. It may also be a folder
 * with a link, while the folder of drafts contains the object. */
static bool guarded_in(ino_t found)
{
	const struct entry *moving = entry_find(found, GW_MOVING);

	if (found == guarded || leads_to(entry_find(found, GW_SELF), guarded))
		return true;
	if (!moving || !moving->live || moving->live != moving->durable)
		return false;
	for (unsigned i = 0; i < entry_count; i++)
		if (entries[i].folder == tmp_folder && entries[i].live == guarded)
			return true;
	return false;
}

static void guarded_check(const char *call)
{
	const struct entry *e = guarded ? entry_find(guarded_folder, "object") : NULL;

	if (guarded && (!e || !guarded_in(e->live) || !guarded_in(e->durable)))
		rule_break("a power cut loses the object after", call);
}

/* Records the inode to which a name leads after a call has changed the name. */
static void entry_changed(int dir, const char *name, const char *call)
{
	ino_t folder = inode_of(dir);
	struct entry *e = entry_find(folder, name);
	struct stat st;
	bool gone = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0;

	if (!e) {
		assert_true(entry_count < ENTRIES);
		e = &entries[entry_count++];
		*e = (struct entry){.folder = folder};
		snprintf(e->name, sizeof(e->name), "%s", name);
	}
	e->live = gone ? 0 : st.st_ino;
	if (!gone && S_ISREG(st.st_mode) && folder != tmp_folder && !is_synced(st.st_ino))
		rule_break("the name of a file appears before the file is synced", name);
	guarded_check(call);
}

static void folder_synced(ino_t folder)
{
	for (unsigned i = 0; i < entry_count; i++)
		if (entries[i].folder == folder)
			entries[i].durable = entries[i].live;
}

/* ---- the wrappers ---- */

/* Only records the sync. The model needs no real sync, which is slow on a drive. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return -1;
	if (S_ISDIR(st.st_mode))
		folder_synced(st.st_ino);
	else
		file_synced(st.st_ino);
	return 0;
}

ssize_t __real_write(int fd, const void *bytes, size_t len);
ssize_t __wrap_write(int fd, const void *bytes, size_t len);
ssize_t __wrap_write(int fd, const void *bytes, size_t len)
{
	file_changed(inode_of(fd));
	return __real_write(fd, bytes, len);
}

ssize_t __real_pwrite64(int fd, const void *bytes, size_t len, off64_t at);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t len, off64_t at);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t len, off64_t at)
{
	file_changed(inode_of(fd));
	return __real_pwrite64(fd, bytes, len, at);
}

int __real_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags)
{
	file_changed(inode_of(fd));
	if (no_attributes) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return __real_fsetxattr(fd, name, value, len, flags);
}

int __real_mkdirat(int dir, const char *name, mode_t mode);
int __wrap_mkdirat(int dir, const char *name, mode_t mode);
int __wrap_mkdirat(int dir, const char *name, mode_t mode)
{
	int ret = __real_mkdirat(dir, name, mode);
	struct stat st;

	if (ret)
		return ret;
	if (!strcmp(name, "tmp") && !fstatat(dir, name, &st, 0))
		tmp_folder = st.st_ino;
	entry_changed(dir, name, "mkdirat");
	return 0;
}

int __real_linkat(int from, const char *old, int dir, const char *name, int flags);
int __wrap_linkat(int from, const char *old, int dir, const char *name, int flags);
int __wrap_linkat(int from, const char *old, int dir, const char *name, int flags)
{
	int ret = __real_linkat(from, old, dir, name, flags);

	if (!ret)
		entry_changed(dir, name, "linkat");
	return ret;
}

int __real_symlinkat(const char *to, int dir, const char *name);
int __wrap_symlinkat(const char *to, int dir, const char *name);
int __wrap_symlinkat(const char *to, int dir, const char *name)
{
	int ret = __real_symlinkat(to, dir, name);

	if (!ret)
		entry_changed(dir, name, "symlinkat");
	return ret;
}

int __real_renameat(int from, const char *old, int dir, const char *name);
int __wrap_renameat(int from, const char *old, int dir, const char *name);
int __wrap_renameat(int from, const char *old, int dir, const char *name)
{
	int ret = __real_renameat(from, old, dir, name);

	if (!ret) {
		entry_changed(dir, name, "renameat");
		entry_changed(from, old, "renameat");
	}
	return ret;
}

int __real_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags)
{
	int ret = __real_unlinkat(dir, name, flags);

	if (!ret)
		entry_changed(dir, name, "unlinkat");
	return ret;
}

/* Passes five arguments to syscall(2), because the gateway calls renameat2 with five. It calls
 * openat2 with four. */
long __real_syscall(long number, ...);
long __wrap_syscall(long number, long a, long b, long c, long d, long e);
long __wrap_syscall(long number, long a, long b, long c, long d, long e)
{
	long ret = __real_syscall(number, a, b, c, d, e);
	ino_t was = guarded;

	if (!ret && number == SYS_renameat2) {
		/* renameat2 changes both names in one step, so the guarded object is checked only
		 * after both are recorded. */
		guarded = 0;
		entry_changed((int)a, (const char *)b, "renameat2");
		guarded = was;
		entry_changed((int)c, (const char *)d, "renameat2");
	}
	return ret;
}

/* ---- the cases ---- */

struct place {
	char root[256];
	struct gw_store store;
	int bucket;
};

static void place_open(struct place *p, bool unnamed)
{
	char why[256] = "";

	entry_count = 0;
	memset(synced, 0, sizeof(synced));
	broken[0] = '\0';
	tmp_folder = guarded = 0;
	no_attributes = false;
	test_file_name(p->root, sizeof(p->root) - 10, "durable-XXXXXX");
	snprintf(p->root + strlen(p->root), 10, "-XXXXXX");
	assert_non_null(mkdtemp(p->root));
	if (gw_store_open(&p->store, p->root, why, sizeof(why)))
		fail_msg("%s", why);
	assert_int_equal(tmp_folder, inode_of(p->store.tmp));
	if (unnamed && !p->store.unnamed)
		test_skip("the file system of TMPDIR has no files without a name");
	p->store.unnamed = unnamed;
	assert_int_equal(gw_bucket_make(&p->store, "bucket"), 0);
	p->bucket = gw_bucket_open(&p->store, "bucket");
	assert_true(p->bucket >= 0);
}

static void place_close(struct place *p)
{
	char command[300];

	close(p->bucket);
	gw_store_close(&p->store);
	snprintf(command, sizeof(command), "rm -r '%s'", p->root);
	assert_int_equal(system(command), 0);
}

/* Stores an object. Returns the result of gw_draft_publish. */
static int object_put(struct place *p, const char *key, bool exclusive)
{
	struct gw_draft draft;
	struct gw_meta meta = {0};
	int ret;

	assert_int_equal(gw_draft_open(&p->store, &draft), 0);
	gw_meta_add(&meta, "etag", "1");
	assert_int_equal(gw_draft_write(&draft, key, strlen(key), 0), 0);
	assert_int_equal(gw_draft_finish(&p->store, &draft, &meta), 0);
	ret = gw_draft_publish(&p->store, &draft, p->bucket, key, strlen(key), exclusive);
	gw_draft_close(&p->store, &draft);
	gw_meta_close(&meta);
	return ret;
}

/* Fails if a rule was broken. Also fails if a name outside of the folder of drafts was changed and
 * the change can still be lost. */
static void assert_all_durable(void)
{
	assert_string_equal(broken, "");
	for (unsigned i = 0; i < entry_count; i++)
		if (entries[i].folder != tmp_folder && entries[i].live &&
		    entries[i].live != entries[i].durable)
			fail_msg("the folder with the new name %s was not synced", entries[i].name);
}

/* Fails unless the model has recorded every name of a path from the root, and a power cut loses
 * none of them. If `gone` is true, the last name must have been removed durably instead. */
static void assert_path_durable(const struct place *p, const char *path, bool gone)
{
	ino_t folder = inode_of(p->store.root);
	char copy[256], *rest = copy, *name;

	assert_all_durable();
	snprintf(copy, sizeof(copy), "%s", path);
	while ((name = strsep(&rest, "/"))) {
		const struct entry *e = entry_find(folder, name);

		if (!e)
			fail_msg("no call has made or removed %s of %s", name, path);
		if (gone && !rest) {
			assert_int_equal(e->live, 0);
			assert_int_equal(e->durable, 0);
			return;
		}
		assert_int_not_equal(e->live, 0);
		assert_int_equal(e->live, e->durable);
		folder = e->live;
	}
}

/* Stores objects in new and old folders, under new and old names. */
static void put_many(struct place *p)
{
	assert_int_equal(object_put(p, "object", false), 0);
	assert_path_durable(p, "bucket/object", false);
	assert_int_equal(object_put(p, "a/b/c", false), 0);
	assert_path_durable(p, "bucket/a/b/c", false);
	assert_int_equal(object_put(p, "a/b/c", false), 0);
	assert_path_durable(p, "bucket/a/b/c", false);
	assert_int_equal(object_put(p, "a/b/d", true), 0);
	assert_path_durable(p, "bucket/a/b/d", false);
	assert_int_equal(object_put(p, "a/b/d", true), -EEXIST);
	assert_int_equal(object_put(p, "a/b", false), 0);
	assert_path_durable(p, "bucket/a/b/" GW_SELF, false);
}

static void put_is_durable(void **state)
{
	struct place p;

	(void)state;
	place_open(&p, true);
	put_many(&p);
	place_close(&p);
}

static void put_of_named_drafts_is_durable(void **state)
{
	struct place p;

	(void)state;
	place_open(&p, false);
	put_many(&p);
	place_close(&p);
}

static void metadata_in_files_is_durable(void **state)
{
	struct place p;
	unsigned records = 0;

	(void)state;
	place_open(&p, false);
	no_attributes = true;
	put_many(&p);
	for (unsigned i = 0; i < entry_count; i++)
		records += entries[i].folder == inode_of(p.store.meta) && entries[i].live;
	assert_int_equal(records, 4); /* one record of metadata for each object */
	place_close(&p);
}

static void bucket_is_durable(void **state)
{
	struct place p;

	(void)state;
	place_open(&p, false);
	assert_path_durable(&p, "bucket", false);
	assert_int_equal(gw_bucket_make(&p.store, "other"), 0);
	assert_path_durable(&p, "other", false);
	assert_int_equal(gw_bucket_remove(&p.store, "other"), 0);
	assert_path_durable(&p, "other", true);
	place_close(&p);
}

static void removal_is_durable(void **state)
{
	struct place p;

	(void)state;
	place_open(&p, false);
	assert_int_equal(object_put(&p, "a/b", false), 0);
	assert_int_equal(object_put(&p, "a", false), 0);
	assert_int_equal(object_put(&p, "object", false), 0);
	assert_int_equal(gw_object_remove(&p.store, p.bucket, "object", 6), 0);
	assert_path_durable(&p, "bucket/object", true);
	assert_int_equal(gw_object_remove(&p.store, p.bucket, "a", 1), 0);
	assert_path_durable(&p, "bucket/a/" GW_SELF, true);
	place_close(&p);
}

/* Another gateway or another program may have made a folder and been killed before it synced the
 * folder. The gateway must then sync the folder itself. */
static void folders_of_others_are_synced(void **state)
{
	struct place p;
	int other;

	(void)state;
	place_open(&p, false);
	assert_int_equal(mkdirat(p.bucket, "a", 0777), 0);
	assert_int_equal(object_put(&p, "a/b", false), 0);
	assert_path_durable(&p, "bucket/a/b", false);
	assert_int_equal(mkdirat(p.store.root, "other", 0777), 0);
	other = gw_bucket_open(&p.store, "other");
	assert_true(other >= 0);
	close(p.bucket);
	p.bucket = other;
	assert_int_equal(object_put(&p, "object", false), 0);
	assert_path_durable(&p, "other/object", false);
	place_close(&p);
}

static void object_survives_a_folder_of_its_name(void **state)
{
	struct place p;
	struct stat st;
	int ret;

	(void)state;
	place_open(&p, false);
	assert_int_equal(object_put(&p, "object", false), 0);
	assert_int_equal(fstatat(p.bucket, "object", &st, 0), 0);
	guarded_folder = inode_of(p.bucket);
	guarded = st.st_ino;
	ret = object_put(&p, "object/inner", false);
	if (ret == -ENOTSUP)
		test_skip("the file system of TMPDIR cannot exchange two names");
	assert_int_equal(ret, 0);
	assert_path_durable(&p, "bucket/object/inner", false);
	assert_path_durable(&p, "bucket/object/" GW_SELF, false);
	place_close(&p);
}

static void upload_is_durable(void **state)
{
	char id[GW_UPLOAD_ID], path[200];
	struct gw_upload upload;
	struct gw_meta meta = {0}, part_meta = {0};
	struct gw_draft part;
	struct place p;

	(void)state;
	place_open(&p, false);
	assert_int_equal(gw_upload_make(&p.store, "bucket", "key", &meta, id), 0);
	snprintf(path, sizeof(path), ".penstock/multipart/bucket/%s/upload", id);
	assert_path_durable(&p, path, false);
	assert_int_equal(gw_upload_open(&p.store, "bucket", id, "key", &upload), 0);
	assert_int_equal(gw_draft_open(&p.store, &part), 0);
	gw_meta_add(&part_meta, "etag", "1");
	assert_int_equal(gw_draft_write(&part, "bytes", 5, 0), 0);
	assert_int_equal(gw_draft_finish(&p.store, &part, &part_meta), 0);
	assert_int_equal(gw_draft_place(&p.store, &part, upload.dir, "00001"), 0);
	snprintf(path, sizeof(path), ".penstock/multipart/bucket/%s/00001", id);
	assert_path_durable(&p, path, false);
	gw_upload_close(&upload);
	gw_meta_close(&meta);
	gw_meta_close(&part_meta);
	place_close(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_is_durable),
		cmocka_unit_test(put_of_named_drafts_is_durable),
		cmocka_unit_test(metadata_in_files_is_durable),
		cmocka_unit_test(bucket_is_durable),
		cmocka_unit_test(removal_is_durable),
		cmocka_unit_test(folders_of_others_are_synced),
		cmocka_unit_test(object_survives_a_folder_of_its_name),
		cmocka_unit_test(upload_is_durable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
