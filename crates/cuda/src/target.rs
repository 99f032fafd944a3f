//! From what the driver tells of a GPU to what a planner may know of it.

use crate::PtxTarget;
use crate::driver::DeviceFacts;
use tilewright_plan::Target;
use tilewright_plan::target::{GpuFacts, TargetKind};

/// PTX versions (times ten) with the CUDA version (as the driver counts) that introduced each:
/// the release table of the PTX ISA manual.
const PTX_VERSIONS: [(i32, u32); 20] = [
    (11000, 70),
    (11010, 71),
    (11020, 72),
    (11030, 73),
    (11040, 74),
    (11050, 75),
    (11060, 76),
    (11070, 77),
    (11080, 78),
    (12000, 80),
    (12010, 81),
    (12020, 82),
    (12030, 83),
    (12040, 84),
    (12050, 85),
    (12070, 86),
    (12080, 87),
    (12090, 88),
    (13000, 90),
    (13010, 91),
];

/// The latest PTX version (times ten) that a driver takes; 0 for drivers before CUDA 11.0.
pub fn ptx_version(driver: i32) -> u32 {
    PTX_VERSIONS.iter().rev().find(|(cuda, _)| *cuda <= driver).map_or(0, |(_, ptx)| *ptx)
}

/// The CUDA version that introduced a PTX version, as text.
pub fn cuda_of_ptx(version: u32) -> String {
    let found = PTX_VERSIONS.iter().find(|(_, ptx)| *ptx >= version);
    found.map_or_else(
        || "later than 13.1".to_string(),
        |(cuda, _)| format!("{}.{}", cuda / 1000, cuda % 1000 / 10),
    )
}

/// The latest PTX that a GPU with its driver takes.
pub fn limit(facts: &DeviceFacts) -> PtxTarget {
    PtxTarget { sm: facts.sm, version: ptx_version(facts.driver) }
}

/// The target of a GPU: `nvidia-h200` by that name, so that profiles made for it apply, any other
/// by its model's name. Facts come from the driver; those that it doesn't tell are the same for
/// every GPU with compute capability 8.0 or later.
pub fn of_facts(facts: &DeviceFacts) -> Target {
    let builtin = Target::nvidia_h200();
    let name = if facts.name.trim() == "NVIDIA H200" {
        builtin.name.clone()
    } else {
        facts.name.trim().to_lowercase().replace(' ', "-")
    };
    let common = match builtin.kind {
        TargetKind::Gpu(gpu) => gpu,
        // The H200 is a GPU.
        TargetKind::Cpu(_) => return Target::nvidia_h200(),
    };
    let gpu = GpuFacts {
        max_threads: facts.max_threads,
        shared_bytes: facts.shared_bytes,
        cores: facts.cores,
        registers_per_core: Some(facts.registers_per_core),
        shared_bytes_per_core: Some(facts.shared_bytes_per_core),
        threads_per_core: Some(facts.threads_per_core),
        l2_bytes: Some(facts.l2_bytes),
        max_cluster: match facts.sm {
            0..90 => 1,
            90 | 100 => common.max_cluster,
            // What every GPU with clusters has.
            _ => 8,
        },
        ..common
    };
    Target { name, kind: TargetKind::Gpu(gpu) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the driver told of an H200.
    fn h200() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA H200".to_string(),
            sm: 90,
            cores: 132,
            max_threads: 1024,
            shared_bytes: 232448,
            shared_bytes_per_core: 233472,
            registers_per_core: 65536,
            threads_per_core: 2048,
            l2_bytes: 62914560,
            memory_bytes: 150_000_000_000,
            driver: 13000,
        }
    }

    #[test]
    fn the_shipped_target_is_what_the_driver_tells() {
        assert_eq!(of_facts(&h200()), Target::nvidia_h200());
    }

    #[test]
    fn another_gpu_has_its_own_name_and_facts() {
        let facts = DeviceFacts {
            name: "NVIDIA A100-SXM4-80GB".to_string(),
            sm: 80,
            cores: 108,
            shared_bytes: 166912,
            ..h200()
        };
        let target = of_facts(&facts);
        assert_eq!(target.name, "nvidia-a100-sxm4-80gb");
        let gpu = target.gpu_facts().unwrap();
        assert_eq!((gpu.cores, gpu.shared_bytes, gpu.max_cluster), (108, 166912, 1));
        assert_ne!(target.hash(), Target::nvidia_h200().hash());
    }

    #[test]
    fn drivers_take_the_ptx_of_their_release_and_earlier() {
        for (driver, ptx) in
            [(10020, 0), (11000, 70), (11080, 78), (12000, 80), (12060, 85), (13000, 90)]
        {
            assert_eq!(ptx_version(driver), ptx, "{driver}");
        }
        assert_eq!(cuda_of_ptx(70), "11.0");
        assert_eq!(cuda_of_ptx(78), "11.8");
        assert_eq!(cuda_of_ptx(79), "12.0");
        assert_eq!(cuda_of_ptx(99), "later than 13.1");
    }
}
