# apus-cuda.so, the backend on NVIDIA GPUs; nothing else depends on it. AUTO builds it where there are a CUDA compiler and a
# driver, ON wherever there is a compiler (tools/install.sh cuda brings one). Kernels are compiled by calling nvcc: a
# language of CMake's own would want a whole toolkit.
set(APUS_CUDA AUTO CACHE STRING "build apus-cuda.so: AUTO, ON or OFF")
set(APUS_CUDA_CODE "compute_80,code=sm_80;compute_89,code=sm_89;compute_90a,code=sm_90a;compute_90,code=compute_90"
    CACHE STRING "what kernels are compiled for")
if(APUS_CUDA STREQUAL OFF OR APPLE OR APUS_SANITIZE OR APUS_FUZZ OR CMAKE_CROSSCOMPILING)
  return()
endif()
if(APUS_CUDA STREQUAL AUTO AND NOT EXISTS /proc/driver/nvidia AND NOT EXISTS /dev/nvidiactl)
  return()
endif()

set(cuda_cache $ENV{XDG_CACHE_HOME})
if(NOT cuda_cache)
  set(cuda_cache $ENV{HOME}/.cache)
endif()
file(GLOB cuda_wheels ${cuda_cache}/apus/cuda/nvidia/cu13)
find_program(APUS_NVCC nvcc HINTS ${cuda_wheels}/bin /usr/local/cuda/bin)
if(APUS_NVCC)
  file(REAL_PATH ${APUS_NVCC} nvcc)
  cmake_path(GET nvcc PARENT_PATH cuda_root)
  cmake_path(GET cuda_root PARENT_PATH cuda_root)
  find_path(APUS_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include)
  find_library(APUS_CUDART cudart_static HINTS ${cuda_root}/lib64 ${cuda_root}/lib ${cuda_root}/targets/x86_64-linux/lib)
endif()
if(NOT APUS_NVCC OR NOT APUS_CUDA_INCLUDE OR NOT APUS_CUDART)
  if(APUS_CUDA STREQUAL ON)
    message(FATAL_ERROR "no CUDA compiler; tools/install.sh cuda brings one")
  endif()
  return()
endif()
message(STATUS "apus-cuda.so: ${nvcc}")

set(cuda_flags -std=c++17 -O3 -fmad=false -I${CMAKE_SOURCE_DIR}/src -D_Noreturn=__attribute__\(\(noreturn\)\)
               -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics)
if(NOT cuda_root STREQUAL "/usr/local/cuda")
  list(APPEND cuda_flags -I${APUS_CUDA_INCLUDE})
endif()
if(APUS_CUDA_CODE MATCHES "sm_90a")
  list(APPEND cuda_flags -DAPUS_CUDA_SM90A)
endif()
foreach(code ${APUS_CUDA_CODE})
  list(APPEND cuda_flags -gencode arch=${code})
endforeach()
file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
set(objects)
foreach(kernel ${kernels})
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src/backend/cuda ${kernel})
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  get_filename_component(folder ${object} DIRECTORY)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${nvcc} ${cuda_flags} -MD -MF ${object}.d -c ${kernel} -o ${object}
    DEPENDS ${kernel} DEPFILE ${object}.d VERBATIM COMMENT "nvcc ${name}")
  list(APPEND objects ${object})
endforeach()

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.c)
file(GLOB tensor_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tensor/tensor.c ${CMAKE_SOURCE_DIR}/src/tensor/quant.c ${CMAKE_SOURCE_DIR}/src/tensor/float8.c
     ${CMAKE_SOURCE_DIR}/src/tensor/float16.c ${CMAKE_SOURCE_DIR}/src/base/error.c ${CMAKE_SOURCE_DIR}/src/base/utf8.c
     ${CMAKE_SOURCE_DIR}/src/base/thread.c ${CMAKE_SOURCE_DIR}/src/base/clock.c ${CMAKE_SOURCE_DIR}/src/base/digest.c
     ${CMAKE_SOURCE_DIR}/src/base/cores.c ${CMAKE_SOURCE_DIR}/src/base/cgroup.c ${CMAKE_SOURCE_DIR}/src/base/file.c ${CMAKE_SOURCE_DIR}/src/base/buffer.c
     ${CMAKE_SOURCE_DIR}/src/backend/kv_*.c ${CMAKE_SOURCE_DIR}/src/backend/step.c ${CMAKE_SOURCE_DIR}/src/backend/mla.c)
add_library(apus-cuda MODULE ${cuda_sources} ${tensor_sources} ${objects})
set_target_properties(apus-cuda PROPERTIES PREFIX "" SUFFIX ".so" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      POSITION_INDEPENDENT_CODE ON LINKER_LANGUAGE C)
target_include_directories(apus-cuda SYSTEM PRIVATE ${APUS_CUDA_INCLUDE})
target_link_libraries(apus-cuda PRIVATE ${APUS_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt m)
target_link_options(apus-cuda PRIVATE LINKER:--exclude-libs,ALL LINKER:--no-undefined)
install(TARGETS apus-cuda LIBRARY DESTINATION bin)
