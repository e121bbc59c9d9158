/* The header stands alone and beside <infiniband/verbs.h>, before and after it; library and header are of one version. */
#ifdef VERBS_BEFORE
#include <infiniband/verbs.h>
#endif
#include <qp.h>
#ifdef VERBS_AFTER
#include <infiniband/verbs.h>
#endif
#include <stdio.h>
#include <string.h>

int main(void)
{
    char version[64];

    sprintf(version, "%d.%d.%d", QP_VERSION_MAJOR, QP_VERSION_MINOR, QP_VERSION_PATCH);
    printf("header %s, library %s\n", version, qp_version());
    return strcmp(version, qp_version()) || strcmp(QP_VERSION, qp_version());
}
