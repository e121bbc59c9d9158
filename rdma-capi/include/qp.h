/*
 * libqp 0.1.0: safe RDMA Queue Pairs for C and MPI programs.
 *
 * Made by header.sh; do not edit.
 *
 * Return value. Every function that can fail returns an int: 0, or a positive errno value, and errno is set to it as well. On
 * failure nothing is given out: results are written on success only, unless the function says otherwise. qp_last_error() has
 * a sentence that says what is wrong and what to change, qp_last_code() a number that says it to a program; both are kept per
 * thread until its next failure. These hold for all functions, and are not repeated below:
 *
 *   EINVAL  QP_CODE_NULL          a pointer is NULL that must not be
 *   EINVAL  QP_CODE_RANGE         a number is out of its range
 *   EBADF   QP_CODE_NO_HANDLE     a handle that the library never gave out
 *   EBADF   QP_CODE_WRONG_HANDLE  a handle of another type
 *   EBADF   QP_CODE_DESTROYED     a handle that was destroyed; destroying twice is this too
 *   EBUSY   QP_CODE_OCCUPIED      another thread is in a call with the object
 *   EDEADLK QP_CODE_REENTERED     a call from within the log callback (but for posting and polling)
 *   ENOTRECOVERABLE QP_CODE_INTERNAL  a fault of the library
 *
 * Ownership. What a function named ..._create, ..._open, ..._from, qp_accept or qp_exchange_... gives out in a handle is the
 * caller's, to be destroyed with the ..._destroy of its type. An object keeps what it was made from alive, but a destroy says
 * EBUSY (QP_CODE_IN_USE) while something still uses the object. Strings and structs that are handed in are copied.
 *
 * Handles are numbers that only look like pointers: do not dereference or compare them with anything but each other and NULL.
 * A handle that was destroyed is recognised, even after long. Objects of libibverbs (struct ibv_qp and so on) that are handed
 * in are real pointers, of which nothing can be known: they must be alive.
 *
 * Threads. Any thread may call any function. One object serves one call at a time, and a second one meanwhile is refused with
 * EBUSY; of qp_device, qp_pd, qp_mr, qp_dest and qp_listener many calls may be under way.
 *
 * Needs nothing but the C library at build time: libibverbs is found when it is first needed, in the process if it is there,
 * else on the system. <infiniband/verbs.h> may be included before or after, or not at all.
 */

#ifndef QP_H
#define QP_H

#include <stddef.h>
#include <stdint.h>
#define QP_VERSION_MAJOR 0
#define QP_VERSION_MINOR 1
#define QP_VERSION_PATCH 0
#define QP_VERSION "0.1.0"

/* Of <infiniband/verbs.h>. */
struct ibv_context;
struct ibv_pd;
struct ibv_mr;
struct ibv_cq;
struct ibv_srq;
struct ibv_qp;
struct ibv_qp_attr;
struct ibv_wc;

/**
 * A number that is not known.
 */
#define QP_UNKNOWN UINT64_MAX

/**
 * What went wrong with the last call of this thread that failed: qp_last_code() has it. An errno says less, so
 * look at the errno to decide, and at the code to tell cases apart. Numbers are never given to another meaning.
 */
