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
 * Ownership. What a function gives out in a handle is the caller's, to be destroyed with the ..._destroy of its type (a qp_shared
 * ends by qp_shared_end()). An object keeps what it was made from alive, but a destroy says EBUSY (QP_CODE_IN_USE) while something
 * still uses the object. Strings and structs that are handed in are copied.
 *
 * Handles are numbers that only look like pointers: do not dereference or compare them with anything but each other and NULL.
 * A handle that was destroyed is recognised, even after long. Objects of libibverbs (struct ibv_qp and so on) that are handed
 * in are real pointers, of which nothing can be known: they must be alive.
 *
 * Threads. Any thread may call any function. One object serves one call at a time, and a second one meanwhile is refused with
 * EBUSY; of qp_device, qp_pd, qp_mr, qp_dest, qp_listener, qp_shared and qp_xrc_domain many calls may be under way. No function
 * may be called by a signal handler. A child of fork(2) opens what it needs itself: handles of its parent are of no use to it. What is
 * not destroyed when the process ends, ends with it.
 *
 * Names. What verbs call something else:
 *
 *   context of qp_send, qp_recv, qp_completion   wr_id
 *   send_depth, recv_depth                       max_send_wr, max_recv_wr
 *   send_ranges, recv_ranges                     max_send_sge, max_recv_sge
 *   inline_data                                  max_inline_data
 *   qp_range: mr, offset, len                    ibv_sge: lkey, addr, length
 *   qp_region: what a peer is told               addr, length and rkey of an ibv_mr
 *   qp_pair; qp_ref, of one that you made        ibv_qp
 *   qp_dest                                      ibv_ah, with remote_qpn and remote_qkey of a request
 *   op, enum qp_op; operation                    opcode of ibv_send_wr; of ibv_wc
 *   imm, in host byte order                      imm_data, in network byte order
 *   QP_UNSIGNALED; requests are signaled         no IBV_SEND_SIGNALED
 *   qp_cq_arm(), qp_cq_take_events()             ibv_req_notify_cq(); ibv_get_cq_event() and ibv_ack_cq_events()
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
 * In qp_completion.flags: imm is immediate data that came with the message.
 */
#define QP_HAS_IMM 1

/**
 * In qp_completion.flags: the receive was taken by an RDMA WRITE with immediate: the data is where the peer wrote to.
 */
#define QP_BY_WRITE 2

/**
 * In qp_completion.flags: imm is the key of this side that the peer invalidated.
 */
#define QP_INVALIDATED 4

/**
 * In qp_completion.flags: the receive is a datagram, its buffer begins with 40 bytes that are the device's, and sender_qp_num
 * and what follows say who sent it.
 */
#define QP_DATAGRAM 8

/**
 * In qp_completion.flags: these 40 bytes are filled: always on Ethernet.
 */
#define QP_HAS_GRH 16

/**
 * In qp_pair_attr.flags: what a UD Queue Pair sends to a group that it is a member of does not come back to it.
 */
#define QP_BLOCK_SELF_MCAST 1

/**
 * In qp_send.flags, as IBV_SEND_FENCE: begin only when all earlier READs and atomics of the Queue Pair are done.
 */
#define QP_FENCE 1

/**
 * In qp_send.flags, as IBV_SEND_SOLICITED: wake the peer even if it sleeps for solicited completions only.
 */
#define QP_SOLICITED 4

/**
 * In qp_send.flags, as IBV_SEND_INLINE: copy the data during the call, so that the region is free at once.
 */
#define QP_INLINE 8

/**
 * In qp_send.flags: no completion on success. The request is done when a later signaled one of its Queue Pair is.
 */
#define QP_UNSIGNALED 2147483648

/**
 * Bytes of a card in which a process offers up to 16 regions: what qp_mesh_card() and qp_mesh_join() take for each process.
 */
#define QP_MESH_CARD 512

/**
 * Bytes of a card: what an end tells its peers of itself.
 */
#define QP_DATAGRAMS_CARD 128

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
    /**
     * There is no connection at present (ENOTCONN).
     */
    QP_CODE_DOWN = 27,
    /**
     * A supervised connection has come to its end: it gave up, or its device is gone (ESHUTDOWN or ENODEV).
     */
    QP_CODE_OVER = 28,
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
 * What a request asks for.
 */
typedef enum qp_op {
    /**
     * SEND into the next receive of the peer; on UD, of whom `to` names.
     */
    QP_SEND = 0,
    /**
     * SEND with immediate data.
     */
    QP_SEND_WITH_IMM = 1,
    /**
     * SEND that invalidates a key of the peer, given as imm (RC).
     */
    QP_SEND_WITH_INV = 2,
    /**
     * RDMA WRITE (RC, UC).
     */
    QP_WRITE = 3,
    /**
     * RDMA WRITE with immediate data, which takes a receive of the peer (RC, UC).
     */
    QP_WRITE_WITH_IMM = 4,
    /**
     * RDMA READ (RC).
     */
    QP_READ = 5,
    /**
     * Atomic compare and swap of 8 bytes (RC).
     */
    QP_CMP_AND_SWP = 6,
    /**
     * Atomic fetch and add to 8 bytes (RC).
     */
    QP_FETCH_AND_ADD = 7,
    /**
     * Invalidation of a key of this side, given as imm (RC, UC).
     */
    QP_LOCAL_INV = 8,
    /**
     * A memory window was bound. Only in completions.
     */
    QP_BIND = 9,
    /**
     * A receive. Only in completions.
     */
    QP_RECV = 10,
} qp_op;

/**
 * Which queue a completion is of.
 */
typedef enum qp_queue {
    /**
     * The send queue.
     */
    QP_SQ = 0,
    /**
     * The receive queue.
     */
    QP_RQ = 1,
    /**
     * A shared receive queue.
     */
    QP_SRQ = 2,
} qp_queue;

/**
 * The transports that qp_pair_create() makes Queue Pairs of, numbered as in enum ibv_qp_type.
 */
typedef enum qp_transport {
    /**
     * Reliable connection: every operation, acknowledged and in order, with one peer.
     */
    QP_RC = 2,
    /**
     * Unreliable connection: SEND and RDMA WRITE with one peer; what is lost is not repeated, and nobody is told.
     */
    QP_UC = 3,
    /**
     * Unreliable datagrams: SEND of up to one path MTU, each to a peer or group of its own.
     */
    QP_UD = 4,
    /**
     * XRC initiator: sends to the SRQs of one node, each request to one of them; it has no receives.
     */
    QP_XRC = 9,
} qp_transport;

/**
 * How a domain is opened.
 */
typedef enum qp_opening {
    /**
     * It is made if no process has it open.
     */
    QP_OPEN_OR_CREATE = 0,
    /**
     * No process has it open, and it is made.
     */
    QP_CREATE_NEW = 1,
    /**
     * A process has it open.
     */
    QP_OPEN_EXISTING = 2,
} qp_opening;

/**
 * What happened in a mesh.
 */
typedef enum qp_mesh_kind {
    /**
     * A message came from `rank`, of `len` bytes.
     */
    QP_MESH_MESSAGE = 1,
    /**
     * The request `op` towards `rank` has ended.
     */
    QP_MESH_DONE = 2,
    /**
     * The process `rank` has failed: nothing is sent to it any more.
     */
    QP_MESH_FAILED = 3,
    /**
     * The process `rank` has left the job.
     */
    QP_MESH_LEFT = 4,
} qp_mesh_kind;

/**
 * What the peer made of a request.
 */
typedef enum qp_fate {
    /**
     * It was executed.
     */
    QP_FATE_DONE = 0,
    /**
     * It was not executed.
     */
    QP_FATE_NOT_DONE = 1,
    /**
     * It may have been executed or not.
     */
    QP_FATE_UNKNOWN = 2,
} qp_fate;

/**
 * What happened to a supervised connection.
 */
typedef enum qp_supervised_kind {
    /**
     * The request `context` has ended; `fate` says what the peer made of it, and `completion.status` how it ended: one of enum
     * ibv_wc_status, UINT32_MAX where it had no completion of its own. Every request that was posted gets one of these, once.
     */
    QP_SUPERVISED_DONE = 1,
    /**
     * A message came, into the receive `context`; `completion` says all of it. Look at the data before the next call, and post
     * the receive again.
     */
    QP_SUPERVISED_RECEIVED = 2,
    /**
     * UC and UD: a probe of the peer's, or the answer to one, took the receive `context`: post it again.
     */
    QP_SUPERVISED_HEARTBEAT = 3,
    /**
     * Nothing was heard for a while, so the peer is probed.
     */
    QP_SUPERVISED_PROBING = 4,
    /**
     * Requests are under way, nothing was heard for `us`, and the device has not given up.
     */
    QP_SUPERVISED_SILENT = 5,
    /**
     * The connection is dead; `why`. What became of its requests follows, and then QP_SUPERVISED_ENDED.
     */
    QP_SUPERVISED_DEAD = 6,
    /**
     * The connection has ended, and every request of it was told of; `not_done` and `unknown` count those that were not known
     * to be done, and `complete` is 0 if the device did not say of each what became of it. Nothing is posted again by itself.
     */
    QP_SUPERVISED_ENDED = 7,
    /**
     * The peer will be looked for, for the `attempt`th time, in `us`.
     */
    QP_SUPERVISED_RECOVERING = 8,
    /**
     * The connection is there, for the first time or again, by the `attempt`th attempt, `us` after there was none. A peer that
     * was restarted has other regions: qp_supervised_peer().
     */
    QP_SUPERVISED_RECOVERED = 9,
    /**
     * There was no connection for `us`, and nobody is looked for any more: see qp_supervised_options.give_up_ms.
     */
    QP_SUPERVISED_GAVE_UP = 10,
    /**
     * The port went down. Nobody is probed or looked for until it is up.
     */
    QP_SUPERVISED_PORT_DOWN = 11,
    /**
     * The port is up again.
     */
    QP_SUPERVISED_PORT_UP = 12,
    /**
     * The GID that the peer knows is gone: the connection is made anew with another one.
     */
    QP_SUPERVISED_GID_CHANGED = 13,
    /**
     * The device is gone, or does not work any more: this is the end.
     */
    QP_SUPERVISED_DEVICE_REMOVED = 14,
    /**
     * `device` happened to the device, and concerns not this connection alone: hand it to the others that are on the same
     * qp_device, with qp_supervised_device_event().
     */
    QP_SUPERVISED_DEVICE = 15,
    /**
     * Something that has no number here yet: qp_supervised_text() says it.
     */
    QP_SUPERVISED_OTHER = 16,
} qp_supervised_kind;

/**
 * Why a supervised connection ended.
 */
typedef enum qp_supervised_why {
    /**
     * A request or a probe failed, and with it the Queue Pair; `completion.status` says how. IBV_WC_RETRY_EXC_ERR: the peer
     * does not answer.
     */
    QP_WHY_FAILED = 1,
    /**
     * Nothing was heard for too long, and the device did not tell.
     */
    QP_WHY_SILENT = 2,
    /**
     * The channel to the peer closed: its process ended, or it has noticed a failure.
     */
    QP_WHY_CHANNEL_LOST = 3,
    /**
     * The peer came anew: it was restarted, or has noticed a failure.
     */
    QP_WHY_PEER_CAME_ANEW = 4,
    /**
     * The device said that the Queue Pair is in error; `device` says what.
     */
    QP_WHY_EVENT = 5,
    /**
     * The GID that the peer knows is gone.
     */
    QP_WHY_GID_CHANGED = 6,
    /**
     * The device is gone, or does not work any more.
     */
    QP_WHY_DEVICE_REMOVED = 7,
    /**
     * The program asked for it: qp_supervised_restart().
     */
    QP_WHY_ASKED = 8,
    /**
     * Something that has no number here yet: qp_supervised_text() says it.
     */
    QP_WHY_OTHER = 9,
} qp_supervised_why;

/**
 * What is known of a peer that answers while nothing else goes on.
 */
