//! The calls that all devices have.
#![allow(unsafe_code)]

use super::*;

impl Device for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn chid(&self) -> u16 {
        match self.provider() {
            Some(Provider::Software) => crate::VERBS_SOFTWARE_CHID,
            _ => crate::VERBS_CHID,
        }
    }

    fn gid(&self) -> Gid {
        self.own.gid()
    }

    fn max_dmbs(&self) -> u32 {
        self.own.max_dmbs()
    }

    fn query_remote_gid(&self, gid: Gid) -> bool {
        self.own.query_remote_gid(gid)
    }

    fn set_max_dmbs(&self, max_dmbs: u32) {
        self.own.set_max_dmbs(max_dmbs.min(BUFFERS as u32));
    }

    fn memory(&self) -> u64 {
        self.own.memory()
    }

    fn admit(&self, gid: Gid) {
        self.own.admit(gid);
    }

    /// The group's first buffer makes its link.
    fn register_dmb(&self, group: u32, peer: Gid, mut len: u32) -> Result<Dmb, RegisterError> {
        loop {
            match self.register(group, peer, len) {
                Err(RegisterError::NoMemory) if len > LEAST => len /= 2,
                done => return done,
            }
        }
    }

    /// Its [`Place`], and at first contact our [`End`] of the link.
    fn describe_dmb(&self, token: u64, first: bool) -> Lent {
        let group = || self.with(|t| t.own(token).map(|own| own.group)).flatten();
        let end = if first { group().and_then(|group| self.end(group)) } else { None };
        Lent {
            told: self.place(token).and_then(|place| place.tell(end)).unwrap_or_default(),
            fd: None,
        }
    }

    fn release_dmb(&self, token: u64, used: u32) -> bool {
        self.own.release_dmb(token, used)
    }

    fn attach_dmb(
        &self,
        peer: Peer,
        token: u64,
        len: u32,
        told: &Told,
        _: Option<RawFd>,
    ) -> Result<Reach, AttachError> {
        let (place, end) = Place::told(told).ok_or(AttachError::BadShare)?;
        if let Some(end) = end.filter(|_| peer.first) {
            self.connect(peer.group, end, peer.pid).map_err(AttachError::Os)?;
            // A peer that has attached has connected its end before. A link that leads nowhere
            // shall not cost more than the upgrade.
            if peer.has_attached {
                self.probe(peer.group).map_err(AttachError::Os)?;
            }
        } else if let Some(link) = self.number_of(peer.group) {
            // A peer names further buffers once it has attached the first over this link, also if the
            // connection of that one has not looked since. What a fork has to tell of a later
            // connection would be lost until then, and its peer would go on with a ring that nobody
            // reads.
            self.meet(link);
        }
        self.reach(peer.group, peer.gid, token, len, place).map(Reach::Linked)
    }

    fn detach_dmb(&self, owner: Gid, token: u64) -> bool {
        let detached = self.with(|t| {
            let Some(a) = t.attached(token).filter(|a| a.owner == owner) else { return false };
            a.refs = a.refs.saturating_sub(1);
            t.attached.take_if(
                |a| a.token == token && a.refs == 0,
                |a| _ = self.at(a.remote.link, |inner| inner.drop_image(a.remote.words)),
            );
            true
        });
        detached.unwrap_or(false)
    }

    fn unregister_dmb(&self, token: u64) -> bool {
        self.own.unregister_dmb(token)
    }

    fn move_data(
        &self,
        token: u64,
        offset: u32,
        data: *const u8,
        len: u32,
        signal: bool,
    ) -> Result<(), MoveError> {
        let remote = self.target(token).ok_or(MoveError::UnknownToken)?;
        if u64::from(offset) + u64::from(len) > u64::from(remote.len) {
            return Err(MoveError::OutOfBounds);
        }
        let mut at = 0;
        while at < len as usize {
            let n = (len as usize - at).min(STAGE);
            let here = piece(data.wrapping_add(at) as u64, n);
            let there = piece(remote.place.addr + u64::from(offset) + at as u64, n);
            // SAFETY: `data` is readable for `len` bytes by the contract of the trait.
            unsafe { self.write(remote.link, remote.place.rkey, &[here], &[there]) }
                .map_err(MoveError::Os)?;
            at += n;
        }
        if signal {
            self.signal_event(token);
        }
        Ok(())
    }

    fn signal_event(&self, token: u64) {
        let Some(remote) = self.target(token) else { return };
        self.at(remote.link, |inner| {
            let Some(key) = inner.peer.map(|peer| peer.signals) else { return };
            let mut count = [0; 8];
            if inner.read(key, remote.place.signal, &mut count).is_ok() {
                let next = u64::from_ne_bytes(count).wrapping_add(1).to_ne_bytes();
                let (here, there) = (piece(next.as_ptr() as u64, 8), piece(remote.place.signal, 8));
                // SAFETY: a local. A peer that is gone hears nothing.
                let _ = unsafe { inner.write(key, &[here], &[there]) };
            }
        });
    }

    fn signals(&self, token: u64) -> Option<u32> {
        let word = self.with(|t| t.own(token).map(|own| own.signal.cast::<AtomicU64>()))??;
        // SAFETY: a word of the link's segment, readable for good; the peer alone writes it.
        Some(unsafe { &*word }.load(Ordering::Acquire) as u32)
    }

    /// A request of its link has failed.
    fn is_over(&self, group: u32) -> bool {
        self.is_broken(group)
    }

    /// Ends its link, too.
    fn drop_group(&self, group: u32) {
        let ended = self.number_of(group).and_then(|link| self.take(link));
        self.with(|t| {
            t.own.take_if(|own| own.group == group, |own| own.memory.end());
            t.attached.take_if(|a| a.group == group, drop);
            if let Some(inner) = ended {
                t.retired.add(inner.end());
            }
        });
        self.own.drop_group(group);
    }

    /// Objects of the library are the parent's: the child opens the device anew.
    fn after_fork_child(&self) {
        self.own.after_fork_child();
        // SAFETY: the child of a fork has one thread, which is here.
        unsafe { self.tables.forget() };
        for slot in &self.links {
            slot.number.store(0, Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { slot.link.forget() };
        }
        self.provider.store(0, Ordering::Relaxed);
    }
}
