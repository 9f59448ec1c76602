//! From conditions on a packet's fields to a program.
//!
//! A condition becomes a graph of tests without circles. What a test has found out is not asked again
//! behind it, so that of many similar conditions only what differs is left; tests of one field are put
//! beside each other, so that it is loaded once; then the tests are laid out so that all jumps lead forwards.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::Instruction;

/// Where IPv4 and IPv6 headers start in an Ethernet frame.
pub const NETWORK: u32 = 14;

/// A number in a packet, most significant byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// So far from the start of the frame, in so many bytes: 1, 2 or 4.
    At(u32, u8),
    /// So far behind the IPv4 header.
    Behind(u32, u8),
    /// The length of the packet.
    Length,
}

/// Bits of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    pub field: Field,
    pub mask: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    Equal,
    Above,
    AtLeast,
}

/// A comparison with a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Test {
    pub value: Value,
    pub operator: Operator,
    pub constant: u32,
}

/// What a packet must fulfil. The left side is asked first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    Always,
    Test(Test),
    Not(Box<Condition>),
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
}

impl Condition {
    pub fn and(self, other: Self) -> Self {
        Self::And(self.into(), other.into())
    }

    pub fn or(self, other: Self) -> Self {
        Self::Or(self.into(), other.into())
    }

    pub fn not(self) -> Self {
        Self::Not(self.into())
    }
}

/// Where a test leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Next {
    End(bool),
    Node(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Node {
    test: Test,
    yes: Next,
    no: Next,
}

/// What is known of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Known {
    low: u32,
    high: u32,
    not: Vec<u32>,
}

/// By the number of the value.
type Facts = Vec<(usize, Known)>;

/// Nodes of a graph in which facts are followed. It is done by calls in calls, and what is longer was made
/// by a program, which may as well leave out what it knows.
const MOST: usize = 1000;
/// As many values have a bit.
const VALUES: usize = 128;

#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
    known: HashMap<Node, usize>,
    values: Vec<Value>,
    /// For each node the values that it and those behind it test.
    behind: Vec<u128>,
    /// Nodes of another graph under facts.
    made: HashMap<(usize, Facts), Next>,
}

/// The program of a condition; None if no packet can fulfil it.
pub fn program(condition: &Condition) -> Option<Vec<Instruction>> {
    let mut graph = Graph::default();
    let start = graph.add_condition(condition, Next::End(true), Next::End(false));
    if graph.nodes.len() <= MOST && graph.values.len() <= VALUES {
        let mut short = Graph::default();
        if let Some(start) = short.under(&graph, start, &Vec::new()) {
            let (grouped, first) = short.grouped(start);
            // Chains that end in the same tests do not share them once each is sorted by itself: a filter of 1000
            // instructions became one of 6000, which is more than a program may have.
            let programs = [(&short, start), (&grouped, first)]
                .map(|(graph, at)| Layout::new(graph, at).program());
            return programs.into_iter().flatten().min_by_key(Vec::len);
        }
    }
    Layout::new(&graph, start).program()
}

impl Graph {
    fn add_condition(&mut self, condition: &Condition, yes: Next, no: Next) -> Next {
        match condition {
            Condition::Always => yes,
            Condition::Test(test) => self.add(Node { test: *test, yes, no }),
            Condition::Not(inner) => self.add_condition(inner, no, yes),
            Condition::And(left, right) => {
                let right = self.add_condition(right, yes, no);
                self.add_condition(left, right, no)
            }
            Condition::Or(left, right) => {
                let right = self.add_condition(right, yes, no);
                self.add_condition(left, yes, right)
            }
        }
    }

    fn add(&mut self, node: Node) -> Next {
        if let Some(&known) = self.known.get(&node) {
            return Next::Node(known);
        }
        let value = self.number_of(node.test.value);
        let behind = self.values_behind(node.yes) | self.values_behind(node.no);
        self.behind.push(behind | 1u128.checked_shl(value as u32).unwrap_or(0));
        self.nodes.push(node);
        self.known.insert(node, self.nodes.len() - 1);
        Next::Node(self.nodes.len() - 1)
    }

