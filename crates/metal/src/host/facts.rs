//! What Metal and macOS tell of a GPU, and what a planner may know of it.

use crate::codegen::{Feature, Language};
use serde::Serialize;
use tilewright_plan::Target;
use tilewright_plan::mapping::MatrixBasis;
use tilewright_plan::target::TargetKind;
use tilewright_runtime::{Capabilities, RuntimeError};

/// Lanes of a simdgroup that kernels are made for. Every Apple GPU has 32.
const LANES: u32 = 32;

/// Facts of a GPU and its system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceFacts {
    /// Metal's name of the device: `Apple M1 Max`.
    pub name: String,
    /// Name of its architecture (`applegpu_g13s`); macOS tells it from version 14 on.
    pub architecture: Option<String>,
    /// Version of macOS: major, minor, patch.
    pub os: [u32; 3],
    /// The highest Apple family (7 is M1 and A14), if it is of one.
    pub apple_family: Option<u32>,
    /// Whether it is of family Metal3.
    pub metal3: bool,
    /// Whether it is of family Metal4.
    pub metal4: bool,
    /// Threads of a simdgroup, as a compiled pipeline tells it.
    pub lanes: u32,
    /// Most threads of a threadgroup. A pipeline may allow fewer.
    pub max_threads: u32,
    /// Most threadgroup memory in bytes.
    pub threadgroup_bytes: u64,
    /// GPU cores, as the I/O registry tells it.
    pub cores: u32,
    /// Memory in bytes that may be in use without loss of speed.
    pub memory_bytes: u64,
    /// Largest buffer in bytes.
    pub buffer_bytes: u64,
    /// Whether host and GPU share their memory.
    pub unified_memory: bool,
    /// Sets of counters that it offers. They are for diagnosis; no time comes from them.
    pub counter_sets: Vec<String>,
}

/// The version of macOS from what it tells a process. To programs built for an older system macOS
/// 11 calls itself 10.16, and macOS 26 and later 16 and so on; there are no versions 16 to 25.
pub fn system_version(told: [u32; 3]) -> [u32; 3] {
    match told {
        [10, minor, patch] if minor >= 16 => [11, minor - 16, patch],
        [major @ 16..=25, minor, patch] => [major + 10, minor, patch],
        told => told,
    }
}

impl DeviceFacts {
    /// The newest language version of the system's compiler: the release notes of macOS 11
    /// (MSL 2.3) to 26 (MSL 4.0).
    pub fn newest_language(&self) -> Language {
        let (major, minor) = match self.os[0] {
            0..=10 => (2, 2),
            11 => (2, 3),
            12 => (2, 4),
            13 => (3, 0),
            14 => (3, 1),
            15..=25 => (3, 2),
            _ => (4, 0),
        };
        Language { major, minor }
    }

    /// Whether compile options have a math mode (macOS 15). Before, there was one switch for fast
    /// math.
    pub fn has_math_modes(&self) -> bool {
        self.os[0] >= 15
    }

    /// Whether the GPU and its system have a feature.
    pub fn has(&self, feature: Feature) -> bool {
        let family = self.apple_family.unwrap_or(0);
        match feature {
            Feature::SimdgroupMatrix => family >= 7,
            Feature::Bfloat => (self.metal3 || family >= 6) && self.os[0] >= 14,
            Feature::TensorOperations => self.metal4 && self.os[0] >= 26,
        }
    }

    /// Checks that kernels can be made for this device at all.
    ///
    /// # Errors
    /// [`RuntimeError::DeviceMissing`] that names what it lacks.
    pub fn require(&self) -> Result<(), RuntimeError> {
        let missing =
            |reason: String| Err(RuntimeError::DeviceMissing { device: "metal".into(), reason });
        let name = &self.name;
        if self.newest_language() < Language::BASE {
            return missing(format!(
                "this is macOS {}; kernels need MSL {}, which macOS has from version 11 on",
                self.os_text(),
                Language::BASE
            ));
        }
        if self.lanes != LANES {
            return missing(format!(
                "the {name} has simdgroups of {} threads; kernels are made for {LANES}",
                self.lanes
            ));
        }
        if self.apple_family.is_none_or(|family| family < 7) && !self.metal3 {
            return missing(format!(
                "the {name} is of neither family Apple7 nor Metal3, which reductions over a \
                 simdgroup need"
            ));
        }
        Ok(())
    }

    /// Version of macOS: `15.3.1`.
    pub fn os_text(&self) -> String {
        let [major, minor, patch] = self.os;
        if patch == 0 { format!("{major}.{minor}") } else { format!("{major}.{minor}.{patch}") }
    }

    /// The target: `apple-m1-max` for an Apple M1 Max, so that profiles made for it apply.
    /// Registers and shared memory of a core aren't told and stay unknown; the budgets of private
    /// scalars and fragments are the reference's for every Apple GPU.
    pub fn target(&self) -> Target {
        let mut matrix = Vec::new();
        if self.has(Feature::SimdgroupMatrix) {
            matrix.push(MatrixBasis::Simdgroup);
        }
        if self.has(Feature::TensorOperations) {
            matrix.push(MatrixBasis::Mpp);
        }
        let mut target = Target::apple_m1_max();
        target.name = self.name.trim().to_lowercase().replace(' ', "-");
        if let TargetKind::Gpu(gpu) = &mut target.kind {
            gpu.lanes = self.lanes;
            gpu.max_threads = self.max_threads;
            gpu.shared_bytes = self.threadgroup_bytes;
            gpu.cores = self.cores;
            gpu.matrix = matrix;
        }
        target
    }

