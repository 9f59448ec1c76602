//! Connection management by librdmacm: addresses and routes, requests and answers, with the
//! connection data of rsockets as private data.
//!
//! Events come on a channel of each socket. The number that the application gets is an epoll set in
//! which that channel is, and later the channel of completions: readable whenever there may be
//! something to do.
#![allow(unsafe_code)]

use super::abi::{Api, CmEvent, CmId, ConnParam, EventChannel, PS_TCP, event};
use super::{VerbsEndpoint, check, last_error, readable};
use crate::stream::{Config, conn_data};
use crate::wire::{ConnData, ConnError};
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use rustix::event::epoll;
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use shm::Errno;

/// For the address, and again for the route, in milliseconds.
const TIMEOUT: i32 = 4000;
/// Until the peer answers, and until it has posted a receive: as often as can be said, which means
/// without end.
const RETRIES: u8 = 7;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Address,
    Route,
    Connecting,
    /// Its request is here, its answer is not made.
    Requested,
    Accepting,
    Done,
}

/// The connection manager's side of one socket.
pub struct Connector {
    api: &'static Api,
    channel: *mut EventChannel,
    id: *mut CmId,
    /// The epoll set. Closed by the owner of the number.
    number: RawFd,
    state: State,
    peer: Option<ConnData>,
    endpoint: Option<VerbsEndpoint>,
}

/// What an event says, copied.
struct Heard {
    id: *mut CmId,
    event: i32,
    status: i32,
    data: Option<[u8; ConnData::LEN]>,
}

impl Connector {
    pub fn open(api: &'static Api) -> Result<Self, Errno> {
        // SAFETY: no arguments.
        let channel = unsafe { (api.rdma_create_event_channel)() };
        if channel.is_null() {
            return Err(last_error());
        }
        let mut this = Self {
            api,
            channel,
            id: null_mut(),
            number: -1,
            state: State::Idle,
            peer: None,
            endpoint: None,
        };
        match this.set_up() {
            Ok(()) => Ok(this),
            Err(e) => {
                this.close();
                if this.number >= 0 {
                    // SAFETY: given to nobody.
                    unsafe { rustix::io::close(this.number) };
                }
                Err(e)
            }
        }
    }

    fn set_up(&mut self) -> Result<(), Errno> {
        self.watch()?;
        // SAFETY: our channel, and a place for the id.
        check(unsafe { (self.api.rdma_create_id)(self.channel, &mut self.id, null_mut(), PS_TCP) })
    }

    fn watch(&mut self) -> Result<(), Errno> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // SAFETY: our channel.
        let number = unsafe { (*self.channel).fd };
        // SAFETY: open as long as the channel.
        let channel = unsafe { BorrowedFd::borrow_raw(number) };
        epoll::add(&set, channel, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        self.number = set.into_raw_fd();
        Ok(())
    }

    pub fn number(&self) -> RawFd {
        self.number
    }

    /// # Safety
    /// A complete address.
    pub unsafe fn bind(&mut self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        // SAFETY: by the contract.
        check(unsafe { (self.api.rdma_bind_addr)(self.id, addr) })
    }

    pub fn listen(&mut self, backlog: i32) -> Result<(), Errno> {
        // SAFETY: our id.
        check(unsafe { (self.api.rdma_listen)(self.id, backlog) })
    }

    /// Begins to connect; [`Self::step`] goes on.
    ///
    /// # Safety
    /// A complete address.
    pub unsafe fn connect(&mut self, addr: *const libc::sockaddr) -> Result<(), Errno> {
        // SAFETY: by the contract.
        check(unsafe { (self.api.rdma_resolve_addr)(self.id, null(), addr, TIMEOUT) })?;
        self.state = State::Address;
        Ok(())
    }

