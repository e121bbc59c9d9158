/* Multicast: one process announces, any number listen.
 *
 *   announcer listen GROUP MESSAGES          waits for so many announcements
 *   announcer announce GROUP MESSAGES        makes them, ten a second
 *
 * GROUP is an address such as 239.1.2.3. Datagrams may get lost: a listener counts what it did not hear.
 */
#define _DEFAULT_SOURCE
#include "try.h"
#include <unistd.h>

#define QKEY 0x11112222
#define GRH 40 /* bytes before each datagram that are the device's */
#define SIZE (GRH + 64)
#define DEPTH 16

int main(int argc, char **argv)
{
    static qp_pair_attr attr;
    static qp_recv recv;
    static qp_send send;
    qp_device *device;
    qp_pd *pd;
    qp_cq *cq;
    qp_mr *mr;
    qp_pair *pair;
    qp_dest *group;
    char *memory;
    int messages, i, last = -1, heard = 0;

    if (argc != 4) return fprintf(stderr, "usage: %s listen|announce GROUP MESSAGES\n", argv[0]), 2;
    messages = atoi(argv[3]);
    device = open_device();
    TRY(qp_pd_create(device, &pd));
    TRY(qp_cq_create(device, 2 * DEPTH, 1, &cq));
    TRY(qp_mr_create(pd, DEPTH * SIZE, 1, &mr));
    TRY(qp_mr_addr(mr, (void **)&memory));
    attr.transport = QP_UD;
    attr.send_cq = cq;
    attr.recv_depth = attr.send_depth = DEPTH;
    TRY(qp_pair_create(pd, &attr, &pair));
    TRY(qp_pair_activate(pair, device, 1, -1, QKEY, NULL, NULL));
    recv.mr = send.mr = mr;
    if (!strcmp(argv[1], "listen")) {
        recv.len = SIZE;
        for (i = 0; i < DEPTH; i++) {
            recv.context = (uint64_t)i;
            recv.offset = (size_t)i * SIZE;
            TRY(qp_post_recv(pair, &recv));
        }
        TRY(qp_pair_attach(pair, argv[2], 0));
        fprintf(stderr, "listening\n");
        while (last + 1 < messages) {
            qp_completion done = wait_one(cq);
            const char *text = memory + done.context * SIZE + GRH;

            last = atoi(text);
            heard++;
            printf("%s (from QP %#x)\n", text, (unsigned)done.sender_qp_num);
            recv.context = done.context;
            recv.offset = (size_t)done.context * SIZE;
            TRY(qp_post_recv(pair, &recv));
        }
        fprintf(stderr, "heard %d, lost %d\n", heard, last + 1 - heard);
    } else {
        TRY(qp_dest_group(pair, argv[2], 0, &group));
        send.op = QP_SEND;
        send.to = group;
        for (i = 0; i < messages; i++) {
            send.len = (size_t)sprintf(memory, "%d: still here", i) + 1;
            TRY(qp_post_send(pair, &send));
            wait_one(cq);
            usleep(100000);
        }
        TRY(qp_dest_destroy(group));
    }
    TRY(qp_pair_destroy(pair) || qp_mr_destroy(mr) || qp_cq_destroy(cq) || qp_pd_destroy(pd));
    TRY(qp_device_destroy(device));
    return 0;
}
