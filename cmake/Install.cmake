# Library, headers, CMake package and pkg-config file. All of it can be moved after installation, if no folder
# (CMAKE_INSTALL_LIBDIR and its like) was given as an absolute path.

install(FILES ${RT_SHARED} DESTINATION ${CMAKE_INSTALL_LIBDIR}
        PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
# CMake strips targets of its own only.
if(CMAKE_STRIP)
  install(CODE "
    set(library \"${CMAKE_INSTALL_LIBDIR}\")
    if(NOT IS_ABSOLUTE \"\${library}\")
      set(library \"\${CMAKE_INSTALL_PREFIX}/\${library}\")
    endif()
    if(CMAKE_INSTALL_DO_STRIP)
      execute_process(COMMAND \"${CMAKE_STRIP}\" \"\$ENV{DESTDIR}\${library}/librdma_transport.so.${PROJECT_VERSION}\"
                      RESULT_VARIABLE failed)
      if(failed)
        message(FATAL_ERROR \"${CMAKE_STRIP} of librdma_transport.so.${PROJECT_VERSION} failed: \${failed}\")
      endif()
    endif()")
endif()
install(FILES ${RT_LIB_DIR}/${RT_SONAME} ${RT_LIB_DIR}/librdma_transport.so ${RT_STATIC}
        DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/rdma_transport.h include/rdma_transport.hpp include/rdma_transport_options.hpp
              include/rdma_transport_types.hpp include/rdma_transport_msg.hpp include/rdma_transport_msg_types.hpp
              include/rdma_transport_pair.hpp include/rdma_transport_store.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(RT_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/RdmaTransport)
configure_package_config_file(cmake/RdmaTransportConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/RdmaTransportConfig.cmake
  INSTALL_DESTINATION ${RT_PACKAGE_DIR}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/RdmaTransportConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/RdmaTransportConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/RdmaTransportConfigVersion.cmake
        DESTINATION ${RT_PACKAGE_DIR})

# The headers refer to these documents.
file(GLOB RT_DOCUMENTS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/docs/*.md)
install(FILES LICENSE ${RT_DOCUMENTS} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/rdma-transport)

# pkg-config: paths relative to the file itself, so that the tree can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(RT_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
  set(RT_PC_LIBDIR "${CMAKE_INSTALL_LIBDIR}")
else()
  file(RELATIVE_PATH RT_PC_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" /prefix)
  set(RT_PC_PREFIX "\${pcfiledir}/${RT_PC_PREFIX}")
  set(RT_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(RT_PC_INCLUDEDIR "${CMAKE_INSTALL_INCLUDEDIR}")
else()
  set(RT_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
string(REPLACE ";" " -l" RT_PC_PRIVATE "${RT_SYSTEM_LIBS}")
set(RT_PC_PRIVATE "-l${RT_PC_PRIVATE}")
configure_file(cmake/rdma-transport.pc.in ${CMAKE_CURRENT_BINARY_DIR}/rdma-transport.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/rdma-transport.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# What the last `cmake --install` of this build folder has put there, by the list that CMake keeps of it.
if(RT_TOP_LEVEL)
  add_custom_target(uninstall
    COMMAND ${CMAKE_COMMAND} -DMANIFEST=${CMAKE_BINARY_DIR}/install_manifest.txt -P ${CMAKE_CURRENT_LIST_DIR}/Uninstall.cmake
    VERBATIM)
endif()
