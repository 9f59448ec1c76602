# Where the kernel's SMC has no device.

exchange kernel-client tcp "$run" smc ""
exchange kernel-server smc "" tcp "$run"
exchange kernel-client-under-run tcp "$run" smc "$run"
exchange kernel-server-under-run smc "$run" tcp "$run"
exchange kernel-both-under-run smc "$run" smc "$run"
exchange ours-both tcp "$run" tcp "$run"
# Both ends asked for both, in either order.
exchange run-and-smc_run tcp "$run /tmp/smc_run" tcp "/tmp/smc_run $run"
