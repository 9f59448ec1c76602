//! The declarations against the installed headers, and the software provider between two ends and
//! two processes.
#![allow(unsafe_code)]

use crate::abi::*;
use crate::{far, software};
use core::mem::{offset_of, zeroed};
use core::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One end of a reliable connection, over the functions alone.
struct End {
    api: &'static Ibv,
    cq: *mut Cq,
    qp: *mut Qp,
    gid: [u8; 16],
    memory: Vec<u8>,
    mr: *mut Mr,
}

const LEN: usize = 4096;
const ALL: i32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
const PSN: u32 = 0x1234;

impl End {
    fn new(access: i32) -> End {
        let api = software::api();
        // SAFETY: each call has what it asks for, here and below.
        unsafe {
            let mut count = 0;
            let list = (api.ibv_get_device_list)(&mut count);
            assert_eq!(count, 1);
            let context = (api.ibv_open_device)(*list);
            (api.ibv_free_device_list)(list);
            let mut port = PortAttr::default();
            assert_eq!((api.ibv_query_port)(context, 1, &mut port), 0);
            assert_eq!((port.state, port.gid_tbl_len), (PORT_ACTIVE, 1));
            let mut gid = [0; 16];
            assert_eq!((api.ibv_query_gid)(context, 1, 0, &mut gid), 0);
            let pd = (api.ibv_alloc_pd)(context);
            let cq = (api.ibv_create_cq)(context, 16, null_mut(), null_mut(), 0);
            let mut init: QpInitAttr = zeroed();
            (init.send_cq, init.recv_cq, init.qp_type, init.max_inline_data) =
                (cq, cq, QPT_RC, 128);
            let qp = (api.ibv_create_qp)(pd, &mut init);
            assert!(!qp.is_null() && !cq.is_null());
            let mut memory = vec![0u8; LEN];
            let mr = (api.ibv_reg_mr)(pd, memory.as_mut_ptr().cast(), LEN, access);
            assert!(!mr.is_null());
            End { api, cq, qp, gid, memory, mr }
        }
    }

    fn qpn(&self) -> u32 {
        // SAFETY: ours.
        unsafe { (*self.qp).qp_num }
    }

    fn become_(&self, to: i32, mask: i32, dest: ([u8; 16], u32)) -> i32 {
        let mut attributes = QpAttr {
            qp_state: to,
            dest_qp_num: dest.1,
            sq_psn: PSN,
            rq_psn: PSN,
            ..QpAttr::default()
        };
        attributes.ah_attr.dgid = dest.0;
        // SAFETY: ours.
        unsafe { (self.api.ibv_modify_qp)(self.qp, &mut attributes, mask | mask::STATE) }
    }

    fn connect(&self, gid: [u8; 16], qpn: u32) -> [i32; 3] {
        let there = (gid, qpn);
        [
            self.become_(state::INIT, 0, there),
            self.become_(state::RTR, mask::AV | mask::DEST_QPN | mask::RQ_PSN, there),
            self.become_(state::RTS, mask::SQ_PSN, there),
        ]
    }

    /// Posts one request of `len` bytes at the front of our memory.
    fn post(&self, opcode: i32, len: usize, to: (u64, u32), lkey: Option<u32>) -> i32 {
        // SAFETY: ours.
        let own = unsafe { (*self.mr).lkey };
        let mut sge = Sge {
            addr: self.memory.as_ptr() as u64,
            length: len as u32,
            lkey: lkey.unwrap_or(own),
        };
        // SAFETY: may be zero.
        let mut request: SendWr = unsafe { zeroed() };
        (request.wr_id, request.sg_list, request.num_sge, request.opcode) =
            (7, &mut sge, 1, opcode);
        (request.send_flags, request.remote_addr, request.rkey) = (wr::SIGNALED, to.0, to.1);
        let mut bad = null_mut();
        // SAFETY: ours; nothing is used behind the call.
        unsafe { ((*(*self.qp).context).ops.post_send)(self.qp, &mut request, &mut bad) }
    }

    /// How the next request ended.
    fn done(&self) -> Option<i32> {
        let mut one = Wc::default();
        // SAFETY: room for one.
        let n = unsafe { ((*(*self.cq).context).ops.poll_cq)(self.cq, 1, &mut one) };
        (n == 1).then(|| {
            assert_eq!(one.wr_id, 7);
            one.status
        })
    }

    fn place(&self) -> (u64, u32) {
        // SAFETY: ours.
        (self.memory.as_ptr() as u64, unsafe { (*self.mr).rkey })
    }

