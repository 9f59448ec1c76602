//! Functions of liburing, and one of libaio, which enter the kernel by instruction. By number:
//! `syscall`.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use socket::aio;
use socket::uring::{self, library};

type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;

/// A function of such a library. It is looked up at its first use, for few programs have any.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<()>,
}

extern "C" fn missing(_: usize, _: usize, _: usize, _: usize, _: usize, _: usize) -> c_int {
    -libc::ENOSYS
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn get(&self) -> Any {
        let mut p = self.found.load(Relaxed);
        if p.is_null() {
            p = self.find();
        }
        // SAFETY: a function of theirs, or `missing`: all take integers and pointers, six at most.
        unsafe { core::mem::transmute::<*mut (), Any>(p) }
    }

    #[cold]
    fn find(&self) -> *mut () {
        // SAFETY: NUL-terminated names, here and below.
        let mut p = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if p.is_null() {
            p = self.find_in_modules();
        }
        // One that may yet be loaded is looked for again.
        if p.is_null() {
            return missing as *mut ();
        }
        self.found.store(p.cast(), Relaxed);
        p.cast()
    }

    /// A module that was loaded later than the program has it for itself alone, and a copy of it may
    /// be linked in, or have another name.
    fn find_in_modules(&self) -> *mut libc::c_void {
        for at in 0.. {
            let mut module = Module { at, name: [0; 4096], len: 0 };
            // SAFETY: `Module::take` gets nothing but `module`, and returns before this does.
            if unsafe { libc::dl_iterate_phdr(Some(Module::take), (&raw mut module).cast()) } == 0 {
                break;
            }
            if module.len == 0 {
                continue;
            }
            let how = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
            let library = unsafe { libc::dlopen(module.name.as_ptr().cast(), how) };
            if library.is_null() {
                continue;
            }
            let found = unsafe { libc::dlsym(library, self.name.as_ptr()) };
            // SAFETY: opened just now; whoever has loaded it keeps it.
            unsafe { libc::dlclose(library) };
            if !found.is_null() && !is_ours(found) {
                return found;
            }
        }
        core::ptr::null_mut()
    }
}

/// The path of a loaded module.
struct Module {
    /// How many come before it.
    at: usize,
    name: [u8; 4096],
    len: usize,
}

impl Module {
    unsafe extern "C" fn take(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut libc::c_void,
    ) -> c_int {
        // SAFETY: of `find_in_modules`.
        let module = unsafe { &mut *data.cast::<Module>() };
        if module.at > 0 {
            module.at -= 1;
            return 0;
        }
        // SAFETY: the loader's.
        let name = unsafe { (*info).dlpi_name };
        if !name.is_null() {
            // SAFETY: a string of the loader's.
            let name = unsafe { CStr::from_ptr(name) }.to_bytes();
            if name.len() < module.name.len() {
                module.name[..name.len()].copy_from_slice(name);
                module.len = name.len();
            }
        }
        1
    }
}

/// Whether a function is in this library.
fn is_ours(function: *mut libc::c_void) -> bool {
    let base = |at: *const libc::c_void| {
        // SAFETY: zero is a valid value of every field.
        let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
        // SAFETY: a place for the answer.
        let known = unsafe { libc::dladdr(at, &raw mut info) } != 0;
        known.then_some(info.dli_fbase)
    };
    base(function) == base(is_ours as *const libc::c_void)
}

/// Each function with what comes before it, which may refuse with a negative error number, as
/// both libraries have it.
macro_rules! in_libraries {
    ($($name:ident: $before:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
        ) -> c_int {
            const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!(),
                };
            static NEXT: Next = Next::new(NAME);
            let before: fn(&Next, [usize; 6]) -> Step = $before;
            match before(&NEXT, [a, b, c, d, e, f]) {
                // SAFETY: the caller's obligations are liburing's and are forwarded.
                Step::On => unsafe { NEXT.get()(a, b, c, d, e, f) },
                Step::Done(r) => r,
            }
        }
    )*};
}

enum Step {
    On,
    Done(c_int),
}

fn look(_: &Next, [ring, ..]: [usize; 6]) -> Step {
    // SAFETY: the application's ring.
    unsafe { library::look(ring as *const library::Ring) };
    Step::On
}

fn look_before_wait(_: &Next, [ring, ..]: [usize; 6]) -> Step {
    // SAFETY: the application's ring.
    unsafe { library::look_before_wait(ring as *const library::Ring) };
    Step::On
}

fn set_up(flags: u32) -> Step {
    library::before_setup(flags).map_or_else(Step::Done, |()| Step::On)
}

fn set_up_with(_: &Next, [_, _, params, ..]: [usize; 6]) -> Step {
    // SAFETY: the application's parameters.
    set_up(unsafe { library::flags_of(params as *const uring::Params) })
}

fn give(list: usize, n: usize) -> Step {
    // SAFETY: the application's list.
    unsafe { library::give_files(list as *const i32, n as u32) };
    Step::On
}

fn enter(next: &Next, [ring, submit, wait, flags, e, f]: [usize; 6]) -> Step {
    let call = |submit: u32, wait: u32, flags: u32| {
        let (submit, wait, flags) = (submit as usize, wait as usize, flags as usize);
        // SAFETY: the application's call.
        unsafe { next.get()(ring, submit, wait, flags, e, f) as isize }
    };
    let r = uring::enter(ring as c_int, submit as u32, wait as u32, flags as u32, call);
    Step::Done(r as c_int)
}

in_libraries! {
    // libaio's.
    io_submit: |_, [_, n, list, ..]| {
        // SAFETY: the application's list.
        unsafe { aio::before_submit(n as isize, list as _) };
        Step::On
    };
    io_uring_queue_init: |_, [_, _, flags, ..]| set_up(flags as u32);
    io_uring_queue_init_params: set_up_with;
    io_uring_queue_init_mem: set_up_with;
    io_uring_submit: look;
    io_uring_submit_and_wait: look;
    io_uring_submit_and_wait_timeout: look;
    io_uring_submit_and_wait_min_timeout: look;
    io_uring_submit_and_wait_reg: look;
    io_uring_submit_and_get_events: look;
    io_uring_wait_cqes: look_before_wait;
    io_uring_wait_cqe_timeout: look_before_wait;
    __io_uring_get_cqe: |next, all| if all[2] as u32 == 0 { Step::On } else { look(next, all) };
    io_uring_register_files: |_, [_, list, n, ..]| give(list, n);
    io_uring_register_files_tags: |_, [_, list, _, n, ..]| give(list, n);
    io_uring_register_files_update: |_, [_, _, list, n, ..]| give(list, n);
    io_uring_register_files_update_tag: |_, [_, _, list, _, n, _]| give(list, n);
    io_uring_register_restrictions: |_, _| {
        library::before_restrictions();
        Step::On
    };
    io_uring_setup: |next, [entries, params, ..]| {
        // SAFETY: the application's call.
        let call = || unsafe { next.get()(entries, params, 0, 0, 0, 0) as isize };
        // SAFETY: as above.
        let r = unsafe { uring::setup(params as *const uring::Params, call) };
        Step::Done(r as c_int)
    };
    io_uring_enter: enter;
    io_uring_enter2: enter;
    io_uring_register: |next, [ring, op, arg, n, ..]| {
        // SAFETY: the application's call.
        let call = || unsafe { next.get()(ring, op, arg, n, 0, 0) as isize };
        // SAFETY: as above.
        Step::Done(unsafe { uring::register(op as u32, arg, n as u32, call) } as c_int)
    };
}
