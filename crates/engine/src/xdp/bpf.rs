//! The few commands of bpf(2) that AF_XDP needs, without a loader library.
//!
//! Nothing is pinned: every object lives as long as a descriptor to it, so that the kernel itself
//! takes all of them back when the process ends, by whatever means.
//!
//! Layouts are those of `union bpf_attr` in `linux/bpf.h`; the kernel takes shorter structures than
//! its own.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: u32 = 0;
const MAP_UPDATE_ELEM: u32 = 2;
const MAP_DELETE_ELEM: u32 = 3;
const PROG_LOAD: u32 = 5;
const PROG_TEST_RUN: u32 = 10;
const LINK_CREATE: u32 = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;

/// `XDP_FLAGS_SKB_MODE`: after the kernel has made an skb; any driver.
pub const GENERIC: u32 = 1 << 1;
/// `XDP_FLAGS_DRV_MODE`: in the driver.
pub const NATIVE: u32 = 1 << 2;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u8,
    /// Destination in the low four bits, source in the high ones.
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

/// A fixed-size object name, as the kernel shows it in listings: at most 15 characters of
/// `[A-Za-z0-9_.]`.
fn object_name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    let length = name.len().min(15);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

/// # Safety
/// `A` is the layout of `command`'s part of `union bpf_attr`, and every address in it is valid for
/// what the command does.
unsafe fn bpf<A>(command: u32, attributes: &mut A) -> io::Result<i32> {
    // SAFETY: passed on to the caller; the kernel reads and writes `size_of::<A>()` bytes at most.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: the kernel just made it for us.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// The map from receive queue to AF_XDP socket that `bpf_redirect_map` looks into.
#[derive(Debug)]
pub struct XskMap(OwnedFd);

impl XskMap {
    pub fn create(entries: u32) -> io::Result<XskMap> {
        #[repr(C)]
        struct Attributes {
            map_type: u32,
            key_size: u32,
            value_size: u32,
            max_entries: u32,
            flags: u32,
            inner_map: u32,
            numa_node: u32,
            name: [u8; 16],
        }
        let mut attributes = Attributes {
            map_type: MAP_TYPE_XSKMAP,
            key_size: 4,
            value_size: 4,
            max_entries: entries,
            flags: 0,
            inner_map: 0,
            numa_node: 0,
            name: object_name("shortwire_xsk"),
        };
        // SAFETY: the layout of BPF_MAP_CREATE; no addresses in it.
        unsafe { bpf(MAP_CREATE, &mut attributes) }.map(|fd| XskMap(owned(fd)))
    }

    /// Sends what arrives on `queue` to `socket`. The kernel removes the entry when the socket is
    /// closed.
    pub fn set(&self, queue: u32, socket: BorrowedFd) -> io::Result<()> {
        let socket = socket.as_raw_fd();
        // SAFETY: key and value are four bytes each, as the map was created.
        unsafe { self.element(MAP_UPDATE_ELEM, &queue, Some(&socket)) }
    }

    pub fn remove(&self, queue: u32) -> io::Result<()> {
        // SAFETY: the key has the map's four bytes.
        unsafe { self.element(MAP_DELETE_ELEM, &queue, None) }
    }

    /// # Safety
    /// `command` works on elements of a map with four-byte keys and values.
    unsafe fn element(&self, command: u32, key: &u32, value: Option<&i32>) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            map: u32,
            padding: u32,
            key: u64,
            value: u64,
            flags: u64,
        }
        let mut attributes = Attributes {
            map: self.0.as_raw_fd() as u32,
            padding: 0,
            key: &raw const *key as u64,
            value: value.map_or(0, |value| &raw const *value as u64),
            flags: 0,
        };
        // SAFETY: the layout of the BPF_MAP_*_ELEM commands; key and value are borrowed over the
        // call.
        unsafe { bpf(command, &mut attributes) }.map(drop)
    }
}