    fn byte(&self, at: usize) -> u8 {
        // SAFETY: within, and perhaps written by another.
        unsafe { self.memory.as_ptr().add(at).read_volatile() }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: the last use of each.
        unsafe {
            assert_eq!((self.api.ibv_destroy_qp)(self.qp), 0);
            assert_eq!((self.api.ibv_destroy_cq)(self.cq), 0);
            assert_eq!((self.api.ibv_dereg_mr)(self.mr), 0);
        }
    }
}

/// Two ends of this process.
fn pair(access: i32) -> [End; 2] {
    let ends = [End::new(ALL), End::new(access)];
    assert_eq!(ends[0].become_(state::INIT, 0, ([0; 16], 0)), 0);
    let [a, b] = &ends;
    assert_eq!(b.connect(a.gid, a.qpn()), [0; 3]);
    assert_eq!(a.become_(state::RTR, mask::AV | mask::DEST_QPN, (b.gid, b.qpn())), 0);
    assert_eq!(a.become_(state::RTS, mask::SQ_PSN, (b.gid, b.qpn())), 0);
    ends
}

/// The adapter is one for the process, and what one test counts another one must not take.
fn serial() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn writes_and_reads_land_where_they_should() {
    let _serial = serial();
    let [mut a, b] = pair(ALL);
    a.memory[..5].copy_from_slice(b"hello");
    let (addr, key) = b.place();
    assert_eq!(a.post(wr::RDMA_WRITE, 5, (addr + 100, key), None), 0);
    assert_eq!((a.done(), a.done()), (Some(wc::SUCCESS), None));
    assert_eq!(((99..106).map(|i| b.byte(i)).collect::<Vec<_>>()), b"\0hello\0");
    a.memory[..5].fill(0);
    assert_eq!(a.post(wr::RDMA_READ, 5, (addr + 100, key), None), 0);
    assert_eq!(a.done(), Some(wc::SUCCESS));
    assert_eq!((0..5).map(|i| a.byte(i)).collect::<Vec<_>>(), b"hello");
}

#[test]
fn what_keys_do_not_open_breaks_the_connection() {
    let _serial = serial();
    for case in 0..6 {
        let [a, b] = pair(if case == 3 { access::REMOTE_READ } else { access::REMOTE_WRITE });
        let (addr, key) = b.place();
        let end = LEN as u64;
        let (opcode, len, to) = match case {
            0 => (wr::RDMA_WRITE, 4, (addr, key + 1)),
            1 => (wr::RDMA_WRITE, 4, (addr + end - 3, key)),
            2 => (wr::RDMA_WRITE, 4, (addr - 1, key)),
            3 => (wr::RDMA_WRITE, 4, (addr, key)),
            4 => (wr::RDMA_READ, 4, (addr, key)),
            _ => (wr::RDMA_WRITE, 4, (u64::MAX - 1, key)),
        };
        assert_eq!(a.post(opcode, len, to, None), 0, "{case}");
        assert_eq!(a.done(), Some(wc::REM_ACCESS_ERR), "{case}");
        assert!((0..LEN).all(|i| b.byte(i) == 0));
        assert_eq!(a.post(wr::RDMA_WRITE, 4, (addr, key), None), 0);
        assert_eq!(a.done(), Some(wc::FLUSH_ERR), "all behind it");
    }
}

#[test]
fn memory_that_is_not_registered_here_is_not_sent() {
    let _serial = serial();
    let [a, b] = pair(ALL);
    assert_eq!(a.post(wr::RDMA_WRITE, 4, b.place(), Some(1)), 0);
    assert_eq!(a.done(), Some(wc::LOC_PROT_ERR));
}

#[test]
fn states_follow_each_other_and_operations_are_those_that_there_are() {
    let _serial = serial();
    let a = End::new(ALL);
    assert_eq!(a.become_(state::RTS, 0, ([0; 16], 0)), libc::EINVAL);
    assert_eq!(a.post(wr::RDMA_WRITE, 1, (0, 0), None), libc::EINVAL, "not connected");
    assert_eq!(a.become_(state::INIT, 0, ([0; 16], 0)), 0);
    let rtr = mask::AV | mask::DEST_QPN;
    assert_eq!(a.become_(state::RTR, rtr, ([0; 16], 9)), libc::EINVAL, "no adapter's GID");
    assert_eq!(
        a.become_(state::RTR, rtr, (a.gid, a.qpn() ^ 1)),
        libc::EHOSTUNREACH,
        "no such queue pair"
    );
    assert_eq!(
        a.become_(state::RTR, rtr, (software::seen_from_here(a.gid, i32::MAX), a.qpn())),
        libc::ESRCH
    );
    assert_eq!(a.become_(state::RTR, rtr, (a.gid, a.qpn())), 0, "to itself");
    assert_eq!(a.become_(state::RTS, 0, ([0; 16], 0)), 0);
    assert_eq!(a.post(wr::RDMA_WRITE_WITH_IMM, 1, a.place(), None), libc::EOPNOTSUPP);
}

