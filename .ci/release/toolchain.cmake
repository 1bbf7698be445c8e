# This machine's compiler with the headers and libraries of an older system (against.py), so that
# what it makes runs there. STROM_RELEASE_SYSROOT and STROM_RELEASE_OPENSSL say where they lie.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES STROM_RELEASE_SYSROOT STROM_RELEASE_OPENSSL
            STROM_RELEASE_PREFIX_MAPS)
set(CMAKE_SYSROOT ${STROM_RELEASE_SYSROOT})
set(cxx ${CMAKE_SYSROOT}/usr/include/c++/10)
set(target_cxx ${CMAKE_SYSROOT}/usr/include/x86_64-linux-gnu/c++/10)
string(JOIN " " CMAKE_CXX_FLAGS_INIT
       -nostdinc++ "-isystem ${cxx}" "-isystem ${target_cxx}" "-isystem ${cxx}/backward"
       "-isystem ${STROM_RELEASE_OPENSSL}/include"
       "-include ${CMAKE_CURRENT_LIST_DIR}/older.h"
       ${STROM_RELEASE_PREFIX_MAPS})
# The older libraries come before those that lie beside the compiler's own, where it looks before it
# looks into a sysroot. -s: no symbols but those to link with.
set(libraries ${CMAKE_SYSROOT}/usr/lib/x86_64-linux-gnu)
add_link_options(-B${libraries} -L${CMAKE_SYSROOT}/usr/lib/gcc/x86_64-linux-gnu/10 -L${libraries}
                 -L${CMAKE_SYSROOT}/lib/x86_64-linux-gnu)
add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:-s>)
add_link_options(-Wl,--build-id=none)
# Threads are not in the older libc itself, which CMake would answer with other flags to compile with.
set(CMAKE_HAVE_LIBC_PTHREAD TRUE CACHE BOOL "")
set(CMAKE_CXX_STANDARD_LIBRARIES_INIT "-lpthread -ldl")
set(STROM_CRYPTO ${STROM_RELEASE_OPENSSL}/libcrypto.a CACHE FILEPATH "")
set(STROM_CRYPTO_HEADERS ${STROM_RELEASE_OPENSSL}/include CACHE PATH "")
