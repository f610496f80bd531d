// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which instructions the vector paths may use. Every path gives the same bits; only speed differs.
//!
//! An [`Isa`] is a proof: one that stands for a vector extension is only made after the processor was asked, so that a
//! kernel may call its vector path without asking again.

use std::fmt;

/// The instruction set that kernels run with.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Isa {
    /// Plain Rust, any processor.
    pub const PORTABLE: Isa = Isa(Kind::Portable);

    /// AVX2 with FMA and F16C, if the processor has all three.
    #[must_use]
    pub fn avx2() -> Option<Isa> {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("f16c")
        {
            return Some(Isa(Kind::Avx2));
        }
        None
    }

    /// AVX-512 (F, BW, DQ, VL) with VNNI, if the processor has all of it and what [`Isa::avx2`] asks for.
    #[must_use]
    pub fn avx512() -> Option<Isa> {
        #[cfg(target_arch = "x86_64")]
        if Isa::avx2().is_some()
            && std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512vnni")
        {
            return Some(Isa(Kind::Avx512));
        }
        None
    }

    /// AMX tiles with bf16 products, if the processor has them, what [`Isa::avx512`] asks for too, and the system lets this
    /// process use them: Linux wants to be asked once, and the answer holds for all threads.
    #[must_use]
    pub fn amx() -> Option<Isa> {
        #[cfg(target_arch = "x86_64")]
        if Isa::avx512().is_some() && amx::usable() {
            return Some(Isa(Kind::Amx));
        }
        None
    }

    /// All that this processor has, the best last.
    pub fn available() -> impl Iterator<Item = Isa> {
        [Some(Isa::PORTABLE), Isa::avx2(), Isa::avx512(), Isa::amx()]
            .into_iter()
            .flatten()
    }

    /// The one of this name, if the processor has it.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Isa> {
        Isa::available().find(|i| i.name() == name)
    }

    /// The best that this processor has.
    #[must_use]
    pub fn detect() -> Isa {
        Isa::available().last().unwrap_or(Isa::PORTABLE)
    }

    /// Whether AVX2, FMA and F16C may be used.
    #[must_use]
    pub fn has_avx2(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.0, Kind::Avx2 | Kind::Avx512 | Kind::Amx);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether AVX-512 (F, BW, DQ, VL) with VNNI may be used, and AVX2, FMA and F16C.
    #[must_use]
    pub fn has_avx512(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return matches!(self.0, Kind::Avx512 | Kind::Amx);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether AMX tiles may be used, and all that [`Isa::has_avx512`] stands for.
    #[must_use]
    pub fn has_amx(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The name that `METRALE_CPU_ISA` takes: `portable`, `avx2`, `avx512` or `amx`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx",
        }
    }
}

/// Whether AMX may be used. (The compiler's own detection of it is not stable yet.)
#[cfg(target_arch = "x86_64")]
mod amx {
    /// Asks the processor for tiles with bf16 products, the system whether it keeps their state, and for leave to use them.
    pub(super) fn usable() -> bool {
        /// AMX-BF16 and AMX-TILE in EDX of leaf 7.
        const TILES: u32 = 1 << 22 | 1 << 24;
        std::arch::x86_64::__cpuid_count(7, 0).edx & TILES == TILES && state_is_kept() && granted()
    }

    /// Whether the system saves the tiles of a thread (bits 17 and 18 of XCR0).
    fn state_is_kept() -> bool {
        #[target_feature(enable = "xsave")]
        fn xcr0() -> u64 {
            // SAFETY: the feature is enabled; register 0 always exists.
            unsafe { std::arch::x86_64::_xgetbv(0) }
        }
        // SAFETY: XSAVE was found.
        std::is_x86_feature_detected!("xsave") && unsafe { xcr0() } >> 17 & 3 == 3
    }

    #[cfg(target_os = "linux")]
    fn granted() -> bool {
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const TILE_DATA: u64 = 18;
        // SAFETY: a request without pointers; asking again does no harm.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn granted() -> bool {
        false
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `on_isa!(isa, body, (name: Type = value, ...))` runs an `#[inline(always)]` body compiled twice: as it stands, and
/// with AVX2, FMA and F16C enabled. Rust's floats are strict, so that the two give the same bits; the second is what the
/// compiler's vectoriser makes of it.
macro_rules! on_isa {
    ($isa:expr, $body:path, ($($arg:ident : $ty:ty = $value:expr),* $(,)?) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn vector($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*)
            }
            if $isa.has_avx2() {
                // SAFETY: `Isa` says AVX2 only after the processor said it.
                unsafe { vector($($value),*) }
            } else {
                $body($($value),*)
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = $isa;
            $body($($value),*)
        }
    }};
}
pub(crate) use on_isa;
