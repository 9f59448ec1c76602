//! Arguments of `Intel82599`.

use serde::{Deserialize, Serialize};

use crate::args::ArgError;
use crate::nic::i82599::registers::QUEUES;
use crate::nic::i82599::{Settings, model};
use crate::nic::pci;

/// Arguments of [`Intel82599`](super::Intel82599).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intel82599Args {
    /// Address on the PCI bus, as in `lspci -D`; or a model such as `model:0,cable=1`.
    pub pciaddr: String,
    /// Address of the interface, instead of the card's own. Only what is sent to it is received,
    /// unless `promiscuous`.
    #[serde(default)]
    pub macaddr: Option<String>,
    /// Receives packets of this VLAN only; its tag goes on and off in the card.
    #[serde(default)]
    pub vlan: Option<u16>,
    /// Receive packets for other MAC addresses, too. Without `macaddr` that is the default.
    #[serde(default)]
    pub promiscuous: Option<bool>,
    /// Queue that this app receives from. Several apps with the same `pciaddr` share a card, and
    /// the card spreads flows over them (RSS).
    #[serde(default)]
    pub rxq: u32,
    /// Queue that this app sends by.
    #[serde(default)]
    pub txq: u32,
    /// Descriptors of each ring: a power of two from 64 to 4096.
    #[serde(default = "default_ring", alias = "ring_buffer_size")]
    pub ring: u32,
    /// Obey and send pause frames (IEEE 802.3x).
    #[serde(default)]
    pub flow_control: bool,
}

fn default_ring() -> u32 {
    512
}

impl Intel82599Args {
    /// What the types cannot say.
    pub(super) fn check(&self) -> Result<(), ArgError> {
        if !self.ring.is_power_of_two() || !(64..=4096).contains(&self.ring) {
            return Err(ArgError::wrong(
                "ring",
                format!("{} is not a power of two from 64 to 4096", self.ring),
            ));
        }
        for (key, queue) in [("rxq", self.rxq), ("txq", self.txq)] {
            if queue >= QUEUES {
                return Err(ArgError::wrong(
                    key,
                    format!("{queue} is not a queue: there are 0 to {}", QUEUES - 1),
                ));
            }
        }
        if self.vlan.is_some_and(|vlan| !(1..=4094).contains(&vlan)) {
            return Err(ArgError::wrong("vlan", "a VLAN has a number from 1 to 4094"));
        }
        self.settings()?;
        match model::resolve(&self.pciaddr) {
            Some(spec) => {
                spec.map(drop).map_err(|error| ArgError::wrong("pciaddr", error.to_string()))
            }
            None => {
                let address = self.pciaddr.parse::<pci::Address>();
                address.map(drop).map_err(|error| ArgError::wrong("pciaddr", error.to_string()))
            }
        }
    }

    pub(super) fn settings(&self) -> Result<Settings, ArgError> {
        let mac = self.macaddr.as_deref().map(parse_mac).transpose()?;
        let promiscuous = self.promiscuous.unwrap_or(mac.is_none());
        Ok(Settings { promiscuous, mac, vlan: self.vlan, flow_control: self.flow_control })
    }
}

fn parse_mac(text: &str) -> Result<[u8; 6], ArgError> {
    let wrong = || {
        ArgError::wrong(
            "macaddr",
            format!("\"{text}\" is not a MAC address such as 02:00:00:00:00:01"),
        )
    };
    let mut mac = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    if parts.next().is_some() {
        return Err(wrong());
    }
    if mac[0] & 1 != 0 {
        return Err(ArgError::wrong(
            "macaddr",
            format!("{text} is the address of a group, not of an interface"),
        ));
    }
    Ok(mac)
}
