// echo server PORT | echo client PORT CONNECTIONS ROUNDS: a thread for each connection, known bytes.
use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

fn serve(mut stream: TcpStream) {
    let mut block = vec![0; 50_000];
    loop {
        match stream.read(&mut block) {
            Ok(n) if n > 0 => stream.write_all(&block[..n]).expect("an echo"),
            _ => return,
        }
    }
}

fn ask(port: u16, connection: usize, rounds: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    for round in 0..rounds {
        let len = 1 + (round * 7919 + connection * 131) % 40_000;
        let sent: Vec<u8> = (0..len).map(|i| (i * 31 + round * 7 + connection) as u8).collect();
        let mut got = vec![0; len];
        stream.write_all(&sent).expect("a send");
        stream.read_exact(&mut got).expect("an answer");
        assert!(got == sent, "wrong bytes on connection {connection} in round {round}");
    }
}

fn main() {
    let words: Vec<String> = env::args().collect();
    let number = |i: usize| words[i].parse::<usize>().expect("a number");
    let port = number(2) as u16;
    if words[1] == "server" {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
        for stream in listener.incoming().flatten() {
            thread::spawn(|| serve(stream));
        }
    }
    let (connections, rounds) = (number(3), number(4));
    let clients: Vec<_> =
        (0..connections).map(|i| thread::spawn(move || ask(port, i, rounds))).collect();
    clients.into_iter().for_each(|client| client.join().expect("a client"));
    println!("done");
}
