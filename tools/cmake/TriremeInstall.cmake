# cmake --install: the program, the library with the headers of its floors, and the package that
# find_package(Trireme) reads (docs/library.md).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
set(headers_folder ${CMAKE_INSTALL_INCLUDEDIR}/trireme)

set_target_properties(trireme PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON) # libraries outside the system's folders
install(TARGETS trireme libtrireme)

list(TRANSFORM floors APPEND "/*.h" OUTPUT_VARIABLE patterns)
file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${patterns})
# Private to their folders: these, and those that include them.
set(private "[a-z_/]*_impl.h")
list(FILTER headers EXCLUDE REGEX "_impl\\.h$|^device/(cpu|cuda|ref)/")
set(before)
while(NOT private STREQUAL before)
  set(before ${private})
  foreach(header IN LISTS headers)
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} found REGEX "^#include \"(${private})\"")
    if(found)
      list(REMOVE_ITEM headers ${header})
      string(APPEND private "|${header}")
    endif()
  endforeach()
endwhile()
foreach(header IN LISTS headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${headers_folder}/${folder})
endforeach()

configure_package_config_file(tools/cmake/TriremeConfig.cmake.in ${CMAKE_BINARY_DIR}/TriremeConfig.cmake
  INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_LIBDIR headers_folder)
# No promise yet that the next version has the same functions.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TriremeConfigVersion.cmake COMPATIBILITY ExactVersion)
install(FILES ${CMAKE_BINARY_DIR}/TriremeConfig.cmake ${CMAKE_BINARY_DIR}/TriremeConfigVersion.cmake
  tools/cmake/TriremeDependencies.cmake DESTINATION ${package})
