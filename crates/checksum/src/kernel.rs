//! The registry of kernels: which there are, which this processor can run, and which is in use.
//!
//! The fastest available kernel is chosen at the first call and kept in an atomic function pointer;
//! a later call costs one relaxed load. [`select`] overrides the choice for tests and benchmarks.
#![allow(unsafe_code)]

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::arch;
#[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
use crate::arch::x86_64;
use crate::batch;
use crate::cpu;
use crate::prefetch::{self, Profile};

/// Obligation of the caller: the processor has the features that the kernel needs.
pub(crate) type PartialFn = unsafe fn(&[u8], u32) -> u32;
/// Obligation of the caller: as for [`PartialFn`], and both slices have the same length.
pub(crate) type CopyFn = unsafe fn(&[u8], &mut [u8], u32) -> u32;

/// One implementation of the checksum, for one instruction set.
///
/// All kernels give the same result: equal modulo 0xffff, and 0 only if the data and the sum given
/// are all zero.
pub struct Kernel {
    pub(crate) name: &'static str,
    pub(crate) requires: &'static str,
    /// Bits of `cpu`.
    pub(crate) features: u32,
    pub(crate) partial: PartialFn,
    pub(crate) copy: CopyFn,
    pub(crate) copy_nt: CopyFn,
}

/// From the slowest to the fastest: the last one that is available is chosen.
static KERNELS: &[Kernel] = &[
    Kernel {
        name: "portable",
        requires: "nothing",
        features: 0,
        partial: arch::portable::partial,
        copy: arch::portable::copy,
        copy_nt: arch::portable::copy,
    },
    #[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
    Kernel {
        name: "adc1",
        requires: "nothing",
        features: 0,
        partial: x86_64::carry::one_chain,
        copy: x86_64::carry::copy,
        copy_nt: x86_64::carry::copy_nt,
    },
    #[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
    Kernel {
        name: "adx",
        requires: "ADX",
        features: cpu::ADX,
        partial: x86_64::carry::two_flags,
        copy: x86_64::carry::copy,
        copy_nt: x86_64::carry::copy_nt,
    },
    #[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
    Kernel {
        name: "adc4",
        requires: "nothing",
        features: 0,
        partial: x86_64::carry::four_chains,
        copy: x86_64::carry::copy,
        copy_nt: x86_64::carry::copy_nt,
    },
    #[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
    Kernel {
        name: "avx2",
        requires: "AVX2",
        features: cpu::AVX2,
        partial: x86_64::avx2::partial::<false>,
        copy: x86_64::avx2::copy,
        copy_nt: x86_64::avx2::copy_nt,
    },
    #[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
    Kernel {
        name: "avxvnni",
        requires: "AVX2 and AVX-VNNI",
        features: cpu::AVX_VNNI,
        partial: x86_64::avx2::partial::<true>,
        copy: x86_64::avx2::copy,
        copy_nt: x86_64::avx2::copy_nt,
    },
    #[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
    Kernel {
        name: "avx512",
        requires: "AVX-512 F, BW and VL, and BMI2",
        features: cpu::AVX512,
        partial: x86_64::avx512::wide_partial,
        copy: x86_64::avx512::wide_copy,
        copy_nt: x86_64::avx512::wide_copy_nt,
    },
    #[cfg(all(target_arch = "x86_64", not(shortwire_raw)))]
    Kernel {
        name: "avx512vnni",
        requires: "AVX-512 F, BW, DQ, VL and VNNI, and BMI2",
        features: cpu::AVX512_VNNI,
        partial: x86_64::avx512::vnni_partial,
        copy: x86_64::avx512::vnni_copy,
        copy_nt: x86_64::avx512::vnni_copy_nt,
    },
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    Kernel {
        name: "neon",
        requires: "NEON",
        features: 0,
        partial: arch::aarch64::partial,
        copy: arch::aarch64::copy,
        copy_nt: arch::aarch64::copy_nt,
    },
];

