/* What the MPI examples share: a job in which every rank can send to every other one, and what to
 * do when a rank dies. MPI starts the processes and hands their endpoints round; all messages go
 * over libqp.
 *
 *   --transport NAME     rc, ud or xrc; rc if not given
 *   --device NAME        an adapter such as mlx5_0, or `soft` for a software device; if not given,
 *                        the first adapter, and a software device where there is none
 *   --rounds N           how often; 100 if not given
 *   --die RANK           this rank kills itself half way, to show what the others say
 *
 * A rank that has lost others names them and ends with status 3. MPI must let it do so, and not
 * kill all ranks when one is dead: `mpirun --enable-recovery` with Open MPI, and with MPICH
 * `mpirun -disable-auto-cleanup`. (MPICH 4.0 kills them all the same when a process that it has
 * started itself dies by a signal: start each rank by a shell, as tests/mpi.sh does.)
 */
#ifndef MPI_JOB_H
#define MPI_JOB_H

#define _POSIX_C_SOURCE 200809L
#include "try.h"
#include <mpi.h>
#include <signal.h>
#include <time.h>

#define SIZE 1024           /* bytes of a message: they fit into one datagram of every network */
#define GRH 40              /* on UD, bytes of the device's in front of each message */
#define SLOT (SIZE + GRH)   /* memory for one message */
#define Q_KEY 0x1234        /* on UD, only datagrams with this number get in */
#define SILENCE_MS 3000     /* when nothing comes for so long, we ask who is still there */
#define ROLL_CALL_S 5       /* seconds that the others have to answer */
#define HERE 0x80000000u    /* in the immediate data of that question, which is an answer too */
#define FLUSHED 5           /* IBV_WC_WR_FLUSH_ERR: not sent, because of an earlier failure */
#define LOST_SOME 3         /* our status when we have lost ranks */

/* What a rank has. Its memory: slots to receive in, behind them one to send from for each rank. */
typedef struct job {
    int rank, ranks, rounds, die;
    int transport;           /* QP_RC, QP_UD or QP_XRC */
    int sending;             /* messages whose completion is still to come */
    uint32_t receives;       /* slots to receive in */
    qp_device *device;
    qp_pd *pd;
    qp_cq *cq;
    qp_srq *srq;             /* where every Queue Pair takes its receives from */
    qp_mr *mr;
    char *memory;
    qp_pair **pairs;         /* RC, XRC: one to each other rank. UD: for all, at our own place */
    qp_dest **dests;         /* UD: the way to each other rank; else NULLs */
    qp_xrc_domain *domain;   /* XRC: what our SRQ stands in */
    qp_xrc_target **targets; /* XRC: what the pair of each other rank is connected to; else NULLs */
    uint32_t *srq_nums;      /* XRC: the SRQ of each other rank; else 0 */
} job;

/* A message that has come. Its bytes stay until receive_into(job, slot) gives the slot back. */
typedef struct message {
    int rank;
    unsigned round;
    uint32_t slot;
    const char *bytes;
    size_t len;
} message;

static inline void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count, size);

    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return memory;
}

static inline double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void usage(const char *program)
{
    fprintf(stderr, "usage: %s [--transport rc|ud|xrc] [--device NAME] [--rounds N] "
            "[--die RANK]\nwith 2 to 256 ranks, and at most 65535 as rounds times ranks\n",
            program);
    MPI_Finalize();
    exit(2);
}

/* Where messages to a rank are written before they are sent. */
static inline char *send_slot(const job *j, int rank)
{
    return j->memory + (j->receives + (size_t)rank) * SLOT;
}

/* The next message may go into this slot. */
static inline void receive_into(job *j, uint32_t slot)
{
    qp_recv recv;

    memset(&recv, 0, sizeof recv);
    recv.context = slot;
    recv.mr = j->mr;
    recv.offset = (size_t)slot * SLOT;
    recv.len = SLOT;
    TRY(qp_post_srq_recv(j->srq, &recv));
}

/* Sends the first bytes of a rank's send_slot() to it. The immediate data says who we are and
 * `what` it is: the round. */
