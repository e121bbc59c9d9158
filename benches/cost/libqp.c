// What a program in C spends on the same requests as in loops.c with libqp, of which this is linked with the library as it is
// installed. Built by run.sh; speaks as the program `cost` does: list, run NAME N, time [--passes=N] [--n=N].
//
// The objects are those of the software device; what is posted and polled goes to the two functions below, which do what
// those of ../src/provider.rs do.
#include <infiniband/verbs.h>
#include <qp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { QPS = 16, LIST = 32, IN_FLIGHT = 64 };

static struct ring {
  uint64_t posted, polled;
  struct { uint64_t wr_id; uint32_t qp_num; } at[IN_FLIGHT];
} ring;

static int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  for (; wr; wr = wr->next) {
    if (!(wr->send_flags & IBV_SEND_SIGNALED)) continue;
    if (ring.posted - ring.polled == IN_FLIGHT) return *bad = wr, ENOMEM;
    ring.at[ring.posted % IN_FLIGHT].wr_id = wr->wr_id;
    ring.at[ring.posted++ % IN_FLIGHT].qp_num = qp->qp_num;
  }
  return 0;
}

static int fake_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
  int k = 0;
  (void)cq;
  for (; k < n && ring.polled != ring.posted; k++) {
    wc[k].wr_id = ring.at[ring.polled % IN_FLIGHT].wr_id;
    wc[k].qp_num = ring.at[ring.polled++ % IN_FLIGHT].qp_num;
    wc[k].status = IBV_WC_SUCCESS;
    wc[k].opcode = IBV_WC_SEND;
    wc[k].byte_len = 0;
    wc[k].wc_flags = 0;
  }
  return k;
}

static struct {
  qp_device *device;
  qp_pd *pd;
  qp_cq *cq;
  qp_mr *mr;
  qp_pair *pairs[QPS], *batched[QPS];   // with a doorbell for each request, and for 32
  struct ibv_qp *raw[QPS];
  struct ibv_cq *raw_cq;
  void *addr;
  uint32_t lkey;
} o;

// Where request i is, and how long: as in loops.c.
static inline size_t offset(long i) { return i & 4095; }
static inline size_t length(long i) { return 64 + (i & 15); }

// A request that was made before the loop, of which only what varies is written.
__attribute__((noinline)) static int loop_libqp(qp_pair *const *pairs, qp_cq *cq, qp_mr *mr, long n) {
  qp_send send = {.op = QP_SEND, .mr = mr};
  for (long i = 0; i < n; i++) {
    qp_completion done;
    size_t count;
    send.context = i;
    send.offset = offset(i);
    send.len = length(i);
    if (qp_post_send(pairs[i % QPS], &send)) return -1;
    do
      if (qp_poll(cq, &done, 1, &count)) return -1;
    while (count == 0);
    if (done.status || done.context != (uint64_t)i) return -1;
  }
  return 0;
}

// 32 requests, each built by initialiser, for one call, polled up to 32 at once.
__attribute__((noinline)) static int loop_libqp_lists(qp_pair *const *pairs, qp_cq *cq, qp_mr *mr, long n) {
  for (long i = 0; i < n; i += LIST) {
    qp_send sends[LIST];
    qp_completion done[LIST];
    size_t count, k;
    for (k = 0; k < LIST; k++)
      sends[k] = (qp_send){.context = i + k, .op = QP_SEND, .mr = mr, .offset = offset(i + k), .len = length(i + k)};
    if (qp_post_sends(pairs[i / LIST % QPS], sends, LIST, NULL)) return -1;
    for (long next = i; next < i + LIST;) {
      if (qp_poll(cq, done, LIST, &count)) return -1;
      for (k = 0; k < count; k++, next++)
        if (done[k].status || done[k].context != (uint64_t)next) return -1;
    }
  }
  return 0;
}

// The inline verbs of loops.c on the objects behind the handles.
int loop_fields(struct ibv_qp *const *qps, struct ibv_cq *cq, uint64_t addr, uint32_t lkey, long n);

static int raw(long n) { return loop_fields(o.raw, o.raw_cq, (uintptr_t)o.addr, o.lkey, n); }
static int single(long n) { return loop_libqp(o.pairs, o.cq, o.mr, n); }
static int lists(long n) { return loop_libqp_lists(o.batched, o.cq, o.mr, n); }

// The first one is what the times of the others are compared with.
static const struct { const char *name; int (*run)(long n); } LOOPS[] = {
    {"libqp-raw", raw}, {"libqp", single}, {"libqp-lists", lists}};
enum { COUNT = sizeof LOOPS / sizeof *LOOPS };