#[test]
fn a_queue_pair_that_is_gone_or_another_s_is_not_reached() {
    let _serial = serial();
    let [a, b] = pair(ALL);
    let (to, qpn) = (b.place(), b.qpn());
    drop(b);
    assert_eq!(a.post(wr::RDMA_WRITE, 1, to, None), 0);
    assert_eq!(a.done(), Some(wc::RETRY_EXC_ERR));
    assert_ne!(End::new(ALL).qpn(), qpn, "numbers are not used again at once");
    // Connected to the first of two that are both connected to it.
    let [a, b] = pair(ALL);
    let c = End::new(ALL);
    assert_eq!(c.connect(a.gid, a.qpn()), [0; 3]);
    let there = a.place();
    assert_eq!(c.post(wr::RDMA_WRITE, 1, there, None), 0);
    assert_eq!(c.done(), Some(wc::RETRY_EXC_ERR));
    assert_eq!(b.post(wr::RDMA_WRITE, 1, there, None), 0);
    assert_eq!(b.done(), Some(wc::SUCCESS));
}

/// An adapter is its process's: the child of a fork has one of its own, and a process that ended is
/// not reached.
#[test]
fn between_processes() {
    let _serial = serial();
    let a = End::new(ALL);
    assert_eq!(a.become_(state::INIT, 0, ([0; 16], 0)), 0);
    let (gid, qpn, to) = (a.gid, a.qpn(), a.place());
    let mut pipe = [0; 2];
    // Where yama lets processes write to their descendants alone.
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    // SAFETY: the child uses what is its own and leaves by _exit.
    let child = unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        libc::fork()
    };
    if child == 0 {
        let mut b = End::new(ALL);
        b.memory[..3].copy_from_slice(b"yes");
        let fine = b.gid != gid && b.connect(gid, qpn) == [0; 3];
        let said = b.qpn().to_ne_bytes();
        let said = [&b.gid[..], &said[..]].concat();
        // SAFETY: waits for the parent to connect, and ends the process here.
        unsafe {
            libc::write(pipe[1], said.as_ptr().cast(), said.len());
            libc::raise(libc::SIGSTOP);
            let written = b.post(wr::RDMA_WRITE, 3, to, None) == 0 && b.done() == Some(wc::SUCCESS);
            libc::_exit(i32::from(!(fine && written)));
        }
    }
    let mut said = [0u8; 20];
    let mut status = 0;
    // SAFETY: our child, and locals.
    unsafe {
        assert_eq!(libc::read(pipe[0], said.as_mut_ptr().cast(), 20), 20);
        assert_eq!(libc::waitpid(child, &mut status, libc::WUNTRACED), child);
    }
    let there: ([u8; 16], u32) =
        (said[..16].try_into().unwrap(), u32::from_ne_bytes(said[16..].try_into().unwrap()));
    assert_eq!(a.become_(state::RTR, mask::AV | mask::DEST_QPN, there), 0);
    assert_eq!(a.become_(state::RTS, mask::SQ_PSN, there), 0);
    // SAFETY: as above.
    unsafe {
        libc::kill(child, libc::SIGCONT);
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        libc::close(pipe[0]);
        libc::close(pipe[1]);
    }
    assert_eq!((status, [a.byte(0), a.byte(1), a.byte(2)]), (0, *b"yes"));
    assert_eq!(a.post(wr::RDMA_WRITE, 3, to, None), 0);
    assert_eq!(a.done(), Some(wc::RETRY_EXC_ERR), "nobody is there any more");
    assert_eq!(far::may_write(child), Err(crate::Errno::SRCH));
}

#[test]
fn the_system_s_library_has_all_functions() {
    match Ibv::system() {
        Some(api) => {
            let mut count = -1;
            // SAFETY: a place for the count. Without RDMA the list is empty, and no crash.
            unsafe {
                let list = (api.ibv_get_device_list)(&mut count);
                if !list.is_null() {
                    (api.ibv_free_device_list)(list);
                }
            }
        }
        None => println!(
            "skipped: the_system_s_library_has_all_functions: libibverbs1 is not installed"
        ),
    }
}

