//! What the target for `syscall` sites does with its input: code of some other program.

use sites::{
    Flow, Found, Kind, LONGEST_STUB, NUMBERS, Plain, Stub, VOTES, Wanted, Why, decode, find, jump,
    places, stub,
};

/// Each place gets an answer; a window is made of whole instructions around its site, and what it
/// leads to is made of whole instructions, too, and comes back behind it.
pub fn sites(code: &[u8]) {
    on_arm64(code);
    let mut wanted: Wanted = [false; NUMBERS];
    wanted.iter_mut().enumerate().for_each(|(number, wanted)| *wanted = number % 3 != 2);
    let mut asked = places(code);
    for (at, found) in find(code, &wanted) {
        assert_eq!(asked.next(), Some(at));
        match found {
            Found::Data => {}
            Found::Undecided(Why::Votes(votes)) => assert!(votes > 0 && votes < VOTES),
            Found::Undecided(Why::Room | Why::Strange) => {}
            Found::Unwanted(number) => {
                assert!(number as usize >= NUMBERS || !wanted[number as usize]);
                let before = &code[at.saturating_sub(32)..at];
                assert!(before.windows(4).any(|four| four == number.to_le_bytes()));
            }
            Found::Site(window) => {
                assert!(window.at == at && window.start <= at && window.end >= at + 2);
                assert!(window.end - window.start >= 5 && window.end <= code.len());
                follow(code, &window, Plain::InStub);
                follow(code, &window, Plain::InPlace);
            }
        }
    }
}

fn follow(code: &[u8], window: &sites::Window, plain: Plain) {
    // Anywhere, as long as one reaches the other.
    let (base, area) = (0x40_0000, 0x1000_0000);
    let address = area + sites::AREA_HEAD as u64;
    let mut out = [0; LONGEST_STUB];
    let Some(Stub { len, .. }) = stub(code, base, window, area, address, plain, &mut out) else {
        // Only a jump of the program's own, to very far away, is out of reach.
        return assert!(window.kind == Kind::Around);
    };
    let (mut at, mut calls, mut last) = (0, 0, Flow::Next);
    while at < len {
        let inst = decode(&out[at..len]).expect("a stub is made of instructions");
        calls += usize::from(out[at..at + inst.len] == [0x0f, 0x05]);
        at += inst.len;
        last = inst.flow;
    }
    let is_in_place = plain == Plain::InPlace && window.kind != Kind::Around;
    assert!(at == len && calls == usize::from(!is_in_place), "{:02x?}", &out[..len]);
    assert!(matches!(last, Flow::Jump(_) | Flow::Away));
    let mut patched = code.to_vec();
    jump(base, window, address, &mut patched[window.replaced()]).expect("it is near");
    let there = decode(&patched[window.start..]).expect("a jump");
    let to = base + (window.start + there.len) as u64;
    assert!(
        matches!(there.flow, Flow::Jump(distance) if to.wrapping_add_signed(distance.into()) == address)
    );
    let outside = |code: &[u8]| (code[..window.start].to_vec(), code[window.end..].to_vec());
    assert_eq!(outside(code), outside(&patched));
}

/// The same for arm64: of each place there is an answer, and where it is a site the stub leads back behind it.
fn on_arm64(code: &[u8]) {
    use sites::aarch64::{AREA_HEAD, Found, LONGEST_STUB, OF_PROGRAMS, find, jump, places, stub};
    let (base, area) = (0x40_0000, 0x100_0000);
    let mut asked = places(code);
    for (at, found) in find(code, &OF_PROGRAMS) {
        assert_eq!(asked.next(), Some(at));
        match found {
            Found::Data | Found::Undecided(Why::Room | Why::Strange) => {}
            Found::Undecided(Why::Votes(_)) => panic!("nobody votes"),
            Found::Unwanted(number) => {
                assert!(!OF_PROGRAMS.get(number as usize).is_some_and(|wanted| *wanted));
            }
            Found::Site(window) => {
                assert!(window.at == at && window.end == at + 4 && at - window.start <= 4);
                let address = area + AREA_HEAD as u64;
                let mut out = [0; LONGEST_STUB];
                let stub = stub(code, base, &window, area, address, Plain::InPlace, &mut out);
                let len = stub.expect("it is near").len;
                assert!(len.is_multiple_of(4) && len >= 12);
                let last = u32::from_le_bytes(out[len - 4..len].try_into().expect("a word"));
                let distance = (last << 6).cast_signed() >> 4;
                let to = (address + len as u64 - 4).wrapping_add_signed(distance.into());
                let is_left = window.start < at;
                assert_eq!(to, base + if is_left { at } else { window.end } as u64);
                jump(base, &window, address, &mut [0; 4]).expect("it is near");
            }
        }
    }
}
