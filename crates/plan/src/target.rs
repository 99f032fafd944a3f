//! Targets: what a planner may know of a machine. Facts only; prices are in `crate::policy`.
//!
//! A fact that isn't known is `None`, never zero. [`Target::hash`] covers every fact, so a plan's
//! key changes whenever one does.

mod builtin;

use serde::{Deserialize, Serialize};

use crate::hash::{Canonical, Hash256};
use crate::mapping::{CpuIsa, MatrixBasis};

/// A machine to plan for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// Name on the command line and in reports: `apple-m1-max`, `nvidia-h200`, `cpu`.
    pub name: String,
    /// Facts of its kind.
    pub kind: TargetKind,
}

/// The two kinds of machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum TargetKind {
    /// Groups of subgroups with shared memory.
    Gpu(GpuFacts),
    /// Cores with vector registers.
    Cpu(CpuFacts),
}

/// Facts of a GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Lanes of a subgroup (warp, simdgroup).
    pub lanes: u32,
    /// Most threads in one group.
    pub max_threads: u32,
    /// Bytes of shared memory that one group may have.
    pub shared_bytes: u64,
    /// Number of cores (SMs).
    pub cores: u32,
    /// 32-bit registers of one core.
    pub registers_per_core: Option<u64>,
    /// Most 32-bit registers of one thread.
    pub registers_per_thread: Option<u64>,
    /// Bytes of shared memory of one core.
    pub shared_bytes_per_core: Option<u64>,
    /// Most threads resident on one core.
    pub threads_per_core: Option<u64>,
    /// Bytes of the second-level cache.
    #[serde(default)]
    pub l2_bytes: Option<u64>,
    /// Most 4-byte scalars that one worker may keep as stripes (the reference's budget is 64).
    pub private_scalars: u64,
    /// Most 4-byte scalars that one lane may keep as matrix fragments (the reference's is 64).
    pub fragment_scalars: u64,
    /// Most groups of a cluster, which reach each other's shared memory; 1: no clusters.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub max_cluster: u32,
    /// Matrix atoms that the planner has a space for on this target.
    pub matrix: Vec<MatrixBasis>,
    /// Whether there is f64 arithmetic.
    pub f64: bool,
}

fn one() -> u32 {
    1
}

fn is_one(n: &u32) -> bool {
    *n == 1
}

impl GpuFacts {
    /// Most subgroups that may share one row: one lane reads each subgroup's partial result, so
    /// no more than a subgroup has lanes, and no more than a group has subgroups (reference 5.1).
    pub fn max_row_subgroups(&self) -> u32 {
        self.max_threads.checked_div(self.lanes).unwrap_or(0).min(self.lanes)
    }

    /// Whether the register file is known. Then occupancy has a closed form, and the target has
    /// the spaces of `crate::space::gpu_rows` and `crate::space::gpu_matrix`.
    pub fn states_registers(&self) -> bool {
        self.registers_per_core.is_some() && self.registers_per_thread.is_some()
    }
}

/// Facts of a CPU. The `cpu` crate detects them on the machine at hand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CpuFacts {
    /// The processor's name for itself.
    pub name: String,
    /// Instruction set to generate.
    pub isa: CpuIsa,
    /// Cores that may be used.
    pub cores: u32,
    /// Bytes of the first-level data cache of a core.
    pub l1_bytes: u64,
    /// Bytes of the second-level cache of a core.
    pub l2_bytes: u64,
    /// Bytes of the last-level cache, shared by the cores; 0 where there is none.
    pub l3_bytes: u64,
    /// Fused multiply-adds of a full vector that a core starts in one cycle.
    pub fma_per_cycle: u32,
    /// Most bytes of scratch that one worker may have. A limit on memory, not a matter of speed.
    pub scratch_bytes: u64,
}

impl CpuFacts {
    /// A processor of which only the instruction set and number of cores are known; the caches
    /// are the smallest that current machines of that kind have.
    pub fn modest(isa: CpuIsa, cores: u32) -> Self {
        CpuFacts {
            name: "unknown".to_string(),
            isa,
            cores,
            l1_bytes: 32 << 10,
            l2_bytes: 512 << 10,
            l3_bytes: 8 << 20,
            fma_per_cycle: if isa == CpuIsa::Portable { 1 } else { 2 },
            scratch_bytes: 1 << 30,
        }
    }

    /// Whether the core takes full vectors in two halves: units, loads and stores are half as wide
    /// as its registers.
    pub fn takes_halves(&self) -> bool {
        self.isa == CpuIsa::Avx512 && self.fma_per_cycle < 2
    }

    /// Bytes of a vector register.
    pub fn vector_bytes(&self) -> u64 {
        self.isa.vector_bytes()
    }

    /// Number of vector registers.
    pub fn registers(&self) -> u32 {
        self.isa.registers()
    }

    /// Elements of a vector register of this size of element (in bytes).
    pub fn lanes(&self, element_bytes: u64) -> u32 {
        (self.isa.vector_bytes() / element_bytes.max(1)) as u32
    }

