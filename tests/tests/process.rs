//! fork, exec, dup, descriptor passing and stdio on connections: the same result with and without
//! the library.

use system_tests::{Ports, Variant, case, compile, same_transcript};

/// `upgraded`: whether the connection must be in mode SMCD after the first rounds, before the
/// interesting part.
fn scene(program: &str, name: &str, upgraded: bool) {
    case(&format!("{program}-{name}"), |c| {
        let args = [name];
        let variant = |ports| Variant { ports, args: &args, upgraded };
        same_transcript(c, &compile(program)?, &[variant(Ports::Low), variant(Ports::High)]);
        Ok(())
    });
}

macro_rules! scenes {
    ($program:literal: $($test:ident $name:literal $upgraded:literal),* $(,)?) => {
        $(#[test] fn $test() { scene($program, $name, $upgraded); })*
    };
}

scenes! { "proc_fork":
    fork_per_connection "per-connection" true,
    prefork "prefork" true,
    parent_and_child_in_turn "turns" true,
    background_after_the_switch "background" true,
    child_leaves_without_closing "child-leaves" true,
    child_exits_without_closing "child-exits" true,
    child_closes "child-closes" true,
    child_without_fork_handlers_closes "unseen-child-closes" true,
    child_in_the_same_memory_closes "same-memory" true,
    child_outlives_the_parents_copy "child-is-last" true,
    fork_beside_a_thread_that_reads "beside-a-thread" true,
    child_sends_parent_receives "split-directions" true,
}

// On descriptors 0 to 2 a connection stays on TCP: any libc function of stdio may read or write
// there unseen.
scenes! { "proc_exec":
    inetd_style_own_program "inetd-own" false,
    inetd_style_cat "inetd-cat" false,
    exec_with_an_upgraded_connection "exec-after" true,
    fork_and_exec_with_an_upgraded_connection "fork-exec-after" true,
    exec_closes_close_on_exec "exec-closes" false,
    vfork_close_range_exec "vfork-close-range" true,
    posix_spawn_system_popen "spawning" true,
    posix_spawn_with_the_connection "spawn-cat" false,
    client_execs_in_the_middle "exec-in-client" true,
}

scenes! { "proc_fd":
    dup_family "dups" true,
    dup2_over_a_live_connection "dup2-over" false,
    dup2_under_a_blocked_read "preclose" true,
    rights_passed_before_use "rights-before" true,
    rights_passed_after_the_switch "rights-after" true,
    rights_passed_with_unread_data "rights-unread" true,
    stdio_from_the_start "stdio-before" false,
    stdio_after_the_switch "stdio-after" false,
    dprintf_after_the_switch "dprintf-after" false,
}
