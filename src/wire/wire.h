/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3 over RDMA: a client opens windows of its memory, and a server moves bytes between its own
 * memory and these windows. src/object and storage/object_window.c call the functions of client.h
 * and server.h. The transports (transport.h) move the bytes.
 *
 * Three rules hold. A window is valid from pst_wire_window_open to pst_wire_release, and no byte
 * gets into it after the release. A transfer needs the window's capability of 128 random bits. A
 * transfer that does not fit into the window is refused as a whole.
 *
 * This folder accesses memory of GPUs only through struct pst_wire_devices, so that it depends on
 * no device.
 */
#ifndef PST_WIRE_WIRE_H
#define PST_WIRE_WIRE_H

#include <stdbool.h>

#include "core/base/err.h"
#include "penstock_object.h"

/* A network card of this host. */
struct pst_wire_nic {
	char address[46]; /* one of its IP addresses; "" if the client has only one address */
	char name[16];	  /* name of the network interface, such as "eth0"; "" if unknown */
	char bdf[24];	  /* PCI address; "" if it has none */
	/* what the kernel has reported about the link, and when, in ms; 0: not asked yet */
	_Atomic bool is_down;
	_Atomic uint64_t known_ms;
};

/* Functions for memory of devices, such as GPUs, with the contracts of the public functions of the
 * same names. The table must stay valid until every client and server is closed. */
struct pst_wire_devices {
	struct penstock_device *host; /* the device "host", for copies */
	int (*alloc)(struct penstock_device *dev, size_t len, void **out);
	int (*free)(struct penstock_device *dev, void *ptr);
	/* Returns a serial number of the device, which no other device of this process has or
	 * had. */
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
	/* Closes files that file_io has kept open and that are not needed any more. Returns the
	 * time in ms after which it must be called again, or -1 if no file is open. NULL if file_io
	 * keeps none open. */
	int (*tidy)(void);
	/* Properties of network cards. nic_find finds the card with an IP address. nic_distance
	 * returns how far memory is from a card; 0 is the nearest. nic_is_up returns whether a card
	 * has a link. */
	void (*nic_find)(const char *address, struct pst_wire_nic *out);
	unsigned (*nic_distance)(const struct pst_wire_nic *nic, struct penstock_device *dev,
				 const void *ptr);
	bool (*nic_is_up)(struct pst_wire_nic *nic);
};

/* The objects of the client and the server. transport.h defines the structs. */
struct pst_wire_client;
struct pst_wire_buffer;
struct pst_wire_grant; /* a window with its capability */
struct pst_wire_server;
struct pst_wire_remote;

#endif
