# emulated/apus-cuda.so: the CUDA backend with its kernels on the processor, for tests (tests/emulator/emulator.h). Built
# when it is asked for, where the toolkit's headers are: cmake --build BUILD --target emulated
if(APPLE OR CMAKE_CROSSCOMPILING OR APUS_FUZZ OR APUS_SANITIZE MATCHES thread OR NOT processor MATCHES "x86_64|amd64")
  return()
endif()
set(emulated_cache $ENV{XDG_CACHE_HOME})
if(NOT emulated_cache)
  set(emulated_cache $ENV{HOME}/.cache)
endif()
file(GLOB emulated_wheels ${emulated_cache}/apus/cuda/nvidia/cu13)
find_path(APUS_EMULATED_INCLUDE cuda_runtime_api.h HINTS ${APUS_CUDA_INCLUDE} ${emulated_wheels}/include
          /usr/local/cuda/include /usr/local/cuda-13.0/include NO_DEFAULT_PATH)
find_program(APUS_CXX g++)
find_program(APUS_PYTHON python3)
if(NOT APUS_EMULATED_INCLUDE OR NOT APUS_CXX OR NOT APUS_PYTHON)
  return()
endif()

# -fno-weak: functions of headers are each file's own, as in kernels that were compiled apart.
set(emulator ${CMAKE_SOURCE_DIR}/tests/emulator)
set(translated ${CMAKE_BINARY_DIR}/emulated/src/backend/cuda)
set(emulated_flags -std=c++17 -O1 -fPIC -fvisibility=hidden -fno-weak -fno-exceptions -fno-rtti -fno-threadsafe-statics
    -fno-strict-aliasing -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -mavx2 -mfma -mf16c -w -DAPUS_CUDA_SM90A
    -D_Noreturn=__attribute__\(\(noreturn\)\) -I${CMAKE_BINARY_DIR}/emulated/src -I${CMAKE_SOURCE_DIR}/src -I${emulator}/include
    -I${emulator} -isystem ${APUS_EMULATED_INCLUDE})
if(APUS_SANITIZE)
  list(APPEND emulated_flags -fsanitize=${APUS_SANITIZE} -fno-sanitize=vptr -fno-sanitize-recover=all)
endif()
file(GLOB_RECURSE emulated_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cuh)
file(GLOB_RECURSE emulated_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
file(GLOB emulated_parts CONFIGURE_DEPENDS ${emulator}/*.cpp)
set(emulated_translations)
foreach(file ${emulated_headers} ${emulated_kernels})
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/src/backend/cuda ${file})
  get_filename_component(folder ${translated}/${name} DIRECTORY)
  add_custom_command(OUTPUT ${translated}/${name}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${APUS_PYTHON} ${emulator}/translate.py ${file} ${translated}/${name}
    DEPENDS ${file} ${emulator}/translate.py VERBATIM)
  list(APPEND emulated_translations ${translated}/${name})
endforeach()
set(emulated_objects)
foreach(file ${emulated_kernels} ${emulated_parts})
  get_filename_component(name ${file} NAME) # kernels are called differently in all folders
  set(source ${file})
  set(flags ${emulated_flags})
  if(file MATCHES "[.]cu$")
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR}/src/backend/cuda ${file})
    set(source ${translated}/${path})
  else()
    list(REMOVE_ITEM flags -fno-weak)
  endif()
  set(object ${CMAKE_BINARY_DIR}/emulated/${name}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_C_COMPILER_LAUNCHER} ${APUS_CXX} ${flags} -MD -MF ${object}.d -x c++ -c ${source} -o ${object}
    DEPENDS ${source} ${emulated_translations} DEPFILE ${object}.d VERBATIM COMMENT "emulated ${name}")
  list(APPEND emulated_objects ${object})
endforeach()

file(GLOB_RECURSE emulated_host CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.c)
file(GLOB emulated_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tensor/tensor.c
     ${CMAKE_SOURCE_DIR}/src/tensor/quant.c ${CMAKE_SOURCE_DIR}/src/tensor/float8.c ${CMAKE_SOURCE_DIR}/src/tensor/float16.c ${CMAKE_SOURCE_DIR}/src/base/error.c
     ${CMAKE_SOURCE_DIR}/src/base/utf8.c ${CMAKE_SOURCE_DIR}/src/base/thread.c ${CMAKE_SOURCE_DIR}/src/base/clock.c
     ${CMAKE_SOURCE_DIR}/src/base/digest.c
     ${CMAKE_SOURCE_DIR}/src/base/cores.c ${CMAKE_SOURCE_DIR}/src/base/cgroup.c ${CMAKE_SOURCE_DIR}/src/base/file.c ${CMAKE_SOURCE_DIR}/src/base/buffer.c
     ${CMAKE_SOURCE_DIR}/src/backend/kv_*.c
     ${CMAKE_SOURCE_DIR}/src/backend/step.c ${CMAKE_SOURCE_DIR}/src/backend/mla.c)
add_library(emulated MODULE EXCLUDE_FROM_ALL ${emulated_host} ${emulated_sources} ${emulated_objects})
set_target_properties(emulated PROPERTIES PREFIX "" OUTPUT_NAME apus-cuda SUFFIX ".so" POSITION_INDEPENDENT_CODE ON
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulated LINKER_LANGUAGE C)
target_include_directories(emulated SYSTEM PRIVATE ${APUS_EMULATED_INCLUDE})
target_link_libraries(emulated PRIVATE stdc++ Threads::Threads ${CMAKE_DL_LIBS} m)
target_link_options(emulated PRIVATE LINKER:--exclude-libs,ALL LINKER:--no-undefined)
