/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the topology of directory trees that the test creates: roles of bridges, ACS between
 * devices, nodes without CPUs, which cards are GPUs, and trees that are garbled, too deep or
 * circular. tests/run runs it.
 */
#include "../replay/near.h"
#include "../replay/tree.h"

#include "core/machine/numa.h"
#include "core/machine/topo_print.h"

static void plant(const struct tree *t, const char *path, const char *class_)
{
	const char *bdf = strrchr(path, '/') + 1;
	char at[512], to[512];

	snprintf(at, sizeof(at), "sys/devices/%s/class", path);
	tree_text(t, at, class_);
	snprintf(at, sizeof(at), "sys/bus/pci/devices/%s", bdf);
	snprintf(to, sizeof(to), "../../../devices/%s", path);
	tree_link(t, at, to);
}

/* Plants a root port, a switch and two devices. They have no config space, because an ordinary
 * user cannot read it. */
static void plant_switch(const struct tree *t)
{
	plant(t, "pci0000:00/0000:00:01.0", "0x060400\n");
	plant(t, "pci0000:00/0000:00:01.0/0000:01:00.0", "0x060400\n");
	plant(t, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0", "0x060400\n");
	plant(t, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0", "0x060400\n");
	plant(t, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", "0x030200\n");
	plant(t, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", "0x010802\n");
}

/* Writes the config space of the bridge at `path`, with an ACS capability whose control word is
 * `control`. */
static void plant_acs(const struct tree *t, const char *path, uint16_t control)
{
	unsigned char config[4096] = {0};
	char at[512];

	config[0x100] = 13;
	config[0x106] = (unsigned char)control;
	config[0x107] = (unsigned char)(control >> 8);
	snprintf(at, sizeof(at), "sys/devices/%s/config", path);
	tree_bytes(t, at, config, sizeof(config));
}

static void roles_by_position(void **state)
{
	struct pst_topo *topo;
	struct tree t;

	(void)state;
	tree_open(&t);
	plant_switch(&t);
	topo = topo_at(t.root);
	assert_int_equal(pst_topo_pci(topo, "0000:00:01.0")->role, PST_PCI_ROOT_PORT);
	assert_int_equal(pst_topo_pci(topo, "0000:01:00.0")->role, PST_PCI_SWITCH_UP);
	assert_int_equal(pst_topo_pci(topo, "0000:02:01.0")->role, PST_PCI_SWITCH_DOWN);
	assert_int_equal(pst_topo_pci(topo, "0000:04:00.0")->role, PST_PCI_ENDPOINT);
	assert_near(topo, "0000:03:00.0", "0000:04:00.0", "PIX");
	assert_near(topo, "0000:03:00.0", "0000:00:01.0", "PXB");
	pst_topo_close(topo);
	tree_close(&t);
}

/* The config space decides the role of a bridge, because a virtual machine may show a switch
 * without the root port above it. */
static void roles_by_config(void **state)
{
	static const struct {
		unsigned char type;
		int role;
	} cases[] = {{4, PST_PCI_ROOT_PORT}, {5, PST_PCI_SWITCH_UP}, {6, PST_PCI_SWITCH_DOWN}};
	unsigned char config[256] = {0};
	struct pst_topo *topo;
	struct tree t;
	size_t i;

	(void)state;
	tree_open(&t);
	plant(&t, "pci0000:00/0000:00:01.0", "0x060400\n");
	config[0x34] = 0x50;
	config[0x50] = 5; /* The first capability is MSI. */
	config[0x51] = 0x60;
	config[0x60] = 16;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		config[6] = 0x10; /* The device has a capability list. */
		config[0x62] = (unsigned char)(cases[i].type << 4 | 2);
		tree_bytes(&t, "sys/devices/pci0000:00/0000:00:01.0/config", config, 256);
		topo = topo_at(t.root);
		assert_int_equal(topo->pci[0].role, cases[i].role);
		assert_int_equal(topo->pci[0].acs, 0);
		pst_topo_close(topo);
		config[6] = 0;
		tree_bytes(&t, "sys/devices/pci0000:00/0000:00:01.0/config", config, 256);
		topo = topo_at(t.root);
		assert_int_equal(topo->pci[0].role, PST_PCI_ROOT_PORT);
		pst_topo_close(topo);
	}
	tree_close(&t);
}

/* Directory entries in /sys/block and /sys/class/nvme that are no drives are ignored. With more
 * drives than the limit the topology is incomplete. */
static void drives_and_limits(void **state)
{
	struct pst_topo *topo;
	char path[128];
	struct tree t;
	int i;

	(void)state;
	tree_open(&t);
	tree_link(&t, "sys/class/nvme/nvme0", "../../devices/virtual/nvme-fabrics/ctl/nvme0");
	tree_link(&t, "sys/class/nvme/nvme-fabrics", "../../devices/virtual/nvme-fabrics");
	tree_link(&t, "sys/block/loop0", "../devices/virtual/block/loop0");
	tree_link(&t, "sys/block/nvme0n1", "../devices/pci0000:00/0000:00:02.0/nvme/nvme0/nvme0n1");
	tree_link(&t, "sys/block/mmcblk0", "../devices/pci0000:00/0000:00:01.0/mmc0/block/mmcblk0");
	tree_link(&t, "sys/block/vda", "../devices/platform/1.mmio/virtio0/block/vda");
	topo = topo_at(t.root);
	assert_int_equal(topo->end_count, 2);
	assert_string_equal(topo->ends[0].name, "nvme0");
	assert_string_equal(topo->ends[1].name, "vda");
	assert_int_equal(topo->ends[1].pci, -1);
	pst_topo_close(topo);
	for (i = 0; i < PST_TOPO_ENDS_MAX; i++) {
		snprintf(path, sizeof(path), "sys/class/infiniband/mlx5_%d", i);
		tree_link(&t, path, "nowhere");
		snprintf(path, sizeof(path), "sys/class/nvme/nvme%d", i);
		tree_link(&t, path, "nowhere");
		snprintf(path, sizeof(path), "sys/block/vd%d", i);
		tree_link(&t, path, "../devices/platform/1.mmio/virtio0/block/vda");
	}
	topo = topo_at(t.root);
	assert_int_equal(topo->end_count, PST_TOPO_ENDS_MAX);
	assert_false(topo->complete);
	pst_topo_close(topo);
	tree_close(&t);
}

#define SWITCH "pci0000:00/0000:00:01.0/0000:01:00.0"

/* ACS of every bridge on the path between two devices counts, including the topmost one. ACS of a
 * bridge above the path does not count. */
static void acs_between_devices(void **state)
{
	static const char *const ports[] = {SWITCH "/0000:02:00.0", SWITCH "/0000:02:01.0", SWITCH,
					    "pci0000:00/0000:00:01.0"};
	static const uint16_t bits[] = {0x04, 0x08, 0x20};
	struct pst_topo *topo;
	struct tree t;
	size_t i, bit;

	(void)state;
	tree_open(&t);
	plant_switch(&t);
	topo = topo_at(t.root);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:03:00.0", "0000:04:00.0"), -ENODATA);
	pst_topo_close(topo);
	for (i = 0; i < 4; i++)
		/* These are all ACS bits that redirect no peer-to-peer traffic. */
		plant_acs(&t, ports[i], 0x53);
	topo = topo_at(t.root);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:03:00.0", "0000:04:00.0"), 0);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:03:00.0", "0000:0a:00.0"), -ENODEV);
	assert_int_equal(pst_topo_acs_redirects(topo, "what", "0000:04:00.0"), -EINVAL);
	pst_topo_close(topo);
	for (i = 0; i < 4; i++) {
		for (bit = 0; bit < 3; bit++) {
			plant_acs(&t, ports[i], bits[bit]);
			topo = topo_at(t.root);
			assert_int_equal(
				pst_topo_acs_redirects(topo, "0000:03:00.0", "0000:04:00.0"),
				i < 3);
			pst_topo_close(topo);
		}
		plant_acs(&t, ports[i], 0);
	}
	/* One bridge redirects, and ACS of another bridge is unknown. The result is 1 (redirected).
	 */
	plant_acs(&t, ports[0], 0x04);
	tree_remove(&t, "sys/devices/" SWITCH "/0000:02:01.0/config");
	topo = topo_at(t.root);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:03:00.0", "0000:04:00.0"), 1);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:04:00.0", "0000:03:00.0"), 1);
	pst_topo_close(topo);
	tree_close(&t);
}

