//! Connections over the ism and verbs devices, where the peer's DMB is in the peer's own memory.
//!
//! What is otherwise stored in the peer's header is stored in an *image* of that header here, and
//! `tell` copies the word across; bytes go from the application straight into the peer's ring. A
//! word arrives whole (images are aligned as headers are, see [`far::write`]), the pieces of one
//! copy arrive in order, and a copy is a full fence: over verbs it is a chain of RDMA writes, whose
//! completion is waited for.
//!
//! Nobody can make a word of the other process fail an exchange. How a ring is taken back all the
//! same is in `recall.rs`.
#![allow(unsafe_code)]

use super::mapped::Sleeper;
use super::pieces::Source;
use super::reach::Reach;
use super::send::{Load, Put, SendError, Sent};
use super::*;
use crate::inet::TcpInfo;
use crate::kind::VERBS;
use crate::stats::Counts;
use crate::sys;
use core::mem::offset_of;
use core::sync::atomic::fence;
use dibs::ism::far::{self, Piece, piece};
use dibs::ism::{self, Far, Place, WORDS};
use dibs::verbs::Remote;
use shm::Errno;

/// A word of the header: offset and length.
#[derive(Clone, Copy)]
pub(super) struct Word(pub u32, pub u32);

macro_rules! words {
    ($($name:ident $field:ident $len:literal)*) => {
        $(pub(super) const $name: Word = Word(offset_of!(DmbHeader, $field) as u32, $len);)*
    };
}
words! { KIND kind 8  PROD prod 8  CONS cons 8  SWITCH switch 8  RX_ARM rx_arm 4  TX_ARM tx_arm 4  CPU cpu 4  RUNG rung 4  KIN kin 4  TAKEBACK takeback 8 }

/// In `kin`: the peer wants its ring back.
pub(super) const RECALL: u32 = 1 << 31;
/// In `kind`: the type, and above it where the image of this header lies at the peer.
pub(super) const KIND_TYPE: u64 = 0xff;

impl DmbHeader {
    /// Whether the peer has attached the DMB.
    pub fn is_attached(&self) -> bool {
        // SYNC: kind.
        self.kind.load(Acquire) & KIND_TYPE == 0xfe
    }
}

/// The words of an attached DMB on this side.
#[repr(C)]
pub(super) struct Words {
    pub header: DmbHeader,
    /// Copies of one word must not overtake each other; doorbells must not overtake `REVERTED`. The
    /// peer looks at it.
    pub lock: FastLock<true>,
}
const _: () = assert!(size_of::<Words>() <= WORDS && WORDS.is_multiple_of(align_of::<DmbHeader>()));

/// How long the peer's memory is taken for the peer's after a look. No process id comes round in
/// that time.
const TRUST_NS: u64 = 10_000_000;
/// How long a peer may be out of reach while its connection stands: it may be ending, or a fork
/// child of it may have to tell its name.
const GRACE_NS: u64 = 1_000_000_000;
/// `Window::far_lost` for good.
const FOR_GOOD: u64 = u64::MAX;

/// A peer's buffer at a distance.
#[derive(Clone, Copy)]
pub(super) struct Image<'a> {
    pub of: &'a Conn,
    pub window: &'a Window,
}

impl Conn {
    /// Notes where in another process the peer's DMB is; returns the image of its header.
    pub(super) fn attach_far(&self, far: &Far) -> *mut DmbHeader {
        let w = self.window();
        w.link.store(0, Relaxed);
        w.far_pid.store(far.pid as u32, Relaxed);
        w.far_base.store(far.place.base, Relaxed);
        w.far_proof.store(far.place.proof, Relaxed);
        // SYNC: far. As in `find`.
        w.far_seen.store(sys::coarse_ns(), Release);
        w.far_lost.store(0, Relaxed);
        w.far.store(far.addr, Release);
        image_in(far.words)
    }