    fn number_of(&mut self, value: Value) -> usize {
        let known = self.values.iter().position(|other| *other == value);
        known.unwrap_or_else(|| {
            self.values.push(value);
            self.values.len() - 1
        })
    }

    fn values_behind(&self, next: Next) -> u128 {
        if let Next::Node(node) = next { self.behind[node] } else { 0 }
    }

    /// Adds a part of another graph as it is under facts. None if it became too large.
    fn under(&mut self, other: &Graph, next: Next, facts: &Facts) -> Option<Next> {
        let Next::Node(number) = next else { return Some(next) };
        let matters = |(value, _): &&(usize, Known)| other.behind[number] >> *value & 1 != 0;
        let facts: Facts = facts.iter().filter(matters).cloned().collect();
        let key = (number, facts);
        if let Some(made) = self.made.get(&key) {
            return Some(*made);
        }
        if self.made.len() > 4 * MOST {
            return None;
        }
        let Node { test, yes, no } = other.nodes[number];
        let value = other.values.iter().position(|value| *value == test.value)?;
        let before = key.1.iter().find(|(other, _)| *other == value).map(|(_, known)| known);
        let nothing = Known { low: 0, high: u32::MAX, not: Vec::new() };
        let known = before.cloned().unwrap_or(nothing);
        // A frame that ends before the field is rejected, so that it is loaded once even if it does not matter.
        let is_there = before.is_some() || test.value.field == Field::Length;
        let made = match known.answer(&test) {
            Some(answer) => {
                let next = self.under(other, if answer { yes } else { no }, &key.1)?;
                if is_there { next } else { self.add(Node { test, yes: next, no: next }) }
            }
            None => {
                let after = |answer| {
                    let mut facts = key.1.clone();
                    facts.retain(|(other, _)| *other != value);
                    facts.push((value, known.with(&test, answer)));
                    facts.sort_unstable_by_key(|(value, _)| *value);
                    facts
                };
                let yes = self.under(other, yes, &after(true))?;
                let no = self.under(other, no, &after(false))?;
                if yes == no && is_there { yes } else { self.add(Node { test, yes, no }) }
            }
        };
        self.made.insert(key, made);
        Some(made)
    }

    /// The same with comparisons of one value beside each other, where they are alternatives.
    fn grouped(&self, start: Next) -> (Self, Next) {
        let mut chains = BTreeMap::new();
        let mut open = vec![start];
        while let Some(next) = open.pop() {
            if let Next::Node(head) = next
                && let Entry::Vacant(place) = chains.entry(head)
            {
                let (_, last) = place.insert(self.alternatives(head));
                open.extend([self.nodes[head].yes, *last]);
            }
        }
        let mut made = HashMap::new();
        let mut graph = Self::default();
        let found = |made: &HashMap<usize, Next>, next| match next {
            Next::Node(number) => made[&number],
            end => end,
        };
        // What a test leads to has a smaller number than the test.
        for (head, (mut tests, last)) in chains {
            group(&mut tests);
            let yes = found(&made, self.nodes[head].yes);
            let chain = |no, test: &Test| graph.add(Node { test: *test, yes, no });
            let first = tests.iter().rev().fold(found(&made, last), chain);
            made.insert(head, first);
        }
        let start = found(&made, start);
        (graph, start)
    }

    /// Comparisons from a node on of which each is asked if the one before it fails and all lead to the same if they succeed,
    /// and where the last one leads if it fails.
    fn alternatives(&self, head: usize) -> (Vec<Test>, Next) {
        let Node { test, yes, mut no } = self.nodes[head];
        let mut tests = vec![test];
        while test.operator == Operator::Equal
            && let Next::Node(next) = no
            && let node = &self.nodes[next]
            && node.test.operator == Operator::Equal
            && node.yes == yes
        {
            tests.push(node.test);
            no = node.no;
        }
        (tests, no)
    }
}

