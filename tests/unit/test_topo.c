/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape of the machine: nearness and nodes of replayed machines, trees that are garbled or go
 * round in a circle, both forms of print, and that a capture holds all that is read. Run by
 * tests/run.
 */
#include "../test.h"

#include "../replay/tree.h"
#include "core/topo.h"

static struct tree machines; /* all of synth.py and the captures */

static struct pst_topo *open_machine(const char *name)
{
	struct pst_topo *topo = NULL;
	char root[1024], why[256] = "";

	snprintf(root, sizeof(root), "%s/%s", machines.root, name);
	if (pst_topo_open(root, &topo, why, sizeof(why)) < 0)
		fail_msg("%s: %s", name, why);
	return topo;
}

static void assert_near(const struct pst_topo *topo, const char *a, const char *b, const char *want)
{
	const char *got = pst_nearness_name(pst_topo_nearness(topo, a, b));

	if (strcmp(got, want))
		fail_msg("%s and %s: %s, not %s", a, b, got, want);
}

static const struct pst_end *end_of(const struct pst_topo *topo, const char *name)
{
	size_t i;

	for (i = 0; i < topo->end_count; i++)
		if (!strcmp(topo->ends[i].name, name))
			return &topo->ends[i];
	fail_msg("no %s", name);
	return NULL;
}

/* ---- replayed machines -------------------------------------------------------- */

static void dgx(void **state)
{
	struct pst_topo *topo = open_machine("dgx");
	const struct pst_pci *dev;

	(void)state;
	assert_true(topo->complete);
	assert_int_equal(topo->node_count, 2);
	assert_int_equal(topo->end_count, 8 + 9 + 8);
	assert_string_equal(topo->iommu, "none");
	assert_near(topo, "0000:13:00.0", "0000:13:00.0", "X");
	assert_near(topo, "0000:13:00.0", "0000:15:00.0", "PIX");  /* NIC, same switch */
	assert_near(topo, "0000:13:00.0", "0000:19:00.0", "PXB");  /* drive, second switch */
	assert_near(topo, "0000:19:00.0", "0000:1a:00.0", "PIX");  /* both in the second */
	assert_near(topo, "0000:13:00.0", "0000:0f:00.0", "PHB");  /* another root port */
	assert_near(topo, "0000:13:00.0", "0000:43:00.0", "NODE"); /* another host bridge */
	assert_near(topo, "0000:13:00.0", "0000:73:00.0", "SYS");
	dev = pst_topo_pci(topo, "0000:13:00.0");
	assert_non_null(dev);
	assert_int_equal(dev->link_mts, 32000);
	assert_int_equal(dev->link_width, 16);
	assert_true(dev->bar_bytes == 128ULL << 30);
	assert_string_equal(dev->driver, "nvidia");
	assert_int_equal(topo->pci[dev->bridge].role, PST_PCI_SWITCH_DOWN);
	assert_int_equal(topo->pci[topo->pci[dev->bridge].bridge].role, PST_PCI_SWITCH_UP);
	dev = pst_topo_pci(topo, "0000:0f:00.0");
	assert_int_equal(dev->link_mts, 8000);
	assert_int_equal(dev->link_mts_max, 16000);
	assert_int_equal(topo->pci[dev->bridge].role, PST_PCI_ROOT_PORT);
	assert_string_equal(end_of(topo, "GPU0")->model, "NVIDIA H100 80GB HBM3");
	assert_string_equal(end_of(topo, "nvme8")->transport, "pcie");
	assert_string_equal(end_of(topo, "mlx5_7")->state, "ACTIVE");
	assert_int_equal(end_of(topo, "mlx5_7")->numa, 1);
	assert_int_equal(pst_topo_numa_of(topo, "0000:a3:00.0"), 1);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:13:00.0", "0000:19:00.0"), 0);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:13:00.0", "0000:0f:00.0"), -EXDEV);
	assert_int_equal(pst_topo_nearness(topo, "0000:13:00.0", "nonsense"), -EINVAL);
	assert_int_equal(pst_topo_nearness(topo, "0000:ee:00.0", "0000:13:00.0"), -ENODEV);
	pst_topo_close(topo);
}

