//! Programs of a review that looked for trouble: threads, signals, jumps, limits, sandboxes. Each
//! prints the same on plain TCP and upgraded.

use std::fs;
use std::path::Path;
use std::process::Command;

use system_tests::probe::need_copying;
use system_tests::{Outcome, Side, case, compile, need, plain, secs, skip};

/// Runs of each program with each setting: most of what they look for does not come every time.
fn runs() -> usize {
    std::env::var("SHORTWIRE_TEST_RUNS").map_or(3, |text| text.parse().expect("a number of runs"))
}

/// What a program printed, without the tenths of seconds that it took.
fn words(said: &str) -> String {
    let word = |w: &str| {
        if w.parse::<f64>().is_ok() && w.contains('.') { "N.N".to_string() } else { w.to_string() }
    };
    said.lines()
        .map(|line| line.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n")
        .collect()
}

/// Runs on plain TCP by which an answer is judged that was none of the first one's: beside other work
/// TCP itself answers otherwise now and then, where a program gives its threads some milliseconds.
const PLAIN_RUNS: usize = 5;

fn same_as_plain(name: &str, settings: &[&[(&str, &str)]]) {
    case(&format!("review-{name}"), |c| {
        if plain() {
            return skip("there is nothing to compare with");
        }
        let program = compile(&format!("review/{name}"))?;
        let on_tcp = || words(&c.start("plain", &mut Command::new(&program)).success(secs(60)));
        let mut expected = vec![on_tcp()];
        for setting in settings {
            // One after the other: each gives its threads some milliseconds to get to their calls.
            for run in 0..runs() {
                // Some make files.
                let own = c.dir().join(format!("run-{run}"));
                fs::create_dir_all(&own).expect("a directory");
                let mut command = Side::Run.command(&program);
                let mut run =
                    c.start("run", command.envs(setting.iter().copied()).current_dir(own));
                let said = words(&run.success(secs(60)));
                while !expected.contains(&said) && expected.len() < PLAIN_RUNS {
                    expected.push(on_tcp());
                }
                assert!(
                    expected.contains(&said),
                    "with {setting:?}:\n{said}\non TCP:\n{expected:#?}"
                );
            }
        }
        Ok(()) as Outcome
    });
}

const DEFAULT: &[(&str, &str)] = &[];
const AT_ONCE: &[(&str, &str)] = &[("SHORTWIRE_AFTER", "1")];
const ISM: &[(&str, &str)] = &[("SHORTWIRE_PREFER", "ism")];
const SMALL: &[(&str, &str)] = &[("SHORTWIRE_AFTER", "1"), ("SHORTWIRE_DMB_SIZE", "64K")];
const SMALL_ISM: &[(&str, &str)] =
    &[("SHORTWIRE_AFTER", "1"), ("SHORTWIRE_DMB_SIZE", "64K"), ("SHORTWIRE_PREFER", "ism")];

/// For sixteen buffers.
const FEW: &[(&str, &str)] =
    &[("SHORTWIRE_AFTER", "1"), ("SHORTWIRE_DMB_SIZE", "64K"), ("SHORTWIRE_MAX_MEMORY", "1M")];

macro_rules! programs {
    ($($test:ident = $name:literal $($setting:ident)*;)*) => {
        $(#[test]
        fn $test() {
            same_as_plain($name, &[$($setting),*]);
        })*
    };
}

programs! {
    what_happens_behind_an_offer = "offered" DEFAULT AT_ONCE;
    a_reader_sleeps_while_the_upgrade_ends = "lost_wakeup" DEFAULT AT_ONCE ISM;
    stdio_on_what_became_stdout = "stdout_is_socket" DEFAULT AT_ONCE ISM;
    stdio_on_what_became_stdin = "stdin_is_socket" DEFAULT AT_ONCE ISM;
    select_up_to_getdtablesize = "select_getdtablesize" DEFAULT AT_ONCE;
    select_with_a_set_at_the_end_of_a_page = "select_end_of_page" DEFAULT AT_ONCE;
    select_on_a_pipe_beside_a_ring = "select_pipe_only" DEFAULT AT_ONCE;
    a_limit_on_the_size_of_files = "rlimit_fsize" DEFAULT AT_ONCE ISM;
    a_sandbox_that_kills = "seccomp_kill" DEFAULT AT_ONCE ISM;
    a_sandbox_that_kills_for_more_than_is_used = "seccomp_strict" DEFAULT AT_ONCE ISM;
    a_sandbox_in_a_child_past_fork = "seccomp_clone" DEFAULT AT_ONCE ISM;
    children_made_by_number = "clone_by_number" DEFAULT AT_ONCE ISM;
    ends_that_a_fork_divides = "forked_apart" DEFAULT AT_ONCE ISM;
    jumps_out_of_send = "longjmp_send" DEFAULT AT_ONCE ISM;
    jumps_out_of_recv = "longjmp_recv" DEFAULT AT_ONCE ISM;
    jumps_out_of_epoll_wait = "longjmp_epoll" DEFAULT AT_ONCE ISM;
    jumps_out_of_waits = "longjmp_sleepers" DEFAULT AT_ONCE ISM;
    sends_in_a_handler = "send_in_handler" DEFAULT AT_ONCE ISM;
    close_under_a_blocked_recv = "close_under_recv" DEFAULT AT_ONCE ISM;
    changes_under_a_receive_that_slept_often = "bells" DEFAULT AT_ONCE ISM;
    close_under_a_blocked_send_and_poll = "close_under_send" DEFAULT AT_ONCE ISM;
    peek_offsets_and_what_is_left = "peek_off" DEFAULT AT_ONCE ISM;
    cancelled_loops = "cancel" DEFAULT AT_ONCE ISM;
    cancelled_loops_that_never_sleep = "cancel_busy" DEFAULT AT_ONCE ISM;
    peers_that_are_killed = "killed_peer" DEFAULT AT_ONCE ISM;
    a_connection_that_is_added_beside_a_sleeper = "added_beside_a_sleeper" DEFAULT AT_ONCE ISM;
    ends_that_write_before_they_read = "fills_first" SMALL SMALL_ISM;
    buffers_that_programs_bound = "buffers" DEFAULT AT_ONCE ISM;
    pieces_under_a_cork = "corked" DEFAULT AT_ONCE ISM;
    address_sanitizer = "asan" DEFAULT AT_ONCE;
    shutdown_under_a_blocked_send = "shutdown_under_send" DEFAULT AT_ONCE ISM;
    shutdown_under_waitall = "shutdown_under_waitall" DEFAULT AT_ONCE ISM;
    shutdown_under_a_low_water_mark = "shutdown_under_lowat" DEFAULT AT_ONCE ISM;
    shutdown_beside_sends = "shutdown_races_send" DEFAULT AT_ONCE ISM;
    signals_that_interrupt_a_send = "siginterrupt" DEFAULT AT_ONCE ISM;
    time_limits_of_whole_calls = "timeouts_are_total" DEFAULT AT_ONCE ISM;
    locked_memory = "mlockall" DEFAULT AT_ONCE ISM;
    a_limit_on_addresses = "rlimit_as" DEFAULT AT_ONCE ISM;
    files_past_the_cache_and_large_writes = "sendfile_odirect" DEFAULT AT_ONCE;
    descriptors_of_one_thread = "unshare_files" DEFAULT AT_ONCE ISM;
    what_is_in_the_ring_is_delivered = "siocoutq" DEFAULT AT_ONCE ISM;
    splice_that_must_not_wait_for_the_pipe = "splice_nonblock" DEFAULT AT_ONCE ISM;
    edges_of_the_own_shutdown = "edge_own_shutdown" DEFAULT AT_ONCE ISM;
    readers_that_are_inside_at_the_switch = "many_readers" DEFAULT AT_ONCE ISM;
    receives_from_before_the_upgrade = "inside_the_kernel" DEFAULT AT_ONCE ISM;
    settings_that_change_under_waits = "changed_under_waits" DEFAULT AT_ONCE ISM;
    threads_and_handlers_with_small_stacks = "small_stacks" DEFAULT AT_ONCE ISM;
    rights_that_are_given_up = "lost_rights" DEFAULT AT_ONCE ISM;
    programs_that_are_spawned_beside_traffic = "spawns" DEFAULT AT_ONCE ISM;
    receives_that_are_shut_before_the_first_byte = "shut_rd_first" DEFAULT AT_ONCE ISM;
    what_children_have_over_exec = "forked_and_executed" FEW;
    a_clock_that_stands_still = "frozen_clock" DEFAULT AT_ONCE ISM;
    what_was_opened_before_the_background = "to_the_background" DEFAULT;
    a_low_water_mark_ends_with_the_stream = "lowat_and_shut_rd" DEFAULT AT_ONCE ISM;
    polls_beside_what_is_left_unread = "left_unread" DEFAULT AT_ONCE ISM;
    a_return_to_tcp_under_a_sleep_for_room = "returns_under_space" DEFAULT AT_ONCE ISM;
    a_child_that_is_slow_to_take_over = "named_late" DEFAULT AT_ONCE ISM;
    streams_that_are_signed = "signed" DEFAULT AT_ONCE ISM;
    what_is_taken_back_in_front_of_more = "claimed" DEFAULT AT_ONCE ISM;
    waits_with_more_taken_back_than_a_socket_takes = "owed" DEFAULT AT_ONCE;
    devices_that_are_sent_from = "sendfile_devices" DEFAULT AT_ONCE ISM;
    a_peer_that_reads_nothing_in_time = "user_timeout" DEFAULT AT_ONCE ISM;
    options_of_the_listener = "inherited_options" DEFAULT AT_ONCE ISM;
    changes_of_sets_beside_closes_forks_and_handlers = "epoll_ctl_races" DEFAULT AT_ONCE ISM;
}

/// Few machines have a libc with these functions: a stand-in for them is preloaded behind the library.
#[test]
fn programs_that_are_spawned_by_pidfd() {
    case("review-spawns_pidfd", |c| {
        let program = compile("review/spawns_pidfd")?;
        let stand_in = c.dir().join("stand-in.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("progs/review/spawns_pidfd.c");
        let how = ["-w", "-DSTAND_IN", "-shared", "-fPIC", "-o"];
        let made = Command::new(need("cc")?).args(how).arg(&stand_in).arg(source).status();
        assert!(made.expect("cc").success());
        let expected = "spawned: 0\ngot hello\nand ended with 0\n".repeat(2);
        for side in [Side::Plain, Side::Run] {
            let mut command = side.command(&program);
            command.env("LD_PRELOAD", &stand_in);
            let said = c.start(&format!("{side:?}"), &mut command).success(secs(40));
            assert_eq!(said, expected, "{side:?}");
        }
        Ok(())
    });
}

/// They may be there to keep programs apart: what is not understood shares memory with nobody, and
/// says so.
#[test]
fn settings_that_are_not_understood() {
    case("review-settings", |_| {
        if plain() {
            return skip("nobody reads settings");
        }
        let program = compile("review/peek_off")?;
        let library = system_tests::shortwire().with_file_name("libshortwire.so");
        let upgraded = |setting: &str| {
            let (name, value) = setting.split_once('=').expect("NAME=VALUE");
            let mut command = Command::new(&program);
            command.env("LD_PRELOAD", &library).env(format!("SHORTWIRE_{name}"), value);
            let said = command.output().expect("it starts").stderr;
            let said = String::from_utf8_lossy(&said).into_owned();
            let complaints = said
                .lines()
                .filter(|line| line.contains(&format!("SHORTWIRE_{setting} is not understood")));
            (said.contains("# on ring: 1 1"), complaints.count())
        };
        for bad in [
            "PEER_POLICY=none",
            "DISABLE=perhaps",
            "MAX_MEMORY=64X",
            "PREFER=ismm",
            "AFTER=-1",
            "SPIN=often",
        ] {
            assert_eq!(upgraded(bad), (false, 1), "{bad}");
        }
        for off in ["PEER_POLICY=Off", "DISABLE=true", "DISABLE=yes", "MAX_MEMORY=1KB"] {
            assert_eq!(upgraded(off), (false, 0), "{off}");
        }
        for on in
            ["PEER_POLICY=Verified", "DISABLE=no", "MAX_MEMORY=64MB", "PREFER=", "MAX_MEMORY="]
        {
            assert_eq!(upgraded(on), (true, 0), "{on}");
        }
        need_copying()?;
        assert_eq!(upgraded("PREFER=ism"), (true, 0));
        Ok(()) as Outcome
    });
}

/// Programs of musl are started by programs under Shortwire, in containers of Alpine, say, with
/// LD_PRELOAD. They stay TCP.
#[test]
fn programs_of_another_c_library() {
    case("review-musl", |c| {
        let program = c.dir().join("other");
        let mut cc = Command::new(need("musl-gcc")?);
        let built = cc
            .arg("-o")
            .arg(&program)
            .arg(system_tests::prog("other_libc.c"))
            .output()
            .expect("musl-gcc starts");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        fs::write(c.dir().join("input"), "hello\n").expect("a file");
        let input = || fs::File::open(c.dir().join("input")).expect("a file");
        let library = system_tests::shortwire().with_file_name("libshortwire.so");
        let check = |how: &str, command: &mut Command| {
            let said = command.stdin(input()).output().expect("it starts");
            let texts =
                [&said.stdout, &said.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
            assert_eq!(
                (said.status.code(), texts),
                (Some(7), ["hello\n".into(), String::new()]),
                "{how}"
            );
        };
        check("alone", &mut Command::new(&program));
        check("preloaded", Command::new(&program).env("LD_PRELOAD", &library));
        let mut shell = Side::Run.command(&need("sh")?);
        shell.args(["-c", "exec \"$0\""]).arg(&program);
        check("by a shell", &mut shell);
        let starts = [
            ("exec", "import os, sys; os.execv(sys.argv[1], [sys.argv[1]])"),
            (
                "posix_spawn",
                "import os, sys; p = os.posix_spawn(sys.argv[1], [sys.argv[1]], os.environ)\nsys.exit(os.WEXITSTATUS(os.waitpid(p, 0)[1]))",
            ),
            ("system", "import os, sys; sys.exit(os.WEXITSTATUS(os.system(sys.argv[1])))"),
        ];
        for (how, script) in starts {
            let mut command = Side::Run.command(&need("python3")?);
            check(how, command.args(["-c", script]).arg(&program));
        }
        Ok(()) as Outcome
    });
}

/// Logins, copies and forwarded ports, with all programs that sshd and ssh start under Shortwire
/// too.
#[test]
fn ssh_in_all_its_ways() {
    for setting in [DEFAULT, AT_ONCE] {
        case("review-ssh", |c| {
            if plain() {
                return skip("sshd works without us");
            }
            for program in ["sshd", "ssh", "scp", "sftp", "rsync", "curl", "ssh-keygen"] {
                need(program)?;
            }
            if !rustix::process::geteuid().is_root() {
                return skip("sshd changes its user");
            }
            let script = system_tests::prog("ssh.sh");
            let mut command = Command::new("bash");
            command
                .arg(script)
                .arg(c.dir())
                .arg(system_tests::shortwire())
                .envs(setting.iter().copied());
            let said = c.start("ssh", &mut command).success(secs(150));
            let expected = ["login", "cat", "scp", "scp -O", "sftp", "rsync", "-L", "-R", "-D"];
            assert_eq!(said.lines().collect::<Vec<_>>(), expected, "with {setting:?}");
            Ok(())
        });
    }
}

/// Node's cluster, and others: a server accepts and hands each connection to a worker, another
/// program that knows nothing of the server's table. The places of its connections come back all
/// the same.
#[test]
fn connections_handed_to_another_program() {
    for setting in [DEFAULT, AT_ONCE] {
        case("review-handed-on", |c| {
            if plain() {
                return skip("there are no places");
            }
            let mut command = Side::Run.command(&need("python3")?);
            command
                .arg(system_tests::prog("handed_on.py"))
                .arg(system_tests::shortwire())
                .envs(setting.iter().copied());
            let said = c.start("server", &mut command).success(secs(60));
            assert_eq!(
                said, "answered 600\nanswered 600\nplaces came back\nworker 0\n",
                "with {setting:?}"
            );
            Ok(()) as Outcome
        });
    }
}
