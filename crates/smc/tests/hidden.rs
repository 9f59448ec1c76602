//! Descriptors of our own whose numbers the application takes. A process of its own: nobody else
//! takes numbers meanwhile.

use std::sync::{Mutex, MutexGuard};

use smc::{hidden, sys};

static TURN: Mutex<()> = Mutex::new(());

fn serial() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

fn parked() -> i32 {
    hidden::park(sys::memfd(c"hidden"))
}

fn is_open(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0) >= 0
}

#[test]
fn a_handle_follows_its_descriptor() {
    let _turn = serial();
    let fd = parked();
    let own = hidden::handle(fd).unwrap();
    let now = smc::give_way(fd).unwrap();
    assert!(now > fd && !hidden::contains(fd) && hidden::contains(now));
    assert_eq!((own.descriptor(), hidden::handle(fd)), (Some(now), None));
    own.close();
    assert_eq!(
        (own.descriptor(), hidden::contains(now), is_open(now), is_open(fd)),
        (None, false, false, true)
    );
    sys::close(fd);
}

#[test]
fn an_old_handle_closes_nothing() {
    let _turn = serial();
    let fd = parked();
    let old = hidden::handle(fd).unwrap();
    hidden::forget(fd);
    sys::close(fd);
    let next = parked();
    assert_eq!(next, fd);
    old.close();
    assert_eq!((old.descriptor(), hidden::contains(next), is_open(next)), (None, true, true));
    hidden::close(next);
    assert!(!is_open(next));
}
