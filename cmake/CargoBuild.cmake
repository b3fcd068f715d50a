# Runs cargo and copies the libraries that this run has made, or found up to date, to SHARED and STATIC.
#
# Where they lie is asked of cargo: CARGO_BUILD_TARGET, `build.target` and `build.target-dir` of a cargo configuration and flags like
# `--target` or `--profile` all change it, and at the place that one would guess a library of an earlier build may lie.
# usage: cmake -DCARGO=... -DTARGET_DIR=... -DSHARED=... -DSTATIC=... -P CargoBuild.cmake -- <arguments of cargo>...
set(arguments)
set(seen FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(seen)
    list(APPEND arguments "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(seen TRUE)
  endif()
endforeach()

set(ENV{CARGO_TARGET_DIR} "${TARGET_DIR}")
execute_process(COMMAND "${CARGO}" ${arguments} --message-format=json-render-diagnostics
                OUTPUT_VARIABLE messages RESULT_VARIABLE code)
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${CARGO} failed: ${code}")
endif()

foreach(kind IN ITEMS so a)
  string(REGEX MATCHALL "\"[^\"\n]*/librdma_transport[.]${kind}\"" found "${messages}")
  list(REMOVE_DUPLICATES found)
  list(LENGTH found count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "cargo made ${count} libraries librdma_transport.${kind}, and one is needed: "
                        "build for one target, by cargo's settings and RDMA_TRANSPORT_CARGO_FLAGS. ${found}")
  endif()
  string(REGEX REPLACE "^\"|\"$" "" path_of_${kind} "${found}")
endforeach()
execute_process(COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${path_of_so}" "${SHARED}" RESULT_VARIABLE code)
if(code EQUAL 0)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${path_of_a}" "${STATIC}" RESULT_VARIABLE code)
endif()
if(NOT code EQUAL 0)
  message(FATAL_ERROR "what cargo made was not copied: ${path_of_so}, ${path_of_a}")
endif()