/// Puts alternatives with one field, and of them those with one value, beside each other. Those up to the first with the last
/// field stay where they are: a frame that ends before a field is rejected there, unless one in front of it is fulfilled.
fn group(tests: &mut [Test]) {
    let (mut fields, mut values, mut fixed) = (Vec::new(), Vec::new(), 0);
    for (at, Test { value, .. }) in tests.iter().enumerate() {
        if !fields.contains(&value.field) {
            fields.push(value.field);
            fixed = at + 1;
        }
        if !values.contains(value) {
            values.push(*value);
        }
    }
    let place = |test: &Test| {
        let field = fields.iter().position(|field| *field == test.value.field);
        // The last of them is in the register.
        (field.map(|at| fields.len() - at), values.iter().position(|value| *value == test.value))
    };
    tests[fixed..].sort_by_key(place);
}

impl Known {
    fn answer(&self, test: &Test) -> Option<bool> {
        let constant = test.constant;
        match test.operator {
            Operator::Equal if self.low == constant && self.high == constant => Some(true),
            Operator::Equal => {
                let possible = (self.low..=self.high).contains(&constant);
                (!possible || self.not.contains(&constant)).then_some(false)
            }
            Operator::Above if self.low > constant => Some(true),
            Operator::Above => (self.high <= constant).then_some(false),
            Operator::AtLeast if self.low >= constant => Some(true),
            Operator::AtLeast => (self.high < constant).then_some(false),
        }
    }

    /// After a test that was not decided before.
    fn with(&self, test: &Test, answer: bool) -> Self {
        let (mut known, constant) = (self.clone(), test.constant);
        match (test.operator, answer) {
            (Operator::Equal, true) => {
                known = Self { low: constant, high: constant, not: Vec::new() };
            }
            (Operator::Equal, false) => {
                known.not.push(constant);
                known.not.sort_unstable();
            }
            (Operator::Above, true) => known.low = known.low.max(constant.saturating_add(1)),
            (Operator::Above, false) => known.high = known.high.min(constant),
            (Operator::AtLeast, true) => known.low = known.low.max(constant),
            (Operator::AtLeast, false) => known.high = known.high.min(constant.saturating_sub(1)),
        }
        known
    }
}

/// What the registers hold.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Registers {
    a: Option<Value>,
    /// The length of the IPv4 header.
    x: bool,
}

/// Tests in the order in which they stand in the program.
struct Layout<'a> {
    graph: &'a Graph,
    start: Next,
    order: Vec<usize>,
    /// Conditional jumps that are too far for their byte, of each node.
    far: HashSet<(usize, bool)>,
}

/// What a filter says of a packet that it accepts: how much of it is wanted.
const ALL: u32 = 262_144;

const fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

impl<'a> Layout<'a> {
    fn new(graph: &'a Graph, start: Next) -> Self {
        let mut order = Vec::new();
        let mut seen = vec![false; graph.nodes.len()];
        // What is left behind last comes first: a test, then the way on if it fails.
        let mut path: Vec<(usize, u8)> = Vec::new();
        let mut enter = |next: Next, path: &mut Vec<(usize, u8)>| {
            if let Next::Node(node) = next
                && !std::mem::replace(&mut seen[node], true)
            {
                path.push((node, 0));
            }
        };
        enter(start, &mut path);
        while let Some((node, step)) = path.last_mut() {
            let (node, now) = (*node, *step);
            *step += 1;
            match now {
                0 => enter(graph.nodes[node].yes, &mut path),
                1 => enter(graph.nodes[node].no, &mut path),
                _ => {
                    order.push(node);
                    path.pop();
                }
            }
        }
        order.reverse();
        Self { graph, start, order, far: HashSet::new() }
    }

    fn program(mut self) -> Option<Vec<Instruction>> {
        let ends = |&node: &usize| [self.graph.nodes[node].yes, self.graph.nodes[node].no];
        let mut ends = self.order.iter().flat_map(ends).chain([self.start]);
        if !ends.any(|end| end == Next::End(true)) {
            return None;
        }
        loop {
            let before = self.far.len();
            let program = self.write();
            if self.far.len() == before {
                return Some(program);
            }
        }
    }