/// Name of a C expression, and what we take it to be.
fn expected() -> Vec<(String, usize)> {
    macro_rules! offsets {
        ($($ours:ident $theirs:literal: $($field:ident $(= $path:literal)?),*;)*) => { vec![$($({
            let path: &[&str] = &[$($path,)? stringify!($field)];
            (format!("offsetof({}, {})", $theirs, path[0]), offset_of!($ours, $field))
        }),*),*] };
    }
    let mut all = offsets! {
        Device "struct ibv_device": node_type, transport_type;
        Context "struct ibv_context": device, ops, cmd_fd, async_fd;
        ContextOps "struct ibv_context_ops": poll_cq, req_notify_cq, post_send, post_recv;
        Cq "struct ibv_cq": context;
        CompChannel "struct ibv_comp_channel": fd;
        Qp "struct ibv_qp": context, pd, send_cq, recv_cq, handle, qp_num;
        DeviceAttr "struct ibv_device_attr": vendor_id, atomic_cap;
        PortAttr "struct ibv_port_attr": state, active_mtu, gid_tbl_len, pkey_tbl_len, lid;
        AhAttr "struct ibv_ah_attr": dgid = "grh.dgid", flow_label = "grh.flow_label", sgid_index = "grh.sgid_index", hop_limit = "grh.hop_limit", dlid, sl, is_global, port_num;
        QpAttr "struct ibv_qp_attr": qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
        Mr "struct ibv_mr": lkey, rkey;
        SendWr "struct ibv_send_wr": sg_list, num_sge, opcode, send_flags, imm_data, remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey", rkey = "wr.atomic.compare_add", atomic_rkey = "wr.atomic.rkey";
        Wc "struct ibv_wc": wr_id, status, opcode, imm_data, wc_flags;
        QpInitAttr "struct ibv_qp_init_attr": send_cq, recv_cq, max_send_wr = "cap.max_send_wr", max_inline_data = "cap.max_inline_data", qp_type, sq_sig_all;
        CmId "struct rdma_cm_id": verbs, channel, qp, src = "route.addr.src_storage", dst = "route.addr.dst_storage";
        ConnParam "struct rdma_conn_param": private_data_len, retry_count, rnr_retry_count, qp_num;
        AddrInfo "struct rdma_addrinfo": flags = "ai_flags", family = "ai_family", qp_type = "ai_qp_type", port_space = "ai_port_space", src_len = "ai_src_len", dst_len = "ai_dst_len", src_addr = "ai_src_addr", dst_addr = "ai_dst_addr", src_canonname = "ai_src_canonname", dst_canonname = "ai_dst_canonname", route_len = "ai_route_len", route = "ai_route", connect_len = "ai_connect_len", connect = "ai_connect", next = "ai_next";
        CmEvent "struct rdma_cm_event": id, listen_id, event, status, conn = "param.conn.private_data";
    };
    let sizes = [
        ("struct ibv_sge", size_of::<Sge>()),
        ("struct ibv_ah_attr", size_of::<AhAttr>()),
        ("struct ibv_qp_attr", size_of::<QpAttr>()),
        ("struct ibv_send_wr", size_of::<SendWr>()),
        ("struct ibv_recv_wr", size_of::<RecvWr>()),
        ("struct ibv_wc", size_of::<Wc>()),
        ("struct ibv_qp_init_attr", size_of::<QpInitAttr>()),
        ("struct rdma_conn_param", size_of::<ConnParam>()),
        ("struct rdma_addrinfo", size_of::<AddrInfo>()),
    ];
    all.extend(sizes.map(|(name, size)| (format!("sizeof({name})"), size)));
    let constants = [
        ("RDMA_PS_TCP", PS_TCP),
        ("RDMA_PS_UDP", PS_UDP),
        ("IBV_QPT_UD", QPT_UD),
        ("RAI_PASSIVE", rai::PASSIVE),
        ("RAI_NUMERICHOST", rai::NUMERICHOST),
        ("RAI_NOROUTE", rai::NOROUTE),
        ("RAI_FAMILY", rai::FAMILY),
        ("IBV_QPT_RC", QPT_RC),
        ("IBV_TRANSPORT_IWARP", TRANSPORT_IWARP),
        ("IBV_ACCESS_REMOTE_WRITE", access::REMOTE_WRITE),
        ("IBV_ACCESS_REMOTE_ATOMIC", access::REMOTE_ATOMIC),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", wr::RDMA_WRITE_WITH_IMM),
        ("IBV_WR_ATOMIC_FETCH_AND_ADD", wr::FETCH_AND_ADD),
        ("IBV_SEND_INLINE", wr::INLINE as i32),
        ("IBV_TRANSPORT_IB", TRANSPORT_IB),
        ("IBV_ACCESS_REMOTE_READ", access::REMOTE_READ),
        ("IBV_WR_RDMA_READ", wr::RDMA_READ),
        ("IBV_SEND_SIGNALED", wr::SIGNALED as i32),
        ("IBV_WC_LOC_PROT_ERR", wc::LOC_PROT_ERR),
        ("IBV_WC_REM_INV_REQ_ERR", wc::REM_INV_REQ_ERR),
        ("IBV_WC_RETRY_EXC_ERR", wc::RETRY_EXC_ERR),
        ("IBV_QPS_INIT", state::INIT),
        ("IBV_QPS_RTS", state::RTS),
        ("IBV_QPS_ERR", state::ERR),
        ("IBV_QP_STATE", mask::STATE),
        ("IBV_QP_ACCESS_FLAGS", mask::ACCESS_FLAGS),
        ("IBV_QP_PKEY_INDEX", mask::PKEY_INDEX),
        ("IBV_QP_PORT", mask::PORT),
        ("IBV_QP_AV", mask::AV),
        ("IBV_QP_PATH_MTU", mask::PATH_MTU),
        ("IBV_QP_TIMEOUT", mask::TIMEOUT),
        ("IBV_QP_RETRY_CNT", mask::RETRY_CNT),
        ("IBV_QP_RNR_RETRY", mask::RNR_RETRY),
        ("IBV_QP_RQ_PSN", mask::RQ_PSN),
        ("IBV_QP_MAX_QP_RD_ATOMIC", mask::MAX_QP_RD_ATOMIC),
        ("IBV_QP_MIN_RNR_TIMER", mask::MIN_RNR_TIMER),
        ("IBV_QP_SQ_PSN", mask::SQ_PSN),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", mask::MAX_DEST_RD_ATOMIC),
        ("IBV_QP_DEST_QPN", mask::DEST_QPN),
        ("IBV_PORT_ACTIVE", PORT_ACTIVE),
        ("IBV_MTU_1024", MTU_1024),
        ("IBV_WC_WR_FLUSH_ERR", wc::FLUSH_ERR),
        ("IBV_WC_REM_ACCESS_ERR", wc::REM_ACCESS_ERR),
        ("RDMA_CM_EVENT_ROUTE_RESOLVED", event::ROUTE_RESOLVED),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", event::CONNECT_REQUEST),
        ("RDMA_CM_EVENT_REJECTED", event::REJECTED),
        ("RDMA_CM_EVENT_ESTABLISHED", event::ESTABLISHED),
        ("RDMA_CM_EVENT_DISCONNECTED", event::DISCONNECTED),
    ];
    all.extend(constants.map(|(name, value)| (name.to_string(), value as usize)));
    all
}

