/* A connection that outlives the process at its other end: the client sends numbered messages, and goes on with it when its
 * server was killed and started again. What became of each message is told by the events.
 *
 *   supervised listen [ADDRESS]     a server; it can be killed at any time, and started again on the same address
 *   supervised HOST:PORT [LIVES]    sends until the connection has had so many lives, with a hundred messages in the last
 */
#include "try.h"
#include <inttypes.h>

enum { WINDOW = 16, RECEIVES = 2 * WINDOW, SIZE = sizeof(uint64_t) };
/* What the client sends last. */
static const uint64_t bye = UINT64_MAX;

static qp_supervised_event next(qp_supervised *link)
{
    qp_supervised_event event;
    char text[512];

    TRY(qp_supervised_next(link, 30000, &event));
    TRY(qp_supervised_text(link, text, sizeof text, NULL));
    if (event.kind != QP_SUPERVISED_DONE && *text) printf("  %s\n", text), fflush(stdout);
    return event;
}

static int serve(qp_device *device, qp_pd *pd, const char *address)
{
    qp_recv receives[RECEIVES];
    qp_supervised *link;
    qp_mr *mr;
    uint64_t *numbers, got = 0;
    char where[64];
    size_t i;

    TRY(qp_mr_create(pd, RECEIVES * SIZE, 1 /* IBV_ACCESS_LOCAL_WRITE */, &mr));
    TRY(qp_mr_addr(mr, (void **)&numbers));
    memset(receives, 0, sizeof receives);
    for (i = 0; i < RECEIVES; i++) {
        receives[i].context = i;
        receives[i].mr = mr;
        receives[i].offset = i * SIZE;
        receives[i].len = SIZE;
    }
    TRY(qp_supervised_listen(device, pd, NULL, NULL, NULL, 0, receives, RECEIVES, address, &link));
    TRY(qp_supervised_address(link, where, sizeof where, NULL));
    fprintf(stderr, "waiting: %s\n", where);
    for (;;) {
        qp_supervised_event event = next(link);

        if (event.kind != QP_SUPERVISED_RECEIVED) continue;
        if (numbers[event.context] == bye) break;
        got++;
        /* While there is no connection nothing is posted: the next life begins with all of them. */
        if (qp_supervised_post_recv(link, &receives[event.context]) && qp_last_code() != QP_CODE_DOWN) TRY(1);
    }
    printf("%" PRIu64 " messages\n", got);
    TRY(qp_supervised_destroy(link) || qp_mr_destroy(mr));
    return 0;
}

/* What became of the messages of a life. */
struct life { unsigned posted, done, not_done, unknown; };

/* Posts one; 0 where there is no connection. */
static int post(qp_supervised *link, uint64_t number)
{
    qp_send send;

    memset(&send, 0, sizeof send);
    send.op = QP_SEND;
    send.context = number;
    if (qp_supervised_post_inline(link, &send, (const uint8_t *)&number, SIZE) == 0) return 1;
    if (qp_last_code() != QP_CODE_DOWN) TRY(1);
    return 0;
}

static int ask(qp_device *device, qp_pd *pd, const char *address, unsigned lives)
{
    static qp_pair_attr attr;
    struct life now = {0, 0, 0, 0};
    qp_supervised *link;
    uint64_t number = 0;
    unsigned life = 1, under_way = 0, all = 0;

    attr.inline_data = SIZE;
    attr.send_depth = 2 * WINDOW;
    TRY(qp_supervised_connect(device, pd, &attr, NULL, NULL, 0, NULL, 0, address, &link));
    while (life < lives || now.done < 100) {
        qp_supervised_event event;

        while (under_way < WINDOW && post(link, number)) number++, under_way++, now.posted++;
        event = next(link);
        if (event.kind == QP_SUPERVISED_DONE) {
            under_way--;
            if (event.fate == QP_FATE_DONE) now.done++;
            if (event.fate == QP_FATE_NOT_DONE) now.not_done++;
            if (event.fate == QP_FATE_UNKNOWN) now.unknown++, printf("  message %" PRIu64 " is at the server or not\n", event.context);
        } else if (event.kind == QP_SUPERVISED_ENDED) {
            printf("life %u: %u done, %u not done, %u unknown, of %u\n", life, now.done, now.not_done, now.unknown, now.posted);
            if (now.not_done != event.not_done || now.unknown != event.unknown || under_way)
                return fprintf(stderr, "the report says something else\n"), 1;
            all += now.posted;
            memset(&now, 0, sizeof now);
            life++;
        } else if (event.kind == QP_SUPERVISED_RECOVERED) {
            printf("life %u begins\n", life), fflush(stdout);
        }
    }
    while (under_way) under_way -= next(link).kind == QP_SUPERVISED_DONE;
    post(link, bye);
    while (next(link).kind != QP_SUPERVISED_DONE) {}
    printf("%u messages in %u lives\n", all + now.posted, life);
    TRY(qp_supervised_destroy(link));
    return 0;
}

int main(int argc, char **argv)
{
    qp_device *device;
    qp_pd *pd;
    int status;

    if (argc < 2) return fprintf(stderr, "usage: %s listen [ADDRESS] | HOST:PORT [LIVES]\n", argv[0]), 2;
    device = open_device();
    TRY(qp_pd_create(device, &pd));
    if (!strcmp(argv[1], "listen"))
        status = serve(device, pd, argc > 2 ? argv[2] : "127.0.0.1:0");
    else
        status = ask(device, pd, argv[1], argc > 2 ? (unsigned)atoi(argv[2]) : 1);
    TRY(qp_pd_destroy(pd) || qp_device_destroy(device));
    return status;
}