    /// With the jumps that are known to be far; others that turn out to be are noted.
    fn write(&mut self) -> Vec<Instruction> {
        if let Next::End(accept) = self.start {
            return vec![plain(0x06, if accept { ALL } else { 0 })];
        }
        let mut text: Vec<Instruction> = Vec::new();
        let mut places = HashMap::new();
        let mut registers: HashMap<usize, Registers> = HashMap::new();
        // Instructions whose distance is still open: which of the two, or the constant.
        let mut open: Vec<(usize, usize, bool, Next)> = Vec::new();
        for &number in &self.order {
            places.insert(Next::Node(number), text.len());
            let Node { test, yes, no } = self.graph.nodes[number];
            let nothing = Registers { a: None, x: false };
            let mut now = registers.get(&number).copied().unwrap_or(nothing);
            let (code, k, swapped) = test.instructions(&mut text, &mut now);
            let (yes, no) = if swapped { (no, yes) } else { (yes, no) };
            for next in [yes, no] {
                let Next::Node(next) = next else { continue };
                let meets = registers.entry(next).or_insert(now);
                meets.a = meets.a.filter(|a| Some(*a) == now.a);
                meets.x &= now.x;
            }
            let at = text.len();
            text.push(Instruction { code, jt: 0, jf: 0, k });
            for (side, next) in [(true, yes), (false, no)] {
                if !self.far.contains(&(number, side)) {
                    open.push((at, number, side, next));
                    continue;
                }
                let distance = (text.len() - at - 1) as u8;
                let jump = &mut text[at];
                if side {
                    jump.jt = distance
                } else {
                    jump.jf = distance
                }
                // Filled in below, with what follows it.
                open.push((text.len(), number, side, next));
                text.push(plain(0x05, 0));
            }
        }
        places.insert(Next::End(true), text.len());
        text.push(plain(0x06, ALL));
        places.insert(Next::End(false), text.len());
        text.push(plain(0x06, 0));
        for (at, number, side, next) in open {
            let distance = places[&next] - at - 1;
            let jump = &mut text[at];
            if jump.code == 0x05 {
                jump.k = distance as u32;
            } else if let Ok(distance) = u8::try_from(distance) {
                if side { jump.jt = distance } else { jump.jf = distance }
            } else {
                self.far.insert((number, side));
            }
        }
        text
    }
}

impl Test {
    /// Puts the value into A, and returns the jump with its constant, and whether it asks for the
    /// opposite.
    fn instructions(&self, text: &mut Vec<Instruction>, now: &mut Registers) -> (u16, u32, bool) {
        let Value { field, mask } = self.value;
        let whole = Value { field, mask: u32::MAX };
        let asks_bits = mask != u32::MAX && self.operator == Operator::Equal && self.constant == 0;
        let wanted = if asks_bits { whole } else { self.value };
        if now.a != Some(wanted) {
            if now.a != Some(whole) {
                field.load(text, now);
            }
            if wanted.mask != u32::MAX {
                text.push(plain(0x54, mask));
            }
            now.a = Some(wanted);
        }
        match self.operator {
            Operator::Equal if asks_bits => (0x45, mask, true),
            Operator::Equal => (0x15, self.constant, false),
            Operator::Above => (0x25, self.constant, false),
            Operator::AtLeast => (0x35, self.constant, false),
        }
    }
}

impl Field {
    fn load(self, text: &mut Vec<Instruction>, now: &mut Registers) {
        let size = |bytes: u8| match bytes {
            1 => 0x10,
            2 => 0x08,
            _ => 0x00,
        };
        match self {
            Self::At(place, bytes) => text.push(plain(0x20 | size(bytes), place)),
            Self::Behind(place, bytes) => {
                if !now.x {
                    text.push(plain(0xb1, NETWORK));
                    now.x = true;
                }
                text.push(plain(0x40 | size(bytes), NETWORK.saturating_add(place)));
            }
            Self::Length => text.push(plain(0x80, 0)),
        }
    }
}
