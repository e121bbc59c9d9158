/* Random calls with random arguments: handles that live, that were destroyed, of other types, and that are none; numbers from
 * anywhere; structs of random bytes. Whatever the library says, it says it in its way (an errno, the same in errno, and a
 * sentence), and in the end every object that is left can be destroyed.
 *
 *   fuzz [CALLS [SEED]]
 *
 * With QP_FUZZ_INPUT defined it has fuzz_one() instead of main(): the same, but drawn from bytes that a fuzzer gives.
 */
#include <errno.h>
#include <inttypes.h>
#include <qp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t random_draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

#ifdef QP_FUZZ_INPUT
static const unsigned char *input;
static size_t left;

static uint64_t take(size_t bytes)
{
    uint64_t value = 0;

    for (; bytes && left; bytes--, left--) value = value << 8 | *input++;
    return value;
}

static uint64_t draw(void) { return take(4) * 0x100000001u; }
static uint64_t below(uint64_t n) { return take(n <= 256 ? 1 : 2) % n; }

/* Nothing waits. */
#define PATIENCE(ms) 0
/* Making one takes longer than a thousand other calls: there is one, for all inputs. */
#define DEVICES 1
#else
static uint64_t draw(void) { return random_draw(); }
static uint64_t below(uint64_t n) { return draw() % n; }
#define PATIENCE(ms) (ms)
#define DEVICES 3
#endif

/* A number: small, at the edge of a type, or any. */
static uint64_t number(void)
{
    static const uint64_t edges[] = {0, 1, 15, 16, 0x7f, 0xff, 0xffff, 0xffffff, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX};

    switch (below(3)) {
    case 0: return below(70);
    case 1: return edges[below(sizeof edges / sizeof *edges)];
    default: return draw();
    }
}

static void random_bytes(void *to, size_t len)
{
    size_t i;

#ifdef QP_FUZZ_INPUT
    /* A byte for all of them: an input is short. */
    state = below(256) * 0x9e3779b97f4a7c15u + 1;
#endif
    for (i = 0; i < len; i++) ((unsigned char *)to)[i] = (unsigned char)(random_draw() % 3 ? random_draw() % 4 : random_draw());
}

/* All handles that there ever were, and those of each type that live. */
enum { DEVICE, PD, MR, CQ, SRQ, PAIR, DEST, DOMAIN, TARGET, LINK, GRAMS, SHARED, TYPES };
#define MOST 24
static void *live[TYPES][MOST], *known[4096];
static size_t lives[TYPES], knows;

static void *handle(int type)
{
    if (below(4) && lives[type]) return live[type][below(lives[type])];
    switch (below(4)) {
    case 0: return NULL;
    case 1: return knows ? known[below(knows)] : NULL;
    case 2: return knows ? (char *)known[below(knows)] + below(64) : NULL;
    default: return (void *)(uintptr_t)number();
    }
}

static void made(int type, void *what)
{
    if (lives[type] < MOST) live[type][lives[type]++] = what;
    known[knows < 4096 ? knows++ : below(4096)] = what;
}

static void gone(int type, void *what)
{
    size_t i;

    for (i = 0; i < lives[type]; i++)
        if (live[type][i] == what) live[type][i] = live[type][--lives[type]];
}

static char memory[4096];

/* Ends a sharing: what waits in it is brought to its end, and what was refused is taken. */
static int end_sharing(qp_shared *shared)
{
    int to_error[64] = {6}; /* a struct ibv_qp_attr: its qp_state is IBV_QPS_ERR */
    qp_completion done[8];
    qp_pair *pair;
    size_t i, n, waiting = 1;
    uint64_t context;
    int turn, code = QP_CODE_NONE, result;

    (void)qp_shared_modify(shared, (struct ibv_qp_attr *)(void *)to_error, 1);
    for (turn = 0; turn < 100 && waiting; turn++) {
        for (i = 0; i < lives[CQ]; i++) (void)qp_poll((qp_cq *)live[CQ][i], done, 8, &n);
        if ((result = qp_shared_advance(shared, &waiting)) != 0) return result;
    }
    do (void)qp_shared_refused(shared, &context, &code, NULL, 0);
    while (code != QP_CODE_NONE);
    if ((result = qp_shared_end(shared, &pair)) != 0) return result;
    return qp_pair_destroy(pair);
}

