//! From the start to the quiet end, and what an app does when a card is lost in between.

use super::*;
use engine::app::{App, Context, Io, Kind};
use engine::nic::i82599::app::{Intel82599, Intel82599Args};
use engine::nic::i82599::registers::*;
use engine::pool;

#[test]
fn a_card_is_set_up_as_the_data_sheet_says() {
    let (left, _right) = cable(&promiscuous(), 128);
    let peek = |register| left.wire.peek(left.end, register);
    assert_eq!(peek(EIMS), 0, "no interrupts");
    assert_ne!(peek(HLREG0) & HLREG0_RX_CRC_STRIP, 0);
    assert_ne!(peek(RDRXCTL) & RDRXCTL_CRC_STRIP, 0, "both places agree on the stripping");
    assert_eq!(
        peek(FCTRL),
        FCTRL_BROADCAST | FCTRL_MULTICAST_PROMISCUOUS | FCTRL_UNICAST_PROMISCUOUS
    );
    assert_eq!(peek(MTQC), 0);
    assert_eq!(peek(RTTDCS) & RTTDCS_ARBITER_DISABLE, 0, "on again after MTQC");
    assert_eq!(peek(SECRXCTRL) & SECRXCTRL_RX_DIS, 0, "the receive path runs again");
    assert_ne!(peek(RXCTRL) & RXCTRL_ENABLE, 0);
    assert_ne!(peek(DMATXCTL) & DMATXCTL_ENABLE, 0);
    let (rx, tx) = (rx_queue(0), tx_queue(0));
    assert_eq!((peek(rx + LEN), peek(tx + LEN)), (128 * 16, 128 * 16));
    assert_eq!(peek(rx + SRRCTL), SRRCTL_2K | SRRCTL_ADVANCED | SRRCTL_DROP);
    assert_eq!(peek(rx + DCA_RXCTRL) & DCA_RXCTRL_RESERVED, 0);
    assert_eq!((peek(rx + TAIL), peek(rx + HEAD)), (127, 0), "one place stays free");
    assert_eq!((peek(rpb(0)), peek(rpb(1))), (512 << 10, 0));
}

fn rpb(n: u32) -> u32 {
    rxpbsize(n)
}

#[test]
fn what_is_stopped_is_quiet_and_gives_all_packets_back() {
    let before = pool::stats().live;
    let (mut left, mut right) = cable(&promiscuous(), 64);
    assert!(!left.wire.is_quiet(0));
    (0..100).for_each(|number| left.send(&frame(SOMEBODY, 60, number)));
    assert_eq!(right.receive().len(), 63);
    let wire = left.wire.clone();
    let counted = left.queue.card().statistics();
    assert_eq!(counted.tx_packets, 100);
    drop((left, right));
    assert!(wire.is_quiet(0) && wire.is_quiet(1));
    assert_eq!(pool::stats().live, before);
    // Nothing that arrives later touches memory.
    wire.poke(0, tx_queue(0) + TAIL, 5);
    wire.poke(1, rx_queue(0) + TAIL, 5);
    assert!(wire.is_quiet(0) && wire.found(0).is_empty() && wire.found(1).is_empty());
}

#[test]
fn packets_in_the_ring_leave_before_the_stop_unless_there_is_no_way_out() {
    let settings = Settings { flow_control: true, ..promiscuous() };
    let before = pool::stats().live;
    let (mut left, mut right) = cable(&settings, 64);
    (0..80).for_each(|number| left.send(&frame(SOMEBODY, 60, number)));
    assert_eq!(right.receive().len(), 63);
    assert_eq!(right.receive().len(), 17);
    left.wire.inject(0, |faults| faults.no_link = true);
    (0..20).for_each(|number| left.send(&frame(SOMEBODY, 60, number)));
    assert_eq!(left.queue.pending(), 20);
    drop(left);
    drop(right);
    assert_eq!(pool::stats().live, before);
}

#[test]
fn a_card_whose_queues_do_not_stop_is_kept_from_memory() {
    let before = pool::stats().live;
    let (left, right) = cable(&promiscuous(), 64);
    let wire = left.wire.clone();
    wire.inject(left.end, |faults| faults.stuck_queues = true);
    drop((left, right));
    assert!(wire.is_quiet(0) && wire.is_quiet(1));
    assert_eq!(pool::stats().live, before);
}

#[test]
fn counters_clear_when_they_are_read_and_the_driver_sums_them_up() {
    let (mut left, right) = cable(&promiscuous(), 64);
    for round in 1..=3 {
        (0..5).for_each(|number| left.send(&frame(SOMEBODY, 1000, number)));
        assert_eq!(left.wire.peek(right.end, GPRC), 5);
        let sum = right.queue.card().statistics();
        assert_eq!((sum.rx_packets, sum.rx_bytes), (5 * round, 5 * 1004 * round));
        assert_eq!((left.wire.peek(right.end, GPRC), left.wire.peek(right.end, GORCL)), (0, 0));
    }
}

fn args(pciaddr: String) -> Intel82599Args {
    toml::from_str(&format!("pciaddr = \"{pciaddr}\"\nring = 64")).unwrap()
}

/// An app and the links at its ports.
struct Running {
    app: Intel82599,
    io: Io,
    input: Rc<Link>,
    output: Rc<Link>,
    now: u64,
}

impl Running {
    fn start(pciaddr: String) -> Self {
        let context = Context { name: "if1".into(), thread: 0 };
        let app = Intel82599::new(args(pciaddr), &context).unwrap();
        let (input, output) = (Rc::new(Link::new()), Rc::new(Link::new()));
        let io = Io::new(vec![Some(input.clone())], vec![Some(output.clone())], 0);
        Self { app, io, input, output, now: 0 }
    }

