/* Garbage collections that stop a JVM for asked times, at run time (JVM TI agent: -agentpath:gc.so=FILE).
 *
 * The file holds four 64-bit integers, which the process maps: the time in ns from the start of one collection to that of the
 * next (0 for none); the least and the greatest duration of a stop in ns; and a seed, by which durations are drawn. The agent
 * forces collections, and keeps the JVM at the collection's safepoint for the rest of the duration. No other thread of the JVM
 * runs meanwhile, and the kernel still answers for its sockets.
 *
 * Functions and events have the numbers that the specifications of JVM TI and JNI give them. No C library at link time, so that
 * it loads under glibc and musl.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { EVERY, LEAST, GREATEST, SEED, FIELDS };
#define SECOND_NS 1000000000LL
#define POLL_NS 10000000LL

typedef void **const *Interface; /* a pointer to a pointer to a table of functions */
enum { GET_ENV = 6, ATTACH_CURRENT_THREAD_AS_DAEMON = 7 }; /* positions in JNI's invocation interface */
enum { SET_EVENT_NOTIFICATION_MODE = 2, FORCE_GARBAGE_COLLECTION = 108, SET_EVENT_CALLBACKS = 122, ADD_CAPABILITIES = 142 };
enum { VM_INIT = 50, GARBAGE_COLLECTION_START = 81, EVENTS = 37 };
enum { JVMTI_VERSION = 0x30010200, ENABLE = 1, CAN_GENERATE_GARBAGE_COLLECTION_EVENTS = 1u << 31 };
static volatile int64_t *fields, stop_ns;
static Interface machine, tools;

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * SECOND_NS + time.tv_nsec;
}

static void sleep_until(int64_t due) {
  struct timespec time = {due / SECOND_NS, due % SECOND_NS};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, 0)) {}
}

/* Called at the safepoint of each collection. */
static void begin_collection(Interface interface) {
  int64_t asked = stop_ns;
  (void)interface;
  stop_ns = 0;
  if (asked) sleep_until(now_ns() + asked);
}

static void *collect(void *unused) {
  void *java;
  uint64_t random = 0;
  ((int (*)(Interface, void **, void *))(*machine)[ATTACH_CURRENT_THREAD_AS_DAEMON])(machine, &java, 0);
  for (;;) {
    int64_t every = fields[EVERY], begun = now_ns();
    if (every) {
      if (!random) random = (uint64_t)fields[SEED] | 1;
      random ^= random << 13, random ^= random >> 7, random ^= random << 17; /* xorshift64 */
      stop_ns = fields[LEAST] + (int64_t)(random % (uint64_t)(fields[GREATEST] - fields[LEAST] + 1));
      ((int (*)(Interface))(*tools)[FORCE_GARBAGE_COLLECTION - 1])(tools);
    } else {
      random = 0;
    }
    while (fields[EVERY] == every && (!every || now_ns() < begun + every)) sleep_until(now_ns() + POLL_NS);
  }
  return unused;
}

static void start(Interface interface, void *java, void *thread) {
  pthread_t collector;
  (void)interface, (void)java, (void)thread;
  pthread_create(&collector, 0, collect, 0);
}

int Agent_OnLoad(Interface vm, char *path, void *reserved) {
  uint32_t capabilities[4] = {CAN_GENERATE_GARBAGE_COLLECTION_EVENTS};
  void *callbacks[EVENTS] = {0};
  int file = open(path, O_RDONLY | O_CLOEXEC);
  void *memory = file < 0 ? MAP_FAILED : mmap(0, FIELDS * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  (void)reserved;
  if (memory == MAP_FAILED) return 1;
  close(file);
  fields = memory, machine = vm;
  if (((int (*)(Interface, void *, int))(*vm)[GET_ENV])(vm, &tools, JVMTI_VERSION)) return 1;
  callbacks[VM_INIT - VM_INIT] = start;
  callbacks[GARBAGE_COLLECTION_START - VM_INIT] = begin_collection;
  if (((int (*)(Interface, void *))(*tools)[ADD_CAPABILITIES - 1])(tools, capabilities)) return 1;
  if (((int (*)(Interface, void *, int))(*tools)[SET_EVENT_CALLBACKS - 1])(tools, callbacks, sizeof callbacks)) return 1;
  int (*notify)(Interface, int, int, void *) = (int (*)(Interface, int, int, void *))(*tools)[SET_EVENT_NOTIFICATION_MODE - 1];
  return notify(tools, ENABLE, VM_INIT, 0) || notify(tools, ENABLE, GARBAGE_COLLECTION_START, 0);
}
