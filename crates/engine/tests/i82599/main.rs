//! The driver of the 82599 against the model of the card.

mod data;
mod faults;
mod filters;
mod life;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::nic::i82599::model::{self, ModelBar, Spec, Wire};
use engine::nic::i82599::{Card, CardError, Queue, Settings};
use engine::{Link, Packet};

/// Tests run at the same time, and models are found by their numbers.
fn numbers() -> (u32, u32) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = NEXT.fetch_add(2, Ordering::Relaxed);
    (first, first + 1)
}

/// A queue of a card, with a link on either side.
struct Port {
    wire: Arc<Wire>,
    end: usize,
    queue: Queue<ModelBar>,
    /// What is to be sent, and what was received.
    sending: Rc<Link>,
    received: Rc<Link>,
}

impl Port {
    fn open(spec: &str, settings: Settings, ring: u32) -> Result<Self, CardError> {
        let spec: Spec = spec.parse().unwrap();
        let (wire, end) = Wire::of(&spec).unwrap();
        let queue = Queue::open(card(&spec, settings)?, 0, 0, ring)?;
        Ok(Self { wire, end, queue, sending: Rc::default(), received: Rc::default() })
    }

    fn send(&mut self, frame: &[u8]) {
        self.sending.transmit(Packet::from_slice(frame).unwrap());
        self.queue.send(&self.sending);
    }

    /// All that can be received now.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        self.queue.receive(&self.received);
        std::iter::from_fn(|| self.received.receive()).map(|packet| packet.to_vec()).collect()
    }
}

fn card(spec: &Spec, settings: Settings) -> Result<Arc<Card<ModelBar>>, CardError> {
    let (bar, memory) = model::open(spec).unwrap();
    Ok(Arc::new(Card::open(bar, Box::new(memory), settings)?))
}

/// Two cards and a cable. The first sends while the second may still be down: the link needs both.
fn cable(settings: &Settings, ring: u32) -> (Port, Port) {
    let (a, b) = numbers();
    let left = Port::open(&format!("model:{a},cable={b}"), settings.clone(), ring).unwrap();
    let right = Port::open(&format!("model:{b},cable={a}"), settings.clone(), ring).unwrap();
    (left, right)
}

fn promiscuous() -> Settings {
    Settings { promiscuous: true, ..Settings::default() }
}

/// A frame to `to` whose bytes tell its number.
fn frame(to: [u8; 6], length: usize, number: u32) -> Vec<u8> {
    let mut frame = vec![number as u8; length];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    if length >= 18 {
        frame[14..18].copy_from_slice(&number.to_be_bytes());
    }
    frame
}

const SOMEBODY: [u8; 6] = [2, 0, 0, 0, 0, 1];
