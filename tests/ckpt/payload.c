/* SPDX-License-Identifier: Apache-2.0 */
/*
 * payload write|read DEVICE FILE: writes or reads a part of a checkpoint. Its payloads are in the
 * memory of DEVICE, and at multiples of 4096 in the file. Before each payload is a short head,
 * which is in host memory. A read checks the bytes. Prints the report as one JSON object.
 * lab/guest/p2p-penstock.sh runs the program, and looks for the payloads in QEMU's trace of the
 * drive.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "penstock_ckpt.h"

#define PAYLOADS 4u
#define PAYLOAD (1u << 20)
#define HEAD 4096u

static char heads[PAYLOADS][HEAD];
static void *payloads[PAYLOADS];
static struct penstock_device *dev, *host;

static int die(const char *what)
{
	fprintf(stderr, "payload: %s: %s\n", what, penstock_errmsg());
	return 1;
}

static unsigned char byte_at(unsigned payload, unsigned i)
{
	return (unsigned char)((payload + 1) * 2654435761u >> 16 ^ i * 40503u >> 8 ^ i);
}

/* Copies a payload to the device, or, if `check` is set, compares the device's bytes with it. */
static int payload_copy(unsigned index, int check)
{
	unsigned char *bytes = malloc(PAYLOAD);
	struct penstock_copy_args args = {
		.size = sizeof(args), .dst_dev = dev, .src_dev = host, .row_len = PAYLOAD};
	int ret;

	for (unsigned i = 0; i < PAYLOAD; i++)
		bytes[i] = check ? 0 : byte_at(index, i);
	args.dst = check ? bytes : payloads[index];
	args.src = check ? payloads[index] : bytes;
	if (check) {
		args.dst_dev = host;
		args.src_dev = dev;
	}
	ret = penstock_copy(&args, 1);
	for (unsigned i = 0; check && !ret && i < PAYLOAD; i++)
		if (bytes[i] != byte_at(index, i))
			ret = penstock_fail(5, PENSTOCK_WHY_IO_ERROR, "byte %u of payload %u", i,
					    index);
	free(bytes);
	return ret;
}

/* Lists the heads and the payloads. A head begins one byte after a multiple of 16 in memory, so the
 * CPU copies it: direct paths, on which DMA fills the buffer, need aligned memory. */
static void list_items(struct penstock_item *items, struct penstock_seg *segs)
{
	static const char *const names[] = {"head", "payload"};

	for (unsigned i = 0; i < 2 * PAYLOADS; i++) {
		uint64_t at = (uint64_t)(i / 2) * (HEAD + PAYLOAD);

		segs[i] = i % 2 ? (struct penstock_seg){.buf = payloads[i / 2],
							.dev = dev,
							.off = at + HEAD,
							.row_len = PAYLOAD}
				: (struct penstock_seg){.buf = heads[i / 2] + 1,
							.dev = host,
							.off = at,
							.row_len = HEAD - 1};
		items[i] = (struct penstock_item){.size = sizeof(items[0]),
						  .name = names[i % 2],
						  .off = segs[i].off,
						  .len = segs[i].row_len,
						  .segs = &segs[i],
						  .seg_count = 1};
	}
}

int main(int argc, char **argv)
{
	struct penstock_part_opts opts = PENSTOCK_PART_OPTS_INIT;
	struct penstock_load_report r = {.size = sizeof(r)};
	struct penstock_item items[2 * PAYLOADS];
	struct penstock_seg segs[2 * PAYLOADS];
	int reads = argc > 1 && !strcmp(argv[1], "read"), ret = 0;

	if (argc != 4 || penstock_device_open("host", NULL, &host) < 0 ||
	    penstock_device_open(argv[2], NULL, &dev) < 0)
		return die("usage: payload write|read DEVICE FILE");
	for (unsigned i = 0; i < PAYLOADS && !ret; i++) {
		ret = penstock_alloc(dev, PAYLOAD, &payloads[i]);
		if (!ret && !reads)
			ret = payload_copy(i, 0);
	}
	list_items(items, segs);
	opts.durable = opts.sum = 1;
	if (!ret)
		ret = reads ? penstock_part_read(argv[3], items, 2 * PAYLOADS, &opts, &r)
			    : penstock_part_write(argv[3], items, 2 * PAYLOADS, &opts, &r);
	for (unsigned i = 0; i < PAYLOADS && !ret && reads; i++)
		ret = payload_copy(i, 1);
	if (ret)
		return die(argv[3]);
	printf("{\"path\": \"%s\", \"engine\": \"%s\", \"bytes\": %llu, \"cpu_copied\": %llu, "
	       "\"dram_laid\": %llu}\n",
	       r.path, r.engine, (unsigned long long)r.bytes, (unsigned long long)r.cpu_copied,
	       (unsigned long long)r.dram_laid);
	return 0;
}
