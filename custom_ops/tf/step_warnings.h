// What the operators have to tell their user in words, once: Python's logger says it
// (keras_strom/sharing/step_warnings.py), for TensorFlow's own is silent in workers.
#ifndef KERAS_STROM_TF_STEP_WARNINGS_H_
#define KERAS_STROM_TF_STEP_WARNINGS_H_

#include <string>

namespace keras_strom {

// Keeps the words until they are asked for. What this process has been told before is dropped, and
// so is everything once it has been told a few dozen things. Any thread may call it.
void WarnOnce(const std::string& words);

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_STEP_WARNINGS_H_