    /// Notes where at the other end of a link the peer's DMB is; returns the image of its header.
    pub(super) fn attach_linked(&self, remote: &Remote) -> *mut DmbHeader {
        let w = self.window();
        w.link.store(remote.link, Relaxed);
        w.key.store(remote.place.rkey, Relaxed);
        w.far_lost.store(0, Relaxed);
        w.far.store(remote.place.addr, Release);
        image_in(remote.words)
    }

    /// Forgets a connection that had this slot.
    pub(super) fn forget_image(&self) {
        let w = self.window();
        w.link.store(0, Relaxed);
        w.far.store(0, Relaxed);
        let stash = w.stash.swap(core::ptr::null_mut(), Relaxed);
        if !stash.is_null() {
            // SAFETY: mapped by `fetch` for an earlier connection of this slot, with this length.
            unsafe { sys::give_back(stash.cast(), w.stash_len.load(Relaxed) as usize) };
        }
    }
}

impl Image<'_> {
    /// The image of the peer's header.
    fn header(&self) -> &DmbHeader {
        header(&self.window.peer)
    }

    /// Whether the peer's DMB is written by RDMA, for which only registered memory will do.
    pub(super) fn is_linked(self) -> bool {
        self.window.link.load(Relaxed) != 0
    }

    pub(super) fn lock(&self) -> &FastLock<true> {
        let image: *const DmbHeader = self.header();
        // SAFETY: the header is the first part of an image.
        unsafe { &(*image.cast::<Words>()).lock }
    }

    /// Lets the peer know of words of its header that were stored in the image, in this order.
    /// False when it cannot be reached.
    #[cold]
    pub(super) fn tell(self, words: &[Word]) -> bool {
        // A handler that interrupted a copy of its own thread comes after that copy.
        let _guard = self.lock().lock();
        self.copy_words(words)
    }

    /// The image's lock is held.
    pub(super) fn copy_words(self, words: &[Word]) -> bool {
        const NONE: Piece = piece(0, 0);
        let (mut here, mut there) = ([NONE; 4], [NONE; 4]);
        let (image, far) =
            (core::ptr::from_ref(self.header()) as u64, self.window.far.load(Relaxed));
        for (i, word) in words.iter().enumerate() {
            here[i] = piece(image + u64::from(word.0), word.1 as usize);
            there[i] = piece(far + u64::from(word.0), word.1 as usize);
        }
        let done = self.write(&here[..words.len()], &there[..words.len()]).is_ok();
        fence(SeqCst);
        done
    }

    /// Copies into the peer's DMB.
    pub(super) fn write(self, here: &[Piece], there: &[Piece]) -> Result<usize, Errno> {
        let w = self.window;
        let link = w.link.load(Relaxed);
        if link != 0 {
            // SAFETY: words of the image, or staged bytes.
            let write = || unsafe { VERBS.write(link, w.key.load(Relaxed), here, there) };
            return self.link_call(link, || {
                write().map_err(|e| if e == Errno::FAULT { Errno::SRCH } else { e })
            });
        }
        // SAFETY: words of the image, or what the application gave to be sent; the destination lies
        // in the buffer that the peer registered for us, and the proof beside it was found.
        self.far_call(|pid| unsafe { far::write(pid, here, there) })
    }

    /// Copies from the peer's memory: of our DMB's image there, or else of the DMB that we write.
    pub(super) fn read(self, is_image: bool, addr: u64, to: &mut [u8]) -> Result<(), Errno> {
        let w = self.window;
        let link = w.link.load(Relaxed);
        if link != 0 {
            let key = w.key.load(Relaxed);
            return self.link_call(link, || match is_image {
                true => VERBS.read_image(link, addr, to),
                false => VERBS.read(link, key, addr, to),
            });
        }
        self.far_call(|pid| far::read(pid, addr, to))
    }

    /// Our end may have been connected first: then there are no requests before the peer has
    /// written to us.
    fn link_call<T>(
        self,
        link: u32,
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut done = call();
        if matches!(done, Err(Errno::AGAIN)) && self.of.peer_attached() {
            VERBS.meet(link);
            done = call();
        }
        match done {
            // Where the peer says that something lies it does not, or nobody has lost anything yet.
            Err(e @ (Errno::FAULT | Errno::AGAIN)) => Err(e),
            done => done.or_else(|_| self.unreached(sys::coarse_ns(), Errno::SRCH)),
        }
    }

    fn far_call<T>(self, mut call: impl FnMut(i32) -> Result<T, Errno>) -> Result<T, Errno> {
        let w = self.window;
        let now = sys::coarse_ns();
        // SYNC: far. In front of the look at the process: what is trusted because somebody looked is
        // the one that was found then, not one before it whose number has come round.
        let mut known = now.saturating_sub(w.far_seen.load(Acquire)) < TRUST_NS;
        loop {
            if !known && !self.find() {
                break self.unreached(now, Errno::SRCH);
            }
            match call(w.far_pid.load(Relaxed) as i32) {
                Ok(done) => {
                    if w.far_lost.load(Relaxed) != 0 {
                        w.far_lost.store(0, Relaxed);
                    }
                    return Ok(done);
                }
                // The process, or its memory, is gone.
                Err(Errno::SRCH | Errno::FAULT) if known => known = false,
                // It is there: our own address is bad.
                Err(Errno::FAULT) => return Err(Errno::FAULT),
                Err(e) => break self.unreached(now, e),
            }
        }
    }

    /// Looks for the peer's memory: in the process that we know, then in the one that took over
    /// from it.
    #[cold]
    fn find(self) -> bool {
        let w = self.window;
        let place =
            Place { base: w.far_base.load(Relaxed), len: 0, proof: w.far_proof.load(Relaxed) };
        let (pid, kin) = (w.far_pid.load(Relaxed), self.of.my().kin.load(Acquire) & !RECALL);
        for pid in [pid, kin] {
            if pid != 0 && ism::found(pid as i32, place) {
                w.far_pid.store(pid, Relaxed);
                // SYNC: far. Behind the process that was found; pairs with `far_call`.
                w.far_seen.store(sys::coarse_ns(), Release);
                return true;
            }
        }
        false
    }

    #[cold]
    fn unreached<T>(self, now: u64, e: Errno) -> Result<T, Errno> {
        let w = self.window;
        let rights = || far::may_write(w.far_pid.load(Relaxed) as i32);
        // A link that broke stays so, but its peer may have ended in order: TCP tells.
        if w.link.load(Relaxed) == 0 && matches!(rights(), Err(e) if e != Errno::SRCH) {
            // It lives, and we may not write to it any more.
            w.far_lost.store(FOR_GOOD, Relaxed);
        } else {
            let _ = w.far_lost.compare_exchange(0, now, Relaxed, Relaxed);
        }
        Err(e)
    }

    /// Whether the peer is out of reach at present.
    pub(super) fn is_lost(self) -> bool {
        self.window.far_lost.load(Relaxed) != 0
    }

    /// Whether the peer will not be reached any more although a direction still needs it.
    pub(super) fn is_cut_off(self) -> bool {
        let ph = self.of.phase();
        if !self.is_lost() || !ph.is_committed() || ph.has(p::CLOSED | p::DEAD) {
            return false;
        }
        // What the peer has left behind can be read without it.
        let my = self.of.my();
        let rx_back = ph.receives_are_back() || my.prod.load(Acquire) & REVERTED != 0;
        if ph.sends_go_back() && rx_back || my.cons.load(Acquire) & (CLOSED | ABORT) != 0 {
            return false;
        }
        let since = self.window.far_lost.load(Relaxed);
        since == FOR_GOOD || sys::coarse_ns().saturating_sub(since) > GRACE_NS
    }

    /// What readiness needs to know besides: answers a recall; whether the connection ends because
    /// the peer is out of reach.
    #[cold]
    pub(super) fn look(self, fd: i32) -> bool {
        if self.is_recalled() {
            self.of.flush_takeback(fd);
        }
        let cut_off = self.is_cut_off();
        if cut_off {
            self.of.broken(fd);
        }
        cut_off
    }

    /// Lets the peer know of one word.
    fn store(self, word: &AtomicU32, value: u32, order: core::sync::atomic::Ordering, at: Word) {
        word.store(value, order);
        self.tell(&[at]);
    }
}