typedef enum qp_supervised_proof {
    /**
     * RC: the peer's process is there. A probe takes no receive.
     */
    QP_PROOF_PROCESS = 1,
    /**
     * XRC: the peer's node is there, and not its process: that has ended when the channel to it closes. With qp_supervised_meet()
     * nothing may tell that.
     */
    QP_PROOF_NODE = 2,
    /**
     * UC and UD: the peer's process is there, and calls qp_supervised_next(). A probe, and its answer, take a receive each.
     */
    QP_PROOF_ECHO = 3,
} qp_supervised_proof;

/**
 * What happened to an end for datagrams.
 */
typedef enum qp_datagrams_kind {
    /**
     * A message of `len` bytes came from `peer`. Those of one peer come in the order in which it sent them.
     */
    QP_DATAGRAMS_MESSAGE = 1,
    /**
     * `peer` has the message `context`.
     */
    QP_DATAGRAMS_ACKNOWLEDGED = 2,
    /**
     * The message `context` to `peer` was given up; `fate` says what is known: QP_FATE_NOT_DONE, `peer` does not have it;
     * QP_FATE_UNKNOWN, it may. What it was given up for is told before, unless the program itself asked for it.
     */
    QP_DATAGRAMS_LOST = 3,
    /**
     * There is a session with `peer`, with which there was none.
     */
    QP_DATAGRAMS_CONNECTED = 4,
    /**
     * `peer` was restarted, or had given this end up: messages from now on are of its new life.
     */
    QP_DATAGRAMS_RESTARTED = 5,
    /**
     * `peer` was asked and says nothing. Sending to it looks for it again.
     */
    QP_DATAGRAMS_DEAD = 6,
    /**
     * Something that has no number here yet.
     */
    QP_DATAGRAMS_OTHER = 7,
    /**
     * An end that nobody had told of is a peer from now on, `peer`: see qp_datagrams_listen().
     */
    QP_DATAGRAMS_INTRODUCED = 8,
} qp_datagrams_kind;

/**
 * A completion queue. One thread at a time may call functions with it; Queue Pairs that report to it may be used by others.
 */
typedef struct qp_cq qp_cq;

/**
 * An end for reliable datagrams: messages of any length, in order, to many peers, over one UD Queue Pair. One thread at a time
 * may call functions with it.
 *
 * A message that is acknowledged is at the peer, once, intact, and behind those that were sent to it before. Of one that is not
 * it is told that it was not done, or that nobody knows. None is sent again in a later session.
 *
 * There is no thread: an end receives, answers and repeats within qp_datagrams_next(); qp_datagrams_send() sends, and takes nothing
 * in. So call the first often, or sleep as qp_datagrams_arm() says. Peers of an end that does something else for dead_after_ms
 * give it up.
 */
typedef struct qp_datagrams qp_datagrams;

/**
 * Where datagrams of a UD Queue Pair go: to another one, or to a group. Any number of calls may be under way with it.
 */
typedef struct qp_dest qp_dest;

/**
 * An open device. Any number of calls may be under way with it.
 */
typedef struct qp_device qp_device;

/**
 * A channel to one peer. One thread at a time may call functions with it.
 */
typedef struct qp_exchange qp_exchange;

/**
 * A socket that waits for peers. Any thread may call functions with it.
 */
typedef struct qp_listener qp_listener;

/**
 * One process of a job in which every process sends to every other one. One thread at a time may call functions with it.
 */
typedef struct qp_mesh qp_mesh;

/**
 * A registered memory region. Any number of calls may be under way with it.
 */
typedef struct qp_mr qp_mr;

/**
 * A Queue Pair. One thread at a time may call functions with it.
 */
typedef struct qp_pair qp_pair;

/**
 * A protection domain: regions and Queue Pairs of one can be used together. Any number of calls may be under way with it.
 */
typedef struct qp_pd qp_pd;

/**
 * A Queue Pair that the program owns, looked after by the library. One thread at a time may call functions with it.
 */
typedef struct qp_ref qp_ref;

/**
 * A Queue Pair that many threads post to: each puts its request into a queue, and whichever finds the Queue Pair free posts all
 * that is there, with one doorbell for up to 32. So who posts does not wait. Any number of calls may be under way with it;
 * those other than qp_shared_post() wait while a thread posts.
 *
 * One thread polls the CQ, as always, and must call qp_shared_advance() when qp_poll() or qp_wait() has given something.
 */
typedef struct qp_shared qp_shared;

/**
 * A shared receive queue: receives that serve the messages of many Queue Pairs. One thread at a time may call functions with
 * it; its Queue Pairs may be used by others.
 */
typedef struct qp_srq qp_srq;

/**
 * A connection that is made, watched, and made anew when it fails. One thread at a time may call functions with it.
 */
typedef struct qp_supervised qp_supervised;

/**
 * A memory window of type 2: bound by a request, and of that request's Queue Pair from then on. One thread at a time may call
 * functions with it.
 */
typedef struct qp_window qp_window;

/**
 * An XRC domain: targets of one reach its SRQs and no others. Any number of calls may be under way with it.
 */
typedef struct qp_xrc_domain qp_xrc_domain;

/**
 * An XRC target: what an initiator of another node is connected to. It neither sends nor has receives. One thread at a time
 * may call functions with it.
 */
typedef struct qp_xrc_target qp_xrc_target;

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

/**
 * Something that happened to a device, a port, a Queue Pair or an SRQ.
 */
typedef struct qp_event {
    /**
     * What: one of enum ibv_event_type.
     */
    uint32_t kind;
    /**
     * To what: the number of the Queue Pair, of the port, or of the SRQ (qp_srq_number()); 0 for all else.
     */
    uint32_t number;
} qp_event;

/**
 * One request is done. Where status is not 0, only context, qp_num, status, vendor_err, operation and queue mean something.
 */
typedef struct qp_completion {
    /**
     * That of the request.
     */
    uint64_t context;
    /**
     * Number of the Queue Pair; of a receive of an SRQ, of that which the message came by (0 if it was destroyed meanwhile).
     */
    uint32_t qp_num;
    /**
     * How it ended: one of enum ibv_wc_status, 0 for success.
     */
    uint32_t status;
    /**
     * The vendor's own code.
     */
    uint32_t vendor_err;
    /**
     * Bytes of the message (receives; the 40 of a datagram not counted), or read (READ, atomics); else 0.
     */
    uint32_t byte_len;
    /**
     * Immediate data in host byte order, or a key; see flags.
     */
    uint32_t imm;
    /**
     * What was asked for: one of enum qp_op. With and without immediate data are the same.
     */
    uint8_t operation;
    /**
     * Which queue: one of enum qp_queue.
     */
    uint8_t queue;
    /**
     * QP_HAS_IMM and so on.
     */
    uint8_t flags;
    /**
     * The service level that a datagram came with.
     */
    uint8_t service_level;
    /**
     * Number of the Queue Pair that sent a datagram.
     */
    uint32_t sender_qp_num;
    /**
     * LID of the port that sent a datagram; 0 on Ethernet.
     */
    uint16_t sender_lid;
    /**
     * 0.
     */
    uint16_t reserved;
} qp_completion;

/**
 * A receive. Set it to all zero first.
 */
typedef struct qp_recv {
    /**
     * The program's own: it comes back with the completion.
     */
    uint64_t context;
    /**
     * The region that the message goes to; NULL: no room for data, for WRITE with immediate. On UD the first 40 bytes are the
     * device's.
     */
    struct qp_mr *mr;
    /**
     * First byte, counted from the start of the region.
     */
    size_t offset;
    /**
     * Bytes.
     */
    size_t len;
} qp_recv;

/**
 * What a Queue Pair shall be like. Set it to all zero first: 0 means the usual everywhere.
 */
typedef struct qp_pair_attr {
    /**
     * One of enum qp_transport; 0: QP_RC.
     */
    uint32_t transport;
    /**
     * Most sends outstanding at a time; 0: 16.
     */
    uint32_t send_depth;
    /**
     * Most receives outstanding at a time; 0: 16. Means nothing with an SRQ, and on XRC.
     */
    uint32_t recv_depth;
    /**
     * Most ranges that one send gathers; 0: 1.
     */
    uint32_t send_ranges;
    /**
     * Most ranges that one receive scatters to; 0: 1. Means nothing with an SRQ.
     */
    uint32_t recv_ranges;
    /**
     * Bytes that one send can carry inline; 0: none.
     */
    uint32_t inline_data;
    /**
     * How many sends one doorbell of qp_post_sends() is for, at most send_depth; 0: 1.
     */
    uint32_t send_batch;
    /**
     * What the peer may do: bits of enum ibv_access_flags; 0: WRITE, READ and atomics; IBV_ACCESS_LOCAL_WRITE alone: nothing.
     */
    uint32_t access;
    /**
     * QP_BLOCK_SELF_MCAST.
     */
    uint32_t flags;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * Where sends complete.
     */
    struct qp_cq *send_cq;
    /**
     * Where receives complete; NULL: where sends do.
     */
    struct qp_cq *recv_cq;
    /**
     * Where it takes its receives from; NULL: from a queue of its own.
     */
    struct qp_srq *srq;
} qp_pair_attr;

/**
 * Takes a completion of a Queue Pair of the library's.
 *
 * It is called within qp_pair_drain() or qp_pair_recover(), by the thread of the call. It must return (no longjmp, no C++
 * exception). It may call the library, but not with the Queue Pair or its CQs.
 *
 * @param context     What was given to the call.
 * @param completion  The completion, valid until the function returns.
 */
typedef void (*qp_completion_fn)(void *context, const struct qp_completion *completion);

/**
 * A send request. Set it to all zero first.
 */
typedef struct qp_send {
    /**
     * The program's own: it comes back with the completion.
     */
    uint64_t context;
    /**
     * What to do: one of enum qp_op.
     */
    uint32_t op;
    /**
     * QP_FENCE and so on.
     */
    uint32_t flags;
    /**
     * The region of the local side: what is sent, or where the result of READ and atomics goes (8 bytes); NULL: no data.
     */
    struct qp_mr *mr;
    /**
     * First byte, counted from the start of the region.
     */
    size_t offset;
    /**
     * Bytes.
     */
    size_t len;
    /**
     * WRITE, READ and atomics: the peer's region.
     */
    struct qp_region remote;
    /**
     * WRITE, READ and atomics: the place in it, counted from its start; of atomics at an address that is a multiple of 8.
     */
    uint64_t remote_offset;
    /**
     * Compare and swap: the expected value. Fetch and add: what to add. Host byte order.
     */
    uint64_t compare_add;
    /**
     * Compare and swap: the new value. Host byte order.
     */
    uint64_t swap;
    /**
     * Immediate data, in host byte order, or the key to invalidate.
     */
    uint32_t imm;
    /**
     * XRC: which SRQ of the peer's node it is for, see qp_srq_xrc_number(); else 0.
     */
    uint32_t srq_num;
    /**
     * UD: where the datagram goes.
     */
    struct qp_dest *to;
} qp_send;

/**
 * A range of a region.
 */
typedef struct qp_range {
    /**
     * The region.
     */
    struct qp_mr *mr;
    /**
     * First byte, counted from the start of the region.
     */
    size_t offset;
    /**
     * Bytes.
     */
    size_t len;
} qp_range;

/**
 * How a connection is supervised. Set it to all zero first: 0 means the usual everywhere.
 */
typedef struct qp_supervised_options {
    /**
     * The port, counted from 1; 0: 1. Its best GID is chosen anew for each life of the connection.
     */
    uint32_t port;
    /**
     * An idle connection is probed when nothing was heard for so many milliseconds; 0: 1000.
     */
    uint32_t probe_ms;
    /**
     * The wait before the first attempt to meet the peer, in milliseconds, which doubles with each attempt; 0: 20.
     */
    uint32_t backoff_ms;
    /**
     * The longest wait, in milliseconds; 0: 2000. Half of each wait is drawn, so that many do not come at once.
     */
    uint32_t backoff_most_ms;
    /**
     * How long one attempt may take, in milliseconds; 0: 5000.
     */
    uint32_t step_ms;
    /**
     * After so many milliseconds without a connection no further attempt is made; 0: never.
     */
    uint32_t give_up_ms;
    /**
     * When to repeat and when to give up: with probe_ms it decides how soon a death is noticed. All zero: the usual one.
     */
    struct qp_timing timing;
    /**
     * How packets are marked on their way.
     */
    struct qp_path path;
    /**
     * Must be 0.
     */
    uint64_t reserved;
} qp_supervised_options;

