//! As much of an ELF file as tells whether a library can be preloaded into it. The file may be
//! anything: every offset is checked by reading, every length is bounded.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const MOST_HEADERS: u16 = 1024;
const LONGEST_INTERPRETER: u64 = 4096;
const LONGEST_NOTE: u64 = 64 << 10;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// Bytes of the dynamic section, and of a library's name.
const MOST_DYNAMIC: u64 = 64 << 10;
const LONGEST_NAME: usize = 256;

#[cfg(target_arch = "x86_64")]
const NATIVE_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const NATIVE_MACHINE: u16 = 183;

#[derive(Debug, PartialEq, Eq)]
pub struct Elf {
    is_64_bit: bool,
    is_little_endian: bool,
    machine: u16,
    /// A shared object or position-independent program, not one linked to a fixed address.
    pub is_shared: bool,
    /// The dynamic loader; a static program names none.
    pub interpreter: Option<String>,
    /// Carries the note that the Go linker leaves.
    pub is_go: bool,
    /// Libraries that it is linked to (DT_NEEDED).
    pub needs: Vec<String>,
}

impl Elf {
    pub fn is_native(&self) -> bool {
        self.is_64_bit && self.is_little_endian && self.machine == NATIVE_MACHINE
    }

    pub fn uses_musl(&self) -> bool {
        let name = self.interpreter.as_deref().and_then(|path| path.rsplit('/').next());
        name.is_some_and(|name| name.starts_with("ld-musl"))
    }
}

/// `None` when the file is not ELF at all; an error when it is but is damaged.
pub fn read(file: &File) -> io::Result<Option<Elf>> {
    let mut head = [0u8; 64];
    let length = file.read_at(&mut head, 0)?;
    if length < 20 || head[..4] != *b"\x7fELF" {
        return Ok(None);
    }
    let layout = Layout { is_64_bit: head[4] == 2, is_little_endian: head[5] == 1 };
    let mut elf = Elf {
        is_64_bit: layout.is_64_bit,
        is_little_endian: layout.is_little_endian,
        machine: layout.number(&head[18..20]) as u16,
        is_shared: layout.number(&head[16..18]) as u16 == ET_DYN,
        interpreter: None,
        is_go: false,
        needs: Vec::new(),
    };
    let (mut loads, mut dynamic) = (Vec::new(), None);
    let (table, size_at) = if layout.is_64_bit { (32..40, 54) } else { (28..32, 42) };
    let table = layout.number(&head[table]);
    let entry_size = layout.number(&head[size_at..size_at + 2]) as u16;
    let entries = layout.number(&head[size_at + 2..size_at + 4]) as u16;
    if entries > MOST_HEADERS || (entries > 0 && entry_size < layout.entry_size()) {
        return Err(damaged("its program headers"));
    }
    for index in 0..entries {
        let mut entry = [0u8; 56];
        let entry = &mut entry[..layout.entry_size() as usize];
        let at = table
            .checked_add(u64::from(index) * u64::from(entry_size))
            .ok_or_else(|| damaged("its program headers"))?;
        file.read_exact_at(entry, at)?;
        let (offset, size) = layout.segment(entry);
        match layout.number(&entry[..4]) as u32 {
            PT_LOAD if layout.is_64_bit => {
                let address = layout.number(&entry[16..24]);
                loads.push((address, offset, size));
            }
            PT_DYNAMIC if layout.is_64_bit => dynamic = Some((offset, size)),
            PT_INTERP => elf.interpreter = Some(interpreter(file, offset, size)?),
            PT_NOTE if size <= LONGEST_NOTE => {
                elf.is_go |= has_go_note(&bytes(file, offset, size)?, layout)
            }
            _ => {}
        }
    }
    if let Some((offset, size)) = dynamic {
        elf.needs = needs(file, layout, &loads, offset, size);
    }
    Ok(Some(elf))
}

/// Names of libraries, as far as they can be read: what is damaged here is for the loader to say.
fn needs(
    file: &File,
    layout: Layout,
    loads: &[(u64, u64, u64)],
    offset: u64,
    size: u64,
) -> Vec<String> {
    let Ok(table) = bytes(file, offset, size.min(MOST_DYNAMIC)) else { return Vec::new() };
    let entries: Vec<(u64, u64)> = table
        .chunks_exact(16)
        .map(|entry| (layout.number(&entry[..8]), layout.number(&entry[8..])))
        .take_while(|&(tag, _)| tag != 0)
        .collect();
    let strings = entries.iter().find(|&&(tag, _)| tag == DT_STRTAB).and_then(|&(_, address)| {
        let holds = |&&(start, _, size): &&(u64, u64, u64)| {
            address.checked_sub(start).is_some_and(|within| within < size)
        };
        let &(start, at, _) = loads.iter().find(holds)?;
        at.checked_add(address - start)
    });
    let Some(strings) = strings else { return Vec::new() };
    let names = entries.iter().filter(|&&(tag, _)| tag == DT_NEEDED);
    names
        .filter_map(|&(_, name)| {
            let mut text = [0u8; LONGEST_NAME];
            let n = file.read_at(&mut text, strings.checked_add(name)?).ok()?;
            let end = text[..n].iter().position(|&byte| byte == 0)?;
            Some(String::from_utf8_lossy(&text[..end]).into_owned())
        })
        .collect()
}