impl Reach for Image<'_> {
    const REVOKES: bool = false;
    const ASKS: bool = true;

    fn introduce(self, cpu: u32) {
        let image = self.header();
        image.cpu.store(cpu, Relaxed);
        // SYNC: kind. Behind the attachment; pairs with `peer_attached`.
        image.kind.store(0xfe | (core::ptr::from_ref(image) as u64) << 8, Release);
        // Before `open` the other end of a link may not be connected yet.
        if !self.is_linked() {
            self.tell(&[CPU, KIND]);
        }
    }

    fn open(self, cons: u64) {
        // SYNC: cons.
        self.header().cons.store(cons, Release);
        self.tell(if self.is_linked() { &[CPU, KIND, CONS] } else { &[CONS] });
    }

    fn switch(self, n: u64) -> bool {
        // SYNC: switch. As for a mapped header.
        self.header().switch.store(n << 1 | 1, SeqCst);
        self.tell(&[SWITCH])
    }

    /// Our part of an answer to a peer that wants its ring back: nothing will come there.
    fn refuse(self, of: &Conn) {
        self.end_ring(of);
    }

    fn end_ring(self, of: &Conn) {
        let _guard = self.lock().lock();
        self.header().prod.fetch_or(REVERTED, SeqCst);
        self.copy_words(&[PROD]);
        // Before that, other threads of ours would send over TCP what the peer takes for doorbells.
        of.phase.turn_sends(Sends::left);
    }

    /// Early news are not worth a copy: they go along with what is told next.
    fn confirm(self, cons: u64) {
        self.header().cons.store(cons, Release);
    }

    fn confirm_now(self, cpu: Option<u32>) {
        if let Some(cpu) = cpu {
            self.store(&self.header().cpu, cpu, Relaxed, CPU);
        }
        self.tell(&[CONS]);
    }

    fn arm_data(self) -> bool {
        shm::arm(&self.header().rx_arm);
        // How far we have read goes along.
        self.tell(&[CONS, RX_ARM])
    }

    fn arm_space(self) {
        shm::arm(&self.header().tx_arm);
        self.tell(&[TX_ARM]);
    }

    /// The control page of a buffer at a distance is out of the peer's sight.
    fn cover(self, _wait: u32) {}

    fn bound(self, cpu: u32) {
        self.store(&self.header().cpu, cpu, SeqCst, CPU);
    }

    fn end(self, cons: u64) {
        // SYNC: ends. As for a mapped header.
        self.header().cons.store(cons, SeqCst);
        self.tell(&[CONS]);
        fence(SeqCst);
    }

    fn flag(self, flags: u64) {
        // SYNC: ends. As for a mapped header.
        self.header().cons.fetch_or(flags, SeqCst);
        self.tell(&[CONS]);
    }

    fn ring(self, of: &Conn, fd: i32, counts: &Counts, more: bool) -> bool {
        let _guard = self.lock().lock();
        // Under the lock: after `REVERTED`, and after a takeback, the count stands.
        if !takeback::may_ring(&of.my().takeback) || !of.sends_on_ring() {
            return false;
        }
        let rung = &self.header().rung;
        let before = rung.load(Relaxed);
        rung.store((before + 1) & !RUNG_REVOKED, Relaxed);
        // SYNC: rung. Counted before it is sent.
        if !self.copy_words(&[RUNG]) {
            rung.store(before, Relaxed);
            return false;
        }
        counts.doorbells.fetch_add(1, Relaxed);
        if !super::send::send_bell(fd, more) {
            rung.store(before, Relaxed);
            self.copy_words(&[RUNG]);
        }
        more
    }

    /// What was placed at a distance was published with it.
    fn resume(self, _of: &Conn, _fd: i32, _tx: &mut Tx) {}

    fn makes_way(self, _of: &Conn, _tx: &mut Tx) -> bool {
        self.is_recalled()
    }

    fn has_made_way(self, _of: &Conn) -> bool {
        self.is_recalled()
    }

    fn put(
        self,
        _of: &Conn,
        tx: &mut Tx,
        chunk: u32,
        _load: &Load,
        source: &mut impl Source,
    ) -> Result<Put, SendError> {
        if self.is_recalled() {
            return Ok(Put::nothing());
        }
        let bytes = self.copy_out(tx, chunk as usize, source)? as u32;
        // SYNC: prod. The copy was a fence; pairs with the arm of a sleeper.
        fence(SeqCst);
        Ok(Put { bytes, published: bytes > 0, goes_on: bytes > 0 })
    }

    fn sleeper(self, of: &Conn) -> Sleeper {
        if shm::must_ring(&of.my().rx_arm, &of.tx.rung) { Sleeper::OnTcp } else { Sleeper::Nobody }
    }

    /// Where the peer cannot be reached, it is dead, or may yet be.
    #[cold]
    fn failed(self, of: &Conn, fd: i32, error: SendError) -> Sent {
        if !matches!(error, SendError::Device(_)) || !self.is_lost() {
            return Sent::Err(error);
        }
        if TcpInfo::of(fd).is_none_or(|i| i.is_closed() || i.peer_ended()) {
            of.set(p::DEAD);
            return Sent::Kernel;
        }
        if !self.is_cut_off() {
            return Sent::Full;
        }
        of.broken(fd);
        Sent::Err(SendError::Reset)
    }

    fn recall(self, _of: &Conn, fd: i32, foreign: bool, vanishing: bool) -> bool {
        self.recall_by_asking(fd, foreign, vanishing)
    }

    fn takeback(self, of: &Conn) -> u64 {
        of.my().takeback.load(Acquire)
    }

    fn fetch(self, of: &Conn, tx: &Tx, word: u64) -> bool {
        if of.phase().has(p::TAKEN_BACK) {
            return true;
        }
        // Once we went back by ourselves other bytes may have gone where these belong.
        let overtaken = of.sends_go_back() && word >> 1 != tx.prod.pos;
        !overtaken && self.copy_back(tx, word >> 1)
    }

    fn resend(self, _of: &Conn) -> *const u8 {
        self.window.stash.load(Relaxed)
    }
}

/// The image of a header whose owner has stored one word in our stead (`expose`).
fn image_in(words: *mut u8) -> *mut DmbHeader {
    let image = words.cast::<DmbHeader>();
    // SAFETY: WORDS bytes of our own, zeroed, readable for good.
    unsafe { &*image }.rx_arm.store(1, Relaxed);
    image
}

/// In a fork child: the peer of a connection learns of it, for when its parent is no more. Its
/// memory is the peer's to write as the parent's is.
pub(super) fn after_fork_child(c: &Conn) {
    let live = c.identity.gen_.load(Relaxed) % 2 == 1 && c.is_committed() && !c.is_closed();
    if let Some(image) = c.image().filter(|image| live && !image.is_linked()) {
        // The image is our parent's as well, which may set `RECALL` at this moment.
        let named = |kin| Some(kin & RECALL | sys::getpid());
        let _ = image.header().kin.fetch_update(Relaxed, Relaxed, named);
        image.tell(&[KIN]);
    }
}