/**
 * Sends a message to the peer, which gets it from its qp_hear_fn: whole, and behind those that were sent before. It does not wait
 * for the peer; the bytes are gone when it returns.
 *
 * @param context  What was given to qp_supervised_meet().
 * @param message  The bytes.
 * @param len      Their number, at most 65536.
 * @return 0, or an errno: the peer is looked for again then.
 */
typedef int (*qp_tell_fn)(void *context, const void *message, size_t len);

/**
 * Gives the next message of the peer's, if one is there. It does not wait.
 *
 * @param context  What was given to qp_supervised_meet().
 * @param message  Where the bytes go.
 * @param room     Room there: 65536.
 * @param len      Where their number goes; it is 0 before, which stands for no message.
 * @return 0, or an errno: the peer is looked for again then.
 */
typedef int (*qp_hear_fn)(void *context, void *message, size_t room, size_t *len);

/**
 * Something that happened to a supervised connection. Fields that the kind says nothing of are 0.
 */
typedef struct qp_supervised_event {
    /**
     * What: one of enum qp_supervised_kind.
     */
    uint32_t kind;
    /**
     * DEAD, ENDED: one of enum qp_supervised_why.
     */
    uint32_t why;
    /**
     * DONE: the request's context; RECEIVED, HEARTBEAT: the receive's.
     */
    uint64_t context;
    /**
     * DONE: one of enum qp_fate.
     */
    uint32_t fate;
    /**
     * RECOVERING, RECOVERED: the number of the attempt, from 1.
     */
    uint32_t attempt;
    /**
     * SILENT, RECOVERING, RECOVERED, GAVE_UP: microseconds.
     */
    uint64_t us;
    /**
     * ENDED: requests that the peer has not executed.
     */
    uint32_t not_done;
    /**
     * ENDED: requests that the peer has executed or not.
     */
    uint32_t unknown;
    /**
     * ENDED: not 0 if the device gave every request its outcome.
     */
    uint32_t complete;
    /**
     * Must be 0.
     */
    uint32_t reserved;
    /**
     * DEVICE, and DEAD and ENDED because of QP_WHY_EVENT: what the device reported.
     */
    struct qp_event device;
    /**
     * RECEIVED, HEARTBEAT: as qp_poll() gives it. DONE, and DEAD and ENDED because of QP_WHY_FAILED: its status.
     */
    struct qp_completion completion;
} qp_supervised_event;

/**
 * The state of a supervised connection.
 */
typedef struct qp_supervised_state {
    /**
     * Not 0: requests can be posted now.
     */
    uint32_t is_up;
    /**
     * Requests under way, probes included.
     */
    uint32_t under_way;
    /**
     * What a probe proves: one of enum qp_supervised_proof.
     */
    uint32_t proof;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Within how many milliseconds the death of an idle peer is noticed, as long as qp_supervised_next() is called and the
     * port is up. A peer whose process ends is noticed at once, but not with qp_supervised_meet(), which has no channel that
     * closes; over XRC, whose probes the peer's node answers, it may not be noticed at all then.
     */
    uint64_t notices_within_ms;
} qp_supervised_state;

/**
 * What is needed by one process, on one node, or by the whole job.
 */
typedef struct qp_amounts {
    /**
     * Queue Pairs of all roles.
     */
    uint64_t qps;
    /**
     * Shared receive queues.
     */
    uint64_t srqs;
    /**
     * Receives that are posted.
     */
    uint64_t receives;
    /**
     * Bytes of memory: buffers of receives, rings, and the objects themselves.
     */
    uint64_t memory_bytes;
} qp_amounts;

/**
 * What a job needs with one transport. Processes are all alike, and so are nodes.
 */
typedef struct qp_needs {
    /**
     * One process.
     */
    struct qp_amounts per_process;
    /**
     * One node.
     */
    struct qp_amounts per_node;
    /**
     * The whole job.
     */
    struct qp_amounts job;
} qp_needs;

/**
 * What a mesh shall be like: the same for all its processes. Where a function takes one, NULL means all zero, and 0 the usual.
 */
typedef struct qp_mesh_options {
    /**
     * Longest message in bytes: the size of each receive; 0: 4096.
     */
    uint32_t max_message;
    /**
     * Requests that one way may have outstanding; 0: 64.
     */
    uint32_t send_depth;
    /**
     * Receives that wait for messages; 0: 512.
     */
    uint32_t srq_depth;
    /**
     * Messages that may be under way at a time, to all together; 0: 256.
     */
    uint32_t send_buffers;
    /**
     * A peer that nothing was heard of for so many milliseconds is probed; 0: 1000; UINT32_MAX: never.
     */
    uint32_t heartbeat_ms;
    /**
     * A process that does not answer for so many milliseconds when another one connects has failed; 0: 30000.
     */
    uint32_t connect_ms;
} qp_mesh_options;

/**
 * Something that happened in a mesh.
 */
typedef struct qp_mesh_event {
    /**
     * What: one of enum qp_mesh_kind.
     */
    uint32_t kind;
    /**
     * Whom it concerns.
     */
    uint32_t rank;
    /**
     * QP_MESH_DONE: which request, as the call that began it said.
     */
    uint64_t op;
    /**
     * QP_MESH_MESSAGE: bytes.
     */
    size_t len;
    /**
     * QP_MESH_DONE: how it ended: one of enum ibv_wc_status, 0 for success; UINT32_MAX: it had not left yet.
     */
    uint32_t status;
    /**
     * QP_MESH_DONE: one of enum qp_fate.
     */
    uint32_t fate;
} qp_mesh_event;

/**
 * What an end shall be like. Set it to all zero first: 0 means the usual everywhere. `peers`, `receives`, `send_packets`,
 * `send_depth` and `max_message` decide how much memory it takes; nothing grows beyond that.
 */
typedef struct qp_datagrams_options {
    /**
     * Most peers at a time; 0: 64.
     */
    uint32_t peers;
    /**
     * Receives that are posted, each of one MTU; 0: 2048. 4 or more serve any number of peers: half of them are room for those who send.
     */
    uint32_t receives;
    /**
     * Packets that wait to be sent or acknowledged, each of one MTU; 0: 1024; at most 1048576. One peer takes at most half of them.
     */
    uint32_t send_packets;
    /**
     * Sends that the device may have at a time, each of one MTU; 0: 128.
     */
    uint32_t send_depth;
    /**
     * Longest message that is received, in bytes; 0: 65536.
     */
    uint32_t max_message;
    /**
     * Longest packets, in bytes: 256, 512, 1024, 2048 or 4096; 0: the MTU of the port.
     */
    uint32_t mtu;
    /**
     * How long an acknowledgement may wait for a message to travel with, in microseconds; 0: 50.
     */
    uint32_t ack_delay_us;
    /**
     * When a packet is sent again as long as no round trip was measured, in microseconds; 0: 20000.
     */
    uint32_t first_timeout_us;
    /**
     * A packet is not sent again earlier, in microseconds; 0: 1000. Longer than a peer usually does something else.
     */
    uint32_t least_timeout_us;
    /**
     * A peer that was asked and says nothing for so many milliseconds is dead; 0: 2000.
     */
    uint32_t dead_after_ms;
    /**
     * A peer that nothing was heard of for so many milliseconds is asked; 0: 1000; UINT32_MAX: never.
     */
    uint32_t heartbeat_ms;
    /**
     * The Q_Key of the end, without which nothing gets in; 0: drawn. The card tells it to the peers.
     */
    uint32_t qkey;
    /**
     * How packets are marked on their way.
     */
    struct qp_path path;
    /**
     * Must be 0.
     */
    uint64_t reserved[2];
} qp_datagrams_options;

/**
 * Says whether an end that nobody told of is taken in as a peer.
 *
 * @param context      What was given to qp_datagrams_listen().
 * @param gid          The 16 bytes of its GID.
 * @param qp_num       The number of its Queue Pair.
 * @param max_message  The longest message that it takes, in bytes.
 * @return Not 0: it is.
 */
typedef int (*qp_stranger_fn)(void *context, const uint8_t *gid, uint32_t qp_num, uint32_t max_message);

/**
 * Something that happened to an end for datagrams. Fields that the kind says nothing of are 0.
 */
typedef struct qp_datagrams_event {
    /**
     * What: one of enum qp_datagrams_kind.
     */
    uint32_t kind;
    /**
     * LOST: one of enum qp_fate.
     */
    uint32_t fate;
    /**
     * Whom it concerns: what qp_datagrams_add_peer() gave.
     */
    uint64_t peer;
    /**
     * ACKNOWLEDGED, LOST: what qp_datagrams_send() was given.
     */
    uint64_t context;
    /**
     * MESSAGE: bytes.
     */
    size_t len;
    /**
     * 0.
     */
    uint64_t reserved;
} qp_datagrams_event;

/**
 * The state of an end for datagrams, and what it has counted since it was made.
 */
typedef struct qp_datagrams_state {
    /**
     * Messages whose fate was not told yet.
     */
    uint64_t under_way;
    /**
     * Within how many milliseconds the death of a peer is noticed, while qp_datagrams_next() is called; UINT64_MAX: without
     * heartbeat, that of a peer to which nothing is sent is not.
     */
    uint64_t notices_within_ms;
    /**
     * Packets with parts of messages that left for the first time.
     */
    uint64_t sent;
    /**
     * Those that left again.
     */
    uint64_t repeated;
    /**
     * Packets that left with nothing but numbers.
     */
    uint64_t acks;
    /**
     * Packets with parts of messages that were new here.
     */
    uint64_t received;
    /**
     * Those that were here already.
     */
    uint64_t duplicates;
    /**
     * Those for which there was no room.
     */
    uint64_t beyond;
    /**
     * Those of a peer that was told of room and then was silent, so that others had it. They come again.
     */
    uint64_t lapsed;
    /**
     * Datagrams of somebody who is no peer, and was not taken for one.
     */
    uint64_t strangers;
    /**
     * Datagrams without a right header.
     */
    uint64_t malformed;
    /**
     * Packets of a session that is over.
     */
    uint64_t stale;
    /**
     * Sessions that ended because the peer did not keep to the protocol.
     */
    uint64_t broken;
} qp_datagrams_state;

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
 * @return 0; ECONNREFUSED: nobody listened there in that time; or what the system said.
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
 * Tells the library of completions that the program has polled. Those of other Queue Pairs are left out, and those of
 * requests that qp_ref_drain() has posted, so all that ibv_poll_cq() gave can be handed over.
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
 * Nobody else may poll the CQs during the call. Between ETIMEDOUT and the next one the program may post, poll and modify;
 * what it polls may be of the two requests, with a wr_id that is none of its own: qp_ref_completed() leaves them out. A
 * timeout of 0 hands over what is there, and leaves the device no time for more. With an SRQ the receives that stay in it
 * are not drained.
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

/**
 * Opens a device of libibverbs.
 *
 * @param name    Its name, such as "mlx5_0"; NULL: the first one.
 * @param device  Where the handle goes; destroy it with qp_device_destroy().
 * @return 0; ENODEV: there is no such device (QP_CODE_NOT_FOUND), or no libibverbs (QP_CODE_NO_VERBS); or what the
 *         system said.
 */
int qp_device_open(const char *name,
                   struct qp_device **device);

/**
 * Makes a software device and opens it: RoCE v2 in user space, without hardware, driver or rights. Each call makes
 * another node with an address of its own.
 *
 * @param profile  What it is like, one `name = value` a line, `#` begins a comment: the variables RDMA_SOFT_* without
 *                 RDMA_SOFT_, in any case, such as "ports = 2\nmtu = 1024\nfaults = loss=1%,seed=7". NULL, or nothing:
 *                 as the environment says.
 * @param device   Where the handle goes; destroy it with qp_device_destroy().
 * @return 0; EINVAL (QP_CODE_TEXT): the profile makes no sense; or why it could not be opened.
 */
