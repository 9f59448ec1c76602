//! Why a connection is plain TCP: the diagnosis codes of CLC, and reasons of our own.
//!
//! A connection has two of them: its own reason and, after a Decline, the peer's diagnosis. Codes
//! and their names are those of the protocol and of the kernel's tools, so that both can be
//! compared with what a kernel stack says. Codes from `0x0999_1000` on are private to Shortwire.

use core::fmt;

/// Why a connection is plain TCP; also the diagnosis in a Decline.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reason(pub u32);

struct Entry {
    code: u32,
    name: &'static str,
    words: &'static str,
    hint: &'static str,
}

impl Reason {
    /// First code that only Shortwire uses.
    pub const PRIVATE: u32 = 0x0999_1000;

    /// The code, as in a Decline.
    pub const fn code(self) -> u32 {
        self.0
    }

    /// Short name in the style of the statistics tools, `UNKNOWN` for a code we don't know.
    pub fn name(self) -> &'static str {
        self.entry().map_or("UNKNOWN", |entry| entry.name)
    }

    /// What happened, as the end of a sentence.
    pub fn words(self) -> &'static str {
        self.entry().map_or("unknown reason", |entry| entry.words)
    }

    /// What a user can do about it.
    pub fn hint(self) -> &'static str {
        self.entry()
            .map_or("Look the code up in the documentation of the peer.", |entry| entry.hint)
    }

    /// Whether a connection that went back to TCP for this stays with the program that has it.
    pub const fn stays(self) -> bool {
        matches!(self, DRAINED | STUCK)
    }

    /// Whether the code is one of Shortwire's own, which no other stack knows.
    pub const fn is_private(self) -> bool {
        self.0 >= Self::PRIVATE && self.0 < Self::PRIVATE + 0x1000
    }

    /// Every reason that has a name, in order of code.
    pub fn all() -> impl Iterator<Item = Reason> {
        TABLE.iter().map(|entry| Reason(entry.code))
    }

    fn entry(self) -> Option<&'static Entry> {
        TABLE.iter().find(|entry| entry.code == self.0)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x} ({})", self.0, self.words())
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reason(0x{:08x} {})", self.0, self.name())
    }
}

/// Each line: constant = code, name; words; hint.
macro_rules! reasons {
    ($($constant:ident = $code:literal, $name:literal; $words:literal; $hint:literal;)*) => {
        $(
            #[doc = concat!("`", stringify!($code), "`: ", $words, ".")]
            pub const $constant: Reason = Reason($code);
        )*

        const TABLE: &[Entry] = &[
            $(Entry { code: $code, name: $name, words: $words, hint: $hint },)*
        ];
    };
}

