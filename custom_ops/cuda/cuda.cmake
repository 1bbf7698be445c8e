# libstrom_cuda.so: core <- cuda <- capi/strom_cuda.h, with the CUDA runtime inside, so that it loads
# where there is no device and says so. It needs nothing of libstrom.so and shows only its own names.
set(strom_cuda_interface ${CMAKE_CURRENT_SOURCE_DIR}/capi/strom_cuda.cc
                         ${CMAKE_CURRENT_SOURCE_DIR}/capi/error.cc)
set(strom_cuda_names -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/names.map
                     -Wl,--exclude-libs,libcrypto.a)

set(strom_cuda ${STROM_CUDA})
if(STROM_CUDA STREQUAL AUTO)
  include(CheckLanguage)
  check_language(CUDA)
  set(strom_cuda OFF)
  if(CMAKE_CUDA_COMPILER AND NOT STROM_SANITIZE)
    set(strom_cuda ON)
  endif()
endif()

if(strom_cuda)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  add_library(strom_cuda SHARED ${CMAKE_CURRENT_LIST_DIR}/codec.cu ${strom_cuda_interface})
  set_target_properties(strom_cuda PROPERTIES CUDA_ARCHITECTURES "${STROM_CUDA_ARCHITECTURES}"
                        CUDA_RUNTIME_LIBRARY Static)
  # As on the host: no fused multiply-add. nvcc leaves subnormal numbers alone by itself, and it has
  # its own spelling of the host compiler's options.
  get_directory_property(host_options COMPILE_OPTIONS)
  set(device_options --fmad=false -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
  if(STROM_WERROR)
    list(APPEND device_options -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  set_property(TARGET strom_cuda PROPERTY COMPILE_OPTIONS
               "$<$<COMPILE_LANGUAGE:CXX>:${host_options}>"
               "$<$<COMPILE_LANGUAGE:CUDA>:${device_options}>")
  target_link_libraries(strom_cuda PRIVATE strom_core ${strom_cuda_names})
  add_dependencies(strom_package strom_cuda)
  install(TARGETS strom_cuda LIBRARY DESTINATION .)
endif()

# The same sources without nvcc: kernels run in the emulation, for tests. Those in Python build a
# shared library of them, with libstrom_cuda.so's interface (tests/support/emulated_gpu.py); native
# ones that want it link with strom_cuda_emulated_interface.
function(strom_emulated_cuda)
  add_library(strom_cuda_emulation STATIC cuda/emulated_codec.cc cuda/emulation.cc)
  target_link_libraries(strom_cuda_emulation PUBLIC strom_core)
  target_link_libraries(strom_cuda_emulation PUBLIC ${CMAKE_DL_LIBS})
  add_library(strom_cuda_emulated_interface STATIC capi/strom_cuda.cc)
  target_link_libraries(strom_cuda_emulated_interface PUBLIC strom_cuda_emulation strom_capi)
endfunction()