int qp_soft_open(const char *profile,
                 struct qp_device **device);

/**
 * Tells the names of the devices that libibverbs has, one a line. Arguments and result as qp_query_text().
 */
int qp_device_list(char *text, size_t size, size_t *needed);

/**
 * Tells the name of a device. Arguments and result as qp_query_text().
 */
int qp_device_name(struct qp_device *device, char *text, size_t size, size_t *needed);

/**
 * Tells how many ports a device has; they are counted from 1.
 */
int qp_device_ports(struct qp_device *device, int *ports);

/**
 * Chooses the GID of a port that connections should use: RoCE v2, not link-local, not empty.
 *
 * @param index  Where its place in the port's table goes.
 * @return 0; ENODEV: there is no such port; ENODATA: no entry will do, and qp_last_error() says why each does not.
 */
int qp_device_best_gid(struct qp_device *device,
                       int port,
                       int *index);

/**
 * Tells the GID at a place of a port's table as text, such as "::ffff:10.0.0.5". Arguments and result as qp_query_text().
 *
 * @param index  The place; -1 for that of qp_device_best_gid().
 */
int qp_device_gid(struct qp_device *device,
                  int port,
                  int index,
                  char *text,
                  size_t size,
                  size_t *needed);

/**
 * Gives the descriptor that is readable when qp_device_event() has something. It is the device's: do not close it. A drain of a
 * Queue Pair with a shared receive queue, and its move from RESET to INIT, take events off it and keep them for
 * qp_device_event(): ask that once more after either.
 */
int qp_device_event_fd(struct qp_device *device,
                       int *fd);

/**
 * Waits for the next asynchronous event of a device, and acknowledges it.
 *
 * @param timeout_ms  How long, in milliseconds; below 0: no limit.
 * @param event       Where it goes.
 * @return 0; ETIMEDOUT: there was none; or what the device said.
 */
int qp_device_event(struct qp_device *device, int64_t timeout_ms, struct qp_event *event);

/**
 * Gives the object of libibverbs that a device is. It is the library's, and alive until the device is destroyed.
 *
 * @param context  Where the pointer goes. Where it is a software device, hand it to inline functions of
 *                 <infiniband/verbs.h> only, unless the program runs with `qp run`: libibverbs itself does not know it.
 */
int qp_device_raw(struct qp_device *device,
                  struct ibv_context **context);

/**
 * Tells whether a device is a software device of this library.
 */
int qp_device_is_soft(struct qp_device *device, int *is_soft);

/**
 * Closes a device.
 *
 * @return 0; EBUSY (QP_CODE_IN_USE): something that was made from it is left, and the device stays open.
 */
int qp_device_destroy(struct qp_device *device);

/**
 * Allocates a protection domain.
 *
 * @param pd  Where the handle goes; destroy it with qp_pd_destroy().
 */
int qp_pd_create(struct qp_device *device, struct qp_pd **pd);

/**
 * Gives the object of libibverbs that a protection domain is, as qp_device_raw().
 */
int qp_pd_raw(struct qp_pd *pd, struct ibv_pd **raw);

/**
 * Frees a protection domain.
 *
 * @return 0; EBUSY (QP_CODE_IN_USE): something of it is left, which qp_last_error() names, and it stays.
 */
int qp_pd_destroy(struct qp_pd *pd);

/**
 * Registers memory that the library allocates: zeroed, page-aligned. It is freed with the region.
 *
 * @param len     Bytes.
 * @param access  Bits of enum ibv_access_flags: what the device may do for others. LOCAL_WRITE (1) is for receives and the
 *                results of READ and atomics, and comes with REMOTE_WRITE (2) and REMOTE_ATOMIC (8); REMOTE_READ is 4.
 * @param mr      Where the handle goes; destroy it with qp_mr_destroy().
 */
int qp_mr_create(struct qp_pd *pd,
                 size_t len,
                 int access,
                 struct qp_mr **mr);

/**
 * Registers memory of the program's.
 *
 * @param addr    The first byte. The memory stays the program's: it must be there until qp_mr_destroy() has returned 0.
 * @param len     Bytes.
 * @param access  As for qp_mr_create().
 * @param mr      Where the handle goes; destroy it with qp_mr_destroy().
 */
int qp_mr_register(struct qp_pd *pd,
                   void *addr,
                   size_t len,
                   int access,
                   struct qp_mr **mr);

/**
 * Registers a part of a dma-buf: memory of a device, such as a GPU. Requests and peers use it as any other region; the process
 * itself cannot read or write it by the handle.
 *
 * @param fd      The descriptor of the dma-buf. It may be closed afterwards.
 * @param offset  First byte, counted from the start of the dma-buf.
 * @param len     Bytes.
 * @param iova    What requests and peers call the first byte; it must lie in its page as offset does in its own.
 * @param access  As for qp_mr_create().
 * @param mr      Where the handle goes; destroy it with qp_mr_destroy().
 * @return 0; EOPNOTSUPP (QP_CODE_SYSTEM): the device, its library or the kernel has no such regions (rdma-core 34, Linux 5.12);
 *         or what the device said.
 */
int qp_mr_register_dmabuf(struct qp_pd *pd,
                          int fd,
                          uint64_t offset,
                          size_t len,
                          uint64_t iova,
                          int access,
                          struct qp_mr **mr);

/**
 * Gives the address of a region's first byte. The program may read and write there at any time; what it finds while a device
 * writes there is some mix of old and new bytes. Of a dma-buf it is iova, and no address of the process: do not read or write
 * there.
 */
int qp_mr_addr(struct qp_mr *mr,
               void **addr);

/**
 * Tells how a peer names a region: give it to the peer.
 */
int qp_mr_region(struct qp_mr *mr, struct qp_region *region);

/**
 * Tells the key of a region for requests of this side that the program posts itself.
 */
int qp_mr_lkey(struct qp_mr *mr, uint32_t *lkey);

/**
 * Gives the object of libibverbs that a region is, as qp_device_raw(). The program keeps the region until requests that
 * it posts itself are done: the library does not know of them.
 */
int qp_mr_raw(struct qp_mr *mr,
              struct ibv_mr **raw);

/**
 * Copies bytes out of a region.
 *
 * @param offset  First byte, counted from the start of the region.
 * @param into    Where they go; NULL if len is 0.
 * @param len     Their number.
 * @return 0; EINVAL (QP_CODE_RANGE): they are not all inside the region, or it is of a dma-buf.
 */
int qp_mr_read(struct qp_mr *mr, size_t offset, uint8_t *into, size_t len);

/**
 * Copies bytes into a region. Arguments and result as qp_mr_read().
 */
int qp_mr_write(struct qp_mr *mr, size_t offset, const uint8_t *from, size_t len);

/**
 * Deregisters a region; memory of the library's is freed, that of the program's may be from then on.
 *
 * @return 0; EBUSY (QP_CODE_IN_USE): requests may still use it, and qp_last_error() says of which queues: poll their CQs
 *         until the requests are done, or destroy the Queue Pairs; or what the device said. The region stays then.
 */
int qp_mr_destroy(struct qp_mr *mr);

/**
 * Makes a completion queue.
 *
 * @param entries  Completions that it has room for: the sum of the depths of the queues that will report to it.
 * @param events   Not 0: it has a descriptor to sleep on, see qp_cq_fd().
 * @param cq       Where the handle goes; destroy it with qp_cq_destroy().
 * @return 0; EINVAL (QP_CODE_LIMIT): the device has no CQ with so many entries; or what the device said.
 */
int qp_cq_create(struct qp_device *device,
                 uint32_t entries,
                 int events,
                 struct qp_cq **cq);

/**
 * Takes completions that are there, without waiting.
 *
 * @param completions  Where they go; NULL only if room is 0.
 * @param room         Most that there is room for.
 * @param count        Where their number goes; 0 is no error.
 * @return 0; or what the device said: the CQ does not work any more.
 */
int qp_poll(struct qp_cq *cq, struct qp_completion *completions, size_t room, size_t *count);

/**
 * Waits until at least one completion is there, and takes what is there.
 *
 * A CQ with events sleeps, and arms itself: no qp_cq_arm() before; one without polls, at first busily, then with short naps.
 *
 * @param timeout_ms   How long, in milliseconds; below 0: no limit.
 * @param completions  Where they go.
 * @param room         Most that there is room for; at least 1.
 * @param count        Where their number goes; may be NULL.
 * @return 0; ETIMEDOUT (QP_CODE_TIMED_OUT): there was none; or what the device said.
 */
int qp_wait(struct qp_cq *cq,
            int64_t timeout_ms,
            struct qp_completion *completions,
            size_t room,
            size_t *count);

/**
 * Says in a sentence all that is known of the last completion of this CQ that was no success: the operation, towards
 * whom, the usual causes, and what was set. Ask before the Queue Pair is reset or destroyed. Empty where there was none.
 * Arguments and result as qp_query_text().
 */
int qp_cq_explain(struct qp_cq *cq,
                  char *text,
                  size_t size,
                  size_t *needed);

/**
 * Gives the descriptor that becomes readable after qp_cq_arm(), for poll(2) and the like. It is the CQ's: do not close it.
 *
 * @return 0; EOPNOTSUPP: the CQ was made without events.
 */
int qp_cq_fd(struct qp_cq *cq,
             int *fd);

/**
 * Asks for one wake-up of the descriptor, and looks whether something is there already.
 *
 * @param ready  Where the answer goes: 1, something is there, poll; 0, the descriptor will become readable.
 * @return 0; EOPNOTSUPP: the CQ was made without events; or what the device said.
 */
int qp_cq_arm(struct qp_cq *cq, int *ready);

/**
 * Takes the wake-ups off the descriptor: call it when that is readable, then poll.
 */
int qp_cq_take_events(struct qp_cq *cq);

/**
 * Says how long a wait on a CQ with events polls before it sleeps: to sleep and to be woken costs several microseconds.
 *
 * @param microseconds  That time; 0, as it is at first: it sleeps at once.
 */
int qp_cq_set_spin(struct qp_cq *cq,
                   uint32_t microseconds);

/**
 * Gives the object of libibverbs that a CQ is, as qp_device_raw(). Who polls it takes completions away from the books.
 */
int qp_cq_raw(struct qp_cq *cq,
              struct ibv_cq **raw);

/**
 * Destroys a CQ.
 *
 * @return 0; EBUSY (QP_CODE_IN_USE): Queue Pairs report to it, which qp_last_error() names; or what the device said. The
 *         CQ stays then.
 */
int qp_cq_destroy(struct qp_cq *cq);

/**
 * Makes a shared receive queue.
 *
 * @param depth   Most receives outstanding at a time; 0: 16. Every CQ on which they complete needs room for so many.
 * @param ranges  Most ranges that one receive scatters to; 0: 1.
 * @param srq     Where the handle goes; destroy it with qp_srq_destroy().
 */
int qp_srq_create(struct qp_pd *pd,
                  uint32_t depth,
                  uint32_t ranges,
                  struct qp_srq **srq);

/**
 * Makes an SRQ for XRC: the targets of its domain reach it, and each request names it by its number.
 *
 * @param domain  The XRC domain that it stands in.
 * @param cq      Where its receives complete; it needs room for all of them.
 * @param depth   Most receives outstanding at a time; 0: 16.
 * @param ranges  Most ranges that one receive scatters to; 0: 1.
 */
int qp_srq_create_xrc(struct qp_pd *pd,
                      struct qp_xrc_domain *domain,
                      struct qp_cq *cq,
                      uint32_t depth,
                      uint32_t ranges,
                      struct qp_srq **srq);

/**
 * Tells the number by which XRC requests name an SRQ: tell it to those who send to it.
 */
int qp_srq_xrc_number(struct qp_srq *srq, uint32_t *srq_num);

/**
 * Tells the number of an SRQ in this process: what qp_event.number says of it.
 */
int qp_srq_number(struct qp_srq *srq, uint32_t *number);

/**
 * Gives the object of libibverbs that an SRQ is, as qp_device_raw().
 */
