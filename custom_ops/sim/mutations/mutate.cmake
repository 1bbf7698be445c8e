# Writes a copy of one source of the product with one rule taken out:
#   cmake -DMUTATION=FILE -DROOT=custom_ops -DCOPY=FILE -P mutate.cmake
# A mutation says what it takes out, in which source, in which jobs of the simulator that shows soon
# (`jobs: KIND`; without, in any), and the words before and after. Those before must stand there
# exactly once, so that a mutation cannot lose its meaning unnoticed.
file(READ "${MUTATION}" text)
if(NOT text MATCHES "^# [^\n]+\n([^\n]+)\n(jobs: [^\n]+\n)?--- was\n(.*)\n--- becomes\n(.*)$")
  message(FATAL_ERROR "${MUTATION} is not of the form: # what, source, perhaps jobs: KIND, "
                      "--- was, --- becomes")
endif()
set(source "${CMAKE_MATCH_1}")
set(was "${CMAKE_MATCH_3}")
set(becomes "${CMAKE_MATCH_4}")
file(READ "${ROOT}/${source}" code)
string(FIND "${code}" "${was}" first)
string(FIND "${code}" "${was}" last REVERSE)
if(first EQUAL -1 OR NOT first EQUAL last)
  message(FATAL_ERROR "${source} no longer has these words once; change ${MUTATION} so that it "
                      "still takes out its rule:\n${was}")
endif()
string(REPLACE "${was}" "${becomes}" code "${code}")
file(WRITE "${COPY}" "${code}")