typedef enum qp_code {
    /**
     * No call of this thread has failed yet.
     */
    QP_CODE_NONE = 0,
    /**
     * A pointer is NULL that must not be (EINVAL).
     */
    QP_CODE_NULL = 1,
    /**
     * This is no handle: the library never gave it out (EBADF).
     */
    QP_CODE_NO_HANDLE = 2,
    /**
     * A handle of another type (EBADF).
     */
    QP_CODE_WRONG_HANDLE = 3,
    /**
     * A handle whose object was destroyed (EBADF).
     */
    QP_CODE_DESTROYED = 4,
    /**
     * Another thread is in a call with an object that serves one thread at a time, or this thread is, in a callback
     * (EBUSY).
     */
    QP_CODE_OCCUPIED = 5,
    /**
     * A number is out of its range, or a flag is unknown (EINVAL).
     */
    QP_CODE_RANGE = 6,
    /**
     * A string is not UTF-8, or makes no sense (EINVAL).
     */
    QP_CODE_TEXT = 7,
    /**
     * A call from within the log callback (EDEADLK).
     */
    QP_CODE_REENTERED = 8,
    /**
     * A fault of the library: it should never happen, please report it (ENOTRECOVERABLE).
     */
    QP_CODE_INTERNAL = 9,
    /**
     * There is no libibverbs in this process or on this system (ENODEV).
     */
    QP_CODE_NO_VERBS = 10,
    /**
     * There is no such device, port or GID (ENODEV or ENODATA).
     */
    QP_CODE_NOT_FOUND = 11,
    /**
     * Looked at and found wrong before anything was called: nothing was changed (EINVAL, or what verbs would say).
     */
    QP_CODE_REFUSED = 12,
    /**
     * The verbs library, the device or the system refused (its errno).
     */
    QP_CODE_SYSTEM = 13,
    /**
     * Something still uses the object: it was not destroyed (EBUSY).
     */
    QP_CODE_IN_USE = 14,
    /**
     * The queue has no room (ENOMEM).
     */
    QP_CODE_FULL = 15,
    /**
     * The Queue Pair is in a state in which that cannot be (EINVAL).
     */
    QP_CODE_STATE = 16,
    /**
     * The deadline has passed (ETIMEDOUT).
     */
    QP_CODE_TIMED_OUT = 17,
    /**
     * The peer is gone, or does not keep to the steps (ECONNRESET or EPROTO).
     */
    QP_CODE_PEER = 18,
    /**
     * Bytes that are no endpoint record (EPROTO).
     */
    QP_CODE_RECORD = 19,
    /**
     * A request ended with an error or was flushed (EIO).
     */
    QP_CODE_FAILED = 20,
    /**
     * A buffer of the caller's is too short (ENOSPC).
     */
    QP_CODE_SHORT_BUFFER = 21,
    /**
     * The transport, or the device, has no such thing (EOPNOTSUPP).
     */
    QP_CODE_UNSUPPORTED = 22,
    /**
     * A callback of the program's returned an error (that error).
     */
    QP_CODE_CALLBACK = 23,
    /**
     * A limit of the device, of the object or of this library (ENOMEM or EINVAL).
     */
    QP_CODE_LIMIT = 24,
    /**
     * Two objects that do not belong together: of two protection domains, or of two devices (EINVAL).
     */
    QP_CODE_MISMATCH = 25,
    /**
     * A request without a completion to come: it was reported already, or thrown away by a reset (ESRCH).
     */
    QP_CODE_GONE = 26,
} qp_code;

/**
 * What a line of the log is: each level has those before it.
 */
typedef enum qp_log_level {
    /**
     * Nothing.
     */
    QP_LOG_NONE = 0,
    /**
     * Something is lost: an object that could not be destroyed.
     */
    QP_LOG_ERROR = 1,
    /**
     * A modify that was refused, a setting that is legal and does harm.
     */
    QP_LOG_WARN = 2,
    /**
     * Every move of a Queue Pair.
     */
    QP_LOG_INFO = 3,
    /**
     * What is made and destroyed.
     */
    QP_LOG_DEBUG = 4,
    /**
     * All that there is.
     */
    QP_LOG_TRACE = 5,
} qp_log_level;

/**
 * A channel to one peer. One thread at a time may call functions with it.
 */
typedef struct qp_exchange qp_exchange;

/**
 * A socket that waits for peers. Any thread may call functions with it.
 */
typedef struct qp_listener qp_listener;

/**
 * A Queue Pair that the program owns, looked after by the library. One thread at a time may call functions with it.
 */
typedef struct qp_ref qp_ref;

/**
 * Takes a line of the log.
 *
 * It may be called from any thread, by one at a time. The line is the library's, without a newline, and gone when the
 * function returns. The function must return (no longjmp, no C++ exception), and must not call this library: such a call is
 * refused with EDEADLK.
 *
 * @param context  What was given to qp_set_log().
 * @param level    One of enum qp_log_level.
 * @param line     What happened, for people.
 */