int qp_srq_raw(struct qp_srq *srq, struct ibv_srq **raw);

/**
 * Posts a receive: a message of one of the Queue Pairs goes there. For datagrams the first 40 bytes are the device's.
 * Arguments and result as qp_post_recv().
 */
int qp_post_srq_recv(struct qp_srq *srq,
                     const struct qp_recv *recv);

/**
 * Tells the books of an SRQ.
 */
int qp_srq_account(struct qp_srq *srq, struct qp_account *account);

/**
 * Asks for one event (IBV_EVENT_SRQ_LIMIT_REACHED, see qp_device_event()) when fewer than so many receives are left. It
 * comes once; 0 disarms it.
 */
int qp_srq_arm_limit(struct qp_srq *srq,
                     uint32_t limit);

/**
 * Destroys an SRQ. Receives that are outstanding are thrown away.
 *
 * @return 0; EBUSY (QP_CODE_IN_USE): Queue Pairs use it, which qp_last_error() names; or what the device said. It stays
 *         then.
 */
int qp_srq_destroy(struct qp_srq *srq);

/**
 * Makes a Queue Pair, in RESET.
 *
 * @param pd    Its protection domain.
 * @param attr  What it shall be like.
 * @param pair  Where the handle goes; destroy it with qp_pair_destroy().
 * @return 0; EINVAL or ENOMEM (QP_CODE_LIMIT): over a limit of the device, or the CQ has not so much room left;
 *         EINVAL (QP_CODE_MISMATCH): parts of two devices or protection domains; or what the device said.
 */
int qp_pair_create(struct qp_pd *pd,
                   const struct qp_pair_attr *attr,
                   struct qp_pair **pair);

/**
 * Tells the number of a Queue Pair, 24 bits.
 */
int qp_pair_number(struct qp_pair *pair, uint32_t *qp_num);

/**
 * Gives the object of libibverbs that a Queue Pair is, as qp_device_raw(): its hot loop may stay in inline verbs. Requests
 * that the program posts itself are not in the books, and nothing but itself keeps their memory registered; their
 * completions are left out by qp_poll().
 */
int qp_pair_raw(struct qp_pair *pair,
                struct ibv_qp **raw);

/**
 * Modifies a Queue Pair as qp_modify() does. A move to RESET throws outstanding requests away.
 */
int qp_pair_modify(struct qp_pair *pair, const struct ibv_qp_attr *attr, int attr_mask);

/**
 * Moves a Queue Pair to RESET: its outstanding requests are thrown away, and get no completion.
 */
int qp_pair_reset(struct qp_pair *pair);

/**
 * Asks the device for the state of a Queue Pair: one of enum ibv_qp_state.
 */
int qp_pair_state(struct qp_pair *pair, int *state);

/**
 * Describes a Queue Pair for people, as qp_query_text().
 */
int qp_pair_query_text(struct qp_pair *pair, char *text, size_t size, size_t *needed);

/**
 * Describes a Queue Pair for programs, as qp_query_json(), with its books and what both ends told.
 */
int qp_pair_query_json(struct qp_pair *pair, char *text, size_t size, size_t *needed);

/**
 * Tells the books of a queue: every request that was accepted, unsignaled ones included, is in exactly one count.
 *
 * @param queue    QP_SQ or QP_RQ.
 * @param account  Where they go.
 */
int qp_pair_account(struct qp_pair *pair,
                    int queue,
                    struct qp_account *account);

/**
 * Destroys a Queue Pair. Requests that are under way are thrown away; the memory that they used is free afterwards.
 *
 * @return 0; or what the device said: it stays then.
 */
int qp_pair_destroy(struct qp_pair *pair);

/**
 * Opens an XRC domain.
 *
 * @param path    A file that the processes of a node share the domain by; its content means nothing, and it is made if it
 *                is not there, unless it is to exist. NULL: a domain of this process alone.
 * @param how     One of enum qp_opening; not looked at without a path.
 * @param domain  Where the handle goes; destroy it with qp_xrc_domain_destroy().
 * @return 0; EOPNOTSUPP: the device has no XRC; EEXIST or ENOENT: it is there, or not; or what the system said.
 */
int qp_xrc_domain_open(struct qp_device *device,
                       const char *path,
                       int how,
                       struct qp_xrc_domain **domain);

/**
 * Closes an XRC domain.
 *
 * @return 0; EBUSY (QP_CODE_IN_USE): something stands in it, which qp_last_error() names; or what the system said. It stays
 *         open then.
 */
int qp_xrc_domain_destroy(struct qp_xrc_domain *domain);

/**
 * Makes a target, in RESET.
 *
 * @param domain  The XRC domain whose SRQs it reaches.
 * @param target  Where the handle goes; destroy it with qp_xrc_target_destroy().
 */
int qp_xrc_target_create(struct qp_xrc_domain *domain, struct qp_xrc_target **target);

/**
 * Opens a target that any process has made in this domain: it then lives at least as long as this handle.
 *
 * @param qp_num  Its number.
 */
int qp_xrc_target_open(struct qp_xrc_domain *domain, uint32_t qp_num, struct qp_xrc_target **target);

/**
 * Tells the number of a target: completions of an SRQ name by it who sent.
 */
int qp_xrc_target_number(struct qp_xrc_target *target, uint32_t *qp_num);

/**
 * Gives the object of libibverbs that a target is, as qp_device_raw().
 */
int qp_xrc_target_raw(struct qp_xrc_target *target, struct ibv_qp **raw);

/**
 * Asks the device for the state of a target: one of enum ibv_qp_state.
 */
int qp_xrc_target_state(struct qp_xrc_target *target, int *state);

/**
 * Describes a target for the initiator that connects to it, as qp_pair_endpoint().
 */
int qp_xrc_target_endpoint(struct qp_xrc_target *target,
                           struct qp_device *device,
                           int port,
                           int gid_index,
                           const struct qp_path *options,
                           struct qp_endpoint *here);

/**
 * Connects a target to the initiator that there describes, as qp_pair_connect().
 */
int qp_xrc_target_connect(struct qp_xrc_target *target,
                          const struct qp_endpoint *there,
                          struct qp_exchange *exchange,
                          const struct qp_timing *timing);

/**
 * First half of qp_xrc_target_connect(), to RTR, for programs with a barrier of their own.
 */
int qp_xrc_target_connect_begin(struct qp_xrc_target *target,
                                const struct qp_endpoint *there,
                                const struct qp_timing *timing);

/**
 * Second half of qp_xrc_target_connect(), to RTS.
 */
int qp_xrc_target_connect_finish(struct qp_xrc_target *target, const struct qp_timing *timing);

/**
 * Lets a CQ to which SRQs of the domain report know a target: qp_cq_explain() then knows its path, and what a former
 * Queue Pair of its number left there is told apart.
 */
int qp_xrc_target_report_on(struct qp_xrc_target *target,
                            struct qp_cq *cq);

/**
 * Gives a target a new life, as qp_pair_recover() does for the initiator, which does the same at the same time: what comes by it
 * ends, it is moved to RESET, told of with a fresh PSN, and connected again. Receives are the SRQs' and stay; a message that was
 * half received ends with a flush.
 *
 * @param device     The device that it is of.
 * @param port       Its port, counted from 1.
 * @param gid_index  As for qp_pair_endpoint().
 * @param cq         The CQ of its SRQs, of which the completions that came by it are taken; NULL: they stay for qp_poll().
 * @param exchange   The channel to the peer.
 * @param timing     NULL for the usual one.
 * @param function   Takes the completions of the former life; NULL: nobody does.
 * @param context    Handed to the function.
 * @return 0, or why a step failed; calling it again begins anew, and the peer has to as well.
 */
int qp_xrc_target_recover(struct qp_xrc_target *target,
                          struct qp_device *device,
                          int port,
                          int gid_index,
                          struct qp_cq *cq,
                          struct qp_exchange *exchange,
                          const struct qp_timing *timing,
                          qp_completion_fn function,
                          void *context);

/**
 * Closes the handle of a target; the target itself ends with its last handle.
 */
int qp_xrc_target_destroy(struct qp_xrc_target *target);

/**
 * Describes a Queue Pair for its peer, as qp_endpoint_of().
 *
 * @param device     The device that it is of.
 * @param port       Its port, counted from 1.
 * @param gid_index  Place of the GID in the port's table; -1 chooses one: RoCE v2, not link-local, not empty.
 * @param options    Options of its path; NULL for the usual ones.
 * @param here       Where the description goes. Give all its bytes to the peer.
 */
int qp_pair_endpoint(struct qp_pair *pair,
                     struct qp_device *device,
                     int port,
                     int gid_index,
                     const struct qp_path *options,
                     struct qp_endpoint *here);

/**
 * Moves a fresh Queue Pair to INIT on the port of its endpoint, so that receives can be posted before the peer can send.
 */
int qp_pair_init(struct qp_pair *pair);

/**
 * Connects a Queue Pair that qp_pair_endpoint() has described: RESET to INIT (unless it is there) and RTR, a barrier, RTS.
 * Post the receives for the peer's first messages before, see qp_pair_init().
 *
 * @param there     What the peer told.
 * @param exchange  The channel to the peer, for the barrier.
 * @param timing    NULL for the usual one.
 * @return As qp_connect_begin(), or why the exchange failed.
 */
int qp_pair_connect(struct qp_pair *pair,
                    const struct qp_endpoint *there,
                    struct qp_exchange *exchange,
                    const struct qp_timing *timing);

/**
 * First half of qp_pair_connect(), to RTR, for programs with a barrier of their own.
 */
int qp_pair_connect_begin(struct qp_pair *pair,
                          const struct qp_endpoint *there,
                          const struct qp_timing *timing);

/**
 * Second half of qp_pair_connect(), to RTS. The peer must be in RTR: what is sent before that is lost.
 */
int qp_pair_connect_finish(struct qp_pair *pair, const struct qp_timing *timing);

/**
 * Empties the queues of a Queue Pair: moves it to ERR, and waits until every request has its outcome. The completions that
 * the program has not taken are handed over, and not given out by qp_poll() any more.
 *
 * @param timeout_ms   How long that may take, in milliseconds; below 0: no limit.
 * @param function     Takes the completions; NULL: nobody does.
 * @param context      Handed to the function.
 * @param completions  Where their number goes; may be NULL.
 * @return 0; ETIMEDOUT (QP_CODE_TIMED_OUT): not all have an outcome; or what failed. What came by then was handed over.
 *
 * Nobody else may be in a call with its CQs.
 */
int qp_pair_drain(struct qp_pair *pair,
                  int64_t timeout_ms,
                  qp_completion_fn function,
                  void *context,
                  uint64_t *completions);

/**
 * Gives a Queue Pair a new life: drains it as qp_pair_drain() does, moves it to RESET, tells the peer of it with a fresh
 * PSN, has the receives posted, and connects it again. The peer does the same at the same time, whether it has seen the
 * failure or not. No completion of the former life comes afterwards.
 *
 * @param device      The device that it is of.
 * @param port        Its port, counted from 1.
 * @param gid_index   As for qp_pair_endpoint().
 * @param exchange    The channel to the peer.
 * @param timing      NULL for the usual one.
 * @param timeout_ms  How long the drain may take.
 * @param function    Takes the completions of the former life; NULL: nobody does.
 * @param repost      Posts the receives, with qp_post_recv(); NULL: there are none to post.
 * @param context     Handed to both functions.
 * @return 0, or why a step failed; calling it again begins anew, and the peer has to as well.
 */
int qp_pair_recover(struct qp_pair *pair,
                    struct qp_device *device,
                    int port,
                    int gid_index,
                    struct qp_exchange *exchange,
                    const struct qp_timing *timing,
                    int64_t timeout_ms,
                    qp_completion_fn function,
                    qp_repost_fn repost,
                    void *context);

