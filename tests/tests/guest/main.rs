//! What needs a virtual machine: network cards that are driven in user space, behind an IOMMU;
//! RDMA; guests whose cards the engine is; SMC of the kernel; memory that guests share. Neither the
//! cards nor the IOMMU nor the kernels that use and guard them were written here.

mod cards;
mod ivshmem;
mod kernel_smc;
mod roce;
mod tunnels;
mod vhost;
mod wire;

use std::fs;

use system_tests::guest::Guest;
use system_tests::{case, secs};

#[test]
fn a_guest_runs_a_script() {
    case("guest", |case| {
        let ended =
            Guest::new()?.run(case, "", "uname -r; echo kept > /out/file; exit 3", secs(600));
        assert_eq!(ended.status, Some(3), "{}\n{}", ended.output, ended.console);
        assert_eq!(
            fs::read_to_string(ended.out.join("file")).expect("a file of the guest"),
            "kept\n"
        );
        Ok(())
    });
}
