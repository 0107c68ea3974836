/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how the library recognises layers of the device mapper: by the table, or by the uuid if
 * there is no table. Only root can query the table, but captures of machines contain it. Every user
 * can read the uuid. Also tests garbled binary answers of the kernel. tests/run runs this test.
 */
#include "../replay/judge.h"

#include <linux/dm-ioctl.h>

#include "storage/dmtable.h"

static void dm_tables(void **state)
{
	static const struct {
		/* `word`: word that the reason must contain, NULL if the verdict is "direct". */
		const char *table, *word;
	} cases[] = {
		{"0 100 linear 259:1 2048\n", NULL},
		{"0 100 linear\n100 100 linear\n", NULL},
		{"0 100 striped 2 256 259:1 0 259:2 0\n", NULL},
		{"0 50 linear\n50 50 striped 2 256", NULL},
		{"0 100 raid raid1 3 0 region_size", NULL},
		{"0 100 raid raid0 1 128", NULL},
		{"0 100 raid raid10 1 128", NULL},
		{"0 100 raid raid5_ls 1 128", "raid456"},
		{"0 100 raid raid6_zr 1 128", "raid456"},
		{"0 100 raid raid17 1 128", "dm-raid"},
		{"0 100 crypt aes-xts-plain64 - 0 259:1 0", "dm-crypt"},
		{"0 50 linear 259:1 0\n50 50 crypt -", "dm-crypt"},
		{"0 50 crypt -\n50 50 linear 259:1 0\n", "dm-crypt"},
		{"0 50 crypt -\n50 50 striped 2 256", "dm-crypt"},
		{"0 50 striped 2 256\n50 50 crypt -", "dm-crypt"},
		{"0 50 raid raid1 3\n50 50 crypt -", "dm-crypt"},
		{"0 50 raid raid10 3\n50 50 crypt -", "dm-crypt"},
		{"0 100 thin 254:3 1", "dm-thin"},
		{"0 100 multipath 0 0 1 1 service-time", "dm-multipath"},
		{"0 100 cache 254:1", "dm-cache"},
		{"0 100 zero", "dm-zero"},
		{"0 100 linearly", "dm-linearly"},
	};
	struct pst_blockstack stack;
	struct tree t;
	size_t i;

	(void)state;
	plant(&t);
	plant_dm(&t, "dm-0", "254:0", "LVM-ab\n", "nvme0n1");
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tree_text(&t, "captured/dm-table/dm-0", cases[i].table);
		stack = walk(&t, 254, 0);
		if (cases[i].word)
			assert_not(&stack, cases[i].word);
		else
			assert_direct(&stack);
		if (i == 2)
			assert_int_equal(stack.stripe_bytes, 256 * 512);
	}
	/* An empty table is ignored, so that the uuid decides. */
	tree_text(&t, "captured/dm-table/dm-0", "");
	stack = walk(&t, 254, 0);
	assert_direct(&stack);
	/* A garbled table is ignored, too. The device's uuid is of no known kind, so the device
	 * must not count as direct. */
	tree_text(&t, "captured/dm-table/dm-0", "0 100 linear\nwhat\n");
	tree_text(&t, "sys/devices/virtual/block/dm-0/dm/uuid", "mine-1\n");
	stack = walk(&t, 254, 0);
	assert_not(&stack, "dm-mine");
	tree_close(&t);
}

/* An ordinary user may not query the device-mapper table. The library then decides by the uuid of
 * the device. */
static void dm_uuids(void **state)
{
	static const struct {
		const char *uuid, *word;
	} cases[] = {
		{"LVM-abc\n", NULL},
		{"part1-mpath-abc\n", NULL},
		{"CRYPT-LUKS2-abc\n", "dm-crypt"},
		{"CRYPT-VERITY-abc\n", "dm-verity"},
		{"CRYPT-INTEGRITY-abc\n", "dm-integrity"},
		{"mpath-abc\n", "dm-multipath"},
		{"DMRAID-abc\n", "dm-DMRAID"},
		{"part-abc\n", "dm-part"},
		{"\n", "dm on dm-0"},
	};
	struct pst_blockstack stack;
	struct tree t;
	size_t i;

	(void)state;
	plant(&t);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		plant_dm(&t, "dm-0", "254:0", cases[i].uuid, "nvme0n1");
		stack = walk(&t, 254, 0);
		if (cases[i].word)
			assert_not(&stack, cases[i].word);
		else
			assert_direct(&stack);
	}
	tree_close(&t);
}

/* A logical volume above an internal LVM volume, such as a thin pool, must not count as a plain
 * logical volume. */