/**
 * Makes a fresh UD Queue Pair ready to receive and to send: RESET to INIT, RTR and RTS.
 *
 * @param device     The device that the Queue Pair is of.
 * @param port       Its port, counted from 1.
 * @param gid_index  Place of the GID in the port's table; -1 chooses one.
 * @param qkey       Its Q_Key, the high bit 0: only datagrams with it get in.
 * @param options    Options of its path; NULL for the usual ones.
 * @param here       Where its description goes, for those who send to it (qp_dest_create()); may be NULL.
 */
int qp_pair_activate(struct qp_pair *pair,
                     struct qp_device *device,
                     int port,
                     int gid_index,
                     uint32_t qkey,
                     const struct qp_path *options,
                     struct qp_endpoint *here);

/**
 * Makes the way from an active UD Queue Pair to another one.
 *
 * @param there  What the other one's qp_pair_activate() gave.
 * @param dest   Where the handle goes; destroy it with qp_dest_destroy(). It is for Queue Pairs of the same protection
 *               domain.
 */
int qp_dest_create(struct qp_pair *pair,
                   const struct qp_endpoint *there,
                   struct qp_dest **dest);

/**
 * Makes the way from an active UD Queue Pair to all members of a group, which are taken to have its own Q_Key.
 *
 * @param group  The group's address, such as "239.1.2.3" or "ff0e::1".
 * @param lid    The group's LID on InfiniBand; 0 on Ethernet.
 */
int qp_dest_group(struct qp_pair *pair,
                  const char *group,
                  uint16_t lid,
                  struct qp_dest **dest);

/**
 * Makes the way back to who sent a datagram, which is taken to have this Queue Pair's Q_Key. The same way is found again
 * in a table.
 *
 * @param received  The completion of the receive.
 * @param mr        The region that it went to.
 * @param offset    Where the receive began there.
 */
int qp_dest_reply(struct qp_pair *pair,
                  const struct qp_completion *received,
                  struct qp_mr *mr,
                  size_t offset,
                  struct qp_dest **dest);

/**
 * Ends a way. Requests that name it are not touched.
 */
int qp_dest_destroy(struct qp_dest *dest);

/**
 * Makes a UD Queue Pair a member of a group: it receives what is sent there. It leaves all groups when it is destroyed.
 *
 * @param group  As for qp_dest_group().
 * @return 0; EINVAL (QP_CODE_REFUSED): no group, or a member already; or what the device said.
 */
int qp_pair_attach(struct qp_pair *pair,
                   const char *group,
                   uint16_t lid);

/**
 * Ends a membership of a group.
 */
int qp_pair_detach(struct qp_pair *pair, const char *group);

/**
 * Posts a send request, and hands it to the device.
 *
 * @param send  What to do. It is looked at during the call only; the region must stay until the request is done, which
 *              qp_mr_destroy() sees to.
 * @return 0; ENOMEM (QP_CODE_FULL): the queue is full, poll; EINVAL: QP_CODE_STATE, the Queue Pair is not in RTS,
 *         QP_CODE_RANGE, outside the region, QP_CODE_REFUSED, not possible (too long, outside the peer's region ...),
 *         QP_CODE_MISMATCH, of another protection domain; EOPNOTSUPP: the transport has no such operation; or what the
 *         device said. Nothing was posted then.
 */
int qp_post_send(struct qp_pair *pair,
                 const struct qp_send *send);

/**
 * Posts several send requests, in order, and hands them to the device with as few calls as qp_pair_attr.send_batch says.
 *
 * @param sends   The requests.
 * @param count   Their number.
 * @param posted  Where the number of those that were posted goes, also when it is not all; may be NULL.
 * @return 0, or why the first that was not posted was refused, as qp_post_send(). Those before it are posted; where the
 *         device itself refuses some of those that were handed over together, qp_last_error() says which.
 */
int qp_post_sends(struct qp_pair *pair,
                  const struct qp_send *sends,
                  size_t count,
                  size_t *posted);

/**
 * Posts a send request whose data is gathered from several ranges (or, for READ, scattered to them), in order; mr, offset
 * and len of the struct are not looked at. All else as qp_post_send().
 *
 * @param ranges  The ranges; NULL if count is 0.
 * @param count   Their number, at most 32 and at most qp_pair_attr.send_ranges.
 */
int qp_post_send_ranges(struct qp_pair *pair,
                        const struct qp_send *send,
                        const struct qp_range *ranges,
                        size_t count);

/**
 * Posts a send request of bytes that are copied during the call, so that they need no region; mr, offset and len of the
 * struct are not looked at. All else as qp_post_send().
 *
 * @param data  The bytes; NULL if len is 0.
 * @param len   Their number, at most what qp_pair_attr.inline_data asked for.
 */
int qp_post_inline(struct qp_pair *pair,
                   const struct qp_send *send,
                   const uint8_t *data,
                   size_t len);

/**
 * Posts a receive: the next message of the peer goes there. In any state but RESET.
 *
 * @param recv  Where to. It is looked at during the call only.
 * @return As qp_post_send().
 */
int qp_post_recv(struct qp_pair *pair, const struct qp_recv *recv);

/**
 * Posts a receive that is scattered to several ranges; mr, offset and len of the struct are not looked at. All else as
 * qp_post_recv(), and as qp_post_send_ranges().
 */
int qp_post_recv_ranges(struct qp_pair *pair,
                        const struct qp_recv *recv,
                        const struct qp_range *ranges,
                        size_t count);

/**
 * Shares a Queue Pair: it is posted to by qp_shared_post() from now on. Its handle is void: qp_shared_end() gives another
 * one, for all else that is done with it.
 *
 * @param waiting  Most requests that wait at a time, beside the one whose turn it is: at most 65536; 0: 256.
 * @param shared   Where the handle goes; end it with qp_shared_end().
 * @return 0; or why not: the handle of the Queue Pair stays then.
 */
int qp_pair_share(struct qp_pair *pair,
                  size_t waiting,
                  struct qp_shared **shared);

/**
 * Gives a send request to a shared Queue Pair, without waiting for anything. What qp_poll() gives of it, has its context. One
 * that is QP_UNSIGNALED may complete all the same, where nothing else would tell when there is room: give it a context, too.
 *
 * @param send  What to do. It is looked at during the call only. Its region cannot be destroyed before it is done.
 * @return 0: it will be posted, or qp_shared_refused() tells why not; ENOMEM (QP_CODE_FULL): too many wait, the thread that
 *         polls is behind, try again; EINVAL: QP_CODE_RANGE, outside the region, QP_CODE_NULL; EOPNOTSUPP: the transport has
 *         no such operation; or QP_INLINE: the bytes would be copied after the call.
 */
int qp_shared_post(struct qp_shared *shared,
                   const struct qp_send *send);

/**
 * Posts a receive to a shared Queue Pair, as qp_post_recv().
 */
int qp_shared_post_recv(struct qp_shared *shared, const struct qp_recv *recv);

/**
 * Posts what waits for room in the send queue: to be called when qp_poll() or qp_wait() has given something of it, by the
 * thread that polls.
 *
 * @param waiting  Where the number of requests goes that still wait; may be NULL.
 */
int qp_shared_advance(struct qp_shared *shared,
                      size_t *waiting);

/**
 * Tells of a request that could not be posted, each once.
 *
 * @param context  Where its context goes.
 * @param code     Where goes what went wrong, one of enum qp_code; QP_CODE_NONE: there is none, and context is as it was.
 * @param text     Where the reason goes, as qp_query_text(); NULL and size 0 leave it out.
 * @return 0; ENOSPC (QP_CODE_SHORT_BUFFER): the reason is cut off; all else is told.
 */
int qp_shared_refused(struct qp_shared *shared,
                      uint64_t *context,
                      int *code,
                      char *text,
                      size_t size);

/**
 * Modifies a shared Queue Pair, as qp_pair_modify(): a move to ERR ends what is under way, and what waits follows it.
 */
int qp_shared_modify(struct qp_shared *shared,
                     const struct ibv_qp_attr *attr,
                     int attr_mask);

/**
 * Tells the books of a queue, as qp_pair_account().
 */
int qp_shared_account(struct qp_shared *shared, int queue, struct qp_account *account);

/**
 * Ends the sharing, and gives the Queue Pair a handle again.
 *
 * @param pair  Where the handle goes; destroy it with qp_pair_destroy().
 * @return 0; EBUSY (QP_CODE_IN_USE): requests wait for room, or were refused and qp_shared_refused() was not asked: it goes
 *         on then.
 */
int qp_shared_end(struct qp_shared *shared,
                  struct qp_pair **pair);

/**
 * Begins a supervised connection to a peer that listens: a Queue Pair and a CQ of its own, which qp_supervised_next() brings
 * to life, watches, and brings to life again.
 *
 * @param device         The device of the protection domain. Its asynchronous events are read by the connection.
 * @param attr           What its Queue Pair shall be like, its CQs and SRQ NULL; NULL for the usual one. Where recv_depth is 0, it
 *                       is receive_count if that is more than 16. QP_XRC: an initiator and a target of the domain of srq,
 *                       which is the XRC SRQ whose number the peer is told; receive_count is 0, and messages that have arrived
 *                       are told by the SRQ's CQ. The SRQ stays the program's, also for other connections; keep it until the
 *                       connection is destroyed.
 * @param options        How it is supervised; NULL for the usual.
 * @param offered        Regions that the peer may reach: it is told them in each life. NULL if offered_count is 0.
 * @param offered_count  Their number, at most 1024.
 * @param receives       The receives that each life begins with, at most as many as the receive queue holds. They are copied;
 *                       their regions are in use until the connection is destroyed. NULL if receive_count is 0.
 * @param receive_count  Their number.
 * @param address        Where the peer listens, "host:port": it is looked for there again and again, whenever there is no
 *                       connection.
 * @param link           Where the handle goes; destroy it with qp_supervised_destroy().
 * @return 0; EINVAL: QP_CODE_RANGE or QP_CODE_REFUSED, what was given cannot be; or as qp_pair_create().
 */
int qp_supervised_connect(struct qp_device *device,
                          struct qp_pd *pd,
                          const struct qp_pair_attr *attr,
                          const struct qp_supervised_options *options,
                          const struct qp_region *offered,
                          size_t offered_count,
                          const struct qp_recv *receives,
                          size_t receive_count,
                          const char *address,
                          struct qp_supervised **link);

/**
 * Begins a supervised connection to a peer that connects. All else as qp_supervised_connect().
 *
 * @param address  Where to listen, "host:port"; port 0 takes a free one. One address is for one peer: a new one that comes
 *                 takes the place of the one before. A process that was restarted listens there again.
 */
int qp_supervised_listen(struct qp_device *device,
                         struct qp_pd *pd,
                         const struct qp_pair_attr *attr,
                         const struct qp_supervised_options *options,
                         const struct qp_region *offered,
                         size_t offered_count,
                         const struct qp_recv *receives,
                         size_t receive_count,
                         const char *address,
                         struct qp_supervised **link);

/**
 * Tells where a connection listens, such as "127.0.0.1:38765". Arguments as qp_query_text().
 *
 * @return As qp_query_text(); EINVAL (QP_CODE_STATE): it listens nowhere: only one of qp_supervised_listen() does.
 */
int qp_supervised_address(struct qp_supervised *link,
                          char *text,
                          size_t size,
                          size_t *needed);

/**
 * Begins a supervised connection to a peer that is met by functions of the program's, which carry messages to it and back:
 * MPI, PMIx, a message service. Both ends do the same. All else as qp_supervised_connect().
 *
 * The functions are called within calls with the connection, qp_supervised_destroy() included, by the thread of the call. They
 * must return (no longjmp, no C++ exception), and not wait. They may call the library, but not with the connection.
 *
 * The end of a process is told by no channel closing here: it is noticed when a probe or a request is not answered, so over
 * XRC, whose probes the peer's node answers, it may not be noticed at all. A peer that comes anew, or destroys its end, tells so.
 *
 * @param tell     Sends a message to the peer.
 * @param hear     Gives the next message of the peer's.
 * @param context  Handed to both, never looked at; it must stay usable until the connection is destroyed.
 * @param poll_ms  How often hear() is to be called while the program sleeps on the connection, in milliseconds; 0: 10.
 */
