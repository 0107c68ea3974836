/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens, makes and removes the folders for the parts of keys between slashes. If a new folder needs
 * the name of an object's file, moves this file into the folder. Called by store.c and walk.c. It
 * must never follow a symbolic link or leave the bucket.
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

/* Returns whether an errno of a call with a path means that the object or folder does not exist: it
 * has been removed, or a file of another type, such as a symbolic link, has its name. */
bool gw_is_gone(int code);

/* If a folder needs the name of an object's file, the file becomes %self in the folder. As long as
 * this move is not complete, the folder contains the link %moving. If `dir` contains this link,
 * completes the move. Returns 0 or a negative errno. `tmp` is the store's folder for drafts. */
int gw_folder_settle(int dir, int tmp);

/* Opens the folder that contains the last name of a path, and makes missing folders. If a folder
 * needs the name of an object's file, the file becomes %self in the folder (keypath.h). With
 * `sync`, folders with changed entries are synced. Returns the descriptor or a negative errno. */
int gw_folder_make(int bucket, int tmp, const char *path, bool sync);

/* Returns whether a power cut may remove the folder's entry in its parent: another gateway or
 * another program may have made the folder a short time ago, and may not have synced the parent. */
bool gw_folder_is_young(int dir);

/* Removes the folders that contain the last name of a path, from the innermost outwards, as long as
 * they are empty. Does not remove the bucket. */
void gw_folder_prune(int bucket, const char *path);

/* Removes all empty folders beneath a folder. `depth` is 0; the function counts it up when it calls
 * itself. Returns 0, or -ENOTEMPTY if anything else remains. */
int gw_folder_empty(int dir, unsigned depth);

/* Writes a random name of 32 hex digits, which no other file in a folder of the store has. */
void gw_unique_name(char out[64]);

#endif