typedef void (*qp_log_fn)(void *context, int level, const char *line);

/**
 * When to repeat, and when to give up. Where a function takes one, NULL means what qp_timing_default() gives.
 */
typedef struct qp_timing {
    /**
     * Wait for an acknowledgement: 4.096 us x 2^timeout, 1..31; 0 waits for ever. Devices may take up to four times as long.
     */
    uint8_t timeout;
    /**
     * Repetitions after a missing acknowledgement, 0..7.
     */
    uint8_t retry_cnt;
    /**
     * Repetitions after the peer said that it had no receive, 0..6; 7 repeats for ever.
     */
    uint8_t rnr_retry;
    /**
     * How long the peer is asked to wait when this side has no receive: a code, 0..31; 0 is the longest, 655.36 ms.
     */
    uint8_t min_rnr_timer;
} qp_timing;

/**
 * Sends bytes to the peer and receives what the peer sends in the same step. Both ends call it.
 *
 * @param context    What was given to qp_exchange_from().
 * @param mine       The bytes to send.
 * @param len        Their number, at most 65536.
 * @param theirs     Where the peer's bytes go.
 * @param room       Room there.
 * @param their_len  Where their number goes.
 * @return 0, or an errno.
 */
typedef int (*qp_swap_fn)(void *context,
                          const void *mine,
                          size_t len,
                          void *theirs,
                          size_t room,
                          size_t *their_len);

/**
 * Waits until the peer has called it too.
 *
 * @param context  What was given to qp_exchange_from().
 * @return 0, or an errno.
 */
typedef int (*qp_barrier_fn)(void *context);

/**
 * One end of a connection to be: give all its bytes to the peer, by whatever you have. They mean the same on every machine.
 *
 * It is made by qp_endpoint_of() or qp_pair_endpoint(), with a PSN of its own, and good for one connection.
 */
typedef struct qp_endpoint {
    /**
     * What the peer reads.
     */
    uint8_t record[64];
    /**
     * What only this end reads.
     */
    uint8_t local[16];
} qp_endpoint;

/**
 * A memory region as a peer names it. It is what the peer told: nothing of it is checked before the peer's device does.
 */
typedef struct qp_region {
    /**
     * Address of its first byte, in the peer's process.
     */
    uint64_t addr;
    /**
     * Length in bytes.
     */
    uint64_t len;
    /**
     * Its remote key.
     */
    uint32_t rkey;
    /**
     * Must be 0.
     */
    uint32_t reserved;
} qp_region;

/**
 * How packets of one end are marked on their way. Where a function takes one, NULL means all zero, which is the usual.
 */
typedef struct qp_path {
    /**
     * Traffic class; on RoCE v2 the DSCP in the upper six bits and ECN in the lower two.
     */
    uint8_t traffic_class;
    /**
     * Service level, 0..15; on RoCE the priority of the VLAN tag.
     */
    uint8_t service_level;
    /**
     * Routers that a packet may pass, plus one; 0 means 64.
     */
    uint8_t hop_limit;
    /**
     * Must be 0.
     */
    uint8_t reserved;
    /**
     * Place of the partition key in the port's table; on RoCE 0.
     */
    uint16_t pkey_index;
    /**
     * Must be 0.
     */
    uint16_t reserved2;
    /**
     * Flow label, 20 bits.
     */
    uint32_t flow_label;
} qp_path;

/**
 * The books of a queue, or of a Queue Pair: accepted is the sum of the others. QP_UNKNOWN where something is not known.
 */
typedef struct qp_account {
    /**
     * Requests that were posted.
     */
    uint64_t accepted;
    /**
     * Ended well.
     */
    uint64_t succeeded;
    /**
     * Ended with an error of their own.
     */
    uint64_t failed;
    /**
     * Flushed: not executed, because the Queue Pair was in the error state.
     */
    uint64_t flushed;
    /**
     * Thrown away by a move to RESET: no outcome was reported, and none will be.
     */
    uint64_t discarded;
    /**
     * Without an outcome so far.
     */
    uint64_t pending;
} qp_account;