    /// What people and JSON are told.
    pub fn capabilities(&self) -> Capabilities {
        let families = [
            self.apple_family.map(|n| format!("Apple{n}")),
            self.metal3.then(|| "Metal3".to_string()),
            self.metal4.then(|| "Metal4".to_string()),
        ];
        let families: Vec<String> = families.into_iter().flatten().collect();
        let mut notes = vec![format!(
            "{} cores; macOS {} with MSL {}; families {}.",
            self.cores,
            self.os_text(),
            self.newest_language(),
            families.join(", ")
        )];
        if !self.has(Feature::TensorOperations) {
            notes.push(
                "No tensor operations: they need family Metal4 and macOS 26. Products use 8x8 \
                 fragments."
                    .to_string(),
            );
        }
        Capabilities {
            name: "metal".to_string(),
            model: self.name.clone(),
            isa: self.architecture.clone().unwrap_or_else(|| {
                self.apple_family.map_or("metal".to_string(), |n| format!("apple{n}"))
            }),
            threads: self.cores as usize * self.max_threads as usize,
            memory_bytes: Some(self.memory_bytes),
            notes,
        }
    }
}

/// What an M1 Max with 32 cores tells under a version of macOS, for tests without one.
#[cfg(test)]
pub(crate) fn m1_max(os: [u32; 3]) -> DeviceFacts {
    DeviceFacts {
        name: "Apple M1 Max".to_string(),
        architecture: (os[0] >= 14).then(|| "applegpu_g13s".to_string()),
        os,
        apple_family: Some(7),
        metal3: true,
        metal4: os[0] >= 26,
        lanes: 32,
        max_threads: 1024,
        threadgroup_bytes: 32768,
        cores: 32,
        memory_bytes: 48 << 30,
        buffer_bytes: 36 << 30,
        unified_memory: true,
        counter_sets: vec!["timestamp".to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_target_is_what_an_m1_max_tells() {
        assert_eq!(m1_max([26, 1, 0]).target(), Target::apple_m1_max());
        let older = m1_max([15, 3, 1]).target();
        let gpu = older.gpu_facts().map(|g| g.matrix.clone());
        assert_eq!(gpu, Some(vec![MatrixBasis::Simdgroup]));
        let fewer = DeviceFacts { cores: 24, ..m1_max([26, 0, 0]) }.target();
        assert_ne!(fewer.hash(), Target::apple_m1_max().hash());
    }

    #[test]
    fn macos_names_itself_differently_to_older_programs() {
        for (told, version) in [
            ([10, 15, 7], [10, 15, 7]),
            ([10, 16, 0], [11, 0, 0]),
            ([15, 7, 1], [15, 7, 1]),
            ([16, 1, 2], [26, 1, 2]),
            ([26, 1, 2], [26, 1, 2]),
        ] {
            assert_eq!(system_version(told), version);
        }
    }

    #[test]
    fn features_follow_family_and_system() {
        use Feature::{Bfloat, SimdgroupMatrix, TensorOperations};
        let has = |os: u32| {
            let facts = m1_max([os, 0, 0]);
            [SimdgroupMatrix, Bfloat, TensorOperations].map(|f| facts.has(f))
        };
        assert_eq!(has(13), [true, false, false]);
        assert_eq!(has(14), [true, true, false]);
        assert_eq!(has(25), [true, true, false]);
        assert_eq!(has(26), [true, true, true]);
        let old = DeviceFacts { metal4: false, ..m1_max([26, 0, 0]) };
        assert!(!old.has(TensorOperations));
        let versions: Vec<String> = [11, 12, 13, 14, 15, 25, 26, 27]
            .map(|os| m1_max([os, 0, 0]).newest_language().to_string())
            .to_vec();
        assert_eq!(versions, ["2.3", "2.4", "3.0", "3.1", "3.2", "3.2", "4.0", "4.0"]);
        assert!(!m1_max([14, 9, 9]).has_math_modes());
        assert!(m1_max([15, 0, 0]).has_math_modes());
    }

    #[test]
    fn a_device_that_kernels_are_not_made_for_is_told_why() {
        assert!(m1_max([11, 0, 0]).require().is_ok());
        let cases = [
            (m1_max([10, 15, 7]), "this is macOS 10.15.7; kernels need MSL 2.3"),
            (DeviceFacts { lanes: 64, ..m1_max([15, 0, 0]) }, "simdgroups of 64 threads"),
            (
                DeviceFacts { apple_family: Some(6), metal3: false, ..m1_max([15, 0, 0]) },
                "neither family Apple7 nor Metal3",
            ),
        ];
        for (facts, part) in cases {
            let text = facts.require().err().map(|e| e.to_string()).unwrap_or_default();
            assert!(text.contains(part), "{text}");
            assert!(text.starts_with("device `metal` is not available: "), "{text}");
        }
    }

    #[test]
    fn capabilities_say_what_matters() {
        let told = m1_max([15, 3, 1]).capabilities();
        assert_eq!((told.name.as_str(), told.isa.as_str()), ("metal", "applegpu_g13s"));
        assert!(told.notes[0].contains("32 cores; macOS 15.3.1 with MSL 3.2"), "{:?}", told.notes);
        assert!(told.notes[1].contains("macOS 26"), "{:?}", told.notes);
        assert_eq!(m1_max([26, 0, 0]).capabilities().notes.len(), 1);
        assert_eq!(m1_max([13, 0, 0]).capabilities().isa, "apple7");
    }
}
