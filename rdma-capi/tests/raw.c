/* Stage b for the life of a connection: Queue Pairs that the program owns, of libibverbs, are connected, accounted for, drained
 * and recovered. Two processes that meet through shared memory; a device of libibverbs, or the software device in front of it.
 */
#define _DEFAULT_SOURCE
#include <infiniband/verbs.h>
#include "../examples/try.h"
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#define THAT(condition) \
    do { if (!(condition)) { fprintf(stderr, "raw.c:%d: %s\n", __LINE__, #condition); exit(1); } } while (0)

static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char memory[4096];
static int drained;
static qp_timing timing;

static int post_recv(void *wr_id)
{
    struct ibv_sge sge;
    struct ibv_recv_wr recv, *bad;

    memset(&recv, 0, sizeof recv);
    sge.addr = (uintptr_t)(memory + 1024);
    sge.length = 1024;
    sge.lkey = mr->lkey;
    recv.wr_id = *(uint64_t *)wr_id;
    recv.sg_list = &sge;
    recv.num_sge = 1;
    return ibv_post_recv(qp, &recv, &bad);
}

static void post_send(uint64_t wr_id, const char *text)
{
    struct ibv_sge sge;
    struct ibv_send_wr send, *bad;

    memset(&send, 0, sizeof send);
    strcpy(memory, text);
    sge.addr = (uintptr_t)memory;
    sge.length = (uint32_t)strlen(text) + 1;
    sge.lkey = mr->lkey;
    send.wr_id = wr_id;
    send.opcode = IBV_WR_SEND;
    send.send_flags = IBV_SEND_SIGNALED;
    send.sg_list = &sge;
    send.num_sge = 1;
    THAT(ibv_post_send(qp, &send, &bad) == 0);
}

static void poll_two(qp_ref *ref)
{
    struct ibv_wc wc;
    int n, done = 0;

    while (done < 2) {
        n = ibv_poll_cq(qp->send_cq, 1, &wc);
        THAT(n >= 0 && (n == 0 || wc.status == IBV_WC_SUCCESS));
        if (n) TRY(qp_ref_completed(ref, &wc, 1));
        done += n;
    }
}

static void takes(void *context, const struct ibv_wc *wc)
{
    (void)context;
    THAT(wc->status == IBV_WC_WR_FLUSH_ERR && wc->wr_id == 3);
    drained++;
}

static int nothing(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
    (void)cq, (void)room, (void)wc;
    return 0;
}

/* A drain for which the device was too slow: the program polls, and what the drain has posted is none of its requests. */
static void drain_in_vain(qp_ref *ref)
{
    int (*poll)(struct ibv_cq *, int, struct ibv_wc *) = qp->context->ops.poll_cq;
    struct ibv_wc wc;
    uint64_t wr_id = 6, completions = 9;
    qp_account account;
    int n, done = 0, own = 0;

    THAT(post_recv(&wr_id) == 0);
    TRY(qp_ref_posted(ref, 1));
    qp->context->ops.poll_cq = nothing;
    THAT(qp_ref_drain(ref, 10, takes, NULL, NULL) == ETIMEDOUT && qp_last_code() == QP_CODE_TIMED_OUT);
    qp->context->ops.poll_cq = poll;
    while (done < 3) {
        n = ibv_poll_cq(qp->send_cq, 1, &wc);
        THAT(n >= 0 && (n == 0 || wc.status == IBV_WC_WR_FLUSH_ERR));
        if (n && wc.wr_id == wr_id) own++;
        if (n) TRY(qp_ref_completed(ref, &wc, 1));
        done += n;
    }
    THAT(own == 1);
    TRY(qp_ref_account(ref, &account));
    THAT(account.accepted == 6 && account.flushed == 2 && account.pending == 0);
    TRY(qp_ref_drain(ref, 10000, takes, NULL, &completions));
    THAT(completions == 0);
}

static int no_peer(void *context, const void *mine, size_t len, void *theirs, size_t room, size_t *their_len)
{
    (void)context, (void)mine, (void)len, (void)theirs, (void)room, (void)their_len;
    return ENOTCONN;
}

static int no_barrier(void *context)
{
    (void)context;
    return ENOTCONN;
}

/* A recovery that ends when the Queue Pair is in RESET: what had no outcome by then will have none. */
static void recover_in_vain(qp_ref *ref)
{
    qp_exchange *nobody;
    qp_account account;

    TRY(qp_ref_posted(ref, 1)); /* its completion was never told */
    TRY(qp_exchange_from(no_peer, no_barrier, NULL, &nobody));
    THAT(qp_ref_recover(ref, 1, -1, nobody, &timing, 10000, takes, NULL, NULL) == ENOTCONN);
    TRY(qp_ref_account(ref, &account));
    THAT(account.discarded == 1 && account.pending == 0);
    THAT(account.accepted == account.succeeded + account.failed + account.flushed + account.discarded);
    TRY(qp_exchange_destroy(nobody));
}

static int end(int first, const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    qp_exchange *peer;
    qp_ref *ref;
    qp_account account;
    uint64_t wr_id = 1;
    char text[8192];
    int state;

    THAT(list && list[0]);
    context = ibv_open_device(list[0]);
    THAT(context);
    pd = ibv_alloc_pd(context);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    memset(&init, 0, sizeof init);
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = init.cap.max_recv_wr = 16;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    qp = ibv_create_qp(pd, &init);
    THAT(pd && mr && cq && qp);

    /* What stage a says. */
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    THAT(qp_modify(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL && qp_last_code() == QP_CODE_REFUSED);
    THAT(strstr(qp_last_error(), "IBV_QP_PKEY_INDEX") && strstr(qp_last_error(), "IBV_QP_ACCESS_FLAGS"));
    TRY(qp_state(qp, &state));
    THAT(state == IBV_QPS_RESET);

    /* Patient: tools and busy machines are slow. */
    TRY(qp_timing_default(&timing));
    timing.timeout = 18;
    TRY(qp_exchange_shm(name, 60000, &peer));
    TRY(qp_connect(qp, 1, -1, peer, &timing));
    TRY(qp_state(qp, &state));
    THAT(state == IBV_QPS_RTS);
    TRY(qp_ref_create(qp, &ref));
    TRY(qp_ref_account(ref, &account));
    THAT(account.accepted == QP_UNKNOWN && account.pending == QP_UNKNOWN && account.succeeded == 0);
    THAT(post_recv(&wr_id) == 0);
    TRY(qp_exchange_barrier(peer));
    post_send(2, first ? "first" : "second");
    TRY(qp_ref_posted(ref, 2));
    poll_two(ref);
    THAT(!strcmp(memory + 1024, first ? "second" : "first"));
    TRY(qp_ref_account(ref, &account));
    THAT(account.accepted == 2 && account.succeeded == 2 && account.pending == 0);

    /* A new life: what was not used comes back first. */
    wr_id = 3;
    THAT(post_recv(&wr_id) == 0);
    TRY(qp_ref_posted(ref, 1));
    TRY(qp_exchange_barrier(peer));
    wr_id = 4;
    TRY(qp_ref_recover(ref, 1, -1, peer, &timing, 10000, takes, post_recv, &wr_id));
    THAT(drained == 1);
    post_send(5, first ? "once more, first" : "once more, second");
    TRY(qp_ref_posted(ref, 2));
    poll_two(ref);
    THAT(!strcmp(memory + 1024, first ? "once more, second" : "once more, first"));
    TRY(qp_ref_account(ref, &account));
    THAT(account.accepted == 5 && account.succeeded == 4 && account.flushed == 1 && account.pending == 0);
    TRY(qp_query_text(qp, text, sizeof text, NULL));
    THAT(strstr(text, "RTS"));
    TRY(qp_query_json(qp, text, sizeof text, NULL));
    THAT(text[0] == '{');
    TRY(qp_exchange_barrier(peer));
    drain_in_vain(ref);
    recover_in_vain(ref);
    TRY(qp_ref_destroy(ref) || qp_exchange_destroy(peer));
    THAT(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
    ibv_free_device_list(list);
    THAT(ibv_close_device(context) == 0);
    return 0;
}

int main(void)
{
    char name[64];
    pid_t child;
    int status;

    sprintf(name, "qp-raw-%d", (int)getpid());
    child = fork();
    if (child == 0) return end(0, name);
    if (end(1, name)) return 1;
    if (waitpid(child, &status, 0) != child || status != 0) return fprintf(stderr, "the other process: %d\n", status), 1;
    printf("connected, accounted for, drained and recovered\n");
    return 0;
}