static inline void send_to(job *j, int rank, size_t len, uint32_t what)
{
    qp_send send;

    memset(&send, 0, sizeof send);
    send.context = (uint64_t)rank;
    send.op = QP_SEND_WITH_IMM;
    send.imm = (uint32_t)j->rank << 16 | what;
    send.mr = j->mr;
    send.offset = (size_t)(send_slot(j, rank) - j->memory);
    send.len = len;
    send.to = j->dests[rank];
    send.srq_num = j->srq_nums[rank];
    TRY(qp_post_send(j->pairs[j->transport == QP_UD ? j->rank : rank], &send));
    j->sending++;
}

/* Opens the device that the command line names, and makes all that a rank has. */
static inline void job_open(job *j, const char *device)
{
    qp_pair_attr attr;
    void *memory;
    uint32_t depth, slot;
    int rank;

    if (!device) j->device = open_device();
    else if (!strcmp(device, "soft")) TRY(qp_soft_open(NULL, &j->device));
    else TRY(qp_device_open(device, &j->device));

    /* Enough for all that can come before we look: in an all-to-all a rank is at most one round
     * ahead of us, in a ring at most ranks - 1 steps. */
    j->receives = 4 * (uint32_t)j->ranks;
    depth = j->transport == QP_UD ? 4 * (uint32_t)j->ranks : 8;
    TRY(qp_pd_create(j->device, &j->pd));
    TRY(qp_cq_create(j->device, j->receives + depth * (uint32_t)j->ranks, 1, &j->cq));
    if (j->transport == QP_XRC) {
        TRY(qp_xrc_domain_open(j->device, NULL, 0, &j->domain));
        TRY(qp_srq_create_xrc(j->pd, j->domain, j->cq, j->receives, 1, &j->srq));
    } else {
        TRY(qp_srq_create(j->pd, j->receives, 1, &j->srq));
    }
    TRY(qp_mr_create(j->pd, (j->receives + (size_t)j->ranks) * SLOT,
                     1 /* IBV_ACCESS_LOCAL_WRITE */, &j->mr));
    TRY(qp_mr_addr(j->mr, &memory));
    j->memory = memory;
    j->pairs = zeroed((size_t)j->ranks, sizeof *j->pairs);
    j->dests = zeroed((size_t)j->ranks, sizeof *j->dests);
    j->targets = zeroed((size_t)j->ranks, sizeof *j->targets);
    j->srq_nums = zeroed((size_t)j->ranks, sizeof *j->srq_nums);
    for (slot = 0; slot < j->receives; slot++) receive_into(j, slot);

    memset(&attr, 0, sizeof attr);
    attr.transport = (uint32_t)j->transport;
    attr.send_depth = depth;
    attr.send_cq = j->cq;
    attr.srq = j->transport == QP_XRC ? NULL : j->srq; /* XRC's pairs only send */
    for (rank = 0; rank < j->ranks; rank++) {
        if ((rank == j->rank) != (j->transport == QP_UD)) continue;
        TRY(qp_pair_create(j->pd, &attr, &j->pairs[rank]));
        if (j->transport != QP_XRC) continue;
        TRY(qp_xrc_target_create(j->domain, &j->targets[rank]));
        TRY(qp_xrc_target_report_on(j->targets[rank], j->cq));
    }
}

/* What a rank tells another one. */
typedef struct card {
    qp_endpoint pair;
    qp_endpoint target; /* XRC */
    uint32_t srq_num;   /* XRC */
} card;

/* RC: a connection is two Queue Pairs, one of each rank. XRC: a Queue Pair only sends, to a target
 * of the other rank, so a connection is a Queue Pair and a target of each rank. Either way a rank
 * has a card for each other one. Of all that MPI_Allgather gives, number `a * ranks + b` is that of
 * rank a for rank b. A Queue Pair may send when what it is connected to is ready to receive, so all
 * wait for all in the middle. */
