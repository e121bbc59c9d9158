/* Connections that are kept alive, where MPI is all that the ranks have of each other: rank 0 has one with rank 1, rank 2 with
 * rank 3, and so on. Two functions carry what the ends tell each other, so no address and no port is needed. The even ranks
 * send numbered messages; half way they end the life of their connection as a failure would, and the ends meet again.
 *
 *   mpicc mpi_supervised.c $(pkg-config --cflags --libs qp) -o mpi_supervised
 *   mpirun -n 4 mpi_supervised [--device soft]
 */
#include "try.h"
#include <inttypes.h>
#include <mpi.h>

enum { MESSAGES = 100, WINDOW = 8, RECEIVES = 16, SIZE = sizeof(uint64_t), TAG = 77, ROOM = 65536 };

/* What a message of qp_supervised_meet() is sent by: MPI copies it, and does not wait for the other rank. */
static int tell(void *context, const void *message, size_t len)
{
    int other = *(const int *)context;

    return MPI_Bsend(message, (int)len, MPI_BYTE, other, TAG, MPI_COMM_WORLD) == MPI_SUCCESS ? 0 : 5 /* EIO */;
}

static int hear(void *context, void *message, size_t room, size_t *len)
{
    int other = *(const int *)context, there = 0, bytes;
    MPI_Status status;

    if (MPI_Iprobe(other, TAG, MPI_COMM_WORLD, &there, &status) != MPI_SUCCESS) return 5;
    if (!there) return 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if ((size_t)bytes > room || MPI_Recv(message, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &status) != MPI_SUCCESS) return 5;
    *len = (size_t)bytes;
    return 0;
}

static qp_supervised_event next(qp_supervised *link)
{
    qp_supervised_event event;
    char text[512];

    TRY(qp_supervised_next(link, 30000, &event));
    if (event.kind != QP_SUPERVISED_DEAD) return event;
    TRY(qp_supervised_text(link, text, sizeof text, NULL));
    fprintf(stderr, "  %s\n", text);
    return event;
}

/* Sends all messages, in two lives of the connection; gives the number of lives. */
static int send_all(qp_supervised *link)
{
    uint64_t number = 0, done = 0;
    int lives = 0, up = 0;
    qp_send send;

    memset(&send, 0, sizeof send);
    send.op = QP_SEND;
    while (done < MESSAGES) {
        uint64_t most = lives < 2 ? MESSAGES / 2 : MESSAGES;
        qp_supervised_event event;

        while (up && number < most && number - done < WINDOW) {
            send.context = number;
            TRY(qp_supervised_post_inline(link, &send, (const uint8_t *)&number, SIZE));
            number++;
        }
        event = next(link);
        if (event.kind == QP_SUPERVISED_RECOVERED) up = 1, lives++;
        if (event.kind == QP_SUPERVISED_DEAD) up = 0;
        if (event.kind != QP_SUPERVISED_DONE) continue;
        if (event.fate != QP_FATE_DONE) return fprintf(stderr, "message %" PRIu64 " is not there\n", event.context), 0;
        if (++done == MESSAGES / 2) TRY(qp_supervised_restart(link));
    }
    return lives;
}

/* Receives all of them, in order. */
static int receive_all(qp_supervised *link, const uint64_t *numbers, const qp_recv *receives)
{
    uint64_t wanted = 0;
    int lives = 0;

    while (wanted < MESSAGES) {
        qp_supervised_event event = next(link);

        if (event.kind == QP_SUPERVISED_RECOVERED) lives++;
        if (event.kind != QP_SUPERVISED_RECEIVED) continue;
        if (numbers[event.context] != wanted++) return fprintf(stderr, "not message %" PRIu64 "\n", wanted - 1), 0;
        if (qp_supervised_post_recv(link, &receives[event.context]) && qp_last_code() != QP_CODE_DOWN) TRY(1);
    }
    return lives;
}

int main(int argc, char **argv)
{
    static qp_recv receives[RECEIVES];
    static qp_pair_attr attr;
    static char room[8 * ROOM], last[ROOM];
    size_t len;
    qp_supervised *link;
    qp_device *device;
    qp_pd *pd;
    qp_mr *mr;
    uint64_t *numbers;
    int rank, ranks, other, lives, least, i;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks % 2) return fprintf(stderr, "an even number of ranks, please\n"), MPI_Abort(MPI_COMM_WORLD, 2), 2;
    MPI_Buffer_attach(room, sizeof room);
    other = rank ^ 1;
    if (argc == 3 && !strcmp(argv[2], "soft")) TRY(qp_soft_open(NULL, &device));
    else device = open_device();
    TRY(qp_pd_create(device, &pd) || qp_mr_create(pd, RECEIVES * SIZE, 1 /* IBV_ACCESS_LOCAL_WRITE */, &mr));
    TRY(qp_mr_addr(mr, (void **)&numbers));
    for (i = 0; i < RECEIVES; i++) {
        receives[i].context = (uint64_t)i;
        receives[i].mr = mr;
        receives[i].offset = (size_t)i * SIZE;
        receives[i].len = SIZE;
    }
    attr.inline_data = SIZE;
    TRY(qp_supervised_meet(device, pd, &attr, NULL, NULL, 0, receives, rank % 2 ? RECEIVES : 0, tell, hear, &other, 1, &link));
    lives = rank % 2 ? receive_all(link, numbers, receives) : send_all(link);
    MPI_Allreduce(&lives, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0 && least == 2) printf("supervised over MPI: %d ranks, %d messages in 2 lives, all right\n", ranks, ranks / 2 * MESSAGES);
    TRY(qp_supervised_destroy(link));
    MPI_Barrier(MPI_COMM_WORLD); /* each end has said by now that it leaves: nobody else takes that off MPI */
    do {
        len = 0;
        if (hear(&other, last, sizeof last, &len)) len = 0;
    } while (len);
    TRY(qp_mr_destroy(mr) || qp_pd_destroy(pd) || qp_device_destroy(device));
    MPI_Finalize();
    return least != 2;
}