static void cpus_near(void **state)
{
	struct pst_topo *topo = open_machine("dgx");
	struct pst_cpus cpus;

	(void)state;
	assert_int_equal(pst_topo_cpus_near(topo, "0000:73:00.0", &cpus), 0);
	assert_int_equal(pst_cpus_count(&cpus), 112);
	assert_true(pst_cpus_has(&cpus, 56));
	assert_false(pst_cpus_has(&cpus, 55));
	assert_int_equal(pst_topo_cpus_near(topo, "0000:ee:00.0", &cpus), -ENODEV);
	pst_topo_close(topo);
}

/* Firmware of guests names no node: the only one is meant. */
static void cloud_vm(void **state)
{
	struct pst_topo *topo = open_machine("cloud-vm");

	(void)state;
	assert_int_equal(pst_topo_pci(topo, "0000:01:00.0")->numa, -1);
	assert_int_equal(pst_topo_numa_of(topo, "0000:01:00.0"), 0);
	assert_near(topo, "0000:01:00.0", "0000:09:00.0", "PHB");
	assert_string_equal(end_of(topo, "vda")->transport, "virtio");
	assert_int_equal(end_of(topo, "vda")->numa, 0);
	/* Ordinary users cannot read ACS: not known is not "no". */
	assert_int_equal(pst_topo_pci(topo, "0000:00:10.0")->acs, -1);
	pst_topo_close(topo);
}

static void amd(void **state)
{
	struct pst_topo *topo = open_machine("amd");
	const struct pst_end *gpu = end_of(topo, "GPU0");

	(void)state;
	assert_string_equal(gpu->maker, "amd");
	assert_string_equal(gpu->model, "AMD Instinct MI300X");
	assert_string_equal(topo->iommu, "passthrough");
	assert_string_equal(end_of(topo, "sda")->transport, "sata");
	/* The server's VGA is no GPU: four accelerators, five drives. */
	assert_int_equal(topo->end_count, 4 + 5);
	assert_near(topo, "0000:21:00.0", "0000:22:00.0", "PHB");
	assert_near(topo, "0000:21:00.0", "0000:42:00.0", "NODE");
	assert_near(topo, "0000:21:00.0", "0000:62:00.0", "SYS");
	pst_topo_close(topo);
}

static void acs_and_iommu(void **state)
{
	struct pst_topo *topo = open_machine("acs");

	(void)state;
	assert_near(topo, "0000:13:00.0", "0000:14:00.0", "PIX");
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:13:00.0", "0000:14:00.0"), 1);
	assert_int_equal(pst_topo_pci(topo, "0000:12:00.0")->acs, 0x1d);
	assert_int_equal(pst_topo_pci(topo, "0000:11:00.0")->acs, 0);
	assert_string_equal(topo->iommu, "passthrough");
	pst_topo_close(topo);
	topo = open_machine("iommu");
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:13:00.0", "0000:14:00.0"), 0);
	assert_string_equal(topo->iommu, "translated");
	assert_int_equal(pst_topo_pci(topo, "0000:13:00.0")->iommu_group, 1);
	assert_string_equal(pst_topo_pci(topo, "0000:13:00.0")->iommu_type, "DMA-FQ");
	pst_topo_close(topo);
}

static void fabrics(void **state)
{
	struct pst_topo *topo = open_machine("nvmeof-soft");

	(void)state;
	assert_string_equal(end_of(topo, "nvme0")->transport, "rdma");
	assert_int_equal(end_of(topo, "nvme0")->pci, -1);
	assert_string_equal(end_of(topo, "mlx5_0")->transport, "ethernet");
	assert_string_equal(end_of(topo, "rxe0")->transport, "software");
	assert_int_equal(end_of(topo, "rxe0")->pci, -1);
	pst_topo_close(topo);
}

