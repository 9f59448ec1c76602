//! Every program and library of this machine: lengths as a whole decoder has them, and hardly a place of
//! the two bytes that the chains do not agree on.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use iced_x86::{Code, Decoder, DecoderOptions};
use object::{Architecture, Object, ObjectSection, ObjectSegment, SectionKind, SegmentFlags};
use sites::{Flow, Found, VOTES, Why, decode, find, places, votes};

/// Larger files are left out, for the time they take.
const LARGEST: u64 = 64 << 20;

/// The files below some folders that are programs or libraries for this processor, each once.
fn elves() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        ["/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/usr/local"].map(Into::into).into();
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if meta.is_dir() {
                folders.push(path);
            } else if meta.is_file()
                && (4096..LARGEST).contains(&meta.len())
                && seen.insert((meta.dev(), meta.ino()))
                && is_elf(&path)
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut head = [0; 20];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    // A program or a library, of 64 bits, for x86-64.
    read.is_ok() && head[..5] == *b"\x7fELF\x02" && matches!(head[16], 2 | 3) && head[18] == 62
}

/// Runs `look` on the code of each file, with the file's name and whether it is linked without libraries.
fn each_code(mut look: impl FnMut(&Path, bool, &[u8])) {
    for path in elves() {
        let Ok(content) = fs::read(&path) else { continue };
        let Ok(file) = object::File::parse(&*content) else { continue };
        assert_eq!(file.architecture(), Architecture::X86_64);
        let code = file.sections().filter(|section| section.kind() == SectionKind::Text);
        let is_static = file.section_by_name(".dynamic").is_none();
        code.filter_map(|section| section.data().ok())
            .for_each(|code| look(&path, is_static, code));
    }
}

/// Where some chains meet a place and others do not, nobody can tell, and the whole program is left as it is. So
/// that is rare, and never so in a static program, which has nothing but its own instructions. OCaml ends its
/// functions in rows of calls of one place, each before a jump: over a distance of 0x6050f such a call
/// has the two bytes in it, and a chain that enters the row out of step stays so for all of it.
#[test]
fn each_place_has_all_votes_or_none() {
    let (mut yes, mut no, mut between, mut is_any_static) = (0, 0, Vec::new(), false);
    each_code(|path, is_static, code| {
        for at in places(code) {
            match votes(code, at) {
                0 => no += 1,
                VOTES => yes += 1,
                some => {
                    let judged = sites::judge(code, at, &[true; sites::NUMBERS]);
                    assert_eq!(judged, Found::Undecided(Why::Votes(some)));
                    is_any_static |= is_static;
                    between.push(format!("{} at {at:#x}: {some}", path.display()));
                }
            }
        }
    });
    println!("{yes} instructions, {no} other places, {between:#?}");
    assert!(
        yes > 300 && between.len() * 1000 <= yes + no && !is_any_static,
        "{yes} {no} {between:#?}"
    );
}

/// Where a linker has put tables and strings beside the code, nothing in them is taken for a call.
#[test]
fn no_site_is_in_data() {
    let (mut inside, mut outside) = (0, 0);
    for path in elves() {
        let Ok(content) = fs::read(&path) else { continue };
        let Ok(file) = object::File::parse(&*content) else { continue };
        let text = file.sections().filter(|section| section.kind() == SectionKind::Text);
        let text: Vec<_> =
            text.map(|section| section.address()..section.address() + section.size()).collect();
        // Without a table of sections nobody can tell.
        if text.is_empty() {
            continue;
        }
        let is_code = |segment: &object::Segment<'_, '_>| matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0);
        for segment in file.segments().filter(is_code) {
            let Ok(code) = segment.data() else { continue };
            for (at, found) in find(code, &sites::OF_CONNECTIONS) {
                let address = segment.address() + at as u64;
                let is_text = text.iter().any(|range| range.contains(&address));
                match found {
                    Found::Site(_) if is_text => inside += 1,
                    _ if is_text => {}
                    Found::Site(window) => {
                        panic!("{} at {address:#x}: {window:?}", path.display())
                    }
                    _ => outside += 1,
                }
            }
        }
    }
    println!("{inside} sites, {outside} places in data");
    assert!(inside > 300, "{inside} {outside}");
}

/// The group of VMCALL, SWAPGS, XGETBV and their like.
fn is_for_systems(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|two| two == [0x0f, 0x01])
}

