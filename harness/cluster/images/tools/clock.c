/* A wall clock that can be moved at run time, for one container (LD_PRELOAD).
 *
 * The file AFTERSHOCK_CLOCK holds five 64-bit integers, which the process maps: the offset in ns; the monotonic time in ns
 * from which a drift counts, and the drift in ns per second; the period of a strobe in ns (0 for none), and its amplitude in
 * ns. CLOCK_REALTIME becomes true time + offset + drift +- amplitude. CLOCK_MONOTONIC is never changed.
 *
 * Without a C library's symbols at link time, so that it loads under glibc and musl.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OFFSET, ANCHOR, DRIFT, PERIOD, AMPLITUDE, FIELDS };
#define SECOND_NS 1000000000LL
/* absolute deadlines of CLOCK_MONOTONIC are smaller than this: the host would have to run for 31 years */
#define EPOCH_S 1000000000LL

static volatile int64_t *fields;
static int (*true_clock_gettime)(clockid_t, struct timespec *);
static int (*true_timedwait)(void *, void *, const struct timespec *);

static int64_t read_ns(clockid_t clock) {
  struct timespec time;
  if (!true_clock_gettime)
    true_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  true_clock_gettime(clock, &time);
  return time.tv_sec * SECOND_NS + time.tv_nsec;
}

static int64_t shift_ns(void) {
  if (!fields) return 0;
  int64_t shift = fields[OFFSET], drift = fields[DRIFT], period = fields[PERIOD];
  if (!drift && !period) return shift;
  int64_t now = read_ns(CLOCK_MONOTONIC);
  if (drift) {
    int64_t since = now - fields[ANCHOR];
    shift += since / SECOND_NS * drift + since % SECOND_NS * drift / SECOND_NS;
  }
  if (period) shift += now / period % 2 ? fields[AMPLITUDE] : -fields[AMPLITUDE];
  return shift;
}

static int64_t now_ns(void) { return read_ns(CLOCK_REALTIME) + shift_ns(); }

__attribute__((constructor)) static void map_file(void) {
  const char *path = getenv("AFTERSHOCK_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *memory = mmap(0, FIELDS * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (memory != MAP_FAILED) fields = memory;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) {
    if (!true_clock_gettime) read_ns(CLOCK_MONOTONIC);
    return true_clock_gettime(clock, time);
  }
  int64_t now = now_ns();
  time->tv_sec = now / SECOND_NS;
  time->tv_nsec = now % SECOND_NS;
  return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  int64_t now = now_ns();
  time->tv_sec = now / SECOND_NS;
  time->tv_usec = now % SECOND_NS / 1000;
  return 0;
}

time_t time(time_t *result) {
  time_t now = now_ns() / SECOND_NS;
  if (result) *result = now;
  return now;
}

/* The JVM waits for absolute times of CLOCK_REALTIME (LockSupport.parkUntil), and the kernel knows the true clock only. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline) {
  if (!true_timedwait)
    true_timedwait = (int (*)(void *, void *, const struct timespec *))dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  if (!fields || deadline->tv_sec < EPOCH_S) return true_timedwait(condition, mutex, deadline);
  int64_t due = deadline->tv_sec * SECOND_NS + deadline->tv_nsec - shift_ns();
  struct timespec true_deadline = {due > 0 ? due / SECOND_NS : 0, due > 0 ? due % SECOND_NS : 0};
  return true_timedwait(condition, mutex, &true_deadline);
}
