// A libibverbs that does almost nothing: what the crate sideway loads in place of the real one, since it takes no other
// device. What is posted is done, in order, as with the provider in ../src/provider.rs; the extended posts and polls are
// here too, because sideway offers both. Built by ../cost/run.sh as libibverbs.so.1. Functions that a loop of posts and
// polls reaches begin with `fake_`.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

enum { IN_FLIGHT = 64 };

struct cq {
  struct ibv_cq_ex ex;   // its head is an ibv_cq
  uint64_t posted, polled;
  struct { uint64_t wr_id; uint32_t qp_num; } ring[IN_FLIGHT];
};
struct qp {
  union { struct ibv_qp ibv; struct ibv_qp_ex ex; };
  uint64_t started;   // what the CQ had when the list began
};

static int push(struct cq *cq, uint64_t wr_id, uint32_t qp_num) {
  if (cq->posted - cq->polled == IN_FLIGHT) return ENOMEM;
  cq->ring[cq->posted % IN_FLIGHT].wr_id = wr_id;
  cq->ring[cq->posted++ % IN_FLIGHT].qp_num = qp_num;
  return 0;
}

static int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  for (; wr; wr = wr->next)
    if (wr->send_flags & IBV_SEND_SIGNALED && push((struct cq *)qp->send_cq, wr->wr_id, qp->qp_num)) {
      *bad = wr;
      return ENOMEM;
    }
  return 0;
}

static int fake_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc) {
  struct cq *cq = (struct cq *)ibv;
  int k = 0;
  for (; k < n && cq->polled != cq->posted; k++) {
    wc[k].wr_id = cq->ring[cq->polled % IN_FLIGHT].wr_id;
    wc[k].qp_num = cq->ring[cq->polled++ % IN_FLIGHT].qp_num;
    wc[k].status = IBV_WC_SUCCESS;
    wc[k].opcode = IBV_WC_SEND;
    wc[k].byte_len = 0;
    wc[k].wc_flags = 0;
  }
  return k;
}

// The extended posts: a request counts once its entries are set.
static void fake_wr_start(struct ibv_qp_ex *qp) {
  ((struct qp *)qp)->started = ((struct cq *)qp->qp_base.send_cq)->posted;
}
static void fake_wr_send(struct ibv_qp_ex *qp) { (void)qp; }
static void fake_wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length) {
  (void)lkey, (void)addr, (void)length;
  if (qp->wr_flags & IBV_SEND_SIGNALED) push((struct cq *)qp->qp_base.send_cq, qp->wr_id, qp->qp_base.qp_num);
}
static int fake_wr_complete(struct ibv_qp_ex *qp) { (void)qp; return 0; }
static void fake_wr_abort(struct ibv_qp_ex *qp) {
  ((struct cq *)qp->qp_base.send_cq)->posted = ((struct qp *)qp)->started;
}

// The extended polls.
static int fake_next_poll(struct ibv_cq_ex *ex) {
  struct cq *cq = (struct cq *)ex;
  if (cq->polled == cq->posted) return ENOENT;
  ex->wr_id = cq->ring[cq->polled++ % IN_FLIGHT].wr_id;
  ex->status = IBV_WC_SUCCESS;
  return 0;
}
static int fake_start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr) { (void)attr; return fake_next_poll(ex); }
static void fake_end_poll(struct ibv_cq_ex *ex) { (void)ex; }

static void *made(size_t size) {
  void *object = calloc(1, size);
  if (!object) abort();
  return object;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                             int vector) {
  struct cq *cq = made(sizeof *cq);
  (void)vector;
  cq->ex.context = context, cq->ex.cqe = cqe, cq->ex.cq_context = cq_context, cq->ex.channel = channel;
  cq->ex.start_poll = fake_start_poll, cq->ex.next_poll = fake_next_poll, cq->ex.end_poll = fake_end_poll;
  return (struct ibv_cq *)cq;
}
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *init) {
  return (struct ibv_cq_ex *)ibv_create_cq(context, init->cqe, init->cq_context, init->channel, 0);
}
int ibv_destroy_cq(struct ibv_cq *cq) { free(cq); return 0; }

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv, enum ibv_qp_type type) {
  static uint32_t next = 0x40;
  struct qp *qp = made(sizeof *qp);
  qp->ibv.context = pd->context, qp->ibv.pd = pd, qp->ibv.send_cq = send, qp->ibv.recv_cq = recv;
  qp->ibv.qp_num = next++, qp->ibv.qp_type = type;
  qp->ex.wr_start = fake_wr_start, qp->ex.wr_send = fake_wr_send, qp->ex.wr_set_sge = fake_wr_set_sge;
  qp->ex.wr_complete = fake_wr_complete, qp->ex.wr_abort = fake_wr_abort;
  return &qp->ibv;
}
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  return create(pd, init->send_cq, init->recv_cq, init->qp_type);
}
static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *init) {
  (void)context;
  return create(init->pd, init->send_cq, init->recv_cq, init->qp_type);
}
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return &((struct qp *)qp)->ex; }
int ibv_destroy_qp(struct ibv_qp *qp) { free(qp); return 0; }

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct ibv_pd *pd = made(sizeof *pd);
  pd->context = context;
  return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) { free(pd); return 0; }

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  struct ibv_mr *mr = made(sizeof *mr);
  (void)access;
  mr->context = pd->context, mr->pd = pd, mr->addr = addr, mr->length = length, mr->lkey = 7, mr->rkey = 8;
  return mr;
}
int ibv_dereg_mr(struct ibv_mr *mr) { free(mr); return 0; }

static struct ibv_device device = {.name = "fake0"};
struct ibv_device **ibv_get_device_list(int *count) {
  struct ibv_device **list = made(2 * sizeof *list);
  list[0] = &device;
  if (count) *count = 1;
  return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  (void)context;
  memset(attr, 0, sizeof *attr);
  return 0;
}
struct ibv_context *ibv_open_device(struct ibv_device *d) {
  struct verbs_context *v = made(sizeof *v);
  v->sz = sizeof *v;
  v->create_cq_ex = create_cq_ex, v->create_qp_ex = create_qp_ex;
  v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  v->context.device = d;
  v->context.ops.post_send = fake_post_send, v->context.ops.poll_cq = fake_poll_cq;
  return &v->context;
}
int ibv_close_device(struct ibv_context *context) {
  free((char *)context - offsetof(struct verbs_context, context));
  return 0;
}
