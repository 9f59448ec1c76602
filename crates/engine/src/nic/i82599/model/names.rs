//! Models by their numbers, and PCI addresses that models stand in for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::feed::Feed;
use super::spec::{Source, Spec};
use super::{ModelBar, ModelMemory, Wire, memory, worker};
use crate::app::AppError;
use crate::nic::i82599::LONGEST;
use crate::nic::pci::Address;
use crate::packet::Packet;
use crate::pcap;

/// Wires by the numbers of their ends.
static WIRES: Mutex<BTreeMap<u32, Weak<Wire>>> = Mutex::new(BTreeMap::new());
/// Names that stand for models.
static ALIASES: Mutex<BTreeMap<String, Spec>> = Mutex::new(BTreeMap::new());

/// From now on a model serves this address.
pub fn alias(address: &str, spec: Spec) {
    ALIASES.lock().unwrap_or_else(PoisonError::into_inner).insert(whole(address), spec);
}

/// `82:00.0` is `0000:82:00.0`.
fn whole(address: &str) -> String {
    address.parse().map_or_else(|_| address.to_string(), |address: Address| address.to_string())
}

/// The model that an address names by itself, or by [`alias`].
pub fn resolve(address: &str) -> Option<Result<Spec, super::SpecError>> {
    if address.starts_with("model:") {
        return Some(address.parse());
    }
    ALIASES.lock().unwrap_or_else(PoisonError::into_inner).get(&whole(address)).cloned().map(Ok)
}

impl Wire {
    /// The wire of a model, made if nobody has it. It lasts until its last user drops it.
    pub fn of(spec: &Spec) -> Result<(Arc<Self>, usize), AppError> {
        let mut wires = WIRES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wire) = wires.get(&spec.number).and_then(Weak::upgrade) {
            return existing(spec, wire);
        }
        let numbers = [spec.number, spec.cable.unwrap_or(spec.number)];
        if let Some(other) = spec.cable
            && wires.get(&other).is_some_and(|wire| wire.strong_count() > 0)
        {
            return Err(AppError::new(format!(
                "model:{other} has no cable to {spec}; give both the same cable"
            )));
        }
        let wire = Arc::new(Self::new(numbers, spec.cable.is_some(), feed(spec)?, spec.thread));
        for number in numbers {
            wires.insert(number, Arc::downgrade(&wire));
        }
        if spec.thread {
            worker::add(&wire);
        }
        Ok((wire, 0))
    }
}

fn existing(spec: &Spec, wire: Arc<Wire>) -> Result<(Arc<Wire>, usize), AppError> {
    let end = usize::from(wire.numbers()[0] != spec.number);
    let other = wire.is_cable().then(|| wire.numbers()[1 - end]);
    match spec.cable {
        Some(wanted) if other != Some(wanted) => Err(AppError::new(format!(
            "{spec} has no cable to model:{wanted}; give both the same cable"
        ))),
        _ => Ok((wire, end)),
    }
}

/// Opens a model for a driver.
pub fn open(spec: &Spec) -> Result<(ModelBar, ModelMemory), AppError> {
    let (wire, end) = Wire::of(spec)?;
    if !wire.claim(end) {
        return Err(AppError::new(format!("{spec} is in use by another driver")));
    }
    let memory = ModelMemory { wire: wire.clone(), end, packets: memory::packet_map() };
    Ok((ModelBar { wire, end }, memory))
}

fn feed(spec: &Spec) -> Result<Feed, AppError> {
    const GENERATED: u16 = 256;
    let frames = match &spec.feed {
        None => return Ok(Feed::default()),
        Some(Source::Packets(size)) => (0..GENERATED).map(|n| generated(*size, n)).collect(),
        Some(Source::Pcap(file)) => read(file)?,
    };
    let packets: Option<Vec<Packet>> =
        frames.iter().map(|frame| Packet::from_slice(frame)).collect();
    let packets = packets
        .ok_or_else(|| AppError::new(format!("{spec}: its frames are too many or too long")))?;
    Ok(Feed::new(packets, spec.repeat))
}

fn read(file: &Path) -> Result<Vec<Vec<u8>>, AppError> {
    let failed =
        |error: &dyn std::fmt::Display| AppError::new(format!("{}: {error}", file.display()));
    let input = BufReader::new(File::open(file).map_err(|error| failed(&error))?);
    let mut reader = pcap::Reader::new(input).map_err(|error| failed(&error))?;
    let mut frames = Vec::new();
    while let Some(record) = reader.next().map_err(|error| failed(&error))? {
        // What a card could not receive is not on its wire either.
        if record.link_type == pcap::ETHERNET && (14..=LONGEST - 4).contains(&record.data.len()) {
            frames.push(record.data.to_vec());
        }
    }
    if frames.is_empty() { Err(failed(&"it holds no Ethernet frames")) } else { Ok(frames) }
}

/// A packet of UDP over IPv4 (RFC 768, RFC 791) of `size` bytes. The source port is the number's,
/// so that there are different flows.
pub fn generated(size: usize, number: u16) -> Vec<u8> {
    let mut frame = vec![0; size];
    let (ip, udp) = ((size - 14) as u16, (size - 34) as u16);
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    frame[14..16].copy_from_slice(&[0x45, 0]);
    frame[16..18].copy_from_slice(&ip.to_be_bytes());
    // Time to live, protocol; addresses of RFC 2544.
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 19, 0, 1]);
    frame[34..36].copy_from_slice(&(1024 + number).to_be_bytes());
    frame[36..38].copy_from_slice(&9_u16.to_be_bytes());
    frame[38..40].copy_from_slice(&udp.to_be_bytes());
    let sum = checksum::csum_fold(checksum::csum_partial(&frame[14..34], 0));
    frame[24..26].copy_from_slice(&sum.to_ne_bytes());
    frame
}