static void nodes_and_cpus(void **state)
{
	struct pst_topo *topo;
	struct pst_cpus cpus;
	struct tree t;

	(void)state;
	tree_open(&t);
	plant(&t, "pci0000:00/0000:00:01.0", "0x010802\n");
	plant(&t, "pci0001:00/0001:00:01.0", "0x010802\n");
	plant(&t, "pci0000:05/0000:05:00.0", "0x010802\n");
	topo = topo_at(t.root);
	assert_int_equal(pst_topo_cpus_near(topo, "0000:00:01.0", &cpus), -ENODATA);
	assert_int_equal(pst_topo_numa_of(topo, "0000:00:01.0"), -ENODATA);
	assert_int_equal(pst_topo_numa_of(topo, "0000:00:02.0"), -ENODEV);
	/* Two devices have the same address in two PCI domains. Their distance counts as SYS. */
	assert_int_equal(topo->pci_count, 3);
	assert_non_null(pst_topo_pci(topo, "0000:05:00.0"));
	assert_near(topo, "0000:00:01.0", "0001:00:01.0", "SYS");
	pst_topo_close(topo);
	tree_text(&t, "sys/devices/system/cpu/online", "0-11\n");
	topo = topo_at(t.root);
	assert_int_equal(pst_topo_cpus_near(topo, "0000:00:01.0", &cpus), 0);
	assert_int_equal(pst_cpus_count(&cpus), 12);
	pst_topo_close(topo);
	tree_text(&t, "sys/devices/system/node/node0/cpulist", "0-7\n");
	tree_text(&t, "sys/devices/system/node/node0/distance", "10 20 30\n");
	tree_text(&t, "sys/devices/system/node/node1/cpulist", "8-11\n");
	/* Node 2 has memory but no CPUs. */
	tree_text(&t, "sys/devices/system/node/node2/cpulist", "\n");
	tree_text(&t, "sys/devices/pci0000:00/0000:00:01.0/numa_node", "1\n");
	tree_text(&t, "sys/devices/pci0001:00/0001:00:01.0/numa_node", "2\n");
	topo = topo_at(t.root);
	assert_int_equal(pst_topo_cpus_near(topo, "0000:00:01.0", &cpus), 0);
	assert_int_equal(pst_cpus_count(&cpus), 4);
	assert_int_equal(pst_topo_cpus_near(topo, "0001:00:01.0", &cpus), 0);
	assert_int_equal(pst_cpus_count(&cpus), 12);
	assert_string_equal(topo->nodes[0].distance, "10 20 30");
	pst_topo_close(topo);
	/* The device's own CPU list takes precedence over the CPU list of its node. */
	tree_text(&t, "sys/devices/pci0000:00/0000:00:01.0/local_cpulist", "3\n");
	topo = topo_at(t.root);
	assert_int_equal(pst_topo_cpus_near(topo, "0000:00:01.0", &cpus), 0);
	assert_true(pst_cpus_has(&cpus, 3) && pst_cpus_count(&cpus) == 1);
	pst_topo_close(topo);
	tree_close(&t);
}

