/* Reliable datagrams: any number of processes, each of which sends numbered messages to all the others over one Queue Pair. The
 * first one listens; the others bring it their cards over TCP, and it tells everybody of everybody.
 *
 *   datagrams PROCESSES MESSAGES [ADDRESS]    the first process
 *   datagrams HOST:PORT                       another one
 */
#include "try.h"
#include <inttypes.h>

enum { MOST = 64, SIZE = 10000 };

/* What the first process tells the others. */
struct job { uint32_t processes, messages, you; uint8_t cards[MOST][QP_DATAGRAMS_CARD]; };
static struct job job;

static void gather(qp_datagrams *end, const char *address)
{
    static qp_exchange *channels[MOST];
    qp_listener *listener = open_listener(address);
    size_t len;
    uint32_t i;

    TRY(qp_datagrams_card(end, job.cards[0]));
    for (i = 1; i < job.processes; i++) {
        TRY(qp_accept(listener, 60000, &channels[i]));
        TRY(qp_exchange_swap_bytes(channels[i], NULL, 0, job.cards[i], QP_DATAGRAMS_CARD, &len));
    }
    for (i = 1; i < job.processes; i++) {
        job.you = i;
        TRY(qp_exchange_swap_bytes(channels[i], (const uint8_t *)&job, sizeof job, NULL, 0, &len));
        TRY(qp_exchange_destroy(channels[i]));
    }
    job.you = 0;
    TRY(qp_listener_destroy(listener));
}

static void join(qp_datagrams *end, const char *address)
{
    uint8_t card[QP_DATAGRAMS_CARD];
    qp_exchange *first;
    size_t len;

    TRY(qp_exchange_tcp(address, 60000, &first));
    TRY(qp_datagrams_card(end, card));
    TRY(qp_exchange_swap_bytes(first, card, sizeof card, NULL, 0, &len));
    TRY(qp_exchange_swap_bytes(first, NULL, 0, (uint8_t *)&job, sizeof job, &len));
    TRY(qp_exchange_destroy(first));
}

int main(int argc, char **argv)
{
    static uint64_t peers[MOST], sent[MOST], heard[MOST];
    static uint8_t message[SIZE], got[SIZE];
    uint64_t acknowledged = 0, all, received = 0;
    qp_datagrams_event event;
    qp_datagrams_state state;
    qp_datagrams *end;
    qp_device *device;
    qp_pd *pd;
    uint32_t i;

    if (argc < 2) return fprintf(stderr, "usage: %s PROCESSES MESSAGES [ADDRESS] | HOST:PORT\n", argv[0]), 2;
    device = open_device();
    TRY(qp_pd_create(device, &pd));
    TRY(qp_datagrams_create(device, pd, 1, -1, NULL, &end));
    if (argc > 2) {
        job.processes = (uint32_t)atoi(argv[1]);
        job.messages = (uint32_t)atoi(argv[2]);
        if (job.processes < 2 || job.processes > MOST) return fprintf(stderr, "2 to %d processes\n", MOST), 2;
        gather(end, argc > 3 ? argv[3] : "127.0.0.1:0");
    } else {
        join(end, argv[1]);
    }
    for (i = 0; i < job.processes; i++)
        if (i != job.you) TRY(qp_datagrams_add_peer(end, job.cards[i], &peers[i]));
    all = (uint64_t)(job.processes - 1) * job.messages;
    while (acknowledged < all || received < all) {
        for (i = 0; i < job.processes; i++) {
            if (i == job.you || sent[i] == job.messages) continue;
            memcpy(message, &sent[i], sizeof sent[i]);
            if (qp_datagrams_send(end, peers[i], message, i % 2 ? SIZE : 8, sent[i]) == 0) sent[i]++;
            else if (qp_last_code() != QP_CODE_FULL) TRY(1);
        }
        if (qp_datagrams_next(end, 10, &event, got, sizeof got)) {
            if (qp_last_code() != QP_CODE_TIMED_OUT) TRY(1);
            continue;
        }
        for (i = 0; i < job.processes && (i == job.you || peers[i] != event.peer); i++) {}
        if (event.kind == QP_DATAGRAMS_ACKNOWLEDGED) acknowledged++;
        if (event.kind == QP_DATAGRAMS_MESSAGE) {
            /* In order, whatever gets lost on the way. */
            if (memcmp(got, &heard[i], sizeof heard[i])) return fprintf(stderr, "process %" PRIu32 " is out of step\n", i), 1;
            heard[i]++, received++;
        }
        if (event.kind == QP_DATAGRAMS_DEAD || event.kind == QP_DATAGRAMS_LOST)
            return fprintf(stderr, "process %" PRIu32 " is dead\n", i), 1;
    }
    /* Others may lack an acknowledgement: one that was lost is asked for again. */
    while (qp_datagrams_next(end, 300, &event, got, sizeof got) == 0) {}
    TRY(qp_datagrams_query(end, &state));
    printf("process %" PRIu32 ": %" PRIu64 " messages to %" PRIu32 " others, %" PRIu64 " from them; %" PRIu64 " packets left twice\n",
           job.you, acknowledged, job.processes - 1, received, state.repeated);
    TRY(qp_datagrams_destroy(end) || qp_pd_destroy(pd) || qp_device_destroy(device));
    return 0;
}