static int destroy(int type, void *what)
{
    int result;

    switch (type) {
    case DEVICE: result = qp_device_destroy((qp_device *)what); break;
    case PD: result = qp_pd_destroy((qp_pd *)what); break;
    case MR: result = qp_mr_destroy((qp_mr *)what); break;
    case CQ: result = qp_cq_destroy((qp_cq *)what); break;
    case SRQ: result = qp_srq_destroy((qp_srq *)what); break;
    case PAIR: result = qp_pair_destroy((qp_pair *)what); break;
    case DEST: result = qp_dest_destroy((qp_dest *)what); break;
    case DOMAIN: result = qp_xrc_domain_destroy((qp_xrc_domain *)what); break;
    case LINK: result = qp_supervised_destroy((qp_supervised *)what); break;
    case GRAMS: result = qp_datagrams_destroy((qp_datagrams *)what); break;
    case SHARED: result = end_sharing((qp_shared *)what); break;
    default: result = qp_xrc_target_destroy((qp_xrc_target *)what);
    }
    if (!result) gone(type, what);
    return result;
}

/* What a program carries for supervised connections: one message, or something else than that. */
static char letter[70000];
static size_t letter_len;

static int tell(void *context, const void *message, size_t len)
{
    (void)context;
    if (!below(4)) return (int)below(3) - 1;
    memcpy(letter, message, letter_len = len);
    if (len && !below(4)) letter[below(len)] ^= (char)below(256);
    return 0;
}

static int hear(void *context, void *message, size_t room, size_t *len)
{
    (void)context;
    if (!below(8)) return (int)below(3) - 1;
    *len = below(16) ? letter_len : (size_t)number();
    if (*len > room) return 0;
    memcpy(message, letter, *len);
    letter_len = 0;
    return 0;
}

/* An end for datagrams, with few packets. */
static int end_for_datagrams(qp_datagrams **end)
{
    qp_datagrams_options options;

    memset(&options, 0, sizeof options);
    if (!below(4)) random_bytes(&options, sizeof options);
    options.receives = below(8) ? 64 : (uint32_t)below(4);
    options.peers = (uint32_t)below(5);
    options.send_packets = options.send_depth = 16;
    options.mtu = 256;
    options.dead_after_ms = 1 + (uint32_t)below(20);
    return qp_datagrams_create((qp_device *)handle(DEVICE), (qp_pd *)handle(PD), 1, -1, below(8) ? &options : NULL, end);
}

/* A supervised connection: one listens, where others find it. */
static int supervise(qp_supervised **link)
{
    static char address[64] = "127.0.0.1:1";
    qp_supervised_options options;
    qp_pair_attr attr;
    qp_region offered[2];
    qp_recv receives[4];
    size_t i;
    int result;

    memset(&attr, 0, sizeof attr);
    memset(&options, 0, sizeof options);
    memset(receives, 0, sizeof receives);
    random_bytes(offered, sizeof offered);
    if (!below(8)) random_bytes(&attr, sizeof attr);
    if (!below(4)) random_bytes(&options, sizeof options);
    attr.transport = below(4) ? (uint32_t)below(4) : QP_XRC;
    attr.srq = below(4) && attr.transport != QP_XRC ? NULL : (qp_srq *)handle(SRQ);
    attr.inline_data = (uint32_t)below(64);
    for (i = 0; i < 4; i++) {
        receives[i].mr = below(4) ? (qp_mr *)handle(MR) : NULL;
        receives[i].len = (size_t)(receives[i].mr ? below(64) : below(8) == 0);
    }
    if (!below(3)) {
        result = qp_supervised_meet((qp_device *)handle(DEVICE), (qp_pd *)handle(PD), below(2) ? NULL : &attr, below(2) ? NULL : &options,
                                    offered, (size_t)below(3), receives, (size_t)below(2) * (attr.transport != QP_XRC), tell, hear, NULL,
                                    (uint32_t)number(), link);
    } else if (below(2)) {
        result = qp_supervised_connect((qp_device *)handle(DEVICE), (qp_pd *)handle(PD), below(2) ? NULL : &attr,
                                       below(2) ? NULL : &options, offered, (size_t)below(3), receives, (size_t)below(5), address, link);
    } else {
        result = qp_supervised_listen((qp_device *)handle(DEVICE), (qp_pd *)handle(PD), below(2) ? NULL : &attr,
                                      below(2) ? NULL : &options, offered, (size_t)below(3), receives, (size_t)below(5), "127.0.0.1:0", link);
        if (!result) (void)qp_supervised_address(*link, address, sizeof address, NULL);
    }
    return result;
}

