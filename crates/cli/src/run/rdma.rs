//! What a program wants of librdmacm: rsockets, which need no RDMA device under Shortwire, or the
//! calls that manage devices and queue pairs, which do.

use std::fs;
use std::path::Path;

use object::{Object, ObjectSymbol};

/// Larger files are not looked at.
const LARGEST: u64 = 1 << 30;

/// By which of librdmacm's calls a program makes connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Calls {
    /// `rsocket`, `rconnect` and their like.
    Rsockets,
    /// `rdma_create_id` or `rdma_create_ep`, and queue pairs of its own.
    Devices,
}

/// None: neither, or the file cannot be read.
pub fn calls_of(program: &Path) -> Option<Calls> {
    let small = fs::metadata(program).is_ok_and(|meta| meta.is_file() && meta.len() <= LARGEST);
    let content = small.then(|| fs::read(program).ok()).flatten()?;
    let file = object::File::parse(&*content).ok()?;
    let mut names = Vec::new();
    for symbol in file.dynamic_symbols().filter(ObjectSymbol::is_undefined) {
        names.push(symbol.name().unwrap_or_default());
    }
    judge(&names)
}

/// Programs that have both carry their streams over rsockets; what else they do with devices is
/// their own.
fn judge(imports: &[&str]) -> Option<Calls> {
    if imports.contains(&"rsocket") {
        return Some(Calls::Rsockets);
    }
    let manages = |name: &&str| ["rdma_create_id", "rdma_create_ep"].contains(name);
    imports.iter().any(manages).then_some(Calls::Devices)
}

/// Why a program of the second kind does nothing here, and what to do.
pub fn needs_device() -> (String, String) {
    let here = match has_device() {
        true => "it uses the one here",
        false => "there is none here",
    };
    (
        format!(
            "it manages RDMA devices itself (rdma_create_id, ibv_create_qp), so it needs one ({here}); \
             only the calls of rsockets (rsocket, rconnect, ...) can do without"
        ),
        "For a trial the kernel can emulate one (soft-RoCE): `modprobe rdma_rxe` and `rdma link add rxe0 type rxe netdev eth0`.".into(),
    )
}

fn has_device() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_what_a_program_imports() {
        let rstream = ["rsocket", "rconnect", "rdma_getaddrinfo", "rdma_create_event_channel"];
        assert_eq!(judge(&rstream), Some(Calls::Rsockets));
        let rping = ["rdma_create_id", "rdma_listen", "ibv_create_qp", "rpoll"];
        assert_eq!(judge(&rping), Some(Calls::Devices));
        assert_eq!(judge(&["rdma_getaddrinfo", "rdma_create_ep"]), Some(Calls::Devices));
        assert_eq!(judge(&["rsocket", "rdma_create_id"]), Some(Calls::Rsockets));
        assert_eq!(judge(&["socket", "connect"]), None);
    }

    #[test]
    fn this_program_and_what_is_no_program() {
        assert_eq!(calls_of(&std::env::current_exe().unwrap()), None);
        assert_eq!(calls_of(Path::new("/proc/self/maps")), None);
        assert_eq!(calls_of(Path::new("/nonexistent")), None);
    }
}
