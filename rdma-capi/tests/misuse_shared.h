/* What misuse.c tries on a Queue Pair that many threads may post to. */

/* The completion that comes next is of that request. */
static void comes(qp_cq *where, uint64_t context, uint32_t status)
{
    qp_completion done;

    RIGHT(qp_wait(where, 10000, &done, 1, NULL));
    THAT(done.context == context && done.status == status);
}

static void sharing(void)
{
    int to_error[64] = {6}; /* a struct ibv_qp_attr, without the header of verbs: its qp_state is IBV_QPS_ERR */
    qp_pair_attr attr;
    qp_pair *one, *two, *again = NULL;
    qp_shared *shared, *none = NULL;
    qp_endpoint of_one, of_two;
    qp_region region;
    qp_cq *here, *there;
    qp_mr *late;
    qp_send send;
    qp_recv recv;
    qp_account account;
    qp_completion done;
    uint64_t context = 5;
    size_t waiting;
    char text[256];
    int code, i, result = 0;

    RIGHT(qp_cq_create(device, 64, 0, &here) || qp_cq_create(device, 64, 0, &there));
    attr = attr_of(here);
    attr.send_depth = 4;
    RIGHT(qp_pair_create(pd, &attr, &one));
    attr.send_cq = there;
    RIGHT(qp_pair_create(pd, &attr, &two));
    RIGHT(qp_pair_endpoint(one, device, 1, -1, NULL, &of_one) || qp_pair_endpoint(two, device, 1, -1, NULL, &of_two));
    RIGHT(qp_pair_connect_begin(one, &of_two, NULL) || qp_pair_connect_begin(two, &of_one, NULL));
    RIGHT(qp_pair_connect_finish(one, NULL) || qp_pair_connect_finish(two, NULL));
    RIGHT(qp_mr_region(mr, &region));

    WRONG(qp_pair_share(NULL, 8, &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_pair_share(one, 8, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_pair_share(AS(qp_pair, here), 8, &none), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_pair_share(one, 65537, &none), EINVAL, QP_CODE_RANGE);
    THAT(none == NULL);
    RIGHT(qp_pair_share(one, 4, &shared));
    send = send_of(QP_SEND);
    WRONG(qp_post_send(one, &send), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_pair_share(one, 4, &none), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_pair_destroy(one), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_cq_destroy(here), EBUSY, QP_CODE_IN_USE);

    /* What is wrong at a glance is told at once. */
    WRONG(qp_shared_post(NULL, &send), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_post(shared, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_post(AS(qp_shared, two), &send), EBADF, QP_CODE_WRONG_HANDLE);
    send.op = 9;
    WRONG(qp_shared_post(shared, &send), EINVAL, QP_CODE_RANGE);
    send.op = QP_SEND;
    send.flags = 16;
    WRONG(qp_shared_post(shared, &send), EINVAL, QP_CODE_RANGE);
    send.flags = QP_INLINE;
    WRONG(qp_shared_post(shared, &send), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    send.flags = 0;
    send.offset = sizeof memory;
    WRONG(qp_shared_post(shared, &send), EINVAL, QP_CODE_RANGE);
    send.offset = 0;
    send.mr = NULL;
    WRONG(qp_shared_post(shared, &send), EINVAL, QP_CODE_NULL);
    send.mr = AS(qp_mr, pd);
    WRONG(qp_shared_post(shared, &send), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_shared_advance(NULL, &waiting), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_account(shared, 2, &account), EINVAL, QP_CODE_RANGE);
    WRONG(qp_shared_account(shared, 0, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_modify(shared, NULL, 0), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_refused(shared, NULL, &code, NULL, 0), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_refused(shared, &context, NULL, NULL, 0), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_refused(shared, &context, &code, NULL, 9), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_end(shared, NULL), EINVAL, QP_CODE_NULL);
    RIGHT(qp_shared_refused(shared, &context, &code, text, sizeof text));
    THAT(code == QP_CODE_NONE && context == 5);

    /* What only the Queue Pair finds is told once, with the reason. */
    send = send_of(QP_WRITE);
    send.context = 40;
    send.remote = region;
    send.remote_offset = sizeof memory;
    RIGHT(qp_shared_post(shared, &send));
    WRONG(qp_shared_end(shared, &again), EBUSY, QP_CODE_IN_USE);
    RIGHT(qp_shared_refused(shared, &context, &code, text, sizeof text));
    THAT(code == QP_CODE_REFUSED && context == 40 && strstr(text, "region"));
    send.context = 41;
    RIGHT(qp_shared_post(shared, &send));
    WRONG(qp_shared_refused(shared, &context, &code, text, 8), ENOSPC, QP_CODE_SHORT_BUFFER);
    THAT(code == QP_CODE_REFUSED && context == 41 && strlen(text) == 7);
    RIGHT(qp_shared_refused(shared, &context, &code, text, sizeof text));
    THAT(code == QP_CODE_NONE);

    /* The peer has no receives: four requests fill the send queue, five wait, and the next one finds no room. The region of one
     * that waits stays. */
    RIGHT(qp_mr_create(pd, 4096, 1, &late));
    send = send_of(QP_SEND);
    for (send.context = 100; send.context < 130 && !result; send.context++) {
        if (send.context == 108) send.mr = late;
        result = qp_shared_post(shared, &send);
    }
    THAT(send.context == 110);
    WRONG(qp_shared_post(shared, &send), ENOMEM, QP_CODE_FULL);
    RIGHT(qp_shared_advance(shared, &waiting));
    THAT(waiting == 5);
    WRONG(qp_shared_end(shared, &again), EBUSY, QP_CODE_IN_USE);
    WRONG(qp_mr_destroy(late), EBUSY, QP_CODE_IN_USE);
    recv = recv_of(mr);
    recv.offset = 4096;
    for (i = 0; i < 9; i++) {
        recv.context = (uint64_t)(200 + i);
        RIGHT(qp_post_recv(two, &recv));
        comes(here, (uint64_t)(100 + i), 0);
        RIGHT(qp_shared_advance(shared, NULL));
        comes(there, (uint64_t)(200 + i), 0);
    }
    RIGHT(qp_mr_destroy(late));
    WRONG(qp_shared_post(shared, &send), EBADF, QP_CODE_DESTROYED);

    /* A receive, and the end of the connection: what is under way is flushed. */
    recv = recv_of(mr);
    recv.context = 300;
    RIGHT(qp_shared_post_recv(shared, &recv));
    WRONG(qp_shared_post_recv(shared, NULL), EINVAL, QP_CODE_NULL);
    recv.mr = NULL;
    WRONG(qp_shared_post_recv(shared, &recv), EINVAL, QP_CODE_NULL);
    WRONG(qp_shared_modify(shared, AS(struct ibv_qp_attr, to_error), 1 << 30), EINVAL, QP_CODE_REFUSED);
    RIGHT(qp_shared_modify(shared, AS(struct ibv_qp_attr, to_error), 1 /* IBV_QP_STATE */));
    comes(here, 300, 5 /* IBV_WC_WR_FLUSH_ERR */);
    RIGHT(qp_shared_account(shared, QP_SQ, &account));
    THAT(account.accepted == 9 && account.succeeded == 9);
    RIGHT(qp_shared_end(shared, &again));
    WRONG(qp_shared_post(shared, &send), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_shared_end(shared, &again), EBADF, QP_CODE_DESTROYED);
    RIGHT(qp_pair_account(again, QP_RQ, &account));
    THAT(account.accepted == 1 && account.flushed == 1);
    RIGHT(qp_poll(here, &done, 1, &waiting));
    THAT(waiting == 0);

    /* Others of their kind: a transport that lacks the operation. */
    RIGHT(qp_pair_share(again, 0, &shared));
    RIGHT(qp_shared_end(shared, &again));
    RIGHT(qp_pair_share(uc, 0, &shared));
    send = send_of(QP_READ);
    WRONG(qp_shared_post(shared, &send), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    RIGHT(qp_shared_end(shared, &uc));
    RIGHT(qp_pair_share(ud, 0, &shared));
    send = send_of(QP_SEND);
    WRONG(qp_shared_post(shared, &send), EINVAL, QP_CODE_NULL);
    RIGHT(qp_shared_end(shared, &ud));
    RIGHT(qp_pair_destroy(again) || qp_pair_destroy(two) || qp_cq_destroy(here) || qp_cq_destroy(there));
}
