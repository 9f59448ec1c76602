//! Defaults of the system, from the files of librdmacm: one number each in /etc/rdma/rsocket.

use crate::kept::Kept;
use std::time::Duration;

const DIRECTORY: &str = "/etc/rdma/rsocket";

/// Largest queue, as in librdmacm.
pub const QUEUE_MAX: u16 = 0xFFFE;
pub const QUEUE_MIN: u16 = 16;
/// Largest buffer: both halves, queues and header must fit in what the device can register.
pub const BUFFER_MAX: u32 = 1 << 28;
pub const BUFFER_MIN: u32 = 2 * crate::stream::SNDLOWAT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// None: as many as [`receive_buffer`] says.
    pub rbuf: Option<u32>,
    pub sbuf: u32,
    pub sq: u16,
    pub rq: u16,
    pub inline: u16,
    pub iomaps: u16,
    /// Busy wait before sleeping.
    pub polling: Duration,
}

impl Defaults {
    const BUILT_IN: Self = Self {
        rbuf: None,
        sbuf: 1 << 17,
        sq: 384,
        rq: 384,
        inline: 64,
        iomaps: 0,
        polling: Duration::from_micros(10),
    };
}

/// What is granted of a receive buffer while its reader keeps up, and all that there is over RDMA.
/// Eight times librdmacm's: where a write is a copy, both ends then copy most of the time, and what
/// was written has left the writer's cache for the shared one before it is read. Taking it from
/// there costs half as much.
pub const USUAL: u32 = 1 << 20;

/// The receive buffer of the next socket in a process that has `live` of them. A stream whose
/// reader waits for a processor, or is late for another reason, needs as much as TCP's windows grow
/// to; many that are late at once are not to fill the memory.
pub fn receive_buffer(live: u32) -> u32 {
    if live < 16 { 4 << 20 } else { USUAL }
}

/// Read once. What is missing, or is not a number, leaves the built-in value.
pub fn defaults() -> &'static Defaults {
    static DEFAULTS: Kept<Defaults> = Kept::new();
    DEFAULTS.get_or_make(|| {
        from(|name| {
            let text = std::fs::read_to_string(format!("{DIRECTORY}/{name}")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        })
    })
}

fn from(read: impl Fn(&str) -> Option<u32>) -> Defaults {
    let built_in = Defaults::BUILT_IN;
    let queue = |name, or: u16| {
        read(name).map_or(or, |n| n.clamp(QUEUE_MIN.into(), QUEUE_MAX.into()) as u16)
    };
    let buffer = |name| Some(read(name)?.clamp(BUFFER_MIN, BUFFER_MAX));
    Defaults {
        rbuf: buffer("mem_default"),
        sbuf: buffer("wmem_default").unwrap_or(built_in.sbuf),
        sq: queue("sqsize_default", built_in.sq),
        rq: queue("rqsize_default", built_in.rq),
        inline: read("inline_default").map_or(built_in.inline, |n| n.min(QUEUE_MAX.into()) as u16),
        iomaps: read("iomap_size")
            .map_or(0, |n| crate::wire::from_scale(crate::wire::to_scale(n.min(0x7fff) as u16))),
        polling: read("polling_time").map_or(built_in.polling, |n| Duration::from_micros(n.into())),
    }
}

/// The devices to use, in this order, separated by commas: `verbs` is RDMA, `loopback` shared
/// memory.
const PREFER: &str = "SHORTWIRE_PREFER";

/// What carries new streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provider {
    Shared,
    Verbs,
    /// Where there is no RDMA device, shared memory.
    VerbsOrShared,
}

pub fn provider() -> Provider {
    #[cfg(test)]
    if crate::verbs::software::is_chosen() {
        return Provider::Verbs;
    }
    static PROVIDER: Kept<Provider> = Kept::new();
    *PROVIDER.get_or_make(|| preferred(&std::env::var(PREFER).unwrap_or_default()))
}

fn preferred(list: &str) -> Provider {
    let place = |name| list.split(',').position(|word| word.trim() == name);
    match (place("verbs"), place("loopback")) {
        (Some(_), None) => Provider::Verbs,
        (Some(verbs), Some(loopback)) if verbs < loopback => Provider::VerbsOrShared,
        _ => Provider::Shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_device_that_is_known() {
        for (list, provider) in [
            ("", Provider::Shared),
            ("ism,loopback,verbs", Provider::Shared),
            ("verbs", Provider::Verbs),
            ("ism, verbs,loopback", Provider::VerbsOrShared),
            ("verb", Provider::Shared),
        ] {
            assert_eq!(preferred(list), provider, "{list}");
        }
    }

    #[test]
    fn files_override_within_bounds() {
        assert_eq!(from(|_| None), Defaults::BUILT_IN);
        let odd = from(|name| match name {
            "mem_default" => Some(1),
            "sqsize_default" => Some(1_000_000),
            "iomap_size" => Some(300),
            "polling_time" => Some(0),
            _ => None,
        });
        assert_eq!((odd.rbuf, odd.sq, odd.iomaps), (Some(BUFFER_MIN), QUEUE_MAX, 256));
        assert!(odd.polling.is_zero());
        assert_eq!(odd.rq, 384);
    }
}
