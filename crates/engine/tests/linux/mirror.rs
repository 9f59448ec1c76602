//! The other host of these tests.

use engine::{App, AppError, Context, Io, Kind, Ports};

/// Answers each datagram, with its data, to its sender: sums stay right, since they only change
/// places.
pub struct Mirror;

impl App for Mirror {
    fn push(&mut self, io: &Io) {
        let (Some(input), Some(output)) = (io.input(0), io.output(0)) else { return };
        while let Some(mut packet) = input.receive() {
            let frame = &packet;
            let (addresses, ports) = match &frame[12..14] {
                [8, 0] if frame[23] == 17 => (26..34, 34..38),
                [0x86, 0xdd] if frame[20] == 17 => (22..54, 54..58),
                _ => continue,
            };
            let half = addresses.len() / 2;
            packet[..12].rotate_left(6);
            packet[addresses].rotate_left(half);
            packet[ports].rotate_left(2);
            output.transmit(packet);
        }
    }
}

impl Kind for Mirror {
    const NAME: &'static str = "Mirror";
    const ABOUT: &'static str = "answers datagrams";
    const INPUTS: Ports = Ports::Named(&["tx"]);
    const OUTPUTS: Ports = Ports::Named(&["rx"]);
    type Args = ();

    fn new((): (), _: &Context) -> Result<Self, AppError> {
        Ok(Self)
    }
}
