# One line for each MPI test and each whole-run test.
trireme_mpi_test(comm 1 2 3 5)
# The same with staged messages.
add_test(NAME mpi.comm.staged.3 COMMAND ${MPIEXEC_EXECUTABLE} --bind-to none -n 3
  $<TARGET_FILE:comm> guarded)
trireme_mpirun(mpi.comm.staged.3)
# NCCL on GPUs, which gpu.sh runs, and with one rank over the checked library.
if(TARGET nccl_mock)
  add_executable(gpu_nccl mpi/gpu_nccl.c)
  target_link_libraries(gpu_nccl PRIVATE trireme_testing)
  add_test(NAME mpi.comm.nccl.1 COMMAND gpu_nccl guarded)
  set_tests_properties(mpi.comm.nccl.1 PROPERTIES LABELS mpi TIMEOUT 300
    ENVIRONMENT "${mpi_environment};LD_LIBRARY_PATH=${nccl_mock_folder}:$ENV{LD_LIBRARY_PATH}")
endif()
# The same over a libnccl.so.2 that checks every call.
if(TARGET nccl_mock)
  foreach(ranks IN ITEMS 2 3 5)
    add_test(NAME mpi.comm.nccl.${ranks} COMMAND ${MPIEXEC_EXECUTABLE} --bind-to none -n ${ranks}
      $<TARGET_FILE:comm> guarded nccl)
    trireme_mpirun(mpi.comm.nccl.${ranks} LD_LIBRARY_PATH=${nccl_mock_folder}:$ENV{LD_LIBRARY_PATH})
  endforeach()
endif()
trireme_mpi_test(ckpt 1 3)
trireme_mpi_test(runner 2 4)

trireme_run_test(cli)
trireme_run_test(schedule)
trireme_run_test(report)
trireme_run_test(plan)
trireme_run_test(memory)
trireme_run_test(models)
trireme_run_test(transfer)
trireme_run_test(footprint)
add_test(NAME run.trace COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/run/trace.sh $<TARGET_FILE:trireme>
  ${CMAKE_CURRENT_BINARY_DIR}/run-trace $<TARGET_FILE:trace_check>)
set_tests_properties(run.trace PROPERTIES LABELS run TIMEOUT 600)

# The promises of documents and examples.
trireme_run_test(readme)
trireme_run_test(examples)
trireme_run_test(own_model)
if(NOT TRIREME_SANITIZE) # the example has no flags of the sanitizers
  trireme_run_test(library)
endif()
set_tests_properties(run.own_model PROPERTIES PROCESSORS 2) # it builds

# A process that cannot start more threads.
target_link_options(test_trace PRIVATE -Wl,--wrap=clock_gettime)
target_link_options(test_no_thread PRIVATE -Wl,--wrap=pthread_create
  -Wl,--wrap=pthread_mutex_init,--wrap=pthread_mutex_destroy
  -Wl,--wrap=pthread_cond_init,--wrap=pthread_cond_destroy)

# A file system that cannot lock, and what is synced.
target_link_options(test_rundir PRIVATE -Wl,--wrap=fcntl,--wrap=mkdir,--wrap=fsync)

# A file that is removed after a failure.
target_link_options(test_hosts PRIVATE -Wl,--wrap=unlink,--wrap=fdopen)

# A thread that writes when the test lets it, its time, and what a write allocates.
target_link_options(test_saver PRIVATE -Wl,--wrap=tr_ckpt_saving_write,--wrap=clock_gettime
  -Wl,--wrap=tr_device_staging_alloc,--wrap=tr_calloc)

# The order in which a file is synced and renamed.
target_link_options(test_metrics PRIVATE -Wl,--wrap=fsync,--wrap=rename)

# A directory that cannot be synced.
target_link_options(test_ckpt PRIVATE -Wl,--wrap=tr_folders_sync)

# Saves that a test ends well or badly.
target_link_options(test_save_step PRIVATE
  -Wl,--wrap=tr_saver_begin,--wrap=tr_saver_saves,--wrap=tr_saver_look,--wrap=tr_saver_end
  -Wl,--wrap=tr_engine_complete,--wrap=tr_session_begin,--wrap=tr_rundir_in_place
  -Wl,--wrap=tr_recorder_write_report,--wrap=tr_recorder_warn,--wrap=tr_recorder_sync)

# A rank that cannot open a group or a channel.
target_link_options(test_engine PRIVATE -Wl,--wrap=tr_group_open,--wrap=tr_channel_open
  -Wl,--wrap=tr_world_keeps_memory)