static inline void connect_all(job *j)
{
    int n = j->ranks, bytes = n * (int)sizeof(card), rank;
    card *mine = zeroed((size_t)n, sizeof *mine);
    card *all = zeroed((size_t)n * (size_t)n, sizeof *all);

    for (rank = 0; rank < n; rank++) {
        if (rank == j->rank) continue;
        TRY(qp_pair_endpoint(j->pairs[rank], j->device, 1, -1, NULL, &mine[rank].pair));
        if (!j->targets[rank]) continue;
        TRY(qp_xrc_target_endpoint(j->targets[rank], j->device, 1, -1, NULL, &mine[rank].target));
        TRY(qp_srq_xrc_number(j->srq, &mine[rank].srq_num));
    }
    MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, MPI_COMM_WORLD);
    for (rank = 0; rank < n; rank++) {
        const card *there = &all[rank * n + j->rank];

        if (rank == j->rank) continue;
        if (j->targets[rank]) {
            TRY(qp_pair_connect_begin(j->pairs[rank], &there->target, NULL));
            TRY(qp_xrc_target_connect_begin(j->targets[rank], &there->pair, NULL));
        } else {
            TRY(qp_pair_connect_begin(j->pairs[rank], &there->pair, NULL));
        }
        j->srq_nums[rank] = there->srq_num;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (rank = 0; rank < n; rank++) {
        if (rank == j->rank) continue;
        TRY(qp_pair_connect_finish(j->pairs[rank], NULL));
        if (j->targets[rank]) TRY(qp_xrc_target_connect_finish(j->targets[rank], NULL));
    }
    free(mine);
    free(all);
}

/* UD: one Queue Pair sends to all, so each rank has one endpoint. */
static inline void connect_ud(job *j)
{
    qp_pair *pair = j->pairs[j->rank];
    qp_endpoint mine, *all = zeroed((size_t)j->ranks, sizeof *all);
    int rank;

    TRY(qp_pair_activate(pair, j->device, 1, -1, Q_KEY, NULL, &mine));
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    for (rank = 0; rank < j->ranks; rank++)
        if (rank != j->rank) TRY(qp_dest_create(pair, &all[rank], &j->dests[rank]));
    free(all);
}

/* Begins: MPI, the command line, the connections. */
static inline void job_begin(job *j, int argc, char **argv)
{
    const char *device = NULL;
    int i;

    memset(j, 0, sizeof *j);
    j->transport = QP_RC;
    j->rounds = 100;
    j->die = -1;
    MPI_Init(&argc, &argv);
    signal(SIGUSR1, SIG_IGN); /* by which mpirun of MPICH tells us that a rank has died */
    MPI_Comm_rank(MPI_COMM_WORLD, &j->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &j->ranks);
    for (i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (!strcmp(argv[i], "--transport") && !strcmp(value, "rc")) j->transport = QP_RC;
        else if (!strcmp(argv[i], "--transport") && !strcmp(value, "ud")) j->transport = QP_UD;
        else if (!strcmp(argv[i], "--transport") && !strcmp(value, "xrc")) j->transport = QP_XRC;
        else if (!strcmp(argv[i], "--device") && *value) device = value;
        else if (!strcmp(argv[i], "--rounds") && atoi(value) > 0) j->rounds = atoi(value);
        else if (!strcmp(argv[i], "--die") && *value) j->die = atoi(value);
        else usage(argv[0]);
    }
    if (j->ranks < 2 || j->ranks > 256 || (long)j->rounds * j->ranks > 65535) usage(argv[0]);
    job_open(j, device);
    if (j->transport == QP_UD) connect_ud(j);
    else connect_all(j);
}

/* Says that a rank is lost, and how we know. */
static inline void lost(const job *j, int rank, const char *why)
{
    printf("rank %d has lost rank %d: %s\n", j->rank, rank, why);
    fflush(stdout);
}

/* We have lost somebody, or nothing comes any more, or somebody asks who is there. Finds out who
 * is, names those who are not, and ends this process. The others do the same at the same time,
 * because the question makes them ask too.
 *
 * On RC and XRC the device knows: it repeats a message until the peer's device acknowledges it, and
 * reports that this never happened. On UD nobody acknowledges anything, and who says nothing for
 * long is taken for lost.
 *
 * `done` is the completion that brought us here; NULL for silence. */