    /// The next request, as a socket of its own; None if there is none, or not for us.
    pub fn accept(&mut self) -> Result<Option<Self>, Errno> {
        let Some(heard) = self.hear()? else { return Ok(None) };
        if heard.event != event::CONNECT_REQUEST {
            return Ok(None);
        }
        match self.adopt(&heard) {
            Ok(socket) => Ok(Some(socket)),
            Err(e) => {
                // SAFETY: the id of the request, which nobody else knows.
                unsafe { (self.api.rdma_reject)(heard.id, null(), 0) };
                // SAFETY: as above.
                unsafe { (self.api.rdma_destroy_id)(heard.id) };
                if matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM) {
                    Err(e)
                } else {
                    Ok(None)
                }
            }
        }
    }

    fn adopt(&self, heard: &Heard) -> Result<Self, Errno> {
        let peer = decode(heard.data)?;
        // SAFETY: no arguments.
        let channel = unsafe { (self.api.rdma_create_event_channel)() };
        if channel.is_null() {
            return Err(last_error());
        }
        let (api, state) = (self.api, State::Requested);
        let mut this = Self {
            api,
            channel,
            id: null_mut(),
            number: -1,
            state,
            peer: Some(peer),
            endpoint: None,
        };
        // SAFETY: an id without events under way.
        let moved =
            this.watch().and_then(|()| check(unsafe { (api.rdma_migrate_id)(heard.id, channel) }));
        if let Err(e) = moved {
            this.close();
            return Err(e);
        }
        this.id = heard.id;
        Ok(this)
    }

    /// Makes this end of an accepted connection, and answers. [`Self::step`] goes on.
    pub fn answer(&mut self, config: &Config, inline: u16) -> Result<(), Errno> {
        let data = self.make_endpoint(config, inline)?;
        let mut param = parameters(&data);
        // SAFETY: a request that was not answered; the data is copied by the call.
        check(unsafe { (self.api.rdma_accept)(self.id, &mut param) })?;
        self.state = State::Accepting;
        Ok(())
    }

    fn make_endpoint(
        &mut self,
        config: &Config,
        inline: u16,
    ) -> Result<[u8; ConnData::LEN], Errno> {
        // SAFETY: `step` and `accept` come here with a device only; `close` tears it down before
        // the rest.
        let endpoint = unsafe {
            VerbsEndpoint::create(self.api, self.id, self.channel, self.number, config, inline)
        }?;
        let data = conn_data(config, &crate::provider::Endpoint::memory(&endpoint)).encode();
        self.endpoint = Some(endpoint);
        Ok(data)
    }

    /// Goes on as far as it can without waiting; None if that is not to the end.
    pub fn step(
        &mut self,
        config: &Config,
        inline: u16,
    ) -> Result<Option<(VerbsEndpoint, ConnData)>, Errno> {
        while let Some(heard) = self.hear()? {
            match (self.state, heard.event) {
                (State::Address, event::ADDR_RESOLVED) => {
                    // SAFETY: our id, which has an address.
                    check(unsafe { (self.api.rdma_resolve_route)(self.id, TIMEOUT) })?;
                    self.state = State::Route;
                }
                (State::Route, event::ROUTE_RESOLVED) => {
                    let data = self.make_endpoint(config, inline)?;
                    let mut param = parameters(&data);
                    // SAFETY: our id, which has a queue pair; the data is copied by the call.
                    check(unsafe { (self.api.rdma_connect)(self.id, &mut param) })?;
                    self.state = State::Connecting;
                }
                (State::Connecting, event::ESTABLISHED) => {
                    self.peer = Some(decode(heard.data)?);
                    return self.finish();
                }
                (State::Accepting, event::ESTABLISHED) => return self.finish(),
                (_, other) => return Err(failure(other, heard.status)),
            }
        }
        Ok(None)
    }

    fn finish(&mut self) -> Result<Option<(VerbsEndpoint, ConnData)>, Errno> {
        self.state = State::Done;
        Ok(self.endpoint.take().zip(self.peer))
    }

    /// Takes one event, if there is one.
    fn hear(&self) -> Result<Option<Heard>, Errno> {
        // SAFETY: our channel.
        if !readable(unsafe { (*self.channel).fd }) {
            return Ok(None);
        }
        let mut event: *mut CmEvent = null_mut();
        // SAFETY: our channel, and a place for the event.
        check(unsafe { (self.api.rdma_get_cm_event)(self.channel, &mut event) })?;
        // SAFETY: an event, until it is acknowledged.
        let seen = unsafe { &*event };
        let (ptr, len) =
            (seen.conn.private_data.cast::<u8>(), usize::from(seen.conn.private_data_len));
        let has_data = matches!(seen.event, event::CONNECT_REQUEST | event::ESTABLISHED);
        // SAFETY: as many bytes as it says, which also those of others may be.
        let data = (has_data && !ptr.is_null() && len >= ConnData::LEN)
            .then(|| unsafe { ptr.cast::<[u8; 40]>().read() });
        let heard = Heard { id: seen.id, event: seen.event, status: seen.status, data };
        // SAFETY: not used any more.
        unsafe { (self.api.rdma_ack_cm_event)(event) };
        Ok(Some(heard))
    }

    /// Own address, or the peer's.
    pub fn address(&self, peer: bool) -> libc::sockaddr_storage {
        // SAFETY: our id.
        let id = unsafe { &*self.id };
        if peer { id.dst } else { id.src }
    }

    /// Ends it, but for its number. The endpoint must have been torn down, if it was given away.
    pub fn close(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.tear_down();
        }
        if !self.id.is_null() {
            // SAFETY: ours, without a queue pair any more.
            unsafe { (self.api.rdma_destroy_id)(self.id) };
            self.id = null_mut();
        }
        if !self.channel.is_null() {
            // SAFETY: ours, without an id any more.
            unsafe { (self.api.rdma_destroy_event_channel)(self.channel) };
            self.channel = null_mut();
        }
    }
}

fn parameters(data: &[u8; ConnData::LEN]) -> ConnParam {
    ConnParam {
        private_data: data.as_ptr().cast::<c_void>(),
        private_data_len: ConnData::LEN as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        srq: 0,
        qp_num: 0,
    }
}

fn decode(data: Option<[u8; ConnData::LEN]>) -> Result<ConnData, Errno> {
    ConnData::decode(&data.ok_or(Errno::PROTO)?).map_err(|e| match e {
        ConnError::Version(_) => Errno::OPNOTSUPP,
        ConnError::Damaged => Errno::CONNRESET,
    })
}

/// What an event that was not hoped for means to the application.
fn failure(event: i32, status: i32) -> Errno {
    match (event, -status) {
        (event::REJECTED, _) => Errno::CONNREFUSED,
        (_, libc::ETIMEDOUT) => Errno::TIMEDOUT,
        (event::ADDR_ERROR | event::ROUTE_ERROR | event::UNREACHABLE, _) => Errno::HOSTUNREACH,
        _ => Errno::CONNRESET,
    }
}
