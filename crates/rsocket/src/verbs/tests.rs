//! The verbs provider over [`super::software`], and its declarations against the installed headers.

use super::abi::*;
use super::connect::Connector;
use super::{VerbsEndpoint, software};
use crate::provider::faulty::{Faults, Faulty};
use crate::provider::{Completion, Endpoint, Lane, PostError, Remote, conformance};
use crate::stream::Config;
use crate::wire::{ConnData, Message};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU16, Ordering};
use shm::Errno;

fn address(port: u16) -> libc::sockaddr_in {
    // SAFETY: all of it may be zero.
    let mut address: libc::sockaddr_in = unsafe { core::mem::zeroed() };
    (address.sin_family, address.sin_port) = (libc::AF_INET as u16, port.to_be());
    address
}

fn open() -> Connector {
    Connector::open(software::api()).unwrap()
}

fn listener() -> (Connector, u16) {
    static PORT: AtomicU16 = AtomicU16::new(1000);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let mut listener = open();
    // SAFETY: a complete address.
    unsafe { listener.bind(core::ptr::from_ref(&address(port)).cast()) }.unwrap();
    listener.listen(5).unwrap();
    (listener, port)
}

/// Two connected ends and what each was told of the other.
pub fn pair(configs: [Config; 2]) -> [(VerbsEndpoint, ConnData); 2] {
    let (mut listener, port) = listener();
    let mut client = open();
    assert!(listener.accept().unwrap().is_none());
    // SAFETY: a complete address.
    unsafe { client.connect(core::ptr::from_ref(&address(port)).cast()) }.unwrap();
    assert!(client.step(&configs[0], 64).unwrap().is_none());
    let mut server = listener.accept().unwrap().unwrap();
    assert!(client.step(&configs[0], 64).unwrap().is_none());
    server.answer(&configs[1], 64).unwrap();
    let ends = [client.step(&configs[0], 64), server.step(&configs[1], 64)].map(|end| end.unwrap().unwrap());
    // Ids and channels are needed as long as the ends are.
    std::mem::forget((client, server));
    ends
}

const CONFIG: Config = Config { sq: 64, rq: 64, sbuf: 8192, rbuf: 16384, iomaps: 2 };

#[test]
fn conforms() {
    let [a, b] = pair([CONFIG; 2]).map(|end| end.0);
    conformance::run(&a, &b);
}

#[test]
fn conforms_when_it_is_late() {
    let faults = Faults { inline: 16, full: 0, burst: 3, fail: 0 };
    let [a, b] = pair([CONFIG; 2]).map(|end| Faulty::new(end.0, faults, 77));
    conformance::run(&a, &b);
}

#[test]
fn connection_data_is_exchanged() {
    let [a, b] = pair([CONFIG, Config { rq: 32, iomaps: 0, ..CONFIG }]);
    assert_eq!((a.1.credits, a.1.iomaps), (32, Some(0)), "the server's");
    assert_eq!((b.1.credits, b.1.iomaps, b.1.data_buf.length), (64, Some(2), 8192), "the client's");
    assert_eq!((b.1.target_sgl.addr, b.1.target_sgl.key), (a.0.memory().addr, a.0.memory().key));
}

#[test]
fn nobody_listens() {
    let mut client = open();
    // SAFETY: a complete address.
    unsafe { client.connect(core::ptr::from_ref(&address(1)).cast()) }.unwrap();
    assert_eq!(client.step(&CONFIG, 0).err(), Some(Errno::CONNREFUSED));
    client.close();
}

/// Connects with other private data, as a stranger may.
fn request(port: u16, data: &[u8]) -> i32 {
    let api = software::api();
    let to = address(port);
    // SAFETY: each call has what it asks for; the data is copied.
    unsafe {
        let channel = (api.rdma_create_event_channel)();
        let mut id = core::ptr::null_mut();
        (api.rdma_create_id)(channel, &mut id, core::ptr::null_mut(), PS_TCP);
        (api.rdma_resolve_addr)(id, core::ptr::null(), (&raw const to).cast(), 0);
        let mut param: ConnParam = core::mem::zeroed();
        (param.private_data, param.private_data_len) = (data.as_ptr().cast(), data.len() as u8);
        (api.rdma_connect)(id, &mut param);
        (*channel).fd
    }
}

#[test]
fn damaged_connection_data_is_refused() {
    let (mut listener, port) = listener();
    let good = pair([CONFIG; 2])[0].1.encode();
    let mut others = [good; 3];
    others[0][0] = 9;
    others[1][23] = 0;
    others[2][8..16].fill(0xff);
    for data in others {
        request(port, &data);
        assert!(listener.accept().unwrap().is_none(), "{data:?}");
    }
    request(port, &[]);
    assert!(listener.accept().unwrap().is_none(), "no data at all");
    request(port, &good);
    assert!(listener.accept().unwrap().is_some(), "and goes on");
}