/* If a machine has several NUMA nodes, the library's worker threads for a device must run on the
 * CPUs of the device's node. */
static void lanes_run_near_the_device(void **state)
{
	struct penstock_device dev = {.facts = {.bdf = "0000:00:01.0"}};
	cpu_set_t old_cpus, new_cpus;
	struct pst_numa near;
	unsigned cpu = 0;
	char text[16];
	struct tree t;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(old_cpus), &old_cpus), 0);
	while (!CPU_ISSET(cpu, &old_cpus))
		cpu++;
	snprintf(text, sizeof(text), "%u\n", cpu);
	tree_open(&t);
	dev.opts.sys_root = t.root;
	plant(&t, "pci0000:00/0000:00:01.0", "0x010802\n");
	tree_text(&t, "sys/devices/pci0000:00/0000:00:01.0/numa_node", "1\n");
	tree_text(&t, "sys/devices/system/cpu/online", "0-1023\n");
	tree_text(&t, "sys/devices/system/node/node1/cpulist", text);
	/* If there is only one NUMA node, the thread may run on all CPUs. */
	pst_numa_find(&dev, &near);
	assert_false(near.cpus_known);
	assert_int_equal(near.node, -1);
	tree_text(&t, "sys/devices/system/node/node0/cpulist", "1000\n");
	pst_numa_find(&dev, &near);
	assert_true(near.cpus_known && CPU_COUNT(&near.cpus) == 1 && CPU_ISSET(cpu, &near.cpus));
	assert_int_equal(near.node, 1);
	pst_numa_bind_thread(&near);
	assert_int_equal(sched_getaffinity(0, sizeof(new_cpus), &new_cpus), 0);
	assert_true(CPU_EQUAL(&new_cpus, &near.cpus));
	assert_int_equal(sched_setaffinity(0, sizeof(old_cpus), &old_cpus), 0);
	/* This process may not use any CPU of the device's node, so the thread's affinity must stay
	 * unchanged. */
	tree_text(&t, "sys/devices/system/node/node1/cpulist", "1001\n");
	pst_numa_find(&dev, &near);
	assert_false(near.cpus_known);
	pst_numa_bind_thread(&near);
	assert_int_equal(sched_getaffinity(0, sizeof(new_cpus), &new_cpus), 0);
	assert_true(CPU_EQUAL(&new_cpus, &old_cpus));
	/* No device has the address 0000:00:02.0. */
	snprintf(dev.facts.bdf, sizeof(dev.facts.bdf), "0000:00:02.0");
	pst_numa_find(&dev, &near);
	assert_false(near.cpus_known);
	assert_true(near.node < 0);
	dev.facts.bdf[0] = '\0';
	pst_numa_find(&dev, &near);
	assert_int_equal(near.node, -1);
	tree_close(&t);
}

