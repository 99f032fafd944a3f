//! Facts of the machines that are known by name.

use super::{GpuFacts, Target, TargetKind};
use crate::mapping::MatrixBasis;

/// Names of the built-in targets.
pub(super) const NAMES: &[&str] = &["apple-m1-max", "nvidia-h200"];

impl Target {
    /// Apple M1 Max GPU, as the reference system saw it: 1,024 threads a group (queried there),
    /// 32 KiB of threadgroup memory (reproduces all its legality counts), 32 cores.
    pub fn apple_m1_max() -> Target {
        Target {
            name: "apple-m1-max".to_string(),
            kind: TargetKind::Gpu(GpuFacts {
                lanes: 32,
                max_threads: 1024,
                shared_bytes: 32 << 10,
                cores: 32,
                registers_per_core: None,
                registers_per_thread: None,
                shared_bytes_per_core: None,
                threads_per_core: None,
                l2_bytes: None,
                private_scalars: 64,
                fragment_scalars: 64,
                max_cluster: 1,
                matrix: vec![MatrixBasis::Simdgroup, MatrixBasis::Mpp],
                f64: false,
            }),
        }
    }

    /// NVIDIA H200 (compute capability 9.0): CUDA C++ Programming Guide, technical
    /// specifications per compute capability; 132 SMs.
    ///
    /// The matrix atoms of this target have no candidate space yet, so `matrix` is empty.
    pub fn nvidia_h200() -> Target {
        Target {
            name: "nvidia-h200".to_string(),
            kind: TargetKind::Gpu(GpuFacts {
                lanes: 32,
                max_threads: 1024,
                shared_bytes: 227 << 10,
                cores: 132,
                registers_per_core: Some(65536),
                registers_per_thread: Some(255),
                shared_bytes_per_core: Some(228 << 10),
                threads_per_core: Some(2048),
                l2_bytes: Some(60 << 20),
                private_scalars: 64,
                fragment_scalars: 64,
                // 8 on every device; 16 is this one's own limit, which a launch opts in to.
                max_cluster: 16,
                matrix: vec![],
                f64: true,
            }),
        }
    }
}
