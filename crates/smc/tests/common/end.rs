//! One end of a connection, used as the hooks of the preloaded library use it.

use std::sync::atomic::Ordering::*;

use smc::conn::{Conn, ERR, Got, HUP, IN, Pieces, Sent};
use smc::{group, meet, sys, table};

use super::{raw_recv, raw_send};

/// One end. Dropping it closes it as an application would.
pub struct End {
    pub conn: &'static Conn,
    pub index: u32,
    pub fd: i32,
    open: bool,
}

impl End {
    pub fn new(fd: i32) -> Self {
        let table = table::get().expect("a table");
        let index = table.alloc().expect("a slot");
        let conn = table.conn(index);
        conn.reset();
        smc::witness::begin(conn);
        conn.identity.pid.store(sys::getpid(), Relaxed);
        sys::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
        Self { conn, index, fd, open: true }
    }

    pub fn step(&self) {
        self.conn.ops.fetch_add(1, Relaxed);
        meet::step(self.conn, self.fd, || false);
    }

    /// The descriptor of its rendezvous channel.
    pub fn channel(&self) -> i32 {
        self.conn.upgrade.meeting().descriptor().expect("a channel")
    }

    pub fn reason(&self) -> smc::reason::Reason {
        self.conn.reason()
    }

    pub fn peer_reason(&self) -> smc::reason::Reason {
        self.conn.upgrade.declined()
    }

    /// Whether this end has the lower address, so that it listens at the rendezvous.
    pub fn is_server(&self) -> bool {
        let [local, peer] = smc::inet::names(self.fd).expect("both names");
        local.key() < peer.key()
    }

    /// Lets both directions follow what has been agreed; true when receives come from the ring.
    pub fn settle(&self) -> bool {
        let ph = self.conn.phase();
        if ph.receives_on_ring() {
            return true;
        }
        if !ph.is_exposed() {
            return false;
        }
        if ph.may_switch_sends() {
            self.conn.try_switch_tx(self.fd);
        }
        if !self.conn.switch_due() {
            return false;
        }
        if !ph.is_committed() {
            self.step();
        }
        self.conn.settle_rx(self.fd)
    }

