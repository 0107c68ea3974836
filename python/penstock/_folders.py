# SPDX-License-Identifier: Apache-2.0
"""Creates the folders of checkpoints durably, and describes their file systems."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket


@dataclasses.dataclass(frozen=True)
class Place:
    """The file system of a folder, as a rank describes it to the coordinator of a save.

    Attributes: host (the host's name), device (the file system's device number on this host), total
    and free (bytes), shared (whether all hosts see the same files)."""
    host: str
    device: int
    total: int
    free: int
    shared: bool


_NETWORK = {"nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "wekafs", "cifs", "smb3", "9p",
            "fuse.glusterfs", "afs", "pvfs2", "orangefs"}


def place_of(folder: str) -> Place:
    """Describes the file system of a folder, which must exist."""
    stat, space = os.stat(folder), os.statvfs(folder)
    return Place(socket.gethostname(), stat.st_dev, space.f_blocks * space.f_frsize,
                 space.f_bavail * space.f_frsize, file_system(stat.st_dev) in _NETWORK)


def file_system(device: int) -> str:
    """Returns the type of the file system with this device number, such as "ext4", or "" if no
    such file system is mounted."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8") as lines:
        for line in lines:
            fields = line.split()
            if fields[2] == wanted:
                return fields[fields.index("-") + 1]
    return ""


def make_folder(folder: str, durable: bool) -> None:
    """Makes a folder and its missing parent folders. If `durable` is true, their names survive a
    power cut."""
    folder = os.path.abspath(folder)
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        os.makedirs(folder, exist_ok=True)
        if durable:
            sync_folder(os.path.dirname(folder))


def sync_folder(folder: str) -> None:
    """Syncs a folder to its drive, so that the names of its files survive a power cut."""
    fd = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


__all__ = ["Place", "file_system", "make_folder", "place_of", "sync_folder"]
