/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the probes of the data paths on several routes (a route is a storage and a device). A probe
 * decides whether its path is usable and why not, which class the path has, and which alignment it
 * needs. Covers host memory and GPU memory, block devices on and off the allow-list for direct
 * transfers, files that live in memory, and a storage without a file. The test opens no file and
 * moves no bytes.
 */
#include "claim.h"

static void expect_path(const char *name, int class_, enum penstock_why why)
{
	const struct pst_path_state *state = path_state(name);

	if (state->usable != (class_ >= 0))
		fail_msg("%s is %s: %s", name, state->usable ? "open" : "shut", state->err.text);
	if (class_ >= 0)
		assert_int_equal(state->facts.class_, class_);
	else
		assert_string_equal(penstock_why_name(state->err.why), penstock_why_name(why));
}

static void host_paths(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_READ);
	expect_path("p2p", -1, PENSTOCK_WHY_DEVICE_ONLY);
	expect_path("odirect", PENSTOCK_DIRECT, 0);
	expect_path("mapped", -1, PENSTOCK_WHY_DEVICE_ONLY);
	/* the CPU copies from a slot to host memory, so the class is ANY */
	expect_path("staged", PENSTOCK_ANY, 0);
	expect_path("bounce", PENSTOCK_ANY, 0);
	/* A direct read that succeeds may still deliver wrong bytes, so a test read (canary) is
	 * needed. */
	assert_true(path_state("odirect")->facts.canary);
	assert_int_equal(path_state("odirect")->facts.mem_align, 512);
}

static void gpu_paths(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	expect_path("p2p", -1, PENSTOCK_WHY_NO_PEER_PAGES);
	expect_path("odirect", -1, PENSTOCK_WHY_HOST_ONLY);
	expect_path("mapped", PENSTOCK_NO_CPU_COPY, 0);
	expect_path("staged", PENSTOCK_NO_CPU_COPY, 0);
	expect_path("bounce", PENSTOCK_ANY, 0);
	gpu.facts.peer_pages = true;
	gpu.facts.mem_align = 65536;
	route_probe(&gpu, PENSTOCK_READ);
	expect_path("p2p", PENSTOCK_DIRECT, 0);
	assert_true(path_state("p2p")->facts.canary);
	/* The device needs an alignment of 65536 bytes, which is larger than the drive's, so path
	 * "p2p" needs it, too. */
	assert_int_equal(path_state("p2p")->facts.mem_align, 65536);
	/* If the CPU can address the GPU's memory, path "staged" copies with the CPU, so its class
	 * is ANY. */
	gpu.facts.cpu_addressable = true;
	route_probe(&gpu, PENSTOCK_READ);
	expect_path("staged", PENSTOCK_ANY, 0);
}

static void missing_storage_features_close_paths(void **state)
{
	(void)state;
	/* If the allow-list does not accept the block devices, O_DIRECT works, but the kernel may
	 * copy with the CPU, so the paths have class ANY. */
	st.facts.listed = false;
	gpu.facts.peer_pages = true;
	route_probe(&gpu, PENSTOCK_READ);
	expect_path("p2p", PENSTOCK_ANY, 0);
	expect_path("staged", PENSTOCK_ANY, 0);
	route_probe(&host, PENSTOCK_READ);
	expect_path("odirect", PENSTOCK_ANY, 0);
	/* The path only has class PENSTOCK_ANY, which promises nothing that a test read (canary)
	 * could check. So no test read may run. */
	assert_false(path_state("odirect")->facts.canary);
	st.facts.fd_direct = -1;
	pst_fail(&st.facts.why_direct, PENSTOCK_WHY_NOT_REAL, "it is memory");
	route_probe(&host, PENSTOCK_READ);
	expect_path("odirect", -1, PENSTOCK_WHY_NOT_REAL);
	expect_path("staged", -1, PENSTOCK_WHY_NOT_REAL);
	route_probe(&gpu, PENSTOCK_READ);
	expect_path("p2p", -1, PENSTOCK_WHY_NOT_REAL);
	expect_path("staged", -1, PENSTOCK_WHY_NOT_REAL);
	st.facts.mapped_quick = false;
	route_probe(&gpu, PENSTOCK_READ);
	assert_true(path_state("mapped")->usable && !path_state("mapped")->facts.quick);
	gpu.facts.reads_page_cache = false;
	pst_fail(&gpu.facts.why_mapped, PENSTOCK_WHY_NO_READONLY_REG, "no");
	route_probe(&gpu, PENSTOCK_READ);
	expect_path("mapped", -1, PENSTOCK_WHY_NO_READONLY_REG);
	gpu.facts.reads_page_cache = true;
	st.facts.mappable = false;
	route_probe(&gpu, PENSTOCK_READ);
	expect_path("mapped", -1, PENSTOCK_WHY_NOT_MAPPABLE);
	st.facts.fd = -1; /* simulates a storage without a file */
	route_probe(&gpu, PENSTOCK_READ);
	expect_path("mapped", -1, PENSTOCK_WHY_NO_FD);
	expect_path("staged", -1, PENSTOCK_WHY_NO_FD);
	expect_path("bounce", PENSTOCK_ANY, 0);
	route_probe(&host, PENSTOCK_READ);
	expect_path("odirect", -1, PENSTOCK_WHY_NO_FD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(host_paths, setup),
		cmocka_unit_test_setup(gpu_paths, setup),
		cmocka_unit_test_setup(missing_storage_features_close_paths, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
