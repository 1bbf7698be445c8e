/* strom.h: the C interface of libstrom.so, the whole native side of keras-strom without TensorFlow.
 *
 * Used by the TensorFlow ops (custom_ops/tf), by the Python package through ctypes
 * (keras_strom/_native), and by tests. Every function returns STROM_OK or a negative code;
 * strom_last_error() then tells what failed and what to do. No exception crosses this border.
 * Objects are named by handles; a handle that was closed is refused, never dereferenced.
 * All functions may be called from any thread.
 */
#ifndef KERAS_STROM_CAPI_STROM_H_
#define KERAS_STROM_CAPI_STROM_H_

#include <stdint.h>

#include "core/joint/joint_values.h"
#include "core/step/step_values.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STROM_EXPORT __attribute__((visibility("default")))

/* Bumped whenever a declaration below, in joint_values.h or in step_values.h changes; the Python
 * package refuses another number. */
#define STROM_ABI_VERSION 23

typedef int64_t strom_handle;

enum {
  STROM_OK = 0,
  STROM_INVALID_ARGUMENT = -1, /* the caller's mistake; the message says which argument */
  STROM_TIMEOUT = -2,          /* the deadline passed; the message says what was missing */
  STROM_REFUSED = -3,          /* the master refused this worker (layout, options, rank) */
  STROM_UNREACHABLE = -4,      /* no answer at all from the master's address */
  STROM_REJECTED_SECRET = -5,  /* the master answers but the handshake does not complete */
  STROM_MASTER_LOST = -6,      /* the master was there and went silent, or closed */
  STROM_ADDRESS = -7,          /* port in use, no such interface, unparsable address */
  STROM_CLOSED = -8,           /* the handle is closed, or is being closed by another thread */
  STROM_CORRUPT = -9,          /* bytes that are not a valid message */
  STROM_BACK_PRESSURE = -10,   /* the outgoing queue stayed full for the whole deadline */
  STROM_INTERNAL = -11,
  STROM_NOT_FINITE = -12,  /* the update holds a NaN or an infinity; the message says where */
  STROM_DEVICE_LOST = -13, /* the device does no work any more in this process */
  STROM_STATE_LOST = -14   /* nobody has the state of the training any more */
};

STROM_EXPORT int32_t strom_abi_version(void);

/* The calling thread's last failure in words; valid until its next call. Never NULL. */
STROM_EXPORT const char* strom_last_error(void);

/* ---------------------------------------------------------------- replica (capi/replica.cc)
 * One worker's compression state over the flat space: residuals, received messages waiting to be
 * applied, and the applied version vector. The parameters themselves stay in TensorFlow's
 * variables; a segment (strom_segment in step_values.h) lends their buffers for one call. A
 * variable may come in several segments, all with the same pointer as `name`. The residual of one
 * that only receives, with NULL for `before` and `after`, or has not changed waits, is not looked
 * at and does not count in the statistics.
 */
/* max_message_bytes: an encoded message larger than this is split by span range. */
STROM_EXPORT int strom_replica_create(int64_t max_message_bytes, strom_handle* replica);
STROM_EXPORT int strom_replica_close(strom_handle replica);

/* Grows the flat space to `size` elements. Never shrinks. */
STROM_EXPORT int strom_replica_extend(strom_handle replica, int64_t size);

/* *bytes gets the longest message of a step. */
STROM_EXPORT int strom_replica_max_message(strom_handle replica, int64_t* bytes);

/* From now on messages go out through `worker` and come in from it (0 = nobody). */
STROM_EXPORT int strom_replica_bind(strom_handle replica, strom_handle worker);

/* One training step over `count` segments in ascending, non-overlapping offset order. Sends nothing
 * and returns STROM_NOT_FINITE, naming a segment, when the update holds a NaN or an infinity. */
STROM_EXPORT int strom_replica_step(strom_handle replica, const strom_segment* segments,
                                    int64_t count, const strom_step_options* options,
                                    const strom_thread_pool* threads, strom_step_result* result);

/* The same step where values and residual lie on `device` (step_values.h), which nobody else needs
 * meanwhile. Segments have no addresses; the device knows which of them have changed. `options` are
 * `full`, with one threshold and none of norm_limit, momenta and send_mean; what the step reads and
 * writes the device knows. The residual stays there until another function needs it on the host. */