static int create(int type)
{
    qp_pair_attr attr;
    qp_endpoint there;
    void *what = NULL, *pair;
    int result;

    if (lives[type] == MOST) return 0;
    switch (type) {
    case DEVICE: result = lives[DEVICE] < DEVICES ? qp_soft_open(NULL, (qp_device **)&what) : 0; break;
    case PD: result = qp_pd_create((qp_device *)handle(DEVICE), (qp_pd **)&what); break;
    case MR:
        if (below(2))
            result = qp_mr_create((qp_pd *)handle(PD), below(8) ? below(9000) : (size_t)number() & 0xffffff, (int)below(0x400), (qp_mr **)&what);
        else
            result = qp_mr_register((qp_pd *)handle(PD), memory, sizeof memory, (int)below(16), (qp_mr **)&what);
        break;
    case CQ: result = qp_cq_create((qp_device *)handle(DEVICE), (uint32_t)number(), (int)below(2), (qp_cq **)&what); break;
    case SRQ:
        if (below(2))
            result = qp_srq_create((qp_pd *)handle(PD), (uint32_t)number(), (uint32_t)below(8), (qp_srq **)&what);
        else
            result = qp_srq_create_xrc((qp_pd *)handle(PD), (qp_xrc_domain *)handle(DOMAIN), (qp_cq *)handle(CQ), (uint32_t)number(), 1, (qp_srq **)&what);
        break;
    case PAIR:
        memset(&attr, 0, sizeof attr);
        if (!below(4)) random_bytes(&attr, sizeof attr);
        attr.transport = (uint32_t)below(11);
        if (below(2)) attr.send_depth = (uint32_t)below(40);
        attr.send_batch = (uint32_t)below(5);
        attr.send_cq = (qp_cq *)handle(CQ);
        attr.recv_cq = below(2) ? NULL : (qp_cq *)handle(CQ);
        attr.srq = below(3) ? NULL : (qp_srq *)handle(SRQ);
        result = qp_pair_create((qp_pd *)handle(PD), &attr, (qp_pair **)&what);
        break;
    case DEST:
        random_bytes(&there, sizeof there);
        if (below(2))
            result = qp_dest_create((qp_pair *)handle(PAIR), &there, (qp_dest **)&what);
        else
            result = qp_dest_group((qp_pair *)handle(PAIR), below(2) ? "239.9.9.9" : "ff0e::1%", (uint16_t)draw(), (qp_dest **)&what);
        break;
    case LINK: result = supervise((qp_supervised **)&what); break;
    case GRAMS: result = end_for_datagrams((qp_datagrams **)&what); break;
    case SHARED:
        result = qp_pair_share((qp_pair *)(pair = handle(PAIR)), (size_t)(below(8) ? below(20) : number()), (qp_shared **)&what);
        if (!result) gone(PAIR, pair);
        break;
    case DOMAIN: result = qp_xrc_domain_open((qp_device *)handle(DEVICE), NULL, (int)draw(), (qp_xrc_domain **)&what); break;
    default: result = qp_xrc_target_create((qp_xrc_domain *)handle(DOMAIN), (qp_xrc_target **)&what);
    }
    if (!result && what) made(type, what);
    return result;
}

