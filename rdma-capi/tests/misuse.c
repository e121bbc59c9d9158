/* Wrong uses of libqp: each is refused with its documented errno and code, and harms nothing: in the end the objects that all
 * of it was tried on work, and can be destroyed. Runs plain, under AddressSanitizer and under valgrind.
 *
 *   misuse [-v]    -v prints every sentence
 */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <pthread.h>
#include <qp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int cases, wrong, verbose;

/* A call that must be refused so, and one that must succeed. */
#define WRONG(call, errno_wanted, code_wanted) expect(__FILE__, __LINE__, #call, (errno = 0, (call)), errno_wanted, code_wanted)
#define RIGHT(call) expect(__FILE__, __LINE__, #call, (call), 0, QP_CODE_NONE)
/* What must be so. */
#define THAT(condition) expect(__FILE__, __LINE__, #condition, !(condition), 0, QP_CODE_NONE)

/* A list of sends of which none is posted: `n` says so, whatever it said before. */
#define NONE_POSTED(pair, list, count, errno_wanted, code_wanted) \
    do { \
        n = 9; \
        WRONG(qp_post_sends(pair, list, count, &n), errno_wanted, code_wanted); \
        THAT(n == 0); \
    } while (0)

static void expect(const char *file, int line, const char *call, int got, int errno_wanted, enum qp_code code_wanted)
{
    int bad;

    if (errno_wanted == 0) {
        bad = got != 0;
    } else {
        cases++;
        bad = got != errno_wanted || errno != errno_wanted || qp_last_code() != code_wanted || !*qp_last_error();
        if (verbose) printf("%s\n    %s: %s\n", call, strerror(got), qp_last_error());
    }
    if (!bad) return;
    wrong++;
    printf("%s:%d: %s\n    gave %d (%s), errno %d, %s; wanted %d (%s), %s\n    %s\n", file, line, call, got, strerror(got),
           errno, qp_code_name((int)qp_last_code()), errno_wanted, strerror(errno_wanted), qp_code_name((int)code_wanted),
           qp_last_error());
    /* Without what must work the rest means nothing. */
    if (errno_wanted == 0) exit(1);
}

/* What all of it is tried on. */
static qp_device *device, *other_device;
static qp_pd *pd, *other_pd;
static qp_cq *cq, *event_cq;
static qp_mr *mr, *other_mr;
static qp_srq *srq;
static qp_pair *a, *b, *ud, *uc;
static qp_endpoint of_a, of_b;
static char memory[8192];

static qp_pair_attr attr_of(qp_cq *where)
{
    qp_pair_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.send_cq = where;
    return attr;
}

static qp_send send_of(uint32_t op)
{
    qp_send send;

    memset(&send, 0, sizeof send);
    send.op = op;
    send.mr = mr;
    send.len = 8;
    return send;
}

static qp_recv recv_of(qp_mr *where)
{
    qp_recv recv;

    memset(&recv, 0, sizeof recv);
    recv.mr = where;
    recv.len = 64;
    return recv;
}

static void set_up(void)
{
    qp_pair_attr attr;

    RIGHT(qp_soft_open("PORTS = 1\n# a comment\n", &device));
    RIGHT(qp_soft_open(NULL, &other_device));
    RIGHT(qp_pd_create(device, &pd));
    RIGHT(qp_pd_create(device, &other_pd));
    RIGHT(qp_cq_create(device, 256, 0, &cq));
    RIGHT(qp_cq_create(device, 64, 1, &event_cq));
    RIGHT(qp_mr_register(pd, memory, sizeof memory, 0xf, &mr));
    RIGHT(qp_mr_create(other_pd, 4096, 1, &other_mr));
    RIGHT(qp_srq_create(pd, 16, 1, &srq));
    attr = attr_of(cq);
    attr.send_depth = attr.recv_depth = 8;
    attr.inline_data = 16;
    RIGHT(qp_pair_create(pd, &attr, &a));
    RIGHT(qp_pair_create(pd, &attr, &b));
    attr.transport = QP_UC;
    RIGHT(qp_pair_create(pd, &attr, &uc));
    attr.transport = QP_UD;
    RIGHT(qp_pair_create(pd, &attr, &ud));
    RIGHT(qp_pair_endpoint(a, device, 1, -1, NULL, &of_a));
    RIGHT(qp_pair_endpoint(b, device, 1, -1, NULL, &of_b));
}

/* Any pointer to another type: what a cast in a program does by mistake. */
#define AS(type, handle) ((type *)(void *)(handle))

