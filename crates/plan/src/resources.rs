//! What compilers report of kernels, as data that planning may use.
//!
//! A table's rows are keyed by the SHA-256 of a kernel's text and by the compiler that the report
//! is of. Planning uses a row where there is one, and closed-form upper bounds where there is none.
//! A row only rejects a plan; it never changes the order of a ranking. The table's hash is part of
//! the key of every plan that was made with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::hash::Hash256;
use crate::policy::gpu_matrix::RESERVED_BYTES;
use crate::target::{GpuFacts, Target};

/// The first line of a table's text.
const HEADER: &str = "# tilewright-resources-v1";
/// Its columns.
const COLUMNS: &str =
    "# kernel_sha256\tcompiler\tthreads\tregisters\tspilled_bytes\tshared_bytes\tname";

/// What one kernel uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelResources {
    /// Threads of a group.
    pub threads: u64,
    /// Registers of a thread.
    pub registers: u64,
    /// Bytes of local memory of a thread that hold what has no register.
    pub spilled_bytes: u64,
    /// Bytes of shared memory of a group.
    pub shared_bytes: u64,
}

/// Registers are given to a subgroup in units of this many (compute capability 8.0 and later:
/// CUDA occupancy data).
const REGISTER_UNIT: u64 = 256;
/// Shared memory is given to a group in units of this many bytes.
const SHARED_UNIT: u64 = 128;
/// Most groups that a core holds.
const MOST_GROUPS: u64 = 32;

impl KernelResources {
    /// Groups that a core holds at the same time, by registers, shared memory and threads; 0 where
    /// not even one fits, `None` where the target doesn't state its registers.
    pub fn groups_per_core(&self, gpu: &GpuFacts) -> Option<u64> {
        let (lanes, threads) = (u64::from(gpu.lanes.max(1)), self.threads.max(1));
        let subgroups = threads.div_ceil(lanes);
        let each = (self.registers * lanes).next_multiple_of(REGISTER_UNIT).max(REGISTER_UNIT);
        let by_registers = gpu.registers_per_core? / each / subgroups;
        let shared = (self.shared_bytes + RESERVED_BYTES).next_multiple_of(SHARED_UNIT);
        let by_shared = gpu.shared_bytes_per_core? / shared;
        let by_threads = gpu.threads_per_core? / (subgroups * lanes);
        Some(by_registers.min(by_shared).min(by_threads).min(MOST_GROUPS))
    }
}

/// A row: the report, and what the kernel is of, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The report.
    pub resources: KernelResources,
    /// Op, shape, type and plan, or the kernel's name.
    pub name: String,
}

/// Rows by kernel and compiler.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ResourceTable {
    rows: BTreeMap<(Hash256, String), Row>,
}

/// A text that is no table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line} of a resource table: {fault}")]
pub struct TableError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub fault: String,
}

impl ResourceTable {
    /// The table that is shipped for a target, if there is one.
    pub fn shipped(target: &Target) -> Option<ResourceTable> {
        let text = match target.name.as_str() {
            "nvidia-h200" => include_str!("resources/nvidia-h200.tsv"),
            _ => return None,
        };
        // A test reads every shipped table.
        ResourceTable::parse(text).ok()
    }

    /// Adds a row, or replaces that of the same kernel and compiler.
    pub fn insert(&mut self, kernel: Hash256, compiler: &str, row: Row) {
        self.rows.insert((kernel, compiler.to_string()), row);
    }

    /// The report of a kernel with the compiler that made it: of `compiler` where it has one, else
    /// of the first other in the order of their names.
    pub fn get(&self, kernel: Hash256, compiler: Option<&str>) -> Option<(&str, KernelResources)> {
        if let Some(name) = compiler
            && let Some(((_, name), row)) = self.rows.get_key_value(&(kernel, name.to_string()))
        {
            return Some((name, row.resources));
        }
        let first = self.rows.range((kernel, String::new())..).next();
        first
            .filter(|((hash, _), _)| *hash == kernel)
            .map(|((_, name), row)| (name.as_str(), row.resources))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Every row with its key, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Hash256, &str, &Row)> {
        self.rows.iter().map(|((kernel, compiler), row)| (kernel, compiler.as_str(), row))
    }

