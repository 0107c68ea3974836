/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry checks of the stand-in driver. Every exported function first calls standin_enter().
 * standin_enter() counts the call and injects failures. It also refuses the calls that the real
 * driver refuses whatever their arguments are: calls before cuInit, after the exit, in a forked
 * child, from host functions, without a current context, or in a broken context. This file also
 * implements the functions of pst_standin.h that control these checks. It must never inspect a
 * call's arguments.
 */
#include "standin.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAILS_MAX 64

struct fail {
	int func; /* Function whose calls fail; FN_COUNT means every function. */
	bool exec;
	bool onwards; /* Whether every call from the n-th on fails, not only the n-th. */
	unsigned long nth, seen;
	enum pst_cu_result rc;
};

_Thread_local bool standin_in_host_func;
static _Thread_local char why[200];

/* standin.lock guards the variables below. */
static struct fail fails[FAILS_MAX];
static size_t fail_count;
static unsigned long calls[FN_COUNT], calls_all;

static const char *const symbols[FN_COUNT] = {
#define NAME(name, symbol, params) [FN_##symbol] = #symbol,
	PST_CU_FUNCS(NAME, NAME)
#define NAME_EXTRA(symbol, params) [FN_##symbol] = #symbol,
		EXTRA_FUNCS(NAME_EXTRA)};

const char *standin_symbol(enum func func)
{
	return symbols[func];
}

enum pst_cu_result standin_refuse(enum pst_cu_result rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	if (standin.verbose)
		fprintf(stderr, "stand-in libcuda: %d: %s\n", (int)rc, why);
	return rc;
}

EXPORT const char *pst_standin_why(void)
{
	return why;
}

/* Returns the result of the first injected failure that applies to this call. Each failure in the
 * list that matches the function increments its count of calls, even if an earlier failure in the
 * list applies. */
static enum pst_cu_result injected_failure(enum func func, bool exec)
{
	enum pst_cu_result rc = PST_CU_OK;

	for (size_t i = 0; i < fail_count; i++) {
		struct fail *f = &fails[i];

		if (f->exec != exec || (f->func != FN_COUNT && f->func != (int)func))
			continue;
		f->seen++;
		if (!rc && (f->seen == f->nth || (f->onwards && f->seen > f->nth)))
			rc = f->rc;
	}
	return rc;
}

enum pst_cu_result standin_exec_fails(enum func func)
{
	return injected_failure(func, true);
}

static enum pst_cu_result state_check(enum func func, int need)
{
	if (standin.ended)
		return standin_refuse(PST_CU_DEINITIALIZED, "the process is exiting");
	if (standin.forked)
		return standin_refuse(PST_CU_NOT_INITIALIZED, "a call in a forked child");
	if (!standin.started && !(need & NEED_NOTHING))
		return standin_refuse(PST_CU_NOT_INITIALIZED, "%s before cuInit", symbols[func]);
	if (standin_in_host_func && func != FN_cuGetErrorName && func != FN_cuGetErrorString &&
	    func != FN_cuDriverGetVersion)
		return standin_refuse(PST_CU_NOT_PERMITTED, "%s in a host function", symbols[func]);
	return PST_CU_OK;
}

enum pst_cu_result standin_enter(enum func func, int need, struct pst_cu_ctx **ctx)
{
	enum pst_cu_result rc;

