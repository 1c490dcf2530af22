# zero_add_library(name [SOURCES …] [HEADERS …] [PUBLIC …] [PRIVATE …])
# A layer `zero_<name>` with alias `zero::<name>`. HEADERS are names below include/zero/, each must compile by itself.
function(zero_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;PUBLIC;PRIVATE" ${ARGN})
  add_library(zero_${name} STATIC ${ARG_SOURCES})
  add_library(zero::${name} ALIAS zero_${name})
  list(TRANSFORM ARG_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/include/zero/)
  target_sources(zero_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${ARG_HEADERS})
  target_include_directories(zero_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(zero_${name} PUBLIC ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:zero_settings> ${ARG_PRIVATE})
  target_compile_features(zero_${name} PUBLIC cxx_std_20)
  set_target_properties(zero_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
endfunction()

# zero_add_program(name SOURCES … LIBS …): goes to ZERO_BIN_DIR.
function(zero_add_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE zero_settings ${ARG_LIBS})
endfunction()

# zero_add_test(name LABEL unit|ranks|mpi|e2e|parity|gpu SOURCES … LIBS … [TIMEOUT s] [RANKS n] [ARGS …] [SOAK])
# A Catch2 program run as one CTest test "<label>.<name>"; with RANKS under mpirun. ARGS: Catch2 test specification.
# SOAK: its cases tagged [soak] are the test "soak.<name>", which runs only when it is asked for.
function(zero_add_test name)
  cmake_parse_arguments(ARG "SOAK" "LABEL;TIMEOUT;RANKS" "SOURCES;LIBS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  zero_add_program(test_${name} SOURCES ${ARG_SOURCES} LIBS ${ARG_LIBS} zero_test_support)
  set_target_properties(test_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(ARG_RANKS)
    if(NOT ZERO_HAVE_MPI)
      return()
    endif()
    set(launch ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe --bind-to none -n ${ARG_RANKS})
  endif()
  add_test(NAME ${ARG_LABEL}.${name} COMMAND ${launch} $<TARGET_FILE:test_${name}> ${ARG_ARGS})
  set_tests_properties(${ARG_LABEL}.${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT}
                       ENVIRONMENT "ZERO_TIMEOUT=30;OMP_WAIT_POLICY=passive")
  if(ARG_SOAK)
    add_test(NAME soak.${name} COMMAND ${launch} $<TARGET_FILE:test_${name}> [soak])
    set_tests_properties(soak.${name} PROPERTIES LABELS soak TIMEOUT 7200 ENVIRONMENT "ZERO_TIMEOUT=30")
  endif()
endfunction()

# zero_add_mpi_runs(prefix program RANKS n… LABELS … TIMEOUT s [ARGS …])
# Further runs of a test program under mpirun: CTest tests "<prefix>_<n>".
function(zero_add_mpi_runs prefix program)
  cmake_parse_arguments(ARG "" "TIMEOUT" "RANKS;LABELS;ARGS" ${ARGN})
  foreach(ranks ${ARG_RANKS})
    add_test(NAME ${prefix}_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe
             --bind-to none -n ${ranks} $<TARGET_FILE:${program}> ${ARG_ARGS})
    set_tests_properties(${prefix}_${ranks} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ON
                         ENVIRONMENT "ZERO_TIMEOUT=60")
  endforeach()
endfunction()
