/*
 * fsync and fdatasync that fail with EIO, for a process that is started with this in LD_PRELOAD.
 *
 * FIRN_TEST_FSYNC_SWITCH  a file: while it exists, calls fail
 * FIRN_TEST_FSYNC_PATH    and only those of files and directories whose path has this in it
 * FIRN_TEST_FSYNC_ONCE    set: the call that fails removes the file, so the ones after it succeed
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int strikes(int fd)
{
    const char *file = getenv("FIRN_TEST_FSYNC_SWITCH");
    const char *part = getenv("FIRN_TEST_FSYNC_PATH");
    char link[64], path[PATH_MAX];
    ssize_t length;

    if (file == NULL || part == NULL || access(file, F_OK) != 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    if (strstr(path, part) == NULL)
        return 0;
    /* Of threads that come at once, the one that removes the file is the one that fails. */
    return getenv("FIRN_TEST_FSYNC_ONCE") == NULL || unlink(file) == 0;
}

static int call(const char *name, int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);

    if (strikes(fd)) {
        errno = EIO;
        return -1;
    }
    return real(fd);
}

int fsync(int fd)
{
    return call("fsync", fd);
}

int fdatasync(int fd)
{
    return call("fdatasync", fd);
}
