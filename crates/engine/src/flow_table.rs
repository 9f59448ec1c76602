//! What is remembered of flows: a hash table that takes its memory once, and lists of its entries
//! by the time when they were last of use.
//!
//! The hash has a random key, so that nobody can choose flows that collide. Nothing is allocated
//! after [`FlowTable::new`]; a table that is full takes nothing new until something is removed.

use rustix::rand::{GetRandomFlags, getrandom};

/// What a flow is known by, as the user of the table arranges it.
pub(crate) type Key = [u8; 40];

const NONE: u32 = u32::MAX;

struct Entry<V> {
    key: Key,
    value: V,
    /// The next one of the bucket, or of the free entries.
    next: u32,
    /// Neighbours in the list of an age.
    older: u32,
    younger: u32,
    age: u32,
    time: u64,
}

#[derive(Clone, Copy)]
struct List {
    oldest: u32,
    youngest: u32,
}

/// Entries have one of `AGES` ages, each of which is a list in the order of time: users give flows
/// that live equally long the same age.
pub(crate) struct FlowTable<V, const AGES: usize> {
    buckets: Box<[u32]>,
    entries: Box<[Entry<V>]>,
    ages: [List; AGES],
    free: u32,
    length: usize,
    seed: [u64; 2],
}

impl<V: Default, const AGES: usize> FlowTable<V, AGES> {
    /// A table for `capacity` flows, 1 to 2^30.
    pub(crate) fn new(capacity: usize) -> Self {
        let mut seed = [0x243f_6a88_85a3_08d3u64, 0x1319_8a2e_0370_7344];
        for word in &mut seed {
            let mut bytes = [0; 8];
            // Never refused once the system is up; before, the constants are what is left.
            if getrandom(&mut bytes, GetRandomFlags::empty()) == Ok(8) {
                *word = u64::from_ne_bytes(bytes);
            }
        }
        seed[1] |= 1;
        let entry = |number: usize| Entry {
            key: [0; 40],
            value: V::default(),
            next: if number + 1 < capacity { number as u32 + 1 } else { NONE },
            older: NONE,
            younger: NONE,
            age: 0,
            time: 0,
        };
        Self {
            buckets: vec![NONE; capacity.next_power_of_two()].into(),
            entries: (0..capacity).map(entry).collect(),
            ages: [List { oldest: NONE, youngest: NONE }; AGES],
            free: if capacity == 0 { NONE } else { 0 },
            length: 0,
            seed,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == NONE
    }

    #[inline]
    fn bucket(&self, key: &Key) -> usize {
        let mut hash = self.seed[0];
        let (words, _) = key.as_chunks::<8>();
        for word in words {
            let product = u128::from(hash ^ u64::from_ne_bytes(*word)) * u128::from(self.seed[1]);
            hash = (product as u64) ^ (product >> 64) as u64;
        }
        hash as usize & (self.buckets.len() - 1)
    }

    /// The place of a flow. It stays until the flow is removed.
    #[inline]
    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        let mut at = self.buckets[self.bucket(key)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.key == *key {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    /// Adds a flow that is not in the table; None if it is full.
    pub(crate) fn insert(&mut self, key: Key, value: V, age: usize, now: u64) -> Option<u32> {
        let at = self.free;
        let entry = self.entries.get_mut(at as usize)?;
        self.free = entry.next;
        (entry.key, entry.value) = (key, value);
        let bucket = self.bucket(&key);
        self.entries[at as usize].next = self.buckets[bucket];
        self.buckets[bucket] = at;
        self.length += 1;
        self.append(at, age, now);
        Some(at)
    }

    /// The flow was of use now, and is of this age from now on.
    #[inline]
    pub(crate) fn touch(&mut self, at: u32, age: usize, now: u64) {
        self.detach(at);
        self.append(at, age, now);
    }

    /// Removes a flow and returns what was remembered of it.
    pub(crate) fn remove(&mut self, at: u32) -> V {
        self.detach(at);
        let bucket = self.bucket(&self.entries[at as usize].key);
        let next = self.entries[at as usize].next;
        let mut before = self.buckets[bucket];
        if before == at {
            self.buckets[bucket] = next;
        } else {
            while self.entries[before as usize].next != at {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
        }
        self.entries[at as usize].next = self.free;
        self.free = at;
        self.length -= 1;
        std::mem::take(&mut self.entries[at as usize].value)
    }

    /// The flow of an age that was not of use for longest, and when it was.
    #[inline]
    pub(crate) fn oldest(&self, age: usize) -> Option<(u32, u64)> {
        let at = self.ages[age].oldest;
        Some((at, self.entries.get(at as usize)?.time))
    }

    /// The flows of an age, the one that was not of use for longest first.
    pub(crate) fn of_age(&self, age: usize) -> impl Iterator<Item = u32> {
        let known = |at: u32| (at != NONE).then_some(at);
        std::iter::successors(known(self.ages[age].oldest), move |at| {
            known(self.entries[*at as usize].younger)
        })
    }

    /// The age that the flow has.
    #[inline]
    pub(crate) fn age(&self, at: u32) -> usize {
        self.entries[at as usize].age as usize
    }

    /// What it is known by.
    #[inline]
    pub(crate) fn key(&self, at: u32) -> &Key {
        &self.entries[at as usize].key
    }

    #[inline]
    pub(crate) fn value(&self, at: u32) -> &V {
        &self.entries[at as usize].value
    }

    #[inline]
    pub(crate) fn value_mut(&mut self, at: u32) -> &mut V {
        &mut self.entries[at as usize].value
    }

    #[inline]
    fn append(&mut self, at: u32, age: usize, now: u64) {
        let list = &mut self.ages[age];
        let older = std::mem::replace(&mut list.youngest, at);
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.younger = at,
            None => list.oldest = at,
        }
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.younger, entry.age, entry.time) = (older, NONE, age as u32, now);
    }

    #[inline]
    fn detach(&mut self, at: u32) {
        let Entry { older, younger, age, .. } = self.entries[at as usize];
        let list = &mut self.ages[age as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.younger = younger,
            None => list.oldest = younger,
        }
        match self.entries.get_mut(younger as usize) {
            Some(entry) => entry.older = older,
            None => list.youngest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec((0u8..4, 0u8..12, 0usize..2), 0..200)) {
            let key = |number: u8| {
                let mut key = [0; 40];
                key[39] = number;
                key
            };
            let mut table = FlowTable::<u64, 2>::new(8);
            // Key, value, age and time, in the order of time.
            let mut model: Vec<(u8, u64, usize, u64)> = Vec::new();
            for (now, (step, number, age)) in steps.into_iter().enumerate() {
                let (now, place) = (now as u64, model.iter().position(|entry| entry.0 == number));
                let found = table.find(&key(number));
                prop_assert_eq!(found.map(|at| *table.value(at)), place.map(|place| model[place].1));
                match (step, found, place) {
                    (0 | 1, None, None) => {
                        let at = table.insert(key(number), now, age, now);
                        prop_assert_eq!(at.is_some(), model.len() < 8);
                        if at.is_some() {
                            model.push((number, now, age, now));
                        }
                    }
                    (0 | 1, Some(at), Some(place)) => {
                        table.touch(at, age, now);
                        let (number, value, ..) = model.remove(place);
                        model.push((number, value, age, now));
                    }
                    (2, Some(at), Some(place)) => {
                        prop_assert_eq!(table.remove(at), model.remove(place).1);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.is_full(), model.len() == 8);
                for age in 0..2 {
                    let oldest = model.iter().find(|entry| entry.2 == age);
                    let found = table.oldest(age);
                    prop_assert_eq!(found.map(|(_, time)| time), oldest.map(|entry| entry.3));
                    prop_assert_eq!(found.map(|(at, _)| table.key(at)[39]), oldest.map(|entry| entry.0));
                    let all: Vec<u8> = table.of_age(age).map(|at| table.key(at)[39]).collect();
                    let same = model.iter().filter(|entry| entry.2 == age).map(|entry| entry.0);
                    prop_assert_eq!(all, same.collect::<Vec<_>>());
                }
            }
        }
    }
}
