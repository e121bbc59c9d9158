/* plain.c with libqp, stage b: the program owns its Queue Pair and its channel to the peer, the library connects the two. The
 * endpoint is 80 bytes that mean the same on every machine: MPI_Allgather() would do as well. */
#define _DEFAULT_SOURCE
#include <infiniband/verbs.h>
#include <netdb.h>
#include <qp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE 1024

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Connects to the peer, or waits for it. */
static int meet(const char *port, const char *host)
{
    struct addrinfo hints, *found;
    int fd, one = 1, tries;

    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host ? host : "127.0.0.1", port, &hints, &found)) die("getaddrinfo");
    fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd < 0) die("socket");
    if (host) {
        for (tries = 0; connect(fd, found->ai_addr, found->ai_addrlen); tries++) {
            if (tries == 100) die("connect");
            usleep(100000);
        }
    } else {
        int listener = fd;

        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, found->ai_addr, found->ai_addrlen) || listen(listener, 1)) die("listen");
        fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        close(listener);
    }
    freeaddrinfo(found);
    return fd;
}

/* Sends bytes to the peer, and receives as many. */
static void swap(int fd, const void *mine, void *theirs, size_t len)
{
    size_t got = 0;

    if (write(fd, mine, len) != (ssize_t)len) die("write");
    while (got < len) {
        ssize_t now = read(fd, (char *)theirs + got, len - got);

        if (now <= 0) die("read");
        got += (size_t)now;
    }
}

static void barrier(int fd)
{
    char mine = 0, theirs;

    swap(fd, &mine, &theirs, 1);
}

/* Brings the Queue Pair from RESET to RTS. */
static void connect_qp(struct ibv_qp *qp, int fd, int port, int gid_index)
{
    qp_endpoint here, there;

    if (qp_endpoint_of(qp, port, gid_index, &here)) die(qp_last_error());
    swap(fd, &here, &there, sizeof here);
    if (qp_connect_begin(qp, &here, &there, NULL)) die(qp_last_error());
    barrier(fd);
    if (qp_connect_finish(qp, &here, &there, NULL)) die(qp_last_error());
}

int main(int argc, char **argv)
{
    const char *hello = argc > 2 ? "hello from the client" : "hello from the server";
    static char memory[2 * SIZE];
    struct ibv_device **list;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_qp_init_attr init;
    struct ibv_sge sge;
    struct ibv_send_wr send, *bad_send;
    struct ibv_recv_wr recv, *bad_recv;
    struct ibv_wc wc;
    int fd, done = 0, n;

    if (argc < 2) return fprintf(stderr, "usage: %s PORT [HOST]\n", argv[0]), 2;
    list = ibv_get_device_list(NULL);
    if (!list || !list[0]) die("no device");
    context = ibv_open_device(list[0]);
    if (!context) die("ibv_open_device");
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    if (!pd) die("ibv_alloc_pd");
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    if (!mr) die("ibv_reg_mr");
    cq = ibv_create_cq(context, 32, NULL, NULL, 0);
    if (!cq) die("ibv_create_cq");
    memset(&init, 0, sizeof init);
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = 1;
    init.cap.max_send_wr = init.cap.max_recv_wr = 16;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    qp = ibv_create_qp(pd, &init);
    if (!qp) die("ibv_create_qp");

    fd = meet(argv[1], argc > 2 ? argv[2] : NULL);
    connect_qp(qp, fd, 1, -1); /* the best GID of port 1 */

    memset(&recv, 0, sizeof recv);
    memset(&sge, 0, sizeof sge);
    sge.addr = (uintptr_t)(memory + SIZE);
    sge.length = SIZE;
    sge.lkey = mr->lkey;
    recv.sg_list = &sge;
    recv.num_sge = 1;
    if (ibv_post_recv(qp, &recv, &bad_recv)) die("ibv_post_recv");

    memset(&send, 0, sizeof send);
    strcpy(memory, hello);
    sge.addr = (uintptr_t)memory;
    sge.length = (uint32_t)strlen(hello) + 1;
    send.opcode = IBV_WR_SEND;
    send.sg_list = &sge;
    send.num_sge = 1;
    if (ibv_post_send(qp, &send, &bad_send)) die("ibv_post_send");

    while (done < 2) {
        n = ibv_poll_cq(cq, 1, &wc);
        if (n < 0) die("ibv_poll_cq");
        if (n && wc.status != IBV_WC_SUCCESS) return fprintf(stderr, "status %d\n", wc.status), 1;
        done += n;
    }
    printf("the peer says: %s\n", memory + SIZE);
    barrier(fd);
    close(fd);
    if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(context))
        die("the end");
    return 0;
}
