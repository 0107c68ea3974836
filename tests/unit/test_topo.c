/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the topology of recorded machines: distance between devices, NUMA nodes, ACS, the IOMMU
 * and both output formats. Also tests that a capture contains everything that the library reads.
 * tests/run runs this test.
 */
#include "../replay/near.h"
#include "../replay/tree.h"

#include "core/machine/topo_print.h"

static struct tree machines; /* Machines that synth.py invents, and captures of machines. */

static struct pst_topo *machine_open(const char *name)
{
	char root[1024];

	snprintf(root, sizeof(root), "%s/%s", machines.root, name);
	return topo_at(root);
}

static const struct pst_end *end_find(const struct pst_topo *topo, const char *name)
{
	size_t i;

	for (i = 0; i < topo->end_count; i++)
		if (!strcmp(topo->ends[i].name, name))
			return &topo->ends[i];
	fail_msg("the topology has no device %s", name);
	return NULL;
}

/* ---- replayed machines ---- */

static void dgx_machine(void **state)
{
	struct pst_topo *topo = machine_open("dgx");
	const struct pst_pci *dev;

	(void)state;
	assert_true(topo->complete);
	assert_int_equal(topo->node_count, 2);
	assert_int_equal(topo->end_count, 8 + 9 + 8);
	assert_string_equal(topo->iommu, "none");
	assert_near(topo, "0000:13:00.0", "0000:13:00.0", "X");
	/* A GPU and a NIC are below the same switch. */
	assert_near(topo, "0000:13:00.0", "0000:15:00.0", "PIX");
	/* The drive is below a second switch. */
	assert_near(topo, "0000:13:00.0", "0000:19:00.0", "PXB");
	/* Both drives are below the second switch. */
	assert_near(topo, "0000:19:00.0", "0000:1a:00.0", "PIX");
	/* This device is below another root port. */
	assert_near(topo, "0000:13:00.0", "0000:0f:00.0", "PHB");
	/* This device is below another host bridge. */
	assert_near(topo, "0000:13:00.0", "0000:43:00.0", "NODE");
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
	assert_string_equal(end_find(topo, "GPU0")->model, "NVIDIA H100 80GB HBM3");
	assert_string_equal(end_find(topo, "nvme8")->transport, "pcie");
	assert_string_equal(end_find(topo, "mlx5_7")->state, "ACTIVE");
	assert_int_equal(end_find(topo, "mlx5_7")->numa, 1);
	assert_int_equal(pst_topo_numa_of(topo, "0000:a3:00.0"), 1);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:13:00.0", "0000:19:00.0"), 0);
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:13:00.0", "0000:0f:00.0"), -EXDEV);
	assert_int_equal(pst_topo_nearness(topo, "0000:13:00.0", "nonsense"), -EINVAL);
	assert_int_equal(pst_topo_nearness(topo, "0000:ee:00.0", "0000:13:00.0"), -ENODEV);
	pst_topo_close(topo);
}

static void cpus_near_device(void **state)
{
	struct pst_topo *topo = machine_open("dgx");
	struct pst_cpus cpus;

	(void)state;
	assert_int_equal(pst_topo_cpus_near(topo, "0000:73:00.0", &cpus), 0);
	assert_int_equal(pst_cpus_count(&cpus), 112);
	assert_true(pst_cpus_has(&cpus, 56));
	assert_false(pst_cpus_has(&cpus, 55));
	assert_int_equal(pst_topo_cpus_near(topo, "0000:ee:00.0", &cpus), -ENODEV);
	pst_topo_close(topo);
}

/* The firmware of a virtual machine does not say to which NUMA node a device belongs. If the
 * machine has only one node, the device counts as belonging to it. */
static void cloud_vm(void **state)
{
	struct pst_topo *topo = machine_open("cloud-vm");

	(void)state;
	assert_int_equal(pst_topo_pci(topo, "0000:01:00.0")->numa, -1);
	assert_int_equal(pst_topo_numa_of(topo, "0000:01:00.0"), 0);
	assert_near(topo, "0000:01:00.0", "0000:09:00.0", "PHB");
	assert_string_equal(end_find(topo, "vda")->transport, "virtio");
	assert_int_equal(end_find(topo, "vda")->numa, 0);
	/* An ordinary user cannot read the ACS bits, so the value is -1 (unknown). */
	assert_int_equal(pst_topo_pci(topo, "0000:00:10.0")->acs, -1);
	pst_topo_close(topo);
}