int qp_supervised_meet(struct qp_device *device,
                       struct qp_pd *pd,
                       const struct qp_pair_attr *attr,
                       const struct qp_supervised_options *options,
                       const struct qp_region *offered,
                       size_t offered_count,
                       const struct qp_recv *receives,
                       size_t receive_count,
                       qp_tell_fn tell,
                       qp_hear_fn hear,
                       void *context,
                       uint32_t poll_ms,
                       struct qp_supervised **link);

/**
 * Tells the number of the target of a connection over XRC: completions of its SRQ name by it who sent.
 *
 * @return 0; EOPNOTSUPP (QP_CODE_UNSUPPORTED): it is not over XRC.
 */
int qp_supervised_target_number(struct qp_supervised *link, uint32_t *qp_num);

/**
 * Posts a send request, as qp_post_send(). What becomes of it is told once, by QP_SUPERVISED_DONE with its context. On UD it
 * goes to the peer, and on XRC to the peer's SRQ: send->to and send->srq_num are not looked at.
 *
 * @return As qp_post_send(); ENOTCONN (QP_CODE_DOWN): there is no connection at present. Nothing was posted then.
 */
int qp_supervised_post_send(struct qp_supervised *link,
                            const struct qp_send *send);

/**
 * Posts a send request of bytes that are copied during the call, as qp_post_inline(). All else as qp_supervised_post_send().
 */
int qp_supervised_post_inline(struct qp_supervised *link,
                              const struct qp_send *send,
                              const uint8_t *data,
                              size_t len);

/**
 * Posts a receive, as qp_post_recv(): one that was told of, again.
 *
 * @return As qp_post_recv(); ENOTCONN (QP_CODE_DOWN): there is no connection at present, and the next life begins with the
 *         receives that it was made with; EOPNOTSUPP (QP_CODE_UNSUPPORTED): it is over XRC, post to its SRQ. Nothing was
 *         posted then.
 */
int qp_supervised_post_recv(struct qp_supervised *link,
                            const struct qp_recv *recv);

/**
 * Tells what happened next, and does what is to be done for the connection meanwhile: nothing happens to it but in calls
 * with it, so call this often, or sleep as qp_supervised_arm() says.
 *
 * @param timeout_ms  How long to wait, in milliseconds; 0: not at all; below 0: no limit. Other threads cannot post meanwhile.
 * @param event       Where it goes.
 * @return 0; ETIMEDOUT: nothing happened; ESHUTDOWN (QP_CODE_OVER): it gave up, see qp_supervised_options.give_up_ms; ENODEV
 *         (QP_CODE_OVER): the device is gone; or what the system said.
 */
int qp_supervised_next(struct qp_supervised *link,
                       int64_t timeout_ms,
                       struct qp_supervised_event *event);

/**
 * Says in a sentence what qp_supervised_next() told last, such as "dead: the channel to the peer is gone: ..."; empty after
 * a request that is done, or a receive. Arguments and result as qp_query_text().
 */
int qp_supervised_text(struct qp_supervised *link,
                       char *text,
                       size_t size,
                       size_t *needed);

/**
 * Gives the descriptor that becomes readable after qp_supervised_arm(), for poll(2) and the like: the same for the whole
 * life of the handle. It is the connection's: do not close it.
 */
int qp_supervised_fd(struct qp_supervised *link,
                     int *fd);

/**
 * Prepares for sleeping on the descriptor, and looks whether there is something to do already.
 *
 * @param ready  Where the answer goes: 1, call qp_supervised_next() with a timeout of 0 until it says ETIMEDOUT; 0, the
 *               descriptor becomes readable when there is something to do: then do the same.
 */
int qp_supervised_arm(struct qp_supervised *link,
                      int *ready);

/**
 * Tells the state of a connection.
 */
int qp_supervised_query(struct qp_supervised *link, struct qp_supervised_state *state);

/**
 * Describes its Queue Pair for programs, as qp_pair_query_json().
 */
int qp_supervised_query_json(struct qp_supervised *link, char *text, size_t size, size_t *needed);

/**
 * Tells what the peer of the present or last life told of itself. A peer that was restarted has other regions.
 *
 * @param there    Where the peer's end goes; may be NULL.
 * @param regions  Where the regions go that it offers, in its order; NULL if room is 0.
 * @param room     Room there.
 * @param found    Where their number goes; may be NULL.
 * @return 0; ENOTCONN (QP_CODE_DOWN): there was no peer yet; ENOSPC (QP_CODE_SHORT_BUFFER): there are more regions.
 */
int qp_supervised_peer(struct qp_supervised *link,
                       struct qp_endpoint *there,
                       struct qp_region *regions,
                       size_t room,
                       size_t *found);

/**
 * Ends the present life of a connection, as a failure would, and makes it anew.
 */
int qp_supervised_restart(struct qp_supervised *link);

/**
 * Tells a connection what happened to its device, where another one on the same qp_device, or qp_device_event(), has read it:
 * see QP_SUPERVISED_DEVICE.
 */
int qp_supervised_device_event(struct qp_supervised *link,
                               const struct qp_event *event);

/**
 * Ends a connection, at once. The peer finds its channel closed, and looks for another life of this end. What is under way is
 * thrown away, so wait for QP_SUPERVISED_DONE before.
 */
int qp_supervised_destroy(struct qp_supervised *link);

/**
 * Makes a memory window.
 *
 * @param window  Where the handle goes; destroy it with qp_window_destroy().
 * @return 0; EOPNOTSUPP: the device has none that a request can bind; or what the device said.
 */
int qp_window_create(struct qp_pd *pd, struct qp_window **window);

/**
 * Posts a request that binds a window to a range of a region, with rights for the peer of the Queue Pair, and says how the
 * peer names it from then on. Each bind gives the window another key: what the peer was told before is void. A request of
 * the peer's that comes before the bind has completed (operation QP_BIND) finds no such key: tell the peer afterwards.
 *
 * @param pair     The Queue Pair: RC, UC or XRC, in RTS.
 * @param mr       The region, registered with IBV_ACCESS_MW_BIND (16), and with LOCAL_WRITE if the peer may write. It cannot
 *                 be destroyed while the window is bound to it.
 * @param offset   First byte, counted from the start of the region.
 * @param len      Bytes.
 * @param access   What the peer may do: bits of enum ibv_access_flags, as for qp_mr_create().
 * @param context  The program's own: it comes back with the completion.
 * @param region   Where the name for the peer goes.
 * @return As qp_post_send().
 */
int qp_window_bind(struct qp_window *window,
                   struct qp_pair *pair,
                   struct qp_mr *mr,
                   size_t offset,
                   size_t len,
                   int access,
                   uint64_t context,
                   struct qp_region *region);

/**
 * Posts a request that takes the key of a window away: no peer can use it afterwards, and its region can be destroyed when
 * the request has completed (operation QP_LOCAL_INV).
 *
 * @param context  The program's own: it comes back with the completion.
 * @return As qp_post_send().
 */
int qp_window_unbind(struct qp_window *window,
                     struct qp_pair *pair,
                     uint64_t context);

/**
 * Ends a window, at once or when no request can name it any more. Its key is void when that is so.
 */
int qp_window_destroy(struct qp_window *window);

/**
 * Says what a job in which everybody talks to everybody needs: what `qp plan` prints with its usual depths, but
 * for reliable datagrams.
 *
 * @param nodes      Nodes.
 * @param per_node   Processes on each.
 * @param transport  QP_RC, QP_UD or QP_XRC.
 * @param srq        Not 0: RC with one shared receive queue per process. XRC always has that, UD needs none.
 * @param shm        Not 0: pairs on one node are left to shared memory.
 * @param needs      Where the answer goes.
 * @return 0; EINVAL (QP_CODE_RANGE): something is 0 or too large, or there is no plan for the transport.
 */
int qp_plan(uint32_t nodes,
            uint32_t per_node,
            int transport,
            int srq,
            int shm,
            struct qp_needs *needs);

/**
 * Says which settings of a Queue Pair are legal and do harm: one a line, what it is, what happens, what to set. Empty where
 * there is none.
 *
 * @param rtt_ns  The round trip to the peer in nanoseconds, where it was measured; 0: not known.
 * @param text    Arguments and result as qp_query_text().
 */
int qp_pair_lint(struct qp_pair *pair,
                 uint64_t rtt_ns,
                 char *text,
                 size_t size,
                 size_t *needed);

/**
 * Says why a connection does not work: cause, evidence and cure of each finding, the surest first. Empty where nothing is
 * found. It looks at nothing but what it is given, so the two ends may be of other machines, and of long ago.
 *
 * @param here     One end: what qp_pair_query_json(), qp_query_json() or qp_supervised_query_json() gave.
 * @param there    The other end; NULL: not known.
 * @param rtt_ns   The round trip in nanoseconds, where it was measured; 0: not known.
 * @param as_json  Not 0: as a JSON array of objects with code, weight, end, cause, evidence and cure, for programs.
 * @param text     Arguments and result as qp_query_text().
 * @return As qp_query_text(); EINVAL (QP_CODE_TEXT): an end is no such document.
 */
int qp_doctor(const char *here,
              const char *there,
              uint64_t rtt_ns,
              int as_json,
              char *text,
              size_t size,
              size_t *needed);

/**
 * Makes the part of a mesh that this process needs by itself. Then its card goes to all others, and theirs come here:
 * qp_mesh_card(), MPI_Allgather() or what there is, qp_mesh_join().
 *
 * @param port       Port of the device, counted from 1.
 * @param gid_index  Place of the GID in the port's table; -1 chooses one.
 * @param domain     The XRC domain that the processes of this node share: the mesh is over XRC. NULL: over RC.
 * @param nodes      The node that each process lives on, by rank: any numbers, equal for those of one node.
 * @param processes  Their number.
 * @param rank       This process.
 * @param options    NULL for the usual ones.
 * @param timing     NULL for the usual one of a mesh, which is patient.
 * @param mesh       Where the handle goes; destroy it with qp_mesh_destroy().
 */
int qp_mesh_create(struct qp_device *device,
                   int port,
                   int gid_index,
                   struct qp_xrc_domain *domain,
                   const uint32_t *nodes,
                   size_t processes,
                   uint32_t rank,
                   const struct qp_mesh_options *options,
                   const struct qp_timing *timing,
                   struct qp_mesh **mesh);

/**
 * The same over reliable datagrams: one UD Queue Pair for all the others, however many they are. There are messages only, and
 * no one-sided requests (EOPNOTSUPP). In the options, send_depth and srq_depth count packets of one MTU, for all the others
 * together. All else as qp_mesh_create().
 */
int qp_mesh_create_datagrams(struct qp_device *device,
                             int port,
                             int gid_index,
                             const uint32_t *nodes,
                             size_t processes,
                             uint32_t rank,
                             const struct qp_mesh_options *options,
                             struct qp_mesh **mesh);

/**
 * Registers memory of the program's for one-sided requests of a mesh that is not joined yet, and offers it to the others,
 * who ask for it with qp_mesh_region(). All else as qp_mr_register().
 */
int qp_mesh_offer(struct qp_mesh *mesh,
                  void *addr,
                  size_t len,
                  int access,
                  struct qp_mr **mr);

/**
 * Gives what the others need to know of this process.
 *
 * @param card  Room for QP_MESH_CARD bytes.
 * @return 0; EINVAL (QP_CODE_STATE): it has joined already; ENOSPC: it offers more than 16 regions.
 */
int qp_mesh_card(struct qp_mesh *mesh, uint8_t *card);

/**
 * Joins the others. No way is connected yet: that happens when it is first needed, or with qp_mesh_connect().
 *
 * @param cards  The cards of all processes, by rank, this one's own among them: QP_MESH_CARD bytes each.
 * @return 0; EPROTO (QP_CODE_RECORD): they are not those of this job; the mesh is of no use then.
 */
int qp_mesh_join(struct qp_mesh *mesh, const uint8_t *cards);

/**
 * Connects all ways, and waits until they are up. The others poll or call it too.
 *
 * @return 0; ETIMEDOUT: some are not up; or what failed.
 */
