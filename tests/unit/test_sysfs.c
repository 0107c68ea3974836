/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the functions that read files of sysfs for the topology and the block stack: PCI
 * addresses, CPU lists and numbers. Reading files below a root folder must never leave that folder
 * and never block. tests/run runs this test.
 */
#include "../test.h"

#include <pthread.h>
#include <stdbool.h>

#include "../replay/tree.h"
#include "core/machine/cpus.h"
#include "core/machine/pci_address.h"
#include "core/machine/sysfs.h"

static void pci_addresses(void **state)
{
	static const struct {
		/* `want`: normal form of the address, NULL if `text` is refused. */
		const char *text, *want;
	} cases[] = {
		{"0000:04:00.0", "0000:04:00.0"},
		{"00000000:AF:1f.7", "0000:af:1f.7"},
		{"4:0.0", "0000:04:00.0"},
		{"10000:e1:00.0", "10000:e1:00.0"},
		{"ffffffff:00:00.0", "ffffffff:00:00.0"},
		{"", NULL},
		{"0000:04:00", NULL},
		{"0000:04:20.0", NULL},
		{"0000:04:00.8", NULL},
		{"0000:104:00.0", NULL},
		{"000000000:04:00.0", NULL},
		{"0000:04:00.0 ", NULL},
		{" 0000:04:00.0", NULL},
		{"0000:04:-1.0", NULL},
		{"g000:04:00.0", NULL},
		{"0000::00.0", NULL},
		{":04:00.0", NULL},
		{"0000:04:00.", NULL},
		{"0000:04:00.00", NULL},
	};
	char got[PST_BDF_LEN];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int ret = pst_bdf_normal(cases[i].text, got);

		if (!cases[i].want && ret != -EINVAL)
			fail_msg("'%s' returned %d", cases[i].text, ret);
		if (cases[i].want && (ret < 0 || strcmp(got, cases[i].want)))
			fail_msg("'%s' returned %d '%s'", cases[i].text, ret, ret < 0 ? "" : got);
	}
	assert_int_equal(pst_bdf_normal(NULL, got), -EINVAL);
}

static void cpu_lists(void **state)
{
	static const struct {
		const char *text;
		int ret;
		unsigned count;
	} cases[] = {
		{"", 0, 0},
		{"0", 0, 1},
		{"0-3", 0, 4},
		{"0-3,8,10-11", 0, 7},
		{"8191", 0, 1},
		{"3-3", 0, 1},
		{"1,1", 0, 1},
		{"8192", -ERANGE, 0},
		{"0-8192", -ERANGE, 0},
		{"3-1", -EINVAL, 0},
		{"1,", -EINVAL, 0},
		{",1", -EINVAL, 0},
		{"1-", -EINVAL, 0},
		{"a", -EINVAL, 0},
		{"1 2", -EINVAL, 0},
		{"0-7:1/2", -EINVAL, 0},
		{"-1", -EINVAL, 0},
		{"99999999999999999999", -ERANGE, 0},
	};
	struct pst_cpus cpus;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int ret = pst_cpus_parse(cases[i].text, &cpus);

		if (ret != cases[i].ret || (!ret && pst_cpus_count(&cpus) != cases[i].count))
			fail_msg("'%s' returned %d and %u CPUs", cases[i].text, ret,
				 ret ? 0 : pst_cpus_count(&cpus));
	}
	assert_int_equal(pst_cpus_parse("0-3,8", &cpus), 0);
	assert_true(pst_cpus_has(&cpus, 8));
	assert_false(pst_cpus_has(&cpus, 4));
	assert_false(pst_cpus_has(&cpus, PST_CPUS_MAX));
}

static void numbers(void **state)
{
	static const char *const bad[] = {"",	"x",  " 1",   "1 ",
					  "+1", "0x", "0x-1", "--1",
					  "-",	"1a", "0x1g", "99999999999999999999"};
	int64_t value;
	size_t i;

	(void)state;
	assert_int_equal(pst_number_parse("-1", &value), 0);
	assert_int_equal(value, -1);
	assert_int_equal(pst_number_parse("0x10DE", &value), 0);
	assert_int_equal(value, 0x10de);
	assert_int_equal(pst_number_parse("010", &value), 0);
	assert_int_equal(value, 10);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (pst_number_parse(bad[i], &value) >= 0)
			fail_msg("'%s' was parsed as %lld", bad[i], (long long)value);
}