static void amd_machine(void **state)
{
	struct pst_topo *topo = machine_open("amd");
	const struct pst_end *gpu = end_find(topo, "GPU0");

	(void)state;
	assert_string_equal(gpu->maker, "amd");
	assert_string_equal(gpu->model, "AMD Instinct MI300X");
	assert_string_equal(topo->iommu, "passthrough");
	assert_string_equal(end_find(topo, "sda")->transport, "sata");
	/* Four GPUs and five drives: the server's VGA controller does not count as a GPU. */
	assert_int_equal(topo->end_count, 4 + 5);
	assert_near(topo, "0000:21:00.0", "0000:22:00.0", "PHB");
	assert_near(topo, "0000:21:00.0", "0000:42:00.0", "NODE");
	assert_near(topo, "0000:21:00.0", "0000:62:00.0", "SYS");
	pst_topo_close(topo);
}

static void acs_and_iommu(void **state)
{
	struct pst_topo *topo = machine_open("acs");

	(void)state;
	assert_near(topo, "0000:13:00.0", "0000:14:00.0", "PIX");
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:13:00.0", "0000:14:00.0"), 1);
	assert_int_equal(pst_topo_pci(topo, "0000:12:00.0")->acs, 0x1d);
	assert_int_equal(pst_topo_pci(topo, "0000:11:00.0")->acs, 0);
	assert_string_equal(topo->iommu, "passthrough");
	pst_topo_close(topo);
	topo = machine_open("iommu");
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:13:00.0", "0000:14:00.0"), 0);
	assert_string_equal(topo->iommu, "translated");
	assert_int_equal(pst_topo_pci(topo, "0000:13:00.0")->iommu_group, 1);
	assert_string_equal(pst_topo_pci(topo, "0000:13:00.0")->iommu_type, "DMA-FQ");
	pst_topo_close(topo);
}

static void fabrics(void **state)
{
	struct pst_topo *topo = machine_open("nvmeof-soft");

	(void)state;
	assert_string_equal(end_find(topo, "nvme0")->transport, "rdma");
	assert_int_equal(end_find(topo, "nvme0")->pci, -1);
	assert_string_equal(end_find(topo, "mlx5_0")->transport, "ethernet");
	assert_string_equal(end_find(topo, "rxe0")->transport, "software");
	assert_int_equal(end_find(topo, "rxe0")->pci, -1);
	pst_topo_close(topo);
}

/* Tests the files that tools/capture-machine captured on a real machine. */
static void captured(void **state)
{
	struct pst_topo *topo = machine_open("firecracker");

	(void)state;
	assert_int_equal(topo->node_count, 1);
	assert_int_equal(topo->pci_count, 6);
	assert_int_equal(topo->end_count, 1);
	assert_string_equal(end_find(topo, "vda")->transport, "virtio");
	assert_string_equal(topo->pci[end_find(topo, "vda")->pci].bdf, "0000:00:02.0");
	assert_true(topo->nodes[0].mem_bytes > 1 << 30);
	pst_topo_close(topo);
}

/* Tests the files that tools/capture-machine captured on a virtual machine with an H200 GPU. No
 * switch has both the GPU and a drive below it. */
static void captured_with_a_gpu(void **state)
{
	struct pst_topo *topo = machine_open("h200");
	const struct pst_pci *gpu = pst_topo_pci(topo, "0000:00:06.0");

	(void)state;
	assert_non_null(gpu);
	assert_int_equal(gpu->role, PST_PCI_ENDPOINT);
	assert_int_equal(topo->end_count, 3);
	assert_near(topo, "0000:00:06.0", "0000:00:01.0", "PHB");
	assert_string_equal(end_find(topo, "vda")->transport, "virtio");
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:00:06.0", "0000:00:01.0"), -EXDEV);
	pst_topo_close(topo);
}

/* Tests captures of two virtual machines (QEMU): one has a PCIe switch, the other has a root port
 * with ACS. */
static void captured_in_the_lab(void **state)
{
	struct pst_topo *topo = machine_open("lab-switch");
	const struct pst_pci *cmb = pst_topo_pci(topo, "0000:04:00.0");

	(void)state;
	assert_near(topo, "0000:03:00.0", "0000:04:00.0", "PIX");
	assert_near(topo, "0000:03:00.0", "0000:05:00.0", "PHB");
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:03:00.0", "0000:04:00.0"), 0);
	assert_true(cmb->p2pmem_bytes == 64 << 20);
	assert_int_equal(topo->pci[cmb->bridge].role, PST_PCI_SWITCH_DOWN);
	assert_int_equal(topo->pci[topo->pci[cmb->bridge].bridge].role, PST_PCI_SWITCH_UP);
	assert_string_equal(end_find(topo, "nvme3")->transport, "loop");
	pst_topo_close(topo);
	topo = machine_open("lab-acs");
	assert_near(topo, "0000:01:00.0", "0000:01:00.1", "PIX");
	assert_int_equal(pst_topo_acs_redirects(topo, "0000:01:00.0", "0000:01:00.1"), 1);
	pst_topo_close(topo);
}

/* Reading the topology of the machine that runs the test must succeed. */
static void this_machine(void **state)
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