static void must(int failed, const char *what) {
  if (!failed) return;
  fprintf(stderr, "%s: %s\n", what, qp_last_error());
  exit(1);
}
#define MUST(call) must(call, #call)

static void make(void) {
  struct ibv_context *context;
  qp_pair_attr attr = {.send_depth = 2 * LIST, .recv_depth = 1};
  MUST(qp_soft_open(NULL, &o.device));
  MUST(qp_device_raw(o.device, &context));
  context->ops.post_send = fake_post_send;
  context->ops.poll_cq = fake_poll_cq;
  MUST(qp_pd_create(o.device, &o.pd));
  MUST(qp_cq_create(o.device, 4096, 0, &o.cq));
  MUST(qp_cq_raw(o.cq, &o.raw_cq));
  MUST(qp_mr_create(o.pd, 8192, IBV_ACCESS_LOCAL_WRITE, &o.mr));
  MUST(qp_mr_addr(o.mr, &o.addr));
  MUST(qp_mr_lkey(o.mr, &o.lkey));
  attr.send_cq = o.cq;
  for (int i = 0; i < QPS; i++) {
    attr.send_batch = 1;
    MUST(qp_pair_create(o.pd, &attr, &o.pairs[i]));
    attr.send_batch = LIST;
    MUST(qp_pair_create(o.pd, &attr, &o.batched[i]));
    MUST(qp_pair_raw(o.pairs[i], &o.raw[i]));
  }
}

// Runs a loop, and looks whether all n requests were posted and polled.
static void run(int loop, long n) {
  uint64_t posted = ring.posted, polled = ring.polled;
  must(LOOPS[loop].run(n), LOOPS[loop].name);
  if (ring.posted - posted == (uint64_t)n && ring.polled - polled == (uint64_t)n) return;
  fprintf(stderr, "%s: not %ld requests posted and polled\n", LOOPS[loop].name, n);
  exit(1);
}

// Allocations, those of the library among them: run.sh links this with --wrap.
static uint64_t allocations;
#define WRAP(type, name, parameters, ...) \
  type __real_##name parameters; \
  type __wrap_##name parameters; \
  type __wrap_##name parameters { allocations++; return __real_##name(__VA_ARGS__); }
WRAP(void *, malloc, (size_t size), size)
WRAP(void *, calloc, (size_t count, size_t size), count, size)
WRAP(void *, realloc, (void *old, size_t size), old, size)
WRAP(int, posix_memalign, (void **into, size_t align, size_t size), into, align, size)

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// The middle one.
static double median(double *values, int count) {
  qsort(values, count, sizeof *values, by_value);
  return values[count / 2];
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);   // others may be busy
  return 1e9 * t.tv_sec + t.tv_nsec;
}

// All loops in turn, `passes` times and once before to warm up: median time of a request, median ratio to the first loop in the
// same pass, allocations.
static void clock_all(int passes, long n) {
  double *spent = calloc(2 * COUNT * passes, sizeof *spent), *ratios = spent + COUNT * passes;
  uint64_t allocated[COUNT] = {0};
  for (int pass = -1; pass < passes; pass++)
    for (int i = 0; i < COUNT; i++) {
      uint64_t count = allocations;
      double start = now();
      run(i, n);
      double ns = (now() - start) / n;
      if (pass < 0) continue;
      allocated[i] += allocations - count;
      spent[i * passes + pass] = ns;
      ratios[i * passes + pass] = ns / spent[pass];
    }
  for (int i = 0; i < COUNT; i++)
    printf("%s %.3f %.3f %g\n", LOOPS[i].name, median(spent + i * passes, passes), median(ratios + i * passes, passes),
           (double)allocated[i] / (n * (double)passes));
  free(spent);
}

int main(int argc, char **argv) {
  int passes = 101;
  long n = 1 << 16;
  if (argc > 2 && !strcmp(argv[1], "--c")) argc -= 2, argv += 2;   // loops.c is linked in
  make();
  if (argc > 1 && !strcmp(argv[1], "list"))
    for (int i = 0; i < COUNT; i++) puts(LOOPS[i].name);
  else if (argc > 3 && !strcmp(argv[1], "run")) {
    for (int i = 0; i < COUNT; i++)
      if (!strcmp(LOOPS[i].name, argv[2])) return run(i, atol(argv[3])), 0;
    return fprintf(stderr, "no loop is called %s\n", argv[2]), 2;
  } else if (argc > 1 && !strcmp(argv[1], "time")) {
    for (int i = 2; i < argc; i++) sscanf(argv[i], "--passes=%d", &passes), sscanf(argv[i], "--n=%ld", &n);
    clock_all(passes, n);
  } else
    return fprintf(stderr, "usage: %s list | run NAME N | time [--passes=N] [--n=N]\n", argv[0]), 2;
  return 0;
}
