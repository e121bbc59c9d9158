/* A key-value table that clients read one-sided, while the server writes new values. Each has a checksum over its version and
 * text, so that a client sees when it has read one that was being written, and reads it again. (A version before the text and
 * one behind it are not enough: no rule says in which order a READ takes the bytes.)
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
    uint64_t checksum;
    uint64_t version;
    char text[48];
} value;

/* FNV-1a, over words, of what stands behind the checksum. */
static uint64_t checksum_of(const value *value)
{
    uint64_t words[sizeof *value / 8], sum = 0xcbf29ce484222325u;
    size_t i;

    memcpy(words, value, sizeof words);
    for (i = 1; i < sizeof words / 8; i++) sum = (sum ^ words[i]) * 0x100000001b3u;
    return sum;
}

/* The value of a key in this version, whole. */
static value value_of(int key, unsigned version)
{
    value made;

    memset(&made, 0, sizeof made);
    made.version = version;
    sprintf(made.text, "value %u of key %d", version, key);
    made.checksum = checksum_of(&made);
    return made;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void serve(qp_device *device, const char *address)
{
    static qp_pair_attr attr;
    static qp_recv recv;
    qp_listener *listener = open_listener(address);
    qp_exchange *peer;
    qp_pd *pd;
    qp_cq *cq;
    qp_mr *mr;
    qp_pair *pair;
    qp_region mine;
    qp_endpoint here, there;
    qp_completion done;
    value *table;
    size_t ended = 0;
    unsigned written;
    int key;

    TRY(qp_pd_create(device, &pd));
    TRY(qp_cq_create(device, 32, 0, &cq));
    TRY(qp_mr_create(pd, KEYS * sizeof(value), 4 /* IBV_ACCESS_REMOTE_READ */, &mr));
    TRY(qp_mr_addr(mr, (void **)&table));
    for (key = 0; key < KEYS; key++) table[key] = value_of(key, 0);
    TRY(qp_mr_region(mr, &mine));
    TRY(qp_accept(listener, 60000, &peer));
    attr.send_cq = cq;
    TRY(qp_pair_create(pd, &attr, &pair));
    TRY(qp_pair_endpoint(pair, device, 1, -1, NULL, &here));
    TRY(qp_exchange_swap(peer, &here, &mine, 1, &there, NULL, 0, NULL));
    TRY(qp_pair_init(pair));
    TRY(qp_post_recv(pair, &recv)); /* for the client's word that it is done */
    TRY(qp_pair_connect(pair, &there, peer, NULL));
    for (written = 0; !ended; written++) {
        key = (int)(written % KEYS);
        table[key] = value_of(key, written / KEYS + 1);
        TRY(qp_poll(cq, &done, 1, &ended));
    }
    if (done.status) fprintf(stderr, "the client is gone: status %u\n", (unsigned)done.status), exit(1);
    printf("%u values written\n", written);
    TRY(qp_exchange_barrier(peer));
    TRY(qp_pair_destroy(pair) || qp_mr_destroy(mr) || qp_cq_destroy(cq) || qp_pd_destroy(pd));
    TRY(qp_exchange_destroy(peer) || qp_listener_destroy(listener));
}

static int read_keys(qp_device *device, const char *address, double seconds)
{
    static qp_pair_attr attr;
    static qp_send reads[AT_A_TIME], last;
    qp_exchange *peer;
    qp_pd *pd;
    qp_cq *cq;
    qp_mr *mr;
    qp_pair *pair;
    qp_region theirs;
    qp_endpoint here, there;
    value *got, wanted;
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
            if (got[i].checksum != checksum_of(&got[i])) {
                again++;
                continue;
            }
            wanted = value_of((int)done.context, (unsigned)got[i].version);
            if (memcmp(&got[i], &wanted, sizeof wanted)) return fprintf(stderr, "not %s: %s\n", wanted.text, got[i].text), 1;
            count++;
        }
    }
    printf("%.0f reads per second of %d bytes; %d to be read again\n", (double)count / seconds, (int)sizeof(value), (int)again);
    last.op = QP_SEND; /* no bytes: that it comes is all that it says */
    TRY(qp_post_send(pair, &last));
    wait_one(cq);
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