static const char *const names[] = {"dgx",	  "cloud-vm", "amd",	     "acs", "iommu",
				    "container",  "nvmeof",   "nvmeof-soft", "md",  "firecracker",
				    "lab-switch", "lab-acs",  "h200"};

/* The distance is symmetric, and it is 0 only between a device and itself. */
static void distance_is_symmetric(void **state)
{
	size_t n, i, j;

	(void)state;
	for (n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
		struct pst_topo *topo = machine_open(names[n]);

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

/* ---- output ---- */

static void topo_print_to(const char *path, const char *root, bool json_matches_schema)
{
	struct pst_topo *topo = NULL;
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(pst_topo_open(root, &topo, NULL, 0), 0);
	if (json_matches_schema)
		pst_topo_print_json(topo, f);
	else
		pst_topo_print(topo, f);
	pst_topo_close(topo);
	fclose(f);
}

/* The JSON output of each machine matches the schema of topo_print.h. */
static void json_matches_schema(void **state)
{
	char path[1024], root[1024];
	size_t n;

	(void)state;
	for (n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
		snprintf(root, sizeof(root), "%s/%s", machines.root, names[n]);
		snprintf(path, sizeof(path), "%s/%s.json", machines.root, names[n]);
		topo_print_to(path, root, true);
	}
	tree_run("tests/replay/schema.py '%s'/*.json", machines.root);
}

static void table_output(void **state)
{
	char path[1024], root[1024], text[65536];
	FILE *f;
	size_t len;

	(void)state;
	snprintf(root, sizeof(root), "%s/acs", machines.root);
	snprintf(path, sizeof(path), "%s/acs.txt", machines.root);
	topo_print_to(path, root, false);
	f = fopen(path, "r");
	assert_non_null(f);
	len = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[len] = '\0';
	assert_non_null(strstr(text, "node 0   CPUs 0-31, 256.0 GiB"));
	assert_non_null(strstr(text, "  GPU0     X      PIX!   0-31\n"));
	assert_non_null(strstr(text, "  nvme0    PIX!   X      0-31\n"));
}

/* The files that tools/capture-machine captures on a machine show the same topology as the
 * machine. */
static void capture_reads_like_the_machine(void **state)
{
	/* Each capture starts Python, which takes time. So the test captures only these machines;
	 * they have the most kinds of devices. */
	static const char *const some[] = {"dgx", "amd", "nvmeof-soft", "lab-switch"};
	char first[1024], again[1024], root[1024];
	size_t n;

	(void)state;
	for (n = 0; n < sizeof(some) / sizeof(some[0]); n++) {
		snprintf(root, sizeof(root), "%s/%s", machines.root, some[n]);
		snprintf(first, sizeof(first), "%s/%s.json", machines.root, some[n]);
		topo_print_to(first, root, true);
		snprintf(again, sizeof(again), "%s/again-%s", machines.root, some[n]);
		tree_run("tools/capture-machine --root '%s' -o '%s.tar.gz' >'%s.log' && "
			 "mkdir '%s' && tar xzf '%s.tar.gz' -C '%s'",
			 root, again, again, again, again, again);
		snprintf(root, sizeof(root), "%s", again);
		snprintf(again, sizeof(again), "%s/again-%s.json", machines.root, some[n]);
		topo_print_to(again, root, true);
		tree_run("cmp '%s' '%s' || { tr '{' '\\n' <'%s' >'%s.lines'; "
			 "tr '{' '\\n' <'%s' | diff '%s.lines' - >&2; false; }",
			 first, again, first, first, again, first);
	}
}

static int machines_open(void **state)
{
	(void)state;
	tree_open(&machines);
	tree_synth(&machines, "all");
	tree_capture(&machines, "firecracker");
	tree_capture(&machines, "lab-switch");
	tree_capture(&machines, "lab-acs");
	tree_capture(&machines, "h200");
	return 0;
}

static int machines_close(void **state)
{
	(void)state;
	tree_close(&machines);
	return 0;
}

int main(void)
{
	/* clang-format off */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dgx_machine),
		cmocka_unit_test(cpus_near_device),
		cmocka_unit_test(cloud_vm),
		cmocka_unit_test(amd_machine),
		cmocka_unit_test(acs_and_iommu),
		cmocka_unit_test(fabrics),
		cmocka_unit_test(captured),
		cmocka_unit_test(captured_with_a_gpu),
		cmocka_unit_test(captured_in_the_lab),
		cmocka_unit_test(this_machine),
		cmocka_unit_test(distance_is_symmetric),
		cmocka_unit_test(json_matches_schema),
		cmocka_unit_test(table_output),
		cmocka_unit_test(capture_reads_like_the_machine),
	};
	/* clang-format on */

	return cmocka_run_group_tests(tests, machines_open, machines_close);
}
