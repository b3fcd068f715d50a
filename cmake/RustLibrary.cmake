# Builds the Rust library through cargo and imports it as RdmaTransport::rdma_transport (shared) and
# RdmaTransport::static.

find_program(CARGO_EXECUTABLE cargo HINTS $ENV{CARGO_HOME}/bin $ENV{HOME}/.cargo/bin REQUIRED)

if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(RT_CARGO_PROFILE dev)
else()
  set(RT_CARGO_PROFILE release)
endif()
set(RT_CARGO_ARGS build --lib --profile ${RT_CARGO_PROFILE})
if(NOT RDMA_TRANSPORT_IBVERBS)
  list(APPEND RT_CARGO_ARGS --no-default-features)
endif()
separate_arguments(RT_CARGO_MORE UNIX_COMMAND "${RDMA_TRANSPORT_CARGO_FLAGS}")
list(APPEND RT_CARGO_ARGS ${RT_CARGO_MORE})

# Cargo builds in its target folder; the build folder holds it under its versioned names.
if(DEFINED ENV{CARGO_TARGET_DIR})
  set(RT_TARGET_DIR $ENV{CARGO_TARGET_DIR})
else()
  set(RT_TARGET_DIR ${CMAKE_CURRENT_SOURCE_DIR}/target)
endif()
set(RT_LIB_DIR ${CMAKE_CURRENT_BINARY_DIR}/lib)
set(RT_SONAME librdma_transport.so.${PROJECT_VERSION_MAJOR})
set(RT_SHARED ${RT_LIB_DIR}/librdma_transport.so.${PROJECT_VERSION})
set(RT_STATIC ${RT_LIB_DIR}/librdma_transport.a)
# What the static library needs of the system: `rustc --print native-static-libs`, less the C library, and less what unwinds the stack:
# compilers link that by themselves, as it fits, `gcc_s` or, of a program that is static as a whole, `gcc_eh`.
set(RT_SYSTEM_LIBS pthread dl m rt)

file(MAKE_DIRECTORY ${RT_LIB_DIR})
add_custom_target(rdma_transport_cargo ALL
  COMMAND ${CMAKE_COMMAND} -DCARGO=${CARGO_EXECUTABLE} -DTARGET_DIR=${RT_TARGET_DIR} -DSHARED=${RT_SHARED} -DSTATIC=${RT_STATIC}
          -P ${CMAKE_CURRENT_LIST_DIR}/CargoBuild.cmake -- ${RT_CARGO_ARGS}
  COMMAND ${CMAKE_COMMAND} -E create_symlink librdma_transport.so.${PROJECT_VERSION} ${RT_LIB_DIR}/${RT_SONAME}
  COMMAND ${CMAKE_COMMAND} -E create_symlink ${RT_SONAME} ${RT_LIB_DIR}/librdma_transport.so
  BYPRODUCTS ${RT_SHARED} ${RT_STATIC}
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
  USES_TERMINAL
  VERBATIM
  COMMENT "cargo ${RT_CARGO_PROFILE}: librdma_transport")

add_library(RdmaTransport::rdma_transport SHARED IMPORTED GLOBAL)
set_target_properties(RdmaTransport::rdma_transport PROPERTIES
  IMPORTED_LOCATION ${RT_SHARED}
  IMPORTED_SONAME ${RT_SONAME}
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/include)
add_dependencies(RdmaTransport::rdma_transport rdma_transport_cargo)

add_library(RdmaTransport::static STATIC IMPORTED GLOBAL)
set_target_properties(RdmaTransport::static PROPERTIES
  IMPORTED_LOCATION ${RT_STATIC}
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/include
  INTERFACE_LINK_LIBRARIES "${RT_SYSTEM_LIBS}"
  # Inline functions of the C++ headers stay with their copy of the library.
  INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:-fvisibility-inlines-hidden>")
add_dependencies(RdmaTransport::static rdma_transport_cargo)
