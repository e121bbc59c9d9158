/* Requests and responses: one server, many clients, and one shared receive queue for all of them, so that the server's memory
 * depends on the messages that are under way and not on the number of clients.
 *
 *   server CLIENTS [ADDRESS]        serves so many clients until all have said that they are done
 *   server HOST:PORT REQUESTS       a client
 */
#include "try.h"
#include <ctype.h>

#define BUFFERS 64
#define SIZE 256
#define MOST_CLIENTS 128

/* Connects a Queue Pair; the peer makes the same calls. */
static void connect_pair(qp_device *device, qp_pair *pair, qp_exchange *peer)
{
    qp_endpoint here, there;

    TRY(qp_pair_endpoint(pair, device, 1, -1, NULL, &here));
    TRY(qp_exchange_swap(peer, &here, NULL, 0, &there, NULL, 0, NULL));
    TRY(qp_pair_connect(pair, &there, peer, NULL));
}

/* Receive and send of buffer `at`. */
static void post_recv(qp_srq *srq, qp_mr *mr, size_t at)
{
    qp_recv recv;

    memset(&recv, 0, sizeof recv);
    recv.context = at;
    recv.mr = mr;
    recv.offset = at * SIZE;
    recv.len = SIZE;
    TRY(qp_post_srq_recv(srq, &recv));
}

static void answer(qp_pair *pair, qp_mr *mr, size_t at, size_t len)
{
    qp_send send;

    memset(&send, 0, sizeof send);
    send.context = at;
    send.op = QP_SEND;
    send.mr = mr;
    send.offset = at * SIZE;
    send.len = len;
    TRY(qp_post_send(pair, &send));
}

static int serve(qp_device *device, int clients, const char *address)
{
    static qp_pair *pairs[MOST_CLIENTS];
    static uint32_t numbers[MOST_CLIENTS];
    static qp_pair_attr attr;
    qp_listener *listener = open_listener(address);
    qp_pd *pd;
    qp_cq *cq;
    qp_srq *srq;
    qp_mr *mr;
    char *memory;
    size_t at, i;
    int left = clients, served = 0;

    TRY(qp_pd_create(device, &pd));
    TRY(qp_cq_create(device, (uint32_t)(BUFFERS + 16 * clients), 1, &cq));
    TRY(qp_srq_create(pd, BUFFERS, 1, &srq));
    TRY(qp_mr_create(pd, BUFFERS * SIZE, 1, &mr));
    TRY(qp_mr_addr(mr, (void **)&memory));
    for (at = 0; at < BUFFERS; at++) post_recv(srq, mr, at);
    attr.send_cq = cq;
    attr.srq = srq;
    for (i = 0; i < (size_t)clients; i++) {
        qp_exchange *peer;

        TRY(qp_accept(listener, 60000, &peer));
        TRY(qp_pair_create(pd, &attr, &pairs[i]));
        TRY(qp_pair_number(pairs[i], &numbers[i]));
        connect_pair(device, pairs[i], peer);
        TRY(qp_exchange_destroy(peer));
    }
    while (left > 0) {
        qp_completion done = wait_one(cq);
        size_t n;

        at = (size_t)done.context;
        if (done.operation != QP_RECV) { /* the answer has left: its buffer waits for another request */
            post_recv(srq, mr, at);
            continue;
        }
        if (done.byte_len == 0) { /* a client is done */
            left--;
            post_recv(srq, mr, at);
            continue;
        }
        for (n = 0; n < done.byte_len; n++) memory[at * SIZE + n] = (char)toupper(memory[at * SIZE + n]);
        for (i = 0; numbers[i] != done.qp_num; i++) {}
        answer(pairs[i], mr, at, done.byte_len);
        served++;
    }
    printf("%d requests of %d clients\n", served, clients);
    for (i = 0; i < (size_t)clients; i++) TRY(qp_pair_destroy(pairs[i]));
    TRY(qp_srq_destroy(srq) || qp_cq_destroy(cq) || qp_mr_destroy(mr) || qp_pd_destroy(pd));
    TRY(qp_listener_destroy(listener));
    return 0;
}

static int ask(qp_device *device, const char *address, int requests)
{
    static qp_pair_attr attr;
    static qp_send bye;
    qp_exchange *peer;
    qp_pd *pd;
    qp_cq *cq;
    qp_mr *mr;
    qp_pair *pair;
    char *memory, wanted[SIZE];
    int i, j, len;

    TRY(qp_exchange_tcp(address, 20000, &peer));
    TRY(qp_pd_create(device, &pd));
    TRY(qp_cq_create(device, 32, 1, &cq));
    TRY(qp_mr_create(pd, 2 * SIZE, 1, &mr));
    TRY(qp_mr_addr(mr, (void **)&memory));
    attr.send_cq = cq;
    TRY(qp_pair_create(pd, &attr, &pair));
    connect_pair(device, pair, peer);
    for (i = 0; i < requests; i++) {
        static qp_recv recv;

        recv.mr = mr;
        recv.offset = SIZE;
        recv.len = SIZE;
        TRY(qp_post_recv(pair, &recv));
        len = sprintf(memory, "request %d", i) + 1;
        sprintf(wanted, "REQUEST %d", i);
        answer(pair, mr, 0, (size_t)len);
        for (j = 0; j < 2; j++) wait_one(cq);
        if (strcmp(memory + SIZE, wanted)) return fprintf(stderr, "not %s: %s\n", wanted, memory + SIZE), 1;
    }
    bye.op = QP_SEND; /* without data: we are done */
    TRY(qp_post_send(pair, &bye));
    wait_one(cq);
    printf("%d answers\n", requests);
    TRY(qp_pair_destroy(pair) || qp_cq_destroy(cq) || qp_mr_destroy(mr) || qp_pd_destroy(pd));
    TRY(qp_exchange_destroy(peer));
    return 0;
}

int main(int argc, char **argv)
{
    qp_device *device;
    int clients, status;

    if (argc < 2) return fprintf(stderr, "usage: %s CLIENTS [ADDRESS] | HOST:PORT REQUESTS\n", argv[0]), 2;
    device = open_device();
    if (strchr(argv[1], ':')) {
        status = ask(device, argv[1], argc > 2 ? atoi(argv[2]) : 100);
    } else {
        clients = atoi(argv[1]);
        if (clients < 1 || clients > MOST_CLIENTS) return fprintf(stderr, "1 to %d clients\n", MOST_CLIENTS), 2;
        status = serve(device, clients, argc > 2 ? argv[2] : "127.0.0.1:0");
    }
    TRY(qp_device_destroy(device));
    return status;
}
