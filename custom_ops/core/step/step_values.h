/* The plain values of a training step: its segments, its options, what it did, and the threads lent
 * to it. They are C, for they are a part of the C interface: capi/strom.h includes this file. Core
 * takes them as they come over that border rather than copy field by field.
 */
#ifndef KERAS_STROM_CORE_STEP_STEP_VALUES_H_
#define KERAS_STROM_CORE_STEP_STEP_VALUES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads lent to the library for one call; the result does not depend on how many they are. NULL
 * in their place = the calling thread does all of the work. */
typedef void (*strom_task)(void* context, int64_t task);
typedef struct {
  int32_t threads; /* how many tasks can run at once, the calling thread included */
  /* Calls task(context, i) once for each i in [0, tasks), on any threads, and returns when all are
   * done. `pool` is passed on. */
  void (*run)(void* pool, int64_t tasks, strom_task task, void* context);
  void* pool;
} strom_thread_pool;

/* A piece of the flat space, and the buffers that hold its elements, lent for one call. */
typedef struct {
  int64_t offset;      /* first element in the flat space */
  int64_t size;        /* elements */
  const float* before; /* the parameters before the optimizer stepped */
  const float* after;  /* ... and after; equal to `before` (same pointer) when nothing changed */
  float* value;        /* receives the result; may alias `before` or `after` */
  const char* name;    /* of the variable, for errors; may be NULL */
} strom_segment;

/* What a step did with one segment that has a threshold of its own. */
typedef struct {
  int64_t count;       /* entries sent */
  int64_t elements;    /* the segment's size, 0 where it did not take part */
  float threshold;     /* that was used: `thresholds` as a message can say it */
  float value;         /* what an entry stands for; with send_mean the mean */
  float max_residual;  /* max |r| after encoding and clipping */
  double sum_residual; /* sum |r| likewise */
} strom_segment_result;

typedef struct {
  float scale;           /* s: r += s * (after - before) */
  float threshold;       /* tau > 0, of all segments; not looked at where there are `thresholds` */
  float clip_multiple;   /* clip |r| to clip_multiple * tau after encoding; 0 = do not clip now */
  int32_t apply_own;     /* 1: value = before + own message (asynchronous); 0: value = before */
  int32_t take_received; /* 1: also apply what was received (asynchronous) */
  int64_t iteration;     /* travels in the update's header */
  float norm_limit;      /* scale an update of a larger Euclidean norm down to it; infinity = only
                          * measure it, 0 = do not even that */
  /* One a segment: where the optimizer keeps the momentum of its elements, `size` floats of which
   * those of sent elements become zero; NULL for a segment without, NULL for no segment with. */
  float* const* momenta;
  /* 1: an entry stands for the mean magnitude of what is sent, which at least is the threshold, in
   * place of the threshold itself: for updates of several optimizer steps. */
  int32_t send_mean;
  /* 1: the values include what this worker has not sent: value = G + r, G being what all workers
   * share. The value stays what the optimizer wrote, of which a message only says what goes from r
   * to G, but for an update that is scaled, or a residual that is clipped. Each segment's `value`
   * is its `after`, or its `before` where that is both, and apply_own is 0. */
  int32_t full;
  /* One a segment, with `full`: whether its value included the residual before this step; a
   * snapshot that takes the place of G keeps it then. NULL = all did. */
  const int32_t* includes_residual;
  /* One a segment: its own threshold, > 0 and a normal number, which is rounded to the 8
   * significant bits (bfloat16) that a message has room for. NULL = `threshold` for all. */
  const float* thresholds;
  /* One a segment: receives what was done; only with `thresholds`. NULL = nobody asks. */
  strom_segment_result* segment_results;
  /* 1: where updates are merged on their way, thresholds are drawn to a grid of four to each power
   * of two first, by at most a tenth, so that different workers' are often equal; not with
   * send_mean. `threshold` in the result is what was used. */
  int32_t draws_threshold;
} strom_step_options;

typedef struct {
  int64_t stepped;       /* 0: no buffer had changed, nothing was done */
  int64_t count;         /* entries sent */
  int64_t elements;      /* elements of the segments that took part */
  int64_t message_bytes; /* encoded bytes handed over (all parts) */
  int64_t received;      /* updates of others applied in this call */
  float max_residual;    /* max |r| after encoding and clipping, of those segments */
  float threshold;       /* the threshold that was used; of several, the least */
  double sum_residual;   /* sum |r| likewise */
  double clipped_mass;   /* sum of |r| removed by clipping in this call */
  int64_t clipped_count; /* elements clipped in this call */
  int64_t staleness;     /* of `received`, the sum: own step less theirs, 0 where they are ahead; of
                          * several of one worker that came merged, the last one's step counts */
  double update_norm;    /* Euclidean norm of after - before, not scaled; 0 = not measured */
  float value;           /* what an entry stands for: the threshold, or with send_mean the mean;
                          * where entries differ, their mean */
  double limited_mass;   /* what the limit on it took off the sum of |s * (after - before)| */
  /* 1: something received was applied, or with `full` the own update was scaled or the residual
   * clipped. 0: values are what this worker's own step has made of them; with `full` that is what
   * the optimizer wrote, so that a copy of them need not go back to where they came from. */
  int64_t values_written;
} strom_step_result;

/* A device with memory that the library cannot reach, where the values of a replica's steps and its
 * residual lie. The library calls these functions on the thread that has called it, one at a time;
 * those that return an int return STROM_OK or a code, and `last_error` then says what failed. */
typedef struct {
  void* context;

  /* From hold to release the residual of the last step's segments lies on the device, and is asked
   * for when somebody reads it or the host has to work on it. */
  void (*hold)(void* context);
  void (*release)(void* context);
  /* Flat elements [offset, offset + size) of it, which lie in one segment. */
  int (*read_residual)(void* context, int64_t offset, int64_t size, float* out);
  int (*write_residual)(void* context, int64_t offset, int64_t size, const float* in);

  /* The step itself: what reaches the threshold leaves the residual as messages of a flat space of
   * `elements`, none longer than strom_replica_max_message says. Where it fails nothing was sent,
   * and result->stepped says whether the residual has the update (1) or nothing was done (0). */
  int (*step)(void* context, int64_t elements, const strom_step_options* options,
              strom_step_result* result);
  /* Message `index` of that step, as strom_replica_message; STROM_INVALID_ARGUMENT where there are
   * no more. */
  int (*message)(void* context, int64_t index, uint8_t* out, int64_t capacity, int64_t* size);
  /* Undoes the sending of that step. */
  int (*take_back)(void* context);

  /* Adds a valid message to the values; *skipped gets the number of entries that lie in no segment,
   * of raw spans of elements that are not zero. */
  int (*apply)(void* context, const uint8_t* message, int64_t bytes, int64_t elements,
               int64_t* skipped);
  /* Values of flat elements [offset, offset + size), which lie in one segment. */
  int (*write_values)(void* context, int64_t offset, int64_t size, const float* in);

  /* Never NULL. */
  const char* (*last_error)(void* context);
} strom_step_device;

/* What a residual that was handed over as a whole has come to. */
typedef struct {
  int64_t elements;      /* of the residual that were not zero */
  int64_t message_bytes; /* encoded bytes handed over (all parts) */
  double mass;           /* sum |r| of what was handed over */
} strom_residual_result;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KERAS_STROM_CORE_STEP_STEP_VALUES_H_ */