    /// Lets 100 ms pass, and returns what the operator hears.
    fn tick(&mut self) -> Option<String> {
        self.now += 100_000_000;
        self.io =
            Io::new(vec![Some(self.input.clone())], vec![Some(self.output.clone())], self.now);
        self.app.tick(&self.io);
        self.app.notice()
    }

    fn notices(&mut self, ticks: usize) -> Vec<String> {
        (0..ticks).filter_map(|_| self.tick()).collect()
    }

    fn pass(&mut self, count: u32) {
        (0..count).for_each(|number| {
            self.input.transmit(Packet::from_slice(&frame(SOMEBODY, 60, number)).unwrap())
        });
        self.app.push(&self.io);
        self.app.pull(&self.io);
    }
}

/// Two apps and a cable.
fn apps() -> (Running, Running, Arc<Wire>) {
    let (a, b) = numbers();
    let left = Running::start(format!("model:{a},cable={b}"));
    let right = Running::start(format!("model:{b},cable={a}"));
    let (wire, end) = Wire::of(&format!("model:{a}").parse().unwrap()).unwrap();
    assert_eq!(end, 0);
    (left, right, wire)
}

#[test]
fn a_reset_in_mid_traffic_costs_some_packets_and_a_second() {
    let before = pool::stats().live;
    let (mut left, mut right, wire) = apps();
    left.notices(1);
    right.notices(1);
    left.pass(10);
    right.pass(0);
    assert_eq!(right.output.discard(), 10);
    wire.reset(0);
    left.pass(10);
    let heard = left.notices(1);
    assert!(heard[0].contains("was reset by somebody else"), "{heard:?}");
    left.pass(5);
    let heard = left.notices(11);
    assert_eq!(heard, ["it is back"]);
    right.notices(1);
    left.pass(10);
    right.pass(0);
    assert_eq!(right.output.discard(), 10);
    let mut counters = [0; 12];
    left.app.counters(&mut counters);
    assert_eq!(counters[10..], [5, 1], "dropped meanwhile, opened again");
    drop((left, right));
    assert_eq!(pool::stats().live, before);
    assert!(wire.is_quiet(0) && wire.is_quiet(1));
}

#[test]
fn a_card_that_stops_sending_is_set_up_again() {
    let (mut left, mut right, wire) = apps();
    left.notices(2);
    right.notices(2);
    wire.inject(0, |faults| faults.lost_reports = 1);
    left.pass(3);
    right.pass(0);
    assert_eq!(right.output.discard(), 3);
    let heard = left.notices(25);
    assert!(heard[0].contains("has stopped sending"), "{heard:?}");
    left.notices(11);
    left.pass(3);
    right.pass(0);
    assert_eq!(right.output.discard(), 3);
}

#[test]
fn a_card_that_leaves_the_bus_is_told_and_waited_for() {
    let (mut left, _right, wire) = apps();
    wire.inject(0, |faults| faults.gone = true);
    let heard = left.notices(1);
    assert!(heard[0].contains("has left the bus"), "{heard:?}");
    left.pass(4);
    assert_eq!(left.input.length(), 0);
    assert!(left.notices(11).is_empty());
    wire.inject(0, |faults| faults.gone = false);
    assert_eq!(left.notices(11), ["it is back"]);
}

#[test]
fn changes_of_the_link_are_told_once() {
    let (mut left, _right, wire) = apps();
    let up = left.notices(5);
    assert!(matches!(&up[..], [one] if one.contains("the link is up, 10000 Mbit/s")), "{up:?}");
    wire.inject(1, |faults| faults.no_link = true);
    let down = left.notices(5);
    assert!(matches!(&down[..], [one] if one.contains("the link is down")), "{down:?}");
    let mut report = String::new();
    left.app.report(&mut report).unwrap();
    assert!(
        report.contains("software model, not a network card") && report.contains("link down"),
        "{report}"
    );
}

#[test]
fn arguments_are_checked_before_anything_happens() {
    let check = |text: &str| {
        let args = toml::from_str::<Intel82599Args>(text).map_err(|error| error.to_string())?;
        Intel82599::check(&args).map_err(|error| error.to_string())
    };
    assert_eq!(check("pciaddr = \"model:0\""), Ok(()));
    assert_eq!(check("pciaddr = \"0000:82:00.0\""), Ok(()));
    for (text, problem) in [
        (
            "pciaddr = \"eth0\"",
            "\"eth0\" is not a PCI address such as 0000:01:00.0; `lspci -D` lists them",
        ),
        ("pciaddr = \"model:x\"", "names no model"),
        ("pciaddr = \"model:0\"\nring = 100", "not a power of two"),
        ("pciaddr = \"model:0\"\nrxq = 16", "there are 0 to 15"),
        ("pciaddr = \"model:0\"\nvlan = 4095", "from 1 to 4094"),
        ("pciaddr = \"model:0\"\nmacaddr = \"02:00\"", "not a MAC address"),
        ("pciaddr = \"model:0\"\nmacaddr = \"01:00:5e:00:00:01\"", "address of a group"),
        ("", "missing field `pciaddr`"),
    ] {
        let error = check(text).unwrap_err();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn an_address_can_be_served_by_a_model() {
    let (a, _) = numbers();
    model::alias("0000:82:00.0", format!("model:{a},packets=64").parse().unwrap());
    let mut port = Running::start("0000:82:00.0".into());
    port.pass(1);
    assert_eq!(port.output.discard(), 63);
    let absent =
        Intel82599::new(args("0000:83:00.7".into()), &Context { name: "if2".into(), thread: 0 });
    assert!(absent.err().unwrap().to_string().contains("0000:83:00.7"));
}
