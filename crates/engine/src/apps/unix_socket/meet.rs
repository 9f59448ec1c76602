//! How two ends of a Unix socket find each other, and find each other again.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use crate::app::AppError;
use crate::apps::peer::{Leaving, files};

/// Nanoseconds between tries to connect.
const RETRY: u64 = 200_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    ListenPacket,
    ConnectPacket,
    ListenStream,
    ConnectStream,
    Datagram,
}

impl Role {
    fn kind(self) -> SocketType {
        match self {
            Role::ListenPacket | Role::ConnectPacket => SocketType::SEQPACKET,
            Role::ListenStream | Role::ConnectStream => SocketType::STREAM,
            Role::Datagram => SocketType::DGRAM,
        }
    }
}

/// The end that is there before there is another one.
pub(in crate::apps) struct Meeting {
    role: Role,
    path: SocketAddrUnix,
    /// Peers may hand descriptors over.
    takes_files: bool,
    listener: Option<OwnedFd>,
    /// Where a name of ours is in the file system, to be removed at the end.
    own: Option<PathBuf>,
    next_try: u64,
}

impl Meeting {
    /// Binds what is to be bound. The other end need not be there.
    pub fn new(
        role: Role,
        path: &Path,
        local: Option<&Path>,
        takes_files: bool,
    ) -> Result<Meeting, AppError> {
        let address = address(path)?;
        let mut this =
            Meeting { role, path: address, takes_files, listener: None, own: None, next_try: 0 };
        match role {
            Role::ListenPacket | Role::ListenStream => {
                let socket = this.bind(path)?;
                listen(&socket, 1)
                    .map_err(|e| AppError::os(format!("listen at {}", path.display()), e))?;
                this.listener = Some(socket);
            }
            Role::ConnectPacket | Role::ConnectStream => {}
            Role::Datagram => {
                let local = local.ok_or_else(|| AppError::new("datagrams need a local path"))?;
                this.listener = Some(this.bind(local)?);
            }
        }
        Ok(this)
    }

    fn bind(&mut self, path: &Path) -> Result<OwnedFd, AppError> {
        let failed = |errno: Errno| match errno {
            Errno::ADDRINUSE => AppError::new(format!(
                "{} is in use: another program listens there, or it is not a socket",
                path.display()
            )),
            Errno::NOENT => AppError::new(format!("{}: its folder does not exist", path.display())),
            Errno::ACCESS => {
                AppError::new(format!("{}: no permission to make a socket there", path.display()))
            }
            errno => AppError::os(format!("make the socket {}", path.display()), errno),
        };
        let address = address(path)?;
        let socket = self.socket().map_err(failed)?;
        match bind(&socket, &address) {
            // A name that a killed process left behind is nobody's.
            Err(Errno::ADDRINUSE) if self.is_stale(path, &address) => {
                fs::remove_file(path)
                    .map_err(|e| AppError::os(format!("remove {}", path.display()), e))?;
                bind(&socket, &address).map_err(failed)?;
            }
            other => other.map_err(failed)?,
        }
        self.own = Some(path.to_path_buf());
        Ok(socket)
    }

    fn is_stale(&self, path: &Path, address: &SocketAddrUnix) -> bool {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
        is_socket
            && self.socket().and_then(|probe| connect(probe, address)) == Err(Errno::CONNREFUSED)
    }

    fn socket(&self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, self.role.kind(), flags, None)?;
        if !self.takes_files {
            files::refuse(socket.as_fd());
        }
        Ok(socket)
    }

    /// The other end, if it is there now. Cheap enough for every tick.
    pub fn poll(&mut self, now: u64) -> Option<OwnedFd> {
        if let (Some(listener), true) = (&self.listener, self.role != Role::Datagram) {
            return accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok();
        }
        if now < self.next_try {
            return None;
        }
        self.next_try = now + RETRY;
        let socket = match &self.listener {
            // Bound once, connected to whoever has the name now.
            Some(bound) => bound.as_fd().try_clone_to_owned().ok()?,
            None => self.socket().ok()?,
        };
        connect(&socket, &self.path).ok()?;
        Some(socket)
    }

    /// With datagrams: looks who has the other end's name now. The kernel tells nobody that a peer of
    /// datagrams has gone but who sends to it, and refuses what any other one sends here.
    pub fn follow(&mut self, now: u64) {
        if self.role == Role::Datagram && now >= self.next_try {
            self.next_try = now + RETRY;
            // Of the same one it changes nothing; where nobody has the name all stays as it is.
            let _ = self.listener.as_ref().map(|bound| connect(bound, &self.path));
        }
    }

    /// The peer is gone: another one may be there already.
    pub fn lost(&mut self) {
        if self.role == Role::Datagram {
            self.next_try = 0;
        }
    }

    pub fn stop(&mut self) {
        // Those that were not met yet may have sent descriptors whose close sleeps.
        if let Some(listener) = self.listener.take() {
            Leaving::default().drop(listener);
        }
        if let Some(path) = self.own.take() {
            let _ = fs::remove_file(path);
        }
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, AppError> {
    SocketAddrUnix::new(path).map_err(|_| {
        let too_long = io::Error::from(io::ErrorKind::InvalidInput);
        AppError::os(
            format!("{}: not a path of a socket, which has up to 107 bytes", path.display()),
            too_long,
        )
    })
}