/// What iced-x86 knows: length, and where it goes.
fn check(code: &[u8], ip: u64) -> Option<usize> {
    let mut decoder = Decoder::with_ip(64, code, ip, DecoderOptions::NONE);
    let theirs = decoder.decode();
    if theirs.code() == Code::INVALID {
        return None;
    }
    let ours = decode(code).unwrap_or_else(|| {
        panic!("no instruction: {:02x?} {:?}", &code[..theirs.len()], theirs.code())
    });
    let bytes = &code[..theirs.len()];
    assert_eq!(ours.len, theirs.len(), "{bytes:02x?} {:?}", theirs.code());
    assert_eq!(ours.is_rip_relative, theirs.is_ip_rel_memory_operand(), "{bytes:02x?}");
    let target =
        |distance: i32| ip.wrapping_add(bytes.len() as u64).wrapping_add_signed(distance.into());
    match ours.flow {
        Flow::Next => assert_eq!(
            theirs.flow_control(),
            iced_x86::FlowControl::Next,
            "{bytes:02x?} {:?}",
            theirs.code()
        ),
        Flow::If(condition, distance) => {
            assert!(theirs.is_jcc_short_or_near(), "{bytes:02x?}");
            // Their numbers begin with 1.
            assert_eq!(condition, theirs.condition_code() as u8 - 1, "{bytes:02x?}");
            assert_eq!(target(distance), theirs.near_branch_target(), "{bytes:02x?}");
        }
        Flow::Jump(distance) => {
            assert!(theirs.is_jmp_short_or_near(), "{bytes:02x?}");
            assert_eq!(target(distance), theirs.near_branch_target(), "{bytes:02x?}");
        }
        Flow::Away => assert!(
            theirs.flow_control() != iced_x86::FlowControl::Next || is_for_systems(bytes),
            "{bytes:02x?} {:?}",
            theirs.code()
        ),
    }
    Some(ours.len)
}

#[test]
fn lengths_are_those_of_a_whole_decoder() {
    // As much of each file as makes seconds of all of them, from places all over it.
    const PIECE: usize = 2048;
    let mut checked = 0;
    each_code(|_, _, code| {
        for piece in code.chunks(code.len() / 16 + PIECE) {
            let piece = &piece[..piece.len().min(PIECE)];
            let mut at = 0;
            while at + 16 < piece.len() {
                at += check(&piece[at..], at as u64).unwrap_or(1);
                checked += 1;
            }
        }
    });
    println!("{checked} instructions");
    assert!(checked > 100_000);
}

/// A generator that is the same in each run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn lengths_of_bytes_at_random() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..300_000 {
        let mut bytes = [0; 24];
        bytes
            .chunks_mut(8)
            .for_each(|eight| eight.copy_from_slice(&random(&mut state).to_le_bytes()));
        // The maps behind 0f, and vectors, are met more often so.
        match random(&mut state) % 8 {
            0 => bytes[0] = 0x0f,
            1 => bytes[0] = 0xc4,
            2 => bytes[0] = 0xc5,
            3 => bytes[0] = 0x62,
            4 => (bytes[0], bytes[1]) = (0x66, 0x0f),
            _ => {}
        }
        check(&bytes, 0x10_0000);
    }
}

/// What this file's own C library offers for a patch.
#[test]
fn most_sites_have_room() {
    let wanted = [true; sites::NUMBERS];
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().find(|line| line.contains("/libc.so")).expect("this test uses libc");
    let content = fs::read(libc.split_whitespace().last().unwrap()).unwrap();
    let file = object::File::parse(&*content).unwrap();
    let section = file.section_by_name(".text").unwrap();
    let mut count = [0; 3];
    for (_, found) in find(section.data().unwrap(), &wanted) {
        match found {
            Found::Site(_) => count[0] += 1,
            Found::Undecided(Why::Room) => count[1] += 1,
            Found::Unwanted(_) => count[2] += 1,
            Found::Undecided(Why::Votes(_)) => panic!("no site is half an instruction"),
            Found::Undecided(Why::Strange) => panic!("a library of C has nothing strange"),
            Found::Data => {}
        }
    }
    println!("{count:?}");
    assert!(count[0] > 20 * count[1], "{count:?}");
}

#[test]
fn places_are_where_the_bytes_are() {
    let mut state = 7;
    for len in 0..300 {
        let mut code: Vec<u8> =
            (0..len).map(|_| [0x0f, 0x05, 0x90][random(&mut state) as usize % 3]).collect();
        let wanted = |code: &[u8]| {
            let two = code.windows(2).enumerate();
            two.filter(|(_, two)| *two == [0x0f, 0x05]).map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(places(&code).collect::<Vec<_>>(), wanted(&code));
        code.fill(0x90);
        code.extend([0x0f, 0x05]);
        assert_eq!(places(&code).collect::<Vec<_>>(), [len as usize]);
    }
}
