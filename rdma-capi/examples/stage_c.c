/* plain.c with libqp, stage c: the library owns the objects; memory and channel are the program's as before. */
#define _DEFAULT_SOURCE
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
static void connect_pair(qp_pair *pair, qp_device *device, int fd, int port, int gid_index)
{
    qp_endpoint here, there;

    if (qp_pair_endpoint(pair, device, port, gid_index, NULL, &here)) die(qp_last_error());
    swap(fd, &here, &there, sizeof here);
    if (qp_pair_connect_begin(pair, &there, NULL)) die(qp_last_error());
    barrier(fd);
    if (qp_pair_connect_finish(pair, NULL)) die(qp_last_error());
}

int main(int argc, char **argv)
{
    const char *hello = argc > 2 ? "hello from the client" : "hello from the server";
    static char memory[2 * SIZE];
    qp_device *device;
    qp_pd *pd;
    qp_mr *mr;
    qp_cq *cq;
    qp_pair *pair;
    qp_pair_attr attr;
    qp_send send;
    qp_recv recv;
    qp_completion wc;
    int fd, done;

    if (argc < 2) return fprintf(stderr, "usage: %s PORT [HOST]\n", argv[0]), 2;
    if (qp_device_open(NULL, &device)) die(qp_last_error());
    if (qp_pd_create(device, &pd)) die(qp_last_error());
    if (qp_mr_register(pd, memory, sizeof memory, 1 /* IBV_ACCESS_LOCAL_WRITE */, &mr)) die(qp_last_error());
    if (qp_cq_create(device, 32, 0, &cq)) die(qp_last_error());
    memset(&attr, 0, sizeof attr);
    attr.send_cq = cq;
    attr.transport = QP_RC;
    if (qp_pair_create(pd, &attr, &pair)) die(qp_last_error());

    fd = meet(argv[1], argc > 2 ? argv[2] : NULL);
    connect_pair(pair, device, fd, 1, -1); /* the best GID of port 1 */

    memset(&recv, 0, sizeof recv);
    recv.mr = mr;
    recv.offset = SIZE;
    recv.len = SIZE;
    if (qp_post_recv(pair, &recv)) die(qp_last_error());

    memset(&send, 0, sizeof send);
    strcpy(memory, hello);
    send.op = QP_SEND;
    send.mr = mr;
    send.len = strlen(hello) + 1;
    if (qp_post_send(pair, &send)) die(qp_last_error());

    for (done = 0; done < 2; done++) {
        if (qp_wait(cq, 10000, &wc, 1, NULL)) die(qp_last_error());
        if (wc.status) return fprintf(stderr, "status %u\n", (unsigned)wc.status), 1;
    }
    printf("the peer says: %s\n", memory + SIZE);
    barrier(fd);
    close(fd);
    if (qp_pair_destroy(pair) || qp_cq_destroy(cq) || qp_mr_destroy(mr) || qp_pd_destroy(pd) || qp_device_destroy(device))
        die(qp_last_error());
    return 0;
}
