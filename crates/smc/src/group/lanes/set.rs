//! The lanes of one link group, and the channel of first contact that is kept beside them.
#![allow(unsafe_code)]

use super::*;
use alloc::vec::Vec;

/// Of a link group.
pub(in crate::group) struct Lanes {
    /// The channel of first contact.
    pub(super) kept: i32,
    pub(super) fronts: Fronts,
    pub(super) sessions: u32,
    /// When a handshake in it last succeeded, in handshakes.
    pub(super) stamp: u64,
    pub(super) lanes: Box<[Lane]>,
    /// Where its clients' connections led, the latest first.
    pub(super) addresses: Addresses,
    /// Bells that came and were not fetched yet.
    pub(super) came: Vec<bells::Came>,
    /// One end knows the other by its port alone (`meet::port`), which each connection has to show
    /// anew, by its name.
    pub(super) only_bells: bool,
}

impl Lanes {
    /// Whether the peer is still the process, and the user, of first contact.
    pub(super) fn is_alive(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: the byte is ours.
        let r =
            unsafe { sys::recv(self.kept, &raw mut byte, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        r > 0 || r == -(libc::EAGAIN as isize)
    }

    /// Whether it fits, and what goes with it has gone.
    pub(super) fn say(&mut self, at: usize, message: &[u8], pass: Option<i32>) -> bool {
        if message.len() > MOST {
            return false;
        }
        if let Some(fd) = pass {
            let session = self.lanes[at].letters.session().to_ne_bytes();
            let mut label = [at as u8; LABEL];
            label[..4].copy_from_slice(&session);
            if !channel::send(self.kept, &label, Some(fd)) {
                return false;
            }
        }
        self.fronts.write(at, message);
        let mut letters = self.lanes[at].letters;
        letters.say(self.fronts.outbox(at), message.len(), pass.is_some());
        self.lanes[at].letters = letters;
        true
    }

    /// The letter that is there, and whether something came with it.
    pub(super) fn look(
        &self,
        at: usize,
        out: &mut [u8; channel::MAX],
    ) -> Result<(usize, bool), Silence> {
        match self.lanes[at].letters.look(self.fronts.inbox(at)) {
            Look::Nothing => Err(Silence::Nothing),
            Look::Closed | Look::Letter { len: 0, .. } => Err(Silence::HungUp),
            Look::Letter { len, .. } if len > MOST => Err(Silence::Unusable),
            Look::Letter { len, marked } => {
                self.fronts.read(at, &mut out[..len]);
                Ok((len, marked))
            }
        }
    }

    /// Sends a bell; false if the channel takes none now.
    pub(in crate::group) fn send(&self, label: &[u8], bell: i32) -> bool {
        channel::send(self.kept, label, Some(bell))
    }

    /// What came over the channel for this lane. What came for others is kept for them.
    pub(super) fn fetch(&mut self, at: usize, of: Cred) -> Option<i32> {
        self.take_all_in(of);
        self.lanes[at].passed.take()
    }

    /// The end of a bell that came over the channel, parked.
    pub(in crate::group) fn came(&mut self, label: bells::Label, of: Cred) -> Option<i32> {
        self.take_all_in(of);
        let at = self.came.iter().position(|bell| bell.label == label)?;
        Some(self.came.swap_remove(at).fd)
    }

    /// What the peer has not read of the channel, in bytes of the kernel's memory.
    pub(in crate::group) fn unread(&self) -> i32 {
        sys::ioctl_int(self.kept, libc::TIOCOUTQ).unwrap_or(i32::MAX)
    }

    /// Takes what is on the channel, for lanes and for waits. A peer that sends all the time gets
    /// no further than this.
    pub(super) fn take_all_in(&mut self, of: Cred) {
        const AT_ONCE: usize = 2 * LANES;
        let is_room = if bells::is_trusted(of) {
            hidden::room_for_bells
        } else {
            hidden::room_for_bells_of_strangers
        };
        let mut raw = [0u8; channel::MAX];
        for _ in 0..AT_ONCE {
            let Ok((len, came)) = channel::recv(self.kept, &mut raw) else { return };
            let Some(fd) = came else { continue };
            if let Some(label) = bells::Label::of(&raw[..len]) {
                if is_room() {
                    bells::keep(&mut self.came, label, hidden::park(fd));
                } else {
                    sys::close(fd);
                }
                continue;
            }
            let session = u32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]);
            match self.lanes.get_mut(usize::from(raw[4])) {
                Some(lane)
                    if len == LABEL
                        && lane.letters.session() == session
                        && lane.passed.is_none() =>
                {
                    lane.passed = Some(fd);
                }
                _ => _ = sys::close(fd),
            }
        }
    }

    pub(super) fn leave(&mut self, at: usize) {
        let Lane { mut letters, owner, .. } = self.lanes[at];
        letters.close(self.fronts.outbox(at));
        self.lanes[at].drop_passed();
        // SAFETY: who leaves a lane has it: a slot of the table, which is never unmapped.
        let doubtful = unsafe { owner.as_ref() }.map_or(0, Conn::doubtful_token);
        self.lanes[at] = Lane { letters, doubtful, ..Lane::FREE };
    }

    /// Takes back the offer among these lanes that is out longest: connections that are opened and
    /// not used yet must not keep all others from being offered.
    pub(super) fn take_back_one(&mut self, within: Range<usize>) -> Option<usize> {
        let is_out = |at: &usize| {
            // SAFETY: null, or a slot of the table, which is never unmapped.
            let owner = unsafe { self.lanes[*at].owner.as_ref() };
            let waits = owner.is_some_and(|conn| {
                conn.upgrade.meeting() == Meeting::Seeking(Seeking::Lane(Way::Offers))
            });
            waits && self.lanes[*at].letters.look(self.fronts.inbox(*at)) == Look::Nothing
        };
        let at = within.filter(is_out).min_by_key(|at| self.lanes[*at].letters.session())?;
        self.fronts.announce(at, 0);
        self.leave(at);
        Some(at)
    }

    /// The lane that was left with doubts about the buffer with this token, and how far the
    /// conversation there was.
    pub(in crate::group) fn left_in_doubt(&self, token: u64) -> Option<Doubt> {
        let at = self.lanes.iter().position(|lane| lane.doubtful == token)?;
        Some(Doubt { at, letters: self.lanes[at].letters })
    }

    /// Whether the peer is done with that lane, so that it will not attach the buffer if it has not
    /// by now.
    pub(in crate::group) fn is_over(&self, doubt: &Doubt) -> bool {
        doubt.letters.is_over(self.fronts.inbox(doubt.at))
    }

    /// There are no doubts about the buffer any more: its lane may serve others.
    pub(in crate::group) fn resolve(&mut self, token: u64) {
        self.lanes
            .iter_mut()
            .filter(|lane| lane.doubtful == token)
            .for_each(|lane| lane.doubtful = 0);
    }

    pub(super) fn hang_up(&mut self) {
        // Words are left as they are: another thread may be about to attach what was named to it,
        // and an end of the conversation would say that it will not. But nobody is to look for what
        // was announced.
        (0..LANES).for_each(|at| self.fronts.announce(at, 0));
        self.lanes.iter_mut().for_each(Lane::drop_passed);
        bells::drop_all(&mut self.came);
        // Other processes may have copies of the descriptor.
        sys::shutdown(self.kept, libc::SHUT_RDWR);
        hidden::close(self.kept);
    }
}
