//! Why a PCI device cannot be used, and what to type next.

use rustix::io::Errno;

use super::{Address, DmaError};

/// Each message is a sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum PciError {
    #[error("\"{0}\" is not a PCI address such as 0000:01:00.0; `lspci -D` lists them")]
    BadAddress(String),
    #[error("this machine has no PCI bus (/sys/bus/pci is missing)")]
    NoBus,
    #[error("there is no PCI device at {address}; {}", found(.what, .present))]
    Absent { address: Address, what: &'static str, present: Vec<String> },
    #[error("the PCI device at {address} ({id}) is not {what}; {}", found(.what, .present))]
    Other { address: Address, id: String, what: &'static str, present: Vec<String> },
    #[error(
        "the device at {address} is in use by the kernel's driver {driver}{}; to hand it over, type{}:\n  {}\nand to give it back \
         later:\n  {}",
        .interface.as_ref().map_or(String::new(), |name| format!(" (interface {name})")),
        .interface.as_ref().map_or(String::new(), |name| format!(" (`ip link set {name} down` first)")),
        unbind(*.address, .driver, *.iommu),
        give_back(*.address, *.iommu)
    )]
    Bound { address: Address, driver: String, interface: Option<String>, iommu: bool },
    #[error(
        "the device at {0} is behind an IOMMU, which lets it reach memory only through VFIO; type:\n  {1}",
        address, bind_vfio(*.address)
    )]
    NeedsVfio { address: Address },
    #[error("{0} is bound to vfio-pci, but /dev/vfio/{1} is missing: `modprobe vfio_iommu_type1` and look at `dmesg`", .address, .group)]
    NoVfio { address: Address, group: u32 },
    #[error(
        "{address} is bound to vfio-pci, but the kernel has no driver for the IOMMU; type `modprobe vfio_iommu_type1`"
    )]
    NoType1 { address: Address },
    #[error(
        "the IOMMU does not keep {address} from sending interrupts to where it likes, which is why VFIO refuses the device; if you \
         trust it, type:\n  echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
    )]
    NoRemapping { address: Address },
    #[error(
        "IOMMU group {group} of {address} cannot be used while kernel drivers hold other devices of it: {}; bind these to vfio-pci, too",
        .others.join(", ")
    )]
    NotViable { address: Address, group: u32, others: Vec<String> },
    #[error("no right to {operation} of {address}: {hint}")]
    NoRights { address: Address, operation: &'static str, hint: String },
    #[error("another process uses {address} already")]
    InUse { address: Address },
    #[error("{address} has no memory in base address register {index}")]
    NoBar { address: Address, index: u32 },
    #[error("{address}: {error}")]
    Dma { address: Address, error: DmaError },
    #[error("cannot {operation} of {address}: {errno}")]
    Os { address: Address, operation: &'static str, errno: Errno },
}

impl PciError {
    /// An error of the system; a lack of rights is told apart.
    pub(super) fn os(address: Address, operation: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM => {
                let hint = match rustix::process::geteuid().is_root() {
                    false => "only root has it; type the same command behind `sudo`".to_string(),
                    true => format!(
                        "the kernel may be locked down (`cat /sys/kernel/security/lockdown`), and gives devices away through \
                         VFIO only then; type:\n  {}",
                        bind_vfio(address)
                    ),
                };
                Self::NoRights { address, operation, hint }
            }
            errno => Self::Os { address, operation, errno },
        }
    }
}

fn found(what: &str, present: &[String]) -> String {
    match present {
        [] => format!("this machine has none that is {what}; `lspci -Dnn` lists what it has"),
        some => format!("{what} is at {}", some.join(", ")),
    }
}

fn unbind(address: Address, driver: &str, iommu: bool) -> String {
    if iommu {
        return format!(
            "echo {address} > /sys/bus/pci/drivers/{driver}/unbind; {}",
            bind_vfio(address)
        );
    }
    format!("echo {address} > /sys/bus/pci/drivers/{driver}/unbind")
}

fn give_back(address: Address, iommu: bool) -> String {
    let probe = format!("echo {address} > /sys/bus/pci/drivers_probe");
    if iommu {
        return format!(
            "echo > /sys/bus/pci/devices/{address}/driver_override; echo {address} > /sys/bus/pci/drivers/vfio-pci/unbind; {probe}"
        );
    }
    probe
}

fn bind_vfio(address: Address) -> String {
    format!(
        "modprobe vfio-pci; echo vfio-pci > /sys/bus/pci/devices/{address}/driver_override; echo {address} > /sys/bus/pci/drivers_probe"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_rights_says_what_to_type() {
        let told =
            PciError::os("01:00.0".parse().unwrap(), "open the configuration space", Errno::ACCESS)
                .to_string();
        assert!(
            told.starts_with("no right to open the configuration space of 0000:01:00.0: "),
            "{told}"
        );
        let typed = if rustix::process::geteuid().is_root() {
            "echo 0000:01:00.0 > /sys/bus/pci/drivers_probe"
        } else {
            "sudo"
        };
        assert!(told.contains(typed), "{told}");
        let other =
            PciError::os("01:00.0".parse().unwrap(), "map the registers", Errno::NOMEM).to_string();
        assert!(other.starts_with("cannot map the registers of 0000:01:00.0: "), "{other}");
    }
}
