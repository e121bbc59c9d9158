// What a program in C spends on a signaled SEND of one range: 16 QPs on one CQ in turn, another address and another
// length each time. Built by run.sh as a shared object, so that the program that loads it runs these loops and those in
// Rust on the same objects of the same provider. Each returns 0 when all n requests ended well and in order.
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

enum { QPS = 16, LIST = 32 };

#define LOOP(name) int name(struct ibv_qp *const *qps, struct ibv_cq *cq, uint64_t addr, uint32_t lkey, long n)
LOOP(loop_one);
LOOP(loop_fields);
LOOP(loop_reuse);
LOOP(loop_list);
LOOP(loop_tight);

// Where request i is, and how long: as in src/bin/cost/loops.rs.
static inline uint64_t offset(long i) { return i & 4095; }
static inline uint32_t length(long i) { return 64 + (i & 15); }

// Polls one completion; 0 when it is that of request i, and good.
static inline int reap(struct ibv_cq *cq, uint64_t i) {
  struct ibv_wc wc;
  int r;
  do r = ibv_poll_cq(cq, 1, &wc); while (r == 0);
  return r < 0 || wc.status != IBV_WC_SUCCESS || wc.wr_id != i;
}

// The usual initialiser: the compiler clears all other fields of the request.
LOOP(loop_one) {
  for (long i = 0; i < n; i++) {
    struct ibv_sge sge = {.addr = addr + offset(i), .length = length(i), .lkey = lkey};
    struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED}, *bad;
    if (ibv_post_send(qps[i % QPS], &wr, &bad) || reap(cq, i)) return -1;
  }
  return 0;
}

// Only the fields that a SEND reads are written.
LOOP(loop_fields) {
  for (long i = 0; i < n; i++) {
    struct ibv_sge sge;
    struct ibv_send_wr wr, *bad;
    sge.addr = addr + offset(i);
    sge.length = length(i);
    sge.lkey = lkey;
    wr.wr_id = i;
    wr.next = NULL;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (ibv_post_send(qps[i % QPS], &wr, &bad) || reap(cq, i)) return -1;
  }
  return 0;
}

// A request that was made before the loop, of which only what varies is written: what the calls themselves take.
LOOP(loop_reuse) {
  struct ibv_sge sge = {.lkey = lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
  for (long i = 0; i < n; i++) {
    sge.addr = addr + offset(i);
    sge.length = length(i);
    wr.wr_id = i;
    if (ibv_post_send(qps[i % QPS], &wr, &bad) || reap(cq, i)) return -1;
  }
  return 0;
}

// 32 requests for one call, each built by initialiser, completions polled one by one; n is a multiple of 32.
LOOP(loop_list) {
  for (long i = 0; i < n; i += LIST) {
    struct ibv_sge sge[LIST];
    struct ibv_send_wr wr[LIST], *bad;
    for (int k = 0; k < LIST; k++) {
      sge[k] = (struct ibv_sge){.addr = addr + offset(i + k), .length = length(i + k), .lkey = lkey};
      wr[k] = (struct ibv_send_wr){.wr_id = i + k, .next = k + 1 < LIST ? &wr[k + 1] : NULL, .sg_list = &sge[k],
                                   .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    }
    if (ibv_post_send(qps[i / LIST % QPS], wr, &bad)) return -1;
    for (int k = 0; k < LIST; k++)
      if (reap(cq, i + k)) return -1;
  }
  return 0;
}

// 32 requests that were linked before the loop, of which only what varies is written; up to 32 polled by one call.
LOOP(loop_tight) {
  struct ibv_sge sge[LIST];
  struct ibv_send_wr wr[LIST], *bad;
  for (int k = 0; k < LIST; k++) {
    sge[k] = (struct ibv_sge){.lkey = lkey};
    wr[k] = (struct ibv_send_wr){.next = k + 1 < LIST ? &wr[k + 1] : NULL, .sg_list = &sge[k], .num_sge = 1,
                                 .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  }
  for (long i = 0; i < n; i += LIST) {
    for (int k = 0; k < LIST; k++) {
      wr[k].wr_id = i + k;
      sge[k].addr = addr + offset(i + k);
      sge[k].length = length(i + k);
    }
    if (ibv_post_send(qps[i / LIST % QPS], wr, &bad)) return -1;
    struct ibv_wc wc[LIST];
    for (int done = 0; done < LIST;) {
      int r = ibv_poll_cq(cq, LIST, wc);
      if (r < 0) return -1;
      for (int k = 0; k < r; k++, done++)
        if (wc[k].status != IBV_WC_SUCCESS || wc[k].wr_id != (uint64_t)(i + done)) return -1;
    }
  }
  return 0;
}
