/* What the examples share: a call that must succeed. */
#ifndef TRY_H
#define TRY_H

#include <qp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) \
    do { if (call) { fprintf(stderr, "%s\n  %s\n", #call, qp_last_error()); exit(1); } } while (0)

/* Opens the first adapter, or makes a software device where there is none. */
static inline qp_device *open_device(void)
{
    qp_device *device;

    if (qp_device_open(NULL, &device)) TRY(qp_soft_open(NULL, &device));
    return device;
}

/* Listens on an address and says so. */
static inline qp_listener *open_listener(const char *address)
{
    qp_listener *listener;
    char text[64];

    TRY(qp_listen(address, &listener));
    TRY(qp_listener_address(listener, text, sizeof text, NULL));
    fprintf(stderr, "waiting: %s\n", text);
    return listener;
}

/* Waits for one completion, which must be a success. */
static inline qp_completion wait_one(qp_cq *cq)
{
    qp_completion done;
    char why[2048];

    TRY(qp_wait(cq, 20000, &done, 1, NULL));
    if (done.status) {
        TRY(qp_cq_explain(cq, why, sizeof why, NULL));
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    return done;
}

#endif