    /// Elements of each width of vector that a row program may use, the widest first. Every
    /// operation is there on half a register too: with AVX-512 some processors run it at a higher
    /// clock, and short ragged rows waste less of it.
    pub fn widths(&self, element_bytes: u64) -> Vec<u32> {
        let lanes = self.lanes(element_bytes);
        match self.isa {
            CpuIsa::Avx512 => vec![lanes, lanes / 2],
            // A subgroup of two lanes has no code.
            CpuIsa::Avx2 if lanes > 4 => vec![lanes, lanes / 2],
            CpuIsa::Avx2 | CpuIsa::Portable => vec![lanes],
        }
    }
}

/// A name that is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown target `{0}`: use cpu, {known}", known = builtin::NAMES.join(", "))]
pub struct UnknownTarget(pub String);

impl Target {
    /// Names of the targets that [`Target::by_name`] knows. The host CPU is not among them: it
    /// is detected where it is used.
    pub fn names() -> &'static [&'static str] {
        builtin::NAMES
    }

    /// The target of that name.
    ///
    /// # Errors
    /// No built-in target has that name.
    pub fn by_name(name: &str) -> Result<Target, UnknownTarget> {
        match name {
            "apple-m1-max" => Ok(Target::apple_m1_max()),
            "nvidia-h200" => Ok(Target::nvidia_h200()),
            _ => Err(UnknownTarget(name.to_string())),
        }
    }

    /// A CPU with these facts.
    pub fn cpu(facts: CpuFacts) -> Target {
        Target { name: "cpu".to_string(), kind: TargetKind::Cpu(facts) }
    }

    /// The facts if it is a GPU.
    pub fn gpu_facts(&self) -> Option<&GpuFacts> {
        match &self.kind {
            TargetKind::Gpu(facts) => Some(facts),
            TargetKind::Cpu(_) => None,
        }
    }

    /// The facts if it is a CPU.
    pub fn cpu_facts(&self) -> Option<&CpuFacts> {
        match &self.kind {
            TargetKind::Cpu(facts) => Some(facts),
            TargetKind::Gpu(_) => None,
        }
    }

    /// SHA-256 over every fact.
    pub fn hash(&self) -> Hash256 {
        let mut c = Canonical::new("target");
        c.text("name", &self.name);
        match &self.kind {
            TargetKind::Gpu(g) => {
                c.text("class", "gpu")
                    .integer("lanes", g.lanes.into())
                    .integer("max_threads", g.max_threads.into())
                    .integer("shared_bytes", g.shared_bytes)
                    .integer("cores", g.cores.into())
                    .optional("registers_per_core", g.registers_per_core)
                    .optional("registers_per_thread", g.registers_per_thread)
                    .optional("shared_bytes_per_core", g.shared_bytes_per_core)
                    .optional("threads_per_core", g.threads_per_core)
                    .integer("private_scalars", g.private_scalars)
                    .integer("fragment_scalars", g.fragment_scalars)
                    .list("matrix", g.matrix.iter().map(|b| *b as u64))
                    .integer("f64", g.f64.into());
                // Only where it is known, so that keys of other targets stay what they were.
                if g.l2_bytes.is_some() {
                    c.optional("l2_bytes", g.l2_bytes);
                }
            }
            TargetKind::Cpu(f) => {
                c.text("class", "cpu")
                    .text("processor", &f.name)
                    .integer("isa", f.isa as u64)
                    .integer("cores", f.cores.into())
                    .integer("l1_bytes", f.l1_bytes)
                    .integer("l2_bytes", f.l2_bytes)
                    .integer("l3_bytes", f.l3_bytes)
                    .integer("fma_per_cycle", f.fma_per_cycle.into())
                    .integer("scratch_bytes", f.scratch_bytes);
            }
        }
        c.hash()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_gives_its_target() {
        for name in Target::names() {
            assert_eq!(Target::by_name(name).map(|t| t.name), Ok(name.to_string()));
        }
        let error = Target::by_name("m9").map_err(|e| e.to_string());
        assert_eq!(
            error,
            Err("unknown target `m9`: use cpu, apple-m1-max, nvidia-h200".to_string())
        );
    }

    #[test]
    fn every_fact_changes_the_hash() {
        let base = Target::cpu(CpuFacts::modest(CpuIsa::Avx512, 2));
        let mut hashes = vec![base.hash(), Target::apple_m1_max().hash()];
        let edits: [fn(&mut CpuFacts); 8] = [
            |f| f.name.push('x'),
            |f| f.isa = CpuIsa::Avx2,
            |f| f.cores += 1,
            |f| f.l1_bytes += 1,
            |f| f.l2_bytes += 1,
            |f| f.l3_bytes += 1,
            |f| f.fma_per_cycle += 1,
            |f| f.scratch_bytes += 1,
        ];
        for edit in edits {
            let mut facts = CpuFacts::modest(CpuIsa::Avx512, 2);
            edit(&mut facts);
            hashes.push(Target::cpu(facts).hash());
        }
        let mut unknown = Target::nvidia_h200();
        hashes.push(unknown.hash());
        if let TargetKind::Gpu(g) = &mut unknown.kind {
            g.registers_per_core = None;
        }
        hashes.push(unknown.hash());
        let count = hashes.len();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }

    #[test]
    fn a_target_survives_json() {
        for target in [
            Target::apple_m1_max(),
            Target::nvidia_h200(),
            Target::cpu(CpuFacts::modest(CpuIsa::Avx2, 4)),
        ] {
            let text = serde_json::to_string(&target).expect("a target is plain data");
            assert_eq!(serde_json::from_str::<Target>(&text).expect("own text"), target);
        }
    }
}
