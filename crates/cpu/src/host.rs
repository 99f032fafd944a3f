//! What this machine is: instruction set, caches, cores, name.

use tilewright_plan::mapping::CpuIsa;
use tilewright_plan::target::CpuFacts;

/// Sizes of the caches in bytes; 0 where unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caches {
    /// First-level data cache of a core.
    pub l1: u64,
    /// Second-level cache of a core.
    pub l2: u64,
    /// Last-level cache that the cores share.
    pub l3: u64,
}

/// The best instruction set that this machine runs.
pub fn best_isa() -> CpuIsa {
    [CpuIsa::Avx512, CpuIsa::Avx2].into_iter().find(|isa| has(*isa)).unwrap_or(CpuIsa::Portable)
}

/// Whether this machine runs code for an instruction set.
pub fn has(isa: CpuIsa) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2");
        let avx512 = || {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        };
        match isa {
            CpuIsa::Portable => true,
            CpuIsa::Avx2 => avx2,
            CpuIsa::Avx512 => avx2 && avx512(),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        isa == CpuIsa::Portable
    }
}

/// Facts of this machine for an instruction set that it has. Caches that the machine doesn't
/// tell of are the smallest that current machines of that kind have.
pub fn facts(isa: CpuIsa) -> CpuFacts {
    let caches = caches();
    let modest = CpuFacts::modest(isa, cores() as u32);
    let known = |bytes: u64, otherwise: u64| if bytes > 0 { bytes } else { otherwise };
    let halves = isa == CpuIsa::Avx512 && takes_halves();
    CpuFacts {
        name: name(),
        fma_per_cycle: if halves { 1 } else { modest.fma_per_cycle },
        l1_bytes: known(caches.l1, modest.l1_bytes),
        l2_bytes: known(caches.l2, modest.l2_bytes),
        l3_bytes: if caches.l2 > 0 { caches.l3 } else { modest.l3_bytes },
        ..modest
    }
}

/// Whether the vector units are half as wide as the registers of AVX-512.
fn takes_halves() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        cpuid::units_of_32_bytes()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The processor's name for itself.
pub fn name() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let name = cpuid::brand();
        if !name.is_empty() {
            return name;
        }
    }
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|l| l.strip_prefix("model name").or_else(|| l.strip_prefix("Hardware")))
        .map(|l| l.trim_start_matches([' ', '\t', ':']).trim().to_string())
        .filter(|l| !l.is_empty())
        .unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

/// Cache sizes: from the processor, else from the operating system.
pub fn caches() -> Caches {
    #[cfg(target_arch = "x86_64")]
    {
        let caches = cpuid::caches();
        if caches.l1 > 0 && caches.l2 > 0 {
            return caches;
        }
    }
    sysfs_caches("/sys/devices/system/cpu/cpu0/cache")
}

/// Cache sizes from Linux's description of a core.
fn sysfs_caches(root: &str) -> Caches {
    let mut caches = Caches::default();
    for n in 0..8 {
        let read = |what: &str| std::fs::read_to_string(format!("{root}/index{n}/{what}"));
        let (Ok(level), Ok(kind), Ok(size)) = (read("level"), read("type"), read("size")) else {
            break;
        };
        if kind.trim() == "Instruction" {
            continue;
        }
        let bytes = parse_size(size.trim()).unwrap_or(0);
        match level.trim() {
            "1" => caches.l1 = bytes,
            "2" => caches.l2 = bytes,
            _ => caches.l3 = caches.l3.max(bytes),
        }
    }
    caches
}

/// `48K`, `2M` or a number of bytes.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}

#[cfg(target_arch = "x86_64")]
mod cpuid {
    use super::Caches;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    /// Cache leaf of Intel processors, and of AMD processors.
    const LEAVES: [u32; 2] = [4, 0x8000_001d];

    pub fn brand() -> String {
        if __cpuid(0x8000_0000).eax < 0x8000_0004 {
            return String::new();
        }
        let bytes: Vec<u8> = (0x8000_0002..=0x8000_0004)
            .flat_map(|leaf| {
                let r = __cpuid(leaf);
                [r.eax, r.ebx, r.ecx, r.edx]
            })
            .flat_map(u32::to_le_bytes)
            .take_while(|b| *b != 0)
            .collect();
        String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// AMD processors tell how wide their units are: 32 bytes (bit 2) or 64 (bit 3). Others don't
    /// have the leaf, and units as wide as their registers.
    pub fn units_of_32_bytes() -> bool {
        const UNITS: u32 = 0x8000_001a;
        if __cpuid(0x8000_0000).eax < UNITS {
            return false;
        }
        let widths = __cpuid(UNITS).eax;
        widths & 1 << 2 != 0 && widths & 1 << 3 == 0
    }

    pub fn caches() -> Caches {
        for leaf in LEAVES {
            let most = __cpuid(leaf & 0x8000_0000).eax;
            if most < leaf {
                continue;
            }
            let mut caches = Caches::default();
            for sub in 0..8 {
                let r = __cpuid_count(leaf, sub);
                let (kind, level) = (r.eax & 31, r.eax >> 5 & 7);
                if kind == 0 {
                    break;
                }
                // Ways, partitions, line size and sets, each less one.
                let bytes = [r.ebx >> 22, r.ebx >> 12 & 0x3ff, r.ebx & 0xfff, r.ecx]
                    .into_iter()
                    .map(|field| u64::from(field) + 1)
                    .product();
                match (kind, level) {
                    (2, _) => {}
                    (_, 1) => caches.l1 = bytes,
                    (_, 2) => caches.l2 = bytes,
                    _ => caches.l3 = caches.l3.max(bytes),
                }
            }
            if caches.l1 > 0 {
                return caches;
            }
        }
        Caches::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        assert_eq!(parse_size("48K"), Some(48 << 10));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("123"), Some(123));
        assert_eq!(parse_size("K"), None);
        assert_eq!(parse_size(""), None);
    }

    #[test]
    fn a_directory_without_caches_gives_none() {
        assert_eq!(sysfs_caches("/nonexistent"), Caches::default());
    }

    #[test]
    fn this_machine_has_the_isa_it_is_said_to_have() {
        let isa = best_isa();
        assert!(has(isa));
        let facts = facts(isa);
        assert_eq!(facts.isa, isa);
        assert!(facts.cores >= 1 && facts.l1_bytes > 0 && facts.l2_bytes >= facts.l1_bytes);
        assert!((1..=2).contains(&facts.fma_per_cycle));
        assert!(!facts.name.is_empty());
    }
}
