# The simulator is tested by mutation: of each sim/mutations/NAME.mutation a simulator is made whose
# product lacks one rule, and within these seeds it must find a broken promise, at the first of which
# it stops. Where all kinds of jobs would take seconds until then, the mutation says in which kind its
# rule is missed soon. Any change of what travels deals other jobs to the seeds, so there are many
# more of them than a mutant needs: the rarest is found once in 300. The product's sources stay as
# they are: a changed copy of one of them takes its place when the mutant is linked.
set(mutant_seeds 0-1999)
# Between them they include what the mutants do, which is read once, for the first: half of the time.
set(mutant_headers ${CMAKE_CURRENT_SOURCE_DIR}/core/master/master_node.h
                   ${CMAKE_CURRENT_SOURCE_DIR}/core/worker/worker_node.h)
set(read_by "")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(mutant_options -fpch-preprocess) # for ccache
else()
  set(mutant_options "")
endif()
set(mutations ${CMAKE_CURRENT_SOURCE_DIR}/sim/mutations)
file(GLOB mutation_files CONFIGURE_DEPENDS ${mutations}/*.mutation)
foreach(mutation ${mutation_files})
  get_filename_component(name ${mutation} NAME_WE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${mutation})
  file(STRINGS ${mutation} lines LIMIT_COUNT 3)
  list(GET lines 1 source)
  list(GET lines 2 jobs)
  if(jobs MATCHES "^jobs: (.+)$")
    set(chosen --jobs ${CMAKE_MATCH_1} --links memory)
  else()
    set(chosen --jobs all)
  endif()
  set(copy ${CMAKE_BINARY_DIR}/mutants/${name}.cc)
  add_custom_command(
    OUTPUT ${copy}
    COMMAND ${CMAKE_COMMAND} -DMUTATION=${mutation} -DROOT=${CMAKE_CURRENT_SOURCE_DIR}
            -DCOPY=${copy} -P ${mutations}/mutate.cmake
    DEPENDS ${mutation} ${mutations}/mutate.cmake ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    VERBATIM)
  add_executable(mutant_${name} ${copy})
  # What nobody calls once a rule is out must not stop the build. A mutant runs for a second or two.
  target_compile_options(mutant_${name} PRIVATE -Wno-error -O1 ${mutant_options})
  if(read_by)
    target_precompile_headers(mutant_${name} REUSE_FROM ${read_by})
  else()
    set(read_by mutant_${name})
    target_precompile_headers(${read_by} PRIVATE ${mutant_headers})
  endif()
  target_link_libraries(mutant_${name} PRIVATE simulator_main)
  add_dependencies(strom_tests mutant_${name})
  add_test(NAME mutant_${name} COMMAND mutant_${name} --seeds ${mutant_seeds} ${chosen}
                                         --expect-violation)
  set_tests_properties(mutant_${name} PROPERTIES TIMEOUT 300)
endforeach()
