/* What misuse.c tries on reliable datagrams, and on a mesh over them. */

static char got[70000];

/* The next event of a kind at one end, while both go on; what comes at the other, and others that come before, are left out. */
static qp_datagrams_event come(qp_datagrams *end, qp_datagrams *other, uint32_t kind)
{
    qp_datagrams_event event;
    int turn;

    for (turn = 0; turn < 40000; turn++) {
        if (other) (void)qp_datagrams_next(other, 0, &event, (uint8_t *)got, sizeof got);
        if (qp_datagrams_next(end, 1, &event, (uint8_t *)got, sizeof got) == 0 && event.kind == kind) return event;
    }
    THAT(!"it comes");
    return event;
}

static void reliable_datagrams(void)
{
    static char long_one[65537];
    uint8_t cards[3][QP_DATAGRAMS_CARD], none_such[QP_DATAGRAMS_CARD];
    qp_datagrams_options options;
    qp_datagrams_event event;
    qp_datagrams_state state;
    qp_datagrams *one, *two, *third, *none = NULL;
    uint64_t to_two, to_one, peer, us;
    char text[16];
    size_t n, i;
    int v, result = 0;

    memset(&options, 0, sizeof options);
    WRONG(qp_datagrams_create(NULL, pd, 1, -1, NULL, &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_create(device, NULL, 1, -1, NULL, &none), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_create(device, pd, 1, -1, NULL, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_create(device, AS(qp_pd, cq), 1, -1, NULL, &none), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_datagrams_create(device, pd, 9, -1, NULL, &none), ENODEV, QP_CODE_NOT_FOUND);
    WRONG(qp_datagrams_create(device, pd, 1, 99, NULL, &none), ENODATA, QP_CODE_NOT_FOUND);
    options.mtu = 1500;
    WRONG(qp_datagrams_create(device, pd, 1, -1, &options, &none), EINVAL, QP_CODE_RANGE);
    options.mtu = 1024;
    options.qkey = 0x80000000;
    WRONG(qp_datagrams_create(device, pd, 1, -1, &options, &none), EINVAL, QP_CODE_RANGE);
    options.qkey = 0;
    options.peers = 4;
    options.receives = 3; /* less than four */
    WRONG(qp_datagrams_create(device, pd, 1, -1, &options, &none), EINVAL, QP_CODE_RANGE);
    options.receives = 0xffffffff;
    WRONG(qp_datagrams_create(device, pd, 1, -1, &options, &none), EINVAL, QP_CODE_LIMIT);
    options.receives = 64;
    options.send_packets = 1;
    WRONG(qp_datagrams_create(device, pd, 1, -1, &options, &none), EINVAL, QP_CODE_RANGE);
    options.send_packets = 0xffffffff;
    WRONG(qp_datagrams_create(device, pd, 1, -1, &options, &none), EINVAL, QP_CODE_RANGE);
    options.send_packets = 300;
    options.reserved[1] = 1;
    WRONG(qp_datagrams_create(device, pd, 1, -1, &options, &none), EINVAL, QP_CODE_RANGE);
    options.reserved[1] = 0;
    options.path.reserved = 1;
    WRONG(qp_datagrams_create(device, pd, 1, -1, &options, &none), EINVAL, QP_CODE_RANGE);
    options.path.reserved = 0;
    THAT(none == NULL);

    options.peers = 1;
    options.dead_after_ms = 1500; /* under valgrind everything takes long */
    options.heartbeat_ms = 100;
    RIGHT(qp_datagrams_create(device, pd, 1, -1, &options, &one));
    options.peers = 4;
    RIGHT(qp_datagrams_create(device, pd, 1, -1, &options, &two));
    RIGHT(qp_datagrams_create(device, pd, 1, -1, &options, &third));
    WRONG(qp_pd_destroy(pd), EBUSY, QP_CODE_IN_USE);
    WRONG(qp_datagrams_card(one, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_card(AS(qp_datagrams, mr), cards[0]), EBADF, QP_CODE_WRONG_HANDLE);
    RIGHT(qp_datagrams_card(one, cards[0]) || qp_datagrams_card(two, cards[1]) || qp_datagrams_card(third, cards[2]));
    memset(none_such, 0xff, sizeof none_such);
    WRONG(qp_datagrams_add_peer(one, none_such, &peer), EPROTO, QP_CODE_RECORD);
    memset(none_such, 0, sizeof none_such);
    WRONG(qp_datagrams_add_peer(one, none_such, &peer), EPROTO, QP_CODE_RECORD);
    memcpy(none_such, cards[1], sizeof none_such);
    none_such[6] ^= 0x40; /* another version */
    WRONG(qp_datagrams_add_peer(one, none_such, &peer), EPROTO, QP_CODE_RECORD);
    WRONG(qp_datagrams_add_peer(one, NULL, &peer), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_add_peer(one, cards[1], NULL), EINVAL, QP_CODE_NULL);
    RIGHT(qp_datagrams_add_peer(one, cards[1], &to_two));
    WRONG(qp_datagrams_add_peer(one, cards[2], &peer), ENOMEM, QP_CODE_LIMIT);
    RIGHT(qp_datagrams_add_peer(two, cards[0], &to_one));
    WRONG(qp_datagrams_add_peer(two, cards[0], &peer), EEXIST, QP_CODE_REFUSED);
    WRONG(qp_datagrams_send(one, to_two + 1, NULL, 0, 1), ENODATA, QP_CODE_NOT_FOUND);
    WRONG(qp_datagrams_send(one, UINT64_MAX, NULL, 0, 1), ENODATA, QP_CODE_NOT_FOUND);
    WRONG(qp_datagrams_send(one, to_two, NULL, 5, 1), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_send(one, to_two, (const uint8_t *)long_one, sizeof long_one, 1), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_datagrams_connect(one, 77), ENODATA, QP_CODE_NOT_FOUND);
    WRONG(qp_datagrams_remove_peer(one, 77), ENODATA, QP_CODE_NOT_FOUND);
    WRONG(qp_datagrams_move_peer(one, 77, cards[1]), ENODATA, QP_CODE_NOT_FOUND);
    WRONG(qp_datagrams_move_peer(one, to_two, none_such), EPROTO, QP_CODE_RECORD);
    WRONG(qp_datagrams_next(one, 0, NULL, NULL, 0), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_next(one, 0, &event, NULL, 8), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_next(one, 0, &event, NULL, 0), ETIMEDOUT, QP_CODE_TIMED_OUT);
    WRONG(qp_datagrams_fd(one, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_arm(one, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_query(one, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_query_json(one, text, sizeof text, &n), ENOSPC, QP_CODE_SHORT_BUFFER);
    THAT(n > 100);
    WRONG(qp_datagrams_peer(NULL, to_two, &v, &us), EINVAL, QP_CODE_NULL);
    RIGHT(qp_datagrams_peer(one, 77, &v, &us));
    THAT(v == 0 && us == UINT64_MAX);

    /* A message that does not fit is not lost; one that does is acknowledged. */
    for (i = 0; i < 60000; i++) long_one[i] = (char)(i % 251);
    RIGHT(qp_datagrams_send(one, to_two, (const uint8_t *)long_one, 60000, 901));
    for (i = 0; i < 20000 && result != ENOSPC; i++) {
        (void)qp_datagrams_next(one, 0, &event, NULL, 0);
        result = qp_datagrams_next(two, 1, &event, (uint8_t *)got, 100);
    }
    WRONG(qp_datagrams_next(two, 0, &event, NULL, 0), ENOSPC, QP_CODE_SHORT_BUFFER);
    RIGHT(qp_datagrams_arm(two, &v));
    THAT(v == 1);
    RIGHT(qp_datagrams_next(two, 0, &event, (uint8_t *)got, sizeof got));
    THAT(event.kind == QP_DATAGRAMS_MESSAGE && event.peer == to_one && event.len == 60000 && !memcmp(got, long_one, 60000));
    event = come(one, two, QP_DATAGRAMS_ACKNOWLEDGED);
    THAT(event.context == 901 && event.peer == to_two);
    RIGHT(qp_datagrams_peer(one, to_two, &v, &us));
    THAT(v == 1 && us != UINT64_MAX);
    RIGHT(qp_datagrams_query(one, &state));
    THAT(state.under_way == 0 && state.sent >= 59 && state.notices_within_ms >= 1500 && state.notices_within_ms < 3000);
    /* One of no bytes, and one that finds no room. */
    RIGHT(qp_datagrams_send(two, to_one, NULL, 0, 902));
    event = come(one, two, QP_DATAGRAMS_MESSAGE);
    THAT(event.len == 0 && event.peer == to_two);
    for (i = 0; i < 1000 && !result; i++) result = qp_datagrams_send(one, to_two, (const uint8_t *)long_one, 4000, i);
    for (result = 0; !result;) result = qp_datagrams_send(one, to_two, (const uint8_t *)long_one, 4000, 903);
    WRONG(qp_datagrams_send(one, to_two, (const uint8_t *)long_one, 4000, 903), EAGAIN, QP_CODE_FULL);

    /* The peer's end is gone: each message has its end, and the peer can be moved to a new one. */
    RIGHT(qp_datagrams_destroy(two));
    WRONG(qp_datagrams_next(two, 0, &event, NULL, 0), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_datagrams_destroy(two), EBADF, QP_CODE_DESTROYED);
    event = come(one, NULL, QP_DATAGRAMS_DEAD);
    THAT(event.peer == to_two);
    event = come(one, NULL, QP_DATAGRAMS_LOST);
    THAT(event.context == 903 && event.peer == to_two && (event.fate == QP_FATE_UNKNOWN || event.fate == QP_FATE_NOT_DONE));
    do {
        RIGHT(qp_datagrams_query(one, &state));
    } while (state.under_way && come(one, NULL, QP_DATAGRAMS_LOST).context == 903);
    RIGHT(qp_datagrams_move_peer(one, to_two, cards[2]));
    RIGHT(qp_datagrams_add_peer(third, cards[0], &to_one));
    RIGHT(qp_datagrams_connect(third, to_one));
    come(third, one, QP_DATAGRAMS_CONNECTED);
    RIGHT(qp_datagrams_send(third, to_one, (const uint8_t *)"third", 6, 904));
    event = come(one, third, QP_DATAGRAMS_MESSAGE);
    THAT(event.peer == to_two && event.len == 6 && !memcmp(got, "third", 6));
    RIGHT(qp_datagrams_remove_peer(one, to_two));
    WRONG(qp_datagrams_send(one, to_two, (const uint8_t *)"x", 1, 1), ENODATA, QP_CODE_NOT_FOUND);
    RIGHT(qp_datagrams_add_peer(one, cards[2], &peer));
    THAT(peer != to_two); /* who was removed leaves its number to nobody */
    WRONG(qp_datagrams_remove_peer(one, to_two), ENODATA, QP_CODE_NOT_FOUND);
    RIGHT(qp_datagrams_destroy(one) || qp_datagrams_destroy(third));
}

/* Takes in who takes long messages. */
static qp_datagrams *listener;
static int asked;

static int accepts(void *context, const uint8_t *gid, uint32_t qp_num, uint32_t max_message)
{
    asked++;
    THAT(context == memory && gid[0] + gid[15] > 0 && qp_num);
    WRONG(qp_datagrams_connect(listener, 0), EBUSY, QP_CODE_OCCUPIED);
    return max_message > 1000;
}

static void strangers(void)
{
    uint8_t card[QP_DATAGRAMS_CARD], gid[16] = {0};
    qp_datagrams_options options;
    qp_datagrams_event event;
    qp_datagrams *small, *usual;
    uint64_t to, peer;
    uint32_t number = 0;
    int i;

    memset(&options, 0, sizeof options);
    options.peers = 4;
    options.receives = 64;
    WRONG(qp_datagrams_listen(NULL, 4, accepts, memory), EINVAL, QP_CODE_NULL);
    WRONG(qp_datagrams_listen(AS(qp_datagrams, pd), 4, NULL, NULL), EBADF, QP_CODE_WRONG_HANDLE);
    RIGHT(qp_datagrams_create(device, pd, 1, -1, &options, &listener));
    RIGHT(qp_datagrams_create(device, pd, 1, -1, &options, &usual));
    options.max_message = 100;
    RIGHT(qp_datagrams_create(device, pd, 1, -1, &options, &small));
    WRONG(qp_datagrams_address(listener, 0, gid, &number), ENODATA, QP_CODE_NOT_FOUND);
    RIGHT(qp_datagrams_card(listener, card));
    RIGHT(qp_datagrams_listen(listener, 2, accepts, memory));
    RIGHT(qp_datagrams_add_peer(small, card, &to) || qp_datagrams_connect(small, to));
    for (i = 0; i < 20000 && !asked; i++) {
        (void)qp_datagrams_next(small, 0, &event, (uint8_t *)got, sizeof got);
        THAT(qp_datagrams_next(listener, 1, &event, (uint8_t *)got, sizeof got) == ETIMEDOUT);
    }
    THAT(asked);
    RIGHT(qp_datagrams_destroy(small));
    RIGHT(qp_datagrams_add_peer(usual, card, &to) || qp_datagrams_send(usual, to, (const uint8_t *)"hello", 6, 1));
    peer = come(listener, usual, QP_DATAGRAMS_INTRODUCED).peer;
    event = come(listener, usual, QP_DATAGRAMS_MESSAGE);
    THAT(event.peer == peer && event.len == 6);
    RIGHT(qp_datagrams_address(listener, peer, gid, &number));
    THAT(number && gid[0] + gid[15] > 0);
    RIGHT(qp_datagrams_address(listener, peer, NULL, NULL));
    RIGHT(qp_datagrams_listen(listener, 0, NULL, NULL));
    RIGHT(qp_datagrams_destroy(usual) || qp_datagrams_destroy(listener));
}

static void mesh_over_datagrams(void)
{
    uint32_t nodes[2] = {7, 7};
    uint8_t cards[2 * QP_MESH_CARD];
    char text[64];
    qp_mesh_options options;
    qp_mesh *zero, *one;
    qp_mesh_event event;
    qp_mr *mine;
    qp_region theirs;
    uint64_t op = 0;
    int i, result = 1;

    WRONG(qp_mesh_create_datagrams(device, 1, -1, NULL, 2, 0, NULL, &zero), EINVAL, QP_CODE_NULL);
    WRONG(qp_mesh_create_datagrams(device, 1, -1, nodes, 2, 2, NULL, &zero), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mesh_create_datagrams(device, 9, -1, nodes, 2, 0, NULL, &zero), ENODEV, QP_CODE_NOT_FOUND);
    WRONG(qp_mesh_create_datagrams(device, 1, -1, nodes, 2, 0, NULL, NULL), EINVAL, QP_CODE_NULL);
    memset(&options, 0, sizeof options);
    options.send_buffers = 0xffffffff;
    WRONG(qp_mesh_create_datagrams(device, 1, -1, nodes, 2, 0, &options, &zero), EINVAL, QP_CODE_RANGE);
    RIGHT(qp_mesh_create_datagrams(device, 1, -1, nodes, 2, 0, NULL, &zero));
    RIGHT(qp_mesh_create_datagrams(device, 1, -1, nodes, 2, 1, NULL, &one));
    RIGHT(qp_mesh_offer(zero, memory, sizeof memory, 0xf, &mine));
    RIGHT(qp_mesh_card(zero, cards) || qp_mesh_card(one, cards + QP_MESH_CARD));
    RIGHT(qp_mesh_join(zero, cards) || qp_mesh_join(one, cards));
    RIGHT(qp_mesh_region(one, 0, 0, &theirs));
    WRONG(qp_mesh_read(zero, 1, mine, 0, 8, &theirs, 0, &op), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    WRONG(qp_mesh_write(zero, 1, mine, 0, 8, &theirs, 0, &op), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    RIGHT(qp_mesh_send(zero, 1, (const uint8_t *)"datagram", 9, &op));
    for (i = 0; i < 20000 && result; i++) {
        (void)qp_mesh_next(zero, 0, &event, NULL, 0);
        result = qp_mesh_next(one, 1, &event, (uint8_t *)text, sizeof text) || event.kind != QP_MESH_MESSAGE;
    }
    THAT(result == 0 && event.rank == 0 && event.len == 9 && !memcmp(text, "datagram", 9));
    RIGHT(qp_mesh_destroy(zero) || qp_mesh_destroy(one) || qp_mr_destroy(mine));
}