    /// The table as text, a row a line.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEADER}\n{COLUMNS}\n");
        for (kernel, compiler, Row { resources: r, name }) in self.iter() {
            let clean = |text: &str| text.replace(['\t', '\n', '\r'], " ");
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "{kernel}\t{}\t{}\t{}\t{}\t{}\t{}",
                clean(compiler),
                r.threads,
                r.registers,
                r.spilled_bytes,
                r.shared_bytes,
                clean(name)
            );
        }
        text
    }

    /// Reads a table.
    ///
    /// # Errors
    /// The first line that is none of a table.
    pub fn parse(text: &str) -> Result<ResourceTable, TableError> {
        let mut table = ResourceTable::default();
        let fault = |line: usize, fault: String| TableError { line, fault };
        if text.lines().next() != Some(HEADER) {
            return Err(fault(1, format!("a table begins with `{HEADER}`")));
        }
        for (number, line) in text.lines().enumerate() {
            if line.starts_with('#') {
                continue;
            }
            let columns: Vec<&str> = line.split('\t').collect();
            let [kernel, compiler, numbers @ .., name] = columns.as_slice() else {
                return Err(fault(number + 1, "a row has seven columns".to_string()));
            };
            let kernel = Hash256::from_hex(kernel)
                .ok_or_else(|| fault(number + 1, format!("`{kernel}` is no SHA-256")))?;
            let numbers: Vec<u64> = numbers.iter().map_while(|n| n.parse().ok()).collect();
            let &[threads, registers, spilled_bytes, shared_bytes] = numbers.as_slice() else {
                let what = "threads, registers, spilled and shared bytes are whole numbers";
                return Err(fault(number + 1, what.to_string()));
            };
            let resources = KernelResources { threads, registers, spilled_bytes, shared_bytes };
            table.insert(kernel, compiler, Row { resources, name: name.to_string() });
        }
        Ok(table)
    }

    /// SHA-256 of the reports; what the rows are called doesn't matter.
    pub fn hash(&self) -> Hash256 {
        let mut c = crate::hash::Canonical::new("resources");
        for (kernel, compiler, Row { resources: r, .. }) in self.iter() {
            c.text(&kernel.to_string(), compiler)
                .list("uses", [r.threads, r.registers, r.spilled_bytes, r.shared_bytes]);
        }
        c.hash()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(registers: u64) -> Row {
        let resources =
            KernelResources { threads: 256, registers, spilled_bytes: 0, shared_bytes: 1024 };
        Row { resources, name: "softmax 37x1537 f32".to_string() }
    }

    fn table() -> ResourceTable {
        let mut table = ResourceTable::default();
        table.insert(Hash256::of(b"a"), "ptxas 13.0 sm_90", row(40));
        table.insert(Hash256::of(b"a"), "driver 12.4 sm_90", row(48));
        table.insert(Hash256::of(b"b"), "ptxas 13.0 sm_90", row(64));
        table
    }

    #[test]
    fn text_holds_the_whole_table() {
        let table = table();
        assert_eq!(ResourceTable::parse(&table.to_text()), Ok(table.clone()));
        let empty = ResourceTable::default();
        assert_eq!(ResourceTable::parse(&empty.to_text()), Ok(empty.clone()));
        assert_ne!(empty.hash(), table.hash());
    }

    #[test]
    fn what_is_no_table_names_the_line() {
        let good = table().to_text();
        let line = |text: &str| ResourceTable::parse(text).unwrap_err().line;
        assert_eq!(line(""), 1);
        assert_eq!(line(&good.replacen("-v1", "-v2", 1)), 1);
        assert_eq!(line(&format!("{good}abc\tx\t1\t2\t3\t4\tn\n")), 6);
        assert_eq!(
            line(&good.replacen("\t40\t", "\tmany\t", 1).replacen("\t48\t", "\t-1\t", 1)),
            4
        );
        assert_eq!(line(&format!("{good}\n")), 6);
    }

    #[test]
    fn the_asked_compiler_comes_first_then_any() {
        let table = table();
        let registers = |kernel: &[u8], compiler| {
            table
                .get(Hash256::of(kernel), compiler)
                .map(|(name, r)| (name.to_string(), r.registers))
        };
        assert_eq!(registers(b"a", Some("ptxas 13.0 sm_90")).unwrap().1, 40);
        assert_eq!(registers(b"a", Some("driver 12.4 sm_90")).unwrap().1, 48);
        assert_eq!(registers(b"a", Some("other")).unwrap().0, "driver 12.4 sm_90");
        assert_eq!(registers(b"b", None).unwrap().1, 64);
        assert_eq!(registers(b"c", None), None);
    }

    #[test]
    fn every_number_changes_the_hash_and_names_do_not() {
        let base = table();
        let with = |change: fn(&mut Row)| {
            let mut row = row(40);
            change(&mut row);
            let mut table = base.clone();
            table.insert(Hash256::of(b"a"), "ptxas 13.0 sm_90", row);
            table.hash()
        };
        assert_eq!(with(|row| row.name.push('x')), base.hash());
        let changes: [fn(&mut Row); 4] = [
            |row| row.resources.threads += 1,
            |row| row.resources.registers += 1,
            |row| row.resources.spilled_bytes += 1,
            |row| row.resources.shared_bytes += 1,
        ];
        for change in changes {
            assert_ne!(with(change), base.hash());
        }
    }

    #[test]
    fn occupancy_is_what_the_driver_tells() {
        let h200 = Target::nvidia_h200();
        let gpu = h200.gpu_facts().unwrap();
        let groups = |threads, registers, shared_bytes| {
            KernelResources { threads, registers, spilled_bytes: 0, shared_bytes }
                .groups_per_core(gpu)
        };
        // Both sides of each limit: threads, registers (units of 8 a thread), shared memory.
        assert_eq!(groups(1024, 32, 0), Some(2));
        assert_eq!(groups(1024, 33, 0), Some(1));
        assert_eq!(groups(1024, 64, 0), Some(1));
        assert_eq!(groups(1024, 65, 0), Some(0));
        assert_eq!(groups(256, 128, 0), Some(2));
        assert_eq!(groups(256, 168, 0), Some(1));
        assert_eq!(groups(32, 16, 0), Some(32));
        assert_eq!(groups(128, 32, 227 << 10), Some(1));
        assert_eq!(groups(128, 32, 113 << 10), Some(2));
        assert_eq!(groups(128, 32, (113 << 10) + 1), Some(1));
        assert_eq!(groups(128, 32, 228 << 10), Some(0));
        let apple = Target::apple_m1_max();
        let one = row(40).resources;
        assert_eq!(one.groups_per_core(apple.gpu_facts().unwrap()), None);
    }

    #[test]
    fn every_shipped_table_can_be_read() {
        for name in Target::names() {
            let target = Target::by_name(name).unwrap();
            let table = ResourceTable::shipped(&target);
            assert_eq!(table.is_some(), *name == "nvidia-h200", "{name}");
        }
        let table = ResourceTable::shipped(&Target::nvidia_h200()).unwrap();
        assert_eq!(table.to_text(), include_str!("resources/nvidia-h200.tsv"));
    }
}