/**
 * Takes a completion.
 *
 * It is called within qp_ref_drain() or qp_ref_recover(), by the thread of the call. It must return (no longjmp, no C++
 * exception), and must not poll the same CQs.
 *
 * @param context  What was given to the call.
 * @param wc       The completion, valid until the function returns. Where the status is not IBV_WC_SUCCESS, only wr_id,
 *                 status, qp_num and vendor_err mean something.
 */
typedef void (*qp_wc_fn)(void *context, const struct ibv_wc *wc);

/**
 * Posts receives into a Queue Pair that is in INIT, so that the first messages of the peer find them.
 *
 * @param context  What was given to the call.
 * @return 0, or an errno, which ends the call.
 */
typedef int (*qp_repost_fn)(void *context);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Gives the version of the library that runs, such as "0.1.0"; QP_VERSION is that of the header. Both come from one
 * source. The string is static.
 */
const char *qp_version(void);

/**
 * Says in a sentence what went wrong with the last call of this thread that failed, and what to change. Never NULL;
 * empty where no call has failed. A call that succeeds leaves it as it is.
 *
 * The string is the library's, and stays until the next call of this thread that fails, or the end of the thread.
 */
const char *qp_last_error(void);

/**
 * Gives the code of the last call of this thread that failed, QP_CODE_NONE where none has.
 */
enum qp_code qp_last_code(void);

/**
 * Gives the name of a code, such as "QP_CODE_NULL"; "unknown" for a number that is none. The string is static.
 *
 * @param code  A code, as qp_last_code() gives it.
 */
const char *qp_code_name(int code);

/**
 * Sets the function that takes the log, for the whole process, in place of the one before. Without one nothing is
 * logged. When the call returns, the former function is not running any more and is not called again.
 *
 * Thread-safe. Posting and polling never log.
 *
 * @param level     The last level to be told, one of enum qp_log_level.
 * @param function  The function; NULL for none.
 * @param context   Handed to the function, never looked at.
 * @return 0, or EINVAL: there is no such level.
 */
int qp_set_log(int level,
               qp_log_fn function,
               void *context);

/**
 * Gives the usual timing: timeout 14 (67 ms) and 6 repetitions, so that a dead peer is an error after about half a
 * second; RNR repetitions without limit, 0.64 ms apart.
 */
int qp_timing_default(struct qp_timing *timing);

/**
 * Gives the timing for a measured round trip: long enough that jitter does not look like loss, and the usual
 * otherwise.
 *
 * @param rtt_ns  The round trip in nanoseconds.
 */
int qp_timing_from_rtt(uint64_t rtt_ns, struct qp_timing *timing);

/**
 * Listens for peers on a TCP address.
 *
 * @param address   "host:port"; port 0 takes a free one.
 * @param listener  Where the handle goes; destroy it with qp_listener_destroy().
 */
int qp_listen(const char *address, struct qp_listener **listener);

/**
 * Tells the address that a listener has, such as "127.0.0.1:38765". Arguments and result as qp_query_text().
 */
int qp_listener_address(struct qp_listener *listener, char *text, size_t size, size_t *needed);

/**
 * Takes the next peer of a listener.
 *
 * @param timeout_ms  Bounds this call and every later step of the channel, in milliseconds; below 0: no bound.
 * @param exchange    Where the handle goes; destroy it with qp_exchange_destroy().
 * @return 0, ETIMEDOUT, or what the system said.
 */
int qp_accept(struct qp_listener *listener,
              int64_t timeout_ms,
              struct qp_exchange **exchange);

/**
 * Ends a listener. What it accepted goes on.
 */
int qp_listener_destroy(struct qp_listener *listener);

/**
 * Connects to a peer that listens, repeating until it does.
 *
 * @param address     "host:port".
 * @param timeout_ms  Bounds this call and every later step of the channel, in milliseconds; below 0: no bound.
 * @param exchange    Where the handle goes; destroy it with qp_exchange_destroy().
 */