STROM_EXPORT int strom_replica_step_on_device(strom_handle replica, const strom_step_device* device,
                                              const strom_segment* segments, int64_t count,
                                              const strom_step_options* options,
                                              strom_step_result* result);

/* Adds everything received so far to `value` and advances the applied vector. In synchronous mode
 * that is every STEP released so far, in its order. `own_models` has one a segment: `size` values
 * that include the worker's own updates since it made them, and to which only the others' are added
 * (steps that are `full`, of which `value` is G); NULL for a segment without, NULL for no segment
 * with. */
STROM_EXPORT int strom_replica_apply(strom_handle replica, const strom_segment* segments,
                                     int64_t count, float* const* own_models,
                                     const strom_thread_pool* threads, strom_step_result* result);

/* The same in synchronous and bounded modes where values of `full` steps lie on `device`: to a
 * segment's `value`, G on the host, all updates are added, and the others' to the worker's own
 * model on the device; NULL for a segment of which the device has G. */
STROM_EXPORT int strom_replica_apply_on_device(strom_handle replica,
                                               const strom_step_device* device,
                                               const strom_segment* segments, int64_t count,
                                               const strom_thread_pool* threads,
                                               strom_step_result* result);

/* value = before + r, or with `sign` -1 before - r: from what all workers share to what a worker of
 * `full` steps trains on, and back. Where r is zero `value` is `before`, to the bit. `value` may
 * alias `before`; `after` is not looked at. */
STROM_EXPORT int strom_replica_add_residual(strom_handle replica, const strom_segment* segments,
                                            int64_t count, int32_t sign,
                                            const strom_thread_pool* threads);

/* Synchronous and bounded modes: calls `done(context, code, message)` once, from another thread or
 * at once, when this worker's own contribution number `step` (0 = its first since start) stands in
 * a released STEP (STROM_OK), or on failure, close or after timeout_ns. */
typedef void (*strom_callback)(void* context, int code, const char* message);
STROM_EXPORT int strom_replica_await_step(strom_handle replica, int64_t step, int64_t timeout_ns,
                                          strom_callback done, void* context);

/* Copies `size` residual elements from flat `offset` out or in (checkpoints, tests). */
STROM_EXPORT int strom_replica_read_residual(strom_handle replica, int64_t offset, int64_t size,
                                             float* out);
STROM_EXPORT int strom_replica_write_residual(strom_handle replica, int64_t offset, int64_t size,
                                              const float* in);

/* Hands the whole residual over to all others, to the bit, as the last update of a worker that
 * leaves; what has been handed over is no residual any more. Where it fails, what was not stays. */
STROM_EXPORT int strom_replica_hand_over(strom_handle replica, int64_t iteration,
                                         strom_residual_result* result);

/* Keeps a copy of the last step's messages for inspection (tests); off by default. */
STROM_EXPORT int strom_replica_keep_messages(strom_handle replica, int32_t keep);
/* Kept message `index` of the last step; *size gets its bytes, `out` may be NULL to ask the size */
STROM_EXPORT int strom_replica_message(strom_handle replica, int64_t index, uint8_t* out,
                                       int64_t capacity, int64_t* size);

/* ---------------------------------------------------------------- local model
 * (capi/local_model.cc) What a worker trains on beside a joint model (strom_method): its targets
 * and its counts of steps. The parameters themselves stay in TensorFlow's variables; segments lend
 * them. An `offset` counts elements of the joint model, and the segments of every call cover it
 * whole, in ascending order; `before` and `after` are not looked at. strom_local_model_penalize has
 * its own. A call for one local model waits for the one before.
 */
STROM_EXPORT int strom_local_model_create(strom_handle* model);
STROM_EXPORT int strom_local_model_close(strom_handle model);
/* A generation begins: no targets, no steps. `worker` 0 = nobody is there to exchange with. `rank`
 * of `workers` staggers exchanges that are each worker's own. `in_gradient` 1: MPCA's pull is a
 * part of the gradients (6), which strom_local_model_penalize adds, and no step of its own (7). */