static void iommu_modes(void **state)
{
	struct pst_topo *topo;
	struct tree t;

	(void)state;
	tree_open(&t);
	plant(&t, "pci0000:00/0000:00:01.0", "0x010802\n");
	plant(&t, "pci0000:00/0000:00:02.0", "0x010802\n");
	tree_link(&t, "sys/devices/pci0000:00/0000:00:01.0/iommu_group",
		  "../../../kernel/iommu_groups/0");
	tree_text(&t, "sys/kernel/iommu_groups/0/type", "DMA\n");
	topo = topo_at(t.root);
	assert_string_equal(topo->iommu, "translated");
	pst_topo_close(topo);
	tree_link(&t, "sys/devices/pci0000:00/0000:00:02.0/iommu_group",
		  "../../../kernel/iommu_groups/1");
	tree_text(&t, "sys/kernel/iommu_groups/1/type", "identity\n");
	topo = topo_at(t.root);
	assert_string_equal(topo->iommu, "mixed");
	pst_topo_close(topo);
	tree_close(&t);
}

/* Tests which cards count as GPUs. */
static void gpu_classes(void **state)
{
	static const struct {
		/* `maker`: vendor of the GPU, NULL if the card is no GPU. */
		const char *class_, *vendor, *maker;
	} cases[] = {
		{"0x030200\n", "0x10de\n", "nvidia"}, {"0x030000\n", "0x10de\n", "nvidia"},
		{"0x068000\n", "0x10de\n", NULL}, /* An NVSwitch. */
		{"0x040300\n", "0x10de\n", NULL},     {"0x038000\n", "0x1002\n", "amd"},
		{"0x120000\n", "0x1002\n", "amd"},    {"0x030000\n", "0x8086\n", "intel"},
		{"0x120000\n", "0x8086\n", "intel"},  {"0x030000\n", "0x1a03\n", NULL},
		{"0x020000\n", "0x8086\n", NULL},     {"0x120000\n", "0x10de\n", NULL},
	};
	struct pst_topo *topo;
	struct tree t;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tree_open(&t);
		plant(&t, "pci0000:00/0000:00:01.0", cases[i].class_);
		tree_text(&t, "sys/devices/pci0000:00/0000:00:01.0/vendor", cases[i].vendor);
		topo = topo_at(t.root);
		assert_int_equal(topo->end_count, cases[i].maker ? 1 : 0);
		if (cases[i].maker)
			assert_string_equal(topo->ends[0].maker, cases[i].maker);
		pst_topo_close(topo);
		tree_close(&t);
	}
}

