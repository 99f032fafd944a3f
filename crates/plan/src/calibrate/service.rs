//! The feature set of the `service-v1` row score (reference 5.6), one design per capacity.

use super::data::Design;

/// Capacities that the reference procedure tries, in the order in which ties prefer them.
pub const CAPACITIES: [u64; 6] = [64, 128, 256, 512, 1024, 2048];

/// Names of the six features, in the order of the profile string's coefficients.
pub const FEATURES: [&str; 6] = [
    "dispatch",
    "scalar_round",
    "collective",
    "global_program_byte",
    "global_worker_byte",
    "private_worker_byte",
];

/// What the features are made of: plan facts of one row candidate. Bytes are read plus write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCounts {
    /// Scalar rounds of the longest worker.
    pub rounds: u64,
    /// Reductions per program.
    pub reductions: u64,
    /// Subgroups per program.
    pub subgroups: u64,
    /// Groups of the launch.
    pub groups: u64,
    /// Programs of the launch.
    pub programs: u64,
    /// Programs per group.
    pub pack: u64,
    /// Global bytes of one program.
    pub program_global: u64,
    /// Global bytes of one worker.
    pub worker_global: u64,
    /// Private bytes of one worker.
    pub worker_private: u64,
}

impl RowCounts {
    /// The six feature values at a capacity (subgroups that the machine runs at once). Waves
    /// multiply what a worker does one after another; program bytes load the whole machine.
    pub fn features(&self, capacity: u64) -> Vec<f64> {
        let waves = ((self.groups * self.subgroups * self.pack) as f64 / capacity as f64).max(1.0);
        vec![
            1.0,
            self.rounds as f64 * waves,
            (self.reductions * self.subgroups) as f64 * waves,
            (self.programs * self.program_global) as f64,
            self.worker_global as f64,
            self.worker_private as f64 * waves,
        ]
    }
}

/// One design per capacity.
pub fn designs(counts: &[RowCounts], capacities: &[u64]) -> Vec<Design> {
    capacities
        .iter()
        .map(|capacity| Design {
            name: format!("service-v1 capacity {capacity}"),
            features: FEATURES.iter().map(|f| f.to_string()).collect(),
            rows: counts.iter().map(|c| c.features(*capacity)).collect(),
        })
        .collect()
}