STROM_EXPORT int strom_local_model_begin(strom_handle model, strom_handle worker, int64_t size,
                                         const strom_method* method, int32_t rank, int32_t workers,
                                         int32_t in_gradient);
/* Before a step of the optimizer: adds the pull to gradients. `value` of a segment is the gradient,
 * `before` the variable; segments may leave out variables. */
STROM_EXPORT int strom_local_model_penalize(strom_handle model, const strom_segment* segments,
                                            int64_t count, const strom_thread_pool* threads);
/* After each step of the optimizer: takes the snapshot that is asked for, installs targets that
 * have come, and pulls. Where result->waits, training may not go on before strom_local_model_await
 * has called back and strom_local_model_install has been called. STROM_NOT_FINITE, naming a
 * segment, where three snapshots one after another have held a NaN or an infinity; such a one is
 * not sent. */
STROM_EXPORT int strom_local_model_step(strom_handle model, const strom_segment* segments,
                                        int64_t count, int64_t iteration,
                                        const strom_thread_pool* threads,
                                        strom_pull_result* result);
/* Rounds of gradients: gives some of this worker's, `before` of segments, while it computes the
 * others, so that they leave meanwhile. give_gradient has them again, and does not look at them. */
STROM_EXPORT int strom_local_model_give_early(strom_handle model, const strom_segment* segments,
                                              int64_t count, float rate, int64_t iteration,
                                              const strom_thread_pool* threads);
/* Before a step of the optimizer gives this worker's gradients, `before` of ascending segments that
 * may leave out variables, and its learning rate. strom_local_model_await and then
 * strom_local_model_take_gradient come before the step. */
STROM_EXPORT int strom_local_model_give_gradient(strom_handle model, const strom_segment* segments,
                                                 int64_t count, float rate, int64_t iteration,
                                                 const strom_thread_pool* threads);
/* Writes the mean of all workers' to `value` of segments, and the learning rate with which all
 * step. STROM_NOT_FINITE, naming a segment, where the mean is not finite, unless it `may_overflow`,
 * 1: the optimizer scales its loss and leaves out such a step. */
STROM_EXPORT int strom_local_model_take_gradient(strom_handle model, const strom_segment* segments,
                                                 int64_t count, int32_t may_overflow,
                                                 const strom_thread_pool* threads, float* rate);
/* Calls `done` once, as strom_replica_await_step does, when what the last step waits for is here,
 * or the mean gradient. */
STROM_EXPORT int strom_local_model_await(strom_handle model, int64_t timeout_ns,
                                         strom_callback done, void* context);
STROM_EXPORT int strom_local_model_install(strom_handle model, const strom_segment* segments,
                                           int64_t count, const strom_thread_pool* threads,
                                           strom_pull_result* result);
/* After the last step and before strom_worker_finish: the last snapshot of all, from `values` (size
 * elements). STROM_NOT_FINITE where shards of it hold a NaN or an infinity; those are not sent. */
STROM_EXPORT int strom_local_model_finish(strom_handle model, const float* values, int64_t size,
                                          int64_t iteration);

/* ---------------------------------------------------------------- joint model
 * (capi/joint_model.cc) The master's side of a method as plain arithmetic, for benchmarks and
 * tests. */
STROM_EXPORT int strom_joint_model_create(const strom_method* method, const float* start,
                                          int64_t size, strom_handle* model);
STROM_EXPORT int strom_joint_model_close(strom_handle model);
/* Where a shard lies in the joint model. */
STROM_EXPORT int strom_joint_model_shard(strom_handle model, int32_t shard, strom_range* range);
/* A worker's snapshot of elements [offset, offset + size), with `steps` own steps behind it. */
STROM_EXPORT int strom_joint_model_add(strom_handle model, int64_t offset, const float* values,
                                       int64_t size, int64_t steps);
/* EASGD: the joint model moves by `difference`. */
STROM_EXPORT int strom_joint_model_move(strom_handle model, int64_t offset, const float* difference,
                                        int64_t size);
/* (9), (8), (4): takes the mean of what was added to the shard into it. */
STROM_EXPORT int strom_joint_model_update(strom_handle model, int32_t shard);
/* Copies out, where not NULL: the joint model x~, its trajectory v~, and the target x* (5). */
STROM_EXPORT int strom_joint_model_read(strom_handle model, float* joint, float* trajectory,
                                        float* target);