int qp_mesh_connect(struct qp_mesh *mesh, int64_t timeout_ms);

/**
 * Tells the region that a process has offered.
 *
 * @param index  Which of its regions, counted from 0.
 */
int qp_mesh_region(struct qp_mesh *mesh, uint32_t rank, size_t index, struct qp_region *region);

/**
 * Sends a message to a process. The bytes are copied. It ends with a QP_MESH_DONE.
 *
 * @param data  The bytes; NULL if len is 0.
 * @param len   Their number, at most max_message.
 * @param op    Where the number of the request goes; may be NULL.
 * @return 0; EAGAIN (QP_CODE_FULL): no room at present, take events and try again; ECONNRESET or ESHUTDOWN (QP_CODE_PEER):
 *         the process has failed, or left; EINVAL: too long, or this process itself.
 */
int qp_mesh_send(struct qp_mesh *mesh,
                 uint32_t rank,
                 const uint8_t *data,
                 size_t len,
                 uint64_t *op);

/**
 * Writes into a region of a process. It ends with a QP_MESH_DONE.
 *
 * @param mr             A region of this process, of qp_mesh_offer().
 * @param offset         First byte there.
 * @param len            Bytes.
 * @param region         The region of the other process.
 * @param region_offset  First byte there.
 * @param op             Where the number of the request goes; may be NULL.
 * @return As qp_mesh_send(); EAGAIN also where there is no way to the process yet: it is being made; EOPNOTSUPP
 *         (QP_CODE_UNSUPPORTED): the mesh is over datagrams.
 */
int qp_mesh_write(struct qp_mesh *mesh,
                  uint32_t rank,
                  struct qp_mr *mr,
                  size_t offset,
                  size_t len,
                  const struct qp_region *region,
                  uint64_t region_offset,
                  uint64_t *op);

/**
 * Reads from a region of a process. Arguments and result as qp_mesh_write().
 */
int qp_mesh_read(struct qp_mesh *mesh,
                 uint32_t rank,
                 struct qp_mr *mr,
                 size_t offset,
                 size_t len,
                 const struct qp_region *region,
                 uint64_t region_offset,
                 uint64_t *op);

/**
 * Adds to 8 bytes of a region of a process, atomically; the 8 bytes at offset of mr get what was there before. All else as
 * qp_mesh_write().
 *
 * @param add  What to add, in host byte order.
 */
int qp_mesh_fetch_and_add(struct qp_mesh *mesh,
                          uint32_t rank,
                          struct qp_mr *mr,
                          size_t offset,
                          const struct qp_region *region,
                          uint64_t region_offset,
                          uint64_t add,
                          uint64_t *op);

/**
 * Takes the next event, and does what is to be done for the mesh meanwhile: a process that does not call this receives what
 * comes, but nobody can connect to it. So call this often, or sleep as qp_mesh_arm() says.
 *
 * @param timeout_ms  How long to wait, in milliseconds; 0: not at all; below 0: no limit.
 * @param event       Where it goes.
 * @param data        Where the bytes of a message go; NULL only if room is 0.
 * @param room        Room there.
 * @return 0; ETIMEDOUT: there was none; ENOSPC (QP_CODE_SHORT_BUFFER): a message does not fit, and comes again with the
 *         next call; or what failed.
 */
int qp_mesh_next(struct qp_mesh *mesh,
                 int64_t timeout_ms,
                 struct qp_mesh_event *event,
                 uint8_t *data,
                 size_t room);

/**
 * Gives the descriptor that becomes readable after qp_mesh_arm(), for poll(2) and the like: the same for the whole life of
 * the handle. It is the mesh's: do not close it.
 */
int qp_mesh_fd(struct qp_mesh *mesh,
               int *fd);

/**
 * Prepares for sleeping on the descriptor, and looks whether there is something to do already.
 *
 * @param ready       Where the answer goes: 1, call qp_mesh_next() with a timeout of 0 until it says ETIMEDOUT; 0, the
 *                    descriptor becomes readable when there is something to do: then do the same.
 * @param timeout_ms  Where goes how long to sleep at most, in milliseconds, as poll(2) takes it: then do the same although
 *                    nothing is readable.
 */
int qp_mesh_arm(struct qp_mesh *mesh,
                int *ready,
                int *timeout_ms);

/**
 * Leaves the job: what was begun is ended, and the others are told, so that they do not take this process for failed.
 *
 * @param timeout_ms  How long to wait until all others know.
 * @param silent      Where the number of those goes that have not answered; may be NULL.
 */
int qp_mesh_leave(struct qp_mesh *mesh,
                  int64_t timeout_ms,
                  size_t *silent);

/**
 * Ends this process's part of a mesh, at once. Without qp_mesh_leave() the others find it dead.
 */
int qp_mesh_destroy(struct qp_mesh *mesh);

/**
 * Makes an end for reliable datagrams: a CQ, a UD Queue Pair, and the memory for its packets.
 *
 * @param device     The device of the protection domain.
 * @param port       Port of the device, counted from 1.
 * @param gid_index  Place of the GID in the port's table; -1 chooses one.
 * @param options    What it shall be like; NULL for the usual.
 * @param datagrams  Where the handle goes; destroy it with qp_datagrams_destroy().
 * @return 0; EINVAL (QP_CODE_RANGE): an option is out of its range; or why a part of it could not be made.
 */
int qp_datagrams_create(struct qp_device *device,
                        struct qp_pd *pd,
                        int port,
                        int gid_index,
                        const struct qp_datagrams_options *options,
                        struct qp_datagrams **datagrams);

/**
 * Gives what others need to know of this end, for qp_datagrams_add_peer(): hand it around by whatever there is.
 *
 * @param card  Room for QP_DATAGRAMS_CARD bytes. (A program in Rust has the bytes behind the first two, which are their number,
 *              the high one first.)
 */
int qp_datagrams_card(struct qp_datagrams *datagrams,
                      uint8_t *card);

/**
 * Adds a peer. Nothing is sent to it yet; and what it sends gets in from now on.
 *
 * @param card  Its card, QP_DATAGRAMS_CARD bytes.
 * @param peer  Where its number at this end goes. That of a peer that was removed is not given to another.
 * @return 0; EPROTO (QP_CODE_RECORD): it is no card; ENOMEM (QP_CODE_LIMIT): there are as many as options.peers; EEXIST
 *         (QP_CODE_REFUSED): another peer is at that address; or there is no way to it.
 */
int qp_datagrams_add_peer(struct qp_datagrams *datagrams,
                          const uint8_t *card,
                          uint64_t *peer);

/**
 * Takes in ends that nobody told of, from now on: whoever has this end's card, sends to it, and is accepted, becomes a peer, and
 * QP_DATAGRAMS_INTRODUCED tells so. They count among options.peers.
 *
 * @param strangers  Most of them that have not yet proven that they are where they seem to be; 0: nobody is taken in any more.
 * @param accept     Says who is accepted; NULL: everybody. It is called within calls with the end, by the thread of the call. It
 *                   must return (no longjmp, no C++ exception), and may call the library, but not with this end.
 * @param context    Handed to the function, never looked at; it must stay usable until another one is set, or the end is
 *                   destroyed.
 */
int qp_datagrams_listen(struct qp_datagrams *datagrams,
                        uint32_t strangers,
                        qp_stranger_fn accept,
                        void *context);

/**
 * Tells where a peer is.
 *
 * @param gid     Where the 16 bytes of its GID go; may be NULL.
 * @param qp_num  Where the number of its Queue Pair goes; may be NULL.
 * @return 0; ENODATA (QP_CODE_NOT_FOUND): there is no such peer.
 */
int qp_datagrams_address(struct qp_datagrams *datagrams, uint64_t peer, uint8_t *gid, uint32_t *qp_num);

/**
 * Tells that a peer was restarted, and has another card now: what is not acknowledged is lost, as QP_DATAGRAMS_LOST tells,
 * and what is sent from now on goes to its new life.
 *
 * @return As qp_datagrams_add_peer(); ENODATA (QP_CODE_NOT_FOUND): there is no such peer.
 */
int qp_datagrams_move_peer(struct qp_datagrams *datagrams,
                           uint64_t peer,
                           const uint8_t *card);

/**
 * Removes a peer: what is not acknowledged is lost, as QP_DATAGRAMS_LOST tells.
 *
 * @return 0; ENODATA (QP_CODE_NOT_FOUND): there is no such peer.
 */
int qp_datagrams_remove_peer(struct qp_datagrams *datagrams, uint64_t peer);

/**
 * Begins a session with a peer, though there is nothing to be sent: so its death is noticed, if there is a heartbeat.
 *
 * @return 0; ENODATA (QP_CODE_NOT_FOUND): there is no such peer.
 */
int qp_datagrams_connect(struct qp_datagrams *datagrams,
                         uint64_t peer);

/**
 * Sends a message to a peer. The bytes are copied. If there is no session with it yet, one begins. What becomes of the
 * message is told once, by QP_DATAGRAMS_ACKNOWLEDGED or QP_DATAGRAMS_LOST with its context.
 *
 * @param data     The bytes; NULL if len is 0.
 * @param len      Their number, at most the peer's max_message.
 * @param context  Any number; it comes back with the event.
 * @return 0; EAGAIN (QP_CODE_FULL): no room at present, call qp_datagrams_next() and try again; ENODATA (QP_CODE_NOT_FOUND):
 *         there is no such peer; EINVAL (QP_CODE_REFUSED): too long; or what failed: the end does not work any more then.
 */
int qp_datagrams_send(struct qp_datagrams *datagrams,
                      uint64_t peer,
                      const uint8_t *data,
                      size_t len,
                      uint64_t context);

/**
 * Takes the next event, and does what is to be done for the end meanwhile: takes in packets, acknowledges, repeats.
 *
 * @param timeout_ms  How long to wait, in milliseconds; 0: not at all; below 0: no limit. Other threads cannot send meanwhile.
 * @param event       Where it goes.
 * @param data        Where the bytes of a message go; NULL only if room is 0.
 * @param room        Room there: with options.max_message every message fits.
 * @return 0; ETIMEDOUT: there was none; ENOSPC (QP_CODE_SHORT_BUFFER): a message does not fit, and comes again with the
 *         next call; or what failed: the end does not work any more then.
 */
int qp_datagrams_next(struct qp_datagrams *datagrams,
                      int64_t timeout_ms,
                      struct qp_datagrams_event *event,
                      uint8_t *data,
                      size_t room);

/**
 * Gives the descriptor that becomes readable after qp_datagrams_arm(), for poll(2) and the like: the same for the whole
 * life of the handle. It is the end's: do not close it.
 */
int qp_datagrams_fd(struct qp_datagrams *datagrams,
                    int *fd);

/**
 * Prepares for sleeping on the descriptor, and looks whether there is something to do already.
 *
 * @param ready  Where the answer goes: 1, call qp_datagrams_next() with a timeout of 0 until it says ETIMEDOUT; 0, the
 *               descriptor becomes readable when there is something to do: then do the same.
 */
int qp_datagrams_arm(struct qp_datagrams *datagrams,
                     int *ready);

/**
 * Tells of a peer whether there is a session with it, and how far away it is.
 *
 * @param connected      Where 1 goes if there is such a peer and a session with it, else 0; may be NULL.
 * @param round_trip_us  Where the time of a round trip goes, smoothed, in microseconds; UINT64_MAX: not known; may be NULL.
 */
int qp_datagrams_peer(struct qp_datagrams *datagrams,
                      uint64_t peer,
                      int *connected,
                      uint64_t *round_trip_us);

/**
 * Tells the state of an end, and what it has counted.
 */
int qp_datagrams_query(struct qp_datagrams *datagrams, struct qp_datagrams_state *state);

/**
 * Describes its Queue Pair for programs, as qp_pair_query_json().
 */
int qp_datagrams_query_json(struct qp_datagrams *datagrams, char *text, size_t size, size_t *needed);

/**
 * Ends an end, at once: what is under way is thrown away, so wait for the fate of each message before. Its peers find it dead.
 */
int qp_datagrams_destroy(struct qp_datagrams *datagrams);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* QP_H */