reasons! {
    MEMORY = 0x0101_0000, "MEMORY";
        "out of memory";
        "Raise the memory limit of the program and its limit on file sizes (LimitFSIZE, `ulimit -f`), which buffers count for; or choose smaller ones (`--dmb-size`).";
    TIMEOUT_CL = 0x0201_0000, "TIMEOUT_CL";
        "timeout while confirming an RDMA link";
        "Check the RDMA network between the two hosts.";
    TIMEOUT_AL = 0x0202_0000, "TIMEOUT_AL";
        "timeout while adding an RDMA link";
        "Check the RDMA network between the two hosts.";
    CNF_ERR = 0x0300_0000, "CNF_ERR";
        "configuration error";
        "Compare the configuration of both ends.";
    PEER_NO_SMC = 0x0301_0000, "PEER_NO_SMC";
        "peer did not signal SMC";
        "Start the program at the other end under `shortwire run` too.";
    IPSEC = 0x0302_0000, "IPSEC";
        "IPsec is in use";
        "Exempt this connection from IPsec if it never leaves the machine.";
    NO_SMC_DEV = 0x0303_0000, "NOSMCDEV";
        "no SMC device in common";
        "Run `shortwire devices` at both ends; both need the same device and the same EID.";
    NO_SMCD_DEV = 0x0303_0001, "NOSMCDDEV";
        "no SMC-D device in common, or no common EID";
        "Give both ends the same user-defined EID, or enable the system EID at both.";
    NO_SMCR_DEV = 0x0303_0002, "NOSMCRDEV";
        "no SMC-R device in common";
        "Run `shortwire devices` at both ends; both need an RDMA device on the same network.";
    NO_ISM2_SUPP = 0x0303_0003, "NOISM2SUPP";
        "no SMC-Dv2 device at the server";
        "Run `shortwire devices` at the server's end; at least one device must be enabled.";
    NO_V2_EXT = 0x0303_0004, "NOV2EXT";
        "peer did not offer SMC version 2";
        "Use a peer that speaks SMC version 2.";
    NO_V2D_EXT = 0x0303_0005, "NOV2DEXT";
        "peer did not offer SMC-D version 2";
        "Enable an SMC-D device at the other end.";
    NO_SEID = 0x0303_0006, "NOSEID";
        "peer sent no system EID";
        "Enable the system EID at the other end, or give both ends the same user-defined EID.";
    NO_SMCD2_DEV = 0x0303_0007, "NOSMCD2DEV";
        "no SMC-Dv2 device in common";
        "Both ends must be on one machine, or on partitions that share a device.";
    NO_UEID = 0x0303_0008, "NOUEID";
        "peer sent no EID at all";
        "Give both ends the same user-defined EID, or enable the system EID at both.";
    RELEASE_ERR = 0x0303_0009, "RELEASEERR";
        "the two ends disagree about the SMC release";
        "Use the same version of Shortwire at both ends.";
    MAX_CONN_ERR = 0x0303_000a, "MAXCONNERR";
        "the two ends disagree about connections per link group";
        "Use the same limit at both ends.";
    MAX_LINK_ERR = 0x0303_000b, "MAXLINKERR";
        "the two ends disagree about links per link group";
        "Use the same limit at both ends.";
    MODE_UNSUPP = 0x0304_0000, "MODEUNSUPP";
        "peer accepted a mode that was not proposed";
        "Report this to the maintainers of the peer's SMC stack.";
    RMBE_EC = 0x0305_0000, "RMBE_EC";
        "peer marks its receive buffer with an eyecatcher";
        "Use a peer that can leave the eyecatcher out.";
    OPT_UNSUPP = 0x0306_0000, "OPTUNSUPP";
        "TCP fast open or a zero-copy send is in use";
        "Switch TCP fast open and MSG_ZEROCOPY off in the program.";
    DIFF_PREFIX = 0x0307_0000, "DIFFPREFIX";
        "the two ends are in different IP subnets";
        "Put both ends in one subnet, or use SMC version 2.";
    GET_VLAN_ERR = 0x0308_0000, "GETVLANERR";
        "VLAN of the connection not found";
        "Check the VLAN of the network interface.";
    ISM_VLAN_ERR = 0x0309_0000, "ISMVLANERR";
        "VLAN could not be registered with the device";
        "Check the VLAN of the network interface.";
    NO_ACT_LINK = 0x030a_0000, "NOACTLINK";
        "no active RDMA link in the link group";
        "Check the RDMA network between the two hosts.";
    NO_SRV_LINK = 0x030b_0000, "NOSRVLINK";
        "RDMA link of the server not found";
        "Check the RDMA network between the two hosts.";
    VERS_MISMAT = 0x030c_0000, "VERSMISMAT";
        "SMC versions do not match";
        "Use the same SMC version at both ends.";
    MAX_DMB = 0x030d_0000, "MAX_DMB";
        "no free receive buffer: the limit on memory is reached";
        "Raise --max-memory of `shortwire run`, or lower --dmb-size.";
    NO_ROUTE = 0x030e_0000, "NOROUTE";
        "no RDMA route to the peer";
        "Check the RDMA network between the two hosts.";
    NO_INDIRECT = 0x030f_0000, "NOINDIRECT";
        "the two ends disagree about the RDMA gateway";
        "Check the routes between the two hosts.";
    SYNC_ERR = 0x0400_0000, "SYNCERR";
        "the two ends disagree about their link group";
        "Nothing: the next connection makes a new link group.";
    PEER_DECL = 0x0500_0000, "PEERDECL";
        "peer declined";
        "See the peer's own reason.";
    INT_ERR = 0x0999_0000, "INTERR";
        "internal error";
        "Report this with the output of `shortwire ss`.";
    ERR_RTOK = 0x0999_0001, "ERR_RTOK";
        "RDMA key not accepted";
        "Check the RDMA device.";
    ERR_RDY_LNK = 0x0999_0002, "ERR_RDYLNK";
        "RDMA link did not become ready";
        "Check the RDMA device.";
    ERR_REG_BUF = 0x0999_0003, "ERR_REGBUF";
        "RDMA buffer could not be registered";
        "Raise the limit of locked memory.";
    OFF = 0x0999_1000, "OFF";
        "switched off by configuration";
        "Remove the exclusion from the configuration.";
    NOT_YET = 0x0999_1001, "NOT_YET";
        "connection has not done enough operations yet";
        "Nothing: short connections stay TCP. `--after` ($SHORTWIRE_AFTER) lowers the number of operations.";
    NOT_LOCAL = 0x0999_1002, "NOT_LOCAL";
        "peer is not on this machine";
        "Nothing: only connections within the machine can use shared memory.";
    PEER_UID = 0x0999_1003, "PEER_UID";
        "peer runs as another user, and the kernel does not name that one as owner of the connection's other end";
        "Nothing, if the program at the other end made the socket as one user and uses it as another; otherwise distrust it.";
    SHARED_FD = 0x0999_1004, "SHARED_FD";
        "descriptor is shared with another process";
        "Close the descriptor in the parent or child that does not use it.";
    INHERITED = 0x0999_1005, "INHERITED";
        "descriptor was inherited over exec";
        "Accept or connect in the process that uses the connection.";
    PASSED_FD = 0x0999_1006, "PASSED_FD";
        "descriptor was passed over a Unix socket";
        "Accept or connect in the process that uses the connection.";
    IO_URING = 0x0999_1007, "IO_URING";
        "program uses io_uring on it, or a ring that cannot be looked at";
        "Tell the program to use epoll instead, or deny io_uring in the configuration.";
    STDIO = 0x0999_1008, "STDIO";
        "program uses stdio on the socket";
        "Use read and write on the socket instead of FILE streams.";
    ASYNC_IO = 0x0999_1009, "ASYNC_IO";
        "program uses asynchronous I/O on the socket (aio calls, io_submit), or has signals sent for it (O_ASYNC)";
        "Use read and write on the socket, and epoll to wait for it.";
    URGENT = 0x0999_100a, "URGENT";
        "urgent data is in use";
        "Avoid MSG_OOB in the program.";
    KTLS = 0x0999_100b, "KTLS";
        "kernel TLS is in use";
        "Switch kernel TLS off in the program.";
    SOCK_OPT = 0x0999_100c, "SOCK_OPT";
        "a socket option is set that shared memory cannot carry";
        "Remove timestamping, repair mode and other transport options from the program.";
    MPTCP = 0x0999_100d, "MPTCP";
        "socket is multipath TCP";
        "Let the program open plain TCP sockets.";
    EXCLUSIVE = 0x0999_100e, "EXCLUSIVE";
        "socket is registered with EPOLLEXCLUSIVE";
        "Register connected sockets without EPOLLEXCLUSIVE.";
    NAME_TAKEN = 0x0999_100f, "NAME_TAKEN";
        "rendezvous failed: another user holds the name";
        "Look for the process that listens on the name; it may be hostile.";
    RENDEZVOUS = 0x0999_1010, "RENDEZVOUS";
        "rendezvous failed: peer did not come or did not answer";
        "Nothing, if the other program ended, or its connection did; its own reason is in `shortwire ss` beside it.";
    FD_LIMIT = 0x0999_1011, "FD_LIMIT";
        "descriptor limit reached: too many hidden descriptors";
        "Raise the limit of open files.";
    UNSEEN = 0x0999_1012, "UNSEEN";
        "bytes went past the library";
        "Nothing: the program moves data by calls that cannot be followed.";
    SYSTEM = 0x0999_1013, "SYSTEM";
        "a system call needed for the upgrade failed";
        "Look for seccomp rules that forbid memfd_create, mmap or sockets.";
    VIOLATION = 0x0999_1014, "VIOLATION";
        "peer violated the protocol";
        "Use the same version of Shortwire at both ends; if it happens again, distrust the peer.";
    REVERTED = 0x0999_1015, "REVERTED";
        "connection was reverted to TCP";
        "See the statistics for what the program did with the socket.";
    MAX_USER = 0x0999_1016, "MAX_USER";
        "the limit on the memory of all processes of the user is reached, or nobody can keep account of it";
        "Raise --max-memory-user of `shortwire run`, or see to it that shortwire-memory-UID can be written in $SHORTWIRE_RUN_DIR or /dev/shm.";
    DIRECTORY = 0x0999_1017, "DIRECTORY";
        "the rendezvous directory cannot be used";
        "See to it that $SHORTWIRE_RENDEZVOUS is a directory in which this user can make sockets, with room for them.";
    UNPROVEN = 0x0999_1018, "UNPROVEN";
        "no proof that the two ends are of one connection";
        "Nothing: programs that send one or two bytes at a time, or whose bytes went past the library, stay TCP between containers.";
    DAMAGED = 0x0999_1019, "DAMAGED";
        "bytes were damaged on their way through memory, and the connection was reset";
        "Look for failing memory or for a program that writes to this one; `--prefer loopback` copies less.";
    REMOVED = 0x0999_101a, "REMOVED";
        "its device was taken away, and the connection was reset";
        "Nothing: new connections use the next device.";
    NO_BROKER = 0x0999_101b, "NO_BROKER";
        "no broker answers where the other end is";
        "Nothing, unless the other end is a virtual machine that shares a bar: start `shortwire broker` there, and let its port through.";
    BROKER = 0x0999_101c, "BROKER";
        "the broker at the other end does not share our bar, or did not keep to the protocol";
        "Give both machines the same ivshmem device, and use the same version of Shortwire.";
    ENDING = 0x0999_101d, "ENDING";
        "an end had said that it sends no more before the handshake";
        "Nothing: what is left of the connection stays TCP.";
    SANDBOX = 0x0999_101e, "SANDBOX";
        "program entered a seccomp sandbox";
        "Nothing: the sandbox may kill for system calls that the program does not make by itself.";
    OWN_TABLE = 0x0999_101f, "OWN_TABLE";
        "a thread has a descriptor table of its own";
        "Do without unshare(CLONE_FILES) in the program.";
    RIGHTS = 0x0999_1020, "RIGHTS";
        "program gave up rights that copies between processes need";
        "Nothing, unless `--prefer` names ism: over loopback the connection stays in shared memory.";
    NOBODY = 0x0999_1021, "NOBODY";
        "peer's user has no name in the user namespace of this end (65534, nobody), and its port does not show that it is the peer";
        "Take the program at this end out of its user namespace (PrivateUsers=no in a unit), give it --port-proof ($SHORTWIRE_PORT_PROOF) if its clients do not set SO_REUSEADDR, or run both ends as one user that it knows.";
    OTHER_USER = 0x0999_1022, "OTHER_USER";
        "peer runs as another user, and only one's own is let in here";
        "`--peer-policy verified` ($SHORTWIRE_PEER_POLICY) lets in others that the kernel confirms; between containers (`--rendezvous`) run both ends as one user.";
    CANNOT_ASK = 0x0999_1023, "CANNOT_ASK";
        "peer runs as another user, and a sandbox keeps this end from asking the kernel whose the connection's other end is, by netlink or in /proc";
        "Let the program open netlink sockets (RestrictAddressFamilies=AF_NETLINK in a unit) or read /proc/net/tcp, or run both ends as one user.";
    RULE = 0x0999_1030, "RULE";
        "a rule of a configuration file keeps it on TCP";
        "`shortwire config show PROG` says which file and line; $SHORTWIRE_PEER_POLICY and --peer-policy go before rules.";
    BAD_CONFIG = 0x0999_1031, "BAD_CONFIG";
        "a configuration file cannot be used, so memory is shared with nobody";
        "`shortwire config check` says what is wrong; then start the program again.";
    SWITCHED_OFF = 0x0999_1032, "SWITCHED_OFF";
        "Shortwire was switched off when its upgrade would have begun";
        "`shortwire on` switches it on for connections that are made from then on.";
    DRAINED = 0x0999_1033, "DRAINED";
        "connection was taken back to TCP by `shortwire off --drain`";
        "`shortwire on` switches it on for connections that are made from then on.";
    PEER_BACK = 0x0999_1034, "PEER_BACK";
        "its other end took the connection back to TCP";
        "See what `shortwire ss` says of the other end.";
    VERSION = 0x0999_1035, "VERSION";
        "the two ends share memory by different releases";
        "Restart the program that loaded the older version of Shortwire.";
    NOT_FOLLOWED = 0x0999_1036, "NOT_FOLLOWED";
        "program was started with the library, and is not followed";
        "`shortwire doctor PID` says why.";
    TIMED_OUT = 0x0999_1037, "TIMED_OUT";
        "peer read nothing for as long as TCP_USER_TIMEOUT lets it, and the connection was ended";
        "Look why the program at the other end does not read; without Shortwire TCP ends such a connection, too.";
    KERNEL_SMC = 0x0999_1038, "KERNEL_SMC";
        "socket is the kernel's SMC";
        "Nothing: the kernel moves it off TCP itself, as `smcss` shows. For Shortwire start the program without smc_run.";
    STUCK = 0x0999_1039, "STUCK";
        "its ring was full and nothing was read for a while, where TCP's buffers would have taken more";
        "If both ends write much before they read, give each connection more room: --dmb-size 8M.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_and_without_duplicates() {
        assert!(TABLE.windows(2).all(|pair| pair[0].code < pair[1].code));
        let mut names: Vec<_> = TABLE.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(Reason::all().count(), TABLE.len());
    }

    #[test]
    fn every_reason_says_what_to_do() {
        for entry in TABLE {
            assert!(!entry.words.is_empty() && !entry.words.ends_with('.'), "{}", entry.name);
            assert!(entry.hint.ends_with('.'), "{}", entry.name);
        }
    }

    #[test]
    fn shown_with_code_and_words() {
        assert_eq!(PEER_NO_SMC.to_string(), "0x03010000 (peer did not signal SMC)");
        assert_eq!(Reason(7).to_string(), "0x00000007 (unknown reason)");
        assert_eq!(format!("{NO_UEID:?}"), "Reason(0x03030008 NOUEID)");
        assert_eq!(Reason(7).name(), "UNKNOWN");
    }

    /// Codes and names of the rows of doc/reasons.md. A row may stand for two codes, which differ in
    /// their last digit: "0x03030000 / 1", "NOSMCDEV / NOSMCDDEV".
    fn documented() -> Vec<(u32, &'static str)> {
        let mut rows = Vec::new();
        for line in include_str!("../../../doc/reasons.md").lines() {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let &[_, codes, names, _, _] = &cells[..] else { continue };
            let (first, other) = codes.split_once(" / ").unwrap_or((codes, ""));
            let (digits, base) = match first.strip_prefix("0x") {
                Some(digits) => (digits, 0),
                None if first.len() == 2 => (first, Reason::PRIVATE),
                None => continue,
            };
            let Ok(code) = u32::from_str_radix(digits, 16) else { continue };
            let mut names = names.split(" / ");
            rows.push((base + code, names.next().unwrap_or_default()));
            if let Ok(digit) = u32::from_str_radix(other, 16) {
                rows.push((code & !0xf | digit, names.next().unwrap_or_default()));
            }
        }
        rows
    }

    /// Of the private ones all, because all of them are given here.
    #[test]
    fn the_document_has_these_reasons() {
        let rows = documented();
        for &(code, name) in &rows {
            assert_eq!(Reason(code).name(), name, "doc/reasons.md, {code:#x}");
        }
        for entry in TABLE.iter().filter(|entry| Reason(entry.code).is_private()) {
            let rows = rows.iter().filter(|row| row.0 == entry.code).count();
            assert_eq!(rows, 1, "doc/reasons.md has {rows} rows of {}", entry.name);
        }
    }

    #[test]
    fn private_range() {
        assert!(OFF.is_private() && REVERTED.is_private());
        assert!(!INT_ERR.is_private() && !PEER_NO_SMC.is_private());
    }
}