int qp_exchange_tcp(const char *address,
                    int64_t timeout_ms,
                    struct qp_exchange **exchange);

/**
 * Meets one other process of this host through shared memory: both give the same name, and nobody else does.
 *
 * @param name        A name, or a path.
 * @param timeout_ms  As for qp_exchange_tcp().
 */
int qp_exchange_shm(const char *name, int64_t timeout_ms, struct qp_exchange **exchange);

/**
 * Makes a channel of two functions of the program's: for MPI, PMIx, sockets, files.
 *
 * The functions are called within calls that get the channel, by the thread of the call. They must return (no longjmp,
 * no C++ exception). They may call the library, but not with the objects of that call.
 *
 * @param swap      Swaps bytes with the peer.
 * @param barrier   Waits for the peer.
 * @param context   Handed to both, never looked at; it must stay usable until the channel is destroyed.
 * @param exchange  Where the handle goes; destroy it with qp_exchange_destroy().
 */
int qp_exchange_from(qp_swap_fn swap,
                     qp_barrier_fn barrier,
                     void *context,
                     struct qp_exchange **exchange);

/**
 * Tells the peer of this end, and gets what the peer tells. The peer calls it at the same step.
 *
 * @param here     This end, of qp_endpoint_of() or qp_pair_endpoint().
 * @param offered  Regions that the peer may reach; NULL if count is 0.
 * @param count    Their number, at most 1024.
 * @param there    Where the peer's end goes.
 * @param regions  Where the peer's regions go, in its order; NULL if room is 0.
 * @param room     Room there.
 * @param found    Where the number of regions that the peer offers goes; may be NULL.
 * @return 0; ENOSPC (QP_CODE_SHORT_BUFFER): the peer offers more regions than there is room for, all else is done;
 *         or why the exchange failed.
 */
int qp_exchange_swap(struct qp_exchange *exchange,
                     const struct qp_endpoint *here,
                     const struct qp_region *offered,
                     size_t count,
                     struct qp_endpoint *there,
                     struct qp_region *regions,
                     size_t room,
                     size_t *found);

/**
 * Swaps bytes of the program's with the peer, which calls it at the same step.
 *
 * @param mine       Bytes to send; NULL if len is 0.
 * @param len        Their number, at most 65536.
 * @param theirs     Where the peer's bytes go; NULL if room is 0.
 * @param room       Room there.
 * @param their_len  Where their number goes.
 * @return 0; ENOSPC (QP_CODE_SHORT_BUFFER): there were more, and what did not fit is gone; or why it failed.
 */
int qp_exchange_swap_bytes(struct qp_exchange *exchange,
                           const uint8_t *mine,
                           size_t len,
                           uint8_t *theirs,
                           size_t room,
                           size_t *their_len);

/**
 * Waits until the peer has called this too.
 */
int qp_exchange_barrier(struct qp_exchange *exchange);

/**
 * Ends a channel. The peer's next step fails with ECONNRESET.
 */
int qp_exchange_destroy(struct qp_exchange *exchange);

/**
 * Modifies a Queue Pair of the program's, as ibv_modify_qp(3) does, after looking at the call.
 *
 * The real state is asked of the device, because that in the struct may be stale. Then the mask is checked against the
 * transition rules, and the values against their ranges and what device and port allow. A call that cannot succeed is
 * not made, and qp_last_error() says everything that is wrong with it. The move is logged.
 *
 * @param qp         A Queue Pair that is alive, with its PD, CQs and context; any type, of any device.
 * @param attr       The attributes; those without a bit in the mask are not looked at.
 * @param attr_mask  Bits of enum ibv_qp_attr_mask.
 * @return 0, or an errno (and errno is set): EINVAL, or EPERM for a privileged Q_Key, where the call was not made
 *         (QP_CODE_REFUSED); else what the device said (QP_CODE_SYSTEM). Either way nothing was changed.
 *
 * Threads: any, but nobody else modifies the same Queue Pair at the same time.
 */
int qp_modify(struct ibv_qp *qp,
              const struct ibv_qp_attr *attr,
              int attr_mask);

