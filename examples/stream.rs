//! A stream of rsockets and its echo, as with `std::net`.

use std::io::{Read, Write};
use std::net::Shutdown;

use shortwire_rsocket::net::{RsocketListener, RsocketStream};

fn main() -> std::io::Result<()> {
    let listener = RsocketListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        stream.write_all(&text)
    });

    let mut stream = RsocketStream::connect(address)?;
    stream.write_all(b"there and back")?;
    stream.shutdown(Shutdown::Write)?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    println!("{text}");
    echo.join().expect("the other end")
}
