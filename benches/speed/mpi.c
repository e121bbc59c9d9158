/* Two ranks: half of a round trip, and windows of 32 messages, by size. Prints "lat|bw SIZE VALUE" in us and GB/s. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 1 << 20, WINDOW = 32 };

static double latency(int rank, char *buffer, int size, int rounds)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int round = 0; round < rounds; round++) {
        if (rank == 0) {
            MPI_Send(buffer, size, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, size, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, size, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - start) / rounds / 2 * 1e6;
}

static double bandwidth(int rank, char *buffer, int size, int rounds)
{
    MPI_Request requests[WINDOW];
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int round = 0; round < rounds; round++) {
        for (int at = 0; at < WINDOW; at++) {
            if (rank == 0)
                MPI_Isend(buffer, size, MPI_CHAR, 1, 2, MPI_COMM_WORLD, &requests[at]);
            else
                MPI_Irecv(buffer, size, MPI_CHAR, 0, 2, MPI_COMM_WORLD, &requests[at]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return (double)size * WINDOW * rounds / (MPI_Wtime() - start) / 1e9;
}

int main(int argc, char **argv)
{
    static const struct { int size, messages, windows; } tests[] = {
        {8, 40000, 2000}, {64, 40000, 2000}, {4096, 20000, 1000}, {65536, 2000, 100}, {LARGEST, 100, 8},
    };
    int rank, divisor = argc > 1 ? atoi(argv[1]) : 1;
    char *buffer = malloc(LARGEST);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!buffer || divisor < 1)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(buffer, 1, LARGEST);
    for (size_t at = 0; at < sizeof tests / sizeof *tests; at++) {
        int size = tests[at].size, messages = tests[at].messages / divisor, windows = tests[at].windows / divisor;
        /* The first time finds out how the two talk with each other. */
        latency(rank, buffer, size, messages / 10 + 1);
        double lat = latency(rank, buffer, size, messages + 1);
        double bw = bandwidth(rank, buffer, size, windows + 1);
        if (rank == 0)
            printf("lat %d %.6f\nbw %d %.6f\n", size, lat, size, bw);
    }
    MPI_Finalize();
    return 0;
}
