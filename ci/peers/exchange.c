/* An MPI program that checks what it receives: ping-pong of growing messages, all-reduce, all-to-all. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void expect(int good, const char *what)
{
    if (!good) {
        printf("rank %d: %s: wrong data\n", rank, what);
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static unsigned char byte(size_t i, int from, int round)
{
    return (unsigned char)(i * 7 + i / 251 + (size_t)from * 31 + (size_t)round * 13);
}

/* Even ranks play with the odd rank after them, from nothing to 1 MiB. */
static void pingpong(void)
{
    static unsigned char out[1 << 20], in[1 << 20];
    int peer = rank ^ 1;
    for (int round = 0; round < 22; round++) {
        size_t size = round ? (size_t)1 << (round - 1) : 0;
        size = size > sizeof out ? sizeof out : size;
        for (size_t i = 0; i < size; i++) {
            out[i] = byte(i, rank, round);
            in[i] = 0xee;
        }
        MPI_Status status;
        if (rank & 1) {
            MPI_Recv(in, (int)size, MPI_BYTE, peer, round, MPI_COMM_WORLD, &status);
            MPI_Send(out, (int)size, MPI_BYTE, peer, round, MPI_COMM_WORLD);
        } else {
            MPI_Send(out, (int)size, MPI_BYTE, peer, round, MPI_COMM_WORLD);
            MPI_Recv(in, (int)size, MPI_BYTE, peer, round, MPI_COMM_WORLD, &status);
        }
        int count;
        MPI_Get_count(&status, MPI_BYTE, &count);
        expect((size_t)count == size, "ping-pong length");
        for (size_t i = 0; i < size; i++)
            expect(in[i] == byte(i, peer, round), "ping-pong");
    }
}

static void allreduce(void)
{
    enum { COUNT = 10000 };
    static int64_t mine[COUNT], sum[COUNT];
    for (int i = 0; i < COUNT; i++)
        mine[i] = (int64_t)i * (rank + 1);
    MPI_Allreduce(mine, sum, COUNT, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < COUNT; i++)
        expect(sum[i] == (int64_t)i * ranks * (ranks + 1) / 2, "all-reduce");
}

static void alltoall(void)
{
    enum { COUNT = 4000 };
    int *out = malloc(sizeof *out * COUNT * (size_t)ranks), *in = malloc(sizeof *in * COUNT * (size_t)ranks);
    for (int to = 0; to < ranks; to++)
        for (int i = 0; i < COUNT; i++)
            out[to * COUNT + i] = rank * 1000003 + to * 1009 + i;
    MPI_Alltoall(out, COUNT, MPI_INT, in, COUNT, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < COUNT; i++)
            expect(in[from * COUNT + i] == from * 1000003 + rank * 1009 + i, "all-to-all");
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks % 2) {
        fprintf(stderr, "an even number of ranks is needed\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    pingpong();
    allreduce();
    alltoall();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("all data right on %d ranks\n", ranks);
    MPI_Finalize();
    return 0;
}