    /// recv(2) with MSG_DONTWAIT: the bytes, 0 at the end, or an errno.
    pub fn recv(&self, buf: &mut [u8], flags: i32) -> Result<usize, i32> {
        let mut looked = 0;
        loop {
            if !self.settle() {
                match self.recv_kernel(buf, flags) {
                    Some(r) => return r,
                    None => continue,
                }
            }
            let iov = [libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() }];
            match self.conn.recv(self.fd, &mut Pieces::new(&iov), flags) {
                Got::Bytes(n) => return Ok(n),
                Got::Eof => return Ok(0),
                Got::Held => return Err(libc::EAGAIN),
                Got::Err(e) => return Err(e.errno()),
                Got::Kernel => {}
                Got::Empty => {
                    let ev = sys::poll_now(self.fd, libc::POLLRDHUP);
                    self.conn.kernel_end(ev as u16 as u32);
                    if self.conn.ready(self.fd) & IN == 0 {
                        return Err(libc::EAGAIN);
                    }
                    looked += 1;
                    assert!(
                        looked < 1000,
                        "said to be readable, but there is nothing: {}",
                        self.describe()
                    );
                }
            }
        }
    }

    fn recv_kernel(&self, buf: &mut [u8], flags: i32) -> Option<Result<usize, i32>> {
        assert!(
            self.conn.enter_kernel_recv() || self.conn.receives_on_ring(),
            "nobody else receives"
        );
        if self.conn.receives_on_ring() {
            return None;
        }
        let r = raw_recv(self.fd, buf, flags);
        let got = r.unwrap_or(0);
        let payload = self.conn.leave_kernel_recv(self.fd, got, flags & libc::MSG_PEEK != 0);
        if self.conn.receives_on_ring() && payload == 0 && (got > 0 || r == Err(libc::EAGAIN)) {
            return None;
        }
        Some(if got > 0 { Ok(payload) } else { r })
    }

    /// send(2) with MSG_DONTWAIT and MSG_NOSIGNAL.
    pub fn send(&self, data: &[u8]) -> Result<usize, i32> {
        let iov = [libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }];
        let mut from = Pieces::new(&iov);
        let mut done = 0;
        let or_done = |done: usize, e: i32| if done > 0 { Ok(done) } else { Err(e) };
        loop {
            if !self.conn.sends_on_ring() {
                self.settle();
                if self.conn.sends_on_ring() {
                    continue;
                }
                if self.conn.flush_takeback(self.fd) != smc::conn::Flushed::All {
                    return or_done(done, libc::EAGAIN);
                }
                if !self.conn.enter_kernel_send() {
                    continue;
                }
                let r = raw_send(self.fd, &data[done..]);
                self.conn.leave_kernel_send();
                return r.map(|n| n + done).or_else(|e| or_done(done, e));
            }
            match self.conn.send(self.fd, &mut from) {
                Sent::Bytes(n) => {
                    done += n;
                    if done == data.len() {
                        return Ok(done);
                    }
                }
                Sent::Full => return or_done(done, libc::EAGAIN),
                Sent::Held => return or_done(done, libc::EAGAIN),
                Sent::Err(e) => return or_done(done, e.errno()),
                Sent::Kernel if self.conn.sends_are_back() => {}
                Sent::Kernel if done > 0 => return Ok(done),
                Sent::Kernel => {
                    self.conn.sends_past_ring();
                    return raw_send(self.fd, data);
                }
            }
        }
    }

    /// poll(2) without a wait, after one look at what the kernel says of the connection's end.
    pub fn poll(&self, events: i16) -> i16 {
        self.settle();
        if !self.conn.switched() {
            return sys::poll_now(self.fd, events);
        }
        let ev = sys::poll_now(self.fd, libc::POLLRDHUP);
        self.conn.kernel_end(ev as u16 as u32);
        (self.conn.ready(self.fd) & (events as u16 as u32 | ERR | HUP)) as i16
    }

    pub fn shutdown(&self, how: i32) -> isize {
        self.settle();
        self.conn.shutdown(self.fd, how);
        sys::shutdown(self.fd, how)
    }

    /// All that precedes the kernel's close of the last descriptor.
    pub fn let_go(mut self) -> i32 {
        self.open = false;
        meet::abandon(self.conn, self.fd);
        self.conn.close(self.fd);
        group::release(self.conn);
        self.conn.identity.gen_.fetch_add(1, Release);
        table::get().expect("a table").free(self.index);
        self.fd
    }

    /// The process is killed: the kernel closes, nobody says goodbye.
    pub fn crash(mut self) {
        self.open = false;
        sys::close(self.fd);
        // The tables of the device went with the process, but ours stays.
        meet::abandon(self.conn, -1);
        group::release(self.conn);
        self.conn.identity.gen_.fetch_add(1, Release);
        table::get().expect("a table").free(self.index);
    }

    pub fn close(self) {
        drop(self);
    }

    pub fn describe(&self) -> String {
        let (rx, tx) = (self.conn.rx.snapshot(), self.conn.tx.snapshot());
        format!(
            "{:?} {:?} rx {}..{} tcp_left {} drained {} ends {:#x} tx {}..{} resend {} doorbells seen {:#x} kernel {:?}",
            self.conn.phase(),
            self.reason(),
            rx.cons.pos,
            rx.prod.pos,
            rx.tcp_left,
            rx.drained,
            rx.ends,
            tx.cons.pos,
            tx.prod.pos,
            tx.resend,
            if self.conn.is_exposed() { self.conn.doorbells_seen() } else { 0 },
            sys::ioctl_int(self.fd, libc::FIONREAD),
        )
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.open {
            let end = End { conn: self.conn, index: self.index, fd: self.fd, open: false };
            sys::close(end.let_go());
            self.open = false;
        }
    }
}