# Ranks that are stopped for a while.
target_link_options(test_comm_local PRIVATE
  -Wl,--wrap=clock_gettime,--wrap=pthread_cond_timedwait)

# What a rank does while a sum travels.
target_link_options(test_tensor_sums PRIVATE -Wl,--wrap=tr_op_run,--wrap=tr_group_start,--wrap=tr_group_wait
  -Wl,--wrap=tr_group_scatter,--wrap=tr_group_gather_parts)

# Unit tests that also run under ThreadSanitizer: streams, threads and the local transport.
set(trireme_tsan_tests test_stream test_comm_local test_board test_lower test_runner
  test_layer_stage test_flow test_progress test_heartbeat test_families test_saver)
# Of the processes that test_board starts, each would sleep for a second at its end.
set_property(TEST unit.test_board APPEND PROPERTY ENVIRONMENT TSAN_OPTIONS=atexit_sleep_ms=0)

# The cpu device without AVX-512, where oneDNN has no BF16 product.
foreach(test test_op_cpu test_op_rounded)
  add_test(NAME unit.${test}.avx2 COMMAND ${test})
  set_tests_properties(unit.${test}.avx2 PROPERTIES LABELS unit TIMEOUT ${unit_timeout}
    ENVIRONMENT "${mpi_environment};DNNL_MAX_CPU_ISA=AVX2")
endforeach()

# cuDNN's plans are finalized without a GPU; a substitute replaces the driver.
if(TRIREME_WITH_CUDA)
  add_library(driver_shim SHARED tools/driver_shim.c)
  set_target_properties(driver_shim PROPERTIES PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/driver_shim)
  target_link_libraries(driver_shim PRIVATE trireme_options)
  add_dependencies(test_cuda_graphs driver_shim)
  target_link_options(test_cuda_graphs PRIVATE -Wl,--wrap=tr_cudnn_attention_build
    -Wl,--wrap=tr_cuda_launch_attention_first)
  set_property(TEST unit.test_cuda_graphs APPEND PROPERTY ENVIRONMENT
    "LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}/driver_shim:$ENV{LD_LIBRARY_PATH}")
endif()

# The environment that the cuda device sets before it calls the driver; skipped without the backend.
trireme_run_test(environment)

# The machine code of the kernels.
if(TRIREME_WITH_CUDA)
  add_test(NAME run.kernels COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/run/kernels.sh
    $<TARGET_FILE:trireme> ${CMAKE_CURRENT_BINARY_DIR}/run-kernels ${CMAKE_CUDA_COMPILER})
  set_tests_properties(run.kernels PROPERTIES LABELS run TIMEOUT 300)
endif()

# The launcher and the watchdog, with ranks that only sleep.
add_executable(spin mpi/spin.c)
target_link_libraries(spin PRIVATE libtrireme)
add_test(NAME run.watchdog COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/run/watchdog.sh
  $<TARGET_FILE:spin> ${CMAKE_CURRENT_BINARY_DIR}/run-watchdog $<TARGET_FILE:trireme>)
set_tests_properties(run.watchdog PROPERTIES LABELS run TIMEOUT 900)
# Two hosts, made of network namespaces; skipped where these are not allowed.
add_test(NAME run.hosts COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/run/hosts.sh
  $<TARGET_FILE:trireme> ${CMAKE_CURRENT_BINARY_DIR}/run-hosts $<TARGET_FILE:spin>)
set_tests_properties(run.hosts PROPERTIES LABELS run TIMEOUT 900 SKIP_RETURN_CODE 77)
# Layout equivalence: the same losses and parameters on every layout and schedule.
trireme_run_test(equivalence fp32)
trireme_run_test(equivalence bf16)
trireme_run_test(equivalence fp16)
set_property(TEST run.equivalence.fp16 APPEND PROPERTY ENVIRONMENT TRIREME_TEST_RANKS=4)
trireme_run_test(zero fp32)
trireme_run_test(zero bf16)
trireme_run_test(moments bf16)
trireme_run_test(moments int8)
trireme_run_test(master)
trireme_run_test(gradients)
trireme_run_test(fp64)
trireme_run_test(placements)
trireme_run_test(fits)
trireme_run_test(families)
trireme_run_test(recompute)
trireme_run_test(sequence)
trireme_run_test(lora)
trireme_run_test(sampling)
trireme_run_test(eval)
trireme_run_test(samples)
trireme_run_test(chat)
trireme_run_test(documents)
# Two builds compared: same bits.
trireme_run_test(compare)