impl Kernel {
    /// Every kernel of this architecture, from the slowest to the fastest, also those that this
    /// processor lacks.
    pub fn all() -> &'static [Kernel] {
        KERNELS
    }

    /// The kernel of that name, if this processor can run it.
    ///
    /// # Errors
    /// [`KernelError::Unknown`] if no kernel has that name, [`KernelError::NotSupported`] if this
    /// processor lacks what it requires.
    pub fn by_name(name: &str) -> Result<&'static Kernel, KernelError> {
        let kernel =
            KERNELS.iter().find(|kernel| kernel.name == name).ok_or(KernelError::Unknown)?;
        if kernel.is_available() { Ok(kernel) } else { Err(KernelError::NotSupported(kernel)) }
    }

    /// The fastest kernel that this processor can run.
    pub fn fastest() -> &'static Kernel {
        // The portable kernel is always there.
        KERNELS.iter().rfind(|kernel| kernel.is_available()).unwrap_or(&KERNELS[0])
    }

    /// The kernel that [`csum_partial`](crate::csum_partial) uses: the fastest one, or the one
    /// selected.
    pub fn active() -> &'static Kernel {
        let active = ACTIVE.load(Relaxed);
        if active.is_null() {
            return choose();
        }
        // SAFETY: ACTIVE only ever holds null or what `use_kernel` stored, a `&'static Kernel`.
        unsafe { &*active }
    }

    /// `portable`, `adc1`, `avx512vnni`, ...
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What the processor must have, in words.
    pub fn requires(&self) -> &'static str {
        self.requires
    }

    /// Whether this processor (and the operating system's state saving) can run the kernel.
    #[inline(always)]
    pub fn is_available(&self) -> bool {
        cpu::has(self.features)
    }

    /// [`csum_partial`](crate::csum_partial) by this kernel, without in-packet prefetch.
    ///
    /// # Panics
    /// If the kernel is not available.
    #[inline]
    pub fn csum_partial(&self, data: &[u8], sum: u32) -> u32 {
        self.assert_available();
        // SAFETY: asserted above.
        unsafe { (self.partial)(data, sum) }
    }

    /// As [`csum_partial`](Self::csum_partial), prefetching `distance` bytes ahead within `data`
    /// (0: no prefetch).
    ///
    /// # Panics
    /// If the kernel is not available.
    pub fn csum_partial_prefetch(&self, data: &[u8], sum: u32, distance: usize) -> u32 {
        self.assert_available();
        // SAFETY: asserted above.
        unsafe { prefetch::partial_ahead(self.partial, data, sum, distance) }
    }

    /// [`csum_and_copy`](crate::csum_and_copy) by this kernel.
    ///
    /// # Panics
    /// If the kernel is not available, or the lengths differ.
    #[inline]
    pub fn csum_and_copy(&self, source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
        self.assert_available();
        assert_eq!(
            source.len(),
            destination.len(),
            "csum_and_copy: source and destination differ in length"
        );
        // SAFETY: both asserted above.
        unsafe { (self.copy)(source, destination, sum) }
    }

    /// [`csum_and_copy_nt`](crate::csum_and_copy_nt) by this kernel.
    ///
    /// # Panics
    /// If the kernel is not available, or the lengths differ.
    #[inline]
    pub fn csum_and_copy_nt(&self, source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
        self.assert_available();
        assert_eq!(
            source.len(),
            destination.len(),
            "csum_and_copy_nt: source and destination differ in length"
        );
        // SAFETY: both asserted above.
        unsafe { (self.copy_nt)(source, destination, sum) }
    }

    /// [`csum_batch`](crate::csum_batch) by this kernel, with prefetch as in `profile`.
    ///
    /// # Panics
    /// If the kernel is not available, or `packets` and `sums` differ in length.
    pub fn csum_batch<P: Deref<Target = [u8]>>(
        &self,
        packets: &[P],
        sums: &mut [u32],
        profile: &Profile,
    ) {
        self.assert_available();
        if profile.in_packet == 0 {
            // SAFETY: asserted above.
            batch::run(packets, sums, profile, |data, sum| unsafe { (self.partial)(data, sum) });
        } else {
            let distance = profile.in_packet as usize;
            batch::run(packets, sums, profile, |data, sum| {
                // SAFETY: asserted above.
                unsafe { prefetch::partial_ahead(self.partial, data, sum, distance) }
            });
        }
    }

    #[inline(always)]
    fn assert_available(&self) {
        assert!(self.is_available(), "the kernel {} needs {}", self.name, self.requires);
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.name).finish()
    }
}