/* Calls that make and destroy nothing. */
static int use(void)
{
    static qp_endpoint told[4];
    static uint8_t card[QP_DATAGRAMS_CARD];
    static uint64_t name;
    qp_datagrams_event came;
    qp_datagrams_state counted;
    qp_endpoint *one = &told[below(4)], *two = &told[below(4)];
    qp_completion done[8];
    qp_send sends[4];
    qp_recv recv;
    qp_range ranges[3];
    qp_account account;
    qp_timing timing;
    qp_path path;
    qp_region region;
    qp_needs needs;
    char text[300];
    size_t n, i;
    qp_supervised_event event;
    qp_supervised_state now;
    qp_event reported;
    uint32_t u;
    int v, state_of[64] = {0}; /* a struct ibv_qp_attr */

    state_of[0] = (int)below(8);
    random_bytes(sends, sizeof sends);
    random_bytes(&reported, sizeof reported);
    random_bytes(&recv, sizeof recv);
    random_bytes(&timing, sizeof timing);
    random_bytes(&path, sizeof path);
    for (i = 0; i < 4; i++) {
        sends[i].op = (uint32_t)below(12);
        if (below(4)) sends[i].flags = below(2) ? 0 : QP_UNSIGNALED;
        sends[i].mr = below(4) ? (qp_mr *)handle(MR) : NULL;
        sends[i].offset = (size_t)(below(4) ? below(4096) : number());
        sends[i].len = (size_t)(sends[i].mr ? (below(4) ? below(200) : number()) : 0);
        sends[i].to = (qp_dest *)handle(DEST);
        if (below(2) && !qp_mr_region((qp_mr *)handle(MR), &region)) sends[i].remote = region;
    }
    recv.mr = below(4) ? (qp_mr *)handle(MR) : NULL;
    recv.offset = (size_t)number();
    recv.len = (size_t)(recv.mr ? number() : 0);
    for (i = 0; i < 3; i++) ranges[i].mr = (qp_mr *)handle(MR), ranges[i].offset = (size_t)below(64), ranges[i].len = (size_t)below(64);
    if (!below(64)) random_bytes(card, sizeof card);
    switch (below(72)) {
    case 0: return qp_post_send((qp_pair *)handle(PAIR), sends);
    case 1: return qp_post_sends((qp_pair *)handle(PAIR), sends, (size_t)below(5), &n);
    case 2: return qp_post_send_ranges((qp_pair *)handle(PAIR), sends, ranges, (size_t)below(4));
    case 3: return qp_post_inline((qp_pair *)handle(PAIR), sends, (const uint8_t *)memory, (size_t)below(300));
    case 4: return qp_post_recv((qp_pair *)handle(PAIR), &recv);
    case 5: return qp_post_recv_ranges((qp_pair *)handle(PAIR), &recv, ranges, (size_t)below(4));
    case 6: return qp_post_srq_recv((qp_srq *)handle(SRQ), &recv);
    case 7:
    case 8: return qp_poll((qp_cq *)handle(CQ), done, (size_t)below(9), &n);
    case 9: return qp_wait((qp_cq *)handle(CQ), (int64_t)PATIENCE(below(2)), done, (size_t)below(9), &n);
    case 10: return qp_cq_explain((qp_cq *)handle(CQ), text, (size_t)below(sizeof text), &n);
    case 11: return qp_cq_arm((qp_cq *)handle(CQ), &v);
    case 12: return qp_cq_take_events((qp_cq *)handle(CQ));
    case 13: return qp_pair_endpoint((qp_pair *)handle(PAIR), (qp_device *)handle(DEVICE), (int)below(3), (int)below(3) - 1, below(3) ? NULL : &path, one);
    case 14: return qp_pair_init((qp_pair *)handle(PAIR));
    case 15: return qp_pair_connect_begin((qp_pair *)handle(PAIR), two, below(3) ? NULL : &timing);
    case 16: return qp_pair_connect_finish((qp_pair *)handle(PAIR), below(3) ? NULL : &timing);
    case 17: return qp_pair_activate((qp_pair *)handle(PAIR), (qp_device *)handle(DEVICE), (int)below(3), -1, (uint32_t)draw(), NULL, below(2) ? NULL : one);
    case 18: return qp_pair_reset((qp_pair *)handle(PAIR));
    case 19: return qp_pair_state((qp_pair *)handle(PAIR), &v);
    case 20: return qp_pair_query_text((qp_pair *)handle(PAIR), text, (size_t)below(sizeof text), &n);
    case 21: return qp_pair_account((qp_pair *)handle(PAIR), (int)below(4), &account);
    case 22: return qp_pair_drain((qp_pair *)handle(PAIR), PATIENCE(20), NULL, NULL, NULL);
    case 23: return qp_pair_attach((qp_pair *)handle(PAIR), "239.9.9.9", 0);
    case 24: return qp_pair_detach((qp_pair *)handle(PAIR), "239.9.9.9");
    case 25: return qp_mr_read((qp_mr *)handle(MR), (size_t)number(), (uint8_t *)text, (size_t)below(sizeof text));
    case 26: return qp_mr_write((qp_mr *)handle(MR), (size_t)number(), (const uint8_t *)memory, (size_t)below(sizeof memory));
    case 27: return qp_srq_account((qp_srq *)handle(SRQ), &account);
    case 28: return qp_srq_arm_limit((qp_srq *)handle(SRQ), (uint32_t)number());
    case 29: return qp_srq_xrc_number((qp_srq *)handle(SRQ), &u);
    case 30: return qp_xrc_target_endpoint((qp_xrc_target *)handle(TARGET), (qp_device *)handle(DEVICE), 1, -1, NULL, one);
    case 31: return qp_xrc_target_connect_begin((qp_xrc_target *)handle(TARGET), two, NULL);
    case 32: return qp_xrc_target_connect_finish((qp_xrc_target *)handle(TARGET), NULL);
    case 33: return qp_xrc_target_report_on((qp_xrc_target *)handle(TARGET), (qp_cq *)handle(CQ));
    case 34: return qp_device_gid((qp_device *)handle(DEVICE), (int)number(), (int)number(), text, (size_t)below(sizeof text), &n);
    case 35: return qp_supervised_post_send((qp_supervised *)handle(LINK), sends);
    case 36: return qp_supervised_post_inline((qp_supervised *)handle(LINK), sends, (const uint8_t *)memory, (size_t)below(100));
    case 37: return qp_supervised_post_recv((qp_supervised *)handle(LINK), &recv);
    case 38: return qp_supervised_text((qp_supervised *)handle(LINK), text, (size_t)below(sizeof text), &n);
    case 39: return qp_supervised_fd((qp_supervised *)handle(LINK), &v);
    case 40: return qp_supervised_arm((qp_supervised *)handle(LINK), &v);
    case 41: return qp_supervised_query((qp_supervised *)handle(LINK), &now);
    case 42: return qp_supervised_query_json((qp_supervised *)handle(LINK), text, (size_t)below(sizeof text), &n);
    case 43: return qp_supervised_peer((qp_supervised *)handle(LINK), below(2) ? NULL : one, &region, (size_t)below(2), &n);
    case 44: return qp_supervised_restart((qp_supervised *)handle(LINK));
    case 45: return qp_supervised_device_event((qp_supervised *)handle(LINK), &reported);
    case 46: return qp_supervised_address((qp_supervised *)handle(LINK), text, (size_t)below(sizeof text), &n);
    case 47:
    case 48:
    case 49:
    case 50: return qp_supervised_next((qp_supervised *)handle(LINK), (int64_t)PATIENCE(below(2)), &event);
    case 51: return qp_datagrams_card((qp_datagrams *)handle(GRAMS), card);
    case 52: return qp_datagrams_add_peer((qp_datagrams *)handle(GRAMS), card, &name);
    case 53: return qp_datagrams_move_peer((qp_datagrams *)handle(GRAMS), below(4) ? name : below(4), card);
    case 54: return below(4) ? 0 : qp_datagrams_remove_peer((qp_datagrams *)handle(GRAMS), below(4) ? name : below(4));
    case 55: return qp_datagrams_connect((qp_datagrams *)handle(GRAMS), below(4));
    case 56:
    case 57: return qp_datagrams_send((qp_datagrams *)handle(GRAMS), below(4) ? name : below(4), (const uint8_t *)memory, (size_t)below(sizeof memory), draw());
    case 58: return qp_datagrams_arm((qp_datagrams *)handle(GRAMS), &v);
    case 59: return qp_datagrams_query((qp_datagrams *)handle(GRAMS), &counted);
    case 60:
    case 61: return qp_datagrams_next((qp_datagrams *)handle(GRAMS), (int64_t)PATIENCE(below(2)), &came, (uint8_t *)text, (size_t)below(sizeof text));
    case 63: return qp_datagrams_listen((qp_datagrams *)handle(GRAMS), (uint32_t)below(3), NULL, NULL);
    case 65:
    case 66: return qp_shared_post((qp_shared *)handle(SHARED), sends);
    case 67: return qp_shared_post_recv((qp_shared *)handle(SHARED), &recv);
    case 68: return qp_shared_advance((qp_shared *)handle(SHARED), below(2) ? NULL : &n);
    case 69: return qp_shared_refused((qp_shared *)handle(SHARED), &name, &v, text, (size_t)below(sizeof text));
    case 70: return qp_shared_modify((qp_shared *)handle(SHARED), (struct ibv_qp_attr *)(void *)state_of, below(4) ? 1 : (int)draw());
    case 71: return qp_shared_account((qp_shared *)handle(SHARED), (int)below(4), &account);
    case 62: return qp_supervised_target_number((qp_supervised *)handle(LINK), &u);
    default: return qp_plan((uint32_t)number(), (uint32_t)number(), (int)below(11), (int)below(2), (int)below(2), &needs);
    }
}