/* Intel's VMD, which is an endpoint, has a host bridge below it. */
static void vmd_host_bridge(void **state)
{
	struct pst_topo *topo;
	struct tree t;

	(void)state;
	tree_open(&t);
	plant(&t, "pci0000:00/0000:00:0e.0", "0x010400\n");
	plant(&t, "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:02.0", "0x060400\n");
	plant(&t, "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:02.0/10000:e1:00.0", "0x010802\n");
	plant(&t, "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:03.0", "0x060400\n");
	plant(&t, "pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:03.0/10000:e2:00.0", "0x010802\n");
	topo = topo_at(t.root);
	assert_near(topo, "10000:e1:00.0", "10000:e2:00.0", "PHB");
	assert_near(topo, "10000:e1:00.0", "0000:00:0e.0", "PHB");
	assert_string_equal(pst_topo_pci(topo, "10000:e1:00.0")->host, "pci0000:00");
	pst_topo_close(topo);
	tree_close(&t);
}

static void functions_of_one_card(void **state)
{
	struct pst_topo *topo;
	struct tree t;

	(void)state;
	tree_open(&t);
	plant(&t, "pci0000:00/0000:00:01.0", "0x060400\n");
	plant(&t, "pci0000:00/0000:00:01.0/0000:01:00.0", "0x030000\n");
	plant(&t, "pci0000:00/0000:00:01.0/0000:01:00.1", "0x040300\n");
	topo = topo_at(t.root);
	assert_near(topo, "0000:01:00.0", "0000:01:00.1", "PIX");
	pst_topo_close(topo);
	tree_close(&t);
}

static void circular_links(void **state)
{
	struct pst_topo *topo;
	struct tree t;
	FILE *f = fopen("/dev/null", "w");

	(void)state;
	tree_open(&t);
	plant(&t, "pci0000:00/0000:02:00.0/0000:01:00.0", "0x060400\n");
	plant(&t, "pci0000:00/0000:01:00.0/0000:02:00.0", "0x060400\n");
	plant(&t, "pci0000:00/0000:03:00.0/0000:03:00.0", "0x030200\n");
	topo = topo_at(t.root);
	assert_false(topo->complete);
	assert_near(topo, "0000:03:00.0", "0000:01:00.0", "PHB");
	pst_topo_print(topo, f);
	pst_topo_print_json(topo, f);
	pst_topo_close(topo);
	fclose(f);
	tree_close(&t);
}

static void deeper_than_the_limit(void **state)
{
	char path[4096] = "pci0000:00";
	struct pst_topo *topo;
	struct tree t;
	int i;

	(void)state;
	tree_open(&t);
	for (i = 1; i < 100; i++) {
		snprintf(path + strlen(path), sizeof(path) - strlen(path), "/0000:%02x:00.0", i);
		/* The last directory has a path that is longer than the library supports. */
		if (strlen(path) < 400)
			plant(&t, path, "0x060400\n");
	}
	topo = topo_at(t.root);
	assert_true(topo->pci_count > 20);
	assert_near(topo, "0000:01:00.0", "0000:14:00.0", "PXB");
	pst_topo_close(topo);
	tree_close(&t);
}