/* The pull that is due, and the cycles that every shard has finished. */
STROM_EXPORT int strom_joint_model_alpha(strom_handle model, double* alpha, int64_t* cycles);
/* (7): x += alpha (target - x), each operation rounded to float32. */
STROM_EXPORT int strom_pull(float* x, const float* target, int64_t size, float alpha,
                            const strom_thread_pool* threads);

/* ---------------------------------------------------------------- codec (capi/codec.cc)
 * One update to one message and back, without a replica. Messages are described in
 * docs/internals/message_format.md. */
enum {
  STROM_CODING_AUTO = 0,
  STROM_CODING_SPARSE = 1,
  STROM_CODING_BITMAP = 2,
  STROM_CODING_BITMAP4 = 3 /* two bits an element, with halves of tau of alternating sign */
};
enum { STROM_PREFER_SIZE = 0, STROM_PREFER_SPEED = 1 };

typedef struct {
  float threshold;   /* tau: finite, > 0; for BITMAP4 at least 2^-125 */
  int32_t coding;    /* STROM_CODING_*: AUTO takes the shorter one for each span */
  int32_t prefer;    /* STROM_PREFER_*: what AUTO goes by */
  int32_t kernel;    /* -1: the fastest; else one of strom_codec_kernel's (tests) */
  int64_t iteration; /* the sender's step, in [0, 2^35); decides the signs of BITMAP4's halves */
} strom_codec_options;

/* Gives memory for a message of `bytes` bytes, or NULL where there is none. Called at most once. */
typedef uint8_t* (*strom_allocate)(void* context, int64_t bytes);

/* residual_after = residual + update - what leaves as +-threshold (or a half of it: BITMAP4) into
 * the message, which goes to the memory that allocate(context, bytes) gives. `residual_after` may
 * be `residual` (then the inputs are checked first, so that a refusal leaves it as it was); no
 * other overlap. NaN, infinity and a sum over the largest float32 are refused: STROM_NOT_FINITE.
 * When memory runs out in place, the residual is as before within rounding. *count gets the entries
 * that left, halves among them. */
STROM_EXPORT int strom_codec_encode(const float* update, const float* residual,
                                    float* residual_after, int64_t size,
                                    const strom_codec_options* options,
                                    const strom_thread_pool* threads, strom_allocate allocate,
                                    void* context, int64_t* count);

/* The name of encoding kernel `index` on this processor, 0 the scalar oracle and the last one the
 * fastest; NULL behind the last. */
STROM_EXPORT const char* strom_codec_kernel(int32_t index);

/* What a message says of itself; all of it is checked first, as in strom_codec_apply. */
typedef struct {
  int64_t size;      /* elements of the update it was made from */
  int64_t count;     /* entries */
  int64_t iteration; /* the sender's step */
  float threshold;   /* tau */
  float value;       /* what an entry adds, with its sign; or a half of it, in BITMAP4 */
  int64_t sparse_spans;
  int64_t bitmap_spans;
  int64_t raw_spans;
  int64_t bitmap4_spans;
} strom_message_description;
STROM_EXPORT int strom_codec_describe(const uint8_t* message, int64_t bytes,
                                      strom_message_description* description);

/* Checks the whole message, then adds it to `parameters` (size elements). */
STROM_EXPORT int strom_codec_apply(const uint8_t* message, int64_t bytes, float* parameters,
                                   int64_t size, const strom_thread_pool* threads);

/* ---------------------------------------------------------------- credentials (capi/node.cc) */
#define STROM_KEY_BYTES 32
#define STROM_JOB_ID_BYTES 16

/* ---------------------------------------------------------------- master (capi/node.cc)
 * Membership, relay and its own copy of the parameters; no TensorFlow. */
enum {
  STROM_TOPOLOGY_AUTO = 0,  /* by the number of workers */
  STROM_TOPOLOGY_PLAIN = 1, /* all workers under the master */
  STROM_TOPOLOGY_MESH = 2   /* a tree */
};

