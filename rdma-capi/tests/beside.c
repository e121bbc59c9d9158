/* libqp.a beside another library in Rust: each has its own runtime, and neither sees the other's. */
#include <qp.h>
#include <stdio.h>

extern int other_catches(void);

int main(void)
{
    qp_device *device;

    if (qp_soft_open(NULL, &device) || qp_device_destroy(device)) return fprintf(stderr, "%s\n", qp_last_error()), 1;
    if (qp_device_destroy(device) == 0) return fprintf(stderr, "destroyed twice\n"), 1;
    return other_catches() == 1 ? 0 : 1;
}
