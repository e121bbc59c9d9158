/* What misuse.c tries on the recovery of an XRC connection, whose two ends are threads here. */

static qp_pair *sends_to_srq;

static void *recovers_initiator(void *result)
{
    qp_exchange *exchange;
    char name[64];

    sprintf(name, "misuse-xrc-%d", (int)getpid());
    *(int *)result = qp_exchange_shm(name, 20000, &exchange);
    if (*(int *)result) return NULL;
    *(int *)result = qp_pair_recover(sends_to_srq, device, 1, -1, exchange, NULL, 10000, NULL, NULL, NULL);
    if (!*(int *)result) *(int *)result = qp_exchange_destroy(exchange);
    return NULL;
}

/* One message from the initiator to the SRQ. */
static void one_message(qp_cq *sent, qp_cq *came, qp_srq *srq_of, uint32_t number, uint64_t context)
{
    qp_send send = send_of(QP_SEND);
    qp_recv recv = recv_of(mr);
    qp_completion done;

    recv.context = context;
    recv.offset = 2048;
    RIGHT(qp_post_srq_recv(srq_of, &recv));
    send.context = context + 1;
    send.srq_num = number;
    RIGHT(qp_post_send(sends_to_srq, &send));
    RIGHT(qp_wait(sent, 10000, &done, 1, NULL));
    THAT(done.status == 0 && done.context == context + 1);
    RIGHT(qp_wait(came, 10000, &done, 1, NULL));
    THAT(done.status == 0 && done.context == context);
}

static void xrc_recovered(void)
{
    qp_pair_attr attr;
    qp_xrc_domain *domain;
    qp_xrc_target *target;
    qp_endpoint here, there;
    qp_exchange *exchange;
    qp_completion done;
    qp_cq *sent, *came;
    qp_srq *shared;
    qp_recv recv = recv_of(mr);
    pthread_t thread;
    uint32_t number;
    char name[64];
    int result = -1, state;

    RIGHT(qp_cq_create(device, 16, 1, &sent) || qp_cq_create(device, 16, 1, &came));
    WRONG(qp_cq_set_spin(NULL, 20), EINVAL, QP_CODE_NULL);
    RIGHT(qp_cq_set_spin(came, 20));
    RIGHT(qp_xrc_domain_open(device, NULL, QP_OPEN_OR_CREATE, &domain));
    RIGHT(qp_srq_create_xrc(pd, domain, came, 4, 1, &shared) || qp_srq_xrc_number(shared, &number));
    attr = attr_of(sent);
    attr.transport = QP_XRC;
    RIGHT(qp_pair_create(pd, &attr, &sends_to_srq) || qp_xrc_target_create(domain, &target));
    RIGHT(qp_pair_endpoint(sends_to_srq, device, 1, -1, NULL, &here) || qp_xrc_target_endpoint(target, device, 1, -1, NULL, &there));
    RIGHT(qp_pair_connect_begin(sends_to_srq, &there, NULL) || qp_xrc_target_connect_begin(target, &here, NULL));
    RIGHT(qp_pair_connect_finish(sends_to_srq, NULL) || qp_xrc_target_connect_finish(target, NULL));
    one_message(sent, came, shared, number, 500);
    recv.context = 510; /* it stays over the recovery */
    RIGHT(qp_post_srq_recv(shared, &recv));

    sprintf(name, "misuse-xrc-%d", (int)getpid());
    RIGHT(pthread_create(&thread, NULL, recovers_initiator, &result));
    RIGHT(qp_exchange_shm(name, 20000, &exchange));
    WRONG(qp_xrc_target_recover(NULL, device, 1, -1, came, exchange, NULL, NULL, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_xrc_target_recover(target, NULL, 1, -1, came, exchange, NULL, NULL, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_xrc_target_recover(target, device, 1, -1, came, NULL, NULL, NULL, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_xrc_target_recover(target, device, 9, -1, came, exchange, NULL, NULL, NULL), ENODEV, QP_CODE_NOT_FOUND);
    WRONG(qp_xrc_target_recover(target, device, 1, -1, AS(qp_cq, pd), exchange, NULL, NULL, NULL), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_xrc_target_recover(AS(qp_xrc_target, pd), device, 1, -1, came, exchange, NULL, NULL, NULL), EBADF, QP_CODE_WRONG_HANDLE);
    RIGHT(qp_xrc_target_recover(target, device, 1, -1, came, exchange, NULL, NULL, NULL));
    RIGHT(pthread_join(thread, NULL));
    RIGHT(result);
    RIGHT(qp_xrc_target_state(target, &state));
    THAT(state == 3 /* IBV_QPS_RTS */);
    /* The next message takes the receive that was there. */
    {
        qp_send send = send_of(QP_SEND);

        send.srq_num = number;
        RIGHT(qp_post_send(sends_to_srq, &send));
        RIGHT(qp_wait(came, 10000, &done, 1, NULL));
        THAT(done.status == 0 && done.context == 510);
        RIGHT(qp_wait(sent, 10000, &done, 1, NULL));
    }
    one_message(sent, came, shared, number, 520);
    RIGHT(qp_exchange_destroy(exchange));
    RIGHT(qp_pair_destroy(sends_to_srq) || qp_xrc_target_destroy(target) || qp_srq_destroy(shared));
    RIGHT(qp_xrc_domain_destroy(domain) || qp_cq_destroy(sent) || qp_cq_destroy(came));
}
