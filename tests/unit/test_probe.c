/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each path says of a route: open or shut and why, the class that it meets and
 * its alignment, for host memory and a GPU's, over block stacks on the list and not,
 * files that are memory, and no file at all. Nothing is opened and nothing moves.
 */
#include "claim.h"

static void expect_path(const char *name, int class_, enum penstock_why why)
{
	const struct pst_path_state *state = path(name);

	if (state->usable != (class_ >= 0))
		fail_msg("%s is %s: %s", name, state->usable ? "open" : "shut", state->err.text);
	if (class_ >= 0)
		assert_int_equal(state->facts.class_, class_);
	else
		assert_string_equal(penstock_why_name(state->err.why), penstock_why_name(why));
}

static void host_memory(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	expect_path("p2p", -1, PENSTOCK_WHY_DEVICE_ONLY);
	expect_path("odirect", PENSTOCK_DIRECT, 0);
	expect_path("mapped", -1, PENSTOCK_WHY_DEVICE_ONLY);
	expect_path("staged", PENSTOCK_ANY, 0); /* a memcpy empties the slot */
	expect_path("bounce", PENSTOCK_ANY, 0);
	assert_true(path("odirect")->facts.canary); /* its success proves nothing */
	assert_int_equal(path("odirect")->facts.mem_align, 512);
}

static void gpu_memory(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	expect_path("p2p", -1, PENSTOCK_WHY_NO_PEER_PAGES);
	expect_path("odirect", -1, PENSTOCK_WHY_HOST_ONLY);
	expect_path("mapped", PENSTOCK_NO_CPU_COPY, 0);
	expect_path("staged", PENSTOCK_NO_CPU_COPY, 0);
	expect_path("bounce", PENSTOCK_ANY, 0);
	gpu.facts.peer_pages = true;
	gpu.facts.mem_align = 65536;
	probe(&gpu, PENSTOCK_READ);
	expect_path("p2p", PENSTOCK_DIRECT, 0);
	assert_true(path("p2p")->facts.canary);
	assert_int_equal(path("p2p")->facts.mem_align, 65536); /* the coarser of both */
	gpu.facts.cpu_addressable = true;		       /* there a CPU empties the slot */
	probe(&gpu, PENSTOCK_READ);
	expect_path("staged", PENSTOCK_ANY, 0);
}

static void what_storage_lacks(void **state)
{
	(void)state;
	st.facts.listed = false; /* it works, but nobody knows who copies */
	gpu.facts.peer_pages = true;
	probe(&gpu, PENSTOCK_READ);
	expect_path("p2p", PENSTOCK_ANY, 0);
	expect_path("staged", PENSTOCK_ANY, 0);
	probe(&host, PENSTOCK_READ);
	expect_path("odirect", PENSTOCK_ANY, 0);
	assert_false(path("odirect")->facts.canary); /* there is nothing to prove */
	st.facts.fd_direct = -1;
	pst_fail(&st.facts.why_direct, PENSTOCK_WHY_NOT_REAL, "it is memory");
	probe(&host, PENSTOCK_READ);
	expect_path("odirect", -1, PENSTOCK_WHY_NOT_REAL);
	expect_path("staged", -1, PENSTOCK_WHY_NOT_REAL);
	probe(&gpu, PENSTOCK_READ);
	expect_path("p2p", -1, PENSTOCK_WHY_NOT_REAL);
	expect_path("staged", -1, PENSTOCK_WHY_NOT_REAL);
	st.facts.mapped_quick = false;
	probe(&gpu, PENSTOCK_READ);
	assert_true(path("mapped")->usable && !path("mapped")->facts.quick);
	gpu.facts.reads_page_cache = false;
	pst_fail(&gpu.facts.why_mapped, PENSTOCK_WHY_NO_READONLY_REG, "no");
	probe(&gpu, PENSTOCK_READ);
	expect_path("mapped", -1, PENSTOCK_WHY_NO_READONLY_REG);
	gpu.facts.reads_page_cache = true;
	st.facts.mappable = false;
	probe(&gpu, PENSTOCK_READ);
	expect_path("mapped", -1, PENSTOCK_WHY_NOT_MAPPABLE);
	st.facts.fd = -1; /* no file at all */
	probe(&gpu, PENSTOCK_READ);
	expect_path("mapped", -1, PENSTOCK_WHY_NO_FD);
	expect_path("staged", -1, PENSTOCK_WHY_NO_FD);
	expect_path("bounce", PENSTOCK_ANY, 0);
	probe(&host, PENSTOCK_READ);
	expect_path("odirect", -1, PENSTOCK_WHY_NO_FD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(host_memory, setup),
		cmocka_unit_test_setup(gpu_memory, setup),
		cmocka_unit_test_setup(what_storage_lacks, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