/**
 * Looks at a modify as qp_modify() does, and does not make it.
 *
 * @param ignored  Where the bits of the mask go that would be ignored, because they mean nothing on this transport;
 *                 may be NULL.
 * @return 0: nothing is wrong with it. Else as qp_modify().
 */
int qp_check(struct ibv_qp *qp,
             const struct ibv_qp_attr *attr,
             int attr_mask,
             int *ignored);

/**
 * Asks the device for the state of a Queue Pair of the program's.
 *
 * @param state  Where it goes: one of enum ibv_qp_state.
 */
int qp_state(struct ibv_qp *qp, int *state);

/**
 * Describes a Queue Pair of the program's for people: all its attributes, asked of the device, several lines.
 *
 * @param text    Where the text goes, with its end; NULL only if size is 0.
 * @param size    Bytes there.
 * @param needed  Where the length of the whole text goes, its end included; may be NULL.
 * @return 0; ENOSPC (QP_CODE_SHORT_BUFFER): the text was cut off; or what the device said.
 */
int qp_query_text(struct ibv_qp *qp, char *text, size_t size, size_t *needed);

/**
 * Describes a Queue Pair of the program's for programs: one JSON document of the device, its ports and GIDs, and the
 * attributes of the Queue Pair. It is what `qp doctor` reads. Arguments and result as qp_query_text().
 */
int qp_query_json(struct ibv_qp *qp,
                  char *text,
                  size_t size,
                  size_t *needed);

/**
 * Describes a Queue Pair of the program's for its peer, with a random first PSN.
 *
 * @param qp         A Queue Pair that is alive: RC, UC or XRC.
 * @param port       Its port, counted from 1.
 * @param gid_index  Place of the GID in the port's table; -1 chooses one: RoCE v2, not link-local, not empty.
 * @param here       Where the description goes. Give all its bytes to the peer.
 * @return 0; ENODEV or ENODATA (QP_CODE_NOT_FOUND): there is no such port or GID, or none that will do; or what the
 *         device said.
 */
int qp_endpoint_of(struct ibv_qp *qp,
                   int port,
                   int gid_index,
                   struct qp_endpoint *here);

/**
 * Describes a Queue Pair as qp_endpoint_of() does, with options of its path.
 */
int qp_endpoint_with(struct ibv_qp *qp,
                     int port,
                     int gid_index,
                     const struct qp_path *options,
                     struct qp_endpoint *here);

/**
 * Moves a fresh Queue Pair of the program's to INIT, so that receives can be posted before the peer can send.
 *
 * @param here    What qp_endpoint_of() made.
 * @param access  What the peer may do: bits of enum ibv_access_flags; -1: WRITE, READ and atomics.
 * @return 0, or as qp_modify().
 */
int qp_init(struct ibv_qp *qp, const struct qp_endpoint *here, int access);

/**
 * First half of connecting: to RTR, where the Queue Pair receives; from RESET by way of INIT. Then wait until the peer
 * has done it too (one barrier does for any number of Queue Pairs), and call qp_connect_finish().
 *
 * @param here    What qp_endpoint_of() made of this Queue Pair.
 * @param there   What the peer told.
 * @param timing  NULL for the usual one.
 * @return 0; EINVAL (QP_CODE_STATE): the Queue Pair is connected already; EPROTO (QP_CODE_RECORD): the peer's bytes
 *         are no endpoint; or as qp_modify(). The Queue Pair stays in the state that it has reached.
 */
int qp_connect_begin(struct ibv_qp *qp,
                     const struct qp_endpoint *here,
                     const struct qp_endpoint *there,
                     const struct qp_timing *timing);

/**
 * Second half of connecting: to RTS. The peer must be in RTR: what is sent before that is lost. Arguments as for
 * qp_connect_begin(), the same.
 */
int qp_connect_finish(struct ibv_qp *qp,
                      const struct qp_endpoint *here,
                      const struct qp_endpoint *there,
                      const struct qp_timing *timing);