impl PartialEq for Kernel {
    fn eq(&self, other: &Kernel) -> bool {
        self.name == other.name
    }
}

impl Eq for Kernel {}

/// Why there is no kernel of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// No kernel of this architecture has that name; [`Kernel::all`] lists them.
    Unknown,
    /// The kernel exists, and this processor lacks what it requires.
    NotSupported(&'static Kernel),
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::Unknown => {
                f.write_str("no such kernel; choose from")?;
                KERNELS.iter().try_for_each(|kernel| write!(f, " {}", kernel.name))
            }
            KernelError::NotSupported(kernel) => {
                write!(
                    f,
                    "the kernel {} needs {}, which this processor lacks",
                    kernel.name, kernel.requires
                )
            }
        }
    }
}

impl core::error::Error for KernelError {}

/// Uses this kernel from now on, in the whole process. For tests and benchmarks; nothing needs to
/// be selected for use.
///
/// # Errors
/// [`KernelError::NotSupported`]: the choice stays as it was.
pub fn select(kernel: &'static Kernel) -> Result<(), KernelError> {
    if !kernel.is_available() {
        return Err(KernelError::NotSupported(kernel));
    }
    use_kernel(kernel);
    Ok(())
}

/// What `csum_partial` calls. Starts as `detect`, which replaces itself. The three atomics and
/// the profile are written one after the other, so that threads may briefly see an old one beside a new
/// one: every mixture gives right sums, and they publish nothing else, hence Relaxed.
static PARTIAL: AtomicPtr<()> = AtomicPtr::new(detect as *mut ());
/// What `csum_and_copy` calls, in the same way.
static COPY: AtomicPtr<()> = AtomicPtr::new(detect_copy as *mut ());
static ACTIVE: AtomicPtr<Kernel> = AtomicPtr::new(core::ptr::null_mut());

#[inline(always)]
pub(crate) fn active_partial(data: &[u8], sum: u32) -> u32 {
    let pointer = PARTIAL.load(Relaxed);
    // SAFETY: PARTIAL only ever holds functions of this type.
    let partial = unsafe { core::mem::transmute::<*mut (), PartialFn>(pointer) };
    // SAFETY: it holds `detect` or `ahead`, which need nothing, or the function of an available
    // kernel.
    unsafe { partial(data, sum) }
}

/// # Panics
/// If the lengths differ.
#[inline(always)]
pub(crate) fn active_copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    assert_eq!(
        source.len(),
        destination.len(),
        "csum_and_copy: source and destination differ in length"
    );
    let pointer = COPY.load(Relaxed);
    // SAFETY: COPY only ever holds functions of this type.
    let copy = unsafe { core::mem::transmute::<*mut (), CopyFn>(pointer) };
    // SAFETY: it holds `detect_copy`, which needs nothing, or the function of an available kernel;
    // the lengths are equal.
    unsafe { copy(source, destination, sum) }
}

fn use_kernel(kernel: &'static Kernel) {
    ACTIVE.store(core::ptr::from_ref(kernel).cast_mut(), Relaxed);
    renew();
}

/// To be called when the kernel or the profile has changed.
pub(crate) fn renew() {
    let partial = if prefetch::profile().in_packet == 0 { Kernel::active().partial } else { ahead };
    PARTIAL.store(partial as *mut (), Relaxed);
    COPY.store(Kernel::active().copy as *mut (), Relaxed);
}

#[cold]
fn choose() -> &'static Kernel {
    let kernel = Kernel::fastest();
    use_kernel(kernel);
    kernel
}

/// The first call.
unsafe fn detect(data: &[u8], sum: u32) -> u32 {
    renew();
    Kernel::active().csum_partial_prefetch(data, sum, prefetch::profile().in_packet as usize)
}

/// The first call.
unsafe fn detect_copy(source: &[u8], destination: &mut [u8], sum: u32) -> u32 {
    renew();
    Kernel::active().csum_and_copy(source, destination, sum)
}

/// Every call while the profile has an in-packet distance.
unsafe fn ahead(data: &[u8], sum: u32) -> u32 {
    let distance = prefetch::profile().in_packet as usize;
    // SAFETY: the active kernel is available.
    unsafe { prefetch::partial_ahead(Kernel::active().partial, data, sum, distance) }
}