static uint64_t refused;

/* One call; 0 if what it said is not as documented. */
static int call(void)
{
    int result, type;

    errno = 0;
    switch (below(12)) {
    case 0:
        type = (int)below(TYPES);
        if (type == DEVICE && DEVICES == 1) return 1;
        result = destroy(type, handle(type));
        break;
    case 1:
    case 2: result = create((int)below(TYPES)); break;
    default: result = use();
    }
    if (result == 0) return 1;
    refused++;
    if (result > 0 && result == errno && *qp_last_error() && qp_last_code() != QP_CODE_NONE && qp_last_code() != QP_CODE_INTERNAL) return 1;
    printf("gave %d, errno %d, %s: %s\n", result, errno, qp_code_name((int)qp_last_code()), qp_last_error());
    return 0;
}

/* Destroys the objects that are left, but for devices if they are to stay; 0 if one cannot be. */
static int end(int types)
{
    static const int order[TYPES] = {SHARED, LINK, GRAMS, DEST, PAIR, TARGET, SRQ, MR, DOMAIN, CQ, PD, DEVICE};
    int i, type;

    for (i = 0; i < types; i++) {
        while (lives[type = order[i]]) {
            if (!destroy(type, live[type][0])) continue;
            printf("at the end: %s\n", qp_last_error());
            return 0;
        }
    }
    return 1;
}

#ifdef QP_FUZZ_INPUT
/* One input; gives the number of calls, or -1 for a finding. */
int fuzz_one(const unsigned char *data, size_t size);
int fuzz_one(const unsigned char *data, size_t size)
{
    int calls = 0, type;

    input = data, left = size, knows = 0;
    for (type = DEVICE; type <= CQ; type++) create(type);
    for (; left && calls < 200; calls++)
        if (!call()) return -1;
    left = 0;
    return end(TYPES - 1) ? calls : -1;
}
#else
int main(int argc, char **argv)
{
    uint64_t calls = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, i;
    int type;

    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (type = DEVICE; type < TYPES; type++) create(type);
    for (i = 0; i < calls; i++) {
        if (call()) continue;
        printf("seed %" PRIu64 ", call %" PRIu64 "\n", seed, i);
        return 1;
    }
    if (!end(TYPES)) {
        printf("seed %" PRIu64 "\n", seed);
        return 1;
    }
    printf("seed %" PRIu64 ": %" PRIu64 " calls, %" PRIu64 " refused, all objects destroyed\n", seed, calls, refused);
    return 0;
}
#endif
