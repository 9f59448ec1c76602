//! Models of network cards in the place of cards that this machine does not have.

use engine::nic::i82599::model::{self, Spec};

/// For commands that can have an `Intel82599`.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Models {
    /// Let a software model stand in for the card at a PCI address
    #[arg(long = "model", value_name = "PCIADDR=MODEL", value_parser = parse, env = "SHORTWIRE_MODELS", value_delimiter = ' ')]
    #[arg(
        long_help = "Let a software model of an Intel 82599 stand in for the card at a PCI address, so that a network that names it runs on a \
machine without it; may be given several times. MODEL is model:NUMBER, then maybe ,packets=64 (it receives UDP packets of so many bytes, as \
fast as it can take them), ,pcap=FILE (it receives these, again and again; ,once: once), ,cable=NUMBER (it is joined to that model), and \
,thread (a thread works for it). What a model moves per second is no figure of a card."
    )]
    pub models: Vec<(String, Spec)>,
}

impl Models {
    /// To be called before the network is looked at.
    pub fn apply(&self) {
        for (address, spec) in &self.models {
            model::alias(address, spec.clone());
        }
    }
}

fn parse(text: &str) -> Result<(String, Spec), String> {
    let (address, spec) =
        text.split_once('=').ok_or("write it as 0000:01:00.0=model:0,packets=64")?;
    Ok((address.to_string(), spec.parse().map_err(|error: model::SpecError| error.to_string())?))
}