fn interpreter(file: &File, offset: u64, size: u64) -> io::Result<String> {
    if size > LONGEST_INTERPRETER {
        return Err(damaged("the name of its loader"));
    }
    let name = bytes(file, offset, size)?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

fn bytes(file: &File, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Notes are (name length, content length, type, name, content), names and contents padded to four
/// bytes.
fn has_go_note(mut notes: &[u8], layout: Layout) -> bool {
    while notes.len() >= 12 {
        let name_length = layout.number(&notes[..4]) as usize;
        let content_length = layout.number(&notes[4..8]) as usize;
        if notes[12..].starts_with(b"Go\0") && name_length >= 3 {
            return true;
        }
        let next = 12usize
            .saturating_add(name_length.next_multiple_of(4))
            .saturating_add(content_length.next_multiple_of(4));
        notes = notes.get(next..).unwrap_or_default();
    }
    false
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("the ELF file is damaged: {what} cannot be right"),
    )
}

#[derive(Clone, Copy)]
struct Layout {
    is_64_bit: bool,
    is_little_endian: bool,
}

impl Layout {
    fn entry_size(self) -> u16 {
        if self.is_64_bit { 56 } else { 32 }
    }

    /// File offset and size in the file of a segment.
    fn segment(self, entry: &[u8]) -> (u64, u64) {
        if self.is_64_bit {
            (self.number(&entry[8..16]), self.number(&entry[32..40]))
        } else {
            (self.number(&entry[4..8]), self.number(&entry[16..20]))
        }
    }

    fn number(self, bytes: &[u8]) -> u64 {
        let add = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
        if self.is_little_endian {
            bytes.iter().rev().fold(0, add)
        } else {
            bytes.iter().fold(0, add)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A 64-bit little-endian file with the given segments: (type, content).
    fn made(kind: u16, segments: &[(u32, &[u8])]) -> File {
        let mut image = b"\x7fELF\x02\x01\x01".to_vec();
        image.resize(16, 0);
        image.extend(kind.to_le_bytes());
        image.extend(NATIVE_MACHINE.to_le_bytes());
        image.resize(32, 0);
        image.extend(64u64.to_le_bytes());
        image.resize(54, 0);
        image.extend(56u16.to_le_bytes());
        image.extend((segments.len() as u16).to_le_bytes());
        image.resize(64, 0);
        let mut content_at = 64 + 56 * segments.len() as u64;
        for (kind, content) in segments {
            let start = image.len();
            image.extend(kind.to_le_bytes());
            image.resize(start + 8, 0);
            image.extend(content_at.to_le_bytes());
            image.resize(start + 32, 0);
            image.extend((content.len() as u64).to_le_bytes());
            image.resize(start + 56, 0);
            content_at += content.len() as u64;
        }
        segments.iter().for_each(|(_, content)| image.extend_from_slice(content));
        file(&image)
    }

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    #[test]
    fn this_test_is_dynamic_and_native() {
        let elf = read(&File::open("/proc/self/exe").unwrap()).unwrap().unwrap();
        assert!(
            elf.is_native() && elf.interpreter.is_some() && !elf.is_go && !elf.uses_musl(),
            "{elf:?}"
        );
    }

    #[test]
    fn static_dynamic_musl_and_go() {
        assert_eq!(read(&made(2, &[(1, b"code")])).unwrap().unwrap().interpreter, None);
        let elf = read(&made(3, &[(1, b""), (PT_INTERP, b"/lib/ld-musl-x86_64.so.1\0")]))
            .unwrap()
            .unwrap();
        assert!(elf.uses_musl() && elf.is_shared);
        let other = b"\x04\0\0\0\x04\0\0\0\x01\0\0\0GNU\0abcd";
        let go = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0abcd";
        let notes = [other.as_slice(), go.as_slice()].concat();
        assert!(read(&made(2, &[(PT_NOTE, &notes)])).unwrap().unwrap().is_go);
        assert!(!read(&made(2, &[(PT_NOTE, other)])).unwrap().unwrap().is_go);
    }

    #[test]
    fn other_files_are_no_elf() {
        assert_eq!(read(&file(b"")).unwrap(), None);
        assert_eq!(read(&file(b"#!/bin/sh\necho hello, this is a script\n")).unwrap(), None);
    }

    #[test]
    fn damaged_files_are_errors_not_panics() {
        let mut image = b"\x7fELF\x02\x01\x01".to_vec();
        image.resize(64, 0xFF);
        assert!(read(&file(&image)).is_err());
        let long_note = [0xFF; 40];
        assert!(!read(&made(2, &[(PT_NOTE, &long_note)])).unwrap().unwrap().is_go);
        let truncated = made(2, &[(PT_INTERP, b"/lib/ld.so")]);
        truncated.set_len(64 + 56 + 3).unwrap();
        assert!(read(&truncated).is_err());
    }
}