#[test]
fn declarations_are_those_of_the_headers() {
    let directory = std::env::temp_dir().join(format!("shortwire-verbs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, program) = (directory.join("abi.c"), directory.join("abi"));
    let expected = expected();
    let lines: String = expected
        .iter()
        .map(|(name, _)| format!("printf(\"%zu\\n\", (size_t)({name}));\n"))
        .collect();
    let text = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/rdma_cma.h>\nint main(void) {{\n{lines}return 0; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let built = std::process::Command::new("cc").arg(&source).arg("-o").arg(&program).output();
    let output = match built {
        Ok(built) if built.status.success() => {
            std::process::Command::new(&program).output().unwrap().stdout
        }
        Ok(built)
            if String::from_utf8_lossy(&built.stderr).contains("rdma_cma.h: No such file") =>
        {
            return println!(
                "skipped: declarations_are_those_of_the_headers: librdmacm-dev is not installed"
            );
        }
        Ok(built) => panic!("{}", String::from_utf8_lossy(&built.stderr)),
        Err(e) => {
            return println!("skipped: declarations_are_those_of_the_headers: no C compiler ({e})");
        }
    };
    std::fs::remove_dir_all(&directory).unwrap();
    let output = String::from_utf8(output).unwrap();
    let theirs: Vec<usize> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), expected.len());
    for ((name, ours), theirs) in expected.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{name}");
    }
}