/**
 * Connects a Queue Pair of the program's, from RESET to RTS: describes it, swaps with the peer, moves it to INIT and RTR,
 * waits for the peer, moves it to RTS. The peer calls it at the same step.
 *
 * @param exchange  The channel to the peer, see qp_exchange_from() for one of the program's own.
 * @param timing    NULL for the usual one.
 * @return 0, or why a step failed: as qp_endpoint_of(), qp_exchange_swap() and qp_connect_begin().
 */
int qp_connect(struct ibv_qp *qp,
               int port,
               int gid_index,
               struct qp_exchange *exchange,
               const struct qp_timing *timing);

/**
 * Takes a Queue Pair that the program owns into the library's care, and leaves it where it is: the program goes on
 * posting, polling and modifying, and destroys it in the end.
 *
 * @param qp   A Queue Pair that is alive. It, its PD, its CQs and its context must stay so until qp_ref_destroy().
 * @param handle  Where the handle goes.
 */
int qp_ref_create(struct ibv_qp *qp,
                  struct qp_ref **handle);

/**
 * Tells the library that the program has posted requests: those that will complete, so of unsignaled sends none. Without
 * that the accounts say QP_UNKNOWN for what follows from it.
 *
 * @param count  Requests.
 */
int qp_ref_posted(struct qp_ref *handle,
                  uint64_t count);

/**
 * Tells the library of completions that the program has polled. Those of other Queue Pairs are left out, so all that
 * ibv_poll_cq() gave can be handed over.
 *
 * @param wc     Completions; NULL if count is 0.
 * @param count  Their number.
 */
int qp_ref_completed(struct qp_ref *handle,
                     const struct ibv_wc *wc,
                     size_t count);

/**
 * Tells what is known of the requests of both queues together. Where the program told no posts (qp_ref_posted()),
 * accepted, discarded and pending are QP_UNKNOWN.
 */
int qp_ref_account(struct qp_ref *handle,
                   struct qp_account *account);

/**
 * Empties both queues: moves the Queue Pair to ERR, posts one request without data behind all others of each queue, and
 * hands every completion of its CQs over until it has seen these two, which are not handed over. Those of other Queue
 * Pairs on the same CQs are handed over too: qp_num tells whose they are.
 *
 * @param timeout_ms   How long that may take, in milliseconds; below 0: no limit.
 * @param function     Takes the completions; NULL: nobody does.
 * @param context      Handed to the function.
 * @param completions  Where the number of those that were handed over goes; may be NULL.
 * @return 0; ETIMEDOUT (QP_CODE_TIMED_OUT): a queue is not known to be empty, call it again; or as qp_modify().
 *
 * Nobody else may poll the CQs meanwhile. With an SRQ the receives that stay in it are not drained.
 */
int qp_ref_drain(struct qp_ref *handle,
                 int64_t timeout_ms,
                 qp_wc_fn function,
                 void *context,
                 uint64_t *completions);

/**
 * Gives the Queue Pair a new life: drains it as qp_ref_drain() does, moves it to RESET, tells the peer of it with a fresh
 * PSN, has the receives posted, and connects it again. The peer does the same at the same time.
 *
 * @param port        Its port, counted from 1.
 * @param gid_index   As for qp_endpoint_of().
 * @param exchange    The channel to the peer.
 * @param timing      NULL for the usual one.
 * @param timeout_ms  How long the drain may take.
 * @param function    Takes the completions of the former life; NULL: nobody does.
 * @param repost      Posts the receives, in INIT; NULL: there are none to post.
 * @param context     Handed to both functions.
 * @return 0, or why a step failed; calling it again begins anew, and the peer has to as well.
 */
int qp_ref_recover(struct qp_ref *handle,
                   int port,
                   int gid_index,
                   struct qp_exchange *exchange,
                   const struct qp_timing *timing,
                   int64_t timeout_ms,
                   qp_wc_fn function,
                   qp_repost_fn repost,
                   void *context);

/**
 * Ends the library's care. The Queue Pair itself is the program's, before and after.
 */
int qp_ref_destroy(struct qp_ref *handle);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QP_H */
