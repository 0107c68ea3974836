/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the configuration: its sources (the defaults, cufile.json, the environment and the API),
 * and which source wins. Also tests misplaced and unknown keys, invalid files, compat mode off,
 * the lines of the log, and the place of the log.
 */
#include "shim_test.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "page_cache.h"

static char folder[PATH_MAX], json_path[PATH_MAX + 32], log_path[PATH_MAX + 32];

static int setup(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	if (!cu_load())
		return -1;
	snprintf(folder, sizeof(folder), "%s/config-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(folder) || chdir(folder))
		return -1;
	snprintf(json_path, sizeof(json_path), "%s/cufile.json", folder);
	snprintf(log_path, sizeof(log_path), "%s/log", folder);
	setenv("CUFILE_ENV_PATH_JSON", json_path, 1);
	setenv("CUFILE_LOGFILE_PATH", log_path, 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(json_path);
	unlink(log_path);
	assert_int_equal(chdir("/"), 0);
	return rmdir(folder); /* rmdir fails if a test has left a file in the folder */
}

static void write_json(const char *text)
{
	FILE *f = fopen(json_path, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

/* Returns the number of occurrences of `words` in the log. */
static unsigned logged(const char *words)
{
	static char text[1 << 20];
	FILE *f = fopen(log_path, "r");
	unsigned count = 0;
	size_t n;

	if (!f)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = '\0';
	fclose(f);
	for (const char *at = text; (at = strstr(at, words)); at++)
		count++;
	return count;
}

/* Returns whether `penstock stats` prints a note with these words for this process. */
static bool noted(const char *words)
{
	char command[PATH_MAX + 64], line[1024];
	ssize_t n = readlink("/proc/self/exe", command, PATH_MAX);
	bool found = false;
	FILE *f;

	assert_true(n > 0);
	command[n] = '\0';
	snprintf(strrchr(command, '/'), 64, "/../penstock stats %d", (int)getpid());
	f = popen(command, "re");
	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		found |= !strncmp(line, "note: ", 6) && strstr(line, words);
	return pclose(f) == 0 && found;
}

static size_t param_size(int param)
{
	size_t value = 12345;

	assert_ok(cuFileGetParameterSizeT(param, &value));
	return value;
}

static bool param_flag(int param)
{
	bool value = false;

	assert_ok(cuFileGetParameterBool(param, &value));
	return value;
}

static void defaults(void **state)
{
	struct cuf_props props;
	char text[32];

	(void)state;
	unlink(json_path);
	assert_ok(cuFileDriverOpen());
	assert_int_equal(param_size(CUF_IO_BATCHSIZE), 128);
	assert_int_equal(param_size(CUF_MAX_IO_THREADS), 4);
	assert_true(param_flag(CUF_PARAM_ALLOW_COMPAT_MODE));
	assert_false(param_flag(CUF_PARAM_USE_PCIP2PDMA));
	assert_ok(cuFileGetParameterString(CUF_LOGGING_LEVEL, text, sizeof(text)));
	assert_string_equal(text, "ERROR");
	assert_code(cuFileDriverGetProperties(NULL), CUF_INVALID_VALUE);
	assert_ok(cuFileDriverGetProperties(&props));
	assert_int_equal(props.max_batch_io_size, 128);
	assert_int_equal(props.max_batch_io_timeout_msecs, 5);
	assert_int_equal(props.per_buffer_cache_size, 1024);
	assert_int_equal(props.nvfs.max_direct_io_size, 16384);
	assert_int_equal(props.nvfs.dcontrolflags, 1 << CUF_ALLOW_COMPAT_MODE);
	assert_int_equal(props.fflags, 1 << CUF_BATCH_IO | 1 << CUF_STREAMS | 1 << CUF_PARALLEL_IO);
	assert_int_equal(props.nvfs.major_version, 0);
	/* The cuFileDriverSet... calls are allowed while the driver is open. */
	assert_ok(cuFileDriverSetMaxDirectIOSize(1024));
	assert_code(cuFileDriverSetMaxDirectIOSize(1023), CUF_INVALID_VALUE);
	assert_code(cuFileDriverSetMaxDirectIOSize(0), CUF_INVALID_VALUE);
	assert_ok(cuFileDriverSetMaxCacheSize(2048));
	assert_code(cuFileDriverSetMaxCacheSize((size_t)1 << 40), CUF_DRIVER_UNSUPPORTED_LIMIT);
	assert_ok(cuFileDriverSetMaxPinnedMemSize(4096));
	assert_ok(cuFileDriverSetPollMode(true, 64));
	assert_code(cuFileDriverSetPollMode(true, 3), CUF_INVALID_VALUE);
	assert_ok(cuFileDriverGetProperties(&props));
	assert_int_equal(props.nvfs.max_direct_io_size, 1024);
	assert_int_equal(props.max_device_cache_size, 2048);
	assert_int_equal(props.max_device_pinned_mem_size, 4096);
	assert_int_equal(props.nvfs.poll_thresh_size, 64);
	assert_true(props.nvfs.dcontrolflags & 1 << CUF_USE_POLL_MODE);
	assert_ok(cuFileDriverClose());
}

/* The environment must override cufile.json. The API must override the environment and
 * cufile.json. */
static void precedence(void **state)
{
	size_t min, max;

	(void)state;
	write_json("{\"properties\": {\"io_batchsize\": 64, \"use_pci_p2pdma\": false,"
		   " \"max_device_pinned_mem_size_kb\": 18014398509481980,"
		   " \"per_buffer_cache_size_kb\": 512}, \"logging\": {\"level\": \"warn\"}}");
	/* cufile.json also applies before the driver is opened. */
	assert_int_equal(param_size(CUF_IO_BATCHSIZE), 64);
	setenv("CUFILE_PER_BUFFER_CACHE_SIZE", "256", 1);
	setenv("CUFILE_USE_PCIP2PDMA", "true", 1);
	assert_ok(cuFileDriverOpen());
	assert_int_equal(param_size(CUF_IO_BATCHSIZE), 64);
	assert_int_equal(param_size(CUF_PER_BUFFER_CACHE_KB), 256);
	assert_int_equal(param_size(CUF_MAX_PINNED_KB), 18014398509481980);
	assert_true(param_flag(CUF_PARAM_USE_PCIP2PDMA));
	assert_code(cuFileSetParameterSizeT(CUF_IO_BATCHSIZE, 9), CUF_DRIVER_ALREADY_OPEN);
	assert_code(cuFileSetParameterBool(CUF_PARAM_PARALLEL_IO, true), CUF_DRIVER_ALREADY_OPEN);
	assert_code(cuFileSetParameterString(CUF_LOGGING_LEVEL, "INFO"), CUF_DRIVER_ALREADY_OPEN);
	assert_ok(cuFileDriverClose());
	assert_ok(cuFileSetParameterSizeT(CUF_PER_BUFFER_CACHE_KB, 128));
	assert_ok(cuFileSetParameterBool(CUF_PARAM_USE_PCIP2PDMA, false));
	assert_int_equal(param_size(CUF_PER_BUFFER_CACHE_KB), 128);
	assert_ok(cuFileDriverOpen());
	assert_int_equal(param_size(CUF_PER_BUFFER_CACHE_KB), 128);
	assert_false(param_flag(CUF_PARAM_USE_PCIP2PDMA));
	assert_ok(cuFileDriverClose());
	unsetenv("CUFILE_PER_BUFFER_CACHE_SIZE");
	unsetenv("CUFILE_USE_PCIP2PDMA");
	/* The parameter io_batchsize limits the number of operations of a batch. */
	assert_ok(cuFileGetParameterMinMaxValue(CUF_IO_BATCHSIZE, &min, &max));
	assert_true(min <= 64 && max >= 128);
	assert_ok(cuFileDriverOpen());
	{
		void *batch;

		assert_code(cuFileBatchIOSetUp(&batch, 65), CUF_INVALID_VALUE);
		assert_ok(cuFileBatchIOSetUp(&batch, 64));
		cuFileBatchIODestroy(batch);
	}
	assert_ok(cuFileDriverClose());
}

static void wrong_parameters(void **state)
{
	size_t size, other;
	bool flag;
	char text[8];

	(void)state;
	assert_code(cuFileGetParameterSizeT(-1, &size), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterSizeT(CUF_SIZE_PARAMS, &size), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterSizeT(0, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileSetParameterSizeT(99, 1), CUF_INVALID_VALUE);
	assert_code(cuFileSetParameterSizeT(CUF_PROFILE_STATS, 4), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterBool(CUF_BOOL_PARAMS, &flag), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterBool(0, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileSetParameterBool(-5, true), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterString(CUF_STRING_PARAMS, text, 8), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterString(CUF_LOGGING_LEVEL, NULL, 8), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterString(CUF_LOGGING_LEVEL, text, 3), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterString(CUF_LOGGING_LEVEL, text, -1), CUF_INVALID_VALUE);
	assert_code(cuFileSetParameterString(CUF_LOGGING_LEVEL, "LOUD"), CUF_INVALID_VALUE);
	assert_code(cuFileSetParameterString(CUF_LOGGING_LEVEL, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterMinMaxValue(0, NULL, &other), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterMinMaxValue(0, &size, NULL), CUF_INVALID_VALUE);
	assert_code(cuFileGetParameterMinMaxValue(77, &size, &other), CUF_INVALID_VALUE);
	for (int i = 0; i < CUF_SIZE_PARAMS; i++) {
		assert_ok(cuFileGetParameterMinMaxValue(i, &size, &other));
		assert_true(size <= other && param_size(i) >= size && param_size(i) <= other);
	}
}

static void slabs(void **state)
{
	size_t sizes[4] = {4096, 65536, 1048576, 16777216}, counts[4] = {10, 5, 3, 2};
	size_t s[4], c[4], none[4] = {0};

	(void)state;
	assert_code(cuFileSetParameterPosixPoolSlabArray(NULL, counts, 4), CUF_INVALID_VALUE);
	assert_code(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 0), CUF_INVALID_VALUE);
	assert_code(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 1000), CUF_INVALID_VALUE);
	/* The sizes and counts of slabs are not checked, as in NVIDIA's library. */
	assert_ok(cuFileSetParameterPosixPoolSlabArray(none, none, 4));
	assert_ok(cuFileGetParameterPosixPoolSlabArray(s, c, 4));
	assert_int_equal(s[0] + c[3], 0);
	assert_ok(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 4));
	assert_ok(cuFileSetParameterGpuBounceBufferSlabArray(sizes, counts, 2));
	assert_ok(cuFileDriverOpen());
	assert_code(cuFileSetParameterPosixPoolSlabArray(sizes, counts, 4),
		    CUF_DRIVER_ALREADY_OPEN);
	assert_ok(cuFileGetParameterPosixPoolSlabArray(s, c, 4));
	assert_memory_equal(s, sizes, sizeof(s));
	assert_memory_equal(c, counts, sizeof(c));
	assert_code(cuFileGetParameterPosixPoolSlabArray(s, c, 3), CUF_INVALID_VALUE);
	assert_ok(cuFileGetParameterGpuBounceBufferSlabArray(s, c, 2));
	assert_int_equal(c[1], 5);
	assert_ok(cuFileDriverClose());
	/* The arrays of slabs stay set after the last close, as in NVIDIA's library. */
	assert_ok(cuFileGetParameterPosixPoolSlabArray(s, c, 4));
	assert_memory_equal(s, sizes, sizeof(s));
}

/* Many guides copy one example file in which most keys are in the wrong section and have no
 * effect. Each such key is logged once, with the right section. */
static void misplaced_keys(void **state)
{
	(void)state;
	write_json("{ \"execution\": { \"max_io_threads\": 16, \"allow_compat_mode\": false },\n"
		   "  \"properties\": { \"max_batch_io_size\": 32,\n"
		   "    \"max_pinned_memory_size\": 2097152, \"poll_max_size_kb\": 8 },\n"
		   "  \"fs\": { \"block\": { \"nvme\": { \"use_pci_p2pdma\": true } } },\n"
		   "  \"speed\": { \"faster\": true, \"even\": 3 } }\n");
	for (int i = 0; i < 2; i++) {
		assert_ok(cuFileDriverOpen());
		assert_true(param_flag(CUF_PARAM_ALLOW_COMPAT_MODE));
		assert_int_equal(param_size(CUF_MAX_IO_THREADS), 16);
		assert_int_equal(param_size(CUF_IO_BATCHSIZE), 128);
		assert_ok(cuFileDriverClose());
	}
	assert_int_equal(
		logged("line 1: the key 'execution.allow_compat_mode' has no effect there: "
		       "its place is 'properties.allow_compat_mode'"),
		1);
	assert_int_equal(logged("'properties.max_batch_io_size' has no effect there: its place is "
				"'properties.io_batchsize'"),
			 1);
	assert_int_equal(logged("its place is 'properties.max_device_pinned_mem_size_kb'"), 1);
	assert_int_equal(logged("its place is 'properties.poll_mode_max_size_kb'"), 1);
	assert_int_equal(logged("the section 'fs.block' has no effect there: its place is 'block'"),
			 1);
	assert_int_equal(logged("line 5: the section 'speed' is not known"), 1);
	assert_int_equal(logged("faster"), 0);
}

/* This library knows every key that NVIDIA's library reads, in the same section and with the
 * same kind of value. */
static void all_keys(void **state)
{
	char command[PATH_MAX * 3];
	unsigned before = logged("NOTICE");

	(void)state;
	assert_non_null(getenv("PENSTOCK_ALL_KEYS"));
	snprintf(command, sizeof(command), "cp '%s' '%s'", getenv("PENSTOCK_ALL_KEYS"), json_path);
	assert_int_equal(system(command), 0);
	assert_ok(cuFileDriverOpen());
	assert_int_equal(param_size(CUF_IO_BATCHSIZE), 77);
	assert_int_equal(param_size(CUF_BATCH_TIMEOUT_MS), 9);
	assert_true(param_flag(CUF_PARAM_STREAM_MEMOPS_BYPASS));
	assert_ok(cuFileDriverClose());
	assert_int_equal(logged("NOTICE"), before);
	assert_true(logged("changes nothing: ") > 70);
}

static void wrong_kinds(void **state)
{
	(void)state;
	write_json("{\"properties\": {\"allow_compat_mode\": \"false\", \"io_batchsize\": 0,\n"
		   "\"max_device_cache_size_kb\": 4096}, \"execution\": 7,\n"
		   "\"properties.allow_compat_mode\": false}");
	assert_ok(cuFileDriverOpen());
	assert_true(param_flag(CUF_PARAM_ALLOW_COMPAT_MODE));
	assert_int_equal(param_size(CUF_IO_BATCHSIZE), 128);
	assert_int_equal(param_size(CUF_MAX_DEVICE_CACHE_KB), 4096);
	assert_ok(cuFileDriverClose());
	assert_int_equal(logged("'properties.allow_compat_mode' must be true or false"), 1);
	assert_int_equal(logged("'properties.io_batchsize' must be a whole number from 1"), 1);
	assert_int_equal(logged("'execution' must be a section"), 1);
	assert_int_equal(logged("line 3: the key 'properties?allow_compat_mode' is not known"), 1);
}

static void environment(void **state)
{
	(void)state;
	unlink(json_path);
	setenv("CUFILE_NVTX", "true", 1);
	setenv("CUFILE_RDMA_DC_KEY", "1", 1);
	setenv("CUFILE_ALOW_COMPAT_MODE", "false", 1);
	setenv("CUFILE_ALLOW_COMPAT_MODE", "false", 1);
	setenv("CUFILE_STATS_LEVEL", "2", 1);
	setenv("CUFILE_MAX_DEVICE_CACHE_SIZE", "-1", 1);
	setenv("CUFILE_LOGGING_LEVEL", "info", 1);
	assert_ok(cuFileDriverOpen());
	assert_int_equal(param_size(CUF_PROFILE_STATS), 2);
	assert_int_equal(param_size(CUF_MAX_DEVICE_CACHE_KB), 131072);
	assert_ok(cuFileDriverClose());
	assert_int_equal(logged("NOTICE: the environment's CUFILE_ALOW_COMPAT_MODE is not known"),
			 1);
	assert_int_equal(
		logged("CUFILE_ALLOW_COMPAT_MODE has no effect: its place is cufile.json's "
		       "'properties.allow_compat_mode'"),
		1);
	assert_int_equal(logged("INFO: CUFILE_NVTX changes nothing here"), 1);
	assert_int_equal(logged("INFO: CUFILE_RDMA_DC_KEY changes nothing here"), 1);
	assert_int_equal(logged("CUFILE_MAX_DEVICE_CACHE_SIZE must be a number from 0 to"), 1);
	unsetenv("CUFILE_NVTX");
	unsetenv("CUFILE_RDMA_DC_KEY");
	unsetenv("CUFILE_ALOW_COMPAT_MODE");
	unsetenv("CUFILE_ALLOW_COMPAT_MODE");
	unsetenv("CUFILE_STATS_LEVEL");
	unsetenv("CUFILE_MAX_DEVICE_CACHE_SIZE");
	unsetenv("CUFILE_LOGGING_LEVEL");
	assert_ok(cuFileSetStatsLevel(0));
}

/* If cufile.json is not valid, cuFileDriverOpen succeeds with the defaults, and the log has the
 * reason. */
static void invalid_files(void **state)
{
	static const char *const broken[] = {"{\"properties\": {\"io_batchsize\": 7}",
					     "",
					     "[1, 2",
					     "{\"a\" 1}",
					     "nonsense",
					     "{\"properties\": {\"io_batchsize\": 7}} /*",
					     "{\"x\": \"\\q\"}"};
	const char *const no_file[] = {json_path, folder, "$PWD/local_cufile.json"};
	int fd;

	(void)state;
	for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
		write_json(broken[i]);
		assert_ok(cuFileDriverOpen());
		assert_int_equal(param_size(CUF_IO_BATCHSIZE), 128);
		assert_ok(cuFileDriverClose());
	}
	assert_true(logged("the file is ignored") >= 4);
	assert_true(logged("line 1: a comma is missing, or the closing }: ") &&
		    logged("a value is missing: "));
	/* A file may begin with a UTF-8 byte order mark. */
	write_json("\xef\xbb\xbf{\"properties\": {\"io_batchsize\": 7}}");
	assert_ok(cuFileDriverOpen());
	assert_int_equal(param_size(CUF_IO_BATCHSIZE), 7);
	assert_ok(cuFileDriverClose());
	/* Files that the library refuses to read: a file of 1 TiB, a pipe, a folder, and a name
	 * that only a shell would expand. */
	fd = open(json_path, O_WRONLY | O_TRUNC);
	assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
	close(fd);
	assert_ok(cuFileDriverOpen());
	assert_ok(cuFileDriverClose());
	assert_int_equal(logged("is longer than"), 1);
	unlink(json_path);
	assert_int_equal(mkfifo(json_path, 0600), 0);
	for (size_t i = 0; i < 3; i++) {
		setenv("CUFILE_ENV_PATH_JSON", no_file[i], 1);
		assert_ok(cuFileDriverOpen());
		assert_ok(cuFileDriverClose());
	}
	/* The log has one such line each for the pipe, the folder and the name. */
	assert_int_equal(logged("cannot be read: the defaults apply"), 3);
	setenv("CUFILE_ENV_PATH_JSON", json_path, 1);
	unlink(json_path);
}

/* A cufile.json of the largest accepted size contains many unknown keys. The valid key at its
 * end must have its effect. The log must stay short and say that further errors are not listed. */
static void many_unknown_keys(void **state)
{
	static char text[(1 << 20) + 1];
	const char *end = "\"properties\": {\"io_batchsize\": 7}}";
	size_t at = 1, most = sizeof(text) - 1 - strlen(end);
	unsigned before = logged("\n"), key = 0;

	(void)state;
	text[0] = '{';
	while (at + 24 < most)
		at += (size_t)snprintf(text + at, 24, "\"k%u\": 1,", key++);
	memset(text + at, ' ', most - at);
	memcpy(text + most, end, strlen(end) + 1);
	write_json(text);
	assert_ok(cuFileDriverOpen());
	assert_int_equal(param_size(CUF_IO_BATCHSIZE), 7);
	assert_ok(cuFileDriverClose());
	assert_true(key > 50000 && logged("\n") - before < 300);
	assert_int_equal(logged("the configuration has more errors than are listed"), 1);
	unlink(json_path);
}

/* With compat mode off, a file on tmpfs cannot be registered. tmpfs keeps its files in memory, so
 * no path to them is direct. */
static void compat_off(void **state)
{
	struct cuf_io_params param = {.mode = CUF_BATCH, .opcode = CUF_READ};
	int memory = memfd_create("compat", MFD_CLOEXEC), disk, code;
	void *dev = cu_alloc(65536), *fh, *batch;
	size_t len = 4096;
	off_t zero = 0;
	ssize_t bytes = -7;

	(void)state;
	write_json("{\"properties\": {\"allow_compat_mode\": false}}");
	assert_int_equal(ftruncate(memory, 65536), 0);
	assert_ok(cuFileDriverOpen());
	assert_false(param_flag(CUF_PARAM_ALLOW_COMPAT_MODE));
	st_register(memory, &code);
	assert_int_equal(code, CUF_IO_NOT_SUPPORTED);
	assert_int_equal(logged("refused, compat mode is off: "), 1);
	assert_true(noted("/memfd:compat (deleted): refused, compat mode is off: tmpfs: tmpfs is "
			  "memory: "));
	/* although the registration was refused, the descriptor is still open */
	assert_true(fcntl(memory, F_GETFD) >= 0);
	disk = st_make("compat", 65536, O_RDWR);
	fh = st_register(disk, &code);
	if (!code) {
		/* The drive has a direct path to host memory, but none to GPU memory, so this read
		 * is refused. */
		assert_int_equal(cuFileRead(fh, dev, len, 0, 0), -CUF_IO_NOT_SUPPORTED);
		assert_int_equal(cuFileWrite(fh, dev, len, 0, 0), -CUF_IO_NOT_SUPPORTED);
		assert_code(cuFileReadAsync(fh, dev, &len, &zero, &zero, &bytes, (void *)1),
			    CUF_IO_NOT_SUPPORTED);
		assert_int_equal(bytes, -7);
		param.u.batch.base = dev;
		param.u.batch.size = len;
		param.fh = fh;
		assert_ok(cuFileBatchIOSetUp(&batch, 1));
		assert_code(cuFileBatchIOSubmit(batch, 1, &param, 0), CUF_BATCH_NOCOMPAT_ERROR);
		cuFileBatchIODestroy(batch);
		assert_true(logged("no path of the required class: ") >= 4);
		assert_true(noted("read is refused: ") && noted("write is refused: "));
		assert_true(noted("a batch's read is refused: "));
		assert_true(noted("a stream's read is refused: "));
		cuFileHandleDeregister(fh);
	} else {
		assert_int_equal(code, CUF_IO_NOT_SUPPORTED);
	}
	assert_ok(cuFileDriverClose());
	/* force_compat_mode overrides allow_compat_mode. */
	setenv("CUFILE_FORCE_COMPAT_MODE", "true", 1);
	assert_ok(cuFileDriverOpen());
	fh = st_register(memory, NULL);
	assert_int_equal(cuFileRead(fh, dev, len, 0, 0), len);
	cuFileHandleDeregister(fh);
	assert_ok(cuFileDriverClose());
	unsetenv("CUFILE_FORCE_COMPAT_MODE");
	unlink(json_path);
	unlink(st_path);
	close(memory);
	close(disk);
	cu_free(dev);
}

/* The first read and the first write of a file are logged. The log has the path that was used, and
 * the reason why no path that is more direct was used. */
static void first_use(void **state)
{
	int fd = st_make("first-use", 65536, O_RDWR);
	void *dev = cu_alloc(65536), *fh = st_register(fd, NULL);
	char read_line[PATH_MAX + 64], write_line[PATH_MAX + 64];

	(void)state;
	snprintf(read_line, sizeof(read_line), "NOTICE: %s: read into cuda:0 by path ", st_path);
	snprintf(write_line, sizeof(write_line), "NOTICE: %s: written from cuda:0 by path ",
		 st_path);
	assert_int_equal(logged(read_line), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(cuFileRead(fh, dev, 65536, 0, 0), 65536);
	assert_int_equal(logged(read_line), 1);
	assert_int_equal(cuFileWrite(fh, dev, 65536, 0, 0), 65536);
	assert_int_equal(logged(write_line), 1);
	assert_true(logged("; no more direct one: ") >= 1);
	cuFileHandleDeregister(fh);
	assert_ok(cuFileDriverClose());
	close(fd);
	unlink(st_path);
	cu_free(dev);
}

/* Reads a cached file of LONG bytes while PENSTOCK_CUFILE_EFFORT has the value `effort`. Returns
 * whether the log says that the read used `path`. */
#define LONG (8u << 20)
static bool effort_reads_by(const char *effort, const char *path)
{
	char line[PATH_MAX + 64];
	int fd = st_make("effort", LONG, O_RDWR);
	void *dev = cu_alloc(LONG), *fh;
	struct test_held held = test_hold(st_path, LONG);
	unsigned before;
	bool named;

	snprintf(line, sizeof(line), "NOTICE: %s: read into cuda:0 by path %s", st_path, path);
	before = logged(line);
	setenv("PENSTOCK_CUFILE_EFFORT", effort, 1);
	assert_ok(cuFileDriverOpen());
	unsetenv("PENSTOCK_CUFILE_EFFORT");
	fh = st_register(fd, NULL);
	assert_int_equal(cuFileRead(fh, dev, LONG, 0, 0), LONG);
	named = logged(line) > before;
	test_release(held);
	st_drop(fh, fd);
	assert_ok(cuFileDriverClose());
	cu_free(dev);
	return named;
}

/* PENSTOCK_CUFILE_EFFORT sets the effort (thrifty, balanced or fast) of all transfers. */
static void effort(void **state)
{
	const char *wrong =
		"PENSTOCK_CUFILE_EFFORT is 'hasty': it must be thrifty, balanced or fast";

	(void)state;
	assert_true(effort_reads_by("", "bounce"));
	assert_true(effort_reads_by("fast", "bounce"));
	assert_int_equal(logged("PENSTOCK_CUFILE_EFFORT"), 0);
	assert_true(effort_reads_by("hasty", "bounce"));
	assert_int_equal(logged(wrong), 1);
	if (!effort_reads_by("thrifty", "mapped"))
		test_skip("path mapped is not quick here, or this kernel does not say what is "
			  "cached");
	assert_false(effort_reads_by("thrifty", "bounce"));
}

/* If the key logging.dir is set, the log is written to the folder that it names. If no log is
 * configured, no log file is created. */
static void log_place(void **state)
{
	char text[PATH_MAX + 64];
	struct dirent *e;
	DIR *dir;

	(void)state;
	unlink(log_path);
	/* The log's name belongs to a pipe without a reader, so the log goes to stderr. */
	assert_int_equal(mkfifo(log_path, 0600), 0);
	assert_ok(cuFileDriverOpen());
	assert_ok(cuFileDriverClose());
	unsetenv("CUFILE_LOGFILE_PATH");
	unlink(log_path);
	assert_ok(cuFileDriverOpen());
	cuFileHandleDeregister(NULL); /* logs an error */
	assert_ok(cuFileDriverClose());
	dir = opendir(".");
	while ((e = readdir(dir)))
		assert_true(e->d_name[0] == '.');
	closedir(dir);
	snprintf(text, sizeof(text), "{\"logging\": {\"dir\": \"%s\"}}", folder);
	write_json(text);
	assert_ok(cuFileDriverOpen());
	cuFileHandleDeregister(NULL);
	assert_ok(cuFileDriverClose());
	assert_int_equal(unlink("cufile.log"), 0);
	unlink(json_path);
}

static void p2p_flags(void **state)
{
	int flags = -1;

	(void)state;
	assert_int_equal(cuFileUseCount(), 0);
	assert_ok(cuFileDriverGetP2PFlags(CUF_NVME, &flags));
	assert_int_equal(flags, 0);
	assert_int_equal(cuFileUseCount(), 0);
	/* After a call of cuFileDriverGetP2PFlags the parameters cannot be changed, although the
	 * driver is closed. */
	assert_code(cuFileSetParameterSizeT(CUF_IO_BATCHSIZE, 9), CUF_DRIVER_ALREADY_OPEN);
	assert_ok(cuFileDriverSetP2PFlags(CUF_NVME, 0));
#ifdef __x86_64__
	assert_ok(cuFileDriverSetP2PFlags(CUF_NVME, 1 << CUF_P2P_P2PDMA));
	assert_ok(cuFileDriverGetP2PFlags(CUF_NVME, &flags));
	assert_int_equal(flags, 1 << CUF_P2P_P2PDMA);
	assert_ok(cuFileDriverSetP2PFlags(CUF_NVME, 0));
	assert_ok(cuFileDriverGetP2PFlags(CUF_NVME, &flags));
	assert_int_equal(flags, 1 << CUF_P2P_P2PDMA);
#endif
	assert_code(cuFileDriverSetP2PFlags(CUF_NVME, 1 << CUF_P2P_NVFS), CUF_INVALID_VALUE);
	assert_code(cuFileDriverSetP2PFlags(CUF_NVME, 3), CUF_INVALID_VALUE);
	assert_code(cuFileDriverSetP2PFlags(CUF_NVME, 1 << 20), CUF_INVALID_VALUE);
	assert_code(cuFileDriverSetP2PFlags(-1, 1), CUF_INVALID_VALUE);
	assert_code(cuFileDriverSetP2PFlags(CUF_TARGETS, 1), CUF_INVALID_VALUE);
	assert_code(cuFileDriverGetP2PFlags(CUF_NVME, NULL), CUF_INVALID_VALUE);
	assert_ok(cuFileDriverOpen());
	assert_ok(cuFileDriverClose());
	assert_ok(cuFileDriverGetP2PFlags(CUF_NVME, &flags));
	assert_int_equal(flags, 0);
}

static void topology(void **state)
{
	char name[PATH_MAX + 32], line[64] = "";
	int flags = -1;
	FILE *f;

	(void)state;
	assert_code(cuFileExportPCIeTopology(NULL), CUF_INVALID_VALUE);
	assert_code(cuFileExportPCIeTopology(""), CUF_INVALID_VALUE);
	assert_code(cuFileExportPCIeTopology("/no/such/folder/x"), CUF_INVALID_VALUE);
	snprintf(name, sizeof(name), "%s/topology", folder);
#ifdef __x86_64__
	assert_ok(cuFileDriverSetP2PFlags(CUF_NVME, 1 << CUF_P2P_P2PDMA));
#endif
	assert_ok(cuFileExportPCIeTopology(name));
	/* cuFileExportPCIeTopology clears the flags, as in NVIDIA's library. */
	assert_ok(cuFileDriverGetP2PFlags(CUF_NVME, &flags));
	assert_int_equal(flags, 0);
	f = fopen(name, "r");
	assert_non_null(fgets(line, sizeof(line), f));
	assert_string_equal(line, "// Topology file for cuFile.\n");
	assert_int_equal(fgetc(f), '{');
	fclose(f);
	unlink(name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults),	    cmocka_unit_test(precedence),
		cmocka_unit_test(wrong_parameters), cmocka_unit_test(slabs),
		cmocka_unit_test(misplaced_keys),   cmocka_unit_test(all_keys),
		cmocka_unit_test(wrong_kinds),	    cmocka_unit_test(environment),
		cmocka_unit_test(invalid_files),    cmocka_unit_test(many_unknown_keys),
		cmocka_unit_test(compat_off),	    cmocka_unit_test(first_use),
		cmocka_unit_test(effort),	    cmocka_unit_test(log_place),
		cmocka_unit_test(p2p_flags),	    cmocka_unit_test(topology),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