	lock();
	calls[func]++;
	calls_all++;
	rc = state_check(func, need);
	if (rc)
		goto out;
	rc = injected_failure(func, false);
	if (rc) {
		standin_refuse(rc, "%s: injected failure", symbols[func]);
		goto out;
	}
	*ctx = ctx_current();
	if (need & NEED_NOTHING)
		goto out;
	if (!*ctx && ((need & NEED_CTX) || ((need & NEED_OBJECT) && standin.strict)))
		rc = standin_refuse(PST_CU_INVALID_CONTEXT, "%s without a current context",
				    symbols[func]);
	else if (*ctx && !(*ctx)->alive && (need & (NEED_CTX | NEED_OBJECT)))
		rc = standin_refuse(PST_CU_CONTEXT_IS_DESTROYED, "%s: the context is destroyed",
				    symbols[func]);
	else if (need & NEED_UNCAPTURED)
		rc = capture_refuses(func);
	while (!rc && *ctx && (*ctx)->exclusive_waits && (need & NEED_TURN))
		pthread_cond_wait(&standin.done, &standin.lock);
	if (!rc && *ctx && (*ctx)->broken && !(need & NEED_EVEN_BROKEN))
		rc = standin_refuse((*ctx)->broken, "%s in a broken context", symbols[func]);
out:
	unlock();
	return rc;
}

/* Called at the end of functions with NEED_EVEN_BROKEN, which do their work even in a broken
 * context. Returns the context's error if the context is broken, else success. */
enum pst_cu_result standin_leave(const struct pst_cu_ctx *ctx)
{
	enum pst_cu_result rc;

	lock();
	rc = ctx && ctx->alive ? ctx->broken : PST_CU_OK;
	unlock();
	return rc;
}

static int func_by_name(const char *name, size_t len)
{
	if (len == 1 && *name == '*')
		return FN_COUNT;
	for (int i = 0; i < FN_COUNT; i++)
		if (strlen(symbols[i]) == len && !memcmp(symbols[i], name, len))
			return i;
	return -1;
}

/* Parses one entry FUNCTION:N[+]:ERROR of PENSTOCK_STANDIN_FAIL (pst_standin.h describes it). The
 * entry ends at a comma or at the end of the text. */
static int fail_parse(const char **text, struct fail *f)
{
	const char *at = *text, *colon = strpbrk(at, ":,");
	char *end;

	*f = (struct fail){0};
	if (!colon || *colon != ':')
		return -1;
	if (!strncmp(at, "exec.", 5)) {
		f->exec = true;
		at += 5;
	}
	f->func = func_by_name(at, (size_t)(colon - at));
	if (f->func < 0)
		return -1;
	f->nth = strtoul(colon + 1, &end, 10);
	if (end == colon + 1 || !f->nth)
		return -1;
	if (*end == '+') {
		f->onwards = true;
		end++;
	}
	if (*end != ':')
		return -1;
	at = end + 1;
	f->rc = (enum pst_cu_result)strtoul(at, &end, 10);
	if (end == at || (*end && *end != ','))
		return -1;
	*text = *end ? end + 1 : end;
	return 0;
}

EXPORT int pst_standin_fail(const char *spec)
{
	struct fail parsed[FAILS_MAX];
	size_t count = 0;

	while (spec && *spec) {
		if (count == FAILS_MAX || fail_parse(&spec, &parsed[count]) < 0)
			return -1;
		count++;
	}
	lock();
	if (count)
		memcpy(fails, parsed, count * sizeof(parsed[0]));
	fail_count = count;
	unlock();
	return 0;
}

/* Reads PENSTOCK_STANDIN_FAIL. Aborts if it cannot parse the list, because otherwise a test
 * would silently run without injected failures. */
void standin_fail_start(void)
{
	const char *spec = getenv("PENSTOCK_STANDIN_FAIL");

	if (pst_standin_fail(spec) < 0) {
		fprintf(stderr, "stand-in libcuda: PENSTOCK_STANDIN_FAIL: cannot read '%s'\n",
			spec);
		abort();
	}
}

EXPORT unsigned long pst_standin_calls(const char *symbol)
{
	int func = func_by_name(symbol, strlen(symbol));
	unsigned long count = 0;

	lock();
	if (func == FN_COUNT)
		count = calls_all;
	else if (func >= 0)
		count = calls[func];
	unlock();
	return count;
}

EXPORT void pst_standin_delay(unsigned int max_us, unsigned long seed)
{
	lock();
	standin.delay_us = max_us;
	standin.seed = seed;
	unlock();
}
