/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens, makes and removes the folders of keys, and moves the file of an object whose name a folder
 * needs. Called by store.c and walk.c. It must never follow a symbolic link or leave the bucket.
 */
#ifndef GW_FOLDER_H
#define GW_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* Flags with which a folder is opened. */
#define GW_OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* Opens a relative path beneath a folder, without following symbolic links. Returns the descriptor
 * or a negative errno. */
int gw_open_beneath(int dir, const char *path, int flags);

/* Returns whether an errno of a call with a path says that there is no such file or folder: it has
 * been removed, or something that is no object has its name. */
bool gw_is_gone(int code);

/* Completes the move of an object's file to %self, if the folder has a link %moving. Returns 0 or a
 * negative errno. `tmp` is the store's folder for drafts. */
int gw_folder_settle(int dir, int tmp);

/* Opens the folder of a path's last name, and makes missing folders. An object's file that has the
 * name of a folder becomes %self in it. With `sync`, folders with changed entries are synced.
 * Returns the descriptor or a negative errno. */
int gw_folder_make(int bucket, int tmp, const char *path, bool sync);

/* Returns whether a power cut may remove the folder's entry in its parent: another gateway or
 * another program may have made the folder a short time ago, and may not have synced the parent. */
bool gw_folder_is_young(int dir);

/* Removes the folders of a path's last name from the innermost outwards, as long as they are empty.
 * The bucket stays. */
void gw_folder_prune(int bucket, const char *path);

/* Removes all empty folders beneath a folder. Returns 0, or -ENOTEMPTY if anything else remains. */
int gw_folder_empty(int dir, unsigned depth);

/* Writes a name that no other file in a folder of the store has. */
void gw_unique_name(char out[64]);

#endif
