/* A key-value table that clients read one-sided: the server's processor does nothing. Each value begins and ends with its
 * version, so that a client sees when it has read one that was being written, and reads it again.
 *
 *   key_value ADDRESS                 the server
 *   key_value HOST:PORT MILLISECONDS  a client, which reads keys at random and tells how many per second
 */
#define _POSIX_C_SOURCE 199309L
#include "try.h"
#include <time.h>

#define KEYS 1024
#define AT_A_TIME 16

typedef struct value {
    uint64_t version;
    char text[48];
    uint64_t version_again;
} value;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void serve(qp_device *device, const char *address)
{
    static qp_pair_attr attr;
    qp_listener *listener = open_listener(address);
    qp_exchange *peer;
    qp_pd *pd;
    qp_cq *cq;
    qp_mr *mr;
    qp_pair *pair;
    qp_region mine;
    qp_endpoint here, there;
    value *table;
    int key;

    TRY(qp_pd_create(device, &pd));
    TRY(qp_cq_create(device, 32, 0, &cq));
    TRY(qp_mr_create(pd, KEYS * sizeof(value), 4 /* IBV_ACCESS_REMOTE_READ */, &mr));
    TRY(qp_mr_addr(mr, (void **)&table));
    for (key = 0; key < KEYS; key++) {
        table[key].version = table[key].version_again = (uint64_t)key + 1;
        sprintf(table[key].text, "value of key %d", key);
    }
    TRY(qp_mr_region(mr, &mine));
    TRY(qp_accept(listener, 60000, &peer));
    attr.send_cq = cq;
    TRY(qp_pair_create(pd, &attr, &pair));
    TRY(qp_pair_endpoint(pair, device, 1, -1, NULL, &here));
    TRY(qp_exchange_swap(peer, &here, &mine, 1, &there, NULL, 0, NULL));
    TRY(qp_pair_connect(pair, &there, peer, NULL));
    TRY(qp_exchange_barrier(peer)); /* the client is done */
    TRY(qp_pair_destroy(pair) || qp_mr_destroy(mr) || qp_cq_destroy(cq) || qp_pd_destroy(pd));
    TRY(qp_exchange_destroy(peer) || qp_listener_destroy(listener));
}

static int read_keys(qp_device *device, const char *address, double seconds)
{
    static qp_pair_attr attr;
    static qp_send reads[AT_A_TIME];
    qp_exchange *peer;
    qp_pd *pd;
    qp_cq *cq;
    qp_mr *mr;
    qp_pair *pair;
    qp_region theirs;
    qp_endpoint here, there;
    value *got;
    char wanted[48];
    double end;
    uint64_t count = 0, again = 0;
    unsigned seed = 1;
    int i;

    TRY(qp_exchange_tcp(address, 20000, &peer));
    TRY(qp_pd_create(device, &pd));
    TRY(qp_cq_create(device, 64, 0, &cq));
    TRY(qp_mr_create(pd, AT_A_TIME * sizeof(value), 1 /* IBV_ACCESS_LOCAL_WRITE */, &mr));
    TRY(qp_mr_addr(mr, (void **)&got));
    attr.send_cq = cq;
    attr.send_batch = AT_A_TIME;
    TRY(qp_pair_create(pd, &attr, &pair));
    TRY(qp_pair_endpoint(pair, device, 1, -1, NULL, &here));
    TRY(qp_exchange_swap(peer, &here, NULL, 0, &there, &theirs, 1, NULL));
    TRY(qp_pair_connect(pair, &there, peer, NULL));

    for (end = now() + seconds; now() < end;) {
        for (i = 0; i < AT_A_TIME; i++) {
            seed = seed * 1103515245u + 12345u;
            reads[i].context = seed / 65536 % KEYS;
            reads[i].op = QP_READ;
            reads[i].mr = mr;
            reads[i].offset = (size_t)i * sizeof(value);
            reads[i].len = sizeof(value);
            reads[i].remote = theirs;
            reads[i].remote_offset = reads[i].context * sizeof(value);
        }
        TRY(qp_post_sends(pair, reads, AT_A_TIME, NULL));
        for (i = 0; i < AT_A_TIME; i++) {
            qp_completion done = wait_one(cq);

            if (done.context != reads[i].context || done.byte_len != sizeof(value)) return 1;
            if (got[i].version != got[i].version_again) {
                again++;
                continue;
            }
            sprintf(wanted, "value of key %d", (int)done.context);
            if (strcmp(got[i].text, wanted)) return fprintf(stderr, "not %s: %s\n", wanted, got[i].text), 1;
            count++;
        }
    }
    printf("%.0f reads per second of %d bytes; %d to be read again\n", (double)count / seconds, (int)sizeof(value), (int)again);
    TRY(qp_exchange_barrier(peer));
    TRY(qp_pair_destroy(pair) || qp_mr_destroy(mr) || qp_cq_destroy(cq) || qp_pd_destroy(pd));
    TRY(qp_exchange_destroy(peer));
    return 0;
}

int main(int argc, char **argv)
{
    qp_device *device = open_device();
    int status = 0;

    if (argc > 2)
        status = read_keys(device, argv[1], atoi(argv[2]) / 1000.0);
    else
        serve(device, argc > 1 ? argv[1] : "127.0.0.1:0");
    TRY(qp_device_destroy(device));
    return status;
}
