# What the kernels cannot be built for is refused by name, before nvcc is tried with it.
set(GRT_OLDEST_ARCHITECTURE 80)  # bf16 on tensor cores, asynchronous copies

# check_architectures(NVCC ARCHITECTURES...): as CMAKE_CUDA_ARCHITECTURES has them.
function(check_architectures nvcc)
  execute_process(COMMAND ${nvcc} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+" known "${known}")
  foreach(architecture IN LISTS ARGN)
    if(architecture STREQUAL "native")
      continue()
    elseif(NOT architecture MATCHES "^([0-9]+)a?(-real|-virtual)?$")
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES: must be native or numbers like 90, 80-real or 90-virtual, not "
                          "\"${architecture}\"")
    endif()
    set(number ${CMAKE_MATCH_1})
    if(number LESS GRT_OLDEST_ARCHITECTURE)
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES: ${architecture} is too old, the kernels need "
                          "${GRT_OLDEST_ARCHITECTURE} or later")
    elseif(known AND NOT number IN_LIST known)
      list(JOIN known ", " known)
      message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES: ${nvcc} does not know ${architecture}, but ${known}")
    endif()
  endforeach()
endfunction()
