//! Which processor this is and what it can do. The standard library's detection is not in `core`.
#![allow(unsafe_code)]

use core::fmt;

/// A processor family: what a prefetch profile is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    pub(crate) vendor: [u8; 12],
    pub(crate) family: u16,
    pub(crate) model: u16,
}

impl Processor {
    /// The processor this runs on, as CPUID names it. A hypervisor may pass another model than the
    /// machine's own. Architectures without CPUID go by their name.
    pub fn current() -> Processor {
        current()
    }

    /// `GenuineIntel`, `AuthenticAMD`, `aarch64`, ...
    pub fn vendor(&self) -> &str {
        let end = self.vendor.iter().position(|&byte| byte == 0).unwrap_or(self.vendor.len());
        core::str::from_utf8(&self.vendor[..end]).unwrap_or("unknown")
    }

    /// Family, extended family included.
    pub fn family(&self) -> u16 {
        self.family
    }

    /// Model, extended model included.
    pub fn model(&self) -> u16 {
        self.model
    }

    /// None if the vendor is empty, too long or not printable ASCII without spaces.
    pub(crate) fn new(vendor: &str, family: u16, model: u16) -> Option<Processor> {
        if vendor.is_empty()
            || vendor.len() > 12
            || !vendor.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return None;
        }
        let mut bytes = [0; 12];
        bytes[..vendor.len()].copy_from_slice(vendor.as_bytes());
        Some(Processor { vendor: bytes, family, model })
    }
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.vendor(), self.family, self.model)
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn current() -> Processor {
    let name = if cfg!(target_arch = "aarch64") { "aarch64" } else { "other" };
    Processor::new(name, 0, 0).expect("a short ASCII name")
}

/// The kernels here need nothing that a processor of the architecture may lack.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn has(_features: u32) -> bool {
    true
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max, _xgetbv};
    use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

    use super::Processor;

    pub(crate) const ADX: u32 = 1;
    pub(crate) const AVX2: u32 = 1 << 1;
    /// Foundation, byte and word instructions, 128- and 256-bit forms, and BMI2 for the masks.
    pub(crate) const AVX512: u32 = 1 << 2;
    pub(crate) const AVX512_VNNI: u32 = 1 << 3;
    /// The 256-bit form, and AVX2.
    pub(crate) const AVX_VNNI: u32 = 1 << 4;
    const KNOWN: u32 = 1 << 31;

    /// Written with the same value by whoever comes first; it publishes nothing else, hence
    /// Relaxed.
    static FEATURES: AtomicU32 = AtomicU32::new(0);

    /// Whether the processor has all features in `wanted` and the operating system saves their
    /// registers.
    #[inline(always)]
    pub(crate) fn has(wanted: u32) -> bool {
        let mut features = FEATURES.load(Relaxed);
        if features == 0 {
            features = detect();
        }
        features & wanted == wanted
    }

    #[cold]
    fn detect() -> u32 {
        ALIGN_FROM.store(align_from_of(&current()), Relaxed);
        let features = KNOWN | features();
        FEATURES.store(features, Relaxed);
        features
    }

    /// From how many bytes on it pays to bring data to a vector's alignment first, for 512-bit vectors.
    /// Written before any kernel runs, for `has` comes before; it publishes nothing else, hence
    /// Relaxed.
    static ALIGN_FROM: AtomicUsize = AtomicUsize::new(ALIGN_FROM_ELSEWHERE);
    /// Measured on Golden Cove (Xeon of the fourth generation), taken for all that were not measured.
    const ALIGN_FROM_ELSEWHERE: usize = 8192;

    #[cfg(not(shortwire_raw))]
    #[inline(always)]
    pub(crate) fn align_from() -> usize {
        ALIGN_FROM.load(Relaxed)
    }

    /// By processor family.
    fn align_from_of(processor: &Processor) -> usize {
        match (processor.vendor(), processor.family) {
            // Zen 5: a load that crosses a line takes the place of two, and nothing else is short.
            ("AuthenticAMD", 26) => 1537,
            _ => ALIGN_FROM_ELSEWHERE,
        }
    }

    fn features() -> u32 {
        if __get_cpuid_max(0).0 < 7 {
            return 0;
        }
        let bit = |register: u32, bit: u32| register >> bit & 1 == 1;
        let (one, seven) = (__cpuid(1), __cpuid_count(7, 0));
        // SAFETY: OSXSAVE (bit 27) says that the instruction exists and may be used.
        let saved = if bit(one.ecx, 27) { unsafe { saved_state() } } else { 0 };
        // XCR0: SSE and AVX registers (bits 1 and 2); opmask and the two parts of the 512-bit file
        // (bits 5 to 7).
        let (avx, avx512) = (saved & 0x6 == 0x6, saved & 0xe6 == 0xe6);
        let mut features = 0;
        let mut found =
            |feature: u32, condition: bool| features |= if condition { feature } else { 0 };
        found(ADX, bit(seven.ebx, 19));
        let avx2 = avx && bit(one.ecx, 28) && bit(seven.ebx, 5);
        found(AVX2, avx2);
        // The second leaf is there if the first one says so.
        found(AVX_VNNI, avx2 && seven.eax >= 1 && bit(__cpuid_count(7, 1).eax, 4));
        let avx512 = avx512 && [8, 16, 30, 31].iter().all(|&number| bit(seven.ebx, number));
        found(AVX512, avx512);
        // Its kernels also move halves of vectors with an instruction of AVX-512 DQ.
        found(AVX512_VNNI, avx512 && bit(seven.ecx, 11) && bit(seven.ebx, 17));
        features
    }

    #[target_feature(enable = "xsave")]
    unsafe fn saved_state() -> u64 {
        // SAFETY: the caller has checked OSXSAVE; register 0 always exists.
        unsafe { _xgetbv(0) }
    }

    pub(super) fn current() -> Processor {
        let mut vendor = [0; 12];
        let zero = __cpuid(0);
        // Some vendors pad their names with spaces, which a profile's text form could not give
        // back.
        let name = [zero.ebx, zero.edx, zero.ecx].into_iter().flat_map(u32::to_le_bytes);
        for (byte, letter) in vendor.iter_mut().zip(name.filter(u8::is_ascii_graphic)) {
            *byte = letter;
        }
        let signature = __cpuid(1).eax;
        let (family, model) = (signature >> 8 & 0xf, signature >> 4 & 0xf);
        let extended_model = if family == 6 || family == 15 { signature >> 16 & 0xf } else { 0 };
        let extended_family = if family == 15 { signature >> 20 & 0xff } else { 0 };
        Processor {
            vendor,
            family: (family + extended_family) as u16,
            model: (model + (extended_model << 4)) as u16,
        }
    }
}