enum {
  STROM_MERGING_AUTO = 0, /* where workers make a tree */
  STROM_MERGING_OFF = 1,  /* each update is passed on by itself */
  STROM_MERGING_ON = 2    /* the sum of several is, as one message; asynchronous mode */
};

typedef struct {
  const char* bind_address;   /* "" = any; an IPv4 or IPv6 literal */
  int32_t port;               /* 0 = any free port */
  int32_t workers;            /* K: the ranks are 0 to K - 1; training starts with all of them */
  const uint8_t* secret;      /* STROM_KEY_BYTES */
  const uint8_t* job_id;      /* STROM_JOB_ID_BYTES */
  int64_t failure_timeout_ns; /* 0.1 s to 3600 s */
  uint64_t epoch;             /* master epoch, > 0 */
  int32_t topology;           /* STROM_TOPOLOGY_... */
  int32_t max_children;       /* of a node of a tree; 0 = 8 */
  int32_t max_depth;          /* levels below the master; 0 = 5 */
  int32_t merging;            /* STROM_MERGING_... */
  int32_t same_host;          /* 1 = permit shared memory with workers of this machine */
  int32_t any_bytes;          /* 1 = updates are any bytes and there are no parameters */
  int32_t min_workers;        /* > 0: so many are enough to start, and with fewer of them training
                                 waits; 0: it starts with all and goes on with those left */
  const uint8_t* private_key; /* STROM_KEY_BYTES of an X25519 key, so that another master can be
                                 started for the same workers; NULL = a fresh one */
} strom_master_options;

STROM_EXPORT int strom_master_create(const strom_master_options* options, strom_handle* master);
STROM_EXPORT int strom_master_port(strom_handle master, int32_t* port);
STROM_EXPORT int strom_master_public_key(strom_handle master, uint8_t out[STROM_KEY_BYTES]);
/* The process of this rank has ended in order, as whoever has started it says. Where it never came,
 * workers that wait for it are told so. */
STROM_EXPORT int strom_master_worker_has_ended(strom_handle master, int32_t rank);
/* Tells every worker to end with `reason`, then closes. */
STROM_EXPORT int strom_master_close(strom_handle master, const char* reason);

/* ---------------------------------------------------------------- worker (capi/node.cc) */
typedef struct {
  const char* bind_address;
  int32_t port;
  const char* master_host; /* a literal address */
  int32_t master_port;
  const uint8_t* secret;
  const uint8_t* job_id;
  const uint8_t* master_public_key;
  int32_t rank;
  int32_t size;
  int32_t attempt;            /* a higher attempt of a rank supersedes a lower one */
  int32_t max_staleness;      /* -1 = asynchronous, 0 = synchronous, k = bounded */
  int64_t failure_timeout_ns; /* 0.1 s to 3600 s */
  int64_t join_timeout_ns;
  int32_t same_host; /* 1 = permit shared memory with nodes of this machine */
  /* > 0: a master that is lost may come back, as one of a higher epoch at the same address, within
   * so long; asynchronous mode alone. 0: its loss is a failure. */
  int64_t master_wait_ns;
} strom_worker_options;

/* Blocks until the master has welcomed this worker. */
STROM_EXPORT int strom_worker_join(const strom_worker_options* options, strom_handle* worker);
/* Says goodbye with `reason` ("" = the work is done) and closes; blocks at most a second. */
STROM_EXPORT int strom_worker_close(strom_handle worker, const char* reason);

/* Waits until the master holds every update that this worker has made, then leaves in order: its
 * place is free at once, and the others are told that nothing is lost. After STROM_TIMEOUT it is
 * still there. */
STROM_EXPORT int strom_worker_drain(strom_handle worker, int64_t timeout_ns);

/* Begins generation `generation` (1, 2, ...: one a `fit`): announces the layout and waits until all
 * K workers have. `own` are this worker's values (size elements). The chief's (rank 0) become
 * everybody's, in `parameters` (size elements); of another worker's what equals the chief's need
 * not come over the network, and NULL is for one that has none. `options_text` must
 * be equal on all workers; a difference is refused and both texts are named.
 * `method` NULL is update sharing. The `ranges` (ascending, apart) are the variables that are
 * trained, and of a method what the joint model consists of, one behind the other. Equal on all
 * workers. `cycles` is what strom_worker_joint_cycles was at the end of the training that goes on,
 * or in its checkpoint; the most of all workers counts. 0 = training begins. */