#[test]
fn a_wrong_key_ends_the_connection() {
    let [(a, _), (b, to)] = pair([CONFIG; 2]);
    let _ = to;
    let to = Remote { addr: b.memory().addr, key: b.memory().key + 1 };
    // SAFETY: an array, taken along.
    unsafe { a.post_write(Lane::Stream, &[([1u8; 4].as_ptr(), 4)], to, Some(Message::Data(4).encode()), 7) }.unwrap();
    let mut out = [Completion::Recv(0); 4];
    assert_eq!(a.poll_cq(&mut out), 1);
    assert_eq!(out[0], Completion::Sent { id: 7, ok: false });
    assert!(a.is_gone());
    assert_eq!(b.poll_cq(&mut out), 0, "flushed receives are not told");
}

#[test]
fn a_full_queue_is_waited_for() {
    let [(a, _), (b, _)] = pair([Config { sq: 16, ..CONFIG }, Config { rq: 16, ..CONFIG }]);
    let to = Remote { addr: b.memory().addr, key: b.memory().key };
    // SAFETY: no bytes.
    let post = || unsafe { a.post_write(Lane::Stream, &[], to, Some(1), 0) };
    let posted = (0..1000).take_while(|_| post().is_ok()).count();
    assert_eq!(posted, 16 + 4 + 16, "receives of the peer, then our queue");
    assert_eq!(post(), Err(PostError::Full));
    let mut out = [Completion::Recv(0); 100];
    assert_eq!(b.poll_cq(&mut out), 20);
    b.post_recv(20);
    assert!(post().is_ok());
}

#[test]
fn the_systems_libraries_have_all_functions() {
    match Api::system() {
        Some(api) => {
            // Without a device this fails, with errno, and is no crash.
            if let Ok(mut connector) = Connector::open(api) {
                connector.close();
            }
        }
        None => {
            println!("skipped: the_systems_libraries_have_all_functions: libibverbs1 or librdmacm1 is not installed")
        }
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
        Context "struct ibv_context": device, ops;
        ContextOps "struct ibv_context_ops": poll_cq, req_notify_cq, post_send, post_recv;
        Cq "struct ibv_cq": context;
        CompChannel "struct ibv_comp_channel": fd;
        Qp "struct ibv_qp": context, pd;
        Mr "struct ibv_mr": lkey, rkey;
        SendWr "struct ibv_send_wr": sg_list, num_sge, opcode, send_flags, imm_data, remote_addr = "wr.rdma.remote_addr", rkey = "wr.rdma.rkey";
        Wc "struct ibv_wc": wr_id, status, opcode, imm_data, wc_flags;
        QpInitAttr "struct ibv_qp_init_attr": send_cq, recv_cq, max_send_wr = "cap.max_send_wr", max_inline_data = "cap.max_inline_data", qp_type, sq_sig_all;
        CmId "struct rdma_cm_id": verbs, channel, qp, src = "route.addr.src_storage", dst = "route.addr.dst_storage";
        ConnParam "struct rdma_conn_param": private_data_len, retry_count, rnr_retry_count, qp_num;
        CmEvent "struct rdma_cm_event": id, listen_id, event, status, conn = "param.conn.private_data";
    };
    let sizes = [
        ("struct ibv_sge", size_of::<Sge>()),
        ("struct ibv_send_wr", size_of::<SendWr>()),
        ("struct ibv_recv_wr", size_of::<RecvWr>()),
        ("struct ibv_wc", size_of::<Wc>()),
        ("struct ibv_qp_init_attr", size_of::<QpInitAttr>()),
        ("struct rdma_conn_param", size_of::<ConnParam>()),
    ];
    all.extend(sizes.map(|(name, size)| (format!("sizeof({name})"), size)));
    let constants = [
        ("RDMA_PS_TCP", PS_TCP),
        ("IBV_QPT_RC", QPT_RC),
        ("IBV_TRANSPORT_IWARP", TRANSPORT_IWARP),
        ("IBV_ACCESS_REMOTE_WRITE", access::REMOTE_WRITE),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", wr::RDMA_WRITE_WITH_IMM),
        ("IBV_SEND_INLINE", wr::INLINE as i32),
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
    let lines: String = expected.iter().map(|(name, _)| format!("printf(\"%zu\\n\", (size_t)({name}));\n")).collect();
    let text = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/rdma_cma.h>\nint main(void) {{\n{lines}return 0; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let built = std::process::Command::new("cc").arg(&source).arg("-o").arg(&program).output();
    let output = match built {
        Ok(built) if built.status.success() => std::process::Command::new(&program).output().unwrap().stdout,
        Ok(built) if String::from_utf8_lossy(&built.stderr).contains("rdma_cma.h: No such file") => {
            return println!("skipped: declarations_are_those_of_the_headers: librdmacm-dev is not installed");
        }
        Ok(built) => panic!("{}", String::from_utf8_lossy(&built.stderr)),
        Err(e) => return println!("skipped: declarations_are_those_of_the_headers: no C compiler ({e})"),
    };
    std::fs::remove_dir_all(&directory).unwrap();
    let output = String::from_utf8(output).unwrap();
    let theirs: Vec<usize> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), expected.len());
    for ((name, ours), theirs) in expected.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{name}");
    }
}
