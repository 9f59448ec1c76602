//! Programs that people run: each works under `shortwire run` with its connections in shared
//! memory.

mod apache;
mod go;
mod haproxy;
mod iperf3;
mod mariadb;
mod memcached;
mod nginx;
mod postgres;
mod redis;
mod soak;
mod sockperf;

use std::path::PathBuf;

use system_tests::Case;

/// Runs a client, so many times longer than usual each time, until so many ends of connections on these ports
/// have been seen in shared memory at one of its runs: on a busy machine a client may be over before anybody
/// looks at it, or before both ends have had their turns.
fn until_seen(c: &Case, ports: &[u16], ends: usize, mut run: impl FnMut(u32)) {
    for times in [1, 2, 4, 8] {
        let watch = c.watch(ports);
        run(times);
        if watch.saw_smcd(ends) {
            return;
        }
    }
    let watch = c.watch(ports);
    run(8);
    watch.expect_smcd(ends);
}

/// What pgbench says if each transaction was done; before version 15 it ends otherwise, and has no such line.
fn is_whole(said: &str) -> bool {
    let failed = said.split_once("number of failed transactions: ");
    said.contains("number of transactions actually processed: ")
        && failed.is_none_or(|(_, count)| count.starts_with("0 "))
}

/// A file of blocks that all differ, made faster than it can be read. Where transfers are to move less than
/// usual (SHORTWIRE_TEST_MIB), it is smaller, too.
fn big_file(path: PathBuf, mib: u64) -> PathBuf {
    use std::io::Write;
    let asked = std::env::var("SHORTWIRE_TEST_MIB").ok().and_then(|text| text.parse::<u64>().ok());
    let mib = (mib * asked.unwrap_or(64).min(64) / 64).max(1);
    let mut block = system_tests::stream::bytes(mib, 1 << 20);
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("a file"));
    for number in 0..mib {
        for page in block.chunks_mut(4096) {
            page[..8].copy_from_slice(&number.to_ne_bytes());
        }
        file.write_all(&block).expect("writing the file");
    }
    file.flush().expect("writing the file");
    path
}