STROM_EXPORT int strom_worker_start(strom_handle worker, uint64_t generation, int64_t size,
                                    uint64_t layout_hash, const char* options_text,
                                    const strom_method* method, const strom_range* ranges,
                                    int64_t range_count, int64_t cycles, const float* own,
                                    float* parameters, int64_t timeout_ns);

/* How the generation has begun; valid after strom_worker_start. */
typedef struct {
  int32_t late;  /* 1: the others train already, and this worker goes on in a lost one's place */
  int32_t ended; /* 1: it is over: `parameters` are its result, and nothing is to be trained */
  int64_t resume_iteration; /* late: the last iteration that the master has accepted of this rank's
                               earlier process; -1 = none */
} strom_start_info;
STROM_EXPORT int strom_worker_started(strom_handle worker, strom_start_info* started);

/* Parameters come from the master; all other state (optimizer, non-trainable, place in the data)
 * a late worker gets from one that trains, as bytes that the callers pack; the master asks one
 * after another. After the end (strom_start_info) the master itself gives a u64, the generation
 * that has ended last, and the float64 that strom_worker_result gave its members.
 * 1 when somebody has joined late and asks for this worker's state, else 0; cheap enough for every
 * batch. */
STROM_EXPORT int32_t strom_worker_donation_wanted(strom_handle worker);
/* Answers all who have asked with a copy of `bytes`; size 0 = nothing to give, ask another. Returns
 * at once; harmless when nobody has asked. */
STROM_EXPORT int strom_worker_donate(strom_handle worker, const void* bytes, int64_t size);
/* The late worker's side: asks, once a start, and waits. The state goes to the memory that
 * allocate(context, *size) gives; *size gets -1, and nothing is allocated, where there is none to
 * be had. After STROM_TIMEOUT it may be called again, to wait on. */
STROM_EXPORT int strom_worker_take_donation(strom_handle worker, int64_t timeout_ns,
                                            strom_allocate allocate, void* context, int64_t* size);

/* How many workers are missing to min_workers, else 0: before its next step a worker
 * waits until it is 0 or strom_node_status tells a failure, and donates meanwhile. Cheap enough for
 * every batch. */
STROM_EXPORT int32_t strom_worker_missing(strom_handle worker);

/* master_wait_ns > 0. 1 while the master is lost: before its next step a worker waits until it is 0
 * or strom_node_status tells a failure. Cheap enough for every batch. */
STROM_EXPORT int32_t strom_worker_waits_for_master(strom_handle worker);
/* 1 when another master asks for this worker's parameters, to go on from: between two steps, or in
 * strom_worker_start, _average or _finish, it calls strom_worker_hand_over, which copies them (size
 * elements, as strom_worker_start has or had them) and returns at once. Cheap, too. */
STROM_EXPORT int32_t strom_worker_replica_wanted(strom_handle worker);
STROM_EXPORT int strom_worker_hand_over(strom_handle worker, const float* parameters, int64_t size);

/* Replaces `values` (count elements) by the mean over the workers' latest under `key`;
 * *contributors gets how many. Asynchronous mode answers at once; otherwise all members are waited
 * for, and this worker is no member of the STEPs in between. With rounds on a joint model too, but
 * no longer than until all others wait in a round for those who wait here; and those who wait under
 * a lower key are answered first. */
STROM_EXPORT int strom_worker_average(strom_handle worker, uint64_t key, double* values,
                                      int64_t count, int32_t* contributors, int64_t timeout_ns);

/* Copies the joint model, as the master has it now, to `out` (size elements). */
STROM_EXPORT int strom_worker_joint_model(strom_handle worker, float* out, int64_t size,
                                          int64_t timeout_ns);
/* Cycles that the joint model has finished, as the master has told last; 0 where there is none. */
STROM_EXPORT int strom_worker_joint_cycles(strom_handle worker, int64_t* cycles);