static void lvm_internal_volumes(void **state)
{
	struct pst_blockstack stack;
	struct tree t;

	(void)state;
	plant(&t);
	plant_dm(&t, "dm-0", "254:0", "LVM-abc\n", "dm-1");
	plant_dm(&t, "dm-1", "254:1", "LVM-def-tpool\n", "nvme0n1");
	stack = walk(&t, 254, 0);
	assert_not(&stack, "dm-thin");
	plant_dm(&t, "dm-1", "254:1", "LVM-def-real\n", "nvme0n1");
	stack = walk(&t, 254, 0);
	assert_not(&stack, "dm-lvm");
	plant_dm(&t, "dm-1", "254:1", "CRYPT-LUKS2-def\n", "nvme0n1");
	stack = walk(&t, 254, 0);
	assert_not(&stack, "dm-crypt");
	/* The stack begins with an internal LVM volume. */
	plant_dm(&t, "dm-0", "254:0", "LVM-abc-tpool\n", "nvme0n1");
	tree_remove(&t, "sys/devices/virtual/block/dm-0/slaves/dm-1");
	stack = walk(&t, 254, 0);
	assert_not(&stack, "dm-thin");
	plant_dm(&t, "dm-0", "254:0", "LVM-abc-cow\n", "nvme0n1");
	stack = walk(&t, 254, 0);
	assert_not(&stack, "dm-lvm");
	plant_dm(&t, "dm-0", "254:0", "LVM-abc\n", "nvme0n1");
	stack = walk(&t, 254, 0);
	assert_direct(&stack);
	plant_dm(&t, "dm-0", "254:0", "LVM-abc\n", "dm-1");
	/* The layer below is a device-mapper device whose uuid cannot be read. */
	tree_remove(&t, "sys/devices/virtual/block/dm-1/dm/uuid");
	tree_folder(&t, "sys/devices/virtual/block/dm-1/dm/uuid");
	stack = walk(&t, 254, 0);
	assert_not(&stack, "dm-lvm");
	tree_close(&t);
}

/* ---- the kernel's answer ---- */

struct answer {
	struct dm_ioctl head;
	char data[512];
};

/* Appends a target at offset `at` of the answer. Returns the offset for the next target. */
static size_t answer_add_target(struct answer *a, size_t at, const char *target, const char *params)
{
	struct dm_target_spec spec = {.length = 100};
	size_t next = at + sizeof(spec) + ((strlen(params) + 8) & ~(size_t)7);

	snprintf(spec.target_type, sizeof(spec.target_type), "%s", target);
	spec.next = (uint32_t)next;
	memcpy(a->data + at, &spec, sizeof(spec));
	memcpy(a->data + at + sizeof(spec), params, strlen(params) + 1);
	a->head.target_count++;
	return next;
}

static struct answer answer(void)
{
	struct answer a = {.head = {.data_size = sizeof(a), .data_start = sizeof(a.head)}};

	return a;
}

static void kernel_answers(void **state)
{
	struct answer a = answer();
	struct pst_dm dm = {0};
	size_t at;

	(void)state;
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), -ENODATA);
	at = answer_add_target(&a, 0, "linear", "259:1 2048");
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), 0);
	assert_int_equal(dm.kind, PST_LAYER_LINEAR);
	at = answer_add_target(&a, at, "striped", "2 256 259:1 0 259:2 0");
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), 0);
	assert_int_equal(dm.kind, PST_LAYER_RAID0);
	assert_int_equal(dm.stripe_bytes, 256 * 512);
	answer_add_target(&a, at, "crypt", "");
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), 0);
	assert_int_equal(dm.kind, PST_LAYER_DM_CRYPT);
}

static void garbled_answers(void **state)
{
	struct answer a = answer();
	struct pst_dm dm = {.kind = PST_LAYER_KINDS};
	struct dm_target_spec spec;

	(void)state;
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a.head) - 1, &dm), -EMSGSIZE);
	answer_add_target(&a, 0, "linear", "259:1 2048");
	a.head.flags = DM_BUFFER_FULL_FLAG;
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), -EMSGSIZE);
	a.head.flags = 0;
	a.head.data_start = sizeof(a) + 1;
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), -EMSGSIZE);
	/* the answer has no space for the parameters of a target */
	a.head.data_start = sizeof(a) - sizeof(spec);
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), -EMSGSIZE);
	a.head.data_start = sizeof(a.head);
	/* The answer says that there is a second target, but it would be outside of the answer. */
	a.head.target_count = 2;
	memcpy(&spec, a.data, sizeof(spec));
	spec.next = UINT32_MAX;
	memcpy(a.data, &spec, sizeof(spec));
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), -EMSGSIZE);
	/* The first target's member `next`, the offset of the next target, points to the first
	 * target itself. */
	spec.next = 0;
	memcpy(a.data, &spec, sizeof(spec));
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), -EMSGSIZE);
	/* The parameters are not NUL-terminated. */
	a.head.target_count = 1;
	memset(a.data + sizeof(spec), 'x', sizeof(a.data) - sizeof(spec));
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), -EMSGSIZE);
	assert_int_equal(dm.kind, PST_LAYER_KINDS);
	/* The target's name is not NUL-terminated. */
	memset(a.data, 'x', sizeof(a.data));
	a.data[sizeof(a.data) - 1] = '\0';
	assert_int_equal(pst_dm_take_answer(&a, sizeof(a), &dm), 0);
	assert_int_equal(dm.kind, PST_LAYER_DM_OTHER);
}

int main(void)
{
	/* clang-format off */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dm_tables),
		cmocka_unit_test(dm_uuids),
		cmocka_unit_test(lvm_internal_volumes),
		cmocka_unit_test(kernel_answers),
		cmocka_unit_test(garbled_answers),
	};
	/* clang-format on */

	return cmocka_run_group_tests(tests, NULL, NULL);
}
