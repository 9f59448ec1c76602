//! BPF programs and maps of the whole machine that carry our name.
#![allow(unsafe_code)]

use std::io;

use system_tests::{Skip, skip};

const PROG_GET_NEXT_ID: u32 = 11;
const MAP_GET_NEXT_ID: u32 = 12;
const PROG_GET_FD_BY_ID: u32 = 13;
const MAP_GET_FD_BY_ID: u32 = 14;
const OBJ_GET_INFO_BY_FD: u32 = 15;

/// What is called `shortwire_...`, by kind and number.
pub fn list() -> Result<Vec<(&'static str, u32)>, Skip> {
    let mut found = Vec::new();
    // Where `bpf_prog_info` and `bpf_map_info` have the name.
    for (kind, next, open, name_at) in [
        ("program", PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, 64),
        ("map", MAP_GET_NEXT_ID, MAP_GET_FD_BY_ID, 24),
    ] {
        let mut id = 0;
        loop {
            let mut attributes = [id, 0, 0, 0];
            match bpf(next, &mut attributes) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
                Err(error) => return skip(format!("cannot list BPF objects: {error}")),
                Ok(_) => id = attributes[1],
            }
            if name(open, id, name_at).is_some_and(|name| name.starts_with(b"shortwire")) {
                found.push((kind, id));
            }
        }
    }
    Ok(found)
}

/// Programs and maps that a process has open, itself or by a link.
pub fn of(pid: i32) -> Vec<(&'static str, u32)> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let text: String =
        open.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect();
    let number =
        |line: &str, start: &str| -> Option<u32> { line.strip_prefix(start)?.trim().parse().ok() };
    text.lines()
        .filter_map(|line| {
            let program = number(line, "prog_id:").map(|id| ("program", id));
            program.or_else(|| number(line, "map_id:").map(|id| ("map", id)))
        })
        .collect()
}

fn name(open: u32, id: u32, at: usize) -> Option<[u8; 16]> {
    // It may be gone by now.
    let fd = bpf(open, &mut [id, 0, 0, 0]).ok()?;
    let mut info = [0u8; 256];
    let address = info.as_mut_ptr() as u64;
    let mut attributes = [fd as u32, info.len() as u32, address as u32, (address >> 32) as u32];
    let done = bpf(OBJ_GET_INFO_BY_FD, &mut attributes);
    // SAFETY: opened above, and used by nobody else.
    unsafe { libc::close(fd) };
    done.ok()?;
    info[at..at + 16].try_into().ok()
}

fn bpf(command: u32, attributes: &mut [u32; 4]) -> io::Result<i32> {
    // SAFETY: the commands used here take up to 16 bytes, in which the only address is that of a
    // buffer of ours.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