static void null_pointers(void)
{
    qp_pair_attr attr = attr_of(cq);
    qp_send send = send_of(QP_SEND);
    qp_recv recv = recv_of(mr);
    qp_completion done;
    qp_exchange *exchange;
    qp_pair *pair;
    qp_mr *region;
    qp_pd *domain;
    size_t n;

    WRONG(qp_pd_create(NULL, &domain), EINVAL, QP_CODE_NULL);
    WRONG(qp_pd_create(device, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_mr_create(NULL, 4096, 1, &region), EINVAL, QP_CODE_NULL);
    WRONG(qp_mr_create(pd, 4096, 1, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_mr_register(pd, NULL, 4096, 1, &region), EINVAL, QP_CODE_NULL);
    WRONG(qp_mr_register_dmabuf(NULL, 0, 0, 4096, 0, 1, &region), EINVAL, QP_CODE_NULL);
    WRONG(qp_mr_register_dmabuf(pd, 0, 0, 4096, 0, 1, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_mr_register_dmabuf(pd, -1, 0, 4096, 0, 1, &region), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mr_register_dmabuf(pd, 0, 0, 4096, 0, 1 << 30, &region), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mr_register_dmabuf(pd, 0, 0, 4096, 0, 1, &region), EOPNOTSUPP, QP_CODE_SYSTEM); /* the software device has none */
    WRONG(qp_mr_read(mr, 0, NULL, 8), EINVAL, QP_CODE_NULL);
    WRONG(qp_cq_create(device, 16, 0, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_pair_create(pd, NULL, &pair), EINVAL, QP_CODE_NULL);
    WRONG(qp_pair_create(pd, &attr, NULL), EINVAL, QP_CODE_NULL);
    attr.send_cq = NULL;
    WRONG(qp_pair_create(pd, &attr, &pair), EINVAL, QP_CODE_NULL);
    WRONG(qp_post_send(NULL, &send), EINVAL, QP_CODE_NULL);
    WRONG(qp_post_send(a, NULL), EINVAL, QP_CODE_NULL);
    send.mr = NULL;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_NULL);
    WRONG(qp_post_sends(a, NULL, 2, &n), EINVAL, QP_CODE_NULL);
    WRONG(qp_post_inline(a, &send, NULL, 4), EINVAL, QP_CODE_NULL);
    WRONG(qp_post_recv(NULL, &recv), EINVAL, QP_CODE_NULL);
    recv.mr = NULL;
    WRONG(qp_post_recv(a, &recv), EINVAL, QP_CODE_NULL);
    WRONG(qp_post_srq_recv(srq, &recv), EINVAL, QP_CODE_NULL);
    WRONG(qp_poll(NULL, &done, 1, &n), EINVAL, QP_CODE_NULL);
    WRONG(qp_poll(cq, NULL, 4, &n), EINVAL, QP_CODE_NULL);
    WRONG(qp_poll(cq, &done, 1, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_modify(NULL, NULL, 0), EINVAL, QP_CODE_NULL);
    WRONG(qp_state(NULL, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_endpoint_of(NULL, 1, 0, &of_a), EINVAL, QP_CODE_NULL);
    WRONG(qp_connect_begin(NULL, &of_a, &of_b, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_ref_create(NULL, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_pair_endpoint(a, NULL, 1, -1, NULL, &of_a), EINVAL, QP_CODE_NULL);
    WRONG(qp_exchange_tcp(NULL, 100, &exchange), EINVAL, QP_CODE_NULL);
    WRONG(qp_exchange_from(NULL, NULL, NULL, &exchange), EINVAL, QP_CODE_NULL);
    WRONG(qp_timing_default(NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_device_destroy(NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_mr_destroy(NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_pair_destroy(NULL), EINVAL, QP_CODE_NULL);
}

static void wrong_types(void)
{
    qp_pair_attr attr = attr_of(cq);
    qp_send send = send_of(QP_SEND);
    qp_completion done;
    qp_pair *pair;
    qp_pd *domain;
    qp_mr *region;
    size_t n, count;
    uint32_t key;
    int here = 0;
    void *heap = malloc(64);
    /* Numbers that are near to what a handle is made of. */
    const uint64_t odd[] = {1, 63, 64, 1 << 22, (uint64_t)1 << 24, (uint64_t)3 << 24, (uint64_t)64 << 24 | 64, INT64_MAX,
                            UINT64_MAX - 63};

    WRONG(qp_pd_create(AS(qp_device, pd), &domain), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_mr_create(AS(qp_pd, cq), 4096, 1, &region), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_poll(AS(qp_cq, device), &done, 1, &n), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_post_send(AS(qp_pair, mr), &send), EBADF, QP_CODE_WRONG_HANDLE);
    send.mr = AS(qp_mr, a);
    WRONG(qp_post_send(a, &send), EBADF, QP_CODE_WRONG_HANDLE);
    attr.send_cq = AS(qp_cq, srq);
    WRONG(qp_pair_create(pd, &attr, &pair), EBADF, QP_CODE_WRONG_HANDLE);
    attr = attr_of(cq);
    attr.srq = AS(qp_srq, cq);
    WRONG(qp_pair_create(pd, &attr, &pair), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_pair_destroy(AS(qp_pair, cq)), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_mr_destroy(AS(qp_mr, pd)), EBADF, QP_CODE_WRONG_HANDLE);

    WRONG(qp_pd_create(AS(qp_device, &here), &domain), EBADF, QP_CODE_NO_HANDLE);
    WRONG(qp_pair_destroy(AS(qp_pair, heap)), EBADF, QP_CODE_NO_HANDLE);
    WRONG(qp_cq_destroy(AS(qp_cq, memory)), EBADF, QP_CODE_NO_HANDLE);
    WRONG(qp_poll(AS(qp_cq, (uintptr_t)1), &done, 1, &n), EBADF, QP_CODE_NO_HANDLE);
    WRONG(qp_mr_destroy(AS(qp_mr, UINTPTR_MAX)), EBADF, QP_CODE_NO_HANDLE);
    send.mr = AS(qp_mr, memory);
    WRONG(qp_post_send(a, &send), EBADF, QP_CODE_NO_HANDLE);
    for (n = 0; n < sizeof odd / sizeof *odd; n++) {
        WRONG(qp_poll(AS(qp_cq, odd[n]), &done, 1, &count), EBADF, QP_CODE_NO_HANDLE);
        WRONG(qp_mr_lkey(AS(qp_mr, odd[n]), &key), EBADF, QP_CODE_NO_HANDLE);
        send.mr = mr;
        WRONG(qp_post_send(AS(qp_pair, odd[n]), &send), EBADF, QP_CODE_NO_HANDLE);
        send.mr = AS(qp_mr, odd[n]);
        WRONG(qp_post_send(a, &send), EBADF, QP_CODE_NO_HANDLE);
    }
    free(heap);
}

static void destroyed(void)
{
    qp_pair_attr attr = attr_of(cq);
    qp_send send = send_of(QP_SEND);
    qp_recv recv;
    qp_completion done;
    qp_device *d;
    qp_pd *p;
    qp_cq *c;
    qp_mr *m;
    qp_srq *s;
    qp_pair *q;
    qp_listener *l;
    size_t n;
    int i;

    RIGHT(qp_soft_open(NULL, &d));
    RIGHT(qp_pd_create(d, &p));
    RIGHT(qp_cq_create(d, 64, 0, &c));
    RIGHT(qp_mr_create(p, 4096, 1, &m));
    RIGHT(qp_srq_create(p, 4, 1, &s));
    attr.send_cq = c;
    RIGHT(qp_pair_create(p, &attr, &q));
    RIGHT(qp_listen("127.0.0.1:0", &l));

    RIGHT(qp_pair_destroy(q));
    WRONG(qp_post_send(q, &send), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_pair_reset(q), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_pair_destroy(q), EBADF, QP_CODE_DESTROYED);
    RIGHT(qp_mr_destroy(m));
    send.mr = m;
    WRONG(qp_post_send(a, &send), EBADF, QP_CODE_DESTROYED);
    recv = recv_of(m);
    WRONG(qp_post_recv(a, &recv), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_post_srq_recv(srq, &recv), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_mr_destroy(m), EBADF, QP_CODE_DESTROYED);
    RIGHT(qp_srq_destroy(s));
    WRONG(qp_srq_destroy(s), EBADF, QP_CODE_DESTROYED);
    RIGHT(qp_cq_destroy(c));
    WRONG(qp_poll(c, &done, 1, &n), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_pair_create(p, &attr, &q), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_cq_destroy(c), EBADF, QP_CODE_DESTROYED);
    RIGHT(qp_pd_destroy(p));
    WRONG(qp_mr_create(p, 4096, 1, &m), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_pd_destroy(p), EBADF, QP_CODE_DESTROYED);
    RIGHT(qp_device_destroy(d));
    WRONG(qp_pd_create(d, &p), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_device_destroy(d), EBADF, QP_CODE_DESTROYED);
    RIGHT(qp_listener_destroy(l));
    WRONG(qp_listener_destroy(l), EBADF, QP_CODE_DESTROYED);

    /* Its slot is taken again, and it is recognised all the same. */
    for (i = 0; i < 3000; i++) {
        qp_pd *again;

        if (qp_pd_create(device, &again) || qp_pd_destroy(again)) break;
    }
    THAT(i == 3000);
    WRONG(qp_pd_destroy(p), EBADF, QP_CODE_DESTROYED);
}

static void numbers(void)
{
    qp_pair_attr attr;
    qp_send send;
    qp_timing timing;
    qp_path path;
    qp_endpoint here;
    qp_account account;
    qp_completion done;
    qp_range ranges[40];
    qp_pair *pair;
    qp_mr *region;
    qp_cq *queue;
    qp_srq *shared;
    char text[8];
    int i;

    WRONG(qp_mr_create(pd, 0, 1, &region), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mr_create(pd, 4096, 1 << 30, &region), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mr_create(pd, (size_t)1 << 62, 1, &region), ENOMEM, QP_CODE_SYSTEM);
    WRONG(qp_mr_register(pd, memory, SIZE_MAX, 1, &region), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mr_write(mr, sizeof memory - 3, (const uint8_t *)"four", 4), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mr_write(mr, SIZE_MAX, (const uint8_t *)"four", 4), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mr_read(mr, 0, (uint8_t *)text, SIZE_MAX), EINVAL, QP_CODE_RANGE);
    WRONG(qp_cq_create(device, 0, 0, &queue), EINVAL, QP_CODE_LIMIT);
    WRONG(qp_cq_create(device, UINT32_MAX, 0, &queue), EINVAL, QP_CODE_LIMIT);
    WRONG(qp_srq_create(pd, UINT32_MAX, 1, &shared), EINVAL, QP_CODE_LIMIT);
    WRONG(qp_wait(cq, 10, &done, 0, NULL), EINVAL, QP_CODE_RANGE);

    attr = attr_of(cq);
    attr.transport = 7;
    WRONG(qp_pair_create(pd, &attr, &pair), EINVAL, QP_CODE_RANGE);
    attr = attr_of(cq);
    attr.flags = 0x100;
    WRONG(qp_pair_create(pd, &attr, &pair), EINVAL, QP_CODE_RANGE);
    attr.flags = QP_BLOCK_SELF_MCAST;
    WRONG(qp_pair_create(pd, &attr, &pair), EINVAL, QP_CODE_RANGE);
    attr = attr_of(cq);
    attr.send_depth = UINT32_MAX;
    WRONG(qp_pair_create(pd, &attr, &pair), EINVAL, QP_CODE_LIMIT);
    attr.send_depth = 4096;
    WRONG(qp_pair_create(pd, &attr, &pair), ENOMEM, QP_CODE_LIMIT);

    WRONG(qp_pair_endpoint(a, device, 0, -1, NULL, &here), ENODEV, QP_CODE_NOT_FOUND);
    WRONG(qp_pair_endpoint(a, device, 99, -1, NULL, &here), ENODEV, QP_CODE_NOT_FOUND);
    WRONG(qp_pair_endpoint(a, device, -5, -1, NULL, &here), EINVAL, QP_CODE_RANGE);
    WRONG(qp_pair_endpoint(a, device, 256, -1, NULL, &here), EINVAL, QP_CODE_RANGE);
    WRONG(qp_pair_endpoint(a, device, 1, 200, NULL, &here), ENODATA, QP_CODE_NOT_FOUND);
    memset(&path, 0, sizeof path);
    path.service_level = 16;
    WRONG(qp_pair_endpoint(a, device, 1, -1, &path, &here), EINVAL, QP_CODE_RANGE);
    memset(&path, 0, sizeof path);
    path.flow_label = 1 << 20;
    WRONG(qp_pair_endpoint(a, device, 1, -1, &path, &here), EINVAL, QP_CODE_RANGE);
    memset(&path, 0, sizeof path);
    path.reserved = 1;
    WRONG(qp_pair_endpoint(a, device, 1, -1, &path, &here), EINVAL, QP_CODE_RANGE);
    RIGHT(qp_timing_default(&timing));
    timing.timeout = 32;
    WRONG(qp_pair_connect_begin(a, &of_b, &timing), EINVAL, QP_CODE_RANGE);
    RIGHT(qp_timing_default(&timing));
    timing.retry_cnt = 8;
    WRONG(qp_pair_connect_begin(a, &of_b, &timing), EINVAL, QP_CODE_RANGE);
    WRONG(qp_pair_account(a, 7, &account), EINVAL, QP_CODE_RANGE);
    WRONG(qp_set_log(9, NULL, NULL), EINVAL, QP_CODE_RANGE);

    send = send_of(QP_SEND);
    send.offset = sizeof memory - 4;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_RANGE);
    send = send_of(QP_SEND);
    send.len = SIZE_MAX;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_RANGE);
    send = send_of(99);
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_RANGE);
    send = send_of(QP_RECV);
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_RANGE);
    send = send_of(QP_SEND);
    send.flags = 0x4000;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_RANGE);
    send = send_of(QP_SEND);
    for (i = 0; i < 40; i++) ranges[i].mr = mr, ranges[i].offset = 0, ranges[i].len = 8;
    WRONG(qp_post_send_ranges(a, &send, ranges, 40), EINVAL, QP_CODE_RANGE);
    WRONG(qp_post_send_ranges(a, &send, ranges, 2), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_post_send_ranges(a, &send, ranges, SIZE_MAX), EINVAL, QP_CODE_RANGE);
    WRONG(qp_post_inline(a, &send, (const uint8_t *)memory, 17), EINVAL, QP_CODE_REFUSED);
}

static void texts(void)
{
    qp_device *d;
    qp_exchange *exchange;
    qp_listener *listener;
    char text[16];
    size_t needed;

    /* Why depends on the machine: no libibverbs, no kernel module, no such device. */
    THAT(qp_device_open("nonesuch", &d) > 0 && errno > 0 && *qp_last_error());
    WRONG(qp_soft_open("ports\n", &d), EINVAL, QP_CODE_TEXT);
    WRONG(qp_soft_open("ports = many", &d), EINVAL, QP_CODE_TEXT);
    WRONG(qp_soft_open("portz = 2", &d), EINVAL, QP_CODE_TEXT);
    WRONG(qp_soft_open("\xff\xfe", &d), EINVAL, QP_CODE_TEXT);
    WRONG(qp_listen("\xc3(", &listener), EINVAL, QP_CODE_TEXT);
    WRONG(qp_exchange_tcp("no port", 100, &exchange), EIO, QP_CODE_SYSTEM);
    WRONG(qp_pair_query_text(a, text, sizeof text, &needed), ENOSPC, QP_CODE_SHORT_BUFFER);
    THAT(strlen(text) == sizeof text - 1 && needed > sizeof text);
    WRONG(qp_pair_query_json(a, NULL, 0, &needed), ENOSPC, QP_CODE_SHORT_BUFFER);
    WRONG(qp_device_name(device, text, 1, NULL), ENOSPC, QP_CODE_SHORT_BUFFER);
    WRONG(qp_device_name(device, NULL, 16, NULL), EINVAL, QP_CODE_NULL);
}

static int swap_fails(void *context, const void *mine, size_t len, void *theirs, size_t room, size_t *their_len)
{
    (void)mine, (void)len, (void)theirs;
    *their_len = room + 1;
    return *(int *)context;
}

static int barrier_fails(void *context)
{
    return -*(int *)context;
}

static size_t swapped;

static int swap_notes(void *context, const void *mine, size_t len, void *theirs, size_t room, size_t *their_len)
{
    (void)mine, (void)theirs, (void)room;
    swapped = len;
    *their_len = 0;
    return *(int *)context;
}

static void *listen_later(void *address)
{
    qp_listener *listener;
    qp_exchange *peer;

    usleep(200000);
    RIGHT(qp_listen(address, &listener));
    RIGHT(qp_accept(listener, 10000, &peer));
    RIGHT(qp_exchange_destroy(peer));
    RIGHT(qp_listener_destroy(listener));
    return NULL;
}

static void exchanges(void)
{
    static uint8_t bytes[65537];
    qp_exchange *exchange, *one, *two;
    qp_listener *listener;
    qp_endpoint there;
    pthread_t later;
    char address[64];
    uint8_t byte;
    size_t n;
    int returned = 7;

    RIGHT(qp_exchange_from(swap_fails, barrier_fails, &returned, &exchange));
    WRONG(qp_exchange_swap(exchange, &of_a, NULL, 0, &there, NULL, 0, NULL), 7, QP_CODE_CALLBACK);
    WRONG(qp_exchange_barrier(exchange), EIO, QP_CODE_CALLBACK);
    returned = 0;
    WRONG(qp_exchange_swap_bytes(exchange, (const uint8_t *)"x", 1, &byte, 1, &n), EINVAL, QP_CODE_RANGE);
    RIGHT(qp_exchange_destroy(exchange));
    WRONG(qp_exchange_barrier(exchange), EBADF, QP_CODE_DESTROYED);
    /* The program's function is never given more than its type says. */
    RIGHT(qp_exchange_from(swap_notes, barrier_fails, &returned, &exchange));
    WRONG(qp_exchange_swap_bytes(exchange, bytes, sizeof bytes, &byte, 1, &n), EINVAL, QP_CODE_RANGE);
    THAT(swapped == 0);
    RIGHT(qp_exchange_swap_bytes(exchange, bytes, sizeof bytes - 1, &byte, 1, &n));
    THAT(swapped == 65536 && n == 0);
    RIGHT(qp_exchange_destroy(exchange));

    RIGHT(qp_listen("127.0.0.1:0", &listener));
    WRONG(qp_accept(listener, 10, &exchange), ETIMEDOUT, QP_CODE_TIMED_OUT);
    RIGHT(qp_listener_address(listener, address, sizeof address, NULL));
    WRONG(qp_listen(address, &listener), EADDRINUSE, QP_CODE_SYSTEM);
    RIGHT(qp_exchange_tcp(address, 200, &one));
    RIGHT(qp_accept(listener, 200, &two));
    WRONG(qp_exchange_barrier(one), ETIMEDOUT, QP_CODE_TIMED_OUT);
    RIGHT(qp_exchange_destroy(two));
    WRONG(qp_exchange_barrier(one), ECONNRESET, QP_CODE_PEER);
    RIGHT(qp_exchange_destroy(one));
    RIGHT(qp_listener_destroy(listener));
    WRONG(qp_exchange_tcp(address, 100, &exchange), ECONNREFUSED, QP_CODE_SYSTEM);
    THAT(!pthread_create(&later, NULL, listen_later, address));
    RIGHT(qp_exchange_tcp(address, 10000, &one));
    THAT(!pthread_join(later, NULL));
    RIGHT(qp_exchange_destroy(one));
    WRONG(qp_exchange_shm("qp-misuse-nobody-comes", 50, &exchange), ETIMEDOUT, QP_CODE_TIMED_OUT);
}

static void states(void)
{
    qp_send send = send_of(QP_SEND);
    qp_recv recv = recv_of(mr);
    qp_endpoint garbage;
    qp_completion done;
    qp_event event;
    int i, ready;

    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_STATE);
    WRONG(qp_post_recv(a, &recv), EINVAL, QP_CODE_STATE);
    WRONG(qp_pair_init(uc), EINVAL, QP_CODE_STATE);
    WRONG(qp_pair_connect_finish(a, NULL), EINVAL, QP_CODE_STATE);
    memset(&garbage, 0x55, sizeof garbage);
    WRONG(qp_pair_connect_begin(a, &garbage, NULL), EPROTO, QP_CODE_RECORD);
    WRONG(qp_wait(cq, 10, &done, 1, NULL), ETIMEDOUT, QP_CODE_TIMED_OUT);
    WRONG(qp_device_event(device, 10, &event), ETIMEDOUT, QP_CODE_TIMED_OUT);
    WRONG(qp_cq_fd(cq, &ready), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    WRONG(qp_cq_arm(cq, &ready), EOPNOTSUPP, QP_CODE_UNSUPPORTED);

    RIGHT(qp_pair_connect_begin(a, &of_b, NULL));
    RIGHT(qp_pair_connect_begin(b, &of_a, NULL));
    WRONG(qp_pair_connect_begin(a, &of_b, NULL), EINVAL, QP_CODE_STATE);
    RIGHT(qp_pair_connect_finish(a, NULL));
    RIGHT(qp_pair_connect_finish(b, NULL));
    WRONG(qp_pair_connect_finish(a, NULL), EINVAL, QP_CODE_STATE);

    for (i = 0; i < 8; i++) RIGHT(qp_post_recv(a, &recv));
    WRONG(qp_post_recv(a, &recv), ENOMEM, QP_CODE_FULL);
    send.op = QP_WRITE;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_REFUSED);
    send.op = QP_FETCH_AND_ADD;
    RIGHT(qp_mr_region(mr, &send.remote));
    send.len = 4;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_REFUSED);
    send.len = 8;
    send.remote_offset = 4;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_REFUSED);
    send.op = QP_READ;
    send.flags = QP_INLINE;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_REFUSED);
    send = send_of(QP_READ);
    WRONG(qp_post_send(uc, &send), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    send = send_of(QP_SEND_WITH_INV);
    WRONG(qp_post_send(uc, &send), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    send = send_of(QP_WRITE);
    WRONG(qp_post_send(ud, &send), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
}

static void datagrams(void)
{
    qp_send send = send_of(QP_SEND);
    qp_recv recv = recv_of(mr);
    qp_completion done;
    qp_endpoint of_ud;
    qp_dest *dest;

    WRONG(qp_pair_init(ud), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    WRONG(qp_pair_activate(a, device, 1, -1, 5, NULL, NULL), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    WRONG(qp_dest_create(ud, &of_a, &dest), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_dest_group(ud, "239.1.2.3", 0, &dest), EINVAL, QP_CODE_STATE);
    WRONG(qp_pair_activate(ud, device, 1, -1, 0x80000000u, NULL, NULL), EINVAL, QP_CODE_RANGE);
    RIGHT(qp_pair_activate(ud, device, 1, -1, 5, NULL, &of_ud));
    WRONG(qp_pair_connect_begin(uc, &of_ud, NULL), EINVAL, QP_CODE_STATE);
    WRONG(qp_post_send(ud, &send), EINVAL, QP_CODE_NULL);
    recv.len = 39;
    WRONG(qp_post_recv(ud, &recv), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_dest_group(ud, "somewhere", 0, &dest), EINVAL, QP_CODE_TEXT);
    WRONG(qp_dest_group(ud, "10.1.2.3", 0, &dest), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_pair_attach(ud, "10.1.2.3", 0), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_pair_attach(a, "239.1.2.3", 0), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    RIGHT(qp_pair_attach(ud, "239.1.2.3", 0));
    WRONG(qp_pair_attach(ud, "239.1.2.3", 0), EINVAL, QP_CODE_REFUSED);
    RIGHT(qp_pair_detach(ud, "239.1.2.3"));
    WRONG(qp_pair_detach(ud, "239.1.2.3"), EINVAL, QP_CODE_REFUSED);
    memset(&done, 0, sizeof done);
    WRONG(qp_dest_reply(ud, &done, mr, 0, &dest), EINVAL, QP_CODE_REFUSED);
    RIGHT(qp_dest_create(ud, &of_ud, &dest));
    send.to = dest;
    send.len = 8192;
    WRONG(qp_post_send(ud, &send), EINVAL, QP_CODE_REFUSED);
    RIGHT(qp_dest_destroy(dest));
    send.len = 8;
    WRONG(qp_post_send(ud, &send), EBADF, QP_CODE_DESTROYED);
}

static void in_use(void)
{
    qp_pair_attr attr = attr_of(cq);
    qp_pair *pair;

    WRONG(qp_mr_destroy(mr), EBUSY, QP_CODE_IN_USE); /* a has receives on it */
    WRONG(qp_cq_destroy(cq), EBUSY, QP_CODE_IN_USE);
    WRONG(qp_pd_destroy(pd), EBUSY, QP_CODE_IN_USE);
    WRONG(qp_device_destroy(device), EBUSY, QP_CODE_IN_USE);
    attr.srq = srq;
    RIGHT(qp_pair_create(pd, &attr, &pair));
    WRONG(qp_srq_destroy(srq), EBUSY, QP_CODE_IN_USE);
    RIGHT(qp_pair_destroy(pair));
}

static void mismatches(void)
{
    qp_pair_attr attr = attr_of(cq);
    qp_send send = send_of(QP_SEND);
    qp_recv recv = recv_of(other_mr);
    qp_pair *pair;
    qp_pd *far_pd;

    RIGHT(qp_pd_create(other_device, &far_pd));
    WRONG(qp_pair_create(far_pd, &attr, &pair), EINVAL, QP_CODE_MISMATCH);
    RIGHT(qp_pd_destroy(far_pd));
    attr.srq = srq;
    WRONG(qp_pair_create(other_pd, &attr, &pair), EINVAL, QP_CODE_MISMATCH);
    send.mr = other_mr;
    WRONG(qp_post_send(a, &send), EINVAL, QP_CODE_MISMATCH);
    WRONG(qp_post_recv(b, &recv), EINVAL, QP_CODE_MISMATCH);
    WRONG(qp_post_srq_recv(srq, &recv), EINVAL, QP_CODE_MISMATCH);
}

/* XRC, and what it is not. Then a message goes from an initiator to the SRQ that it names. */
static void xrc(void)
{
    qp_pair_attr attr = attr_of(cq);
    qp_send send = send_of(QP_SEND);
    qp_recv recv = recv_of(mr);
    qp_xrc_domain *domain, *other;
    qp_xrc_target *target;
    qp_srq *shared;
    qp_pair *initiator;
    qp_endpoint here, there;
    qp_completion done;
    qp_needs needs;
    char path[64];
    uint32_t number;
    int i;

    sprintf(path, "/tmp/misuse-%d", (int)getpid());
    WRONG(qp_xrc_domain_open(NULL, NULL, 0, &domain), EINVAL, QP_CODE_NULL);
    WRONG(qp_xrc_domain_open(device, path, 7, &domain), EINVAL, QP_CODE_RANGE);
    WRONG(qp_xrc_domain_open(device, path, QP_OPEN_EXISTING, &domain), ENOENT, QP_CODE_SYSTEM);
    RIGHT(qp_xrc_domain_open(device, path, QP_CREATE_NEW, &domain));
    WRONG(qp_xrc_domain_open(device, path, QP_CREATE_NEW, &other), EEXIST, QP_CODE_REFUSED);
    RIGHT(unlink(path));
    WRONG(qp_srq_create_xrc(pd, AS(qp_xrc_domain, pd), cq, 4, 1, &shared), EBADF, QP_CODE_WRONG_HANDLE);
    RIGHT(qp_srq_create_xrc(pd, domain, cq, 4, 1, &shared));
    WRONG(qp_srq_xrc_number(srq, &number), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    RIGHT(qp_srq_xrc_number(shared, &number));
    attr.srq = shared;
    WRONG(qp_pair_create(pd, &attr, &initiator), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    attr.transport = QP_XRC;
    WRONG(qp_pair_create(pd, &attr, &initiator), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    attr.srq = NULL;
    attr.recv_cq = event_cq;
    WRONG(qp_pair_create(pd, &attr, &initiator), EINVAL, QP_CODE_RANGE);
    attr.recv_cq = NULL;
    RIGHT(qp_pair_create(pd, &attr, &initiator));
    RIGHT(qp_xrc_target_create(domain, &target));
    WRONG(qp_xrc_domain_destroy(domain), EBUSY, QP_CODE_IN_USE);
    WRONG(qp_post_recv(initiator, &recv), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    WRONG(qp_post_send(initiator, &send), EINVAL, QP_CODE_RANGE); /* which SRQ? */
    WRONG(qp_xrc_target_connect_finish(target, NULL), EINVAL, QP_CODE_STATE);
    RIGHT(qp_xrc_target_endpoint(target, device, 1, -1, NULL, &there));
    RIGHT(qp_pair_endpoint(initiator, device, 1, -1, NULL, &here));
    RIGHT(qp_pair_connect_begin(initiator, &there, NULL));
    RIGHT(qp_xrc_target_connect_begin(target, &here, NULL));
    RIGHT(qp_pair_connect_finish(initiator, NULL));
    RIGHT(qp_xrc_target_connect_finish(target, NULL));
    RIGHT(qp_xrc_target_report_on(target, cq));
    recv.context = 5;
    recv.offset = 2048;
    RIGHT(qp_post_srq_recv(shared, &recv));
    send.context = 6;
    send.srq_num = number;
    memcpy(memory, "to srq!", 8);
    RIGHT(qp_post_send(initiator, &send));
    for (i = 0; i < 2; i++) {
        RIGHT(qp_wait(cq, 5000, &done, 1, NULL));
        THAT(done.status == 0 && done.context == (done.operation == QP_RECV ? 5u : 6u));
        THAT((done.queue == QP_SRQ) == (done.operation == QP_RECV));
    }
    THAT(!memcmp(memory + 2048, "to srq!", 8));
    WRONG(qp_srq_destroy(AS(qp_srq, target)), EBADF, QP_CODE_WRONG_HANDLE);
    RIGHT(qp_pair_destroy(initiator) || qp_xrc_target_destroy(target) || qp_srq_destroy(shared));
    WRONG(qp_xrc_target_number(target, &number), EBADF, QP_CODE_DESTROYED);
    RIGHT(qp_xrc_domain_destroy(domain));
    WRONG(qp_xrc_domain_destroy(domain), EBADF, QP_CODE_DESTROYED);

    WRONG(qp_plan(0, 4, QP_XRC, 0, 0, &needs), EINVAL, QP_CODE_RANGE);
    WRONG(qp_plan(4, 4, QP_UC, 0, 0, &needs), EINVAL, QP_CODE_RANGE);
    RIGHT(qp_plan(4, 4, QP_XRC, 0, 0, &needs));
    THAT(needs.per_process.qps == 8 && needs.per_process.srqs == 1);
}

/* Makes a process of a mesh on a device like that: what came of it. */
static int mesh_on(const char *profile)
{
    static const uint32_t nodes[2] = {7, 7};
    qp_device *poor;
    qp_mesh *mesh;
    int result, error;

    RIGHT(qp_soft_open(profile, &poor));
    result = qp_mesh_create(poor, 1, -1, NULL, nodes, 2, 0, NULL, NULL, &mesh);
    error = errno;
    RIGHT(qp_device_destroy(poor));
    errno = error;
    return result;
}

/* Two processes of a mesh, which here are values of one. */
static void meshes(void)
{
    static char here[4096], there[4096];
    uint32_t nodes[2] = {7, 7};
    uint8_t cards[2 * QP_MESH_CARD];
    char got[64];
    qp_mesh *zero, *one;
    qp_mesh_event event;
    qp_mr *mine, *offered;
    qp_region theirs;
    uint64_t op = 0;
    int i, ready, limit, result = 0;

    WRONG(qp_mesh_create(device, 1, -1, NULL, NULL, 2, 0, NULL, NULL, &zero), EINVAL, QP_CODE_NULL);
    WRONG(qp_mesh_create(device, 1, -1, NULL, nodes, 2, 5, NULL, NULL, &zero), EINVAL, QP_CODE_RANGE);
    WRONG(qp_mesh_create(device, 9, -1, NULL, nodes, 2, 0, NULL, NULL, &zero), ENODEV, QP_CODE_NOT_FOUND);
    /* What it is made of is refused as elsewhere. */
    WRONG(mesh_on("caps = max_mr=1"), ENOMEM, QP_CODE_SYSTEM);
    WRONG(mesh_on("caps = max_srq=0"), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    WRONG(mesh_on("caps = max_srq_wr=16"), EINVAL, QP_CODE_LIMIT);
    RIGHT(qp_mesh_create(device, 1, -1, NULL, nodes, 2, 0, NULL, NULL, &zero));
    RIGHT(qp_mesh_create(device, 1, -1, NULL, nodes, 2, 1, NULL, NULL, &one));
    WRONG(qp_mesh_send(zero, 1, (const uint8_t *)"x", 1, NULL), EINVAL, QP_CODE_STATE);
    WRONG(qp_mesh_next(zero, 0, &event, NULL, 0), EINVAL, QP_CODE_STATE);
    WRONG(qp_mesh_arm(zero, &ready, &limit), EINVAL, QP_CODE_STATE);
    RIGHT(qp_mesh_offer(zero, here, sizeof here, 0xf, &mine));
    RIGHT(qp_mesh_offer(one, there, sizeof there, 0xf, &offered));
    WRONG(qp_mesh_card(zero, NULL), EINVAL, QP_CODE_NULL);
    memset(cards, 0xff, sizeof cards);
    WRONG(qp_mesh_join(zero, cards), EPROTO, QP_CODE_RECORD);
    RIGHT(qp_mesh_card(zero, cards));
    RIGHT(qp_mesh_card(one, cards + QP_MESH_CARD));
    RIGHT(qp_mesh_join(zero, cards));
    RIGHT(qp_mesh_join(one, cards));
    WRONG(qp_mesh_join(one, cards), EINVAL, QP_CODE_STATE);
    WRONG(qp_mesh_card(zero, cards), EINVAL, QP_CODE_STATE);
    WRONG(qp_mesh_send(zero, 0, (const uint8_t *)"x", 1, NULL), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_mesh_send(zero, 9, (const uint8_t *)"x", 1, NULL), ENODATA, QP_CODE_NOT_FOUND);
    WRONG(qp_mesh_send(zero, 1, (const uint8_t *)memory, 5000, NULL), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_mesh_region(zero, 1, 3, &theirs), ENODATA, QP_CODE_NOT_FOUND);
    WRONG(qp_mesh_send(AS(qp_mesh, pd), 1, NULL, 0, NULL), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_mesh_arm(NULL, &ready, &limit), EINVAL, QP_CODE_NULL);
    WRONG(qp_mesh_arm(zero, NULL, &limit), EINVAL, QP_CODE_NULL);
    WRONG(qp_mesh_arm(zero, &ready, NULL), EINVAL, QP_CODE_NULL);

    RIGHT(qp_mesh_send(zero, 1, (const uint8_t *)"to all", 7, &op));
    for (i = 0; i < 20000 && result != ENOSPC; i++) {
        (void)qp_mesh_next(zero, 0, &event, NULL, 0);
        result = qp_mesh_next(one, 1, &event, (uint8_t *)got, 2);
    }
    WRONG(qp_mesh_next(one, 0, &event, (uint8_t *)got, 2), ENOSPC, QP_CODE_SHORT_BUFFER);
    RIGHT(qp_mesh_arm(one, &ready, &limit));
    THAT(ready == 1 && limit == 0); /* what did not fit is there */
    RIGHT(qp_mesh_next(one, 0, &event, (uint8_t *)got, sizeof got));
    THAT(event.kind == QP_MESH_MESSAGE && event.rank == 0 && event.len == 7 && !memcmp(got, "to all", 7));
    RIGHT(qp_mesh_region(zero, 1, 0, &theirs));
    memcpy(here, "written", 8);
    for (i = 0; i < 20000 && (result = qp_mesh_write(zero, 1, mine, 0, 8, &theirs, 16, &op)) == EAGAIN; i++) {
        (void)qp_mesh_next(zero, 1, &event, NULL, 0);
        (void)qp_mesh_next(one, 0, &event, (uint8_t *)got, sizeof got);
    }
    RIGHT(result);
    for (i = 0, result = 1; i < 20000 && result; i++) {
        result = qp_mesh_next(zero, 1, &event, NULL, 0) || event.kind != QP_MESH_DONE || event.op != op;
        (void)qp_mesh_next(one, 0, &event, (uint8_t *)got, sizeof got);
    }
    THAT(result == 0 && !memcmp(there + 16, "written", 8));
    RIGHT(qp_mesh_destroy(zero) || qp_mesh_destroy(one) || qp_mr_destroy(mine) || qp_mr_destroy(offered));
    WRONG(qp_mesh_destroy(one), EBADF, QP_CODE_DESTROYED);
}

/* Stages a and b: Queue Pairs that the library does not own. Nothing here gets through to the Queue Pair. */
static void raw(void)
{
    struct ibv_qp *qp;
    qp_endpoint here, other;
    qp_ref *ref;
    uint64_t attr[64];
    int ignored;

    memset(attr, 0, sizeof attr);
    RIGHT(qp_pair_raw(uc, &qp));
    WRONG(qp_modify(qp, NULL, 1), EINVAL, QP_CODE_NULL);
    WRONG(qp_check(qp, (const struct ibv_qp_attr *)(const void *)attr, 1 << 30, &ignored), EINVAL, QP_CODE_REFUSED);
    attr[0] = 3; /* RESET to RTS */
    WRONG(qp_modify(qp, (const struct ibv_qp_attr *)(const void *)attr, 1), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_endpoint_of(qp, 1, 200, &here), ENODATA, QP_CODE_NOT_FOUND);
    WRONG(qp_endpoint_of(qp, 9, -1, &here), ENODEV, QP_CODE_NOT_FOUND);
    RIGHT(qp_endpoint_of(qp, 1, -1, &here));
    other = here;
    memset(other.local, 0, sizeof other.local);
    WRONG(qp_connect_begin(qp, &other, &of_b, NULL), EINVAL, QP_CODE_RECORD);
    WRONG(qp_init(qp, &of_a, -1), EINVAL, QP_CODE_REFUSED);
    WRONG(qp_connect_finish(qp, &here, &here, NULL), EINVAL, QP_CODE_REFUSED);
    memset(other.record, 0, sizeof other.record);
    WRONG(qp_connect_begin(qp, &here, &other, NULL), EPROTO, QP_CODE_RECORD);
    WRONG(qp_ref_create(qp, NULL), EINVAL, QP_CODE_NULL);
    RIGHT(qp_ref_create(qp, &ref));
    WRONG(qp_ref_completed(ref, NULL, 3), EINVAL, QP_CODE_NULL);
    WRONG(qp_ref_account(ref, NULL), EINVAL, QP_CODE_NULL);
    RIGHT(qp_ref_destroy(ref));
    WRONG(qp_ref_posted(ref, 1), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_ref_destroy(ref), EBADF, QP_CODE_DESTROYED);
}

static void windows_and_doctor(void)
{
    qp_window *window;
    qp_region region;
    char text[64];
    size_t n;

    WRONG(qp_window_create(NULL, &window), EINVAL, QP_CODE_NULL);
    WRONG(qp_window_create(pd, NULL), EINVAL, QP_CODE_NULL);
    RIGHT(qp_window_create(pd, &window));
    WRONG(qp_window_bind(window, NULL, mr, 0, 8, 2, 0, &region), EINVAL, QP_CODE_NULL);
    WRONG(qp_window_bind(NULL, a, mr, 0, 8, 2, 0, &region), EINVAL, QP_CODE_NULL);
    WRONG(qp_window_bind(window, a, NULL, 0, 8, 2, 0, &region), EINVAL, QP_CODE_NULL);
    WRONG(qp_window_bind(window, a, mr, 0, 8, 2, 0, NULL), EINVAL, QP_CODE_NULL);
    WRONG(qp_window_bind(AS(qp_window, cq), a, mr, 0, 8, 2, 0, &region), EBADF, QP_CODE_WRONG_HANDLE);
    WRONG(qp_window_bind(window, a, mr, sizeof memory, 8, 2, 0, &region), EINVAL, QP_CODE_RANGE);
    WRONG(qp_window_bind(window, a, mr, 0, 8, 1 << 25, 0, &region), EINVAL, QP_CODE_RANGE);
    WRONG(qp_window_bind(window, ud, mr, 0, 8, 2, 0, &region), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    WRONG(qp_window_unbind(window, ud, 0), EOPNOTSUPP, QP_CODE_UNSUPPORTED);
    WRONG(qp_window_unbind(NULL, a, 0), EINVAL, QP_CODE_NULL);
    WRONG(qp_pd_destroy(pd), EBUSY, QP_CODE_IN_USE);
    RIGHT(qp_window_destroy(window));
    WRONG(qp_window_destroy(window), EBADF, QP_CODE_DESTROYED);
    WRONG(qp_window_unbind(window, a, 0), EBADF, QP_CODE_DESTROYED);

    WRONG(qp_pair_lint(NULL, 0, text, sizeof text, &n), EINVAL, QP_CODE_NULL);
    WRONG(qp_pair_lint(a, 0, NULL, 8, &n), EINVAL, QP_CODE_NULL);
    WRONG(qp_doctor(NULL, NULL, 0, 0, text, sizeof text, &n), EINVAL, QP_CODE_NULL);
    WRONG(qp_doctor("{}", NULL, 0, 0, text, sizeof text, &n), EINVAL, QP_CODE_TEXT);
    WRONG(qp_doctor("not json", NULL, 0, 0, text, sizeof text, &n), EINVAL, QP_CODE_TEXT);
    WRONG(qp_doctor("\xff", NULL, 0, 0, text, sizeof text, &n), EINVAL, QP_CODE_TEXT);
}

#include "misuse_links.h"
#include "misuse_datagrams.h"
#include "misuse_shared.h"
#include "misuse_xrc.h"

static void logs(void *context, int level, const char *line)
{
    int *seen = (int *)context;

    (void)level, (void)line;
    if ((*seen)++) return;
    WRONG(qp_set_log(0, NULL, NULL), EDEADLK, QP_CODE_REENTERED);
    WRONG(qp_pair_reset(uc), EDEADLK, QP_CODE_REENTERED);
}

static void drained(void *context, const qp_completion *completion)
{
    qp_recv recv = recv_of(mr);
    size_t n;
    qp_completion done;

    (void)completion;
    if ((*(int *)context)++) return;
    WRONG(qp_post_recv(a, &recv), EBUSY, QP_CODE_OCCUPIED);
    WRONG(qp_poll(cq, &done, 1, &n), EBUSY, QP_CODE_OCCUPIED);
    WRONG(qp_pair_destroy(a), EBUSY, QP_CODE_OCCUPIED);
}

static void *waits(void *done)
{
    qp_completion completion;

    *(int *)done = qp_wait(event_cq, 1000, &completion, 1, NULL);
    return NULL;
}

static void callbacks_and_threads(void)
{
    pthread_t thread;
    qp_completion done;
    size_t n;
    int seen = 0, handed_over = 0, waited = 0;

    RIGHT(qp_set_log(QP_LOG_TRACE, logs, &seen));
    RIGHT(qp_pair_drain(a, 5000, drained, &handed_over, NULL));
    RIGHT(qp_set_log(QP_LOG_NONE, NULL, NULL));
    THAT(seen > 0);
    THAT(handed_over == 8);

    RIGHT(pthread_create(&thread, NULL, waits, &waited));
    usleep(300000);
    WRONG(qp_poll(event_cq, &done, 1, &n), EBUSY, QP_CODE_OCCUPIED);
    WRONG(qp_cq_destroy(event_cq), EBUSY, QP_CODE_OCCUPIED);
    RIGHT(pthread_join(thread, NULL));
    THAT(waited == ETIMEDOUT);
}

static qp_mr *fleeting;
static int enough;

/* Posts on a region that another thread destroys meanwhile: refused, because it is being destroyed, or is, or because of the
 * state. */
static void *posts(void *unexpected)
{
    qp_send send = send_of(QP_SEND);

    while (!__atomic_load_n(&enough, __ATOMIC_ACQUIRE)) {
        enum qp_code code;

        send.mr = __atomic_load_n(&fleeting, __ATOMIC_ACQUIRE);
        if (qp_post_send(uc, &send) == 0) *(int *)unexpected = -1;
        code = qp_last_code();
        if (code != QP_CODE_DESTROYED && code != QP_CODE_OCCUPIED && code != QP_CODE_STATE) *(int *)unexpected = (int)code;
    }
    return NULL;
}

static void destroyed_meanwhile(void)
{
    pthread_t thread;
    qp_mr *next;
    int i, unexpected = 0;

    RIGHT(qp_pair_reset(uc));
    RIGHT(qp_mr_create(pd, 4096, 1, &fleeting));
    RIGHT(pthread_create(&thread, NULL, posts, &unexpected));
    for (i = 0; i < 300; i++) {
        qp_mr *before = fleeting;
        RIGHT(qp_mr_create(pd, 4096, 1, &next));
        RIGHT(qp_mr_destroy(before));
        __atomic_store_n(&fleeting, next, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&enough, 1, __ATOMIC_RELEASE);
    RIGHT(pthread_join(thread, NULL));
    RIGHT(qp_mr_destroy(fleeting));
    THAT(unexpected == 0);
}

/* Lists that are not posted to their end: what is told to be posted is, and no more. */
static void lists(void)
{
    qp_pair_attr attr;
    qp_send sends[8];
    qp_recv recv = recv_of(mr);
    qp_pair *gone, *one, *two;
    qp_cq *where;
    qp_endpoint of_one, of_two;
    qp_account account;
    size_t n, i;

    RIGHT(qp_cq_create(device, 64, 0, &where));
    attr = attr_of(where);
    attr.send_batch = UINT32_MAX;
    RIGHT(qp_pair_create(pd, &attr, &gone));
    RIGHT(qp_pair_destroy(gone));
    attr.send_batch = 8;
    RIGHT(qp_pair_create(pd, &attr, &one));
    RIGHT(qp_pair_create(pd, &attr, &two));
    for (i = 0; i < 8; i++) sends[i] = send_of(QP_SEND);
    NONE_POSTED(one, sends, 5, EINVAL, QP_CODE_STATE);
    /* Nor where there is no list, or no Queue Pair. */
    NONE_POSTED(one, NULL, 5, EINVAL, QP_CODE_NULL);
    NONE_POSTED(one, sends, SIZE_MAX, EINVAL, QP_CODE_RANGE);
    NONE_POSTED(NULL, sends, 5, EINVAL, QP_CODE_NULL);
    NONE_POSTED(gone, sends, 5, EBADF, QP_CODE_DESTROYED);
    NONE_POSTED(gone, sends, 0, EBADF, QP_CODE_DESTROYED);
    /* What the device refuses is before what lies outside the region. */
    sends[3].offset = sizeof memory;
    NONE_POSTED(one, sends, 5, EINVAL, QP_CODE_STATE);
    RIGHT(qp_pair_endpoint(one, device, 1, -1, NULL, &of_one));
    RIGHT(qp_pair_endpoint(two, device, 1, -1, NULL, &of_two));
    RIGHT(qp_pair_connect_begin(one, &of_two, NULL));
    RIGHT(qp_pair_connect_begin(two, &of_one, NULL));
    for (i = 0; i < 16; i++) RIGHT(qp_post_recv(two, &recv));
    RIGHT(qp_pair_connect_finish(one, NULL));
    RIGHT(qp_pair_connect_finish(two, NULL));
    WRONG(qp_post_sends(one, sends, 5, &n), EINVAL, QP_CODE_RANGE);
    THAT(n == 3);
    sends[3].offset = 0;
    RIGHT(qp_post_sends(one, sends, 8, &n));
    THAT(n == 8);
    RIGHT(qp_pair_account(one, QP_SQ, &account));
    THAT(account.accepted == 11);
    RIGHT(qp_pair_reset(one));
    /* All alike, as those before. */
    n = 9;
    WRONG(qp_post_sends(one, sends, 8, &n), EINVAL, QP_CODE_STATE);
    THAT(n == 0);
    n = 9;
    WRONG(qp_post_sends(one, sends, 2, &n), EINVAL, QP_CODE_STATE);
    THAT(n == 0);
    RIGHT(qp_pair_account(one, QP_SQ, &account));
    THAT(account.accepted == 11 && account.pending == 0);
    RIGHT(qp_pair_destroy(one) || qp_pair_destroy(two) || qp_cq_destroy(where));
}

/* All that was misused works. */
static void good(void)
{
    qp_send send = send_of(QP_SEND), two[2];
    qp_recv recv = recv_of(mr);
    qp_completion done;
    qp_account account;
    uint64_t accepted;
    size_t n;
    int i;

    RIGHT(qp_pair_reset(a));
    RIGHT(qp_pair_reset(b));
    RIGHT(qp_pair_endpoint(a, device, 1, -1, NULL, &of_a));
    RIGHT(qp_pair_endpoint(b, device, 1, -1, NULL, &of_b));
    RIGHT(qp_pair_connect_begin(a, &of_b, NULL));
    RIGHT(qp_pair_connect_begin(b, &of_a, NULL));
    recv.offset = 4096;
    recv.context = 77;
    RIGHT(qp_post_recv(b, &recv));
    RIGHT(qp_pair_connect_finish(a, NULL));
    RIGHT(qp_pair_connect_finish(b, NULL));
    memcpy(memory, "as ever", 8);
    send.context = 66;
    RIGHT(qp_post_send(a, &send));
    for (i = 0; i < 2; i++) {
        RIGHT(qp_wait(cq, 5000, &done, 1, NULL));
        THAT(done.status == 0 && done.context == (done.operation == QP_RECV ? 77u : 66u));
    }
    THAT(!memcmp(memory + 4096, "as ever", 8));
    RIGHT(qp_pair_account(a, QP_SQ, &account));
    THAT(account.succeeded == 1 && account.pending == 0);
    /* A list like those before it, whose Queue Pair is not in RTS any more. */
    accepted = account.accepted;
    two[0] = two[1] = send;
    RIGHT(qp_post_sends(a, two, 2, &n));
    RIGHT(qp_pair_reset(a));
    WRONG(qp_post_sends(a, two, 2, &n), EINVAL, QP_CODE_STATE);
    RIGHT(qp_pair_account(a, QP_SQ, &account));
    THAT(account.accepted == accepted + 2 && account.succeeded == 1 && account.pending == 0);
    RIGHT(qp_pair_destroy(a) || qp_pair_destroy(b) || qp_pair_destroy(uc) || qp_pair_destroy(ud));
    RIGHT(qp_srq_destroy(srq) || qp_cq_destroy(cq) || qp_cq_destroy(event_cq));
    RIGHT(qp_mr_destroy(mr) || qp_mr_destroy(other_mr) || qp_pd_destroy(pd) || qp_pd_destroy(other_pd));
    RIGHT(qp_device_destroy(device) || qp_device_destroy(other_device));
}

int main(int argc, char **argv)
{
    verbose = argc > 1 && !strcmp(argv[1], "-v");
    set_up();
    null_pointers();
    wrong_types();
    destroyed();
    numbers();
    texts();
    exchanges();
    states();
    datagrams();
    in_use();
    mismatches();
    xrc();
    meshes();
    raw();
    windows_and_doctor();
    supervised();
    supervised_xrc();
    supervised_by_messages();
    reliable_datagrams();
    strangers();
    mesh_over_datagrams();
    sharing();
    xrc_recovered();
    callbacks_and_threads();
    destroyed_meanwhile();
    lists();
    good();
    printf("%d wrong uses, %d not as documented\n", cases, wrong);
    return wrong != 0;
}
