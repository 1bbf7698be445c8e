# Compiles for 64-bit Arm (aarch64) on another machine, with Debian's cross compiler:
#
#   cmake -S custom_ops -B build/aarch64/native \
#     -DCMAKE_TOOLCHAIN_FILE=$PWD/custom_ops/cmake/aarch64.cmake
#
# STROM_AARCH64_LIBRARIES is a folder with what Debian's libssl-dev (and for tests libgtest-dev and
# libgmock-dev) for arm64 hold, as .ci/aarch64/packages makes it. Programs run in qemu-user's
# emulation where it is installed; nothing of this is needed on an aarch64 machine itself.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

get_filename_component(strom_root ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
set(STROM_AARCH64_LIBRARIES ${strom_root}/build/aarch64/libraries CACHE PATH
    "Headers and static libraries for arm64")
# CMake reads this file again for each of its own trials.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES STROM_AARCH64_LIBRARIES)

set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CXX_FLAGS_INIT "-isystem ${STROM_AARCH64_LIBRARIES}/usr/include/aarch64-linux-gnu")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${STROM_AARCH64_LIBRARIES} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(STROM_QEMU qemu-aarch64)
if(STROM_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${STROM_QEMU} -L /usr/aarch64-linux-gnu)
endif()
# nvcc, where it is, is this machine's.
set(STROM_CUDA OFF CACHE STRING "libstrom_cuda.so is not cross-compiled")