static void garbled_tree(void **state)
{
	char *huge = malloc(1 << 20);
	struct pst_topo *topo;
	struct pst_cpus cpus;
	struct tree t;

	(void)state;
	assert_non_null(huge);
	memset(huge, '1', 1 << 20);
	tree_open(&t);
	plant(&t, "pci0000:00/0000:00:01.0", "ffffffffffffffffffffffff\n");
	tree_bytes(&t, "sys/devices/pci0000:00/0000:00:01.0/local_cpulist", huge, 1 << 20);
	tree_text(&t, "sys/devices/pci0000:00/0000:00:01.0/numa_node", "-99999999999999999999\n");
	tree_text(&t, "sys/devices/pci0000:00/0000:00:01.0/resource", "0x 0x zz\n\n\n\xff\xfe");
	tree_text(&t, "sys/devices/pci0000:00/0000:00:01.0/current_link_speed", "GT/s\n");
	tree_text(&t, "sys/devices/pci0000:00/0000:00:01.0/current_link_width", "255\n");
	tree_folder(&t, "sys/devices/pci0000:00/0000:00:01.0/vendor");
	plant(&t, "pci0000:00/0000:00:02.0", "0x060400\n");
	/* One bridge has a capability list that points at itself. Another one has a list that
	 * points outside the config space. */
	memset(huge, 0, 4096);
	huge[6] = 0x10;
	huge[0x34] = 0x40;
	huge[0x41] = 0x40;
	memcpy(huge + 0x100, "\x01\x00\x01\x10", 4);
	tree_bytes(&t, "sys/devices/pci0000:00/0000:00:02.0/config", huge, 4096);
	plant(&t, "pci0000:00/0000:00:03.0", "0x060400\n");
	memcpy(huge + 0x100, "\x01\x00\xc1\xff", 4);
	tree_bytes(&t, "sys/devices/pci0000:00/0000:00:03.0/config", huge, 4096);
	tree_link(&t, "sys/bus/pci/devices/0000:00:04.0", "../../../../../../../../etc");
	tree_text(&t, "sys/bus/pci/devices/no address", "");
	tree_text(&t, "sys/devices/system/node/node0/cpulist", "what\n");
	tree_text(&t, "sys/devices/system/node/node99999999999/cpulist", "0\n");
	tree_text(&t, "sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 9 x");
	topo = topo_at(t.root);
	assert_int_equal(topo->pci_count, 4);
	assert_int_equal(topo->pci[0].class_, 0);
	assert_int_equal(topo->pci[0].vendor, 0);
	assert_int_equal(topo->pci[0].numa, -1);
	assert_int_equal(topo->pci[0].link_mts, 0);
	assert_int_equal(topo->pci[0].link_width, 0);
	assert_null(topo->pci[0].cpulist);
	assert_int_equal(topo->pci[1].acs, 0);
	assert_int_equal(topo->pci[2].acs, 0);
	assert_int_equal(topo->node_count, 1);
	assert_int_equal(pst_topo_cpus_near(topo, "0000:00:01.0", &cpus), -ENODATA);
	pst_topo_close(topo);
	tree_close(&t);
	free(huge);
}

static void empty_tree(void **state)
{
	struct pst_topo *topo = NULL;
	char why[256] = "";
	struct tree t;

	(void)state;
	assert_int_equal(pst_topo_open("/no/such/root", &topo, why, sizeof(why)), -ENOENT);
	assert_non_null(strstr(why, "/no/such/root"));
	assert_null(topo);
	tree_open(&t);
	topo = topo_at(t.root);
	assert_int_equal(topo->end_count + topo->node_count + topo->pci_count, 0);
	assert_string_equal(topo->iommu, "none");
	pst_topo_close(topo);
	tree_close(&t);
}

int main(void)
{
	/* clang-format off */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(roles_by_position),
		cmocka_unit_test(roles_by_config),
		cmocka_unit_test(drives_and_limits),
		cmocka_unit_test(acs_between_devices),
		cmocka_unit_test(nodes_and_cpus),
		cmocka_unit_test(lanes_run_near_the_device),
		cmocka_unit_test(iommu_modes),
		cmocka_unit_test(gpu_classes),
		cmocka_unit_test(vmd_host_bridge),
		cmocka_unit_test(functions_of_one_card),
		cmocka_unit_test(circular_links),
		cmocka_unit_test(deeper_than_the_limit),
		cmocka_unit_test(garbled_tree),
		cmocka_unit_test(empty_tree),
	};
	/* clang-format on */

	return cmocka_run_group_tests(tests, NULL, NULL);
}