static inline void roll_call(job *j, const qp_completion *done)
{
    char *is_lost = zeroed((size_t)j->ranks, 1), *is_here = zeroed((size_t)j->ranks, 1), why[2048];
    double end = seconds() + ROLL_CALL_S, ask_at = 0;
    int unknown = j->ranks - 1, rank;
    qp_completion next;

    while ((unknown > 0 || j->sending > 0) && seconds() < end) {
        if (done && done->operation == QP_RECV) {
            rank = (int)(done->imm >> 16 & 0x7fff);
            if (done->imm & HERE && !is_here[rank] && !is_lost[rank]) {
                is_here[rank] = 1;
                unknown--;
            }
            receive_into(j, (uint32_t)done->context);
        } else if (done && done->status && done->status != FLUSHED) {
            rank = (int)done->context;
            /* (What does not fit into `why` is cut off.) */
            TRY(qp_cq_explain(j->cq, why, sizeof why, NULL)
                && qp_last_code() != QP_CODE_SHORT_BUFFER);
            if (!is_here[rank] && !is_lost[rank]) { /* else it has answered and ended, or we know */
                lost(j, rank, why);
                unknown--;
            }
            is_lost[rank] = 1;
        }
        if (seconds() >= ask_at) { /* on UD again and again: datagrams may get lost */
            for (rank = 0; rank < j->ranks; rank++)
                if (rank != j->rank && !is_lost[rank]) send_to(j, rank, 0, HERE);
            ask_at = j->transport == QP_UD ? seconds() + 0.5 : end;
        }
        done = qp_wait(j->cq, 100, &next, 1, NULL) ? NULL : &next;
        if (done && done->operation != QP_RECV) j->sending--;
    }
    for (rank = 0; rank < j->ranks; rank++)
        if (rank != j->rank && !is_here[rank] && !is_lost[rank])
            lost(j, rank, "it does not answer");
    free(is_lost);
    free(is_here);
    exit(LOST_SOME); /* not MPI_Finalize(): it would wait for the dead */
}

/* Waits until something is done: 1, a message has come; 0, one of ours has left. */
static inline int progress(job *j, message *m)
{
    size_t header = j->transport == QP_UD ? GRH : 0;
    qp_completion done;

    if (qp_wait(j->cq, SILENCE_MS, &done, 1, NULL)) {
        TRY(qp_last_code() != QP_CODE_TIMED_OUT);
        roll_call(j, NULL);
    }
    if (done.operation != QP_RECV) {
        j->sending--;
        if (done.status) roll_call(j, &done);
        return 0;
    }
    if (done.imm & HERE) roll_call(j, &done);
    m->rank = (int)(done.imm >> 16);
    m->round = done.imm & 0xffff;
    m->slot = (uint32_t)done.context;
    m->bytes = j->memory + (size_t)m->slot * SLOT + header;
    m->len = done.byte_len;
    return 1;
}

/* What byte i of a message between two ranks must be. */
static inline char pattern(int from, int to, unsigned round, size_t i)
{
    return (char)(31u * (unsigned)from + 17u * (unsigned)to + 7u * round + i);
}

/* Looks at every byte of a message; ends the job if one is wrong. */
static inline void check(const job *j, const message *m, int from, int to, unsigned round)
{
    size_t i;

    for (i = 0; i < m->len && m->bytes[i] == pattern(from, to, round, i); i++) {}
    if (i == SIZE) return;
    fprintf(stderr, "rank %d: byte %zu of %zu of rank %d, round %u is wrong\n", j->rank, i, m->len,
            from, round);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The rank that shall die does so in this round. */
static inline void die_in(const job *j, int round)
{
    if (j->rank == j->die && round == j->rounds / 2) raise(SIGKILL);
}

/* Ends: all have all, says rank 0. */
static inline void job_end(job *j, const char *what, unsigned long bytes)
{
    const char *over = j->transport == QP_UD ? "UD" : j->transport == QP_XRC ? "XRC" : "RC";
    unsigned long all = 0;
    int rank;

    /* Nobody takes its Queue Pairs away while another one still waits for an acknowledgement. */
    MPI_Reduce(&bytes, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (j->rank == 0)
        printf("%s over %s: %d ranks, %lu bytes, all right\n", what, over, j->ranks, all);
    for (rank = 0; rank < j->ranks; rank++) {
        if (j->dests[rank]) TRY(qp_dest_destroy(j->dests[rank]));
        if (j->pairs[rank]) TRY(qp_pair_destroy(j->pairs[rank]));
        if (j->targets[rank]) TRY(qp_xrc_target_destroy(j->targets[rank]));
    }
    free(j->dests);
    free(j->pairs);
    free(j->targets);
    free(j->srq_nums);
    TRY(qp_srq_destroy(j->srq));
    if (j->domain) TRY(qp_xrc_domain_destroy(j->domain));
    TRY(qp_cq_destroy(j->cq));
    TRY(qp_mr_destroy(j->mr) || qp_pd_destroy(j->pd));
    TRY(qp_device_destroy(j->device));
    MPI_Finalize();
}

#endif