/* A real machine, captured by tools/capture-machine. */
static void captured(void **state)
{
	struct pst_topo *topo = open_machine("firecracker");

	(void)state;
	assert_int_equal(topo->node_count, 1);
	assert_int_equal(topo->pci_count, 6);
	assert_int_equal(topo->end_count, 1);
	assert_string_equal(end_of(topo, "vda")->transport, "virtio");
	assert_string_equal(topo->pci[end_of(topo, "vda")->pci].bdf, "0000:00:02.0");
	assert_true(topo->nodes[0].mem_bytes > 1 << 30);
	pst_topo_close(topo);
}

/* The machine at hand: nothing is known of it but that reading ends well. */
static void here(void **state)
{
	struct pst_topo *topo = NULL;

	(void)state;
	assert_int_equal(pst_topo_open("", &topo, NULL, 0), 0);
	assert_non_null(topo->iommu);
	pst_topo_close(topo);
	assert_int_equal(pst_topo_open(NULL, &topo, NULL, 0), 0);
	pst_topo_close(topo);
	pst_topo_close(NULL);
}

static const char *const names[] = {"dgx",	 "cloud-vm", "amd",	    "acs", "iommu",
				    "container", "nvmeof",   "nvmeof-soft", "md",  "firecracker"};

/* Nearness is symmetric, and 0 only of a device and itself. */
static void symmetric(void **state)
{
	size_t n, i, j;

	(void)state;
	for (n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
		struct pst_topo *topo = open_machine(names[n]);

		for (i = 0; i < topo->pci_count; i++)
			for (j = 0; j < topo->pci_count; j++) {
				const char *a = topo->pci[i].bdf, *b = topo->pci[j].bdf;
				int near = pst_topo_nearness(topo, a, b);

				assert_int_equal(near, pst_topo_nearness(topo, b, a));
				assert_int_equal(near == PST_NEAR_SELF, i == j);
				assert_true(near >= 0 && near <= PST_NEAR_SYS);
			}
		pst_topo_close(topo);
	}
}

/* ---- trees by hand ---------------------------------------------------------- */

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

static struct pst_topo *open_tree(const struct tree *t)
{
	struct pst_topo *topo = NULL;
	char why[256] = "";

	if (pst_topo_open(t->root, &topo, why, sizeof(why)) < 0)
		fail_msg("%s", why);
	return topo;
}

/* Intel's VMD makes a host bridge of its own out of an endpoint. */
static void vmd(void **state)
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
	topo = open_tree(&t);
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
	topo = open_tree(&t);
	assert_near(topo, "0000:01:00.0", "0000:01:00.1", "PIX");
	pst_topo_close(topo);
	tree_close(&t);
}

static void circle(void **state)
{
	struct pst_topo *topo;
	struct tree t;
	FILE *f = fopen("/dev/null", "w");

	(void)state;
	tree_open(&t);
	plant(&t, "pci0000:00/0000:02:00.0/0000:01:00.0", "0x060400\n");
	plant(&t, "pci0000:00/0000:01:00.0/0000:02:00.0", "0x060400\n");
	plant(&t, "pci0000:00/0000:03:00.0/0000:03:00.0", "0x030200\n");
	topo = open_tree(&t);
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
		/* Only the last is longer than a path may be. */
		if (strlen(path) < 400)
			plant(&t, path, "0x060400\n");
	}
	topo = open_tree(&t);
	assert_true(topo->pci_count > 20);
	assert_near(topo, "0000:01:00.0", "0000:14:00.0", "PXB");
	pst_topo_close(topo);
	tree_close(&t);
}

static void garbled(void **state)
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
	/* A list of capabilities that points at itself, and one that runs off. */
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
	topo = open_tree(&t);
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

