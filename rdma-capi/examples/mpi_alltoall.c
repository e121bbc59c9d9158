/* All to all: in each round every rank sends a message of its own to every other one, and looks at
 * every byte that it gets. mpi_job.h says what can be chosen.
 *
 *   mpicc mpi_alltoall.c $(pkg-config --cflags --libs qp) -o mpi_alltoall
 *   mpirun -n 4 mpi_alltoall --transport ud
 */
#include "mpi_job.h"

int main(int argc, char **argv)
{
    static job j;
    unsigned long bytes = 0;
    message m;
    int arrived[2] = {0, 0}, round, rank, others;
    size_t i;

    job_begin(&j, argc, argv);
    others = j.ranks - 1;
    for (round = 0; round < j.rounds; round++) {
        int *here = &arrived[round % 2];

        die_in(&j, round);
        for (rank = 0; rank < j.ranks; rank++) {
            if (rank == j.rank) continue;
            for (i = 0; i < SIZE; i++)
                send_slot(&j, rank)[i] = pattern(j.rank, rank, (unsigned)round, i);
            send_to(&j, rank, SIZE, (uint32_t)round);
        }
        /* The round is over when all messages of it are there, and all slots to send from are
         * free. Who is faster than we are may have begun the next one, but no more: that needs
         * our message of this one. */
        while (*here < others || j.sending > 0) {
            if (!progress(&j, &m)) continue;
            check(&j, &m, m.rank, j.rank, m.round);
            arrived[m.round % 2]++;
            bytes += m.len;
            receive_into(&j, m.slot);
        }
        *here = 0;
    }
    job_end(&j, "all-to-all", bytes);
    return 0;
}