impl AsFd for XskMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A loaded XDP program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads `instructions`. A program that the verifier refuses is a mistake in this crate: its
    /// log is in the error.
    pub fn load(name: &str, instructions: &[Instruction]) -> io::Result<Program> {
        match Self::load_with(name, instructions, &mut []) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => {
                let mut log = vec![0; 64 << 10];
                let error = match Self::load_with(name, instructions, &mut log) {
                    Ok(program) => return Ok(program),
                    Err(error) => error,
                };
                let text = String::from_utf8_lossy(&log);
                let text = text.trim_end_matches('\0').trim();
                if text.is_empty() {
                    Err(error)
                } else {
                    Err(io::Error::other(format!("{error}: {text}")))
                }
            }
            other => other,
        }
    }

    fn load_with(name: &str, instructions: &[Instruction], log: &mut [u8]) -> io::Result<Program> {
        #[repr(C)]
        struct Attributes {
            program_type: u32,
            instruction_count: u32,
            instructions: u64,
            license: u64,
            log_level: u32,
            log_size: u32,
            log: u64,
            kernel_version: u32,
            flags: u32,
            name: [u8; 16],
            ifindex: u32,
            expected_attach_type: u32,
        }
        let mut attributes = Attributes {
            program_type: PROG_TYPE_XDP,
            instruction_count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            license: c"Apache-2.0 OR MIT".as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            kernel_version: 0,
            flags: 0,
            name: object_name(name),
            ifindex: 0,
            expected_attach_type: ATTACH_XDP,
        };
        // SAFETY: the layout of BPF_PROG_LOAD; instructions, licence and log are borrowed over the
        // call.
        unsafe { bpf(PROG_LOAD, &mut attributes) }.map(|fd| Program(owned(fd)))
    }

    /// Attaches to an interface for as long as the link is kept. Two links exclude each other:
    /// `EBUSY`.
    pub fn attach(&self, ifindex: u32, mode: u32) -> io::Result<Link> {
        #[repr(C)]
        struct Attributes {
            program: u32,
            ifindex: u32,
            attach_type: u32,
            flags: u32,
        }
        let mut attributes = Attributes {
            program: self.0.as_raw_fd() as u32,
            ifindex,
            attach_type: ATTACH_XDP,
            flags: mode,
        };
        // SAFETY: the layout of BPF_LINK_CREATE; no addresses in it.
        unsafe { bpf(LINK_CREATE, &mut attributes) }.map(|fd| Link(owned(fd)))
    }

    /// Runs the program `repeat` times on copies of `frame`, in batches; what it answers really
    /// happens to the frame: redirect, transmit, pass or drop. Linux 5.18 and later. The frame
    /// counts as received on the loopback interface.
    pub fn run_live_frames(&self, frame: &[u8], repeat: u32, batch: u32) -> io::Result<()> {
        #[repr(C)]
        struct Attributes {
            program: u32,
            result: u32,
            data_size_in: u32,
            data_size_out: u32,
            data_in: u64,
            data_out: u64,
            repeat: u32,
            duration: u32,
            context_size_in: u32,
            context_size_out: u32,
            context_in: u64,
            context_out: u64,
            flags: u32,
            cpu: u32,
            batch_size: u32,
            padding: u32,
        }
        let mut attributes = Attributes {
            program: self.0.as_raw_fd() as u32,
            result: 0,
            data_size_in: frame.len() as u32,
            data_size_out: 0,
            data_in: frame.as_ptr() as u64,
            data_out: 0,
            repeat,
            duration: 0,
            context_size_in: 0,
            context_size_out: 0,
            context_in: 0,
            context_out: 0,
            flags: TEST_XDP_LIVE_FRAMES,
            cpu: 0,
            batch_size: batch,
            padding: 0,
        };
        // SAFETY: the layout of BPF_PROG_TEST_RUN; the frame is borrowed over the call, nothing is
        // written back.
        unsafe { bpf(PROG_TEST_RUN, &mut attributes) }.map(drop)
    }
}

/// An attached program. Dropping it detaches, as does the end of the process, and as does the end
/// of the interface.
#[derive(Debug)]
pub struct Link(#[expect(dead_code, reason = "held, never read: closing it detaches")] OwnedFd);
