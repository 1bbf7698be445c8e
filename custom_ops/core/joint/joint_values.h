/* The plain values of training on a joint model: the method that all workers agree on, and what a
 * pull has done. They are C, for they are a part of the C interface: capi/strom.h includes this
 * file.
 */
#ifndef KERAS_STROM_CORE_JOINT_JOINT_VALUES_H_
#define KERAS_STROM_CORE_JOINT_JOINT_VALUES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How workers train together. */
enum {
  STROM_UPDATE_SHARING = 0,   /* Strom 2015: thresholded updates; no joint model */
  STROM_MPCA = 1,             /* MPCA SGD: the joint model travels by shards beside the training */
  STROM_SPARKNET = 2,         /* every `steps` steps the mean of all models takes their place */
  STROM_EASGD = 3,            /* every `steps` own steps an elastic exchange with the joint model */
  STROM_EASGD_SYNCHRONOUS = 4 /* the same of all workers at once */
};

/* Elements [offset, offset + size). */
typedef struct {
  int64_t offset;
  int64_t size;
} strom_range;

/* Equal on all workers. What a method has no use for is 0. */
typedef struct {
  int32_t kind;
  int32_t phases;     /* MPCA: shards of the joint model, 1 to 3; elsewhere 1 */
  int32_t weighted;   /* MPCA: a snapshot counts as often as steps lie behind it (9); 0: once */
  double alpha;       /* MPCA: the pull of every step (7), after the start; EASGD: of an exchange */
  double beta;        /* MPCA: the weight of a cycle's mean (8); EASGD_SYNCHRONOUS likewise */
  double gamma;       /* MPCA: cycles by which the target lies ahead of the joint model (5) */
  double delta;       /* MPCA: what the trajectory keeps of itself in a cycle (4) */
  double start_alpha; /* MPCA: the pull after `free_cycles`; falls to alpha in `start_cycles` */
  int64_t free_cycles;  /* MPCA: without any pull */
  int64_t start_cycles; /* MPCA */
  int64_t ramp_cycles;  /* MPCA: in which beta falls from 1, and gamma grows from 0 */
  int64_t min_steps;    /* MPCA: of the workers' mean, between two snapshots of a shard */
  int64_t steps;        /* SPARKNET, EASGD: from one exchange to the next; 0 = as is measured */
  int32_t bfloat16;     /* SPARKNET: 1 = the change since the last round travels as that; with
                           `gradients` the gradient */
  int32_t gradients;    /* SPARKNET, steps 1: 1 = rounds are of gradients, before the optimizer */
} strom_method;

/* What was done between two steps, or waits to be done. */
typedef struct {
  int32_t waits;     /* 1: training has to wait for the joint model; see strom_local_model_await */
  int32_t shards;    /* targets, or parts of the joint model, that were installed */
  int64_t exchanges; /* snapshots and differences that were sent since the generation began */
  double alpha;      /* of this pull; 0 = there was none */
  double distance;   /* sum of (x* - x)^2 before the pull, over shards that have a target */
  double target;     /* sum of x*^2 over them */
  int64_t cycle_steps;   /* own steps between the last two snapshots of a shard, or exchanges */
  double cycle_seconds;  /* between them */
  double waited_seconds; /* in exchanges, since the generation began */
} strom_pull_result;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KERAS_STROM_CORE_JOINT_JOINT_VALUES_H_ */