static void nothing_there(void **state)
{
	struct pst_topo *topo = NULL;
	char why[256] = "";
	struct tree t;

	(void)state;
	assert_int_equal(pst_topo_open("/no/such/root", &topo, why, sizeof(why)), -ENOENT);
	assert_non_null(strstr(why, "/no/such/root"));
	assert_null(topo);
	tree_open(&t);
	topo = open_tree(&t);
	assert_int_equal(topo->end_count + topo->node_count + topo->pci_count, 0);
	assert_string_equal(topo->iommu, "none");
	pst_topo_close(topo);
	tree_close(&t);
}

/* ---- print ------------------------------------------------------------------ */

static void print_to(const char *path, const char *root, bool json)
{
	struct pst_topo *topo = NULL;
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(pst_topo_open(root, &topo, NULL, 0), 0);
	if (json)
		pst_topo_print_json(topo, f);
	else
		pst_topo_print(topo, f);
	pst_topo_close(topo);
	fclose(f);
}

/* Each machine's JSON keeps the schema of topo.h. */
static void json(void **state)
{
	char path[1024], root[1024];
	size_t n;

	(void)state;
	for (n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
		snprintf(root, sizeof(root), "%s/%s", machines.root, names[n]);
		snprintf(path, sizeof(path), "%s/%s.json", machines.root, names[n]);
		print_to(path, root, true);
	}
	tree_run("tests/replay/schema.py '%s'/*.json", machines.root);
}

static void table(void **state)
{
	char path[1024], root[1024], text[65536];
	FILE *f;
	size_t len;

	(void)state;
	snprintf(root, sizeof(root), "%s/acs", machines.root);
	snprintf(path, sizeof(path), "%s/acs.txt", machines.root);
	print_to(path, root, false);
	f = fopen(path, "r");
	assert_non_null(f);
	len = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[len] = '\0';
	assert_non_null(strstr(text, "node 0   CPUs 0-31, 256.0 GiB"));
	assert_non_null(strstr(text, "  GPU0     X      PIX!   0-31\n"));
	assert_non_null(strstr(text, "  nvme0    PIX!   X      0-31\n"));
}

/* What tools/capture-machine packs of a machine reads as the machine does. */
static void captured_again(void **state)
{
	char first[1024], again[1024], root[1024];
	size_t n;

	(void)state;
	for (n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
		snprintf(root, sizeof(root), "%s/%s", machines.root, names[n]);
		snprintf(first, sizeof(first), "%s/%s.json", machines.root, names[n]);
		print_to(first, root, true);
		snprintf(again, sizeof(again), "%s/again-%s", machines.root, names[n]);
		tree_run("tools/capture-machine --root '%s' -o '%s.tar.gz' >'%s.log' && "
			 "mkdir '%s' && tar xzf '%s.tar.gz' -C '%s'",
			 root, again, again, again, again, again);
		snprintf(root, sizeof(root), "%s", again);
		snprintf(again, sizeof(again), "%s/again-%s.json", machines.root, names[n]);
		print_to(again, root, true);
		tree_run("cmp '%s' '%s'", first, again);
	}
}

static int open_all(void **state)
{
	(void)state;
	tree_open(&machines);
	tree_synth(&machines, "all");
	tree_capture(&machines, "firecracker");
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	tree_close(&machines);
	return 0;
}

int main(void)
{
	/* clang-format off */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dgx),
		cmocka_unit_test(cpus_near),
		cmocka_unit_test(cloud_vm),
		cmocka_unit_test(amd),
		cmocka_unit_test(acs_and_iommu),
		cmocka_unit_test(fabrics),
		cmocka_unit_test(captured),
		cmocka_unit_test(here),
		cmocka_unit_test(symmetric),
		cmocka_unit_test(vmd),
		cmocka_unit_test(functions_of_one_card),
		cmocka_unit_test(circle),
		cmocka_unit_test(deeper_than_the_limit),
		cmocka_unit_test(garbled),
		cmocka_unit_test(nothing_there),
		cmocka_unit_test(json),
		cmocka_unit_test(table),
		cmocka_unit_test(captured_again),
	};
	/* clang-format on */

	return cmocka_run_group_tests(tests, open_all, close_all);
}
