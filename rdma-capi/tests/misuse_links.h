/* What misuse.c tries on supervised connections. */

/* What happened while something else was waited for. */
static struct { qp_supervised *link; qp_supervised_event event; } missed[64];
static size_t misses;

/* The next event of a kind, while both ends go on. */
static qp_supervised_event until(qp_supervised *link, qp_supervised *other, uint32_t kind)
{
    qp_supervised_event event;
    size_t i;
    int turn;

    for (i = 0; i < misses; i++) {
        if (missed[i].link != link || missed[i].event.kind != kind) continue;
        event = missed[i].event;
        missed[i] = missed[--misses];
        return event;
    }
    for (turn = 0; turn < 40000; turn++) {
        qp_supervised *now = turn % 2 ? link : other;

        if (qp_supervised_next(now, turn % 2, &event)) continue;
        if (now == link && event.kind == kind) return event;
        if (misses < sizeof missed / sizeof *missed) missed[misses].link = now, missed[misses++].event = event;
    }
    THAT(!"it happens");
    return event;
}

static void supervised(void)
{
    qp_supervised_options options;
    qp_supervised_event event;
    qp_supervised_state now;
    qp_supervised *link, *peer, *none = NULL;
    qp_pair_attr attr;
    qp_endpoint there;
    qp_region regions[2];
    qp_recv recv = recv_of(mr), receives[17];
    qp_send send = send_of(QP_SEND);
    qp_event reported;
    char text[512];
    size_t n, i;
    int v;

    memset(&attr, 0, sizeof attr);
    memset(&options, 0, sizeof options);
    memset(&reported, 0, sizeof reported);
    for (i = 0; i < 17; i++) receives[i] = recv;
    memset(receives, 0, sizeof receives);

    /* What cannot be made. */
    WRONG(qp_supervised_listen(NULL, pd, NULL, NULL, NULL, 0, NULL, 0, "127.0.0.1:0", &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_listen(device, NULL, NULL, NULL, NULL, 0, NULL, 0, "127.0.0.1:0", &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_listen(device, pd, NULL, NULL, NULL, 0, NULL, 0, NULL, &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_listen(device, pd, NULL, NULL, NULL, 0, NULL, 0, "127.0.0.1:0", NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_listen(device, pd, NULL, NULL, NULL, 1, NULL, 0, "127.0.0.1:0", &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_listen(device, pd, NULL, NULL, NULL, 0, NULL, 1, "127.0.0.1:0", &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_listen(AS(qp_device, pd), pd, NULL, NULL, NULL, 0, NULL, 0, "127.0.0.1:0", &none), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_supervised_connect(device, pd, NULL, NULL, NULL, 0, NULL, 0, "nowhere", &none), EINVAL, QP_CODE_TEXT);
    WRONG(qp_supervised_connect(device, pd, NULL, NULL, NULL, 0, NULL, 0, NULL, &none), EINVAL, QP_CODE_NULL);
    attr.send_cq = cq;
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, NULL, 0, "127.0.0.1:1", &none), EINVAL, QP_CODE_RANGE);
    attr.send_cq = NULL;
    attr.srq = srq;
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, NULL, 0, "127.0.0.1:1", &none), EINVAL, QP_CODE_RANGE);
    attr.srq = NULL;
    attr.transport = QP_XRC; /* without an SRQ */
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, NULL, 0, "127.0.0.1:1", &none), EINVAL, QP_CODE_NULL);
    attr.transport = 77;
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, NULL, 0, "127.0.0.1:1", &none), EINVAL, QP_CODE_RANGE);
    attr.transport = QP_RC;
    attr.access = 1; /* the peer may write nothing, so it cannot probe */
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, NULL, 0, "127.0.0.1:1", &none), EINVAL, QP_CODE_REFUSED);
    attr.access = 0;
    attr.recv_depth = 16;
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, receives, 17, "127.0.0.1:1", &none), EINVAL, QP_CODE_RANGE);
    receives[0].len = 8;
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, receives, 1, "127.0.0.1:1", &none), EINVAL, QP_CODE_NULL);
    receives[0].mr = mr;
    receives[0].offset = sizeof memory;
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, receives, 1, "127.0.0.1:1", &none), EINVAL, QP_CODE_RANGE);
    receives[0].mr = AS(qp_mr, cq);
    WRONG(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, receives, 1, "127.0.0.1:1", &none), EBADF, QP_CODE_WRONG_HANDLE);
    options.port = 9;
    WRONG(qp_supervised_connect(device, pd, NULL, &options, NULL, 0, NULL, 0, "127.0.0.1:1", &none), ENODEV, QP_CODE_NOT_FOUND);
    options.port = 300;
    WRONG(qp_supervised_connect(device, pd, NULL, &options, NULL, 0, NULL, 0, "127.0.0.1:1", &none), EINVAL, QP_CODE_RANGE);
    options.port = 0;
    options.timing.retry_cnt = 8;
    WRONG(qp_supervised_connect(device, pd, NULL, &options, NULL, 0, NULL, 0, "127.0.0.1:1", &none), EINVAL, QP_CODE_RANGE);
    options.timing.retry_cnt = 0;
    options.reserved = 1;
    WRONG(qp_supervised_connect(device, pd, NULL, &options, NULL, 0, NULL, 0, "127.0.0.1:1", &none), EINVAL, QP_CODE_RANGE);
    options.reserved = 0;
    THAT(none == NULL);

    /* One that has no peer, and gives up. */
    options.give_up_ms = 50;
    RIGHT(qp_supervised_connect(device, pd, NULL, &options, NULL, 0, NULL, 0, "127.0.0.1:1", &link));
    WRONG(qp_supervised_address(link, text, sizeof text, NULL), EINVAL, QP_CODE_STATE);
    WRONG(qp_supervised_post_send(link, &send), ENOTCONN, QP_CODE_DOWN);
    WRONG(qp_supervised_post_recv(link, &recv), ENOTCONN, QP_CODE_DOWN);
    WRONG(qp_supervised_post_inline(link, &send, (const uint8_t *)"x", 1), ENOTCONN, QP_CODE_DOWN);
    WRONG(qp_supervised_peer(link, &there, NULL, 0, NULL), ENOTCONN, QP_CODE_DOWN);
    until(link, link, QP_SUPERVISED_GAVE_UP);
    RIGHT(qp_supervised_text(link, text, sizeof text, NULL));
    THAT(strstr(text, "gave up"));
    WRONG(qp_supervised_next(link, 0, &event), ESHUTDOWN, QP_CODE_OVER);
    RIGHT(qp_supervised_destroy(link));
    WRONG(qp_supervised_destroy(link), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_supervised_next(link, 0, &event), EBADF, QP_CODE_DESTROYED);

    /* Two that have each other. */
    options.give_up_ms = 0;
    options.probe_ms = 20;
    memset(receives, 0, sizeof receives);
    for (i = 0; i < 16; i++) receives[i] = recv, receives[i].context = 500 + i, receives[i].offset = 4096 + 64 * i;
    RIGHT(qp_mr_region(mr, &regions[0]));
    regions[1] = regions[0];
    RIGHT(qp_supervised_listen(device, pd, NULL, &options, regions, 2, receives, 16, "127.0.0.1:0", &peer));
    RIGHT(qp_supervised_address(peer, text, sizeof text, NULL));
    attr.inline_data = 16;
    RIGHT(qp_supervised_connect(device, pd, &attr, &options, NULL, 0, NULL, 0, text, &link));
    WRONG(qp_supervised_next(link, 0, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_next(AS(qp_supervised, cq), 0, &event), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_poll(AS(qp_cq, link), NULL, 0, &n), EBADF, QP_CODE_WRONG_HANDLE);
    event = until(link, peer, QP_SUPERVISED_RECOVERED);
    THAT(event.attempt == 1);
    until(peer, link, QP_SUPERVISED_PROBING);
    WRONG(qp_supervised_post_send(link, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_post_inline(link, &send, NULL, 4), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_post_recv(link, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_query(link, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_fd(link, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_arm(link, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_device_event(link, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_text(link, NULL, 8, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_restart(NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_query_json(link, text, 8, &n), ENOSPC, QP_CODE_SHORT_BUFFER);
    THAT(n > 100);
    send.mr = other_mr;
    WRONG(qp_supervised_post_send(link, &send), EINVAL, QP_CODE_MISMATCH);
    send.mr = NULL;
    WRONG(qp_supervised_post_send(link, &send), EINVAL, QP_CODE_NULL);
    send.mr = mr;
    send.offset = sizeof memory;
    WRONG(qp_supervised_post_send(link, &send), EINVAL, QP_CODE_RANGE);
    send.offset = 0;
    send.op = 12;
    WRONG(qp_supervised_post_send(link, &send), EINVAL, QP_CODE_RANGE);
    send.op = QP_SEND;
    send.flags = 1u << 20;
    WRONG(qp_supervised_post_send(link, &send), EINVAL, QP_CODE_RANGE);
    send.flags = 0;
    recv.mr = NULL;
    WRONG(qp_supervised_post_recv(link, &recv), EINVAL, QP_CODE_NULL);
    recv.mr = other_mr;
    WRONG(qp_supervised_post_recv(link, &recv), EINVAL, QP_CODE_MISMATCH);
    /* The receives of the peer's next life are there: so is their region. */
    WRONG(qp_mr_destroy(mr), EBUSY, QP_CODE_OCCUPIED);
    WRONG(qp_pd_destroy(pd), EBUSY, QP_CODE_IN_USE);
    WRONG(qp_supervised_peer(link, &there, regions, 1, &n), ENOSPC, QP_CODE_SHORT_BUFFER);
    THAT(n == 2);
    WRONG(qp_supervised_peer(link, &there, NULL, 2, &n), EINVAL, QP_CODE_NULL);
    RIGHT(qp_supervised_peer(link, NULL, regions, 2, &n));
    THAT(regions[1].rkey == regions[0].rkey && regions[1].len == sizeof memory);

    /* All of that harmed nothing. */
    memcpy(memory, "as ever", 8);
    send.context = 66;
    RIGHT(qp_supervised_post_send(link, &send));
    RIGHT(qp_supervised_query(link, &now));
    THAT(now.is_up && now.under_way >= 1 && now.notices_within_ms > 20 && now.proof == QP_PROOF_PROCESS);
    event = until(peer, link, QP_SUPERVISED_RECEIVED);
    THAT(event.context == 500 && event.completion.byte_len == 8 && !memcmp(memory + 4096, "as ever", 8));
    RIGHT(qp_supervised_post_recv(peer, &receives[0]));
    event = until(link, peer, QP_SUPERVISED_DONE);
    THAT(event.context == 66 && event.fate == QP_FATE_DONE && event.completion.status == 0);
    RIGHT(qp_supervised_fd(link, &v));
    THAT(v >= 0);
    RIGHT(qp_supervised_arm(link, &v));
    RIGHT(qp_supervised_device_event(link, &reported));
    misses = 0;
    RIGHT(qp_supervised_restart(link));
    event = until(link, peer, QP_SUPERVISED_DEAD);
    THAT(event.why == QP_WHY_ASKED);
    event = until(link, peer, QP_SUPERVISED_ENDED);
    THAT(event.why == QP_WHY_ASKED && event.complete && !event.not_done && !event.unknown);
    until(link, peer, QP_SUPERVISED_RECOVERED);
    until(peer, link, QP_SUPERVISED_RECOVERED);
    misses = 0;
    RIGHT(qp_supervised_destroy(link));
    until(peer, peer, QP_SUPERVISED_DEAD);
    RIGHT(qp_supervised_destroy(peer));
}

/* An end over XRC: its receives are those of an SRQ that the program has. */
static void supervised_xrc(void)
{
    qp_supervised_options options;
    qp_supervised_event event;
    qp_supervised_state now;
    qp_supervised *link, *peer, *none = NULL;
    qp_xrc_domain *domain;
    qp_srq *shared;
    qp_pair_attr attr;
    qp_completion done;
    qp_recv recv = recv_of(mr);
    qp_send send = send_of(QP_SEND);
    uint32_t number = 0;
    char text[64];
    int i;

    memset(&attr, 0, sizeof attr);
    memset(&options, 0, sizeof options);
    options.probe_ms = 20;
    RIGHT(qp_xrc_domain_open(device, NULL, 0, &domain));
    RIGHT(qp_srq_create_xrc(pd, domain, cq, 8, 1, &shared));
    attr.transport = QP_XRC;
    attr.srq = srq; /* one that no target reaches */
    WRONG(qp_supervised_listen(device, pd, &attr, &options, NULL, 0, NULL, 0, "127.0.0.1:0", &none), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    attr.srq = AS(qp_srq, cq);
    WRONG(qp_supervised_listen(device, pd, &attr, &options, NULL, 0, NULL, 0, "127.0.0.1:0", &none), EBADF, QP_CODE_WRONG_HANDLE);
    attr.srq = shared;
    WRONG(qp_supervised_listen(device, pd, &attr, &options, NULL, 0, &recv, 1, "127.0.0.1:0", &none), EINVAL, QP_CODE_RANGE);
    attr.recv_cq = cq;
    WRONG(qp_supervised_listen(device, pd, &attr, &options, NULL, 0, NULL, 0, "127.0.0.1:0", &none), EINVAL, QP_CODE_RANGE);
    attr.recv_cq = NULL;
    attr.access = 1; /* the peer may write nothing, so it cannot probe */
    WRONG(qp_supervised_listen(device, pd, &attr, &options, NULL, 0, NULL, 0, "127.0.0.1:0", &none), EINVAL, QP_CODE_REFUSED);
    attr.access = 0;
    THAT(none == NULL);

    RIGHT(qp_supervised_listen(device, pd, &attr, &options, NULL, 0, NULL, 0, "127.0.0.1:0", &peer));
    RIGHT(qp_supervised_address(peer, text, sizeof text, NULL));
    RIGHT(qp_supervised_connect(device, pd, &attr, &options, NULL, 0, NULL, 0, text, &link));
    WRONG(qp_supervised_post_send(link, &send), ENOTCONN, QP_CODE_DOWN);
    until(link, peer, QP_SUPERVISED_RECOVERED);
    until(peer, link, QP_SUPERVISED_RECOVERED);
    WRONG(qp_supervised_post_recv(link, &recv), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    recv.mr = NULL, recv.len = 0;
    WRONG(qp_supervised_post_recv(link, &recv), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    recv = recv_of(mr);
    WRONG(qp_supervised_target_number(link, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_xrc_domain_destroy(domain), EBUSY, QP_CODE_IN_USE);
    RIGHT(qp_supervised_target_number(peer, &number));
    RIGHT(qp_supervised_query(link, &now));
    THAT(now.proof == QP_PROOF_NODE);
    recv.context = 41;
    recv.offset = 2048;
    RIGHT(qp_post_srq_recv(shared, &recv));
    memcpy(memory, "watched", 8);
    send.context = 42;
    send.srq_num = 0xffffffff; /* not looked at */
    RIGHT(qp_supervised_post_send(link, &send));
    event = until(link, peer, QP_SUPERVISED_DONE);
    THAT(event.context == 42 && event.fate == QP_FATE_DONE);
    RIGHT(qp_wait(cq, 5000, &done, 1, NULL));
    THAT(done.status == 0 && done.context == 41 && done.qp_num == number && !memcmp(memory + 2048, "watched", 8));
    RIGHT(qp_supervised_restart(peer));
    event = until(peer, link, QP_SUPERVISED_ENDED);
    THAT(event.why == QP_WHY_ASKED && event.complete);
    until(link, peer, QP_SUPERVISED_RECOVERED);
    until(peer, link, QP_SUPERVISED_RECOVERED);
    RIGHT(qp_post_srq_recv(shared, &recv));
    RIGHT(qp_supervised_post_send(peer, &send));
    until(peer, link, QP_SUPERVISED_DONE);
    for (i = 0; i < 1000 && qp_wait(cq, 5000, &done, 1, NULL) == 0 && done.queue != QP_SRQ; i++) {}
    THAT(done.status == 0 && done.context == 41);
    misses = 0;
    RIGHT(qp_supervised_destroy(link) || qp_supervised_destroy(peer));
    RIGHT(qp_srq_destroy(shared) || qp_xrc_domain_destroy(domain));
}

/* A service that carries messages between two ends of this process. */
static struct carrier { char bytes[32][1024]; size_t len[32]; unsigned first, count, noise; int fails; } carriers[2];
static qp_supervised *told_by;

static int tell(void *context, const void *message, size_t len)
{
    struct carrier *to = &carriers[context == &carriers[0]], *from = (struct carrier *)context;
    unsigned at = (to->first + to->count) % 32;

    if (told_by && from == &carriers[0]) WRONG(qp_supervised_restart(told_by), EBUSY, QP_CODE_OCCUPIED);
    if (from->fails == ENOBUFS || len > sizeof to->bytes[0] || to->count == 32) return ENOBUFS;
    memcpy(to->bytes[at], message, len);
    to->len[at] = len;
    to->count++;
    return 0;
}

static int hear(void *context, void *message, size_t room, size_t *len)
{
    struct carrier *here = (struct carrier *)context;

    if (here->fails == EPIPE) return EPIPE;
    if (here->fails == -1) return *len = room + 1, 0;
    if (here->noise) return here->noise--, memset(message, 7, 40), *len = 40, 0;
    if (!here->count) return 0;
    memcpy(message, here->bytes[here->first], here->len[here->first]);
    *len = here->len[here->first];
    here->first = (here->first + 1) % 32;
    here->count--;
    return 0;
}

static void supervised_by_messages(void)
{
    qp_supervised_options options;
    qp_supervised_event event;
    qp_supervised *ends[2], *none = NULL;
    qp_recv recv = recv_of(mr);
    qp_send send = send_of(QP_SEND);
    char text[256];
    uint32_t number;
    int i, way;

    memset(&options, 0, sizeof options);
    options.give_up_ms = 30000;
    recv.offset = 2048;
    WRONG(qp_supervised_meet(device, pd, NULL, NULL, NULL, 0, NULL, 0, NULL, hear, NULL, 0, &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_meet(device, pd, NULL, NULL, NULL, 0, NULL, 0, tell, NULL, NULL, 0, &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_meet(device, pd, NULL, NULL, NULL, 0, NULL, 0, tell, hear, NULL, 0, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_meet(device, pd, NULL, NULL, NULL, 1, NULL, 0, tell, hear, NULL, 0, &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_supervised_meet(device, AS(qp_pd, cq), NULL, NULL, NULL, 0, NULL, 0, tell, hear, NULL, 0, &none), EBADF, QP_CODE_WRONG_HANDLE);
    options.port = 9;
    WRONG(qp_supervised_meet(device, pd, NULL, &options, NULL, 0, NULL, 0, tell, hear, NULL, 0, &none), ENODEV, QP_CODE_NOT_FOUND);
    options.port = 0;
    THAT(none == NULL);

    /* Functions that say that they failed, in each way; the sentence has what they said. */
    for (way = 0; way < 3; way++) {
        static const int fails[] = {ENOBUFS, EPIPE, -1};
        static const char *said[] = {"tell function returned 105", "hear function returned 32", "65537"};

        memset(carriers, 0, sizeof carriers);
        carriers[0].fails = fails[way];
        RIGHT(qp_supervised_meet(device, pd, NULL, &options, NULL, 0, &recv, 1, tell, hear, &carriers[0], 1, &ends[0]));
        WRONG(qp_supervised_address(ends[0], text, sizeof text, NULL), EINVAL, QP_CODE_STATE);
        THAT(strstr(qp_last_error(), "only one that qp_supervised_listen() made"));
        WRONG(qp_supervised_target_number(ends[0], &number), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
        for (i = 0, *text = 0; i < 1000 && !strstr(text, said[way]); i++) {
            if (qp_supervised_next(ends[0], 10, &event)) continue;
            RIGHT(qp_supervised_text(ends[0], text, sizeof text, NULL));
        }
        THAT(strstr(text, said[way]));
        RIGHT(qp_supervised_destroy(ends[0]));
    }

    /* One that always has messages, none of which is of a peer: no call lasts for all of them. */
    memset(carriers, 0, sizeof carriers);
    carriers[0].noise = 1000000;
    RIGHT(qp_supervised_meet(device, pd, NULL, &options, NULL, 0, &recv, 1, tell, hear, &carriers[0], 1, &ends[0]));
    for (i = 0; i < 100 && !qp_supervised_next(ends[0], 0, &event); i++) {}
    WRONG(qp_supervised_next(ends[0], 1, &event), ETIMEDOUT, QP_CODE_TIMED_OUT);
    THAT(i < 100 && carriers[0].noise > 0);
    RIGHT(qp_supervised_destroy(ends[0]));

    /* Two that meet; then one of them is destroyed, and comes anew. */
    memset(carriers, 0, sizeof carriers);
    for (i = 0; i < 2; i++)
        RIGHT(qp_supervised_meet(device, pd, NULL, &options, NULL, 0, &recv, 1, tell, hear, &carriers[i], 1, &ends[i]));
    told_by = ends[0];
    for (i = 0; i < 2; i++) until(ends[i], ends[!i], QP_SUPERVISED_RECOVERED), told_by = NULL;
    send.context = 12;
    memcpy(memory, "carried", 8);
    RIGHT(qp_supervised_post_send(ends[0], &send));
    event = until(ends[0], ends[1], QP_SUPERVISED_DONE);
    THAT(event.context == 12 && event.fate == QP_FATE_DONE);
    until(ends[1], ends[0], QP_SUPERVISED_RECEIVED);
    THAT(!memcmp(memory + 2048, "carried", 8));
    RIGHT(qp_supervised_destroy(ends[0]));
    event = until(ends[1], ends[1], QP_SUPERVISED_DEAD);
    THAT(event.why == QP_WHY_CHANNEL_LOST);
    misses = 0;
    RIGHT(qp_supervised_meet(device, pd, NULL, &options, NULL, 0, &recv, 1, tell, hear, &carriers[0], 1, &ends[0]));
    for (i = 0; i < 2; i++) until(ends[i], ends[!i], QP_SUPERVISED_RECOVERED);
    misses = 0;
    RIGHT(qp_supervised_destroy(ends[0]) || qp_supervised_destroy(ends[1]));
}
