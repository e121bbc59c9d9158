/* A ring: every rank sends to its right neighbour only. In each lap the block of each rank goes round until all others have
 * seen it, and each of them looks at every byte. mpi_job.h says what can be chosen, and how to run it:
 *
 *   mpicc mpi_ring.c $(pkg-config --cflags --libs qp) -o mpi_ring && mpirun -n 4 mpi_ring
 */
#include "mpi_job.h"

int main(int argc, char **argv)
{
    static job j;
    unsigned long bytes = 0;
    message m;
    int lap, step, right, *there;
    char *inbox;
    size_t i;

    job_begin(&j, argc, argv);
    right = (j.rank + 1) % j.ranks;
    /* Blocks that came before their turn: at most one of each step of a lap. */
    inbox = zeroed((size_t)j.ranks, SIZE);
    there = zeroed((size_t)j.ranks, sizeof *there);
    for (lap = 0; lap < j.rounds; lap++) {
        die_in(&j, lap);
        for (i = 0; i < SIZE; i++) send_slot(&j, right)[i] = pattern(j.rank, 0, (unsigned)lap, i);
        for (step = 0; step < j.ranks - 1; step++) {
            unsigned number = (unsigned)(lap * (j.ranks - 1) + step), place = number % (unsigned)j.ranks;

            send_to(&j, right, SIZE, number);
            while (!there[place] || j.sending > 0) {
                if (!progress(&j, &m)) continue;
                /* It began its way m.round steps of a lap ago. */
                check(&j, &m, (j.rank + j.ranks - 1 - (int)m.round % (j.ranks - 1)) % j.ranks, 0, m.round / (unsigned)(j.ranks - 1));
                there[m.round % (unsigned)j.ranks] = 1;
                memcpy(inbox + m.round % (unsigned)j.ranks * SIZE, m.bytes, SIZE);
                bytes += m.len;
                receive_into(&j, m.slot);
            }
            memcpy(send_slot(&j, right), inbox + place * SIZE, SIZE);
            there[place] = 0;
        }
    }
    free(inbox);
    free(there);
    job_end(&j, "ring", bytes);
    return 0;
}
