/* A ring: every rank sends to its right neighbour only. In each lap the block of each rank goes
 * round until all others have seen it, and each of them looks at every byte. mpi_job.h says what
 * can be chosen.
 *
 *   mpicc mpi_ring.c $(pkg-config --cflags --libs qp) -o mpi_ring
 *   mpirun -n 4 mpi_ring
 */
#include "mpi_job.h"

int main(int argc, char **argv)
{
    static job j;
    unsigned long bytes = 0;
    message m;
    int lap, step, right, hops, *there;
    char *inbox;
    size_t i;

    job_begin(&j, argc, argv);
    right = (j.rank + 1) % j.ranks;
    hops = j.ranks - 1; /* of each block in a lap */
    /* Blocks of the left neighbour until it is their turn; it is at most so many ahead of us. */
    inbox = zeroed((size_t)j.ranks, SIZE);
    there = zeroed((size_t)j.ranks, sizeof *there);
    for (lap = 0; lap < j.rounds; lap++) {
        die_in(&j, lap);
        for (i = 0; i < SIZE; i++) send_slot(&j, right)[i] = pattern(j.rank, 0, (unsigned)lap, i);
        for (step = lap * hops; step < (lap + 1) * hops; step++) {
            int place = step % j.ranks;

            send_to(&j, right, SIZE, (uint32_t)step);
            while (!there[place] || j.sending > 0) {
                int back, its_place;

                if (!progress(&j, &m)) continue;
                back = 1 + (int)m.round % hops; /* so many ranks to the left it was written */
                its_place = (int)m.round % j.ranks;
                check(&j, &m, (j.rank + j.ranks - back) % j.ranks, 0, m.round / (unsigned)hops);
                memcpy(inbox + its_place * SIZE, m.bytes, SIZE);
                there[its_place] = 1;
                bytes += m.len;
                receive_into(&j, m.slot);
            }
            there[place] = 0;
            memcpy(send_slot(&j, right), inbox + place * SIZE, SIZE); /* for the next step */
        }
    }
    free(inbox);
    free(there);
    job_end(&j, "ring", bytes);
    return 0;
}
