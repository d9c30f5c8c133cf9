/* Preloaded into a server: flushes to disk fail while the file $FAILING_FLUSH exists. */
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static long flush(long call, int fd) {
    const char *file = getenv("FAILING_FLUSH");
    if (file != NULL && access(file, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return syscall(call, fd);
}

int fsync(int fd) { return (int)flush(SYS_fsync, fd); }
int fdatasync(int fd) { return (int)flush(SYS_fdatasync, fd); }