# The progress lines of a run.
trireme_run_test(progress)

# Checkpoints, bad input and the ends of a run.
trireme_run_test(resume fp32)
trireme_run_test(resume bf16)
trireme_run_test(background)
trireme_run_test(corrupt)
trireme_run_test(plans)
trireme_run_test(learning_rate)
trireme_run_test(optimizers)
trireme_run_test(batch_warmup)
trireme_run_test(noise_scale)
trireme_run_test(initial_values)
trireme_run_test(old_run)
trireme_run_test(bad_input)
trireme_run_test(spikes)
trireme_run_test(loss_scale)
trireme_run_test(rundir)
trireme_run_test(races)
trireme_run_test(forged)
trireme_run_test(same_data)
trireme_run_test(token_files)
trireme_run_test(tokenize)
trireme_run_test(tokenizers)
trireme_run_test(instruct)
trireme_run_test(train_bpe)
trireme_run_test(container)
trireme_run_test(full_disk)
trireme_run_test(signals)
trireme_run_test(stopping)
trireme_run_test(sweep)
trireme_run_test(h5tools)

# Faults that would show only on a GPU.
trireme_run_test(guarded)

# Training over NCCL's calls.
if(TARGET nccl_mock)
  add_test(NAME run.nccl COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/run/nccl.sh $<TARGET_FILE:trireme>
    ${CMAKE_CURRENT_BINARY_DIR}/run-nccl ${nccl_mock_folder})
  set_tests_properties(run.nccl PROPERTIES LABELS run TIMEOUT 900)
endif()

# The bundle, unpacked elsewhere.
trireme_run_test(bundle)

# The checks of tests/gpu.sh, which need a GPU, one test each; skipped without one.
set(gpu_checks doctor models device operators memcheck racecheck comm fits across sample curves_fp32 curves_bf16
  placements equivalence_fp32 equivalence_bf16)
if(TARGET gpu_nccl)
  list(APPEND gpu_checks nccl_one nccl_two nccl_comm nccl_fp32 nccl_bf16)
endif()
foreach(check IN LISTS gpu_checks)
  add_test(NAME gpu.${check} COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/gpu.sh ${check})
  set_tests_properties(gpu.${check} PROPERTIES LABELS gpu TIMEOUT 480 PROCESSORS 2
    SKIP_RETURN_CODE 77 ENVIRONMENT TRIREME_BUILD=${CMAKE_BINARY_DIR})
endforeach()

# The benchmarks of bench/gpu.sh; skipped where they are not built.
set(mock_or_none "")
if(TARGET nccl_mock)
  set(mock_or_none ${nccl_mock_folder})
endif()
add_test(NAME run.benchmarks COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/run/benchmarks.sh
  $<TARGET_FILE:trireme> ${CMAKE_CURRENT_BINARY_DIR}/run-benchmarks "${mock_or_none}")
set_tests_properties(run.benchmarks PROPERTIES LABELS run TIMEOUT 900
  SKIP_RETURN_CODE 77)

# The output of those scripts when a check fails, hangs, is missing or is stopped.
trireme_run_test(gpu_scripts)
# The output of tests/run.sh.
trireme_run_test(suite)

# Includes go down the floors, and no file names a path of one machine.
add_test(NAME house.floors COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/floors.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(house.floors PROPERTIES LABELS house TIMEOUT 300)
# A name has one meaning.
add_test(NAME house.names COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/names.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(house.names PROPERTIES LABELS house TIMEOUT 300)
# Unclear phrases do not come back.
add_test(NAME house.words COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/words.sh ${CMAKE_SOURCE_DIR})
set_tests_properties(house.words PROPERTIES LABELS house TIMEOUT 300)

# The longest tests begin first, so that none of them is left alone at the end.
foreach(long IN ITEMS run.own_model run.full_disk run.watchdog run.hosts run.stopping run.bundle run.background
    run.gpu_scripts run.nccl run.zero.fp32 run.bad_input run.sequence run.spikes run.rundir unit.test_zero unit.test_search
    unit.test_op_cuda_emulated unit.test_op_cpu unit.test_op_cpu.avx2 unit.test_ckpt_damage unit.test_layer_stage
    unit.test_families)
  if(TEST ${long})
    set_tests_properties(${long} PROPERTIES COST 100)
  endif()
endforeach()
