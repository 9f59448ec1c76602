//! Many connections with one request under way on each: one thread and one level-triggered epoll
//! set on either side.

mod channel;
mod client;
mod dialogue;
mod server;

pub use client::run;
pub use dialogue::Dialogue;
pub use server::serve;
