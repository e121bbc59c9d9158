/* What works: two processes that meet through shared memory, with every kind of request, a list with one doorbell, a sleep on a
 * descriptor, books, a drain, a recovery, four threads that post to one Queue Pair, datagrams that are answered, and a mesh that
 * sleeps.
 */
#define _DEFAULT_SOURCE
#include "../examples/try.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#define THAT(condition) \
    do { if (!(condition)) { fprintf(stderr, "good.c:%d: %s\n", __LINE__, #condition); exit(1); } } while (0)

static qp_device *device;
static qp_pd *pd;
static qp_cq *cq;
static qp_mr *mr;
static qp_pair *pair;
static qp_exchange *peer;
static qp_region theirs;
static char *memory;
static int reposts, flushed;
static qp_timing timing;

static qp_send request(uint32_t op, uint64_t context, size_t offset, size_t len)
{
    qp_send send;

    memset(&send, 0, sizeof send);
    send.op = op;
    send.context = context;
    send.mr = mr;
    send.offset = offset;
    send.len = len;
    send.remote = theirs;
    return send;
}

static void receive(uint64_t context, size_t offset)
{
    qp_recv recv;

    memset(&recv, 0, sizeof recv);
    recv.context = context;
    recv.mr = mr;
    recv.offset = offset;
    recv.len = 256;
    TRY(qp_post_recv(pair, &recv));
}

static qp_completion done_with(uint64_t context)
{
    qp_completion done = wait_one(cq);

    THAT(done.context == context);
    return done;
}

static int repost(void *context)
{
    reposts++;
    receive(*(uint64_t *)context, 1024);
    return 0;
}

static void takes(void *context, const qp_completion *completion)
{
    (void)context;
    if (completion->status) flushed++;
}

static void connect_both(void)
{
    qp_pair_attr attr;
    qp_endpoint here, there;
    qp_region mine;
    size_t found;

    TRY(qp_soft_open(NULL, &device));
    TRY(qp_pd_create(device, &pd));
    TRY(qp_cq_create(device, 256, 1, &cq));
    TRY(qp_mr_create(pd, 8192, 0xf, &mr));
    TRY(qp_mr_addr(mr, (void **)&memory));
    TRY(qp_mr_region(mr, &mine));
    memset(&attr, 0, sizeof attr);
    attr.send_cq = cq;
    attr.send_depth = 64;
    attr.send_ranges = attr.recv_ranges = 2;
    attr.inline_data = 32;
    attr.send_batch = 32;
    TRY(qp_pair_create(pd, &attr, &pair));
    TRY(qp_pair_endpoint(pair, device, 1, -1, NULL, &here));
    TRY(qp_exchange_swap(peer, &here, &mine, 1, &there, &theirs, 1, &found));
    THAT(found == 1 && theirs.len == 8192);
    TRY(qp_pair_init(pair));
    receive(100, 1024);
    TRY(qp_pair_connect(pair, &there, peer, &timing));
}

/* Lists, all alike and with others among them, that go round the queue: each comes back once, in order, as what it was. */
static void lists(void)
{
    qp_send sends[32];
    qp_completion done[32];
    size_t posted, count, i;
    unsigned round, got;

    for (round = 0; round < 9; round++) {
        for (i = 0; i < 32; i++) {
            sends[i] = request(round % 2 ? QP_READ : QP_WRITE, 1000 * round + i, 1024 + 8 * i, 8);
            sends[i].remote_offset = 4360 + 8 * i;
        }
        if (round > 2) sends[round].op = QP_WRITE;
        if (round > 4) sends[2 * round].mr = NULL, sends[2 * round].len = 0;
        if (round > 6) sends[3 * round].flags = QP_FENCE;
        TRY(qp_post_sends(pair, sends, round == 5 ? 31 : 32, round == 6 ? NULL : &posted));
        if (round != 6) THAT(posted == (round == 5 ? 31 : 32));
        for (got = 0; got < (round == 5 ? 31u : 32u); got += (unsigned)count) {
            TRY(qp_poll(cq, done, 1 + (got + round) % 32, &count));
            for (i = 0; i < count; i++) {
                const qp_send *send = &sends[got + i];

                THAT(done[i].status == 0 && done[i].context == send->context && done[i].operation == send->op);
                THAT(done[i].byte_len == (send->op == QP_READ ? send->len : 0) && done[i].queue == QP_SQ && done[i].flags == 0);
            }
        }
    }
}

/* A window on a part of the region: each bind is another name for the peer. */
static void window(void)
{
    qp_window *window;
    qp_mr *open;
    qp_region first, second;
    qp_completion done;

    TRY(qp_mr_create(pd, 4096, 1 | 16 /* LOCAL_WRITE, MW_BIND */, &open));
    TRY(qp_window_create(pd, &window));
    TRY(qp_window_bind(window, pair, open, 64, 128, 2 | 4, 70, &first));
    done = done_with(70);
    THAT(done.operation == QP_BIND && first.len == 128);
    TRY(qp_window_unbind(window, pair, 71));
    done = done_with(71);
    THAT(done.operation == QP_LOCAL_INV);
    TRY(qp_window_bind(window, pair, open, 0, 64, 2, 72, &second));
    done_with(72);
    THAT(second.rkey != first.rkey && second.addr + 64 == first.addr);
    THAT(qp_mr_destroy(open) && qp_last_code() == QP_CODE_SYSTEM); /* it is bound */
    TRY(qp_window_unbind(window, pair, 73));
    done_with(73);
    TRY(qp_window_destroy(window) || qp_mr_destroy(open));
}

static void requests(void)
{
    qp_send sends[32], send;
    qp_completion done[32];
    qp_range ranges[2];
    qp_account account;
    uint64_t *word = (uint64_t *)(void *)(memory + 512);
    size_t posted, count;
    unsigned i, got;

    strcpy(memory, "written");
    send = request(QP_WRITE, 1, 0, 8);
    send.remote_offset = 4096;
    TRY(qp_post_send(pair, &send));
    done_with(1);
    send = request(QP_READ, 2, 256, 8);
    send.remote_offset = 4096;
    TRY(qp_post_send(pair, &send));
    THAT(done_with(2).byte_len == 8 && !strcmp(memory + 256, "written"));
    for (i = 0; i < 2; i++) { /* 0 + 5, then compare with 5 */
        send = request(i ? QP_CMP_AND_SWP : QP_FETCH_AND_ADD, 3, 512, 8);
        send.remote_offset = 4352;
        send.compare_add = 5;
        send.swap = 77;
        TRY(qp_post_send(pair, &send));
        done_with(3);
        THAT(*word == (i ? 5u : 0u));
    }
    for (i = 0; i < 32; i++) {
        sends[i] = request(QP_WRITE, i, 0, 8);
        sends[i].remote_offset = 4360 + 8 * i;
        if (i % 8 != 7) sends[i].flags = QP_UNSIGNALED;
    }
    TRY(qp_post_sends(pair, sends, 32, &posted));
    THAT(posted == 32);
    for (got = 0; got < 4; got += (unsigned)count) {
        TRY(qp_wait(cq, 60000, done, 32, &count));
        for (i = 0; i < count; i++) THAT(done[i].status == 0 && done[i].context == 8 * (got + i) + 7);
    }
    lists();
    window();
    ranges[0].mr = ranges[1].mr = mr;
    ranges[0].offset = 0, ranges[0].len = 4;
    ranges[1].offset = 4, ranges[1].len = 4;
    send = request(QP_WRITE_WITH_IMM, 4, 0, 0);
    send.imm = 0xabcd;
    send.remote_offset = 4700;
    TRY(qp_post_send_ranges(pair, &send, ranges, 2));
    done_with(4);
    send = request(QP_SEND, 5, 0, 0);
    TRY(qp_post_inline(pair, &send, (const uint8_t *)"inline", 7));
    done_with(5);
    TRY(qp_pair_account(pair, QP_SQ, &account));
    THAT(account.accepted == 329 && account.succeeded == 329 && account.pending == 0);
}

/* The other end of it sleeps until something comes. */
static void answers(void)
{
    qp_completion done;
    struct pollfd fd;
    size_t count;
    int ready, messages;

    TRY(qp_cq_fd(cq, &fd.fd));
    fd.events = POLLIN;
    for (messages = 0; messages < 2;) {
        TRY(qp_poll(cq, &done, 1, &count));
        if (count) {
            THAT(done.status == 0 && done.operation == QP_RECV && done.context == (uint64_t)(100 + messages));
            if (messages == 0) THAT((done.flags & QP_BY_WRITE) && (done.flags & QP_HAS_IMM) && done.imm == 0xabcd && !strcmp(memory + 4700, "written"));
            if (messages == 1) THAT(done.byte_len == 7 && !strcmp(memory + 1280, "inline"));
            messages++;
            continue;
        }
        TRY(qp_cq_arm(cq, &ready));
        if (ready) continue;
        THAT(poll(&fd, 1, 60000) == 1);
        TRY(qp_cq_take_events(cq));
    }
}

static void recover(int first)
{
    uint64_t context = 200;
    qp_send send;
    int i;

    TRY(qp_pair_recover(pair, device, 1, -1, peer, &timing, 10000, takes, repost, &context));
    THAT(reposts == 1);
    strcpy(memory, first ? "first" : "second");
    send = request(QP_SEND, 6, 0, 7);
    TRY(qp_post_send(pair, &send));
    for (i = 0; i < 2; i++) {
        qp_completion done = wait_one(cq);

        THAT(done.context == (done.operation == QP_RECV ? 200u : 6u));
    }
    THAT(!strcmp(memory + 1024, first ? "second" : "first"));
}

#define THREADS 4
#define EACH 300

static qp_shared *shared;

/* A thread of those that share the Queue Pair: each of its requests writes the next number to the same place of the peer. */
static void *posts(void *argument)
{
    size_t thread = *(size_t *)argument, each;
    qp_send send;
    int result;

    for (each = 0; each < EACH; each++) {
        send = request(QP_WRITE, thread * EACH + each, 5000 + 8 * (thread * 16 + each % 16), 8);
        send.remote_offset = 4400 + 8 * thread;
        if (each % 4 == 1) send.flags = QP_UNSIGNALED;
        while ((result = qp_shared_post(shared, &send)) != 0) {
            THAT(result == ENOMEM && qp_last_code() == QP_CODE_FULL);
            sched_yield();
        }
    }
    return NULL;
}

/* Four threads post to one Queue Pair of 64 places, and this one polls: every request that is to be told is told once. */
static void many_threads(void)
{
    static char told[THREADS * EACH];
    pthread_t threads[THREADS];
    size_t thread[THREADS], i, waiting;
    unsigned left = THREADS * EACH / 4 * 3;
    qp_account account;
    qp_completion done;
    qp_send last;
    uint64_t context;
    int code;

    for (i = 0; i < THREADS * 16; i++) {
        uint64_t number = i;

        memcpy(memory + 5000 + 8 * i, &number, sizeof number);
    }
    TRY(qp_pair_share(pair, 8, &shared));
    for (i = 0; i < THREADS; i++) {
        thread[i] = i;
        TRY(pthread_create(&threads[i], NULL, posts, &thread[i]));
    }
    for (; left; left--) {
        done = wait_one(cq);
        THAT(done.status == 0 && done.operation == QP_WRITE && done.context < sizeof told && !told[done.context]++);
        TRY(qp_shared_advance(shared, NULL));
    }
    for (i = 0; i < THREADS; i++) TRY(pthread_join(threads[i], NULL));
    for (i = 0; i < sizeof told; i++) THAT(told[i] == (i % 4 != 1));
    /* The unsignaled ones at the end are done when a later one is. */
    last = request(QP_WRITE, 77, 0, 0);
    TRY(qp_shared_post(shared, &last));
    done_with(77);
    TRY(qp_shared_advance(shared, &waiting));
    THAT(waiting == 0);
    TRY(qp_shared_account(shared, QP_SQ, &account));
    THAT(account.pending == 0 && account.failed == 0 && account.flushed == 0);
    THAT(account.succeeded == account.accepted && account.accepted >= THREADS * EACH + 1);
    TRY(qp_shared_refused(shared, &context, &code, NULL, 0));
    THAT(code == QP_CODE_NONE);
    TRY(qp_shared_end(shared, &pair));
    /* The peer has written the last number of each thread, which is that of its last place. */
    TRY(qp_exchange_barrier(peer));
    for (i = 0; i < THREADS; i++) {
        uint64_t found;

        memcpy(&found, memory + 4400 + 8 * i, sizeof found);
        THAT(found == i * 16 + (EACH - 1) % 16);
    }
}

/* One asks, the other answers by what the completion says of the sender. */
static void datagrams(int first)
{
    qp_pair_attr attr;
    qp_pair *ud;
    qp_endpoint here, there;
    qp_dest *dest;
    qp_send send;
    qp_recv recv;
    qp_completion done;
    uint32_t number;
    int i;

    memset(&attr, 0, sizeof attr);
    attr.transport = QP_UD;
    attr.send_cq = cq;
    TRY(qp_pair_create(pd, &attr, &ud));
    TRY(qp_pair_activate(ud, device, 1, -1, 0x77, NULL, &here));
    TRY(qp_exchange_swap(peer, &here, NULL, 0, &there, NULL, 0, NULL));
    memset(&recv, 0, sizeof recv);
    recv.mr = mr, recv.offset = 2048, recv.len = 40 + 64, recv.context = 300;
    TRY(qp_post_recv(ud, &recv));
    TRY(qp_exchange_barrier(peer));
    if (first) {
        TRY(qp_dest_create(ud, &there, &dest));
    } else {
        done = done_with(300);
        THAT((done.flags & QP_DATAGRAM) && done.byte_len == 5 && !memcmp(memory + 2048 + 40, "ask 1", 5));
        TRY(qp_dest_reply(ud, &done, mr, 2048, &dest));
    }
    memcpy(memory, first ? "ask 1" : "tell!", 5);
    send = request(QP_SEND, 301, 0, 5);
    send.to = dest;
    TRY(qp_post_send(ud, &send));
    for (i = 0; i < (first ? 2 : 1); i++) {
        done = wait_one(cq);
        if (done.context == 300) THAT(!memcmp(memory + 2048 + 40, "tell!", 5));
    }
    TRY(qp_pair_number(ud, &number));
    THAT(number != 0);
    TRY(qp_exchange_barrier(peer));
    TRY(qp_dest_destroy(dest) || qp_pair_destroy(ud));
}

/* Two processes of a mesh that send to each other in turn, and sleep on the descriptor in between. */
static void mesh(int first)
{
    static const uint32_t nodes[2] = {1, 2};
    uint8_t cards[2 * QP_MESH_CARD], text[64];
    uint8_t *mine = first ? cards : cards + QP_MESH_CARD, *others = first ? cards + QP_MESH_CARD : cards;
    qp_mesh *mesh;
    qp_mesh_event event;
    struct pollfd fd;
    size_t n;
    int round, ready, limit, result, woken = 0;

    TRY(qp_mesh_create(device, 1, -1, NULL, nodes, 2, first ? 0 : 1, NULL, NULL, &mesh));
    TRY(qp_mesh_card(mesh, mine));
    TRY(qp_exchange_swap_bytes(peer, mine, QP_MESH_CARD, others, QP_MESH_CARD, &n));
    TRY(qp_mesh_join(mesh, cards));
    TRY(qp_mesh_connect(mesh, 60000));
    TRY(qp_mesh_fd(mesh, &fd.fd));
    fd.events = POLLIN;
    for (round = 0; round < 50; round++) {
        if (first) TRY(qp_mesh_send(mesh, 1, (const uint8_t *)"ping", 5, NULL));
        for (;;) {
            result = qp_mesh_next(mesh, 0, &event, text, sizeof text);
            if (result == 0 && event.kind == QP_MESH_MESSAGE) break;
            if (result == 0) continue;
            THAT(result == ETIMEDOUT);
            TRY(qp_mesh_arm(mesh, &ready, &limit));
            if (ready) continue;
            THAT(limit >= 0);
            woken += poll(&fd, 1, limit);
        }
        THAT(event.len == 5 && !strcmp((const char *)text, first ? "pong" : "ping"));
        if (!first) TRY(qp_mesh_send(mesh, 0, (const uint8_t *)"pong", 5, NULL));
    }
    THAT(woken > 0);
    TRY(qp_exchange_barrier(peer));
    TRY(qp_mesh_destroy(mesh));
}

/* What is said of a connection that works, and of one whose timeout is too short for its path. */
static void advice(const char *dump)
{
    char text[4096];
    size_t needed;

    TRY(qp_pair_lint(pair, 0, text, sizeof text, &needed));
    THAT(needed == 1 && !*text);
    TRY(qp_pair_lint(pair, (uint64_t)10000000000u, text, sizeof text, NULL));
    THAT(strstr(text, "is below 4 round trips"));
    TRY(qp_doctor(dump, NULL, 0, 0, text, sizeof text, NULL));
    TRY(qp_doctor(dump, NULL, (uint64_t)10000000000u, 1, text, sizeof text, NULL));
    THAT(text[0] == '[' && strstr(text, "\"timeout-short\""));
}

static int end(int first, const char *name)
{
    qp_event event;
    char text[8192];
    size_t needed;

    /* Patient: tools and busy machines are slow. */
    TRY(qp_timing_default(&timing));
    timing.timeout = 18;
    TRY(qp_exchange_shm(name, 60000, &peer));
    connect_both();
    if (!first) receive(101, 1280);
    TRY(qp_exchange_barrier(peer));
    if (first)
        requests();
    else
        answers();
    TRY(qp_pair_query_text(pair, text, sizeof text, &needed));
    THAT(needed == strlen(text) + 1 && strstr(text, "RTS"));
    TRY(qp_pair_query_json(pair, text, sizeof text, &needed));
    THAT(text[0] == '{' && strstr(text, "\"account"));
    advice(text);
    TRY(qp_exchange_barrier(peer));
    recover(first);
    THAT(flushed == (first ? 1 : 0)); /* the receive of the former life that was not used */
    TRY(qp_exchange_barrier(peer));
    many_threads();
    TRY(qp_exchange_barrier(peer));
    datagrams(first);
    mesh(first);
    TRY(qp_pair_drain(pair, 5000, takes, NULL, NULL));
    while (qp_device_event(device, 0, &event) == 0) {}
    TRY(qp_pair_destroy(pair) || qp_mr_destroy(mr) || qp_cq_destroy(cq) || qp_pd_destroy(pd));
    TRY(qp_device_destroy(device) || qp_exchange_destroy(peer));
    return 0;
}

int main(void)
{
    char name[64];
    pid_t child;
    int status;

    sprintf(name, "qp-good-%d", (int)getpid());
    child = fork();
    if (child == 0) return end(0, name);
    if (end(1, name)) return 1;
    if (waitpid(child, &status, 0) != child || status != 0) return fprintf(stderr, "the other process: %d\n", status), 1;
    printf("requests, lists, sleeping, books, recovery, threads, datagrams, a mesh\n");
    return 0;
}
