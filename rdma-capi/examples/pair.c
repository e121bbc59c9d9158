/* Two processes say hello over RC. Run `pair` in one shell, and `pair HOST:PORT` in another. */
#include <qp.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call) \
    do { if (call) { fprintf(stderr, "%s\n  %s\n", #call, qp_last_error()); exit(1); } } while (0)

int main(int argc, char **argv)
{
    const char *hello = argc > 1 ? "hello from the client" : "hello from the server";
    char address[64], *memory;
    static qp_pair_attr attr; /* all zero: the usual */
    static qp_send send;
    static qp_recv recv;
    qp_listener *listener;
    qp_exchange *peer;
    qp_device *device;
    qp_pd *pd;
    qp_cq *cq;
    qp_mr *mr;
    qp_pair *pair;
    qp_endpoint here, there;
    qp_completion done;
    int i;

    if (argc > 1) {
        TRY(qp_exchange_tcp(argv[1], 10000, &peer));
    } else {
        TRY(qp_listen("127.0.0.1:0", &listener));
        TRY(qp_listener_address(listener, address, sizeof address, NULL));
        fprintf(stderr, "waiting: pair %s\n", address);
        TRY(qp_accept(listener, 60000, &peer) || qp_listener_destroy(listener));
    }
    if (qp_device_open(NULL, &device)) /* no adapter here: software does */
        TRY(qp_soft_open(NULL, &device));
    TRY(qp_pd_create(device, &pd));
    TRY(qp_cq_create(device, 32, 1, &cq));
    TRY(qp_mr_create(pd, 4096, 1 /* IBV_ACCESS_LOCAL_WRITE */, &mr));
    TRY(qp_mr_addr(mr, (void **)&memory));
    attr.send_cq = cq;
    TRY(qp_pair_create(pd, &attr, &pair));
    TRY(qp_pair_endpoint(pair, device, 1, -1, NULL, &here));
    TRY(qp_exchange_swap(peer, &here, NULL, 0, &there, NULL, 0, NULL));
    TRY(qp_pair_init(pair));
    recv.mr = mr, recv.offset = 1024, recv.len = 1024;
    TRY(qp_post_recv(pair, &recv));
    TRY(qp_pair_connect(pair, &there, peer, NULL));
    send.op = QP_SEND, send.mr = mr, send.len = (size_t)sprintf(memory, "%s", hello) + 1;
    TRY(qp_post_send(pair, &send));
    for (i = 0; i < 2; i++) { /* the message that went, and the one that came */
        TRY(qp_wait(cq, 10000, &done, 1, NULL));
        if (done.status) return fprintf(stderr, "failed: status %u\n", (unsigned)done.status), 1;
    }
    printf("the peer says: %s\n", memory + 1024);
    TRY(qp_exchange_barrier(peer));
    TRY(qp_pair_destroy(pair) || qp_mr_destroy(mr) || qp_cq_destroy(cq) || qp_pd_destroy(pd));
    TRY(qp_device_destroy(device) || qp_exchange_destroy(peer));
    return 0;
}