/* Reading below a root folder never follows a link out of that folder and never blocks. */
static void reads_stay_below_the_root(void **state)
{
	struct pst_sysfs fs;
	char text[64], whole[1024];
	struct tree t;

	(void)state;
	tree_open(&t);
	tree_text(&t, "inside", "inside\n");
	tree_link(&t, "up", "../../../../../../../inside");
	tree_link(&t, "absolute", "/inside");
	tree_link(&t, "round", "round");
	tree_path(&t, whole, sizeof(whole), "fifo");
	assert_int_equal(mkfifo(whole, 0600), 0);
	assert_int_equal(pst_sysfs_open(&fs, t.root), 0);
	if (pst_sysfs_text(&fs, text, sizeof(text), "up") == -ENOENT) {
		pst_sysfs_close(&fs);
		tree_close(&t);
		test_skip("openat2 is refused here, links cannot be confined");
	}
	assert_string_equal(text, "inside");
	assert_int_equal(pst_sysfs_text(&fs, text, sizeof(text), "absolute"), 6);
	assert_int_equal(pst_sysfs_text(&fs, text, sizeof(text), "../../etc/passwd"), -ENOENT);
	assert_int_equal(pst_sysfs_text(&fs, text, sizeof(text), "round"), -ELOOP);
	assert_int_equal(pst_sysfs_text(&fs, text, sizeof(text), "fifo"), -EINVAL);
	assert_int_equal(pst_sysfs_text(&fs, text, sizeof(text), "."), -EINVAL);
	assert_int_equal(pst_sysfs_text(&fs, text, 3, "inside"), -EOVERFLOW);
	assert_string_equal(text, "");
	assert_int_equal(pst_sysfs_link(&fs, text, sizeof(text), "inside"), -EINVAL);
	pst_sysfs_close(&fs);
	pst_sysfs_close(&fs);
	tree_close(&t);
}

