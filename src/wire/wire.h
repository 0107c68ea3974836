/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data plane of S3 over RDMA: a client opens windows of its memory, and a server moves bytes
 * between its own memory and these windows. Called by src/object, and by the storage of objects
 * (storage/object_window.c). The transports (transport.h) do the work; client.h and server.h have
 * what they share.
 *
 * Three rules. A window is valid from pst_wire_window_open to pst_wire_release, and no byte gets
 * into it after the release. A transfer needs the window's capability of 128 random bits. A
 * transfer that does not fit into the window is refused as a whole.
 *
 * This folder reaches memory of GPUs through struct pst_wire_devices only, so that it depends on
 * no device.
 */
#ifndef PST_WIRE_WIRE_H
#define PST_WIRE_WIRE_H

#include <stdbool.h>

#include "core/base/err.h"
#include "penstock_object.h"

/* A network card of this host. */
struct pst_wire_nic {
	char address[46]; /* one of its addresses; "" without a choice */
	char name[16];	  /* of the network interface; "" if unknown */
	char bdf[24];	  /* PCI address; "" if it has none */
	/* what the kernel has reported about the link, and when, in ms; 0: not asked yet */
	_Atomic bool is_down;
	_Atomic uint64_t known_ms;
};

/* Functions for memory that is not host memory, with the meaning of the public functions of the
 * same names. The table lives longer than every client and server. */
struct pst_wire_devices {
	struct penstock_device *host; /* the device "host", for copies */
	int (*alloc)(struct penstock_device *dev, size_t len, void **out);
	int (*free)(struct penstock_device *dev, void *ptr);
	/* Returns a number of the device that no other device of this process has or had. */
	uint64_t (*serial)(const struct penstock_device *dev);
	int (*copy)(const struct penstock_copy_args *copies, unsigned count);
	int (*export_memory)(struct penstock_device *dev, void *ptr, size_t len,
			     struct penstock_export *out);
	/* *len receives the number of bytes that the import may access. */
	int (*import_memory)(struct penstock_device *dev, const struct penstock_export *exported,
			     void **out, uint64_t *len);
	/* Opens a dma-buf of a range of device memory. *off receives the range's offset in it. The
	 * caller closes *fd. Returns -EOPNOTSUPP if the device cannot do it. */
	int (*dma_buf)(struct penstock_device *dev, void *ptr, size_t len, int *fd, uint64_t *off);
	/* Makes bytes that a network card has written visible to later reads of the memory. */
	int (*order_writes)(struct penstock_device *dev);
	/* Moves bytes between a file and memory of a device. Moves all bytes or returns a negative
	 * errno. */
	int (*file_io)(int fd, uint64_t off, struct penstock_device *dev, void *mem, uint64_t len,
		       bool read_file);
	/* Closes what file_io has kept and no longer needs. Returns after how many ms it shall be
	 * called again, or -1 if nothing is kept. NULL if file_io keeps nothing. */
	int (*tidy)(void);
	/* Facts of network cards: finds a card by an address; returns how far memory is from it, 0
	 * is the nearest; returns whether it has a link. */
	void (*nic_find)(const char *address, struct pst_wire_nic *out);
	unsigned (*nic_distance)(const struct pst_wire_nic *nic, struct penstock_device *dev,
				 const void *ptr);
	bool (*nic_is_up)(struct pst_wire_nic *nic);
};

/* The objects of both halves. transport.h defines the structs. */
struct pst_wire_client;
struct pst_wire_buffer;
struct pst_wire_grant; /* a window with its token */
struct pst_wire_server;
struct pst_wire_remote;

#endif
