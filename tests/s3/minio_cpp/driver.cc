// SPDX-License-Identifier: Apache-2.0
// A program for tests/s3/minio_cpp that calls minio-cpp's public API. It prints "ok ETAG" or
// "error TEXT" for the request:
//
//	driver HOST put BUCKET KEY FILE [gpu]		PutObject from a buffer with the file's bytes
//	driver HOST parts BUCKET KEY FILE PART COUNT	PutObject from a stream, in parts of PART
//							bytes, at most COUNT at the same time
//	driver HOST get BUCKET KEY FILE SIZE [gpu]	GetObject into a buffer of SIZE bytes
//	driver HOST range BUCKET KEY FILE SIZE OFFSET	the same for the range that begins at OFFSET
//
// `get` and `range` write the buffer to the file. The keys are in AWS_ACCESS_KEY_ID and
// AWS_SECRET_ACCESS_KEY. With `gpu`, the buffer is memory of libcuda.so.1, which may be the
// stand-in.
#include <dlfcn.h>
#include <miniocpp/client.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

// Memory of the host or of the GPU.
class Buffer {
public:
	Buffer(size_t size, bool gpu) : size_(size)
	{
		if (gpu)
			allocate_on_gpu();
		else if (posix_memalign(reinterpret_cast<void **>(&data_), 4096, size ? size : 1))
			fail("posix_memalign");
	}

	char *data() { return data_; }

	void put(const std::vector<char> &bytes)
	{
		if (!to_gpu_)
			memcpy(data_, bytes.data(), size_);
		else if (to_gpu_(address(), bytes.data(), size_))
			fail("cuMemcpyHtoD");
	}

	std::vector<char> get()
	{
		std::vector<char> bytes(size_);

		if (!from_gpu_)
			memcpy(bytes.data(), data_, size_);
		else if (from_gpu_(bytes.data(), address(), size_))
			fail("cuMemcpyDtoH");
		return bytes;
	}

private:
	[[noreturn]] static void fail(const char *call)
	{
		std::cerr << call << " has failed" << std::endl;
		exit(2);
	}

	template <typename Function> static Function find(void *library, const char *name)
	{
		void *symbol = dlsym(library, name);

		if (!symbol)
			fail(name);
		return reinterpret_cast<Function>(symbol);
	}

	unsigned long long address() { return reinterpret_cast<unsigned long long>(data_); }

	void allocate_on_gpu()
	{
		void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = nullptr;
		unsigned long long at = 0;

		if (!library)
			fail(dlerror());
		if (find<int (*)(unsigned)>(library, "cuInit")(0) ||
		    find<int (*)(void **, int)>(library, "cuDevicePrimaryCtxRetain")(&context, 0) ||
		    find<int (*)(void *)>(library, "cuCtxSetCurrent")(context) ||
		    find<int (*)(unsigned long long *, size_t)>(library, "cuMemAlloc_v2")(&at, size_))
			fail("cuMemAlloc");
		to_gpu_ = find<decltype(to_gpu_)>(library, "cuMemcpyHtoD_v2");
		from_gpu_ = find<decltype(from_gpu_)>(library, "cuMemcpyDtoH_v2");
		data_ = reinterpret_cast<char *>(at);
	}

	size_t size_;
	char *data_ = nullptr;
	int (*to_gpu_)(unsigned long long, const void *, size_t) = nullptr;
	int (*from_gpu_)(void *, unsigned long long, size_t) = nullptr;
};

template <typename Result> int report(const Result &result)
{
	if (result)
		std::cout << "ok " << result->etag << std::endl;
	else
		std::cout << "error " << result.error().String() << std::endl;
	return 0;
}

std::vector<char> read_file(const std::string &name)
{
	std::ifstream file(name, std::ios::binary);

	return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string &name, const std::vector<char> &bytes)
{
	std::ofstream(name, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

int put(minio::s3::Client &client, const std::vector<std::string> &words)
{
	const std::vector<char> bytes = read_file(words[2]);
	Buffer buffer(bytes.size(), words.size() > 3);
	minio::s3::PutObjectArgs args;

	buffer.put(bytes);
	args.bucket = words[0];
	args.object = words[1];
	args.buf = buffer.data();
	args.size = bytes.size();
	return report(client.PutObject(args));
}

int parts(minio::s3::Client &client, const std::vector<std::string> &words)
{
	const size_t size = read_file(words[2]).size();
	std::ifstream file(words[2], std::ios::binary);
	minio::s3::PutObjectArgs args(file, size, std::stoul(words[3]));

	args.bucket = words[0];
	args.object = words[1];
	args.max_inflight_parts = unsigned(std::stoul(words[4]));
	return report(client.PutObject(args));
}

int get(minio::s3::Client &client, const std::vector<std::string> &words, bool range)
{
	const size_t size = std::stoul(words[3]);
	Buffer buffer(size, !range && words.size() > 4);
	minio::s3::GetObjectArgs args;
	int status;

	buffer.put(std::vector<char>(size, '\xee'));
	args.bucket = words[0];
	args.object = words[1];
	args.buf = buffer.data();
	args.size = size;
	if (range)
		args.offset = std::stoul(words[4]);
	status = report(client.GetObject(args));
	write_file(words[2], buffer.get());
	return status;
}

} // namespace

int main(int argc, char **argv)
{
	const std::vector<std::string> words(argv + (argc < 3 ? argc : 3), argv + argc);
	const std::string how = argc < 3 ? "" : argv[2];
	const char *key = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");

	if (words.size() < 3 || !key || !secret)
		return 2;
	minio::s3::BaseUrl url(argv[1], false, "us-east-1");
	minio::creds::StaticProvider provider(key, secret);
	minio::s3::Client client(url, &provider);
	if (how == "put")
		return put(client, words);
	if (how == "parts" && words.size() == 5)
		return parts(client, words);
	if (how == "get" && words.size() >= 4)
		return get(client, words, false);
	if (how == "range" && words.size() == 5)
		return get(client, words, true);
	return 2;
}