static void file_texts(void **state)
{
	char out[64], path[2 * PST_SYSFS_PATH_MAX], *whole = NULL;
	struct pst_names names;
	struct pst_sysfs fs;
	struct tree t;
	ssize_t len;

	(void)state;
	tree_open(&t);
	tree_text(&t, "blanks", " \t two words \t\nsecond line\n");
	tree_text(&t, "bytes", "a\x01\x7f\xff\tz");
	tree_text(&t, "empty", "");
	tree_link(&t, "link", "some/where/far");
	assert_int_equal(pst_sysfs_open(&fs, t.root), 0);
	assert_int_equal(pst_sysfs_text(&fs, out, sizeof(out), "blanks"), 9);
	assert_string_equal(out, "two words");
	assert_int_equal(pst_sysfs_text(&fs, out, sizeof(out), "bytes"), 6);
	assert_string_equal(out, "a??? z");
	assert_int_equal(pst_sysfs_text(&fs, out, sizeof(out), "empty"), 0);
	assert_int_equal(pst_sysfs_text(&fs, out, 0, "empty"), -EINVAL);
	assert_int_equal(pst_sysfs_link(&fs, out, sizeof(out), "link"), 14);
	assert_int_equal(pst_sysfs_link(&fs, out, 14, "link"), -EOVERFLOW);
	assert_int_equal(pst_sysfs_link_name(&fs, out, sizeof(out), "link"), 3);
	assert_string_equal(out, "far");
	assert_int_equal(pst_sysfs_link_name(&fs, out, 3, "link"), -EOVERFLOW);
	memset(path, 'p', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(pst_sysfs_text(&fs, out, sizeof(out), "%s", path), -ENAMETOOLONG);
	assert_int_equal(pst_sysfs_list(&fs, &names, "%s", path), -ENAMETOOLONG);
	assert_false(pst_sysfs_exists(&fs, "%s", path));
	memset(path, 'q', sizeof(path));
	tree_bytes(&t, "large", path, sizeof(path));
	len = pst_sysfs_file(&fs, &whole, sizeof(path), "large");
	assert_int_equal(len, sizeof(path));
	assert_int_equal(whole[len], '\0');
	free(whole);
	assert_int_equal(pst_sysfs_file(&fs, &whole, sizeof(path) - 1, "large"), -EFBIG);
	assert_int_equal(pst_sysfs_file(&fs, &whole, 100, "nothing"), -ENOENT);
	pst_sysfs_close(&fs);
	tree_close(&t);
}

/* Names in a list are sorted by the numbers in them. Names that begin with a dot are left out. */
static void directory_lists(void **state)
{
	static const char *const want[] = {"nvme1", "nvme2", "nvme10", "sda"};
	struct pst_names names;
	struct pst_sysfs fs;
	struct tree t;
	size_t i;

	(void)state;
	tree_open(&t);
	tree_text(&t, "d/nvme10", "");
	tree_text(&t, "d/sda", "");
	tree_text(&t, "d/nvme2", "");
	tree_text(&t, "d/nvme1", "");
	tree_text(&t, "d/.hidden", "");
	assert_int_equal(pst_sysfs_open(&fs, t.root), 0);
	assert_int_equal(pst_sysfs_list(&fs, &names, "d"), 0);
	assert_int_equal(names.count, 4);
	for (i = 0; i < names.count; i++)
		assert_string_equal(names.name[i], want[i]);
	assert_false(names.truncated);
	pst_names_free(&names);
	assert_int_equal(pst_sysfs_list(&fs, &names, "d/sda"), -ENOTDIR);
	assert_int_equal(pst_sysfs_list(&fs, &names, "none"), -ENOENT);
	pst_sysfs_close(&fs);
	tree_close(&t);
}

/* While any process renames files, resolving a path with ".." may fail with EAGAIN. The library
 * must then try again. */
static _Atomic bool renaming;

static void *rename_loop(void *arg)
{
	const char *root = arg;
	char a[1100], b[1100];

	snprintf(a, sizeof(a), "%s/a", root);
	snprintf(b, sizeof(b), "%s/b", root);
	while (renaming)
		if (rename(a, b) || rename(b, a))
			return arg;
	return NULL;
}

static void reads_during_renames(void **state)
{
	char root[] = "/tmp/penstock-sysfs-XXXXXX", text[16];
	struct pst_sysfs fs;
	pthread_t threads[2];
	void *failed;

	(void)state;
	assert_non_null(mkdtemp(root));
	tree_run("cd '%s' && mkdir -p d/e r0 r1 && echo yes >d/text && "
		 "ln -s ../../d/text d/e/link && touch r0/a r1/a",
		 root);
	assert_int_equal(pst_sysfs_open(&fs, root), 0);
	renaming = true;
	for (unsigned i = 0; i < 2; i++) {
		static char place[2][64];

		snprintf(place[i], sizeof(place[i]), "%s/r%u", root, i);
		assert_int_equal(pthread_create(&threads[i], NULL, rename_loop, place[i]), 0);
	}
	for (unsigned i = 0; i < 20000; i++)
		if (pst_sysfs_text(&fs, text, sizeof(text), "d/e/link") != 3)
			fail_msg("read %u of the link failed", i);
	renaming = false;
	for (unsigned i = 0; i < 2; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	pst_sysfs_close(&fs);
	tree_run("rm -r '%s'", root);
}

int main(void)
{
	/* clang-format off */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pci_addresses),
		cmocka_unit_test(cpu_lists),
		cmocka_unit_test(numbers),
		cmocka_unit_test(reads_stay_below_the_root),
		cmocka_unit_test(file_texts),
		cmocka_unit_test(directory_lists),
		cmocka_unit_test(reads_during_renames),
	};
	/* clang-format on */

	return cmocka_run_group_tests(tests, NULL, NULL);
}
