# The order in which ctest begins the tests of a new build: the longest first, so that none of them is left alone at the
# end, and whole runs between the others. A whole run mostly waits, and the other tests compute, so together they use the
# processors better than one kind after the other.
set(long_runs full_disk hosts stopping bundle background watchdog gpu_scripts nccl rundir spikes sequence own_model
  signals guarded zero.fp32 progress eval bad_input)
set(long_units op_cuda_emulated cuda_graphs search_plans op_cpu op_cpu.avx2 zero offload search arena ckpt_kill tokenize)
list(TRANSFORM long_runs PREPEND run.)
list(TRANSFORM long_units PREPEND unit.test_)

# spread_tests(kind longest...): gives the tests that match `kind` costs that fall evenly from 1000 to 0, the longest first.
function(spread_tests kind)
  get_property(all DIRECTORY PROPERTY TESTS)
  list(FILTER all INCLUDE REGEX ${kind})
  set(tests ${ARGN})
  foreach(test IN LISTS ARGN)
    if(NOT TEST ${test})
      list(REMOVE_ITEM tests ${test}) # not in this build
    endif()
  endforeach()
  list(APPEND tests ${all})
  list(REMOVE_DUPLICATES tests)
  list(LENGTH tests count)
  set(place 0)
  foreach(test IN LISTS tests)
    math(EXPR cost "1000 - 1000 * ${place} / ${count}")
    set_tests_properties(${test} PROPERTIES COST ${cost})
    math(EXPR place "${place} + 1")
  endforeach()
endfunction()

spread_tests("^run\\." ${long_runs})
spread_tests("^(unit|mpi|house)\\." ${long_units})