/* The ending, in this order. finish: no more updates from here (stop: this worker ends it for
 * all); waits until everything that any member sent has been received; call strom_replica_apply
 * next. result: sends the non-trainable `state` and gets its average; `parameters` (size elements)
 * are this worker's values and become the master's, of which what is equal need not come over the
 * network.
 * verify: reports how far this replica was off; *worst gets the largest over all workers. */
STROM_EXPORT int strom_worker_finish(strom_handle worker, int32_t stop, int64_t timeout_ns);
STROM_EXPORT int strom_worker_result(strom_handle worker, double* state, int64_t state_count,
                                     float* parameters, int64_t size, int64_t timeout_ns);
STROM_EXPORT int strom_worker_verify(strom_handle worker, double difference, uint64_t hash,
                                     double* worst, int64_t timeout_ns);

/* 64-bit hash of `bytes` bytes, chained: pass the previous result (0 first) to go on. Names layouts
 * and compares parameters; no protection against an adversary. */
STROM_EXPORT uint64_t strom_hash(const void* bytes, int64_t size, uint64_t previous);

/* ---------------------------------------------------------------- any bytes (capi/node.cc)
 * Workers of a master with any_bytes: what one submits all others get, in the order it was
 * submitted, once. Nothing travels before all workers have joined. */
#define STROM_MAX_BYTES 4194248 /* of one message: 4 MiB less the header */

/* As strom_worker_join; max_staleness is ignored. The handle is for the functions below and for
 * strom_node_status. */
STROM_EXPORT int strom_bytes_join(const strom_worker_options* options, strom_handle* worker);
/* Sends a copy of `bytes` to all others; *counter (1, 2, ...) numbers it. Waits until all workers
 * have joined and, while much is unacknowledged, for room: STROM_TIMEOUT or STROM_BACK_PRESSURE
 * after `timeout_ns`. */
STROM_EXPORT int strom_bytes_submit(strom_handle worker, const uint8_t* bytes, int64_t size,
                                    int64_t timeout_ns, uint64_t* counter);
/* The next message of another worker into `out`, which has room for STROM_MAX_BYTES; *size gets its
 * length, -1 where none came within `timeout_ns`. Fails once the connection has failed and all that
 * had come before has been taken. */
STROM_EXPORT int strom_bytes_poll(strom_handle worker, int64_t timeout_ns, uint64_t* origin,
                                  uint64_t* counter, uint8_t* out, int64_t* size);
/* Waits until the master has all that was submitted. */
STROM_EXPORT int strom_bytes_flush(strom_handle worker, int64_t timeout_ns);
/* Says goodbye with `reason` ("" = the work is done); what is not flushed is lost. */
STROM_EXPORT int strom_bytes_close(strom_handle worker, const char* reason);

/* ---------------------------------------------------------------- sealing (capi/sealing.cc)
 * What a TCP connection of the Python package needs to be as private as the relay: X25519 and
 * AES-256-GCM. Keys have STROM_KEY_BYTES. */
#define STROM_TAG_BYTES 16

/* The public half of an X25519 private key. */
STROM_EXPORT int strom_public_key(const uint8_t* private_key, uint8_t* out);
/* X25519. STROM_REJECTED_SECRET: `peer` is a key whose shared secret anybody knows. */
STROM_EXPORT int strom_agree(const uint8_t* private_key, const uint8_t* peer, uint8_t* out);
/* Encrypts `size` bytes to `out`, STROM_TAG_BYTES longer. One key never gets a number twice. */
STROM_EXPORT int strom_seal(const uint8_t* key, uint64_t number, const uint8_t* text, int64_t size,
                            uint8_t* out);
/* Decrypts `size` bytes to `out`, STROM_TAG_BYTES shorter. STROM_REJECTED_SECRET: they were not
 * sealed with this key and number, and what stands in `out` is worthless. */
STROM_EXPORT int strom_open(const uint8_t* key, uint64_t number, const uint8_t* sealed,
                            int64_t size, uint8_t* out);

/* ---------------------------------------------------------------- all of them
 * A JSON object with the node's state and counters (docs/internals/native.md lists the keys).
 * *size gets the bytes, `out` may be NULL to ask the size. */
STROM_EXPORT int strom_node_status(strom_handle node, char* out, int64_t capacity, int64_t* size);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KERAS_STROM_CAPI_STROM_H_ */
