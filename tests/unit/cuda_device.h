/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture for the tests of device cuda: opens the device through its table of operations, without
 * the code of src/core. The driver is the stand-in, or the machine's own driver if PENSTOCK_STANDIN
 * is 0. The fixture also injects failures into the stand-in and counts the objects that exist in
 * it. Included by tests/unit/test_cuda*.c only.
 */
#ifndef TESTS_CUDA_DEVICE_H
#define TESTS_CUDA_DEVICE_H

#include "../standin/check.h"

#include <errno.h>

#include "device/cuda.h"

static const struct pst_device_ops *const ops = &pst_device_cuda;
static struct pst_err err;

static inline void standin_fail(const char *spec)
{
	int (*set)(const char *);

	*(void **)&set = lib_symbol("pst_standin_fail");
	assert_int_equal(set(spec), 0);
}

static inline unsigned long standin_calls(const char *name)
{
	unsigned long (*calls)(const char *);

	*(void **)&calls = lib_symbol("pst_standin_calls");
	return calls(name);
}

static inline struct pst_standin_live standin_live(void)
{
	void (*live_query)(struct pst_standin_live *);
	struct pst_standin_live live;

	*(void **)&live_query = lib_symbol("pst_standin_live");
	live_query(&live);
	live.ops_pending = 0;
	return live;
}

static inline struct pst_cu_ctx *current_ctx(void)
{
	struct pst_cu_ctx *now = NULL;

	cu->cuCtxGetCurrent(&now);
	return now;
}

static inline struct penstock_device *device_new(const char *name)
{
	struct penstock_device *dev = calloc(1, sizeof(*dev));

	dev->ops = ops;
	dev->facts.numa = -1;
	snprintf(dev->name, sizeof(dev->name), "%s", name);
	return dev;
}

static inline struct penstock_device *device_open(const char *name)
{
	struct penstock_device *dev = device_new(name);

	if (ops->open(dev, &err))
		fail_msg("%s", err.text);
	return dev;
}

static inline void device_close(struct penstock_device *dev)
{
	ops->close(dev);
	free(dev);
}

static inline void *device_alloc(struct penstock_device *dev, size_t len)
{
	void *mem = NULL;

	if (ops->alloc(dev, len, &mem, &err))
		fail_msg("%s", err.text);
	return mem;
}

/* Returns `count` zeroed words in pinned memory, or NULL, with the reason in `err`. */
static inline uint64_t *words_alloc(struct penstock_device *dev, size_t count)
{
	size_t len = (count * sizeof(uint64_t) + 4095) / 4096 * 4096;
	uint64_t *words =
		mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (words == MAP_FAILED)
		fail_msg("mmap: %s", strerror(errno));
	if (!ops->host_register(dev, words, len, false, &err))
		return words;
	munmap(words, len);
	return NULL;
}

static inline void words_free(struct penstock_device *dev, uint64_t *words, size_t count)
{
	ops->host_unregister(dev, words, &err);
	munmap(words, (count * sizeof(uint64_t) + 4095) / 4096 * 4096);
}

/* Queues one store of a word on the stream. */
static inline int stream_store(struct penstock_device *dev, void *on, uint64_t *word,
			       uint64_t value)
{
	struct pst_stream_seq seq;
	int ret = ops->stream_begin(dev, on, &seq, &err);

	if (ret)
		return ret;
	ret = ops->stream_write(&seq, word, value, &err);
	ops->stream_end(&seq);
	return ret;
}

/* Queues one wait for a word on the stream. */
static inline int stream_await(struct penstock_device *dev, void *on, uint64_t *word,
			       uint64_t value)
{
	struct pst_stream_seq seq;
	int ret = ops->stream_begin(dev, on, &seq, &err);

	if (ret)
		return ret;
	ret = ops->stream_wait(&seq, word, value, &err);
	ops->stream_end(&seq);
	return ret;
}

/* Queues one store of a word and one wait for another word on the stream. */
static inline int stream_store_await(struct penstock_device *dev, void *on, uint64_t *word,
				     uint64_t value, uint64_t *waited, uint64_t least)
{
	struct pst_stream_seq seq;
	int ret = ops->stream_begin(dev, on, &seq, &err);

	if (ret)
		return ret;
	ret = ops->stream_write_wait(&seq, word, value, waited, least, &err);
	ops->stream_end(&seq);
	return ret;
}

/* Loads the CUDA driver. Leaves this thread without a current context, like a new thread. */
static inline int driver_open(void **state)
{
	const char *why = "", *file = getenv("PENSTOCK_LIBCUDA");

	(void)state;
	cu = pst_cuda_get(&why);
	lib = dlopen(file ? file : "libcuda.so.1", RTLD_NOW);
	if (cu && lib)
		return 0;
	print_error("cannot load the CUDA driver: %s\n", why);
	return -1;
}

/* Fails if a test case leaves objects of the driver or a current context behind. */
static inline int case_end(void **state)
{
	static const struct pst_standin_live none;
	struct pst_standin_live live;

	(void)state;
	if (current_ctx()) {
		print_error("the case has left a context current\n");
		cu->cuCtxSetCurrent(NULL);
		return -1;
	}
	if (!is_standin())
		return 0;
	standin_fail(NULL);
	live = standin_live();
	if (!memcmp(&live, &none, sizeof(live)))
		return 0;
	print_error(
		"the case has left: allocs %zu ipc %zu registrations %zu streams %zu events %zu "
		"retains %zu lost %zu\n",
		live.allocs, live.ipc_opens, live.registrations, live.streams, live.events,
		live.ctx_retains, live.lost);
	return -1;
}

/* Checks that `call` returns `want` if the stand-in driver injects the failures in `spec`
 * (pst_standin_fail explains the syntax). The call must not change the current context, and must
 * leave no object of the driver behind. */
#define FAILS(spec, want, call)                                                                \
	do {                                                                                   \
		struct pst_cu_ctx *was_ = current_ctx();                                       \
		struct pst_standin_live before_ = standin_live(), after_;                      \
		int ret_;                                                                      \
		standin_fail(spec);                                                            \
		ret_ = (call);                                                                 \
		standin_fail(NULL);                                                            \
		if (ret_ != (want))                                                            \
			fail_msg("line %d, %s: %s returned %d, not %d", __LINE__, spec, #call, \
				 ret_, want);                                                  \
		assert_ptr_equal(current_ctx(), was_);                                         \
		after_ = standin_live();                                                       \
		assert_memory_equal(&after_, &before_, sizeof(after_));                        \
	} while (0)

/* Like FAILS, for a call that fills `err`. The text in `err` must contain `part`. */
#define FAILS_WITH(spec, want, part, call)                                   \
	do {                                                                 \
		memset(&err, 0, sizeof(err));                                \
		FAILS(spec, want, call);                                     \
		assert_int_equal(err.code, want);                            \
		if (!strstr(err.text, part))                                 \
			fail_msg("the text lacks '%s': %s", part, err.text); \
	} while (0)

#endif
